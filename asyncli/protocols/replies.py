"""Answers in a stream of bytes, counted: any number to a read, cut anywhere, most of them byte for byte the last one.

What a server answers to the same request is the same bytes until its Date header moves on. So a destination's last whole answer
is remembered, and a read that continues a train of copies of it is counted by one comparison in C, whatever its length; only what
differs goes to the protocol's reader. The counts are the reader's either way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from asyncli.protocols.interface import Event, ProtocolError, Reader

# Longer answers are not remembered: a train of them would cost more memory than reading costs time.
MOST_REMEMBERED = 65_536


class Tally:
    """Answers that mean the same and are as long."""

    __slots__ = ("by_us", "event", "size", "untimed")

    def __init__(self, event: Event, size: int) -> None:
        self.event, self.size = event, size
        #: For who counts by it: microseconds -> answers, and answers without their time.
        self.by_us: dict[int, int] = {}
        self.untimed = 0


class KnownAnswer:
    """A whole answer as bytes, and what it means."""

    __slots__ = ("_longest_read", "_train", "by_us", "data", "event", "tally")

    def __init__(self, data: bytes, tally: Tally, longest_read: int) -> None:
        self.data, self.tally, self.event, self.by_us = data, tally, tally.event, tally.by_us
        self._longest_read, self._train = longest_read, b""

    @property
    def train(self) -> bytes:
        """Copies of it, longer than any read by one more; made when the first read wants it."""
        if not self._train and self.data:
            self._train = self.data * (self._longest_read // len(self.data) + 2)
        return self._train


class AmidCopy(msgspec.Struct, frozen=True, eq=False):
    """A stream that stopped ``at`` bytes into a copy of ``known``."""

    known: KnownAnswer
    at: int


class AmidAnswer(msgspec.Struct, eq=False):
    """A stream that stopped in an answer like none that is known. ``raw``: its bytes so far, None past what is remembered."""

    reader: Reader
    raw: bytes | None


class Garbled(msgspec.Struct, frozen=True):
    """A stream of which what comes next is no answer."""

    why: str


#: Where a stream stands between two reads; None between two answers.
State = AmidCopy | AmidAnswer | Garbled | None
#: Equal answers in a row: what each means, and how many.
Run = tuple[Event, int]


class Replies:
    """The answers of one destination to one request. ``longest_read``: no more bytes than this come at once."""

    def __init__(self, new_reader: Callable[[], Reader], longest_read: int) -> None:
        self._new_reader, self._longest_read = new_reader, longest_read
        #: The answers that were remembered, by what they mean and their length.
        self.tallies: dict[tuple[Event, int], Tally] = {}
        #: The last answer after which its connection stayed open; and of those that announce the connection's end.
        self.known = KnownAnswer(b"", Tally(Event(0, True), 0), 0)
        self.last = KnownAnswer(b"", Tally(Event(0, False), 0), 0)

    def take(self, state: State, data: bytes) -> tuple[list[Run], State, bool]:
        """What ``data`` (not empty) makes whole: runs, where the stream stands then, and whether the connection is over.

        An answer that announced its connection's end is the last one, and bytes after it are nobody's. After a :class:`Garbled`
        there is nothing more to take.
        """
        if state is None and data == self.last.data:
            return [(self.last.event, 1)], None, True
        if isinstance(state, AmidAnswer):
            return self._read(state.reader, state.raw, data)
        known, at = (state.known, state.at) if isinstance(state, AmidCopy) else (self.known, 0)
        if _goes_on(known, data, at):
            runs, state = _copies(known, at + len(data))
            return runs, state, False
        return self._read(self._new_reader(), b"", known.data[:at] + data)

    def end(self, state: State) -> Event | None:
        """The stream has ended: the answer whose body was to end so, else None."""
        return state.reader.end() if isinstance(state, AmidAnswer) else None

    def _read(self, reader: Reader, raw: bytes | None, data: bytes) -> tuple[list[Run], State, bool]:
        runs: list[Run] = []
        while True:
            try:
                event = reader.feed(data)
            except ProtocolError as error:
                return runs, Garbled(str(error)), False
            rest = reader.rest if event is not None else b""
            used = len(data) - len(rest)
            raw = None if raw is None or len(raw) + used > MOST_REMEMBERED else raw + data[:used]
            if event is None:
                return runs, AmidAnswer(reader, raw), False
            runs.append((event, 1))
            if not event.keep_alive:
                self.last = self._remember(raw, event, self.last)
                return runs, None, True
            self.known = self._remember(raw, event, self.known)
            if not rest:
                return runs, None, False
            if self.known.data and _goes_on(self.known, rest, 0):
                more, state = _copies(self.known, len(rest))
                return runs + more, state, False
            reader, raw, data = self._new_reader(), b"", rest

    def _remember(self, raw: bytes | None, event: Event, known: KnownAnswer) -> KnownAnswer:
        if raw is None or raw == known.data:
            return known
        key = (event, len(raw))
        tally = self.tallies.get(key) or self.tallies.setdefault(key, Tally(event, len(raw)))
        return KnownAnswer(raw, tally, self._longest_read)


def _copies(known: KnownAnswer, length: int) -> tuple[list[Run], State]:
    """``length`` bytes of copies of ``known``."""
    whole, at = divmod(length, len(known.data))
    return [(known.event, whole)] if whole else [], AmidCopy(known, at) if at else None


def _goes_on(known: KnownAnswer, data: bytes, at: int) -> bool:
    """Whether ``data`` goes on from ``at`` bytes into ``known`` with copies of it."""
    rest = len(known.data) - at
    if len(data) <= rest:
        return known.data.startswith(data, at)
    # A train is made for what comes twice.
    return data.startswith(known.data[at:] if at else known.data) and known.train.startswith(data, at)
