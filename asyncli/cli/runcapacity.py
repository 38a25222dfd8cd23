"""Runs a search for a terminal: a line a step, the screen of each, signals, the answer, the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from asyncli.analysis.capacity import Search, exit_status
from asyncli.capacity import CapacitySearch, most_here
from asyncli.cli.main import INTERRUPTED
from asyncli.cli.places import UNSEEN, deliver, printing, require_files, write_file
from asyncli.cli.run import Screen
from asyncli.cli.signals import until_stopped
from asyncli.environment import look_around
from asyncli.errors import PlanError
from asyncli.plan import Plan
from asyncli.preflight import checks_to_findings, refuse
from asyncli.preflight.checks import host_checks
from asyncli.report.capacity_report import one_line, print_capacity, to_json
from asyncli.session import free_name
from asyncli.units import format_count

Say = Callable[[str], None]


def run_capacity(
    plan: Plan, start: int, most: int | None, within: float, *, out: str | None, json_file: str | None, quiet: bool, hint: str
) -> int:
    """Search and report; the exit status. ``most``: None for what this host can carry; ``hint``: said before it begins."""
    require_files({"--json": json_file})
    folder = Path(out) if out is not None else free_name("asyncli-capacity", "")
    piped = json_file == "-"
    console = Console(stderr=piped, highlight=False)

    def say(line: str) -> None:
        if not quiet:
            with contextlib.suppress(*UNSEEN):
                console.print(line, soft_wrap=True, markup=False)

    finished, search = asyncio.run(_search(plan, start, most, within, folder, console, quiet, say, hint))
    if search is None or not (search.steps or search.unheard):
        print("asyncli: interrupted before the first step was over; there is nothing to report", file=sys.stderr)
        return INTERRUPTED
    found = search.found

    def tell() -> None:
        with printing():
            if quiet:
                print(one_line(found), file=sys.stderr if piped else sys.stdout)
            else:
                console.print()
                print_capacity(found, console)

    def keep() -> None:
        if json_file is not None:
            write_file("--json", json_file, to_json(found) + "\n")

    deliver(tell, keep)
    return exit_status(found.verdict) if finished else INTERRUPTED


async def _search(
    plan: Plan,
    start: int,
    most: int | None,
    within: float,
    folder: Path,
    console: Console,
    quiet: bool,
    say: Say,
    hint: str,
) -> tuple[bool, CapacitySearch | None]:
    """Whether it came to its end or was stopped once, and the search; None where it never began."""
    search: CapacitySearch | None = None

    def onlooker(of: Plan) -> Screen:
        # In a log a line a step is enough.
        return Screen(of, console, quiet or not console.is_terminal, False)

    async def work() -> None:
        nonlocal search
        asked = await _bounded(plan, start, most, within)
        _make(folder)
        whole = msgspec.structs.replace(plan, connections=asked.most)
        preface = [
            f"from {format_count(min(start, asked.most))} to at most {format_count(asked.most)} connections" + _because(asked)
        ]
        preface += [f"warning: {hint}"] if hint else []

        def say_after_preface(line: str) -> None:
            # Nothing is said of a search that is refused before its first step.
            while preface:
                say(preface.pop(0))
            say(line)

        search = CapacitySearch(whole, asked, folder, onlooker=onlooker, say=say_after_preface)
        try:
            await search.run()
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()  # where nothing was written, none stays

    def stop() -> bool:
        if search is not None:
            search.stop()
        return search is not None

    return await until_stopped(work(), stop), search


def _because(asked: Search) -> str:
    return f", as many as this host can carry ({asked.bound.partition(':')[0]})" if asked.bound else ""


async def _bounded(plan: Plan, start: int, most: int | None, within: float) -> Search:
    """The counts that may be asked for. Raises :class:`PreflightError` where this host cannot carry what the user wants."""
    if most is None:
        here, why = await most_here(plan)
        said = checks_to_findings([] if why is None else [why])
        return Search(min(start, here), here, within, *((said[0].evidence, said[0].remedy) if said else ()))
    if start > most:
        raise PlanError(f"--start: {start} is more than --most {most}; write at most that")
    sized = msgspec.structs.replace(plan, connections=most, batch=min(plan.batch, most))
    limits, spread = await look_around(sized)
    if not plan.force:
        refuse(host_checks(sized, spread, limits))
    return Search(start, most, within)


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        raise PlanError(f"--out: {folder} exists already; name a new folder, so that nothing is mixed up") from None
    except OSError as error:
        raise PlanError(f"--out: {folder} cannot be made ({error.strerror}); name another folder") from None
