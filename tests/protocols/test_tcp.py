"""Raw TCP: answers to heartbeats, greetings, and unsolicited bytes. tests/fuzz compares it with Python's regexes."""

from __future__ import annotations

import os

import pytest

from asyncli.model.protocol_table import UNASKED
from asyncli.model.records import ProtocolCounts
from asyncli.model.tcp_values import parse_expected, parse_sent, unescaped
from asyncli.model.template import Fields
from asyncli.protocols.interface import ANSWER, ESTABLISHED, NEWS, ProtocolError
from asyncli.protocols.settings import TcpSettings
from asyncli.protocols.tcp import Tcp


@pytest.mark.parametrize(
    ("expect", "reads", "more"),
    [
        ("any", [b"whatever"], 0), ("+PONG\\r\\n", [b"+PO", b"NG\r", b"\n"], 0), ("+PONG\\r\\n", [b"+PONG\r\n*3\r\n"], 4),
        ("4 bytes", [b"\x00\x01", b"\x02\x03\x04"], 1), ("/^2\\d\\d ok$/", [b"250 ok\r", b"\nmore"], 4), ("/^P[IO]NG$/", [b"PING\r\nPONG\r\n"], 6), ("\\x00\\xffé", [b"\x00\xff\xc3\xa9"], 0),
    ],
)  # fmt: skip
def test_answers(expect: str, reads: list[bytes], more: int) -> None:
    protocol = Tcp(TcpSettings(b"PING\r\n", expect), Fields(), os.urandom)
    assert (protocol.heartbeat, protocol.handshake, protocol.silence_s) == (b"PING\r\n", None, None)
    for part in reads[:-1]:
        assert protocol.feed(3, part, True) is None
        assert 3 in protocol.partial
    event = protocol.feed(3, reads[-1], True)
    assert event is not None
    assert (event.kind, event.keep_alive, len(event.rest), event.body_bytes, event.messages) == (ANSWER, True, more, 0, 0)
    assert not protocol.partial
    idle = protocol.feed(3, b"news", False)
    assert idle is not None
    assert (idle.kind, idle.body_bytes) == (NEWS, 4)
    assert protocol.feed(3, b"", False) is None
    # The first answer is reported if any is right.
    for first_answers in ({repr(reads[0]): 1} if expect == "any" else {}, {}):
        protocol.add_counts(counts := ProtocolCounts())
        assert counts.first_answers == first_answers


@pytest.mark.parametrize(
    ("expect", "reads", "words"),
    [
        ("+PONG\\r\\n", [b"+P", b"ANIC"], r"b'\+PANIC' in place of b'\+PONG\\r\\n'"), ("+PONG", [b"-ERR unknown\r\n"], "-ERR unknown"),
        ("/^220 /", [b"554 no\n"], "554 no.*in place of '/\\^220 /'"), ("/x/", [b"y" * 2_500, b"y" * 2_500], "a line of more than 4,096 bytes"),
    ],
)  # fmt: skip
def test_other_answers(expect: str, reads: list[bytes], words: str) -> None:
    protocol = Tcp(TcpSettings(b"x", expect), Fields(), os.urandom)
    for part in reads[:-1]:
        assert protocol.feed(0, part, True) is None
    with pytest.raises(ProtocolError, match=words) as caught:
        protocol.feed(0, reads[-1], True)
    assert len(str(caught.value)) < 400
    assert not protocol.partial


def test_an_exact_answer_that_nothing_asked_for_is_an_error() -> None:
    protocol = Tcp(TcpSettings(b"PING\r\n", "+PONG\\r\\n"), Fields(), os.urandom)
    with pytest.raises(ProtocolError, match=UNASKED) as caught:
        protocol.feed(0, b"+PONG\r\n", False)
    assert caught.value.answer is None
    # Two in one read: the first was asked for.
    with pytest.raises(ProtocolError, match=UNASKED) as caught:
        protocol.feed(0, b"+PONG\r\n+PONG\r\n", True)
    assert caught.value.answer is not None


@pytest.mark.parametrize(("expect", "unasked"), [("any", 3), ("/^P[IO]NG$/", 2), ("5 bytes", 2)])
def test_looser_answers_that_nothing_asked_for_are_counted(expect: str, unasked: int) -> None:
    protocol = Tcp(TcpSettings(b"PING\r\n", expect), Fields(), os.urandom)
    for data in (b"PONG\r\n", b"PING\r\n", b"x\n"):
        event = protocol.feed(0, data, False)
        assert event is not None
        assert event.kind == NEWS
    for count in (unasked, 0):
        protocol.add_counts(counts := ProtocolCounts())
        assert counts.unasked == count


def test_an_echo_may_repeat_the_heartbeat_s_own_nonce() -> None:
    protocol, seen = Tcp(TcpSettings(b"ECHO {nonce}!\n", "{nonce}!\\n"), Fields(), os.urandom), []
    assert protocol.heartbeat is None
    for _ in range(3):
        asked = protocol.heartbeat_for(2, 0)
        nonce = asked.removeprefix(b"ECHO ")
        assert (len(nonce), nonce in seen) == (10, False)
        with pytest.raises(ProtocolError):
            protocol.feed(2, seen[-1] if seen else b"{nonce}!\n", True)
        assert protocol.feed(2, nonce[:4], True) is None
        event = protocol.feed(2, nonce[4:], True)
        assert event is not None
        assert (event.kind, event.own) == (ANSWER, True)
        seen.append(nonce)
    with pytest.raises(ProtocolError, match=UNASKED):
        protocol.feed(2, seen[-1], False)


