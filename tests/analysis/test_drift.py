"""Growth over the hold: found if it exists, not found if not, and unknown if the hold is too short."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from synthetic_run import a_run, bare_run

from asyncli.analysis.drift import BIN_S, MOST_POINTS, Drift, MetricName, drifts, in_words, medians
from asyncli.analysis.trend import FEWEST_POINTS, trend
from asyncli.findings.drift import drift_grows, examined
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Phase, Sample, Tick
from asyncli.model.units import format_bytes

MB = 1e6
Memory = Callable[[float], float]


def still(level: float, deviation: float = 20e3, seed: int = 1) -> Memory:
    """Constant memory with white noise; ``t``, seconds into the hold, does not matter."""
    noise = random.Random(seed)
    return lambda t: level + noise.gauss(0, deviation)


def growing(level: float, per_hour: float, deviation: float = 20e3, seed: int = 1) -> Memory:
    noise = random.Random(seed)
    return lambda t: level + per_hour * t / 3600 + noise.gauss(0, deviation)


class Soak:
    """A run whose metrics are functions of the time into the hold; 100 connections held, 50 answers a second."""

    def __init__(
        self, hold_s: float = 1800.0, *, keepalive_s: float = 60.0, period_s: float = 1.0, taken: float = 0.5, **metrics: Memory
    ) -> None:
        self.plan = Plan(urls=("http://127.0.0.1/",), connections=100, keepalive_s=keepalive_s, hold_s=hold_s)
        self.start, self.end = 20.0, 20.0 + hold_s
        self.phases = [
            Phase("baseline", 0.0, 5.0), Phase("ramp", 5.0, 20.0), Phase("hold", 20.0, self.end),
            Phase("drain", self.end, self.end + 2), Phase("residue", self.end + 2, self.end + 7),
        ]  # fmt: skip
        self.ticks: list[tuple[float, Tick]] = []
        # One tick per sample: twelve hours need not have one a second.
        every = max(1, int(period_s))
        for second in range(1, int(hold_s + 17), every):
            t_s = 5.0 + second
            held = 0 if t_s > self.end else min(100, second * 10)
            self.ticks.append((t_s, Tick(second=second, held=held, opened=10 if second <= 10 else 0, answered=50 * every, sent=50 * every)))
        self.samples: list[Sample] = []

        def at(memory: Memory, t_s: float) -> float:
            # The connections took ``taken`` bytes of the memory in the hold.
            return memory(t_s - self.start) * (1 - taken * (t_s < 5.0))

        t_s = 0.2
        while t_s < self.end + 7:
            self.samples.append(Sample(t_s, {name.replace("__", "."): at(memory, t_s) for name, memory in metrics.items()}))
            t_s += period_s

    def drifts(self) -> tuple[dict[MetricName, Drift], list[Finding]]:
        found, findings = drifts(bare_run(self.ticks, self.phases, self.samples, {"local": True}, plan=self.plan))
        for number in (value for one in found.values() for value in numbers(one)):
            assert math.isfinite(number)
        return found, findings

    def server(self) -> Drift:
        return self.drifts()[0]["server_user"]


def numbers(drift: Drift) -> Iterator[float]:
    for name in Drift.__struct_fields__:
        value: Any = getattr(drift, name)
        yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, int | float))


def wander(count: int, phi: float, noise: random.Random, white: float = 0.0) -> list[float]:
    """``count`` values of variance 1 whose neighbours are correlated by ``phi``, with a share ``white`` of white noise."""
    value, values = noise.gauss(0, 1), []
    for _ in range(count):
        values.append(math.sqrt(1 - white) * value + math.sqrt(white) * noise.gauss(0, 1))
        value = phi * value + math.sqrt(1 - phi * phi) * noise.gauss(0, 1)
    return values


def test_the_slope_is_theil_sens() -> None:
    noise = random.Random(3)
    for count in (10, 37, 120):
        x = sorted(noise.uniform(0, 10) for _ in range(count))
        y = [3 * one + noise.gauss(0, 2) for one in x]
        found = trend(x, y)
        assert found.slope == pytest.approx(statistics.median((d - b) / (c - a) for (a, b), (c, d) in combinations(zip(x, y, strict=True), 2)))
        assert found.low < found.slope < found.high


def test_constants_have_no_trend_and_lines_have() -> None:
    x = [float(minute) for minute in range(20)]
    constant, line = trend(x, [5.0] * 20), trend(x, [3 * one + 1 for one in x])
    assert (constant.slope, constant.low, constant.high, constant.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert (line.slope, line.low, line.high) == pytest.approx((3.0, 3.0, 3.0))
    assert line.p_value < 1e-4
    assert trend(x[:9], x[:9]) is None


def test_a_trend_is_sure_though_what_is_left_of_it_wanders() -> None:
    # A leak of 1.9 GB an hour, of which memory is read some milliseconds late, more each time.
    found = trend(list(map(float, range(20))), [1000 * one + math.sin(one / 4) for one in range(20)])
    assert found.p_value < 0.001
    assert found.low < 1000 < found.high < 1001


RUNS = 200
# Correlation of neighbouring points, share of white noise, points. The last of each size wander as slowly as the hold is long,
# which no method can distinguish from a trend without doubting all trends.
NOISES = [(phi, white, count) for count in (10, 60) for phi, white in ((0.0, 0.0), (0.6, 0.0), (0.95, 0.0), (0.99, 0.5))]


@pytest.mark.parametrize(("phi", "white", "count"), NOISES)
def test_wandering_noise_grows_in_at_most_5_percent(phi: float, white: float, count: int) -> None:
    noise = random.Random(f"{phi} {white} {count}")
    x = [minute / 60 for minute in range(count)]
    found = [one for _ in range(RUNS) if (one := trend(x, wander(count, phi, noise, white))) is not None]
    assert len(found) == RUNS
    assert sum(one.p_value < 0.05 and one.low > 0 for one in found) <= 0.05 * RUNS
    assert sum(one.p_value < 0.05 and one.high < 0 for one in found) <= 0.05 * RUNS
    # The truth is 0: three standard errors below a count of 95 %.
    assert sum(one.low <= 0 <= one.high for one in found) >= (0.95 - 3 * math.sqrt(0.95 * 0.05 / RUNS)) * RUNS


def test_coverage_and_power_for_a_known_slope() -> None:
    noise = random.Random(9)
    for count, rise, share in ((20, 8.0, 0.85), (60, 4.0, 0.95)):
        runs = 40
        x = [place / count for place in range(count)]
        found = [
            one
            for _ in range(runs)
            if (one := trend(x, [rise * a + b for a, b in zip(x, wander(count, 0.0, noise), strict=True)])) is not None
        ]
        assert sum(one.low <= rise <= one.high for one in found) >= 0.95 * runs
        assert sum(one.p_value < 0.05 and one.low > 0 for one in found) >= share * runs


def test_a_step_is_no_trend() -> None:
    """One step in the middle: half of all pairs rise, and the plain test finds growth."""
    noise = random.Random(11)
    sure = 0
    for _ in range(100):
        count = noise.choice((20, 60))
        at = noise.uniform(0.2, 0.8) * count
        found = trend([float(x) for x in range(count)], [(x > at) * 10 + noise.gauss(0, 1) for x in range(count)])
        sure += found.p_value < 0.05
    assert sure <= 5


def test_growth_has_a_rate_and_a_cost_per_request() -> None:
    # 50 answers a second are 180,000 an hour: 18 MB at 100 B each.
    found, findings = Soak(server__pss_bytes=growing(100 * MB, 18 * MB), host__available_bytes=still(9e9, 0)).drifts()
    drift = found["server_user"]
    assert drift.verdict == "grows"
    assert drift.bytes_per_hour == pytest.approx(18 * MB, rel=0.02)
    assert drift.ci95[0] < 18 * MB < drift.ci95[1]
    assert drift.bytes_per_request == pytest.approx(100, rel=0.02)
    assert drift.p_value < 0.01
    # Half an hour less the first minute, in minutes.
    assert (drift.minutes, drift.points, drift.bin_s) == (29, 29, BIN_S)
    (finding,) = findings
    assert (finding.code, finding.severity) == ("drift_grows", "warning")
    assert finding.fields["metric"] == "server_user"
    assert finding.fields["bytes_per_request"] == pytest.approx(100, rel=0.02)
    assert finding.fields["available_bytes"] == pytest.approx(9e9)
    # 11.25 s of the hold, which touch twelve ticks.
    short = Soak(hold_s=15.0, server__pss_bytes=growing(100 * MB, 18_000 * MB)).server()
    assert short.bytes_per_request == pytest.approx(100_000, rel=0.02)


def test_a_rate_is_not_extrapolated_far_beyond_what_was_examined() -> None:
    """Garbage grows until it is first collected: a short hold says how long to hold, a longer one how long the memory lasts."""
    short = {"hold_s": 25.0, "keepalive_s": 6.0, "taken": 0.02, "server__pss_bytes": growing(30 * MB, 1900 * MB, 4e3)}
    long = {"server__pss_bytes": growing(100 * MB, 18 * MB)}
    # 19 s of 25 s; 1.9 GB an hour fill 24 GB in 13 hours and 190 MB in 6 min. 29 min; 18 MB an hour fill 360 MB in 20 hours.
    for soak, available, hold_s, word in ((short, 24e9, 840.0, "garbage"), (short, 190e6, 840.0, " in 6 min"),
                                          (long, 24e9, None, "100 times"), (long, 360e6, None, " up in ")):  # fmt: skip
        (one,) = Soak(**soak, host__available_bytes=still(available, 0)).drifts()[1]
        assert one.fields["long_hold_s"] == hold_s
        assert [each in one.evidence for each in ("garbage", "100 times", " up in ")].count(True) == 1
        assert (word in one.evidence, "14 min" in one.remedy) == (True, word == "garbage")


def holed(soak: Soak) -> Soak:
    """No samples for a third of the hold."""
    soak.samples = [one for one in soak.samples if not 400 < one.t_s < 900]
    return soak


def emptied(soak: Soak) -> Soak:
    """No connection was held for five minutes."""
    for t_s, tick in soak.ticks:
        if 600 < t_s - soak.start < 900:
            tick.held = 0
    return soak


LONG = {"hold_s": 6 * 3600, "period_s": 10}


@pytest.mark.parametrize(
    ("soak", "verdict", "rate", "points", "bin_s"),
    [
        (lambda: Soak(server__pss_bytes=growing(100 * MB, 18 * MB)), "grows", 18 * MB, 29, BIN_S),
        (lambda: Soak(server__pss_bytes=still(100 * MB)), "flat", None, 29, BIN_S),
        # 0.05 % an hour: certain after six hours, but irrelevant.
        (lambda: Soak(**LONG, server__pss_bytes=growing(100 * MB, 0.05 * MB, deviation=2e3)), "flat", 0.05 * MB, 359, BIN_S),
        (lambda: Soak(**LONG, server__pss_bytes=growing(100 * MB, 0.2 * MB, deviation=2e3)), "grows", 0.2 * MB, 359, BIN_S),
        # A short run has shorter bins: a leak of 40 kB a second, as by 400 requests of 100 B.
        (lambda: Soak(30.0, keepalive_s=2.0, taken=0.02, server__pss_bytes=growing(20 * MB, 144 * MB, 4e3)), "grows", 144 * MB, 20, 1.4),
        (lambda: Soak(30.0, keepalive_s=2.0, server__pss_bytes=still(20 * MB, 4e3)), "too_short", None, 20, 1.4),
        # A hold of many hours has longer bins, not more.
        (lambda: Soak(13 * 3600, period_s=30.0, server__pss_bytes=growing(100 * MB, 1 * MB)), "grows", 1 * MB, 389, 120.0),
        (lambda: holed(Soak(server__pss_bytes=growing(100 * MB, 18 * MB))), "grows", 18 * MB, 21, BIN_S),
        (lambda: emptied(Soak(server__pss_bytes=lambda t: (50 if 600 < t < 900 else 100) * MB)), "flat", 0.0, 23, BIN_S),
    ],
)
def test_growing_and_flat_memory(soak: Callable[[], Soak], verdict: str, rate: float | None, points: int, bin_s: float) -> None:
    drift = soak().server()
    assert (drift.verdict, drift.bin_s) == (verdict, pytest.approx(bin_s))
    assert points - 1 <= drift.points <= min(points + 1, MOST_POINTS)
    assert rate is None or drift.bytes_per_hour == pytest.approx(rate, rel=0.1)
    # A page more or less does not count.
    a_page = 4096 * 3600 / ((drift.to_s or 0.0) - (drift.from_s or 0.0))
    assert drift.within_bytes_per_hour >= 0.99 * a_page


def test_garbage_collection_is_no_growth_and_hides_none() -> None:
    for leak, verdicts in ((0.0, {"flat", "too_short"}), (60 * MB, {"grows"})):
        for phase in range(6):
            noise = random.Random(phase)

            def heap(t: float, leak: float = leak, phase: int = phase, noise: random.Random = noise) -> float:
                garbage = (t + 15 * phase) % 90 / 90 * 5 * MB
                return 100 * MB + leak * t / 3600 + garbage + noise.gauss(0, 20e3)

            assert Soak(period_s=2.0, server__uss_bytes=heap).server().verdict in verdicts


def test_flat_is_small_against_the_connections_memory() -> None:
    """20 s of a quiet host exclude 593 MB an hour, with connections that took 25 MB."""
    short = Soak(hold_s=20.0, keepalive_s=4.0, taken=0.1, host__used_bytes=still(1.5e9, 100e3)).drifts()[0]["host_total"]
    assert short.ci95[1] > 15 * MB
    assert short.verdict == "too_short"
    # The same bound is small if they took gigabytes; if they took nothing only a thousandth an hour is.
    level = still(1.5e9, 400e3)
    for taken, hold_s, verdict in ((0.5, 600.0, "flat"), (0.001, 600.0, "too_short"), (0.0, 600.0, "too_short"), (0.0, 3 * 3600.0, "flat")):
        one = Soak(hold_s=hold_s, period_s=1.0 if hold_s < 3600 else 10.0, taken=taken, host__used_bytes=level).drifts()[0]["host_total"]
        assert one.verdict == verdict, (taken, hold_s, in_words(one))
        assert one.bound_bytes_per_hour == pytest.approx(max(0.1 * taken * 1.5e9, 1.5 * MB), rel=0.02)
        assert (one.verdict == "flat") == (one.within_bytes_per_hour <= one.bound_bytes_per_hour)


def test_words_tell_the_interval_and_the_examined_part() -> None:
    """The bound of a verdict has a column in the whole report, and no meaning beside an interval without it."""
    # Without growth in less than an hour, it is by that time: a step may be rarer.
    for verdict, to_s, ends in (("flat", 14.75, [3e6 / 200]), ("flat", 9002.25, [3e6]), ("too_short", 14.75, [-3e6, 2e6])):
        from_s = to_s - (9001.0 if to_s > 9000 else 18.0)
        words = in_words(Drift(0.0, (-3e6, 2e6), 0.5, 0, verdict, 3e6, from_s=from_s, to_s=to_s, bound_bytes_per_hour=5e6))
        assert all(format_bytes(end) in words for end in ends)
        assert format_bytes(5e6) not in words
        assert examined(from_s, to_s) in words
    settling = in_words(Drift(1e6, (0.0, 2e6), 0.01, 0, "too_short", 2e6, from_s=1.0, to_s=12.0, bound_bytes_per_hour=5e6))
    assert "settling" in settling
    assert "bound" not in settling
    assert examined(1.25, 14.75) in drift_grows("server_user", 1.25, 14.75, 5e6, (4e6, 6e6), None, None, None, None, "").evidence


def test_a_hold_of_a_few_samples_is_too_short() -> None:
    assert Soak(hold_s=0.0, server__pss_bytes=still(100 * MB)).drifts() == ({}, [])
    for hold_s in (0.5, 6.0):
        found, findings = Soak(hold_s=hold_s, server__pss_bytes=still(100 * MB)).drifts()
        drift = found["server_user"]
        assert (drift.verdict, drift.bytes_per_hour, drift.ci95, drift.p_value) == ("too_short", None, None, None)
        assert drift.points < FEWEST_POINTS
        assert [(one.code, one.severity) for one in findings] == [("drift_unknown", "info")]
        assert (findings[0].fields["metrics"], findings[0].fields["points"]) == (["server_user"], drift.points)


def test_settling_at_the_start_of_the_hold_is_excluded() -> None:
    noise = random.Random(2)

    def settling(t: float) -> float:
        return 100 * MB - (5 * MB * math.exp(-max(t, 0.0) / 10)) + noise.gauss(0, 20e3)

    drift = Soak(hold_s=1200.0, server__pss_bytes=settling).server()
    assert (drift.verdict, drift.from_s) == ("flat", 80.0)
    # With a keepalive of an hour, a quarter of the hold is excluded.
    assert Soak(hold_s=1200.0, keepalive_s=3600.0, server__pss_bytes=settling).server().from_s == 320.0


def filling(until_s: float, per_s: float = 0.51 * MB) -> Memory:
    """A healthy Go server: its heap fills until the first garbage collection."""
    noise = random.Random(2)
    return lambda t: 24.3 * MB + per_s * min(max(t, 0.0), until_s) + noise.gauss(0, 20e3)


def test_a_heap_before_its_first_collection_is_no_growth() -> None:
    for hold_s in (25.0, 40.0, 60.0, 200.0, 900.0):
        found, findings = Soak(hold_s=hold_s, keepalive_s=10.0, taken=0.9, server__anon_shmem_bytes=filling(35.0)).drifts()
        drift = found["server_user"]
        assert (drift.verdict in ("too_short", "flat"), findings) == (True, []), hold_s
        assert drift.ci95[0] <= 0
    # Growth by more than the connections took is no filling heap.
    leak = Soak(hold_s=20.0, keepalive_s=4.0, taken=0.2, server__anon_shmem_bytes=growing(20 * MB, 3.6e9)).server()
    assert (leak.verdict, leak.bytes_per_hour) == ("grows", pytest.approx(3.6e9, rel=0.05))


def test_growth_continues_and_settling_ends() -> None:
    """It settles for most of a hold of a quarter of an hour."""
    settling = Soak(hold_s=900.0, server__pss_bytes=filling(720.0, 28e3)).server()
    assert settling.verdict in ("too_short", "flat")
    drift = Soak(hold_s=3600.0, server__pss_bytes=lambda t: 18 * MB * t / 3600 + filling(1200.0, 10e3)(t)).server()
    assert (drift.verdict, drift.bytes_per_hour) == ("grows", pytest.approx(18 * MB, rel=0.05))


def losing(soak: Soak, lost: float) -> Soak:
    """The same soak, in which ``lost`` of its connections end one by one over the hold."""
    length = soak.end - soak.start
    for t_s, tick in soak.ticks:
        if soak.start < t_s <= soak.end:
            tick.held = round(100 - lost * (t_s - soak.start) / length)
    return soak


def test_kernel_memory_that_follows_the_connections_does_not_drift() -> None:
    base = still(0.0, 500.0)
    soak = losing(Soak(kernel__socket_bytes=lambda t: 0.0), 8)
    held = {t_s: tick.held for t_s, tick in soak.ticks}
    for sample in soak.samples:
        n = held.get(round(sample.t_s), 0)
        sample.values["kernel.socket_bytes"] = 3 * MB + 8000 * n + base(0)
    drift = soak.drifts()[0]["kernel"]
    assert drift.verdict == "flat"
    # The readings fell by 64 kB of 3.8 MB in half an hour.
    assert drift.within_bytes_per_hour < 30e3


def test_growth_must_show_with_and_without_the_connections_cost() -> None:
    # Constant while connections ended: growth if their memory was freed and something else took it; else none.
    kept = losing(Soak(server__pss_bytes=lambda t: 1 * MB + (3 * MB if t > -10 else 0) + still(0, 2e3)(0)), 8).server()
    assert kept.verdict in ("flat", "too_short")
    assert kept.ci95[0] <= 0 < kept.ci95[1]
    noise = random.Random(6)
    leaking = losing(Soak(server__pss_bytes=lambda t: 1 * MB + (3 * MB + 1000 * t if t > -10 else 0) + noise.gauss(0, 2e3)), 8)
    assert leaking.server().verdict == "grows"
    assert leaking.server().bytes_per_hour == pytest.approx(3.6 * MB, rel=0.05)


def test_a_restarted_server_is_judged_by_its_longest_part() -> None:
    soak = Soak(server__pss_bytes=lambda t: (100 if t < 500 else 60) * MB, status__accepts=lambda t: 200.0 if t < 500 else 101.0)
    drift = soak.server()
    assert drift.verdict == "flat"
    assert drift.from_s == pytest.approx(soak.start + 560, abs=1.5)  # less the minute in which it settles


def test_a_restart_without_a_page_shows_in_ended_processes() -> None:
    def soak(ended: float) -> Soak:
        # It leaks 18 MB an hour.
        return Soak(
            server__pss_bytes=lambda t: (100 if t < 500 else 60) * MB + 18 * MB * t / 3600,
            server__processes=lambda t: 3.0,
            server__ended=lambda t: 0.0 if t < 500 else ended,
        )

    restarted, of_two = soak(3.0), soak(1.0)
    assert restarted.server().verdict == "grows"
    assert restarted.server().from_s == pytest.approx(restarted.start + 560, abs=1.5)
    # One replaced worker of two is no restart.
    assert of_two.server().from_s == pytest.approx(of_two.start + 60)


def test_a_long_hold_without_its_connections_was_not_too_short() -> None:
    # Four fifths end one by one: no number of connections is typical.
    soak = losing(Soak(server__pss_bytes=still(100 * MB)), 80)
    (finding,) = [one for one in soak.drifts()[1] if one.code == "drift_unknown"]
    assert (finding.fields["metrics"], finding.fields["too_short"]) == (["server_user"], False)


def test_the_whole_host_is_a_finding_only_if_its_parts_do_not_explain_it() -> None:
    server, host = growing(100 * MB, 18 * MB), growing(4e9, 20 * MB, 50e3)
    explained, findings = Soak(server__pss_bytes=server, host__used_bytes=host).drifts()
    assert [explained[name].verdict for name in ("server_user", "host_total")] == ["grows", "grows"]
    assert [one.fields["metric"] for one in findings] == ["server_user"]
    _, findings = Soak(server__pss_bytes=still(100 * MB), host__used_bytes=host).drifts()
    assert [(one.fields["metric"], one.fields["bytes_per_request"]) for one in findings] == [("host_total", None)]


def test_the_whole_host_and_asyncli_grow_over_minutes_only() -> None:
    # 12 MB in 15 s: a program that started, or 3 GB an hour if extrapolated.
    memory = {"server__uss_bytes": growing(20 * MB, 144 * MB, 4e3), "host__used_bytes": growing(4e9, 3e9, 50e3)}
    memory["generator__uss_bytes"] = growing(30 * MB, 16 * MB, 4e3)
    short, findings = Soak(hold_s=30.0, keepalive_s=2.0, taken=0.02, **memory).drifts()
    assert [short[name].verdict for name in ("server_user", "host_total", "generator_user")] == ["grows", "too_short", "too_short"]
    assert [one.fields["metric"] for one in findings if one.code == "drift_grows"] == ["server_user"]
    long = Soak(hold_s=700.0, **memory).drifts()[0]
    assert [long[name].verdict for name in ("server_user", "host_total", "generator_user")] == ["grows"] * 3


def test_inodes_of_proc_are_no_drift_of_the_host() -> None:
    def listing(t: float) -> float:
        return 10 * MB + max(t, 0.0) * 100e3

    for period in (1.0, 3.0):  # read with it, and in another second
        soak = Soak(host__used_bytes=lambda t: 1e9 + listing(t))
        for place, sample in enumerate(soak.samples):
            if place % period == 0:
                sample.values["kernel.listing_bytes"] = listing(sample.t_s - soak.start)
        assert soak.drifts()[0]["host_total"].verdict == "flat"
    assert Soak(host__used_bytes=lambda t: 1e9 + listing(t)).drifts()[0]["host_total"].verdict == "grows"


def test_no_kind_of_memory_hides_growth_of_another() -> None:
    leak = growing(100 * MB, 3.8e9)
    private = {"server__uss_bytes": still(10 * MB, 4e3)}
    # Two processes share the pages: RSS counts them in each.
    shared = {"server__pss_bytes": leak, "server__rss_bytes": lambda t: 2 * leak(t)}
    seen = Soak(hold_s=25.0, keepalive_s=4.0, taken=0.1, server__anon_shmem_bytes=leak, **private, **shared).server()
    older = Soak(hold_s=40.0, keepalive_s=4.0, taken=0.1, **private, **shared).server()
    for one in (seen, older):
        assert (one.verdict, one.bytes_per_hour) == ("grows", pytest.approx(3.8e9, rel=0.1))
    assert (seen.metric, older.metric) == ("server.anon_shmem_bytes", "server.pss_bytes")
    mapped = Soak(hold_s=40.0, keepalive_s=4.0, taken=0.1, server__anon_shmem_bytes=still(10 * MB, 4e3), **private, **shared).server()
    assert (mapped.verdict, mapped.metric) == ("grows", "server.pss_bytes")
    # Uncertain growth is not excluded either.
    noise = random.Random(3)
    walk = [10 * MB]
    while len(walk) < 60:
        walk.append(walk[-1] + noise.gauss(0, 1 * MB))
    hidden: dict[str, Memory] = {f"server__{kind}_bytes": lambda t: walk[max(0, int(t))] for kind in ("pss", "rss")}
    unsure = Soak(hold_s=30.0, keepalive_s=4.0, server__anon_shmem_bytes=still(10 * MB, 4e3), **hidden).server()
    assert unsure.verdict == "too_short"
    assert unsure.ci95[1] > 100 * MB


def test_an_unmapped_file_or_one_more_process_is_no_growth() -> None:
    own = still(10 * MB, 4e3)
    for pss, rss in ((growing(12 * MB, 40 * MB, 4e3), still(15 * MB, 4e3)), (still(12 * MB, 4e3), growing(15 * MB, 40 * MB, 4e3))):
        drift = Soak(
            hold_s=60.0, keepalive_s=4.0, server__anon_shmem_bytes=own, server__pss_bytes=pss, server__rss_bytes=rss
        ).server()
        assert (drift.verdict, drift.metric) == ("too_short", "server.anon_shmem_bytes")
        assert drift.ci95[1] < 4 * MB


def test_without_answers_there_is_no_cost_per_request() -> None:
    soak = Soak(server__pss_bytes=growing(100 * MB, 18 * MB))
    for _, tick in soak.ticks:
        tick.answered = 0
    found, (finding,) = soak.drifts()
    assert (found["server_user"].verdict, found["server_user"].bytes_per_request) == ("grows", None)
    assert finding.fields["bytes_per_request"] is None


def test_runs_without_a_hold_or_without_its_end() -> None:
    soak = Soak(server__pss_bytes=growing(100 * MB, 18 * MB))
    soak.phases = soak.phases[:3]
    soak.phases[2].end_s = None
    soak.ticks = [one for one in soak.ticks if one[0] < 1200]
    soak.samples = [one for one in soak.samples if one.t_s < 1200]
    drift = soak.server()
    assert (drift.verdict, drift.to_s) == ("grows", pytest.approx(1200, abs=1.1))
    soak.phases = soak.phases[:2]
    assert soak.drifts() == ({}, [])
    soak.phases, soak.ticks, soak.samples = [], [], []
    assert soak.drifts() == ({}, [])


def test_the_figure_has_the_points_of_the_fit() -> None:
    run = a_run(5000, hold_s=1500.0)
    hold = run.phases[2]
    # Two minutes with a fifth fewer connections are excluded.
    for t_s, tick in run.ticks:
        if hold.start_s + 600 < t_s <= hold.start_s + 720:
            tick.held = 4000
    found, _ = drifts(run)
    points = medians(run, found)
    for name, one in found.items():
        assert len(points[name]) == one.points, name
        gone = points[name].between(hold.start_s + 640, hold.start_s + 690)
        assert not gone.t_s, "a minute that was left out is drawn"
    whole = trend([t_s / 3600 for t_s in points["host_total"].t_s], points["host_total"].values)
    assert whole.slope == pytest.approx(found["host_total"].bytes_per_hour, rel=0.5)


def test_a_hold_of_a_few_minutes_shows_only_large_growth() -> None:
    """The heap of a healthy server fills for a while: 155 MB an hour in 11 s are half a megabyte."""
    heap = growing(20 * MB, 155 * MB, 4e3)
    for taken in (0.002, 0.05):
        drift = Soak(15.0, keepalive_s=2.0, taken=taken, server__uss_bytes=heap).server()
        assert (drift.verdict, drift.ci95[0] <= 0 < drift.ci95[1]) == ("too_short", True)
    # Ten minutes of it are a leak.
    assert Soak(900.0, taken=0.002, server__uss_bytes=heap).server().verdict == "grows"


def test_a_step_is_no_rate() -> None:
    """Memory that is taken once, in the hold, goes on at no rate, however large it is."""

    def stepped(t_s: float) -> float:
        return 20 * MB + 36 * MB * min(1.0, max(0.0, (t_s - 4.0) / 6.0)) + random.Random(t_s).gauss(0, 4e3)

    drift = Soak(30.0, keepalive_s=2.0, taken=0.02, server__uss_bytes=stepped).server()
    assert (drift.verdict, drift.ci95[0] <= 0) == ("too_short", True)


def test_nothing_grows_across_the_sockets_of_other_programs() -> None:
    def others(t_s: float) -> float:
        return 220.0 + 40 * max(0.0, t_s)

    # A second client opens 40 connections a second: as many bytes each as ours.
    taken = 0.2 * 20 * MB
    with_theirs = {
        "kernel__tcp_alloc": others, "server__uss_bytes": lambda t: 20 * MB + taken / 100 * 40 * max(0.0, t),
        "kernel__socket_bytes": lambda t: 3 * MB + 4000.0 * others(t), "host__used_bytes": lambda t: 4e9 + 1e4 * others(t),
    }  # fmt: skip
    found, findings = Soak(60.0, keepalive_s=2.0, taken=0.2, **with_theirs).drifts()
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, "too_short")
    assert [one.code for one in findings if one.code == "drift_grows"] == []
    # However long: the kernel's memory is that of all sockets.
    found, _ = Soak(1800.0, taken=0.2, **with_theirs | {"server__uss_bytes": still(20 * MB)}).drifts()
    assert (found["kernel"].verdict, found["host_total"].verdict) == ("too_short", "too_short")
