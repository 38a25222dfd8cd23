"""What really kills connections on nginx, and the cause that each death is counted under."""

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


def test_a_short_keepalive_timeout_closes_idle_connections(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx(keepalive_timeout_s=1)
    # Beats come 1 to 20 s apart: most connections are idle for longer than the server allows.
    asked = ["-c", "60", "--hold", "3", "--baseline", "0.2", "--residue", "0.2", "-k", "40", "--out", "run.db", "--quiet"]
    assert run(tmp_path, "soak", server.url, *asked, "--force").status == 99
    _, connections = counted(tmp_path)
    assert list(connections["deaths"]) == ["closed_idle"]
    assert connections["reopened"] > 0
    assert connections["opened"] == 60 + connections["reopened"]


def test_keepalive_requests_ends_connections_with_notice(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx(keepalive_requests=2)
    asked = ["-c", "60", "--hold", "3", *SHORT, "--out", "run.db", "--quiet", "--force", "--no-reopen"]
    assert run(tmp_path, "soak", server.url, *asked).status == 99
    _, connections = counted(tmp_path)
    assert connections["deaths"] == {"closed_announced": 60}
    assert (connections["held"], connections["opened"], connections["reopened"]) == (0, 60, 0)


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


@pytest.mark.parametrize("reopen", [True, False])
def test_a_server_that_is_killed_loses_everything_and_is_never_a_success(
    tmp_path: Path, start_nginx: Start, reopen: bool
) -> None:
    server = start_nginx()
    with held(tmp_path, server, *([] if reopen else ["--no-reopen"])) as program:
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
    assert set(connections["failures"]) <= ({"refused"} if reopen else set())


def _lost_all(folder: Path) -> bool:
    run_so_far = recorded(folder / "run.db")
    return run_so_far is not None and sum(tick.lost for _, tick in run_so_far.ticks) >= 100


def test_a_server_that_stops_answering_is_found_out_by_its_silence(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx()
    with held(tmp_path, server, "--timeout", "0.5", "--no-reopen") as program:
        os.killpg(server.pid, signal.SIGSTOP)
        try:
            program.until(lambda: _lost_all(tmp_path), "every heartbeat is given up")
            program.signal()
            done = program.wait()
        finally:
            os.killpg(server.pid, signal.SIGCONT)
    assert (done.status, done.err) == (99, "")
    _, connections = counted(tmp_path)
    assert connections["deaths"] == {"heartbeat_timeout": 100}
    assert (connections["held"], connections["reopened"]) == (0, 0)


def test_a_reload_moves_connections_to_the_new_workers(tmp_path: Path, start_nginx: Start) -> None:
    server = start_nginx()
    with held(tmp_path, server) as program:
        os.kill(server.pid, signal.SIGHUP)
        program.until(lambda: _lost_all(tmp_path), "the old workers let go of theirs")
        program.signal()
        assert program.wait().status == 99
    _, connections = counted(tmp_path)
    assert set(connections["deaths"]) <= {"closed_idle", "closed_announced", "closed_awaiting", "reset"}
    assert connections["reopened"] > 0
