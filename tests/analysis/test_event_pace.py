"""Who decided how long a comeback took: of runs that are made from simulated storms, so that the truth is known."""

from __future__ import annotations

import math
import time

import msgspec
import pytest
from synthetic_run import a_run
from test_storm_pace import stormed

from asyncli.analysis.event_pace import EventPace
from asyncli.analysis.losses.loss_findings import listen_queue
from asyncli.analysis.standstill import drops_meanwhile, longest_by_event, standstills, stood_still
from asyncli.analysis.storm_forecast import forecast
from asyncli.analysis.storm_pace import Pace, measured_pace
from asyncli.core.histogram import Histogram
from asyncli.core.storm import Laws
from asyncli.model import metrics
from asyncli.model.planned_events import reconnect_of
from asyncli.model.records import Deaths, EventCounts, Sample, TcpCounts
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


def with_a_standstill(run: Run, still_s: float, *, stopped: bool) -> Run:
    """The server stands still for so long (s) from the storm on: a signal has stopped it, or it has 21 wait in its listen queue. Until
    then and from then on it uses CPU time, and answers."""
    at_s = run.events[0].at_s
    samples = list(run.samples)
    used_s = 0.0
    for second in range(int(run.end_s) + 1):
        t_s = float(second)
        is_still = at_s <= t_s <= at_s + still_s
        used_s += 0.0 if is_still else 0.2
        values = {metrics.SERVER_CPU_S: used_s, metrics.SERVER_PROCESSES: 1.0, metrics.SERVER_STOPPED: float(is_still and stopped)}
        values[metrics.SERVER_SOCKETS_WAITING] = 21.0 if is_still and not stopped else 0.0
        samples.append(Sample(t_s + 0.001, values))
    for t_s, tick in run.ticks:
        tick.answered = 0 if at_s < t_s <= at_s + still_s + 1 else 10
    run.samples = sorted(samples, key=lambda sample: sample.t_s)
    return msgspec.structs.replace(run)


def short_queue() -> Run:
    """A storm of which the listen queue decides how long it lasts: for 14 s or more."""
    return stormed(Laws(200, 200, 32), "now")


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(("part", "by"), [(0.8, "standstill"), (0.3, None), (0.0, "queue")])
def test_a_full_queue_of_a_server_that_stood_still_is_no_short_one(stopped: bool, part: float, by: str | None) -> None:
    run = short_queue()
    all_s = counts_in(run).back_ms.greatest / 1e3
    run = with_a_standstill(run, part * all_s, stopped=stopped) if part else run
    assert pace_of(run).by == by
    pace = measured_pace(run, 32)
    assert isinstance(pace, Pace)
    assert pace.by_event == (None if part else 1)
    still_s = [slow.stood_still_s for slow in pace.slow_comebacks]
    assert still_s == ([pytest.approx(part * all_s, abs=1.5)] if part else [])


def test_a_server_that_uses_cpu_or_answers_does_not_stand_still() -> None:
    run = with_a_standstill(short_queue(), 12.0, stopped=False)
    assert standstills(run) != []
    for _, tick in run.ticks:
        tick.answered = 1
    assert standstills(msgspec.structs.replace(run)) == []
    run = with_a_standstill(short_queue(), 12.0, stopped=False)
    for sample in run.samples:
        sample.values[metrics.SERVER_CPU_S] = sample.t_s
    assert standstills(run) == []


def left_by_clients(run: Run, *, after_s: float, waiting: float = 9.0) -> tuple[Run, Sample, float]:
    """Of a standstill so long after its beginning some have left the listen queue, as they gave up: the run, that reading, and when the
    event was."""
    at_s = run.events[0].at_s
    read = [sample for sample in run.samples if metrics.SERVER_CPU_S in sample.values]
    for sample in read:
        sample.values[metrics.SERVER_SOCKETS] = 0.0
    [left] = [sample for sample in read if at_s + after_s - 0.5 < sample.t_s < at_s + after_s + 0.5]
    left.values[metrics.SERVER_SOCKETS_WAITING] = waiting
    return msgspec.structs.replace(run), left, at_s


