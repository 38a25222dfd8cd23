"""How often differences are found that exist, and that do not: counted on numbers whose truth is known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from operator import attrgetter
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.special import stdtrit
from synthetic_run import SERVER, a_run, cut, raised, without

from asyncli.analysis import estimates, measured
from asyncli.analysis.compare import ROW_OF, Comparison, Difference, _judge, compare, differing, hindrance
from asyncli.analysis.estimates import Estimate, Rate, Repeat, contrast, holm, rates_differ
from asyncli.analysis.measured import MeasuredRun, connection_hours, measure
from asyncli.core.histogram import Histogram
from asyncli.findings.compare import in_words
from asyncli.model.records import Deaths, Gap, Sample, Tick
from asyncli.model.run import Hold, Run
from asyncli.report.differences import amounts, headline
from asyncli.report.summary import summarise

LATENCY = attrgetter("latency_us")


def compared(*runs: Run) -> Comparison:
    return compare([measure(name, f"{name}.db", run) for name, run in zip("ABCDEFG", runs, strict=False)])


def row(comparison: Comparison, key: str, second: str = "B") -> Difference:
    return next(one for one in comparison.differences if one.key == key and one.between[1] == second)


def codes(comparison: Comparison) -> set[str]:
    return {one.code for one in comparison.findings}


def fields(comparison: Comparison, code: str) -> dict[str, Any]:
    """The fields of the first finding with this code."""
    return next(one.fields for one in comparison.findings if one.code == code)


def finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return all(map(finite, value)) if isinstance(value, list | tuple) else True


def of_normal(rng: np.random.Generator, mean: float, deviation: float, m: int) -> Estimate:
    x = rng.normal(mean, deviation, m)
    half = float(stdtrit(m - 1, 0.975)) * float(x.std(ddof=1)) / math.sqrt(m)
    return Estimate(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, m - 1)


@pytest.mark.parametrize(("first", "second"), [((1, 8), (1, 8)), ((1, 4), (3, 20)), ((2, 3), (2, 3))])
def test_coverage_of_the_interval_of_a_difference(first: tuple[int, int], second: tuple[int, int]) -> None:
    rng, trials = np.random.default_rng(1), 1000
    inside = 0
    for _ in range(trials):
        low, high, p = contrast(of_normal(rng, 5, *first), of_normal(rng, 7, *second))
        inside += low <= 2 <= high
        assert (low <= 0 <= high) == (p > 0.05) or abs(p - 0.05) < 1e-6
    # Three standard errors of a count of 1,000 at 95 % are 2 %; Welch's method adds some error with three points.
    assert 0.925 <= inside / trials <= 0.975


def test_differences_by_hand() -> None:
    a, b = Estimate(100, 99, 101, 20), Estimate(110, 109, 111, 20)
    narrow, wide = contrast(a, b), contrast(a, b, Repeat(0.05))
    assert wide[0] < narrow[0] < 10 < narrow[1] < wide[1]
    assert narrow[2] < 0.001 < wide[2]
    # 0.05 of a hundred is five.
    assert contrast(a, a, Repeat(0.05)) == pytest.approx(contrast(a, a, Repeat(absolute=5.0)))
    # B may be much higher than its estimate, and hardly lower: that widens the interval only upwards.
    low, high, _ = contrast(Estimate(10, 9, 11), Estimate(12, 11.9, 20))
    assert low == pytest.approx(2 - math.hypot(0.1, 1))
    assert high == pytest.approx(2 + math.hypot(8, 1))
    # Without noise.
    assert contrast(Estimate(5, 5, 5, 9), Estimate(5, 5, 5, 9)) == (0, 0, 1)
    assert contrast(Estimate(5, 5, 5, 9), Estimate(6, 6, 6, 9)) == (1, 1, 0)


def wandering(seconds: int, rate: int, phi: float, deviation: float, rng: np.random.Generator) -> Hold:
    """Latencies (us) whose mean wanders from second to second, correlated by ``phi``."""
    ticks, z = [], rng.normal() * deviation
    for second in range(seconds):
        z = phi * z + math.sqrt(1 - phi**2) * deviation * rng.normal()
        histogram = Histogram()
        for value in np.exp(rng.normal(math.log(500) + z, 0.5, rate)):
            histogram.add(value)
        ticks.append((second + 1.0, Tick(latency_us=histogram)))
    return Hold(0.0, float(seconds), ticks)


@pytest.mark.parametrize(("seconds", "rate", "phi", "deviation"), [(60, 100, 0.0, 0.0), (120, 40, 0.5, 0.2)])
def test_coverage_of_the_interval_of_a_quantile(seconds: int, rate: int, phi: float, deviation: float) -> None:
    rng = np.random.default_rng(3)
    counts = {0.5: [0, 0], 0.99: [0, 0]}
    for _ in range(100):
        stretches = estimates.by_stretch(wandering(seconds, rate, phi, deviation, rng), LATENCY, "answered")
        for q, count in counts.items():
            found = estimates.quantile(stretches, q)
            if isinstance(found, Estimate):
                truth = 0.5 * math.exp(math.hypot(0.5, deviation) * NormalDist().inv_cdf(q))
                count[0] += found.low <= truth <= found.high
                count[1] += 1
    for q, (inside, known) in counts.items():
        assert known >= 85, q
        assert inside / known >= 0.9, q


def test_a_quantile_with_few_answers_is_unknown() -> None:
    rng = np.random.default_rng(4)
    few = estimates.quantile(estimates.by_stretch(wandering(60, 20, 0, 0, rng), LATENCY, "answered"), 0.999)
    # One stall in one stretch has all of the slowest answers.
    hold = wandering(60, 300, 0, 0, rng)
    for _ in range(200):
        hold.ticks[30][1].latency_us.add(900_000)
    stalled = estimates.quantile(estimates.by_stretch(hold, LATENCY, "answered"), 0.999)
    assert isinstance(few, str)
    assert isinstance(stalled, Estimate)
    assert (stalled.low < 100, stalled.value > 800, stalled.high) == (True, True, math.inf)


def stalled(run: Run, seconds: range, late_us: int) -> Run:
    """``run`` with half the answers of these seconds of the hold so late."""
    for second in seconds:
        _, tick = run.hold.ticks[second]  # type: ignore[union-attr]
        tick.latency_us.add_counts({late_us: tick.latency_us.count // 2})
    return run


@pytest.mark.parametrize("order", [1, -1])
def test_a_stall_of_one_run_is_shown_and_not_said_to_repeat(order: int) -> None:
    runs = [a_run(20_000, hold_s=60.0), stalled(a_run(20_000, hold_s=60.0, seed=2), range(30, 35), 4_690_000)]
    found = row(compared(*runs[::order]), "latency.p99")
    assert (found.verdict, found.ci95, found.ratio > 1000, found.p_value is not None) == ("cannot_say", None, True, True)
    assert found.difference == pytest.approx(order * 4690, rel=0.02)
    # A stall in every part of the hold is no accident of it.
    runs[1] = stalled(a_run(20_000, hold_s=60.0, seed=2), range(60), 4_690_000)
    assert row(compared(*runs[::order]), "latency.p99").verdict == ("higher" if order > 0 else "lower")


def test_numbers_far_apart_are_not_called_alike() -> None:
    """However wide their intervals are."""
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    first, second = (measure(name, f"{name}.db", run) for name, run in zip("AB", runs, strict=True))
    for value, verdict in ((150.0, "no_difference"), (250.0, "cannot_say"), (40.0, "cannot_say")):
        first.numbers["cpu.per_request"], second.numbers["cpu.per_request"] = Estimate(100, -900, 1100, 9), Estimate(value, -900, 1100, 9)
        assert row(compare([first, second]), "cpu.per_request").verdict == verdict


def test_at_the_holds_end_is_one_number_of_report_and_comparison() -> None:
    run = a_run(20_000, hold_s=60.0)
    for sample in run.samples:
        sample.values["server.pss_bytes"] += 1e6 * sample.t_s
    level = measure("A", "a.db", run).numbers["memory.server_hold_end"]
    assert isinstance(level, Estimate)
    assert level.value == summarise(run).server.pss_bytes.hold_end


def test_coverage_of_the_interval_of_a_level() -> None:
    phi, rng, inside = 0.5, np.random.default_rng(5), 0
    for _ in range(1000):
        x = [rng.normal()]
        for _ in range(59):
            x.append(phi * x[-1] + math.sqrt(1 - phi**2) * rng.normal())
        found = estimates.last_of(x)
        inside += found.low <= 0 <= found.high
    assert 0.92 <= inside / 1000 <= 0.98


def test_coverage_of_the_interval_of_cpu_per_request() -> None:
    rng, inside = np.random.default_rng(6), 0
    run = a_run(1000, hold_s=60.0, interval_s=0.2, keepalive_s=10.0)
    for _ in range(100):
        spent, answered = 0.0, {round(t_s, 3): tick.answered for t_s, tick in run.ticks}
        instants = sorted(answered)
        readings = []
        for t_s in instants:
            spent += answered[t_s] * 40e-6 * rng.lognormal(-0.02, 0.2)
            # The kernel counts in hundredths of a second.
            readings.append(Sample(t_s, {"server.cpu_s": math.floor(spent * 100) / 100}))
        run.samples = readings
        numbers: dict[str, measured.Measured] = {}
        measured._cpu(numbers, run)
        found = numbers["cpu.per_request"]
        assert isinstance(found, Estimate)
        inside += found.low <= 40 <= found.high
    assert 0.9 <= inside / 100 <= 0.99


def test_garwoods_interval_as_tabled() -> None:
    # Garwood 1936 as tabled by Ulm 1990 (Am. J. Epidemiol. 131): 0 -> 3.69, 1 -> 0.025-5.57, 10 -> 4.80-18.39.
    for count, low, high in ((0, 0.0, 3.69), (1, 0.0253, 5.572), (10, 4.795, 18.39)):
        found = Rate(count, 1.0).estimate()
        assert (found.low, found.high) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))
    assert Rate(10, 2.0).estimate().high == pytest.approx(18.39 / 2, abs=0.005)


@pytest.mark.parametrize(("mean", "exposures"), [(3.0, (1.0, 1.0)), (3.0, (1.0, 3.0))])
def test_equal_rates_differ_in_at_most_5_percent(mean: float, exposures: tuple[float, float]) -> None:
    a, b = (mean * exposure for exposure in exposures)
    often = [[math.exp(-rate) * rate**count / math.factorial(count) for count in range(32)] for rate in (a, b)]
    pairs = [(x, y, p * q) for x, p in enumerate(often[0]) for y, q in enumerate(often[1]) if p * q > 1e-7]
    assert sum(p for x, y, p in pairs if rates_differ(Rate(x, exposures[0]), Rate(y, exposures[1])) <= 0.05) <= 0.05


def test_rates_by_hand() -> None:
    assert rates_differ(Rate(0, 1.0), Rate(0, 1.0)) == 1.0
    # All five on one side of a fair coin: 2 in 32.
    assert rates_differ(Rate(0, 1.0), Rate(5, 1.0)) == pytest.approx(2 / 32)
    # Six in twice the time against three: no difference at all.
    assert rates_differ(Rate(3, 1.0), Rate(6, 2.0)) == pytest.approx(1.0)
    # Holm's adjustment.
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.fixture(scope="module")
def alike() -> list[MeasuredRun]:
    """Thirty runs of one server with independent noise."""
    runs = [a_run(2000, hold_s=30.0, seed=seed, interval_s=0.15, noise=0.05) for seed in range(1, 31)]
    return [measure(f"R{seed}", f"{seed}.db", run) for seed, run in enumerate(runs)]


def test_equal_runs_differ_in_at_most_5_percent(alike: list[MeasuredRun]) -> None:
    pairs = [compare([a, b]) for a, b in zip(alike[::2], alike[1::2], strict=True)]
    real = [sum(one.verdict in ("higher", "lower") for one in pair.differences) for pair in pairs]
    # Less than one of 15 pairs in the mean; four or more come by chance in less than 1 of 100.
    assert sum(map(bool, real)) <= 3
    for key in ("cost.server_user", "cost.kernel", "cost.host_total", "cost.generator_user"):
        inside = sum(one.ci95[0] <= 0 <= one.ci95[1] for pair in pairs if (one := row(pair, key, pair.runs[1].name)).ci95)
        assert inside >= 12, key


@pytest.mark.parametrize(("more", "verdict"), [(60.0, "higher"), (-60.0, "lower")])
def test_a_higher_cost_is_found(more: float, verdict: str) -> None:
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    changed(runs[1], more)
    comparison = compared(*runs)
    server = row(comparison, "cost.server_user")
    assert server.verdict == verdict
    assert server.ci95[0] <= more <= server.ci95[1]
    assert server.relative == pytest.approx(more / SERVER, abs=0.03)
    for key in ("cost.kernel", "cost.generator_user", "lost", "failed"):
        assert row(comparison, key).verdict == "no_difference", key


def changed(run: Run, more: float) -> None:
    """Let the server use ``more`` bytes per connection, and the host with it."""
    raised(run, 0, "server.pss_bytes", "host.used_bytes", each=more).id = "another"


def test_a_difference_in_the_residual_is_no_difference_of_the_host() -> None:
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    # Another program that took memory at the ramp's pace.
    raised(runs[1], 0, "host.used_bytes", each=900.0)
    host = row(compared(*runs), "cost.host_total")
    assert (host.verdict, host.p_value < 0.01) == ("cannot_say", True)
    assert host.why.startswith("8")
    # So much of it is in the interval of the total.
    raised(runs[1], 0, "host.used_bytes", each=3800.0)
    assert row(compared(*runs), "cost.host_total").verdict == "no_difference"
    raised(runs[1], 0, "host.used_bytes", each=-3800.0)
    # If the server takes more the difference is real, whatever the residual.
    changed(runs[1], 6000.0)
    assert row(compared(*runs), "cost.host_total").verdict == "higher"


def test_losses_are_rates_per_connection_hour() -> None:
    runs = [a_run(5000, hold_s=300.0, seed=seed) for seed in (1, 2)]
    for second in range(100, 160):
        runs[1].ticks[second][1].deaths = {"closed_idle": Deaths(count=1)}
        runs[1].ticks[second][1].reopened = 1
    comparison = compared(*runs)
    lost = row(comparison, "lost")
    hours = connection_hours(runs[1])
    assert hours == pytest.approx(5000 * 302.5 / 3600, rel=0.01)
    assert lost.values == (0.0, pytest.approx(60 / hours * 1000))
    assert (lost.verdict, row(comparison, "reopened").verdict) == ("higher", "higher")
    assert lost.relative is None
    assert row(comparison, "failed").verdict == "no_difference"
    assert "compare_burst" not in codes(comparison)


def test_a_run_that_was_resumed_is_compared_without_its_interruption() -> None:
    run = a_run(1_000, hold_s=60.0)
    assert run.hold is not None
    gap = Gap(run.hold.start_s + 20.0, run.hold.start_s + 57.0)
    resumed = msgspec.structs.replace(run, gaps=[gap])
    resumed.ticks = [(t_s, tick) for t_s, tick in run.ticks if not gap.start_s < t_s <= gap.end_s]
    # As it was resumed: those that went with a process of asyncli's own, and came back.
    t_s, first_tick = next(row for row in resumed.ticks if row[0] > gap.end_s)
    first_tick = msgspec.structs.replace(first_tick, deaths={"generator_lost": Deaths(count=1_000)}, reopened=1_000)
    resumed.ticks = [(at_s, first_tick if at_s == t_s else tick) for at_s, tick in resumed.ticks]
    told = measure("A", "A.db", resumed)
    assert told.hold_s == pytest.approx(60.0 - 37.0)
    assert connection_hours(resumed) == pytest.approx(connection_hours(run) - 37.0 * 1_000 / 3600, rel=0.02)
    whole = measure("B", "B.db", a_run(1_000, hold_s=60.0))
    comparison = compare([told, whole])
    for key in ("lost", "reopened"):
        assert row(comparison, key).values == (0.0, 0.0)


def test_of_those_that_asyncli_lost_only_the_reopened_ones_are_no_replacements_of_the_server_s() -> None:
    """Ten of the server's were reopened at once. Of 200 that went with a worker in the last seconds none was, or half of them, or all."""
    told: list[object] = []
    for reopened, never_opened, too_near in ((0, 0, False), (100, 0, False), (200, 0, False), (200, 5, False), (5, 0, True)):
        run = a_run(5_000, hold_s=300.0)
        for second in range(100, 110):
            run.ticks[second][1].deaths = {"closed_idle": Deaths(count=1)}
            run.ticks[second][1].reopened = 1
        run.ticks[290][1].deaths = {"generator_lost": Deaths(count=200)}
        run.ticks[292][1].reopened = reopened + never_opened
        if too_near:
            # Five of twelve were reopened, of which two were the server's.
            run.ticks[291][1].deaths = {"closed_idle": Deaths(count=2)}
        seen = measure("A", "A.db", run).numbers["reopened"]
        told.append(seen.count if isinstance(seen, Rate) else None)
    assert told == [10, 10, 10, 10, None]


