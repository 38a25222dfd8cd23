"""Refuses plans whose values contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncli.model.errors import PlanError
from asyncli.model.metrics_map import mapped_metric
from asyncli.model.places import UNIX, is_redirected, resolved
from asyncli.model.protocol_table import OWN_KEYS, PROTOCOLS
from asyncli.model.tcp_values import asks_for_nonce
from asyncli.model.template import FIELDS, NONCE, OpenTemplate, Template, unknown_fields
from asyncli.model.units import shown
from asyncli.model.values import AGENT_PORT, TlsOptions, parse_target

#: Plan fields that are open templates, and whether they may be secret; and fields that are
#: templates.
_OPEN_TEXTS = {
    "urls": False,
    "headers": True,
    "send": False,
    "ws_message": False,
    "mqtt_login": True,
}
_TEMPLATES = ("mqtt_id", "subscribe")
# What heartbeats send where an answer may repeat it.
_HEARTBEATS = ("send", "ws_message")
# What only the agent uses, where there is one.
_READ_BY_AGENT = ("status_url", "status_headers", "server_metrics", "metrics_map")
_FLAGS = {"headers": "header", "mqtt_login": "mqtt_login_file"}


def require_consistent(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Raise :class:`PlanError` if ``fields`` of a plan contradict each other; ``located``: each
    field's source.
    """
    _require_one_server(fields, located)
    _require_one_destination(fields, located)
    require_tls(fields, located)
    _require_protocol(fields, located)
    require_fields(fields, located)


