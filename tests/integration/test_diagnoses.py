"""Each way in which a server or a box on the way ends connections, provoked on the real nginx, and named rightly."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from middle_box import between
from programs import SHORT, Program, recorded, report, run, until

from asyncli.analysis.diagnosis import Diagnosis, diagnose
from asyncli.analysis.totals import fold
from asyncli.lab.child import group_alive
from asyncli.lab.nginx import LabNginx
from asyncli.records import METRICS
from asyncli.store.reader import read_run

pytestmark = pytest.mark.nginx
N = 100
# Soaks that run at a time: each takes some seconds, of which it waits most, and under half a second of CPU to start.
SIDE_BY_SIDE = 5


class Nginx(LabNginx):
    """The lab's, with its configuration changed: ``replace`` maps what stands there to what shall."""

    def __init__(self, replace: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(**{"connections": 1000, "workers": 2, **options})
        self.replace = replace or {}

    def _config(self) -> str:
        text = super()._config()
        for old, new in self.replace.items():
            assert old in text
            text = text.replace(old, new)
        return text

    @property
    def at(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def worker(self) -> int:
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()[0])

    def kill(self, number: int) -> None:
        """Send a signal to all of it."""
        os.killpg(self.pid, number)


@contextmanager
def an_nginx(**options: Any) -> Iterator[Nginx]:
    # A runner of its own: soaks of several tests run side by side, each in a thread of its own.
    server = Nginx(**options)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            yield server
        finally:
            runner.run(server.stop())


Soak = Callable[[Path], list[Diagnosis]]
SOAKS: dict[str, Soak] = {}


def soak(told: Soak) -> Soak:
    """The soak of the test of the same name: it provokes one thing and gives what is said of it."""
    SOAKS[told.__name__] = told
    return told


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[list[Diagnosis]]]]:
    """The soaks of the tests that were asked for, some at a time: they mostly wait."""
    wanted = [item.name.removeprefix("test_") for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        futures = {name: pool.submit(SOAKS[name], tmp_path_factory.mktemp(name)) for name in wanted if name in SOAKS}
        yield futures
        for future in futures.values():
            future.cancel()


@pytest.fixture
def found(request: pytest.FixtureRequest, running: dict[str, Future[list[Diagnosis]]]) -> list[Diagnosis]:
    found = running[request.node.name.removeprefix("test_")].result()
    for one in found:
        print(f"{one.code} ({'certain' if one.certain else 'likely'}, {one.cause}): {one.evidence} -> {one.remedy}")
    return found


def diagnoses(folder: Path) -> list[Diagnosis]:
    """What is said of the run, and that it adds up and is told by the report."""
    run = read_run(folder / "run.db")
    found = diagnose(fold(run.ticks, run.phases), run.ticks, run.phases, run.samples, run.checks, run.environment, run.plan)
    summary = report(folder, "run.db")
    counts: dict[str, int] = {}
    for one in found:
        counts[one.cause] = counts.get(one.cause, 0) + one.count
        assert one.remedy
    assert counts == summary["connections"]["deaths"]
    assert {f"lost_{cause}" for cause in counts} == {f["code"] for f in summary["findings"] if f["code"].startswith("lost_")}
    # The server is ours alone.
    assert [one for one in summary["findings"] if one["remedy"].startswith("someone else uses this server")] == []
    return found


def arguments(url: str, server: Nginx, *more: str, hold: str, keepalive: str = "4") -> list[str]:
    asked = ["soak", url, *SHORT[:4], "-c", str(N), "--ramp", "20/100ms", "--out", "run.db", "--quiet", "--force", "--hold", hold]
    return [*asked, "-k", keepalive, "--status-url", server.status_url, "--server-pid", str(server.pid), "--seed", "7", *more]


def soaked(
    folder: Path, server: Nginx, *more: str, hold: str = "3", url: str | None = None, keepalive: str = "4"
) -> list[Diagnosis]:
    """What is said of a short soak to its end."""
    done = run(folder, *arguments(url or server.url, server, *more, hold=hold, keepalive=keepalive))
    assert (done.status, done.err) == (99, "")
    return diagnoses(folder)


def struck(
    folder: Path, server: Nginx, strike: Callable[[], object], least: int, *more: str, url: str | None = None,
    keepalive: str = "10", mend: Callable[[], object] | None = None,
) -> list[Diagnosis]:  # fmt: skip
    """What is said of a soak in which ``strike`` is done in its hold, and which ends some seconds after ``least`` have died."""
    asked = arguments(url or server.url, server, *more, hold="forever", keepalive=keepalive)
    with Program(folder, *asked) as program:
        file = folder / "run.db"
        program.until(lambda: _held(file) >= 0.8 * N, "most are held")
        # Some samples of before, and beats that have spread.
        since = _last(file)
        program.until(lambda: _last(file) >= since + 2.0, "it is held for a while")
        before = _lost(file)
        strike()
        program.until(lambda: _lost(file) >= before + least, "they die")
        since = _last(file)
        program.until(lambda: _last(file) >= since + 2.0, "samples of after")
        if mend is not None:
            mend()
        program.signal()
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (99, "")
    return diagnoses(folder)


def _held(file: Path) -> int:
    so_far = recorded(file)
    return so_far.ticks[-1][1].held if so_far is not None and so_far.ticks else 0


def _lost(file: Path) -> int:
    so_far = recorded(file)
    return sum(tick.lost for _, tick in so_far.ticks) if so_far is not None else 0


def _last(file: Path) -> float:
    so_far = recorded(file)
    return so_far.ticks[-1][0] if so_far is not None and so_far.ticks else 0.0


def most(found: list[Diagnosis], code: str, certain: bool, words: str, share: float = 0.9) -> Diagnosis:
    """Nearly all of the dead have this diagnosis, in these words."""
    of_code = [one for one in found if one.code == code]
    assert of_code, [(one.code, one.evidence) for one in found]
    assert sum(one.count for one in of_code) >= share * sum(one.count for one in found), [
        (one.code, one.count, one.evidence) for one in found
    ]
    first = max(of_code, key=lambda one: one.count)
    assert re.search(words, first.evidence), first.evidence
    assert first.certain is certain
    return first


# -- nginx's own limits, as its configuration has them


@soak
def keepalive_time(folder: Path) -> list[Diagnosis]:
    with an_nginx(keepalive_time_s=2) as server:
        return soaked(folder, server, "--no-reopen", hold="4")


def test_keepalive_time(found: list[Diagnosis]) -> None:
    words = r"closed at age [12]-[345] s, at their next heartbeat: nginx keepalive_time \(nginx.conf says 2 s\)"
    assert most(found, "keepalive_time", True, words).count == N


@soak
def keepalive_requests(folder: Path) -> list[Diagnosis]:
    with an_nginx(keepalive_requests=3) as server:
        return soaked(folder, server, "--no-reopen", hold="4")


def test_keepalive_requests(found: list[Diagnosis]) -> None:
    words = r"after 3 requests each, at age .*: nginx keepalive_requests \(nginx.conf says 3\)"
    assert most(found, "keepalive_requests", True, words).count == N


@soak
def keepalive_timeout(folder: Path) -> list[Diagnosis]:
    with an_nginx(keepalive_timeout_s=2) as server:
        return soaked(folder, server, "--no-reopen", keepalive="40")


def test_keepalive_timeout(found: list[Diagnosis]) -> None:
    most(found, "keepalive_timeout", True, r"2 s after their last answer: nginx keepalive_timeout \(nginx.conf says 2 s\)")


@soak
def keepalive_that_is_off(folder: Path) -> list[Diagnosis]:
    with an_nginx(keepalive_timeout_s=0) as server:
        return soaked(folder, server, "--no-reopen", hold="1")


def test_keepalive_that_is_off(found: list[Diagnosis]) -> None:
    words = r"after their first request each: keep-alive is off \(nginx.conf says keepalive_timeout 0\)"
    most(found, "keepalive_off", True, words)


@soak
def client_header_timeout(folder: Path) -> list[Diagnosis]:
    with an_nginx(replace={"client_header_timeout 3600s": "client_header_timeout 2s"}) as server:
        return soaked(folder, server, "--no-reopen", "--first-beat", "sleep", keepalive="40")


def test_client_header_timeout(found: list[Diagnosis]) -> None:
    words = r"before their first request: nginx client_header_timeout \(nginx.conf says 2 s\)"
    most(found, "client_header_timeout", True, words)


@soak
def errors_that_end_the_connection(folder: Path) -> list[Diagnosis]:
    with an_nginx(replace={'return 200 "ok\\n"': "return 500"}) as server:
        return soaked(folder, server, "--no-reopen", hold="1")


def test_errors_that_end_the_connection(found: list[Diagnosis]) -> None:
    most(found, "http_error", True, r"after an error as answer \(HTTP 500\)")


@soak
def closed_without_an_answer(folder: Path) -> list[Diagnosis]:
    with an_nginx(replace={'return 200 "ok\\n"': "return 444"}) as server:
        return soaked(folder, server, "--no-reopen", hold="1")


def test_closed_without_an_answer(found: list[Diagnosis]) -> None:
    most(found, "closed_at_once", False, r"at once and without any answer")


@soak
def idle_reuse(folder: Path) -> list[Diagnosis]:
    with an_nginx(workers=1, worker_connections=60) as server:
        found = soaked(folder, server, "--no-reopen", hold="2", keepalive="20")
        assert "reusing connections" in server.error_log.read_text(encoding="utf-8")
        return found


def test_idle_reuse(found: list[Diagnosis]) -> None:
    words = r"nginx ran out of free slots .*'worker_connections are not enough, reusing connections'"
    most(found, "idle_reuse", True, words)


@soak
def idle_reuse_behind_a_box(folder: Path) -> list[Diagnosis]:
    with an_nginx(workers=1, worker_connections=60) as server, between(server.at) as box:
        return soaked(folder, server, url=box.url, hold="3", keepalive="20")


def test_idle_reuse_behind_a_box(found: list[Diagnosis]) -> None:
    words = r"looks like the server has no room for more .*\(it never held more than \d\d of the 100 asked for"
    most(found, "idle_reuse", False, words)


# -- moments


@soak
def a_reload(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server:
        return struck(folder, server, lambda: os.kill(server.pid, signal.SIGHUP), N)


def test_a_reload(found: list[Diagnosis]) -> None:
    most(found, "reload", True, r"within .* \(100 of 100 held; .*nginx was reloaded")


@soak
def a_reload_that_nobody_watches(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server:
        asked = ["soak", server.url, *SHORT[:4], "-k", "10", "-c", str(N), "--out", "run.db", "--quiet", "--hold", "forever"]
        with Program(folder, *asked) as program:
            program.until(lambda: _held(folder / "run.db") >= N, "all are held")
            since = _last(folder / "run.db")
            program.until(lambda: _last(folder / "run.db") >= since + 2.0, "it is held for a while")
            os.kill(server.pid, signal.SIGHUP)
            program.until(lambda: _lost(folder / "run.db") >= N, "they die")
            program.signal()
            assert program.wait().status == 99
        return diagnoses(folder)


def test_a_reload_that_nobody_watches(found: list[Diagnosis]) -> None:
    # Where its processes are counted as they end, they bear it out; else it is a likelihood.
    counted = "server.ended" in METRICS
    words = (
        r"nginx was reloaded: 2 of its processes ended"
        if counted
        else r"looks like a reload of nginx, which lets old workers close"
    )
    most(found, "reload", counted, words)


@soak
def a_crash_of_a_worker(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server:
        return struck(folder, server, lambda: os.kill(server.worker(), signal.SIGKILL), 20)


def test_a_crash_of_a_worker(found: list[Diagnosis]) -> None:
    words = r"of 100 held; .*still holds \d+ of them: a worker of it crashed or was killed, one of 2"
    assert most(found, "worker_crash", True, words).count < N


@soak
def a_server_that_ends(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server:
        return struck(folder, server, lambda: server.kill(signal.SIGKILL), N)


def test_a_server_that_ends(found: list[Diagnosis]) -> None:
    most(found, "server_ended", True, r"nginx ended or was killed: none of its processes was left")


@soak
def a_restart(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, ExitStack() as stack:
        argv = [server.exe, "-p", f"{server.config_path.parent}/", "-c", str(server.config_path), "-e", str(server.error_log)]

        def restart() -> None:
            server.kill(signal.SIGTERM)
            until(lambda: not group_alive(server.pid), "it ends")
            again = subprocess.Popen(argv)
            stack.callback(again.wait)
            stack.callback(again.terminate)

        return struck(folder, server, restart, N)


def test_a_restart(found: list[Diagnosis]) -> None:
    most(found, "server_restarted", True, r"nginx was restarted")


@soak
def a_server_that_stands_still(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server:
        stop, go_on = (lambda: server.kill(signal.SIGSTOP)), (lambda: server.kill(signal.SIGCONT))
        try:
            return struck(folder, server, stop, 50, "--timeout", "1", "--no-reopen", keepalive="6", mend=go_on)
        finally:
            go_on()


def test_a_server_that_stands_still(found: list[Diagnosis]) -> None:
    most(found, "server_stalled", True, r"nginx stood still: .*its processes used no CPU")


@soak
def a_worker_that_stands_still(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, ExitStack() as stack:

        def strike() -> None:
            worker = server.worker()
            os.kill(worker, signal.SIGSTOP)
            stack.callback(os.kill, worker, signal.SIGCONT)
            since = _last(folder / "run.db")
            # Each of its connections comes to its next heartbeat, and waits in vain.
            until(lambda: _last(folder / "run.db") >= since + 8.0, "all of its connections have beaten")

        return struck(folder, server, strike, 0, "--timeout", "2", "--no-reopen", keepalive="8")


def test_a_worker_that_stands_still(found: list[Diagnosis]) -> None:
    # No box on the way: those who died had gaps of any length.
    most(found, "worker_stalled", False, r"others were answered: looks like a worker of nginx, one of 2, stands still")


# -- boxes on the way


@soak
def a_box_that_drops_idle_connections_silently(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at, "silent", 2.0) as box:
        return soaked(folder, server, "--timeout", "1", "--no-reopen", url=box.url, hold="5", keepalive="8")


def test_a_box_that_drops_idle_connections_silently(found: list[Diagnosis]) -> None:
    words = (
        r"idle for [12](\.\d)? s or longer, while others were answered, and the server still counts \d+ of them as open: a box"
    )
    most(found, "silent_drop", True, words)


@soak
def a_box_that_resets_what_it_has_forgotten(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at, "reset_at_data", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, hold="4", keepalive="8")


def test_a_box_that_resets_what_it_has_forgotten(found: list[Diagnosis]) -> None:
    most(found, "box_reset", False, r"all of them idle for [12] s or longer before .*a box on the way that forgets")


@soak
def a_box_that_resets_idle_connections(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at, "reset", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, keepalive="40")


def test_a_box_that_resets_idle_connections(found: list[Diagnosis]) -> None:
    words = r"2 s after their last answer: .*looks like a box on the way; the server still counts \d+ of them as open"
    most(found, "box_reset", True, words)


@soak
def a_box_that_closes_idle_connections(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at, "close", 2.0) as box:
        return soaked(folder, server, "--no-reopen", url=box.url, keepalive="40")


def test_a_box_that_closes_idle_connections(found: list[Diagnosis]) -> None:
    most(
        found,
        "idle_timeout",
        False,
        r"2 s after their last answer: looks like an idle timeout of the server or of a box on the way",
    )


@soak
def a_box_that_loses_its_table(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at) as box:
        return struck(folder, server, box.forget_all, N, url=box.url)


def test_a_box_that_loses_its_table(found: list[Diagnosis]) -> None:
    words = r"own count of connections still holds \d+ of them: a box on the way reset them, and did not tell it"
    most(found, "box_reset", True, words)


@soak
def a_way_that_is_cut(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at) as box:
        cut = lambda: setattr(box, "cut", True)  # noqa: E731
        return struck(folder, server, cut, 50, "--timeout", "1", "--no-reopen", url=box.url, keepalive="6")


def test_a_way_that_is_cut(found: list[Diagnosis]) -> None:
    most(found, "path_cut", False, r"though the server's status page answered: looks like the way to it was cut")


# -- several at once, and what fits none


@soak
def requests_and_then_a_reload(folder: Path) -> list[Diagnosis]:
    with an_nginx(keepalive_requests=2) as server:
        return struck(folder, server, lambda: os.kill(server.pid, signal.SIGHUP), 60, keepalive="8")


def test_requests_and_then_a_reload(found: list[Diagnosis]) -> None:
    told = {one.code: one for one in sorted(found, key=lambda one: one.count)}
    assert set(told) >= {"keepalive_requests", "reload"}
    assert told["keepalive_requests"].certain
    assert told["reload"].cause == "closed_idle"
    assert min(told["keepalive_requests"].count, told["reload"].count) >= 30


@soak
def what_fits_none(folder: Path) -> list[Diagnosis]:
    with an_nginx() as server, between(server.at) as box:

        def strike() -> None:
            # Some, one after another, of any idle time.
            for _ in range(12):
                box.loop.call_soon_threadsafe(box.reset_one)
                time.sleep(0.4)

        return struck(folder, server, strike, 0, "--no-reopen", url=box.url)


def test_what_fits_none(found: list[Diagnosis]) -> None:
    (one,) = found
    assert (one.cause, one.code, one.certain, one.count) == ("reset", "unexplained", False, 12)
    assert "fits nothing that asyncli knows" in one.evidence
