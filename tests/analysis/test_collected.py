"""What a connection costs in a heap that is collected, by pages of runtimes whose truth is known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from collected_runs import FIXED, LEAST_GOAL, LIVE, STACKS, ask_for_collections, asked_in_rests, of_go, soak
from synthetic_run import SERVER, a_run, raised, without

from asyncli.analysis.compare import compare
from asyncli.analysis.cost import costs, known_costs
from asyncli.analysis.drift import drifts
from asyncli.analysis.forecast import forecast
from asyncli.analysis.heap_cost import HeapCosts, why_no_heap
from asyncli.analysis.measured import measure
from asyncli.analysis.sizing import size
from asyncli.analysis.totals import fold
from asyncli.app.results import Results
from asyncli.findings.collected import live_unknown
from asyncli.findings.cost import heap_collected
from asyncli.model import metrics
from asyncli.model.records import Deaths
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.format import cost_rows
from asyncli.report.summary import summarise


def heap_of(run: Run) -> HeapCosts:
    return costs(run).heap


@pytest.mark.parametrize("says_live", [False, True])
def test_a_heap_is_known_at_its_collections(says_live: bool) -> None:
    heap = heap_of(of_go(soak(), says_live=says_live))
    assert heap.live is not None
    assert heap.stacks is not None
    assert heap.at_goal is not None
    low, high = heap.live.ci95
    assert low <= LIVE <= high
    assert heap.live.half_width < 0.06 * LIVE
    assert heap.live.collections >= 5
    assert not heap.live.forced
    assert heap.stacks.bytes_per_connection == pytest.approx(STACKS, rel=0.01)
    # Twice what is alive; the stacks are in the goal, and beside it; and the runtime's own.
    assert heap.at_goal.ci95[0] < 2 * LIVE + 2 * STACKS + 500 < heap.at_goal.ci95[1]
    assert heap.findings == ()


@pytest.mark.parametrize("says_live", [False, True])
def test_buffers_are_alive_and_not_in_the_greatest_heap(says_live: bool) -> None:
    """A connection holds 64 kB outside the heap, whose limit (-Xmx) does not bound them."""
    run = of_go(soak(), says_live=says_live)
    for sample in run.samples:
        sample.values |= {metrics.RUNTIME_OUTSIDE_BYTES: 2e6 + 65_536 * (run.held.at(sample.t_s) or 0.0), metrics.RUNTIME_LIMIT_BYTES: 100e6}
    known = costs(run)
    heap = known.heap
    assert heap.live is not None
    assert heap.in_heap is not None
    assert heap.live.ci95[0] <= LIVE + 65_536 <= heap.live.ci95[1]
    assert heap.live.outside == pytest.approx(65_536, rel=0.01)
    assert heap.in_heap.bytes_per_connection == pytest.approx(LIVE, rel=0.05)
    [of_heap] = [ceiling for ceiling in forecast(run, known)[0].ceilings if ceiling.name == "server_heap"]
    assert of_heap.connections == pytest.approx((100e6 - FIXED) / LIVE, rel=0.06)


def test_a_page_without_what_it_said_of_buffers_is_left_out() -> None:
    run = of_go(soak())
    for sample in run.samples[::2]:
        sample.values[metrics.RUNTIME_OUTSIDE_BYTES] = 2e6 + 65_536 * (run.held.at(sample.t_s) or 0.0)
    heap = heap_of(run)
    assert heap.live is not None
    assert heap.live.ci95[0] <= LIVE + 65_536 <= heap.live.ci95[1]
    assert heap.live.half_width < 0.1 * (LIVE + 65_536)


def test_the_resident_slope_is_neither() -> None:
    """The reason for it all: the heap between its collections shows nothing that a connection costs."""
    run = of_go(soak())
    for sample in run.samples:
        sample.values["server.pss_bytes"] = (
            20e6 + sample.values[metrics.RUNTIME_HEAP_BYTES] + sample.values[metrics.RUNTIME_STACKS_BYTES]
        )
    known = costs(run)
    assert known.server_user is not None
    assert known.heap.live is not None
    assert known.heap.live.half_width < known.server_user.half_width


def test_the_level_at_its_goal_has_the_program_too() -> None:
    """It is compared with what a host has: 20 MB of program and libraries are in it, or it is told to be the runtime's alone."""
    run = of_go(soak())
    alone = heap_of(of_go(without(soak(), "server."))).at_goal
    assert alone is not None
    assert not alone.is_whole
    known = costs(planned(run)[0])
    whole = known.heap.at_goal
    assert whole is not None
    assert whole.is_whole
    # What the runtime has of its own is in its own count, and in this server not in its memory.
    beside = 20e6 - 3e6
    assert whole.fixed_bytes - alone.fixed_bytes == pytest.approx(beside, rel=0.01)
    host = known.with_heap_at_goal()
    assert host.server_user is not None
    assert host.server_user.fixed_bytes == whole.fixed_bytes
    assert host.host_total is not None
    assert known.host_total is not None
    assert known.server_user is not None
    moved = host.host_total.fixed_bytes - known.host_total.fixed_bytes
    assert moved == pytest.approx(whole.fixed_bytes - known.server_user.fixed_bytes)
    sized = size(known, forecast(run, known)[0], connections=100_000, measured=2_000, host_bytes=None)
    assert sized.parts[0].fixed_bytes == whole.fixed_bytes


