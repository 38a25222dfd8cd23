"""For the tests of --collect: servers that print their port, soaks of them, and what is known of them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract import document
from programs import here, recorded, require_whole, was_held_up

from asyncli.app.check import check
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.run import Run

PACE = ("-k", "2", "--ramp", "200/s", "--plateaus", "4", "--plateau-rest", "2.5", "--hold", "2", "--baseline", "2", "--residue", "0.5")
# For what fails at the first attempt.
BRISK = ("-k", "2", "--ramp", "100/s", "--plateaus", "3", "--plateau-rest", "0.5", "--hold", "1", "--baseline", "0.5", "--residue", "0.2")


@contextmanager
def serving_process(argv: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The URL and the process of a server that prints its port."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/", process.pid
        finally:
            process.kill()


@contextmanager
def serving(argv: Sequence[str]) -> Iterator[str]:
    with serving_process(argv) as (url, _):
        yield url


def soaked(folder: Path, url: str, *how: str, connections: int = 400, pace: tuple[str, ...] = PACE, status: int = 0) -> tuple[Run, dict[str, Any]]:
    done = here(folder, "soak", url, "-c", str(connections), *pace, *how, "--out", "run.db")
    run = recorded(folder / "run.db")
    assert run is not None, done
    summary = document(run)
    # Where it was held up, a rest may have passed without a collection: then a limit on what that would have told is undecided.
    if not (was_held_up(run) and done.status in {0, 99}):
        require_whole(done.status, summary, status)
    return run, summary


def is_undisturbed(run: Run, summary: dict[str, Any]) -> bool:
    """Whether the collections came in their rests, and so how much is alive is known as exactly as planned. Where asyncli or the server stood
    still, it is within its interval at least."""
    live = summary["cost"]["live"]
    if live is not None:
        low, high = live["ci95"]
        assert low <= live["bytes_per_connection"] <= high
    return not was_held_up(run)


def checked(url: str, collect: str, **of_plan: Any) -> Check:
    """What a check says of collections."""
    plan = Plan(urls=(url,), plateaus=4, collect=collect, **of_plan)
    examined = asyncio.run(check(plan, connects=False, beats=False))
    [row] = [row for row in examined.checks if row.code == "collections"]
    return row


def findings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in summary["findings"]}
