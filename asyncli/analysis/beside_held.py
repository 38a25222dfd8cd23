"""How many connections the server has beside those that are held: exactly while none come and go,
and within bounds where churn ends some and replaces them. Pure.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left
from typing import NamedTuple

from asyncli.model.records import CHURN, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series


class Between(NamedTuple):
    """How many there were at least and at most: as churn ends and replaces connections, some of
    those that are held as a second ends may not have been there, or others still, as it was read.
    """

    at_least: float
    at_most: float


def silent_at(run: Run, t_s: float, value: float, others: Between) -> Between:
    """How many silent ones the server had at an instant at which ``value`` connections were read,
    beside those that are held and those of ``others``.
    """
    held = _held_within(run, t_s)
    return Between(value - others.at_most - held.at_most, value - others.at_least - held.at_least)


def silent_over_time(
    run: Run, part: Series, start_s: float, others: Between
) -> list[tuple[float, Between]]:
    """How many silent ones the server had, by the seconds since ``start_s``. Of one that churns a
    later reading tells how many it had at least before, and an earlier one how many at most after:
    none comes back to it.
    """
    silent = [(t_s - start_s, silent_at(run, t_s, value, others)) for t_s, value in part.rows()]
    if not run.has_churned:
        return silent
    ceilings = itertools.accumulate([count.at_most for _, count in silent], min)
    floors = [*itertools.accumulate([count.at_least for _, count in reversed(silent)], max)]
    bounded = []
    for (after_s, _), at_least, at_most in zip(silent, reversed(floors), ceilings, strict=True):
        bounded.append((after_s, Between(min(at_least, at_most), at_most)))
    return bounded


def others_of(run: Run, before: Series) -> Between | None:
    """What it had beside those that are held, at the last reading of a second in which these did
    not change; None without one. Where churn changes them all the while, by all readings of the
    hold that agree with the last ones.
    """
    others = _others_beside_churn(run, before)
    if others is not None:
        return others
    for t_s, value in reversed(list(before.rows())):
        if t_s <= run.first_connect_s:
            return Between(value, value)
        if _is_at_rest(run, t_s):
            held = _held_within(run, t_s)
            return Between(value - held.at_most, value - held.at_least)
    return None


def is_told_at(run: Run, t_s: float) -> bool:
    """Whether those that were held at an instant are known, within what churn leaves open: nothing
    else ended or opened any in that second.
    """
    return _is_at_rest(run, t_s) or _is_churned(run, t_s)


def _others_beside_churn(run: Run, before: Series) -> Between | None:
    """What readings in seconds with churn agree on, from the last one back to the first that does
    not fit: the server had fewer or more others then. They are none at least. None without one.
    """
    others: Between | None = None
    within = Between(0.0, math.inf)
    for t_s, value in reversed(list(before.rows())):
        if run.hold is None or t_s < run.hold.start_s:
            break
        if not _is_churned(run, t_s):
            continue
        held = _held_within(run, t_s)
        within = Between(
            max(within.at_least, value - held.at_most), min(within.at_most, value - held.at_least)
        )
        if within.at_least > within.at_most:
            break
        others = within
    return others


def _held_within(run: Run, t_s: float) -> Between:
    """How many of those that are held the server may have had at an instant."""
    held = _held(run, t_s)
    tick = _tick_of(run, t_s)
    if tick is None or CHURN not in tick.events:
        return Between(held, held)
    came = 0
    went = tick.connecting
    for counts in tick.events.values():
        came += counts.opened + counts.returned
        went += counts.ended - counts.silenced
    return Between(held - came, held + went)


def _held(run: Run, t_s: float) -> float:
    """How many are held at the end of the second in which an instant lies: what an event ends or
    silences goes at its start, and who comes back in that second may be there already.
    """
    held = run.held
    place = min(bisect_left(held.t_s, t_s), len(held) - 1)
    return held.values[place]


def _is_churned(run: Run, t_s: float) -> bool:
    """Whether churn ended or replaced some in the second in which an instant lies."""
    tick = _tick_of(run, t_s)
    return tick is not None and CHURN in tick.events


def _tick_of(run: Run, t_s: float) -> Tick | None:
    place = bisect_left(run.ticks, t_s, key=operator.itemgetter(0))
    if place == len(run.ticks):
        return None
    return run.ticks[place][1]


def _is_at_rest(run: Run, t_s: float) -> bool:
    """Whether as many were held at the start as at the end of the second in which an instant
    lies.
    """
    held = run.held
    place = bisect_left(held.t_s, t_s)
    return 0 < place < len(held) and held.values[place - 1] == held.values[place]
