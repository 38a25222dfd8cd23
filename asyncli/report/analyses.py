"""All analyses of a run: the input of the summary, the page, the figures and the tables."""

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
from asyncli.findings.unknown import cost_grew, cost_of_others
from asyncli.model.records import Finding
from asyncli.model.run import Run


class Analyses(msgspec.Struct):
    """The results of analysis/. ``findings``: those of forecast and drift. ``forecast``: the ``prediction``, or empty if a
    bottleneck was measured.
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
    drift, drift_findings = drifts(run)
    cost = costs(run)
    if totals.whole.opened and not tested(run.plan, totals.whole):
        cost = Costs(residue=cost.residue)
    _exclude_growth(cost, drift)
    _exclude_reused(cost)
    _exclude_others(cost)
    prediction, forecast_findings = forecast(run, cost)
    diagnoses = diagnose(run, totals)
    bottleneck = instead_of_forecast(AnalysedRun(run, totals, diagnoses, saturation(run, totals)))
    return Analyses(
        totals=totals,
        costs=cost,
        forecast=prediction if bottleneck is None else Forecast(),
        prediction=prediction,
        drifts=drift,
        diagnoses=diagnoses,
        findings=[*(forecast_findings if bottleneck is None else [bottleneck]), *drift_findings],
    )


def _exclude_reused(cost: Costs) -> None:
    """Remove the costs that include the server's memory, if it reused memory of earlier connections."""
    if (reused := next((one for one in cost.findings if one.code == cost_reused.code), None)) is not None:
        _exclude(cost, reused, "server_user", "host_total", "residual")


def _exclude_growth(cost: Costs, drift: dict[MetricName, Drift]) -> None:
    """Remove each two-level difference that includes growth in the hold, with a finding."""
    grows = [name for name, one in drift.items() if one.verdict == "grows"]
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        included = [one for one in grows if name in (one, "host_total")]
        found = getattr(cost, name)
        if found is None or not found.of_levels or not included:
            continue
        grew = cost_grew(COST_NAMES[name], {COST_NAMES[one]: in_words(drift[one]) for one in included})
        _exclude(cost, grew, name, "residual")
        cost.findings.append(grew)


def _exclude_others(cost: Costs) -> None:
    """Remove the whole host's cost if more than half of it is in no measured part, though server and kernel were measured."""
    total, rest = cost.host_total, cost.residual
    if total is None or rest is None or cost.server_user is None or cost.kernel is None:
        return
    if rest.ci95[0] > total.bytes_per_connection / 2:
        others = cost_of_others(rest.bytes_per_connection, total.bytes_per_connection)
        _exclude(cost, others, "host_total", "residual")
        cost.findings.append(others)


def _exclude(cost: Costs, why: Finding, *names: str) -> None:
    for name in names:
        setattr(cost, name, None)
        cost.fits.pop(name, None)
        cost.unknown[name] = why.evidence
