"""Counts the answers in a stream of bytes: any number in a read, split anywhere, most of them equal
to the last one.

A server's answers to the same request are equal bytes until its Date header changes. So a
destination's last whole answer is remembered, and a read that continues a train of copies of it is
counted by one comparison in C, whatever its length; only other bytes go to the scanner. The counts
are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from asyncli.protocols.http1 import Scanner
from asyncli.protocols.interface import Event, ProtocolError

# Longer answers are not remembered: a train of them would cost more memory than it saves time.
MOST_REMEMBERED = 65_536


class Tally:
    """The count of answers with the same meaning and length."""

    __slots__ = ("by_us", "event", "size", "untimed")

    def __init__(self, event: Event, size: int) -> None:
        self.event, self.size = event, size
        #: Counts of the caller: microseconds -> answers, and answers without a time.
        self.by_us: dict[int, int] = {}
        self.untimed = 0


class KnownAnswer:
    """A whole answer and its meaning."""

    __slots__ = ("_longest_read", "_train", "by_us", "data", "event", "tally")

    def __init__(self, data: bytes, tally: Tally, longest_read: int) -> None:
        self.data, self.tally, self.event, self.by_us = data, tally, tally.event, tally.by_us
        self._longest_read, self._train = longest_read, b""

    @property
    def train(self) -> bytes:
        """Copies of the answer, one more than the longest read holds; made when first needed."""
        if not self._train and self.data:
            self._train = self.data * (self._longest_read // len(self.data) + 2)
        return self._train


class PartialCopy(msgspec.Struct, frozen=True, eq=False):
    """The stream is ``at`` bytes into a copy of ``known``."""

    known: KnownAnswer
    at: int


class PartialAnswer(msgspec.Struct, eq=False):
    """The stream is in the middle of another answer. ``raw``: its bytes so far, None if too long to
    remember.
    """

    reader: Scanner
    raw: bytes | None


class Malformed(msgspec.Struct, frozen=True):
    """The next bytes of the stream are no answer."""

    why: str


#: The state of a stream between two reads; None between two answers.
State = PartialCopy | PartialAnswer | Malformed | None
#: Equal answers in a row: what each means, and how many.
Run = tuple[Event, int]


class Replies:
    """The answers of one destination to one request. ``longest_read``: the most bytes in a read."""

    def __init__(self, new_reader: Callable[[], Scanner], longest_read: int) -> None:
        self._new_reader, self._longest_read = new_reader, longest_read
        #: By meaning and length.
        self.tallies: dict[tuple[Event, int], Tally] = {}
        #: The last answer that kept its connection open, and the last one that announced its end.
        self.known = KnownAnswer(b"", Tally(Event(0, True), 0), 0)
        self.last = KnownAnswer(b"", Tally(Event(0, False), 0), 0)

    def take(self, state: State, data: bytes) -> tuple[list[Run], State, bool]:
        """The answers that ``data`` (not empty) completes, as runs; the new state; whether the
        connection is over.

        An answer that announces its connection's end is the last one: bytes after it are ignored.
        After :class:`Malformed` nothing more can be read.
        """
        if state is None and data == self.last.data:
            return [(self.last.event, 1)], None, True
        if isinstance(state, PartialAnswer):
            return self._read(state.reader, state.raw, data)
        known, at = (state.known, state.at) if isinstance(state, PartialCopy) else (self.known, 0)
        if _goes_on(known, data, at):
            runs, state = _copies(known, at + len(data))
            return runs, state, False
        return self._read(self._new_reader(), b"", known.data[:at] + data)

    def end(self, state: State) -> Event | None:
        """The stream has ended: the answer if its body lasts to the end, else None."""
        return state.reader.end() if isinstance(state, PartialAnswer) else None

    def _read(
        self, reader: Scanner, raw: bytes | None, data: bytes
    ) -> tuple[list[Run], State, bool]:
        runs: list[Run] = []
        while True:
            try:
                event = reader.feed(data)
            except ProtocolError as error:
                return runs, Malformed(str(error)), False
            rest = reader.rest if event is not None else b""
            used = len(data) - len(rest)
            raw = None if raw is None or len(raw) + used > MOST_REMEMBERED else raw + data[:used]
            if event is None:
                return runs, PartialAnswer(reader, raw), False
            runs.append((event, 1))
            if not event.keep_alive:
                self.last = self._remember(raw, event, self.last)
                return runs, None, True
            self.known = self._remember(raw, event, self.known)
            if not rest:
                return runs, None, False
            if self.known.data and _goes_on(self.known, rest, 0):
                copies, state = _copies(self.known, len(rest))
                return runs + copies, state, False
            reader, raw, data = self._new_reader(), b"", rest

    def _remember(self, raw: bytes | None, event: Event, known: KnownAnswer) -> KnownAnswer:
        if raw is None or raw == known.data:
            return known
        key = (event, len(raw))
        tally = self.tallies.get(key) or self.tallies.setdefault(key, Tally(event, len(raw)))
        return KnownAnswer(raw, tally, self._longest_read)


def _copies(known: KnownAnswer, length: int) -> tuple[list[Run], State]:
    """The runs and the state of ``length`` bytes of copies of ``known``."""
    whole, at = divmod(length, len(known.data))
    return [(known.event, whole)] if whole else [], PartialCopy(known, at) if at else None


def _goes_on(known: KnownAnswer, data: bytes, at: int) -> bool:
    """Whether ``data`` continues ``known`` from its byte ``at``, and then with copies of it."""
    rest = len(known.data) - at
    if len(data) <= rest:
        return known.data.startswith(data, at)
    # Only an answer that comes twice needs a train.
    return data.startswith(known.data[at:] if at else known.data) and known.train.startswith(
        data, at
    )
