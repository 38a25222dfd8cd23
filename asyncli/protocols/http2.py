"""HTTP/2, the client's end (RFC 9113): PING as the heartbeat, or a HEAD on a new stream; frames scanned without input or output.

Our SETTINGS leave the server no dynamic table, no push and no window: each block of headers stands alone, and no body comes. A
row is held once the server has acknowledged them, since before that a block may refer to the default table; and, where it has
streams, once each of its GETs is answered: the window holds their bodies back, so that they last. Of a block only ``:status`` is
read. h2 and hpack agree, frame by frame and however the bytes are cut.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import partial

from asyncli.protocols.hpack import FILLS, PLAIN, SHRINKS, TABLE_BYTES, THEN, status_of
from asyncli.protocols.http1 import MOST_HEAD_BYTES
from asyncli.protocols.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    MOST_PAYLOAD,
    MOST_STREAM,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RequestFrames,
    frame,
    on_stream,
    unpadded,
)
from asyncli.protocols.interface import ANSWER, ESTABLISHED, LEAVING, NEWS, Event, Protocol, ProtocolError
from asyncli.protocols.words import Http2Words
from asyncli.records import ProtocolCounts
from asyncli.template import Fields, Filled

# Of these a frame has one length, belongs to the connection, or to a stream.
_LENGTHS = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION, _OF_STREAM = (SETTINGS, PING, GOAWAY), (DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION)
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = 1, 2, 3, 4, 5, 6
_ENABLE_CONNECT = 8
# Of a server's SETTINGS; of others any value is allowed.
_ALLOWED = {
    _ENABLE_PUSH: (0, 0), _INITIAL_WINDOW_SIZE: (0, MOST_STREAM), _MAX_FRAME_SIZE: (MOST_PAYLOAD, (1 << 24) - 1),
    _ENABLE_CONNECT: (0, 1),
}  # fmt: skip
_MOST_STATUS_LINE, _MOST_REPLIES = 200, 1000
_CANCEL, _MOST_CODE = 8, 13


_SETTINGS = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, 0), (_MAX_HEADER_LIST_SIZE, MOST_HEAD_BYTES))
FIRST_WORDS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in _SETTINGS))
_SETTINGS_ACK = frame(SETTINGS, ACK, 0)
# The same for all, so that all its answers are the same bytes.
_BEAT = b"asyncli!"
_PING = frame(PING, 0, 0, _BEAT)
_FLUSH = frame(PING, 0, 0, b"asyncli?")
_GOODBYE = frame(GOAWAY, 0, 0, bytes(8))  # no error, and no stream of the server's was taken


class Http2(Protocol):
    """Heartbeats by PING; or by HEAD, which ``words.heads`` has for each URL of the plan. ``words.gets``: likewise of the
    ``words.streams`` GETs that each row holds.
    """

    # To a GOAWAY of the client's nginx does nothing; one that is reset right after it would not be read.
    parting_s = 0.3

    def __init__(self, words: Http2Words, fields: Fields) -> None:
        self._held = words.streams
        self.heartbeat = None if words.heads else _PING
        asked = (words.heads, words.gets)
        self._heads, self._gets = ([RequestFrames(Filled(one, fields), words.scheme) for one in each] for each in asked)
        # By row: how it says its next request (hpack.py).
        self._ways, self._first_way, self._tables = bytearray(), FILLS if words.table else PLAIN, 0
        self._streams = array("I")  # by row: the last one that was opened; 0: none
        self.partial: dict[int, _FrameReader] = {}
        # The last answer to a HEAD that was whole in one frame, without its stream: what follows is mostly the same.
        self._known, self._status = (b"", b""), 0
        # The held ones are 1, 3 and so on, the same in each row; by row a bit for each that is gone.
        self._first, self._width = max(0, 2 * self._held - 1), (self._held + 7) // 8
        self._asked: dict[tuple[int, int], bytes] = {}  # by URL and way, where rows ask alike
        self._none, self._gone = (1 << self._held) - 1, bytearray()
        self._opened, self._lost, self._open = 0, dict[str, int](), 0

    def handshake(self, row: int, target: int) -> bytes:
        if self._heads:
            self._streams.extend([0] * (row + 1 - len(self._streams)))
            self._streams[row] = self._first
        if self._heads or self._held:
            self._ways.extend(bytes(max(0, row + 1 - len(self._ways))))
            self._ways[row] = self._first_way
        if self._held:
            self._gone.extend(b"\xff" * (self._width * (row + 1) - len(self._gone)))
        self.partial[row] = _FrameReader(bool(self._heads), self._held, 0, self._none, partial(self._asks, row, target))
        return FIRST_WORDS

    def heartbeat_for(self, row: int, target: int) -> bytes:
        stream = self._streams[row]
        self._streams[row] = stream = stream + 2 if stream else 1
        return on_stream(self._heads[target].frames(row, self._way(row)), stream)

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        frames = self.partial.pop(row, None)
        if not data:
            return None
        stream = self._streams[row] if self._heads else self._first
        if frames is None and awaiting and (data[:5], data[9:]) == self._known and data[5:9] == stream.to_bytes(4):
            return Event(self._status, stream < MOST_STREAM)
        before, frames = frames, frames or _FrameReader(bool(self._heads), self._held, self._gone_of(row))
        frames.feed(data, stream, awaiting)
        if frames.shrinks and self._ways:
            self._ways[row], frames.shrinks = SHRINKS, False
        event = frames.event()
        if frames.midst:
            self.partial[row] = frames
        elif before is None and self._heads and frames.read == 1 and event is not None and event.kind == ANSWER:
            self._known, self._status = (data[:5], data[9:]), event.status
        granted = event is not None and event.kind == ESTABLISHED
        if self._held and (granted or (frames.lost and not frames.shakes)):
            self._count(row, frames, granted)
        return event

    def goodbye(self, row: int) -> bytes:
        return _GOODBYE

    def _way(self, row: int) -> int:
        """How it says the request that it says now."""
        way = self._ways[row]
        if way != PLAIN:
            self._ways[row] = THEN[way]
            self._tables += way == FILLS
        return way

    def _asks(self, row: int, target: int) -> bytes:
        """For all that a row holds. nginx keeps headers without a body in TLS's buffer until it has more to send, as the answer
        to a ping is.
        """
        if not self._held:
            return b""
        get, way = self._gets[target], self._way(row)
        if (target, way) in self._asked:
            return self._asked[target, way]
        first, frames = get.frames(row, way), get.frames(row, THEN[way])
        asked = on_stream(first, 1) + b"".join(on_stream(frames, 2 * one + 1) for one in range(1, self._held)) + _FLUSH
        if not get.varies:
            self._asked[target, way] = asked
        return asked

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.tables, self._tables = self._tables, 0
        if self._held:
            counts.streams_opened, counts.streams_lost, counts.streams_open = self._opened, self._lost, self._open
            self._opened, self._lost = 0, {}

    def forget(self, row: int) -> None:
        super().forget(row)
        if row * self._width < len(self._gone):
            self._open -= self._held - self._gone_of(row).bit_count()
            self._gone[row * self._width : (row + 1) * self._width] = self._none.to_bytes(self._width)

    def _gone_of(self, row: int) -> int:
        """A bit for each of its held streams that is gone."""
        return int.from_bytes(self._gone[row * self._width : (row + 1) * self._width]) & self._none

    def _count(self, row: int, frames: _FrameReader, granted: bool) -> None:
        """Its streams that have gone in this read; of a handshake also those that were asked for in it."""
        self._opened += self._held if granted else 0
        self._open += (self._held if granted else 0) - len(frames.lost)
        for why in frames.lost:
            self._lost[why] = self._lost.get(why, 0) + 1
        self._gone[row * self._width : (row + 1) * self._width] = frames.gone.to_bytes(self._width)
        frames.lost.clear()


class _FrameReader:
    """One connection in the midst of its handshake, of a frame or of an answer, and what the frames of a read said. ``held``: how
    many streams it holds; ``gone``: a bit for each that is gone, with why in ``lost``; ``awaited``: a bit for each without its
    answer, in a handshake, which says ``asks`` once the SETTINGS are agreed on. ``shrinks``: the server allows a smaller table.
    """

    __slots__ = (
        "_acknowledged", "_answered", "_asks", "_awaited", "_beats_by_head", "_block", "_buffer", "_ends", "_goaway", "_held",
        "_last", "_of", "_open", "_pinged", "_replies", "_settled", "_status", "_stream", "gone", "lost", "read", "shakes",
        "shrinks",
    )  # fmt: skip

    def __init__(self, heads: bool, held: int, gone: int = 0, awaited: int = 0, asks: Callable[[], bytes] | None = None) -> None:
        self.shakes, self.shrinks = asks is not None, False
        self._settled = self._acknowledged = False  # the server's SETTINGS came; it took ours
        self._beats_by_head, self._held, self.gone, self._awaited, self._asks = heads, held, gone, awaited, asks
        self.lost: list[str] = []
        self._replies: list[bytes] = []  # of a handshake they go out together
        self._buffer = b""
        self._status = 0  # of the answer to a HEAD that has begun
        self._block: bytearray | None = None  # of headers, so far
        self._of, self._ends = 0, False  # their stream, and whether it ends with them
        self._goaway: int | None = None  # its code
        self._last = 0  # the last stream that a server which leaves still answers

    @property
    def _agreed(self) -> bool:
        return self._settled and self._acknowledged

    @property
    def _granted(self) -> bool:
        return self._agreed and not self._awaited

    @property
    def _leaves(self) -> bool:
        """It has taken leave, and nothing more is awaited of it."""
        return self._goaway is not None and not (self._open and self._answers_before)

    @property
    def _answers_before(self) -> bool:
        """It leaves once this HEAD is answered."""
        return self._beats_by_head and self._goaway == 0 < self._stream <= self._last

    @property
    def midst(self) -> bool:
        if self.shakes:
            return not self._granted
        return not self._leaves and (bool(self._buffer or self._status) or not (self._block is None and self._goaway is None))

    def feed(self, data: bytes, stream: int, awaiting: bool) -> None:
        """``stream``: the last that was opened; ``awaiting``: the answer to a heartbeat is not whole yet."""
        self._stream, self._open, self._pinged = stream, awaiting and self._beats_by_head, awaiting and not self._beats_by_head
        self._answered = False
        if not self.shakes:
            self._replies = []
        self.read = at = 0
        data = self._buffer + data
        while len(data) - at >= HEAD_BYTES and not self._leaves and not (self.shakes and self._granted):
            sized, flags, of = struct.unpack_from(">IBI", data, at)
            length, kind, end = sized >> 8, sized & 0xFF, at + HEAD_BYTES + (sized >> 8)
            if self.shakes and not self._settled and (kind != SETTINGS or flags & ACK or of):
                _require_more(data)
                break
            if length > MOST_PAYLOAD:
                raise ProtocolError(f"a frame of more than {MOST_PAYLOAD} bytes")
            if len(data) < end:
                break
            self._take(kind, flags, of & MOST_STREAM, data[at + HEAD_BYTES : end])
            self.read, at = self.read + 1, end
        self._buffer = data[at:]

    def event(self) -> Event | None:
        """What the last read said; None: nothing that is whole."""
        if self.shakes:
            return self._of_handshake()
        reply = b"".join(self._replies)
        if self._answered and (self._goaway is None or self._answers_before):
            status, self._status = self._status, 0
            stays = self._goaway is None and self._stream < MOST_STREAM
            return Event(status, stays, kind=ANSWER, reply=reply, own=bool(self.lost))
        if self._leaves:
            return Event(self._goaway or 0, False, kind=LEAVING)
        return Event(0, True, kind=NEWS, reply=reply) if self.read else None

    def _of_handshake(self) -> Event | None:
        if self._goaway is not None:
            raise ProtocolError(f"GOAWAY {self._goaway}")
        if len(self._replies) > _MOST_REPLIES:
            raise ProtocolError(f"more than {_MOST_REPLIES} frames before it acknowledged our SETTINGS")
        if not (self._granted or (self._agreed and self._asks)):
            return None
        reply, self._asks, self._replies = b"".join((*self._replies, self._asks() if self._asks else b"")), None, []
        if not self._granted:
            return Event(0, True, kind=NEWS, reply=reply)
        return Event(0, True, kind=ESTABLISHED, reply=reply, rest=self._buffer)

    def _take(self, kind: int, flags: int, of: int, payload: bytes) -> None:
        """A whole frame. Those of types that nobody knows mean nothing."""
        if self._block is not None and (kind != CONTINUATION or of != self._of):
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
            self._last = last & MOST_STREAM
        elif kind == PUSH_PROMISE:
            raise ProtocolError("a push, though it was not granted")
        elif kind == WINDOW_UPDATE and not int.from_bytes(payload) & MOST_STREAM:
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
            need = self._held + self._beats_by_head
            self.shrinks |= name == _HEADER_TABLE_SIZE and value < TABLE_BYTES
            if name == _MAX_STREAMS and value < need and self.shakes and not self._agreed:
                raise ProtocolError(f"MAX_CONCURRENT_STREAMS {value}: {need} needed on a connection")
        self._settled = True
        self._replies.append(_SETTINGS_ACK)

    def _take_of_stream(self, kind: int, flags: int, of: int, payload: bytes) -> None:
        if not of & 1 or of > self._stream or (self.shakes and not self._agreed):
            raise ProtocolError("a frame of a stream that was never opened")
        held, opened = of < 2 * self._held, self._open and of == self._stream
        if kind == RST_STREAM:
            if held:
                self._lose(of, f"RST_STREAM {code}" if (code := int.from_bytes(payload)) <= _MOST_CODE else "RST_STREAM")
            elif opened:
                raise ProtocolError(f"RST_STREAM of code {int.from_bytes(payload)} in place of an answer")
        elif kind == WINDOW_UPDATE:
            pass
        elif not (held or opened):
            raise ProtocolError("a frame of a stream that is over")
        elif kind == DATA:
            if self._awaited >> of // 2 & 1 if held else not self._status:
                raise ProtocolError("data before the headers")
            if payload or flags & PADDED:
                raise ProtocolError("data beyond its window" if held else "data, which no HEAD has")
            self._end(of, flags & END_STREAM)
        else:
            if kind == HEADERS:
                self._block, self._of, self._ends = bytearray(), of, bool(flags & END_STREAM)
                payload = unpadded(flags, payload)
            if self._block is None:
                raise ProtocolError("a CONTINUATION of nothing")
            self._block += payload
            if len(self._block) > MOST_HEAD_BYTES:
                raise ProtocolError(f"a block of headers of more than {MOST_HEAD_BYTES} bytes")
            if flags & END_HEADERS:
                self._take_headers(of, bytes(self._block))

    def _take_headers(self, of: int, block: bytes) -> None:
        self._block, status, held = None, status_of(block), of < 2 * self._held
        if not self._awaited >> of // 2 & 1 if held else self._status:
            if not self._ends:
                raise ProtocolError("trailers that do not end the stream")
        elif status < 100:
            raise ProtocolError("headers without a :status")
        elif status < 200:
            if self._ends:
                raise ProtocolError(f"a stream that ends with {status}")
            return
        elif not held:
            self._status = status
        else:
            self._awaited &= ~(1 << of // 2)
            if status >= 300:
                self._lose(of, f"status {status}")
                # Nobody waits for the rest of it.
                self._replies += [] if self._ends else [frame(RST_STREAM, 0, of, _CANCEL.to_bytes(4))]
        self._end(of, self._ends)

    def _end(self, of: int, ends: int) -> None:
        if ends and of < 2 * self._held:
            self._lose(of, "END_STREAM")
        elif ends:
            self._open, self._answered = False, True

    def _lose(self, of: int, why: str) -> None:
        """What comes of it after that means nothing."""
        bit = 1 << of // 2
        self._awaited &= ~bit
        if not self.gone & bit:
            self.gone |= bit
            self.lost.append(why)


def _require_more(data: bytes) -> None:
    """SETTINGS did not come first: what did, in the words of a report, once its first line is there."""
    line, end, _ = data[:_MOST_STATUS_LINE].partition(b"\n")
    if not data.startswith(b"HTTP/"):
        raise ProtocolError(f"{data[:40]!r} in place of SETTINGS")
    if end or len(data) >= _MOST_STATUS_LINE:
        raise ProtocolError(f"it speaks HTTP/1: {line.decode('latin-1').strip()[:80]}")
