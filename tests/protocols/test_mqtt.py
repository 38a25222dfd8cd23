"""MQTT: requests and single packets. ohmqtt is the other end of MQTT 5; tests/fuzz compares streams with it."""

from __future__ import annotations

import pytest
from ohmqtt.mqtt_spec import MQTTQoS, MQTTReasonCode
from ohmqtt.packet import (
    MQTTConnAckPacket,
    MQTTConnectPacket,
    MQTTDisconnectPacket,
    MQTTPubAckPacket,
    MQTTPubCompPacket,
    MQTTPublishPacket,
    MQTTPubRecPacket,
    MQTTPubRelPacket,
    MQTTSubAckPacket,
    MQTTSubscribePacket,
    decode_packet,
)
from ohmqtt.property import MQTTConnAckProps, MQTTPublishProps

from asyncli.model.template import Fields
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, NEWS, Event, ProtocolError
from asyncli.protocols.mqtt import Mqtt
from asyncli.protocols.settings import MqttSettings

WORDS = MqttSettings("3.1.1", "asyncli-{random}-{n:06d}", 59.5)
FIVE = MqttSettings("5", "{n}", 59.5)
PONG, YES, YES_5 = b"\xd0\0", b"\x20\2\0\0", b"\x20\3\0\0\0"


def table(words: MqttSettings) -> Mqtt:
    return Mqtt(words, Fields(lambda row: row + 100, "3f2a9c"))


def shaken(words: MqttSettings, *parts: bytes) -> tuple[Mqtt, Event | None]:
    """A protocol, and the event of the last part of the server's answer to CONNECT."""
    protocol, event = table(words), None
    protocol.handshake(7, 0)
    for part in parts:
        assert 7 in protocol.partial
        event = protocol.feed(7, part, False)
    return protocol, event


def held(words: MqttSettings) -> Mqtt:
    protocol, event = shaken(words, YES_5 if words.version == "5" else YES)
    assert event == Event(0, True, kind=ESTABLISHED)
    assert not protocol.partial
    return protocol


def test_requests_are_those_of_the_specification() -> None:
    # MQTT 3.1.1, sections 3.1 and 3.8; the keep alive is rounded up.
    assert table(WORDS).handshake(7, 0) == b"\x10\x21\0\4MQTT\4\2\0\x3c\0\x15asyncli-3f2a9c-000107"
    login = MqttSettings("3.1.1", "{n}", 70_000.0, ("a/{n}@1", "b@c"), "me:pass:word")
    protocol, event = shaken(login, YES)
    assert protocol.handshake(7, 0) == b"\x10\x1e\0\4MQTT\4\xc2\0\0\0\x03107\0\2me\0\x09pass:word"
    assert event == Event(0, True, kind=NEWS, reply=b"\x82\x10\0\1\0\5a/107\1\0\3b@c\0")


def test_a_server_of_ohmqtt_understands_us() -> None:
    asked = MqttSettings("5", "{n}-" + "x" * 200, 60.0, ("a/{n}@2", "b"), "me")
    protocol = table(asked)
    connect = decode_packet(protocol.handshake(7, 0))
    assert isinstance(connect, MQTTConnectPacket)
    assert (connect.client_id, connect.keep_alive, connect.clean_start) == ("107-" + "x" * 200, 60, True)
    assert (connect.username, connect.password, len(connect.properties)) == ("me", None, 0)
    reply = protocol.feed(7, MQTTConnAckPacket(properties=MQTTConnAckProps(ServerKeepAlive=30, AssignedClientIdentifier="y")).encode(), False)
    assert reply is not None
    subscribe = decode_packet(reply.reply)
    assert isinstance(subscribe, MQTTSubscribePacket)
    assert (list(subscribe.topics), subscribe.packet_id) == ([("a/107", 2), ("b", 0)], 1)
    granted = MQTTSubAckPacket(1, [MQTTReasonCode.GrantedQoS1, MQTTReasonCode.GrantedQoS0]).encode()
    # Retained publications may come before the SUBACK, and bytes after it are not lost.
    first = MQTTPublishPacket("a", b"five!", qos=MQTTQoS.Q1, packet_id=9)
    event = protocol.feed(7, first.encode() + granted + PONG, False)
    assert event == Event(0, True, 5, ESTABLISHED, MQTTPubAckPacket(9).encode(), 1, PONG)
    assert not protocol.partial


