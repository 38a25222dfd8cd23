"""Server-sent events and endless answers: requests, refusals, and single reads. tests/fuzz compares streams
of any form with h11 and httpx-sse.
"""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from synthetic_run import a_run

from asyncli.analysis.handshakes import protocol_findings
from asyncli.analysis.totals import fold
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Layer, Plan, build_plan
from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.interface import CLOSING, ESTABLISHED, NEWS, Event, ProtocolError
from asyncli.protocols.settings import StreamSettings
from asyncli.protocols.sse import Stream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ONE = b"id: 7\ndata: hello\n\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def granted(head: bytes = CHUNKED, events: bool = True, rows: int = 1) -> Stream:
    """A protocol whose rows' requests were accepted by ``head``."""
    protocol = Stream(StreamSettings((b"GET / HTTP/1.1\r\nHost: there\r\n",), events, 60.0), Fields())
    for row in range(rows):
        protocol.handshake(row, 0)
        assert protocol.feed(row, head, False) == Event(0, True, kind=ESTABLISHED)
    return protocol


def heard(protocol: Stream, data: bytes, row: int = 0) -> tuple[int, int, int]:
    """Kind, messages and their bytes."""
    event = protocol.feed(row, data, False)
    assert event is not None
    return event.kind, event.messages, event.body_bytes


def asked(protocol: str, *headers: str) -> bytes:
    plan = build_plan([Layer("--{key}", {"urls": ["http://h/x"], "protocol": protocol, "header": list(headers)})])
    made = build_shard(plan, Spread((Destination(2, "127.0.0.1", 80),), (), 1, True, 1000)).new_protocol(lambda row: row)
    assert made.silence_s == 90.0
    assert made.handshake is not None
    return made.handshake(0, 0)


def test_a_stream_is_requested_as_by_browsers() -> None:
    plain = asked("sse")
    assert plain.startswith(b"GET /x HTTP/1.1\r\n")
    assert plain.endswith(b"\r\n\r\n")
    assert plain.count(b"\r\n\r\n") == 1
    assert {b"Accept: text/event-stream", b"Cache-Control: no-cache"} <= set(plain.split(b"\r\n"))
    assert b"Accept:" not in asked("stream")
    own = asked("sse", "accept: text/event-stream;v=2", "Cache-control: no-store")
    assert (own.lower().count(b"accept:"), own.lower().count(b"cache-control:")) == (1, 1)


def test_the_longest_silence_of_a_plan() -> None:
    def silence(**more: str) -> float:
        return build_plan([Layer("--{key}", {"urls": ["https://h/"], "protocol": "stream", **more})]).longest_silence_s

    assert (silence(), silence(silence="40s")) == (90.0, 40.0)
    assert silence(silence="forever") > 1e8
    assert Plan(urls=("http://h/",), http_protocol="sse").listens
    assert not Plan(urls=("http://h/",)).listens


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno stream", "HTTP 404 Not Found: no stream"),
        (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nnot today\r\n", "HTTP 503 Busy: not today"),
        (b"HTTP/1.1 307 Elsewhere\r\nLocation: /new\r\n\r\nmoved", "HTTP 307 Elsewhere: Location: /new"),
        (b"HTTP/1.1 500 \x1b[31m\xc2\x85\r\n\r\n", "HTTP 500 ?[31mÂ"),
        (b"HTTP/1.1 101 Up\r\n\r\n", "HTTP 101 Up"),
        (b"HTTP/1.1 204 None\r\n\r\n", "HTTP 204: no more events, so clients must not reconnect"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "HTTP 200: Content-Type: text/html, not text/event-stream"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "HTTP 200: Content-Type: none, not text/event-stream"),
        (HEAD + b"Content-Length: 0\r\n\r\n", "HTTP 200: an answer without a body"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\n", "HTTP 200: Content-Encoding: gzip, so events cannot be read"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", "unknown Transfer-Encoding: b'gzip'"),
        (b"SSH-2.0-x\r\n\r\n", "not a status line: b'SSH-2.0-x'"),
    ],
)
def test_a_stream_is_refused(head: bytes, why: str) -> None:
    protocol = Stream(StreamSettings((b"GET / HTTP/1.1\r\n",), True, 60.0), Fields())
    protocol.handshake(0, 0)
    with pytest.raises(ProtocolError) as error:
        protocol.feed(0, head, False)
    assert str(error.value) == why
    assert not protocol.partial


