"""WebSocket: the upgrade and single frames. tests/fuzz compares streams of frames with wsproto."""

from __future__ import annotations

import os
import struct

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, NEWS, Event, ProtocolError
from asyncli.protocols.websocket import BINARY, CLOSE, PING, PONG, WebSocket, accept_of, frame

ASK = b"GET /chat HTTP/1.1\r\nHost: there\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
OFFERS = ASK + b"Sec-WebSocket-Protocol: chat, superchat\r\n"
HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: %b\r\n"


def beat(size: int) -> bytes:
    """Entropy that makes "beat" each nonce."""
    return (b"beat" * size)[:size]


def upgraded(ask: bytes = ASK, more: bytes = b"", head: bytes = HEAD, cut: int = 0) -> tuple[WebSocket, Event | None]:
    """A protocol whose server has answered the upgrade with ``head`` and ``more``, in pieces of ``cut`` bytes."""
    protocol = WebSocket([ask], beat, b"", Fields())
    key = protocol.handshake(7, 0).split(b"Sec-WebSocket-Key: ")[1].strip()
    data, event = (head.replace(b"%b", accept_of(key)) + b"\r\n" + more), None
    for at in range(0, len(data), cut or len(data)):
        assert event is None
        assert 7 in protocol.partial
        event = protocol.feed(7, data[at : at + (cut or len(data))], False)
    return protocol, event


def server_frame(opcode: int, payload: bytes = b"", fin: bool = True) -> bytes:
    return struct.pack(">BB", 0x80 * fin | opcode, len(payload)) + payload


def test_the_key_and_its_answer_are_those_of_the_rfc() -> None:
    assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_a_server_of_wsproto_understands_us_and_we_it() -> None:
    protocol, server = WebSocket([ASK], os.urandom, b"", Fields()), WSConnection(ConnectionType.SERVER)
    server.receive_data(protocol.handshake(0, 0))
    (request,) = server.events()
    assert isinstance(request, Request)
    assert (request.target, request.host, request.extensions) == ("/chat", "there", [])
    established = protocol.feed(0, server.send(AcceptConnection()), False)
    assert established is not None
    assert established.kind == ESTABLISHED
    assert not protocol.partial
    server.receive_data(protocol.heartbeat_for(0, 0))
    (ping,) = server.events()
    assert isinstance(ping, Ping)
    assert protocol.feed(0, server.send(ping.response()), True) == Event(0, True, kind=ANSWER)
    bye = protocol.feed(0, server.send(CloseConnection(1001, "away")), False)
    assert bye is not None
    assert (bye.kind, bye.status) == (CLOSING, 1001)
    server.receive_data(bye.reply)
    (heard,) = server.events()
    assert isinstance(heard, CloseConnection)
    assert heard.code == 1001


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_our_frames_are_read_by_wsproto(size: int) -> None:
    server, payload = WSConnection(ConnectionType.SERVER), os.urandom(size)
    server.receive_data(WebSocket([ASK], os.urandom, b"", Fields()).handshake(0, 0))
    list(server.events())
    server.send(AcceptConnection())
    server.receive_data(frame(BINARY, payload, os.urandom(4)))
    assert b"".join(bytes(event.data) for event in server.events()) == payload  # type: ignore[attr-defined]


def test_no_two_frames_and_no_two_keys_are_the_same() -> None:
    protocol = WebSocket([ASK], os.urandom, b"", Fields())
    keys = {protocol.handshake(0, 0) for _ in range(100)}
    assert len({protocol.heartbeat_for(0, 0) for _ in range(100)}) == len(keys) == 100


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_an_upgrade_comes_in_any_pieces(cut: int) -> None:
    _, event = upgraded(cut=cut)
    assert event == Event(0, True, kind=ESTABLISHED)


def test_bytes_after_the_head_are_not_lost() -> None:
    _, event = upgraded(more=server_frame(PING, b"hi"))
    assert event == Event(0, True, kind=ESTABLISHED, rest=server_frame(PING, b"hi"))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n", "HTTP 403 Forbidden"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", "HTTP 200 OK"),
        (HEAD.replace(b"%b", b"nonsense"), "the Sec-WebSocket-Accept does not answer the key"),
        (HEAD.replace(b"Upgrade: WebSocket\r\n", b""), "101 without Upgrade: websocket and Connection: Upgrade"),
        (HEAD.replace(b"keep-alive, Upgrade", b"close"), "101 without Upgrade: websocket and Connection: Upgrade"),
        (HEAD + b"Sec-WebSocket-Extensions: permessage-deflate\r\n", "an extension that was not offered"),
        (HEAD + b"Sec-WebSocket-Protocol: mqtt\r\n", "a subprotocol that was not offered"),
        (b"SSH-2.0-x\r\n", "not a status line: b'SSH-2.0-x'"),
        (b"HTTP/1.1 101 x\r\n" + b"x" * 70_000, "more than asyncli reads: a head of over 65,536 bytes"),
    ],
)
def test_an_upgrade_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(ProtocolError) as error:
        upgraded(head=head)
    assert str(error.value) == why


