"""--collect: what connections keep alive in a heap, by collections that asyncli asks a real runtime for."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import AnAgent, token_file
from collections_asked import BRISK, checked, findings, serving, serving_process, soaked
from fault_table import require_as_written
from programs import here
from programs import serving as listening

from asyncli.analysis.cost import costs
from asyncli.app.forced_collections import ForcedCollections
from asyncli.app.progress import Progress
from asyncli.collect.locate import ServerFacts
from asyncli.model import metrics
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.records import Sample
from asyncli.report.live_thresholds import require_limits

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
# Its profiles are at the address that it serves.
_GO = """
package main

import (
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof"
	"sync"
)

var lock sync.Mutex
var kept = map[net.Conn][]byte{}

func follow(c net.Conn, state http.ConnState) {
	lock.Lock()
	defer lock.Unlock()
	if state == http.StateNew {
		kept[c] = make([]byte, 20000)
	}
	if state == http.StateClosed {
		delete(kept, c)
	}
}

func main() {
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	http.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	server := http.Server{ConnState: follow}
	server.Serve(listener)
}
"""
@pytest.mark.skipif(shutil.which("java") is None or shutil.which("jcmd") is None, reason="no JDK on this host")
@pytest.mark.parametrize("collector", ["-XX:+UseSerialGC", "-XX:+UseG1GC"])
def test_a_stock_jvm_says_what_is_alive(tmp_path: Path, collector: str) -> None:
    (tmp_path / "Holder.java").write_text(_JAVA)
    with serving(["java", "-Xmx128m", collector, str(tmp_path / "Holder.java")]) as url:
        _, summary = soaked(tmp_path, url, "--collect", "auto")
    live = summary["cost"]["live"]
    assert live["forced"]
    # A histogram of classes does not count direct buffers.
    assert (live["lacks_outside"], live["outside"]) == (True, None)
    assert "direct buffers," in " ".join(here(tmp_path, "report", "run.db").out.split())
    assert 20_000 < live["bytes_per_connection"] < 35_000
    assert live["ci95"][0] < live["bytes_per_connection"] < live["ci95"][1]
    assert "live_rises" not in findings(summary)
    # It keeps what it has kept.
    # Some of what was there before the first connect is gone.
    assert 0.98 * 400 * 20_000 < summary["residue"]["live"] < 1.2 * 400 * 20_000


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host")
@pytest.mark.parametrize("leaks", [False, True])
def test_a_leak_of_go_is_told_from_its_pools(tmp_path: Path, *, leaks: bool) -> None:
    """net/http keeps the buffers of closed connections until the second collection: 9 kB of each."""
    (tmp_path / "main.go").write_text(_GO.replace("delete(kept, c)", "_ = c") if leaks else _GO)
    subprocess.run(["go", "build", "-o", "server", "main.go"], cwd=tmp_path, check=True)
    with serving([str(tmp_path / "server")]) as url:
        _, summary = soaked(tmp_path, url, "--collect", f"{url}debug/pprof/heap?gc=1")
    live = summary["cost"]["live"]
    assert 20_000 < live["bytes_per_connection"] < 40_000
    kept = summary["residue"]["live"]
    assert kept > 0.98 * 400 * 20_000 if leaks else kept < 400 * 2_000
    assert "live_rises" not in findings(summary)


# As client_golang writes it.
_PAGE_OF_GO = """
	http.HandleFunc("/metrics", func(page http.ResponseWriter, _ *http.Request) {
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		fmt.Fprintf(page, "# TYPE go_goroutines gauge\\ngo_goroutines %d\\n", runtime.NumGoroutine())
		fmt.Fprintf(page, "# TYPE go_memstats_heap_alloc_bytes gauge\\ngo_memstats_heap_alloc_bytes %d\\n", memory.HeapAlloc)
		fmt.Fprintf(page, "# TYPE go_memstats_stack_inuse_bytes gauge\\ngo_memstats_stack_inuse_bytes %d\\n", memory.StackInuse)
		fmt.Fprintf(page, "# TYPE go_memstats_last_gc_time_seconds gauge\\ngo_memstats_last_gc_time_seconds %f\\n", float64(memory.LastGC)/1e9)
	})