def test_too_few_collections_are_no_line() -> None:
    """A heap whose goal is far off is collected once or never while connections come."""
    heap = heap_of(of_go(soak(), least_goal=1e9))
    assert (heap.live, heap.at_goal) == (None, None)
    assert heap.stacks is not None
    [unknown] = heap.findings
    assert (unknown.code, unknown.fields["collections"]) == ("live_unknown", 0)


def test_the_least_goal_of_a_heap_is_on_no_line() -> None:
    """Go's heap fills to 4 MB however little is alive: the slope along that is the stacks' alone, or as much as a few goals beyond it."""
    few = heap_of(of_go(a_run(250, batch=1, interval_s=0.05), garbage_per_s=8e6))
    assert few.live is not None
    assert few.at_goal is None
    [unknown] = few.findings
    assert unknown.code == "goal_unknown"
    assert why_no_heap(soak(), few, "at_goal") == unknown.evidence
    assert unknown.fields["at_least_goal"] >= 3
    enough = unknown.fields["connections"]
    beyond_least_goal = (LEAST_GOAL / 2 - FIXED) / LIVE
    assert 5 * beyond_least_goal < enough < 9 * beyond_least_goal
    assert f"{enough:,}" in unknown.remedy
    filled = heap_of(of_go(a_run(enough, batch=1, interval_s=0.03))).at_goal
    assert filled is not None
    assert filled.ci95[0] < 2 * LIVE + 2 * STACKS + 500 < filled.ci95[1]


def test_three_collections_are_a_line_of_wide_intervals() -> None:
    """Beside the page before the first connect. How wide is Student's to say."""
    known = [heap_of(of_go(soak(), least_goal=6e6, garbage_per_s=0.1e6, seed=seed)).live for seed in range(40)]
    of_three = [live for live in known if live is not None and live.collections == 3]
    assert len(of_three) == 40
    held = sum(live.ci95[0] <= LIVE <= live.ci95[1] for live in of_three)
    assert held >= 0.9 * 40


def test_asked_collections_need_rests_in_the_ramp() -> None:
    """Those before the ramp and at the hold's end are two points."""
    run = of_go(soak())
    hold = run.phase("hold")
    assert hold is not None
    assert hold.end_s is not None
    for place, live in ((run.first_connect_s - 1, 1e6), (hold.end_s - 1, 9e6)):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: live, metrics.RUNTIME_FORCED_S: 0.1}
    heap = heap_of(run)
    assert heap.live is None
    asked, unknown = heap.findings
    assert asked.code == "collections_forced"
    assert unknown.code == "live_unknown"
    assert (unknown.fields["collections"], unknown.fields["rising"], unknown.fields["most_bytes"]) == (2, 0, None)
    assert unknown.remedy.endswith("--plateaus 5")


@pytest.mark.parametrize("leak_per_s", [0.0, 100e3])
def test_a_leak_by_the_clock_is_within_the_interval_of_what_is_alive(leak_per_s: float) -> None:
    """In a ladder, time and connections rise together, and a short hold does not exclude growth: what the drain frees does."""
    per_connection = 3_000.0
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5, hold_s=3.0, noise=0.01)
    stop_s = run.stop_s
    rests = [run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]
    at_s = [run.first_connect_s - 1.5, *rests, stop_s - 1.0, stop_s + 4.0, stop_s + 5.0]
    ask_for_collections(run, at_s, per_connection, leak_per_s)
    known = analyse(run).costs
    low, high = known.heap.live.ci95
    assert low <= per_connection <= high
    [asked] = known.heap.findings
    assert (asked.fields["alive_bytes"] is not None) == (leak_per_s > 0) == bool(asked.remedy)
    if leak_per_s:
        not_freed = known.heap.live.not_freed
        assert not_freed > 2 * per_connection
        assert known.server_user.ci95[0] == pytest.approx(costs(run).server_user.ci95[0] - not_freed)
    else:
        assert high - low < 0.2 * per_connection
        assert known.heap.live.not_freed < 0.02 * per_connection


def left_by_connecting(run: Run, at_s: Sequence[float], bytes_: float) -> None:
    """What is in the first collection of a rest alone."""
    for place in at_s[1 : 1 + 3 * run.plan.plateaus : 3]:
        first = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        first.values[metrics.RUNTIME_FORCED_BYTES] += bytes_


@pytest.mark.parametrize("plateaus", [3, 5])
@pytest.mark.parametrize("leak_per_s", [0.0, 100e3])
def test_what_rises_when_no_connection_is_left_is_no_cost(leak_per_s: float, plateaus: int) -> None:
    per_connection = 3_000.0
    run = a_run(450, batch=1, interval_s=0.02, plateaus=plateaus, plateau_s=12.0, hold_s=600.0, residue_s=12.0, noise=0.01)
    at_s = asked_in_rests(run)
    ask_for_collections(run, at_s, per_connection, leak_per_s)
    left_by_connecting(run, at_s, 400e3)
    live = analyse(run).costs.heap.live
    low, high = live.ci95
    assert low <= per_connection <= high
    assert high - low < (0.3 if plateaus == 5 else 0.9) * per_connection
    seconds_a_connection = (at_s[3 * plateaus - 2] - at_s[2]) / (450 * (plateaus - 1) / plateaus)
    assert live.by_clock == pytest.approx(leak_per_s * seconds_a_connection, rel=0.05)