def test_a_refusal_shows_the_first_line_of_its_body() -> None:
    with pytest.raises(ProtocolError) as error:
        upgraded(head=b"HTTP/1.1 401 Unauthorized\r\n", more=b"no token\nmore")
    assert str(error.value) == "HTTP 401 Unauthorized: no token"


def test_the_first_refusal_of_a_status_gives_its_text() -> None:
    protocol = WebSocket([ASK], os.urandom, b"", Fields())
    for row, body in enumerate((b"at 10:00:01", b"at 10:00:02")):
        protocol.handshake(row, 0)
        with pytest.raises(ProtocolError, match=r"^HTTP 503 Busy: at 10:00:01$"):
            protocol.feed(row, b"HTTP/1.1 503 Busy\r\n\r\n" + body, False)


@pytest.mark.parametrize("hints", [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b"HTTP/1.1 100\n\n" * 3_000])
def test_early_hints_come_before_the_answer(hints: bytes) -> None:
    _, event = upgraded(head=hints + HEAD)
    assert event is not None
    assert event.kind == ESTABLISHED


def test_an_offered_subprotocol_may_be_chosen() -> None:
    _, event = upgraded(OFFERS, head=HEAD + b"Sec-WebSocket-Protocol: superchat\r\n")
    assert event is not None


@pytest.mark.parametrize(
    ("data", "kind", "messages", "size"),
    [
        (server_frame(PONG, b"beat"), ANSWER, 0, 0),
        (server_frame(PONG, b"other"), NEWS, 0, 0),
        (server_frame(1, b"hello") + server_frame(PONG, b"beat"), ANSWER, 1, 5),
        (server_frame(2, b"hello", fin=False) + server_frame(PONG, b"beat") + server_frame(0, b"you"), ANSWER, 1, 8),
        (server_frame(1, "€".encode()[:1], fin=False) + server_frame(0, "€".encode()[1:]), NEWS, 1, 3),
        (server_frame(PING, b"a") * 300, NEWS, 0, 0),
        (server_frame(CLOSE), CLOSING, 0, 0),
    ],
)
def test_what_frames_mean(data: bytes, kind: int, messages: int, size: int) -> None:
    protocol, _ = upgraded()
    event = protocol.feed(7, data, True)
    assert event is not None
    assert (event.kind, event.messages, event.body_bytes) == (kind, messages, size)
    # Of several pings in a read one is answered.
    assert len(event.reply) < 20
    assert not protocol.partial


def test_each_ping_is_answered_by_its_own_pong_alone() -> None:
    protocol, server = WebSocket([ASK], os.urandom, b"", Fields()), WSConnection(ConnectionType.SERVER)
    server.receive_data(protocol.handshake(0, 0))
    list(server.events())
    protocol.feed(0, server.send(AcceptConnection()), False)
    pongs = []
    for _ in range(300):
        server.receive_data(protocol.heartbeat_for(0, 0))
        (ping,) = server.events()
        assert isinstance(ping, Ping)
        pongs.append(server.send(ping.response()))
        assert protocol.answers is not None
        assert protocol.answers[protocol.owed[0]] == pongs[-1]
        # None of the last 255 pongs is right again.
        assert pongs[-1] not in pongs[-256:-1]
        for earlier in pongs[-4:-1]:
            event = protocol.feed(0, earlier, True)
            assert event is not None
            assert event.kind == NEWS
        assert protocol.feed(0, pongs[-1] * 2, True) == Event(0, True, kind=ANSWER)
    # An answer before an error or a close frame in the same read.
    server.receive_data(protocol.heartbeat_for(0, 0))
    (ping,) = server.events()
    pong = server.send(ping.response())  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError) as caught:
        protocol.feed(0, pong + b"\x83\x00", True)
    assert caught.value.answer == Event(0, True, kind=ANSWER)
    event = protocol.feed(0, pong + server_frame(CLOSE, b"\x03\xe8bye"), True)
    assert event is not None
    assert (event.kind, event.keep_alive) == (ANSWER, False)
    assert isinstance(event.end, Event)
    assert (event.end.kind, event.end.status, event.end.rest) == (CLOSING, 1000, b"bye")


