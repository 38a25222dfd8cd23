"""When no client had an answer: neither one that was connected, nor one that tried to come back
from an event. Pure.

Findings of a silence are of those who were connected (:mod:`asyncli.analysis.losses.slowness`): a
restart that ends all leaves nobody to wait for a heartbeat's answer, and is an outage all the same.

It lasts from the last answer before it, or from the beginning of the event to which it belongs, to
the first one after it. Files of older versions have whole seconds alone: the last answer may have
come a second before the first of these began, and the next one a second after the last of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from asyncli.analysis.bounded_time import NO_TIME, BoundedTime
from asyncli.analysis.constants import FEWEST
from asyncli.analysis.event_times import events_of_silence, times_of_events
from asyncli.analysis.losses.unanswered import usual_wait_s
from asyncli.model.records import Tick
from asyncli.model.run import TICK_S, Run, answered_between


class _Instant(NamedTuple):
    """When something was (s): no earlier and no later than this."""

    earliest_s: float
    latest_s: float


class _Outage(NamedTuple):
    """Whole seconds without an answer, from the first to the last in which one was wanted; when the
    last answer before it came, and the next one.
    """

    from_s: float
    to_s: float
    most_wanted: int
    began: _Instant
    ended: _Instant

    def since(self, event_s: float) -> BoundedTime:
        """How long it was of an event that began at this instant."""
        least_s = self.ended.earliest_s - max(self.began.latest_s, event_s)
        most_s = self.ended.latest_s - max(self.began.earliest_s, event_s)
        return BoundedTime(max(0.0, least_s), max(0.0, most_s))


def longest_without_answers(run: Run) -> dict[int, BoundedTime]:
    """For how long no client had an answer, by the number of the event in whose time that began:
    the longest of each event, if it has one that may have been of two seconds or more; at least 0
    where it may have been shorter than that.
    """
    # Nothing tells what was answered while the run was interrupted.
    spans = run.uninterrupted_spans(run.first_connect_s, run.stop_s)
    outages = [outage for span in spans for outage in _outages(run, *span)]
    outages = [outage for outage in outages if outage.most_wanted >= FEWEST]
    if not outages:
        return {}
    usual_s = usual_wait_s(run.ticks_between(run.first_connect_s, run.stop_s))
    # Ticks are a little early or late.
    long_s = 1.9 * TICK_S + usual_s
    begun_s = {event.fields.get("number"): event.at_s for event in run.events}
    times = times_of_events(run)
    longest: dict[int, BoundedTime] = {}
    for outage in outages:
        if outage.since(-math.inf).at_most_s < long_s:
            continue
        for event in events_of_silence(run, outage.from_s, times):
            number = event["number"]
            lasted = outage.since(begun_s[number])
            if lasted.at_most_s < long_s:
                continue
            if lasted.at_least_s < long_s:
                lasted = lasted._replace(at_least_s=0.0)
            longest[number] = longest.get(number, NO_TIME).or_longer(lasted)
    return longest


def _outages(run: Run, start_s: float, end_s: float) -> list[_Outage]:
    """All outages between two instants. A second in which nobody wanted an answer is within one
    where the seconds before and after it are.
    """
    outages: list[_Outage] = []
    current: _Outage | None = None
    before: tuple[float, Tick] | None = None
    stalling = 0
    for t_s, tick in run.ticks_between(start_s, end_s):
        stalling += _newly_stalling(tick)
        if _is_answered(tick) or tick.asyncli_stood_still:
            if current is not None:
                outages.append(current._replace(ended=_end_of(current, t_s, tick)))
            current = None
        else:
            current = _going_on(current, t_s, _wanted(tick, stalling), before)
        before = (t_s, tick)
    if current is not None:
        outages.append(_until_the_end(run, current, end_s))
    return outages


def _going_on(
    outage: _Outage | None, t_s: float, wanted: int, before: tuple[float, Tick] | None
) -> _Outage | None:
    """The outage with the second that ends at ``t_s``, which had no answer though so many were
    ``wanted``; it begins with the first of these. ``before``: the second before that one.
    """
    if not wanted:
        return outage
    no_end = _Instant(t_s, math.inf)
    if outage is None:
        from_s = t_s - TICK_S
        return _Outage(from_s, t_s, wanted, _beginning_of(from_s, before), no_end)
    return outage._replace(to_s=t_s, most_wanted=max(wanted, outage.most_wanted), ended=no_end)


def _until_the_end(run: Run, outage: _Outage, end_s: float) -> _Outage:
    """The outage that is not over at the end of the records: of those of the hold its end is that
    of the outage too.
    """
    if run.phase("drain") is None or end_s != run.stop_s:
        return outage
    return outage._replace(ended=_Instant(outage.to_s, end_s))


def _beginning_of(from_s: float, before: tuple[float, Tick] | None) -> _Instant:
    """When the last answer came before the seconds without one, the first of which begins at
    ``from_s``, by the second before it, if there is one.
    """
    if before is None:
        return _Instant(from_s, from_s)
    t_s, tick = before
    if tick.asyncli_stood_still:
        # That may have hidden any number of seconds without one.
        return _Instant(-math.inf, from_s)
    if not _is_answered(tick):
        # Nobody wanted one.
        return _Instant(from_s, from_s)
    instants = answered_between(t_s, tick)
    if instants is None:
        return _Instant(from_s - TICK_S, from_s)
    _, last_s = instants
    return _Instant(last_s, last_s)


def _end_of(outage: _Outage, t_s: float, tick: Tick) -> _Instant:
    """When the next answer came after an outage, which the second that ends at ``t_s`` ends."""
    if tick.asyncli_stood_still:
        return outage.ended
    if t_s - outage.to_s > 1.5 * TICK_S:
        # Nobody wanted one meanwhile.
        return _Instant(outage.to_s, outage.to_s)
    instants = answered_between(t_s, tick)
    if instants is None:
        return _Instant(outage.to_s, t_s)
    first_s, _ = instants
    return _Instant(first_s, first_s)


def _is_answered(tick: Tick) -> bool:
    """Whether any client had an answer in this second, also one with an error."""
    if tick.answered:
        return True
    return any(counts.back_ms or counts.error_answers for counts in tick.events.values())


def _newly_stalling(tick: Tick) -> int:
    """How many more clients read nothing after this second than before it."""
    newly = 0
    for counts in tick.events.values():
        newly += counts.stalled - counts.resumed - sum(counts.closes.values())
    return newly


def _wanted(tick: Tick, stalling: int) -> int:
    """How many answers were wanted in this second: to heartbeats, and to the connects of those who
    come back. An answer to a client that reads nothing, of whom there are ``stalling``, may be
    there.
    """
    attempts = sum(counts.attempts for counts in tick.events.values())
    heartbeats = max(0, max(tick.awaiting, tick.sent) - stalling)
    # Who tried in this second may wait at its end.
    return heartbeats + max(attempts, tick.connecting)
