"""Soaks of a real HAProxy whose counts are those of its page of metrics, without a status page."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AnAgent
from programs import here, require_done, serving, until

from asyncli.collect.holders import matching_inodes, socket_holders
from asyncli.collect.listening import no_listener
from asyncli.collect.procfs import read_listeners
from asyncli.lab.ports import free_pair

pytestmark = pytest.mark.haproxy
SECRET = "tiger-4711"
_CONNECTIONS = 200
_EXPORTER = "http-request use-service prometheus-exporter if { path /metrics }"
_CONFIG = """
global
  maxconn 1000
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 3s
frontend web
  bind 127.0.0.1:{port}
  {web_serves}
  http-request return status 200
frontend metrics
  bind 127.0.0.1:{metrics_port}
  {exporter}
"""


@contextlib.contextmanager
def a_haproxy(folder: Path, *, shared: bool) -> Iterator[tuple[str, str]]:
    """The URLs of a HAProxy and of its page of metrics; ``shared``: one frontend serves both."""
    port, metrics_port = free_pair("127.0.0.1")
    config = folder / "haproxy.cfg"
    web_serves = _EXPORTER if shared else ""
    config.write_text(_CONFIG.format(port=port, metrics_port=metrics_port, web_serves=web_serves, exporter=_EXPORTER))
    with subprocess.Popen(["haproxy", "-db", "-f", str(config)], stderr=subprocess.DEVNULL) as haproxy:
        try:
            until(lambda: no_listener([("", port)]) is None, "HAProxy listens")
            yield f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port if shared else metrics_port}/metrics"
        finally:
            haproxy.terminate()


@pytest.mark.parametrize("shared", [False, True], ids=["own-frontend", "shared-frontend"])
def test_the_counts_of_a_page_of_metrics_agree(tmp_path: Path, *, shared: bool) -> None:
    with a_haproxy(tmp_path, shared=shared) as (url, page):
        asked = ("soak", url, "-c", _CONNECTIONS, "--ramp", "100/s", "--hold", "5s", "--baseline", "3s", "--residue", "1s", "-k", "4")
        done = here(tmp_path, *asked, "--server-metrics", f"{page}?key={SECRET}", "--out", "run.db", "--quiet")
    summary = require_done(tmp_path, done)
    counts = summary["reconciliation"]
    assert (counts["agrees"], counts["client_held"], counts["server_active"], counts["accepts_delta"]) == (True, 200, 200, 200)
    assert counts["divergences"] == []
    assert counts["source"] == {"url": f"{page}?***", "metric": "haproxy_frontend_current_sessions"}
    (source,) = summary["environment"]["server"]["metrics"]
    assert source["products"] == ["HAProxy"]
    assert source["active_by"] == "haproxy_frontend_current_sessions"
    assert 1 <= source["interval_s"] <= 10
    # A page is read as often as the shortest reading allows.
    # The interval has one digit behind the point.
    assert 0 < source["cpu_ms"] <= 10 * (source["interval_s"] + 0.05)
    assert SECRET not in (tmp_path / "run.db").read_bytes().decode("latin-1")


def test_an_agent_reads_the_page_where_it_is(tmp_path: Path) -> None:
    with a_haproxy(tmp_path, shared=False) as (url, page):
        port = int(url.rstrip("/").rpartition(":")[2])
        (pid,) = socket_holders(matching_inodes(read_listeners(port), {"127.0.0.1"}))
        with AnAgent(tmp_path, "--server-pid", str(pid), "--server-metrics", f"{page}?key={SECRET}") as agent:
            asked = ("soak", url, "-c", _CONNECTIONS, "--ramp", "100/s", "--hold", "5s", "--baseline", "3s", "--residue", "1s", "-k", "4")
            done = here(tmp_path, *asked, "--agent", agent.url, "--out", "run.db", "--quiet")
    summary = require_done(tmp_path, done)
    counts = summary["reconciliation"]
    assert (counts["agrees"], counts["server_active"], counts["accepts_delta"], counts["divergences"]) == (True, 200, 200, [])
    assert counts["source"] == {"url": f"{page}?***", "metric": "haproxy_frontend_current_sessions"}
    assert "heap_of_a_part" not in {finding["code"] for finding in summary["findings"]}
    assert SECRET not in (tmp_path / "run.db").read_bytes().decode("latin-1")


@pytest.mark.parametrize("more", [(), ("--agent", "http://127.0.0.1:9165")], ids=["own", "agent"])
def test_what_is_named_for_no_page_or_twice_is_one_line(tmp_path: Path, more: tuple[str, ...]) -> None:
    page = "http://127.0.0.1:9/metrics"
    for named in (("--server-metrics", page, "--server-metrics", page), ("--metrics-map", "active=a")):
        done = here(tmp_path, "soak", "http://127.0.0.1:9/", *named, *more)
        (line,) = done.err.splitlines()
        assert (done.status, named[0] in line) == (2, True)
        assert ("asyncli agent" in line) == bool(more)


def test_a_page_of_no_use_refuses_the_soak_in_one_line(tmp_path: Path) -> None:
    html = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>"
    with serving(answer=html) as server:
        done = here(tmp_path, "soak", "http://127.0.0.1:1/", "-c", "5", "--server-metrics", server.url)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert f"metrics page {server.url}: " in line
    assert "HTML" in line


def test_a_metric_that_is_not_on_the_page_refuses_the_soak_in_one_line(tmp_path: Path) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n" + b"go_goroutines 8\ngo_memstats_heap_alloc_bytes 5000000\n".ljust(80)
    with serving(answer=page) as server:
        asked = ("--server-metrics", server.url, "--metrics-map", "active=go_gorutines")
        done = here(tmp_path, "soak", "http://127.0.0.1:1/", "-c", "5", *asked)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "'go_goroutines'?" in line
