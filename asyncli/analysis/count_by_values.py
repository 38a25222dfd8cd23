"""Which row of the server's pages counts its active connections, by its values alone. Pure.

Where no rule names the metric (collect/metric_rules.py), the rows that may count connections are
recorded (``page.*``, collect/count_search.py). The one that counts them

- *rises*: from before the first connect to the hold by 0.98 to 1.02 for each connection held;
- *follows*: on each page of the ramp and the hold it is what it was before and the connections held
  then, give or take 2 % of them and what was opened or lost around that page; on half of the pages
  of the ramp, half of that;
- *falls*: when the connections are closed, by 0.98 to 1.02 for each, and stays there from 2.5 s
  after the drain on. A count of accepts does not.

What it was before stays in it: the connection of our own reading, listeners, other clients. A row
that came with the first connection is measured from what it is at the end.

Nothing else may pass, so the run must show it: 50 connections or more, five pages of the hold, and
five of the ramp on which so few were just being opened that they tell (at most a quarter of all),
from fewer than half of the connections on. A gauge of requests in flight does not stay with the
connections, and a random walk passes none of the three. Anything less is unknown.

Where no row does, the descriptors of the page's process may: each connection takes one. They must
pass the same, but the process may open and close other files meanwhile. By how much is known: after
the drain, what is more or less than before the first connect is no connection.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, HALF, MISSED_S, PART, WORTH_TELLING
from asyncli.analysis.counts import Client, CountPair, OtherCount, Pages, compared_held
from asyncli.model.metrics import PAGE, RUNTIME_DESCRIPTORS, STATUS_ACTIVE
from asyncli.model.page_rows import place_among_names
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.text import printable
from asyncli.model.topology import CountSource

# A row may rise by so much more or less than the connections.
_TOLERANCE = 2 * WORTH_TELLING
# Of fewer connections chance may be the same as a rise.
_FEWEST_HELD = FEWEST / PART
# A page tells nothing of the ramp if more than this share of the connections was just being opened.
_IN_FLIGHT = HALF * HALF


class CountByValues(msgspec.Struct, frozen=True):
    """``source``: the page and the row, as --metrics-map names it; ``count``: the connections by
    it, without the ``before`` that it counted beside ours. ``of_descriptors``: it counts those of
    the page's process, so that more of them are no sign of connections.
    """

    source: CountSource
    count: OtherCount
    before: float
    of_descriptors: bool = False


class _RowLevels(NamedTuple):
    """A row before the first connect (None: it was not there), at the hold's pages (median), at the
    last page before the drain, at the run's last page, and the most that it was above that once
    the drain was over.
    """

    before: float | None
    in_hold: float
    at_drain: float
    after: float
    above_after: float


def count_by_values(run: Run, client: Client) -> CountByValues | None:
    """The row that counts the server's active connections, else the descriptors of its process.
    None if a rule or a page of another kind has the count, or if none follows the connections.
    """
    has_count = run.place.count_source is not None or bool(run.series(STATUS_ACTIVE))
    if has_count or run.gaps or not math.isfinite(run.first_connect_s):
        return None
    counting = []
    for metric in run.metrics:
        if not metric.startswith(PAGE):
            continue
        source = _source(run, metric)
        count = _count_by_row(run, client, metric, source)
        if count is not None:
            counting.append(count)
    if counting:
        # Several may say the same: by what they are called.
        return min(counting, key=_by_name)
    return _count_by_descriptors(run, client)


def _by_name(count: CountByValues) -> tuple[int, str, str]:
    row = count.source.metric
    return place_among_names(row), row, count.source.url


def _source(run: Run, metric: str) -> CountSource:
    number, _, row = metric.removeprefix(PAGE).partition(".")
    urls = run.place.metrics_urls
    url = ""
    # A run file may be another user's.
    if number.isdecimal() and 1 <= int(number) <= len(urls):
        url = urls[int(number) - 1]
    return CountSource(url, printable(row))


def _count_by_row(
    run: Run, client: Client, metric: str, source: CountSource
) -> CountByValues | None:
    """The count by a row; None if it does not follow the connections."""
    row = run.series(metric)
    levels = _levels(run, row)
    if levels is None:
        return None
    before = levels.after if levels.before is None else levels.before
    count = OtherCount(_above(row, before))
    if not _follows_connections(run, client, levels, before, count):
        return None
    return CountByValues(source, count, before)


def _count_by_descriptors(run: Run, client: Client) -> CountByValues | None:
    """The count by the descriptors of the page's process; None if they do not follow the
    connections: it does not hold them all, or opens many other files; and if the page is of another
    program than the server.
    """
    if run.place.page_process is not None:
        return None
    source = run.place.descriptors_source
    descriptors = run.series(RUNTIME_DESCRIPTORS)
    levels = _levels(run, descriptors)
    if source is None or levels is None or levels.before is None:
        return None
    opened = levels.after - levels.before
    count = OtherCount(
        _above(descriptors, levels.before),
        files_closed=max(0.0, -opened),
        files_opened=max(0.0, opened),
    )
    if not _follows_connections(run, client, levels, levels.before, count):
        return None
    return CountByValues(source, count, levels.before, of_descriptors=True)


def _above(row: Series, before: float) -> Series:
    return Series(row.t_s, [value - before for value in row.values])


def _follows_connections(
    run: Run, client: Client, levels: _RowLevels, before: float, count: OtherCount
) -> bool:
    """Whether a count rises and falls with the connections, and stays with them in between."""
    if not _rises_and_falls(run, client, levels, before, count):
        return False
    pages = Pages(run, count)
    pair = compared_held(client, pages, run.first_connect_s, run.stop_s)
    return _stays_with(run, pair)


def _levels(run: Run, row: Series) -> _RowLevels | None:
    """None unless the hold and the time after the drain have their pages."""
    drain = run.phase("drain")
    if run.hold is None or drain is None or drain.end_s is None:
        return None
    earlier = row.between(-math.inf, run.first_connect_s).values
    in_hold = row.between(run.hold.start_s, run.stop_s).values
    after = row.last(since_s=drain.end_s)
    if len(in_hold) < FEWEST or after is None:
        return None
    before = statistics.median(earlier) if earlier else None
    later = row.between(drain.end_s + MISSED_S, math.inf).values
    above_after = max(later, default=after) - after
    return _RowLevels(before, statistics.median(in_hold), in_hold[-1], after, above_after)


def _rises_and_falls(
    run: Run, client: Client, levels: _RowLevels, before: float, count: OtherCount
) -> bool:
    """Whether a row rises by one for each connection held in the hold, and falls by one for each
    that is closed.
    """
    assert run.hold is not None
    held = client.held(client.t_s, run.stop_s)
    in_hold = held[(client.t_s >= run.hold.start_s) & (client.t_s <= run.stop_s)]
    if not len(in_hold):
        return False
    median_held = statistics.median(in_hold.tolist())
    held_at_drain = float(in_hold[-1])
    if min(median_held, held_at_drain) < _FEWEST_HELD:
        return False
    if levels.above_after > _TOLERANCE * held_at_drain:
        return False
    risen = levels.in_hold - before
    least_rise = (risen - count.files_opened) / median_held
    greatest_rise = (risen + count.files_closed) / median_held
    if least_rise > 1.0 + _TOLERANCE or greatest_rise < 1.0 - _TOLERANCE:
        return False
    fall = (levels.at_drain - levels.after) / held_at_drain
    return abs(fall - 1.0) <= _TOLERANCE


def _stays_with(run: Run, pair: CountPair) -> bool:
    """Whether a row is the connections held, on each page of the ramp and the hold."""
    import numpy as np

    assert run.hold is not None
    known = ~np.isnan(pair.second)
    held = pair.first[known]
    difference = pair.second[known] - held
    allowed = _TOLERANCE * held
    is_below = difference < pair.least[known] - allowed
    is_above = difference > pair.greatest[known] + allowed
    if is_below.any() or is_above.any():
        return False
    in_flight = np.maximum(-pair.least[known], pair.greatest[known])
    peak = held.max(initial=0.0)
    is_telling = (pair.t_s[known] < run.hold.start_s) & (in_flight <= _IN_FLIGHT * peak)
    if np.count_nonzero(is_telling) < FEWEST or held[is_telling].min() >= HALF * peak:
        return False
    is_close = np.abs(difference) <= HALF * in_flight + allowed
    return bool(is_close[is_telling].mean() >= HALF)
