"""Which pace a run shows, and what it forecasts: of runs that are made from simulated storms, so that the truth is known."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from synthetic_run import bare_run

from asyncli.analysis.standstill import Standstill
from asyncli.analysis.storm_forecast import FAILS_BELOW, forecast, least_jitter
from asyncli.analysis.storm_pace import Pace, UnexplainedStorm, Unmeasured, known_backlog, measured_pace, syns_each_second
from asyncli.core.histogram import Histogram
from asyncli.core.storm import Laws, Storm, storm
from asyncli.model.plan import Plan
from asyncli.model.planned_events import reconnect_of
from asyncli.model.records import Check, EventCounts, Phase, RunEvent, Sample, Tick
from asyncli.model.run import Run
from asyncli.report import document as doc
from asyncli.report import storm_report
from asyncli.report.storm_report import Answer, doubts, storm_document

SEED, COUNT = 5, 600
POLICIES = ("now", "jitter:2s", "jitter:6s", "backoff:1s..60s")


def histogram(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


def counts_of(run: Storm, waited_us: float) -> EventCounts:
    return EventCounts(
        chosen=run.connections,
        ended=run.connections,
        attempts=len(run.attempts_s),
        phantoms=run.phantoms,
        back_ms=histogram([at_s * 1e3 for at_s in run.back_s]),
        connect_us=histogram([waited_us] * run.connections),
        answer_us=histogram([100.0] * run.connections),
        lateness_us=histogram([200.0] * run.connections),
    )


def stormed(laws: Laws, policy: str, *, ramp_per_s: float = 100, waited: bool = True) -> Run:
    """A run with a ramp at this pace, which the server keeps up with, and a storm by these laws 5 s into the hold."""
    # As asyncli ends connections, one after the other.
    ended = msgspec.structs.replace(laws, end_each_s=25e-6)
    simulated = storm(ended, reconnect_of(policy), SEED, 1, range(COUNT))
    plan = Plan(
        urls=("http://127.0.0.1:8080/",), connections=COUNT, seed=SEED, batch=1, interval_s=1 / ramp_per_s, events=("5s storm",), reconnect=policy,
    )  # fmt: skip
    ramp_s = math.ceil(COUNT / ramp_per_s)
    hold_s, at_s = 1.0 + ramp_s, 1.0 + ramp_s + 5.0
    end_s = at_s + 2.0 + math.ceil(simulated.back_s[-1])
    ticks = []
    for second in range(1, math.ceil(end_s)):
        tick = Tick(second=second, workers=1, held=min(COUNT, round(ramp_per_s * second)), ramp_lateness_us=histogram([900.0]))
        tick.connect_us, tick.latency_us = histogram([60.0]), histogram([400.0])
        if 1.0 + second == at_s + 1:
            tick.events = {1: counts_of(simulated, 2_000_000.0 if waited else 60.0)}
        ticks.append((1.0 + second, tick))
    samples = [
        Sample(0.5, {"server.listeners_dropped": 0.0, "server.listeners_backlog": float(laws.backlog)}),
        Sample(at_s, {"server.listeners_dropped": 0.0}),
        Sample(end_s, {"server.listeners_dropped": float(simulated.dropped)}),
    ]
    phases = [Phase("baseline", 0.0, 1.0), Phase("ramp", 1.0, hold_s), Phase("hold", hold_s, end_s)]
    run = bare_run(ticks, phases, samples, {"workers": 1, "cpus": 2, "kernel": "6.18.1"}, plan=plan)
    return msgspec.structs.replace(run, events=[RunEvent("storm", at_s, end_s, "storm", {"number": 1})])


def shown(run: Run) -> Pace:
    pace = measured_pace(run, known_backlog(run) or 0)
    assert isinstance(pace, Pace), pace
    return pace


@pytest.mark.parametrize("backlog", [32, 4_096])
@pytest.mark.parametrize("policy", ["now", "jitter:1s", "backoff:1s..60s"])
@pytest.mark.parametrize("per_s", [150, 200])
def test_a_storm_tells_its_pace_and_so_all_others(per_s: float, policy: str, backlog: int) -> None:
    laws = Laws(per_s, per_s, backlog)
    pace = shown(stormed(laws, policy))
    assert (pace.by_event, pace.policy, pace.is_least, pace.backlog) == (1, policy, False, backlog)
    assert pace.per_s == pytest.approx(per_s, rel=0.1)
    for other_policy in POLICIES:
        truth = storm(laws, reconnect_of(other_policy), SEED, 1, range(COUNT))
        predicted = forecast(pace, reconnect_of(other_policy), SEED, COUNT)
        if (other_policy, backlog) != ("now", 32):
            # There the last ones wait for several time limits of 10 s, or for one more.
            assert predicted.back.p99_s == pytest.approx(truth.after_s(0.99), rel=0.15)
        assert (predicted.earliest.p99_s or 0) <= (truth.after_s(0.99) or 0) <= (predicted.latest.p99_s or math.inf)
        assert not predicted.is_at_most


def test_a_storm_that_was_kept_up_with_tells_the_least_pace() -> None:
    laws = Laws(5_000, 5_000, 511)
    pace = shown(stormed(laws, "jitter:6s", waited=False))
    assert pace.is_least
    assert 80 < pace.per_s < 200
    predicted = forecast(pace, reconnect_of("now"), SEED, COUNT)
    truth_s = storm(laws, reconnect_of("now"), SEED, 1, range(COUNT)).after_s(0.99) or 0
    assert predicted.is_at_most
    assert (predicted.earliest.p99_s or 0) <= truth_s <= (predicted.latest.p99_s or 0)
    # The policy alone decides here, which needs no pace.
    same = forecast(pace, reconnect_of("jitter:6s"), SEED, COUNT)
    assert (same.is_at_most, same.bound) == (False, "policy")


def test_a_ramp_alone_tells_the_least_pace() -> None:
    run = stormed(Laws(500, 500, 32), "now")
    alone = msgspec.structs.replace(run, events=[], ticks=run.ticks[:8], plan=msgspec.structs.replace(run.plan, events=()))
    pace = shown(alone)
    assert (pace.by_event, pace.is_least, pace.per_s) == (None, True, pytest.approx(100, rel=0.1))


def test_a_server_that_was_faster_later_was_not_the_bound() -> None:
    """A storm of which some other thing was the bound is not believed against a ramp of ten times its pace."""
    pace = shown(stormed(Laws(150, 150, 4_096), "now", ramp_per_s=600))
    assert (pace.by_event, pace.is_least, pace.per_s) == (None, True, pytest.approx(600, rel=0.1))


def seen_back(run: Run, back_ms: list[float]) -> Run:
    """The same run with these comebacks and no wait of a client for the server; its queue was never full."""
    for _, tick in run.ticks:
        for counts in tick.events.values():
            counts.back_ms = histogram(back_ms)
    return run


@pytest.mark.parametrize(("policy", "begins_ms"), [("now", 0.0), ("fixed:3s", 3_000.0)])
def test_a_short_storm_that_was_kept_up_with_is_the_least_pace(policy: str, begins_ms: float) -> None:
    """600 are back in steps within 60 ms, as an event loop answers them: 10,000 a second, of which the ramp shows 100."""
    back_ms = [begins_ms + 12.0 * math.ceil((number + 1) / 120) for number in range(COUNT)]
    run = seen_back(stormed(Laws(1e6, 1e6, 100), policy, waited=False), back_ms)
    pace = shown(run)
    assert (pace.by_event, pace.is_least, pace.unexplained) == (1, True, ())
    assert pace.per_s == pytest.approx(10_000, rel=0.1)
    # The bound holds for its own storm, and is near it.
    of_itself = forecast(pace, reconnect_of(policy), SEED, COUNT)
    for seen_s, bound_s in ((back_ms[COUNT // 2] / 1e3, of_itself.latest.p50_s), (back_ms[-1] / 1e3, of_itself.latest.all_s)):
        assert bound_s is not None
        assert seen_s <= bound_s < 2 * seen_s + 0.1
    assert of_itself.met_full == 0


def test_a_storm_that_no_law_explains_is_told() -> None:
    """Half are back at once, half after a minute: the pace is the ramp's, and the storm is named."""
    run = seen_back(stormed(Laws(200, 200, 4_096), "now"), [10.0] * (COUNT // 2) + [60_000.0] * (COUNT // 2))
    pace = shown(run)
    assert (pace.by_event, pace.is_least) == (None, True)
    [unexplained] = pace.unexplained
    assert (unexplained.event, unexplained.all_s) == (1, pytest.approx(60, rel=0.05))


def test_counts_of_a_bound_are_bounds() -> None:
    pace = shown(stormed(Laws(1e6, 1e6, 32), "jitter:6s", waited=False))
    bound = forecast(pace, reconnect_of("now"), SEED, COUNT)
    assert (bound.is_at_most, bound.met_full > 0, bound.counts_at_most) == (True, True, True)
    measured = forecast(shown(stormed(Laws(200, 200, 32), "now")), reconnect_of("now"), SEED, COUNT)
    assert (measured.met_full > 0, measured.counts_at_most) == (True, False)


def test_a_run_without_answers_is_refused() -> None:
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=10)
    assert isinstance(measured_pace(bare_run(plan=plan), 1), Unmeasured)
    ramp = [Phase("ramp", 0.0, 1.0)]
    assert isinstance(measured_pace(bare_run([(1.0, Tick(second=1))], ramp, plan=plan), 1), Unmeasured)


def test_at_the_advised_jitter_few_fail() -> None:
    laws = Laws(200, 200, 32)
    pace = shown(stormed(laws, "backoff:1s..60s"))
    jitter = least_jitter(pace, SEED, COUNT)
    assert jitter.least_s is not None
    assert not jitter.is_at_most
    # 600 at 200 a second take 3 s, of which the queue takes 33.
    assert (COUNT - 33) / 200 < jitter.least_s < 4.5
    for seed in range(5):
        run = storm(laws, reconnect_of(f"jitter:{jitter.least_s}s"), seed, 1, range(COUNT))
        assert run.unsuccessful + run.met_full < FAILS_BELOW * len(run.attempts_s)


def test_what_decides_how_long_it_lasts() -> None:
    pace = shown(stormed(Laws(200, 200, 32), "backoff:1s..60s"))
    bounds = {policy: forecast(pace, reconnect_of(policy), SEED, COUNT).bound for policy in ("now", "jitter:1m")}
    assert bounds == {"now": "queue", "jitter:1m": "policy"}
    assert forecast(shown(stormed(Laws(200, 200, 4_096), "now")), reconnect_of("now"), SEED, COUNT).bound == "server"


def test_a_forecast_of_more_connections_takes_longer() -> None:
    pace = shown(stormed(Laws(200, 200, 4_096), "now"))
    predicted = forecast(pace, reconnect_of("now"), SEED, 3 * COUNT)
    assert predicted.connections == 3 * COUNT
    assert predicted.back.all_s == pytest.approx(3 * COUNT / 200, rel=0.1)
    assert predicted.curve[-1] == 3 * COUNT
    assert list(predicted.curve) == sorted(predicted.curve)


@pytest.mark.parametrize(
    ("environment", "count"),
    [({"kernel": "6.18.44-cloud"}, 5), ({"kernel": "6.1.0"}, 1), ({"kernel": "5.15"}, 1), ({}, 5), ({"sysctls": {"net.ipv4.tcp_syn_linear_timeouts": "0"}}, 1)],
)
def test_the_clients_kernel_says_when_syns_are_sent_again(environment: dict[str, Any], count: int) -> None:
    assert syns_each_second(environment) == count


def test_the_backlog_is_the_kernel_s_or_that_of_the_configuration() -> None:
    plan = Plan(urls=("http://127.0.0.1:8080/",))
    checked = [Check("nginx_backlog", "queue", "ok", have=511)]
    assert known_backlog(bare_run(plan=plan)) is None
    assert known_backlog(bare_run(plan=plan, checks=checked)) == 511
    sampled = [Sample(1.0, {"server.listeners_backlog": 32.0})]
    assert known_backlog(bare_run(samples=sampled, plan=plan, checks=checked)) == 32


def slow_to_come_back(away: int) -> Run:
    """A storm after which so many were not back, and as many connects had no answer, beside a ramp that the server kept up with."""
    run = stormed(Laws(accept_per_s=2_000.0, answer_per_s=2_000.0, backlog=4_096), "now", waited=False)
    counts = next(tick.events[1] for _, tick in run.ticks if tick.events)
    counts.back_ms = histogram([50.0] * (COUNT - away))
    counts.phantoms = away
    return run


def test_a_run_whose_own_storm_was_not_kept_up_with_does_not_say_so() -> None:
    run = slow_to_come_back(120)
    pace = shown(run)
    [slow] = pace.slow_comebacks
    assert (pace.by_event, pace.is_least) == (None, True)
    assert (slow.event, slow.ended, slow.not_back, slow.failed, slow.unanswered) == (1, COUNT, 120, 0, 120)
    predicted = forecast(pace, reconnect_of("now"), SEED, COUNT)
    # The ramp's pace bounds nothing after that.
    assert (predicted.only_at_pace, predicted.is_at_most, predicted.counts_at_most) == (True, False, False)
    assert (predicted.failed, predicted.met_full, predicted.latest.p99_s) == (None, None, None)
    known = Answer(COUNT, pace, (predicted,), least_jitter(pace, SEED, COUNT))
    assert not known.least_jitter.is_at_most
    words = [doc.plain(block.words) for block in storm_document(known, run, "run.db").sections[0].blocks if isinstance(block, doc.Paragraph)]
    assert ("at most" in " ".join(words), "that pace" in " ".join(words)) == (False, True)
    said = doubts(known, run)[0]
    assert ("120" in said, "kept up" in said, "soak" in said) == (True, False, False)
    kept_up = slow_to_come_back(0)
    assert shown(kept_up).slow_comebacks == ()
    assert "kept up" in doubts(msgspec.structs.replace(known, pace=shown(kept_up)), kept_up)[0]


def said_of(run: Run) -> str:
    pace = shown(run)
    return doubts(Answer(COUNT, pace, (forecast(pace, reconnect_of("now"), SEED, COUNT),), least_jitter(pace, SEED, COUNT)), run)[0]


@pytest.mark.parametrize("away", [0, 120])
@pytest.mark.parametrize(("failures", "errors"), [({"refused": 469}, {}), ({}, {503: 469})])
def test_refused_connects_and_errors_are_no_slow_server(away: int, failures: dict[str, int], errors: dict[int, int]) -> None:
    run = slow_to_come_back(away)
    counts = next(tick.events[1] for _, tick in run.ticks if tick.events)
    counts.phantoms = 0
    counts.failures, counts.error_answers = failures, errors
    if not errors and not away:
        # Else its storm shows the pace.
        run.plan = msgspec.structs.replace(run.plan, events=("5s run restart",))
    said = said_of(run)
    assert ("469" in said, "refused" in said, "were errors" in said) == (True, bool(failures), bool(errors))
    assert ("keep up" in said, "not known" in said, "longer hold" in said) == (False, True, away > 0)
    # Those who waited for an answer in vain tell of a slow one.
    slow = said_of(slow_to_come_back(120))
    assert ("keep up" in slow, "longer hold" in slow) == (True, True)


@pytest.mark.parametrize(("scheme", "failed"), [("ws", 2), ("http", 11)])
def test_handshakes_that_an_error_refused_count_once(scheme: str, failed: int) -> None:
    run = slow_to_come_back(120)
    run.plan = msgspec.structs.replace(run.plan, urls=(f"{scheme}://127.0.0.1:8080/",))
    counts = next(tick.events[1] for _, tick in run.ticks if tick.events)
    counts.failures, counts.error_answers = {"reset": 2, "handshake_refused": 9}, {503: 9}
    [slow] = shown(run).slow_comebacks
    assert (slow.failed, slow.errors, slow.refused) == (failed, 9, 0)


def test_a_server_that_stood_still_outside_of_storms_did_not_keep_up_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = slow_to_come_back(0)
    assert "all the" in said_of(run)
    monkeypatch.setattr(storm_report, "standstills", lambda _: [Standstill(2.0, 3.0, True), Standstill(40.0, 45.0, True)])
    said = said_of(run)
    assert ("all the" in said, "stood still" in said, "5 s" in said, "40 s" in said) == (False, True, True, True)


def test_no_server_brings_clients_back_before_their_turn() -> None:
    """However badly the laws explain the run: 99 % of a jitter of 10 s were said to be back after 33 ms or more."""
    run = stormed(Laws(accept_per_s=2_000.0, answer_per_s=2_000.0, backlog=4_096), "now", waited=False)
    pace = msgspec.structs.replace(shown(run), error=1.0, slow_comebacks=(), unexplained=(UnexplainedStorm(2, 23.1, 0.06),))
    predicted = forecast(pace, reconnect_of("jitter:10s"), SEED, COUNT)
    assert predicted.earliest.p99_s is not None
    assert predicted.latest.p99_s is not None
    assert 8.5 < predicted.earliest.p99_s < 9.5
    assert predicted.latest.p99_s > 15.0
    known = Answer(COUNT, pace, (predicted,), least_jitter(pace, SEED, COUNT))
    words = [doc.plain(block.words) for block in storm_document(known, run, "run.db").sections[0].blocks if isinstance(block, doc.Paragraph)]
    # And why that is wide.
    assert any("between" in said and "event 2" in said for said in words)
