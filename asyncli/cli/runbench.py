"""Runs a bench for a terminal: a line a second, signals, the report, the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from rich.console import Console

from asyncli.analysis.benched import benched
from asyncli.bench import Bench
from asyncli.benchplan import BenchPlan, BenchRun
from asyncli.cli.main import INTERRUPTED
from asyncli.cli.places import UNSEEN, deliver, printing, require_files, write_file
from asyncli.cli.signals import until_stopped
from asyncli.records import Tick
from asyncli.report.bench_report import one_line, print_bench, tick_line, to_json
from asyncli.report.summary import exit_status


def run_bench(
    plan: BenchPlan, *, json_file: str | None = None, quiet: bool = False, wait_for_server_s: float = 0.0
) -> int:
    """Run ``plan`` and report; the exit status."""
    require_files({"--json": json_file})
    piped = json_file == "-"
    console = Console(stderr=piped, highlight=False)

    def show(t_s: float, tick: Tick) -> None:
        if not quiet and console.is_terminal:
            # A terminal that is gone ends the showing, never the bench.
            with contextlib.suppress(*UNSEEN):
                console.print(tick_line(t_s, tick), style="dim")

    def say(line: str) -> None:
        if not quiet:
            with contextlib.suppress(*UNSEEN):
                console.print(line, style="dim")

    bench = Bench(plan, on_tick=show, wait_for_server_s=wait_for_server_s, says=say)
    run = asyncio.run(_bench(bench))
    if run is None:
        print("asyncli: interrupted; there is nothing to report", file=sys.stderr)
        return INTERRUPTED
    found = benched(run)

    def tell() -> None:
        with printing():
            if quiet:
                print(one_line(found), file=sys.stderr if piped else sys.stdout)
            else:
                print_bench(found, console)

    def keep() -> None:
        if json_file is not None:
            write_file("--json", json_file, to_json(found) + "\n")

    # A bench leaves no run file: whatever cannot be written, the rest of what is known is told.
    deliver(tell, keep)
    return exit_status(found.verdict)


async def _bench(bench: Bench) -> BenchRun | None:
    run: BenchRun | None = None

    async def work() -> None:
        nonlocal run
        run = await bench.run()

    def stop() -> bool:
        bench.stop()
        return True

    await until_stopped(work(), stop)
    return run
