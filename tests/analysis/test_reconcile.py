"""Client and server count the same connections: which counts agree, and the findings."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import synthetic_run
from synthetic_run import bare_run, cut, raised, without

from asyncli.analysis.counts import Client, Divergence, asked_over_time
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import Reconciliation, agreement, divergence_in_words, reconcile
from asyncli.analysis.totals import fold
from asyncli.core.histogram import Histogram, bucket
from asyncli.core.ramp import Ramp
from asyncli.model.plan import Plan
from asyncli.model.records import CHURN, Deaths, EventCounts, Finding, Phase, ProtocolCounts, RunEvent, Sample, Tick
from asyncli.model.run import Run


def a_run(connections: int = 100_000, **options: Any) -> Run:
    """A good run, whose server counts each request in the second of its answer."""
    run = synthetic_run.a_run(connections, **options)
    for sample in run.samples:
        if "status.requests" in sample.values:
            answered = sum(tick.answered for t_s, tick in run.ticks if t_s <= sample.t_s)
            sample.values["status.requests"] = 5000.0 + answered + sample.values["status.polls"]
    return run


def test_reopened_streams_are_requests() -> None:
    run = synthetic_run.a_run(1000, http2=True, streams=3)
    for _, tick in run.ticks:
        tick.protocol = ProtocolCounts(streams_opened=3 * tick.opened)
    before, after = Client(run).at("answered", math.inf), run.ticks[40][1]
    after.protocol = ProtocolCounts(streams_opened=3 * after.opened + 7)
    client = Client(run)
    assert before >= 3000
    assert (client.at("answered", math.inf), client.within("sent", 0.0, math.inf) - before) == (before + 7, 7)


def reconciled(run: Run) -> tuple[Reconciliation, list[str]]:
    result, findings = look(run)
    return result, [finding.code for finding in findings]


def look(run: Run, plan: Plan | None = None) -> tuple[Reconciliation, list[Finding]]:
    run = run if plan is None else msgspec.structs.replace(run, plan=plan)
    result, findings = reconcile(run, fold(run))
    assert all(finding.remedy for finding in findings)
    return result, findings


def shift(run: Run, metric: str, by: float, since_s: float = 40.0, until_s: float = math.inf) -> None:
    raised(run, by, metric, since_s=since_s, until_s=until_s)


def cap(run: Run, metric: str, most: float) -> None:
    for sample in run.samples:
        if metric in sample.values:
            sample.values[metric] = min(sample.values[metric], most)


def shifted(*shifts: tuple[str, float], without: tuple[str, ...] = ()) -> Run:
    """A good run whose page lacks some counts and has others raised."""
    run = a_run(20_000)
    for sample in run.samples:
        for name in without:
            sample.values.pop(f"status.{name}", None)
    for metric, by in shifts:
        shift(run, f"status.{metric}", by)
    return run


# Apache's page: no accepts, and requests only with ExtendedStatus On; and one with requests alone.
CONNECTIONS, REQUESTS = ("accepts", "handled", "requests"), ("active", "accepts", "handled")


@pytest.mark.parametrize(
    ("run", "agrees", "codes"),
    [
        (shifted(), True, []),
        (shifted(without=CONNECTIONS), True, []),
        (shifted(("active", -3.0), without=CONNECTIONS), False, ["reconcile_held"]),
        (shifted(without=REQUESTS), True, []),
        (shifted(("requests", -500.0), without=REQUESTS), False, ["reconcile_requests"]),
        (shifted(without=("active", *CONNECTIONS)), None, ["reconciliation_unknown"]),
        # One too many, or too few.
        (shifted(("active", 1.0)), False, ["reconcile_held"]),
        (shifted(("active", -1.0)), False, ["reconcile_held"]),
        # No free slots; other clients.
        (shifted(("handled", -7.0)), False, ["reconcile_handled"]),
        (shifted(("accepts", 500.0), ("handled", 500.0), ("requests", 900.0)), False, ["reconcile_accepts", "reconcile_requests"]),
    ],
)
def test_counts_of_the_page_against_ours(run: Run, agrees: bool | None, codes: list[str]) -> None:
    result, found = reconciled(run)
    assert (result.client_held, result.agrees, found) == (20_000, agrees, codes)
    assert agrees is not None or look(run)[1][0].fields["why"] == "page_tells_nothing"


def test_a_restart_shows_in_the_requests() -> None:
    run = shifted(without=REQUESTS)
    for sample in run.samples:
        if sample.t_s >= 50.0 and "status.requests" in sample.values:
            sample.values["status.requests"] = 1.0
    (restarted,) = [finding for finding in look(run)[1] if finding.code == "counters_restarted"]
    assert restarted.fields["counter"] == "requests"


@pytest.mark.parametrize("last_s", [4.0, 12.0, 30.0])
def test_a_page_lost_before_the_holds_end_makes_counts_unknown(last_s: float) -> None:
    result, findings = look(without(a_run(20_000), "status.", since_s=last_s))
    assert (result.accepts_delta, result.handled_delta, result.requests_delta, result.agrees) == (None, None, None, None)
    assert findings[0].fields["why"] == "page_silent"


def test_connections_of_killed_workers_and_from_before_are_no_other_clients() -> None:
    killed = Diagnosis("closed_idle", "worker_crash", 788, "", "", True, 50.0, 51.0)
    run = a_run(20_000)
    shift(run, "status.active", 789.0, since_s=50.0)
    for metric in ("status.accepts", "status.handled"):  # our poller's, while the workers were replaced
        shift(run, metric, 80.0, since_s=50.0)

    def beyond(of: Run, *diagnoses: Diagnosis) -> tuple[int, int, bool]:
        found = reconcile(of, fold(of), diagnoses)[1]
        why = next(one.fields["beyond"] for one in found if one.code == "reconcile_held")
        return why["killed"], why["before"], why["others"]

    assert beyond(run) == (0, 0, True)
    assert beyond(run, killed)[:2] == (788, 0)
    run = a_run(20_000)
    shift(run, "status.active", 500.0, since_s=0.0)
    assert beyond(run)[:2] == (0, 500)
    shift(run, "status.active", 788.0, since_s=50.0)
    assert beyond(run, killed)[:2] == (788, 500)


def worker_killed(*, ended: int, processes: float = 1.0, server: str = "nginx/1.26.3") -> Run:
    """A command ends connections at 40 s; nginx's page counts 300 more from then on, and a process of it has ended."""
    run = msgspec.structs.replace(a_run(20_000, events=("10s run restart",)))
    run.environment |= {"server": {"label": server}}
    run.events.append(RunEvent("run", 40.0, 40.2, "kill", {"number": 1, "took_s": 0.2}))
    for t_s, tick in run.ticks:
        if 40.0 < t_s <= 41.0:
            tick.events[1] = EventCounts(ended=ended, opened=ended)
    for sample in run.samples:
        sample.values["server.ended"] = processes * (sample.t_s > 40.5)
    shift(run, "status.active", 300.0, since_s=40.0)
    return run


