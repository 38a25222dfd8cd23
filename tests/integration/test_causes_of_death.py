"""A server with too few slots, and one that is killed while nothing is replaced: what is refused, and what each death is counted under."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import SHORT, Program, codes, recorded, report, run

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx
Start = Callable[..., LabNginx]


def held(folder: Path, server: LabNginx, *arguments: str) -> Program:
    """A soak of a hundred on ``server`` that holds until it is stopped, in its hold."""
    asked = ["soak", server.url, *SHORT, "-c", "100", "--ramp", "20/1ms", "--hold", "forever", "--out", "run.db", *arguments]
    program = Program(folder, *asked)
    program.until_phase("hold")
    return program


def counted(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    summary = report(folder, "run.db")
    connections = summary["connections"]
    assert connections["lost"] == sum(connections["deaths"].values())
    assert connections["failed"] == sum(connections["failures"].values())
    return summary, connections


def test_too_few_worker_connections_never_pass(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx(workers=1, worker_connections=50)
    asked = ["-c", "100", "--hold", "2", *SHORT, "--status-url", server.status_url, "--out", "run.db", "--quiet"]
    refused = run(tmp_path, "soak", server.url, *asked)
    assert (refused.status, refused.out) == (2, "")
    assert "worker_connections" in refused.err
    assert run(tmp_path, "soak", server.url, *asked, "--force").status == 99
    summary, connections = counted(tmp_path)
    assert connections["lost"] > 0
    assert connections["held"] < 100
    assert "preflight_nginx_worker_connections" in codes(summary)


def test_a_server_that_is_killed_loses_everything_and_is_never_a_success(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx()
    with held(tmp_path, server, "--no-reopen") as program:
        os.killpg(server.pid, signal.SIGKILL)
        program.until(lambda: _lost_all(tmp_path), "all are lost")
        program.signal()
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (99, "")
    _, connections = counted(tmp_path)
    assert (connections["opened"], connections["lost"], connections["held"]) == (100, 100, 0)
    # The kernel ends a killed server's connections by FIN, or by RST where it had not read all.
    assert set(connections["deaths"]) <= {"reset", "closed_idle", "closed_awaiting"}
    assert connections["failures"] == {}


def _lost_all(folder: Path) -> bool:
    run_so_far = recorded(folder / "run.db")
    return run_so_far is not None and sum(tick.lost for _, tick in run_so_far.ticks) >= 100
