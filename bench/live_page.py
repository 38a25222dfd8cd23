"""What the live page costs: the soak that is looked at, and the server of the page.

    python bench/live_page.py [--connections 20000] [--rounds 4] [--hold 30] [--tabs 3]
    python bench/live_page.py --file NIGHT.db [--seconds 60] [--tabs 3]
    python bench/live_page.py --replay 10000
    python bench/live_page.py --runs 1000

The first soaks an nginx of the lab in turns, with ``--web`` and that many readers of its stream of
events, and without, and compares asyncli's own CPU time, its lateness, and the memory of its
workers. The second serves a run file and measures the page's process: until it listens, its memory,
its CPU time while that many readers stay, and how long the history and the metrics take. With
Chromium it also measures the first paint. The third replays so many seconds of a synthetic run
through the page's server and its stream, second by second, and measures the heap of the Chromium
that shows them, after collections that are forced. The fourth serves a folder with so many runs:
until all are listed, CPU time while the list is read, and memory before, while eight runs are
looked at, and when they were let go.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
from common import HERE, command, machine, settle, spread_of

from asyncli.core.histogram import summed
from asyncli.lab import choose
from asyncli.live.open_runs import UNWATCHED_S
from asyncli.model import metrics
from asyncli.model.own_process import command_of
from asyncli.store.reader import read_run

for part in ("", "live", "analysis"):
    sys.path.insert(0, str(HERE.parent / "tests" / part))

_PAINT = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"
_DRAWN = "document.querySelectorAll('figure:not([hidden]) .u-over').length >= 4"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--hold", type=int, default=30)
    parser.add_argument("--tabs", type=int, default=3)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--replay", type=int, metavar="SECONDS")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    if options.file is not None:
        await measure_page(options)
        return
    if options.replay is not None:
        await measure_heap(options.replay)
        return
    if options.runs is not None:
        await measure_folder(options.runs)
        return
    await measure_soaks(options)


async def measure_soaks(options: argparse.Namespace) -> None:
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for number in range(options.rounds):
        order = ["without", "with"] if number % 2 == 0 else ["with", "without"]
        for kind in order:
            found[kind].append(await one_soak(options, with_page=kind == "with"))
            settle()
    print(f"{'':34} {'without':>22} {'with the page':>22} {'ratio':>18}")
    for key in found["without"][0]:
        without = [figures[key] for figures in found["without"]]
        with_page = [figures[key] for figures in found["with"]]
        ratios = [after / before for before, after in zip(without, with_page, strict=True)]
        print(
            f"{key:34} {spread_of(without):>22} {spread_of(with_page):>22} {spread_of(ratios):>18}"
        )


async def one_soak(options: argparse.Namespace, *, with_page: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with choose("nginx", connections=options.connections) as server:
            words = [server.url, "-c", str(options.connections), "--ramp", "2k/s", "--hold"]
            words += [f"{options.hold}s", "--status-url", str(server.status_url), "--quiet"]
            words += ["--out", f"{folder}/run.db", "--residue", "1s"]
            if with_page:
                words += ["--web", "127.0.0.1:9199"]
            process = await asyncio.create_subprocess_exec(
                *command_of("asyncli", "soak", *words), stdout=subprocess.DEVNULL
            )
            readers = []
            if with_page:
                readers = [asyncio.create_task(read(9199)) for _ in range(options.tabs)]
            watching = asyncio.create_task(watched_cpu(process.pid))
            await process.wait()
            readings = await watching
            for reader in readers:
                reader.cancel()
        run = read_run(f"{folder}/run.db")
    hold = run.phase("hold")
    assert hold is not None
    ticks = [tick for _, tick in run.ticks_between(hold.start_s + 2.0, run.stop_s)]
    beats = sum(tick.answered for tick in ticks)
    held_from_s = run.started_wall_s + hold.start_s + 2.0
    in_hold = [
        cpu for at_s, cpu in readings if held_from_s < at_s < run.started_wall_s + run.stop_s
    ]
    workers_s = in_hold[-1]["engine.host"] - in_hold[0]["engine.host"]
    cpu = run.series(metrics.GENERATOR_CPU_S).between(hold.start_s + 2.0, run.stop_s)
    memory = run.series(metrics.GENERATOR_USS_BYTES).between(hold.start_s, run.stop_s)
    late_us = summed([tick.lateness_us for tick in ticks]).quantile(0.99) or 0.0
    return {
        "CPU of the workers a heartbeat, us": workers_s / beats * 1e6,
        "CPU a heartbeat, us": (cpu.values[-1] - cpu.values[0]) / beats * 1e6,
        "lateness, 99 of 100 below, ms": late_us / 1000,
        "asyncli's memory, MB": statistics.median(memory.values) / 1e6,
    }


async def watched_cpu(pid: int) -> list[tuple[float, dict[str, float]]]:
    """Each second until a soak has ended: the CPU time (s) of its processes by their module."""
    readings = []
    soak = psutil.Process(pid)
    while True:
        by_module = {"engine.host": 0.0, "live.serve": 0.0}
        try:
            for process in soak.children(recursive=True):
                module = process.cmdline()[-1].removeprefix("asyncli.")
                if module in by_module:
                    used = process.cpu_times()
                    by_module[module] += used.user + used.system
        except psutil.NoSuchProcess:
            return readings
        readings.append((time.time(), by_module))
        await asyncio.sleep(1)


async def read(port: int) -> None:
    """Read a page's events as a browser does, from when it listens."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get("/history") as answer:
                    edition = (await answer.json()).get("edition", -1)
                async with client.get(f"/events?edition={edition}") as answer:
                    async for _ in answer.content:
                        pass
            await asyncio.sleep(0.5)


