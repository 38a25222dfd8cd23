"""What asyncli's own sockets show of faults that a host counts for all its programs.

TCP's counters of a host (retransmissions, overflows of listen queues) include other programs. They
are evidence of a fault only where a socket of ours shows the symptom at about that time, and of no
more connections than show it. The kernel reports the symptom of each socket (TCP_INFO): see
:class:`~asyncli.model.records.TcpCounts`. Files of older versions lack it, so nothing is claimed
then.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import MISSED_S
from asyncli.analysis.refusals import dropped_by_listeners
from asyncli.model.metrics import TCP
from asyncli.model.records import EventCounts, TcpCounts
from asyncli.model.run import Run, Ticks
from asyncli.model.samples import Series

_NOTHING = TcpCounts()


class DroppedConnects(msgspec.Struct, frozen=True):
    """Connects of ours that were sent again or timed out while listening sockets of the server's
    host dropped some: ``unanswered``, and all ``connects``. ``dropped``: by the host's counter, of
    all programs.
    """

    connects: int = 0
    unanswered: int = 0
    dropped: int = 0


def sent_again(ticks: Ticks) -> TcpCounts:
    """The retransmissions of our own sockets in ``ticks``."""
    counts = TcpCounts()
    for _, tick in ticks:
        own = tick.tcp or _NOTHING
        counts.segments += own.segments
        counts.connects += own.connects
        counts.unanswered += own.unanswered
        counts.heartbeats += own.heartbeats
    return counts


class SegmentsAgain(NamedTuple):
    """Segments of connects or requests that began in the second that ended at ``began_s``, and that
    were seen to have been sent again in the one that ended at ``seen_s``: the same one where
    nothing tells when they began. ``event``: clients of this event of the plan sent them on their
    way back; None: others did.
    """

    began_s: float
    seen_s: float
    segments: int
    event: int | None = None


class SegmentsByOrigin:
    """How many of ``segments`` clients on their way back from each event sent again, and how many
    others did whose connect or request began in a time.
    """

    def __init__(self, segments: Iterable[SegmentsAgain]) -> None:
        self._of_events: Counter[int] = Counter()
        others = []
        for sent in segments:
            if sent.event is None:
                others.append((sent.began_s, sent.segments))
            else:
                self._of_events[sent.event] += sent.segments
        others.sort()
        self._began_s = [began_s for began_s, _ in others]
        # So many in all before each of these instants, and in the end.
        self._before = list(itertools.accumulate((count for _, count in others), initial=0))

    def of_event(self, number: int) -> int:
        return self._of_events[number]

    def of_others(self, from_s: float, to_s: float) -> int:
        """Of those that began between the two instants, both included."""
        first = bisect.bisect_left(self._began_s, from_s)
        after = bisect.bisect_right(self._began_s, to_s)
        return self._before[after] - self._before[first]


def all_sent_again(run: Run) -> list[SegmentsAgain]:
    """What our own sockets have sent again, by when it was seen, without what silences
    swallowed.
    """
    # When the seconds of this part of the run ended, by their numbers.
    ends_s: dict[int, float] = {}
    last_second = 0
    told = []
    for t_s, tick in run.ticks:
        if tick.second <= last_second:
            # A resumed run counts its seconds anew, and nothing outlives an interruption.
            ends_s.clear()
        last_second = tick.second
        ends_s[tick.second] = t_s
        own = tick.tcp
        if own is None or not own.segments:
            continue
        undated = own.segments
        for event, begun in _begun_by_event(tick.events, own):
            for second, segments in begun.items():
                told.append(SegmentsAgain(ends_s.get(second, t_s), t_s, segments, event))
                undated -= segments
        if undated > 0:
            told.append(SegmentsAgain(t_s, t_s, undated))
    return told


def _begun_by_event(
    events: Mapping[int, EventCounts], own: TcpCounts
) -> Iterator[tuple[int | None, Mapping[int, int]]]:
    yield None, own.begun
    for number, counts in events.items():
        yield number, counts.sent_again


def overflows(run: Run) -> DroppedConnects:
    """Our connects that met a full listen queue."""
    return _dropped_connects(run, _counter(run, "ListenOverflows"), DroppedConnects())


def other_drops(run: Run) -> DroppedConnects:
    """Our connects that listening sockets with room dropped."""
    # The kernel counts each overflow as a drop too (tcp_v4_syn_recv_sock in net/ipv4/tcp_ipv4.c).
    full = _counter(run, "ListenOverflows")
    dropped = _counter(run, "ListenDrops")
    without_full = [value - (full.at(t_s) or 0.0) for t_s, value in dropped.rows()]
    return _dropped_connects(run, Series(dropped.t_s, without_full), overflows(run))


def drops_by_listeners_s(run: Run) -> list[float] | None:
    """The instants (s) by which listening sockets of the server's network had dropped connects;
    None where that is not read.
    """
    dropped = _counter(run, "ListenDrops")
    return _rises(dropped) if dropped else None


def _counter(run: Run, name: str) -> Series:
    """A counter of the server's network until the drain; empty where that is not sampled."""
    if not run.sides.server or run.place.server_apart:
        return Series()
    return run.series(f"{TCP}{name}").between(0.0, run.stop_s + 1.0)


def _dropped_connects(run: Run, counter: Series, explained: DroppedConnects) -> DroppedConnects:
    """Our connects that showed the symptom while ``counter`` rose, less those that another counter
    explains. No more than the server's own sockets dropped, where that is known: the host's counter
    is of all programs.
    """
    own_drops = dropped_by_listeners(run)
    deciding = counter if own_drops is None else own_drops
    instants = _rises(deciding)
    dropped = _rise(counter)
    if not instants:
        return DroppedConnects(dropped=dropped)
    upto = min(dropped, _rise(deciding))
    # A connect is seen to be sent again when it succeeds or is given up.
    longest_s = max(run.plan.connect_timeout_s, run.plan.timeout_s) + MISSED_S
    connects = unanswered = 0
    for t_s, tick in run.ticks:
        own = tick.tcp or _NOTHING
        lost = own.unanswered + tick.failed_by(["connect_timeout"])
        if (own.connects or lost) and any_between(instants, t_s - 1.0 - longest_s, t_s + MISSED_S):
            connects += own.connects + lost
            unanswered += lost
    connects -= explained.connects
    unanswered -= explained.unanswered
    return DroppedConnects(max(0, min(connects, upto)), max(0, min(unanswered, upto)), dropped)


def _rises(counter: Series) -> list[float]:
    """The instants (s) at which the counter had risen."""
    pairs = itertools.pairwise(counter.rows())
    return [t_s for (_, before), (t_s, after) in pairs if after > before]


def _rise(counter: Series) -> int:
    return round((counter.last() or 0.0) - (counter.first() or 0.0))


def any_between(instants: list[float], from_s: float, to_s: float) -> bool:
    """Whether one of ``instants``, which are in order, is in that time."""
    after = bisect.bisect_left(instants, from_s)
    return after < len(instants) and instants[after] <= to_s
