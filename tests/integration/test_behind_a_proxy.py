"""What lies behind a proxy: a real HAProxy in mode tcp passes connections to real nginx."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fault_table
import pytest
from programs import Program, held, recorded, report, was_late
from provoked import an_nginx

from asyncli.lab.nginx import LabNginx
from asyncli.lab.packaged_servers import LabHaproxy

pytestmark = [pytest.mark.nginx, pytest.mark.haproxy]
N = 100


class Place(NamedTuple):
    address: str
    port: int


class TcpHaproxy(LabHaproxy):
    """A HAProxy in mode tcp before these backends."""

    def __init__(self, *backends: LabNginx | Place) -> None:
        super().__init__(1000)
        self.backends = backends

    def _config(self) -> str:
        whole, page = super()._config().split("# The status page")
        settings, listen = whole.split("frontend lab")[0], self._values()["listen"]
        lines = ["listen lab", "mode tcp", f"bind {listen}", "timeout client 1h", "timeout server 1h", "balance roundrobin"]
        lines += [f"server s{place} {one.address}:{one.port}" for place, one in enumerate(self.backends)]
        return f"{settings}\n" + "\n    ".join(lines) + f"\n\n# The status page{page}"


class ErringHaproxy(TcpHaproxy):
    """A HAProxy in mode http, which answers by itself where its backend does not."""

    def _config(self) -> str:
        # The backend's answers are three quarters as long as the proxy's own.
        pad = f"http-response set-header x-pad {'p' * 34}"
        short = f"timeout connect 2s\n    timeout server 3s\n    default-server maxconn 20\n    {pad}\n    "
        return super()._config().replace("mode tcp", "mode http").replace("timeout server 1h\n    ", short)


@contextmanager
def a_proxy(*backends: LabNginx | Place, kind: type[TcpHaproxy] = TcpHaproxy) -> Iterator[TcpHaproxy]:
    server = kind(*backends)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            yield server
        finally:
            runner.run(server.stop())


@contextmanager
def soaking(folder: Path, proxy: TcpHaproxy, *more: str, status_url: str | None = None) -> Iterator[Program]:
    """A soak through the proxy whose processes and descriptors were sampled when all were held; it ends after the block."""
    asked = ["soak", proxy.url, "--baseline", "2", "--residue", "0", "-k", "4", "-c", str(N), "--ramp", "20/100ms", "--hold", "forever"]
    asked += ["--server-pid", str(proxy.pid), "--status-url", status_url or proxy.status_url or "", "--out", "run.db", "--quiet", *more]
    with Program(folder, *asked) as program:
        program.until(lambda: held(folder) == N, "all are held")
        program.until(lambda: sampled(folder) >= 3, "the server was sampled while they were held")
        yield program
        program.signal()
        program.wait()
        program.until_gone()


def sampled(folder: Path) -> int:
    """How often the server's descriptors were read in the hold."""
    run = recorded(folder / "run.db")
    hold = None if run is None else run.phase("hold")
    return 0 if run is None or hold is None else len(run.series("server.descriptors").between(hold.start_s, run.end_s))


def lost(folder: Path) -> int:
    run = recorded(folder / "run.db")
    return 0 if run is None else sum(tick.lost for _, tick in run.ticks)


def diagnosed(summary: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in summary["diagnoses"]:
        counts[one["code"]] = counts.get(one["code"], 0) + one["count"]
    return counts


def test_one_of_two_backends_is_killed(tmp_path: Path) -> None:
    with an_nginx() as one, an_nginx() as other, a_proxy(one, other) as proxy, soaking(tmp_path, proxy, "--no-reopen") as program:
        other.kill(signal.SIGKILL)
        program.until(lambda: lost(tmp_path) >= N // 2, "half of them are lost")
    summary = report(tmp_path, "run.db")
    assert diagnosed(summary) == {"backend_ended": N // 2}
    assert all(not one["certain"] for one in summary["diagnoses"])
    fault_table.require_as_written("test_one_of_two_backends_is_killed", summary)
    # The remedy is that of the diagnosis: it points at no other finding, but at asyncli's own lateness where it was late.
    (instead,) = (one for one in summary["findings"] if one["code"] == "gave_way")
    assert instead["remedy"] in {one["remedy"] for one in summary["diagnoses"]} or (was_late(summary) and instead["fields"]["side"] == "host")
    # HAProxy counts no requests in mode tcp: that count is unknown, the others are compared.
    counts = summary["reconciliation"]
    assert (counts["requests_delta"], counts["accepts_delta"]) == (None, N)


def test_the_backend_is_restarted(tmp_path: Path) -> None:
    # The status page of the backend is not that of the server which asyncli connects to.
    with an_nginx() as backend, a_proxy(backend) as proxy, soaking(tmp_path, proxy, status_url=backend.status_url) as program:
        backend.kill(signal.SIGKILL)
        backend.start_again()
        program.until(lambda: lost(tmp_path) >= N, "all are lost")
        program.until(lambda: held(tmp_path) == N, "all are held again")
        since = sampled(tmp_path)
        program.until(lambda: sampled(tmp_path) >= since + 3, "what followed was sampled")
    summary = report(tmp_path, "run.db")
    assert diagnosed(summary)["backend_ended"] >= N
    assert all(not one["certain"] for one in summary["diagnoses"] if one["code"] == "backend_ended")
    fault_table.require_as_written("test_the_backend_is_restarted", summary)


def test_error_answers_of_a_proxy_are_no_parts_of_others(tmp_path: Path) -> None:
    """They are longer than the backend's: their bytes say nothing of the heartbeats that got no answer."""
    bare = [sys.executable, str(Path(__file__).with_name("bare_server.py")), "before"]
    with subprocess.Popen(bare, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as backend:
        assert backend.stdout is not None
        place = Place("127.0.0.1", int(backend.stdout.readline()))
        with a_proxy(place, kind=ErringHaproxy) as proxy, soaking(tmp_path, proxy, "--timeout", "2s") as program:
            backend.send_signal(signal.SIGSTOP)
            program.until(lambda: has_errors(tmp_path), "the proxy has answered itself")
            backend.send_signal(signal.SIGCONT)
            program.until(lambda: held(tmp_path) == N, "all are held again")
        backend.kill()
    summary = report(tmp_path, "run.db")
    assert "answers_in_part" not in {diagnosis["code"] for diagnosis in summary["diagnoses"]}, summary["diagnoses"]
    fault_table.require_as_written("test_error_answers_of_a_proxy_are_no_parts_of_others", summary)


def has_errors(folder: Path) -> bool:
    """Whether heartbeats were lost, and some were answered with 503."""
    run = recorded(folder / "run.db")
    if run is None:
        return False
    ticks = [tick for _, tick in run.ticks]
    return sum(tick.lost for tick in ticks) >= N // 2 and sum(tick.by_status.get(503, 0) for tick in ticks) >= N // 4
