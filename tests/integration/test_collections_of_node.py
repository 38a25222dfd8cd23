"""--collect of a real Node, whose inspector has one port in a network."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from agents import TOKEN, AnAgent, token_file
from collections_asked import BRISK, checked, findings, is_undisturbed, serving, serving_process, soaked
from programs import here

from asyncli.collect.forced_collection import by_runtime
from asyncli.model import metrics
from asyncli.model.errors import PeerError
from asyncli.model.units import format_bytes

pytestmark = [
    pytest.mark.measures,
    pytest.mark.usefixtures("apart"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this host"),
]

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
_BEARER = {"Authorization": f"Bearer {TOKEN}"}


_IDLE = "console.log(1); setInterval(() => 0, 9999)"
INSPECTOR = 9229


def listens_at(pid: int) -> set[int]:
    """The ports at which a process listens."""
    sockets = psutil.Process(pid).net_connections("tcp")
    return {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("leaks", [False, True])
def test_a_stock_node_says_what_is_alive(tmp_path: Path, *, leaks: bool) -> None:
    program = _NODE.replace("kept.delete(socket)", "0") if leaks else _NODE
    with serving_process(["node", "-e", program]) as (url, pid):
        run, summary = soaked(tmp_path, url, "--collect", "auto")
        # It lets anybody on this host run code in the server.
        assert INSPECTOR not in listens_at(pid)
    if not is_undisturbed(run, summary):
        return
    live = summary["cost"]["live"]
    assert live["forced"]
    # A busy host has no time for those at the beginning of a rest.
    assert 2 + 4 <= live["collections"] <= 2 + 3 * 4 + 2
    assert 15_000 < live["bytes_per_connection"] < 40_000
    # What is kept of closed connections is a cost all the same, and does not rise by the clock.
    low, high = live["ci95"]
    assert high - low - live["not_freed"] < 0.4 * live["bytes_per_connection"]
    assert live["by_clock"] < 0.2 * live["bytes_per_connection"]
    told = findings(summary)
    assert told["collections_forced"]["fields"]["collections"] >= 2 + 4 + 2 + 8
    assert "heap_collected" not in told
    assert "live_rises" not in told
    # After the drain the objects are gone, or are kept by a leak that no garbage hides.
    alive = run.series(metrics.RUNTIME_FORCED_BYTES).values
    kept = summary["residue"]["live"]
    risen = alive[-9] - alive[1]
    assert kept > 0.8 * risen if leaks else kept < 0.2 * risen
    said = " ".join(here(tmp_path, "report", "run.db", "--verbose").out.split())
    assert f"{format_bytes(kept)} alive" in said


def test_a_leak_of_node_by_the_clock_is_told(tmp_path: Path) -> None:
    """Ten arrays of 8 kB a second, connections or none; a first plateau's cost does not have them, and the next run would."""
    leak = "const leaked = []; setInterval(() => leaked.push(Array(1000).fill(1.5)), 100);"
    with serving(["node", "-e", f"{_NODE}{leak}"]) as url:
        run, summary = soaked(tmp_path, url, "--collect", "auto", "--fail-if", "residue.live_pace > 40kB/s", status=99)
    if not is_undisturbed(run, summary):
        return
    told = findings(summary)
    assert told["live_rises"]["fields"]["bytes_per_s"] == pytest.approx(80e3, rel=0.15)
    assert summary["residue"]["live_pace"]["ci95"][0] > 40e3
    assert told["collections_forced"]["remedy"] == ""


