"""Why connections were lost is said while the run lasts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from recording import write_run
from synthetic_run import a_run, cut

from asyncli.analysis.losses.attribution import diagnose
from asyncli.analysis.totals import fold
from asyncli.live import page_state
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed
from asyncli.model import metrics
from asyncli.model.records import Deaths, Finding
from asyncli.model.run import Run
from asyncli.report.cost_so_far import cost_so_far
from asyncli.report.livestate import LiveFold
from asyncli.report.losses_so_far import LossNews, LossSoFar
from asyncli.report.summary import summarise

HELD = 1000
LOST = 480
#: Into the hold.
LOST_AT_S = 30.0


def with_killed_worker(*limits: str) -> Run:
    """A worker of the server is killed in the hold, and its connections end at once."""
    run = a_run(HELD, hold_s=90.0, fail_if=limits)
    lost_at_s = run.phases[2].start_s + LOST_AT_S
    for sample in run.samples:
        sample.values[metrics.SERVER_ENDED] = float(sample.t_s > lost_at_s)
    for t_s, tick in run.ticks:
        if t_s > lost_at_s and tick.held:
            tick.held = HELD - LOST
    first = next(tick for t_s, tick in run.ticks if t_s > lost_at_s)
    first.deaths["closed_idle"] = Deaths(count=LOST)
    for _ in range(LOST):
        first.deaths["closed_idle"].age_s.add(LOST_AT_S)
        first.deaths["closed_idle"].idle_s.add(7)
    return run


@pytest.mark.parametrize("limits", [(), ("lost > 60%",)])
def test_the_reason_of_losses_is_told_once_and_as_in_the_report(limits: tuple[str, ...]) -> None:
    run = with_killed_worker(*limits)
    (in_report,) = [finding for finding in summarise(run).findings if finding.code == "lost_closed_idle"]
    fold = LiveFold(run.plan)
    told: list[Finding] = []
    # The processes are read after a loss: one that is just over has no reason yet.
    for after_s in (2.0, 12.0, 22.0):
        cost = cost_so_far(cut(with_killed_worker(*limits), run.phases[2].start_s + LOST_AT_S + after_s))
        fold.cost(cost)
        told = [notice.finding for notice in fold.state().findings if notice.finding.code == in_report.code]
        assert len(told) == (after_s > 10.0)
    assert told[0].evidence == in_report.evidence
    assert told[0].remedy
    # The report of a run that has ended says it itself.
    assert cost_so_far(run).losses == ()


def test_the_metrics_say_how_many_losses_each_diagnosis_explains(tmp_path: Path) -> None:
    """By the last cost, also after the end; the causes of a counter are how connections ended."""
    feed = RunFeed(write_run(with_killed_worker(), tmp_path / "run.db"))
    feed.open(with_cost=False)
    told = []
    try:
        for cut_after_s in (2.0, 22.0, None):
            run = with_killed_worker()
            if cut_after_s is not None:
                run = cut(run, run.phases[2].start_s + LOST_AT_S + cut_after_s)
            feed._take_cost(cost_so_far(run))
            page, _ = exposition(feed, "")
            told.append([line for line in page.decode().splitlines() if line.startswith("asyncli_connections_lost_explained{")])
    finally:
        feed.close()
    [diagnosis] = diagnose(run, fold(run))
    line = f'asyncli_connections_lost_explained{{diagnosis="{diagnosis.code}"}} {LOST}.0'
    assert told == [[], [line], [line]]
    assert diagnosis.code != "unexplained"


def test_the_page_tells_it_once_also_after_the_end(tmp_path: Path) -> None:
    run = with_killed_worker()
    feed = RunFeed(write_run(run, tmp_path / "run.db"))
    feed.open(with_cost=False)

    def told() -> list[float | None]:
        return [row["at_s"] for row in page_state.state_of(feed)["findings"] if "idle" in row["evidence"]]

    try:
        for after_s in (12.0, 22.0):
            feed._take_cost(cost_so_far(cut(with_killed_worker(), run.phases[2].start_s + LOST_AT_S + after_s)))
            assert len(told()) == 1
        assert feed.ending is None
        feed._take_cost(cost_so_far(run))
        feed.is_final = True
        assert feed.ending is not None
        assert told() == [feed.state.elapsed_s]
    finally:
        feed.close()


def test_each_incident_is_news_once_and_a_reason_once_a_minute() -> None:
    news = LossNews()
    timer = LossSoFar("idle_timer", 20.0, Finding("lost_closed_idle", "error", "a timer"))
    crash = LossSoFar("worker_crash", 20.0, Finding("lost_closed_idle", "error", "a worker crashed"))
    again = LossSoFar("worker_crash", 60.0, Finding("lost_closed_idle", "error", "another one crashed"))
    assert news.of([timer], 30.0) == [timer.finding]
    assert news.of([timer], 40.0) == []
    # The same losses with another reason.
    assert news.of([crash], 50.0) == [crash.finding]
    assert news.of([crash, again], 70.0) == []
    assert news.of([crash, again], 115.0) == [again.finding]
    assert news.of([crash, again], math.inf) == []
