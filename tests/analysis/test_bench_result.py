"""Figures, findings and verdict of a bench, on synthetic runs."""

from __future__ import annotations

from typing import Any

import pytest
from contract import BENCH, keys_match, parse
from hypothesis import given
from hypothesis import strategies as st

from asyncli.analysis.bench_result import BenchResult, evaluate_bench
from asyncli.app.bench import bench_results
from asyncli.core.histogram import Histogram
from asyncli.model.benchplan import BenchPlan, BenchRun, build_bench_plan
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer
from asyncli.model.records import STOLEN, Asked, CpuShares, Deaths, Ended, Finding, Sample, Tick
from asyncli.report.bench_report import one_line, tick_line, to_json

URL = "http://127.0.0.1:80/"


def histogram(*values: float) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


def a_run(
    *, plan: dict[str, Any] | None = None, cpu_s: float = 1.0, server_s: float | None = 1.0, workers: int = 1,
    complete: bool = True, ended: Ended = "asked", asked: Asked | None = None, cpus_before: CpuShares | None = None,
    cpus: CpuShares | None = None, **tick: Any,
) -> BenchRun:  # fmt: skip
    """By default two seconds with 1,000 requests that were answered in 100 to 1,099 us."""
    latency = histogram(*range(100, 1100))
    fields = {"started": 4, "opened": 4, "sent": 1000, "answered": 1000, "by_status": {200: 1000}, "latency_us": latency} | tick
    total = Tick(**fields, asked=asked or Asked(keepalive=1000, body_bytes=5000, waiting_us=latency, processing_us=latency))
    samples = [] if server_s is None else [Sample(t_s, {"server.cpu_s": 5 + used}) for t_s, used in ((0.0, 0.0), (2.0, server_s))]
    return BenchRun(
        plan=BenchPlan(urls=(URL,), **({"duration_s": 2.0} if plan is None else plan)),
        started="2026-01-01T00:00:00+00:00", elapsed_s=2.0, workers=workers, cpu_s=(cpu_s / 4, 3 * cpu_s / 4), complete=complete,
        ended=ended, total=total, ticks=[(1.0, total)], samples=samples, findings=[], environment={"server": {"label": "nginx/1.0"}},
        cpus_before=cpus_before, cpus=cpus,
    )  # fmt: skip


def codes(found: BenchResult) -> list[str]:
    return [one.code for one in found.findings]


@pytest.mark.parametrize(("limit", "verdict"), [("latency_ms.p99 > 1ms", "invalid"), ("latency_ms.p99 > 1us", "failed"), ("latency_ms.p99 > 1s", "passed")])
def test_a_limit_that_only_the_lateness_of_asyncli_crosses_makes_a_bench_invalid(limit: str, verdict: str) -> None:
    late = {"latency_us": histogram(*[1500] * 1000), "lateness_us": histogram(*[1400] * 1000)}
    run = a_run(plan={"duration_s": 2.0, "rate": 500.0, "fail_if": (limit,)}, **late)
    assert bench_results(run).verdict == verdict


def test_figures() -> None:
    found = evaluate_bench(a_run(connect_us=histogram(10, 20, 30, 40)))
    assert found.verdict == "passed"
    assert (found.requests.total, found.requests.per_s, found.requests.keepalive) == (1000, 500.0, 1000)
    total = found.times_ms["total"]
    # 100 to 1,099 us evenly: mean 599.5, standard deviation 1000 / sqrt(12).
    assert (total.min, total.max) == (0.1, 1.099)
    assert total.mean == pytest.approx(0.5995, rel=0.01)
    assert total.sd == pytest.approx(0.2887, rel=0.02)
    assert total.median == pytest.approx(0.5995, rel=0.01)
    connect = found.times_ms["connect"]
    assert (connect.min, connect.mean, connect.max) == (0.01, 0.025, 0.04)
    assert found.percentiles_ms["90"] == pytest.approx(0.9995, rel=0.01)
    assert found.percentiles_ms["100"] == found.latency_ms.max == 1.099
    assert (found.generator.cpu_us_per_request, found.generator.cores) == (1000.0, 0.5)
    assert (found.server.cpu_us_per_request, found.server.cores) == (1000.0, 0.5)
    document = parse(to_json(found))
    # The keys of --fail-if and of the reference are those of the file.
    assert {*document} == {"schema", *BenchResult.__struct_fields__} - {"tls"}
    keys_match(document, BENCH, whole=False)
    assert next(iter(document)) == "schema"
    assert one_line(found).startswith(f"passed: {found.why}; p50")


