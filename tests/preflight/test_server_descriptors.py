"""The limits of a server's own processes: descriptors, threads, address space."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_preflight_checks import ROOMY, plan, spread

from asyncli.model.records import Check
from asyncli.preflight import examine
from asyncli.preflight.configured import Configured, read_configured

_TWO_LISTEN = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() and not os.fork():
    listener.close()
print(flush=True)
sys.stdin.read()
"""


def test_the_descriptors_of_the_processes_that_listen() -> None:
    with subprocess.Popen([sys.executable, "-c", _TWO_LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for _ in range(3):
            server.stdout.readline()
        configured = read_configured(server.pid, None, None, pids=(server.pid,))
        server.stdin.close()
    assert configured.descriptors is not None
    # The third one does not listen.
    assert (configured.descriptors.processes, configured.descriptors.limit) == (2, 400)
    assert 8 <= configured.descriptors.open < 30
    for connections, verdict in ((300, "ok"), (399, "warn")):
        checks = {one.code: one for one in examine(plan(connections=connections), spread(), ROOMY, configured)}
        assert checks["server_nofile"].verdict == verdict


GROUP = {"server.group_tasks": 12.0, "server.group_tasks_limit": 300.0}
USER = {"server.user_tasks": 20.0, "server.user_tasks_limit": 100.0}
HOST = {"host.tasks": 500.0, "host.tasks_limit": 32_468.0}


def checks_of(connections: int, product: str = "", **limits: float) -> dict[str, Check]:
    configured = Configured(limits=limits, product=product)
    every = examine(plan(connections=connections), spread(), ROOMY, configured)
    return {check.code: check for check in every if check.code.startswith("server_")}


@pytest.mark.parametrize(
    ("limits", "room", "place"),
    [(GROUP | HOST, 288, "pids.max"), (GROUP | USER | HOST, 80, "RLIMIT_NPROC"), (HOST, 31_968, "threads-max")],
)
def test_the_least_room_for_threads(limits: dict[str, float], room: int, place: str) -> None:
    # Whether a connection takes a thread is unknown before a run.
    for connections, verdict in ((room, "ok"), (room + 1, "unknown")):
        check = checks_of(connections, **limits)["server_tasks"]
        assert (check.verdict, check.have, check.need) == (verdict, room, connections)
        assert place in check.detail
        assert bool(check.remedy) is (verdict == "unknown")


def test_a_server_whose_threads_serve_many_connections_needs_no_more_of_them() -> None:
    assert checks_of(1_000, product="HAProxy", **GROUP) == {}
    assert checks_of(1_000) == {}


@pytest.mark.parametrize("memory", ["address_space", "data"])
def test_what_a_connection_takes_of_a_processs_memory_is_unknown_before_a_run(memory: str) -> None:
    limits = {f"server.{memory}_bytes": 1e9, f"server.{memory}_limit_bytes": 3e9}
    check = checks_of(10, **limits)[f"server_{memory}"]
    assert (check.verdict, check.have, check.need) == ("unknown", 2e9, None)


def test_the_limits_of_a_real_process_are_read_before_a_run() -> None:
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33)); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdout.readline()
        configured = read_configured(server.pid, None, None, pids=(server.pid,))
        server.stdin.close()
    assert configured.limits["server.address_space_limit_bytes"] == 1 << 33
    assert 0 < configured.limits["host.tasks"] < configured.limits["host.tasks_limit"]