@pytest.mark.parametrize("waiting", [9.0, 0.0])
def test_clients_that_give_up_do_not_end_a_standstill(waiting: float) -> None:
    whole = standstills(with_a_standstill(short_queue(), 12.0, stopped=False))
    run, _, _ = left_by_clients(with_a_standstill(short_queue(), 12.0, stopped=False), after_s=5.0, waiting=waiting)
    assert standstills(run) == whole
    [span] = whole
    assert span.to_s - span.from_s == pytest.approx(12.0, abs=1.5)
    [told] = stood_still(run)
    assert told.fields["to_s"] - told.fields["from_s"] == pytest.approx(12.0, abs=1.5)


@pytest.mark.parametrize("why", ["accepted", "received", "closed", "used CPU", "nobody waited"])
def test_a_standstill_ends_where_somebody_was_served_or_nobody_came(why: str) -> None:
    run, left, at_s = left_by_clients(with_a_standstill(short_queue(), 12.0, stopped=False), after_s=5.0)
    for t_s, tick in run.ticks:
        if not left.t_s - 1 < t_s <= left.t_s:
            continue
        if why == "received":
            tick.bytes_received = 9
        elif why == "closed":
            tick.events = {1: EventCounts(phantoms=3, in_vain=1)}
    for sample in run.samples:
        if metrics.SERVER_CPU_S not in sample.values or sample.t_s < left.t_s:
            continue
        if why == "accepted":
            sample.values[metrics.SERVER_SOCKETS] = 5.0
        elif why == "used CPU":
            sample.values[metrics.SERVER_CPU_S] += 0.1
        elif why == "nobody waited" and sample.t_s < left.t_s + 2:
            sample.values[metrics.SERVER_SOCKETS_WAITING] = 0.0
    spans = standstills(msgspec.structs.replace(run))
    assert len(spans) == 2
    assert spans[0].to_s < left.t_s <= spans[1].from_s
    assert spans[0].from_s == pytest.approx(at_s, abs=1.5)


@pytest.mark.parametrize(("later_s", "numbers"), [(-0.3, [1]), (0.02, [1]), (0.4, [1]), (0.8, [])])
def test_a_reading_that_was_asked_for_just_before_an_event_shows_what_it_did(later_s: float, numbers: list[int]) -> None:
    """It takes a moment, on a busy host up to half a second: before a command of the plan everything is read."""
    run = with_a_standstill(short_queue(), 12.0, stopped=True)
    [span] = standstills(run)
    run.events[0] = msgspec.structs.replace(run.events[0], at_s=span.from_s + later_s)
    run = msgspec.structs.replace(run)
    [told] = stood_still(run)
    assert [event["number"] for event in told.fields["events"]] == numbers
    # What the reading shows was not so before the event.
    at_least_s = span.lasted_s - max(0.0, later_s)
    assert {number: lasted.at_least_s for number, lasted in longest_by_event(run).items()} == dict.fromkeys(numbers, pytest.approx(at_least_s))


@pytest.mark.parametrize(("answered_s", "most_s"), [(None, 6.5), (0.6, 5.6)])
def test_a_standstill_lasted_to_the_next_answer_or_reading_at_most(answered_s: float | None, most_s: float) -> None:
    run = with_a_standstill(short_queue(), 5.0, stopped=True)
    [span] = standstills(run)
    run.events[0] = msgspec.structs.replace(run.events[0], at_s=span.from_s - 0.5)
    for t_s, tick in run.ticks:
        if answered_s is not None and t_s - 1 < span.to_s + answered_s <= t_s:
            late_s = span.to_s + answered_s - t_s + tick.second
            tick.answered_s = (late_s, late_s)
    lasted = longest_by_event(msgspec.structs.replace(run))[1]
    # The readings are a second apart.
    assert lasted == (pytest.approx(span.lasted_s), pytest.approx(span.lasted_s + 0.5 + most_s - 5.0))


def test_a_stop_that_one_reading_shows_lasted_for_two_seconds_at_most() -> None:
    run = with_a_standstill(short_queue(), 0.9, stopped=True)
    assert standstills(run) == []
    lasted = longest_by_event(run)[1]
    assert (lasted.at_least_s, 1.0 < lasted.at_most_s <= 2.5) == (0.0, True)