# Each connection keeps a Buffer of 64 kB, which is outside V8's heap. It has a page of prom-client at /metrics.
_BUFFERS = """
const page = require('prom-client');
page.collectDefaultMetrics();
const kept = new Map();
const server = require('http').createServer(async (asked, answer) => {
  answer.end(asked.url === '/metrics' ? await page.register.metrics() : 'ok');
});
server.on('connection', (socket) => {
  kept.set(socket, Buffer.alloc(65536, 1));
  socket.on('close', () => kept.delete(socket));
});
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""
_OF_BUFFER = 65_536
needs_prom_client = pytest.mark.skipif(
    shutil.which("node") is None or subprocess.run(["node", "-e", "require('prom-client')"], check=False, capture_output=True).returncode != 0,
    reason="no Node with prom-client on this host",
)


@needs_prom_client
@pytest.mark.parametrize("leaks", [False, True])
def test_buffers_of_node_are_alive(tmp_path: Path, *, leaks: bool) -> None:
    """They are outside V8's heap, and a leak of them is a leak."""
    program = _BUFFERS.replace("kept.delete(socket)", "0") if leaks else _BUFFERS
    with serving(["node", "-e", program]) as url:
        run, summary = soaked(tmp_path, url, "--collect", "auto", "--fail-if", "residue.live > 1MB", connections=300, status=99 if leaks else 0)
    if not is_undisturbed(run, summary):
        return
    live = summary["cost"]["live"]
    assert _OF_BUFFER < live["bytes_per_connection"] < _OF_BUFFER + 8_000
    low, high = live["ci95"]
    # It reaches down to what may be growth.
    assert high - low - live["not_freed"] < 0.2 * _OF_BUFFER
    assert live["outside"] == pytest.approx(_OF_BUFFER, rel=0.01)
    assert not live["lacks_outside"]
    kept = summary["residue"]["live"]
    assert kept > 0.98 * 300 * _OF_BUFFER if leaks else kept < 300 * 3_000
    said = " ".join(here(tmp_path, "report", "run.db").out.split())
    assert "its Buffers:" in said
    assert "in Buffers)" in said


@needs_prom_client
def test_what_is_alive_is_what_the_user_names(tmp_path: Path) -> None:
    """The runtime is asked for the collection alone."""
    with serving(["node", "-e", _BUFFERS]) as url:
        named = ("--server-metrics", f"{url}metrics", "--metrics-map", "live=nodejs_external_memory_bytes")
        run, summary = soaked(tmp_path, url, "--collect", "auto", *named, connections=300)
    live = summary["cost"]["live"]
    # With V8's heap it would be 4 % more. A busy Node has not accepted the last ones yet.
    assert live["bytes_per_connection"] == pytest.approx(_OF_BUFFER, rel=0.03)
    assert live["collections"] >= 2 + 4
    assert (live["outside"], live["lacks_outside"]) == (None, False)
    assert not run.series(metrics.RUNTIME_OUTSIDE_BYTES)
    assert not run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES)


def test_an_agent_asks_where_it_is_allowed_to(tmp_path: Path) -> None:
    """The server's process is on the agent's host, and nothing that it does came over the wire."""
    there = ("--token-file", token_file(tmp_path), "--server-pid")
    asked = ("--collect", "auto", "--agent-token-file", str(tmp_path / "token"), "--agent")
    with serving_process(["node", "-e", _NODE]) as (url, pid):
        with AnAgent(tmp_path, *there, str(pid), name="deaf") as deaf:
            refused = here(tmp_path, "soak", url, "-c", "10", "--plateaus", "3", *asked, deaf.url)
            lease = json.loads(deaf.ask("/v1/lease", "POST", b'{"holder": "a test"}', **_BEARER)[1])["lease"]
            status, answer = deaf.ask("/v1/collection", "POST", b"touch /tmp/x", Asyncli_Lease=lease, **_BEARER)
        with AnAgent(tmp_path, *there, str(pid), "--allow-collect") as agent:
            # Another session's soak is not stopped by somebody else.
            assert agent.ask("/v1/collection", "POST", b"", **_BEARER)[0] == 409
            _, summary = soaked(tmp_path, url, *asked, agent.url)
        assert INSPECTOR not in listens_at(pid)
    assert (refused.status, len(refused.err.splitlines())) == (2, 1)
    assert "--allow-collect" in refused.err
    assert (status, b"--allow-collect" in answer) == (403, True)
    live = summary["cost"]["live"]
    assert live["forced"]
    # A busy host has no time for those at the beginning of a rest.
    assert 2 + 4 <= live["collections"] <= 2 + 3 * 4 + 2
    assert 15_000 < live["bytes_per_connection"] < 40_000
    assert findings(summary)["collections_forced"]["fields"]["collections"] >= 2 + 4 + 2 + 8
    assert "live" in summary["residue"]


