"""The protocols that connections speak: by which schemes, and what a plan may say of each."""

from __future__ import annotations

from typing import Literal

import msgspec

Requests = Literal["heartbeats", "connections", "none"]


class Spoken(msgspec.Struct, frozen=True):
    """``title``: in reports. ``schemes``: in the clear, and over TLS, with their usual ``ports``; None: it has none. ``keys``:
    fields of a plan that are its own. ``asks_by_http``: its requests are of HTTP, which have headers. ``requests``: what a server
    of HTTP counts as such; None: nobody knows.
    """

    title: str
    schemes: tuple[str, str]
    ports: tuple[int, int] | None
    keys: tuple[str, ...]
    asks_by_http: bool = False
    requests: Requests | None = None


PROTOCOLS = {
    "http": Spoken("HTTP", ("http", "https"), (80, 443), ("method", "http2", "h2_heartbeat"), True, "heartbeats"),
    "websocket": Spoken("WebSocket", ("ws", "wss"), (80, 443), ("ws_message",), True, "connections"),
    "http2": Spoken("HTTP/2", ("http", "https"), (80, 443), ("http2", "h2_heartbeat"), True, "heartbeats"),
    "tcp": Spoken("TCP", ("tcp", "tls"), None, ("send", "expect", "greeting", "silence_s")),
}
#: What is spoken to URLs of each scheme where the plan says nothing else, and whether over TLS.
SCHEMES: dict[str, tuple[str, bool]] = {}
for _name, _one in PROTOCOLS.items():
    for _place, _scheme in enumerate(_one.schemes):
        SCHEMES.setdefault(_scheme, (_name, bool(_place)))
#: Fields of a plan that some protocols alone have.
OWN_KEYS = tuple(dict.fromkeys(key for one in PROTOCOLS.values() for key in one.keys))


def requests_of(protocol: str, h2_heartbeat: str | None) -> Requests | None:
    """What a server of HTTP counts as requests; None: nobody knows."""
    return "none" if protocol == "http2" and h2_heartbeat != "head" else PROTOCOLS[protocol].requests
