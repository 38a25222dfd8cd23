"""``asyncli storm`` by the run of a real storm on a server of known pace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import here, require_done, serving_by

SLOW = Path(__file__).with_name("slow_acceptor.py")
PER_S, BACKLOG, COUNT = 200, 64, 300


def test_a_storm_tells_the_pace_of_its_server(tmp_path: Path) -> None:
    """300 clients come back at once; the queue drops most, and their kernels send again after a second."""
    with serving_by(SLOW, PER_S, BACKLOG) as port:
        ramp = ("--ramp", "100/s", "--hold", "9s", "--baseline", "0.5", "--residue", "0.5", "-k", "30")
        storm = ("--at", "1s", "storm", "--reconnect", "backoff:0.5s..10s")
        done = here(tmp_path, "soak", f"http://127.0.0.1:{port}/", "-c", str(COUNT), *ramp, *storm, "--out", "run.db")
    [event] = require_done(tmp_path, done)["events"]
    answer = here(tmp_path, "storm", "run.db", "--reconnect", "backoff:0.5s..10s", "--json")
    assert answer.status == 0, answer
    found = json.loads(answer.out)["storm"]
    pace = found["pace"]
    assert (pace["backlog"], pace["connections"]) == (BACKLOG, COUNT)
    # Not faster than it accepts, and nearly as fast, however busy this machine is.
    assert 0.6 * PER_S < pace["per_s"] < 1.2 * PER_S
    [forecast] = found["forecasts"]
    measured_s = event["back"]["p99_s"]
    assert forecast["earliest"]["p99_s"] <= measured_s <= forecast["latest"]["p99_s"]
    if not pace["is_least"]:
        assert forecast["back"]["p99_s"] == pytest.approx(measured_s, rel=0.25)
    assert 0.5 < found["least_jitter"]["least_s"] < 4.0
