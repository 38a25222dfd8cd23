"""``--fail-if``, as a flag and in a plan: errors before the start, and the verdict at the end."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from programs import SHORT, codes, here, report, require_whole

import asyncli
from asyncli.cli import options
from asyncli.model.errors import PlanError


def test_python_api_raises_the_same_error() -> None:
    limit = "lost > 0.1%"
    assert asyncli.make_plan("http://127.0.0.1:9/", fail_if=limit).fail_if == (limit,)
    with pytest.raises(PlanError, match="'lost'"):
        asyncli.make_plan("http://127.0.0.1:9/", fail_if=["lots > 1"])


@pytest.mark.parametrize("limit", ["cost.server_user > 600", "heartbeats.latency_ms.p50 worse by 20%"])
def test_a_limit_that_cannot_be_computed_here_is_refused_at_the_start(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "can_compute", lambda: False)
    earlier = ["--baseline-run", str(tmp_path)] if "worse" in limit else []
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", "--fail-if", limit, *earlier)
    assert (done.status, "NumPy" in done.err) == (2, True)


@pytest.mark.nginx
def test_a_crossed_limit_is_exit_99_and_a_failure_for_ci(tmp_path: Path) -> None:
    limits = ["--fail-if", "lost > 0.1%", "--fail-if", "heartbeats.latency_ms.p99 > 1us"]
    done = here(tmp_path, "demo", "-c", "100", *SHORT, "--hold", "1s", *limits, "--junit", "out.xml", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary, 99)
    suite = ET.parse(tmp_path / "out.xml").getroot()
    failed = [case.get("name", "") for case in suite.findall("testcase") if case.find("failure") is not None]
    # Of a run in which asyncli was late nothing is known of latencies.
    assert failed == [limits[3]] or summary["generator"]["saturated"]
    again = here(tmp_path, "report", "run.db", "--junit", "-")
    assert (again.status, again.out) == (0, (tmp_path / "out.xml").read_text())


@pytest.mark.nginx
def test_abort_stops_at_the_first_final_limit(tmp_path: Path) -> None:
    limits = ["--fail-if", "heartbeats.latency_ms.max > 1us", "--fail-if", "run.duration_s > 1d", "--abort"]
    done = here(tmp_path, "demo", "-c", "100", *SHORT, "--hold", "1h", *limits, "--out", "run.db", "--json", "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    require_whole(done.status, found, 99)
    assert limits[3] in done.err
    assert "aborted_by_limit" in codes(found)
    assert "stopped_by_user" not in codes(found)
    # Of an hour, however busy the machine was.
    assert found["run"]["duration_s"] < 600
    assert (found["connections"]["lost"], found["run"]["complete"]) == (0, True)


@pytest.mark.nginx
def test_hold_too_short_for_a_drift_limit_is_reported_at_the_start(tmp_path: Path) -> None:
    limit = [*SHORT, "--hold", "1s", "--fail-if", "drift.server_user > 10MB/h"]
    assert "12 s" in here(tmp_path, "check", "http://127.0.0.1:9/", *limit).out
    done = here(tmp_path, "demo", "-c", "100", *limit, "--log-json", "--out", "run.db")
    require_whole(done.status, report(tmp_path, "run.db"), 99)
    events = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert [one.get("code") for one in events].index("drift_hold") < [one["event"] for one in events].index("phase")