def _require_one_server(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    names = _given(fields, ("server_pid", "server_pidfile", "server_name"))
    if len(names) > 1:
        where = _places(names, located)
        raise PlanError(
            f"{where}: name the server once, not {len(names)} times; leave all but one out"
        )
    has_agent = fields.get("agent") is not None
    read_by_agent = _given(fields, (*_READ_BY_AGENT, *names))
    if has_agent and read_by_agent:
        where = _places(read_by_agent, located)
        raise PlanError(
            f"{located['agent']} and {where}: the agent reads the server's pages "
            f"and processes; give {where} to 'asyncli agent'"
        )
    require_pages(fields, located)
    require_collect(fields, located)
    options_of_agent = _given(fields, ("agent_token_file", "agent_ca"))
    if options_of_agent and not has_agent:
        raise PlanError(
            f"{located[options_of_agent[0]]}: there is no agent; "
            f"write --agent http://HOST:{AGENT_PORT}"
        )


def require_pages(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse flags about pages of the server that are not named, and contradictory ones."""
    has_metrics = bool(fields.get("server_metrics"))
    if fields.get("status_headers") and fields.get("status_url") is None and not has_metrics:
        raise PlanError(
            f"{located['status_headers']}: there is no status page; name it with --status-url"
        )
    pages = fields.get("server_metrics") or ()
    if len(set(pages)) < len(pages):
        # Each reading of it would be a request more in the server's counts.
        raise PlanError(f"{located['server_metrics']}: one page is named twice; leave one out")
    mapped = fields.get("metrics_map") or ()
    if mapped and not has_metrics:
        raise PlanError(
            f"{located['metrics_map']}: there is no page of metrics; name it with --server-metrics"
        )
    meanings = [mapped_metric(text).meaning for text in mapped]
    for meaning in set(meanings):
        if meanings.count(meaning) > 1:
            raise PlanError(
                f"{located['metrics_map']}: several metrics for {meaning}; leave out all but one"
            )


#: The fewest plateaus whose collections are a line.
FEWEST_PLATEAUS = 3


def require_collect(
    fields: Mapping[str, Any], located: Mapping[str, str] = {"collect": "--collect"}
) -> None:
    """Refuse collections without rests to ask for them in, and commands about a process of another
    host.
    """
    collect = fields.get("collect")
    if collect is None:
        return
    if fields.get("plateaus", 0) < FEWEST_PLATEAUS:
        raise PlanError(
            f"{located['collect']}: a collection is asked for at the end of each plateau, and "
            "three are a line; add --plateaus 5"
        )
    if "{pid}" in collect and fields.get("agent") is not None:
        raise PlanError(
            f"{located['collect']}: {{pid}} is a process of the agent's host, and the command runs "
            "on this one; write --collect auto, or the process id itself"
        )


def _given(fields: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [name for name in names if fields.get(name)]


def _places(names: Iterable[str], located: Mapping[str, str]) -> str:
    return " and ".join(located[name] for name in names)


def _require_one_destination(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse contradictions between --connect-to, --resolve and --source."""
    place = fields.get("connect_to")
    names = fields.get("resolve")
    if place and names:
        raise PlanError(
            f"{located['connect_to']} and {located['resolve']}: both say where connections go; "
            "leave one out"
        )
    if place and place.startswith(UNIX) and fields.get("sources"):
        raise PlanError(
            f"{located['sources']}: a Unix socket has no source addresses; leave it out"
        )
    targets = [parse_target(url) for url in fields["urls"]]
    hosts_and_ports = {(target.host, target.port) for target in targets}
    if place and not any(is_redirected(target, place) for target in targets):
        raise PlanError(
            f"{located['connect_to']}: no URL has the host and port before the second colon of "
            f"{shown(place)}; write those of one, or leave them empty"
        )
    for host, port in resolved(names or ()).keys() - hosts_and_ports:
        raise PlanError(
            f"{located['resolve']}: no URL has {shown(f'{host}:{port}')}; "
            "write the host and port of one"
        )


def require_tls(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse URLs of several schemes, TLS flags without TLS, and contradictory TLS flags."""
    schemes = {url.partition("://")[0].lower() for url in fields["urls"]}
    if len(schemes) > 1:
        raise PlanError(
            f"{located['urls']}: {' and '.join(sorted(schemes))} in one run; "
            "test them one after the other"
        )
    if not any(parse_target(url).secure for url in fields["urls"]):
        _require_no_tls_flags(fields, located)
    _require_consistent_certificates(fields, located)
    _require_consistent_versions(fields, located)


def _require_no_tls_flags(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse TLS flags where no URL uses TLS. All but --sni may be for a page of the server."""
    pages = (fields.get("status_url") or "", *(fields.get("server_metrics") or ()))
    is_page_secure = any(page.lower().startswith(("https://", "mqtts://")) for page in pages)
    flags = [located[field] for field in TlsOptions.__struct_fields__ if fields.get(field)]
    if flags and not is_page_secure:
        raise PlanError(f"{flags[0]}: no URL uses TLS; write https:// or wss://, or leave it out")
    if fields.get("sni"):
        raise PlanError(
            f"{located['sni']}: no URL uses TLS; write https://, wss:// or tls://, or leave it out"
        )


def _require_consistent_certificates(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    if fields.get("client_key") and not fields.get("client_cert"):
        raise PlanError(
            f"{located['client_key']}: a key without its certificate; "
            "write --client-cert FILE beside it"
        )
    if fields.get("insecure") and fields.get("ca"):
        raise PlanError(
            f"{located['insecure']} and {located['ca']}: verify nothing, or with this authority; "
            "leave one out"
        )


def _require_consistent_versions(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse contradictions between ALPN, versions of TLS and ciphers."""
    if fields.get("alpn") and fields.get("http2"):
        raise PlanError(
            f"{located['alpn']} and {located['http2']}: HTTP/2 is what --http2 offers; "
            "leave one out"
        )
    lowest = fields.get("tls_min") or "1.2"
    highest = fields.get("tls_max") or "1.3"
    if lowest > highest:
        raise PlanError(
            f"{located['tls_max']}: below {located['tls_min']}; write the higher version"
        )
    if fields.get("tls_min") == "1.3" and fields.get("tls_ciphers"):
        raise PlanError(
            f"{located['tls_ciphers']} and {located['tls_min']}: for TLS 1.3 the server chooses; "
            "leave one out"
        )


def plan_templates(
    fields: Mapping[str, Any], columns: Iterable[str] = ()
) -> Iterator[tuple[str, Template]]:
    """The templates of a plan, which are filled in for each connection, with their fields."""
    for field in (*_OPEN_TEXTS, *_TEMPLATES):
        value = fields.get(field) or ()
        for text in (value,) if isinstance(value, str) else value:
            if field in _OPEN_TEXTS:
                yield field, OpenTemplate(text, (*columns, *_own_fields(field)))
            else:
                yield field, Template(text)


def _own_fields(field: str) -> tuple[str, ...]:
    """The template fields that only this field of a plan has."""
    if field in _HEARTBEATS:
        return (NONCE,)
    return ()


def require_fields(
    fields: Mapping[str, Any], located: Mapping[str, str], columns: Sequence[str] | None = None
) -> None:
    """Raise :class:`PlanError` for an unknown field in a template. ``columns``: those of the plan's
    data; None: it has none, or they are not yet read. The error does not show texts that may be
    secret.
    """
    if columns is None and fields.get("data"):
        return
    for field, template in plan_templates(fields, columns or ()):
        unknown = _unknown_field(field, template, columns)
        if not unknown:
            continue
        where = located.get(field) or flag_of(field)
        may_be_secret = _OPEN_TEXTS.get(field)
        named = "a field in it" if may_be_secret else shown(unknown)
        if columns is None:
            raise PlanError(
                f"{where}: {named} is unknown; "
                "write {n}, {n:06d} or {random}, or double the braces to send them"
            )
        raise PlanError(
            f"{where}: {named} is unknown in --data; "
            f"its columns are {', '.join(map(shown, columns[:10]))}; "
            "double the braces to send them"
        )


def _unknown_field(field: str, template: Template, columns: Sequence[str] | None) -> str:
    """The first unknown field of a template, in braces; "" if all are known."""
    if field in _OPEN_TEXTS:
        known = None if columns is None else (*columns, *_own_fields(field))
        return next(iter(unknown_fields(template.text, known)), "")
    unknown = template.names - {*FIELDS, *(columns or ())}
    if not unknown:
        return ""
    return f"{{{min(unknown)}}}"


def flag_of(field: str) -> str:
    """The flag or argument for a field of a plan."""
    if field == "urls":
        return "URL"
    return f"--{_FLAGS.get(field, field).replace('_', '-')}"


def require_alike(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse templates: a bench sends the same request on every connection."""
    for field in ("urls", "headers"):
        if any(OpenTemplate(text).names for text in fields.get(field, ())):
            raise PlanError(
                f"{located[field]}: {{n}} and {{random}} are only for a soak; a bench sends the "
                "same request on all connections; leave them out, or write %7B for a brace"
            )


def _protocols_with(key: str) -> str:
    """The flags or schemes of the protocols that have this plan field."""
    flags = []
    for protocol in PROTOCOLS.values():
        if key in protocol.keys:
            flags.append(protocol.flag or f"{protocol.schemes[0]}://")
    if "http://" in flags:
        return "http://"
    return " or ".join(flags)


def _protocol_name(fields: Mapping[str, Any]) -> str:
    by_scheme = parse_target(fields["urls"][0]).protocol
    if by_scheme != "http":
        return by_scheme
    if fields.get("http_protocol"):
        return str(fields["http_protocol"])
    if fields.get("http2"):
        return "http2"
    return "http"


def _require_protocol(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse values that only other protocols have, and headers that asyncli sets itself."""
    name = _protocol_name(fields)
    protocol = PROTOCOLS[name]
    for key in OWN_KEYS:
        if key not in located or key in protocol.keys:
            continue
        if fields[key] not in (None, False, "HEAD", ()):
            raise PlanError(
                f"{located[key]}: only for {_protocols_with(key)}, not for {protocol.title}; "
                "leave it out"
            )
    pings = fields.get("h2_heartbeat") != "head" and not fields.get("streams")
    require_headers(name, fields.get("headers", ()), located.get("headers", ""), pings=pings)
    if fields.get("h2_table") and pings:
        raise PlanError(
            f"{located['h2_table']}: pings have no headers; "
            "write --h2-heartbeat head or --streams beside it"
        )
    _require_answer(fields, located)


def _require_answer(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse contradictions between --send, --expect and --silence."""
    send = fields.get("send")
    expect = fields.get("expect")
    if send is not None and fields.get("silence_s") is not None:
        raise PlanError(
            f"{located['send']} and {located['silence_s']}: a connection sends heartbeats "
            "or listens; leave one out"
        )
    sends_nonce = NONCE in OpenTemplate(send or "", (NONCE,)).names
    if asks_for_nonce(expect or "") and not sends_nonce:
        raise PlanError(
            f"{located['expect']}: --send has no {{nonce}} that an answer could repeat; "
            "write it there too"
        )
    if expect is not None and send is None:
        raise PlanError(
            f"{located['expect']}: nothing is sent that it could answer; "
            "write --send BYTES beside it"
        )


def require_headers(protocol: str, headers: Iterable[str], where: str, *, pings: bool) -> None:
    """Refuse headers that ``protocol`` cannot send; ``pings``: HTTP/2 heartbeats are pings."""
    if not headers:
        return
    if not PROTOCOLS[protocol].asks_by_http:
        raise PlanError(f"{where}: {PROTOCOLS[protocol].title} has no headers; leave it out")
    for header in headers:
        name = header.partition(":")[0]
        if name.lower() not in PROTOCOLS[protocol].reserved:
            continue
        if protocol == "http2":
            raise PlanError(f"{where}: HTTP/2 allows no {name}; leave it out")
        raise PlanError(f"{where}: asyncli sets {name} itself; leave it out")
    if protocol == "http2" and pings:
        raise PlanError(
            f"{where}: pings have no headers; "
            "write --h2-heartbeat head or --streams beside it, or leave it out"
        )
