"""Memory beside the server and asyncli: of a daemon of the server that holds no connection, of a stranger that takes memory by the
clock, and of one that fills pipes in the kernel. All change the whole host's memory, so they run alone, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_table import require_as_written
from programs import Program, report, serving_by

pytestmark = [pytest.mark.measures, pytest.mark.alone]

CONNECTIONS = 400
#: Connections a second.
RATE = 40
ASKED = ("--ramp", f"{RATE}/s", "--baseline", "6s", "--hold", "12s", "--residue", "0", "--keepalive", "8")
#: What the server keeps of a connection, and its helper, which is much against the noise of a host.
BYTES = 100_000
#: What a stranger takes: in the ramp 200 kB for each connection.
BYTES_PER_SECOND = 8_000_000
#: What a stranger puts in pipes: 50 kB for each connection.
PIPES_PER_SECOND = 2_000_000
#: The objects of one end of an idle connection are less.
LARGEST_END = 4_500
#: Python's objects of a connection; both of its ends in the kernel, and asyncli.
OTHERWISE = 40_000


@contextmanager
def running(script: str, *arguments: str | int) -> Iterator[str]:
    """A script of this folder, until the block's end; the line that it prints."""
    with serving_by(Path(__file__).with_name(script), *arguments) as said:
        yield said


def soaked(folder: Path, port: str, stack: ExitStack, stranger: tuple[str, int] | None = None, since: str = "") -> dict[str, Any]:
    """The JSON of a soak, with a stranger on the host from the phase ``since`` on ("": before it)."""
    if stranger is not None and not since:
        stack.enter_context(running("bystander.py", *stranger))
    asked = ["soak", f"http://127.0.0.1:{port}/", "-c", str(CONNECTIONS), *ASKED, "--out", "run.db"]
    with Program(folder, *asked) as program:
        if stranger is not None and since:
            program.until_phase(since)
            stack.enter_context(running("bystander.py", *stranger))
        program.wait()
    return report(folder, "run.db")


def is_told(cost: dict[str, Any] | None) -> bool:
    """Whether other noise of the host does not hide the whole cost, with all that is said of it."""
    return cost is not None and cost["ci95"][0] > 0


def test_a_helper_of_the_server_that_holds_no_connection(tmp_path: Path) -> None:
    """It takes as much for each as the server, which holds them: nobody can tell it from a stranger."""
    with ExitStack() as stack:
        summary = soaked(tmp_path, stack.enter_context(running("holding_server.py", "helper", BYTES)), stack)
    total = summary["cost"]["host_total"]
    assert total is None or total["ci95"][0] < BYTES + OTHERWISE < 2 * BYTES < total["ci95"][1]
    assert summary["cost"]["server_user"]["ci95"][1] < BYTES + OTHERWISE
    if is_told(total):
        require_as_written("test_a_helper_of_the_server_that_holds_no_connection", summary)


def test_memory_that_a_stranger_takes_by_the_clock_is_in_no_cost(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(running("holding_server.py", "plain", BYTES))
        summary = soaked(tmp_path, port, stack, ("memory", BYTES_PER_SECOND))
    total = summary["cost"]["host_total"]
    assert total is None or total["ci95"][0] < BYTES + OTHERWISE
    if is_told(total):
        # With the stranger's it would be so much.
        assert BYTES < total["ci95"][1] < BYTES + BYTES_PER_SECOND / RATE
        require_as_written("test_memory_that_a_stranger_takes_by_the_clock_is_in_no_cost", summary)


def test_pipes_that_a_stranger_fills_in_the_ramp(tmp_path: Path) -> None:
    """Their pages are in no process and no slab, and their open files in the cache of the sockets' own."""
    with ExitStack() as stack:
        port = stack.enter_context(running("holding_server.py", "plain", BYTES))
        summary = soaked(tmp_path, port, stack, ("pipes", PIPES_PER_SECOND), since="ramp")
    total, kernel = summary["cost"]["host_total"], summary["cost"]["kernel"]
    assert total is None or total["ci95"][0] < BYTES + OTHERWISE < total["ci95"][1]
    assert kernel is None or kernel["ci95"][0] < LARGEST_END
    # Nothing of it is the server's.
    assert summary["cost"]["server_user"]["ci95"][1] < BYTES + OTHERWISE
    if is_told(total):
        require_as_written("test_pipes_that_a_stranger_fills_in_the_ramp", summary)