def test_connections_whose_worker_a_command_killed_are_the_event_s() -> None:
    by_code = {finding.code: finding for finding in look(worker_killed(ended=299))[1]}
    beyond = by_code["reconcile_held"].fields["beyond"]
    assert (beyond["killed"], beyond["killed_in"]) == (300, [{"number": 1, "kind": "run"}])
    assert "event 1" in by_code["reconcile_held"].remedy


@pytest.mark.parametrize(
    "run",
    [worker_killed(ended=200), worker_killed(ended=299, processes=0.0), worker_killed(ended=299, server="haproxy")],
    ids=["fewer ended", "no process ended", "another server"],
)
def test_other_connections_that_a_page_counts_are_no_killed_worker_s(run: Run) -> None:
    assert {finding.code: finding for finding in look(run)[1]}["reconcile_held"].fields["beyond"]["killed"] == 0


@pytest.mark.parametrize(("agrees_between", "begun_s"), [(False, 30.0), (True, 60.0)])
def test_a_difference_that_much_in_flight_hides_for_a_while_goes_on(agrees_between: bool, begun_s: float) -> None:
    """The server counts 300 too many from 30 s on, and a storm of all is at 50 s; or from 30 s to 40 s, and again from 60 s on."""
    run = a_run(20_000)
    shift(run, "status.active", 300.0, since_s=30.0)
    if agrees_between:
        shift(run, "status.active", -300.0, since_s=40.0, until_s=60.0)
    for t_s, tick in run.ticks:
        if 50.0 < t_s <= 52.0:
            tick.opened += 5_000
            tick.events[1] = EventCounts(ended=5_000)
    held = [divergence for divergence in look(run)[0].divergences if divergence.pair == "held"]
    assert held[-1].from_s == pytest.approx(begun_s, abs=2.0)
    assert len(held) == 1 + agrees_between


def test_connections_from_before_the_first_connect_were_not_in_flight() -> None:
    """Connections of an earlier run that the server still counts, hidden by many that open and close at the end."""
    run = a_run(20_000)
    shift(run, "status.active", 182.0, since_s=0.0)
    last = max(place for place, (t_s, _) in enumerate(run.ticks) if t_s <= run.phases[3].start_s)
    run.ticks[last][1].opened += 300
    run.ticks[last][1].deaths = {"heartbeat_timeout": Deaths(count=300)}
    for metric in ("status.accepts", "status.handled"):
        shift(run, metric, 300.0, since_s=run.ticks[last][0])
    found = {one.code: one for one in look(run)[1]}
    assert found["reconcile_stale"].fields == {"by": 182, "killed": 0, "before": 182, "killed_in": []}
    assert "reconcile_in_flight" not in found or "held" not in [one["pair"] for one in found["reconcile_in_flight"].fields["apart"]]
    # Some of them are gone: the finding has both numbers.
    shift(run, "status.active", -80.0, since_s=30.0)
    apart = {one.code: one for one in look(run)[1]}["reconcile_in_flight"].fields["apart"]
    assert [one["before"] for one in apart if one["pair"] == "held"] == [182]


