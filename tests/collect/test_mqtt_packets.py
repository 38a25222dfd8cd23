"""MQTT packets of a subscriber, byte by byte; and what no broker should send."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.broker_topics import BrokerTopics, topics_of
from asyncli.collect.metric_rules import BROKER_UPTIME
from asyncli.collect.mqtt_packets import (
    CONNACK,
    LONGEST_PACKET,
    PINGRESP,
    PUBLISH,
    BrokenMqttError,
    Packet,
    PacketReader,
    Publication,
    connect_packet,
    is_granted,
    publication_of,
    return_code,
    subscribe_packet,
)

CLIENTS, HEAP = "$SYS/broker/clients/connected", "$SYS/broker/heap/current"


def publish(topic: str, payload: bytes, *, retained: bool = False) -> bytes:
    """A PUBLISH of less than 128 bytes."""
    body = len(topic).to_bytes(2) + topic.encode() + payload
    return bytes((0x31 if retained else 0x30, len(body))) + body


def test_connect_without_a_login() -> None:
    assert connect_packet("asyncli1", 60, "", None) == b"\x10\x14\x00\x04MQTT\x04\x02\x00\x3c\x00\x08asyncli1"


@pytest.mark.parametrize(
    ("user", "password", "flags", "end"),
    [
        ("me", "tiger", 0xC2, b"\x00\x02me\x00\x05tiger"),
        ("me", "", 0xC2, b"\x00\x02me\x00\x00"),
        ("me", None, 0x82, b"\x00\x02me"),
        ("mü", "ö", 0xC2, b"\x00\x03m\xc3\xbc\x00\x02\xc3\xb6"),
    ],
)
def test_connect_with_a_login(user: str, password: str | None, flags: int, end: bytes) -> None:
    packet = connect_packet("a", 60, user, password)
    assert packet[1] == len(packet) - 2
    assert packet[9] == flags
    assert packet.endswith(b"\x00\x01a" + end)


def test_subscribe_to_many_topics_has_a_length_of_two_bytes() -> None:
    packet = subscribe_packet(["a/" + "b" * 100, "c/d"])
    assert packet == b"\x82\x71\x00\x01\x00\x66a/" + b"b" * 100 + b"\x00\x00\x03c/d\x00"
    longer = subscribe_packet(["a" * 200])
    assert longer[:3] == b"\x82\xcd\x01"
    assert len(longer) == 3 + 205


def test_packets_in_any_pieces() -> None:
    data = b"\x20\x02\x00\x00" + publish(CLIENTS, b"7", retained=True) + b"\xd0\x00" + publish(HEAP, b"9")
    expected = [
        Packet(CONNACK, b"\x00\x00"),
        Packet(PUBLISH, b"\x00\x1d" + CLIENTS.encode() + b"7", is_retained=True),
        Packet(PINGRESP, b""),
        Packet(PUBLISH, b"\x00\x18" + HEAP.encode() + b"9"),
    ]
    assert PacketReader().feed(data) == expected
    reader = PacketReader()
    packets = []
    for byte in data:
        packets += reader.feed(bytes((byte,)))
    assert packets == expected


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400", "begins with 0x48"),
        (b"\x00\x00", "begins with 0x00"),
        (b"\x32\x07\x00\x01a\x00\x01", "begins with 0x32"),
        (b"\x38\x03\x00\x01a", "begins with 0x38"),
        (b"\x10\x00", "begins with 0x10"),
        (b"\x30\xff\xff\xff\x7f", "of 268,435,455 bytes"),
        (b"\x30\x81\x80\x04", "of 65,537 bytes"),
        (b"\x30\xff\xff\xff\xff", "more than four bytes"),
    ],
)
def test_what_is_no_packet_for_a_subscriber(data: bytes, why: str) -> None:
    with pytest.raises(BrokenMqttError, match=why):
        PacketReader().feed(data)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x02a", b"\xff\xffa", b"\x00\x01\xff1"])
def test_a_publication_that_is_cut_or_no_text(body: bytes) -> None:
    with pytest.raises(BrokenMqttError):
        publication_of(Packet(PUBLISH, body))


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x02\x00", b"\x00\x00\x00"])
def test_a_malformed_connack(body: bytes) -> None:
    with pytest.raises(BrokenMqttError, match="CONNACK"):
        return_code(body)


def test_subscriptions_are_granted_if_one_is() -> None:
    assert is_granted(b"\x00\x01\x80\x00", 2)
    assert not is_granted(b"\x00\x01\x80\x80", 2)
    for body in (b"", b"\x00\x01", b"\x00\x02\x00\x00", b"\x00\x01\x00\x00\x00"):
        with pytest.raises(BrokenMqttError):
            is_granted(body, 2)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\x20\x02\x00\x00", b"\xd0\x00", b"\x30\x03\x00\x01a"]), max_size=20))
def test_any_bytes_are_packets_or_refused(pieces: list[bytes]) -> None:
    reader = PacketReader()
    whole = PacketReader()
    try:
        packets = [packet for piece in pieces for packet in reader.feed(piece)]
    except BrokenMqttError as refused:
        assert str(refused).isprintable()
        return
    assert whole.feed(b"".join(pieces)) == packets


def test_small_packets_take_little_time() -> None:
    begun_s = time.process_time()
    assert len(PacketReader().feed(b"\xd0\x00" * 500_000)) == 500_000
    reader = PacketReader()
    length = b"\x30\x80\x80\x04"
    assert reader.feed(length) == []
    for _ in range(LONGEST_PACKET - 1):
        assert reader.feed(b"a") == []
    assert time.process_time() - begun_s < 5.0


# Topics.


def values(topics: BrokerTopics) -> tuple[dict[str, float], dict[str, float]]:
    """All that is known, and what is of now."""
    every = {topic: family.rows[0].value for topic, family in topics.page().families.items()}
    now = {topic: family.rows[0].value for topic, family in topics.page_of_now().families.items()}
    return every, now


def test_only_what_was_published_anew_is_of_now() -> None:
    topics = BrokerTopics([BROKER_UPTIME, CLIENTS, HEAP])
    topics.take(Publication(CLIENTS, b"5", is_retained=True))
    topics.take(Publication(HEAP, b"100", is_retained=True))
    assert values(topics) == ({CLIENTS: 5, HEAP: 100}, {})
    topics.take(Publication(CLIENTS, b"6", is_retained=False))
    assert values(topics) == ({CLIENTS: 6, HEAP: 100}, {CLIENTS: 6})
    assert values(topics)[1] == {}


def test_what_is_not_published_beside_the_uptime_has_not_changed() -> None:
    topics = BrokerTopics([BROKER_UPTIME, CLIENTS, HEAP])
    topics.take(Publication(CLIENTS, b"5", is_retained=True))
    topics.take(Publication(BROKER_UPTIME, b"12 seconds", is_retained=False))
    topics.take(Publication(HEAP, b"200", is_retained=False))
    assert values(topics)[1] == {BROKER_UPTIME: 12, CLIENTS: 5, HEAP: 200}


@pytest.mark.parametrize("payload", [b"", b"many", b"5 apples", b"1_0", b" 5", b"\xff", b"5" * 41, b"5\n", b"0x5"])
def test_a_topic_that_is_no_number_has_no_value(payload: bytes) -> None:
    topics = BrokerTopics([CLIENTS])
    topics.take(Publication(CLIENTS, b"5", is_retained=False))
    topics.take(Publication(CLIENTS, payload, is_retained=False))
    assert values(topics) == ({}, {})


def test_topics_that_nobody_asked_for_are_ignored() -> None:
    topics = BrokerTopics([CLIENTS])
    for number in range(1000):
        topics.take(Publication(f"$SYS/broker/{number}", b"1", is_retained=False))
    assert values(topics) == ({}, {})


def test_topics_are_names_with_levels() -> None:
    names = [CLIENTS, "go_goroutines", "memstats.HeapAlloc", "$SYS/#", "a/+/b", "a/b+", "a/" + "b" * 200, "a/b"]
    assert topics_of(names) == [CLIENTS, "a/+/b", "a/b"]


@pytest.mark.parametrize("order", [(BROKER_UPTIME, CLIENTS), (CLIENTS, BROKER_UPTIME)])
def test_an_uptime_without_a_unit_says_nothing_of_what_was_not_published(order: tuple[str, str]) -> None:
    """mochi-mqtt publishes its counts in any order, and a PINGRESP may come between two of them."""
    topics = BrokerTopics([BROKER_UPTIME, CLIENTS])
    topics.take(Publication(CLIENTS, b"5", is_retained=True))
    new = {BROKER_UPTIME: b"12", CLIENTS: b"100"}
    for topic in order:
        topics.take(Publication(topic, new[topic], is_retained=False))
        assert values(topics)[1] == {topic: float(new[topic])}


def test_a_broker_may_have_its_own_name_in_its_topics() -> None:
    name = "$SYS/+/clients/total"
    topics = BrokerTopics([CLIENTS, name])
    # One that was there before retained its own.
    topics.take(Publication("$SYS/old/clients/total", b"70", is_retained=True))
    topics.take(Publication("$SYS/a-1/clients/total", b"5", is_retained=False))
    topics.take(Publication("$SYS/old/clients/total", b"70", is_retained=True))
    # mosquitto's total counts clients that are gone too.
    topics.take(Publication("$SYS/broker/clients/total", b"90", is_retained=False))
    topics.take(Publication("$SYS/a-1/more/clients/total", b"91", is_retained=False))
    assert values(topics) == ({name: 5}, {name: 5})


def test_of_two_brokers_that_publish_to_one_neither_has_the_count_of_all() -> None:
    name = "$SYS/+/clients/total"
    topics = BrokerTopics([name])
    for number in (1, 2, 1):
        topics.take(Publication(f"$SYS/{number}/clients/total", b"5", is_retained=False))
    assert values(topics)[0] == {}
