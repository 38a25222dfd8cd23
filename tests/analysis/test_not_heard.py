"""Of the connections held at the end, what nobody has heard of since the hold began, or since a fault."""

from __future__ import annotations

import pytest
from synthetic_run import a_run

from asyncli.analysis.losses.slowness import not_heard, unheard
from asyncli.analysis.totals import fold
from asyncli.records import Deaths


@pytest.mark.parametrize(
    ("fault_at_s", "count", "since_s", "remedy"),
    [
        (None, 30, 60.0, "hold for 40 s or longer (--keepalive / 2 + --timeout), or lower --keepalive"),
        # It was held long enough: what counts is the time after the fault.
        (50.0, 80, 21.0, "hold on, after it, for 40 s or longer (--keepalive / 2 + --timeout), or lower --keepalive"),
    ],
)
def test_what_was_not_heard(fault_at_s: float | None, count: int, since_s: float, remedy: str) -> None:
    run = a_run(100)
    hold = next(one for one in run.phases if one.name == "hold")
    for t_s, tick in run.ticks:
        if fault_at_s is not None and hold.start_s + fault_at_s <= t_s < hold.start_s + fault_at_s + 1:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
    for ago_s, many in ((10.0, 20), (30.0, 50), (70.0, 30)):
        for _ in range(many):
            run.ticks[-1][1].heard_ms.add(ago_s * 1e3)
    totals = fold(run)
    seen = unheard(run, totals)
    assert seen is not None
    assert (seen.count, seen.fault) == (count, fault_at_s is not None)
    assert seen.ago_s == pytest.approx(since_s, abs=1.0)
    (found,) = not_heard(seen, totals, run.plan)
    assert found.remedy == remedy


def test_where_each_was_heard_nothing_is_said() -> None:
    run = a_run(100)
    for _ in range(100):
        run.ticks[-1][1].heard_ms.add(29_000)
    totals = fold(run)
    assert unheard(run, totals) is None
    assert not_heard(None, totals, run.plan) == []


def test_a_silence_of_all_to_the_end_counts_from_its_beginning_however_early_the_first_fault() -> None:
    run = a_run(100)
    drain = next(one for one in run.phases if one.name == "drain")
    run.ticks[30][1].deaths = {"heartbeat_timeout": Deaths(count=1)}
    for t_s, tick in run.ticks:
        if t_s > drain.start_s - 15.0:
            tick.answered = 0
    # Given up after ten seconds: it was asked five seconds after the last answer.
    last = max(t_s for t_s, _ in run.ticks if t_s <= drain.start_s)
    next(tick for t_s, tick in run.ticks if t_s == last).deaths = {"heartbeat_timeout": Deaths(count=1)}
    for ago_s, many in ((5.0, 20), (20.0, 80)):
        for _ in range(many):
            run.ticks[-1][1].heard_ms.add(ago_s * 1e3)
    seen = unheard(run, fold(run))
    assert seen is not None
    assert (seen.count, seen.fault) == (80, True)
    assert seen.ago_s == pytest.approx(15.0, abs=2.0)
