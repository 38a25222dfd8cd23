"""Runs of answers in a stream, however it is cut, against the scanner alone and against h11."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.protocols.http1 import Scanner
from asyncli.protocols.interface import Event
from asyncli.protocols.replies import MOST_REMEMBERED, AmidCopy, Garbled, Replies, State

HEAD = b"HTTP/1.1 200 OK\r\n"
SMALL = HEAD + b"Content-Length: 5\r\nDate: now\r\n\r\nhello"
LATER = HEAD + b"Content-Length: 5\r\nDate: six\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + SMALL
LAST = HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nby"
UNTIL_CLOSE = HEAD + b"\r\n" + b"as long as it takes"


def feed(parts: list[bytes], method: str = "GET") -> tuple[list[Event], State, bool]:
    """Every response by itself, where the stream stands, and whether it is over; then nothing more is fed."""
    replies, state, found, over = Replies(lambda: Scanner(method), 65_536), None, [], False
    for part in parts:
        assert not over
        runs, state, over = replies.take(state, part)
        found += [response for response, count in runs for _ in range(count)]
    if not over and (last := replies.end(state)) is not None:
        found.append(last)
    return found, state, over


def oracle(data: bytes, count: int) -> list[tuple[int, int]]:
    """Status and body bytes of ``count`` responses, by h11, which is told that the stream ends."""
    conn, found, status, size = h11.Connection(h11.CLIENT), [], 0, 0
    conn.receive_data(data)
    conn.receive_data(b"")
    for _ in range(count):
        conn.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        conn.send(h11.EndOfMessage())
        while True:
            event = conn.next_event()
            if isinstance(event, h11.Response):
                status, size = event.status_code, 0
            elif isinstance(event, h11.Data):
                size += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((status, size))
                break
        if conn.our_state is h11.MUST_CLOSE or conn.their_state is not h11.DONE:
            break
        conn.start_next_cycle()
    return found


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([SMALL, SMALL, SMALL, LATER, CHUNKED, EMPTY, EARLY]), max_size=12),
    st.sampled_from([b"", LAST, UNTIL_CLOSE]),
    st.lists(st.integers(0, 2000), max_size=12),
)
def test_any_answers_in_any_split_are_what_h11_says(answers: list[bytes], end: bytes, cuts: list[int]) -> None:
    data = b"".join(answers) + end
    edges = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)] if data else [0, 0]
    parts = [data[a:b] for a, b in itertools.pairwise(edges) if a < b]
    found, state, over = feed(parts)
    assert [(one.status, one.body_bytes) for one in found] == oracle(data, len(answers) + bool(end))
    assert [one.keep_alive for one in found] == [True] * len(answers) + [False] * bool(end)
    assert over == (end == LAST)
    assert (state is None) == (end != UNTIL_CLOSE)


def test_a_train_of_the_same_answer_is_counted_by_one_comparison() -> None:
    replies = Replies(lambda: Scanner("GET"), 65_536)
    assert replies.take(None, SMALL) == ([(Event(200, True, 5), 1)], None, False)
    runs, state, _ = replies.take(None, SMALL * 1000 + SMALL[:7])
    assert runs == [(Event(200, True, 5), 1000)]
    assert isinstance(state, AmidCopy)
    assert state.at == 7
    # The date moves on in the midst of a train: what is new becomes what is known.
    runs, state, _ = replies.take(state, SMALL[7:] + LATER * 3)
    assert runs == [(Event(200, True, 5), 1), (Event(200, True, 5), 1), (Event(200, True, 5), 2)]
    assert (state, replies.known.data) == (None, LATER)


def test_a_stream_that_left_a_known_answer_in_its_midst_is_read_from_its_beginning() -> None:
    replies = Replies(lambda: Scanner("GET"), 65_536)
    _, state, _ = replies.take(None, SMALL + SMALL[:30])
    other = SMALL[:30] + LATER[30:]
    assert replies.take(state, other[30:]) == ([(Event(200, True, 5), 1)], None, False)


def test_a_long_answer_is_counted_and_not_remembered() -> None:
    size = 3 * MOST_REMEMBERED
    long = HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    replies, state, found = Replies(lambda: Scanner("GET"), 65_536), None, []
    for begin in range(0, 2 * len(long), 60_000):
        runs, state, _ = replies.take(state, (long * 2)[begin : begin + 60_000])
        found += runs
    assert found == [(Event(200, True, size), 1)] * 2
    assert replies.known.data == b""


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([b"SSH-2.0-x\r\n\r\n"], 0),
        ([SMALL + b"nonsense\r\n\r\n"], 1),
        ([SMALL, SMALL * 3 + LATER + b"nonsense\r\n\r\n"], 5),
        ([SMALL, SMALL[:9] + b"\0\0\0\r\n\r\n"], 1),
    ],
)
def test_nonsense_is_told_wherever_it_comes_and_what_was_whole_before_it_counts(parts: list[bytes], whole: int) -> None:
    found, state, over = feed(parts)
    assert (len(found), type(state), over) == (whole, Garbled, False)


def test_what_follows_the_last_answer_is_nobodys() -> None:
    found, state, over = feed([SMALL + LAST + b"whatever"])
    assert (len(found), state, over) == (2, None, True)


def test_answers_that_never_come_again_are_counted_together() -> None:
    replies = Replies(lambda: Scanner("GET"), 65_536)
    for number in range(2000):
        runs, state, over = replies.take(None, HEAD + b"Content-Length: 0\r\nX-Id: %d\r\n\r\n" % number)
        assert (runs, state, over) == ([(Event(200, True, 0), 1)], None, False)
        assert not replies.known._train
    # Only as many tallies as there are lengths: the memory does not grow with the answers.
    assert len(replies.tallies) == 4
