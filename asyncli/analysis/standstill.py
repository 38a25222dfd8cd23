"""When the server stood still: a signal or a debugger had stopped its processes, or a part of them
while the others did nothing for those who waited; or they used no CPU and accepted nobody, though
clients waited in the listen queue. Pure.

Then a full listen queue, or answers that come late, are no sign of a short backlog or of a slow
server. A queue that is full and served is another thing: the server accepts and answers meanwhile.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

import msgspec

from asyncli.analysis.bounded_time import NO_TIME, BoundedTime
from asyncli.analysis.constants import FEWEST, MISSED_S
from asyncli.analysis.event_times import events_begun_by, mark_before
from asyncli.analysis.losses.server_evidence import (
    STILL_S,
    ServerEvidence,
    all_stopped,
    any_stopped,
    stopped_since,
)
from asyncli.analysis.losses.slowness import stretches_without_answers
from asyncli.analysis.losses.unanswered import Silence, silences
from asyncli.findings.slowness import no_answers
from asyncli.model.metrics import (
    SERVER_CPU_S,
    SERVER_LISTENERS_DROPPED,
    SERVER_SOCKETS,
    SERVER_SOCKETS_WAITING,
    TCP,
)
from asyncli.model.records import Finding
from asyncli.model.run import TICK_S, Run, Ticks, answered_between
from asyncli.model.samples import Series


class Standstill(msgspec.Struct, frozen=True):
    """From the first to the last reading (s) of a server that stood still. ``stopped``: by the
    state of its processes, at each of them.
    """

    from_s: float
    to_s: float
    stopped: bool

    @property
    def lasted_s(self) -> float:
        """How long that was (s), at least."""
        return self.to_s - self.from_s


def standstills(run: Run, from_s: float = -math.inf, to_s: float = math.inf) -> list[Standstill]:
    """When the server stood still from one reading to the next, or for longer; in order. Of the
    readings from ``from_s`` to ``to_s``, and of the time with connections.

    Clients that give up leave the listen queue, and for that time it does not show by itself that
    nobody is accepted: two spans are one where the server served nobody between them either.
    """
    waiting = _Waiting(run)
    stopped = _Stopped(run, waiting)
    if not stopped.any_was and not waiting.any_waited:
        return []
    since_s = max(from_s, run.first_connect_s)
    until_s = min(to_s, run.stop_s)
    readings = run.series(SERVER_CPU_S).between(since_s, until_s)
    spans: list[Standstill] = []
    has_served = True
    for (before_s, before), (after_s, after) in itertools.pairwise(readings.rows()):
        is_idle = after - before <= STILL_S * (after_s - before_s)
        is_stopped = stopped.from_one_to_another(before_s, after_s, is_idle=is_idle)
        if is_stopped or (is_idle and waiting.in_vain(before_s, after_s)):
            _add(spans, Standstill(before_s, after_s, is_stopped), has_served)
            has_served = False
        elif not is_idle or not waiting.served_nobody(before_s, after_s):
            has_served = True
    return spans


def _add(spans: list[Standstill], span: Standstill, has_served: bool) -> None:
    """Add a span, to the last one where both are one standstill. ``has_served``: the server may
    have served somebody between them.
    """
    if not spans:
        spans.append(span)
        return
    last = spans[-1]
    # One that a signal stops, and lets go on, may do so again.
    was_stopped = last.stopped or span.stopped
    if last.to_s == span.from_s or not (has_served or was_stopped):
        spans[-1] = Standstill(last.from_s, span.to_s, last.stopped and span.stopped)
    else:
        spans.append(span)


class _Waiting:
    """Clients that waited to be accepted, or were dropped at a full queue."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._accepted = run.series(SERVER_SOCKETS)
        self._waiting = run.series(SERVER_SOCKETS_WAITING)
        self._dropped = run.series(SERVER_LISTENERS_DROPPED)

    @cached_property
    def _silences(self) -> list[Silence]:
        """Those in which so many heartbeats were sent that some would have met what still
        served.
        """
        return [silence for silence in silences(self._run.ticks) if silence.sent >= FEWEST]

    @property
    def any_waited(self) -> bool:
        """Whether any was seen to in the run."""
        return any(self._waiting.values) or _rise(self._dropped, -math.inf, math.inf) > 0

    def in_vain(self, from_s: float, to_s: float) -> bool:
        """Whether some waited between two readings, and nobody was accepted and nothing came from
        the server.
        """
        waiting = self._waiting.between(from_s, to_s).values
        is_left = len(waiting) > 1 and 0 < waiting[0] <= waiting[-1]
        if not is_left and not _rise(self._dropped, from_s, to_s) > 0:
            return False
        return self._nothing_came(from_s, to_s)

    def answered_nobody(self, from_s: float, to_s: float) -> bool:
        """Whether nobody was accepted between two readings and nothing came from the server, in a
        silence in which so many heartbeats were sent that some would have met what still served.
        """
        if not self._nothing_came(from_s, to_s):
            return False
        # They are in order: the first that was not over may have begun.
        place = bisect_right(self._silences, from_s, key=lambda silence: silence.to_s)
        return place < len(self._silences) and self._silences[place].from_s < to_s

    def served_nobody(self, from_s: float, to_s: float) -> bool:
        """Whether some waited at one of two readings, or were dropped between them, and nobody was
        accepted, nothing came from the server, and it ended none of those who waited.
        """
        waited = any(self._waiting.between(from_s, to_s).values)
        if not waited and not _rise(self._dropped, from_s, to_s) > 0:
            return False
        if not self._nothing_came(from_s, to_s):
            return False
        for _, tick in self._ticks(from_s, to_s):
            # One that accepts and closes at once has none in its queue or among the accepted.
            if any(counts.phantoms > counts.in_vain for counts in tick.events.values()):
                return False
        return True

    def _nothing_came(self, from_s: float, to_s: float) -> bool:
        """Whether nobody was accepted between two readings, and nothing came from the server."""
        accepted = self._accepted.between(from_s, to_s).values
        if accepted and accepted[-1] > accepted[0]:
            return False
        ticks = self._ticks(from_s, to_s)
        served = any(tick.answered or tick.bytes_received for _, tick in ticks)
        return bool(ticks) and not served

    def _ticks(self, from_s: float, to_s: float) -> Ticks:
        """The seconds that overlap the time between two readings."""
        return self._run.ticks_between(from_s, math.nextafter(to_s + TICK_S, -math.inf))


