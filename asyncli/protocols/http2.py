"""HTTP/2, the client's end (RFC 9113): PING as the heartbeat, or a HEAD on a new stream; frames scanned without input or output.

Our SETTINGS leave the server no dynamic table, no push and no window: each block of headers stands alone, and no body comes. A
row is held once the server has acknowledged them, since before that a block may refer to the default table. Of a block only
``:status`` is read. h2 and hpack agree, frame by frame and however the bytes are cut.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from asyncli.protocols.hpack import header_block, status_of
from asyncli.protocols.http1 import MOST_HEAD_BYTES
from asyncli.protocols.interface import ANSWER, ESTABLISHED, LEAVING, NEWS, Event, Protocol, ProtocolError
from asyncli.template import Fields, Filled

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, _PADDED, _HAS_PRIORITY = 0x4, 0x8, 0x20
# Of these a frame has one length, belongs to the connection, or to a stream.
_LENGTHS = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION, _OF_STREAM = (SETTINGS, PING, GOAWAY), (DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION)
_HEAD_BYTES, _MOST_PAYLOAD = 9, 1 << 14
_MOST_STREAM = (1 << 31) - 1
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE, _ENABLE_CONNECT = 1, 2, 4, 5, 6, 8
# Of a server's SETTINGS; of others any value is allowed.
_ALLOWED = {
    _ENABLE_PUSH: (0, 0), _INITIAL_WINDOW_SIZE: (0, _MOST_STREAM), _MAX_FRAME_SIZE: (_MOST_PAYLOAD, (1 << 24) - 1),
    _ENABLE_CONNECT: (0, 1),
}  # fmt: skip
_MOST_STATUS_LINE, _MOST_REPLIES = 200, 1000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


_SETTINGS = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, 0), (_MAX_HEADER_LIST_SIZE, MOST_HEAD_BYTES))
FIRST_WORDS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in _SETTINGS))
_SETTINGS_ACK = frame(SETTINGS, ACK, 0)
# The same for all, so that all its answers are the same bytes.
_BEAT = b"asyncli!"
_PING = frame(PING, 0, 0, _BEAT)


class Http2(Protocol):
    """Heartbeats by PING; or by HEAD, which ``requests`` has for each URL of the plan as HTTP/1.1 says it."""

    def __init__(self, requests: Sequence[bytes], scheme: bytes, fields: Fields) -> None:
        self.heartbeat = None if requests else _PING
        self._scheme, self._requests = scheme, [Filled(request, fields) for request in requests]
        self._heads = [None if one.varies else _headers(header_block(one(0), scheme)) for one in self._requests]
        self._streams = array("I")  # by row: the last one that was opened; 0: none
        self.partial: dict[int, _FrameReader] = {}
        # The last answer to a HEAD that was whole in one frame, without its stream: what follows is mostly the same.
        self._known, self._status = (b"", b""), 0

    def handshake(self, row: int, target: int) -> bytes:
        if self._heads:
            self._streams.extend([0] * (row + 1 - len(self._streams)))
            self._streams[row] = 0
        self.partial[row] = _FrameReader(shakes=True)
        return FIRST_WORDS

    def heartbeat_for(self, row: int, target: int) -> bytes:
        stream = self._streams[row]
        self._streams[row] = stream = stream + 2 if stream else 1
        name = stream.to_bytes(4)
        head = self._heads[target] or _headers(header_block(self._requests[target](row), self._scheme))
        return b"".join([begin + name + part for begin, part in head])

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        frames = self.partial.pop(row, None)
        if not data:
            return None
        stream = self._streams[row] if self._heads else 0
        if frames is None and awaiting and (data[:5], data[9:]) == self._known and data[5:9] == stream.to_bytes(4):
            return Event(self._status, stream < _MOST_STREAM)
        before, frames = frames, frames or _FrameReader()
        frames.feed(data, stream, awaiting)
        event = frames.event()
        if frames.midst:
            self.partial[row] = frames
        elif before is None and stream and frames.read == 1 and event is not None and event.kind == ANSWER:
            self._known, self._status = (data[:5], data[9:]), event.status
        return event


def _headers(block: bytes) -> list[tuple[bytes, bytes]]:
    """The frames of a HEAD with this block, each in two parts between which its stream's number belongs."""
    parts = [block[at : at + _MOST_PAYLOAD] for at in range(0, len(block), _MOST_PAYLOAD)]
    frames = []
    for number, part in enumerate(parts):
        flags = (0 if number else END_STREAM) | (END_HEADERS if part is parts[-1] else 0)
        frames.append((frame(CONTINUATION if number else HEADERS, flags, 0, part)[:5], part))
    return frames


