"""A real HAProxy whose frontend is full (slim): one cause, one remedy, and no settings of another product."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fault_table
import pytest
from programs import report, require_whole, run

from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose
from asyncli.store.reader import read_run

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


async def test_the_room_in_a_frontend_is_its_slim_less_the_sessions_taken(tmp_path: Path) -> None:
    """Its label names slim, the value of the status page, and global maxconn, which the page lacks."""
    async with choose("haproxy", connections=30) as server:
        asked = ["soak", server.url, "-c", "30", "--baseline", "2", "--residue", "0.2", "-k", "2", "--hold", "3s", "--quiet"]
        asked += ["--status-url", server.status_url, "--out", "run.db"]
        done = await asyncio.to_thread(run, tmp_path, *asked)
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    (room,) = (ceiling for ceiling in summary["forecast"]["ceilings"] if ceiling["name"] == "maxconn")
    # Our poller has one session.
    assert room["connections"] == _ROOM - 1
    assert room["how"].startswith(f"{_ROOM} sessions (slim")
    checks = read_run(tmp_path / "run.db").checks
    (sessions,) = (check for check in checks if check.code == "haproxy_sessions")
    assert (sessions.verdict, sessions.have) == ("ok", _ROOM)
    assert "slim" in sessions.what