@given(st.lists(st.one_of(st.integers(0, 10**8), st.integers(10**6, 10**6 + 2000)), min_size=1))
def test_the_times_of_one_row_agree(values: list[int]) -> None:
    found = evaluate_bench(a_run(latency_us=histogram(*values)))
    one, shares = found.times_ms["total"], [*found.percentiles_ms.values()]
    assert one.min <= min(one.mean, one.median, *shares)
    assert max(one.mean, one.median, *shares) <= one.max
    assert (one.sd > 0, one.sd <= (one.max - one.min) / 2 * (1 + 1e-9), shares[0]) == (one.max > one.min, True, one.median)


@pytest.mark.parametrize(
    ("made", "verdict", "code"),
    [
        ({"cpu_s": 1.7}, "passed", None),
        ({"cpu_s": 1.9, "server_s": 0.5}, "invalid", "generator_saturated_cpu"),
        ({"cpu_s": 1.9, "server_s": None}, "invalid", "generator_saturated_cpu"),
        ({"cpu_s": 1.9, "server_s": 1.8}, "passed", "both_busy"),
        ({"cpu_s": 1.9, "workers": 2}, "passed", None),
        # Error answers are the server's, however busy asyncli was.
        ({"cpu_s": 1.9, "server_s": 0.5, "by_status": {200: 900, 500: 100}}, "failed", "generator_saturated_cpu"),
        ({"ended": "stopped"}, "passed", "stopped_by_user"),
        ({"cpu_s": 3.7, "workers": 2}, "invalid", "generator_saturated_cpu"),
        ({"by_status": {200: 999, 503: 1}}, "failed", "error_answers"),
        ({"by_status": {304: 1000}}, "passed", None),
        ({"asked": Asked(failed={"reset": 1})}, "failed", "requests_failed"),
        ({"asked": Asked(left=7), "plan": {"requests": 1007}, "ended": "stopped"}, "failed", "stopped_by_user"),
        ({"asked": Asked(left=7), "plan": {"requests": 1007, "duration_s": 2.0}, "ended": "time"}, "passed", "requests_left"),
        ({"asked": Asked(left=7), "plan": {"requests": 1007}, "ended": "gave up"}, "failed", "gave_up"),
        ({"ended": "gave up"}, "failed", "gave_up"),
        # In flight as long as the slowest answer took, and much longer.
        ({"asked": Asked(in_flight=2, outstanding_us=histogram(900, 1200))}, "passed", None),
        ({"asked": Asked(in_flight=2, outstanding_us=histogram(900, 50_000))}, "passed", "unanswered_at_end"),
        ({"asked": Asked(in_flight=2, outstanding_us=histogram(900, 1_500_000))}, "failed", "unanswered_at_end"),
        ({"by_status": {301: 1000}}, "passed", "redirected"),
        ({"plan": {"requests": 1000, "short": True}, "asked": Asked(keepalive=1000)}, "passed", "close_ignored"),
        ({"failures": {"refused": 3}}, "passed", "connects_failed"),
        ({"answered": 0, "opened": 0, "by_status": {}, "failures": {"refused": 3}}, "untested", "connects_failed"),
        ({"answered": 0, "by_status": {}, "plan": {"duration_s": 2.0, "rate": 500.0}, "lateness_us": histogram(50_000)}, "untested", "generator_saturated_late"),
        ({"asked": Asked(resent=7)}, "passed", "requests_resent"),
        ({"deaths": {"closed_announced": Deaths(3, requests=histogram(1, 1, 1))}}, "passed", "connections_ended"),
        ({"asked": Asked(other_length=7)}, "passed", "lengths_differ"),
        ({"deaths": {"closed_announced": Deaths(3, requests=histogram(100, 100, 100))}}, "passed", "connections_ended"),
        ({"plan": {"duration_s": 2.0, "rate": 500.0}, "lateness_us": histogram(50)}, "passed", None),
        ({"plan": {"duration_s": 2.0, "rate": 500.0}, "lateness_us": histogram(50_000)}, "invalid", "generator_saturated_late"),
        ({"plan": {"duration_s": 2.0, "rate": 900.0}}, "failed", "rate_missed"),
        ({"plan": {"duration_s": 2.0, "rate": 500.0}, "asked": Asked(queued=11)}, "passed", "requests_queued"),
    ],
    ids=str,
)
def test_verdict_of_each_finding(made: dict[str, Any], verdict: str, code: str | None) -> None:
    found = evaluate_bench(a_run(**made))
    assert found.verdict == verdict
    assert codes(found)[:1] == ([] if code is None else [code])
    if verdict == "invalid":
        assert found.findings[0].evidence == found.why