async def measure_page(options: argparse.Namespace) -> None:
    begun_s = time.monotonic()
    async with a_page(options.file) as (process, port):
        print(f"listens after                 {time.monotonic() - begun_s:.2f} s")
        readers = [asyncio.create_task(read(port)) for _ in range(options.tabs)]
        # The cost is computed first, by a process of its own.
        await asyncio.sleep(10)
        before = process.cpu_times()
        await asyncio.sleep(options.seconds)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        print(f"CPU with {options.tabs} readers            {used / options.seconds:.2%} of a core")
        print(f"memory (USS)                  {process.memory_full_info().uss / 1e6:.1f} MB")
        for path in ("/history", "/metrics"):
            print(f"{path:29} {await fetched_ms(port, path)}")
        for reader in readers:
            reader.cancel()
        await measure_paint(port)


@contextlib.asynccontextmanager
async def a_page(path: Path) -> AsyncIterator[tuple[psutil.Process, int]]:
    words = command_of("asyncli", "watch", str(path), "--web", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        match = re.search(r":(\d+)/", line)
        assert match is not None, line
        yield psutil.Process(process.pid), int(match[1])
    finally:
        process.terminate()
        await process.wait()


async def fetched_ms(port: int, path: str) -> str:
    took_ms = []
    size = 0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        for _ in range(20):
            begun_s = time.perf_counter()
            async with client.get(path) as answer:
                size = len(await answer.read())
            took_ms.append(1000 * (time.perf_counter() - begun_s))
    return f"{spread_of(took_ms)} ms, {size:,} B"


async def measure_paint(port: int) -> None:
    from devtools import Browser, find_chromium  # type: ignore[import-not-found]

    binary = find_chromium()
    if binary is None:
        print("first paint                   no Chromium on this host")
        return
    paints_ms = []
    drawn_ms = []
    browser = Browser(binary)
    async with browser:
        for _ in range(5):
            tab = await browser.tab()
            begun_s = time.perf_counter()
            await tab.show(f"http://127.0.0.1:{port}/", width=1400)
            while not await tab.evaluate(_DRAWN):
                await asyncio.sleep(0.01)
            drawn_ms.append(1000 * (time.perf_counter() - begun_s))
            paints_ms.append(float(await tab.evaluate(_PAINT)))
    print(f"first paint                   {spread_of(paints_ms)} ms")
    print(f"all charts drawn              {spread_of(drawn_ms)} ms")


async def measure_folder(runs: int) -> None:
    from recording import write_run
    from synthetic_run import a_run

    with tempfile.TemporaryDirectory() as folder:
        path = write_run(a_run(2000, hold_s=600.0), Path(folder) / "0.db")
        for number in range(1, runs):
            shutil.copy(path, Path(folder) / f"{number}.db")
        print(f"{runs} runs of {path.stat().st_size / 1e6:.1f} MB each")
        async with a_page(Path(folder)) as (process, port):
            print(f"memory before                 {memory_mb(process):.0f} MB")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                begun_s = time.monotonic()
                while await states_of(client) != {"ended"}:
                    await asyncio.sleep(0.1)
                print(f"all listed after              {time.monotonic() - begun_s:.1f} s")
                before_s = cpu_s(process)
                async with client.get("/events"):
                    await asyncio.sleep(30)
                used = cpu_s(process) - before_s
                print(f"CPU while the list is read    {used / 30:.1%} of a core")
                for number in range(8):
                    async with client.get(f"/run/{number}.db/history") as answer:
                        await answer.read()
                await asyncio.sleep(30)
                print(f"memory with eight histories   {memory_mb(process):.0f} MB")
                await asyncio.sleep(UNWATCHED_S)
                print(f"memory when they are let go   {memory_mb(process):.0f} MB")


async def states_of(client: aiohttp.ClientSession) -> set[str]:
    async with client.get("/runs") as answer:
        return {run["state"] for run in (await answer.json())["runs"]}


def memory_mb(process: psutil.Process) -> float:
    """Private memory of the page's process, and of those that it has started."""
    used = 0
    for part in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            used += part.memory_full_info().uss
    return used / 1e6


def cpu_s(process: psutil.Process) -> float:
    """CPU time of the page's process alone: verdicts are computed by one of lowest priority."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure_heap(seconds: int) -> None:
    from devtools import Browser, find_chromium
    from recording import write_run  # type: ignore[import-not-found]
    from replayed_page import replayed  # type: ignore[import-not-found]
    from synthetic_run import a_run  # type: ignore[import-not-found]

    binary = find_chromium()
    if binary is None:
        print("no Chromium on this host")
        return
    at_s = [100, 300, 600, *range(1000, seconds + 1, 1000)]
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(a_run(2000, hold_s=seconds + 60.0), Path(folder) / "run.db")
        begun_s = time.monotonic()
        async with Browser(binary) as browser:
            heaps = await replayed(browser, path, begins_s=60, measured_at_s=at_s)
    print(f"replayed in {time.monotonic() - begun_s:.0f} s")
    print(f"{'second':>8} {'events':>8} {'heap, kB':>10} {'nodes':>8} {'listeners':>10}")
    for heap in heaps:
        used_kb = heap.used_bytes / 1000
        print(f"{heap.at_s:8} {heap.events:8} {used_kb:10.0f} {heap.nodes:8} {heap.listeners:10}")


if __name__ == "__main__":
    asyncio.run(main())
