"""HTTP/2: the handshake, heartbeats, single frames, held streams. tests/fuzz compares streams of frames with h2."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence

import hpack
import pytest
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import PingReceived, RequestReceived, StreamEnded
from h2.exceptions import FlowControlError
from h2.settings import SettingCodes

from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.hpack import status_of
from asyncli.protocols.http2 import Http2
from asyncli.protocols.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WORDS,
    GOAWAY,
    HEADERS,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, NEWS, Event, ProtocolError
from asyncli.protocols.settings import Http2Settings

ASK = b"HEAD /x?y HTTP/1.1\r\nUser-Agent: me\r\nHost: there:8080\r\nX-Long: " + b"z" * 300 + b"\r\n\r\n"


def nonce(size: int) -> bytes:
    """Entropy that makes "cli!" each nonce."""
    return (b"cli!" * size)[:size]


def spoken(heads: Sequence[bytes], scheme: bytes = b"https", gets: Sequence[bytes] = (), streams: int = 0) -> Http2:
    return Http2(Http2Settings(tuple(heads), scheme, tuple(gets), streams), Fields(), nonce)


GRANT = frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
PONG = frame(PING, ACK, 0, b"asyncli!")
WHOLE = END_HEADERS | END_STREAM


def granted(heads: bool = True, beats: int = 1) -> Http2:
    """Row 7's connection with an unanswered heartbeat."""
    protocol = spoken([ASK] if heads else [])
    assert protocol.handshake(7, 0) == FIRST_WORDS
    event = protocol.feed(7, GRANT, False)
    assert event == Event(0, True, kind=ESTABLISHED, reply=frame(SETTINGS, ACK, 0))
    for number in range(beats if heads else 0):
        protocol.heartbeat_for(7, 0)
        if number < beats - 1:
            assert protocol.feed(7, frame(HEADERS, WHOLE, 2 * number + 1, b"\x88"), True) == Event(200, True)
    return protocol


def goaway(code: int, last: int = 0) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code))


def test_a_server_of_h2_understands_us_and_we_it() -> None:
    protocol, server = spoken([ASK]), H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(protocol.handshake(0, 0))
    event = protocol.feed(0, server.data_to_send(), False)
    assert event is not None
    assert event.kind == ESTABLISHED
    server.receive_data(event.reply)
    for beat in range(3):
        asked, ended = server.receive_data(protocol.heartbeat_for(0, 0))
        assert isinstance(asked, RequestReceived)
        assert isinstance(ended, StreamEnded)
        assert asked.stream_id == 2 * beat + 1
        assert asked.headers == [
            (b":method", b"HEAD"), (b":scheme", b"https"), (b":path", b"/x?y"), (b":authority", b"there:8080"), (b"user-agent", b"me"), (b"x-long", b"z" * 300),
        ]  # fmt: skip
        server.send_headers(asked.stream_id, [(":status", "503"), ("retry-after", "1")], end_stream=True)
        assert protocol.feed(0, server.data_to_send(), True) == Event(503, True)
    pings = granted(heads=False)
    (ping,) = server.receive_data(pings.heartbeat_for(7, 0))
    assert isinstance(ping, PingReceived)
    assert server.data_to_send() == PONG


def test_headers_longer_than_a_frame_go_on_in_others() -> None:
    long = ASK.replace(b"z" * 300, b"z" * 40_000)
    protocol, server = spoken([long], b"http"), H2Connection(H2Configuration(client_side=False))
    server.receive_data(protocol.handshake(0, 0))
    server.decoder.max_header_list_size = 1 << 20
    protocol.feed(0, GRANT, False)
    asked, _ = server.receive_data(protocol.heartbeat_for(0, 0))
    assert isinstance(asked, RequestReceived)
    assert asked.headers[-1] == (b"x-long", b"z" * 40_000)


