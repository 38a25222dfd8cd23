"""Limits of ``--fail-if`` before a run: those that are wrong, those that cannot end it
(``--abort``), and those that need a longer hold. Pure.
"""

from __future__ import annotations

import math

from asyncli.analysis.drift import least_hold_s
from asyncli.analysis.heap_cost import HEAP_COSTS
from asyncli.findings.thresholds import drift_hold
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.planned_events import DEFAULT_RECONNECT, PlannedEvent, reconnect_of
from asyncli.model.records import CHURN, Finding
from asyncli.model.units import format_many
from asyncli.report.limits_so_far import stays_crossed
from asyncli.report.summary import Summary
from asyncli.report.thresholds import parse, require

# What is known of a mark.
_OF_A_MARK = ("number", "at_s", "end_s", "into_hold_s")
# What is never known of churn: outages, which are charged to events with an instant, and what is
# known of commands, of those that fall silent and of those that stall.
_NEVER_OF_CHURN = (
    "no_answers_s",
    "no_answers_at_most_s",
    "stood_still_s",
    "stood_still_at_most_s",
    "status",
    "took_s",
    "share",
    "for_s",
    "cut_after_s",
    "records_end_after_s",
    "noticed",
    "gone",
    "returned",
    "awaited",
    "closed",
    "closed_after",
    "timed_out",
    "sent_again",
    "stalled",
    "resumed",
    "closes",
    "waited_bytes",
    "segment_bytes",
    "slow_readers",
)


def require_limits(
    plan: Plan, where: str = "--fail-if", *, collects_by_command: bool = False
) -> None:
    """Raise :class:`PlanError` for an invalid limit of ``plan``, written ``where``, or for --abort
    without one. ``collects_by_command``: a command asks for collections, which no plan has.
    """
    require(plan.fail_if, Summary, where)
    relative = relative_limits(plan)
    if relative and not plan.baseline_runs:
        raise PlanError(
            f"{where} {relative[0]!r}: there is no earlier run to compare with; name one with "
            "--baseline-run"
        )
    if plan.baseline_runs and not relative:
        raise PlanError(
            "--baseline-run: no limit compares with it; set one, such as --fail-if "
            "'cost.server_user worse by 3%'"
        )
    _require_metrics_of_heap(plan, where)
    if plan.collect is None and not collects_by_command:
        for text in (*_limits_on(plan, "residue.live"), *_limits_on(plan, "residue.stacks")):
            raise PlanError(
                f"{where} {text!r}: only collections say what is alive after the drain; ask for "
                "them: --plateaus 5 --collect auto (Node, Java), or a URL or a command that "
                "collects"
            )
    if plan.listens:
        for text in _limits_on(plan, "heartbeats."):
            raise PlanError(
                f"{where} {text!r}: connections that listen send no heartbeats; leave it out"
            )
    _require_figures_of_events(plan, where)
    if plan.abort and not plan.fail_if:
        raise PlanError(
            "--abort: there is no limit to stop at; set one, such as --fail-if 'lost > 0.1%'"
        )


def _require_figures_of_events(plan: Plan, where: str) -> None:
    """Raise :class:`PlanError` for a limit on an event that the plan lacks, or on what its event
    cannot have.
    """
    for text in _limits_on(plan, "events."):
        _, number, figure, *_ = parse(text, Summary).key.split(".")
        if number == str(CHURN):
            _require_figure_of_churn(plan, figure, f"{where} {text!r}")
            continue
        if not number.isdecimal() or not 0 < int(number) <= len(plan.events):
            raise PlanError(
                f"{where} {text!r}: the plan has {format_many(len(plan.events), 'event')}; "
                "events.1 is its first"
            )
        planned = plan.event_numbered(int(number))
        if planned is not None and planned.do == "mark" and figure not in _OF_A_MARK:
            raise PlanError(
                f"{where} {text!r}: event {number} is a mark, of which only its time is known; "
                "leave it out"
            )
        if planned is not None and figure in ("back", "away") and _nobody_is_back(plan, planned):
            raise PlanError(
                f"{where} {text!r}: by --reconnect {plan.reconnect} nobody is to be back from "
                f"event {number} before the hold is over; make the hold longer"
            )


def _require_figure_of_churn(plan: Plan, figure: str, limit: str) -> None:
    """Raise :class:`PlanError` for a ``limit`` on churn that the plan lacks, or on a ``figure``
    that churn never has.
    """
    if plan.churn is None:
        raise PlanError(f"{limit}: the plan has no churn; add --churn 1%/m")
    if figure in _NEVER_OF_CHURN:
        raise PlanError(
            f"{limit}: {figure} is not known of churn, only of events at an instant (--at); leave "
            "it out"
        )


def _nobody_is_back(plan: Plan, planned: PlannedEvent) -> bool:
    """Whether all whom an event ends are to come back only after the hold."""
    if plan.hold_s is None or planned.do == "stall" or planned.then == "return":
        return False
    reconnect = reconnect_of(plan.reconnect or DEFAULT_RECONNECT)
    if reconnect.how != "fixed":
        return False
    since_s = planned.after_s(plan.hold_s) + (planned.for_s or 0.0)
    return since_s + reconnect.first_s > plan.hold_s


def _require_metrics_of_heap(plan: Plan, where: str) -> None:
    """Raise :class:`PlanError` for a limit on a cost of the server's heap that nothing of this run
    can say. An agent may read the server's page without being told so here.
    """
    if plan.server_metrics or plan.agent is not None:
        return
    for name in HEAP_COSTS:
        if name == "live" and plan.collect is not None:
            continue
        for text in _limits_on(plan, f"cost.{name}."):
            raise PlanError(
                f"{where} {text!r}: only the server's own metrics say that; name its page with "
                "--server-metrics"
            )


def relative_limits(plan: Plan) -> list[str]:
    """The limits that compare with the baseline runs."""
    return [text for text in plan.fail_if if parse(text, Summary).is_relative]


def _limits_on(plan: Plan, part: str) -> list[str]:
    """The limits whose key is in this part of the JSON."""
    return [text for text in plan.fail_if if parse(text, Summary).key.startswith(part)]


def unwatched(plan: Plan) -> list[str]:
    """The limits that ``abort`` cannot watch: they are judged at the end."""
    if not plan.abort:
        return []
    relative = relative_limits(plan)
    unjudged = [text for text in plan.fail_if if not stays_crossed(parse(text, Summary))]
    # Those that compare with earlier runs are looked at in the hold.
    return [text for text in unjudged if text not in relative]


def too_short(plan: Plan) -> list[Finding]:
    """A warning if the hold is too short for the plan's limits on drift."""
    least_s = math.ceil(least_hold_s(plan.keepalive_s))
    if plan.hold_s is None or plan.hold_s >= least_s:
        return []
    limits = _limits_on(plan, "drift.")
    if not limits:
        return []
    return [drift_hold(limits, least_s, plan.hold_s)]
