"""A soak on the real nginx, from the command line to the JSON and back out of the run file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from contract import ENVIRONMENT, SOAK, keys_match
from programs import SHORT, codes, recorded, report, run

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx


def test_five_hundred_held_to_the_end(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["-c", "500", "--hold", "2s", "--status-url", nginx.status_url, "--out", "run.db", "--json", "run.json"]
    live = run(tmp_path, "soak", nginx.url, *SHORT, *asked)
    assert (live.status, live.err) == (0, "")
    summary = json.loads((tmp_path / "run.json").read_text())

    environment = summary["environment"]
    keys_match(summary, SOAK)
    assert set(environment) >= ENVIRONMENT
    assert environment["server"]["label"] == nginx.label
    assert [phase["name"] for phase in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert (summary["run"]["verdict"], summary["run"]["complete"]) == ("passed", True)

    counts, beats, both = summary["connections"], summary["heartbeats"], summary["reconciliation"]
    assert (counts["requested"], counts["opened"], counts["held"], counts["established_peak"]) == (500, 500, 500, 500)
    assert (counts["lost"], counts["reopened"], counts["failed"], counts["failures"], counts["deaths"]) == (0, 0, 0, {}, {})
    assert beats["sent"] == beats["answered"] == beats["by_status"]["200"] > 500
    assert (both["client_held"], both["server_active"], both["accepts_delta"], both["handled_delta"]) == (500, 500, 500, 500)
    assert both["agrees"] is True
    assert both["requests_delta"] > beats["answered"]  # the polls too
    assert summary["server"]["processes"] == {"baseline": 3, "hold_end": 3}
    assert summary["generator"]["saturated"] is False

    # A month later.
    later = run(tmp_path, "report", "run.db", name="later")
    assert (later.status, later.err) == (0, "")
    assert later.out
    assert live.out.endswith(later.out)
    assert re.search(r"^0:00:0\d  baseline  held 0 of 500", live.out, re.MULTILINE)
    printed = run(tmp_path, "report", "run.db", "--json", "-", name="printed")
    assert (printed.status, printed.err) == (0, "")
    assert printed.out == (tmp_path / "run.json").read_text()
    assert run(tmp_path, "report", "run.db", "--json", "again.json") == (0, "again.json\n", "")
    assert (tmp_path / "again.json").read_text() == printed.out


def test_json_on_standard_output_is_json_alone(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["soak", nginx.url, *SHORT, "-c", "100", "--hold", "0.2", "--quiet", "--out", "run.db", "--json", "-"]
    piped = run(tmp_path, *asked)
    assert (piped.status, piped.err.count("\n")) == (0, 1)
    assert piped.err.startswith("passed: 100 of 100 connections")
    assert json.loads(piped.out) == report(tmp_path, "run.db")


def test_the_ramp_is_exact_over_three_workers_and_quiet_says_one_line(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["-c", "305", "--ramp", "10/5ms", "--workers", "3", "--hold", "1s", "--status-url", nginx.status_url]
    done = run(tmp_path, "soak", nginx.url, *SHORT, *asked, "--out", "run.db", "--quiet")
    assert (done.status, done.err, done.out.count("\n")) == (0, "", 1)
    assert done.out.startswith("passed: 305 of 305 connections")
    recording = recorded(tmp_path / "run.db")
    assert recording is not None
    assert sum(tick.ramp_lateness_us.count for _, tick in recording.ticks) == math.ceil(305 / 10)
    assert max(tick.workers for _, tick in recording.ticks) == 3
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["reconciliation"]["agrees"]) == (305, True)
    assert summary["generator"]["processes"] == 4


def test_the_urls_of_one_server_share_the_connections(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    first, second = start_nginx(), start_nginx()
    asked = ["-c", "301", "--hold", "0.5", "--status-url", first.status_url, "--server-pid", str(first.pid)]
    done = run(tmp_path, "soak", first.url, second.url, *SHORT, *asked, "--out", "run.db", "--quiet")
    assert (done.status, done.err) == (0, "")
    summary = report(tmp_path, "run.db")
    assert summary["connections"]["held"] == 301
    assert summary["plan"]["urls"] == [first.url, second.url]
    # The status page is of the first alone: half of them, the odd one included.
    assert summary["reconciliation"]["server_active"] == 151


def test_over_ipv6(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    try:
        server = start_nginx(address="::1")
    except Exception as error:
        pytest.skip(f"no ::1 on this host ({error})")
    assert "[::1]" in server.url
    asked = ["-c", "200", "--workers", "2", "--hold", "0.5", "--status-url", server.status_url]
    done = run(tmp_path, "soak", server.url, *SHORT, *asked, "--out", "run.db", "--quiet")
    assert (done.status, done.err) == (0, "")
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["reconciliation"]["agrees"]) == (200, True)
    assert summary["server"]["processes"]["hold_end"] == 3


def test_demo_needs_nothing_and_says_what_it_started(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "-c", "200", *SHORT, "--hold", "0.5", "--out", "run.db")
    assert (done.status, done.err) == (0, "")
    assert re.match(r"nginx/\S+ listens at http://127\.0\.0\.1:\d+/ with \d+ workers", done.out)
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["reconciliation"]["agrees"]) == (200, True)
    assert summary["plan"]["server_pid"] == int(re.search(r"\(pid (\d+)\)", done.out)[1])  # type: ignore[index]
    assert not codes(summary) & {"server_processes_unknown", "generator_failed"}
