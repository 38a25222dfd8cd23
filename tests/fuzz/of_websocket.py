"""Mutated frames for the WebSocket reader, by the grammar of RFC 6455. Checks: any split has one outcome, which is wsproto's."""

from __future__ import annotations

import struct
import zlib
from random import Random
from typing import NamedTuple

from chance import maybe, mutated
from of_http1 import pieces
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, ParseFailed

from asyncli.model.template import Fields
from asyncli.protocols.deflate import Deflated
from asyncli.protocols.interface import ANSWER, CLOSING, Event, ProtocolError
from asyncli.protocols.websocket import WebSocket, accept_of

_BEAT = b"beat"


class Case(NamedTuple):
    """``data`` after the upgrade, read in pieces at ``cuts``; ``message``: the text that answers, else a pong; ``grant``: compression."""

    data: bytes
    cuts: tuple[int, ...] = ()
    message: bytes = b""
    grant: str = ""


class Outcome(NamedTuple):
    """``close``: None without a close frame; ``error``: the stream ended in one."""

    messages: int
    body_bytes: int
    pings: tuple[bytes, ...]
    answers: int
    close: int | None
    error: bool


_GRANTS = tuple(f"permessage-deflate{more}" for more in ("", "; server_no_context_takeover", "; client_max_window_bits=9; server_max_window_bits=9"))
_TEXTS = (b"", b"hello", "zwölf Zeichen ✓".encode(), b"x" * 125, b"x" * 126, "€".encode() * 300, b"\xc3", b"\xed\xa0\x80", b"\xff")
_CODES = (0, 999, 1000, 1001, 1003, 1004, 1005, 1006, 1007, 1011, 1013, 1014, 1015, 1016, 2999, 3000, 4999, 5000, 65535)


def generate(chance: Random) -> Case:
    """Frames as servers send them, some of them invalid, perhaps mutated, in pieces."""
    grant = chance.choice(("", "", *_GRANTS))
    deflate = _Deflate(chance, grant)
    data = b"".join(_frames(chance, deflate) for _ in range(1 + chance.randrange(4)))
    if maybe(chance, 4):
        data = mutated(chance, data)
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    return Case(data, tuple(range(1, len(data))) if maybe(chance, 8) else cuts, b"hello" if maybe(chance, 2) else b"", grant)


