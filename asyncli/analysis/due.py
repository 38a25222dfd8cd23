"""When heartbeats were due, by the second in which they were answered and for how long they had
waited. Pure.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TypeVar

from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.model.run import Ticks

Key = TypeVar("Key")
#: Instants (s), both ends included.
Spans = Sequence[tuple[float, float]]


def latencies_of_due(ticks: Ticks, spans_of: Mapping[Key, Spans]) -> dict[Key, Histogram]:
    """By key the latencies (us) of the heartbeats that were due in its spans, whenever they were
    answered, or lost after so long without an answer.

    A tick has those whose wait ended in its second. It was due at the latest as long before the
    tick's end as it waited at least.
    """
    counted = [(t_s, tick.latency_us) for t_s, tick in ticks if tick.latency_us]
    longest_s = max((latencies.greatest for _, latencies in counted), default=0) / 1e6
    due_in: dict[Key, Histogram] = {}
    for key, spans in spans_of.items():
        parts = []
        for start_s, end_s in spans:
            first = bisect_left(counted, start_s, key=operator.itemgetter(0))
            beyond = bisect_right(counted, end_s + longest_s, key=operator.itemgetter(0))
            parts += _parts_due(counted[first:beyond], start_s, end_s)
        due_in[key] = summed(parts)
    return due_in


def _parts_due(
    counted: Sequence[tuple[float, Histogram]], start_s: float, end_s: float
) -> list[Histogram]:
    """Of each tick those that were due from one instant to another."""
    parts = []
    for t_s, latencies in counted:
        oldest_s = t_s - latencies.greatest / 1e6
        if start_s <= oldest_s and t_s <= end_s:
            parts.append(latencies)
        elif oldest_s <= end_s:
            parts.append(_due_between(latencies, t_s, start_s, end_s))
    return parts


def _due_between(latencies: Histogram, t_s: float, start_s: float, end_s: float) -> Histogram:
    """Those of a tick that ended at ``t_s`` which were due from one instant to another."""
    part = Histogram()
    whole = latencies.opened()
    for key, count in whole.items():
        low_us, _ = bounds(key)
        if not start_s <= t_s - low_us / 1e6 <= end_s:
            continue
        least, greatest = whole.within(key)
        if part.least < 0:
            part.least = least
        part.greatest = greatest
        part.counts[key] = count
    return part
