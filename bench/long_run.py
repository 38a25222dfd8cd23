"""Measures how long loading and reporting a long run takes: it writes and reads a run file with a
tick and a sample every second.

    python bench/long_run.py [--hours 12] [--keepalive 3600] [--out FILE.db] [--rounds 3]

There is no soak: ticks and samples are synthetic (repeatable, and shaped like those of 100,000
connections on nginx: the same metrics, as many histogram buckets) and are written by the writer of
every soak. CPU seconds are those of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncli.core.histogram import Histogram
from asyncli.core.ramp import Ramp
from asyncli.model.plan import Plan, plan_document
from asyncli.model.records import Deaths, Finding, Phase, Sample, Tick
from asyncli.store import writer as writing
from asyncli.store.writer import RunWriter

CONNECTIONS = 100_000
# The number of different histograms of each kind: they repeat after this many seconds.
_KINDS = 97
_COUNTERS = (
    "AttemptFails",
    "EstabResets",
    "ListenDrops",
    "ListenOverflows",
    "OutRsts",
    "PruneCalled",
    "RetransSegs",
    "SyncookiesSent",
    "TCPAbortOnClose",
    "TCPAbortOnData",
    "TCPAbortOnMemory",
    "TCPAbortOnTimeout",
    "TCPBacklogDrop",
    "TCPChallengeACK",
    "TCPMemoryPressures",
    "TCPRcvQDrop",
    "TCPReqQFullDoCookies",
    "TCPReqQFullDrop",
    "TCPRetransFail",
    "TCPSynRetrans",
    "TCPTimeWaitOverflow",
    "TCPTimeouts",
    "TCPZeroWindowDrop",
)
#: Cache -> bytes per socket end (100,000 connections on nginx 1.22, Linux 6.18), and bytes in use
#: before the first connection.
_SLABS = {
    "TCP": (2368, 0.2e6),
    "TCPv6": (0, 0.13e6),
    "dentry": (192, 16e6),
    "ep_head": (16, 0.01e6),
    "eventpoll_epi": (128, 0.05e6),
    "eventpoll_pwq": (64, 0.13e6),
    "filp": (192, 0.1e6),
    "lsm_file_cache": (24, 0.02e6),
    "lsm_inode_cache": (64, 1.9e6),
    "sock_inode_cache": (832, 0.2e6),
}
# Metrics that a report uses.
_USED = (
    "status.",
    "server.p",
    "server.rss",
    "generator.",
    "host.used",
    "host.available",
    "kernel.socket_bytes",
    "kernel.listing",
    "kernel.tcp_",
)
_PROBES = (
    "generator",
    "generator_memory",
    "kernel",
    "server",
    "server_memory",
    "session",
    "session_memory",
    "slab",
    "status",
)


def write_long_run(
    path: Path, *, hours: float = 12.0, keepalive_s: float = 3600.0, metrics: int | None = None
) -> None:
    """Write a complete run of ``hours`` to the new file ``path``: about 3,600 ticks and 277,000
    rows of samples an hour.

    ``metrics``: only so many of a soak's 77 metrics, preferring those that a report uses.
    """
    connections = CONNECTIONS
    plan = Plan(
        urls=("http://127.0.0.1:8080/",),
        connections=connections,
        keepalive_s=keepalive_s,
        hold_s=hours * 3600 - 200,
        baseline_s=30.0,
        residue_s=30.0,
        seed=1,
        status_url="http://127.0.0.1:8081/nginx_status",
    )
    environment = {
        "kernel": "6.18.0",
        "python": "3.12.3",
        "asyncli": "0.1.0",
        "cpus": 2,
        "memory_bytes": 25_000_000_000,
        "local": True,
        "limits": {"nofile_hard": 20000},
        "sysctls": {},
        "workers": 6,
        "sources": 36,
        "server": {
            "label": "nginx/1.22.1",
            "version": "1.22.1",
            "pid": 4242,
            "config_hash": "ab12",
        },
    }
    start = plan.baseline_s + 0.1
    ramp_s = math.ceil(Ramp(connections, plan.batch, plan.interval_s).end_s)
    stop = start + ramp_s + (plan.hold_s or 0.0)
    writer = RunWriter.create(
        path,
        run_id="f00dfeed0002",
        started_wall_s=1_740_830_400.0,
        plan_document=plan_document(plan),
        environment=environment,
    )
    with _unhurried(writer) as put:
        for phase in (
            Phase("baseline", 0.0, start),
            Phase("ramp", start, start + ramp_s),
            Phase("hold", start + ramp_s, stop),
            Phase("drain", stop, stop + 3.0),
            Phase("residue", stop + 3.0, stop + 3.0 + plan.residue_s),
        ):
            writer.phase(phase)
        writer.finding(
            0.1, Finding("ports_spread", "info", "36 sources of 127.1.0.0/16 share the connections")
        )
        second = _Second(plan, random.Random(1), metrics)
        for t in range(int(stop + plan.residue_s + 3)):
            held = (
                round(min(connections, max(0.0, (t - start) * plan.asked_per_s)))
                if t <= stop
                else 0
            )
            put(lambda t=t, held=held: writer.sample(second.sample(t + 0.3, held)))
            if t > start:
                put(
                    lambda t=t, held=held: writer.tick(
                        start + int(t - start) + 1,
                        second.tick(int(t - start) + 1, held, stop - start),
                    )
                )
    if writer.trouble is not None or writer.dropped:
        raise RuntimeError(
            f"the run file is incomplete: {writer.trouble}, {writer.dropped} dropped"
        )


class _Second:
    """Makes the records of consecutive seconds."""

    def __init__(self, plan: Plan, chance: random.Random, metrics: int | None) -> None:
        self._plan, self._metrics = plan, metrics
        self._noise = [chance.gauss(0, 1) for _ in range(_KINDS * 13)]
        self._each_s = plan.connections / ((1 + plan.keepalive_s / 2) / 2)
        beats = round(self._each_s)
        self._latency = [_histogram(chance, beats, 6.0, 0.45) for _ in range(_KINDS)]
        self._lateness = [_histogram(chance, beats, 5.9, 0.5) for _ in range(_KINDS)]
        self._connect = [_histogram(chance, 1000, 4.4, 0.3) for _ in range(7)]
        self._grid = [_histogram(chance, 100, 6.3, 0.4) for _ in range(7)]
        self._opened = self._answered = self._before = 0
        self._probes = {
            f"probe.{name}": 0.0002 + 0.0003 * place for place, name in enumerate(_PROBES)
        }
        self._counters = {f"tcp.{name}": float(7 * place) for place, name in enumerate(_COUNTERS)}

    def tick(self, second: int, held: int, drain_s: float) -> Tick:
        opened = max(0, held - self._before)
        self._before = held
        tick = Tick(
            second=second,
            workers=6,
            held=held,
            started=opened,
            opened=opened,
            cpu_user_s=second * 0.04,
            cpu_system_s=second * 0.09,
            ramped=6 if held == self._plan.connections else 0,
            drained=6 if second > drain_s + 2 else 0,
            held_at_drain=self._plan.connections if second > drain_s else 0,
            longest_turn_s=0.004 + 0.001 * (second % 5),
        )
        if opened:
            tick.connect_us, tick.ramp_lateness_us = (
                self._connect[second % 7],
                self._grid[second % 7],
            )
        if held:
            share = min(1.0, held / self._plan.connections)
            tick.latency_us, tick.lateness_us = (
                self._latency[second % _KINDS],
                self._lateness[second % _KINDS],
            )
            tick.sent = tick.answered = round(self._each_s)
            tick.by_status = {200: tick.sent}
            tick.bytes_sent, tick.bytes_received = 60 * tick.sent, round(200 * share * tick.sent)
        if second % 600 == 599 and held == self._plan.connections:
            dead = tick.deaths["closed_announced"] = Deaths(20)
            for place in range(20):
                dead.age_s.add(3600 + place % 2)
                dead.idle_s.add(30 * place)
                dead.requests.add(4 + place % 3)
            tick.reopened = tick.opened = 20
        self._opened += tick.opened
        self._answered += tick.answered
        return tick

    def sample(self, t_s: float, n: int) -> Sample:
        noise, at = self._noise, int(t_s) * 13
        values = dict(self._counters)
        values["tcp.EstabResets"] += self._opened
        for place, (name, (each, fixed)) in enumerate(_SLABS.items()):
            values[f"kernel.slab.{name}"] = (
                fixed + 2 * each * n + 1e4 * noise[(at + place) % len(noise)]
            )
        kernel = sum(values[f"kernel.slab.{name}"] for name in _SLABS)
        server = 55.7e6 + 528 * n + 3e4 * noise[(at + 3) % len(noise)] + 20 * t_s
        generator = 28e6 + 26 * n + 1e4 * noise[(at + 5) % len(noise)]
        host = 3e8 + server + generator + kernel + 600 * n + 3e6 * noise[(at + 7) % len(noise)]
        values |= {
            "generator.cpu_s": 0.5 + 0.13 * t_s,
            "generator.processes": 7.0,
            "generator.pss_bytes": generator + 15e6,
            "generator.uss_bytes": generator,
            "session.cpu_s": 0.3 + 0.01 * t_s,
            "session.uss_bytes": 38e6,
            "host.available_bytes": 24.9e9 - host,
            "host.cpu_busy_s": 360 + 0.5 * t_s,
            "host.free_bytes": 24.7e9 - host,
            "host.pagetable_bytes": 5e6,
            "host.slab_bytes": 1.3e8 + 1.1 * kernel,
            "host.used_bytes": host,
            "kernel.listing_bytes": 1.06e6,
            "kernel.socket_bytes": kernel,
            "kernel.socket_slab_bytes": 1.04 * kernel,
            "kernel.tcp_alloc": 10.0 + 2 * n,
            "kernel.tcp_inuse": 10.0 + 2 * n,
            "kernel.tcp_mem_bytes": 4096.0 * (int(t_s) % 9),
            "kernel.tcp_orphan": 0.0,
            "kernel.tcp_tw": float(int(t_s) % 5),
            "server.cpu_s": 1 + 0.1 * t_s,
            "server.processes": 7.0,
            "server.threads": 7.0,
            "server.pss_bytes": server,
            "server.rss_bytes": 1.3 * server,
            "server.uss_bytes": server - 4e6,
            "status.accepts": 2.0 + self._opened,
            "status.active": 1.0 + n,
            "status.connects": 1.0,
            "status.handled": 2.0 + self._opened,
            "status.polls": 1.0 + int(t_s),
            "status.reading": 0.0,
            "status.requests": 3.0 + int(t_s) + self._answered,
            "status.waiting": float(n),
            "status.writing": 1.0,
            **self._probes,
        }
        if self._metrics is not None:
            order = sorted(values, key=lambda name: (not name.startswith(_USED), name))
            values = {name: values[name] for name in order[: self._metrics]}
        return Sample(t_s, values)


def _histogram(chance: random.Random, count: int, middle: float, spread: float) -> Histogram:
    """``count`` latencies (us), log-normal."""
    histogram = Histogram()
    for _ in range(count):
        histogram.add(chance.lognormvariate(middle, spread))
    return histogram


@contextlib.contextmanager
def _unhurried(writer: RunWriter) -> Any:
    """Yields ``put``, which waits while the writer's queue is half full: a soak writes two records
    a second, and the writer drops records that come faster than the disk.
    """
    every, writing.COMMIT_EVERY_S = writing.COMMIT_EVERY_S, 0.01

    def put(record: Callable[[], None]) -> None:
        while len(writer._waiting) + writer._committing > writing.MOST_WAITING // 2:
            time.sleep(0.002)
        record()

    try:
        yield put
        writer.close(True)
    finally:
        writing.COMMIT_EVERY_S = every


def stages(path: Path) -> dict[str, float]:
    """CPU seconds of each step from the file to the report, without imports of numpy, scipy and
    matplotlib.
    """
    import jinja2
    import matplotlib.figure
    import numpy as np
    import scipy.stats
    from rich.console import Console

    from asyncli.report.analyses import analyse
    from asyncli.report.run_report import print_report, render
    from asyncli.report.summary import summarise
    from asyncli.store.reader import read_run

    assert all((jinja2, matplotlib.figure, np, scipy.stats))
    took: dict[str, float] = {}
    gc.collect()
    gc.freeze()  # a report begins without the caller's objects, which each collection would look at

    def timed(name: str, what: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = what()
        took[name] = time.process_time() - began
        return result

    run = timed("read_run", lambda: read_run(path))
    gc.freeze()  # as `asyncli report` does
    analyses = timed("analyse", lambda: analyse(run))
    summary = timed("summarise", lambda: summarise(run, analyses))
    timed("text", lambda: print_report(summary, Console(file=io.StringIO(), width=96), path))
    page = timed("html", lambda: render(run, summary, analyses))
    took["html_mb"] = len(page) / 1e6
    gc.unfreeze()
    took["memory_mb"] = (
        float(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1e3
    )
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--keepalive", type=float, default=3600.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the run file here")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        print(json.dumps(stages(options.read)))
        return
    from common import command, machine

    print(f"$ {command()}\n{machine()}")
    with tempfile.TemporaryDirectory(prefix="asyncli-bench-") as folder:
        path = options.out or Path(folder) / "long.db"
        if not path.exists():
            began = time.monotonic()
            write_long_run(path, hours=options.hours, keepalive_s=options.keepalive)
            print(
                f"written in {time.monotonic() - began:.1f} s: {path.stat().st_size / 1e6:,.0f} MB"
            )
        # A process for each round: memory left by an earlier one would affect the next.
        again = [sys.executable, __file__, "--read", str(path)]
        rounds = [
            json.loads(subprocess.check_output(again, text=True)) for _ in range(options.rounds)
        ]
    for name in rounds[0]:
        values = [one[name] for one in rounds]
        print(f"{name:<12}{statistics.median(values):>9.2f} ({min(values):.2f}-{max(values):.2f})")


if __name__ == "__main__":
    main()
