"""A real HAProxy whose frontend is full (slim), or all of them (global maxconn): one cause, one remedy, and no settings of another
product."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fault_table
import pytest
from programs import here, report, run, until

from asyncli.collect.listening import no_listener
from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose
from asyncli.lab.ports import free_pair

pytestmark = pytest.mark.haproxy
_ROOM = 38


async def test_a_full_frontend_is_the_only_cause(tmp_path: Path) -> None:
    async with choose("haproxy", connections=30) as server:
        reader = StatusReader(server.status_url)
        await reader.read()
        assert _ROOM in [frontend.limit for frontend in reader.frontends.values()]
        await reader.close()
        asked = ["soak", server.url, "-c", str(2 * _ROOM), "--baseline", "2", "--residue", "1", "-k", "4", "--hold", "6s"]
        asked += ["--timeout", "2s", "--status-url", server.status_url, "--out", "run.db", "--quiet"]
        await asyncio.to_thread(run, tmp_path, *asked)
    summary = report(tmp_path, "run.db")
    findings = {finding["code"]: finding for finding in summary["findings"]}
    full = findings["gave_way"]
    assert (full["severity"], full["fields"]["what"]) == ("error", "slots")
    assert {diagnosis["code"] for diagnosis in summary["diagnoses"]} == {"never_accepted"}
    same = [finding for code, finding in findings.items() if code.startswith(("lost_", "parted_", "reconcile_held", "listen_"))]
    assert len(same) >= 2
    assert {finding["remedy"] for finding in same} == {full["remedy"]}
    every = " ".join(finding["remedy"] for finding in summary["findings"])
    assert [word for word in ("somaxconn", "worker_", "EMFILE") if word in every] == []
    fault_table.require_as_written("test_a_full_frontend_is_the_only_cause", summary)


_CONFIG = """
global
  maxconn {in_all}
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout connect 3s
frontend web
  bind 127.0.0.1:{port}
  maxconn {of_frontend}
  http-request return status 200
frontend stats
  bind 127.0.0.1:{status_port}
  stats enable
  stats uri /stats
"""
_IN_ALL, _OF_FRONTEND = 40, 60
_OF_ADDRESS = """
  stick-table type ip size 1k expire 30s store conn_cur
  tcp-request connection track-sc0 src
  tcp-request connection reject if {{ sc0_conn_cur gt {most} }}
"""


@contextlib.contextmanager
def a_haproxy(folder: Path, *, of_address: int | None = None) -> Iterator[tuple[str, str]]:
    """The URLs of a HAProxy whose global maxconn is below that of its frontend, and of its page; or
    of one that takes so many connections ``of_address``.
    """
    port, status_port = free_pair("127.0.0.1")
    config = folder / "haproxy.cfg"
    sizes = {"in_all": _IN_ALL, "of_frontend": _OF_FRONTEND}
    rule = ""
    if of_address is not None:
        sizes = {"in_all": 400, "of_frontend": 300}
        rule = _OF_ADDRESS.format(most=of_address)
    text = _CONFIG.format(port=port, status_port=status_port, **sizes)
    config.write_text(text.replace("  http-request return", f"{rule}  http-request return"))
    with subprocess.Popen(["haproxy", "-db", "-f", config], stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: no_listener([("127.0.0.1", port)]) is None, "HAProxy listens")
            yield f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{status_port}/stats;csv"
        finally:
            server.kill()


def test_the_global_maxconn_is_below_that_of_the_frontend(tmp_path: Path) -> None:
    with a_haproxy(tmp_path) as (url, page):
        for connections, verdict in ((_IN_ALL - 1, "ok"), (_IN_ALL, "warn")):
            asked = ["check", url, "-c", str(connections), "--status-url", page]
            checks = here(tmp_path, *asked).out
            in_all = re.search(r"\(global maxconn\) +(\w+) +(\d+) ", checks)
            of_frontend = re.search(r"\(slim, maxconn\) +(\w+) +(\d+) ", checks)
            assert in_all is not None
            assert of_frontend is not None
            assert in_all.groups() == (verdict, str(_IN_ALL))
            assert of_frontend.groups() == ("ok", str(_OF_FRONTEND))
        common = ["--status-url", page, "-k", "4", "--ramp", "20/s", "--baseline", "2"]
        common += ["--hold", "5s", "--timeout", "2s", "--residue", "0.2", "--quiet"]
        run(tmp_path, "soak", url, "-c", "20", *common, "--out", "held.db", name="held")
        run(tmp_path, "soak", url, "-c", "80", *common, "--out", "full.db", name="full")
    held = report(tmp_path, "held.db")
    ceilings = {ceiling["name"]: ceiling for ceiling in held["forecast"]["ceilings"]}
    # One is the connection by which the page is read.
    assert ceilings["global_maxconn"]["connections"] == _IN_ALL - 1
    assert ceilings["maxconn"]["connections"] == _OF_FRONTEND - 1
    assert held["forecast"]["first"] == "global_maxconn"
    # The further page is counted as a request of asyncli's.
    assert held["reconciliation"]["agrees"], held["reconciliation"]
    full = report(tmp_path, "full.db")
    findings = {finding["code"]: finding for finding in full["findings"]}
    assert findings["gave_way"]["fields"]["what"] == "slots"
    assert findings["gave_way"]["severity"] == "error"
    fault_table.require_as_written("test_the_global_maxconn_is_below_that_of_the_frontend", full)


def test_a_rule_that_rejects_is_no_lack_of_slots(tmp_path: Path) -> None:
    with a_haproxy(tmp_path, of_address=30) as (url, page):
        asked = ["soak", url, "-c", "80", "--status-url", page, "-k", "4", "--ramp", "20/s"]
        asked += ["--baseline", "2", "--hold", "5s", "--timeout", "2s", "--residue", "0.2"]
        run(tmp_path, *asked, "--quiet", "--out", "rejected.db", name="rejected")
    rejected = report(tmp_path, "rejected.db")
    (gave_way,) = (one for one in rejected["findings"] if one["code"] == "gave_way")
    assert gave_way["fields"]["what"] == "handshake_refused"
    assert "slot" not in gave_way["evidence"]
    fault_table.require_as_written("test_a_rule_that_rejects_is_no_lack_of_slots", rejected)


_OF_SERVER = 30
_BEFORE_A_SERVER = """
global
  maxconn 400
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout tunnel 1m
  timeout connect 3s
  timeout queue 1s