@pytest.mark.parametrize("noticed", [0, 300])
def test_clients_that_fell_silent_by_an_event_were_not_in_flight(noticed: int) -> None:
    """500 came back on new connections, and the server holds the old ones beside these."""
    run = a_run(20_000)
    t_s, tick = run.ticks[45]
    tick.events[1] = EventCounts(chosen=500, ended=500, silenced=500, attempts=500, opened=500)
    tick.opened += 500
    shift(run, "status.active", 500.0 - noticed, since_s=t_s)
    for metric in ("status.accepts", "status.handled"):
        shift(run, metric, 500.0, since_s=t_s)
    result, findings = look(run)
    assert result.agrees
    [in_flight] = [finding for finding in findings if finding.code == "reconcile_in_flight"]
    assert [(apart["by"], apart["silent"]) for apart in in_flight.fields["apart"] if apart["pair"] == "held"] == [(500 - noticed, 500)]
    silent = agreement(result.agrees, findings)
    in_flight.fields["apart"] = [{**apart, "silent": 0} for apart in in_flight.fields["apart"]]
    assert agreement(result.agrees, findings) != silent


def test_other_clients_only_if_the_server_accepted_more() -> None:
    run = a_run(20_000)
    shift(run, "status.active", 80.0, since_s=50.0)
    (finding,) = look(run)[1]
    assert not finding.fields["beyond"]["others"]
    for metric in ("status.accepts", "status.handled"):
        shift(run, metric, 80.0, since_s=50.0)
    assert next(one for one in look(run)[1] if one.code == "reconcile_held").fields["beyond"]["others"]
    # For a while.
    run = a_run(20_000)
    shift(run, "status.active", 80.0, since_s=50.0, until_s=60.0)
    (finding,) = divergences_of(run)[1]
    assert not finding.fields["beyond"]["others"]


def test_a_page_of_one_of_several_servers() -> None:
    run = a_run(20_000)
    for metric in ("active", "accepts", "handled"):
        cap(run, f"status.{metric}", 10_001.0 + (1000.0 if metric != "active" else 0.0))
    of_two = [*run.plan.urls, "http://127.0.0.1:8090/"]
    assert {one.severity for one in look(run, run.plan)[1] if one.code.startswith("reconcile_")} == {"error"}
    found = [one for one in look(run, msgspec.structs.replace(run.plan, urls=tuple(of_two)))[1] if one.code != "parted_asked"]
    assert {one.code: one.severity for one in found} == {"reconcile_held": "info", "reconcile_accepts": "info"}
    assert all(one.fields["addresses"] == 2 for one in found)


@pytest.mark.parametrize(
    ("processes", "accepted", "pages", "codes"),
    # Of one process, or of a server that has not accepted the others, half of the connections are missing.
    [
        (3, 1.0, 1, ["reconciliation_unknown"]),
        (1, 1.0, 2, ["reconciliation_unknown"]),
        (1, 1.0, 1, ["reconcile_held"]),
        (3, 0.5, 2, ["reconcile_held"]),
    ],
)
def test_a_page_of_metrics_of_one_of_two_workers(processes: int, accepted: float, pages: int, codes: list[str]) -> None:
    run = a_run(2_000, status=False)
    page = {"url": "http://127.0.0.1:9100/metrics", "active_by": "nodejs_active_resources"}
    run.environment["server"] |= {"metrics": [page] * pages}
    for sample in run.samples:
        held = run.held.at(sample.t_s) or 0.0
        sample.values |= {"status.active": held / 2 + 1, "status.polls": sample.t_s, "status.connects": 1.0, "status.unanswered": 0.0}
        sample.values |= {"server.processes": processes, "server.sockets": accepted * held}
    result, findings = look(run)
    assert [finding.code for finding in findings] == codes
    is_unknown = codes == ["reconciliation_unknown"]
    assert (result.agrees, len(result.divergences)) == ((None, 0) if is_unknown else (False, 1))


def test_a_listen_queue_without_accepts() -> None:
    """EMFILE on the server: the kernel completes handshakes, and the server never accepts."""
    run = a_run(20_000)
    for metric, before in (("status.active", 1.0), ("status.accepts", 1.0), ("status.handled", 1.0)):
        cap(run, metric, before + 19_700)
    result, findings = look(run)
    assert [one.code for one in findings] == ["reconcile_held", "reconcile_accepts"]
    # The ramp ends at 25.1 s; the last opens are in flight until a second later.
    assert [(one.pair, one.most, one.last, one.closed) for one in result.divergences] == [
        ("held", -300, -300, False), ("accepts", -300, -300, False),
    ]  # fmt: skip
    assert all(25 < one.from_s < 28 for one in result.divergences)
    assert all(one.fields["since"]["most"] == -300 for one in findings)


