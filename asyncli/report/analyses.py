"""All analyses of a run: what the summary, the page, the figures and the tables are made of."""

from __future__ import annotations

import msgspec

from asyncli.analysis.bottleneck import AnalysedRun, instead_of_forecast
from asyncli.analysis.cost import Costs, costs
from asyncli.analysis.drift import Drift, MetricName, drifts, in_words
from asyncli.analysis.forecast import Forecast, forecast
from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.saturation import saturation
from asyncli.analysis.totals import Totals, fold, tested
from asyncli.findings.cost import COST_NAMES, cost_reused
from asyncli.findings.unknown import cost_grew
from asyncli.records import Finding
from asyncli.run import Run


class Analyses(msgspec.Struct):
    """The results of analysis/. ``findings``: of forecast and drift. ``prediction``: the forecast although something gave way;
    ``forecast`` is empty then.
    """

    totals: Totals
    costs: Costs
    forecast: Forecast
    prediction: Forecast
    drifts: dict[MetricName, Drift]
    diagnoses: list[Diagnosis]
    findings: list[Finding]


def analyse(run: Run) -> Analyses:
    totals = fold(run)
    drift, of_drift = drifts(run)
    cost = costs(run)
    if totals.whole.opened and not tested(run.plan, totals.whole):
        cost = Costs(residue=cost.residue)
    _leave_out_growth(cost, drift)
    _leave_out_reused(cost)
    ceilings, of_forecast = forecast(run, cost)
    diagnoses = diagnose(run, totals)
    gave_way = instead_of_forecast(AnalysedRun(run, totals, diagnoses, saturation(run, totals)))
    return Analyses(
        totals=totals,
        costs=cost,
        forecast=ceilings if gave_way is None else Forecast(),
        prediction=ceilings,
        drifts=drift,
        diagnoses=diagnoses,
        findings=[*(of_forecast if gave_way is None else [gave_way]), *of_drift],
    )


def _leave_out_reused(cost: Costs) -> None:
    """Remove what the server's memory is part of, where it used memory of earlier connections again."""
    if (reused := next((one for one in cost.findings if one.code == cost_reused.code), None)) is not None:
        _leave_out(cost, reused, "server_user", "host_total", "residual")


def _leave_out_growth(cost: Costs, drift: dict[MetricName, Drift]) -> None:
    """Remove each difference of two levels that includes growth in the hold, with a finding."""
    grows = [name for name, one in drift.items() if one.verdict == "grows"]
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        holds = [one for one in grows if name in (one, "host_total")]
        found = getattr(cost, name)
        if found is None or not found.of_levels or not holds:
            continue
        grew = cost_grew(COST_NAMES[name], {COST_NAMES[one]: in_words(drift[one]) for one in holds})
        _leave_out(cost, grew, name, "residual")
        cost.findings.append(grew)


def _leave_out(cost: Costs, why: Finding, *names: str) -> None:
    for name in names:
        setattr(cost, name, None)
        cost.fits.pop(name, None)
        cost.unknown[name] = why.evidence
