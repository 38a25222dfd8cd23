"""Servers that are there after a deploy, and do not serve: they accept and are silent, leave all in the listen queue, or answer with errors."""

from __future__ import annotations

import asyncio
import contextlib
import math
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fault_table
import pytest
from contract import document
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from programs import here, recorded, speaking, stood_still_s

N = 30
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_SOAK = ("--baseline", "1", "--residue", "0.5", "-k", "2", "--ramp", "100/s", "--timeout", "1s", "--connect-timeout", "1s")


class Deployed:
    """Answers until all of its clients have gone, as by a storm. From then on it accepts and is silent; or, if it does not ``accept``, leaves
    them in its listen queue."""

    def __init__(self, *, accept: bool, backlog: int = 512) -> None:
        self._accepts = accept
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def _serve(self) -> None:
        clients: set[socket.socket] = set()
        most = gone = 0
        is_deployed = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._listener:
                        client, _ = self._listener.accept()
                        clients.add(client)
                        selector.register(client, selectors.EVENT_READ)
                        continue
                    client = key.fileobj  # type: ignore[assignment]
                    data = b""
                    with contextlib.suppress(OSError):
                        data = client.recv(4096)
                    if data and not is_deployed:
                        client.sendall(_OK * data.count(b"\r\n\r\n"))
                    if not data:
                        selector.unregister(client)
                        client.close()
                        clients.discard(client)
                        gone += most == N
                    # As many ends as there are clients: on a busy host one may be lost before, and replaced.
                    if not is_deployed and gone >= N:
                        is_deployed = True
                        if not self._accepts:
                            selector.unregister(self._listener)
                most = max(most, len(clients))
        for client in clients:
            client.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def deployed(request: pytest.FixtureRequest) -> Iterator[Deployed]:
    server = Deployed(**request.param)
    yield server
    server.close()


def soaked(folder: Path, *asked: str) -> dict[str, Any]:
    here(folder, "soak", *asked, "-c", str(N), *_SOAK, "--out", "run.db")
    return document(recorded(folder / "run.db"))


def since_events(summary: dict[str, Any]) -> dict[str, int]:
    """The findings of a server that answers nobody since an event, with its number."""
    told = [finding for finding in summary["findings"] if finding["code"] in ("listen_accepted", "listen_waiting")]
    return {finding["code"]: finding["fields"]["event"] for finding in told}


@pytest.mark.parametrize("deployed", [{"accept": True}], indirect=True)
def test_a_server_that_accepts_and_answers_none_after_a_deploy(tmp_path: Path, deployed: Deployed) -> None:
    summary = soaked(tmp_path, deployed.url, "--hold", "9s", "--at", "2s", "storm how=fin", "--reconnect", "fixed:500ms")
    [event] = summary["events"]
    assert (event["not_back"], event["failures"]) == (N, {})
    assert event["in_vain"] == {"count": event["phantoms"], "acknowledged": event["phantoms"], "patience_s": 1.0, "received": "accepted"}
    assert since_events(summary) == {"listen_accepted": 1}
    # A second in which asyncli itself stood still for half of it tells of no outage.
    assert event["no_answers_s"] >= 2 or stood_still_s(tmp_path) >= 0.5
    printed = " ".join(here(tmp_path, "report", "run.db").out.split())
    fault_table.require_as_printed("test_a_server_that_accepts_and_answers_none_after_a_deploy", printed, summary["reconciliation"]["agrees"])
    assert "queue" not in printed
    storm = " ".join(here(tmp_path, "storm", "run.db").out.split())
    assert ("at most" in storm, "not answered" in storm) == (False, True)


@pytest.mark.parametrize("deployed", [{"accept": False}], indirect=True)
def test_a_server_that_leaves_all_in_its_listen_queue_after_a_deploy(tmp_path: Path, deployed: Deployed) -> None:
    summary = soaked(tmp_path, deployed.url, "--hold", "9s", "--at", "2s", "storm how=fin", "--reconnect", "fixed:500ms")
    [event] = summary["events"]
    assert event["not_back"] == N
    assert event["in_vain"]["received"] == "waiting"
    assert since_events(summary) == {"listen_waiting": 1}
    printed = " ".join(here(tmp_path, "report", "run.db").out.split())
    fault_table.require_as_printed("test_a_server_that_leaves_all_in_its_listen_queue_after_a_deploy", printed, summary["reconciliation"]["agrees"])


@pytest.mark.parametrize("deployed", [{"accept": False, "backlog": 2}], indirect=True)
def test_of_a_full_listen_queue_nothing_says_that_the_server_accepted(tmp_path: Path, deployed: Deployed) -> None:
    summary = soaked(tmp_path, deployed.url, "--hold", "9s", "--at", "2s", "storm how=fin", "--reconnect", "fixed:500ms")
    [event] = summary["events"]
    assert event["not_back"] == N
    in_vain = event["in_vain"]
    assert in_vain is None or in_vain["received"] != "accepted"
    assert since_events(summary) == {}