def test_a_row_is_held_once_both_settings_are_acknowledged() -> None:
    protocol = spoken([])
    protocol.handshake(3, 0)
    sent = frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x80") + frame(WINDOW_UPDATE, 0, 0, bytes(3) + b"\1") + frame(PING, 0, 0, b"whatever")
    for part in (sent[:5], sent[5:20], sent[20:], frame(SETTINGS, ACK, 0)[:-1]):
        assert protocol.feed(3, part, False) is None
        assert 3 in protocol.partial
    event = protocol.feed(3, frame(SETTINGS, ACK, 0)[-1:] + b"more", False)
    assert event == Event(0, True, kind=ESTABLISHED, reply=frame(SETTINGS, ACK, 0) + frame(PING, ACK, 0, b"whatever"), rest=b"more")
    assert not protocol.partial
    protocol.handshake(3, 0)
    protocol.forget(3)
    assert not protocol.partial


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", "it speaks HTTP/1: HTTP/1.1 400 Bad Request"), (b"HTTP/" + b"x" * 300, "it speaks HTTP/1: HTTP/" + "x" * 75),
        (b"220 hello there\r\n", r"b'220 hello there\r\n' in place of SETTINGS"), (frame(PING, 0, 0, bytes(8)), "in place of SETTINGS"), (goaway(1), "in place of SETTINGS"),
        (frame(SETTINGS, 0, 0) + goaway(11), "GOAWAY 11"), (frame(SETTINGS, 0, 0) * 1_001, "more than 1000 frames before it acknowledged our SETTINGS"),
        (frame(SETTINGS, 0, 0) + frame(HEADERS, WHOLE, 1, b"\x88"), "a frame of a stream that was never opened"), (frame(SETTINGS, 0, 0, b"\0\2\0\0\0\1"), "SETTINGS of 1 for 0x2, which is not allowed"),
    ],
)  # fmt: skip
def test_a_handshake_is_refused(data: bytes, why: str) -> None:
    protocol = spoken([])
    protocol.handshake(0, 0)
    with pytest.raises(ProtocolError) as error:
        protocol.feed(0, data, False)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("data", "awaiting", "event"),
    [
        (PONG, True, Event(0, True)), (PONG, False, Event(0, True, kind=NEWS)), (frame(PING, ACK, 0, b"another!"), True, Event(0, True, kind=NEWS)),
        (frame(PING, 0, 0, b"theirs..") * 2 + PONG, True, Event(0, True, reply=frame(PING, ACK, 0, b"theirs..") * 2)),
        (frame(SETTINGS, 0, 0), False, Event(0, True, kind=NEWS, reply=frame(SETTINGS, ACK, 0))), (frame(200, 7, 9, b"unknown"), True, Event(0, True, kind=NEWS)),
        (goaway(0), False, Event(0, False, kind=CLOSING)), (PONG + goaway(11), True, Event(0, False, own=True, end=Event(11, False, kind=CLOSING))), (frame(GOAWAY, 0, 0, bytes(7) + b"\x0btoo_many_pings"), True, Event(11, False, kind=CLOSING, rest=b"too_many_pings")), (PONG[:-1], True, None), (b"", True, None),
    ],
)  # fmt: skip
def test_frames_with_pings_as_heartbeats(data: bytes, awaiting: bool, event: Event | None) -> None:
    protocol = granted(heads=False)
    assert protocol.feed(7, data, awaiting) == event
    assert bool(protocol.partial) == (data == PONG[:-1])


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (frame(HEADERS, WHOLE, 3, b"\x88"), Event(200, True)), (frame(HEADERS, WHOLE | 0x28, 3, b"\2" + bytes(5) + b"\x8d" + bytes(2)), Event(404, True)),
        (frame(HEADERS, END_STREAM, 3, b"\x20\x48") + frame(CONTINUATION, 0, 3, b"\x83\x68\x4f") + frame(CONTINUATION, END_HEADERS, 3, b"\xff"), Event(429, True)),
        (frame(HEADERS, END_HEADERS, 3, b"\x08\x03103") + frame(HEADERS, WHOLE, 3, b"\x89"), Event(204, True)),
        (frame(HEADERS, END_HEADERS, 3, b"\x88") + frame(DATA, END_STREAM, 3), Event(200, True)), (frame(HEADERS, END_HEADERS, 3, b"\x88"), Event(0, True, kind=NEWS)),
        (frame(HEADERS, END_HEADERS, 3, b"\x88") + frame(HEADERS, WHOLE, 3, b"\x00\x01a\x01b"), Event(200, True)), (PONG, Event(0, True, kind=NEWS)),
        # A GOAWAY without error still lets it answer earlier streams.
        (goaway(0, 3) + frame(HEADERS, WHOLE, 3, b"\x88"), Event(200, False)), (goaway(0, (1 << 31) - 1), Event(0, True, kind=NEWS)),
        (goaway(0, 1), Event(0, False, kind=CLOSING)), (goaway(2, 3) + frame(HEADERS, WHOLE, 3, b"\x88"), Event(2, False, kind=CLOSING)),
        (frame(WINDOW_UPDATE, 0, 1, bytes(3) + b"\1") + frame(RST_STREAM, 0, 1, bytes(4)), Event(0, True, kind=NEWS)),
    ],
)  # fmt: skip
def test_frames_with_heads_as_heartbeats(data: bytes, event: Event) -> None:
    assert granted(beats=2).feed(7, data, True) == event
    protocol, last = granted(beats=2), None
    for at in range(len(data)):
        if last is None or last.kind == NEWS:
            last = protocol.feed(7, data[at : at + 1], True) or last
    assert last == event
    assert bool(protocol.partial) == (event.kind == NEWS and data[3] in (HEADERS, GOAWAY))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(HEADERS, WHOLE, 3, b"\xbe"), "a header of the dynamic table, which was not granted"), (frame(HEADERS, WHOLE, 3, b"\x3f\xe1\x1f\x88"), "a dynamic table, which was not granted"),
        (frame(HEADERS, WHOLE, 3, b""), "headers without a :status"), (frame(HEADERS, WHOLE, 3, b"\x00\x01a\x01b\x88"), "headers without a :status"),
        (frame(HEADERS, WHOLE, 3, b"\x08\x022x"), "headers without a :status"), (frame(HEADERS, WHOLE, 3, b"\x08\x04200"), "a block of headers that is cut"),
        (frame(HEADERS, WHOLE, 3, b"\x88\x7f\xff\xff\xff\xff\xff\xff\x01"), "a block of headers with a number that does not end"),
        (frame(HEADERS, WHOLE, 1, b"\x88"), "a second answer to one request"), (frame(DATA, 0, 1), "a frame of a closed stream"), (frame(HEADERS, WHOLE, 5, b"\x88"), "a frame of a stream that was never opened"),
        (frame(HEADERS, WHOLE, 2, b"\x88"), "a frame of a stream that was never opened"), (frame(RST_STREAM, 0, 3, b"\0\0\0\7"), "RST_STREAM 7 in place of an answer"),
        (frame(PUSH_PROMISE, 4, 3, bytes(4)), "a push, though our SETTINGS disable it"), (frame(CONTINUATION, 4, 3, b"\x88"), "a CONTINUATION without HEADERS"),
        (frame(HEADERS, END_STREAM, 3, b"\x88") + PONG, "a block of headers that another frame interrupts"), (frame(HEADERS, WHOLE | 8, 3, b"\2\x88"), "shorter than its padding"),
        (frame(HEADERS, END_HEADERS, 3, b"\x88") + frame(DATA, END_STREAM, 3, b"ok"), "data in the answer to a HEAD"), (frame(DATA, END_STREAM, 3), "data before the headers"),
        (frame(HEADERS, END_HEADERS, 3, b"\x88") * 2, "a second answer to one request"), (frame(HEADERS, END_HEADERS, 3, b"\x88") + frame(HEADERS, WHOLE, 3, b"\x88"), "a second answer to one request"), (frame(HEADERS, END_HEADERS, 3, b"\x88") + frame(HEADERS, END_HEADERS, 3, b"\0\1a\1b"), "trailers that do not end the stream"), (frame(HEADERS, WHOLE, 3, b"\x08\x03103"), "a stream that ends with 103"),
        (frame(PING, 0, 0, b"short"), "a frame of type 6 of a wrong length or stream"), (frame(SETTINGS, 0, 1), "of a wrong length or stream"), (frame(DATA, 0, 0), "of a wrong length or stream"),
        (frame(SETTINGS, 0, 0, b"12345"), "SETTINGS that are cut"), (frame(SETTINGS, ACK, 0, bytes(6)), "an acknowledgement with SETTINGS in it"), (frame(GOAWAY, 0, 0, bytes(7)), "a GOAWAY that is cut"),
        (frame(WINDOW_UPDATE, 0, 0, bytes(4)), "a WINDOW_UPDATE of 0"), (frame(DATA, 0, 3, bytes(16_385)), "a frame of more than 16384 bytes"),
        (frame(HEADERS, 0, 3, b"\x88") + frame(CONTINUATION, 0, 3, bytes(16_000)) * 5, "more than asyncli reads: a block of headers of over 65,536 bytes"),
    ],
)  # fmt: skip
def test_what_a_server_may_not_send(data: bytes, why: str) -> None:
    for cut in (3, len(data)) if len(data) < 1_000 else (len(data),):
        protocol = granted(beats=2)
        parts = [data[at : at + cut] for at in range(0, len(data), cut)]
        with pytest.raises(ProtocolError) as error:
            list(map(protocol.feed, [7] * len(parts), parts, [True] * len(parts)))
        assert why in str(error.value)