@pytest.mark.parametrize(
    ("words", "data", "why"),
    [
        (WORDS, b"\x20\2\0\5", "CONNACK 5: not authorized"),
        (FIVE, b"\x20\2\0\1", "CONNACK 1: unacceptable protocol version"),
        (FIVE, b"\x20\x08\0\x86\5\x1f\0\2no", "CONNACK 134: bad user name or password (no)"),
        (FIVE, b"\xe0\1\x89", "DISCONNECT 137: server busy"),
        (WORDS, b"\x20\2\0\x63", "CONNACK with the invalid code 99"),
        (WORDS, b"\x20\2\1\0", "CONNACK with a session, though a clean one was requested"),
        (WORDS, b"\x20\3\0\0\0", "CONNACK that is malformed"),
        (FIVE, b"\x20\6\0\0\3\x13\0\x1d", "SERVER_KEEP_ALIVE 29: heartbeats may be 29.75 s apart"),
        (FIVE, b"\x20\5\0\0\2\x24\2", "the property 36 with an invalid value"),
        (FIVE, b"\x20\7\0\0\4\x25\1\x25\1", "CONNACK with the property 37 twice"),
        (FIVE, b"\x20\5\0\0\2\x01\1", "CONNACK with the property 1"),
        (FIVE, b"\x20\4\0\0\1\x25", "CONNACK whose properties are cut"),
        (WORDS, b"\x20\x81\x80\x80\x80\0", "a length of more than four bytes"),
        (FIVE, b"\x20\x83\x00\0\0\0", "a length that is not minimally encoded"),
        (WORDS, b"HTTP/1.1 400 Bad Request\r\n", "b'HTTP/1.1 400 Bad Request\\r\\n' in place of CONNACK"),
        (WORDS, PONG, "b'\\xd0\\x00' in place of CONNACK"),
    ],
)
def test_a_connection_is_refused(words: MqttSettings, data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError) as error:
        shaken(words, data)
    assert str(error.value) == why


def test_the_message_that_a_handshake_awaits_has_a_name() -> None:
    protocol = table(MqttSettings("3.1.1", "{n}", 60.0, ("a",)))
    protocol.handshake(7, 0)
    assert protocol.awaits(7) == "CONNACK"
    protocol.feed(7, YES, False)
    assert protocol.awaits(7) == "SUBACK"
    protocol.feed(7, b"\x90\3\0\1\0", False)
    assert protocol.awaits(7) == ""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x90\4\0\1\1\x80", "SUBACK 128: unspecified error for b@1"),
        (b"\x90\3\0\1\0", "SUBACK that does not answer the SUBSCRIBE"),
        (b"\x90\4\0\2\0\0", "SUBACK that does not answer the SUBSCRIBE"),
        (b"\x90\4\0\1\3\0", "SUBACK with the invalid code 3"),
        (YES, "CONNACK, which is not allowed here"),
    ],
)
def test_a_subscription_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError) as error:
        shaken(MqttSettings("3.1.1", "{n}", 60.0, ("a", "b@1")), YES, data)
    assert str(error.value) == why


def _of_qos(qos: MQTTQoS, dup: bool = False) -> bytes:
    return MQTTPublishPacket("a", b"x", qos=qos, packet_id=9, dup=dup).encode()


LONG = MQTTPublishPacket("a", bytes(300), qos=MQTTQoS.Q2, packet_id=9, properties=MQTTPublishProps(UserProperty=[("a", "b"), ("a", "")])).encode()


@pytest.mark.parametrize(
    ("data", "kind", "messages", "size", "reply"),
    [
        (PONG, ANSWER, 0, 0, b""),
        (MQTTPublishPacket("a/b", b"hello").encode(), NEWS, 1, 5, b""),
        (MQTTPublishPacket("a/b", retain=True).encode() + PONG, ANSWER, 1, 0, b""),
        (PONG + LONG, ANSWER, 1, 300, MQTTPubRecPacket(9).encode()),
        (MQTTPublishPacket("a", b"x", qos=MQTTQoS.Q1, packet_id=9).encode() * 2, NEWS, 2, 2, MQTTPubAckPacket(9).encode() * 2),
        # A duplicate is ignored only if it is certainly the same one.
        (_of_qos(MQTTQoS.Q1) + _of_qos(MQTTQoS.Q1, dup=True), NEWS, 2, 2, MQTTPubAckPacket(9).encode() * 2),
        (_of_qos(MQTTQoS.Q2) + _of_qos(MQTTQoS.Q2, dup=True), NEWS, 1, 1, MQTTPubRecPacket(9).encode() * 2),
        (MQTTPubRelPacket(9).encode(), NEWS, 0, 0, MQTTPubCompPacket(9).encode()),
        (MQTTPubRelPacket(9, MQTTReasonCode.PacketIdentifierNotFound).encode(), NEWS, 0, 0, MQTTPubCompPacket(9).encode()),
        (MQTTDisconnectPacket(MQTTReasonCode.ServerShuttingDown).encode() + b"\xff", CLOSING, 0, 0, b""),
        (MQTTDisconnectPacket().encode(), CLOSING, 0, 0, b""),
        (b"\xe0\x08\x8b\x06\x1f\0\x03why", CLOSING, 0, 0, b""),
    ],
)
def test_what_packets_mean(data: bytes, kind: int, messages: int, size: int, reply: bytes) -> None:
    protocol = held(FIVE)
    event = protocol.feed(7, data, True)
    assert event is not None
    assert (event.kind, event.messages, event.body_bytes, event.reply) == (kind, messages, size, reply)
    assert event.status == (139 if data.startswith((b"\xe0\1", b"\xe0\x08")) else 0)
    assert event.rest == (b"why" if data.endswith(b"why") else b"")
    assert not protocol.partial


