"""The protocols that connections speak: by which schemes, and what a plan may say of each."""

from __future__ import annotations

import msgspec


class Spoken(msgspec.Struct, frozen=True):
    """``title``: in reports. ``schemes``: in the clear, and over TLS, with their usual ``ports``; None: it has none. ``keys``:
    fields of a plan that are its own. ``asks_by_http``: it begins with a request of HTTP, which has headers.
    """

    title: str
    schemes: tuple[str, str]
    ports: tuple[int, int] | None
    keys: tuple[str, ...]
    asks_by_http: bool = False


PROTOCOLS = {
    "http": Spoken("HTTP", ("http", "https"), (80, 443), ("method",), True),
    "websocket": Spoken("WebSocket", ("ws", "wss"), (80, 443), ("ws_message",), True),
    "tcp": Spoken("TCP", ("tcp", "tls"), None, ("send", "expect", "greeting", "silence_s")),
    "mqtt": Spoken("MQTT", ("mqtt", "mqtts"), (1883, 8883), ("mqtt_version", "mqtt_id", "mqtt_login", "subscribe")),
}
#: What is spoken to URLs of each scheme, and whether over TLS.
SCHEMES = {scheme: (name, bool(place)) for name, one in PROTOCOLS.items() for place, scheme in enumerate(one.schemes)}
#: Fields of a plan that some protocols alone have.
OWN_KEYS = tuple(dict.fromkeys(key for one in PROTOCOLS.values() for key in one.keys))
