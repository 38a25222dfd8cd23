"""A WebSocket client (RFC 6455): the upgrade, pings as heartbeats, and a reader of frames without
I/O.

No extension is offered (deflate.py offers one). Messages are checked and counted, not kept. Of the
pings in one read the last is answered (section 5.5.3). Tested against wsproto, frame by frame, for
any split of the bytes.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import struct
from binascii import b2a_base64
from collections.abc import Callable, Sequence

import msgspec

from asyncli.model.protocol_table import NOT_OFFERED
from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields, Filled
from asyncli.protocols.grant import AnswerHead, Grant, Refusals
from asyncli.protocols.interface import (
    ANSWER,
    CLOSING,
    ESTABLISHED,
    NEWS,
    Event,
    Protocol,
    ProtocolError,
)
from asyncli.protocols.nonces import COUNT, SIZE, Nonces

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_OFFERED = re.compile(rb"(?im)^Sec-WebSocket-Protocol:([^\r]*)")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN, RESERVED, _MASKED, CONTROL, OPCODE = 0x80, 0x70, 0x80, 0x8, 0xF
_MOST_CONTROL = 125
# The head of the pong to our ping, whose payload is a nonce, and the ping's fields: head, mask,
# masked payload.
_PONG_HEAD, _ping = struct.pack(">BB", _FIN | PONG, SIZE), struct.Struct(">BBII").pack
_GOING_AWAY = 1001
_UTF8 = codecs.getincrementaldecoder("utf-8")
# The codes that a server may send (section 7.4 and its registry); others are reserved and never
# sent.
_CLOSE_CODES = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})


def frame(opcode: int, payload: bytes, key: bytes) -> bytes:
    """A client's frame, masked with ``key``: four unpredictable bytes (section 5.3)."""
    size = len(payload)
    if size <= _MOST_CONTROL:
        head = struct.pack(">BB", _FIN | opcode, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", _FIN | opcode, _MASKED | 126, size)
    else:
        head = struct.pack(">BBQ", _FIN | opcode, _MASKED | 127, size)
    masks = int.from_bytes((key * (size // 4 + 1))[:size])
    return head + key + (int.from_bytes(payload) ^ masks).to_bytes(size)


def accept_of(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept for this Sec-WebSocket-Key."""
    return b2a_base64(hashlib.sha1(key + _GUID, usedforsecurity=False).digest(), newline=False)


class WebSocket(Protocol):
    """Heartbeats are pings, or texts that the server echoes (``message``). ``requests``: the
    upgrade request for each URL of the plan, without its key and the empty line; ``entropy(n)``
    returns n random bytes.
    """

    def __init__(
        self,
        requests: Sequence[bytes],
        entropy: Callable[[int], bytes],
        message: bytes,
        fields: Fields,
    ) -> None:
        self._requests, self._entropy = [Filled(request, fields) for request in requests], entropy
        self._nonces = Nonces(entropy, _PONG_HEAD)
        self._message, self._speaks = (
            Filled(message, fields, nonce=self._nonces.text),
            bool(message),
        )
        if not self._speaks:
            self.answers, self.owed = self._nonces.answers, self._nonces.owed
            self.last_answers_all = True
        self._words = [int.from_bytes(text) for text in self._nonces.texts]
        self._answer = Event(0, True, kind=ANSWER, own=self._message.varies)
        self._offered = None if self._requests[0].varies else _offered_in(self._requests[0](0))
        self.partial: dict[int, _Upgrade | ServerFrames] = {}
        self._refusals: Refusals = {}
        self._unasked = 0

    def handshake(self, row: int, target: int) -> bytes:
        key = b2a_base64(self._entropy(16), newline=False)
        if not self._speaks or self._message.numbered:
            self._nonces.add_row(row)
        request = self._requests[target](row)
        self.partial[row] = _Upgrade(
            accept_of(key), self._offered or _offered_in(request), self._refusals
        )
        return b"%bSec-WebSocket-Key: %b\r\n\r\n" % (request, key)

    def heartbeat_for(self, row: int, target: int) -> bytes:
        if self._speaks:
            return frame(TEXT, self._next_text(row), self._entropy(4))
        # frame(PING, nonce, self._entropy(4)) and Nonces.take, inlined: once per heartbeat.
        mask, owed = int.from_bytes(self._entropy(4)), self.owed
        number = owed[row] = (owed[row] + 1) % COUNT
        return _ping(_FIN | PING, _MASKED | SIZE, mask, mask ^ self._words[number])

    def _next_text(self, row: int) -> bytes:
        """The text of the row's next heartbeat."""
        if self._message.numbered:
            self._nonces.take(row)
        return self._message(row)

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        reader = self.partial.pop(row, None)
        if not data:
            return None
        if isinstance(reader, _Upgrade):
            granted = reader.feed(data)
            if granted is None:
                self.partial[row] = reader
                return None
            self._agree(row, granted.fields.get(b"sec-websocket-extensions", []))
            return Event(0, True, kind=ESTABLISHED, rest=granted.rest)
        frames = reader or self._frames(row)
        if self._message.numbered:
            # The reader may be older than the heartbeat.
            frames.expected = self._message(row)
        pong = self._nonces.text(row) if awaiting and not self._speaks else None
        try:
            frames.feed(data, pong)
        except ProtocolError as error:
            if awaiting and frames.answers:
                error.answer = self._answer
            raise
        if frames.in_message:
            self.partial[row] = frames
        event = frames.event(awaiting > 0, self._entropy)
        if awaiting > 1:
            return self._late(event, frames.answers, awaiting)
        if self._speaks and frames.answers:
            self._unasked += frames.answers - awaiting
        return event

    def _late(self, event: Event | None, answers: int, awaiting: int) -> Event | None:
        """The meaning of a read of a row that has not read for a time. The pong to the last ping
        answers all before it (section 5.5.3), as does an echo with its own number.
        """
        if event is None or event.kind != ANSWER:
            return event
        if self._speaks and not self._message.numbered:
            awaiting = min(awaiting, answers)
        return msgspec.structs.replace(event, own=True, answers=awaiting)

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.unasked, self._unasked = self._unasked, 0

    def _agree(self, row: int, extensions: list[bytes]) -> None:
        """Handle the extensions in the server's answer. Raises :class:`ProtocolError`."""
        if extensions:
            raise ProtocolError(NOT_OFFERED)

    def _frames(self, row: int) -> ServerFrames:
        return ServerFrames(self._message(row), self._answer)

    def goodbye(self, row: int) -> bytes:
        return frame(CLOSE, struct.pack(">H", _GOING_AWAY), self._entropy(4))


def _offered_in(request: bytes) -> frozenset[bytes]:
    """The subprotocols that a request offers."""
    return frozenset(name.strip() for name in b",".join(_OFFERED.findall(request)).split(b","))


class _Upgrade(Grant):
    """Reads the answer to an upgrade request, with the checks of section 4.1."""

    def __init__(self, accept: bytes, offered: frozenset[bytes], refusals: Refusals) -> None:
        super().__init__((101,), refusals)
        self._accept, self._offered = accept, offered

    def feed(self, data: bytes) -> AnswerHead | None:
        if (granted := super().feed(data)) is None:
            return None
        fields = granted.fields
        upgrade, connection = granted.field(b"upgrade"), granted.field(b"connection")
        if upgrade.strip() != b"websocket" or b"upgrade" not in map(
            bytes.strip, connection.split(b",")
        ):
            raise ProtocolError("101 without Upgrade: websocket and Connection: Upgrade")
        if fields.get(b"sec-websocket-accept", []) != [self._accept]:
            raise ProtocolError("the Sec-WebSocket-Accept does not answer the key")
        chosen = fields.get(b"sec-websocket-protocol", [])
        if not set(chosen) <= self._offered or len(chosen) > 1:
            raise ProtocolError("a subprotocol that was not offered")
        return granted


class ServerFrames:
    """Reads the server's frames on one connection."""

    __slots__ = (
        "_answer",
        "_buffer",
        "_decode",
        "_fin",
        "_left",
        "_opcode",
        "_pong",
        "_same",
        "answers",
        "body_bytes",
        "close",
        "expected",
        "heard",
        "messages",
        "ping",
        "why",
    )

    def __init__(self, expected: bytes, answer: Event) -> None:
        self.expected, self._answer = expected, answer  # the text that answers; b"": a pong does
        self._pong: bytes | None = None  # the payload of the pong that answers; None: no pong does
        self._same = (
            -1
        )  # bytes of it that the current message begins with; -1: that is another message
        self._buffer = b""  # the beginning of a frame's head, or of a control frame
        self._left = 0  # remaining payload of a data frame
        self._opcode = 0  # of the current message
        self._fin = True  # its current frame is the last
        self._decode: codecs.IncrementalDecoder | None = None
        self._begin_read()

    def _begin_read(self) -> None:
        self.messages = self.body_bytes = 0
        self.ping: bytes | None = None
        self.close: int | None = None
        self.why = b""
        self.heard, self.answers = False, 0

    @property
    def in_message(self) -> bool:
        """Whether a frame or a message is incomplete."""
        return bool(self._buffer or self._opcode) and self.close is None

    def event(self, awaiting: bool, entropy: Callable[[int], bytes]) -> Event | None:
        """The meaning of the last read; None: no whole frame."""
        answer = awaiting and self.answers > 0
        if self.expected:
            # Further copies are messages like any other.
            self.messages += self.answers - answer
            self.body_bytes += (self.answers - answer) * len(self.expected)
        if self.close is not None:
            # Code 0: the frame has no code, so the reply has none.
            bye = frame(CLOSE, struct.pack(">H", self.close) if self.close else b"", entropy(4))
            if answer:
                closing = Event(self.close, False, 0, CLOSING, bye, 0, self.why)
                return Event(0, False, self.body_bytes, messages=self.messages, end=closing)
            return Event(self.close, False, self.body_bytes, CLOSING, bye, self.messages, self.why)
        reply = b"" if self.ping is None else frame(PONG, self.ping, entropy(4))
        news = bool(reply or self.messages or self.body_bytes)
        if answer and not news:
            return self._answer
        if not (news or self.heard):
            return None
        return Event(0, True, self.body_bytes, ANSWER if answer else NEWS, reply, self.messages)

    def feed(self, data: bytes, pong: bytes | None) -> None:
        """Take a read. ``pong``: the payload of the pong that answers; None: no pong does."""
        self._begin_read()
        self._pong = pong
        data = self._buffer + data if self._buffer else data
        self._buffer, at = b"", 0
        while self.close is None:
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._take(part, self._fin and not self._left)
                if self._left:
                    return
            following = self._head(data, at)
            if following is None:
                self._buffer = data[at:]
                return
            at = following

    def _head(self, data: bytes, at: int) -> int | None:
        """Read a frame's head; returns the start of a data frame's payload or the end of a control
        frame; None: incomplete.
        """
        available = len(data) - at
        if available < 2:
            return None
        first, size = data[at], data[at + 1]
        opcode, fin = first & OPCODE, bool(first & _FIN)
        if first & RESERVED:
            self._check_reserved_bits(first)
        if size & _MASKED:
            raise ProtocolError("a masked frame from the server")
        if opcode & CONTROL:
            return self._control(opcode, fin, size, data, at)
        if opcode > BINARY:
            raise ProtocolError(f"a frame of the unknown opcode {opcode}")
        if (opcode == CONTINUATION) != bool(self._opcode):
            raise ProtocolError(
                "a new message inside another"
                if self._opcode
                else "a continuation frame without a message"
            )
        at += 2
        if size > _MOST_CONTROL:
            width = 2 if size == 126 else 8
            if available < 2 + width:
                return None
            size = int.from_bytes(data[at : at + width])
            if size >> 63 or size <= (_MOST_CONTROL if width == 2 else 0xFFFF):
                raise ProtocolError("a frame whose length is not minimally encoded")
            at += width
        if opcode:
            self._opcode, self._decode = opcode, _UTF8("strict") if opcode == TEXT else None
            self._same = 0 if opcode == TEXT and self.expected else -1
        self._fin, self._left = fin, size
        if not size:
            self._take(b"", fin)
        return at

    def _check_reserved_bits(self, first: int) -> None:
        raise ProtocolError("a frame with reserved bits set, though no extension was agreed on")

    def _control(self, opcode: int, fin: bool, size: int, data: bytes, at: int) -> int | None:
        if opcode > PONG:
            raise ProtocolError(f"a frame of the unknown opcode {opcode}")
        if not fin or size > _MOST_CONTROL:
            raise ProtocolError("a control frame that is fragmented or longer than 125 bytes")
        end = at + 2 + size
        if len(data) < end:
            return None
        payload = data[at + 2 : end]
        if opcode == CLOSE:
            self.close, self.why = _close_code(payload), payload[2:]
        elif opcode == PING:
            self.ping = payload
        else:
            # A server may send unsolicited pongs (section 5.5.3), and a repeated one answers
            # nothing.
            self.answers += payload == self._pong
        self.heard = True
        return end

    def _take(self, part: bytes, ends: bool) -> None:
        """Payload of the current data frame; ``ends``: the message's last."""
        if self._same >= 0 and self.expected.startswith(part, self._same):
            self._same += len(part)
        else:
            self.body_bytes += max(0, self._same) + len(part)
            self._same = -1
        if self._decode is not None:
            _require_utf8(self._decode, part, ends)
        if ends:
            self._opcode, self._decode = 0, None
            if self._same == len(self.expected):
                self.answers += 1
            else:
                self.body_bytes += max(0, self._same)
                self.messages += 1


def _require_utf8(decoder: codecs.IncrementalDecoder, part: bytes, final: bool) -> None:
    try:
        decoder.decode(part, final)
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not UTF-8") from None


def _close_code(payload: bytes) -> int:
    """The code of a close frame, 0 if it has none."""
    if not payload:
        return 0
    code = int.from_bytes(payload[:2])
    if len(payload) == 1 or code not in _CLOSE_CODES:
        raise ProtocolError("a close frame with an invalid code")
    _require_utf8(_UTF8("strict"), payload[2:], True)
    return code
