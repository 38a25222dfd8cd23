"""A synthetic run of known numbers and known noise."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from typing import Any

from asyncli.core.histogram import Histogram, bucket
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Environment, Finding, Gap, Phase, Sample, Tick
from asyncli.model.run import Run, Ticks

SERVER, KERNEL_END, GENERATOR, REST = 1020.0, 4050.0, 130.0, 390.0
# Ends per page of queued buffers, and available memory before.
ENDS_A_PAGE, AVAILABLE = 100, 22e9
FIXED = {"server": 60e6, "kernel": 3e6, "generator": 40e6, "host": 2.0e9}


def spread(middle: float, count: int) -> Histogram:
    """``count`` values, most at ``middle``, some larger."""
    histogram = Histogram()
    beyond = {factor: round(count * share) for factor, share in ((0.7, 0.3), (2.0, 0.19), (6.0, 0.01))}
    for factor, many in {**beyond, 1.0: count - sum(beyond.values())}.items():
        value = int(middle * factor)
        if many:
            histogram.counts[bucket(value)] = histogram.counts.get(bucket(value), 0) + many
            histogram.greatest = max(histogram.greatest, value)
            histogram.least = value if histogram.least < 0 else min(histogram.least, value)
    return histogram


class Noise:
    """Gaussian noise in which neighbours are correlated by ``phi``."""

    def __init__(self, seed: int, phi: float) -> None:
        self._random, self._phi, self._last = random.Random(seed), phi, 0.0
        self._last = self._random.gauss(0, 1)

    def __call__(self, deviation: float) -> float:
        fresh = self._random.gauss(0, 1)
        self._last = self._phi * self._last + (1 - self._phi**2) ** 0.5 * fresh
        return deviation * self._last


def bare_run(
    ticks: Ticks = (), phases: Sequence[Phase] = (), samples: Sequence[Sample] = (), environment: Environment | None = None, *,
    plan: Plan | None = None, checks: Sequence[Check] = (), findings: Sequence[Finding] = (), gaps: Sequence[Gap] = (),
) -> Run:  # fmt: skip
    """A run of these records alone."""
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=1) if plan is None else plan
    return Run(
        "", "", plan, environment or {}, list(phases), list(ticks), samples, list(findings), list(checks), complete=True, gaps=list(gaps)
    )


def cut(run: Run, at_s: float) -> Run:
    """The run as in its file if it was killed at ``at_s``."""
    run.samples = [sample for sample in run.samples if sample.t_s <= at_s]
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s <= at_s]
    run.phases = [phase for phase in run.phases if phase.start_s <= at_s]
    run.phases[-1].end_s, run.complete = None, False
    return run


def without(run: Run, *names: str, since_s: float = -math.inf, until_s: float = math.inf) -> Run:
    """The run without the metrics that begin with ``names`` in the samples of these seconds."""
    for sample in run.samples:
        if since_s < sample.t_s <= until_s:
            sample.values = {name: value for name, value in sample.values.items() if not name.startswith(names)}
    return run


def raised(
    run: Run, by: float, *names: str, each: float = 0.0, per_s: float = 0.0, since_s: float = -math.inf, until_s: float = math.inf
) -> Run:
    """The run with metrics raised in the samples of these seconds: ``by``, ``each`` per connection that the server counts, and
    ``per_s`` of the hold."""
    for sample in run.samples:
        more = by + each * (sample.values.get("status.active", 1.0) - 1.0)
        more += per_s * max(0.0, sample.t_s - run.phases[2].start_s) if per_s else 0.0
        if since_s < sample.t_s <= until_s:
            sample.values |= {name: sample.values[name] + more for name in names if name in sample.values}
    return run


def a_run(
    connections: int = 100_000, *, hold_s: float = 60.0, seed: int = 1, phi: float = 0.5, local: bool = True,
    label: str = "nginx/1.22.1", status: bool = True, server: bool = True, slab: bool = True, complete: bool = True,
    noise: float = 1.0, others: int = 0, processes: bool = False, **of_plan: Any,
) -> Run:  # fmt: skip
    """A good run: ``connections`` at the plan's pace, held for ``hold_s``; ``noise`` scales deviations."""
    plan = Plan(
        urls=("http://127.0.0.1:8080/",), connections=connections, hold_s=hold_s, seed=seed,
        status_url="http://127.0.0.1:8081/status" if status else None, **of_plan,
    )  # fmt: skip
    schedule = plan.schedule
    t0 = plan.baseline_s + 0.1
    ramp_s = float(int(schedule.end_s) + 1)
    stop = t0 + ramp_s + hold_s
    phases = [
        Phase("baseline", 0.0, t0), Phase("ramp", t0, t0 + ramp_s), Phase("hold", t0 + ramp_s, stop),
        Phase("drain", stop, stop + 3.0), Phase("residue", stop + 3.0, stop + 3.0 + plan.residue_s),
    ]  # fmt: skip
    dues = [schedule.due_s(j) for j in range(schedule.batches)]

    def held_at(t_s: float) -> int:
        if t_s >= stop:
            return max(0, round(connections * (1 - (t_s - stop) / 2.0)))
        return min(connections, bisect.bisect_right(dues, t_s - t0) * plan.batch)

    ticks: list[tuple[float, Tick]] = []
    beats_owed, sent_before, before = 0.0, 0, 0
    history = [(0.0, 0)]
    cpu = 0.0
    for second in range(1, int(ramp_s + hold_s + 8) + 1):
        t_s = t0 + second
        held = held_at(t_s)
        opened = max(0, held - before) if t_s <= stop else 0
        beats_owed += 0 if t_s > stop else opened + held / ((1 + plan.keepalive_s / 2) / 2)
        sent, beats_owed = int(beats_owed), beats_owed - int(beats_owed)
        sent_before += sent
        cpu += opened * 49e-6 + sent * 17e-6
        batches = bisect.bisect_left(dues, second) - bisect.bisect_left(dues, second - 1) if opened else 0
        tick = Tick(
            second=second, workers=10, held=held, ramped=10 if t_s > t0 + ramp_s else 0, started=opened, opened=opened,
            drained=10 if t_s > stop + 2 else 0, held_at_drain=connections if t_s > stop else 0, sent=sent,
            answered=sent, bytes_sent=60 * sent, bytes_received=200 * sent, by_status={200: sent} if sent else {},
            cpu_user_s=cpu * 0.4, cpu_system_s=cpu * 0.6, latency_us=spread(420, sent), lateness_us=spread(300, sent),
            connect_us=spread(60, opened), ramp_lateness_us=spread(900, batches), longest_turn_s=0.012,
        )  # fmt: skip
        before = held
        ticks.append((t_s, tick))
        history.append((t_s, sent_before))

    noises = {name: Noise(seed * 10 + place, phi) for place, name in enumerate(("server", "kernel", "generator", "host"))}
    samples: list[Sample] = []
    end = stop + 3.0 + plan.residue_s
    opened_in_all, polls = 0, 0
    t_s = 0.3
    while t_s < end:
        n = held_at(t_s)
        opened_in_all = max(opened_in_all, n)
        polls += 1
        answered = max(count for at, count in history if at <= t_s) if t_s > stop else int(n * 0.5)
        values = {
            "generator.processes": 11.0,
            "generator.uss_bytes": FIXED["generator"] + GENERATOR * n + noises["generator"](20e3 * noise),
            "generator.cpu_s": 0.5 + 60e-6 * opened_in_all + 0.01 * t_s,
            "session.uss_bytes": 60e6,
        }
        if server:
            values["server.processes"] = 9.0
            values["server.pss_bytes"] = FIXED["server"] + SERVER * (n + others) + noises["server"](100e3 * noise)
            values["server.rss_bytes"] = values["server.pss_bytes"] * 1.8
            values["server.cpu_s"] = 1.0 + 40e-6 * opened_in_all + 0.02 * t_s
        ends = 2 if local else 1
        kernel = FIXED["kernel"] + ends * KERNEL_END * (n + others) + noises["kernel"](200e3 * noise)
        if slab:
            values["kernel.socket_bytes"] = kernel
        values["kernel.tcp_inuse"] = values["kernel.tcp_alloc"] = ends * n + 20.0
        values["kernel.tcp_mem_bytes"] = 4096.0 * (5 + ends * n // ENDS_A_PAGE)
        values["tcp.ListenOverflows"] = 7.0
        values["tcp.ListenDrops"] = 7.0
        whole = values["generator.uss_bytes"] + (values.get("server.pss_bytes", 0.0) if local else 0.0) + kernel
        values["host.used_bytes"] = FIXED["host"] + whole + REST * n + noises["host"](2e6 * noise)
        if processes:
            known = ("generator.uss_bytes", "session.uss_bytes", "server.pss_bytes")
            values["host.processes_bytes"] = FIXED["host"] / 2 + sum(values[name] for name in known)
        values["host.available_bytes"] = AVAILABLE + FIXED["host"] - values["host.used_bytes"]
        if status:
            values |= {
                "status.active": n + others + 1.0, "status.accepts": 1.0 + opened_in_all + others,
                "status.handled": 1.0 + opened_in_all + others, "status.requests": 5000.0 + answered + polls,
                "status.polls": float(polls), "status.waiting": float(n), "status.reading": 0.0, "status.writing": 1.0,
            }  # fmt: skip
        samples.append(Sample(t_s, values))
        t_s += 1.0
    if status:
        samples[-1].values["status.requests"] = 5000.0 + sent_before + polls
    samples.insert(0, Sample(0.0, {k: v for k, v in samples[0].values.items() if not k.startswith("status.")}))
    return Run(
        id="f00dfeed0001",
        started="2025-03-01T12:00:00Z",
        plan=plan,
        environment={
            "kernel": "6.18.0", "python": "3.11.7", "asyncli": "0.1.0", "cpus": 2, "memory_bytes": 25_000_000_000,
            "limits": {"nofile_hard": 20000}, "sysctls": {"net.core.somaxconn": "4096"}, "local": local, "workers": 10,
            "sources": 36,
            "server": {"label": label, "version": label.partition("/")[2], "pid": 4242, "config_hash": "ab12"},
        },
        phases=phases,
        ticks=ticks,
        samples=samples,
        findings=[Finding("ports_spread", "info", "36 sources of 127.1.0.0/16 share the connections", "")],
        checks=[],
        complete=complete,
    )  # fmt: skip
