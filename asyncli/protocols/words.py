"""What the connections of a run send and expect, as plain data: a struct for each protocol.

Bytes to send are templates (template.py): open ones, except ``client_id`` and the topics of ``subscribe``.
"""

from __future__ import annotations

import msgspec


class HttpWords(msgspec.Struct, frozen=True, tag="http"):
    """``requests``: a heartbeat for each URL of the plan."""

    method: str
    requests: tuple[bytes, ...]


class WebSocketWords(msgspec.Struct, frozen=True, tag="websocket"):
    """``requests``: the upgrade request for each URL, without its key and the empty line; ``message``: the text of a heartbeat,
    or b"" for pings; ``deflate``: offer permessage-deflate.
    """

    requests: tuple[bytes, ...]
    message: bytes = b""
    deflate: bool = False


class StreamWords(msgspec.Struct, frozen=True, tag="stream"):
    """``requests``: the request for each URL, without the empty line; ``events``: the answers are server-sent events;
    ``silence_s``: the longest allowed silence.
    """

    requests: tuple[bytes, ...]
    events: bool
    silence_s: float


class TcpWords(msgspec.Struct, frozen=True, tag="tcp"):
    """``send``: a heartbeat, b"" for none; ``expect``: its answer, and ``greeting``: what the peer sends first, both for
    :func:`~asyncli.expected.parse_expected`; ``silence_s``: without heartbeats, the longest allowed silence.
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
    """``heads``: a HEAD for each URL, in HTTP/1.1's form; none: heartbeats are pings. ``gets``: likewise the GETs, of which each
    connection holds ``streams`` open. ``table``: use the server's dynamic table.
    """

    heads: tuple[bytes, ...] = ()
    scheme: bytes = b"http"
    gets: tuple[bytes, ...] = ()
    streams: int = 0
    table: bool = False


Words = HttpWords | Http2Words | WebSocketWords | StreamWords | TcpWords | MqttWords
