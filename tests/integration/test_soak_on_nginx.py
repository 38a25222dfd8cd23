"""A soak on the real nginx, from the command line to the JSON and back out of the run file."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from contract import ENVIRONMENT, SOAK, keys_match
from programs import SHORT, here, recorded, report, require_done, require_whole, run

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx


def test_five_hundred_held_to_the_end(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["-c", "500", "--hold", "2s", "--status-url", nginx.status_url, "--out", "run.db", "--json", "run.json"]
    live = run(tmp_path, "soak", nginx.url, *SHORT, *asked)
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (live.err, summary["run"]["complete"]) == ("", True)
    require_whole(live.status, summary)

    environment = summary["environment"]
    keys_match(summary, SOAK)
    assert set(environment) >= ENVIRONMENT
    assert environment["server"]["label"] == nginx.label
    assert [phase["name"] for phase in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]

    counts, beats, both = summary["connections"], summary["heartbeats"], summary["reconciliation"]
    assert (counts["requested"], counts["opened"], counts["held"], counts["established_peak"]) == (500, 500, 500, 500)
    assert (counts["lost"], counts["reopened"], counts["failed"], counts["failures"], counts["deaths"]) == (0, 0, 0, {}, {})
    assert beats["sent"] == beats["answered"] == beats["by_status"]["200"] > 500
    assert (both["client_held"], both["server_active"], both["accepts_delta"], both["handled_delta"]) == (500, 500, 500, 500)
    assert both["agrees"] is True
    assert both["requests_delta"] > beats["answered"]  # the polls too
    assert summary["server"]["processes"] == {"baseline": 3, "hold_end": 3}

    # A month later.
    later = here(tmp_path, "report", "run.db")
    assert (later.status, later.err) == (0, "")
    assert later.out
    assert live.out.endswith(later.out)
    printed = here(tmp_path, "report", "run.db", "--json", "-")
    assert (printed.status, printed.err) == (0, "")
    assert printed.out == (tmp_path / "run.json").read_text()


def test_the_urls_of_one_server_share_the_connections_and_the_ramp_is_exact_over_three_workers(
    tmp_path: Path, start_nginx: Callable[..., LabNginx]
) -> None:
    first, second = start_nginx(), start_nginx()
    asked = ["-c", "305", "--ramp", "10/5ms", "--workers", "3", "--hold", "0.5", "--server-pid", str(first.pid), "--json", "-"]
    done = here(tmp_path, "soak", first.url, second.url, *SHORT, *asked, "--status-url", first.status_url or "", "--out", "run.db", "--quiet")
    # JSON on standard output is JSON alone.
    assert done.err.count("\n") == 1
    assert json.loads(done.out) == report(tmp_path, "run.db")
    recording = recorded(tmp_path / "run.db")
    assert sum(tick.ramp_lateness_us.count for _, tick in recording.ticks) == math.ceil(305 / 10)
    assert max(tick.workers for _, tick in recording.ticks) == 3
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert (summary["connections"]["held"], summary["generator"]["processes"]) == (305, 4)
    assert summary["plan"]["urls"] == [first.url, second.url]
    # The status page is of the first alone: half of them, the odd one included.
    assert summary["reconciliation"]["server_active"] == 153


def test_a_process_that_does_not_serve_the_url_is_not_the_server(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    served, other = start_nginx(), start_nginx()
    for named in (served, other):
        asked = ["-c", "50", "--hold", "2s", "--server-pid", str(named.pid), "--out", f"{named.pid}.db", "--quiet"]
        done = here(tmp_path, "soak", served.url, "--baseline", "2", "--residue", "0.2", *asked)
        summary = report(tmp_path, f"{named.pid}.db")
        require_whole(done.status, summary)
        doubts = [one["fields"] for one in summary["findings"] if one["code"] == "server_not_listening"]
        told = [] if named is served else [(other.pid, [served.pid])]
        assert [(one["pid"], [each["pid"] for each in one["listeners"]]) for one in doubts] == told
        assert (summary["cost"]["server_user"] is None) is (named is other)


def test_of_two_urls_the_dead_one_is_named(tmp_path: Path, nginx: LabNginx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        dead = bound.getsockname()[1]
    asked = ["-c", "50", "--hold", "2s", "--timeout", "1s", "--force", "--out", "run.db", "--quiet"]
    done = here(tmp_path, "soak", nginx.url, f"http://127.0.0.1:{dead}/", *SHORT, *asked)
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary, 99)
    found = [one for one in summary["findings"] if one["code"] == "address_dead"]
    assert [str(dead) in one["fields"]["address"] for one in found] == [True]


def test_over_ipv6(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    try:
        server = start_nginx(address="::1")
    except Exception as error:
        pytest.skip(f"no ::1 on this host ({error})")
    assert "[::1]" in server.url
    asked = ["-c", "200", "--workers", "2", "--hold", "0.5", "--status-url", server.status_url]
    done = here(tmp_path, "soak", server.url, *SHORT, *asked, "--out", "run.db", "--quiet")
    summary = require_done(tmp_path, done)
    assert (summary["connections"]["held"], summary["reconciliation"]["agrees"]) == (200, True)
    assert summary["server"]["processes"]["hold_end"] == 3
