"""All analyses of a run: the input of the summary, the page, the figures and the tables."""

from __future__ import annotations

import msgspec

from asyncli.analysis.bottleneck import TIMERS, AnalysedRun, instead_of_forecast
from asyncli.analysis.cost import known_costs
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.drift import Drift, MetricName, drifts
from asyncli.analysis.forecast import Forecast, forecast
from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.page_gaps import page_gaps
from asyncli.analysis.saturation import saturation
from asyncli.analysis.totals import Totals, fold
from asyncli.model.records import Finding
from asyncli.model.run import Run


class Analyses(msgspec.Struct):
    """The results of analysis/. ``findings``: those of forecast, drift and pages. ``forecast``: the
    ``prediction``, or empty if a bottleneck was measured. ``prediction``: empty if timers ended the
    connections, whatever their number.
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
    cost = known_costs(run, totals, drift)
    prediction, forecast_findings = forecast(run, cost)
    diagnoses = diagnose(run, totals)
    bottleneck = instead_of_forecast(AnalysedRun(run, totals, diagnoses, saturation(run, totals)))
    analyses = Analyses(
        totals=totals,
        costs=cost,
        forecast=prediction,
        prediction=prediction,
        drifts=drift,
        diagnoses=diagnoses,
        findings=[*forecast_findings, *drift_findings, *page_gaps(run)],
    )
    if bottleneck is None:
        return analyses
    analyses.forecast = Forecast()
    analyses.findings = [bottleneck, *drift_findings, *page_gaps(run)]
    if bottleneck.fields["what"] in TIMERS:
        analyses.prediction = Forecast()
    return analyses