"""


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host")
@pytest.mark.parametrize("leaks", [False, True])
def test_goroutines_that_stay_are_told_with_their_stacks(tmp_path: Path, *, leaks: bool) -> None:
    program = _GO.replace('"net/http"\n', '"net/http"\n\t"runtime"\n').replace("\tserver := ", f"{_PAGE_OF_GO}\tserver := ")
    if leaks:
        program = program.replace("kept[c] =", "go func() { select {} }()\n\t\tkept[c] =")
    (tmp_path / "main.go").write_text(program)
    subprocess.run(["go", "build", "-o", "server", "main.go"], cwd=tmp_path, check=True)
    with serving([str(tmp_path / "server")]) as url:
        _, summary = soaked(tmp_path, url, "--collect", f"{url}debug/pprof/heap?gc=1", "--server-metrics", f"{url}metrics")
    fields = findings(summary)["collections_forced"]["fields"]
    if leaks:
        # Those that read its pages and profiles leave some too.
        assert 400 <= fields["goroutines"] < 480
        # The least stack of a goroutine has 2 kB.
        assert fields["stacks_bytes"] == summary["residue"]["stacks"] > 400 * 2_000
    else:
        assert (fields["goroutines"], fields["stacks_bytes"]) == (None, None)


def test_an_agent_says_what_it_cannot_ask(tmp_path: Path, nginx: Any) -> None:
    with AnAgent(tmp_path, "--token-file", token_file(tmp_path), "--server-pid", str(nginx.pid), "--allow-collect") as agent:
        asked = ("--collect", "auto", "--agent", agent.url, "--agent-token-file", str(tmp_path / "token"))
        _, summary = soaked(tmp_path, nginx.url, *asked, connections=50, pace=BRISK)
    assert "be asked" in findings(summary)["collection_failed"]["evidence"]
    assert summary["connections"]["held"] == 50


# A Go program that has a heap of 5 MB, collects at /heap, and at /idle says so and does not. Its page counts collections.
_SIDECAR = """
import http.server
made = 0
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global made
        made += self.path == '/gc'
        text = '<html></html>'
        if self.path.startswith('/heap'):
            text = '# HeapAlloc = 5000000\\n'
        if self.path == '/metrics':
            text = f'go_memstats_heap_alloc_bytes {5e6 + made}\\ngo_gc_duration_seconds_count {made}\\n'
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Page)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def test_a_collection_of_another_process(tmp_path: Path, nginx: Any) -> None:
    """A page of net/http/pprof of another program than the server."""
    with serving([sys.executable, "-c", _SIDECAR]) as other:
        run, summary = soaked(tmp_path, nginx.url, "--collect", f"{other}heap?key=tiger-4711", connections=30, pace=BRISK)
    assert f"{other}heap?***" in findings(summary)["collection_failed"]["evidence"]
    assert "collections_forced" not in findings(summary)
    assert not run.series(metrics.RUNTIME_FORCED_BYTES)
    require_as_written("test_a_collection_of_another_process", summary)


def test_a_check_says_who_cannot_be_asked(tmp_path: Path, nginx: Any) -> None:
    """A soak would say so only when it asks."""
    with serving([sys.executable, "-c", _SIDECAR]) as other:
        for collect, says in ((f"{other}heap", "pid"), ("auto", "unknown")):
            row = checked(nginx.url, collect, server_pid=nginx.pid)
            assert (row.verdict, says in row.detail) == ("warn", True)
            assert row.remedy
        counted = checked(nginx.url, f"{other}heap", server_metrics=(f"{other}metrics",))
        assert counted.verdict == "unknown"
        assert checked(other, f"{other}heap").verdict == "ok"
        done = here(tmp_path, "check", nginx.url, "--server-pid", str(nginx.pid), "--plateaus", "4", "--collect", f"{other}heap")
        assert (done.status, "collections of" in done.out) == (0, True)


def test_a_collection_longer_than_the_rest_is_the_reason_and_its_remedy_the_first(tmp_path: Path, nginx: Any) -> None:
    with serving([sys.executable, "-c", _SIDECAR.replace("made += self.path == '/gc'", "made += self.path == '/gc'; import time; time.sleep(1.5 * (self.path == '/gc'))")]) as other:
        asked = ("--collect", f"{other}gc", "--server-metrics", f"{other}metrics", "--server-pid", str(nginx.pid))
        _, summary = soaked(tmp_path, nginx.url, *asked, connections=30, pace=BRISK)
    told = findings(summary)
    failed = told["collection_failed"]
    assert failed["fields"]["why"].startswith("one took")
    # A busy host makes it longer; where the ramp ended before it did, it had taken less by then.
    asked_s = int(failed["remedy"].rpartition("--plateau-rest ")[2].removesuffix("s"))
    assert asked_s >= 10 or "or more" in failed["fields"]["why"]


