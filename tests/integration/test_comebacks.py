"""Clients that come back to a server which accepts them slowly: who has had no answer is not back, and not held."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import document
from programs import Program, held, here, recorded, require_whole, was_late

from asyncli.analysis.totals import fold
from asyncli.findings import verdicts

CLIENTS = 60
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class SlowAcceptor:
    """Accepts its first clients at once, and each further one after a pause. Its listen queue has room for few, so that
    most connections of a storm stand by their client's kernel alone.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4)
        self._clients: list[socket.socket] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.accepted = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def _serve(self) -> None:
        next_accept = 0.0
        while not self._over.is_set():
            watched = [*self._clients]
            if time.monotonic() >= next_accept:
                watched.append(self._listener)
            readable, _, _ = select.select(watched, [], [], 0.02)
            for sock in readable:
                if sock is not self._listener:
                    self._answer(sock)
                    continue
                client, _ = sock.accept()
                self._clients.append(client)
                self.accepted += 1
                if self.accepted > CLIENTS:
                    next_accept = time.monotonic() + self._pause_s

    def _answer(self, client: socket.socket) -> None:
        try:
            data = client.recv(4096)
            client.sendall(_OK * data.count(b"\r\n\r\n"))
        except OSError:
            data = b""
        if not data:
            client.close()
            self._clients.remove(client)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for sock in (*self._clients, self._listener):
            sock.close()


@pytest.fixture
def acceptor() -> Iterator[SlowAcceptor]:
    server = SlowAcceptor(0.25)
    yield server
    server.close()


def test_who_has_had_no_answer_is_not_held_and_the_run_fails(tmp_path: Path, acceptor: SlowAcceptor) -> None:
    asked = ["--baseline", "0.5", "--residue", "0.5", "-k", "2", "--ramp", "100/s", "--hold", "6s", "--at", "1s", "storm", "--reconnect", "now"]
    done = here(tmp_path, "soak", acceptor.url, "-c", str(CLIENTS), *asked, "--out", "run.db")
    run = recorded(tmp_path / "run.db")
    summary = document(run)
    require_whole(done.status, summary, 99)
    [event] = summary["events"]
    # Some four a second, for five seconds.
    assert 5 < summary["connections"]["held"] < 40
    assert summary["connections"]["held"] == CLIENTS - event["not_back"]
    assert summary["connections"]["lost"] == 0
    assert was_late(summary) or verdicts.not_back(event["not_back"], 1) in done.out
    assert event["back"]["all_s"] is None
    assert max(tick.coming_back for _, tick in run.ticks) > 20
    # Of the server's own count, each that is back was accepted.
    assert summary["connections"]["held"] <= acceptor.accepted - CLIENTS


def test_a_limit_on_who_is_not_back_replaces_the_rule(tmp_path: Path, acceptor: SlowAcceptor) -> None:
    asked = ["--baseline", "0.5", "--residue", "0.5", "-k", "2", "--ramp", "100/s", "--hold", "4s", "--at", "1s", "storm", "--reconnect", "now"]
    done = here(tmp_path, "soak", acceptor.url, "-c", str(CLIENTS), *asked, "--fail-if", "events.1.not_back > 59", "--out", "run.db")
    summary = document(recorded(tmp_path / "run.db"))
    require_whole(done.status, summary)
    [event] = summary["events"]
    assert was_late(summary) or verdicts.allowed(verdicts.not_back(event["not_back"], 1)) in " ".join(done.out.split())


def test_who_was_away_as_the_session_was_killed_is_not_waited_for(tmp_path: Path, acceptor: SlowAcceptor) -> None:
    """Those of a resumed run are others."""
    asked = ["--baseline", "0.5", "--residue", "0.5", "-k", "2", "--ramp", "100/s", "--hold", "10s", "--at", "1s", "storm", "--reconnect", "fixed:6s"]
    with Program(tmp_path, "soak", acceptor.url, "-c", "20", *asked, "--out", "run.db") as program:
        program.until(lambda: held(tmp_path) == 20, "all are held")
        program.until(lambda: held(tmp_path) == 0, "the storm has ended all")
        program.signal(signal.SIGKILL)
        program.until_gone()
    here(tmp_path, "soak", "--resume", "run.db")
    summary = document(recorded(tmp_path / "run.db"))
    assert [(event["lost_with_worker"], event["not_back"]) for event in summary["events"]] == [(20, 0)]
    assert summary["connections"]["held"] == 20
    assert fold(recorded(tmp_path / "run.db")).missing is None