class _Stopped:
    """The processes that a signal or a debugger had stopped."""

    def __init__(self, run: Run, waiting: _Waiting) -> None:
        self._all = all_stopped(run)
        self._in_part = any_stopped(run)
        self._waiting = waiting

    @property
    def any_was(self) -> bool:
        """Whether any was in the run."""
        return any(self._in_part.values)

    def from_one_to_another(self, before_s: float, after_s: float, *, is_idle: bool) -> bool:
        """Whether they were at two readings; ``is_idle``: all used no CPU between these. Which of
        them hold connections is not known, so the rest shows it by what it does.
        """
        if self._all.at(before_s) and self._all.at(after_s):
            return True
        if not self._in_part.at(before_s) or not self._in_part.at(after_s):
            return False
        return is_idle and self._waiting.answered_nobody(before_s, after_s)


def stood_still_s(run: Run, from_s: float, to_s: float) -> float:
    """For how long (s) it stood still between two instants, at least."""
    total_s = 0.0
    # From a reading before the first instant to one after the last.
    for span in standstills(run, from_s - MISSED_S, to_s + MISSED_S):
        total_s += max(0.0, min(to_s, span.to_s) - max(from_s, span.from_s))
    return total_s


def drops_meanwhile(run: Run) -> float:
    """Which share of the connects that met a full listen queue did so while it stood still."""
    for name in (SERVER_LISTENERS_DROPPED, f"{TCP}ListenOverflows"):
        dropped = run.series(name).between(run.first_connect_s, run.stop_s)
        in_all = _rise(dropped, -math.inf, math.inf)
        if in_all:
            meanwhile = sum(_rise(dropped, span.from_s, span.to_s) for span in standstills(run))
            return meanwhile / in_all
    return 0.0