def test_what_rises_by_heartbeats_may_be_a_cost_or_a_leak() -> None:
    """It rises in the rests, and no more after the drain. Until then nobody knows whether connections hold it."""
    per_connection = 3_000.0
    for keeps in (False, True):
        run = a_run(450, batch=1, interval_s=0.02, plateaus=5, plateau_s=12.0, hold_s=20.0, residue_s=12.0, noise=0.01)
        at_s = asked_in_rests(run)
        ask_for_collections(run, at_s, per_connection, 0.0)
        for sample in run.samples:
            seconds = max(0.0, min(sample.t_s, run.stop_s) - run.first_connect_s)
            if metrics.RUNTIME_FORCED_BYTES in sample.values and (keeps or sample.t_s < run.stop_s):
                sample.values[metrics.RUNTIME_FORCED_BYTES] += 5e3 * seconds
        live = analyse(run).costs.heap.live
        seconds_a_connection = (at_s[13] - at_s[2]) / 360
        low, high = live.ci95
        # By the line it costs as much more as rises in the ramp; where the drain frees that, it is a cost.
        assert live.bytes_per_connection == pytest.approx(per_connection + 5e3 * seconds_a_connection, rel=0.05)
        assert high > live.bytes_per_connection
        assert (low < per_connection) == keeps


@pytest.mark.parametrize("stays", [True, False])
def test_what_came_at_once_in_the_ramp_and_stayed_may_be_no_cost(stays: bool) -> None:
    """5 MB at half of the ramp that belong to no connection: they are in the line of resident memory too. What the drain frees is a cost."""
    per_connection = 20_000.0
    resident = 50e3 + SERVER
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5, plateau_s=12.0, hold_s=20.0, residue_s=12.0, noise=0.01)
    at_s = asked_in_rests(run)
    ask_for_collections(run, at_s, per_connection, 0.0)
    middle_s = (run.first_connect_s + run.phase("hold").start_s) / 2
    for sample in run.samples:
        until_s = math.inf if stays else run.stop_s
        if middle_s <= sample.t_s < until_s:
            sample.values[metrics.SERVER_PSS_BYTES] += 5e6
            if metrics.RUNTIME_FORCED_BYTES in sample.values:
                sample.values[metrics.RUNTIME_FORCED_BYTES] += 5e6
    known = analyse(run).costs
    low, high = known.server_user.ci95
    assert resident + 5e6 / 450 <= high
    assert (low <= resident) == stays
    assert (known.heap.stayed > 4e6) == stays


def test_a_run_that_loses_most_connections_has_the_cost_of_its_ramp() -> None:
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5, plateau_s=12.0, hold_s=60.0, residue_s=12.0, noise=0.01)
    hold = run.phase("hold")
    assert hold is not None
    for t_s, tick in run.ticks:
        if hold.start_s + 10.0 < t_s < run.stop_s:
            tick.held = 20
    at_s = asked_in_rests(run)
    ask_for_collections(run, at_s, 3_000.0, 0.0)
    low, high = analyse(run).costs.heap.live.ci95
    assert low <= 3_000 <= high


def test_a_build_that_leaks_keeps_more_after_the_drain() -> None:
    measured = []
    for number, leak_per_s in enumerate((0.0, 0.0, 1e3)):
        run = a_run(450, batch=1, interval_s=0.02, plateaus=5, hold_s=60.0, noise=0.01)
        rests = [run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]
        at_s = [run.first_connect_s - 1.5, *rests, run.stop_s - 1.0, run.stop_s + 4.0, run.stop_s + 5.0]
        ask_for_collections(run, at_s, 3_000.0, leak_per_s)
        measured.append(measure("ABC"[number], "a.db", run))
    without_collections = measure("D", "d.db", a_run(450, batch=1, interval_s=0.02, plateaus=5))
    verdicts = []
    for other in (*measured[1:], without_collections):
        compared = compare([measured[0], other]).differences
        [alive] = [difference for difference in compared if difference.key == "residue.live"]
        verdicts.append((alive.verdict, "--collect" in alive.why))
    assert verdicts == [("no_difference", False), ("higher", False), ("cannot_say", True)]


@pytest.mark.parametrize("others", [0, 2_000])
def test_the_connections_of_other_clients_hide_what_is_alive(others: int) -> None:
    """They came in the ramp and were gone at its end: what rose with this run's connections fell with theirs."""
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5, hold_s=30.0)
    rests = [run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]
    asked = [run.first_connect_s - 1.5, *rests, run.stop_s - 1.0]
    for sample in run.samples:
        of_others = others * (run.first_connect_s < sample.t_s < rests[2])
        sample.values[metrics.SERVER_PROCESSES] = 1.0
        sample.values[metrics.SERVER_SOCKETS] = of_others + (run.held.at(sample.t_s) or 0.0)
    for number, place in enumerate(asked):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: 4e6 + 1e6 * (number in (1, 2, 3)), metrics.RUNTIME_FORCED_S: 0.01}
    [unknown] = [finding for finding in heap_of(run).findings if finding.code == "live_unknown"]
    assert unknown.fields["others"] == others
    assert ("other clients" in unknown.remedy) == (others > 0)


