"""How long each client was away that an event of a plan ended, and how many clients those were."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from asyncli.core.histogram import Histogram, summed
from asyncli.model.records import CHURN, EventCounts


class AwayAtLeast(msgspec.Struct, frozen=True):
    """The least that the times of :class:`Away` can be (s): who was not back had been away for so
    long as the drain began, or as another event ended them. Of whom nothing tells they count as
    zero.
    """

    p50_s: float
    p99_s: float
    max_s: float


class Away(msgspec.Struct, frozen=True):
    """For how long half of the clients whom an event ended were away at most, 99 % of them and all
    (s): each from its own end, as asyncli saw it, or from when it fell silent or stalled, to its
    first answer without an error. Of these who were not back count as later than all; None where
    that is such a one. ``at_least``: None where all were back, so that the times are known.
    """

    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    at_least: AwayAtLeast | None = None


def away_of(number: int, counts: EventCounts) -> Away | None:
    """For how long those whom an event ended were away, by what it counted; None where it ended
    nobody who was to come back, and in runs of older versions, which did not count that.

    Those whom another event ended before they were back had been away at least until then; runs of
    older versions did not count that, and leave them out. Of churn these are left out too, and who
    was not to be back yet.
    """
    awaited = counts.ended + counts.stalled - counts.ended_again - counts.gone
    not_back_ms = [counts.still_away_ms]
    if number == CHURN:
        awaited -= counts.waiting
    else:
        awaited += counts.until_ended_ms.count
        not_back_ms.append(counts.until_ended_ms)
    if awaited <= 0 or not _is_counted(counts):
        return None
    p50_s, p99_s, max_s = _times_s(counts.away_ms, awaited, beyond=None)
    times = Away(p50_s, p99_s, max_s)
    if counts.away_ms.count >= awaited:
        return times
    seen = summed([counts.away_ms, *not_back_ms])
    # The least that they can be: those of whom nothing tells come before all others.
    untold = max(0, awaited - seen.count)
    least = [value or 0.0 for value in _times_s(seen, awaited, before=untold, beyond=0.0)]
    return msgspec.structs.replace(times, at_least=AwayAtLeast(*least))


def _is_counted(counts: EventCounts) -> bool:
    """Whether the version of asyncli that made the run counted how long clients were away."""
    return counts.clients > 0 and counts.away_ms.count == counts.back_ms.count


def _times_s(
    times_ms: Histogram, awaited: int, *, beyond: float | None, before: int = 0
) -> Sequence[float | None]:
    """The times (s) of half, 99 % and all who were ``awaited``, by rank; of these so many come
    ``before`` those with a known time. ``beyond``: of a rank outside of these.
    """
    known = times_ms.count
    times: list[float | None] = []
    for share in (0.5, 0.99, 1.0):
        rank = math.ceil(share * awaited) - before
        if 0 < rank <= known:
            times.append(times_ms.at_rank(rank) / 1e3)
        else:
            times.append(beyond)
    return times


def with_longest_at_least(away: Away | None, least_s: float) -> Away | None:
    """The same where one of those who are not back, if any, has been away for at least so long
    (s).
    """
    if away is None or away.at_least is None:
        return away
    known = away.at_least
    longest_s = max(known.max_s, least_s)
    return msgspec.structs.replace(away, at_least=msgspec.structs.replace(known, max_s=longest_s))


class Clients(msgspec.Struct, frozen=True):
    """How many clients an event ended or had stall, and how many of these more than once; None in
    runs of older versions, which did not count that.
    """

    all: int | None
    repeatedly: int | None


def clients_of(counts: EventCounts) -> Clients:
    """How many clients the connections belonged to that an event ended or had stall."""
    if counts.ended + counts.stalled > 0 and not counts.clients:
        return Clients(None, None)
    return Clients(counts.clients, counts.ended_repeatedly)
