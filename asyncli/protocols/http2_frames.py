"""Frames of HTTP/2 as bytes (RFC 9113), and requests made of them."""

from __future__ import annotations

import struct

from asyncli.protocols.hpack import WAYS, header_block
from asyncli.protocols.interface import ProtocolError
from asyncli.template import Filled

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20
HEAD_BYTES, MOST_PAYLOAD = 9, 1 << 14
MOST_STREAM = (1 << 31) - 1
#: The frames of a request, each in two parts between which its stream's number belongs.
Frames = list[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class RequestFrames:
    """A HEAD or GET, which a connection says in one of the ways of hpack.py; in each once for all where rows say the same."""

    def __init__(self, filled: Filled, scheme: bytes) -> None:
        self._filled, self._scheme, self.varies = filled, scheme, filled.varies
        self._same = [] if self.varies else [self._made(0, way) for way in WAYS]

    def frames(self, row: int, way: int) -> Frames:
        return self._same[way] if self._same else self._made(row, way)

    def _made(self, row: int, way: int) -> Frames:
        block = header_block(self._filled(row), self._scheme, way)
        parts = [block[at : at + MOST_PAYLOAD] for at in range(0, len(block), MOST_PAYLOAD)]
        frames = []
        for number, part in enumerate(parts):
            flags = (0 if number else END_STREAM) | (END_HEADERS if part is parts[-1] else 0)
            frames.append((frame(CONTINUATION if number else HEADERS, flags, 0, part)[:5], part))
        return frames


def on_stream(frames: Frames, stream: int) -> bytes:
    name = stream.to_bytes(4)
    return b"".join([head + name + part for head, part in frames])


def unpadded(flags: int, payload: bytes) -> bytes:
    """The block of headers in a frame, without priority and padding."""
    padded, before = bool(flags & PADDED), 5 if flags & HAS_PRIORITY else 0
    padding = payload[0] if padded and payload else 0
    if len(payload) < padded + before + padding:
        raise ProtocolError("a frame of headers that is shorter than its padding")
    return payload[padded + before : len(payload) - padding]
