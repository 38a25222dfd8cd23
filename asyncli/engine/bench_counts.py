"""The counts of one worker of a bench between two ticks.

The hot path counts whole microseconds in plain dictionaries; once a second they are added to the
tick's histograms.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.core.histogram import Histogram
from asyncli.engine.shard import LoadShard
from asyncli.model.records import Asked, Tick
from asyncli.protocols.interface import Event
from asyncli.protocols.replies import Replies


def count(counts: dict[int, int], value: int, times: int) -> None:
    counts[value] = counts.get(value, 0) + times


def us_between(since: float, now: float) -> int:
    return max(0, int((now - since) * 1e6))


class LoadCounts:
    """``tick`` and ``asked`` since the last :meth:`take`, which adds the other counts to them."""

    def __init__(self, shard: LoadShard, replies: Sequence[Replies]) -> None:
        self._targets = [destination.target for destination in shard.destinations]
        self._replies, self._closed_loop = replies, shard.rate is None
        # By destination: the length of its first answer's body.
        self._lengths: list[int | None] = [None] * len(replies)
        self.tick, self.asked = Tick(), Asked()
        self.sent = self.sent_bytes = 0
        self.rounds = 0  # short connections whose one answer came
        # Microseconds -> answers: from the instant that counts, from the write, from the write to
        # the first byte.
        self.whole_us: dict[int, int] = {}
        self.processing_us: dict[int, int] = {}
        self.waiting_us: dict[int, int] = {}
        self.answering_us: dict[int, int] = {}  # added to both processing and waiting
        self.connect_us: dict[int, int] = {}
        self.per_connection: dict[
            int, int
        ] = {}  # answers of a connection that has ended -> connections

    def answers(self, event: Event, many: int, destination: int) -> None:
        """Count ``many`` equal answers of a destination."""
        tick, asked, target = self.tick, self.asked, self._targets[destination]
        tick.answered += many
        tick.by_status[event.status] = tick.by_status.get(event.status, 0) + many
        asked.body_bytes += many * event.body_bytes
        asked.by_target[target] = asked.by_target.get(target, 0) + many
        if self._lengths[destination] is None:
            self._lengths[destination] = event.body_bytes
        if event.body_bytes != self._lengths[destination]:
            asked.other_length += many
        if event.keep_alive:
            asked.keepalive += many

    def take(self) -> Tick:
        """The counts since the last call."""
        tick, asked = self.tick, self.asked
        tick.sent += self.sent
        tick.bytes_sent += self.sent_bytes
        self.sent = self.sent_bytes = 0
        if self.rounds:
            count(self.per_connection, 1, self.rounds)
            self.rounds = 0
        # Each came in one read on an open connection: in a closed loop latency, processing and
        # waiting are equal.
        at_once = Histogram()
        for destination, replies in enumerate(self._replies):
            for tally in replies.tallies.values():
                if many := sum(tally.by_us.values()) + tally.untimed:
                    at_once.add_counts(tally.by_us)
                    tick.bytes_received += many * tally.size
                    self.answers(tally.event, many, destination)
                    tally.by_us.clear()
                    tally.untimed = 0
        for counts, histogram in (
            (self.whole_us, tick.latency_us),
            (self.processing_us, asked.processing_us),
            (self.waiting_us, asked.waiting_us),
            (self.connect_us, tick.connect_us),
            (self.per_connection, asked.per_connection),
        ):
            histogram.add_counts(counts)
            counts.clear()
        tick.latency_us.merge(at_once)
        for histogram in (asked.processing_us, asked.waiting_us):
            if self._closed_loop:
                histogram.merge(at_once)
            histogram.add_counts(self.answering_us)
        self.answering_us.clear()
        tick.opened = tick.connect_us.count
        tick.asked, self.tick, self.asked = asked, Tick(), Asked()
        return tick
