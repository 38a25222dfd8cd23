"""A graceful restart of Apache (SIGUSR1) in the hold: its workers end in order."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import fault_table
import pytest
from programs import SHORT, Program
from provoked import Held, Told

from asyncli.lab import choose

pytestmark = pytest.mark.apache
_ASKED = 40


@pytest.mark.parametrize("mpm", ["prefork", "event"])
async def test_a_graceful_restart_is_as_a_reload(tmp_path: Path, mpm: str) -> None:
    async with choose(f"apache-{mpm}", connections=200) as server:

        def hold() -> None:
            where = ["--status-url", str(server.status_url), "--server-pid", str(server.pid), "--force"]
            pace = ["-c", str(_ASKED), "--ramp", "20/s", "-k", "4", "--hold", "forever", "--no-reopen"]
            asked = ["soak", server.url, *SHORT[:4], *pace, *where, "--quiet", "--out", "run.db"]
            with Program(tmp_path, *asked) as program:
                held = Held(program, tmp_path / "run.db")
                held.until_held(_ASKED)
                held.seconds(2.0)
                os.kill(server.pid, signal.SIGUSR1)
                held.until_lost(_ASKED)
                held.seconds(3.0)
                program.signal()
                program.wait()

        await asyncio.to_thread(hold)
    told = Told(tmp_path)
    told.show()
    # A connection that ends before its worker does has no cause.
    codes = {one.code for one in told.diagnoses}
    assert "reload" in codes
    if mpm == "prefork":
        # Its page tells the generation, and each connection ends at its next heartbeat: half a gap or a whole one later.
        assert all(one.certain for one in told.diagnoses)
        (row,) = (row for row in fault_table.rows() if row.name == "test_a_graceful_restart_is_as_a_reload")
        fault_table.require_said(row.says, [one.evidence for one in told.diagnoses])
    assert not codes & {"worker_ended", "worker_crash", "server_ended", "server_restarted"}
