"""Refuses plans whose values contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncli.model.errors import PlanError
from asyncli.model.places import UNIX, resolved
from asyncli.model.protocol_table import OWN_KEYS, PROTOCOLS
from asyncli.model.tcp_values import asks_for_nonce
from asyncli.model.template import FIELDS, NONCE, OpenTemplate, Template, unknown_fields
from asyncli.model.units import shown
from asyncli.model.values import AGENT_PORT, TlsOptions, parse_target

#: Plan fields that are open templates, and whether they may be secret; and fields that are templates.
_OPEN_TEXTS = {"urls": False, "headers": True, "send": False, "ws_message": False, "mqtt_login": True}
_TEMPLATES = ("mqtt_id", "subscribe")
# What heartbeats send where an answer may repeat it.
_HEARTBEATS = ("send", "ws_message")
_FLAGS = {"headers": "header", "mqtt_login": "mqtt_login_file"}


def require_consistent(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Raise :class:`PlanError` if ``fields`` of a plan contradict each other; ``located``: each field's source."""
    _require_one_server(fields, located)
    _require_one_destination(fields, located)
    require_tls(fields, located)
    _require_protocol(fields, located)
    require_fields(fields, located)


def _require_one_server(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    named = [field for field in ("server_pid", "server_pidfile", "server_name") if fields.get(field) is not None]
    if len(named) > 1:
        where = " and ".join(located[field] for field in named)
        raise PlanError(f"{where}: name the server once, not {len(named)} times; leave all but one out")
    if fields.get("agent") is not None and (twice := [one for one in ("status_url", *named) if fields.get(one) is not None]):
        where = " and ".join(located[field] for field in twice)
        what = "the agent reads the server's status page and processes"
        raise PlanError(f"{located['agent']} and {where}: {what}; give {where} to 'asyncli agent'")
    if fields.get("status_headers") and fields.get("status_url") is None:
        raise PlanError(f"{located['status_headers']}: there is no status page; name it with --status-url")
    alone = [field for field in ("agent_token_file", "agent_ca") if fields.get(field) is not None and fields.get("agent") is None]
    if alone:
        raise PlanError(f"{located[alone[0]]}: there is no agent; write --agent http://HOST:{AGENT_PORT}")


def _require_one_destination(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse contradictions between --connect-to, --resolve and --source."""
    place, names = fields.get("connect_to"), fields.get("resolve")
    if place and names:
        raise PlanError(f"{located['connect_to']} and {located['resolve']}: both say where connections go; leave one out")
    if place and place.startswith(UNIX) and fields.get("sources"):
        raise PlanError(f"{located['sources']}: a Unix socket has no source addresses; leave it out")
    for host, port in resolved(names or ()).keys() - {(one.host, one.port) for one in map(parse_target, fields["urls"])}:
        raise PlanError(f"{located['resolve']}: no URL has {shown(f'{host}:{port}')}; write the host and port of one")


def require_tls(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse URLs of several schemes, TLS flags without TLS, and contradictory TLS flags."""
    schemes = {url.partition("://")[0].lower(): parse_target(url).secure for url in fields["urls"]}
    if len(schemes) > 1:
        raise PlanError(f"{located['urls']}: {' and '.join(sorted(schemes))} in one run; test them one after the other")
    secure = schemes.values()
    flags = [located[field] for field in TlsOptions.__struct_fields__ if fields.get(field)]
    page_secure = (fields.get("status_url") or "").lower().startswith("https://")
    if flags and True not in secure and not page_secure:
        raise PlanError(f"{flags[0]}: no URL uses TLS; write https:// or wss://, or leave it out")
    if fields.get("sni") and True not in secure:
        raise PlanError(f"{located['sni']}: no URL uses TLS; write https://, wss:// or tls://, or leave it out")
    if fields.get("client_key") and not fields.get("client_cert"):
        raise PlanError(f"{located['client_key']}: a key without its certificate; write --client-cert FILE beside it")
    if fields.get("insecure") and fields.get("ca"):
        raise PlanError(f"{located['insecure']} and {located['ca']}: verify nothing, or with this authority; leave one out")
    if fields.get("alpn") and fields.get("http2"):
        raise PlanError(f"{located['alpn']} and {located['http2']}: HTTP/2 is what --http2 offers; leave one out")
    if (fields.get("tls_min") or "1.2") > (fields.get("tls_max") or "1.3"):
        raise PlanError(f"{located['tls_max']}: below {located['tls_min']}; write the higher version")
    if fields.get("tls_min") == "1.3" and fields.get("tls_ciphers"):
        raise PlanError(f"{located['tls_ciphers']} and {located['tls_min']}: for TLS 1.3 the server chooses; leave one out")


def plan_templates(fields: Mapping[str, Any], columns: Iterable[str] = ()) -> Iterator[tuple[str, Template]]:
    """The templates of a plan, which are filled in for each connection, with their fields."""
    for field in (*_OPEN_TEXTS, *_TEMPLATES):
        value = fields.get(field) or ()
        for text in (value,) if isinstance(value, str) else value:
            own = (NONCE,) if field in _HEARTBEATS else ()
            yield field, OpenTemplate(text, (*columns, *own)) if field in _OPEN_TEXTS else Template(text)


def require_fields(fields: Mapping[str, Any], located: Mapping[str, str], columns: Sequence[str] | None = None) -> None:
    """Raise :class:`PlanError` for an unknown field in a template. ``columns``: those of the plan's data; None: it has none, or
    they are not yet read. The error does not show texts that may be secret."""
    if columns is None and fields.get("data"):
        return
    how = "write {n}, {n:06d} or {random}, or double the braces to send them"
    if columns is not None:
        how = f"its columns are {', '.join(map(shown, columns[:10]))}; double the braces to send them"
    for field, template in plan_templates(fields, columns or ()):
        if field in _OPEN_TEXTS:
            own = (NONCE,) if field in _HEARTBEATS else ()
            wrong = next(iter(unknown_fields(template.text, None if columns is None else (*columns, *own))), "")
        else:
            wrong = "".join(f"{{{name}}}" for name in sorted(template.names - {*FIELDS, *(columns or ())})[:1])
        if wrong:
            where = located.get(field) or flag_of(field)
            what = "a field in it" if _OPEN_TEXTS.get(field) else shown(wrong)
            raise PlanError(f"{where}: {what} is unknown{'' if columns is None else ' in --data'}; {how}")


def flag_of(field: str) -> str:
    """The flag or argument for a field of a plan."""
    return "URL" if field == "urls" else f"--{_FLAGS.get(field, field).replace('_', '-')}"


def require_alike(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse templates: a bench sends the same request on every connection."""
    for field in ("urls", "headers"):
        if any(OpenTemplate(text).names for text in fields.get(field, ())):
            what = "{n} and {random} are only for a soak; a bench sends the same request on all connections"
            raise PlanError(f"{located[field]}: {what}; leave them out, or write %7B for a brace")


def _protocols_with(key: str) -> str:
    """The flags or schemes of the protocols that have this plan field."""
    found = [one.flag or f"{one.schemes[0]}://" for one in PROTOCOLS.values() if key in one.keys]
    return "http://" if "http://" in found else " or ".join(found)


def _require_protocol(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Refuse values that only other protocols have, and headers that asyncli sets itself."""
    name = parse_target(fields["urls"][0]).protocol
    if name == "http":
        name = fields.get("http_protocol") or ("http2" if fields.get("http2") else name)
    spoken = PROTOCOLS[name]
    for key in OWN_KEYS:
        if key in located and key not in spoken.keys and fields[key] not in (None, False, "HEAD", ()):
            raise PlanError(f"{located[key]}: only for {_protocols_with(key)}, not for {spoken.title}; leave it out")
    pings = fields.get("h2_heartbeat") != "head" and not fields.get("streams")
    require_headers(name, fields.get("headers", ()), located.get("headers", ""), pings=pings)
    if fields.get("h2_table") and pings:
        raise PlanError(f"{located['h2_table']}: pings have no headers; write --h2-heartbeat head or --streams beside it")
    if fields.get("send") is not None and fields.get("silence_s") is not None:
        raise PlanError(f"{located['send']} and {located['silence_s']}: a connection sends heartbeats or listens; leave one out")
    if asks_for_nonce(fields.get("expect") or "") and NONCE not in OpenTemplate(fields.get("send") or "", (NONCE,)).names:
        raise PlanError(f"{located['expect']}: --send has no {{nonce}} that an answer could repeat; write it there too")
    if fields.get("expect") is not None and fields.get("send") is None:
        raise PlanError(f"{located['expect']}: nothing is sent that it could answer; write --send BYTES beside it")


def require_headers(protocol: str, headers: Iterable[str], where: str, *, pings: bool) -> None:
    """Refuse headers that ``protocol`` cannot send; ``pings``: HTTP/2 heartbeats are pings."""
    if headers and not PROTOCOLS[protocol].asks_by_http:
        raise PlanError(f"{where}: {PROTOCOLS[protocol].title} has no headers; leave it out")
    for one in headers:
        if (header := one.partition(":")[0]).lower() in PROTOCOLS[protocol].reserved:
            what = f"HTTP/2 allows no {header}" if protocol == "http2" else f"asyncli sets {header} itself"
            raise PlanError(f"{where}: {what}; leave it out")
    if headers and protocol == "http2" and pings:
        raise PlanError(f"{where}: pings have no headers; write --h2-heartbeat head or --streams beside it, or leave it out")
