"""Each fault of a server, its status page, a box on the way or the network, provoked on the real nginx, and named rightly.

What the report says of each is a line of docs/reference/faults.md. Most of the dead have the code that stands beside the fault here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from middle_box import Habit, MiddleBox, between
from namespaces import WATCHED, Cable
from programs import SHORT, Program
from provoked import Faults, Held, N, Nginx, Told, an_nginx, an_nginx_at_the_end_of, holding, require_ended, soaked, struck

from asyncli.lab.base import backlog

pytestmark = [pytest.mark.nginx, pytest.mark.measures]
FAULTS = Faults()
fault = FAULTS.register
SHORT_QUEUE = {f"backlog={backlog()}": "backlog=8"}
IMPATIENT = ("--timeout", "1", "--connect-timeout", "1")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
    yield from FAULTS.start(request, tmp_path_factory)


def none_lost(told: Told) -> Told:
    counts = told.connections
    assert (counts["opened"], counts["held"], counts["lost"], counts["failed"]) == (N, N, 0, 0)
    return told


def whole_again(told: Told, *causes: str, lost: int | None = None) -> Told:
    """All are held again at the end, and what was lost was lost by these causes and replaced."""
    counts = told.connections
    if FAULTS.standstills.in_run(told.run):
        # It may have been before the end, with some not yet back.
        return told
    assert (counts["held"], counts["reopened"], counts["opened"]) == (N, counts["lost"], N + counts["lost"])
    assert not causes or set(counts["deaths"]) == set(causes)
    assert lost is None or counts["lost"] == lost
    assert "unexplained" not in {one.code for one in told.diagnoses}
    return told


def plain(
    name: str, code: str, *, certain: bool, share: float = 0.9, nginx: dict[str, Any] | None = None, box: tuple[Habit, float] | None = None,
    more: tuple[str, ...] = ("--no-reopen",), **options: Any,
) -> None:  # fmt: skip
    """A soak of some seconds on an nginx of these options, or through a box of this habit before it."""

    def soak(folder: Path) -> Told:
        with an_nginx(**(nginx or {})) as server, nullcontext() if box is None else between(server.at, *box) as way:
            return soaked(folder, server, *more, url=None if way is None else way.url, **options)

    soak.__name__ = name
    fault(code, certain=certain, share=share)(soak)


# -- nginx's own limits, as its configuration has them


plain("keepalive_time", "keepalive_time", certain=True, share=1.0, nginx={"keepalive_time_s": 2}, hold="4")
plain("keepalive_requests", "keepalive_requests", certain=True, share=1.0, nginx={"keepalive_requests": 3}, hold="4")
plain("keepalive_timeout", "keepalive_timeout", certain=True, nginx={"keepalive_timeout_s": 2}, keepalive="40")
plain("keepalive_off", "keepalive_off", certain=True, nginx={"keepalive_timeout_s": 0}, hold="1")
plain(
    "client_header_timeout", "client_header_timeout", certain=True, more=("--no-reopen", "--first-beat", "sleep"), keepalive="40",
    nginx={"replace": {"client_header_timeout 3600s": "client_header_timeout 2s"}},
)  # fmt: skip
plain("errors_that_end_the_connection", "http_error", certain=True, nginx={"replace": {'return 200 "ok\\n"': "return 500"}}, hold="1")
# Nothing was ever answered: there is no server to judge.
plain("closed_without_an_answer", "closed_at_once", certain=False, nginx={"replace": {'return 200 "ok\\n"': "return 444"}}, hold="1", status=3)
FULL = {"workers": 1, "worker_connections": 60}
plain("idle_reuse_behind_a_box", "idle_reuse", certain=False, nginx=FULL, box=("none", 1.0), more=(), hold="3", keepalive="20")


@fault("idle_reuse", certain=True)
def idle_reuse(folder: Path) -> Told:
    with an_nginx(**FULL) as server:
        told = soaked(folder, server, "--no-reopen", hold="2", keepalive="20")
        assert "reusing connections" in server.error_log.read_text(encoding="utf-8")
        assert "preflight_nginx_worker_connections" in told.findings
        return told


# -- the server ends, or a part of it


@fault("worker_crash", certain=True)
def a_crash_of_a_worker(folder: Path) -> Told:
    with an_nginx() as server:
        told = struck(folder, server, lambda: os.kill(server.worker(), signal.SIGKILL), 20)
    assert sum(one.count for one in told.diagnoses) < N
    return told


def with_a_cache(folder: Path, log: str = "off") -> dict[str, str]:
    """A change of nginx.conf after which nginx has two helpers, its cache manager and its cache loader, beside its workers."""
    return {"access_log off;": f"access_log {log}; proxy_cache_path {folder}/cache keys_zone=zone:1m;"}


def cache_manager_of(server: Nginx) -> int:
    return next(child.pid for child in psutil.Process(server.pid).children() if "cache manager" in " ".join(child.cmdline()))


@fault("worker_crash", certain=True)
def a_crash_of_the_only_worker(folder: Path) -> Told:
    with an_nginx(workers=1, replace=with_a_cache(folder)) as server:
        told = struck(folder, server, lambda: os.kill(server.worker(), signal.SIGKILL), N)
    assert not any(" 1 of " in one.evidence for one in told.diagnoses)
    return told


@fault("server_ended", certain=True)
def a_server_that_ends(folder: Path) -> Told:
    with an_nginx() as server:
        return struck(folder, server, lambda: server.kill(signal.SIGKILL), N)


@fault("server_restarted", certain=True)
def an_outage(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server) as held:
            server.kill(signal.SIGKILL)
            held.until_failed(2 * N)
            server.start_again()
            held.until_whole()
        told = whole_again(Told(folder), lost=N)
    assert set(told.connections["failures"]) == {"refused"}
    # Who finds nobody waits longer each time.
    attempts = [number for number in told.attempts() if number]
    assert sum(attempts[:2]) > sum(attempts[4:6])
    return told


@fault("server_restarted", certain=True)
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
        # Its successor is watched to the end. (A restart that outlasts a sample, as on a busy host, is told as an end, too.)
        told = whole_again(Told(folder), lost=N)
    assert told.summary["server"]["processes"]["hold_end"] == 3
    return told


@fault("reload", certain=True)
def a_reload(folder: Path) -> Told:
    with an_nginx() as server:
        return struck(folder, server, lambda: os.kill(server.pid, signal.SIGHUP), N)


@fault("reload", certain=False)
def a_reload_that_nobody_watches(folder: Path) -> Told:
    with an_nginx() as server:
        asked = ["soak", server.url, *SHORT[:4], "-k", "10", "-c", str(N), "--out", "run.db", "--quiet", "--hold", "forever"]
        with Program(folder, *asked) as program:
            held = Held(program, folder / "run.db")
            held.until_whole()
            os.kill(server.pid, signal.SIGHUP)
            held.until_lost(N)
            program.signal()
            require_ended(folder, program.wait(), 99)
        return Told(folder)


# -- it stands still


@fault("server_stalled", certain=True)
def a_stop_and_back(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, "--timeout", "2", "--connect-timeout", "2", keepalive="6") as held:
            server.kill(signal.SIGSTOP)
            try:
                held.until_lost(int(1.2 * N))
            finally:
                server.kill(signal.SIGCONT)
            held.until_whole()
        return whole_again(Told(folder), "heartbeat_timeout")


@fault("server_stalled", certain=False)
def a_log_that_takes_nothing(folder: Path) -> Told:
    """Its workers wait for the pipe that their log is; its cache manager was stopped long before."""
    os.mkfifo(folder / "log")
    with ExitStack() as stack:
        pipe = os.open(folder / "log", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, pipe)
        reader = stack.enter_context(subprocess.Popen(["cat", str(folder / "log")], stdout=subprocess.DEVNULL))
        stack.callback(reader.kill)
        server = stack.enter_context(an_nginx(replace=with_a_cache(folder, log=f"{folder}/log")))
        manager = cache_manager_of(server)
        os.kill(manager, signal.SIGSTOP)
        stack.callback(os.kill, manager, signal.SIGCONT)
        with holding(folder, server, "--timeout", "2", "--connect-timeout", "2", keepalive="6") as held:
            reader.send_signal(signal.SIGSTOP)
            try:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(pipe, bytes(1024))
                held.until_lost(N)
            finally:
                reader.send_signal(signal.SIGCONT)
            held.until_held(N)
        return whole_again(Told(folder), "heartbeat_timeout")


@fault()
def a_short_stop_and_a_master_that_is_killed(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, keepalive="6", status=0) as held:
            server.kill(signal.SIGSTOP)
            try:
                held.seconds(4.0)
            finally:
                server.kill(signal.SIGCONT)
            held.seconds(2.0)
            os.kill(server.pid, signal.SIGKILL)
            held.until_found("server_master_ended")
            held.seconds(2.0)
        # Its workers serve on: nothing is lost, and nothing is due to it.
        told = none_lost(Told(folder))
    assert not {"server_ended", "server_restarted"} & told.findings.keys()
    return told


@fault("worker_stalled", certain=True)
def a_worker_that_stands_still(folder: Path) -> Told:
    # No box on the way: those who died had gaps of any length.
    with an_nginx() as server, ExitStack() as stack:
        with holding(folder, server, "--timeout", "2", "--no-reopen", keepalive="8") as held:
            worker = server.worker()
            os.kill(worker, signal.SIGSTOP)
            stack.callback(os.kill, worker, signal.SIGCONT)
            # Each of its connections comes to its next heartbeat, and waits in vain.
            held.seconds(8.0)
        return Told(folder)


@fault("worker_stalled", certain=True)
def a_worker_that_stands_still_beside_a_cache_manager(folder: Path) -> Told:
    with an_nginx(replace=with_a_cache(folder)) as server, ExitStack() as stack:
        with holding(folder, server, "--timeout", "2", "--no-reopen", keepalive="8") as held:
            worker = server.worker()
            os.kill(worker, signal.SIGSTOP)
            stack.callback(os.kill, worker, signal.SIGCONT)
            held.seconds(8.0)
        return Told(folder)


@fault()
def a_worker_that_pauses(folder: Path) -> Told:
    with an_nginx() as server:
        with holding(folder, server, status=0) as held:
            worker = server.worker()
            os.kill(worker, signal.SIGSTOP)
            try:
                held.seconds(5.0)
            finally:
                os.kill(worker, signal.SIGCONT)
            held.seconds(3.0)
        return none_lost(Told(folder))


# -- it does not accept


@fault(cable=True)
def a_backlog_that_stays_full(folder: Path) -> Told:
    """A ramp on a server that stands still, with room for 16 in its listen queues, until half of the connects have failed."""
    # In a namespace of their own: the kernel counts overflows there, and nobody else's.
    with Cable() as cable, cable.inside("server"), an_nginx(replace=SHORT_QUEUE) as server:
        asked = ("--baseline", "2", "--ramp", "20/10ms", "--connect-timeout", "1", "--timeout", "20")
        with holding(folder, server, *asked, least=0, status=0) as held:
            held.until_sampled("status.active", lambda _: True)
            server.kill(signal.SIGSTOP)
            try:
                held.until_failed(N // 2)
            finally:
                server.kill(signal.SIGCONT)
            held.until_whole()
        told = Told(folder)
    counts = told.connections
    assert (counts["opened"], counts["held"], counts["lost"], set(counts["failures"])) == (N, N, 0, {"connect_timeout"})
    return told


# -- its status page


@fault()
def a_status_page_that_goes_and_comes_back(folder: Path) -> Told:
    with an_nginx() as server, between(server.status_at) as box:
        with holding(folder, server, "--status-url", f"{box.url}nginx_status", status=0) as held:
            box.cut = True
            held.until_found("status_lost")
            held.seconds(3.0)
            box.cut = False
            held.until_found("status_back")
            held.seconds(2.0)
        told = none_lost(Told(folder))
    # What was asked in vain is nobody else's use of the server, nor a restart.
    assert not {"reconcile_held", "reconcile_requests", "counters_restarted"} & told.findings.keys()
    return told


@fault()
def a_status_page_that_is_gone(folder: Path) -> Told:
    with an_nginx() as server, between(server.status_at) as box:
        with holding(folder, server, "--status-url", f"{box.url}nginx_status", status=0) as held:
            box.cut = True
            held.until_found("status_lost")
            held.seconds(3.0)
        told = none_lost(Told(folder))
    assert told.summary["reconciliation"]["server_active"] is None
    return told


# -- boxes on the way


# Gaps are 1 to 5 s, so half of those left are answered each time, even where this process, whose thread the box is, is late by a second.
plain("a_box_that_drops_idle_connections_silently", "silent_drop", certain=False, share=0.8, box=("silent", 3.0), more=("--timeout", "2", "--no-reopen"), hold="8", keepalive="10")
plain("a_box_that_resets_what_it_has_forgotten", "box_reset", certain=False, box=("reset_at_data", 2.0), hold="4", keepalive="8")
plain("a_box_that_resets_idle_connections", "box_reset", certain=True, box=("reset", 2.0), keepalive="40")
plain("a_box_that_closes_idle_connections", "idle_timeout", certain=False, box=("close", 2.0), keepalive="40")


@fault("unexplained", certain=False, share=1.0)
def what_fits_none(folder: Path) -> Told:
    with an_nginx() as server, between(server.at) as box:

        def strike() -> None:
            # Some, one after another, of any idle time.
            for _ in range(12):
                box.loop.call_soon_threadsafe(box.reset_one)
                time.sleep(0.4)

        told = struck(folder, server, strike, 0, "--no-reopen", url=box.url)
    assert [(one.cause, one.count) for one in told.diagnoses] == [("reset", 12)]
    return told


def becomes(**values: object) -> Callable[[MiddleBox], None]:
    return lambda box: [setattr(box, name, value) for name, value in values.items()] and None


@fault()
def answers_that_come_late_and_then_byte_by_byte(folder: Path) -> Told:
    with an_nginx() as server, between(server.at) as box:
        # Each byte is a write of the box's and a read of ours: heartbeats are few, or a busy host falls behind.
        with holding(folder, server, url=box.url, status=0) as held:
            for begin in (becomes(delay_s=0.5), becomes(delay_s=0.0, bytes_per_s=1000.0, piece=1)):
                begin(box)
                held.seconds(4.0)
        told = none_lost(Told(folder))
    assert told.summary["heartbeats"]["latency_ms"]["p99"] > 500
    return told


def boxed(
    name: str, code: str, cause: str, begin: Callable[[MiddleBox], object], end: Callable[[MiddleBox], object], *more: str, certain: bool = False
) -> None:
    """A soak through a box that does a thing until all are lost, by this cause, and then no more."""

    def soak(folder: Path) -> Told:
        with an_nginx() as server, between(server.at) as box:
            with holding(folder, server, *more, url=box.url, keepalive="6") as held:
                begin(box)
                held.until_lost(N)
                end(box)
                held.until_whole()
            return whole_again(Told(folder), cause)

    soak.__name__ = name
    fault(code, certain=certain)(soak)


boxed("answers_that_come_too_late", "answers_late", "heartbeat_timeout", becomes(delay_s=1.5), becomes(delay_s=0.0), *IMPATIENT)
boxed("a_slow_line", "answers_in_part", "heartbeat_timeout", becomes(bytes_per_s=50.0, piece=10), becomes(bytes_per_s=1e9, piece=0), *IMPATIENT)
boxed("answers_that_stop_halfway", "answers_in_part", "heartbeat_timeout", becomes(spoilt="half"), becomes(spoilt=None), *IMPATIENT)
boxed("answers_cut_short", "cut_short", "closed_awaiting", becomes(spoilt="half_and_close"), becomes(spoilt=None))
boxed("garbage", "", "protocol_error", becomes(spoilt="garbage"), becomes(spoilt=None))
boxed("a_cut_and_back", "server_stalled", "heartbeat_timeout", becomes(cut=True), becomes(cut=False), *IMPATIENT)
boxed("a_table_that_is_lost", "box_reset", "reset", MiddleBox.forget_all, becomes(), certain=True)


# -- on a cable


def cabled(
    folder: Path, happens: Callable[[Held, Cable], object], *more: str, status: int = 99, watched_apart: bool = True
) -> Told:
    """What is said of a soak from one namespace to another; the status page is read over a cable of its own, or over the same."""
    with Cable() as cable, an_nginx_at_the_end_of(cable) as server, cable.inside("client"):
        page = f"http://{WATCHED if watched_apart else server.address}:{server.status_port}/nginx_status"
        with holding(folder, server, "--status-url", page, *more, keepalive="6", status=status) as held:
            happens(held, cable)
            held.until_whole()
        return Told(folder)


def dropping_until_all_are_lost(held: Held, cable: Cable) -> None:
    cable.drop()
    held.until_lost(N)
    held.until_failed(20)
    cable.pass_all()


@fault(cable=True)
def some_packets_lost_and_a_short_blackhole(folder: Path) -> Told:
    def happens(held: Held, cable: Cable) -> None:
        # Seconds are of the record, whose last may be one old: of the blackhole three to four.
        for rule, seconds in (("numgen random mod 100 < 8", 6.0), ("", 4.0)):
            cable.drop(rule)
            held.seconds(seconds)
            cable.pass_all()
            held.seconds(2.0)

    return none_lost(cabled(folder, happens, status=0))


@fault("packets_lost", certain=False, cable=True)
def many_packets_lost(folder: Path) -> Told:
    def happens(held: Held, cable: Cable) -> None:
        cable.drop("numgen random mod 100 < 30")
        held.until_lost(10)
        cable.pass_all()

    return whole_again(cabled(folder, happens, *IMPATIENT), "heartbeat_timeout")


@fault("path_cut", certain=False, cable=True)
def a_blackhole(folder: Path) -> Told:
    told = whole_again(cabled(folder, dropping_until_all_are_lost, *IMPATIENT), "heartbeat_timeout")
    assert set(told.connections["failures"]) == {"connect_timeout"}
    return told


@fault("path_cut", certain=False, cable=True)
def a_blackhole_with_the_status_page_behind_it(folder: Path) -> Told:
    # The server's processes use no CPU meanwhile, as those of one that stands still.
    return whole_again(cabled(folder, dropping_until_all_are_lost, *IMPATIENT, watched_apart=False), "heartbeat_timeout")


@fault("path_cut", certain=True, cable=True)
def a_link_that_goes_down(folder: Path) -> Told:
    def happens(held: Held, cable: Cable) -> None:
        cable.link("client", "down")
        held.until_lost(N)
        held.until_failed(20)
        cable.link("client", "up")

    told = whole_again(cabled(folder, happens, *IMPATIENT), "heartbeat_timeout")
    assert set(told.connections["failures"]) <= {"unreachable", "connect_timeout"}
    return told


@fault(cable=True)
def a_link_that_stays_down(folder: Path) -> Told:
    with Cable() as cable, an_nginx_at_the_end_of(cable) as server, cable.inside("client"):
        page = f"http://{WATCHED}:{server.status_port}/nginx_status"
        with holding(folder, server, "--status-url", page, "--timeout", "4", keepalive="60") as held:
            cable.link("client", "down")
            held.seconds(3.0)
        told = Told(folder)
    # No heartbeat had waited out its time when the hold ended: they do in the drain. Of those that slept nothing is known.
    counts = told.connections
    assert 0 < counts["lost"] == counts["opened"] - counts["held"] < N
    assert set(counts["deaths"]) == {"heartbeat_timeout"}
    assert counts["not_heard"] > N // 2
    return told


@pytest.mark.parametrize("name", FAULTS.params())
def test_a_fault_is_named_rightly(name: str, running: dict[str, Future[Told]]) -> None:
    FAULTS.judge(name, running[name].result())
