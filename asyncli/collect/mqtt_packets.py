"""MQTT 3.1.1 as far as a subscriber of QoS 0 needs: packets to send, and those of the broker. Pure.

Numbers of sections are of MQTT 3.1.1. The client of a run's connections (protocols/mqtt.py) counts
publications and does not keep them, so it cannot give what a topic says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

#: The kinds of packets that a broker may send to such a subscriber (section 2.2.1).
CONNACK = 2
PUBLISH = 3
SUBACK = 9
PINGRESP = 13
#: Section 3.12, and 3.14.
PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"

#: The longest packet that is read (bytes, after the fixed header): no number is as long.
LONGEST_PACKET = 65_536
# The first bytes of these packets (section 2.2.2): a publication has QoS 0, so it is no duplicate,
# and may be a retained one.
_RETAINED = 0x31
_FIRST_BYTES = (0x20, 0x30, _RETAINED, 0x90, 0xD0)
# Section 2.2.3.
_LONGEST_LENGTH = 4
_CLEAN_SESSION = 0x02
_HAS_PASSWORD = 0x40
_HAS_USER = 0x80
_VERSION = 4
_PACKET_ID = b"\x00\x01"
_FAILURE = 0x80


class BrokenMqttError(ValueError):
    """The broker sent what MQTT does not allow, or more than is read. Its text says what."""


class Packet(NamedTuple):
    """``kind``: :data:`CONNACK` and so on; ``is_retained``: of a publication."""

    kind: int
    body: bytes
    is_retained: bool = False


class Publication(NamedTuple):
    """``is_retained``: the broker had it before the subscription, and its age is unknown (section
    3.3.1.3).
    """

    topic: str
    payload: bytes
    is_retained: bool


# What is sent.


def connect_packet(client_id: str, keep_alive_s: int, user: str, password: str | None) -> bytes:
    """CONNECT (section 3.1) with a clean session, and without a will. ``user``: "" for none."""
    flags = _CLEAN_SESSION
    payload = _text(client_id)
    if user:
        flags |= _HAS_USER
        payload += _text(user)
        if password is not None:
            flags |= _HAS_PASSWORD
            payload += _text(password)
    header = _text("MQTT") + struct.pack(">BBH", _VERSION, flags, keep_alive_s)
    return _packet(0x10, header + payload)


def subscribe_packet(topics: Sequence[str]) -> bytes:
    """SUBSCRIBE (section 3.8) to ``topics`` with QoS 0."""
    filters = b"".join(_text(topic) + b"\x00" for topic in topics)
    return _packet(0x82, _PACKET_ID + filters)


def _packet(first: int, body: bytes) -> bytes:
    size = len(body)
    length = bytearray()
    while size > 0x7F:
        length.append(0x80 | size & 0x7F)
        size >>= 7
    length.append(size)
    return bytes((first,)) + bytes(length) + body


def _text(text: str) -> bytes:
    """Section 1.5.3."""
    data = text.encode()
    return struct.pack(">H", len(data)) + data


# What is received.


class PacketReader:
    """Takes the broker's packets from what is read of its connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are whole by now. Raises :class:`BrokenMqttError`."""
        self._buffer += data
        packets = []
        begin = 0
        while begin < len(self._buffer):
            first = self._buffer[begin]
            if first not in _FIRST_BYTES:
                raise BrokenMqttError(f"sends a packet that begins with 0x{first:02x}")
            size, body_at = self._remaining_length(begin + 1)
            if size is None or body_at + size > len(self._buffer):
                break
            body = bytes(self._buffer[body_at : body_at + size])
            packets.append(Packet(first >> 4, body, first == _RETAINED))
            begin = body_at + size
        del self._buffer[:begin]
        return packets

    def _remaining_length(self, begin: int) -> tuple[int | None, int]:
        """The bytes of a packet after its length (None: the length is not whole yet), and where
        they begin.
        """
        size = 0
        for place in range(_LONGEST_LENGTH):
            if begin + place == len(self._buffer):
                return None, begin
            byte = self._buffer[begin + place]
            size |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if size > LONGEST_PACKET:
                    raise BrokenMqttError(f"sends a packet of {size:,} bytes")
                return size, begin + place + 1
        raise BrokenMqttError("sends a packet whose length has more than four bytes")


def return_code(connack: bytes) -> int:
    """The code of a CONNACK (section 3.2.2.3); 0: accepted. Raises :class:`BrokenMqttError`."""
    if len(connack) != 2 or connack[0] > 1:
        raise BrokenMqttError("sends a CONNACK that is malformed")
    return connack[1]


def is_granted(suback: bytes, count: int) -> bool:
    """Whether the broker granted at least one of ``count`` subscriptions (section 3.9.3). Raises
    :class:`BrokenMqttError`.
    """
    codes = suback[len(_PACKET_ID) :]
    if not suback.startswith(_PACKET_ID) or len(codes) != count:
        raise BrokenMqttError("sends a SUBACK that does not answer the SUBSCRIBE")
    return any(code < _FAILURE for code in codes)


def publication_of(packet: Packet) -> Publication:
    """A PUBLISH of QoS 0 (section 3.3). Raises :class:`BrokenMqttError`."""
    topic_end = 2 + int.from_bytes(packet.body[:2])
    if len(packet.body) < 2 or topic_end > len(packet.body):
        raise BrokenMqttError("sends a PUBLISH that ends in its topic")
    try:
        topic = packet.body[2:topic_end].decode()
    except UnicodeDecodeError:
        raise BrokenMqttError("sends a PUBLISH whose topic is not UTF-8") from None
    return Publication(topic, packet.body[topic_end:], packet.is_retained)