def test_the_last_stream_is_the_last_of_the_connection() -> None:
    protocol = granted(beats=2)
    protocol._streams[7] = (1 << 31) - 5
    for left in (True, False):
        stream = int.from_bytes(protocol.heartbeat_for(7, 0)[5:9])
        assert protocol.feed(7, frame(HEADERS, WHOLE, stream, b"\x88"), True) == Event(200, left, kind=ANSWER)
    assert stream == (1 << 31) - 1


def test_every_status_is_read_as_hpack_writes_it() -> None:
    for status in range(100, 1000):
        for huffman in (False, True):
            assert status_of(hpack.Encoder().encode([(":status", str(status)), ("server", "x" * 200)], huffman=huffman)) == status
    for name in (b"\x00\x07:status", b"\x10\x85\xb8\x84\x8d\x36\xa3"):
        assert status_of(name + b"\x03204") == 204


GET = ASK.replace(b"HEAD", b"GET")


def some_event(event: Event | None) -> Event:
    assert event is not None
    return event


@pytest.mark.parametrize("streams", [0, 3])
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("most", [4096, 8192, 4095, 0])
def test_requests_use_the_table_that_the_server_allows(most: int, table: bool, streams: int) -> None:
    # One field is longer than the table, and one differs by row.
    head, get = (one.replace(b"z" * 300, b"z" * 4_100 + b"\r\nX-N: {n}\r\nX-N: {n}") for one in (ASK, GET))
    protocol = Http2(Http2Settings((head,), b"https", (get,) * bool(streams), streams, table), Fields(), nonce)
    fields = [(b":scheme", b"https"), (b":path", b"/x?y"), (b":authority", b"there:8080"), (b"user-agent", b"me"), (b"x-long", b"z" * 4_100), (b"x-n", b"3"), (b"x-n", b"3")]
    used = table and most >= 4096
    for _ in range(2):  # a connection, and the next one of the row
        server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        server.initiate_connection()
        server.update_settings({SettingCodes.HEADER_TABLE_SIZE: most})
        events = server.receive_data(protocol.handshake(3, 0))
        events += server.receive_data(some_event(protocol.feed(3, server.data_to_send(), False)).reply)
        for stream in range(1, 2 * streams, 2):
            server.send_headers(stream, [(":status", "200")])
        assert not streams or some_event(protocol.feed(3, server.data_to_send(), False)).kind == ESTABLISHED
        for beat in range(4):
            if beat == 3:
                server.update_settings({SettingCodes.HEADER_TABLE_SIZE: 100})
                events += server.receive_data(some_event(protocol.feed(3, server.data_to_send(), False)).reply)
            beats = protocol.heartbeat_for(3, 0)
            events += server.receive_data(beats)
            assert (len(beats) < 4_150) == (used and beat + streams > 0 and beat < 3)
            assert bool(server.decoder.header_table.dynamic_entries) == (used and beat < 3)
            server.send_headers(2 * (streams + beat) + 1, [(":status", "204")], end_stream=True)
            assert protocol.feed(3, server.data_to_send(), True) == Event(204, True)
        asked = [event.headers for event in events if isinstance(event, RequestReceived)]
        assert asked == [[(b":method", method), *fields] for method in (b"GET",) * streams + (b"HEAD",) * 4]
        protocol.add_counts(counts := ProtocolCounts())
        assert counts.tables == used