def test_a_page_that_collects_nothing(tmp_path: Path, nginx: Any) -> None:
    """Any page with status 200, which the server's own count of collections disproves."""
    with serving([sys.executable, "-c", _SIDECAR]) as other:
        asked = ("--collect", f"{other}idle", "--server-metrics", f"{other}metrics", "--server-pid", str(nginx.pid))
        run, summary = soaked(tmp_path, nginx.url, *asked, connections=30, pace=BRISK)
    assert "collections_forced" not in findings(summary)
    assert not run.series(metrics.RUNTIME_FORCED_BYTES)
    require_as_written("test_a_page_that_collects_nothing", summary)


def test_a_page_of_the_server_itself_that_collects_nothing(tmp_path: Path, nginx: Any) -> None:
    with serving_process([sys.executable, "-c", _SIDECAR]) as (own, pid):
        asked = ("--collect", f"{own}idle", "--server-metrics", f"{own}metrics", "--server-pid", str(pid))
        run, summary = soaked(tmp_path, nginx.url, *asked, connections=30, pace=BRISK)
    assert "shows none" in findings(summary)["collection_failed"]["evidence"]
    assert not run.series(metrics.RUNTIME_FORCED_BYTES)


def test_another_process_may_collect_where_the_servers_page_counts_it(tmp_path: Path, nginx: Any) -> None:
    with serving([sys.executable, "-c", _SIDECAR]) as other:
        asked = ("--collect", f"{other}gc", "--server-metrics", f"{other}metrics", "--server-pid", str(nginx.pid))
        run, summary = soaked(tmp_path, nginx.url, *asked, connections=30, pace=BRISK)
    failed = findings(summary).get("collection_failed")
    made = run.series(metrics.RUNTIME_FORCED_BYTES).values
    # On a busy host one may end after the short rest, whoever counts it: those before the first connect have no end to keep.
    assert failed is None or failed["fields"]["why"].startswith("one took")
    assert len(made) >= (3 if failed is None else 2)
    assert made[:3] == [5e6 + 1, 5e6 + 2, 5e6 + 3][: len(made)]


def test_a_page_of_another_process(tmp_path: Path, nginx: Any) -> None:
    page = b"process_open_fds 12\ngo_memstats_heap_alloc_bytes 5000000\ngo_gc_duration_seconds_count 3\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    with listening(answer=answer) as page_server:
        _, summary = soaked(tmp_path, nginx.url, "--server-metrics", page_server.url, connections=30, pace=BRISK)
    require_as_written("test_a_page_of_another_process", summary)


def test_what_is_alive_after_a_command_the_agents_page_says(tmp_path: Path, nginx: Any) -> None:
    """A command runs beside the soak; the server's page of metrics is read by the agent alone."""
    page = b"go_memstats_heap_alloc_bytes 6000000\ngo_gc_heap_live_bytes 5000000\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    with listening(answer=answer) as page_server, AnAgent(tmp_path, "--server-pid", str(nginx.pid), "--server-metrics", page_server.url) as agent:
        run, _ = soaked(tmp_path, nginx.url, "--collect", "true", "--agent", agent.url, connections=30, pace=BRISK)
    assert set(run.series(metrics.RUNTIME_FORCED_BYTES).values) == {5e6}


def test_collections_need_a_token(tmp_path: Path) -> None:
    done = here(tmp_path, "agent", "--server-pid", "1", "--allow-collect")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "--token-file" in done.err


def test_a_runtime_that_cannot_be_asked_is_told_and_nothing_is_lost(tmp_path: Path, nginx: Any) -> None:
    _, summary = soaked(tmp_path, nginx.url, "--collect", "auto", "--server-pid", str(nginx.pid), connections=50, pace=BRISK)
    failed = findings(summary)["collection_failed"]
    assert "be asked" in failed["evidence"]
    assert summary["connections"]["held"] == 50
    assert "live" not in summary["cost"]


