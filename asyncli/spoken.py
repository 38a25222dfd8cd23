"""The protocols that connections speak: their schemes, and the plan fields of each."""

from __future__ import annotations

from typing import Literal

import msgspec

Requests = Literal["heartbeats", "connections", "none"]


class ProtocolFacts(msgspec.Struct, frozen=True):
    """``title``: for reports. ``schemes``: without and with TLS, with their default ``ports``; None: no default. ``keys``: its
    own plan fields. ``asks_by_http``: it sends HTTP requests, which have headers. ``requests``: what an HTTP server counts as
    requests; None: unknown. ``flag``: the flag that selects it, if another protocol has its schemes."""

    title: str
    schemes: tuple[str, str]
    ports: tuple[int, int] | None
    keys: tuple[str, ...]
    asks_by_http: bool = False
    requests: Requests | None = None
    flag: str = ""


_WEB = ("http", "https"), (80, 443)
PROTOCOLS = {
    "http": ProtocolFacts("HTTP", *_WEB, ("method", "http_protocol", "http2"), True, "heartbeats"),
    "http2": ProtocolFacts("HTTP/2", *_WEB, ("http2", "h2_heartbeat", "h2_table", "streams"), True, "heartbeats", "--http2"),
    "sse": ProtocolFacts("Server-sent events", *_WEB, ("http_protocol", "silence_s"), True, "connections", "--protocol sse"),
    "stream": ProtocolFacts("HTTP stream", *_WEB, ("http_protocol", "silence_s"), True, "connections", "--protocol stream"),
    "websocket": ProtocolFacts("WebSocket", ("ws", "wss"), (80, 443), ("ws_message", "ws_deflate"), True, "connections"),
    "tcp": ProtocolFacts("TCP", ("tcp", "tls"), None, ("send", "expect", "greeting", "silence_s")),
    "mqtt": ProtocolFacts("MQTT", ("mqtt", "mqtts"), (1883, 8883), ("mqtt_version", "mqtt_id", "mqtt_login", "subscribe")),
}
#: The values of a plan's ``protocol`` for http:// URLs.
STREAMS = ("sse", "stream")
#: Scheme -> its default protocol, and whether it is over TLS.
SCHEMES = {
    scheme: (name, bool(place))
    for name, one in PROTOCOLS.items() if not one.flag for place, scheme in enumerate(one.schemes)
}  # fmt: skip
#: Refusals: the server speaks another protocol than HTTP/1.1.
SPEAKS_HTTP2, SPEAKS_TLS = "it speaks HTTP/2", "it speaks TLS"
#: How a refusal begins if the server accepts a WebSocket extension that was not offered, or with other parameters.
NOT_OFFERED = "an extension that was not offered"
#: Plan fields that only some protocols have.
OWN_KEYS = tuple(dict.fromkeys(key for one in PROTOCOLS.values() for key in one.keys))


def requests_of(protocol: str, h2_heartbeat: str | None) -> Requests | None:
    """What an HTTP server counts as requests; None: unknown."""
    return "none" if protocol == "http2" and h2_heartbeat != "head" else PROTOCOLS[protocol].requests
