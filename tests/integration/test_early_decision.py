"""Soaks of a real nginx against an earlier run: one of the same nginx, and one of an nginx that takes more memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import asyncli
from asyncli.api import Recorded

pytestmark = [pytest.mark.nginx, pytest.mark.measures, pytest.mark.alone]
SOAK = {"connections": 2000, "ramp": "250/s", "keepalive": 5, "baseline": 2, "residue": 1}


async def soaked(out: Path, pad_bytes: int, **more: object) -> Recorded:
    async with asyncli.lab_server("nginx", connections=2000, pad_bytes=pad_bytes) as server:
        return await asyncli.soak(server, out, **SOAK, **more)


def limit_findings(run: Recorded) -> list[str]:
    return [finding.code for finding in run.summary.findings if finding.code.startswith("limit_")]


async def test_a_soak_ends_as_soon_as_it_is_sure(tmp_path: Path) -> None:
    before = await soaked(tmp_path / "main.db", 0, hold=12)
    against = {"baseline_run": [str(tmp_path / "main.db")], "fail_if": ["cost.server_user worse by 30%"], "hold": 90}
    # Both at once: each has an nginx of its own, and another nginx takes none of its memory.
    same, more = await asyncio.gather(soaked(tmp_path / "same.db", 0, **against), soaked(tmp_path / "more.db", 512, **against))
    assert before.summary.run.verdict == "passed"

    assert (same.summary.run.verdict, limit_findings(same)) == ("passed", ["limit_kept"])
    assert (more.summary.run.verdict, limit_findings(more)) == ("failed", ["limit_crossed"])
    for run, is_worse in ((same, False), (more, True)):
        (early,) = [finding for finding in run.summary.findings if finding.code == "decided_early"]
        assert early.fields["is_worse"] is is_worse
        hold = run.records.hold
        assert hold is not None
        assert hold.length_s < 80
        assert run.summary.run.complete

    # The report needs nothing but the run file.
    (tmp_path / "main.db").unlink()
    again = asyncli.load(tmp_path / "more.db")
    assert again.summary.run.verdict == "failed"
    assert again.summary.limits == more.summary.limits
