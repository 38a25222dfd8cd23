"""Lab servers that report their own metrics: their pages have what tells a connection's cost where memory is collected.

``tests/pages`` has such pages of the same servers, each with 50 held connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from lab_clients import asked_until, group, hung_up, made, opened, refusal

from asyncli.lab import choose, java
from asyncli.model.errors import PlanError

websockets = pytest.importorskip("websockets.asyncio.client")
NODE = (
    'nodejs_gc_duration_seconds_count{kind="major"}',
    'nodejs_heap_space_size_used_bytes{space="old"}',
    'nodejs_active_resources{type="TCPSocketWrap"}',
)
GO = (
    "go_memstats_heap_alloc_bytes",
    "go_memstats_last_gc_time_seconds",
    "go_memstats_next_gc_bytes",
    "go_memstats_stack_inuse_bytes",
    "go_gc_gogc_percent",
    "process_open_fds",
)
ENVOY = (
    'envoy_http_downstream_cx_active{envoy_http_conn_manager_prefix="lab"}',
    'envoy_http_downstream_cx_total{envoy_http_conn_manager_prefix="lab"}',
    'envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="lab"}',
    "envoy_server_memory_allocated{}",
)
JVM = (
    'jvm_memory_used_bytes{area="heap"',
    "jvm_gc_live_data_size_bytes",
    "jvm_gc_max_data_size_bytes",
    "process_files_open_files",
)
#: Server -> how lines of its page begin.
METRICS = {
    "node-http": NODE,
    "node-ws": NODE,
    "go-http": GO,
    "gorilla": GO,
    "gobwas": GO,
    "caddy": [metric for metric in GO if metric != "go_gc_gogc_percent"],
    "envoy": ENVOY,
    "jvm": JVM,
}


def series(page: str) -> dict[str, float]:
    """The values of a page by name and labels."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def page_of(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(url)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    return answer.text


async def collect(server: Any) -> None:
    """A major collection in a stock Node, by the inspector that SIGUSR1 opens.

    prom-client has no line of major collections before the first one.
    """
    os.kill(server.pid, signal.SIGUSR1)

    async def inspector() -> re.Match[str] | None:
        return re.search(r"ws://\S+", " ".join(server.complaints))

    match = await asked_until(inspector, bool)
    assert match is not None
    async with websockets.connect(match[0], proxy=None) as connection:
        await connection.send(json.dumps({"id": 1, "method": "HeapProfiler.collectGarbage"}))
        assert json.loads(await asyncio.wait_for(connection.recv(), 10)) == {"id": 1, "result": {}}


async def test_a_server_built_by_go_has_the_pages_of_pprof() -> None:
    async with await made("go-http") as server, httpx.AsyncClient(trust_env=False) as client:
        before = series(await page_of(server.metrics_url))
        pprof = f"http://127.0.0.1:{server.status_port}/debug/pprof/heap?gc=1"
        assert (await client.get(pprof)).status_code == 200
        after = series(await page_of(server.metrics_url))
    collected = "go_memstats_last_gc_time_seconds"
    assert after[collected] > before[collected]


async def test_the_heap_of_java_is_limited(temporary: Path) -> None:
    async with await made("jvm", heap_bytes=100_000_000) as server:
        assert server.label.endswith("100 MB)")
        page = series(await page_of(server.metrics_url))
    # G1 rounds it up to whole regions of 1 MiB; other collectors leave out what is for young objects.
    assert 0 < page["jvm_gc_max_data_size_bytes"] < 100_000_000 + (1 << 20)


def test_only_a_server_with_a_heap_can_limit_it() -> None:
    with pytest.raises(PlanError, match="the lab nginx does not limit its heap; those that do are jvm"):
        choose("nginx", heap_bytes=100_000_000)


def test_only_nginx_pads_its_connections() -> None:
    with pytest.raises(PlanError, match="the lab caddy does not pad its connections; those that do are nginx"):
        choose("caddy", pad_bytes=16)
    with pytest.raises(PlanError, match="a pad of 20 bytes is no multiple of 16"):
        choose("nginx", pad_bytes=20)


async def test_java_without_maven_is_refused_unless_it_is_built(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary))
    text = {"java": 'openjdk version "17.0.15" 2025-04-15\n'}
    monkeypatch.setattr(java, "programs", lambda _, name: iter([(f"/usr/bin/{name}", text.get(name, ""))]))
    said = await refusal(choose("jvm"))
    assert ("no Maven" in said, "; install" in said) == (True, True)


async def test_the_first_error_of_maven_is_reported(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary / "cache"))
    maven = temporary / "mvn"
    reason = "No compiler is provided"
    maven.write_text(f"#!/bin/sh\necho '[ERROR] {reason}'\necho '[ERROR] -> [Help 1]'\nexit 1\n", encoding="utf-8")
    maven.chmod(0o755)
    text = {"java": 'openjdk version "21.0.2" 2024-01-16\n', "mvn": "Apache Maven 3.8.7\n"}
    monkeypatch.setattr(java, "programs", lambda _, name: iter([(str(temporary / name), text[name])]))
    said = await refusal(choose("jvm"))
    assert said.startswith(f"jvm: {maven} ")
    assert f": {reason}; see" in said
    assert not list((temporary / "cache" / "asyncli").iterdir())


@pytest.mark.parametrize("name", METRICS)
async def test_a_server_reports_its_own_metrics(name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any port of the inspector: other tests may use its own.
    monkeypatch.setenv("NODE_OPTIONS", "--inspect-port=127.0.0.1:0")
    # gobwas holds nothing but WebSockets.
    can_hold = name != "gobwas"
    server = await made(name, scheme="http")
    async with server:
        held = await opened(server.url, 5 if can_hold else 0)
        page = await page_of(server.metrics_url)
        assert [line for line in server.complaints if "error" in line.lower()] == []
        if METRICS[name] is NODE:
            await collect(server)
            page = await page_of(server.metrics_url)
        await hung_up(held)
        pid, process = server.pid, server._process
    missing = [metric for metric in METRICS[name] if not any(line.startswith(metric) for line in series(page))]
    assert missing == []
    # By itself at SIGTERM.
    assert (process.returncode != -signal.SIGKILL, group(pid)) == (True, [])
    assert not list(temporary.iterdir())