def test_polls_without_a_page_may_or_may_not_have_arrived() -> None:
    # Three unanswered polls, each on a separate connection that the server may keep.
    def run(unanswered: float) -> Run:
        run = a_run(20_000)
        shift(run, "status.polls", 3)
        shift(run, "status.connects", 3)
        shift(run, "status.unanswered", unanswered)
        return run

    for sample in (one := run(3)).samples:
        sample.values.setdefault("status.unanswered", 3.0 if sample.t_s >= 40.0 else 0.0)
    assert reconciled(one) == (reconciled(one)[0], ["reconcile_in_flight"])
    shift(one, "status.active", 3)
    assert reconciled(one)[0].agrees
    shift(one, "status.active", 1)
    assert "reconcile_held" in reconciled(one)[1]
    assert "reconcile_requests" in reconciled(run(0))[1]


@pytest.mark.parametrize(("answers", "severity"), [(0, "warning"), (5, "error")])
def test_a_handshake_whose_last_packet_was_lost(answers: int, severity: str) -> None:
    # Three were opened, timed out and were replaced; the server never saw them.
    run = a_run(20_000)
    run.ticks[30][1].deaths["heartbeat_timeout"] = Deaths(3, requests=Histogram({bucket(answers): 3}, answers, answers))
    run.ticks[31][1].opened += 3
    (finding,) = [one for one in look(run)[1] if one.code == "reconcile_accepts"]
    assert finding.severity == severity
    assert finding.fields["silent"] == (0 if answers else 3)


def test_unanswered_heartbeats_may_or_may_not_have_arrived() -> None:
    run = a_run(20_000)
    run.ticks[30][1].sent += 10
    for by in (0.0, 5.0, 5.0):
        shift(run, "status.requests", by)
        assert reconciled(run)[0].agrees is True
    shift(run, "status.requests", 1.0)
    assert reconciled(run)[0].agrees is False


def test_unknown_without_a_page_or_without_a_baseline() -> None:
    for run, lacks in ((a_run(5000, status=False), ["status_url"]), (a_run(5000), []), (a_run(5000, baseline_s=0.0), ["baseline"])):
        run.samples = [sample for sample in run.samples if sample.t_s > 6.0]
        result, codes = reconciled(run)
        assert (result.client_held, result.server_active, result.agrees) == (5000, None, None)
        assert (codes, look(run)[1][0].fields["lacks"]) == (["reconciliation_unknown"], lacks)


def test_a_page_from_the_drain_does_not_describe_the_hold() -> None:
    """An agent polls its pages on schedule, which may be in the drain."""
    run = a_run(20_000)
    stop = next(one.start_s for one in run.phases if one.name == "drain")
    for sample in run.samples:
        sample.values["probe.status"] = 0.001
    last = max((one for one in run.samples if one.t_s <= stop and "status.active" in one.values), key=lambda one: one.t_s)
    last.t_s = stop - 0.006
    last.values |= {"status.active": 15_001.0, "probe.status": 0.004}
    result, codes = reconciled(run)
    assert (result.server_active, result.agrees, codes) == (15_000, False, ["reconcile_held"])
    last.values["probe.status"] = 0.008
    result, codes = reconciled(run)
    assert (result.server_active, result.agrees, codes, result.divergences) == (20_000, True, [], [])


def test_a_page_from_long_before_the_end_is_ignored() -> None:
    run = a_run(5000)
    stop = run.phases[3].start_s
    assert reconciled(without(run, "status.", since_s=stop - 5, until_s=stop))[0].server_active is None
    # With a page every five seconds the last is near enough.
    run = a_run(5000)
    for place, sample in enumerate(run.samples):
        if place % 5:
            sample.values = {name: value for name, value in sample.values.items() if not name.startswith("status.")}
    assert reconciled(run)[0].server_active == 5000


def each_eleven_seconds(connections: int, first: int) -> Run:
    """A run beside a broker that counts its clients, and nothing else, every eleven seconds."""
    run = a_run(connections)
    for place, sample in enumerate(run.samples):
        kept = ("status.active", "status.polls", "status.connects", "status.unanswered") if place % 11 == first else ()
        sample.values = {name: value for name, value in sample.values.items() if name in kept or not name.startswith("status.")}
    return run


@pytest.mark.parametrize("first", range(11))
def test_a_broker_that_counts_each_eleven_seconds(first: int) -> None:
    result, codes = reconciled(each_eleven_seconds(5000, first))
    assert (result.server_active, result.agrees, result.divergences, codes) == (5000, True, [], [])


