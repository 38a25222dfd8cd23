"""Whether ``asyncli storm`` predicts what storms are measured to do.

    python bench/storm_twin.py [--server slow|nginx|mosquitto] [--connections N] [--tls]
        [--folder FOLDER]

Each soak has a new server. The first has a fast ramp and no event, the others a storm each, by one
policy. From the run of the fast ramp, and from that of the storm by ``now``, all storms are
predicted; then a storm is measured at the jitter that is advised. Printed: when 50, 90, 99 and
100 % were back as predicted and as measured, and the share of connects that failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from common import HERE, command, machine, settle

from asyncli.analysis.storm_forecast import forecast, least_jitter
from asyncli.analysis.storm_pace import Unmeasured, known_backlog, measured_pace
from asyncli.api import soak
from asyncli.core.adding import added_up
from asyncli.lab import choose
from asyncli.model.plan import Layer, build_plan
from asyncli.model.planned_events import reconnect_of
from asyncli.model.records import EventCounts
from asyncli.model.run import Run
from asyncli.store.reader import read_run

SLOW_ACCEPTOR = HERE.parent / "tests" / "integration" / "slow_acceptor.py"
SLOW_PER_S, SLOW_BACKLOG = 200, 32
POLICIES = ("now", "jitter:2s", "jitter:5s", "backoff:1s..60s")


class Server(NamedTuple):
    url: str
    status_url: str | None = None


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="slow")
    parser.add_argument("--connections", type=int, default=480)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--ramp", default="100/s", help="of the runs with a storm")
    parser.add_argument("--fast-ramp", default="20000/s")
    parser.add_argument("--hold", type=int, default=25)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--recorded", action="store_true", help="keep run files that exist")
    parser.add_argument("--folder", type=Path, help="keep the run files here")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        await measure(options, folder)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    paths = {"ramp": folder / "ramp.db"}
    await record(options, paths["ramp"], {"ramp": options.fast_ramp, "hold": 6})
    for policy in options.policies:
        paths[policy] = path_of(folder, policy)
        await record(options, paths[policy], stormed(options, policy))
    runs = {name: read_run(path) for name, path in paths.items()}
    for name, run in runs.items():
        show(name, run, [runs[policy] for policy in options.policies])
    await advised(options, runs["now"], folder)


async def advised(options: argparse.Namespace, run: Run, folder: Path) -> None:
    """A storm at the jitter that is advised by a run."""
    pace = measured_pace(run, known_backlog(run) or 0)
    if isinstance(pace, Unmeasured):
        return
    jitter = least_jitter(pace, run.plan.seed, run.plan.connections)
    if jitter.least_s is None:
        return
    path = folder / "advised.db"
    await record(options, path, stormed(options, f"jitter:{jitter.least_s:.3f}s"))
    stormy = read_run(path)
    counts = counts_of(stormy)
    failed = sum(counts.failures.values()) + counts.phantoms
    dropped = stormy.series("server.listeners_dropped").last()
    print(
        f"at the advised {stormy.plan.reconnect}: {counts.attempts:,} connects, of which {failed} "
        f"failed; {dropped} packets met a full listen queue",
        flush=True,
    )


def counts_of(run: Run) -> EventCounts:
    return added_up(EventCounts(), *[tick.events[1] for _, tick in run.ticks if 1 in tick.events])


def show(name: str, run: Run, storms: list[Run]) -> None:
    pace = measured_pace(run, known_backlog(run) or 0)
    if isinstance(pace, Unmeasured):
        print(f"by {name}: {pace.why}")
        return
    least = "at least " if pace.is_least else ""
    print(
        f"by {name}: {least}{pace.per_s:,.0f}/s by event {pace.by_event}, tester "
        f"{pace.tester_per_s and round(pace.tester_per_s)}, busy {pace.tester_busy} "
        f"{pace.host_busy}, error {pace.error:.2f}"
    )
    for stormy in storms:
        policy = reconnect_of(stormy.plan.reconnect)
        predicted = forecast(pace, policy, run.plan.seed, run.plan.connections)
        back_ms = counts_of(stormy).back_ms
        measured = [(back_ms.quantile(share) or 0) / 1e3 for share in (0.5, 0.9, 0.99, 1.0)]
        at_most = "at most " if predicted.is_at_most else ""
        back = predicted.back
        predicted_s = [seconds or 0 for seconds in (back.p50_s, back.p90_s, back.p99_s, back.all_s)]
        interval = f"{predicted.earliest.p99_s or 0:.2f} to {predicted.latest.p99_s or 0:.2f}"
        print(
            f"    {stormy.plan.reconnect:16} measured {listed(measured)}, {at_most}predicted "
            f"{listed(predicted_s)}: t99 {predicted_s[2] / measured[2] - 1:+.0%}, {interval}; "
            f"{predicted.bound}",
            flush=True,
        )


def listed(seconds: list[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in seconds)


def path_of(folder: Path, policy: str) -> Path:
    return folder / f"{policy.replace(':', '-').replace('..', '-')}.db"


def stormed(options: argparse.Namespace, policy: str) -> dict[str, Any]:
    return {
        "ramp": options.ramp,
        "hold": options.hold,
        "events": [("2s", "storm")],
        "reconnect": policy,
    }


async def record(options: argparse.Namespace, path: Path, asked: dict[str, Any]) -> None:
    if options.recorded and path.exists():
        return
    path.unlink(missing_ok=True)
    async with started(options) as server:
        values: dict[str, Any] = {
            "urls": [server.url],
            "connections": options.connections,
            "baseline": 1,
            "residue": 1,
            **asked,
        }
        if server.status_url:
            values["status_url"] = server.status_url
        if options.tls:
            values["insecure"] = True
        await soak(build_plan([Layer("--{key}", values)]), path)
    settle()


@contextlib.asynccontextmanager
async def started(options: argparse.Namespace) -> AsyncIterator[Server]:
    if options.server != "slow":
        async with choose(options.server, tls=options.tls) as lab_server:
            yield Server(lab_server.url, lab_server.status_url)
        return
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, str(SLOW_ACCEPTOR), str(SLOW_PER_S), str(SLOW_BACKLOG))
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdout
    assert process.stdin
    port = int(await process.stdout.readline())
    try:
        yield Server(f"http://127.0.0.1:{port}/")
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
