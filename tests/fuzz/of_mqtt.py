"""Mutated packets for the MQTT reader. Checks: any split has one outcome, with MQTT 5 that of ohmqtt."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from chance import maybe, mutated
from of_http1 import pieces
from ohmqtt.error import MQTTError
from ohmqtt.packet import MQTTDisconnectPacket, MQTTPingRespPacket, MQTTPublishPacket, MQTTPubRelPacket, decode_packet
from ohmqtt.serialization import decode_varint

from asyncli.model.template import Fields
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, Event, ProtocolError
from asyncli.protocols.mqtt import Mqtt
from asyncli.protocols.settings import MqttSettings


class Case(NamedTuple):
    """``data``, read in pieces at ``cuts``, after a CONNACK unless ``shakes``; ``topics``: the number of subscriptions."""

    data: bytes
    cuts: tuple[int, ...] = ()
    five: bool = True
    shakes: bool = False
    topics: int = 0


class Outcome(NamedTuple):
    """``bye``: the code of a DISCONNECT, -1 without; ``error``: the stream ended in one."""

    messages: int = 0
    body_bytes: int = 0
    replies: bytes = b""
    answers: int = 0
    bye: int = -1
    established: bool = False
    error: bool = False


_TEXTS = (b"a", b"a/b", "größe/✓".encode(), b"$SYS/x", b"x" * 200, b"", b"a/+", b"#", b"a\0b", b"\xc3", b"\xed\xa0\x80", b"\xef\xbf\xbf")
# An id and its value: some allowed with each packet, some not, and some with invalid values.
_PROPERTIES = (
    b"\x26\0\1a\0\1b", b"\x26\0\1a\0\0", b"\x1f\0\2no", b"\x01\1", b"\x02\0\0\0\5", b"\x03\0\4text", b"\x08\0\1r", b"\x09\0\3\0\1\2", b"\x0b\x81\1",
    b"\x13\0\x3c", b"\x11\0\0\0\0", b"\x12\0\1i", b"\x21\0\5", b"\x24\1", b"\x25\0", b"\x27\0\0\1\0", b"\x28\1", b"\x1c\0\1s", b"\x22\0\0",
    b"\x01\2", b"\x0b\0", b"\x23\0\1", b"\x21\0\0", b"\x27\0\0\0\0", b"\x24\2", b"\x29\2", b"\x1f\0\1\xff", b"\x26\0\1\0\0\0", b"\x08\0\1+", b"\x7f", b"\xff\1", b"\x13\0\1",
)  # fmt: skip
_CODES = (0, 0, 0, 0, 1, 2, 4, 5, 6, 0x7F, 0x80, 0x87, 0x8B, 0x92, 0xA2, 0xA3, 0xFF)


def generate(chance: Random) -> Case:
    """Packets as servers send them, some of them invalid, perhaps mutated, in pieces."""
    five, shakes, topics = not maybe(chance, 3), maybe(chance, 3), chance.randrange(3)
    data = b"".join(_packet(chance, five) for _ in range(1 + chance.randrange(4)))
    if shakes:
        granted = b"\0\1" + (_properties(chance, 5) if five else b"") + b"".join(bytes((chance.choice(_CODES[:6]),)) for _ in range(topics))
        shaken = b"\0" + bytes((chance.choice(_CODES) if maybe(chance, 4) else 0,)) + (_properties(chance, 9) if five else b"")
        data = _framed(chance, 0x20, shaken) + (data[: chance.randrange(1 + len(data))] if maybe(chance, 8) else b"") + (_framed(chance, 0x90, granted) if topics else b"") + data
    if maybe(chance, 4):
        data = mutated(chance, data)
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    return Case(data, tuple(range(1, len(data))) if maybe(chance, 8) else cuts, five, shakes, topics if shakes else 0)


def _packet(chance: Random, five: bool) -> bytes:
    number = b"\0\0" if maybe(chance, 40) else bytes((chance.randrange(256), 1 + chance.randrange(255)))
    properties = _properties(chance, 7) if five else b""
    match chance.randrange(8):
        case 0:
            return _framed(chance, 0xD0, b"")
        case 1 if five and maybe(chance, 3):
            code = bytes((chance.choice(_CODES),))
            return _framed(chance, 0xE0, chance.choice((b"", code, code + properties)))
        case 1 | 2:
            return _framed(chance, 0x62, number + (chance.choice((b"", b"\0", b"\x92", b"\0" + properties, bytes((chance.choice(_CODES),)))) if five and maybe(chance, 2) else b""))
        case 3 if maybe(chance, 6):
            return _framed(chance, chance.randrange(256), chance.randbytes(chance.randrange(6)))
        case _:
            qos, topic = chance.randrange(3), chance.choice(_TEXTS) if maybe(chance, 20) else _TEXTS[chance.randrange(5)]
            first = 0x30 | qos << 1 | maybe(chance, 3) | (8 if maybe(chance, 8) and (qos or maybe(chance, 9)) else 0)
            return _framed(chance, first, len(topic).to_bytes(2) + topic + (number if qos else b"") + properties + chance.randbytes(chance.choice((0, 1, 5, 300))))


def _properties(chance: Random, most: int) -> bytes:
    if not maybe(chance, 3):
        return b"\0"
    found = b"".join(chance.choice(_PROPERTIES if maybe(chance, 5) else _PROPERTIES[:most]) for _ in range(1 + chance.randrange(2)))
    return bytes((len(found) + maybe(chance, 40),)) + found


def _framed(chance: Random, first: int, body: bytes) -> bytes:
    if maybe(chance, 80):
        first ^= 1 << chance.randrange(8)
    size, length = len(body) + (chance.choice((-1, 1, 1 << 14, 1 << 28)) if maybe(chance, 80) else 0), b""
    size = max(0, size)
    while size > 0x7F:
        length += bytes((0x80 | size & 0x7F,))
        size >>= 7
    return bytes((first,)) + length + (bytes((0x80 | size, 0)) if maybe(chance, 80) else bytes((size,))) + body


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    whole, cut = read([case.data], case), read(pieces(case.data, case.cuts), case)
    assert whole.error == cut.error, f"in pieces {cut}, whole {whole}"
    # Events before an error, in the same read, do not count.
    assert whole.error or whole == cut, f"in pieces {cut}, whole {whole}"
    if case.five and not case.shakes:
        expected, rest = oracle(case.data)
        # ohmqtt checks only whole packets.
        assert whole.error or not expected.error, f"whole {whole}, ohmqtt says {expected}"
        assert expected.error or rest or not whole.error, f"whole {whole}, ohmqtt says {expected}"
        assert whole.error or whole._replace(body_bytes=expected.body_bytes if rest else whole.body_bytes) == expected, f"whole {whole}, ohmqtt says {expected}"
    return "refused" if whole.error else "accepted"


def read(parts: list[bytes], case: Case) -> Outcome:
    """The outcome of our reader."""
    words = MqttSettings("5" if case.five else "3.1.1", "{n}", 60.0, ("a@1", "b")[: case.topics])
    protocol, outcome, parts = Mqtt(words, Fields()), Outcome(), list(parts)
    if case.shakes:
        protocol.handshake(0, 0)
    while parts:
        part = parts.pop(0)
        if not part:
            continue
        try:
            event = protocol.feed(0, part, (outcome.established or not case.shakes) and not outcome.answers)
        except ProtocolError as error:
            assert len(str(error)) < 500
            return outcome._replace(error=True)
        if event is None:
            continue
        reply = b"" if event.kind == CLOSING else outcome.replies + event.reply
        outcome = outcome._replace(messages=outcome.messages + event.messages, body_bytes=outcome.body_bytes + event.body_bytes, replies=reply)
        outcome = outcome._replace(answers=outcome.answers + (event.kind == ANSWER), established=outcome.established or event.kind == ESTABLISHED)
        if event.kind == ESTABLISHED:
            assert not protocol.partial
            parts.insert(0, event.rest)
        closing = event.end if isinstance(event.end, Event) else event
        if closing.kind == CLOSING:
            # With a DISCONNECT no acknowledgements count.
            return outcome._replace(bye=closing.status, replies=b"")
    return outcome


def oracle(data: bytes) -> tuple[Outcome, bytes]:
    """ohmqtt's outcome, and the bytes after the last whole packet."""
    outcome, wrong = Outcome(), (Outcome(error=True), b"")
    while data:
        if _invalid(data[0]):
            return wrong
        try:
            size, width = decode_varint(memoryview(data)[1:])
        except (MQTTError, IndexError):
            return (outcome, data) if len(data) < 5 and all(byte & 0x80 for byte in data[1:]) else wrong
        if width > 1 and not data[width]:
            return wrong
        packet, rest = data[: 1 + width + size], data[1 + width + size :]
        if len(packet) < 1 + width + size:
            return outcome, data
        try:
            one = decode_packet(packet)
        except (MQTTError, IndexError, ValueError):
            return wrong
        match one:
            case MQTTPublishPacket() if one.topic and "\0" not in one.topic and one.properties.TopicAlias is None:
                if not (one.dup and one.qos == 2):
                    outcome = outcome._replace(messages=outcome.messages + 1, body_bytes=outcome.body_bytes + len(one.payload))
                reply = (b"\x40\2", b"\x50\2")[one.qos - 1] + one.packet_id.to_bytes(2) if one.qos else b""
                outcome = outcome._replace(replies=outcome.replies + reply)
            case MQTTPubRelPacket():
                outcome = outcome._replace(replies=outcome.replies + b"\x70\2" + one.packet_id.to_bytes(2))
            case MQTTPingRespPacket() if not outcome.answers:
                outcome = outcome._replace(answers=1)
            # A client may send more of these than a server.
            case MQTTDisconnectPacket() if one.reason_code != 4 and one.properties.SessionExpiryInterval is None:
                return outcome._replace(bye=int(one.reason_code), replies=b""), b""
            case _:
                return wrong
        data = rest
    return outcome, b""


def _invalid(first: int) -> bool:
    """Whether no packet that a server may send begins with this byte."""
    return first not in (0x30, 0x31, *range(0x32, 0x36), *range(0x3A, 0x3E), 0x62, 0xD0, 0xE0)