@pytest.mark.parametrize("first", range(11))
def test_losses_after_the_last_count_are_no_disagreement(first: int) -> None:
    run = each_eleven_seconds(5000, first)
    stop = next(phase.start_s for phase in run.phases if phase.name == "drain")
    lost_s = stop - 3.5
    for t_s, tick in run.ticks:
        if lost_s < t_s <= stop:
            tick.held -= 100
        if lost_s < t_s <= lost_s + 1.0:
            tick.deaths = {"reset": Deaths(count=100)}
        tick.held_at_drain = min(tick.held_at_drain, 4900)
    shift(run, "status.active", -100.0, since_s=lost_s)
    result, _ = reconciled(run)
    assert (result.client_held, result.agrees, [one for one in result.divergences if one.pair == "held"]) == (4900, True, [])


def test_counts_of_the_ramp_do_not_describe_the_hold() -> None:
    run = each_eleven_seconds(5000, 3)
    hold = next(phase.start_s for phase in run.phases if phase.name == "hold")
    assert look(without(run, "status.", since_s=hold))[1][0].fields["why"] == "page_silent"


def test_a_run_that_was_stopped_in_its_baseline() -> None:
    run = a_run(5000)
    run.ticks, run.phases = [], run.phases[:1]
    run.samples = [sample for sample in run.samples if sample.t_s < 4.0]
    (finding,) = look(run)[1]
    assert finding.fields["why"] == "nothing_connected"


def test_a_killed_run_agrees_within_what_was_in_flight() -> None:
    run = a_run(20_000)
    cut(run, 15.0)
    for sample in run.samples:
        if "status.active" in sample.values:  # half a second's worth of the ramp, as a real page would be off
            for metric in ("status.active", "status.accepts", "status.handled"):
                sample.values[metric] = max(sample.values[metric] - 100.0 * (sample.t_s > 6.0), 1.0)
    result, codes = reconciled(run)
    assert "reconcile_held" not in codes
    assert "reconcile_accepts" not in codes
    assert result.client_held == run.ticks[-1][1].held
    (finding,) = [one for one in look(run)[1] if one.code == "reconcile_in_flight"]
    by, apart = result.server_active - result.client_held, finding.fields["apart"][0]
    assert (apart["pair"], apart["by"], apart["before"]) == ("held", by, 0)
    assert 0 < by <= apart["flight"] <= 2000
    assert agreement(result.agrees, [finding]) != agreement(result.agrees, [])


def divergences_of(run: Run, plan: Plan | None = None) -> tuple[list[Divergence], list[Finding]]:
    """The divergences, and the findings about those that ended."""
    result, findings = look(run, plan)
    return result.divergences, [one for one in findings if one.code.startswith("parted_")]


@pytest.mark.parametrize("options", [{}, {"plateaus": 4, "plateau_s": 5.0}, {"hold_s": 4.0}])
def test_a_good_run_never_diverges(options: dict[str, Any]) -> None:
    run = a_run(20_000, **options)
    assert divergences_of(run, run.plan) == ([], [])


def test_an_active_count_that_fell_behind_and_recovered() -> None:
    run = a_run(20_000)
    shift(run, "status.active", -500.0, since_s=50.0, until_s=60.0)
    shift(run, "status.active", -312.0, since_s=53.0, until_s=54.0)
    result, findings = look(run)
    (one,) = result.divergences
    assert (one.pair, one.most, one.last, one.closed) == ("held", -812, -500, True)
    assert (one.from_s, one.at_s, one.to_s) == pytest.approx((50.3, 53.3, 60.3))
    assert result.agrees is True
    (finding,) = findings
    assert (finding.code, finding.severity) == ("parted_held", "warning")
    assert finding.evidence == divergence_in_words(one)


def test_two_pages_are_no_divergence_and_three_are() -> None:
    for pages, count in ((2, 0), (3, 1)):
        run = a_run(20_000)
        shift(run, "status.active", -500.0, since_s=50.0, until_s=50.0 + pages)
        assert len(divergences_of(run)[0]) == count


def test_divergences_one_page_apart_are_one() -> None:
    run = a_run(20_000)
    for since, until in ((40.0, 44.0), (45.0, 50.0), (60.0, 64.0)):
        shift(run, "status.active", 7.0, since, until)
    divergences, (finding,) = divergences_of(run)
    assert [(one.from_s, one.to_s) for one in divergences] == [pytest.approx((40.3, 50.3)), pytest.approx((60.3, 64.3))]
    assert (finding.severity, finding.fields["most"], finding.fields["times"]) == ("info", 7, 2)


def test_the_largest_divergences_of_a_night_are_kept() -> None:
    run = a_run(1000, hold_s=600.0)
    for place in range(50):
        shift(run, "status.active", -1.0 - place, 20.0 + 10 * place, 24.0 + 10 * place)
    divergences, findings = divergences_of(run)
    assert [one.most for one in divergences] == list(range(-31, -51, -1))
    assert findings[0].fields["times"] == 20


