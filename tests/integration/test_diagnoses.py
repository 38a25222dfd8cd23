"""Each way in which a server or a box on the way ends connections, provoked on the real nginx, and named rightly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
from middle_box import between
from programs import SHORT, Program
from provoked import Held, N, Soaks, Told, an_nginx, holding, most, result, soaked, struck

from asyncli.metrics import METRICS

pytestmark = [pytest.mark.nginx, pytest.mark.measures]
SOAKS = Soaks[Told]()
soak = SOAKS.soak


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
    yield from SOAKS.start(request, tmp_path_factory)


@pytest.fixture
def told(request: pytest.FixtureRequest, running: dict[str, Future[Told]]) -> Told:
    return result(request, running)


# -- nginx's own limits, as its configuration has them


@soak
def keepalive_time(folder: Path) -> Told:
    with an_nginx(keepalive_time_s=2) as server:
        return soaked(folder, server, "--no-reopen", hold="4")


def test_keepalive_time(told: Told) -> None:
    words = r"at age [12]-[345] s, at their next heartbeat: nginx keepalive_time \(nginx.conf says 2 s\)"
    assert most(told, "keepalive_time", True, words).count == N


@soak
def keepalive_requests(folder: Path) -> Told:
    with an_nginx(keepalive_requests=3) as server:
        return soaked(folder, server, "--no-reopen", hold="4")


def test_keepalive_requests(told: Told) -> None:
    words = r"after 3 requests each, at age .*: nginx keepalive_requests \(nginx.conf says 3\)"
    assert most(told, "keepalive_requests", True, words).count == N


@soak
def keepalive_timeout(folder: Path) -> Told:
    with an_nginx(keepalive_timeout_s=2) as server:
        return soaked(folder, server, "--no-reopen", keepalive="40")


def test_keepalive_timeout(told: Told) -> None:
    most(told, "keepalive_timeout", True, r"2 s after their last answer: nginx keepalive_timeout \(nginx.conf says 2 s\)")


@soak
def keepalive_that_is_off(folder: Path) -> Told:
    with an_nginx(keepalive_timeout_s=0) as server:
        return soaked(folder, server, "--no-reopen", hold="1")


def test_keepalive_that_is_off(told: Told) -> None:
    words = r"after their first request each: keep-alive is off \(nginx.conf says keepalive_timeout 0\)"
    most(told, "keepalive_off", True, words)


@soak
def client_header_timeout(folder: Path) -> Told:
    with an_nginx(replace={"client_header_timeout 3600s": "client_header_timeout 2s"}) as server:
        return soaked(folder, server, "--no-reopen", "--first-beat", "sleep", keepalive="40")


def test_client_header_timeout(told: Told) -> None:
    words = r"before their first request: nginx client_header_timeout \(nginx.conf says 2 s\)"
    most(told, "client_header_timeout", True, words)


@soak
def errors_that_end_the_connection(folder: Path) -> Told:
    with an_nginx(replace={'return 200 "ok\\n"': "return 500"}) as server:
        return soaked(folder, server, "--no-reopen", hold="1")


def test_errors_that_end_the_connection(told: Told) -> None:
    most(told, "http_error", True, r"after an error as answer \(HTTP 500\)")


@soak
def closed_without_an_answer(folder: Path) -> Told:
    with an_nginx(replace={'return 200 "ok\\n"': "return 444"}) as server:
        # Nothing was ever answered: there is no server to judge.
        return soaked(folder, server, "--no-reopen", hold="1", status=3)


def test_closed_without_an_answer(told: Told) -> None:
    most(told, "closed_at_once", False, r"at once and without any answer")


@soak
def idle_reuse(folder: Path) -> Told:
    with an_nginx(workers=1, worker_connections=60) as server:
        told = soaked(folder, server, "--no-reopen", hold="2", keepalive="20")
        assert "reusing connections" in server.error_log.read_text(encoding="utf-8")
        return told


def test_idle_reuse(told: Told) -> None:
    words = r"nginx ran out of free slots .*'worker_connections are not enough, reusing connections'"
    most(told, "idle_reuse", True, words)


@soak
def idle_reuse_behind_a_box(folder: Path) -> Told:
    with an_nginx(workers=1, worker_connections=60) as server, between(server.at) as box:
        return soaked(folder, server, url=box.url, hold="3", keepalive="20")


def test_idle_reuse_behind_a_box(told: Told) -> None:
    words = r"looks like the server has no room for more .*\(it never held more than \d\d of the 100 asked for"
    most(told, "idle_reuse", False, words)


# -- moments


@soak
def a_reload(folder: Path) -> Told:
    with an_nginx() as server:
        return struck(folder, server, lambda: os.kill(server.pid, signal.SIGHUP), N)


def test_a_reload(told: Told) -> None:
    most(told, "reload", True, r"within .* \(100 of 100 held; .*nginx was reloaded")


@soak
def a_reload_that_nobody_watches(folder: Path) -> Told:
    with an_nginx() as server:
        asked = ["soak", server.url, *SHORT[:4], "-k", "10", "-c", str(N), "--out", "run.db", "--quiet", "--hold", "forever"]
        with Program(folder, *asked) as program:
            held = Held(program, folder / "run.db")
            held.until_held(N)
            held.seconds(2.0)
            os.kill(server.pid, signal.SIGHUP)
            held.until_lost(N)
            program.signal()
            assert program.wait().status == 99
        return Told(folder)


def test_a_reload_that_nobody_watches(told: Told) -> None:
    # Where its processes are counted as they end, they bear it out; else it is a likelihood.
    counted = "server.ended" in METRICS
    words = (
        r"nginx was reloaded: 2 of its processes ended"
        if counted
        else r"looks like a reload of nginx, which lets old workers close"
    )
    most(told, "reload", counted, words)


@soak
def a_crash_of_a_worker(folder: Path) -> Told:
    with an_nginx() as server:
        return struck(folder, server, lambda: os.kill(server.worker(), signal.SIGKILL), 20)


def test_a_crash_of_a_worker(told: Told) -> None:
    words = r"of 100 held; .*still holds \d+ of them: a worker of it crashed or was killed, one of 2"
    assert most(told, "worker_crash", True, words).count < N


@soak
def a_server_that_ends(folder: Path) -> Told:
    with an_nginx() as server:
        return struck(folder, server, lambda: server.kill(signal.SIGKILL), N)


def test_a_server_that_ends(told: Told) -> None:
    most(told, "server_ended", True, r"nginx ended or was killed: none of its processes was left")


@soak
def a_restart(folder: Path) -> Told:
    with an_nginx() as server:

        def restart() -> None:
            server.kill(signal.SIGTERM)
            server.start_again()

        return struck(folder, server, restart, N)


def test_a_restart(told: Told) -> None:
    most(told, "server_restarted", True, r"nginx was restarted")


@soak
def a_server_that_stands_still(folder: Path) -> Told:
    with an_nginx() as server:
        stop, go_on = (lambda: server.kill(signal.SIGSTOP)), (lambda: server.kill(signal.SIGCONT))
        try:
            return struck(folder, server, stop, 50, "--timeout", "1", "--no-reopen", keepalive="6", mend=go_on)
        finally:
            go_on()


def test_a_server_that_stands_still(told: Told) -> None:
    most(told, "server_stalled", True, r"nginx stood still: .*its processes used no CPU")


@soak
def a_worker_that_stands_still(folder: Path) -> Told:
    with an_nginx() as server, ExitStack() as stack:
        with holding(folder, server, "--timeout", "2", "--no-reopen", keepalive="8") as held:
            worker = server.worker()
            os.kill(worker, signal.SIGSTOP)
            stack.callback(os.kill, worker, signal.SIGCONT)
            # Each of its connections comes to its next heartbeat, and waits in vain.
            held.seconds(8.0)
        return Told(folder)


def test_a_worker_that_stands_still(told: Told) -> None:
    # No box on the way: those who died had gaps of any length.
    most(told, "worker_stalled", False, r"others were answered: looks like a worker of nginx, one of 2, stands still")


# -- boxes on the way


@soak
def a_box_that_drops_idle_connections_silently(folder: Path) -> Told:
    with an_nginx() as server, between(server.at, "silent", 2.0) as box:
        return soaked(folder, server, "--timeout", "1", "--no-reopen", url=box.url, hold="5", keepalive="8")


def test_a_box_that_drops_idle_connections_silently(told: Told) -> None:
    words = (
        r"idle for [12](\.\d)? s or longer, while others were answered, and the server still counts \d+ of them as open: a box"
    )
    most(told, "silent_drop", True, words)


@soak
def a_box_that_resets_what_it_has_forgotten(folder: Path) -> Told:
    with an_nginx() as server, between(server.at, "reset_at_data", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, hold="4", keepalive="8")


def test_a_box_that_resets_what_it_has_forgotten(told: Told) -> None:
    most(told, "box_reset", False, r"all of them idle for [12] s or longer before .*a box on the way that forgets")


@soak
def a_box_that_resets_idle_connections(folder: Path) -> Told:
    with an_nginx() as server, between(server.at, "reset", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, keepalive="40")


def test_a_box_that_resets_idle_connections(told: Told) -> None:
    words = r"2 s after their last answer: .*looks like a box on the way; the server still counts \d+ of them as open"
    most(told, "box_reset", True, words)


@soak
def a_box_that_closes_idle_connections(folder: Path) -> Told:
    with an_nginx() as server, between(server.at, "close", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, keepalive="40")


def test_a_box_that_closes_idle_connections(told: Told) -> None:
    most(
        told,
        "idle_timeout",
        False,
        r"2 s after their last answer: looks like an idle timeout of the server or of a box on the way",
    )


@soak
def a_box_that_loses_its_table(folder: Path) -> Told:
    with an_nginx() as server, between(server.at) as box:
        return struck(folder, server, box.forget_all, N, url=box.url)


def test_a_box_that_loses_its_table(told: Told) -> None:
    words = r"own count of connections still holds \d+ of them: a box on the way reset them, and did not tell it"
    most(told, "box_reset", True, words)


@soak
def a_way_that_is_cut(folder: Path) -> Told:
    with an_nginx() as server, between(server.at) as box:
        cut = lambda: setattr(box, "cut", True)  # noqa: E731
        return struck(folder, server, cut, 50, "--timeout", "1", "--no-reopen", url=box.url, keepalive="6")


def test_a_way_that_is_cut(told: Told) -> None:
    most(told, "path_cut", False, r"though the server's status page answered( and counted no request)?: looks like the way")


# -- several at once, and what fits none


@soak
def requests_and_then_a_reload(folder: Path) -> Told:
    with an_nginx(keepalive_requests=2) as server:
        return struck(folder, server, lambda: os.kill(server.pid, signal.SIGHUP), 60, keepalive="8")


def test_requests_and_then_a_reload(told: Told) -> None:
    by_code = {one.code: one for one in sorted(told.diagnoses, key=lambda one: one.count)}
    assert set(by_code) >= {"keepalive_requests", "reload"}
    assert by_code["keepalive_requests"].certain
    assert by_code["reload"].cause == "closed_idle"
    assert min(by_code["keepalive_requests"].count, by_code["reload"].count) >= 30


@soak
def what_fits_none(folder: Path) -> Told:
    with an_nginx() as server, between(server.at) as box:

        def strike() -> None:
            # Some, one after another, of any idle time.
            for _ in range(12):
                box.loop.call_soon_threadsafe(box.reset_one)
                time.sleep(0.4)

        return struck(folder, server, strike, 0, "--no-reopen", url=box.url)


def test_what_fits_none(told: Told) -> None:
    (one,) = told.diagnoses
    assert (one.cause, one.code, one.certain, one.count) == ("reset", "unexplained", False, 12)
    assert "fits nothing that asyncli knows" in one.evidence
