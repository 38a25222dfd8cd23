"""What in a plan does not go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncli.errors import PlanError
from asyncli.spoken import OWN_KEYS, PROTOCOLS
from asyncli.values import TlsOptions, parse_target, parse_url

# Of what asyncli says itself, and what HTTP/2 has no use for (RFC 9113, section 8.2.2).
_NOT_TO_BE_SAID = {
    "websocket": {"upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"},
    "sse": {"last-event-id"},
    "http2": {"proxy-connection", "keep-alive", "upgrade", "te", "http2-settings"},
}


def require_consistent(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """``fields`` of a plan, each with its source. Raises :class:`PlanError`."""
    require_tls(fields, located)
    _require_protocol(fields, located)


def require_tls(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """All URLs of one scheme, and flags of TLS only where it is spoken."""
    schemes = {url.partition("://")[0].lower(): parse_target(url).secure for url in fields["urls"]}
    if len(schemes) > 1:
        raise PlanError(f"{located['urls']}: {' and '.join(sorted(schemes))} in one run; test them one after the other")
    secure = schemes.values()
    said = [located[field] for field in TlsOptions.__struct_fields__ if fields.get(field)]
    if said and True not in secure and not (fields.get("status_url") and parse_url(fields["status_url"]).secure):
        raise PlanError(f"{said[0]}: no URL is over TLS; write https:// or wss://, or leave it out")
    if fields.get("sni") and True not in secure:
        raise PlanError(f"{located['sni']}: no URL is over TLS; write https://, wss:// or tls://, or leave it out")
    if fields.get("client_key") and not fields.get("client_cert"):
        raise PlanError(f"{located['client_key']}: a key without its certificate; write --client-cert FILE beside it")
    if fields.get("insecure") and fields.get("ca"):
        raise PlanError(f"{located['insecure']} and {located['ca']}: nothing is verified, or by this authority; leave one out")
    if (fields.get("tls_min") or "1.2") > (fields.get("tls_max") or "1.3"):
        raise PlanError(f"{located['tls_max']}: below {located['tls_min']}; write the higher version")
    if fields.get("tls_min") == "1.3" and fields.get("tls_ciphers"):
        raise PlanError(f"{located['tls_ciphers']} and {located['tls_min']}: of TLS 1.3 the server chooses; leave one out")


def _ways_to(key: str) -> str:
    """How a plan asks for the protocols that have this field."""
    theirs = [one.flag or f"{one.schemes[0]}://" for one in PROTOCOLS.values() if key in one.keys]
    return "http://" if "http://" in theirs else " or ".join(theirs)


def _require_protocol(fields: Mapping[str, Any], located: Mapping[str, str]) -> None:
    """Nothing that another protocol alone has, and nothing that this one says itself."""
    name = parse_target(fields["urls"][0]).protocol
    if name == "http":
        name = fields.get("http_protocol") or ("http2" if fields.get("http2") else name)
    spoken = PROTOCOLS[name]
    for key in OWN_KEYS:
        if key in located and key not in spoken.keys and fields[key] not in (None, False, "HEAD", ()):
            raise PlanError(f"{located[key]}: only for {_ways_to(key)}, and the connections speak {spoken.title}; leave it out")
    pings = fields.get("h2_heartbeat") != "head" and not fields.get("streams")
    require_headers(name, fields.get("headers", ()), located.get("headers", ""), pings=pings)
    if fields.get("send") is not None and fields.get("silence_s") is not None:
        raise PlanError(f"{located['send']} and {located['silence_s']}: a connection sends heartbeats or listens; leave one out")
    if fields.get("expect") is not None and fields.get("send") is None:
        raise PlanError(f"{located['expect']}: nothing is sent that it answers; write --send BYTES beside it")


def require_headers(protocol: str, headers: Iterable[str], where: str, *, pings: bool) -> None:
    """Headers that ``protocol`` can send; ``pings``: HTTP/2 sends nothing else."""
    if headers and not PROTOCOLS[protocol].asks_by_http:
        raise PlanError(f"{where}: {PROTOCOLS[protocol].title} has no headers; leave it out")
    for one in headers:
        if (header := one.partition(":")[0]).lower() in _NOT_TO_BE_SAID.get(protocol, ()):
            what = f"HTTP/2 allows no {header}" if protocol == "http2" else f"asyncli sets {header} itself"
            raise PlanError(f"{where}: {what}; leave it out")
    if headers and protocol == "http2" and pings:
        raise PlanError(f"{where}: pings have no headers; write --h2-heartbeat head or --streams beside it, or leave it out")
