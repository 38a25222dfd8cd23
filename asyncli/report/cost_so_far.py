"""The report of a run that is still going on, as far as the live views show it. Pure."""

from __future__ import annotations

import msgspec

from asyncli.analysis.cost import known_costs
from asyncli.analysis.drift import drifts, in_words
from asyncli.analysis.totals import fold
from asyncli.model.run import Run
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.limits_so_far import LimitSoFar, limit_so_far
from asyncli.report.summary import limits_of, summarise
from asyncli.report.summary_parts import CostPart


class CostSoFar(msgspec.Struct, frozen=True):
    """The cost by all records up to ``at_s`` (on the run's clock). ``why_unknown``: why that of the
    host is unknown; "" where it is known. ``drifts``: the growth of each memory in words.
    """

    at_s: float
    cost: CostPart
    why_unknown: str = ""
    drifts: dict[str, str] = msgspec.field(default_factory=dict)
    limits: tuple[LimitSoFar, ...] = ()


def cost_so_far(run: Run) -> CostSoFar:
    """What the report would say if the run had ended now."""
    limits: tuple[LimitSoFar, ...] = ()
    if run.plan.fail_if:
        # A limit may be on any number of the report.
        analyses = analyse(run)
        growth = analyses.drifts
        costs = analyses.costs
        limits = _limits_so_far(run, analyses)
    else:
        growth, _ = drifts(run)
        costs = known_costs(run, fold(run), growth)
    return CostSoFar(
        at_s=run.end_s,
        cost=CostPart.of(costs),
        why_unknown=costs.unknown.get("host_total", ""),
        drifts={name: in_words(drift) for name, drift in growth.items()},
        limits=limits,
    )


def _limits_so_far(run: Run, analyses: Analyses) -> tuple[LimitSoFar, ...]:
    outcomes, _ = limits_of(run.plan, summarise(run, analyses))
    return tuple(limit_so_far(outcome) for outcome in outcomes)
