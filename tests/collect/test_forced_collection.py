"""What runtimes print after a collection, and what happens where one cannot be asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from asyncli.collect import askable, forced_collection
from asyncli.collect.forced_collection import by_command, by_runtime, collection, heap_of_go, heap_of_jvm, require_small_heap
from asyncli.model import metrics
from asyncli.model.errors import CannotCollectError, PeerError

HISTOGRAM = b"""4711:
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:            40       20971520  [B (java.base@17.0.15)
   2:            12       42  Total (an odd name)
Total         60485       23845168
"""


@pytest.mark.parametrize(
    ("text", "live"), [(HISTOGRAM, 23_845_168.0), (HISTOGRAM[:-40], None), (b"4711:\nCommand failed\n", None), (b"", None)]
)
def test_the_heap_of_a_jvm(text: bytes, live: float | None) -> None:
    assert heap_of_jvm(text) == live


def test_the_heap_of_go() -> None:
    assert heap_of_go(b"heap profile: 1: 2 [3: 4]\n# runtime.MemStats\n# Alloc = 5\n# HeapAlloc = 317856\n# HeapSys = 9\n") == 317_856.0
    assert heap_of_go(b"a page of something else") is None


@pytest.mark.parametrize(("kind", "says"), [("go", "debug/pprof/heap"), ("python", "is python"), ("", "is unknown")])
def test_what_cannot_be_asked_says_how(kind: str, says: str) -> None:
    with pytest.raises(PeerError, match=says):
        by_runtime(kind, 1)


def test_a_process_of_another_user_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program cannot be read, so neither can its runtime."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PeerError, match="another user"):
        by_runtime("", os.getpid())


# Commands.


async def refused(command: str) -> str:
    with pytest.raises(PeerError) as caught:
        await collection(by_command(command, 1))
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400
    return message


async def test_a_command_that_leaves_a_program_running_has_ended() -> None:
    """The program it left keeps the output open, and is left alone."""
    done = await collection(by_command("sh -c 'sleep 3 & echo $!'", None))
    assert done.alive is None
    assert done.took_s < 2


@pytest.mark.parametrize("at", ["a file", "a directory", "no program"])
async def test_a_command_that_cannot_be_started_is_told(tmp_path: Path, at: str) -> None:
    path = tmp_path / "command"
    if at == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"\x00\x01")
    if at == "no program":
        path.chmod(0o700)
    assert "be started" in await refused(str(path))


async def test_a_command_that_hangs_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(forced_collection, "LONGEST_S", 0.5)
    seen = tmp_path / "pids"
    message = await refused(f"sh -c 'sleep 60 & echo $! $$ > {seen}; wait'")
    assert "collection ended" in message
    for pid in seen.read_text().split():
        assert is_gone(int(pid))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, within a second."""
    deadline_s = time.monotonic() + 1
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


async def test_of_a_flood_only_the_end_is_kept() -> None:
    message = await refused("sh -c 'head -c 200000000 /dev/zero; exit 3'")
    assert "status 3" in message


async def test_a_trace_of_java_is_left_out() -> None:
    message = await refused("sh -c 'printf \"no attach\\n\\tat a.B.c(B.java:1)\\n\"; exit 1'")
    assert "no attach" in message
    assert "B.java" not in message


# Node's inspector.


@contextmanager
def a_process(*, handles: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A process that handles SIGUSR1, or would end by it."""
    ready = "print(flush=True); time.sleep(60)"
    handler = "signal.signal(signal.SIGUSR1, lambda *_: None);" if handles else ""
    process = subprocess.Popen([sys.executable, "-c", f"import signal, time; {handler} {ready}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_process_that_the_signal_would_end_is_not_signalled() -> None:
    """As Node with --disable-sigusr1."""
    with a_process(handles=False) as process:
        with pytest.raises(PeerError, match="SIGUSR1"):
            await collection(by_runtime("node", process.pid))
        time.sleep(0.2)
        assert process.poll() is None


async def refused_by(monkeypatch: pytest.MonkeyPatch, listing: str, answers: Sequence[str]) -> str:
    """What is said of a listener at the inspector's port that answers so."""

    async def pages(_: web.Request) -> web.Response:
        return web.Response(text=listing.replace("PORT", str(server.port)))

    async def link(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in answers:
            message = await socket.receive()
            if message.type is not WSMsgType.TEXT:
                break
            await socket.send_str(answer.replace("PID", str(process.pid)))
        return socket

    app = web.Application()
    app.router.add_get("/json/list", pages)
    app.router.add_get("/link", link)
    async with TestServer(app, host="127.0.0.1") as server:
        monkeypatch.setattr(forced_collection, "_INSPECTOR", f"http://127.0.0.1:{server.port}")
        monkeypatch.setattr(forced_collection, "_INSPECTOR_LINK", f"ws://127.0.0.1:{server.port}/")
        monkeypatch.setattr(forced_collection, "_INSPECTOR_OPENS_S", 0.3)
        with a_process(handles=True) as process:
            with pytest.raises(PeerError) as caught:
                await collection(by_runtime("node", process.pid))
            assert process.poll() is None
    return str(caught.value)


LIST = '[{"webSocketDebuggerUrl": "ws://127.0.0.1:PORT/link"}]'
IS_PID = '{"id": 1, "result": {"result": {"value": PID}}}'
CLOSES = '{"id": 2, "result": {}}'
PROFILES = '{"id": 3, "result": {"result": {"objectId": "1"}}}'
DONE = '{"id": 4, "result": {}}'


@pytest.mark.parametrize(
    ("listing", "answers", "says"),
    [
        ("<html>", (), "opened no inspector"),
        ("5", (), "opened no inspector"),
        ("{}", (), "opened no inspector"),
        ('[{"webSocketDebuggerUrl": "ws://192.0.2.1:80/link"}]', (), "opened no inspector"),
        (LIST.replace("/link", "/nothing"), (), "ended"),
        (LIST, (), "ended at Runtime.evaluate"),
        (LIST, ("no JSON",), "no inspector"),
        (LIST, ('{"id": 1, "result": {"result": 5}}',), "no inspector"),
        (LIST, ('{"id": 1, "result": {"result": {"value": 1}}}',), "another program"),
        (LIST, (IS_PID, CLOSES, '{"id": 3, "result": {}}'), "no inspector"),
        (LIST, (IS_PID, CLOSES, '{"id": 3, "result": {"result": {"value": null}}}'), "before 18.15"),
        (LIST, (IS_PID, CLOSES, PROFILES, '{"id": 4, "error": {}}'), "refused HeapProfiler.collectGarbage"),
        (LIST, (IS_PID, CLOSES, PROFILES, DONE), "ended at Runtime.callFunctionOn"),
        (LIST, (IS_PID, CLOSES, PROFILES, DONE, '{"id": 5, "result": {}}'), "no inspector"),
        (LIST, (IS_PID, CLOSES, PROFILES, DONE, '{"id": 5, "result": {"result": {"value": "x"}}}'), "no inspector"),
    ],
    ids=range(15),
)
async def test_what_is_no_inspector_is_told(monkeypatch: pytest.MonkeyPatch, listing: str, answers: Sequence[str], says: str) -> None:
    assert says in await refused_by(monkeypatch, listing, answers)


async def test_who_never_answers_at_the_inspectors_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(forced_collection, "_INSPECTOR", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(forced_collection, "_INSPECTOR_OPENS_S", 0.3)
    monkeypatch.setattr(forced_collection, "LONGEST_S", 5.0)
    try:
        with a_process(handles=True) as process, pytest.raises(PeerError, match="opened no inspector"):
            await collection(by_runtime("node", process.pid))
    finally:
        ended.set()
        server.close()


# What is known before it asks.


def test_a_large_heap_is_refused_by_the_heap_where_it_is_known() -> None:
    """1.2 GB of Buffers do not make a collection long."""
    require_small_heap({metrics.RUNTIME_HEAP_BYTES: 5e6, metrics.SERVER_RSS_BYTES: 1.3e9})
    with pytest.raises(CannotCollectError, match=r"1\.2 GB"):
        require_small_heap({metrics.RUNTIME_HEAP_BYTES: 1.2e9, metrics.SERVER_RSS_BYTES: 1.3e9})
    with pytest.raises(CannotCollectError, match="resident memory") as caught:
        require_small_heap({metrics.SERVER_RSS_BYTES: 1.3e9})
    assert "--server-metrics" in caught.value.remedy


def test_who_has_the_inspectors_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(askable, "INSPECTOR_PORT", taken.getsockname()[1])
        with pytest.raises(CannotCollectError, match=rf"pid {os.getpid()}"):
            askable.has_inspector(1)
        assert askable.has_inspector(os.getpid())
    assert not askable.has_inspector(1)


def test_a_java_without_jcmd_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotCollectError, match="jcmd"):
        askable.require_askable("jvm", os.getpid())


def test_a_process_with_children_is_a_cluster_only_if_they_are_workers() -> None:
    for variables, workers in (({"NODE_UNIQUE_ID": "1"}, True), ({"OTHER_ID": "1"}, False)):
        with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], env={**os.environ, **variables}, stdout=subprocess.PIPE, start_new_session=True) as shell:
            assert shell.stdout is not None
            shell.stdout.readline()
            try:
                with pytest.raises(CannotCollectError, match="1 worker") if workers else contextlib.nullcontext():
                    askable.require_no_workers(shell.pid)
            finally:
                os.killpg(shell.pid, signal.SIGKILL)
