"""Writes run files for tests, with the writer of a soak."""

from __future__ import annotations

import time
from pathlib import Path

from asyncli.model.plan import Plan, plan_document
from asyncli.model.records import HISTOGRAMS, Asked, Deaths, Environment, Tick
from asyncli.model.run import Run
from asyncli.store.writer import RunWriter


def new_run(path: Path, plan: Plan | None = None, *, run_id: str = "r", started_s: float = 1e9, environment: Environment | None = None) -> RunWriter:
    """A writer with a new run file."""
    document = plan_document(plan or Plan(urls=("http://127.0.0.1/",)))
    return RunWriter.create(path, run_id=run_id, started_wall_s=started_s, plan_document=document, environment=environment or {})


def write_run(run: Run, path: Path, *, run_id: str | None = None, started_s: float = 1_740_830_400.0) -> Path:
    """Write ``run`` as a run file to ``path``; an incomplete run stays incomplete."""
    writer = new_run(path, run.plan, run_id=run_id or run.id, started_s=started_s, environment=run.environment)
    for phase in run.phases:
        writer.phase(phase)
    for t_s, tick in run.ticks:
        writer.tick(t_s, tick)
        _let_write(writer)
    for sample in run.samples:
        writer.sample(sample)
        _let_write(writer)
    for finding in run.findings:
        writer.finding(0.0, finding)
    for event in run.events:
        writer.event(event)
    writer.checks(run.checks)
    writer.close(run.complete)
    assert writer.trouble is None
    return path


def _let_write(writer: RunWriter) -> None:
    """Hours come in a moment: the writer, which commits once a second, drops what is too much."""
    while len(writer._waiting) + writer._committing > 3_000:
        time.sleep(0.05)


def a_tick(second: int) -> Tick:
    """A tick with a value in each part."""
    tick = Tick(second=second, workers=2, held=10 * second, opened=10, started=10, sent=7, answered=6, failures={"refused": 1}, by_status={200: 6}, dropped={1: 1})
    for value, name in enumerate(HISTOGRAMS):
        for part in range(1, 9):
            getattr(tick, name).add(1234 * value * part)
    tick.deaths["reset"] = Deaths(count=2)
    tick.deaths["reset"].age_s.add(3)
    if second == 7:
        tick.asked = Asked(keepalive=6, ended={"time": 1}, failed={"reset": 1}, by_target={0: 6})
        tick.asked.waiting_us.add(99)
    return tick
