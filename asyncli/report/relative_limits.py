"""The limits that compare a run with the baseline runs that its environment names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.analysis.measured import facts, measure
from asyncli.analysis.worsening import (
    COMPARABLE,
    BaselineRun,
    Worsening,
    chances_at,
    not_alike,
    worsening,
)
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.report.analyses import Analyses
from asyncli.report.thresholds import Outcome, Threshold, bound_of, judge_worsening

#: The environment's part with what the baseline runs measured.
BASELINE_RUNS = "baseline_runs"
#: A running soak is looked at once in this time at most.
LOOK_EVERY_S = 10.0


def baseline_runs_of(run: Run) -> tuple[BaselineRun, ...]:
    """The baseline runs that a run has recorded; none if it has none, or another version's."""
    try:
        return msgspec.convert(run.environment.get(BASELINE_RUNS, ()), tuple[BaselineRun, ...])
    except msgspec.ValidationError:
        return ()


def baseline_findings(run: Run) -> list[Finding]:
    """Findings on how the baseline runs are not like this one."""
    baseline = baseline_runs_of(run)
    if not baseline:
        return []
    return not_alike(baseline, facts(run.plan, run.environment))


def judge_worsenings(run: Run, limits: Sequence[Threshold], analyses: Analyses) -> list[Outcome]:
    """Judge limits that compare with the baseline runs: before the run's end with the chances of
    error of as many looks as its hold has had time for.
    """
    baseline = baseline_runs_of(run)
    if not baseline:
        why = "the run has recorded no baseline run"
        return [judge_worsening(limit, why) for limit in limits]
    if run.hold is None:
        why = "the run has not reached its hold"
        return [judge_worsening(limit, why) for limit in limits]
    look = None
    if not run.complete:
        look = 1 + int(run.hold.length_s / LOOK_EVERY_S)
    chances = chances_at(look, len(limits))
    measured = measure("this run", "", run, analyses.costs, analyses.drifts)
    outcomes = []
    for limit in limits:
        difference: Worsening | str = worsening(
            COMPARABLE[limit.key], baseline, measured, chances, bound_of(limit)
        )
        outcomes.append(judge_worsening(limit, difference))
    return outcomes
