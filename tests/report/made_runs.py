"""Variants of the synthetic run that a page, a figure or a table must handle."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
from synthetic_run import a_run, cut

from asyncli.core.histogram import Histogram
from asyncli.model.records import Check, Deaths, EventCounts, Finding, RunEvent
from asyncli.model.run import Run

HOSTILE = "</svg><script>alert('x')</script> \"$\\frac{1}{0}$\" & <!-- --> http://evil.example/ var(--ink) #0068a5 0.123456"


def dead(count: int, age_s: float, idle_s: float, requests: int, spread: float = 0.0, seed: int = 3) -> Deaths:
    """``Deaths`` at about this age, idle time and number of requests."""
    lot = random.Random(seed)
    found = Deaths(count=count)
    for _ in range(count):
        found.age_s.add(age_s * (1 + spread * lot.random()))
        found.idle_s.add(idle_s * (1 + spread * lot.random()))
        found.requests.add(requests * (1 + spread * lot.random()))
    return found


def with_deaths() -> Run:
    """Connections lost by three causes and failed by two, throughout the hold."""
    run = a_run(20_000, hold_s=180.0)
    lot = random.Random(5)
    for place, (_, tick) in enumerate(run.ticks):
        if 60 <= place < 64:
            tick.deaths["closed_idle"] = dead(1500, 45, 75, 2, 0.02, place)
        if 40 <= place < 180 and lot.random() < 0.3:
            tick.deaths["reset"] = dead(3 + place % 5, 10 + place, 3, 4, 0.9, place)
        if place in (100, 130):
            tick.deaths["heartbeat_timeout"] = dead(40, 80, 10, 9, 0.3, place)
        if 10 <= place < 20:
            tick.failures["refused"] = place
        if place == 15:
            tick.failures["connect_timeout"] = 3
    return run


def provoked() -> Run:
    """A storm of whose 20,000 half are back within a second and the others within two; and a third of them fall silent for 4 s."""
    run = a_run(20_000, hold_s=60.0, events=("10s storm", "30s vanish 30% for 4s then return"))
    hold = run.phase("hold")
    assert hold is not None
    storm_s, vanish_s = hold.start_s + 10.0, hold.start_s + 30.0
    run.events += [
        RunEvent("storm", storm_s, None, "storm", {"number": 1}),
        RunEvent("vanish", vanish_s, None, "vanish 30% for 4s then return", {"number": 2}),
    ]
    for t_s, tick in run.ticks:
        # Ticks end at whole seconds after the hold's start: in the middle of a second is no doubt which it is.
        second = math.floor(t_s - storm_s - 0.5)
        if 0 <= second < 2:
            counts = tick.events[1] = EventCounts(attempts=10_000, opened=10_000)
            if second == 0:
                counts.chosen = counts.ended = 20_000
                tick.held = 10_000
            for number in range(10_000):
                counts.back_ms.add(1000 * second + 100 + number / 20)
        second = math.floor(t_s - vanish_s - 0.5)
        if 0 <= second < 5:
            counts = tick.events[2] = EventCounts()
            tick.held = 14_000
            if second == 0:
                counts.chosen = counts.ended = counts.silenced = 6_000
            if second == 4:
                counts.returned = counts.attempts = 6_000
                for number in range(6_000):
                    counts.back_ms.add(5 + number / 1000)
    return run


def interrupted_in_the_ramp() -> Run:
    """Killed 12 s into the ramp: no hold and no end."""
    run = a_run(100_000)
    return cut(run, run.phases[1].start_s + 12.0)


def untested() -> Run:
    run = a_run(500)
    for _, tick in run.ticks:
        tick.opened = tick.held = tick.held_at_drain = tick.sent = tick.answered = 0
        tick.latency_us, tick.lateness_us, tick.ramp_lateness_us, tick.by_status = Histogram(), Histogram(), Histogram(), {}
        tick.failures = {"refused": 30}
    return run


def invalid() -> Run:
    run = a_run(20_000)
    for _, tick in run.ticks:
        tick.longest_turn_s = 3.0
    return run


def one_tick() -> Run:
    run = a_run(1000)
    run.ticks, run.samples, run.phases = run.ticks[:1], run.samples[:1], run.phases[:2]
    run.complete = False
    return run


def nothing() -> Run:
    run = a_run(100)
    run.ticks, run.samples, run.phases, run.findings, run.environment, run.complete = [], [], [], [], {}, False
    return run


def with_gaps() -> Run:
    run = a_run(30_000, hold_s=300.0)
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if not 100 < t_s < 160]
    run.samples = [sample for sample in run.samples if not 200 < sample.t_s < 280]
    return run


def unsteady() -> Run:
    """A host whose memory varies by far more than the connections take."""
    run = a_run(2000, hold_s=30.0, batch=10, interval_s=0.1)
    lot = random.Random(2)
    for sample in run.samples:
        sample.values["host.used_bytes"] += lot.gauss(0, 4e8)
    return run


def listed() -> Run:
    """Another program lists the descriptors of every process, which leaves inodes of /proc in proportion to the connections."""
    run = a_run(30_000)
    for sample in run.samples:
        inodes = 1700.0 * (sample.values.get("status.active", 1.0) - 1.0)
        sample.values["kernel.listing_bytes"] = inodes
        sample.values["host.used_bytes"] += inodes
    return run


def hostile() -> Run:
    """Every external string of the run tries to be markup, mathematics or a figure's colour."""
    run = with_deaths()
    run.environment["server"] = {"label": f"{HOSTILE}/1", "version": HOSTILE, HOSTILE: HOSTILE}
    run.environment["host"] = run.environment["kernel"] = HOSTILE
    run.environment[HOSTILE] = {HOSTILE: [HOSTILE]}
    run.findings = [Finding("x<y>", "warning", HOSTILE, HOSTILE)]
    run.checks = [Check("c", HOSTILE, "warn", 1.0, float("nan"), "", HOSTILE, HOSTILE)]
    for _, tick in run.ticks[50:60]:
        tick.deaths[HOSTILE] = dead(2, 5, 5, 2)
        tick.failures[HOSTILE] = 2
    return run


def a_night() -> Run:
    """Two hours with one loss."""
    run = a_run(10_000, hold_s=7200.0)
    run.ticks[3600][1].deaths = {"reset": dead(1, 1800, 20, 60)}
    return run


#: Every kind except the long one.
KINDS: dict[str, Callable[[], Run]] = {
    "good": lambda: a_run(30_000), "plateaus": lambda: a_run(30_000, plateaus=5), "deaths": with_deaths,
    "elsewhere": lambda: a_run(30_000, local=False, server=False, status=False),
    "without samples": lambda: msgspec.structs.replace(a_run(20_000), samples=[]),
    "interrupted in the ramp": interrupted_in_the_ramp, "untested": untested, "invalid": invalid, "one tick": one_tick,
    "nothing": nothing, "gaps": with_gaps, "hostile": hostile, "short": lambda: a_run(100, hold_s=1.0),
    "listed": listed, "unsteady": unsteady, "provoked": provoked,
}  # fmt: skip
