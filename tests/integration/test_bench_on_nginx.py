"""``asyncli bench`` on the real nginx, whose own counts say what was asked of it, and on a server with every framing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import psutil
import pytest
from contract import BENCH, ENVIRONMENT, keys_match
from programs import Program, here, until

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx


def counts(server: LabNginx) -> dict[str, int]:
    """What stub_status counts, less the connection and the request that ask."""
    with urllib.request.urlopen(server.status_url) as answer:
        numbers = re.findall(rb"\d+", answer.read())
    return {"accepts": int(numbers[1]) - 1, "requests": int(numbers[3]) - 1}


#: What a bench beside other programs may find.
OTHERS = {"host_busy", "generator_saturated_late"}


def bench(folder: Path, url: str, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The JSON of a bench of ``url`` that is to exit with ``status``, or with 4 where these tests share the CPUs with others."""
    done = here(folder, "bench", url, *arguments, "--json", "bench.json", "--quiet")
    document: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    assert done.status == status or (done.status == 4 and errors(document) & OTHERS), (done.out, done.err)
    return document


def errors(document: dict[str, Any]) -> set[str]:
    return {one["code"] for one in document["findings"] if one["severity"] == "error"}


@pytest.mark.parametrize(
    ("arguments", "connections", "keepalive"),
    [((), 10, 3000), (("--workers", "2"), 10, 3000), (("--pipeline", "50"), 10, 3000), (("--short",), 3000, 0), (("--rate", "10k"), 10, 3000)],
    ids=str,
)
def test_the_server_counts_what_was_asked(tmp_path: Path, nginx: LabNginx, arguments: tuple[str, ...], connections: int, keepalive: int) -> None:
    before = counts(nginx)
    found = bench(tmp_path, nginx.url, "-n", "3000", "-c", "10", *arguments)
    after = counts(nginx)
    # The look before counts as well, by the one after.
    assert after["requests"] - before["requests"] - 1 == 3000
    assert after["accepts"] - before["accepts"] - 1 == connections
    keys_match(found, BENCH)
    assert set(found["environment"]) >= ENVIRONMENT
    assert found["complete"] is True
    requests = found["requests"]
    assert (requests["total"], requests["failed"], requests["keepalive"]) == (3000, 0, keepalive)
    assert requests["by_status"] == {"200": 3000}
    assert found["connections"] | {"requests_each": None} == {
        "opened": connections, "failed": 0, "failures": {}, "ended": {}, "requests_each": None,
    }  # fmt: skip
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    times = found["times_ms"]
    assert times["waiting"]["min"] <= times["processing"]["min"] <= times["total"]["min"]
    assert found["transfer"]["bodies"] == 3000 * 3
    assert found["bytes"] == found["transfer"]["received"] > 3000 * 100
    assert found["generator"]["cpu_s"] > 0
    assert found["environment"]["server"]["label"] == nginx.label


@pytest.mark.measures
def test_errors_are_a_failure_and_a_rate_is_kept_to_the_instant(tmp_path: Path, nginx: LabNginx) -> None:
    found = bench(tmp_path, nginx.url, "-d", "1.5s", "--rate", "2000")
    assert 2900 <= found["requests"]["total"] <= 3000
    assert found["lateness_ms"]["p50"] < 5
    posted = bench(tmp_path, nginx.status_url, "-n", "100", "--body", "x" * 1000, status=99)
    assert posted["verdict"] == "failed"
    assert set(posted["requests"]["by_status"]) == {"405"}
    assert posted["transfer"]["sent"] > 100_000


def test_the_first_signal_ends_it_and_reports(tmp_path: Path, nginx: LabNginx) -> None:
    with Program(tmp_path, "bench", nginx.url, "-n", "1000M", "-c", "5", "--json", "bench.json") as program:
        before = counts(nginx)["requests"]
        until(lambda: counts(nginx)["requests"] > before + 1000, "it asks")
        program.signal(signal.SIGINT)
        done = program.wait()
        program.until_gone()
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (done.status, done.err) == (4 if "host_busy" in errors(found) else 99, "")
    assert done.out.startswith(found["verdict"].upper())
    requests = found["requests"]
    assert found["complete"] is False
    assert requests["total"] + requests["in_flight"] + requests["left"] == 1_000_000_000