@pytest.mark.parametrize(
    ("text", "messages", "size"),
    [
        (ONE, 1, 5), (b"data: a\ndata: b\n\ndata\n\n", 2, 3), (b"data:  a\r\n\r\n", 1, 2), (b"\xef\xbb\xbfdata:a\r\r", 1, 1), (b": ping\n\n", 0, 0),
        (b"event: x\nretry: 5\n\n", 0, 0), (b"data: never whole\n", 0, 0), (b"datas: x\ndat: y\n\n", 0, 0), (b"data: " + b"x" * 70_000 + b"\n\n", 1, 70_000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [False, True])
def test_what_events_mean(text: bytes, messages: int, size: int, end: bool) -> None:
    whole = granted()
    assert heard(whole, chunk(text) + (b"0\r\n\r\n" if end else b"")) == (CLOSING if end else NEWS, messages, size)
    assert granted(HEAD + b"Content-Length: %d\r\n\r\n" % (len(text) + (not end))).feed(0, text, False) == Event(0, not end, size, CLOSING if end else NEWS, b"", messages)
    assert heard(granted(HEAD + b"\r\n"), text) == (NEWS, messages, size)


@pytest.mark.parametrize(("wait_ms", "longest"), [(3_600_000, [3600.0]), (20_000, [])])
def test_a_retry_time_beyond_the_hold_is_a_finding(wait_ms: int, longest: list[float]) -> None:
    protocol, run = granted(rows=2), a_run(1000, hold_s=30.0)
    heard(protocol, chunk(b"retry: %d\n\n" % wait_ms))
    assert [protocol.reopen_delay_s(row) for row in range(2)] == [wait_ms / 1e3, 0.0]
    run.ticks[-5][1].protocol = counts = ProtocolCounts()
    protocol.add_counts(counts)
    found = list(protocol_findings(run, fold(run), msgspec.UNSET))
    assert [(one.code, one.fields["count"], one.fields["longest_s"]) for one in found] == [("reopened_later", 1, longest_s) for longest_s in longest]


def test_a_byte_order_mark_counts_only_at_the_beginning() -> None:
    protocol, marked = granted(rows=3), chunk(b"\xef\xbb\xbfdata: x\n\n")
    for first, count in ((chunk(b"data: y\n\n"), 1), (marked, 0)):
        assert [heard(protocol, first, row)[1] for row in range(3)] == [count] * 3
    assert [heard(granted(), marked)[1] for _ in range(2)] == [1, 1]


def test_a_streams_bytes_are_counted() -> None:
    protocol = granted(b"HTTP/1.1 206 Part\r\nTransfer-Encoding: chunked\r\n\r\n", events=False)
    assert [heard(protocol, part) for part in (b"5\r\nhel", b"lo", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n")] == [(NEWS, 0, 3), (NEWS, 0, 2), (NEWS, 0, 0), (NEWS, 0, 5), (CLOSING, 0, 0)]


def test_the_last_events_id_is_sent_with_the_next_request() -> None:
    protocol = granted(rows=3)
    for row, text in enumerate((b"id: 7\n: none\n\n", b"id: 8\ndata: x\n\nid: 9\n", b"data: x\n\n")):
        protocol.feed(row, chunk(text), False)
        assert protocol.feed(row, b"", False) is None
        protocol.forget(row)
    for _ in range(2):
        lines = [protocol.handshake(row, 0).split(b"\r\n")[2:] for row in range(3)]
        assert lines == [[b"Last-Event-ID: 7", b"", b""], [b"Last-Event-ID: 8", b"", b""], [b"", b""]]
    protocol.feed(0, CHUNKED, False)
    protocol.feed(0, chunk(b"id\n\n"), False)
    assert b"Last-Event-ID" not in protocol.handshake(0, 0)


def test_an_id_too_long_for_a_head() -> None:
    for cut in (1, 5_000):
        protocol, text = granted(), chunk(b"id: " + b"9" * 4_097)
        parts = [text[at : at + cut] for at in range(0, len(text), cut)]
        with pytest.raises(ProtocolError, match=r"^more than asyncli reads: an event's id of over 4,096 bytes$"):
            list(map(protocol.feed, [0] * len(parts), parts, [False] * len(parts)))


def test_what_rows_share_takes_no_memory() -> None:
    rows = 20_000
    protocol = granted(rows=rows)
    reads = [chunk(b"id: %d\ndata: hello\n\n" % number) for number in range(3)]
    tracemalloc.start()
    for data in reads:
        for row in range(rows):
            # A copy for each row, as from the kernel; every other row reads it in two parts.
            copy = bytes(bytearray(data))
            for part in (copy[: row % 2 * 9], copy[row % 2 * 9 :]):
                assert not part or protocol.feed(row, part, False) is not None
    assert not protocol.partial
    assert tracemalloc.get_traced_memory()[0] < 16 * rows
    tracemalloc.stop()
    assert len(protocol._bodies) == rows


def test_an_event_that_never_ends_takes_no_memory() -> None:
    protocol = granted()
    protocol.feed(0, b"fffffffff\r\ndata: ", False)
    for _ in range(100):
        assert heard(protocol, bytes(8192)) == (NEWS, 0, 0)
    assert protocol.partial[0]._line == b""  # type: ignore[union-attr]