def test_a_server_that_was_restarted() -> None:
    run = a_run(20_000)
    for sample in run.samples:
        if sample.t_s > 50 and "status.accepts" in sample.values:
            for name in ("accepts", "handled"):
                sample.values[f"status.{name}"] -= 20_001 - 3
            sample.values["status.requests"] -= next(
                one.values["status.requests"] for one in reversed(run.samples) if one.t_s < 50 and "status.requests" in one.values
            )
    result, findings = look(run)
    (finding,) = [one for one in findings if one.code == "counters_restarted"]
    assert (finding.fields["counter"], finding.fields["before"], finding.fields["after"]) == ("accepts", 20_001, 3)
    # Only three connects of others since the restart are too many; earlier counts are not lost.
    assert (result.accepts_delta, result.handled_delta) == (20_003, 20_003)
    assert [one.pair for one in result.divergences] == ["accepts"]


@pytest.mark.parametrize("restarts_s", [(50.5,), (45.5, 50.5, 55.5)])
def test_of_each_restart_the_server_s_own_last_count_is_added(restarts_s: tuple[float, ...]) -> None:
    """What a server counted that is restarted again and again adds up to what one counts that never was."""
    unbroken, run = shifted(without=REQUESTS), shifted(without=REQUESTS)
    rows = list(unbroken.series("status.requests").rows())
    for sample in run.samples:
        before = [count for t_s, count in rows if any(t_s < at_s < sample.t_s for at_s in restarts_s)]
        if before and "status.requests" in sample.values:
            sample.values["status.requests"] -= before[-1]
    result, findings = look(run)
    (restarted,) = [finding for finding in findings if finding.code == "counters_restarted"]
    assert len(restarted.fields["at_s"]) == len(restarts_s)
    assert (result.requests_delta, result.divergences) == (look(unbroken)[0].requests_delta, [])


def test_a_ramp_that_fell_behind_what_was_asked() -> None:
    run = a_run(20_000)
    for t_s, tick in run.ticks:
        if 10 < t_s <= 16:  # nothing opens for six seconds, and all of it after
            tick.held = run.ticks[4][1].held
    divergences, findings = divergences_of(run, run.plan)
    (one,), (finding,) = (
        [one for one in divergences if one.pair == "asked"],
        [one for one in findings if one.code == "parted_asked"],
    )
    assert one.closed
    assert (one.from_s, one.to_s, one.at_s) == pytest.approx((12.1, 16.1, 15.1), abs=1.01)
    assert -7000 < one.most < -4000
    assert (finding.code, finding.severity) == ("parted_asked", "info")


@pytest.mark.parametrize("cause", ["tls_timeout", "no_ports"])
def test_the_server_may_have_accepted_whose_way_back_failed(cause: str) -> None:
    """600 connects of a comeback failed in their TLS handshakes: the server had accepted them."""
    run = a_run(20_000)
    for sample in run.samples:
        if sample.t_s > 51:
            sample.values |= {name: sample.values[name] + 600 for name in ("status.accepts", "status.handled") if name in sample.values}
    for t_s, tick in run.ticks:
        if 50 < t_s <= 51:
            tick.events[1] = EventCounts(chosen=1, attempts=601, opened=1, failures={cause: 600})
    result, _ = look(run)
    assert result.agrees == (cause == "tls_timeout")


@pytest.mark.parametrize("event", [None, 1, CHURN])
def test_who_an_event_ends_is_no_lag_behind_the_plan(event: int | None) -> None:
    run = a_run(20_000)
    for t_s, tick in run.ticks:
        if 50 < t_s <= 54:
            tick.held -= 5_000
        if 50 < t_s <= 51 and event is not None:
            tick.events[event] = EventCounts(chosen=5_000, ended=5_000)
        if 54 < t_s <= 55 and event is not None:
            tick.events[event] = EventCounts(attempts=5_000, opened=5_000)
            tick.events[event].back_ms.counts[bucket(4_000)] = 5_000
    _, findings = divergences_of(run, run.plan)
    assert [one.code for one in findings if one.code == "parted_asked"] == ["parted_asked"] * (event is None)


@pytest.mark.parametrize(("back", "behind"), [(5_000, 0), (4_000, 1_000)])
def test_who_stays_away_after_events_is_theirs_until_the_end(back: int, behind: int) -> None:
    """Of whom an event ended, the rest is not back: told with it. Of those who had been back, 1,000 are missing."""
    run = a_run(20_000)
    for t_s, tick in run.ticks:
        if 50 < t_s <= 51:
            tick.events[1] = EventCounts(chosen=5_000, ended=5_000)
        if 53 < t_s <= 54:
            tick.events[1] = EventCounts(attempts=back, opened=back)
            tick.events[1].back_ms.counts[bucket(3_000)] = back
        if 50 < t_s <= 53:
            tick.held -= 5_000
        if 53 < t_s <= run.phases[3].start_s:
            tick.held -= 5_000 - back + behind
    _, findings = divergences_of(run, run.plan)
    assert [one.fields["most"] for one in findings if one.code == "parted_asked"] == [-behind] * (behind > 0)