def holding(heads: bool = False, streams: int = 3) -> Http2:
    """Row 7's connection with unanswered GETs."""
    protocol = spoken([ASK] if heads else [], b"http", [GET], streams)
    protocol.handshake(7, 0)
    event = protocol.feed(7, GRANT, False)
    assert event is not None
    assert event.kind == NEWS
    return protocol


def counted(protocol: Http2) -> tuple[int, int, dict[str, int]]:
    """Streams opened, open and lost."""
    protocol.add_counts(counts := ProtocolCounts())
    return counts.streams_opened, counts.streams_open, counts.streams_lost


def answer(stream: int, block: bytes = b"\x88", flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


@pytest.mark.parametrize("heads", [False, True])
def test_streams_of_a_server_of_h2_are_held_and_counted(heads: bool) -> None:
    protocol, server = spoken([ASK] if heads else [], b"http", [GET], 20), H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(protocol.handshake(3, 0))
    asks = protocol.feed(3, server.data_to_send(), False)
    assert asks is not None
    asked = [event.stream_id for event in server.receive_data(asks.reply) if isinstance(event, RequestReceived)]
    assert asked == list(range(1, 40, 2))
    assert counted(protocol) == (0, 0, {})
    for stream in asked:
        server.send_headers(stream, [(":status", "200"), ("content-length", "5")])
        with pytest.raises(FlowControlError):
            server.send_data(stream, b"hello")
    event = protocol.feed(3, server.data_to_send(), False)
    assert event is not None
    assert (event.kind, counted(protocol), dict(protocol.partial)) == (ESTABLISHED, (20, 20, {}), {})
    # Heartbeats continue meanwhile.
    events = server.receive_data(protocol.heartbeat_for(3, 0))
    if heads:
        assert isinstance(events[0], RequestReceived)
        assert events[0].stream_id == 41
        server.send_headers(41, [(":status", "204")], end_stream=True)
    assert protocol.feed(3, server.data_to_send(), True) == Event(204 if heads else 0, True)
    server.reset_stream(5, 7)
    server.send_headers(9, [("x-sum", "1")], end_stream=True)
    server.end_stream(11)
    assert protocol.feed(3, server.data_to_send(), False) == Event(0, True, kind=NEWS)
    assert counted(protocol) == (0, 17, {"RST_STREAM 7": 1, "END_STREAM": 2})
    # A lost stream is counted once, and an answer with more in its read is not remembered.
    protocol.feed(3, frame(RST_STREAM, 0, 9, bytes(4)), False)
    assert counted(protocol) == (0, 17, {})
    if not heads:
        assert protocol.feed(3, PONG + frame(RST_STREAM, 0, 1, bytes(4)), True) == Event(0, True, own=True)
        assert counted(protocol) == (0, 16, {"RST_STREAM 0": 1})
    # Lost streams are requested again, and their answers awaited.
    gone = 3 if heads else 4
    assert (protocol.take_rows_missing_streams(), protocol.take_rows_missing_streams()) == ([3], [])
    asked = [event.stream_id for event in server.receive_data(protocol.reopen_streams(3, 0)) if isinstance(event, RequestReceived)]
    assert asked == [(43 if heads else 41) + 2 * number for number in range(gone)]
    assert (protocol.reopen_streams(3, 0), counted(protocol)) == (b"", (gone, 20, {}))
    for stream, status in zip(asked, ("200", "200", "404", "200"), strict=False):
        server.send_headers(stream, [(":status", status)])
    server.reset_stream(asked[1], 7)
    protocol.feed(3, server.data_to_send(), False)
    assert (dict(protocol.partial), counted(protocol)) == ({}, (0, 18, {"status 404": 1, "RST_STREAM 7": 1}))
    with pytest.raises(ProtocolError):
        protocol.feed(3, frame(RST_STREAM, 0, asked[0], bytes(4)) + frame(DATA, 0, 7, b"x"), False)
    protocol.forget(3)
    assert (protocol.take_rows_missing_streams(), counted(protocol)) == ([3], (0, 0, {}))
    server.receive_data(protocol.goodbye(3))
    assert server.state_machine.state == ConnectionState.CLOSED


@pytest.mark.parametrize("heads", [False, True])
def test_held_streams_go_on_after_a_goaway_without_error(heads: bool) -> None:
    protocol = holding(heads)
    for stream in (1, 3, 5):
        protocol.feed(7, answer(stream), False)
    # The server has not processed the last one.
    assert protocol.feed(7, goaway(0, 3), False) == Event(0, True, kind=NEWS)
    assert counted(protocol) == (3, 2, {"GOAWAY": 1})
    # Heartbeats are pings from now on, and nothing is opened again.
    assert protocol.heartbeat_for(7, 0)[:5] == frame(PING, 0, 0, bytes(8))[:5]
    assert protocol.feed(7, PONG, True) == Event(0, True)
    assert (protocol.take_rows_missing_streams(), protocol.reopen_streams(7, 0)) == ([], b"")
    assert protocol.feed(7, frame(DATA, END_STREAM, 1), False) == Event(0, True, kind=NEWS)
    # With the last stream the connection ends, as announced; so it does if the server closes it first.
    closing = Event(0, False, kind=CLOSING)
    assert protocol.feed(7, frame(DATA, END_STREAM, 3), False) == closing
    assert counted(protocol) == (0, 0, {"END_STREAM": 2})
    for end in (b"", goaway(2, 3)):
        protocol = holding(heads)
        for stream in (1, 3, 5):
            protocol.feed(7, answer(stream), False)
        protocol.feed(7, goaway(0, (1 << 31) - 1), False)
        protocol.add_counts(counts := ProtocolCounts())
        assert (counts.draining, counts.streams_open) == (1, 3)
        left = protocol.feed(7, end, False)
        assert left == (Event(2, False, kind=CLOSING) if end else closing)


def test_a_head_that_crosses_a_goaway_is_asked_again_as_a_ping() -> None:
    protocol = holding(heads=True)
    for stream in (1, 3, 5):
        protocol.feed(7, answer(stream), False)
    assert int.from_bytes(protocol.heartbeat_for(7, 0)[5:9]) == 7
    event = protocol.feed(7, goaway(0, 5), True)
    assert event == Event(0, True, kind=NEWS, reply=frame(PING, 0, 0, b"asyncli!"))
    assert protocol.feed(7, PONG, True) == Event(0, True)
    # One that the server has seen is answered before it drains.
    protocol = holding(heads=True)
    for stream in (1, 3, 5):
        protocol.feed(7, answer(stream), False)
    protocol.heartbeat_for(7, 0)
    assert protocol.feed(7, goaway(0, 7) + answer(7, flags=WHOLE), True) == Event(200, True)
    assert protocol.feed(7, PONG, False) == Event(0, True, kind=NEWS)


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        (answer(1) + answer(3) + answer(5), {}), (answer(5) + answer(1) + answer(3, b"\x8d"), {"status 404": 1}),
        (answer(1, b"\x08\x03103") + answer(1) + answer(3, flags=WHOLE) + answer(5) + frame(DATA, END_STREAM, 5), {"END_STREAM": 2}),
        (answer(1) + frame(RST_STREAM, 0, 3, b"\0\0\0\7") + answer(5), {"RST_STREAM 7": 1}), (answer(1) + frame(RST_STREAM, 0, 3, b"\0\0\1\0") + answer(5), {"RST_STREAM": 1}),
        (answer(1, flags=0) + frame(CONTINUATION, END_HEADERS, 1) + answer(3, b"\x8e", WHOLE) + frame(PING, 0, 0, bytes(8)) + answer(5), {"status 500": 1}),
    ],
)  # fmt: skip
def test_a_row_is_held_once_its_streams_are_answered(answers: bytes, lost: dict[str, int]) -> None:
    for cut in (1, 7, len(answers)):
        protocol, events = holding(), []
        parts = [answers[at : at + cut] for at in range(0, len(answers), cut)]
        while parts:
            events += [event] if (event := protocol.feed(7, parts.pop(0), False)) is not None else []
            parts[:0] = [events[-1].rest] if events and event is not None and event.rest else []
        assert [event.kind for event in events if event.kind != NEWS] == [ESTABLISHED]
        # The rest of an error is cancelled.
        assert (frame(RST_STREAM, 0, 3, b"\0\0\0\x08") in events[0].reply) == ("status 404" in lost)
        assert counted(protocol) == (3, 3 - sum(lost.values()), lost)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(DATA, 0, 1), "data before the headers"), (answer(1) + frame(DATA, 0, 1, b"x"), "data beyond its window"), (answer(7), "a frame of a stream that was never opened"),
        (answer(1) * 2, "a second answer to one request"), (answer(1, b""), "headers without a :status"), (answer(1, flags=0) + answer(3), "a block of headers that another frame interrupts"),
        (goaway(0, 5), "GOAWAY 0"),
    ],
)  # fmt: skip
def test_what_a_server_may_not_send_on_held_streams(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError) as error:
        holding().feed(7, data, False)
    assert why in str(error.value)