def test_short_runs_and_own_late_tails_are_reported() -> None:
    run = a_run()
    run.elapsed_s = 0.01
    assert codes(evaluate_bench(run)) == ["short_run"]
    late = {"plan": {"duration_s": 2.0, "rate": 500.0}, "latency_us": histogram(*[9000] * 1000)}
    assert codes(evaluate_bench(a_run(**late, lateness_us=histogram(2000)))) == []
    assert codes(evaluate_bench(a_run(**late, lateness_us=histogram(4000)))) == ["late_tail"]


def test_several_urls_have_counts_and_cpu_of_one_server() -> None:
    run = a_run(asked=Asked(by_target={0: 990, 1: 10}))
    run.plan = BenchPlan(urls=(URL, "http://127.0.0.1:81/x"), duration_s=2.0)
    found = evaluate_bench(run)
    assert found.requests.by_url == {URL: 990, "http://127.0.0.1:81/x": 10}
    assert codes(found) == ["several_urls", "several_servers"]
    run.plan = BenchPlan(urls=(URL, f"{URL}x"), duration_s=2.0)
    assert codes(evaluate_bench(run)) == ["several_urls"]


def test_only_errors_of_asyncli_make_a_bench_invalid() -> None:
    run = a_run()
    run.findings = [Finding("generator_memory_slowed", "info", "one reading takes 3 ms")]
    assert evaluate_bench(run).verdict == "passed"
    run.findings = [Finding("worker_lost", "error", "worker 0 was killed")]
    assert evaluate_bench(run).verdict == "invalid"
    # asyncli's errors come first, also without any answer.
    run = a_run(answered=0, sent=0, by_status={}, latency_us=Histogram(), asked=Asked())
    run.findings = [Finding("generator_failed", "error", "the host ended")]
    assert evaluate_bench(run).verdict == "invalid"


def test_an_empty_run_divides_by_zero_nowhere() -> None:
    run = a_run(answered=0, sent=0, opened=0, by_status={}, latency_us=Histogram(), asked=Asked(), server_s=None, cpu_s=0.0)
    run.elapsed_s = 0.0
    found = evaluate_bench(run)
    assert found.verdict == "untested"
    assert (found.requests.per_s, found.generator.cores, found.latency_ms.p50) == (0.0, None, None)
    assert "NaN" not in to_json(found)


def test_one_line_for_a_second() -> None:
    tick = Tick(answered=1234, latency_us=histogram(500), failures={"refused": 2}, asked=Asked(failed={"reset": 1}))
    line = "0:00:03      1,234 answered  p50 0.500 ms  p99 0.500 ms  1 failed  2 connects failed"
    assert tick_line(3.0, tick) == line


def test_default_values_of_a_plan() -> None:
    def plan(**values: object) -> BenchPlan:
        return build_bench_plan([Layer("--{key}", {"urls": [URL], **values})])

    assert (plan().duration_s, plan().requests, plan().method) == (10.0, None, "GET")
    assert plan(requests="100k").duration_s is None
    assert (plan(body="{}").method, plan(body="{}", method="PUT").method) == ("POST", "PUT")
    assert plan(rate="500/s").rate == plan(rate=500).rate == 500.0
    assert plan(connections="2k").held.connections == 2000
    with pytest.raises(PlanError, match="no URL given"):
        build_bench_plan([])
    with pytest.raises(PlanError, match="unknown key; the keys are"):
        plan(hold="1s")


def used(busy: float = 2.0, **others: float) -> CpuShares:
    return CpuShares(2, busy, others, dict.fromkeys(others, (7, 8)))


