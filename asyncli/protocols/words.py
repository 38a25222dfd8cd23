"""What the connections of a run say, as plain data: a kind for each protocol."""

from __future__ import annotations

import msgspec


class HttpWords(msgspec.Struct, frozen=True, tag="http"):
    """``requests``: the bytes of a heartbeat for each URL of the plan."""

    method: str
    requests: tuple[bytes, ...]


class WebSocketWords(msgspec.Struct, frozen=True, tag="websocket"):
    """``requests``: of each URL the upgrade's request, without its key and the empty line; ``message``: the text of a heartbeat,
    or b"" for pings.
    """

    requests: tuple[bytes, ...]
    message: bytes = b""


class TcpWords(msgspec.Struct, frozen=True, tag="tcp"):
    """``send``: the bytes of a heartbeat, b"" for none; ``expect``: its answer, and ``greeting`` what the peer says first, as
    :func:`~asyncli.protocols.tcp.parse_expected` reads them; ``silence_s``: without heartbeats, the longest silence that is none.
    """

    send: bytes = b""
    expect: str = "any"
    greeting: str = ""
    silence_s: float = 0.0


class Http2Words(msgspec.Struct, frozen=True, tag="http2"):
    """``heads``: of each URL the block of headers of a HEAD; none: heartbeats are pings."""

    heads: tuple[bytes, ...] = ()


Words = HttpWords | WebSocketWords | TcpWords | Http2Words
