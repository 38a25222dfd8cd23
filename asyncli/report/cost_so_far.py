"""The report's cost of a run that is still going on. Pure."""

from __future__ import annotations

import msgspec

from asyncli.analysis.cost import known_costs
from asyncli.analysis.drift import drifts
from asyncli.analysis.totals import fold
from asyncli.model.run import Run
from asyncli.report.summary_parts import CostPart


class CostSoFar(msgspec.Struct, frozen=True):
    """The cost by all records up to ``at_s`` (on the run's clock). ``why_unknown``: why that of the
    host is unknown; "" where it is known.
    """

    at_s: float
    cost: CostPart
    why_unknown: str = ""


def cost_so_far(run: Run) -> CostSoFar:
    """What the report would say if the run had ended now."""
    growth, _ = drifts(run)
    costs = known_costs(run, fold(run), growth)
    return CostSoFar(run.end_s, CostPart.of(costs), costs.unknown.get("host_total", ""))