@pytest.mark.measures
def test_a_crossed_limit_fails_it_and_is_a_failure_for_ci(tmp_path: Path, nginx: LabNginx) -> None:
    limits = ("--fail-if", "latency_ms.max > 1us", "--fail-if", "requests.failed > 0.1%", "--junit", "out.xml")
    found = bench(tmp_path, nginx.url, "-n", "1000", "-c", "5", *limits, status=99)
    kept = {one["code"]: one["fields"]["limit"] for one in found["findings"] if one["code"].startswith("limit_")}
    assert (found["verdict"], kept) == ("failed", {"limit_crossed": "latency_ms.max > 1us", "limit_kept": "requests.failed > 0.1%"})
    suite = ET.parse(tmp_path / "out.xml").getroot()
    failed = [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None]
    assert (suite.get("tests"), failed) == ("3", ["latency_ms.max > 1us"])


def test_a_target_that_refuses_ends_the_bench_long_before_its_time(tmp_path: Path) -> None:
    found = bench(tmp_path, "http://127.0.0.1:1/", "-d", "1h", "--force", status=3)
    assert set(found["connections"]["failures"]) == {"refused"}
    assert found["duration_s"] < 60


def test_a_worker_that_stands_still_ends_it_and_is_named(tmp_path: Path, nginx: LabNginx) -> None:
    with Program(tmp_path, "bench", nginx.url, "-n", "1000M", "-c", "8", "--workers", "2", "--json", "bench.json") as program:
        before = counts(nginx)["requests"]
        program.until(lambda: counts(nginx)["requests"] > before + 1000, "it asks")
        stopped = program.workers()[-1]
        os.kill(stopped, signal.SIGSTOP)
        done = program.wait()
        assert done.status == 4
        assert str(stopped) in done.out
        program.until_gone()
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["verdict"], found["complete"]) == ("invalid", False)


def test_a_server_that_falls_silent_does_not_pass(tmp_path: Path, nginx: LabNginx) -> None:
    # It is stopped long before the end, whenever this process sees that it asks.
    with Program(tmp_path, "bench", nginx.url, "-d", "10s", "-c", "4", "--json", "bench.json") as program:
        before = counts(nginx)["requests"]
        program.until(lambda: counts(nginx)["requests"] > before + 1000, "it asks")
        workers = [child.pid for child in psutil.Process(nginx.pid).children()]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            done = program.wait()
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
    found = json.loads((tmp_path / "bench.json").read_text())
    assert done.status == (4 if "host_busy" in errors(found) else 99)
    assert errors(found) - {"host_busy"} == {"unanswered_at_end"}
    assert found["requests"]["in_flight"] == 4


@pytest.mark.measures
@pytest.mark.alone  # it takes all CPUs
def test_busy_loops_beside_it_make_it_invalid_and_are_named(tmp_path: Path, nginx: LabNginx) -> None:
    """Two for each CPU: neither asyncli nor nginx has a core then, and both look idle."""
    busyloop = tmp_path / "busyloop"  # so that the process has a name of its own
    busyloop.symlink_to(os.path.realpath(sys.executable))
    code = "import signal; signal.alarm(60)\nwhile True: pass"
    loops = [subprocess.Popen([busyloop, "-S", "-c", code]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for loop in loops:
            until(lambda pid=loop.pid: psutil.Process(pid).cpu_times().user > 0.05, "it loops")
        # As a program of its own: what this process started would be asyncli's own.
        with Program(tmp_path, "bench", nginx.url, "-d", "2s", "-c", "16", "--json", "bench.json") as program:
            assert program.wait().status == 4
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["verdict"], errors(found)) == ("invalid", {"host_busy"})
    said = re.search(r"busyloop, pids ([\d, ]+)", found["why"])
    assert said is not None, found["why"]
    assert {int(pid) for pid in said[1].split(", ")} <= {loop.pid for loop in loops}
    host = found["host"]
    assert host["busy_cores"] > 0.9 * host["cpus"]
    assert 0.3 * host["cpus"] < host["others_cores"] < host["busy_cores"]