@pytest.mark.parametrize(("plateaus", "flag"), [(0, "--plateaus"), (5, "--plateau-rest")])
def test_a_remedy_is_not_what_the_run_did(plateaus: int, flag: str) -> None:
    assert flag in live_unknown(2, 0, "go", forced=True, plateaus=plateaus).remedy
    assert "--collect" in live_unknown(2, 0, "go", forced=False).remedy
    assert "--collect" not in live_unknown(2, 0, "go", forced=False, remedy_of_failed="do it").remedy


def test_the_first_cause_of_too_few_collections_is_told_alone() -> None:
    """A server that was replaced, then a collection that failed; plateaus are no remedy of either."""
    slow = live_unknown(2, 0, "go", forced=True, plateaus=4, why_failed="one took 7 s", remedy_of_failed="rest longer")
    assert ("7 s" in slow.evidence, slow.remedy) == (True, "rest longer")
    replaced = live_unknown(
        4, 1, "node", forced=True, plateaus=4, replaced_s=17.0, why_failed="it ended (1)", remedy_of_failed="rest longer"
    )
    assert ("0:00:17" in replaced.evidence, "ended (1)" in replaced.evidence) == (True, False)
    assert "log" in replaced.remedy
    assert "rest" not in replaced.remedy


def test_a_server_that_is_replaced_in_the_ramp_is_the_cause_of_few_samples() -> None:
    """Neither a longer ramp nor plateaus mend that."""
    run = a_run(300, batch=1, interval_s=0.03, plateaus=4, plateau_s=3.0)
    replaced_s = run.first_connect_s + 4.5
    for sample in run.samples:
        sample.values |= {metrics.SERVER_ENDED: float(sample.t_s > replaced_s), metrics.SERVER_PROCESSES: 1.0}
    for t_s, tick in run.ticks:
        if replaced_s - 1.0 < t_s < replaced_s + 1.0:
            tick.deaths["closed_idle"] = Deaths(count=50)
    for place in (run.first_connect_s - 1.0, run.first_connect_s + 2.0):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: 4e6, metrics.RUNTIME_FORCED_S: 0.1}
    told = {finding.code: finding for finding in costs(run).findings}
    for code in ("cost_few_points", "live_unknown"):
        assert told[code].fields["replaced_s"] == pytest.approx(replaced_s, abs=2.0)
        assert "--plateaus" not in told[code].remedy
    assert told["cost_few_points"].evidence.startswith("the server's")


def test_the_collections_of_one_rest_are_of_one_number_of_connections() -> None:
    """A late connection comes between them; they are no line."""
    run = a_run(300, batch=1, interval_s=0.03, plateaus=1, plateau_s=6.0)
    rest_s = run.first_connect_s + 10.0
    for t_s, tick in run.ticks:
        if rest_s < t_s <= rest_s + 5:
            tick.held = 296 + int(t_s - rest_s)
    for sample in run.samples:
        sample.values[metrics.SERVER_PROCESSES] = 1.0
        if sample.t_s < run.first_connect_s or rest_s < sample.t_s < rest_s + 5:
            alive = 4e6 + 3_000 * (run.held.at(sample.t_s) or 0.0)
            sample.values |= {metrics.RUNTIME_FORCED_BYTES: alive, metrics.RUNTIME_FORCED_S: 0.1}
    heap = heap_of(run)
    assert heap.live is None
    assert "live_unknown" in [finding.code for finding in heap.findings]


def test_collections_of_one_process_among_several_say_nothing_of_connections() -> None:
    """Of a cluster's primary process what stays alive is no connection's; its page, a worker's, is refused with a word on them."""
    for says_descriptors in (False, True):
        run = a_run(450, batch=1, interval_s=0.02, plateaus=5, hold_s=3.0, noise=0.01)
        rests = [run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]
        ask_for_collections(run, [run.first_connect_s - 1.5, *rests, run.stop_s - 1.0, run.stop_s + 4.0, run.stop_s + 5.0], 3_000.0, 100e3)
        for sample in run.samples:
            sample.values[metrics.SERVER_PROCESSES] = 3.0
            if says_descriptors:
                sample.values[metrics.RUNTIME_DESCRIPTORS] = 20 + (run.held.at(sample.t_s) or 0.0) / 2
        heap = heap_of(run)
        assert [finding.code for finding in heap.findings] == ["collections_forced", "heap_of_a_part"]
        assert "alive_bytes" not in heap.findings[0].fields
        assert heap.findings[0].fields["collections"] == 9


