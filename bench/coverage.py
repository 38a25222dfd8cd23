"""Measures on synthetic runs how often the interval of a cost contains the true cost, and how wide
it is.

    python bench/coverage.py [--runs 400] [--seed 1]

Each run has 100,000 connections of 1,000 bytes in the server, sampled once a second, whose memory
also varies by itself in one of the ways below; asyncli's own analysis evaluates it. Under "bent"
the cost rises over the connections, and the truth is that of the last one. Under "others" another
client has connections at the server's port too, and the server's own count is known. For comparison
there are intervals of other rules from the same points: independent errors; an effective number of
points (Santer et al. 2000); Bartlett's kernel over all lags, with the critical value of such points
under white noise (Kiefer and Vogelsang 2002). A cell: the percentage of intervals that contain the
truth, and half of the median interval's width in percent of the cost. 95 is right; less means that
the intervals are too narrow.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from common import command, machine
from scipy import stats

from asyncli.analysis.cost import costs
from asyncli.analysis.slope import Fit
from asyncli.model.plan import Plan
from asyncli.model.records import Phase, Sample, Tick
from asyncli.model.run import Run

CONNECTIONS, COST = 100_000, 1000.0
BASELINE_S, HOLD_S = 5.0, 8.0
# A ramp that is too short for a slope: the cost is the difference of two levels, the second from
# the first 15 s of the hold.
SHORT_S, LONG_HOLD_S = 2.0, 15.0
FIRST_USE = 5e6
MB = 1e6


class Design(NamedTuple):
    """A ramp or a ladder: its plan, its phases, and N at each second."""

    name: str
    plan: Plan
    phases: list[Phase]
    ticks: list[tuple[float, Tick]]
    n: np.ndarray


def design(seconds: float, plateaus: int = 0) -> Design:
    hold_s = LONG_HOLD_S if seconds == SHORT_S else HOLD_S
    plan = Plan(
        urls=("http://127.0.0.1:1/",),
        connections=CONNECTIONS,
        batch=100,
        interval_s=seconds / (CONNECTIONS / 100),
        plateaus=plateaus,
        hold_s=hold_s,
    )
    ramp = plan.schedule
    dues = np.array([ramp.due_s(j) for j in range(ramp.batches)])
    end = BASELINE_S + math.ceil(ramp.end_s)
    t_s = np.arange(1.0, end + hold_s)
    n = plan.batch * np.searchsorted(dues, t_s - BASELINE_S, side="left").astype(float)
    phases = [
        Phase("baseline", 0.0, BASELINE_S),
        Phase("ramp", BASELINE_S, end),
        Phase("hold", end, end + hold_s),
    ]
    ticks = [
        (float(t), Tick(held=int(held))) for t, held in zip(t_s, n, strict=True) if t > BASELINE_S
    ]
    return Design(
        f"ladder of {plateaus}" if plateaus else f"ramp of {seconds:g} s", plan, phases, ticks, n
    )


# How memory varies: (N at each second, random generator) -> bytes.
Metric = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def wander(phi: float, deviation: float = 1 * MB) -> Metric:
    """AR(1) noise around the line, with a correlation of ``phi`` between neighbouring seconds."""

    def make(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        fresh = chance.normal(0, deviation, len(n))
        noise = np.empty(len(n))
        noise[0] = fresh[0]
        for t in range(1, len(n)):
            noise[t] = phi * noise[t - 1] + math.sqrt(1 - phi**2) * fresh[t]
        return COST * n + noise

    return make


def walk(step: float, white: float = 0.0) -> Metric:
    """A random walk of ``step`` bytes a second, and noise of ``white`` bytes on each reading."""

    def make(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        return (
            COST * n + np.cumsum(chance.normal(0, step, len(n))) + chance.normal(0, white, len(n))
        )

    return make


def arenas(size: float) -> Metric:
    """Memory that is allocated ``size`` bytes at a time; part of the first block is used at the
    start.
    """

    def make(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        return size * np.floor(COST * n / size + chance.random()) + chance.normal(
            0, 0.02 * MB, len(n)
        )

    return make


def lagging(seconds: float, metric: Metric) -> Metric:
    """Memory that follows N with a lag: after ``seconds`` a share of 1/e is still missing."""

    def make(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        behind, keep = n.copy(), math.exp(-1 / seconds)
        for t in range(1, len(n)):
            behind[t] = keep * behind[t - 1] + (1 - keep) * n[t]
        return metric(behind, chance)

    return make


def visited(metric: Metric) -> Metric:
    """Another program uses 3 MB for a while in the middle."""

    def make(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        value, length = metric(n, chance), max(3, len(n) // 6)
        begin = int(chance.integers(0, len(n) - length))
        value[begin : begin + length] += 3 * MB
        return value

    return make


def first_use(metric: Metric) -> Metric:
    """The first connections allocate 5 MB once."""
    return lambda n, chance: metric(n, chance) + FIRST_USE * (n > 0)


def by_the_clock(per_s: float, metric: Metric) -> Metric:
    """Memory that also grows by so many bytes a second, whatever is held."""
    return lambda n, chance: metric(n, chance) + per_s * np.arange(len(n))


def bent(share: float, metric: Metric) -> Metric:
    """A cost that rises from a ``share`` below its mean, of the first connection, to as much above
    it, of the last.
    """
    return lambda n, chance: metric(n, chance) + COST * share * (n * n / CONNECTIONS - n)


OTHERS = "others, phi 0.5"
BENT = {"bent by 0.2, phi 0.5": 0.2, "bent by 1, phi 0.5": 1.0}
#: Ways that only rests can tell from the cost of connections: a ramp adds them at a steady pace
#: too.
OF_LADDERS = frozenset({"0.3 MB a second, phi 0.5", "3 MB a second, phi 0.5"})
METRICS: dict[str, Metric] = {
    "noise, phi 0": wander(0.0),
    "noise, phi 0.5": wander(0.5),
    "noise, phi 0.9": wander(0.9),
    "noise, phi 0.95": wander(0.95),
    "noise, phi 0.98": wander(0.98),
    "random walk": walk(0.2 * MB),
    "random walk and white": walk(0.1 * MB, 1 * MB),
    "arenas of 1 MB": arenas(1 * MB),
    "arenas of 8 MB": arenas(8 * MB),
    "lag 1 s, phi 0.5": lagging(1.0, wander(0.5)),
    "lag 3 s, phi 0.9": lagging(3.0, wander(0.9)),
    "a visitor, phi 0.5": visited(wander(0.5)),
    "first use, phi 0.5": first_use(wander(0.5)),
    "first use, phi 0.95": first_use(wander(0.95)),
    "0.3 MB a second, phi 0.5": by_the_clock(0.3 * MB, wander(0.5)),
    "3 MB a second, phi 0.5": by_the_clock(3 * MB, wander(0.5)),
    OTHERS: wander(0.5),
    **{name: bent(share, wander(0.5)) for name, share in BENT.items()},
}


def of_another_client(n: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Connections at the server's port of another client: half as many as ours, from an instant of
    the run on, in a third of it.
    """
    begin = chance.integers(0, len(n) // 2)
    return n.max() / 2 * np.clip((np.arange(len(n)) - begin) / (len(n) / 3), 0, 1)


def fitted(plan: Design, values: np.ndarray, connections: np.ndarray | None = None) -> Fit:
    """asyncli's line. ``connections``: those of the server at each second, if the kernel counts
    them at its port.
    """
    samples = [
        Sample(float(t + 1), {"server.pss_bytes": 1e9 + float(value)})
        for t, value in enumerate(values)
    ]
    # The server's count is its own where the server is on this host.
    if connections is not None:
        for sample, count in zip(samples, connections, strict=True):
            sample.values["server.sockets"] = float(count)
    here = {"local": connections is not None}
    return costs(
        Run("", "", plan.plan, here, plan.phases, plan.ticks, samples, [], [], complete=True)
    ).fits["server_user"]


# The other rules: points -> slope and half of its interval.


def least_squares(n: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """(slope, residuals, N about its mean) of least squares."""
    x = n - n.mean()
    slope = float(x @ y / (x @ x))
    return slope, y - y.mean() - slope * x, x


def independent(n: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    slope, rest, x = least_squares(n, y)
    return slope, float(stats.t.ppf(0.975, len(n) - 2)) * math.sqrt(
        rest @ rest / (len(n) - 2) / (x @ x)
    )


def santer(n: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    slope, rest, x = least_squares(n, y)
    m = len(n)
    r1 = sum(a * b for a, b in pairwise(rest)) / float(rest @ rest)
    r = min(0.99, (r1 + 2 / m) / (1 - 4 / m)) if m > 4 else r1
    worth = m if r <= 0 else min(float(m), max(3.0, m * (1 - r) / (1 + r)))
    return slope, float(stats.t.ppf(0.975, worth - 2)) * math.sqrt(
        rest @ rest / (worth - 2) / (x @ x)
    )


def bartlett(n: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(slope, standard error) with Bartlett's kernel over all lags."""
    slope, rest, x = least_squares(n, y)
    sums = np.cumsum(x * rest)
    return slope, math.sqrt(2 * float(sums @ sums) / len(n)) / float(x @ x)


def critical(n: np.ndarray, chance: np.random.Generator) -> float:
    """The 95 % quantile of slope / Bartlett's error for white noise on these N."""
    ratios = []
    for _ in range(4000):
        slope, error = bartlett(n, chance.normal(size=len(n)))
        ratios.append(abs(slope) / error if error else math.inf)
    return float(np.quantile(ratios, 0.95))


def truth(plan: Design, name: str) -> float:
    """The true cost: of the last connection, where it rises. A difference of two levels includes
    what the first connections allocate once, and is the mean, as documented.
    """
    if plan.plan.schedule.end_s > SHORT_S and name in BENT:
        return COST * (1 + BENT[name])
    return COST + FIRST_USE / CONNECTIONS * (
        plan.plan.schedule.end_s <= SHORT_S and name.startswith("first use")
    )


def cell(slopes: Sequence[tuple[float, float]], true: float) -> str:
    inside = sum(abs(slope - true) <= half for slope, half in slopes)
    return (
        f"{100 * inside / len(slopes):.0f} "
        f"({100 * statistics.median(half for _, half in slopes) / COST:.2g})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--designs", type=int, nargs="+", default=list(range(7)), help="which of the seven"
    )
    parser.add_argument("--metrics", nargs="+", default=list(METRICS))
    options = parser.parse_args()
    designs = [
        design(SHORT_S),
        design(20),
        design(100),
        design(1000),
        design(100, 3),
        design(100, 5),
        design(100, 8),
    ]
    print(f"$ {command()}\n{machine()}\n")
    for plan in (designs[place] for place in options.designs):
        points = None
        print(
            f"{plan.name:24} {'asyncli':>14} {'independent':>14} {'Santer':>14} {'fixed-b':>14} "
            f"{'unsettled':>10}"
        )
        for name, metric in ((name, METRICS[name]) for name in options.metrics):
            chance = np.random.default_rng([options.seed, len(plan.n), plan.plan.plateaus])
            rows: list[list[tuple[float, float]]] = [[], [], [], []]
            moving = 0
            if name in OF_LADDERS and not plan.plan.plateaus:
                continue
            for _ in range(options.runs):
                others = of_another_client(plan.n, chance) if name == OTHERS else None
                every = plan.n if others is None else plan.n + others
                fit = fitted(plan, metric(every, chance), None if others is None else every)
                low, high = fit.cost.ci95
                slope = fit.cost.bytes_per_connection
                moving += high - low > 2.000001 * fit.line.half
                # An asymmetric interval counts by the side on which the truth is.
                rows[0].append((slope, high - slope if slope < truth(plan, name) else slope - low))
                n, y = np.array(fit.n), np.array(fit.bytes)
                points = points or critical(n, chance)
                rows[1].append(independent(n, y))
                rows[2].append(santer(n, y))
                slope, error = bartlett(n, y)
                rows[3].append((slope, points * error))
            print(
                f"{name:24} "
                + " ".join(f"{cell(row, truth(plan, name)):>14}" for row in rows)
                + f" {100 * moving / options.runs:>8.0f} %",
                flush=True,
            )
        print()


if __name__ == "__main__":
    main()
