"""Several unanswered heartbeats of a row that has not read for a time: all answers are read at once, in any split of their bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from asyncli.model.template import Fields
from asyncli.protocols.http1 import Http1
from asyncli.protocols.http2 import Http2
from asyncli.protocols.http2_frames import ACK, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS, frame
from asyncli.protocols.interface import ANSWER, ESTABLISHED, Protocol, ProtocolError
from asyncli.protocols.mqtt import Mqtt
from asyncli.protocols.settings import Http2Settings, MqttSettings, TcpSettings
from asyncli.protocols.tcp import Tcp
from asyncli.protocols.websocket import PONG, TEXT, WebSocket, accept_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
ROW = 7


def read_late(protocol: Protocol, data: bytes, unanswered: int, size: int) -> list[int]:
    """The heartbeats that each read of ``size`` bytes answers, as the engine counts them."""
    answers = []
    for at in range(0, len(data), size):
        event = protocol.feed(ROW, data[at : at + size], unanswered)
        if event is not None and event.kind == ANSWER and unanswered:
            answers.append(min(event.answers, unanswered))
            unanswered -= answers[-1]
            assert event.own or event.answers == 1
    return answers


def http() -> tuple[Protocol, Callable[[int], bytes]]:
    return Http1("GET", [b"GET / HTTP/1.1\r\n\r\n"], Fields()), lambda count: OK * count


def mqtt() -> tuple[Protocol, Callable[[int], bytes]]:
    protocol = Mqtt(MqttSettings("3.1.1", "{n}", 60.0), Fields())
    protocol.handshake(ROW, 0)
    protocol.feed(ROW, b"\x20\2\0\0", False)
    publication = b"\x30\x05\0\1abc"
    return protocol, lambda count: (publication + b"\xd0\0") * count


def websocket(message: bytes = b"") -> tuple[Protocol, Callable[[int], bytes]]:
    protocol = WebSocket([b"GET / HTTP/1.1\r\nHost: x\r\n"], os.urandom, message, Fields())
    key = protocol.handshake(ROW, 0).split(b"Sec-WebSocket-Key: ")[1].strip()
    head = b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    granted = protocol.feed(ROW, head + accept_of(key) + b"\r\n\r\n", False)
    assert granted is not None
    assert granted.kind == ESTABLISHED

    def answers(count: int) -> bytes:
        data = b""
        for before in reversed(range(count)):
            data += struct.pack(">BB", 0x80 | TEXT, 4) + b"news"
            if message:
                data += struct.pack(">BB", 0x80 | TEXT, len(message)) + message
            else:
                nonce = protocol._nonces.text(ROW, before)
                data += struct.pack(">BB", 0x80 | PONG, len(nonce)) + nonce
        return data

    return protocol, answers


def echoes() -> tuple[Protocol, Callable[[int], bytes]]:
    return websocket(b"are you there?")


def http2() -> tuple[Protocol, Callable[[int], bytes]]:
    protocol = Http2(Http2Settings(), Fields(), os.urandom)
    protocol.handshake(ROW, 0)
    protocol.feed(ROW, frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0), False)

    def answers(count: int) -> bytes:
        nonces = [protocol._nonces.text(ROW, before) for before in reversed(range(count))]
        return b"".join(frame(PING, ACK, 0, b"asyn" + nonce) for nonce in nonces)

    return protocol, answers


def tcp(expect: str = "+PONG\\r\\n") -> tuple[Protocol, Callable[[int], bytes]]:
    return Tcp(TcpSettings(b"PING\r\n", expect), Fields(), os.urandom), lambda count: b"+PONG\r\n" * count


def lines() -> tuple[Protocol, Callable[[int], bytes]]:
    return tcp("/PONG/")


def numbered() -> tuple[Protocol, Callable[[int], bytes]]:
    """Each answer repeats its heartbeat's nonce."""
    protocol = Tcp(TcpSettings(b"PING {nonce}\r\n", "{nonce}\\n"), Fields(), os.urandom)

    def answers(count: int) -> bytes:
        nonces = [protocol._nonces.text(ROW, before) for before in reversed(range(count))]
        return b"".join(nonce.hex().encode() + b"\n" for nonce in nonces)

    return protocol, answers


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 7, 1_000])
@pytest.mark.parametrize("of", [http, mqtt, websocket, echoes, http2, tcp, lines, numbered], ids=lambda of: of.__name__)
def test_all_are_answered_and_none_is_one_too_many(of: Callable[[], tuple[Protocol, Callable[[int], bytes]]], size: int, count: int) -> None:
    protocol, answers = of()
    beats = [protocol.heartbeat or protocol.heartbeat_for(ROW, 0)]
    beats += [protocol.further_heartbeat(ROW, 0) for _ in range(count - 1)]
    assert protocol.answers_further
    assert sum(read_late(protocol, answers(count), count, size)) == count
    assert ROW not in protocol.partial


@pytest.mark.parametrize("size", [5, 1_000])
def test_any_bytes_answer_all(size: int) -> None:
    protocol, answers = tcp("any")
    assert sum(read_late(protocol, answers(3), 3, size)) == 3


@pytest.mark.parametrize("of", [http, tcp], ids=lambda of: of.__name__)
def test_one_answer_more_than_was_asked_for_is_still_an_error(of: Callable[[], tuple[Protocol, Callable[[int], bytes]]]) -> None:
    protocol, answers = of()
    if of is tcp:
        assert sum(read_late(protocol, answers(2), 2, 1_000)) == 2
        with pytest.raises(ProtocolError):
            protocol.feed(ROW, answers(1), False)
        return
    with pytest.raises(ProtocolError) as caught:
        protocol.feed(ROW, answers(3), 2)
    assert caught.value.answer is not None
    assert caught.value.answer.answers == 2


def test_an_answer_that_ends_the_connection_ends_the_late_ones() -> None:
    protocol, _ = http()
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    event = protocol.feed(ROW, OK + closing, 5)
    assert event is not None
    assert (event.answers, event.keep_alive, event.body_bytes) == (2, False, 2)


def test_beside_a_head_a_ping_answers_nothing() -> None:
    """A second HEAD would be on a stream of its own; the server's acknowledgement means nothing."""
    protocol = Http2(Http2Settings((b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",)), Fields(), os.urandom)
    protocol.handshake(ROW, 0)
    protocol.feed(ROW, frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0), False)
    protocol.heartbeat_for(ROW, 0)
    ping = protocol.further_heartbeat(ROW, 0)
    assert ping[3] == PING
    assert not protocol.answers_further
    acknowledged = frame(PING, ACK, 0, ping[9:])
    news = protocol.feed(ROW, acknowledged, 1)
    assert news is not None
    assert news.kind != ANSWER
    assert sum(read_late(protocol, frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88") + acknowledged, 1, 1_000)) == 1
