"""--collect: what connections keep alive in a heap, by collections that asyncli asks a real runtime for."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract import document
from programs import here, recorded

from asyncli.analysis.cost import costs
from asyncli.app.forced_collections import ForcedCollections
from asyncli.app.progress import Progress
from asyncli.collect.locate import ServerFacts
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Sample
from asyncli.model.run import Run
from asyncli.model.units import format_bytes

# Each connection keeps an object of some 20 kB alive, and each request leaves garbage.
_NODE = """
const kept = new Map();
const server = require('http').createServer((_, answer) => {
  const garbage = Array.from({length: 500}, (_, i) => ({i}));
  answer.end(garbage.length > 1 ? 'ok' : '');
});
server.on('connection', (socket) => {
  kept.set(socket, Array.from({length: 500}, (_, i) => ({i})));
  socket.on('close', () => kept.delete(socket));
});
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""
_JAVA = """
import java.io.*;
import java.net.*;
import java.util.*;
public class Holder {
    static final List<byte[]> kept = Collections.synchronizedList(new ArrayList<>());
    public static void main(String[] words) throws Exception {
        ServerSocket server = new ServerSocket(0, 512, InetAddress.getLoopbackAddress());
        System.out.println(server.getLocalPort());
        while (true) {
            Socket socket = server.accept();
            Thread thread = new Thread(() -> serve(socket), "c");
            thread.setDaemon(true);
            thread.start();
        }
    }
    static void serve(Socket socket) {
        kept.add(new byte[20_000]);
        try {
            InputStream in = socket.getInputStream();
            byte[] text = new byte[4096];
            while (in.read(text) > 0) {
                socket.getOutputStream().write("HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n".getBytes());
            }
        } catch (IOException ended) { }
    }
}
"""
_PACE = ("-k", "2", "--ramp", "200/s", "--plateaus", "4", "--plateau-rest", "2.5", "--hold", "2", "--baseline", "2", "--residue", "0.5")


@contextmanager
def serving(argv: Sequence[str]) -> Iterator[str]:
    """The URL of a server that prints its port."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/"
        process.kill()


# For what fails at the first attempt.
_BRISK = ("-k", "2", "--ramp", "100/s", "--plateaus", "3", "--plateau-rest", "0.5", "--hold", "1", "--baseline", "0.5", "--residue", "0.2")


def soaked(folder: Path, url: str, *how: str, connections: int = 400, pace: tuple[str, ...] = _PACE) -> tuple[Run, dict[str, Any]]:
    done = here(folder, "soak", url, "-c", str(connections), *pace, *how, "--out", "run.db")
    assert done.status == 0, done
    run = recorded(folder / "run.db")
    return run, document(run)


def findings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in summary["findings"]}


@pytest.mark.parametrize("leaks", [False, True])
def test_a_stock_node_says_what_is_alive(tmp_path: Path, *, leaks: bool) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this host")
    program = _NODE.replace("kept.delete(socket)", "0") if leaks else _NODE
    with serving([node, "-e", program]) as url:
        run, summary = soaked(tmp_path, url, "--collect", "auto")
        # It lets anybody on this host run code in the server.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 9229), 1.0)
    live = summary["cost"]["live"]
    assert (live["forced"], live["collections"]) == (True, 7)
    assert 15_000 < live["bytes_per_connection"] < 40_000
    assert live["ci95"][1] - live["ci95"][0] < 0.4 * live["bytes_per_connection"]
    told = findings(summary)
    assert told["collections_forced"]["fields"]["collections"] == 8
    assert "heap_collected" not in told
    # After the drain the objects are gone, or are kept by a leak that no garbage hides.
    alive = run.series(metrics.RUNTIME_FORCED_BYTES).values
    kept = summary["residue"]["live"]
    risen = alive[-2] - alive[1]
    assert kept > 0.8 * risen if leaks else kept < 0.2 * risen
    said = " ".join(here(tmp_path, "report", "run.db", "--verbose").out.split())
    assert f"{format_bytes(kept)} alive" in said


@pytest.mark.skipif(shutil.which("java") is None or shutil.which("jcmd") is None, reason="no JDK on this host")
@pytest.mark.parametrize("collector", ["-XX:+UseSerialGC", "-XX:+UseG1GC"])
def test_a_stock_jvm_says_what_is_alive(tmp_path: Path, collector: str) -> None:
    (tmp_path / "Holder.java").write_text(_JAVA)
    with serving(["java", "-Xmx128m", collector, str(tmp_path / "Holder.java")]) as url:
        _, summary = soaked(tmp_path, url, "--collect", "auto")
    live = summary["cost"]["live"]
    assert live["forced"]
    assert 20_000 < live["bytes_per_connection"] < 35_000
    assert live["ci95"][0] < live["bytes_per_connection"] < live["ci95"][1]


def test_a_runtime_that_cannot_be_asked_is_told_and_nothing_is_lost(tmp_path: Path, nginx: Any) -> None:
    _, summary = soaked(tmp_path, nginx.url, "--collect", "auto", "--server-pid", str(nginx.pid), connections=50, pace=_BRISK)
    failed = findings(summary)["collection_failed"]
    assert "be asked" in failed["evidence"]
    assert summary["connections"]["held"] == 50
    assert "live" not in summary["cost"]


@pytest.mark.parametrize(
    ("command", "why"),
    [("false", "ended with status 1"), ("/no/such/program {pid}", "was not found"), ("true", "says what is alive")],
)
def test_a_command_that_fails_is_told(tmp_path: Path, nginx: Any, command: str, why: str) -> None:
    run, summary = soaked(tmp_path, nginx.url, "--collect", command, "--server-pid", str(nginx.pid), connections=50, pace=_BRISK)
    assert why in findings(summary)["collection_failed"]["evidence"]
    # A command may have a secret in it, and a plan of a stranger must not run one.
    assert run.plan.collect is None
    assert costs(run).heap.live is None


async def test_who_stops_a_run_does_not_wait_for_a_collection(tmp_path: Path) -> None:
    """A command that hangs is ended at once, and nothing is told of it."""
    seen = tmp_path / "pid"
    progress = Progress(Plan(urls=("http://127.0.0.1:1/",), plateaus=4), tmp_path / "run.db")
    told: list[object] = []

    async def nothing() -> Sample:
        return Sample(0.0, {})

    collections = ForcedCollections(
        progress.plan, f"sh -c 'echo $$ > {seen}; exec sleep 60'", ServerFacts(), progress,
        read_all=nothing, on_sample=told.append, on_finding=told.append,
    )  # fmt: skip
    taking = asyncio.create_task(collections.take())
    while not seen.exists() or not seen.read_text().strip():
        await asyncio.sleep(0.02)
    progress.stopped.set()
    await asyncio.wait_for(taking, 5)
    assert told == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--collect", "auto"], "--collect: a collection is asked for at the end of each plateau"),
        (["--collect", "true {pid}"], "--collect: a collection is asked for at the end of each plateau"),
        (["--collect", "auto", "--plateaus", "4", "--agent", "http://127.0.0.1:9165"], "is on the agent's host"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", *words)
    assert done.status == 2, done
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_plan_cannot_run_a_command(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('collect = "touch /tmp/x {pid}"\nplateaus = 4\n')
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", "--plan", "plan.toml")
    assert done.status == 2, done
    assert "command line" in done.err
