"""Why a number of a run's JSON is unknown. Pure."""

from __future__ import annotations

from asyncli.analysis.drift import called
from asyncli.analysis.heap_cost import HEAP_COSTS, why_no_heap
from asyncli.model.run import Run
from asyncli.report.analyses import Analyses


def why_unknown(key: str, run: Run, analyses: Analyses) -> str:
    """The reason for which the number under ``key`` is unknown; "" where none is known."""
    section, name, *_ = [*key.split("."), ""]
    if section == "cost" and name in HEAP_COSTS:
        return why_no_heap(run, analyses.costs.heap, name)
    if section == "cost":
        return analyses.costs.unknown.get(name, "")
    if section != "drift":
        return ""
    for grown, drift in analyses.drifts.items():
        if grown == name and drift.ci95 is None:
            return called(drift).removeprefix("unknown: ")
    return ""