def test_who_is_heard_again_in_a_second_was_silent_until_then() -> None:
    """The server held all of them all the while, and pages come twice a second."""
    run = a_run(20_000)
    [heard_s] = [t_s for t_s, _ in run.ticks if 54 < t_s <= 55]
    for t_s, tick in run.ticks:
        if 50 < t_s <= 51:
            tick.events[1] = EventCounts(chosen=5_000, ended=5_000, silenced=5_000)
        if t_s == heard_s:
            tick.events[1] = EventCounts(attempts=5_000, returned=5_000)
        if 50 < t_s <= 54:
            tick.held -= 5_000
    samples = []
    for sample in run.samples:
        samples.append(sample)
        if abs(sample.t_s - heard_s) < 3:
            samples.append(msgspec.structs.replace(sample, t_s=sample.t_s + 0.5, values=dict(sample.values)))
    run.samples = samples
    divergences, _ = divergences_of(run, run.plan)
    assert [one for one in divergences if one.pair == "held"] == []


@pytest.mark.parametrize(
    ("fewer", "lost", "failed", "status", "reported"),
    [
        # Without reopening; without a page only the asked number is compared.
        (3, 0, 0, True, True),
        (3, 0, 0, False, True),
        # Losses and failures have other findings.
        (30, 20, 10, True, False),
        (30, 20, 0, True, True),
    ],
)
def test_connections_that_stay_fewer_than_asked(fewer: int, lost: int, failed: int, status: bool, reported: bool) -> None:
    run = a_run(20_000, status=status)
    for t_s, tick in run.ticks:
        if 50 < t_s <= run.phases[3].start_s:
            tick.held -= fewer
    run.ticks[45][1].deaths, run.ticks[45][1].failures = {"reset": Deaths(count=lost)}, {"no_ports": failed}
    divergences, findings = divergences_of(run, run.plan)
    behind = [(one.most, one.closed) for one in divergences if one.pair == "asked"]
    assert behind == [(-fewer, False)]
    assert [one.fields["most"] for one in findings if one.code == "parted_asked"] == [-fewer] * reported


# Server and client simulated connection by connection, each read at its own instants.


def simulated(seed: int, vanish: int = 0) -> Run:
    """A minute in which connections open and close at random; the server does not count ``vanish`` of them from 30 to 36 s.

    The server hears of an opening or a close up to 20 ms before or after the client, and of a request up to 20 ms before
    its answer; pages are read up to half a second after their second, and ticks are closed on theirs.
    """
    noise = random.Random(seed)
    t0, stop = 5.1, 65.0
    opens = sorted([t0 + noise.uniform(0, 20) for _ in range(noise.choice((200, 2000)))])
    closes = sorted(noise.uniform(26, stop) for _ in range(noise.choice((0, 5, 300))))
    opens = sorted([*opens, *(at + noise.uniform(0.05, 1.0) for at in closes)])
    beats = sorted(noise.uniform(t0, stop) for _ in range(3000))

    def heard(instants: Sequence[float]) -> list[float]:
        return sorted(at + noise.uniform(-0.02, 0.02) for at in instants)

    served = sorted(at - noise.uniform(0, 0.02) for at in beats)
    accepted, closed = heard(opens), heard(closes)
    ticks = []
    for second in range(1, 62):
        t_s = t0 + second
        before = t_s - 1
        counted = {
            name: bisect_right(all_, t_s) - bisect_right(all_, before)
            for name, all_ in (("opened", opens), ("lost", closes), ("beats", beats))
        }
        tick = Tick(
            second=second, held=bisect_right(opens, t_s) - bisect_right(closes, t_s), opened=counted["opened"],
            sent=counted["beats"], answered=counted["beats"], deaths={"reset": Deaths(count=counted["lost"])} if counted["lost"] else {},
        )  # fmt: skip
        ticks.append((t_s, tick))
    samples = []
    for second in range(67):
        t_s = float(second)
        read = t_s + noise.uniform(0, 0.5)
        gone = vanish if 30 <= t_s < 36 else 0
        accepts = 77.0 + bisect_right(accepted, read)
        samples.append(
            Sample(t_s, {
                "status.active": 1.0 + bisect_right(accepted, read) - bisect_right(closed, read) - gone,
                "status.accepts": accepts, "status.handled": accepts, "status.polls": float(second + 1), "status.connects": 1.0,
                "status.requests": 900.0 + bisect_right(served, read) + second + 1,
            })
        )  # fmt: skip
    phases = [Phase("baseline", 0, t0), Phase("ramp", t0, 25.2), Phase("hold", 25.2, stop), Phase("drain", stop, 66.0)]
    plan = Plan(urls=("http://127.0.0.1/",), connections=1)
    return Run("", "", plan, {}, phases, ticks, samples, [], [], complete=False)


