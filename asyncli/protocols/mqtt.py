"""An MQTT 3.1.1 and 5 client: clean sessions, PINGREQ as the heartbeat, packets read without I/O.

Publications are acknowledged and counted, not kept: a row stores only an incomplete packet. (A
server sends a publication again only in a resumed session, and here none is resumed.) Tested
against ohmqtt on every packet of MQTT 5.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container
from typing import TYPE_CHECKING

from asyncli.model.mqtt_values import REASONS, topic_and_qos
from asyncli.model.protocol_table import UNREAD
from asyncli.model.template import Fields, Filled, Template
from asyncli.model.text import shortened
from asyncli.protocols.interface import (
    ANSWER,
    CLOSING,
    ESTABLISHED,
    NEWS,
    Event,
    Protocol,
    ProtocolError,
)

if TYPE_CHECKING:
    from asyncli.protocols.settings import MqttSettings
from asyncli.protocols.mqtt_properties import (
    OF_ANSWER,
    OF_CONNACK,
    OF_DISCONNECT,
    OF_PUBLISH,
    REASON_STRING,
    SERVER_KEEP_ALIVE,
    IncompleteError,
    properties,
    require,
    utf8,
    varying,
)  # fmt: skip

_NAMES = (
    "packet of type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)
_CONNACK, _PUBLISH, _PUBREL, _SUBACK, _PINGRESP, _DISCONNECT = 2, 3, 6, 9, 13, 14
_ACKNOWLEDGED = {1: b"\x40\x02", 2: b"\x50\x02"}
_PUBCOMP = b"\x70\x02"
_CLEAN, _USER, _PASSWORD = 0x02, 0x80, 0x40
# The failure codes of SUBACK, and the codes of DISCONNECT (MQTT 5, section 3.14.2.1).
_FAILURES = frozenset(code for code in REASONS if code >= 0x80)
_GOODBYES = frozenset(
    (0, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))
)
# The longest SUBACK and the like, and properties of a publication; no server needs more.
_MOST_BYTES = 65_536
# The most that the field of two bytes holds; for longer sleeps it is 0, and the server waits for
# ever.
_LONGEST_KEEP_ALIVE_S = 65_535
_ANSWER = Event(0, True, kind=ANSWER)


class Mqtt(Protocol):
    heartbeat, goodbye_bytes = b"\xc0\x00", b"\xe0\x00"  # PINGREQ, DISCONNECT

    def __init__(self, settings: MqttSettings, fields: Fields) -> None:
        self._settings, self._five = settings, settings.version == "5"
        self._client_id = Filled(settings.client_id.encode(), fields, Template)
        topics = map(topic_and_qos, settings.subscribe)
        self._topics = [
            (Filled(topic.encode(), fields, Template), bytes((qos,))) for topic, qos in topics
        ]
        user, colon, password = settings.login.partition(":")
        flags = _CLEAN | (_USER if user else 0) | (_PASSWORD if colon else 0)
        keep_alive = (
            math.ceil(settings.keepalive_s) if settings.keepalive_s <= _LONGEST_KEEP_ALIVE_S else 0
        )
        self._none = b"\0" if self._five else b""  # no properties
        self._head = (
            _text(b"MQTT")
            + struct.pack(">BBH", 5 if self._five else 4, flags, keep_alive)
            + self._none
        )
        self._login = [
            Filled(text.encode(), fields)
            for text in (*([user] if user else []), *([password] if colon else []))
        ]
        self.partial: dict[int, _Packets] = {}

    def handshake(self, row: int, target: int) -> bytes:
        topics = b"".join(_text(topic(row)) + qos for topic, qos in self._topics)
        subscribe = _packet(b"\x82", b"\0\1" + self._none + topics) if topics else b""
        self.partial[row] = _Packets(self._settings, subscribe, _CONNACK)
        return _packet(
            b"\x10",
            b"".join([self._head, *(_text(text(row)) for text in (self._client_id, *self._login))]),
        )

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        packets = self.partial.pop(row, None)
        if not data:
            return None
        packets = packets or _Packets(self._settings)
        try:
            event = packets.feed(data, awaiting)
        except ProtocolError as error:
            if packets.answered:
                error.answer = _ANSWER
            raise
        if packets.in_message:
            self.partial[row] = packets
        return event

    def awaits(self, row: int) -> str:
        awaits = self.partial[row].awaits if row in self.partial else 0
        return _NAMES[awaits] if awaits else ""


class _Packets:
    """Reads the server's packets on one connection."""

    __slots__ = (
        "_ack",
        "_again",
        "_awaiting",
        "_body_bytes",
        "_buffer",
        "_five",
        "_left",
        "_messages",
        "_needed",
        "_reason",
        "_reply",
        "_settings",
        "_subscribe",
        "_why",
        "answered",
        "awaits",
    )  # fmt: skip

    def __init__(self, settings: MqttSettings, subscribe: bytes = b"", awaits: int = 0) -> None:
        self._settings, self._five, self._subscribe = settings, settings.version == "5", subscribe
        self.awaits = awaits  # what the handshake waits for; 0: it is over
        self.answered = 0  # heartbeats, in the last read
        self._buffer, self._needed = (
            bytearray(),
            0,
        )  # the beginning of a packet, and the bytes needed to read on
        self._left = 0  # remaining payload of a publication
        self._ack = b""  # to send at its end
        self._again = False  # it is a duplicate, and was counted before

    @property
    def in_message(self) -> bool:
        return bool(self.awaits or self._left or self._buffer)

    def feed(self, data: bytes, awaiting: int) -> Event | None:
        """The meaning of a read; None: no whole packet. Raises :class:`ProtocolError`."""
        self._messages, self._body_bytes, self._reply, self.answered, self._awaiting = (
            0,
            0,
            b"",
            0,
            awaiting,
        )
        self._reason, shaking, at = -1, bool(self.awaits), 0
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return None
            data = bytes(self._buffer)
            self._buffer.clear()
        while at < len(data):
            try:
                at = self._take(data, at) if self._left else self._packet(data, at)
            except IncompleteError as incomplete:
                self._buffer += data[at:]
                self._needed = incomplete.needed - at
                break
            if self._reason >= 0:
                return self._farewell()
            if shaking and not self.awaits:
                return Event(
                    0, True, self._body_bytes, ESTABLISHED, self._reply, self._messages, data[at:]
                )
        if self.answered > 1:
            return self._several_answers()
        if self._messages or self._body_bytes or self._reply:
            return Event(
                0,
                True,
                self._body_bytes,
                ANSWER if self.answered else NEWS,
                self._reply,
                self._messages,
            )
        return _ANSWER if self.answered else None

    def _several_answers(self) -> Event:
        """Of a row that has not read for a time."""
        return Event(
            0,
            True,
            self._body_bytes,
            reply=self._reply,
            messages=self._messages,
            own=True,
            answers=self.answered,
        )

    def _farewell(self) -> Event:
        """A DISCONNECT was read, perhaps after the heartbeat's answer."""
        if not self.answered:
            return Event(
                self._reason, False, self._body_bytes, CLOSING, b"", self._messages, self._why
            )
        closing = Event(self._reason, False, kind=CLOSING, rest=self._why)
        return Event(
            0,
            False,
            self._body_bytes,
            messages=self._messages,
            end=closing,
            answers=self.answered,
        )

    def _packet(self, data: bytes, at: int) -> int:
        """Read a packet; returns its end, or where a publication's payload begins."""
        kind = data[at] >> 4
        self._require(kind, data[at] & 0xF, data, at)
        size, begin = varying(data, at + 1, self._five)
        if kind == _PUBLISH:
            try:
                return self._publication(data[at] & 0xF, data, begin, begin + size)
            except IncompleteError as incomplete:
                if incomplete.needed <= begin + size:
                    raise
                raise ProtocolError("PUBLISH that ends before its payload") from None
        if size > _MOST_BYTES:
            raise ProtocolError(f"{UNREAD}{_NAMES[kind]} of {size:,} bytes")
        body = data[begin : require(data, begin + size)]
        if kind == _CONNACK:
            self._connack(body)
        elif kind == _SUBACK:
            self._suback(body)
        elif kind == _PUBREL:
            _code(kind, body[2:3], (0, 0x92))
            self._properties(kind, body[3:], OF_ANSWER)
            if len(body) < 2 or (len(body) > 2 and not self._five):
                raise ProtocolError(f"PUBREL of {len(body)} bytes")
            self._reply += _PUBCOMP + _packet_id(body)
        elif kind == _PINGRESP:
            if body or not self._awaiting:
                raise ProtocolError(
                    "PINGRESP with a body" if body else "PINGRESP that answers no PINGREQ"
                )
            self._awaiting -= 1
            self.answered += 1
        else:
            self._reason = _code(kind, body[:1], _GOODBYES)
            granted = self._properties(kind, body[1:], OF_DISCONNECT)
            self._why = granted.get(REASON_STRING, b"")
            if self.awaits:
                raise _refusal(kind, self._reason, granted)
        return begin + size

    def _require(self, kind: int, flags: int, data: bytes, at: int) -> None:
        """Raise :class:`ProtocolError` if the server may not send such a packet now."""
        leaves = kind == _DISCONNECT and self._five
        if self.awaits == _CONNACK and not (kind == _CONNACK or leaves):
            raise ProtocolError(f"{data[at : at + 40]!r} in place of CONNACK")
        if kind not in (_PUBLISH, _PUBREL, _PINGRESP, self.awaits or _PUBLISH) and not leaves:
            raise ProtocolError(f"{_NAMES[kind]}, which is not allowed here")
        if kind != _PUBLISH:
            if flags != (2 if kind == _PUBREL else 0):
                raise ProtocolError(f"{_NAMES[kind]} with reserved flags set")
        elif flags & 0b0110 == 0b0110:
            raise ProtocolError("PUBLISH of QoS 3")
        elif flags & 0b1110 == 0b1000:
            raise ProtocolError("PUBLISH of QoS 0 that is marked as a duplicate")

    def _connack(self, body: bytes) -> None:
        # A server without MQTT 5 refuses in the form of 3.1.1.
        short = len(body) == 2 and (body[1] > 0 or not self._five)
        if len(body) < 2 or body[0] > 1 or not (short or self._five):
            raise ProtocolError("CONNACK that is malformed")
        granted = {} if short else properties(body[2:], OF_CONNACK, "CONNACK")
        if code := _code(_CONNACK, body[1:2], (0, *REASONS)):
            raise _refusal(_CONNACK, code, granted)
        if body[0]:
            raise ProtocolError("CONNACK with a session, though a clean one was requested")
        keep_alive, gap_s = (
            int.from_bytes(granted.get(SERVER_KEEP_ALIVE, b"")),
            self._settings.keepalive_s / 2,
        )
        if 0 < keep_alive < gap_s:
            raise ProtocolError(
                f"SERVER_KEEP_ALIVE {keep_alive}: heartbeats may be {gap_s:g} s apart"
            )
        self.awaits = _SUBACK if self._subscribe else 0
        self._reply += self._subscribe

    def _suback(self, body: bytes) -> None:
        asked = self._settings.subscribe
        begin = len(body) - len(asked)
        if begin < 2 or body[:2] != b"\0\1" or (begin > 2 and not self._five):
            raise ProtocolError("SUBACK that does not answer the SUBSCRIBE")
        known = properties(body[2:begin], OF_ANSWER, "SUBACK") if self._five else {}
        for topic, granted in zip(asked, body[begin:], strict=True):
            code = _code(_SUBACK, bytes((granted,)), (0, 1, 2, *_FAILURES))
            if code > 2:
                raise _refusal(_SUBACK, code, known, f" for {shortened(topic)}")
        self.awaits = 0

    def _publication(self, flags: int, data: bytes, begin: int, end: int) -> int:
        """Check all that precedes the payload of a publication, once it has come; returns where the
        payload begins.
        """
        qos = flags >> 1 & 3
        topic_at = require(data, begin + 2)
        topic_end = topic_at + int.from_bytes(data[begin:topic_at])
        at = after = topic_end + (2 if qos else 0)
        if self._five and at < end:
            size, after = varying(data, at)
            if size > _MOST_BYTES:
                raise ProtocolError(f"{UNREAD}PUBLISH with {size:,} bytes of properties")
            after += size
        if after > end or (self._five and after == at):
            raise ProtocolError("PUBLISH that ends before its payload")
        require(data, after)
        topic = utf8(data[topic_at:topic_end], "a topic")
        if not topic or "#" in topic or "+" in topic:
            raise ProtocolError(
                "PUBLISH to a topic with wildcards" if topic else "PUBLISH without a topic"
            )
        if self._five:
            properties(data[at:after], OF_PUBLISH, "PUBLISH")
        self._ack = _ACKNOWLEDGED[qos] + _packet_id(data[topic_end:at]) if qos else b""
        # Sessions are clean, so a duplicate with QoS 2 was sent on this connection before.
        self._again = qos == 2 and flags & 8 > 0
        self._left = end - after
        return after if self._left else self._take(data, after)

    def _take(self, data: bytes, at: int) -> int:
        """Consume the available payload."""
        taken = min(self._left, len(data) - at)
        self._left -= taken
        self._body_bytes += 0 if self._again else taken
        if not self._left:
            self._messages += 0 if self._again else 1
            self._reply += self._ack
        return at + taken

    def _properties(self, kind: int, data: bytes, allowed: frozenset[int]) -> dict[int, bytes]:
        """The properties at the end of a packet, where they may be omitted."""
        return properties(data, allowed, _NAMES[kind]) if data and self._five else {}


def _packet(first: bytes, body: bytes) -> bytes:
    """A packet to send."""
    size, length = len(body), b""
    while size > 0x7F:
        length += bytes((0x80 | size & 0x7F,))
        size >>= 7
    return first + length + bytes((size,)) + body


def _text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _packet_id(body: bytes) -> bytes:
    """The packet identifier at the start of a body."""
    if body[:2] == b"\0\0":
        raise ProtocolError("a packet identifier of 0")
    return body[:2]


def _code(kind: int, code: bytes, known: Container[int]) -> int:
    """A reason code, 0 if omitted."""
    if code and code[0] not in known:
        raise ProtocolError(f"{_NAMES[kind]} with the invalid code {code[0]}")
    return code[0] if code else 0


def _refusal(kind: int, code: int, found: dict[int, bytes], topic: str = "") -> ProtocolError:
    """A refusal, with the server's reason string if it sent one."""
    why = shortened(found.get(REASON_STRING, b"").decode())
    return ProtocolError(
        f"{_NAMES[kind]} {code}: {REASONS.get(code, 'no reason')}{topic}"
        + (f" ({why})" if why else "")
    )