@pytest.mark.parametrize(
    ("words", "data", "why"),
    [
        (WORDS, YES, "CONNACK, which is not allowed here"),
        (WORDS, b"\0\0", "packet of type 0, which is not allowed here"),
        (WORDS, b"\xc0\0", "PINGREQ, which is not allowed here"),
        (WORDS, b"\x40\2\0\1", "PUBACK, which is not allowed here"),
        (WORDS, b"\xe0\0", "DISCONNECT, which is not allowed here"),
        (FIVE, b"\xf0\0", "AUTH, which is not allowed here"),
        (WORDS, b"\xd1\0", "PINGRESP with reserved flags set"),
        (WORDS, b"\x60\2\0\1", "PUBREL with reserved flags set"),
        (WORDS, b"\x36\7\0\1a\0\1hi", "PUBLISH of QoS 3"),
        (WORDS, b"\x38\5\0\1ahi", "PUBLISH of QoS 0 that is marked as a duplicate"),
        (WORDS, b"\x32\5\0\1a\0\0", "a packet identifier of 0"),
        (WORDS, b"\x62\2\0\0", "a packet identifier of 0"),
        (WORDS, b"\x62\1\1", "PUBREL of 1 bytes"),
        (WORDS, b"\x62\3\0\1\0", "PUBREL of 3 bytes"),
        (FIVE, b"\x62\3\0\1\1", "PUBREL with the invalid code 1"),
        (WORDS, b"\x30\4\0\2a+", "PUBLISH to a topic with wildcards"),
        (WORDS, b"\x30\4\0\2a\0", "a topic that is not UTF-8, or has a NUL in it"),
        (WORDS, b"\x30\4\0\2\xc3\x28", "a topic that is not UTF-8, or has a NUL in it"),
        (WORDS, b"\x30\2\0\0", "PUBLISH without a topic"),
        (WORDS, b"\x30\3\0\2a", "PUBLISH that ends before its payload"),
        (WORDS, b"\x30\1\0", "PUBLISH that ends before its payload"),
        (FIVE, b"\x30\4\0\1a\x80", "PUBLISH that ends before its payload"),
        (FIVE, b"\x30\3\0\1a", "PUBLISH that ends before its payload"),
        (FIVE, b"\x30\7\0\1a\3\x23\0\1", "PUBLISH with the property 35"),
        (FIVE, b"\x30\xff\xff\xff\x7f\0\1a\x81\x80\4", "more than asyncli reads: PUBLISH with 65,537 bytes of properties"),
        (FIVE, b"\xe0\1\4", "DISCONNECT with the invalid code 4"),
        (FIVE, b"\xe0\x81\x80\4", "more than asyncli reads: DISCONNECT of 65,537 bytes"),
        (WORDS, b"\xd0\1\0", "PINGRESP with a body"),
        (WORDS, PONG * 2, "PINGRESP that answers no PINGREQ"),
    ],
)
def test_what_a_server_may_not_send(words: MqttSettings, data: bytes, why: str) -> None:
    for cut in (1, len(data)):
        with pytest.raises(ProtocolError) as error:
            read(held(words), data, cut)
        assert str(error.value) == why


def read(protocol: Mqtt, data: bytes, cut: int) -> None:
    awaiting = True  # one PINGREQ is unanswered
    for at in range(0, len(data), cut):
        event = protocol.feed(7, data[at : at + cut], awaiting)
        awaiting = awaiting and (event is None or event.kind != ANSWER)


def test_a_message_that_never_ends_takes_no_memory() -> None:
    protocol = held(WORDS)
    assert protocol.feed(7, b"\x32\xff\xff\xff\x7f\0\1a\0\1", True) is None
    for _ in range(100):
        event = protocol.feed(7, bytes(8192), True)
        assert event == Event(0, True, 8192, NEWS)
    assert not protocol.partial[7]._buffer


def test_a_forgotten_row_leaves_nothing() -> None:
    protocol, _ = shaken(WORDS)
    protocol.forget(7)
    assert not protocol.partial