class _Deflate:
    """A server's compressor."""

    def __init__(self, chance: Random, grant: str) -> None:
        self._chance, self._grant = chance, grant
        self._made = self._new()

    def __call__(self, text: bytes) -> bytes:
        if "no_context" in self._grant:
            self._made = self._new()
        if maybe(self._chance, 20):
            return self._chance.randbytes(9)
        if maybe(self._chance, 20):  # a final block
            last, self._made = self._made, self._new()
            return last.compress(text) + last.flush() + b"\0"
        return (self._made.compress(text) + self._made.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")

    def __bool__(self) -> bool:
        return bool(self._grant)

    def _new(self) -> zlib._Compress:
        return zlib.compressobj(self._chance.choice((1, 6, 9)), wbits=-9)


def _frames(chance: Random, deflate: _Deflate) -> bytes:
    """A control frame, or a message in several frames, perhaps with control frames between them."""
    if maybe(chance, 2):
        return _control(chance)
    opcode, left = 1 + maybe(chance, 2), chance.choice(_TEXTS[:6]) if maybe(chance, 3) else chance.choice(_TEXTS)
    made = b""
    if deflate and maybe(chance, 2):
        opcode, left = opcode | 0x40, deflate(left)
    while maybe(chance, 2):
        size = chance.randrange(len(left) + 1)
        made += _frame(chance, opcode, left[:size], fin=False)
        left, opcode = left[size:], 0
        if maybe(chance, 3):
            made += _control(chance)
    return made + _frame(chance, opcode, left)


def _control(chance: Random) -> bytes:
    payload = chance.choice((b"", b"beat", b"beat", b"x" * 125, b"y" * (126 if maybe(chance, 8) else 3)))
    if maybe(chance, 8):
        code = struct.pack(">H", chance.choice(_CODES))
        return _frame(chance, 8, (b"", b"\x03", code, code + b"why", code + b"\xff")[chance.randrange(5)])
    return _frame(chance, 9 + maybe(chance, 2), payload)


def _frame(chance: Random, opcode: int, payload: bytes, fin: bool = True) -> bytes:
    if maybe(chance, 60):
        opcode = chance.randrange(16)
    first = (0x80 if fin and not maybe(chance, 80) else 0) | opcode | (chance.choice((0x10, 0x20, 0x40)) if maybe(chance, 80) else 0)
    size = len(payload)
    if size <= 125 and not maybe(chance, 80):
        return struct.pack(">BB", first, (0x80 if maybe(chance, 80) else 0) | size) + payload
    if not maybe(chance, 60):
        return struct.pack(">BBH", first, 126, size) + payload
    return struct.pack(">BBQ", first, 127, size | ((1 << 63) if maybe(chance, 3) else 0)) + payload


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    whole, cut = (read(parts, case.message, case.grant) for parts in ([case.data], pieces(case.data, case.cuts)))
    if whole.close == cut.close == 1014:
        # Registered later than wsproto's list.
        return "accepted"
    expected = oracle(case.data, case.message, case.grant)
    if whole.error and not expected.error:
        # wsproto checks only whole frames.
        expected = oracle(case.data + bytes(1 << 17), case.message, case.grant)
    shown = f"in pieces {cut}, whole {whole}, wsproto says {expected}"
    assert whole.error == cut.error == expected.error, shown
    if whole.error:
        # Events before the error, in the same read, do not count.
        return "refused"
    # wsproto waits for the rest of a character, we for the rest of a possible answer.
    assert -len(case.message) <= whole.body_bytes - expected.body_bytes < 4, shown
    # Of the pings in a read the last is answered; with a close frame none is.
    last = () if whole.close is not None else whole.pings[-1:]
    each = [
        one._replace(pings=last if one.close is not None else one.pings[-1:], body_bytes=0)
        for one in (whole, cut, expected)
    ]
    assert each[0] == each[1] == each[2], shown
    return "accepted"


def _beat(size: int) -> bytes:
    """Entropy that makes :data:`_BEAT` each nonce."""
    return (_BEAT * size)[:size]


def read(parts: list[bytes], message: bytes, grant: str) -> Outcome:
    """The outcome of our reader."""
    protocol = (Deflated if grant else WebSocket)([b"GET / HTTP/1.1\r\n"], _beat, message, Fields())
    key = protocol.handshake(0, 0).split(b": ")[1].strip()
    head = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n" % accept_of(key)
    head = head.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: %b\r\n\r\n" % grant.encode()) if grant else head
    assert protocol.feed(0, head, False) is not None
    outcome = Outcome(0, 0, (), 0, None, False)
    for part in parts:
        try:
            # One heartbeat is unanswered at first.
            event = protocol.feed(0, part, not outcome.answers)
        except ProtocolError as error:
            assert len(str(error)) < 500
            return outcome._replace(error=True)
        if event is None:
            continue
        outcome = outcome._replace(messages=outcome.messages + event.messages, body_bytes=outcome.body_bytes + event.body_bytes)
        outcome = outcome._replace(answers=outcome.answers | (event.kind == ANSWER))
        closing = event.end if isinstance(event.end, Event) else event
        if closing.kind == CLOSING:
            return outcome._replace(close=closing.status)
        if event.reply:
            outcome = outcome._replace(pings=(*outcome.pings, unmasked(event.reply)))
    return outcome


def unmasked(frame: bytes) -> bytes:
    """The payload of a short frame of ours."""
    assert frame[1] & 0x80
    assert len(frame) == 6 + (frame[1] & 0x7F)
    return bytes(byte ^ frame[2 + place % 4] for place, byte in enumerate(frame[6:]))


class _Extension(PerMessageDeflate):
    """wsproto's, changed: optionally without inflating, and it accepts control frames in compressed messages, and final blocks."""

    def __init__(self, grant: str, inflates: bool) -> None:
        super().__init__()
        self.finalize(grant)
        self._inflates = inflates

    def frame_inbound_payload_data(self, proto: FrameDecoder | FrameProtocol, data: bytes) -> bytes | CloseReason:
        unread = self._inbound_compressed and self._inbound_is_compressible and not self._inflates
        return b"x" * len(data) if unread else super().frame_inbound_payload_data(proto, data)

    def frame_inbound_complete(self, proto: FrameDecoder | FrameProtocol, fin: bool) -> bytes | CloseReason | None:
        compressed, control = self._inbound_compressed, not self._inbound_is_compressible
        if compressed and not control and not self._inflates:
            self._inbound_compressed = None if fin else compressed
            return None
        result = super().frame_inbound_complete(proto, fin)
        self._inbound_compressed = compressed if compressed and control else self._inbound_compressed
        if fin and not control and self._decompressor is not None and self._decompressor.eof:
            self._decompressor = None
        return result


def oracle(data: bytes, message: bytes, grant: str) -> Outcome:
    """wsproto's outcome."""
    frames, text = FrameProtocol(client=True, extensions=[_Extension(grant, bool(message))] if grant else []), ""
    outcome = Outcome(0, 0, (), 0, None, False)
    try:
        frames.receive_bytes(data)
        for one in frames.received_frames():
            size = len(one.payload.encode() if isinstance(one.payload, str) else one.payload)
            match one.opcode:
                case Opcode.PING:
                    outcome = outcome._replace(pings=(*outcome.pings, bytes(one.payload)))
                case Opcode.PONG:
                    outcome = outcome._replace(answers=outcome.answers | (bytes(one.payload) == _BEAT and not message))
                case Opcode.CLOSE:
                    return outcome._replace(close=0 if one.payload[0] == CloseReason.NO_STATUS_RCVD else int(one.payload[0]))
                case _:
                    text += one.payload if isinstance(one.payload, str) else "\0"
                    answers = bool(message) and one.message_finished and text == message.decode() and not outcome.answers
                    text = "" if one.message_finished else text
                    messages, size = (0, len(one.payload) - len(message)) if answers else (int(one.message_finished), size)
                    outcome = outcome._replace(messages=outcome.messages + messages, body_bytes=outcome.body_bytes + size, answers=outcome.answers | answers)
    except ParseFailed:
        return outcome._replace(error=True)
    return outcome