@pytest.mark.parametrize(
    ("command", "why"),
    [("false", "status 1"), ("true", "says what is alive")],
)
def test_a_command_that_fails_is_told(tmp_path: Path, nginx: Any, command: str, why: str) -> None:
    run, summary = soaked(tmp_path, nginx.url, "--collect", command, "--server-pid", str(nginx.pid), connections=50, pace=BRISK)
    assert why in findings(summary)["collection_failed"]["evidence"]
    if command == "false":
        require_as_written("test_a_command_that_fails_is_told", summary)
    # A command may have a secret in it, and a plan of a stranger must not run one.
    assert run.plan.collect is None
    assert costs(run).heap.live is None


def hanging(progress: Progress, seen: Path, told: list[Any]) -> ForcedCollections:
    """Collections by a command that writes its pid into ``seen`` and hangs."""

    async def nothing() -> Sample:
        return Sample(0.0, {})

    return ForcedCollections(
        progress.plan, f"sh -c 'echo $$ > {seen}; exec sleep 60'", ServerFacts(), progress,
        by_agent=None,
        read_all=nothing, on_sample=told.append, on_finding=told.append,
    )  # fmt: skip


async def until_it_hangs(seen: Path) -> None:
    while not seen.exists() or not seen.read_text().strip():
        await asyncio.sleep(0.02)


async def test_who_stops_a_run_does_not_wait_for_a_collection(tmp_path: Path) -> None:
    """A command that hangs is ended at once, and nothing is told of it."""
    seen = tmp_path / "pid"
    progress = Progress(Plan(urls=("http://127.0.0.1:1/",), plateaus=4), tmp_path / "run.db")
    told: list[Any] = []
    collections = hanging(progress, seen, told)
    taking = asyncio.create_task(collections.take())
    await until_it_hangs(seen)
    progress.stopped.set()
    await asyncio.wait_for(taking, 5)
    assert told == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


@pytest.mark.parametrize(("left_s", "is_told"), [(0.0, True), (60.0, False)])
async def test_a_collection_that_outlasts_the_ramp_is_told(tmp_path: Path, left_s: float, *, is_told: bool) -> None:
    """The ramp's end cuts it; not where its rest goes on, as when nothing connects."""
    seen = tmp_path / "pid"
    progress = Progress(Plan(urls=("http://127.0.0.1:1/",), plateaus=4), tmp_path / "run.db")
    told: list[Any] = []
    collections = hanging(progress, seen, told)
    taking = asyncio.create_task(collections.take(before_s=progress.now_s() + left_s))
    await until_it_hangs(seen)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert [one.code for one in told] == ["collection_failed"] * is_told
    assert all(" or more" in one.fields["why"] for one in told)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--collect", "auto"], "--collect: a collection is asked for at the end of each plateau"),
        (["--collect", "true {pid}"], "--collect: a collection is asked for at the end of each plateau"),
        (["--collect", "", "--plateaus", "4"], "--collect: names nothing"),
        (["--collect", "/no/such/program {pid}", "--plateaus", "4"], "'/no/such/program' is no program"),
        (["--collect", "true {pdi}", "--plateaus", "4"], "did you mean {pid}?"),
        (["--fail-if", "cost.at_goal > 40kB"], "--server-metrics"),
        (["--fail-if", "cost.live > 4kB"], "--server-metrics"),
        (["--fail-if", "cost.stacks > 9kB", "--plateaus", "4", "--collect", "auto"], "--server-metrics"),
        (["--fail-if", "residue.live > 3kB"], "--collect auto"),
        (["--fail-if", "residue.stacks > 1MB"], "--collect auto"),
        (["--collect", "true 'x", "--plateaus", "4"], "open quote"),
        (["--server-metrics", "http://127.0.0.1:9/", "--metrics-map", "active=a{"], "open brace"),
        (["--collect", "kill {pid}", "--plateaus", "4", "--agent", "http://127.0.0.1:9165"], "{pid} is a process of the agent's host"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", *words)
    assert done.status == 2, done
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_limit_on_what_is_alive_after_the_drain_needs_collections() -> None:
    plan = Plan(urls=("http://127.0.0.1:9/",), fail_if=("residue.live > 3kB",))
    with pytest.raises(PlanError):
        require_limits(plan)
    require_limits(plan, collects_by_command=True)
    require_limits(msgspec.structs.replace(plan, collect="auto", plateaus=5))


def test_a_plan_cannot_run_a_command(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('collect = "touch /tmp/x {pid}"\nplateaus = 4\n')
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", "--plan", "plan.toml")
    assert done.status == 2, done
    assert "command line" in done.err
