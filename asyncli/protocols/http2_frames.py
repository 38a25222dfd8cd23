"""HTTP/2 frames: those that a client sends, and a reader of those that it receives, without I/O."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from asyncli.model.protocol_table import DATA_OF_HEAD, SECOND_ANSWER, STREAM_RESET, UNREAD
from asyncli.model.template import Filled
from asyncli.model.text import brief, quoted, shortened
from asyncli.protocols.hpack import ENCODINGS, TABLE_BYTES, header_block, status_of
from asyncli.protocols.http1 import MOST_HEAD_BYTES
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, NEWS, Event, ProtocolError

(
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
) = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, _PADDED, _HAS_PRIORITY = 0x4, 0x8, 0x20
# Frame types of fixed length, of the connection, and of a stream.
_LENGTHS = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION, _OF_STREAM = (
    (SETTINGS, PING, GOAWAY),
    (DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION),
)
_HEAD_BYTES, _MOST_PAYLOAD = 9, 1 << 14
MOST_STREAM = (1 << 31) - 1
(
    _HEADER_TABLE_SIZE,
    _ENABLE_PUSH,
    _MAX_STREAMS,
    _INITIAL_WINDOW_SIZE,
    _MAX_FRAME_SIZE,
    _MAX_HEADER_LIST_SIZE,
) = 1, 2, 3, 4, 5, 6
_ENABLE_CONNECT = 8
# The allowed values of a server's SETTINGS; others may have any value.
_ALLOWED = {
    _ENABLE_PUSH: (0, 0),
    _INITIAL_WINDOW_SIZE: (0, MOST_STREAM),
    _MAX_FRAME_SIZE: (_MOST_PAYLOAD, (1 << 24) - 1),
    _ENABLE_CONNECT: (0, 1),
}
_MOST_STATUS_LINE, _MOST_REPLIES = 200, 1000
_CANCEL, _MOST_CODE = 8, 13


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


# The first half of a heartbeat's PING; the second is its nonce.
_BEAT = b"asyn"
_SETTINGS = (
    (_HEADER_TABLE_SIZE, 0),
    (_ENABLE_PUSH, 0),
    (_INITIAL_WINDOW_SIZE, 0),
    (_MAX_HEADER_LIST_SIZE, MOST_HEAD_BYTES),
)
FIRST_WORDS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(
    SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in _SETTINGS)
)
#: A heartbeat's frame, and its answer's, before the nonce.
BEAT_HEAD, PONG_HEAD = (
    frame(PING, 0, 0, _BEAT + bytes(4))[:-4],
    frame(PING, ACK, 0, _BEAT + bytes(4))[:-4],
)
_FLUSH = frame(PING, 0, 0, b"asyncli?")
GOODBYE = frame(GOAWAY, 0, 0, bytes(8))  # no error, and no stream of the server was processed
_SETTINGS_ACK = frame(SETTINGS, ACK, 0)


#: The frames of a request, each as the two parts around its stream's number.
Frames = list[tuple[bytes, bytes]]


class RequestFrames:
    """The frames of a HEAD or GET in each encoding of hpack.py; made once if they are the same for
    all rows.
    """

    def __init__(self, filled: Filled, scheme: bytes) -> None:
        self._filled, self._scheme, self.varies = filled, scheme, filled.varies
        self._same = [] if self.varies else [self._made(0, encoding) for encoding in ENCODINGS]

    def frames(self, row: int, encoding: int) -> Frames:
        return self._same[encoding] if self._same else self._made(row, encoding)

    def _made(self, row: int, encoding: int) -> Frames:
        block = header_block(self._filled(row), self._scheme, encoding)
        parts = [block[at : at + _MOST_PAYLOAD] for at in range(0, len(block), _MOST_PAYLOAD)]
        frames = []
        for number, part in enumerate(parts):
            flags = (0 if number else END_STREAM) | (END_HEADERS if part is parts[-1] else 0)
            frames.append((frame(CONTINUATION if number else HEADERS, flags, 0, part)[:5], part))
        return frames


def on_stream(frames: Frames, stream: int) -> bytes:
    name = stream.to_bytes(4)
    return b"".join([head + name + part for head, part in frames])


def on_streams(first: Frames, others: Frames, streams: Sequence[int]) -> bytes:
    """Requests for streams to hold, and a PING: nginx keeps headers without a body in its TLS
    buffer until it sends more.
    """
    return (
        on_stream(first, streams[0])
        + b"".join(on_stream(others, stream) for stream in streams[1:])
        + _FLUSH
    )


class FrameReader:
    """Reads the frames of one connection. ``held``: the number of streams it holds; ``gone``: a bit
    for each of the first ones that is lost, with the reasons in ``lost``; ``later``: the streams
    that replace them; ``awaited``: unanswered streams; ``asks``: makes the requests of a handshake,
    once the SETTINGS are agreed on. ``shrinks``: the server allows a smaller table; ``allowed``:
    how many streams at once, where it has said so.
    """

    __slots__ = (
        "_acknowledged",
        "_answered",
        "_asks",
        "_beats_by_head",
        "_block",
        "_block_stream",
        "_buffer",
        "_ends",
        "_goaway",
        "_held",
        "_last",
        "_open",
        "_pong",
        "_replies",
        "_settled",
        "_status",
        "_stream",
        "_unprocessed",
        "_why",
        "allowed",
        "awaited",
        "counted",
        "gone",
        "later",
        "lost",
        "pings",
        "read",
        "shakes",
        "shrinks",
    )

    def __init__(
        self, heads: bool, held: int, gone: int, later: array[int], awaited: Iterable[int] = (),
        asks: Callable[[], bytes] | None = None,
    ) -> None:  # fmt: skip
        self.shakes, self.shrinks = asks is not None, False
        self._settled = self._acknowledged = (
            False  # the server's SETTINGS came; it acknowledged ours
        )
        self._beats_by_head, self._held, self._asks = heads, held, asks
        self.allowed: int | None = None
        self.gone, self.later, self.awaited = gone, later, set(awaited)
        self.lost: list[str] = []
        self._replies: list[bytes] = []  # those of a handshake go out together
        self._buffer = b""
        self._status = 0  # of an answer to a HEAD that has begun
        self._block: bytearray | None = None  # the header block so far
        self._block_stream, self._ends = 0, False  # its stream, and whether that ends with it
        self._goaway: int | None = None  # the code of a GOAWAY
        self._why = b""  # and its debug data
        self._last = 0  # and the last stream that the server still answers
        self._unprocessed = False  # which is none of those that are held
        self.counted = False  # as one that drains
        self.pings = (
            not heads
        )  # the heartbeat is a PING: on a connection that drains no stream may be opened

    @property
    def _agreed(self) -> bool:
        return self._settled and self._acknowledged

    @property
    def _granted(self) -> bool:
        return self._agreed and not self.awaited

    @property
    def _leaves(self) -> bool:
        """A GOAWAY has come, no more answers are awaited, and no held stream goes on."""
        return (
            self._goaway is not None
            and not (self._open and self._answers_before)
            and not self.drains
        )

    @property
    def drains(self) -> bool:
        """A GOAWAY without error has come, and held streams go on to their end (RFC 9113, section
        6.8).
        """
        return (
            self._goaway == 0
            and not self._unprocessed
            and self._held + len(self.later) > self.gone.bit_count()
        )

    @property
    def refuses_head(self) -> bool:
        """The server drains, and its GOAWAY came before it had seen the HEAD that is unanswered."""
        return self.drains and self._open and not self._answers_before

    @property
    def _answers_before(self) -> bool:
        """A GOAWAY without error has come, which lets the server still answer this HEAD."""
        return not self.pings and self._goaway == 0 < self._stream <= self._last

    @property
    def in_message(self) -> bool:
        if self.shakes:
            return not self._granted
        amid = bool(self._buffer or self._status or self.awaited) or not (
            self._block is None and self._goaway is None
        )
        return amid and not self._leaves

    def feed(self, data: bytes, stream: int, awaiting: bool, nonce: bytes = b"") -> None:
        """``stream``: the last one opened; ``awaiting``: a heartbeat is unanswered; ``nonce``: what
        its PING carries.
        """
        self._stream, self._open = stream, awaiting and not self.pings
        self._pong = _BEAT + nonce if awaiting and self.pings else None
        self._answered = False
        if not self.shakes:
            self._replies = []
        self.read = at = 0
        data = self._buffer + data
        while (
            len(data) - at >= _HEAD_BYTES
            and not self._leaves
            and not (self.shakes and self._granted)
        ):
            sized, flags, stream_id = struct.unpack_from(">IBI", data, at)
            length, kind, end = sized >> 8, sized & 0xFF, at + _HEAD_BYTES + (sized >> 8)
            if self.shakes and not self._settled and (kind != SETTINGS or flags & ACK or stream_id):
                _require_more(data)
                break
            if length > _MOST_PAYLOAD:
                raise ProtocolError(f"a frame of more than {_MOST_PAYLOAD} bytes")
            if len(data) < end:
                break
            self._take(kind, flags, stream_id & MOST_STREAM, data[at + _HEAD_BYTES : end])
            self.read, at = self.read + 1, end
        self._buffer = data[at:]

    def event(self) -> Event | None:
        """The meaning of the last read; None: no whole frame."""
        if self.shakes:
            return self._of_handshake()
        reply = b"".join(self._replies)
        if self._answered:
            status, self._status = self._status, 0
            if self._leaves and not self._answers_before:
                return Event(status, False, own=True, end=self.farewell())
            stays = (self._goaway is None or self.drains) and self._stream < MOST_STREAM
            return Event(status, stays, kind=ANSWER, reply=reply, own=bool(self.lost))
        if self._leaves:
            return self.farewell()
        return Event(0, True, kind=NEWS, reply=reply) if self.read else None

    def answer(self) -> Event | None:
        """The answer to the heartbeat that this read had so far."""
        return Event(self._status, False, own=True) if self._answered else None

    def farewell(self) -> Event | None:
        """The meaning of the connection's end; None: without a GOAWAY it has none."""
        if self._goaway is None:
            return None
        return Event(self._goaway, False, kind=CLOSING, rest=self._why)

    def _of_handshake(self) -> Event | None:
        if self._goaway is not None:
            raise ProtocolError(f"GOAWAY {self._goaway} {brief(self._why)}".rstrip())
        if len(self._replies) > _MOST_REPLIES:
            raise ProtocolError(
                f"more than {_MOST_REPLIES} frames before it acknowledged our SETTINGS"
            )
        if not (self._granted or (self._agreed and self._asks)):
            return None
        reply, self._asks, self._replies = (
            b"".join((*self._replies, self._asks() if self._asks else b"")),
            None,
            [],
        )
        if not self._granted:
            return Event(0, True, kind=NEWS, reply=reply)
        return Event(0, True, kind=ESTABLISHED, reply=reply, rest=self._buffer)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a whole frame; unknown types are ignored."""
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block_stream):
            raise ProtocolError("a block of headers that another frame interrupts")
        if len(payload) != _LENGTHS.get(kind, len(payload)) or kind in (
            _OF_CONNECTION if stream_id else _OF_STREAM
        ):
            raise ProtocolError(f"a frame of type {kind} of a wrong length or stream")
        if kind == PING:
            if flags & ACK:
                self._answered |= payload == self._pong
            else:
                self._replies.append(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._settle(flags, payload)
        elif kind == GOAWAY:
            if len(payload) < 8:
                raise ProtocolError("a GOAWAY that is cut")
            last, self._goaway = struct.unpack_from(">II", payload)
            self._why = payload[8:]
            self._last = last & MOST_STREAM
            self._lose_unprocessed()
        elif kind == PUSH_PROMISE:
            raise ProtocolError("a push, though our SETTINGS disable it")
        elif kind == WINDOW_UPDATE and not int.from_bytes(payload) & MOST_STREAM:
            raise ProtocolError("a WINDOW_UPDATE of 0")
        elif stream_id and kind <= CONTINUATION and kind != PRIORITY:
            self._take_of_stream(kind, flags, stream_id, payload)

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
                raise ProtocolError(f"SETTINGS of {value} for 0x{name:x}, which is not allowed")
            need = self._held + self._beats_by_head
            self.shrinks |= name == _HEADER_TABLE_SIZE and value < TABLE_BYTES
            if name == _MAX_STREAMS:
                self.allowed = value
            if name == _MAX_STREAMS and value < need and self.shakes and not self._agreed:
                raise ProtocolError(
                    f"MAX_CONCURRENT_STREAMS {value}: {need} needed on a connection"
                )
        self._settled = True
        self._replies.append(_SETTINGS_ACK)

    def _take_of_stream(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1 or stream_id > self._stream or (self.shakes and not self._agreed):
            raise ProtocolError("a frame of a stream that was never opened")
        held, opened = self._is_held(stream_id), self._open and stream_id == self._stream
        if kind == RST_STREAM:
            if held:
                self._lose(
                    stream_id,
                    f"RST_STREAM {code}"
                    if (code := int.from_bytes(payload)) <= _MOST_CODE
                    else "RST_STREAM",
                )
            elif opened:
                raise ProtocolError(
                    f"{STREAM_RESET}{int.from_bytes(payload)} in place of an answer"
                )
        elif kind == WINDOW_UPDATE:
            pass
        elif not (held or opened):
            raise ProtocolError(SECOND_ANSWER if kind == HEADERS else "a frame of a closed stream")
        elif kind == DATA:
            if stream_id in self.awaited if held else not self._status:
                raise ProtocolError("data before the headers")
            if payload or flags & _PADDED:
                raise ProtocolError("data beyond its window" if held else DATA_OF_HEAD)
            self._end(stream_id, flags & END_STREAM)
        else:
            if kind == HEADERS:
                self._block, self._block_stream, self._ends = (
                    bytearray(),
                    stream_id,
                    bool(flags & END_STREAM),
                )
                payload = _unpadded(flags, payload)
            if self._block is None:
                raise ProtocolError("a CONTINUATION without HEADERS")
            self._block += payload
            if len(self._block) > MOST_HEAD_BYTES:
                raise ProtocolError(f"{UNREAD}a block of headers of over {MOST_HEAD_BYTES:,} bytes")
            if flags & END_HEADERS:
                self._take_headers(stream_id, bytes(self._block))

    def _take_headers(self, stream_id: int, block: bytes) -> None:
        self._block, status, held = None, status_of(block), self._is_held(stream_id)
        if stream_id not in self.awaited if held else self._status:
            # Trailers have no :status (RFC 9113, section 8.1).
            if status:
                raise ProtocolError(SECOND_ANSWER)
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
            self.awaited.discard(stream_id)
            if status >= 300:
                self._lose(stream_id, f"status {status}")
                # Cancel the rest of it.
                self._replies += (
                    [] if self._ends else [frame(RST_STREAM, 0, stream_id, _CANCEL.to_bytes(4))]
                )
        self._end(stream_id, self._ends)

    def _end(self, stream_id: int, ends: int) -> None:
        if ends and self._is_held(stream_id):
            self._lose(stream_id, "END_STREAM")
        elif ends:
            self._open, self._answered = False, True

    def _lose_unprocessed(self) -> None:
        """Streams above a GOAWAY's last one were not processed: lost, if others go on. If none
        does, the connection ends.
        """
        firsts = [2 * place + 1 for place in range(self._held) if not self.gone >> place & 1]
        beyond = [stream for stream in (*firsts, *self.later) if stream > self._last]
        if len(beyond) == len(firsts) + len(self.later):
            self._unprocessed = True
            return
        for stream in beyond:
            self._lose(stream, "GOAWAY")

    def _is_held(self, stream_id: int) -> bool:
        """Whether this is or was a held stream."""
        return self._held > 0 and not (self._open and stream_id == self._stream)

    def _lose(self, stream_id: int, why: str) -> None:
        """Record the loss of a held stream; its later frames are ignored."""
        self.awaited.discard(stream_id)
        at = bisect_left(self.later, stream_id)
        if at < len(self.later) and self.later[at] == stream_id:
            # A copy, because a read counts only if all of it is valid.
            self.later = self.later[:]
            del self.later[at]
        elif stream_id < 2 * self._held and not self.gone >> stream_id // 2 & 1:
            self.gone |= 1 << stream_id // 2
        else:
            return
        self.lost.append(why)


def _require_more(data: bytes) -> None:
    """SETTINGS did not come first: raise an error that shows what did, once its first line is
    complete.
    """
    line, end, _ = data[:_MOST_STATUS_LINE].partition(b"\n")
    if not data.startswith(b"HTTP/"):
        raise ProtocolError(f"{quoted(data, 40)} in place of SETTINGS")
    if end or len(data) >= _MOST_STATUS_LINE:
        raise ProtocolError(f"it speaks HTTP/1: {shortened(line.decode('latin-1').strip())}")


def _unpadded(flags: int, payload: bytes) -> bytes:
    """The part of a header block in a frame, without priority and padding."""
    padded, before = bool(flags & _PADDED), 5 if flags & _HAS_PRIORITY else 0
    padding = payload[0] if padded and payload else 0
    if len(payload) < padded + before + padding:
        raise ProtocolError("a frame of headers that is shorter than its padding")
    return payload[padded + before : len(payload) - padding]