def test_no_false_and_no_missed_divergence_in_forty_runs() -> None:
    for seed in range(40):
        assert divergences_of(simulated(seed))[0] == [], seed
        # More than can open and close within two seconds.
        (one,) = divergences_of(simulated(seed, vanish=60))[0]
        assert (one.pair, one.closed) == ("held", True)
        assert (one.from_s, one.to_s) == (30.0, 36.0)
        assert abs(one.most + 60) <= 12


def test_connections_asked_follow_the_schedule_up_to_the_drain() -> None:
    run = a_run(20_000, plateaus=3, plateau_s=4.0)
    asked = asked_over_time(run)
    schedule = Ramp(20_000, run.plan.batch, run.plan.interval_s, 3, 4.0)
    start, stop = run.phases[1].start_s, run.phases[3].start_s
    for t_s, count in asked.rows():
        due = sum(schedule.size(j) for j in range(schedule.batches) if schedule.due_s(j) <= t_s - start)
        assert count == (due if t_s < stop else 0)
    assert max(asked.values) == 20_000
    assert len(asked_over_time(bare_run())) == 0


def test_sockets_of_other_clients_are_no_connections_of_an_earlier_run() -> None:
    """A page may count connections that are gone; what the kernel counts at the server's ports somebody holds."""
    run = a_run(20_000)
    shift(run, "status.active", 500.0, since_s=0.0)
    for sample in run.samples:
        sample.values["server.sockets"] = sample.values.get("status.active", 501.0) - 1.0
    why = next(one.fields["beyond"] for one in look(run)[1] if one.code == "reconcile_held")
    assert (why["before"], why["others"]) == (0, True)


def of_a_new_caddy(requests_before: float = 0.0) -> Run:
    """Its page has no row of requests before the first one."""
    run = a_run(1000, hold_s=20.0, batch=10, interval_s=0.1)
    without(run, "status.active", "status.accepts", "status.handled")
    run.plan = msgspec.structs.replace(run.plan, status_url=None, server_metrics=("http://127.0.0.1:2019/metrics",))
    for sample in run.samples:
        sample.values["probe.metrics"] = 0.002
        if "status.requests" in sample.values:
            sample.values["status.requests"] += requests_before - 5000.0
    if not requests_before:
        without(run, "status.", until_s=run.first_connect_s + 1.0)
    return run


def test_a_counter_without_a_row_before_the_first_connect_was_zero() -> None:
    for run in (of_a_new_caddy(), of_a_new_caddy(requests_before=700.0)):
        totals = fold(run)
        result, findings = reconcile(run, totals)
        assert result.agrees is True, findings
        assert result.requests_delta is not None
        assert result.requests_delta >= totals.whole.answered


def test_one_whose_page_was_not_read_before_is_unknown() -> None:
    run = without(of_a_new_caddy(), "probe.metrics", until_s=7.0)
    result, [unknown] = reconcile(run, fold(run))
    assert (result.agrees, unknown.code) == (None, "reconciliation_unknown")


def test_one_that_comes_with_more_than_ours_had_no_value_before_for_another_reason() -> None:
    """It may have been NaN."""
    run = of_a_new_caddy(requests_before=5_000.0)
    without(run, "status.", until_s=run.first_connect_s + 1.0)
    result, [unknown] = reconcile(run, fold(run))
    assert (result.agrees, unknown.code) == (None, "reconciliation_unknown")


def test_what_is_open_is_compared_where_the_counters_are_of_no_use() -> None:
    run = of_a_new_caddy(requests_before=5_000.0)
    without(run, "status.", until_s=run.first_connect_s + 1.0)
    run.environment["server"]["metrics"] = [{"url": "http://127.0.0.1:2019/metrics", "descriptors_by": "process_open_fds"}]
    for sample in run.samples:
        held = 0.0 if sample.t_s >= run.stop_s else run.held.at(sample.t_s) or 0.0
        sample.values["runtime.descriptors"] = 10.0 + held
    result, [counted] = reconcile(run, fold(run))
    assert (result.agrees, result.server_active, result.requests_delta) == (True, 1000, None)
    assert counted.code == "counted_by_values"


def test_a_counter_that_has_missed_requests_since_its_first_row_disagrees() -> None:
    run = of_a_new_caddy()
    raised(run, -50.0, "status.requests")
    result, findings = reconcile(run, fold(run))
    assert result.agrees is False
    assert "reconcile_requests" in [finding.code for finding in findings]
