"""A real HAProxy whose frontend is full (slim): one cause, one remedy, and no settings of another product."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fault_table
import pytest
from programs import report, run

from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose

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