@pytest.mark.parametrize(("most", "heads", "held", "enough"), [(3, False, 3, True), (2, False, 3, False), (3, True, 3, False), (4, True, 3, True), (0, True, 0, False), (1, True, 0, True), (0, False, 0, True)])
def test_the_server_must_allow_enough_streams(most: int, heads: bool, held: int, enough: bool) -> None:
    protocol = spoken([ASK] if heads else [], b"http", [GET] if held else [], held)
    protocol.handshake(0, 0)
    try:
        event = protocol.feed(0, frame(SETTINGS, 0, 0, struct.pack(">HI", 3, most)), False)
    except ProtocolError as error:
        assert (str(error).partition(":")[0], enough) == (f"MAX_CONCURRENT_STREAMS {most}", False)
    else:
        assert (event, enough) == (None, True)


def allowing(most: int) -> bytes:
    """SETTINGS_MAX_CONCURRENT_STREAMS of a server."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 3, most))


def without_streams(protocol: Http2) -> int:
    protocol.add_counts(counts := ProtocolCounts())
    return counts.without_streams


def test_a_connection_by_pings_whose_server_allows_no_stream_is_counted_while_it_does() -> None:
    protocol = spoken([])
    for row, first in ((0, allowing(0)), (1, allowing(1))):
        protocol.handshake(row, 0)
        assert some_event(protocol.feed(row, first + frame(SETTINGS, ACK, 0), False)).kind == ESTABLISHED
    assert without_streams(protocol) == 1
    for most, count in ((0, 2), (5, 1), (0, 2)):
        assert protocol.feed(1, allowing(most), False) == Event(0, True, kind=NEWS, reply=frame(SETTINGS, ACK, 0))
        assert without_streams(protocol) == count
    protocol.forget(0)
    protocol.forget(1)
    assert without_streams(protocol) == 0


def pong_of(ping: bytes) -> bytes:
    return frame(PING, ACK, 0, ping[-8:])


def test_pings_take_the_place_of_heads_while_the_server_allows_no_stream() -> None:
    protocol = granted()
    # A HEAD that was sent before is still answered.
    protocol.feed(7, allowing(0), True)
    assert protocol.feed(7, frame(HEADERS, WHOLE, 1, b"\x88"), True) == Event(200, True)
    for _ in range(2):
        ping = protocol.heartbeat_for(7, 0)
        assert ping[:9] == frame(PING, 0, 0, bytes(8))[:9]
        # It is still owed after other frames, and a HEAD's answer is none.
        assert some_event(protocol.feed(7, frame(WINDOW_UPDATE, 0, 0, bytes(3) + b"\1"), True)).kind == NEWS
        assert protocol.feed(7, pong_of(ping), True) == Event(0, True)
    ping = protocol.heartbeat_for(7, 0)
    protocol.feed(7, allowing(1), True)
    assert protocol.feed(7, pong_of(ping)[:3], True) is None
    assert protocol.feed(7, pong_of(ping)[3:], True) == Event(0, True)
    assert protocol.heartbeat_for(7, 0)[3:9] == frame(HEADERS, WHOLE, 3)[3:9]
    assert protocol.feed(7, frame(HEADERS, WHOLE, 3, b"\x88"), True) == Event(200, True)
    assert not protocol.partial


def test_lost_streams_are_opened_again_once_the_server_allows_them() -> None:
    protocol = holding()
    protocol.feed(7, b"".join(map(answer, (1, 3, 5))), False)
    protocol.feed(7, allowing(2), False)
    protocol.feed(7, frame(RST_STREAM, 0, 3, struct.pack(">I", 7)), False)
    assert protocol.take_rows_missing_streams() == [7]
    assert (protocol.reopen_streams(7, 0), without_streams(protocol)) == (b"", 1)
    protocol.feed(7, allowing(3), False)
    assert (protocol.take_rows_missing_streams(), without_streams(protocol)) == ([7], 0)
    assert protocol.reopen_streams(7, 0)[3:9] == frame(HEADERS, WHOLE, 7)[3:9]


def test_a_row_takes_a_bit_for_each_held_stream() -> None:
    protocol = spoken([], b"http", [GET], 100)
    protocol.handshake(0, 0)
    protocol.feed(0, GRANT, False)  # makes the requests for all rows
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for row in range(2_000):
        protocol.handshake(row, 0)
        protocol.feed(row, GRANT, False)
        protocol.feed(row, b"".join(map(answer, range(1, 200, 2))), False)
        protocol.feed(row, PONG, True)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert counted(protocol)[:2] == (200_000, 200_000)
    # And the byte of its nonce.
    assert (after - before) / 2_000 < 21


def test_a_row_takes_a_stream_s_number_and_no_more() -> None:
    protocol = spoken([ASK], b"http")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for row in range(10_000):
        protocol.handshake(row, 0)
        protocol.feed(row, GRANT, False)
        protocol.heartbeat_for(row, 0)
        protocol.feed(row, frame(HEADERS, WHOLE, 1, b"\x88"), True)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert not protocol.partial
    assert (after - before) / 10_000 < 8