def test_a_standstill_of_which_no_end_is_known_has_no_bound() -> None:
    run = with_a_standstill(short_queue(), 5.0, stopped=True)
    [span] = standstills(run)
    run.samples = [sample for sample in run.samples if sample.t_s <= span.to_s]
    run.phases = [phase for phase in run.phases if phase.name != "drain"]
    assert longest_by_event(msgspec.structs.replace(run))[1].at_most_s == math.inf


def test_two_stops_by_a_signal_are_two_standstills() -> None:
    run, left, _ = left_by_clients(with_a_standstill(short_queue(), 12.0, stopped=True), after_s=5.0)
    left.values[metrics.SERVER_STOPPED] = 0.0
    assert [span.stopped for span in standstills(run)] == [True, True]


def test_a_queue_from_which_nobody_was_taken_at_first_tells_nothing() -> None:
    run = short_queue()
    counts = counts_in(run)
    waited = Histogram()
    for value_ms, count in ((4_000, 300), (14_000, 300)):
        for _ in range(count):
            waited.add(value_ms)
    counts.back_ms = waited
    assert pace_of(run).by is None


def test_who_was_away_as_the_server_stood_still_is_told() -> None:
    run = with_a_standstill(short_queue(), 8.0, stopped=True)
    [told] = stood_still(run)
    assert (told.code, told.fields["why"], told.fields["waited"]) == ("no_answers", "stopped", 0)
    assert [event["number"] for event in told.fields["events"]] == [1]
    [left] = stood_still(with_a_standstill(short_queue(), 8.0, stopped=False))
    assert left.fields["why"] == "left_waiting"
    # What heartbeats show is told by theirs.
    for t_s, tick in run.ticks:
        if run.events[0].at_s < t_s < run.events[0].at_s + 4:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
    assert stood_still(msgspec.structs.replace(run)) == []


def test_drops_at_a_full_queue_are_those_of_a_server_that_stood_still() -> None:
    run = with_a_standstill(short_queue(), 8.0, stopped=True)
    run.environment["local"] = True
    at_s = run.events[0].at_s
    for sample in run.samples:
        dropped = max(0.0, min(10.0, sample.t_s - at_s))
        sample.values |= {metrics.SERVER_LISTENERS_DROPPED: dropped, f"{metrics.TCP}ListenOverflows": dropped}
    for t_s, tick in run.ticks:
        if at_s < t_s < at_s + 2:
            tick.tcp = TcpCounts(connects=9)
    assert drops_meanwhile(run) == pytest.approx(0.75, abs=0.15)
    [overflows] = listen_queue(run)
    assert (overflows.code, "backlog=" in overflows.remedy) == ("listen_overflows", False)
    for sample in run.samples:
        sample.values[metrics.SERVER_STOPPED] = 0.0
    for _, tick in run.ticks:
        tick.answered = 1
    run = msgspec.structs.replace(run)
    assert drops_meanwhile(run) == 0.0
    [overflows] = listen_queue(run)
    assert "backlog=" in overflows.remedy


def part_stopped(hold_s: float) -> Run:
    """A helper of an idle server is stopped all the while, and single heartbeats are answered in the second after theirs."""
    run = a_run(20, hold_s=hold_s)
    for place, (_, tick) in enumerate(run.ticks):
        tick.sent = tick.awaiting = int(place % 3 == 0)
        tick.answered = int(place % 3 == 1)
    for sample in run.samples:
        sample.values |= {metrics.SERVER_CPU_S: 0.0, metrics.SERVER_PROCESSES: 2.0, metrics.SERVER_STOPPED: 1.0}
    return run


@pytest.mark.measures
def test_standstills_are_found_in_time_in_proportion_to_the_run() -> None:
    took_s = []
    for hold_s in (5_400.0, 21_600.0):
        run = part_stopped(hold_s)
        began_s = time.process_time()
        assert standstills(run) == []
        took_s.append(time.process_time() - began_s)
    # A quadratic step would take sixteen times.
    assert took_s[1] < 9.0 * max(took_s[0], 0.05)
