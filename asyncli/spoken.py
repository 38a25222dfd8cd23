"""The protocols that connections speak: by which schemes, and what a plan may say of each."""

from __future__ import annotations

from typing import Literal

import msgspec


class Spoken(msgspec.Struct, frozen=True):
    """``title``: in reports. ``schemes``: in the clear, and over TLS, with their usual ``ports``; None: it has none. ``keys``:
    fields of a plan that are its own. ``asks_by_http``: it begins with a request of HTTP, which has headers. ``requests``:
    what a server of HTTP counts as such; None: nobody knows.
    """

    title: str
    schemes: tuple[str, str]
    ports: tuple[int, int] | None
    keys: tuple[str, ...]
    asks_by_http: bool = False
    requests: Literal["heartbeats", "connections"] | None = None


PROTOCOLS = {
    "http": Spoken("HTTP", ("http", "https"), (80, 443), ("method", "http_protocol"), True, "heartbeats"),
    "sse": Spoken("Server-sent events", ("http", "https"), (80, 443), ("http_protocol", "silence_s"), True, "connections"),
    "stream": Spoken("HTTP stream", ("http", "https"), (80, 443), ("http_protocol", "silence_s"), True, "connections"),
    "websocket": Spoken("WebSocket", ("ws", "wss"), (80, 443), ("ws_message",), True, "connections"),
    "tcp": Spoken("TCP", ("tcp", "tls"), None, ("send", "expect", "greeting", "silence_s")),
    "mqtt": Spoken("MQTT", ("mqtt", "mqtts"), (1883, 8883), ("mqtt_version", "mqtt_id", "mqtt_login", "subscribe")),
}
#: What a plan's ``protocol`` has http:// URLs speak.
STREAMS = ("sse", "stream")
#: What is spoken to URLs of each scheme, and whether over TLS.
SCHEMES = {
    scheme: (name, bool(place))
    for name, one in PROTOCOLS.items() if name not in STREAMS for place, scheme in enumerate(one.schemes)
}  # fmt: skip
#: Fields of a plan that some protocols alone have.
OWN_KEYS = tuple(dict.fromkeys(key for one in PROTOCOLS.values() for key in one.keys))