def longest_by_event(run: Run) -> dict[int, BoundedTime]:
    """For how long it stood still that began in the time of each event of the plan, of those with
    such a time: the longest; at least 0 where a single reading shows it.
    """
    begun_s = {event.fields.get("number"): event.at_s for event in run.events}
    if not begun_s:
        return {}
    longest: dict[int, BoundedTime] = {}
    read_s = run.series(SERVER_CPU_S).t_s
    spans = standstills(run)
    for span in [*spans, *_seen_once(run, spans)]:
        ended_s = _latest_end_s(run, read_s, span)
        for event in events_begun_by(run, span.from_s):
            number = event["number"]
            # What began in its time did not begin before it. A reading is asked for a moment before
            # it shows what was so.
            began_s = max(_earliest_beginning_s(read_s, span), begun_s[number])
            lasted = BoundedTime(span.to_s - max(span.from_s, begun_s[number]), ended_s - began_s)
            longest[number] = longest.get(number, NO_TIME).or_longer(lasted)
    return longest


def _seen_once(run: Run, spans: Sequence[Standstill]) -> list[Standstill]:
    """The readings outside of ``spans`` at which all its processes were stopped: it stood still,
    from after the reading before to before the next one at most.
    """
    single_readings = []
    for t_s, are_all in all_stopped(run).between(run.first_connect_s, run.stop_s).rows():
        place = bisect_right(spans, t_s, key=lambda span: span.from_s) - 1
        is_told = place >= 0 and t_s <= spans[place].to_s
        if are_all and not is_told:
            single_readings.append(Standstill(t_s, t_s, True))
    return single_readings


def _earliest_beginning_s(read_s: Sequence[float], span: Standstill) -> float:
    """When (s) a standstill may have begun, by the instants of the readings: the last one before
    it does not show it.
    """
    place = bisect_left(read_s, span.from_s) - 1
    return -math.inf if place < 0 else read_s[place]


def _latest_end_s(run: Run, read_s: Sequence[float], span: Standstill) -> float:
    """When (s) it was over at the latest: with the next answer to anybody, the next one of the
    readings at these instants, or the hold, of which it is told. Infinite where the records end
    before.
    """
    end_s = math.inf if run.phase("drain") is None else run.stop_s
    place = bisect_right(read_s, span.to_s)
    if place < len(read_s):
        # On a busy host it shows what was so up to half a second later.
        end_s = min(end_s, read_s[place] + TICK_S / 2)
    for t_s, tick in run.ticks_between(span.to_s, end_s + TICK_S):
        instants = answered_between(t_s, tick)
        # What asyncli reads after it stood still itself may have come before.
        if instants is None or tick.asyncli_stood_still:
            continue
        first_s, last_s = instants
        if last_s > span.to_s:
            return min(end_s, first_s if first_s > span.to_s else last_s)
    return end_s


def stood_still(run: Run) -> list[Finding]:
    """A finding of the longest time in which it stood still, where no heartbeat shows it: nobody
    was connected, or for a part of it. What heartbeats show is told by their findings.
    """
    spans = standstills(run)
    if not spans:
        return []
    stretches = stretches_without_answers(run)
    told = [span for span in spans if not _is_shown(run, span, stretches)]
    longest = max(told, key=lambda span: span.lasted_s, default=None)
    if longest is None or longest.lasted_s < MISSED_S:
        return []
    return [
        no_answers(
            longest.from_s,
            longest.to_s,
            waited=0,
            server=ServerEvidence(run).label,
            why="stopped" if longest.stopped else "left_waiting",
            requests=None,
            times=1,
            cores=None,
            every_s=None,
            page_silent=False,
            events=events_begun_by(run, longest.from_s),
            mark=mark_before(run, longest.from_s - TICK_S),
        )
    ]


def _is_shown(run: Run, span: Standstill, stretches: Sequence[Silence]) -> bool:
    """Whether heartbeats show it: that were lost by it, that had no answer nearly all the while, or
    that have had none since to the end.
    """
    since_s = stopped_since(run, run.stop_s)
    if since_s is not None and span.to_s >= since_s:
        return True
    until_s = span.to_s + run.plan.patience_s
    for _, tick in run.ticks_between(span.from_s, until_s):
        if "heartbeat_timeout" in tick.deaths:
            return True
    for stretch in stretches:
        overlaps = stretch.from_s < span.to_s and span.from_s < stretch.to_s
        if overlaps and stretch.to_s >= span.to_s - MISSED_S:
            return True
    return False


def _rise(counter: Series, from_s: float, to_s: float) -> float:
    """By how much it rose from the first to the last reading between two instants."""
    read = counter.between(from_s, to_s).values
    return read[-1] - read[0] if read else 0.0
