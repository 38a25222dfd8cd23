"""When no client had an answer: neither one that was connected, nor one that tried to come back
from an event. Pure.

Findings of a silence are of those who were connected (:mod:`asyncli.analysis.losses.slowness`): a
restart that ends all leaves nobody to wait for a heartbeat's answer, and is an outage all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncli.analysis.constants import FEWEST
from asyncli.analysis.event_times import events_of_silence
from asyncli.analysis.losses.unanswered import usual_wait_s
from asyncli.model.records import Tick
from asyncli.model.run import TICK_S, Run, Ticks


class _Outage(NamedTuple):
    """Whole seconds without an answer, from the first to the last in which one was wanted."""

    from_s: float
    to_s: float
    most_wanted: int


def longest_without_answers(run: Run) -> dict[int, float]:
    """For how long at least no client had an answer (s), by the number of the event in whose time
    that began: the longest of each event, if it has one of two seconds or more.
    """
    # Nothing tells what was answered while the run was interrupted.
    spans = run.uninterrupted_spans(run.first_connect_s, run.stop_s)
    outages = [outage for span in spans for outage in _outages(run.ticks_between(*span))]
    long_ones = [outage for outage in outages if _is_long(outage)]
    if not long_ones:
        return {}
    usual_s = usual_wait_s(run.ticks_between(run.first_connect_s, run.stop_s))
    longest_s: dict[int, float] = {}
    for outage in long_ones:
        lasted_s = outage.to_s - outage.from_s
        # Ticks are a little early or late.
        if lasted_s < 1.9 * TICK_S + usual_s:
            continue
        for event in events_of_silence(run, outage.from_s):
            number = event["number"]
            longest_s[number] = max(lasted_s, longest_s.get(number, 0.0))
    return longest_s


def _is_long(outage: _Outage) -> bool:
    return outage.to_s - outage.from_s > 1.5 * TICK_S and outage.most_wanted >= FEWEST


def _outages(rows: Ticks) -> list[_Outage]:
    """All outages in ``rows``. A second in which nobody wanted an answer is within one where the
    seconds before and after it are.
    """
    outages: list[_Outage] = []
    current: _Outage | None = None
    stalling = 0
    for t_s, tick in rows:
        stalling += _newly_stalling(tick)
        if _is_answered(tick) or tick.asyncli_stood_still:
            if current is not None:
                outages.append(current)
            current = None
            continue
        wanted = _wanted(tick, stalling)
        if not wanted:
            continue
        if current is None:
            current = _Outage(t_s - TICK_S, t_s, wanted)
        else:
            current = _Outage(current.from_s, t_s, max(current.most_wanted, wanted))
    if current is not None:
        outages.append(current)
    return outages


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
