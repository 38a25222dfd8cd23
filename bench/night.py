"""A real soak with injected faults that checks every number of its report; and one without faults,
for asyncli's own memory.

    python bench/night.py faults [-c 100000] [-k 600] [--minutes 60] [--folder DIR]
    python bench/night.py peace  [-c 100000] [-k 3600] [--minutes 60] [--folder DIR]

``faults``: a generator worker is killed after 1/6 of the time, nginx is reloaded after 1/3, and the
session is killed after 3/5 and resumed a minute later. The script reads nginx's own counters before
and after, independently of asyncli, and compares them with the report. ``peace``: no faults;
asyncli's memory over the hold (bytes per hour with its interval) and its CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from common import command, machine

from asyncli.lab.nginx import LabNginx
from asyncli.model.errors import StoreError
from asyncli.store.reader import read_run

DEADLINE_S = 300.0


def status_of(url: str) -> dict[str, int]:
    """nginx's counts of active connections, accepts, handled and requests; this reading is one of
    each.
    """
    words = urllib.request.urlopen(url, timeout=10).read().split()
    return dict(
        zip(
            ("active", "accepts", "handled", "requests"),
            map(int, (words[2], *words[7:10])),
            strict=True,
        )
    )


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen(
        [sys.executable, "-m", "asyncli", "soak", *arguments],
        cwd=folder,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def workers_of(pid: int) -> list[psutil.Process]:
    """The generator's workers: children of the host process, which is a child of the session."""
    return [worker for host in psutil.Process(pid).children() for worker in host.children()]


async def wait_for_hold(path: Path, many: int) -> None:
    """Wait until all are held."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        # It is empty until the baseline is recorded.
        with contextlib.suppress(StoreError):
            ticks = read_run(path).ticks
            if ticks and ticks[-1][1].held == many:
                return
        await asyncio.sleep(2)
    sys.exit(f"the ramp has not ended after {DEADLINE_S:.0f} s")


async def soak(options: argparse.Namespace, folder: Path, faults: bool) -> None:
    span_s = options.minutes * 60.0
    async with LabNginx(connections=options.connections, keepalive_s=options.keepalive) as server:
        assert server.status_url is not None
        before = status_of(server.status_url)
        path = folder / "run.db"
        asked = (
            "-c",
            str(options.connections),
            "-k",
            str(options.keepalive),
            "--hold",
            f"{span_s:.0f}s",
            "--status-url",
            server.status_url,
            "--out",
            "run.db",
            "--log-json",
        )
        program = start(folder, "soak", server.url, *asked)
        await wait_for_hold(path, options.connections)
        zero = time.monotonic()
        say(zero, f"{options.connections:,} held")
        if faults:
            await asyncio.sleep(zero + span_s / 6 - time.monotonic())
            victim = workers_of(program.pid)[0]
            victim.send_signal(signal.SIGKILL)
            say(zero, f"generator worker (pid {victim.pid}) killed")
            await asyncio.sleep(zero + span_s / 3 - time.monotonic())
            os.kill(server.pid, signal.SIGHUP)
            say(zero, f"nginx (pid {server.pid}) reloads")
            await asyncio.sleep(zero + span_s * 3 / 5 - time.monotonic())
            program.send_signal(signal.SIGKILL)
            program.wait()
            say(zero, "session killed")
            await asyncio.sleep(min(60.0, span_s / 20))
            program = start(folder, "resumed", "--resume", "run.db", "--log-json")
            say(zero, "resumed")
        while program.poll() is None:
            await asyncio.sleep(1)
        after = status_of(server.status_url)
        say(zero, f"ended with exit status {program.returncode}")
        compare(folder, before, after)


def say(zero: float, what: str) -> None:
    print(f"{time.monotonic() - zero:8.1f} s  {what}", flush=True)


def compare(folder: Path, before: dict[str, int], after: dict[str, int]) -> None:
    """Print the report's numbers beside nginx's."""
    done = subprocess.run(
        [sys.executable, "-m", "asyncli", "report", "run.db", "--json", "-"],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    found, beats = summary["connections"], summary["heartbeats"]
    run = read_run(folder / "run.db")
    polls = sum(1 for one in run.samples if "status.active" in one.values)
    print(f"\nverdict {summary['run']['verdict']}; gaps {summary['run']['gaps']}")
    print(
        f"opened {found['opened']:,} - lost {found['lost']:,} = held {found['held']:,}: "
        f"{found['opened'] - found['lost'] == found['held']}"
    )
    print(
        f"deaths {found['deaths']} add up to lost: {sum(found['deaths'].values()) == found['lost']}"
    )
    print(
        f"failures {found['failures']} add up to failed: "
        f"{sum(found['failures'].values()) == found['failed']}"
    )
    print(
        f"sent {beats['sent']:,} = answered {beats['answered']:,} + failed {beats['failed']:,}: "
        f"{beats['sent'] == beats['answered'] + beats['failed']}"
    )
    accepts = after["accepts"] - before["accepts"]
    requests = after["requests"] - before["requests"]
    print(
        f"nginx accepted {accepts:,}: {accepts - found['opened']:+,} compared with opened (this "
        "script's and the poller's connections, unrecorded ones)"
    )
    print(
        f"nginx served {requests:,} requests: {requests - beats['answered'] - polls:+,} compared "
        f"with answers and {polls:,} polls"
    )
    missing = [
        (a, b)
        for (a, _), (b, _) in zip(run.ticks, run.ticks[1:], strict=False)
        if b - a > 2.5
        and not any(gap.start_s <= a + 1.5 and b <= (gap.end_s or b) + 1.5 for gap in run.gaps)
    ]
    print(
        f"seconds missing outside the gaps: {missing or 'none'}; {len(run.ticks):,} ticks, "
        f"{len(run.samples):,} samples"
    )
    drift = summary["drift"].get("generator_user")
    if drift is not None and drift["bytes_per_hour"] is not None:
        low, high = drift["ci95"]
        print(
            f"asyncli's memory: {drift['bytes_per_hour']:+,.0f} B an hour ({low:+,.0f} to "
            f"{high:+,.0f}), of {drift['level_bytes']:,.0f} B, over {drift['minutes']} minutes: "
            f"{drift['verdict']}"
        )
    hold = next(one for one in summary["run"]["phases"] if one["name"] == "hold")
    cpu = [
        (one.t_s, one.values["generator.cpu_s"])
        for one in run.samples
        if "generator.cpu_s" in one.values and hold["start_s"] <= one.t_s <= hold["end_s"]
    ]
    ours = [
        (one.t_s, one.values["session.cpu_s"])
        for one in run.samples
        if "session.cpu_s" in one.values and hold["start_s"] <= one.t_s <= hold["end_s"]
    ]
    for name, series in (
        ("generator (host and workers)", cpu),
        ("session (collector, run file)", ours),
    ):
        if len(series) > 1:
            share = (series[-1][1] - series[0][1]) / (series[-1][0] - series[0][0])
            print(f"CPU in the hold, {name}: {share:.2%} of a core")
    for one in summary["findings"]:
        print(f"  {one['severity']:8} {one['code']}: {one['evidence']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("faults", "peace"))
    parser.add_argument("-c", "--connections", type=int, default=100_000)
    parser.add_argument("-k", "--keepalive", type=int)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    chosen.keepalive = chosen.keepalive or (600 if chosen.what == "faults" else 3600)
    chosen.folder = chosen.folder or Path(tempfile.mkdtemp(prefix="asyncli-night-"))
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(f"{command()}\n{machine()}\n{chosen.folder}", flush=True)
    asyncio.run(soak(chosen, chosen.folder, chosen.what == "faults"))
