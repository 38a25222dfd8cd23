"""A night's run file loads and reports in time that grows as the run does. bench/long_run.py makes the file and prints each step.

CPU seconds, and ratios of them in one run: how fast the machine is does not matter.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
import long_run

from asyncli.model.samples import series
from asyncli.store.reader import read_run

pytestmark = pytest.mark.measures
HOURS = 4.0
# A run four times as long takes four times the time, less the fixed part; a quadratic step would take sixteen times.
ALLOWED = 6.0
STEPS = ("read_run", "analyse", "summarise", "text", "html")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("night"), HOURS)


def written(folder: Path, hours: float) -> Path:
    long_run.write_long_run(path := folder / "night.db", hours=hours, metrics=25)
    return path


def test_a_report_takes_time_in_proportion_to_the_run(night: Path, tmp_path: Path) -> None:
    run = read_run(night)
    assert len(run.ticks) > 3_580 * HOURS
    assert sum(len(series(run.samples, name)) for name in run.samples.metrics) > 80_000 * HOURS
    short, whole = long_run.stages(written(tmp_path, HOURS / 4)), long_run.stages(night)
    for name in STEPS:
        # Below 50 ms the CPU clock's resolution and garbage collection dominate.
        assert whole[name] < ALLOWED * max(short[name], 0.05), (name, short, whole)
    assert whole["html_mb"] < 2.0


def test_one_metric_is_found_without_a_look_at_the_others(night: Path) -> None:
    # Reading every metric costs less than a scan of all samples for each would.
    run = read_run(night)
    began = time.process_time()
    for name in run.samples.metrics:
        series(run.samples, name)
    columns = time.process_time() - began
    rows = list(run.samples)
    began = time.process_time()
    for name in run.samples.metrics[:2]:
        assert len(series(rows, name)) == len(series(run.samples, name))
    assert columns < (time.process_time() - began) / 2 * len(run.samples.metrics)