@pytest.mark.parametrize(
    ("made", "before", "during", "verdict", "severity"),
    [
        # Busy loops from before the run.
        ({"cpu_s": 0.4, "server_s": 0.38}, used(loop=2.0), used(loop=1.6), "invalid", "error"),
        ({"cpu_s": 0.4, "server_s": None}, used(loop=2.0), used(loop=1.6), "invalid", "error"),
        ({"cpu_s": 1.4, "server_s": 1.4}, used(loop=1.0), used(loop=0.6), "invalid", "error"),
        ({"cpu_s": 0.4, "plan": {"duration_s": 2.0, "rate": 500.0}}, used(loop=2.0), used(loop=1.6), "invalid", "error"),
        ({"cpu_s": 0.4, "by_status": {200: 900, 500: 100}}, used(loop=2.0), used(loop=1.6), "failed", "error"),
        # The server, or server and asyncli, had their CPUs.
        ({"cpu_s": 0.8, "server_s": 1.8}, used(loop=1.0), used(loop=0.7), "passed", "warning"),
        ({"cpu_s": 1.9, "server_s": 1.8}, used(loop=1.0), used(loop=0.3), "passed", "warning"),
        # Load that rose with the bench may be the server's backend.
        ({"cpu_s": 0.3, "server_s": 0.3}, used(0.1), used(php=1.7), "passed", "warning"),
        ({"cpu_s": 0.3, "server_s": 0.3}, used(0.2, php=0.1), used(php=1.7), "passed", "warning"),
        # A host with idle CPUs, and small loads.
        ({"cpu_s": 0.4, "server_s": 0.4}, used(loop=1.0), used(1.5, loop=1.0), "passed", None),
        ({"cpu_s": 1.7, "server_s": 1.6}, used(loop=1.0), used(loop=0.15), "passed", None),
        ({"cpu_s": 0.4, "server_s": 0.4}, None, None, "passed", None),
    ],
    ids=str,
)
def test_cpus_used_by_other_programs(
    made: dict[str, Any], before: CpuShares | None, during: CpuShares | None, verdict: str, severity: str | None
) -> None:
    found = evaluate_bench(a_run(**made, cpus_before=before, cpus=during))
    assert (found.verdict, [one.severity for one in found.findings if one.code == "host_busy"]) == (verdict, [severity] if severity else [])


def test_a_limit_on_a_status_replaces_the_rule_for_it() -> None:
    run = a_run(by_status={200: 990, 404: 9, 503: 1})
    found = [evaluate_bench(run, [f"requests.by_status.{one}" for one in limited]) for limited in ((), (404,), (404, 503))]
    assert [one.verdict for one in found] == ["failed", "failed", "passed"]
    assert [one.fields["by_status"] for each in found for one in each.findings] == [{404: 9, 503: 1}, {503: 1}]
    assert "404: 9" in found[2].why


def test_stolen_cpu_time_is_reported() -> None:
    during = CpuShares(2, 2.0, {"cc1": 0.9, STOLEN: 0.5, "sshd": 0.01}, {"cc1": (4, 5, 6, 7, 8), "sshd": (9,)})
    found = evaluate_bench(a_run(cpu_s=0.4, server_s=0.38, cpus_before=used(cc1=1.0), cpus=during))
    (busy,) = [one for one in found.findings if one.code == "host_busy"]
    takers = [(one["name"], one["pids"], one["cores"]) for one in busy.fields["takers"]]
    assert (found.verdict, found.why, takers) == ("invalid", busy.evidence, [("cc1", [4, 5, 6, 7, 8], 0.9), (STOLEN, [], 0.5)])
    assert parse(to_json(found))["host"]["others_cores"] == pytest.approx(1.41)


@pytest.mark.parametrize(("before", "rate", "from_before", "reached"), [(0.3, None, True, False), (0.1, None, False, False), (2.0, 500.0, True, True)])
def test_cores_of_others_are_one_number(before: float, rate: float | None, from_before: bool, reached: bool) -> None:
    found = evaluate_bench(a_run(cpu_s=0.4, server_s=0.4, cpus_before=used(loop=before), cpus=used(1.98, loop=1.58), plan={"duration_s": 2.0, "rate": rate}))
    (finding,) = [one for one in found.findings if one.code == "host_busy"]
    assert (finding.fields["others_cores"], finding.fields["before"], finding.fields["reached"]) == (1.58, from_before, reached)
    assert found.host.others_cores == 1.58