class WarmingUp:
    """A server of HTTP/2, or of anything that begins with a GET, which answers 503 for ``bad_s`` once all of its clients have gone."""

    def __init__(self, bad_s: float) -> None:
        self._bad_s = bad_s
        self._clients = 0
        self._most = 0
        self._bad_until = 0.0

    def is_bad(self) -> bool:
        return time.monotonic() < self._bad_until

    def has_come(self) -> None:
        self._clients += 1
        self._most = max(self._most, self._clients)

    def has_gone(self) -> None:
        self._clients -= 1
        if self._most == N and not self._clients and not self._bad_until:
            self._bad_until = time.monotonic() + self._bad_s

    async def http2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.has_come()
        server = H2Connection(H2Configuration(client_side=False))
        server.initiate_connection()
        with contextlib.suppress(ConnectionError):
            while data := await self._exchange(server, reader, writer):
                for event in server.receive_data(data):
                    if isinstance(event, RequestReceived):
                        server.send_headers(event.stream_id, [(":status", "503" if self.is_bad() else "200")], end_stream=True)
        writer.close()
        self.has_gone()

    async def _exchange(self, server: H2Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(server.data_to_send())
        await writer.drain()
        return await reader.read(65_536)

    async def granting(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept the handshake of an event stream, or refuse it."""
        was_accepted = False
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if self.is_bad():
                writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            else:
                was_accepted = True
                self.has_come()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            await reader.read()
        if was_accepted:
            self.has_gone()
        writer.close()


def test_an_error_over_http2_is_no_comeback(tmp_path: Path) -> None:
    warming_up = WarmingUp(3.0)
    with speaking(warming_up.http2) as at:
        asked = ("--http2", "--h2-heartbeat", "head", f"http://{at}/", "--hold", "10s", "--at", "2s", "storm", "--reconnect", "fixed:500ms")
        summary = soaked(tmp_path, *asked)
    [event] = summary["events"]
    # They asked again each half second on the connections that they had.
    assert (event["not_back"], event["failures"], event["phantoms"], event["attempts"]) == (0, {}, 0, N)
    assert event["error_answers"]["503"] >= 3 * N
    assert event["back"]["p50_s"] > 2.5
    assert summary["connections"]["held"] == N


def test_a_refused_handshake_is_an_error_and_no_comeback(tmp_path: Path) -> None:
    warming_up = WarmingUp(3.0)
    with speaking(warming_up.granting) as at:
        asked = ("--protocol", "sse", f"http://{at}/", "--hold", "10s", "--at", "2s", "storm", "--reconnect", "fixed:500ms")
        summary = soaked(tmp_path, *asked)
    [event] = summary["events"]
    refused = event["failures"]["handshake_refused"]
    assert refused >= 3 * N
    assert (event["error_answers"], event["not_back"], event["attempts"]) == ({"503": refused}, 0, N + refused)
    assert event["back"]["p50_s"] > 2.5


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(_OK * data.count(b"\r\n\r\n"))
    writer.close()


def test_which_of_two_servers_is_gone_is_told(tmp_path: Path) -> None:
    """Half of the clients are at each; one of them closes its connections by RST, and its port."""
    dying = socket.create_server(("127.0.0.1", 0))
    dying.settimeout(0.02)
    gone = f"127.0.0.1:{dying.getsockname()[1]}"
    over = threading.Event()

    def serve() -> None:
        clients: list[socket.socket] = []
        dies_at = math.inf
        while not over.is_set() and time.monotonic() < dies_at:
            with contextlib.suppress(TimeoutError):
                client, _ = dying.accept()
                client.setblocking(False)
                clients.append(client)
            if math.isinf(dies_at) and (tmp_path / "begun").exists():
                dies_at = time.monotonic() + 1.0
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    client.sendall(_OK * client.recv(4096).count(b"\r\n\r\n"))
        dying.close()
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        (tmp_path / "dead").touch()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with speaking(_answering) as at:
            urls = (f"http://{at}/", f"http://{gone}/")
            # It runs until the server has died, however late this process is, and two seconds longer.
            command = "run touch begun; until [ -e dead ]; do sleep 0.1; done; sleep 2"
            summary = soaked(tmp_path, *urls, "--hold", "9s", "--at", "1s", command, "--reconnect", "fixed:500ms")
    finally:
        over.set()
        thread.join()
    [event] = summary["events"]
    assert (event["ended"], event["not_back"]) == (N // 2, N // 2)
    assert event["not_back_at"] == [{"address": gone, "count": N // 2}]
    assert event["failed_at"] == [{"address": gone, "count": event["failures"]["refused"]}]
    printed = " ".join(here(tmp_path, "report", "run.db").out.split())
    fault_table.require_as_printed("test_which_of_two_servers_is_gone_is_told", printed, summary["reconciliation"]["agrees"])
    markdown = here(tmp_path, "report", "run.db", "--summary", "markdown").out
    assert f"{N // 2} of {N}" in markdown
