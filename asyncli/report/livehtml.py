"""A run to look at in a notebook while it lasts: one look as HTML, in whatever colours the notebook has. Pure."""

from __future__ import annotations

import html

from asyncli.plan import Plan
from asyncli.records import PHASES
from asyncli.report.format import plus_minus
from asyncli.report.live import LiveRows, panels, plain_line
from asyncli.report.livestate import LiveState
from asyncli.text import oneline
from asyncli.units import format_duration

_RED, _GREEN, _BLUE = "#c0392b", "#2e8b57", "#2f6db5"


class Look:
    """One look at a run, as text and as HTML: what IPython displays. ``outcome``: how it ended, once it has."""

    def __init__(self, plan: Plan, state: LiveState, outcome: str = "") -> None:
        self._plan, self._state, self._outcome = plan, state, outcome

    def __repr__(self) -> str:
        return self._outcome or plain_line(self._state)

    def _repr_html_(self) -> str:
        return ended(self._plan, self._state, self._outcome) if self._outcome else look(self._plan, self._state)


def ended(plan: Plan, state: LiveState, outcome: str) -> str:
    """What stays on the page: the title, the phases that were gone through, and how it ended."""
    return f'<div style="line-height: 1.5;">{_title(plan, state)}<div>{_text(outcome)}</div></div>'


def look(plan: Plan, state: LiveState) -> str:
    """Title, phases, a bar, four small tables, the cost so far, and findings that should be known now."""
    left = "" if state.eta_s is None or state.eta_s < 0.5 else f"{format_duration(round(state.eta_s))} left"
    share = max(0.0, min(1.0, state.progress or 0.0)) * 100
    bar = (
        '<div style="height: 6px; border-radius: 3px; background: rgba(127,127,127,0.25); margin: 6px 0; max-width: 46em;">'
        f'<div style="height: 6px; border-radius: 3px; background: {_BLUE}; width: {share:.1f}%;"></div></div>'
    )
    tables = "".join(_facts(heading, rows) for heading, rows in panels(state))
    parts = [_title(plan, state, left), bar]
    parts.append(f'<div style="display: flex; flex-wrap: wrap; gap: 0 2.5em;">{tables}</div>')
    if state.host_per_connection is not None and state.host_per_connection_half is not None:
        each = plus_minus(state.host_per_connection, state.host_per_connection_half)
        parts.append(f"<div>A connection costs <b>{each}</b> on {state.host} so far, first use included.</div>")
    for finding in (told.finding for told in state.findings[-3:]):
        if finding.severity != "info":
            color = f" style='color: {_RED};'" if finding.severity == "error" else ""
            parts.append(f"<div><b{color}>{finding.severity}</b> {_text(finding.evidence)}</div>")
    return f'<div style="line-height: 1.5;">{"".join(parts)}</div>'


def _title(plan: Plan, state: LiveState, left: str = "") -> str:
    more = f" and {len(plan.urls) - 1} more" if len(plan.urls) > 1 else ""
    title = f"<b>asyncli</b> {_text(plan.urls[0])}{more} · {format_duration(int(state.elapsed_s))}"
    phases = " ".join(_phase(name, state) for name in PHASES)
    return f'<div>{title}</div><div>{phases} <span style="opacity: 0.7;">{left}</span></div>'


def _phase(name: str, state: LiveState) -> str:
    if name in state.phases_done:
        return f'<span style="color: {_GREEN};">✓ {name}</span>'
    return f'<b style="color: {_BLUE};">▶ {name}</b>' if name == state.phase else f'<span style="opacity: 0.5;">· {name}</span>'


def _facts(heading: str, rows: LiveRows) -> str:
    cells = "".join(
        f'<tr><td style="text-align: left; opacity: 0.65; padding: 0 10px 0 0; border: none;">{name}</td>'
        f'<td style="text-align: right; padding: 0; border: none; font-variant-numeric: tabular-nums;{_STYLES.get(style, "")}">'
        f"{value}</td></tr>"
        for name, value, style in rows
    )
    return f'<div><b>{heading}</b><table style="border-collapse: collapse; margin: 0;">{cells}</table></div>'


_ALARM = f" font-weight: 600; color: {_RED};"
#: A style of a terminal's as CSS.
_STYLES = {"bold": " font-weight: 600;", "bold green": " font-weight: 600;", "bold red": _ALARM, "bold yellow": _ALARM}


def _text(words: str) -> str:
    return html.escape(oneline(words))
