"""Responses in a stream of bytes, counted: any number to a read, cut anywhere, most of them byte for byte the last one.

What a server answers to the same request is the same bytes until its Date header moves on. So a place remembers its last
whole answer, and a read that continues a train of copies of it is counted by one comparison in C, whatever its length; only
what differs is scanned (core/http1.py). The counts are the scanner's either way.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from asyncli.core.http1 import ProtocolError, Response, Scanner

# Longer answers are not remembered: a train of them would cost more memory than scanning costs time, since the scanner takes
# the body of a counted response whole.
MOST_REMEMBERED = 65_536
# After so many answers in turn that were each another, one in as many more is remembered: a server that writes something of its
# own into each would else fill the memory with answers that never come again.
MOST_UNLIKE = 16


class Known:
    """A whole answer."""

    __slots__ = ("_longest_read", "_train", "answer", "answered", "counts", "place", "response")

    def __init__(self, answer: bytes, response: Response, longest_read: int, place: int = 0) -> None:
        self.answer, self.response, self.place = answer, response, place
        #: For whoever counts by it: microseconds -> answers, and answers without their time.
        self.counts: dict[int, int] = {}
        self.answered = 0
        self._longest_read, self._train = longest_read, b""

    @property
    def train(self) -> bytes:
        """Copies of it, longer than any read by one more; made when the first read wants it."""
        if not self._train and self.answer:
            self._train = self.answer * (self._longest_read // len(self.answer) + 2)
        return self._train


class Cut(msgspec.Struct, frozen=True, eq=False):
    """A stream that stopped ``at`` bytes into a copy of ``known``."""

    known: Known
    at: int


class Reading(msgspec.Struct, eq=False):
    """A stream that stopped in an answer like none that is known. ``raw``: its bytes so far, None past what is remembered."""

    scanner: Scanner
    raw: bytes | None


class Garbled(msgspec.Struct, frozen=True):
    """A stream of which what comes next is no answer."""

    why: str


#: Where a stream stands between two reads; None between two answers.
State = Cut | Reading | Garbled | None


class Replies:
    """The answers of the numbered ``place`` to one request. ``longest_read``: no more bytes than this come at once."""

    def __init__(self, method: str, longest_read: int, place: int = 0) -> None:
        self._method, self._longest_read, self._place = method, longest_read, place
        self._unlike = 0
        #: The last answer after which its connection stayed open.
        self.known = Known(b"", Response(0, True), 0, place)
        #: The same of answers that announce the connection's end.
        self.last = Known(b"", Response(0, False), 0, place)

    def take(self, state: State, data: bytes) -> tuple[list[tuple[Response, int]], State, bool]:
        """What ``data`` (not empty) makes whole.

        Gives runs of equal responses as (response, how many), where the stream stands then, and whether the connection is
        over: an answer that announced its end is the last one, and bytes after it are nobody's. After a :class:`Garbled` there is
        nothing more to take.
        """
        if state is None and data == self.last.answer:
            return [(self.last.response, 1)], None, True
        known, at = (state.known, state.at) if isinstance(state, Cut) else (self.known, 0)
        if not isinstance(state, Reading) and _goes_on(known, data, at):
            whole, at = divmod(at + len(data), len(known.answer))
            return [(known.response, whole)] if whole else [], Cut(known, at) if at else None, False
        return self._scan(state, data)

    def end(self, state: State) -> Response | None:
        """The stream has ended: the response whose body was to end so, else None."""
        return state.scanner.end() if isinstance(state, Reading) else None

    def _scan(self, state: State, data: bytes) -> tuple[list[tuple[Response, int]], State, bool]:
        runs: list[tuple[Response, int]] = []
        assert not isinstance(state, Garbled)
        if isinstance(state, Reading):
            scanner, raw = state.scanner, state.raw
        else:
            scanner, raw = Scanner(self._method), b""
            if isinstance(state, Cut):
                data = state.known.answer[: state.at] + data
        while True:
            try:
                response = scanner.feed(data)
            except ProtocolError as error:
                return runs, Garbled(str(error)), False
            rest = scanner.rest if response is not None else b""
            raw = (
                None if raw is None or len(raw) + len(data) - len(rest) > MOST_REMEMBERED else raw + data[: len(data) - len(rest)]
            )
            if response is None:
                return runs, Reading(scanner, raw), False
            runs.append((response, 1))
            if not response.keep_alive:
                if self._is_worth_knowing(raw, self.last):
                    self.last = Known(raw, response, 0, self._place)
                return runs, None, True
            if self._is_worth_knowing(raw, self.known):
                self.known = Known(raw, response, self._longest_read, self._place)
            if not rest:
                return runs, None, False
            if self.known.answer and _goes_on(self.known, rest, 0):
                whole, at = divmod(len(rest), len(self.known.answer))
                if whole:
                    runs.append((self.known.response, whole))
                return runs, Cut(self.known, at) if at else None, False
            scanner, raw, data = Scanner(self._method), b"", rest

    def _is_worth_knowing(self, raw: bytes | None, known: Known) -> TypeGuard[bytes]:
        if raw is None or raw == known.answer:
            return False
        self._unlike = 0 if known.counts or known.answered else self._unlike + 1
        return self._unlike < MOST_UNLIKE or self._unlike % MOST_UNLIKE == 0


def _goes_on(known: Known, data: bytes, at: int) -> bool:
    """Whether ``data`` goes on from ``at`` bytes into ``known`` with copies of it."""
    rest = len(known.answer) - at
    if len(data) <= rest:
        return known.answer.startswith(data, at)
    # A train is made for what comes twice.
    return data.startswith(known.answer[at:] if at else known.answer) and known.train.startswith(data, at)