def test_a_page_that_is_named_is_not_asked_for() -> None:
    """/varz of NATS has no heap."""
    named = heap_collected("nats", "Go 1.26", "go", ["http://h:8222/varz"], None)
    assert "--server-metrics" not in named.remedy
    assert ("/varz" in named.evidence, "pprof/heap" in named.remedy) == (True, True)
    assert "--server-metrics" in heap_collected("x", "Ruby 3", "ruby", ["http://h/metrics"], None).remedy
    failed = heap_collected("node", "Node 20", "node", [], "start it without its cluster")
    assert ("its cluster" in failed.remedy, "--collect auto" in failed.remedy) == (True, False)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_what_is_alive_after_the_drain_is_no_garbage_that_grew(kept: float) -> None:
    """The server grows in the hold; ``kept`` of that is alive after the drain."""
    per_s = 1e6
    run = a_run(450, batch=1, interval_s=0.02, hold_s=40.0, keepalive_s=2.0, noise=0.01)
    for sample in run.samples:
        grown = per_s * max(0.0, sample.t_s - run.first_connect_s)
        sample.values[metrics.SERVER_PSS_BYTES] += grown
        if sample.t_s < run.first_connect_s or sample.t_s > run.phase("residue").start_s:
            sample.values[metrics.RUNTIME_FORCED_BYTES] = 4e6 + kept * grown
    _, said = drifts(run)
    [grows] = [finding for finding in said if finding.code == "drift_grows" and finding.fields["metric"] == "server_user"]
    assert (grows.fields["alive_bytes"] is not None) == (kept > 0)
    assert grows.fields["long_hold_s"] is not None
    assert ("--hold" in grows.remedy) == (kept == 0)


@pytest.mark.parametrize("rises", [False, True])
def test_answers_that_do_not_rise_are_no_cost(rises: bool) -> None:
    """Nothing shows that they are of the process that holds the connections: another one's heap is as it is."""
    run = a_run(2_000, batch=2, interval_s=0.02, plateaus=5)
    asked = [run.first_connect_s - 1.5, *[run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]]
    for sample in run.samples:
        sample.values[metrics.SERVER_PROCESSES] = 1.0
    for number, place in enumerate(asked):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        alive = 5e6 + 3_000 * (number % 2) + rises * 2_500 * (run.held.at(sample.t_s) or 0.0)
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: alive, metrics.RUNTIME_FORCED_S: 0.01}
    heap = heap_of(run)
    assert (heap.live is not None) == rises
    bounds = [finding.fields["most_bytes"] for finding in heap.findings if finding.code == "live_unknown"]
    assert len(bounds) == (not rises)
    assert all(0 < upper < 100 for upper in bounds)


@pytest.mark.parametrize(("collections", "rising"), [(2, 2), (1, 0), (25, 1)])
def test_collections_are_counted_once_in_a_sentence(collections: int, rising: int) -> None:
    """Those of the ramp, and the others."""
    said = live_unknown(collections, rising, "go", forced=False).evidence
    assert re.findall(r"\d+", said) == [str(rising), str(collections - rising)]


@pytest.mark.parametrize(
    ("kind", "flag"),
    [("go", "pprof/heap?gc=1"), ("node", "--collect auto"), ("jvm", "--collect auto"), ("", "COMMAND"), ("dotnet", "COMMAND")],
)
def test_the_way_to_collections_is_one_that_the_runtime_has(kind: str, flag: str) -> None:
    assert flag in live_unknown(0, 0, kind, forced=False).remedy
    assert (flag in heap_collected("app", "X 1", kind, [], None).remedy) == (flag != "COMMAND")


@pytest.mark.parametrize(("kind", "is_full", "helps"), [("go", False, True), ("node", True, True), ("jvm", True, False)])
def test_a_collection_of_the_young_generation_is_none(kind: str, is_full: bool, helps: bool) -> None:
    """A page that counts only young ones showed no full one; the JVM may never make one, however many connect."""
    unknown = live_unknown(0, 0, kind, forced=False)
    assert ("full collection" in unknown.evidence) == is_full
    assert ("more connections" in unknown.remedy) == helps


def test_memory_beyond_the_page_leaves_no_goal() -> None:
    """A program of Go with a library in C: its page knows nothing of what that takes."""
    run = of_go(soak())
    held = run.held
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + 60_000.0 * (held.at(sample.t_s) or 0.0)
    known = known_costs(run, fold(run), {})
    assert known.heap.live is not None
    assert known.heap.at_goal is None
    [beyond] = [finding for finding in known.findings if finding.code == "heap_of_a_part"]
    assert beyond.fields["goal_bytes"] < beyond.fields["resident_bytes"] < 60_000
    assert why_no_heap(run, known.heap, "at_goal") == beyond.evidence != why_no_heap(run, known.heap, "stacks")
    assert known.with_heap_at_goal().server_user == known.server_user


def test_collections_of_the_hold_alone_are_one_level() -> None:
    run = of_go(soak())
    hold = run.phases[2]
    for sample in run.samples:
        if sample.t_s < hold.start_s:
            sample.values[metrics.RUNTIME_COLLECTED_AT_S] = 0.0
        else:
            sample.values[metrics.RUNTIME_COLLECTED_AT_S] = run.started_wall_s + sample.t_s - 0.2
    heap = heap_of(run)
    assert heap.live is None
    [unknown] = heap.findings
    assert unknown.fields["collections"] > 20
    assert unknown.fields["rising"] <= 1


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.0, "name the page of nginx"), (0.5, "one worker"), (1.13, "other clients")],
    ids=["another's", "a worker's", "others too"],
)
def test_what_to_do_about_a_page_follows_its_descriptors(share: float, says: str) -> None:
    """A page of another process is not mended by fewer workers."""
    [refused] = heap_of(of_go(soak(), share=share)).findings
    assert refused.fields["share"] == pytest.approx(share, abs=0.02)
    assert says in refused.remedy


