"""The cost of a connection while a run lasts is the report's."""

from __future__ import annotations

import json
import lzma
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from programs import SHORT, Program, report, until

from asyncli.app.cost_meter import EVERY_S, CostMeter
from asyncli.report.cost_so_far import CostSoFar, cost_so_far
from asyncli.store.reader import read_run

STORED = Path(__file__).parents[1] / "golden" / "clean.db.xz"


def answered(meter: CostMeter, now_s: float) -> CostSoFar | None:
    return meter.answer(now_s, timeout_s=60.0)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    path.write_bytes(lzma.decompress(STORED.read_bytes()))
    return path


def test_a_meter_computes_what_the_report_says(stored: Path) -> None:
    with CostMeter(stored) as meter:
        meter.wait()
        meter.ask(0.0)
        assert answered(meter, 1.0) == cost_so_far(read_run(stored))
        # It is not due again, and then it is.
        meter.ask(EVERY_S / 2)
        assert answered(meter, EVERY_S / 2) is None
        meter.ask(1000.0)
        assert answered(meter, 1001.0) is not None


def test_what_cannot_be_read_has_no_cost_and_may_have_one_later(stored: Path) -> None:
    away = stored.rename(stored.with_name("away.db"))
    with CostMeter(stored) as meter:
        meter.ask(0.0)
        assert answered(meter, 1.0) is None
        away.rename(stored)
        meter.ask(1000.0)
        assert answered(meter, 1001.0) is not None


def test_a_meter_that_was_killed_says_nothing(stored: Path) -> None:
    with CostMeter(stored) as meter:
        meter.wait()
        (pid,) = meter.pids
        os.kill(pid, signal.SIGKILL)
        meter.ask(0.0)
        assert answered(meter, 1.0) is None
        assert meter.pids == []
        meter.ask(1000.0)
        assert answered(meter, 1001.0) is None


def shown_costs(log: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines()]
    return [line for line in lines if line["event"] == "status" and line["cost"] is not None]


def test_a_soak_and_a_watcher_show_the_reports_cost(tmp_path: Path) -> None:
    asked = ("demo", "-c", "400", "--ramp", "40/s", *SHORT, "--hold", "25s", "--keepalive", "4")
    with Program(tmp_path, *asked, "--out", "run.db", "--log-json") as program:
        until((tmp_path / "run.db").exists, "the run begins")
        with Program(tmp_path, "watch", "run.db", "--log-json", name="watch") as watch:
            done = program.wait()
            watched = watch.wait()
    assert done.status in (0, 4), done.err
    reported = report(tmp_path, "run.db")["cost"]
    for log in (done.out, watched.out):
        shown = shown_costs(log)
        assert shown, log
        last = shown[-1]
        assert 0 <= last["t_s"] - last["cost_at_s"] <= 3 * EVERY_S
        # Where other programs open sockets, the kernel's is not known.
        known = [name for name in ("server_user", "kernel", "generator_user") if last["cost"][name] is not None]
        assert "server_user" in known, last
        for name in known:
            if reported[name] is None:
                continue
            low, high = last["cost"][name]["ci95"]
            assert low <= reported[name]["ci95"][1], name
            assert high >= reported[name]["ci95"][0], name