async def test_two_soaks_do_not_take_each_other_s_inspector() -> None:
    node = ["node", "-e", _IDLE]
    with serving_process(node) as (_, first), serving_process(node) as (_, second):
        for _ in range(5):
            alive = await asyncio.gather(by_runtime("node", first)(), by_runtime("node", second)())
            for of_one in alive:
                assert of_one is not None
                assert min(of_one.heap_bytes, of_one.outside_bytes or 0.0) > 1e5


# The workers of a cluster hold the connections.
_CLUSTER = """
const cluster = require('cluster');
if (cluster.isPrimary) {
  cluster.fork();
  cluster.fork().on('listening', (address) => console.log(address.port));
} else {
  const server = require('http').createServer((_, answer) => answer.end('ok'));
  server.keepAliveTimeout = 60000;
  server.listen(0, '127.0.0.1');
}
"""


def test_a_cluster_is_not_asked_and_that_is_told_before_the_run(tmp_path: Path) -> None:
    """Its primary process, which would be asked, holds no connections."""
    with serving_process(["node", "-e", _NODE]) as (url, pid):
        row = checked(url, "auto")
        assert (row.verdict, str(pid) in row.detail) == ("ok", True)
    (tmp_path / "cluster.js").write_text(_CLUSTER)
    with serving_process(["node", str(tmp_path / "cluster.js")]) as (url, pid):
        row = checked(url, "auto")
        assert (row.verdict, "2 workers" in row.detail) == ("warn", True)
        run, summary = soaked(tmp_path, url, "--collect", "auto", connections=40, pace=BRISK)
        assert INSPECTOR not in listens_at(pid)
    told = findings(summary)
    assert "2 workers" in told["collection_failed"]["evidence"]
    assert "its cluster" in told["collection_failed"]["remedy"]
    assert "collections_forced" not in told
    assert not run.series(metrics.RUNTIME_FORCED_BYTES)


# It runs one function all the time, so the inspector interrupts that.
_BUSY = """
console.log(1);
Error.stackTraceLimit = 100;
const scheduled = process.nextTick;
process.nextTick = (...given) => {
  if (new Error().stack.includes('interrupted')) require('fs').writeSync(1, 'a tick from within it');
  return scheduled.apply(process, given);
};
const step = () => Date.now();
function interrupted() {
  const endsAt = step() + 20;
  while (step() < endsAt) {}
  setImmediate(interrupted);
}
interrupted();
"""


async def test_what_interrupts_the_server_schedules_no_tick() -> None:
    """Node runs no tick any more if one comes between its last tick and its note that none is left: it then reads requests and answers none."""
    with subprocess.Popen(["node", "-e", _BUSY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
        assert node.stdout is not None
        node.stdout.readline()
        try:
            for _ in range(3):
                assert await by_runtime("node", node.pid)() is not None
        finally:
            node.kill()
        said, _ = node.communicate()
    assert said == b""


async def test_an_inspector_that_was_open_stays_open() -> None:
    """Its user has it open, or a debugger is attached."""
    with serving_process(["node", f"--inspect=127.0.0.1:{INSPECTOR}", "-e", _IDLE]) as (_, pid):
        for _ in range(2):
            assert await by_runtime("node", pid)() is not None
        assert INSPECTOR in listens_at(pid)


def test_who_is_killed_leaves_no_inspector_open() -> None:
    killed = """
import asyncio, os, signal, sys
from asyncli.collect import forced_collection
async def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)
forced_collection._alive_after_collection = killed
asyncio.run(forced_collection.by_runtime('node', int(sys.argv[1]))())
"""
    with serving_process(["node", "-e", _IDLE]) as (_, pid):
        asked = subprocess.run([sys.executable, "-c", killed, str(pid)], check=False)
        assert asked.returncode == -signal.SIGKILL
        deadline_s = time.monotonic() + 5
        while INSPECTOR in listens_at(pid) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert INSPECTOR not in listens_at(pid)
        assert psutil.pid_exists(pid)


@pytest.mark.namespaces
async def test_a_node_of_another_network_is_not_asked() -> None:
    """Its inspector would open there, where nobody closes it again."""
    with subprocess.Popen(["unshare", "-n", "node", "-e", _IDLE], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as node:
        assert node.stdout is not None
        node.stdout.readline()
        try:
            with pytest.raises(PeerError, match="another network namespace"):
                await by_runtime("node", node.pid)()
        finally:
            node.kill()
        _, said = node.communicate()
    assert b"Debugger" not in said