def test_a_page_of_one_worker_of_two_is_refused() -> None:
    """The heap of one worker, divided by the connections of both, would be half of the truth."""
    heap = heap_of(of_go(soak(), share=0.5))
    assert (heap.live, heap.stacks, heap.at_goal) == (None, None, None)
    [refused] = heap.findings
    assert (refused.code, refused.severity) == ("heap_of_a_part", "warning")
    assert refused.fields["share"] == pytest.approx(0.5, abs=0.01)


def of_another_program(run: Run) -> Run:
    """The run with the page of a program that is not the server."""
    page = {"url": "http://h/metrics", "of_program": "app", "of_pid": 311}
    run.environment["server"] = {**run.environment["server"], "metrics": [page]}
    return run


def test_the_page_of_another_program_is_no_heap_of_the_server() -> None:
    """A backend holds as many connections as the proxy before it, so that their number tells nothing."""
    heap = heap_of(of_another_program(of_go(soak())))
    assert (heap.live, heap.stacks, heap.at_goal) == (None, None, None)
    [refused] = heap.findings
    assert (refused.code, refused.severity) == ("heap_of_a_part", "warning")
    assert (refused.fields["program"], refused.fields["pid"]) == ("app", 311)
    # One that holds none of them is told as such.
    [refused] = heap_of(of_another_program(of_go(soak(), share=0.0))).findings
    assert (refused.fields["share"], "program" in refused.fields) == (0.0, False)


def behind_a_proxy(*programs: str) -> Run:
    """A run through a proxy to programs in Go, of which one has 26 kB of each connection resident, and a page."""
    run = of_another_program(of_go(soak()))
    for sample in run.samples:
        held = run.held.at(sample.t_s) or 0.0
        sample.values |= {metrics.HOST_OTHER_PROCESSES: 100.0, metrics.SERVER_DESCRIPTORS_OPEN: 20 + 2 * held}
        for name in programs:
            sample.values |= {f"{metrics.BESIDE_DESCRIPTORS}{name}": held, f"{metrics.BESIDE_BYTES}{name}": 26_000 * held}
            sample.values["host.used_bytes"] += 26_000 * held
    return run


def test_the_heap_of_a_program_behind_a_proxy_is_its_own() -> None:
    run = behind_a_proxy("app")
    summary = summarise(run)
    cost = summary.cost
    assert (cost.heap_of, cost.behind_programs) == ("app", ["app"])
    assert cost.live.ci95[0] <= LIVE <= cost.live.ci95[1]
    # What the proxy had before the first connect is no part of it.
    assert not cost.at_goal.is_whole
    assert "heap_of_a_part" not in [finding.code for finding in summary.findings]
    labels = [row.label for row in cost_rows(cost, "nginx", run.sides)]
    of_heap = ["app, live heap", "app, stacks", "app, at its goal"]
    assert [label for label in labels if "heap" in label or "goal" in label or "stacks" in label] == of_heap
    known = analyse(run).costs
    planned = known.with_heap_at_goal()
    assert planned.server_user == known.server_user
    assert planned.behind.bytes_per_connection == cost.at_goal.bytes_per_connection > known.behind.bytes_per_connection
    more = cost.at_goal.bytes_per_connection - known.behind.bytes_per_connection
    assert planned.host_total.bytes_per_connection == pytest.approx(known.host_total.bytes_per_connection + more)
    # Its memory is counted once.
    sized = Results(Path(), run).sized(10_000)
    of_part = {part.name: part.bytes_per_connection for part in sized.parts}
    assert of_part["server_user"] == known.server_user.bytes_per_connection
    assert of_part["behind"] == cost.at_goal.bytes_per_connection


def test_of_two_programs_behind_a_proxy_the_page_does_not_tell_the_cost() -> None:
    run = behind_a_proxy("app", "cache")
    heap = heap_of(run)
    assert (heap.live, heap.stacks, heap.at_goal) == (None, None, None)
    assert [finding.fields["program"] for finding in heap.findings] == ["app"]
    assert analyse(run).costs.with_heap_at_goal().behind.bytes_per_connection == pytest.approx(52_000, rel=0.02)


@pytest.mark.parametrize(
    ("processes", "share", "is_believed"), [(1, None, True), (2, None, False), (2, 0.5, False), (2, 1.0, True)]
)
def test_a_page_that_does_not_name_its_descriptors(processes: int, share: float | None, is_believed: bool) -> None:
    """As expvar's. It is believed where one process holds all connections: the server's only one, or its fullest."""
    run = of_go(soak())
    for sample in run.samples:
        del sample.values[metrics.RUNTIME_DESCRIPTORS]
        sample.values["server.processes"] = float(processes)
        if share is not None:
            sample.values["server.descriptors"] = 9 + share * (run.held.at(sample.t_s) or 0.0)
    heap = heap_of(run)
    if is_believed:
        assert heap.live is not None
        return
    assert (heap.live, heap.stacks, heap.at_goal) == (None, None, None)
    [refused] = heap.findings
    assert (refused.code, refused.fields["share"], refused.fields["processes"]) == ("heap_of_a_part", None, processes)


def test_a_page_that_counts_other_connections_is_refused_by_its_count() -> None:
    """Of two pages one may be of a server that got none of ours."""
    run = soak()
    for sample in run.samples:
        sample.values |= {metrics.RUNTIME_ALLOCATED_BYTES: 6e6, metrics.RUNTIME_CONNECTIONS: 3.0}
    heap = heap_of(run)
    assert heap.live is None
    [refused] = heap.findings
    assert (refused.code, refused.fields["share"]) == ("heap_of_a_part", 0.0)


