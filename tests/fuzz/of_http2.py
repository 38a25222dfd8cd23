"""Mutated frames for the HTTP/2 reader, by the grammars of RFC 9113 and HPACK. Checks: any split has one outcome, which is h2's."""

from __future__ import annotations

import struct
from random import Random
from typing import NamedTuple

import hpack
import hpack.hpack
from chance import maybe, mutated
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import DataReceived, Event, InformationalResponseReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError as Refused
from h2.settings import SettingCodes, Settings
from hyperframe.exceptions import HyperframeError
from of_http1 import pieces

from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.hpack import header_block
from asyncli.protocols.http2 import Http2
from asyncli.protocols.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, ProtocolError
from asyncli.protocols.interface import Event as FrameEvent
from asyncli.protocols.settings import Http2Settings

_BEAT = b"asyncli!"
_ASK = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
_MOST = (1 << 31) - 1
_BLOCK = header_block(_ASK, b"http")
# The requests of held streams, for the default table and for a smaller one.
_ASKS = tuple(
    b"".join(frame(HEADERS, END_HEADERS | END_STREAM, stream, block) for stream, block in ((1, first), (3, _BLOCK))) + frame(PING, 0, 0, b"asyncli?")
    for first in (_BLOCK, b"\x20" + _BLOCK)
)


class Case(NamedTuple):
    """``data`` from its first byte on, read in pieces at ``cuts``; ``heads``: the heartbeat is a HEAD, else a ping; ``held``: the
    connection holds two streams.
    """

    data: bytes
    cuts: tuple[int, ...]
    heads: bool
    held: bool = False


class Outcome(NamedTuple):
    """``left``: the code of a GOAWAY, 0 after a last answer; ``error``: the stream ended in one."""

    granted: bool
    replies: bytes
    status: int | None
    left: int | None
    error: bool
    #: The reasons why held streams ended.
    lost: tuple[str, ...] = ()


# -- frames


