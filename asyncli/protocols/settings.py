"""What a plan sets for its connections, as plain data: one class for each protocol, in the order of
:data:`SETTINGS`.

To add a protocol: its codec beside this file, its class here, and its row in
model/protocol_table.py. What is sent is a template (template.py): an open one, except ``client_id``
and the topics of ``subscribe``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import msgspec

import asyncli
from asyncli.model.mqtt_values import CLIENT_ID
from asyncli.model.plan import Plan
from asyncli.model.tcp_values import unescaped
from asyncli.model.template import Fields
from asyncli.model.values import Target
from asyncli.protocols.interface import Protocol

# Of a WebSocket's request, beside its key (protocols/websocket.py); and what browsers offer.
_UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
_DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"

#: Gives that many random bytes.
Entropy = Callable[[int], bytes]

# ``of`` reads a plan of the protocol. ``new`` makes the codec of one process's connections; a codec
# is imported there, because workers of HTTP/1.1 need not load hashlib (which brings OpenSSL) or
# zlib.


class HttpSettings(msgspec.Struct, frozen=True, tag="http"):
    """``requests``: the bytes of a heartbeat for each URL of the plan."""

    method: str
    requests: tuple[bytes, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(
            plan.method,
            tuple(request_head(plan.method, target, plan.headers) for target in plan.targets),
        )

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.http1 import Http1

        return Http1(self.method, self.requests, fields)


class WebSocketSettings(msgspec.Struct, frozen=True, tag="websocket"):
    """``requests``: the upgrade request for each URL, without its key and the empty line;
    ``message``: the text of a heartbeat, or b"" for pings; ``deflate``: offer permessage-deflate.
    """

    requests: tuple[bytes, ...]
    message: bytes = b""
    deflate: bool = False

    @classmethod
    def of(cls, plan: Plan) -> Self:
        fields = [*plan.headers, *_UPGRADE, *([_DEFLATE] if plan.ws_deflate else ())]
        return cls(_unfinished(plan, fields), (plan.ws_message or "").encode(), plan.ws_deflate)

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.websocket import WebSocket

        codec = WebSocket
        if self.deflate:
            from asyncli.protocols.deflate import Deflated

            codec = Deflated
        return codec(self.requests, entropy, self.message, fields)


class StreamSettings(msgspec.Struct, frozen=True, tag="stream"):
    """``requests``: the request for each URL, without the empty line; ``events``: the answers are
    server-sent events; ``silence_s``: a connection without a byte for longer is dead.
    """

    requests: tuple[bytes, ...]
    events: bool
    silence_s: float

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The request has the headers of a browser's for an event stream, unless the plan sets
        them.
        """
        events = plan.protocol == "sse"
        usual = ["Accept: text/event-stream"] if events else []
        named = _names(plan.headers)
        added = (
            header
            for header in (*usual, "Cache-Control: no-cache")
            if header.partition(":")[0].lower() not in named
        )
        return cls(_unfinished(plan, [*plan.headers, *added]), events, plan.longest_silence_s)

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.sse import Stream

        return Stream(self, fields)


class TcpSettings(msgspec.Struct, frozen=True, tag="tcp"):
    """``send``: the bytes of a heartbeat, b"" for none; ``expect``: its answer, and ``greeting``:
    what the peer sends first, as ``parse_expected`` (model/tcp_values.py) reads them;
    ``silence_s``: without heartbeats, a connection without a byte for longer is dead.
    """

    send: bytes = b""
    expect: str = "any"
    greeting: str = ""
    silence_s: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(
            unescaped(plan.send or ""),
            plan.expect or "any",
            plan.greeting or "",
            plan.longest_silence_s,
        )

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.tcp import Tcp

        return Tcp(self, fields, entropy)


class MqttSettings(msgspec.Struct, frozen=True, tag="mqtt"):
    """``login``: ``user:password``, or ""."""

    version: str
    client_id: str
    keepalive_s: float
    subscribe: tuple[str, ...] = ()
    login: str = ""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        version, client_id = plan.mqtt_version or "3.1.1", plan.mqtt_id or CLIENT_ID
        return cls(version, client_id, plan.keepalive_s, plan.subscribe, plan.mqtt_login or "")

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.mqtt import Mqtt

        return Mqtt(self, fields)


class Http2Settings(msgspec.Struct, frozen=True, tag="http2"):
    """``heads``: a HEAD for each URL, written as in HTTP/1.1; none: heartbeats are pings. ``gets``:
    likewise the GETs of the ``streams`` that each connection holds. ``table``: requests use the
    server's dynamic table.
    """

    heads: tuple[bytes, ...] = ()
    scheme: bytes = b"http"
    gets: tuple[bytes, ...] = ()
    streams: int = 0
    table: bool = False

    @classmethod
    def of(cls, plan: Plan) -> Self:
        heads, gets = (
            tuple(request_head(method, target, plan.headers) for target in plan.targets)
            for method in ("HEAD", "GET")
        )
        scheme = b"https" if plan.targets[0].secure else b"http"
        heads, gets = heads if plan.h2_heartbeat == "head" else (), gets if plan.streams else ()
        return cls(heads, scheme, gets, plan.streams, plan.h2_table)

    def new(self, entropy: Entropy, fields: Fields) -> Protocol:
        from asyncli.protocols.http2 import Http2

        return Http2(self, fields, entropy)


Settings = (
    HttpSettings | Http2Settings | WebSocketSettings | StreamSettings | TcpSettings | MqttSettings
)
#: By a plan's ``protocol``.
SETTINGS: dict[str, type[Settings]] = {
    "http": HttpSettings,
    "http2": Http2Settings,
    "sse": StreamSettings,
    "stream": StreamSettings,
    "websocket": WebSocketSettings,
    "tcp": TcpSettings,
    "mqtt": MqttSettings,
}


def request_head(method: str, target: Target, headers: Sequence[str]) -> bytes:
    """A request of HTTP/1.1 for ``target``, with its empty line; User-Agent and Host are added
    where ``headers`` lack them.
    """
    headers = list(headers)
    named = _names(headers)
    if "user-agent" not in named:
        headers.insert(0, f"User-Agent: asyncli/{asyncli.__version__}")
    if "host" not in named:
        headers.insert(0, f"Host: {target.authority}")
    return "\r\n".join([f"{method} {target.path} HTTP/1.1", *headers, "", ""]).encode("ascii")


def _unfinished(plan: Plan, headers: Sequence[str]) -> tuple[bytes, ...]:
    """A GET for each URL, without the empty line: the connection's own fields follow."""
    return tuple(
        request_head("GET", target, headers).removesuffix(b"\r\n") for target in plan.targets
    )


def _names(headers: Sequence[str]) -> set[str]:
    return {header.partition(":")[0].lower() for header in headers}