def test_a_short_hold_is_not_confused_with_what_comes_after_it() -> None:
    """Descriptors are counted at once, and the connections that asyncli holds once a second."""
    run = a_run(500, batch=2, interval_s=0.05, hold_s=7.0)
    for sample in run.samples:
        is_over = sample.t_s > run.stop_s
        n = 0.0 if is_over else run.held.at(sample.t_s) or 0.0
        sample.values |= {metrics.RUNTIME_ALLOCATED_BYTES: 6e6 + 1000 * n, metrics.RUNTIME_CONNECTIONS: n}
    assert "heap_of_a_part" not in [finding.code for finding in heap_of(run).findings]


def test_an_allocator_needs_no_collections() -> None:
    run = soak()
    for sample in run.samples:
        sample.values[metrics.RUNTIME_ALLOCATED_BYTES] = 5e6 + 2_447 * (run.held.at(sample.t_s) or 0.0)
        sample.values["server.processes"] = 1.0
    heap = heap_of(run)
    assert heap.live is not None
    assert heap.live.bytes_per_connection == pytest.approx(2_447, rel=0.01)
    assert heap.live.collections == 0
    assert (heap.stacks, heap.at_goal) == (None, None)


@pytest.mark.parametrize("per_s", [66.7, 100.0])
@pytest.mark.parametrize("plateaus", [0, 5])
@pytest.mark.parametrize("read_after_s", [0.01, 0.5, 0.98])
def test_a_number_of_the_page_is_of_the_instant_at_which_it_changed(per_s: float, plateaus: int, read_after_s: float) -> None:
    """Envoy writes its memory every 5 s, and counts its connections at once: the page's memory is of those of some seconds ago."""
    run = a_run(2_000, batch=2, interval_s=2 / per_s, plateaus=plateaus)
    written = 0.0
    next_s = 0.0
    for sample in run.samples:
        if sample.t_s >= next_s - 0.2:
            written = 6e6 + 15_800 * (run.held.at(sample.t_s - read_after_s) or 0.0)
            next_s += 5.0
        sample.values |= {metrics.RUNTIME_ALLOCATED_BYTES: written, metrics.RUNTIME_CONNECTIONS: run.held.at(sample.t_s) or 0.0}
    live = heap_of(run).live
    assert live is not None
    low, high = live.ci95
    assert low <= 15_800 <= high
    assert live.half_width < 0.07 * 15_800
    assert live.fixed_bytes == pytest.approx(6e6, abs=7e5)
    if not plateaus and not live.of_levels:
        # When it changed, between two pages, nobody knows.
        assert live.half_width >= 0.5 * per_s * 15_800 / 2_000 * 0.95


def test_a_runtime_that_says_no_goal_has_no_cost_at_it() -> None:
    run = of_go(soak())
    for sample in run.samples:
        del sample.values[metrics.RUNTIME_GOAL_BYTES], sample.values[metrics.RUNTIME_STACKS_BYTES]
    heap = heap_of(run)
    assert heap.live is not None
    assert (heap.stacks, heap.at_goal) == (None, None)


def test_what_a_collection_keeps_as_it_marks_is_within_the_interval() -> None:
    """As in Node, whose page says neither what its collections found alive nor when they were: they keep a twentieth more than is alive."""
    run = of_go(soak())
    for number, sample in enumerate(run.samples):
        kept = 0.05 * LIVE * (run.held.at(sample.t_s) or 0.0)
        sample.values = {metrics.RUNTIME_HEAP_BYTES: FIXED + LIVE * (run.held.at(sample.t_s) or 0.0) + kept, metrics.RUNTIME_COLLECTIONS: float(number)}
    live = heap_of(run).live
    assert live is not None
    assert live.bytes_per_connection == pytest.approx(1.05 * LIVE, rel=0.01)
    assert live.ci95[0] <= LIVE < live.ci95[1] < 1.07 * LIVE


def test_a_server_whose_clock_is_elsewhere_has_the_same_costs() -> None:
    here = heap_of(of_go(soak(), says_live=True)).live
    run = of_go(soak(), says_live=True)
    for sample in run.samples:
        sample.values[metrics.RUNTIME_COLLECTED_AT_S] += 86_400.0
    elsewhere = heap_of(run).live
    assert here is not None
    assert elsewhere is not None
    assert elsewhere.bytes_per_connection == pytest.approx(here.bytes_per_connection, rel=0.02)


def test_a_run_without_a_page_has_no_heap() -> None:
    assert heap_of(soak()) == HeapCosts()


def planned(run: Run) -> tuple[Run, HeapCosts]:
    for sample in run.samples:
        sample.values["server.pss_bytes"] = (
            20e6 + sample.values[metrics.RUNTIME_HEAP_BYTES] + sample.values[metrics.RUNTIME_STACKS_BYTES]
        )
    return run, heap_of(run)


