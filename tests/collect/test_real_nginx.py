"""The collector on a real nginx of two workers, through a reload and an end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from programs import until

from asyncli.collect.collector import Collector
from asyncli.lab.nginx import LabNginx
from asyncli.plan import Plan
from asyncli.records import Finding, Sample

pytestmark = pytest.mark.nginx


def workers(master: int) -> set[str]:
    return set(Path(f"/proc/{master}/task/{master}/children").read_text(encoding="ascii").split())


async def test_an_nginx_is_found_by_its_port_and_followed() -> None:
    samples: list[Sample] = []
    findings: list[Finding] = []
    async with LabNginx(connections=64, workers=2) as nginx:
        collector = Collector(
            Plan(urls=(nginx.url,), status_url=nginx.status_url), clock=time.monotonic, generator_pids=list,
            on_sample=samples.append, on_finding=findings.append, local=True,
        )  # fmt: skip
        try:
            await collector.open()
            facts = collector.server
            assert (facts.pid, facts.name, (facts.version or "")[:6]) == (nginx.pid, "nginx", "nginx/")
            assert facts.config_path is not None
            before = (await collector.sample_now()).values
            assert before["server.processes"] == 3
            assert before["server.rss_bytes"] > 0
            assert before["status.active"] == 1
            # A reload ends idle connections: the poller's is made anew, and workers are other processes.
            old = workers(nginx.pid)
            os.kill(nginx.pid, signal.SIGHUP)
            await asyncio.to_thread(until, lambda: len(now := workers(nginx.pid)) == 2 and not old & now, "the workers are others")
            after = (await collector.sample_now()).values
            assert after["server.processes"] == 3
            assert after["server.cpu_s"] >= before["server.cpu_s"]
            assert after["status.polls"] - before["status.polls"] == after["status.requests"] - before["status.requests"]
            assert after["status.accepts"] - before["status.accepts"] == collector.status_connects - 1 == 1
            os.kill(nginx.pid, signal.SIGTERM)
            await asyncio.to_thread(until, lambda: not Path(f"/proc/{nginx.pid}/exe").exists(), "it ends")
            last = (await collector.sample_now()).values
        finally:
            await collector.close()
    assert not any(name.startswith(("server.", "status.")) for name in last)
    assert {"server_ended", "status_lost"} <= {finding.code for finding in findings}
    assert "host.used_bytes" in last