class _FrameReader:
    """One connection in the midst of its handshake, of a frame or of an answer, and what the frames of a read said."""

    __slots__ = (
        "_acknowledged", "_answered", "_block", "_buffer", "_ends", "_goaway", "_last", "_open", "_pinged", "_replies",
        "_settled", "_shakes", "_status", "_stream", "read",
    )  # fmt: skip

    def __init__(self, shakes: bool = False) -> None:
        self._shakes, self._settled, self._acknowledged = shakes, False, False  # the server's SETTINGS came; it took ours
        self._replies: list[bytes] = []  # of a handshake they go out together
        self._buffer = b""
        self._status = 0  # of the answer that has begun
        self._block: bytearray | None = None  # of headers, so far
        self._ends = False  # the stream, with them
        self._goaway: int | None = None  # its code
        self._last = 0  # the last stream that a server which leaves still answers

    @property
    def _granted(self) -> bool:
        return self._settled and self._acknowledged

    @property
    def _leaves(self) -> bool:
        """It has taken leave, and nothing more is awaited of it."""
        return self._goaway is not None and not (self._open and self._answers_before)

    @property
    def _answers_before(self) -> bool:
        """It leaves once this HEAD is answered."""
        return self._goaway == 0 < self._stream <= self._last

    @property
    def midst(self) -> bool:
        if self._shakes:
            return not self._granted
        return not self._leaves and (bool(self._buffer or self._status) or not (self._block is None and self._goaway is None))

    def feed(self, data: bytes, stream: int, awaiting: bool) -> None:
        """``stream``: the last that was opened; ``awaiting``: its answer is not whole yet."""
        self._stream, self._open, self._pinged, self._answered = stream, awaiting and stream > 0, awaiting and not stream, False
        if not self._shakes:
            self._replies = []
        self.read = at = 0
        data = self._buffer + data
        while len(data) - at >= _HEAD_BYTES and not self._leaves and not (self._shakes and self._granted):
            sized, flags, of = struct.unpack_from(">IBI", data, at)
            length, kind, end = sized >> 8, sized & 0xFF, at + _HEAD_BYTES + (sized >> 8)
            if self._shakes and not self._settled and (kind != SETTINGS or flags & ACK or of):
                _require_more(data)
                break
            if length > _MOST_PAYLOAD:
                raise ProtocolError(f"a frame of more than {_MOST_PAYLOAD} bytes")
            if len(data) < end:
                break
            self._take(kind, flags, of & _MOST_STREAM, data[at + _HEAD_BYTES : end])
            self.read, at = self.read + 1, end
        self._buffer = data[at:]

    def event(self) -> Event | None:
        """What the last read said; None: nothing that is whole."""
        reply = b"".join(self._replies)
        if self._shakes:
            if self._goaway is not None:
                raise ProtocolError(f"GOAWAY of code {self._goaway}")
            if len(self._replies) > _MOST_REPLIES:
                raise ProtocolError(f"more than {_MOST_REPLIES} frames before it acknowledged our SETTINGS")
            return Event(0, True, kind=ESTABLISHED, reply=reply, rest=self._buffer) if self._granted else None
        if self._answered and (self._goaway is None or self._answers_before):
            status, self._status = self._status, 0
            return Event(status, self._goaway is None and self._stream < _MOST_STREAM, kind=ANSWER, reply=reply)
        if self._leaves:
            return Event(self._goaway or 0, False, kind=LEAVING)
        return Event(0, True, kind=NEWS, reply=reply) if self.read else None

    def _take(self, kind: int, flags: int, of: int, payload: bytes) -> None:
        """A whole frame. Those of types that nobody knows mean nothing."""
        if self._block is not None and (kind != CONTINUATION or of != self._stream):
            raise ProtocolError("a block of headers that another frame interrupts")
        if len(payload) != _LENGTHS.get(kind, len(payload)) or (of and kind in _OF_CONNECTION) or (not of and kind in _OF_STREAM):
            raise ProtocolError(f"a frame of type {kind} of a wrong length or stream")
        if kind == PING:
            if flags & ACK:
                self._answered |= self._pinged and payload == _BEAT
            else:
                self._replies.append(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._settle(flags, payload)
        elif kind == GOAWAY:
            if len(payload) < 8:
                raise ProtocolError("a GOAWAY that is cut")
            last, self._goaway = struct.unpack_from(">II", payload)
            self._last = last & _MOST_STREAM
        elif kind == PUSH_PROMISE:
            raise ProtocolError("a push, though it was not granted")
        elif kind == WINDOW_UPDATE and not int.from_bytes(payload) & _MOST_STREAM:
            raise ProtocolError("a WINDOW_UPDATE of nothing")
        elif of and kind <= CONTINUATION and kind != PRIORITY:
            self._take_of_stream(kind, flags, of, payload)

    def _settle(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self._acknowledged = True
            if payload:
                raise ProtocolError("an acknowledgement with SETTINGS in it")
            return
        if len(payload) % 6:
            raise ProtocolError("SETTINGS that are cut")
        for name, value in struct.iter_unpack(">HI", payload):
            least, most = _ALLOWED.get(name, (0, value))
            if not least <= value <= most:
                raise ProtocolError(f"SETTINGS of {value} for 0x{name:x}, which may not be")
        self._settled = True
        self._replies.append(_SETTINGS_ACK)

    def _take_of_stream(self, kind: int, flags: int, of: int, payload: bytes) -> None:
        if not of & 1 or of > self._stream:
            raise ProtocolError("a frame of a stream that was never opened")
        opened = self._open and of == self._stream
        if kind == RST_STREAM:
            if opened:
                raise ProtocolError(f"RST_STREAM of code {int.from_bytes(payload)} in place of an answer")
        elif kind == WINDOW_UPDATE:
            pass
        elif not opened:
            raise ProtocolError("a frame of a stream that is over")
        elif kind == DATA:
            if not self._status or payload or flags & _PADDED:
                raise ProtocolError("data, which no HEAD has" if self._status else "data before the headers")
            self._end(flags & END_STREAM)
        else:
            if kind == HEADERS:
                self._block, self._ends = bytearray(), bool(flags & END_STREAM)
                payload = _unpadded(flags, payload)
            if self._block is None:
                raise ProtocolError("a CONTINUATION of nothing")
            self._block += payload
            if len(self._block) > MOST_HEAD_BYTES:
                raise ProtocolError(f"a block of headers of more than {MOST_HEAD_BYTES} bytes")
            if flags & END_HEADERS:
                self._take_headers(bytes(self._block))

    def _take_headers(self, block: bytes) -> None:
        self._block, status = None, status_of(block)
        if self._status:
            if not self._ends:
                raise ProtocolError("trailers that do not end the stream")
        elif status < 100:
            raise ProtocolError("headers without a :status")
        elif status < 200:
            if self._ends:
                raise ProtocolError(f"a stream that ends with {status}")
            return
        else:
            self._status = status
        self._end(self._ends)

    def _end(self, ends: int) -> None:
        if ends:
            self._open, self._answered = False, True


def _require_more(data: bytes) -> None:
    """SETTINGS did not come first: what did, in the words of a report, once its first line is there."""
    line, end, _ = data[:_MOST_STATUS_LINE].partition(b"\n")
    if not data.startswith(b"HTTP/"):
        raise ProtocolError(f"{data[:40]!r} in place of SETTINGS")
    if end or len(data) >= _MOST_STATUS_LINE:
        raise ProtocolError(f"it speaks HTTP/1: {line.decode('latin-1').strip()[:80]}")


def _unpadded(flags: int, payload: bytes) -> bytes:
    """The block of headers in a frame, without priority and padding."""
    padded, before = bool(flags & _PADDED), 5 if flags & _HAS_PRIORITY else 0
    padding = payload[0] if padded and payload else 0
    if len(payload) < padded + before + padding:
        raise ProtocolError("a frame of headers that is shorter than its padding")
    return payload[padded + before : len(payload) - padding]