def test_a_forecast_plans_with_the_heap_at_its_goal() -> None:
    """A host for the heap as it was while it filled would be too small when it has filled."""
    run, heap = planned(of_go(soak()))
    known = costs(run)
    assert heap.at_goal is not None
    assert known.host_total is not None
    assert known.server_user is not None
    more = heap.at_goal.bytes_per_connection - known.server_user.bytes_per_connection
    host = known.with_heap_at_goal()
    assert host.server_user is not None
    assert host.host_total is not None
    assert host.server_user.bytes_per_connection == heap.at_goal.bytes_per_connection
    assert host.host_total.bytes_per_connection == pytest.approx(known.host_total.bytes_per_connection + more)
    found, _ = forecast(run, known)
    assert found.server_memory is not None
    assert "its goal" in found.server_memory.how
    sized = size(known, found, connections=100_000, measured=2_000, host_bytes=None)
    assert sized.parts[0].bytes_per_connection == heap.at_goal.bytes_per_connection


def test_the_greatest_heap_bounds_the_connections() -> None:
    run = of_go(soak())
    for sample in run.samples:
        sample.values[metrics.RUNTIME_LIMIT_BYTES] = 256e6
    found, _ = forecast(run, costs(run))
    [heap] = [ceiling for ceiling in found.ceilings if ceiling.name == "server_heap"]
    assert heap.connections == pytest.approx((256e6 - FIXED) / LIVE, rel=0.03)


@pytest.mark.parametrize(("old", "is_limit"), [(170e6, True), (256e6, False), (None, False)])
def test_the_old_generation_of_a_jvm_is_full_before_the_heap(old: float | None, is_limit: bool) -> None:
    """That of G1 may be as large as the heap."""
    run = of_go(soak())
    for sample in run.samples:
        sample.values[metrics.RUNTIME_LIMIT_BYTES] = 256e6
        if old is not None:
            sample.values[metrics.RUNTIME_OLD_LIMIT_BYTES] = old
    found, _ = forecast(run, costs(run))
    full = [ceiling.connections for ceiling in found.ceilings if ceiling.name == "old_generation"]
    assert full == ([pytest.approx((170e6 - FIXED) / LIVE, rel=0.03)] if is_limit else [])
    of_both = [ceiling.name for ceiling in found.ceilings if ceiling.name in ("old_generation", "server_heap")]
    assert of_both == (["old_generation", "server_heap"] if is_limit else ["server_heap"])


def test_memory_that_fills_the_heap_after_the_ramp_is_no_doubt() -> None:
    """Its place is told: that of the heap at its goal."""
    run, _ = planned(of_go(soak()))
    raised(run, 4e6, "server.pss_bytes", since_s=run.phases[2].start_s + 10.0)
    told = {finding.code for finding in costs(run).findings}
    assert "memory_after_ramp" not in told
    raised(run, 40e6, "server.pss_bytes", since_s=run.phases[2].start_s + 10.0)
    assert "memory_after_ramp" in {finding.code for finding in costs(run).findings}


def test_what_a_page_of_metrics_lists_is_the_pages() -> None:
    run, _ = planned(of_go(soak()))
    for sample in run.samples:
        sample.values["kernel.listing_bytes"] = 1e6 + 900.0 * (run.held.at(sample.t_s) or 0.0)
    [listed] = [finding for finding in costs(run).findings if finding.code == "descriptors_listed"]
    assert (listed.severity, listed.fields["by_page"]) == ("info", True)


def overnight(**pages: float) -> Run:
    return of_go(a_run(2_000, batch=2, interval_s=0.05, hold_s=1_200.0), **pages)


def test_garbage_hides_no_leak() -> None:
    """The resident heap goes up and down by 16 MB, and what is alive rises by 5 kB each second."""
    leaking, _ = drifts(overnight(leak_per_s=5e3))
    assert leaking["live_heap"].verdict == "grows"
    low, high = leaking["live_heap"].ci95 or (0.0, 0.0)
    assert low < 18e6 < high
    assert high - low < 9e6


def test_a_heap_that_fills_is_no_leak() -> None:
    run = overnight()
    for sample in run.samples:
        sample.values["server.anon_shmem_bytes"] = 20e6 + 10e3 * max(0.0, sample.t_s - run.first_connect_s)
    by_name, found = drifts(run)
    assert by_name["server_user"].verdict == "grows"
    assert by_name["live_heap"].verdict == "flat"
    assert [finding.fields["metric"] for finding in found if finding.code == "drift_grows"] == []


def test_a_short_hold_says_nothing_of_what_is_alive() -> None:
    by_name, _ = drifts(of_go(soak()))
    assert "live_heap" not in by_name


def test_a_forecast_of_a_heap_whose_goal_is_unknown_says_so() -> None:
    run = soak()
    run.environment["server"] = {**run.environment["server"], "runtime": {"kind": "jvm", "version": "17", "collected": True}}
    found, _ = forecast(run, costs(run))
    assert found.memory is not None
    assert found.server_memory is not None
    assert "not read" in found.memory.how
    assert "not read" in found.server_memory.how


def test_a_page_may_say_only_what_is_alive() -> None:
    """As where --metrics-map names a program's own count of it."""
    run = of_go(soak(), says_live=True)
    for sample in run.samples:
        for name in (metrics.RUNTIME_HEAP_BYTES, metrics.RUNTIME_COLLECTED_AT_S, metrics.RUNTIME_GOAL_BYTES):
            del sample.values[name]
    live = heap_of(run).live
    assert live is not None
    assert live.ci95[0] <= LIVE <= live.ci95[1]
