"""Runs of answers in a stream. tests/fuzz compares any split of them with the scanner alone."""

from __future__ import annotations

from asyncli.protocols.http1 import Scanner
from asyncli.protocols.interface import Event
from asyncli.protocols.replies import MOST_REMEMBERED, PartialCopy, Replies

HEAD = b"HTTP/1.1 200 OK\r\n"
SMALL = HEAD + b"Content-Length: 5\r\nDate: now\r\n\r\nhello"
LATER = HEAD + b"Content-Length: 5\r\nDate: six\r\n\r\nhello"


def test_a_train_of_the_same_answer_is_counted_by_one_comparison() -> None:
    replies = Replies(lambda: Scanner("GET"), 65_536)
    assert replies.take(None, SMALL) == ([(Event(200, True, 5), 1)], None, False)
    runs, state, _ = replies.take(None, SMALL * 1000 + SMALL[:7])
    assert runs == [(Event(200, True, 5), 1000)]
    assert isinstance(state, PartialCopy)
    assert state.at == 7
    # The date changes in the middle of a train: the new answer becomes the known one.
    runs, state, _ = replies.take(state, SMALL[7:] + LATER * 3)
    assert runs == [(Event(200, True, 5), 1), (Event(200, True, 5), 1), (Event(200, True, 5), 2)]
    assert (state, replies.known.data) == (None, LATER)


def test_an_answer_that_diverges_from_the_known_one_is_read_from_its_beginning() -> None:
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


def test_answers_that_never_recur_are_counted_together() -> None:
    replies = Replies(lambda: Scanner("GET"), 65_536)
    for number in range(2000):
        runs, state, over = replies.take(None, HEAD + b"Content-Length: 0\r\nX-Id: %d\r\n\r\n" % number)
        assert (runs, state, over) == ([(Event(200, True, 0), 1)], None, False)
        assert not replies.known._train
    # One tally for each length: memory does not grow with the number of answers.
    assert len(replies.tallies) == 4
