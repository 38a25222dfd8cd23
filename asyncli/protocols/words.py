"""What the connections of a run say, as plain data: a kind for each protocol.

What is sent is a template (template.py): an open one, but ``client_id`` and the topics of ``subscribe``.
"""

from __future__ import annotations

import msgspec


class HttpWords(msgspec.Struct, frozen=True, tag="http"):
    """``requests``: the bytes of a heartbeat for each URL of the plan."""

    method: str
    requests: tuple[bytes, ...]


class WebSocketWords(msgspec.Struct, frozen=True, tag="websocket"):
    """``requests``: of each URL the upgrade's request, without its key and the empty line; ``message``: the text of a heartbeat,
    or b"" for pings; ``deflate``: they offer permessage-deflate.
    """

    requests: tuple[bytes, ...]
    message: bytes = b""
    deflate: bool = False


class StreamWords(msgspec.Struct, frozen=True, tag="stream"):
    """``requests``: of each URL the request, without the empty line; ``events``: what answers are server-sent events;
    ``silence_s``: the longest silence that is none.
    """

    requests: tuple[bytes, ...]
    events: bool
    silence_s: float


class TcpWords(msgspec.Struct, frozen=True, tag="tcp"):
    """``send``: the bytes of a heartbeat, b"" for none; ``expect``: its answer, and ``greeting`` what the peer says first, as
    :func:`~asyncli.protocols.tcp.parse_expected` reads them; ``silence_s``: without heartbeats, the longest silence that is none.
    """

    send: bytes = b""
    expect: str = "any"
    greeting: str = ""
    silence_s: float = 0.0


class MqttWords(msgspec.Struct, frozen=True, tag="mqtt"):
    """``login``: ``user:password``, or ""."""

    version: str
    client_id: str
    keepalive_s: float
    subscribe: tuple[str, ...] = ()
    login: str = ""


class Http2Words(msgspec.Struct, frozen=True, tag="http2"):
    """``heads``: of each URL a HEAD, as HTTP/1.1 says it; none: heartbeats are pings. ``gets``: likewise of the GETs that each
    connection holds ``streams`` of. ``table``: they use the server's dynamic table.
    """

    heads: tuple[bytes, ...] = ()
    scheme: bytes = b"http"
    gets: tuple[bytes, ...] = ()
    streams: int = 0
    table: bool = False


Words = HttpWords | Http2Words | WebSocketWords | StreamWords | TcpWords | MqttWords
