"""Who decided how long a comeback took: of runs that are made from simulated storms, so that the truth is known."""

from __future__ import annotations

import pytest
from test_storm_pace import stormed

from asyncli.analysis.event_pace import EventPace
from asyncli.analysis.storm_forecast import forecast
from asyncli.analysis.storm_pace import Pace, measured_pace
from asyncli.core.storm import Laws
from asyncli.model import metrics
from asyncli.model.planned_events import reconnect_of
from asyncli.model.records import EventCounts, Sample
from asyncli.model.run import Run
from asyncli.report.summary import summarise

SLOW = Laws(200, 200, 4_096)


def pace_of(run: Run) -> EventPace:
    events = summarise(run).events
    assert events
    assert isinstance(events[0].pace, EventPace)
    return events[0].pace


def counts_in(run: Run) -> EventCounts:
    [counts] = [tick.events[1] for _, tick in run.ticks if 1 in tick.events]
    return counts


def with_cpu(run: Run, tester: float, server: float, others: float) -> Run:
    """Of each second so much CPU time; the host has two CPUs."""
    for t_s, tick in run.ticks:
        tick.cpu_user_s = tester * t_s
    run.environment["local"] = True
    samples = list(run.samples)
    for second in range(int(run.end_s) + 1):
        busy_s = (tester + server + others) * second
        samples.append(Sample(float(second), {metrics.SERVER_CPU_S: server * second, metrics.HOST_CPU_BUSY_S: busy_s}))
    run.samples = sorted(samples, key=lambda sample: sample.t_s)
    return run


@pytest.mark.parametrize(
    ("laws", "policy", "by"),
    [
        (SLOW, "now", "server"),
        (SLOW, "jitter:1s", "server"),
        (SLOW, "jitter:6s", "policy"),
        (SLOW, "backoff:1s..60s", "server"),
        (Laws(5_000, 5_000, 4_096), "jitter:6s", "policy"),
        (Laws(200, 200, 32), "now", "queue"),
    ],
)
def test_who_decides_is_as_the_forecast_of_that_storm_has_it(laws: Laws, policy: str, by: str) -> None:
    run = stormed(laws, policy, waited=laws.accept_per_s < 1_000)
    assert pace_of(run).by == by
    pace = measured_pace(run, laws.backlog)
    assert isinstance(pace, Pace)
    assert forecast(pace, reconnect_of(policy), run.plan.seed, run.plan.connections).bound == by


def test_where_answers_were_errors_nothing_tells_who_decided() -> None:
    run = stormed(SLOW, "now", waited=True)
    counts_in(run).error_answers = {503: 3}
    assert pace_of(run).by is None
    pace = measured_pace(run, SLOW.backlog)
    assert isinstance(pace, Pace)
    assert pace.by_event is None
    assert [(slow.event, slow.errors) for slow in pace.slow_comebacks] == [(1, 3)]


@pytest.mark.parametrize(
    ("tester", "server", "others", "by"),
    [(0.95, 0.3, 0.0, "asyncli"), (0.5, 0.3, 1.2, "host"), (0.1, 0.1, 1.8, "server"), (0.3, 0.9, 0.0, "server")],
)
def test_busy_cpus_decide_where_asyncli_or_the_server_needs_them(tester: float, server: float, others: float, by: str) -> None:
    run = with_cpu(stormed(SLOW, "now"), tester, server, others)
    pace = pace_of(run)
    assert pace.by == by
    # Until the hold is over, in seconds.
    assert pace.generator_cpu_s == pytest.approx(tester * (run.stop_s - run.events[0].at_s), abs=2 * tester)
    if by == "host":
        assert pace.others == pytest.approx(others / 2.0)
    else:
        assert pace.others == 0.0


def test_who_is_late_decides_it() -> None:
    assert pace_of(stormed(SLOW, "now")).by == "server"
    run = stormed(SLOW, "now")
    counts_in(run).lateness_us.add(2_000_000)
    assert pace_of(run).by == "asyncli"


def test_nothing_tells_where_few_were_back_or_tried_again() -> None:
    run = stormed(SLOW, "now")
    counts_in(run).failures["refused"] = 30
    assert pace_of(run).by is None
    run = stormed(SLOW, "now")
    counts_in(run).ended += 100
    assert pace_of(run).by is None
