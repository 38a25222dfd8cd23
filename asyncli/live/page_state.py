"""What the live page is sent: plain data of a :class:`~asyncli.live.feed.RunFeed`. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from asyncli.analysis.slope import Cost
from asyncli.findings.cost import SURE
from asyncli.findings.thresholds import limit_crossed
from asyncli.live.feed import COSTS, CostPoint, RunFeed
from asyncli.live.generator_room import MOST_SHOWN, client_hosts, limits
from asyncli.live.history import Bar, History, Row
from asyncli.live.panels import COUNTED, PANELS
from asyncli.model.records import Finding
from asyncli.model.text import printable
from asyncli.report.cost_so_far import Ending
from asyncli.report.format import with_error
from asyncli.report.limits_so_far import LimitSoFar
from asyncli.report.live import known_total, status

# Numbers of a chart need no more digits than a screen shows. Those of large ones are left: what a
# page subtracts from another, as memory before the first connect, is a small part of both.
_DIGITS = 6
# A page asks for the history, and then for what comes next.
_MOMENT_S = 10.0


class Sent(msgspec.Struct, frozen=True):
    """What a client has: of the edition of a feed's histories, up to these instants (s), and so
    many points of the cost.
    """

    edition: int
    whole_s: float
    recent_s: float
    cost_points: int


def layout() -> dict[str, Any]:
    """The charts and their lines, in the order of the values of a row."""
    panels = []
    for panel in PANELS:
        lines = []
        for line in panel.lines:
            lines.append(
                {
                    "key": line.key,
                    "label": line.label,
                    "role": line.role,
                    "is_level": line.is_level,
                }
            )
        panels.append(
            {
                "key": panel.key,
                "title": panel.title,
                "unit": panel.unit,
                "logarithmic": panel.is_logarithmic,
                "above_baseline": panel.is_above_baseline,
                "lines": lines,
            }
        )
    counted = [{"key": kind.key, "title": kind.title} for kind in COUNTED]
    # Beyond this share of itself an interval is shown in place of its middle, as in the report.
    return {"panels": panels, "counted": counted, "costs": list(COSTS), "sure_share": SURE}


def whole(feed: RunFeed) -> dict[str, Any]:
    """All that a page needs first."""
    return {
        "layout": layout(),
        "edition": feed.edition,
        "whole": _history(feed.whole, list(feed.whole.rows()), list(feed.whole.bars())),
        "recent": _history(feed.recent, list(feed.recent.rows()), list(feed.recent.bars())),
        "cost_points": [_point(point) for point in feed.cost_points],
        "baselines": feed.baselines,
        "run": about(feed),
        "state": state_of(feed),
    }


def sent_of(feed: RunFeed) -> Sent:
    """What a client has that was sent all of it."""
    return Sent(
        feed.edition, feed.whole.open_from_s, feed.recent.open_from_s, feed.cost_points_made
    )


def sent_a_moment_ago(feed: RunFeed) -> Sent:
    """What a client has that was sent all of it some seconds ago."""
    return Sent(
        feed.edition,
        feed.whole.open_from_s - feed.whole.width_s - _MOMENT_S,
        feed.recent.open_from_s - _MOMENT_S,
        max(0, feed.cost_points_made - 1),
    )


def news(feed: RunFeed, sent: Sent) -> dict[str, Any]:
    """What is new to a client. Of a stretch that was sent while it was open, all is sent again."""
    fresh = feed.cost_points_made - sent.cost_points
    points = feed.cost_points[-fresh:] if fresh else []
    return {
        "baselines": feed.baselines,
        "whole": _news_of(feed.whole, sent.whole_s),
        "recent": _news_of(feed.recent, sent.recent_s),
        "cost_points": [_point(point) for point in points],
        "state": state_of(feed),
    }


def _news_of(history: History, since_s: float) -> dict[str, Any]:
    rows = list(history.rows(since_s))
    document = _history(history, rows, list(history.bars(since_s)))
    # What a client has of these stretches is void.
    document["from_s"] = history.first_since(since_s)
    return document


def _history(history: History, rows: list[Row], bars: list[Bar]) -> dict[str, Any]:
    return {
        "width_s": history.width_s,
        "rows": [plain_row(row) for row in rows],
        "bars": [[round(t_s, 3), counts] for t_s, counts in bars],
    }


def plain_row(row: Row) -> list[float | None]:
    """Its instant (s) and its values: of small ones as many digits as a screen shows, large ones as
    whole numbers.
    """
    t_s, values = row
    plain: list[float | None] = [round(t_s, 3)]
    for value in values:
        plain.append(None if value is None else _plain(value))
    return plain


def _plain(value: float) -> float:
    if abs(value) >= 10**_DIGITS:
        return float(f"{value:.0f}")
    return float(f"{value:.{_DIGITS}g}")


def _point(point: CostPoint) -> dict[str, Any]:
    return {"at_s": round(point.at_s, 1), **point.costs}


def about(feed: RunFeed) -> dict[str, Any]:
    """What stays as it is."""
    plan = feed.plan
    return {
        "file": printable(feed.path.name),
        "targets": [target.url for target in plan.targets],
        "protocol": plan.protocol,
        "began_s": feed.began_s,
    }


def state_of(feed: RunFeed) -> dict[str, Any]:
    state = feed.state
    fields = status(state)
    fields["phase"] = state.phase
    has_begun = math.isfinite(feed.first_connect_s)
    fields["first_connect_s"] = feed.first_connect_s if has_begun else None
    fields["elapsed_s"] = round(state.elapsed_s, 3)
    fields["over"] = state.over
    fields["why_ended"] = feed.why_ended
    fields["ending"] = _ending(feed.ending)
    fields["total"] = _cost(known_total(state))
    fields["in_server"] = None
    fields["in_heap"] = None
    if state.cost is not None:
        fields["in_server"] = _cost(state.cost.server_user)
        if isinstance(state.cost.live, Cost):
            fields["in_heap"] = _cost(state.cost.live)
    fields["findings"] = _findings(feed)
    fields["events"] = [msgspec.to_builtins(event) for event in feed.events]
    fields["away"] = state.away
    fields["not_back"] = state.not_back
    fields["silent"] = feed.silent
    fields["comebacks"] = _comebacks(feed)
    fields["limits"] = [_limit(limit, state.elapsed_s) for limit in state.limits]
    fields["generator"] = _generator(feed)
    fields["drifts"] = {} if feed.so_far is None else feed.so_far.drifts
    return fields


def _comebacks(feed: RunFeed) -> list[dict[str, Any]]:
    """The events of the plan that took connections, in order of time: of how many who is back."""
    rows = []
    for event in sorted(feed.events, key=lambda event: event.at_s):
        number = event.fields.get("number")
        so_far = feed.events_so_far.get(number) if isinstance(number, int) else None
        if so_far is None:
            continue
        rows.append(
            {
                "at_s": event.at_s,
                "text": event.text,
                "took": so_far.took,
                "silent": so_far.silent,
                "back": so_far.back,
            }
        )
    return rows


def _generator(feed: RunFeed) -> dict[str, Any]:
    known = limits(feed.checks, feed.environment, feed.levels)
    rows = []
    for limit in known[:MOST_SHOWN]:
        rows.append({**msgspec.to_builtins(limit), "share": limit.share})
    return {
        "hosts": msgspec.to_builtins(client_hosts(feed.environment)),
        "limits": rows,
        "limits_left_out": len(known) - len(rows),
    }


def _cost(cost: Cost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    return {"words": with_error(cost)}


def _findings(feed: RunFeed) -> list[dict[str, Any]]:
    findings = []
    told = set()
    told_limits = set()
    for t_s, finding in feed.findings:
        findings.append(_finding(finding, round(t_s, 3)))
        told.add(finding.evidence)
        if finding.code == limit_crossed.code:
            told_limits.add(finding.fields["limit"])
    if feed.ending is None:
        return findings
    for finding in feed.ending.findings:
        is_told = finding.code == limit_crossed.code and finding.fields["limit"] in told_limits
        if not is_told and finding.evidence not in told:
            findings.append(_finding(finding, None))
    return findings


def _finding(finding: Finding, at_s: float | None) -> dict[str, Any]:
    """``at_s``: None: it is of the report, at the end."""
    return {
        "at_s": at_s,
        "severity": finding.severity,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
    }


def _ending(ending: Ending | None) -> dict[str, Any] | None:
    if ending is None:
        return None
    return {
        "verdict": ending.verdict,
        "why": ending.why,
        "held": ending.held,
        "beside": ending.beside,
        "active": ending.active,
        "server_bytes": ending.server_bytes,
        "latency_p50_ms": ending.latency_p50_ms,
        "latency_p99_ms": ending.latency_p99_ms,
        "lateness_p99_ms": ending.lateness_p99_ms,
    }


def _limit(limit: LimitSoFar, elapsed_s: float) -> dict[str, Any]:
    """``share``: how much of the bound is used, where that says something. ``age_s``: how old it
    is; None: as old as the last second.
    """
    return {
        "text": limit.text,
        "amount": limit.amount,
        "share": limit.share,
        "crossed": limit.is_crossed,
        "key": limit.key,
        "bound": limit.bound,
        "age_s": None if limit.at_s is None else round(elapsed_s - limit.at_s, 1),
    }
