"""The collector on a real nginx of two workers, through a reload and an end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import DEADLINE_S

from asyncli.collect.collector import Collector
from asyncli.collect.procfs import command_line, read_stat
from asyncli.plan import Plan
from asyncli.records import Finding, Sample

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
CONFIG = """
daemon off; worker_processes 2; pid {root}/nginx.pid; error_log {root}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;
  uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port}; location = /status {{ stub_status; }} location / {{ return 200; }} }}
}}
"""
pytestmark = [pytest.mark.nginx, pytest.mark.skipif(NGINX is None, reason="no nginx on this host")]


class Nginx:
    def __init__(self, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.config = root / "nginx.conf"
        self.config.write_text(CONFIG.format(root=root, port=self.port))
        assert NGINX is not None
        self.process = subprocess.Popen(
            [NGINX, "-p", str(root), "-e", str(root / "error.log"), "-c", "nginx.conf"], stderr=subprocess.DEVNULL
        )
        self.until(lambda: len(self.workers()) == 2 and self.answers())

    def answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {pid for pid in map(int, children.read_text().split()) if "worker" in command_line(pid)}

    def until(self, reached: object) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached():  # type: ignore[operator]
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.005)

    def reload(self) -> None:
        old = self.workers()
        self.process.send_signal(signal.SIGHUP)
        self.until(lambda: len(self.workers()) == 2 and not old & self.workers())


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    server = Nginx(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(10)


async def test_an_nginx_is_found_by_its_port_and_followed(nginx: Nginx) -> None:
    samples: list[Sample] = []
    findings: list[Finding] = []
    url = f"http://127.0.0.1:{nginx.port}/"
    collector = Collector(
        Plan(urls=(url,), status_url=f"{url}status"),
        clock=time.monotonic,
        generator_pids=lambda: (),
        on_sample=samples.append,
        on_finding=findings.append,
        local=True,
    )
    try:
        await collector.open()
        facts = collector.server
        assert (facts.pid, facts.name, facts.config_path) == (nginx.process.pid, "nginx", str(nginx.config))
        assert (facts.version or "").startswith("nginx/")
        before = (await collector.sample_now()).values
        assert before["server.processes"] == 3
        assert before["server.rss_bytes"] > 0
        assert before["status.active"] == 1
        # A reload ends idle connections: the poller's is made anew, and workers are other processes.
        await asyncio.to_thread(nginx.reload)
        after = (await collector.sample_now()).values
        assert after["server.processes"] == 3
        assert after["server.cpu_s"] >= before["server.cpu_s"]
        assert after["status.polls"] - before["status.polls"] == after["status.requests"] - before["status.requests"]
        # The first accept is the fixture's look whether the server answers.
        assert after["status.accepts"] - 1 == collector.status_connects == 2
        await asyncio.to_thread(nginx.process.terminate)
        await asyncio.to_thread(nginx.process.wait, 10)
        last = (await collector.sample_now()).values
    finally:
        await collector.close()
    assert not any(name.startswith(("server.", "status.")) for name in last)
    assert {"server_ended", "status_lost"} <= {finding.code for finding in findings}
    assert "host.used_bytes" in last


def test_the_fixture_s_workers_are_children_of_its_master(nginx: Nginx) -> None:
    assert {read_stat(pid).parent for pid in nginx.workers()} == {nginx.process.pid}
    assert os.getpid() == read_stat(nginx.process.pid).parent
