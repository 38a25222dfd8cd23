"""What a soak says of a server that goes, stands still or comes back. What each run must say is in docs/faults.md."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from middle_box import between
from namespaces import a_cable, inside
from provoked import N, Soaks, Told, an_nginx, holding, most, result

from asyncli.lab.program import backlog

pytestmark = [pytest.mark.nginx, pytest.mark.measures]
SOAKS = Soaks[Told]()
soak = SOAKS.soak
SHORT_QUEUE = {f"backlog={backlog()}": "backlog=8"}


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
    yield from SOAKS.start(request, tmp_path_factory)


@pytest.fixture
def told(request: pytest.FixtureRequest, running: dict[str, Future[Told]]) -> Told:
    return result(request, running)


def whole_again(told: Told, *, lost: int | None = None) -> None:
    """All are held again at the end, and as many were lost and replaced."""
    counts = told.connections
    assert (counts["held"], counts["reopened"]) == (N, counts["lost"])
    assert counts["opened"] == N + counts["reopened"]
    assert lost is None or counts["lost"] == lost


# -- it ends


@soak
def a_master_that_is_killed(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, status=0) as held:
            os.kill(server.pid, signal.SIGKILL)
            held.until_found("server_master_ended")
            held.seconds(2.0)
        return Told(folder)


def test_a_master_that_is_killed(told: Told) -> None:
    # Its workers serve on: nothing is lost, and nothing is due to it.
    assert (told.connections["lost"], told.connections["held"]) == (0, N)
    assert not {"server_ended", "server_restarted"} & told.findings.keys()


@soak
def an_outage(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server) as held:
            server.kill(signal.SIGKILL)
            held.until_failed(2 * N)
            server.start_again()
            held.until_held(N)
            held.seconds(2.0)
        return Told(folder)


def test_an_outage(told: Told) -> None:
    whole_again(told, lost=N)
    assert set(told.connections["failures"]) == {"refused"}
    most(told, "server_restarted", True, "nginx was restarted")
    # Who finds nobody waits longer each time.
    attempts = [number for number in told.attempts() if number]
    assert sum(attempts[:2]) > sum(attempts[4:6])


@soak
def a_restart_by_pidfile(folder: Path) -> Told:
    with an_nginx() as server:
        pidfile = folder / "server.pid"
        pidfile.write_text(str(server.pid))
        with holding(folder, server, "--server-pidfile", str(pidfile)) as held:
            server.kill(signal.SIGTERM)
            pidfile.write_text(str(server.start_again()))
            held.until_held(N)
            held.until_sampled("server.processes", lambda processes: processes == 3)
            held.seconds(2.0)
        return Told(folder)


def test_a_restart_by_pidfile(told: Told) -> None:
    whole_again(told, lost=N)
    most(told, "server_restarted", True, "nginx was restarted")
    # Its successor is watched to the end. (A restart that outlasts a sample, as on a busy host, is told as an end, too.)
    assert told.summary["server"]["processes"]["hold_end"] == 3


# -- it stands still


@soak
def a_stop_and_back(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, "--timeout", "2", "--connect-timeout", "2", keepalive="6") as held:
            server.kill(signal.SIGSTOP)
            try:
                held.until_lost(int(1.2 * N))
            finally:
                server.kill(signal.SIGCONT)
            held.until_held(N)
            held.seconds(2.0)
        return Told(folder)


def test_a_stop_and_back(told: Told) -> None:
    whole_again(told)
    assert set(told.connections["deaths"]) == {"heartbeat_timeout"}
    most(told, "server_stalled", True, "nginx stood still")


@soak
def a_short_stop(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, keepalive="6", status=0) as held:
            server.kill(signal.SIGSTOP)
            try:
                held.seconds(4.0)
            finally:
                server.kill(signal.SIGCONT)
            held.seconds(2.0)
        return Told(folder)


def test_a_short_stop(told: Told) -> None:
    assert (told.connections["lost"], told.connections["held"]) == (0, N)


# -- it does not accept


def with_a_short_queue(folder: Path, *more: str, failures: int) -> Told:
    """A ramp on a server that stands still, with room for 16 in its listen queues; it goes on after ``failures``."""
    # In a namespace of their own: the kernel counts overflows there, and nobody else's.
    with a_cable() as cable, inside(cable.server), an_nginx(replace=SHORT_QUEUE) as server:
        with holding(folder, server, "--baseline", "2", "--ramp", "20/10ms", *more, least=0, status=0) as held:
            held.until_sampled("status.active", lambda _: True)
            server.kill(signal.SIGSTOP)
            try:
                held.seconds(2.0)
                held.until_failed(failures)
            finally:
                server.kill(signal.SIGCONT)
            held.until_held(N)
            held.seconds(2.0)
        return Told(folder)


@soak
def a_full_backlog(folder: Path) -> Told:
    return with_a_short_queue(folder, failures=0)


@pytest.mark.namespaces
def test_a_full_backlog(told: Told) -> None:
    counts = told.connections
    assert (counts["opened"], counts["held"], counts["lost"], counts["failed"]) == (N, N, 0, 0)


@soak
def a_backlog_that_stays_full(folder: Path) -> Told:
    return with_a_short_queue(folder, "--connect-timeout", "1", "--timeout", "20", failures=N // 2)


@pytest.mark.namespaces
def test_a_backlog_that_stays_full(told: Told) -> None:
    counts = told.connections
    assert (counts["opened"], counts["held"], counts["lost"]) == (N, N, 0)
    assert set(counts["failures"]) == {"connect_timeout"}


# -- its status page


def paged(folder: Path, *, back: bool) -> Told:
    """A soak whose status page is silent for some seconds, or to the end."""
    with an_nginx() as server, between(server.status_at) as box:
        with holding(folder, server, "--status-url", f"{box.url}nginx_status", status=0) as held:
            box.cut = True
            held.until_found("status_lost")
            held.seconds(3.0)
            box.cut = not back
            if back:
                held.until_found("status_back")
                held.seconds(2.0)
        return Told(folder)


@soak
def a_status_page_that_goes_and_comes_back(folder: Path) -> Told:
    return paged(folder, back=True)


def test_a_status_page_that_goes_and_comes_back(told: Told) -> None:
    # What was asked in vain is nobody else's use of the server, nor a restart.
    assert told.connections["lost"] == 0
    assert {"status_lost", "status_back"} <= told.findings.keys()
    assert not {"reconcile_held", "reconcile_requests", "counters_restarted"} & told.findings.keys()


@soak
def a_status_page_that_is_gone(folder: Path) -> Told:
    return paged(folder, back=False)


def test_a_status_page_that_is_gone(told: Told) -> None:
    assert told.connections["lost"] == 0
    assert told.summary["reconciliation"]["server_active"] is None
