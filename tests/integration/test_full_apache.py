"""Apache with a process for each connection: its status page tells how many it serves before it is full."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fault_table
import pytest
from programs import report, run

from asyncli.lab import choose

pytestmark = pytest.mark.apache


async def test_the_processes_of_apache_are_a_limit(tmp_path: Path) -> None:
    async with choose("apache-prefork", connections=30) as server:
        asked = ["soak", server.url, "--status-url", server.status_url, "-k", "4", "--ramp", "20/s", "--baseline", "2"]
        asked += ["--hold", "5s", "--timeout", "2s", "--residue", "0.2", "--quiet"]
        await asyncio.to_thread(run, tmp_path, *asked, "-c", "20", "--out", "held.db", name="held")
        held = report(tmp_path, "held.db")
        (places,) = (one for one in held["forecast"]["ceilings"] if one["name"] == "scoreboard")
        assert held["forecast"]["first"] == "scoreboard"
        most = int(places["connections"])
        assert 30 <= most < 60
        await asyncio.to_thread(run, tmp_path, *asked, "-c", str(2 * most), "--out", "full.db", name="full")
    full = report(tmp_path, "full.db")
    # What waits in the listen queue was never served.
    assert full["forecast"]["ceilings"] == []
    (gave_way,) = (one for one in full["findings"] if one["code"] == "gave_way")
    assert gave_way["fields"]["served"] == pytest.approx(most, abs=1)
    fault_table.require_as_written("test_the_processes_of_apache_are_a_limit", full)