frontend web
  bind 127.0.0.1:{port}
  default_backend behind
frontend stats
  bind 127.0.0.1:{status_port}
  stats enable
  stats uri /stats
backend behind
  server only 127.0.0.1:{server_port} maxconn {of_server}
"""


async def test_the_servers_behind_a_frontend_have_fewer_sessions(tmp_path: Path) -> None:
    port, status_port = free_pair("127.0.0.1")
    config = tmp_path / "haproxy.cfg"
    async with choose("websockets", connections=100) as behind:
        ports = {"port": port, "status_port": status_port, "server_port": behind.port}
        config.write_text(_BEFORE_A_SERVER.format(of_server=_OF_SERVER, **ports))
        url = f"ws://127.0.0.1:{port}/"
        page = f"http://127.0.0.1:{status_port}/stats;csv"
        with subprocess.Popen(["haproxy", "-db", "-f", config], stderr=subprocess.DEVNULL) as proxy:
            try:
                await asyncio.to_thread(
                    until, lambda: no_listener([("127.0.0.1", port)]) is None, "HAProxy listens"
                )
                await asyncio.to_thread(_check_and_soak, tmp_path, url, page)
            finally:
                proxy.kill()
    held = report(tmp_path, "held.db")
    ceilings = {ceiling["name"]: ceiling for ceiling in held["forecast"]["ceilings"]}
    assert held["forecast"]["first"] == "server_maxconn"
    assert ceilings["server_maxconn"]["connections"] == _OF_SERVER
    full = report(tmp_path, "full.db")
    findings = {finding["code"]: finding for finding in full["findings"]}
    assert findings["gave_way"]["fields"]["what"] == "slots"
    assert findings["gave_way"]["severity"] == "error"
    fault_table.require_as_written(
        "test_the_servers_behind_a_frontend_have_fewer_sessions", full
    )


def _check_and_soak(folder: Path, url: str, page: str) -> None:
    asked = ["check", url, "-c", str(_OF_SERVER + 1), "--status-url", page]
    checks = run(folder, *asked, name="check").out
    of_server = re.search(r"\(slim, maxconn of +server\) +(\w+) +(\d+) ", checks)
    assert of_server is not None, checks
    assert of_server.groups() == ("warn", str(_OF_SERVER))
    common = ["--status-url", page, "-k", "4", "--ramp", "20/s", "--baseline", "2"]
    common += ["--hold", "5s", "--timeout", "2s", "--residue", "0.2", "--quiet"]
    run(folder, "soak", url, "-c", "20", *common, "--out", "held.db", name="held")
    run(folder, "soak", url, "-c", "60", *common, "--out", "full.db", name="full")
