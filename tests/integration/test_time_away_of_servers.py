"""How long each client was away by a deploy, and how many clients were ended more than once, beside what the servers themselves saw."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import Program, here, report, require_whole, stood_still_s, until
from test_behind_a_proxy import Place, TcpHaproxy, a_proxy

from asyncli.lab.ports import free_pair
from asyncli.model.units import format_duration

pytestmark = [pytest.mark.nginx, pytest.mark.haproxy]

CLIENTS = 60
#: Notes when it was first asked on each connection, and by SIGTERM whose connections it ends, with the clock of all processes.
_NOTING = """
import asyncio, os, re, signal, sys, time

port, notes = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
connected = {}


def note(what, client):
    print(f"{time.monotonic():.6f} {what} {client}", file=notes)


class Client(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if self not in connected:
            connected[self] = re.search(rb"(?i)x-client: (\\d+)", data)[1].decode()
            note("asked", connected[self])
        self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n" * data.count(b"\\r\\n\\r\\n"))

    def connection_lost(self, error):
        connected.pop(self, None)


def end():
    for client in connected.values():
        note("ended", client)
    os._exit(0)


async def serve():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    server = await loop.create_server(Client, "127.0.0.1", port)
    print(os.getpid(), file=open(sys.argv[3], "w"))
    await server.serve_forever()


asyncio.run(serve())
"""


class CheckingHaproxy(TcpHaproxy):
    """Sends nobody to a server that is down, and whom that refuses to the other one."""

    def _config(self) -> str:
        checking = "balance leastconn\n    option redispatch 1\n    default-server check inter 100ms fall 2 rise 1"
        return super()._config().replace("balance roundrobin", checking)


class Servers:
    """Two that restart one after the other by :attr:`deploy`, a script of the shell."""

    def __init__(self, folder: Path) -> None:
        self.places = [Place("127.0.0.1", port) for port in free_pair("127.0.0.1")]
        self.notes = folder / "notes"
        self.deploy = folder / "deploy.sh"
        self._pidfiles = [folder / "pid-0", folder / "pid-1"]
        script = folder / "noting.py"
        script.write_text(_NOTING, encoding="utf-8")
        self._starts = []
        for place, pidfile in zip(self.places, self._pidfiles, strict=True):
            self._starts.append(f"{sys.executable} {script} {place.port} {self.notes} {pidfile}")
        steps = []
        for start, pidfile in zip(self._starts, self._pidfiles, strict=True):
            steps.append(f"kill $(cat {pidfile}); sleep 1.5; setsid {start} > /dev/null 2>&1 &\nsleep 4")
        self.deploy.write_text("\n".join(steps), encoding="utf-8")

    @contextmanager
    def serving(self) -> Iterator[None]:
        first = [subprocess.Popen(start.split()) for start in self._starts]
        until(lambda: all(pidfile.exists() for pidfile in self._pidfiles), "both serve")
        try:
            yield
        finally:
            for pidfile in self._pidfiles:
                subprocess.run(["kill", pidfile.read_text(encoding="ascii").strip()], check=False)
            for process in first:
                process.wait()

    def seen(self) -> tuple[Counter[str], float]:
        """How often each client was ended that asked again, and for how long at most one had not asked since (s)."""
        courses: dict[str, list[tuple[float, str]]] = {}
        for line in self.notes.read_text(encoding="ascii").splitlines():
            at, what, client = line.split()
            courses.setdefault(client, []).append((float(at), what))
        ends: Counter[str] = Counter()
        longest_s = 0.0
        for client, course in courses.items():
            for (ended_at, was), (asked_at, then) in itertools.pairwise(sorted(course)):
                if (was, then) == ("ended", "asked"):
                    ends[client] += 1
                    longest_s = max(longest_s, asked_at - ended_at)
        return ends, longest_s


def _rolled(folder: Path, *more: str) -> tuple[Any, Servers]:
    servers = Servers(folder)
    with servers.serving(), a_proxy(*servers.places, kind=CheckingHaproxy) as proxy:  # type: ignore[arg-type]
        asked = ["-c", str(CLIENTS), "--ramp", "100/s", "-k", "2", "--baseline", "1", "--hold", "14s", "--residue", "0", "-H", "x-client: {n}"]
        asked += ["--workers", "2", "--server-pid", str(proxy.pid), "--at", "1s", f"run sh {servers.deploy}", "--reconnect", "jitter:1s"]
        with Program(folder, "soak", proxy.url, *asked, *more, "--out", "run.db") as program:
            # The servers that its command has started go on.
            return program.wait(), servers


def test_a_rolling_restart_ends_some_twice_and_has_none_away_for_long(tmp_path: Path) -> None:
    # Nobody is away for longer than the hold lasts, however busy the machine is.
    limits = ["--fail-if", "events.1.away.max_s > 20s", "--fail-if", "events.1.ended_repeatedly > 90"]
    done, servers = _rolled(tmp_path, *limits)
    ends, longest_s = servers.seen()
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    [event] = summary["events"]
    twice = sum(count == 2 for count in ends.values())
    assert 10 < twice < CLIENTS
    assert (event["ended"], event["clients"], event["ended_repeatedly"]) == (ends.total(), CLIENTS, twice)
    away, back = event["away"], event["back"]
    assert away["at_least"] is None
    assert 0 < away["p50_s"] < away["p99_s"] <= away["max_s"]
    # The proxy and asyncli see an end a little later than the server, and the answer a little later than it is asked; and all of it later by
    # as much as asyncli stood still.
    late_s = stood_still_s(tmp_path)
    assert away["max_s"] == pytest.approx(longest_s, abs=0.3 + late_s)
    assert away["max_s"] < 2.5 + late_s
    assert back["all_s"] > 5.0
    printed = " ".join(here(tmp_path, "report", "run.db").out.split())
    assert f"{ends.total()} ends of {CLIENTS} clients, {twice} of" in printed
    assert f"{ends.total()} connections of {CLIENTS} clients ({twice} of" in printed
    assert printed.count(f"more than {format_duration(away['max_s'])}") == 2
