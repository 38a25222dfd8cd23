"""The protocols that connections speak: by which schemes, and what a plan may say of each."""

from __future__ import annotations

from typing import Literal

import msgspec

Requests = Literal["heartbeats", "connections", "none"]


class ProtocolFacts(msgspec.Struct, frozen=True):
    """``title``: in reports. ``schemes``: in the clear, and over TLS, with their usual ``ports``; None: it has none. ``keys``:
    fields of a plan that are its own. ``asks_by_http``: its requests are of HTTP, which have headers. ``requests``: what a server
    of HTTP counts as such; None: nobody knows. ``flag``: how it is asked for where its schemes are another's.
    """

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
#: What a plan's ``protocol`` has http:// URLs speak.
STREAMS = ("sse", "stream")
#: What is spoken to URLs of each scheme where the plan says nothing else, and whether over TLS.
SCHEMES = {
    scheme: (name, bool(place))
    for name, one in PROTOCOLS.items() if not one.flag for place, scheme in enumerate(one.schemes)
}  # fmt: skip
#: What a server was found to speak in place of HTTP/1.1.
SPEAKS_HTTP2, SPEAKS_TLS = "it speaks HTTP/2", "it speaks TLS"
#: How a refusal begins where a server grants an extension of WebSocket that was not offered, or not so.
NOT_OFFERED = "an extension that was not offered"
#: Fields of a plan that some protocols alone have.
OWN_KEYS = tuple(dict.fromkeys(key for one in PROTOCOLS.values() for key in one.keys))


def requests_of(protocol: str, h2_heartbeat: str | None) -> Requests | None:
    """What a server of HTTP counts as requests; None: nobody knows."""
    return "none" if protocol == "http2" and h2_heartbeat != "head" else PROTOCOLS[protocol].requests