def test_an_interruption_is_left_out_whatever_was_recorded_in_it() -> None:
    """A second that ends in it has what was counted as it began; and it may have begun right before the hold."""
    run = a_run(1_000, hold_s=60.0)
    assert run.hold is not None
    hours = connection_hours(run)
    gap = Gap(run.hold.start_s + 20.0, run.hold.start_s + 57.0)
    within_s = gap.start_s + 0.5
    resumed = msgspec.structs.replace(run, gaps=[gap])
    resumed.ticks = [(t_s, tick) for t_s, tick in run.ticks if not within_s < t_s <= gap.end_s]
    resumed.ticks.append((within_s, msgspec.structs.replace(resumed.ticks[-30][1])))
    resumed.ticks.sort(key=lambda row: row[0])
    assert connection_hours(resumed) == pytest.approx(hours - 37.0 * 1_000 / 3600, rel=0.02)
    early = msgspec.structs.replace(run, gaps=[Gap(run.hold.start_s - 0.5, run.hold.start_s + 9.5)])
    assert early.held_for_s == pytest.approx(50.5)


def test_losses_in_one_burst_are_one_event() -> None:
    runs = [a_run(5000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    runs[1].ticks[40][1].deaths = {"reset": Deaths(count=400)}
    burst = fields(compared(*runs), "compare_burst")
    assert (burst["run"], burst["count"], burst["of"], round(burst["at_s"])) == ("B", 400, 400, 46)


def test_lateness_of_asyncli_is_not_the_servers_latency() -> None:
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    for _, tick in runs[1].ticks:
        for name in ("latency_us", "lateness_us"):
            doubled = Histogram({key + 64: count for key, count in getattr(tick, name).items()}, 1, 10_000)
            setattr(tick, name, doubled)
    comparison = compared(*runs)
    assert row(comparison, "lateness.p99").verdict == "higher"
    latency = row(comparison, "latency.p99")
    assert latency.relative == pytest.approx(1.0, abs=0.03)
    assert (latency.verdict, "1.8 ms" in latency.why) == ("cannot_say", True)


def test_lateness_of_a_tenth_of_a_second_is_told_as_a_duration() -> None:
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    for _, tick in runs[1].ticks:
        for name in ("latency_us", "lateness_us"):
            setattr(tick, name, Histogram({key + 64 * 6: count for key, count in getattr(tick, name).items()}, 1, 640_000))
    latency = row(compared(*runs), "latency.p99")
    assert (latency.verdict, "e+" in latency.why) == ("cannot_say", False)


def test_lateness_without_an_interval_still_counts() -> None:
    runs = [a_run(20_000, hold_s=60.0, seed=seed) for seed in (1, 2)]
    for _, tick in runs[1].ticks:
        tick.latency_us = Histogram({key + 64: count for key, count in tick.latency_us.items()}, 1, 10_000)
    # asyncli's lateness in a few seconds of the hold: too few stretches for an interval.
    for _, tick in runs[1].ticks[40:43]:
        tick.lateness_us.add_counts({240_000: 3000})
    comparison = compared(*runs)
    verdicts = [row(comparison, key).verdict for key in ("lateness.p99", "latency.p99", "latency.p50")]
    assert verdicts == ["cannot_say", "cannot_say", "higher"]


def test_a_different_plan_is_a_finding() -> None:
    runs = [a_run(20_000, hold_s=30.0), a_run(10_000, hold_s=60.0, seed=2, keepalive_s=300.0, batch=20, method="GET")]
    comparison = compared(*runs)
    first = comparison.findings[0]
    assert first.code == "compare_plan"
    differs = first.fields["differs"]
    assert {"plan.connections", "plan.keepalive_s", "plan.hold_s", "plan.ramp", "plan.method"} <= set(differs)
    assert (differs["plan.hold_s"], differs["plan.ramp"]) == ([30.0, 60.0], ["10/10ms", "20/10ms"])
    assert "plan.seed" not in differs
    memory = row(comparison, "memory.server_hold_end")
    assert (memory.verdict, "20,000" in memory.why, "10,000" in memory.why) == ("cannot_say", True, True)
    assert memory.difference is not None


@pytest.mark.parametrize(
    ("url", "more", "title"),
    [
        ("mqtt://127.0.0.1:1883", {"mqtt_version": "5"}, "MQTT"), ("http://127.0.0.1:8080/", {}, "HTTP"),
        ("http://127.0.0.1:8080/", {"http_protocol": "sse", "silence_s": 9.0}, "Server-sent events"),
    ],
)
def test_another_protocol_replaces_its_keys(url: str, more: dict[str, Any], title: str) -> None:
    runs = [a_run(20_000, hold_s=30.0, http2=True, streams=2), a_run(20_000, hold_s=30.0, seed=2, **more)]
    runs[1].plan = msgspec.structs.replace(runs[1].plan, urls=(url,))
    assert fields(compared(*runs), "compare_plan")["differs"] == {"protocol": ["HTTP/2", title]}
    runs[1].plan = msgspec.structs.replace(runs[0].plan, streams=3)
    assert fields(compared(*runs), "compare_plan")["differs"] == {"plan.streams": [2, 3]}


def test_another_host_or_version_is_a_finding() -> None:
    runs = [a_run(10_000, hold_s=30.0), a_run(10_000, hold_s=30.0, seed=2)]
    other = {"kernel": "6.1.0", "cpus": 64, "memory_bytes": 4e9, "asyncli": "0.2.0", "sysctls": {"net.core.somaxconn": "128"}}
    runs[1].environment |= {**other, "local": False}
    found = {one.code: one for one in compared(*runs).findings}
    for code, keys in (
        ("compare_host", {"kernel", "cpus", "memory_bytes", "local"}), ("compare_asyncli", {"asyncli"}), ("compare_sysctls", {"sysctls"}),
    ):  # fmt: skip
        assert found[code].severity == "warning"
        assert {name.partition(".")[0] for name in found[code].fields["differs"]} == keys


def test_host_totals_of_one_end_and_two_are_not_compared() -> None:
    comparison = compared(a_run(20_000, hold_s=30.0), a_run(20_000, hold_s=30.0, seed=2, local=False))
    assert [row(comparison, f"cost.{name}").verdict for name in ("host_total", "kernel")] == ["cannot_say", "no_difference"]


def test_another_server_is_a_difference_and_no_finding() -> None:
    runs = [a_run(20_000, hold_s=30.0), a_run(20_000, hold_s=30.0, seed=2)]
    same = compared(*runs)
    assert codes(same) == {"compare_same"}
    assert [one.key for one in same.differs] == ["plan.seed"]
    runs[1].environment["server"] = {"label": "nginx/1.27.0", "version": "1.27.0", "config_hash": "cd34"}
    other = compared(*runs)
    assert codes(other) == set()
    assert {one.key: one.values for one in other.differs}["server.config_hash"] == ["ab12", "cd34"]
    for run, seconds in zip(runs, ("75s", "1h"), strict=True):
        run.environment["server"] |= {"directives": {"http keepalive_timeout": seconds, "http sendfile": "on"}}
    named = {one.key: one.values for one in compared(*runs).differs}
    assert named["server.directives.http keepalive_timeout"] == ["75s", "1h"]
    assert not {"server.config_hash", "server.directives.http sendfile"} & set(named)
    for run in runs:
        run.environment["server"] = {"label": "the server"}
    assert not fields(compared(*runs), "compare_same")["configured"]


def test_unreliable_runs_are_findings() -> None:
    late = a_run(20_000, hold_s=30.0, seed=2)
    for _, tick in late.ticks:
        tick.longest_turn_s = 3.0
    comparison = compared(a_run(20_000, hold_s=30.0), late, a_run(20_000, hold_s=30.0, seed=3, complete=False))
    assert [one.code for one in comparison.findings[:2]] == ["compare_invalid", "compare_incomplete"]
    assert [one.fields["run"] for one in comparison.findings[:2]] == ["B", "C"]
    assert row(comparison, "latency.p50").why.startswith("B is")
    assert row(comparison, "lost").verdict == "cannot_say"
    assert row(comparison, "cost.server_user").verdict == row(comparison, "cost.kernel").verdict == "no_difference"
    shared = raised(a_run(20_000, hold_s=30.0, seed=4), 100_000, "kernel.tcp_alloc", since_s=9.0)
    company = fields(compared(a_run(20_000, hold_s=30.0), shared), "compare_company")
    assert (company["run"], company["others"]) == ("B", 100_000)


def no_beats(run: Run) -> None:
    for _, tick in run.ticks:
        tick.sent = tick.answered = 0
        tick.latency_us, tick.lateness_us = Histogram(), Histogram()


BROKEN: dict[str, Callable[[Run], object]] = {
    "no server": lambda run: without(run, "server."),
    "no host": lambda run: without(run, "host.", "kernel."),
    "no samples": lambda run: setattr(run, "samples", []),
    "cut in the ramp": lambda run: cut(run, 13.0),
    "no phases": lambda run: setattr(run, "phases", []),
    "one tick": lambda run: setattr(run, "ticks", run.ticks[:1]),
    "no environment": lambda run: setattr(run, "environment", {}),
    "no beats": no_beats,
}


@pytest.mark.parametrize("what", BROKEN)
def test_unknown_numbers_have_a_reason(what: str) -> None:
    whole, broken = a_run(5000, hold_s=30.0), a_run(5000, hold_s=30.0, seed=2)
    BROKEN[what](broken)
    for runs in ((whole, broken), (broken, broken)):
        comparison = compared(*runs)
        assert finite(msgspec.to_builtins(comparison))
        for one in comparison.differences:
            assert (one.verdict == "cannot_say") == bool(one.why), one
            assert (one.p_value is None) <= (one.verdict == "cannot_say")
            if None in one.values:
                assert (one.verdict, one.difference) == ("cannot_say", None)


def test_reasons_against_a_comparison() -> None:
    good = a_run(1000)
    assert hindrance("a.db", good) is None
    never = a_run(1000)
    for _, tick in never.ticks:
        tick.answered = 0
    silent = hindrance("a.db", never)
    for _, tick in never.ticks:
        tick.opened = tick.held = 0
    unconnected, never.ticks = hindrance("a.db", never), []
    assert None not in {silent, unconnected, hindrance("a.db", never)}
    assert len({silent, unconnected, hindrance("a.db", never)}) == 3


@pytest.mark.parametrize(("rates", "verdict"), [((0.0, 24e9), "higher"), ((0.0, 0.0), "cannot_say"), ((24e9, 24e9), "no_difference")])
def test_growth_of_one_run_is_a_difference(rates: tuple[float, float], verdict: str) -> None:
    """The other run's hold may be too short to exclude some growth, but not this much."""
    runs = [a_run(3000, hold_s=15.0, seed=seed) for seed in (1, 2)]
    for run, rate in zip(runs, rates, strict=True):
        for sample in run.samples:
            sample.values["server.pss_bytes"] += rate / 3600 * max(0.0, sample.t_s - run.phases[2].start_s)
            sample.values["server.anon_shmem_bytes"] = sample.values["server.pss_bytes"]
    assert row(compared(*runs), "drift.server_user").verdict == verdict


def test_the_scatter_of_repeats_is_one_estimate() -> None:
    exact = Estimate(100, 100, 100)
    low, high, _ = contrast(exact, exact, Repeat(absolute=1.0))
    # Both runs scatter by 1, known from ten repeats: Student's t with 9 degrees of freedom, not 18.
    assert (-low, high) == pytest.approx([math.sqrt(2) * float(stdtrit(9, 0.975))] * 2)


def test_a_difference_of_two_levels_is_not_compared() -> None:
    short, longer = a_run(3000, hold_s=30.0), a_run(3000, hold_s=30.0, batch=1, seed=2)
    comparison = compared(short, longer)
    for key in ("cost.server_user", "cost.host_total", "fixed.server_user"):
        assert row(comparison, key).verdict == "cannot_say", key
    both = row(compared(short, a_run(3000, hold_s=30.0, seed=3)), "cost.server_user")
    assert (both.verdict, both.why != "") == ("cannot_say", True)


def test_the_cost_of_a_used_server_is_not_compared() -> None:
    used = a_run(20_000, hold_s=30.0)
    for sample in used.samples[1:]:
        sample.values["status.accepts"] += 20_000.0
    comparison = compared(a_run(20_000, hold_s=30.0), used)
    assert "20,001" in row(comparison, "cost.server_user").why
    assert row(comparison, "cost.kernel").verdict == "no_difference"


def test_levels_of_pss_that_sharing_moved_are_not_compared() -> None:
    """Of RSS they are, and so is memory that grew with the connections."""
    for metric, moved in (("server.pss_bytes", "cannot_say"), ("server.rss_bytes", "higher")):
        runs = [a_run(20_000, hold_s=300.0, seed=seed) for seed in (1, 2)]
        hidden = () if metric == "server.pss_bytes" else ("server.pss_bytes",)
        comparison = compared(without(runs[0], *hidden), without(raised(runs[1], 9e6, metric), *hidden))
        assert {row(comparison, key).verdict for key in ("fixed.server_user", "memory.server_hold_end")} == {moved}
    grown = compared(a_run(20_000, hold_s=30.0), raised(a_run(20_000, hold_s=30.0, seed=2), 0.0, "server.pss_bytes", each=500.0))
    assert [row(grown, key).verdict for key in ("fixed.server_user", "memory.server_hold_end")] == ["cannot_say", "higher"]


def test_pages_of_files_that_changed_hands_in_the_ramp_are_no_difference() -> None:
    """Another program that maps the server's files starts in the second run's ramp: its PSS falls, what only it has does not."""
    runs = [a_run(20_000, hold_s=30.0, seed=seed) for seed in (1, 2)]
    for run, shared in zip(runs, (0.0, 9e6), strict=True):
        half_s = run.first_connect_s + 10.0
        for sample in run.samples:
            pss = sample.values["server.pss_bytes"]
            sample.values |= {"server.anon_shmem_bytes": pss - 12e6, "server.pss_bytes": pss - shared * (sample.t_s > half_s)}
    comparison = compared(*runs)
    server, level = (row(comparison, key) for key in ("cost.server_user", "memory.server_hold_end"))
    assert (server.verdict, level.verdict) == ("no_difference", "cannot_say")
    assert level.difference == pytest.approx(-9e6, rel=0.2)
    assert server.values[1] == pytest.approx(SERVER, rel=0.03)


def test_different_kinds_of_memory_are_not_compared() -> None:
    runs = [a_run(20_000, hold_s=30.0), a_run(20_000, hold_s=30.0, seed=2)]
    for sample in runs[0].samples:
        sample.values["server.uss_bytes"] = sample.values["server.pss_bytes"]
    without(runs[1], "server.pss_bytes")
    comparison = compared(*runs)
    for key in ("cost.server_user", "cost.residual", "fixed.server_user", "memory.server_hold_end"):
        found = row(comparison, key)
        assert (found.verdict, "PSS" in found.why, "RSS" in found.why) == ("cannot_say", True, True), key
    assert [one.kinds["drift.server_user"] for one in comparison.runs] == ["USS", "RSS"]
    assert row(comparison, "cost.host_total").verdict == "no_difference"


@pytest.mark.parametrize(("times", "is_told"), [(1, True), (3, False)])
def test_cpu_of_the_ramp_is_not_compared_across_numbers_of_heartbeats(times: int, is_told: bool) -> None:
    """It includes them: three times as many are another plan's, or another keepalive's."""
    runs = [a_run(2_000, batch=2, interval_s=0.05, seed=seed) for seed in (1, 2)]
    for run in runs:
        for sample in run.samples:
            sample.values["server.cpu_s"] = sample.t_s / 10
    for t_s, tick in runs[1].ticks:
        if t_s <= runs[1].phases[2].start_s:
            tick.sent *= times
    cpu = row(compared(*runs), "cpu.per_connection")
    assert (cpu.p_value is not None) == is_told
    assert ("heartbeats" in cpu.why) != is_told


@pytest.mark.parametrize(("port", "path", "differs"), [(23901, "debug", False), (23701, "other", True)])
def test_where_collections_are_asked_for_is_no_other_plan(port: int, path: str, differs: bool) -> None:
    runs = [a_run(5000, hold_s=30.0), a_run(5000, hold_s=30.0, seed=2)]
    for run, url in zip(runs, ("http://127.0.0.1:23701/debug?gc=1", f"http://127.0.0.1:{port}/{path}?gc=1"), strict=True):
        run.plan = msgspec.structs.replace(run.plan, collect=url)
    assert ("compare_plan" in codes(compared(*runs))) == differs


@pytest.mark.parametrize(("first", "differs"), [("auto", False), (None, True)])
def test_each_program_is_asked_for_collections_in_its_own_way(first: str | None, differs: bool) -> None:
    """Node by its inspector, Go by a page: neither can be repeated with the plan of the other."""
    runs = [a_run(5000, hold_s=30.0, label="node/20"), a_run(5000, hold_s=30.0, seed=2, label="go-http")]
    for run, collect in zip(runs, (first, "http://127.0.0.1:23701/debug?gc=1"), strict=True):
        run.plan = msgspec.structs.replace(run.plan, collect=collect)
    assert ("compare_plan" in codes(compared(*runs))) == differs


@pytest.mark.parametrize(
    ("config", "changes", "same"),
    [
        ("ab12", {}, True),
        ("ab12", {"plan": {"urls": ("http://10.0.0.9/",)}}, True),
        (None, {"plan": {"urls": ("http://10.0.0.9/",)}}, False),
        ("ab12", {"sysctls": {"net.core.somaxconn": "128"}}, False),
        ("ab12", {"plan": {"workers": 3}}, False),
        ("ab12", {"plan": {"server_pid": 77, "seed": 5}}, True),
        ("ab12", {"plan": {"fail_if": ("lost > 0",)}}, True),
    ],
)
def test_runs_are_the_same_only_without_differing_facts(config: str | None, changes: Any, same: bool) -> None:
    runs = [a_run(5000, hold_s=30.0), a_run(5000, hold_s=30.0, seed=2)]
    for run in runs:
        run.environment["server"] = {"label": "nginx/1.22.1", "config_hash": config}
    runs[1].plan = msgspec.structs.replace(runs[1].plan, **changes.get("plan", {}))
    runs[1].environment |= {key: value for key, value in changes.items() if key != "plan"}
    assert ("compare_same" in codes(compared(*runs))) is same


@pytest.mark.parametrize(("every", "known"), [(25, True), (300, False)])
def test_a_server_that_is_read_seldom_has_a_level(every: int, known: bool) -> None:
    run = a_run(2000, hold_s=300.0)
    hold = run.phases[2]
    inside = [one for one in run.samples if hold.start_s <= one.t_s < (hold.end_s or 0.0)]
    run.samples = [one for one in run.samples if one.t_s < hold.start_s] + inside[::every]
    assert isinstance(measure("A", "a.db", run).numbers["memory.server_hold_end"], Estimate) is known


def test_values_of_a_comparison_have_no_commas_in_ids_and_no_secrets() -> None:
    assert (in_words("plan.server_pid", 1234567), in_words("plan.seed", 123456)) == ("1234567", "123456")
    assert in_words("limits.cgroup_memory_limit", 4_000_000_000) == "4.0 GB"
    runs = [measure(name, f"{name}.db", a_run(1000, headers=(f"Authorization: Bearer {name}", "X-A: b"))) for name in "AB"]
    (one,) = (one for one in differing(runs) if one.key == "plan.headers")
    assert one.values == [["Authorization: ***", "X-A: ***"]] * 2


def test_other_clients_of_one_run_are_told_and_every_number_is_counted_once() -> None:
    alone, shared = a_run(2000), a_run(2000)
    for sample in shared.samples:
        sample.values["server.sockets"] = 300.0 + (shared.held.at(sample.t_s) or 0.0)
    comparison = compared(alone, shared)
    assert "compare_clients" in codes(comparison)
    assert fields(comparison, "compare_clients")["run"] == "B"
    verdicts = [one.verdict for one in comparison.differences]
    title = headline(comparison.differences)
    assert [int(number) for number in re.findall(r"[0-9]+", title)] == [
        len(verdicts) - verdicts.count("cannot_say"), len(verdicts), verdicts.count("cannot_say"),
    ]  # fmt: skip


def test_of_a_hidden_number_no_difference_share_or_verdict_is_shown() -> None:
    first, second = (measure(name, f"{name}.db", a_run(2000)) for name in "AB")
    second.numbers["cost.kernel"] = Estimate(40.0, -900.0, 980.0, 20)
    second.hidden = second.hidden | {"cost.kernel"}
    found = row(compare([first, second]), "cost.kernel")
    shown = amounts(found)
    assert (found.hidden, found.relative, shown.difference, shown.percent) == (("", "hidden"), None, "-", "-")
    first.numbers["cost.kernel"] = Estimate(45.0, -900.0, 980.0, 20)
    first.hidden = first.hidden | {"cost.kernel"}
    assert row(compare([first, second]), "cost.kernel").verdict == "cannot_say"


def test_of_a_cost_whose_interval_says_more_than_its_middle_that_is_not_shown() -> None:
    first, second = (measure(name, f"{name}.db", a_run(2000)) for name in "AB")
    second.numbers["cost.kernel"] = Estimate(9031.0, 882.0, 12_717.0, 20)
    found = row(compare([first, second]), "cost.kernel")
    shown = amounts(found)
    assert (found.wide, shown.second, shown.difference, shown.percent) == ((False, True), "wide", "-", "-")
    # The interval of the difference says what is known, and JSON has the number.
    assert shown.interval != "-"
    assert found.values[1] == 9031.0


def test_what_is_alive_has_no_word_of_one_runtime() -> None:
    """Go has no Buffers."""
    assert "Buffers" not in ROW_OF["cost.live"].name


@pytest.mark.parametrize(("p_value", "has_remedy"), [(0.02, True), (0.6, False)])
def test_what_one_pair_does_not_show_has_a_remedy_where_a_second_may(p_value: float, has_remedy: bool) -> None:
    """Alone it is below 5 %, and after the correction for thirteen numbers it is not."""
    rows = []
    for number in range(13):
        p_of_row = p_value if number == 0 else 0.9
        rows.append(
            Difference(
                "cost.live", "bytes", between=("A", "B"), values=(100.0, 200.0), difference=100.0, ci95=(5.0, 195.0), relative=1.0, p_value=p_of_row,
                verdict="cannot_say", hidden=("", ""),
            )
        )  # fmt: skip
    _judge(rows)
    first = rows[0]
    assert first.verdict == "cannot_say"
    assert ("repeat both" in first.why) == has_remedy
