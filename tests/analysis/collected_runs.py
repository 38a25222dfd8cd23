"""Synthetic runs of a server whose heap is collected, with the pages of its runtime; the truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from synthetic_run import a_run

from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.runtimes import Runtime

LIVE, STACKS, FIXED = 10_000.0, 8_000.0, 300e3
# No heap of Go is collected below it.
LEAST_GOAL = 4.0 * 1024**2
# What a memory limit counts and no page says.
UNSEEN = 3.3e6


def of_go(
    run: Run, *, share: float = 1.0, garbage_per_s: float = 0.4e6, least_goal: float = LEAST_GOAL, says_live: bool = False, leak_per_s: float = 0.0,
    seed: int = 7, limit: float | None = None, gogc: int = 100,
) -> Run:  # fmt: skip
    """The pages of a Go server that holds ``share`` of the run's connections: its heap fills up to its goal, which is twice what was
    alive at the last collection and never below ``least_goal``; nor above what a memory ``limit`` leaves, unless that is less than what
    is alive. ``gogc`` -1: that limit alone sets the goal."""
    chance = random.Random(seed)
    heap, goal, collected_at, live_then = FIXED, least_goal, 0.0, FIXED
    before_s = 0.0
    collections = 0.0
    if limit is not None:
        run.environment["server"] = {**run.environment["server"], "runtime": Runtime("go", "1.26", collected=True, gogc=gogc).document()}

    def held_at(t_s: float) -> float:
        return share * (run.held.at(t_s) or 0.0)

    def alive_at(t_s: float) -> float:
        return FIXED + LIVE * held_at(t_s) + leak_per_s * max(0.0, t_s - run.first_connect_s)

    def goal_at(t_s: float, live_then: float) -> float:
        by_gogc = max(least_goal, 2 * live_then + STACKS * held_at(t_s)) if gogc > 0 else math.inf
        if limit is None:
            return by_gogc
        left = limit - 500e3 - 3e6 - UNSEEN - (STACKS + 500) * held_at(t_s)
        return min(by_gogc, max(alive_at(t_s), left - max(1024**2, 0.03 * left)))

    for sample in run.samples:
        n = held_at(sample.t_s)
        garbage = garbage_per_s * (0.1 + n / 500)
        risen = alive_at(sample.t_s) - alive_at(before_s)
        heap = max(heap + risen, alive_at(sample.t_s)) + garbage * (sample.t_s - before_s) * chance.uniform(0.8, 1.2)
        if limit is not None:
            goal = min(goal, goal_at(sample.t_s, live_then)) if gogc > 0 else goal_at(sample.t_s, live_then)
        if heap >= goal:
            collections += 1 if goal > 1.01 * alive_at(sample.t_s) else 80
            collected_s = sample.t_s - chance.uniform(0.0, sample.t_s - before_s)
            live_then = alive_at(collected_s)
            heap = alive_at(sample.t_s) + garbage * (sample.t_s - collected_s) * chance.uniform(0.8, 1.2)
            goal = goal_at(collected_s, live_then)
            collected_at = run.started_wall_s + collected_s
        before_s = sample.t_s
        sample.values |= {
            metrics.RUNTIME_HEAP_BYTES: heap, metrics.RUNTIME_COLLECTED_AT_S: collected_at, metrics.RUNTIME_GOAL_BYTES: goal,
            metrics.RUNTIME_STACKS_BYTES: 500e3 + STACKS * n, metrics.RUNTIME_OWN_BYTES: 3e6 + 500 * n, metrics.RUNTIME_DESCRIPTORS: 9 + n,
        }  # fmt: skip
        if limit is not None:
            sample.values |= {
                metrics.RUNTIME_LIMIT_BYTES: limit, metrics.RUNTIME_GOGC_PERCENT: gogc, metrics.RUNTIME_COLLECTIONS: collections,
                metrics.SERVER_CPU_S: 1.0 + 0.007 * collections,
            }  # fmt: skip
        if says_live:
            sample.values[metrics.RUNTIME_LIVE_BYTES] = live_then
    return run


def soak(connections: int = 2_000) -> Run:
    return a_run(connections, batch=2, interval_s=0.05)


def ask_for_collections(run: Run, at_s: Sequence[float], per_connection: float, leak_per_s: float) -> None:
    """What is alive at these instants, in a heap that a leak fills by the clock from the first connect on."""
    for number, place in enumerate(at_s):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        leaked = leak_per_s * max(0.0, sample.t_s - run.first_connect_s)
        alive = 4e6 + 5_000 * (number % 2) + per_connection * (run.held.at(sample.t_s) or 0.0) + leaked
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: alive, metrics.RUNTIME_FORCED_S: 0.01}
    for sample in run.samples:
        sample.values[metrics.SERVER_PROCESSES] = 1.0
        sample.values[metrics.SERVER_PSS_BYTES] += 50e3 * (run.held.at(sample.t_s) or 0.0)


def asked_in_rests(run: Run) -> list[float]:
    """When a soak asks: before the connects, three times in each rest, twice at the hold's end, and after the drain until the clock shows."""
    at_s = [run.first_connect_s - 1.5]
    for begin, end in run.plan.schedule.rests():
        at_s += [run.first_connect_s + place for place in (begin + 0.6, begin + 1.6, end - 1.4)]
    residue = run.phase("residue")
    assert residue is not None
    return [*at_s, run.stop_s - 2.0, run.stop_s - 1.0, *(residue.start_s + 1.0 + look for look in range(8))]