def generate(chance: Random) -> Case:
    """A handshake and some frames as servers send them, some of them invalid, perhaps mutated, in pieces."""
    heads = maybe(chance, 2)
    held = not heads and maybe(chance, 2)
    data = frame(SETTINGS, 0, 0, _settings(chance)) + (_control(chance) if maybe(chance, 4) else b"") + frame(SETTINGS, ACK, 0)
    after = [_control(chance) for _ in range(chance.randrange(3))]
    if heads and not maybe(chance, 4):
        after.insert(chance.randrange(len(after) + 1), _answer(chance))
    for stream in (chance.choice(((1, 3), (3, 1))) if held else ()):
        after.insert(chance.randrange(len(after) + 1), _answer(chance, stream, lasts=not maybe(chance, 4)))
    if held and maybe(chance, 2):
        after.append(frame(*chance.choice(((RST_STREAM, 0, 1, b"\0\0\0\7"), (DATA, END_STREAM, 3, b""), (DATA, 0, 3, b""), (DATA, 0, 1, b"x")))))
        after.append(frame(PING, ACK, 0, _BEAT))
    data += b"".join(after)
    if maybe(chance, 40):
        data = chance.choice((b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.1 505 ", b"HTTP/", b"+OK hello\r\n", data[9:]))
    if maybe(chance, 4):
        data = mutated(chance, data)
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    return Case(data, tuple(range(1, len(data))) if maybe(chance, 8) else cuts, heads, held)


def _settings(chance: Random) -> bytes:
    values = {1: (0, 4096), 2: (0, 0, 0, 1), 3: (100, 0), 4: (0, 65_535, _MOST, 1 << 31), 5: (16_384, 1 << 24, 100, (1 << 24) - 1), 6: (100,), 8: (0, 1, 2), 77: (5,)}
    names = [chance.choice((3, 3, 4, 5, 6, 1, 77, *values)) for _ in range(chance.randrange(4))]
    return b"".join(struct.pack(">HI", name, values[name][0] if not maybe(chance, 8) else chance.choice(values[name])) for name in names)


def _control(chance: Random) -> bytes:
    """A frame that is allowed at any time, or never."""
    stream = 0 if not maybe(chance, 30) else chance.choice((1, 2, 3))
    match chance.randrange(8):
        case 0 | 1:
            payload = chance.choice((_BEAT, _BEAT, b"others'!", b"short"[: 0 if maybe(chance, 20) else 5] + b"..."))
            return frame(PING, chance.choice((0, ACK)), stream, payload)
        case 2:
            return frame(SETTINGS, ACK if maybe(chance, 8) else 0, stream, _settings(chance) if not maybe(chance, 20) else b"12345")
        case 3:
            return frame(WINDOW_UPDATE, 0, chance.choice((0, 1)), chance.choice((1, 1, 100, _MOST, 0 if maybe(chance, 4) else 5)).to_bytes(4))
        case 4:
            return frame(chance.choice((10, 16, 200)), 0, chance.choice((0, 1, 2)), b"nobody knows")
        case 5:
            return frame(PRIORITY, 0, chance.choice((1, 3, 5, stream)), bytes(5 if not maybe(chance, 20) else 4))
        case 6 if maybe(chance, 3):
            last, code = chance.choice((0, 1, 1, _MOST)), chance.choice((0, 0, 0, 2, 11, 99))
            return frame(GOAWAY, 0, stream, struct.pack(">II", last, code) + chance.choice((b"", b"why")))
        case 7 if maybe(chance, 4):
            kind = chance.choice((DATA, HEADERS, RST_STREAM, PUSH_PROMISE, CONTINUATION, PING))
            return frame(kind, chance.choice((0, 1, 4, 5)), chance.choice((0, 1, 1, 2, 3)), b"" if maybe(chance, 2) else bytes(4))
    return frame(PING, 0, 0, b"12345678")


def _answer(chance: Random, stream: int = 1, *, lasts: bool = False) -> bytes:
    """Headers, perhaps after informational ones, and the end of the stream, unless it ``lasts``."""
    made = b""
    while maybe(chance, 5):
        made += _headers(chance, [(":status", chance.choice(("100", "103", "103")))], maybe(chance, 20), stream)
    fields = [(":status", str(chance.choice((200, 200, 204, 206, 304, 400, 404, 500, 201, 302, 503, 999)))), *_fields(chance)]
    if maybe(chance, 20):
        fields = chance.choice((fields[1:], [*fields[1:], fields[0]], [(":status", "20")], [(":status", "2xx")], [(":status", "0200")], [(":status", "020")]))
    ends = not lasts and not maybe(chance, 3)
    made += _headers(chance, fields, ends, stream)
    if not ends and not lasts and not maybe(chance, 6):
        made += frame(DATA, 0, stream) if maybe(chance, 4) else b""
        if maybe(chance, 3):
            made += _headers(chance, [("x-sum", "1")], not maybe(chance, 8), stream)
        else:
            made += frame(DATA, END_STREAM | (8 if maybe(chance, 12) else 0), stream, b"" if not maybe(chance, 8) else bytes(chance.randrange(4)))
    return made


def _fields(chance: Random) -> list[tuple[str, str]]:
    some = [("server", "nginx"), ("date", "Mon, 23 Nov 2026 19:04:38 GMT"), ("x-" + "y" * 130, "z" * 300), ("content-length", "3"), ("set-cookie", "a=b")]
    return [chance.choice(some) for _ in range(chance.randrange(4))]


def _headers(chance: Random, fields: list[tuple[str, str]], ends: bool, stream: int) -> bytes:
    """Headers in one frame or several, perhaps with padding and priority."""
    encoder = hpack.Encoder()
    if maybe(chance, 2):
        encoder.header_table_size = 0
    if maybe(chance, 20):
        encoder.encode(fields)
    block = encoder.encode(fields, huffman=maybe(chance, 2))
    if maybe(chance, 12):
        block = chance.choice((b"\x20", b"\x20\x20", b"\x3f\xe1\x1f", b"\x21")) + block
    if maybe(chance, 12):
        block += chance.choice((b"\x80", b"\xbe", b"\xff\x80\x80\x80\x00", b"\x7f\x80", b"\x20", b"\x10\x01a\x01b", b"\x01", b"\xbd", b"\x0f\x2f\x00"))
    flags, first, padding = END_STREAM if ends else 0, b"", 0
    if maybe(chance, 5):
        flags, padding = flags | 0x8, chance.choice((0, 1, 9, 255 if maybe(chance, 8) else 3))
        first = bytes((padding,))
    if maybe(chance, 5):
        flags, first = flags | 0x20, first + bytes(5)
    parts = [block]
    while maybe(chance, 4):
        at = chance.randrange(len(parts[-1]) + 1)
        parts[-1:] = [parts[-1][:at], parts[-1][at:]]
    pads = [b"" if maybe(chance, 40) else (bytes(padding) if not number else b"") for number in range(len(parts))]
    made = frame(HEADERS, flags | (END_HEADERS if len(parts) == 1 else 0), stream, first + parts[0] + pads[0])
    for number, part in enumerate(parts[1:], 2):
        made += _control(chance) if maybe(chance, 40) else b""
        made += frame(CONTINUATION, END_HEADERS if number == len(parts) and not maybe(chance, 20) else 0, stream, part)
    return made


# -- checks


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    whole, cut, expected = read([case.data], case), read(pieces(case.data, case.cuts), case), oracle(case)
    expected = whole if expected is None else expected
    shown = f"in pieces {cut}, whole {whole}, h2 says {expected}"
    assert whole.error == cut.error == expected.error, shown
    if whole.error:
        # Events before the error, in the same read, do not count.
        return "refused"
    each = [whole, cut, expected]
    if whole.left is not None:
        # Nor do replies with a GOAWAY.
        each = [one._replace(replies=b"") for one in each]
    assert each[0] == each[1] == each[2], shown
    return f"accepted{', and left' if whole.left is not None else ''}" if whole.granted else "waits"


def _nonce(size: int) -> bytes:
    """Entropy that makes each ping carry :data:`_BEAT`."""
    return (_BEAT[4:] * size)[:size]


def read(parts: list[bytes], case: Case) -> Outcome:
    """The outcome of our reader."""
    protocol = Http2(Http2Settings((_ASK,) if case.heads else (), b"http", (_ASK,) if case.held else (), 2 * case.held), Fields(), _nonce)
    outcome = _read(protocol, parts, case.heads)
    protocol.add_counts(counts := ProtocolCounts())
    assert counts.streams_open == counts.streams_opened - sum(counts.streams_lost.values()) == 2 * (outcome.granted and case.held) - sum(counts.streams_lost.values())
    assert bool(protocol.partial) <= (not outcome.error)
    protocol.forget(0)
    protocol.add_counts(counts_after := ProtocolCounts())
    assert counts_after.streams_open == 0
    lost = tuple(sorted(why for why, count in counts.streams_lost.items() for _ in range(count)))
    # Its requests go out before or between the replies of its handshake.
    replies = outcome.replies.replace(_ASKS[0], b"").replace(_ASKS[1], b"")
    return outcome._replace(replies=replies if outcome.granted else b"", lost=lost)


def _read(protocol: Http2, parts: list[bytes], heads: bool) -> Outcome:
    protocol.handshake(0, 0)
    outcome, awaiting = Outcome(False, b"", None, None, False), False
    parts = list(filter(None, parts))
    try:
        while parts:
            event = protocol.feed(0, parts.pop(0), awaiting)
            if event is None:
                continue
            outcome = outcome._replace(replies=outcome.replies + event.reply)
            if event.kind == ESTABLISHED:
                assert not protocol.partial
                outcome, awaiting = outcome._replace(granted=True), True
                parts[:0] = [event.rest] if event.rest else []
                if heads:
                    protocol.heartbeat_for(0, 0)
            elif event.kind == ANSWER:
                left = event.end.status if isinstance(event.end, FrameEvent) else 0
                outcome, awaiting = outcome._replace(status=event.status, left=None if event.keep_alive else left), False
            elif event.kind == CLOSING:
                outcome = outcome._replace(left=event.status)
            if outcome.left is not None:
                return outcome
    except ProtocolError as error:
        assert len(str(error)) < 300
        return outcome._replace(error=True)
    return outcome


_huffman = hpack.hpack.decode_huffman


def _lenient(data: bytes) -> bytes:
    try:
        return bytes(_huffman(data))
    except hpack.HPACKDecodingError:
        return b"?"  # we read only :status


hpack.hpack.decode_huffman = _lenient


def oracle(case: Case) -> Outcome | None:
    """h2's outcome, frame by frame; None: h2 checks something that we do not."""
    data, outcome = case.data, Outcome(False, b"", None, None, False)
    if data.startswith(b"HTTP/") and len(data) >= 9:
        return outcome._replace(error=b"\n" in data[:200] or len(data) >= 200)
    peer, at = _Peer(case.heads, case.held), 0
    while len(data) - at >= 9 and peer.left is None:
        size, kind, stream = int.from_bytes(data[at : at + 3]), data[at + 3], int.from_bytes(data[at + 5 : at + 9])
        first = not peer.settled and (kind != SETTINGS or data[at + 4] & ACK or stream)
        if first or size > 16_384:
            return outcome._replace(error=True)
        if len(data) - at < 9 + size:
            break
        try:
            peer.take(kind, data[at + 4], stream & _MOST, data[at : at + 9 + size])
        except (Refused, HyperframeError):
            return outcome._replace(error=True)
        except _NothingError:
            return None
        at += 9 + size
    lost = tuple(sorted(peer.lost)) if peer.granted else ()
    return Outcome(peer.granted, peer.replies if peer.granted else b"", peer.status if peer.answered else None, peer.left, False, lost)


class _NothingError(Exception):
    """A frame of a lost stream, which h2 checks and we ignore."""


class _Peer:
    """h2's client, with an unanswered HEAD or ping from the handshake on."""

    def __init__(self, heads: bool, held: bool) -> None:
        self._conn = conn = H2Connection(H2Configuration(client_side=True, validate_inbound_headers=False, normalize_inbound_headers=False, header_encoding=None))
        conn.local_settings = Settings(client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: 0})
        conn.initiate_connection()
        conn.decoder.header_table_size = conn.decoder.max_allowed_table_size = 0
        conn.decoder.max_header_list_size = 1 << 30
        if heads:
            conn.send_headers(1, [(":method", "HEAD"), (":scheme", "http"), (":path", "/"), (":authority", "a")], end_stream=True)
        self.heads, self.settled, self.acknowledged, self.replies = heads, False, False, b""
        self.status: int | None = None
        self.left: int | None = None
        self.answered, self._last, self._block = False, 0, False
        self.held, self.waits, self.gone, self.lost = held, {1, 3} if held else set(), set[int](), list[str]()

    @property
    def agreed(self) -> bool:
        return self.settled and self.acknowledged

    @property
    def granted(self) -> bool:
        return self.agreed and not self.waits

    def take(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        """Handle a whole frame. Raises what h2 raises, and :class:`Refused` for what only we refuse."""
        payload = data[9:]
        self._look(kind, flags, stream, payload)
        if kind == HEADERS and flags & 0x20 and len(payload) - bool(flags & 8) >= 5 and not self._block:
            # h2 checks the dependencies of priorities, which RFC 9113 ignores.
            place = 9 + bool(flags & 8)
            data = data[:place] + bytes(5) + data[place + 5 :]
            if flags & 8 and payload[0] + 6 > len(payload):
                raise Refused
            payload = data[9:]
        if kind == HEADERS and flags & 8 and not self._block and 0 < len(payload) == payload[0] + (6 if flags & 0x20 else 1):
            # h2 refuses padding of an empty block.
            data = frame(HEADERS, flags & ~8, stream, payload[1 : len(payload) - payload[0]])
        if kind in (DATA, HEADERS) and stream and self.answered and self.heads and not self._block:
            raise Refused  # h2 waits for the whole block, and resets the stream after data
        judged = not self._block and ((kind > CONTINUATION) or (kind in (PRIORITY, WINDOW_UPDATE) and len(payload) == (5 if kind == PRIORITY else 4) and (kind == WINDOW_UPDATE or stream)))
        if judged and not (kind == WINDOW_UPDATE and not int.from_bytes(payload) & _MOST):
            # h2 tracks windows and closed streams, which we do not.
            return
        if kind == RST_STREAM and self.answered and self.heads and not self._block and stream and len(payload) == 4:
            return
        # h2 uses only the last value of a repeated setting.
        several = kind == SETTINGS and len(payload) > 6 and not len(payload) % 6 and not flags & ACK and not stream
        each = [frame(SETTINGS, 0, 0, payload[place : place + 6]) for place in range(0, len(payload), 6)] if several else [data]
        events = [event for one in each for event in self._conn.receive_data(one)]
        self._block = (self._block or kind == HEADERS) and not flags & END_HEADERS
        for event in events:
            if self.held:
                self._of_held(event)
            elif isinstance(event, ResponseReceived | InformationalResponseReceived):
                name, value = event.headers[0] if event.headers else (b"", b"")
                if bytes(name) != b":status" or len(value) != 3 or not bytes(value).isdigit() or int(value) < 100:
                    raise Refused
                self.status = int(value) if isinstance(event, ResponseReceived) else None
            elif isinstance(event, DataReceived) and self.status is None:
                raise Refused
            elif isinstance(event, StreamEnded):
                self.answered = True
        self._of_connection(kind, flags, payload)
        if self.held and self._goaway == 0 and len(self.gone) == 2:
            self.left = 0
        if self.left is None and self._goaway == 0 and self.answered and self.heads:
            self.left = 0
        if self.held and self.agreed and not self._asked:
            self._ask()

    def _look(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        opened = self.agreed and (stream == 1 if self.heads else self.held and stream in (1, 3))
        of_stream = bool(stream) and kind in (DATA, HEADERS, RST_STREAM, CONTINUATION, WINDOW_UPDATE)
        if kind == PUSH_PROMISE or (of_stream and not opened):
            raise Refused
        if of_stream and stream in self.gone:
            raise _NothingError
        settings = [payload[at : at + 6] for at in range(0, len(payload), 6)] if kind == SETTINGS else []
        if b"\0\2\0\0\0\1" in settings:
            raise Refused  # RFC 9113, 6.5.2
        needed = 2 * self.held + self.heads
        if not (self.agreed or stream or flags & ACK) and any(one[:2] == b"\0\3" and int.from_bytes(one[2:]) < needed for one in settings):
            raise Refused  # fewer streams than are needed

    def _ask(self) -> None:
        self._asked = True
        for number in (1, 3):
            # As a HEAD, since h2 checks the lengths of bodies.
            self._conn.send_headers(number, [(":method", "HEAD"), (":scheme", "http"), (":path", "/"), (":authority", "a")], end_stream=True)

    def _of_held(self, event: Event) -> None:
        stream = getattr(event, "stream_id", 0)
        if isinstance(event, ResponseReceived | InformationalResponseReceived):
            name, value = event.headers[0] if event.headers else (b"", b"")
            if bytes(name) != b":status" or len(value) != 3 or not bytes(value).isdigit() or int(value) < 100:
                raise Refused
            if isinstance(event, ResponseReceived):
                self.waits.discard(stream)
                if int(value) >= 300:
                    self._lose(stream, f"status {int(value)}")
                    self.replies += frame(RST_STREAM, 0, stream, b"\0\0\0\x08") if event.stream_ended is None else b""
        elif isinstance(event, DataReceived) and stream in self.waits:
            raise Refused
        elif isinstance(event, StreamEnded):
            self._lose(stream, "END_STREAM")
        elif isinstance(event, StreamReset):
            self._lose(stream, f"RST_STREAM {int(event.error_code)}" if int(event.error_code) <= 13 else "RST_STREAM")

    def _lose(self, stream: int, why: str) -> None:
        self.waits.discard(stream)
        self.lost += [why] if stream not in self.gone else []
        self.gone.add(stream)

    _goaway: int | None = None
    _asked = False

    def _of_connection(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == RST_STREAM and not self.held:
            raise Refused  # in place of an answer
        if kind == SETTINGS:
            self.settled |= not flags & ACK
            self.acknowledged |= bool(flags & ACK)
            self.replies += b"" if flags & ACK else frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self.replies += frame(PING, ACK, 0, payload)
        elif kind == PING and payload == _BEAT and not self.heads and self.granted:
            self.status, self.answered = 0, True
        elif kind == GOAWAY:
            if not self.granted:
                raise Refused
            last, self._goaway = struct.unpack_from(">II", payload)
            beyond = {stream for stream in (1, 3) if self.held and stream not in self.gone and stream > last & _MOST}
            if self._goaway == 0 and self.held and len(beyond | self.gone) < 2:
                # It drains: the streams up to the last one go on.
                for stream in sorted(beyond):
                    self._lose(stream, "GOAWAY")
            elif self._goaway or not self.heads or self.answered or not last & _MOST:
                self.left = self._goaway
            # h2 accepts nothing after it.
            self._conn.state_machine.state = ConnectionState.CLIENT_OPEN