def test_a_greeting_is_awaited_with_all_that_comes_in_its_read() -> None:
    protocol = Tcp(TcpSettings(greeting="/^220 /", silence_s=9.0), Fields(), os.urandom)
    assert (protocol.heartbeat, protocol.silence_s) == (None, 9.0)
    assert protocol.handshake is not None
    assert protocol.handshake(1, 0) == b""
    assert protocol.feed(1, b"220 a", False) is None
    event = protocol.feed(1, b".b\r\nand", False)
    assert event is not None
    # The greeting must not answer the first heartbeat.
    assert (event.kind, event.rest) == (ESTABLISHED, b"")
    protocol.handshake(1, 0)
    protocol.forget(1)
    assert not protocol.partial


@pytest.mark.parametrize("text", ["\\q", "PING\\", "\\x1", "/(/", "0 bytes", "70000 bytes", "/[/", "a\x07b", ""])
def test_a_wrong_answer_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|1 to 65,536 bytes"):
        parse_expected(text)


def test_escapes() -> None:
    assert unescaped(r"a\r\n\t\0\\\x7Fb") == b"a\r\n\t\0\\\x7fb"
    assert parse_sent("PING\r\n") == "PING\r\n"


def kinds_of(first: bytes, *others: bytes) -> dict[str, int]:
    """The answers of other kinds than the first one, by the engine's calls: an answer that repeats the last usual one is not fed."""
    protocol, last = Tcp(TcpSettings(b"PING\r\n", "any"), Fields(), os.urandom), b""
    for answer in (first, *others):
        if answer == last:
            continue
        event = protocol.feed(3, answer, True)
        assert event is not None
        last = last if event.own else answer
    protocol.add_counts(counts := ProtocolCounts())
    protocol.add_counts(later := ProtocolCounts())
    assert (len(counts.first_answers), later.other_answers) == (1, {})
    return counts.other_answers


@pytest.mark.parametrize(
    ("first", "others", "counted"),
    [
        # Each is counted, though its bytes repeat.
        (b"+OK\r\n", [b"-OOM no\r\n"] * 5 + [b"+OK\r\n"] * 5 + [b"-OOM no\r\n"], {r"b'-OOM no\r\n'": 6}),
        (b"+OK\r\n", [b"-ERR a\r\n", b"-ERR b\r\n", b"$3\r\nabc\r\n"], {r"b'-ERR a\r\n'": 2, r"b'$3\r\nabc\r\n'": 1}),
        (b"VERSION 1.6\r\n", [b"SERVER_ERROR out of memory\r\n", b"VERSION 1.7\r\n"], {r"b'SERVER_ERROR out of memory\r\n'": 1}),
        (b"PONG\r\n", [b"-ERR 'x'\r\n", b"PONG\r\n"], {repr(b"-ERR 'x'\r\n"): 1}),
        (b"OK", [b"OK\n", b"OKAY"], {"b'OKAY'": 1}), (b"hello a", [b"hello b", b"hello", b"bye"], {"b'bye'": 1}),
        (b"\r\n", [b"\r\n\r\n", b"x"], {r"b'\r\n\r\n'": 1, "b'x'": 1}),
        # Numbers are alike, however many digits.
        (b":9\r\n", [b":10\r\n", b":100\r\n", b":-5\r\n"], {}), (b"4.5", [b"-0.5", b"+3"], {}), (b"$5\r\nhello\r\n", [b"$11\r\nhello world\r\n"], {}),
        (b"12:59:59\n", [b"13:00:00\n"], {}), (b"2026-11-26T23:59:59", [b"2027-01-01T00:00:00"], {}), (b'{"n":9,"a":1}', [b'{"n":10,"b":2}'], {}),
        (b"1.5", [b"10.25", b"7"], {}),
    ],
)  # fmt: skip
def test_answers_of_another_kind_are_counted(first: bytes, others: list[bytes], counted: dict[str, int]) -> None:
    assert kinds_of(first, *others) == counted


def test_answers_that_vary_by_nature_are_soon_no_kinds() -> None:
    counted = kinds_of(*(bytes([65 + n % 26]) * (1 + n % 20) for n in range(400)))
    assert (len(counted), sum(counted.values()) < 40) == (8, True)


@pytest.mark.parametrize("expect", ["/^./", "4 bytes", "+OK\\r\\n"])
def test_kinds_are_counted_only_where_any_answer_is_right(expect: str) -> None:
    protocol = Tcp(TcpSettings(b"PING\r\n", expect), Fields(), os.urandom)
    for _ in range(3):
        protocol.feed(3, b"+OK\r\n", True)
    protocol.add_counts(counts := ProtocolCounts())
    assert (counts.first_answers, counts.other_answers) == ({}, {})