@pytest.mark.parametrize("cut", [1, 2, 5, 100])
def test_an_echoed_text_is_an_answer(cut: int) -> None:
    protocol = WebSocket([ASK], os.urandom, "zurück".encode(), Fields())
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(protocol.handshake(7, 0))
    list(server.events())
    protocol.feed(7, server.send(AcceptConnection()), False)
    server.receive_data(protocol.heartbeat_for(7, 0))
    (heard,) = server.events()
    assert isinstance(heard, TextMessage)
    assert heard.data == "zurück"
    # Another text with the same beginning, a longer one, and an empty one answer nothing.
    for words, kinds in (("zurück", [ANSWER]), ("zur", [NEWS]), ("zurück!", [NEWS]), ("", [NEWS])):
        data = server.send(TextMessage(words))
        events = [protocol.feed(7, data[at : at + cut], True) for at in range(0, len(data), cut)]
        whole = [event for event in events if event is not None]
        assert [event.kind for event in whole if event.kind == ANSWER or event.messages] == kinds
        assert sum(event.body_bytes for event in whole) == (0 if kinds == [ANSWER] else len(words.encode()))
        assert not protocol.partial
    # A pong is no answer then, and an unsolicited text is a message.
    pong, unasked = protocol.feed(7, server_frame(PONG, b"beat"), True), protocol.feed(7, server.send(TextMessage("zurück")), False)
    assert pong is not None
    assert unasked is not None
    assert (pong.kind, unasked.kind, unasked.messages) == (NEWS, NEWS, 1)


def test_an_echoed_text_may_have_a_nonce_and_its_copies_are_counted() -> None:
    protocol, seen = WebSocket([ASK], os.urandom, b'{"ping": "{nonce}"}', Fields()), []
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(protocol.handshake(7, 0))
    list(server.events())
    protocol.feed(7, server.send(AcceptConnection()), False)
    # A message that has begun before a heartbeat, and ends after it.
    protocol.feed(7, server_frame(1, b"new", fin=False), False)
    for number in range(3):
        server.receive_data(protocol.heartbeat_for(7, 0))
        (heard,) = server.events()
        assert isinstance(heard, TextMessage)
        assert heard.data not in seen
        if number == 0:
            assert protocol.feed(7, server_frame(0, b"s"), True) == Event(0, True, 1, kind=NEWS, messages=1)
        for earlier in seen:
            event = protocol.feed(7, server.send(TextMessage(earlier)), True)
            assert event is not None
            assert (event.kind, event.messages) == (NEWS, 1)
        assert protocol.feed(7, server.send(TextMessage(heard.data)), True) == Event(0, True, kind=ANSWER, own=True)
        seen.append(heard.data)
    for unasked in (1, 0):
        protocol.feed(7, server.send(TextMessage(seen[unasked - 2])), False)
        protocol.add_counts(counts := ProtocolCounts())
        assert counts.unasked == unasked


def test_an_unsolicited_pong_is_news() -> None:
    protocol, _ = upgraded()
    event = protocol.feed(7, server_frame(PONG, b"beat"), False)
    assert event is not None
    assert event.kind == NEWS


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x81\x85", "a masked frame from the server"),
        (b"\xc1\x05", "a frame with reserved bits set, though no extension was agreed on"),
        (b"\x83\x00", "a frame of the unknown opcode 3"),
        (b"\x8b\x00", "a frame of the unknown opcode 11"),
        (server_frame(0, b"x"), "a continuation frame without a message"),
        (server_frame(1, b"x", fin=False) + server_frame(1, b"x"), "a new message inside another"),
        (b"\x82\x7f" + b"\x80" + b"\0" * 7, "a frame whose length is not minimally encoded"),
        (b"\x82\x7e\0\x05", "a frame whose length is not minimally encoded"),
        (b"\x09\x00", "a control frame that is fragmented or longer than 125 bytes"),
        (server_frame(1, b"\xff"), "a text that is not UTF-8"),
        (server_frame(1, b"\xc3"), "a text that is not UTF-8"),
        (server_frame(CLOSE, b"\x03"), "a close frame with an invalid code"),
        (server_frame(CLOSE, b"\x03\xed"), "a close frame with an invalid code"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame with reserved bits set, though no extension was agreed on"),
    ],
)
def test_what_a_server_may_not_send(data: bytes, why: str) -> None:
    for cut in (1, len(data)):
        protocol, _ = upgraded()
        parts = [data[at : at + cut] for at in range(0, len(data), cut)]
        with pytest.raises(ProtocolError) as error:
            list(map(protocol.feed, [7] * len(parts), parts, [True] * len(parts)))
        assert str(error.value) == why


def test_a_message_that_never_ends_takes_no_memory() -> None:
    protocol, _ = upgraded()
    protocol.feed(7, b"\x82\x7f" + (1 << 40).to_bytes(8), True)
    for _ in range(100):
        event = protocol.feed(7, bytes(8192), True)
        assert event is not None
        assert (event.kind, event.messages, event.body_bytes) == (NEWS, 0, 8192)
    assert protocol.partial[7]._buffer == b""  # type: ignore[union-attr]


def test_a_forgotten_row_leaves_nothing() -> None:
    protocol = WebSocket([ASK], os.urandom, b"", Fields())
    protocol.handshake(3, 0)
    protocol.forget(3)
    assert not protocol.partial
