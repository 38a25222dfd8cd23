"""The live screen of a running soak, on a terminal or below a notebook cell."""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from asyncli.model.masks import masked_url
from asyncli.model.plan import Plan
from asyncli.model.records import PHASES
from asyncli.model.text import ascii_only, oneline
from asyncli.model.units import format_count, format_duration
from asyncli.report.format import cores, milliseconds, or_bytes, or_dash, with_error, with_streams
from asyncli.report.live import (
    NullView,
    age_of_cost,
    behind,
    causes,
    crossed_for_good,
    event_line,
    known_total,
    plain_line,
    unanswered,
)
from asyncli.report.livestate import LiveState
from asyncli.report.terminal import SEVERITY_STYLE, html_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

# At most four frames a second.
SHORTEST_FRAME_S = 0.25
# Wider columns are hard to read as one line.
_WIDEST = 92
_ATTENTION_LINES = 2
# The columns of the row with the bar, which has what is left.
_NAME_WIDTH = 8
_SHARE_WIDTH = 5
_TIME_LEFT_WIDTH = 15
_BETWEEN_COLUMNS = 2
# The column of names in a table of facts.
_LABEL_WIDTH = 14
# "100 % of a core" fits.
_LEAST_VALUE_WIDTH = 15

#: (name, value, style)
Fact = tuple[str, str, str]


class LiveView(NullView):
    """A screen that is updated in place and disappears when the run ends."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._live: Live | None = None
        self._phase: str | None = None
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        from rich.live import Live

        # Our updates drive it, so that no thread of rich disturbs the measurement.
        self._live = Live(console=self._console, auto_refresh=False, screen=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, state: LiveState) -> None:
        if self._live is None:
            return
        now_s = time.monotonic()
        if state.phase == self._phase and now_s - self._drawn_s < SHORTEST_FRAME_S:
            return
        if behind(self._console):
            return
        self._phase = state.phase
        self._drawn_s = now_s
        self._live.update(screen(self._plan, state, self._console), refresh=True)


class Snapshot:
    """One state as text and as HTML, for IPython. ``outcome``: how the run ended, shown instead."""

    def __init__(self, plan: Plan, state: LiveState, outcome: str = "") -> None:
        self._plan = plan
        self._state = state
        self._outcome = outcome

    def __repr__(self) -> str:
        return self._outcome or plain_line(self._state)

    def _repr_html_(self) -> str:
        if self._outcome:
            return f"<div>{html.escape(oneline(self._outcome))}</div>"

        def print_screen(console: Console) -> None:
            console.print(screen(self._plan, self._state, console))

        return html_of(print_screen, _WIDEST)


def screen(plan: Plan, state: LiveState, console: Console) -> RenderableType:
    """The screen for one state, at the console's width; 22 lines at 80 columns."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    width = min(console.width - 2, _WIDEST)
    parts: list[RenderableType] = [
        _title(plan, state, width),
        _phases(state),
        _cut(_last_event(state), width),
        _bar(state, width),
        "",
        _pair(width, _connections(state), _heartbeats(state)),
        "",
        _pair(width, _server(state), _generator(state)),
        "",
        *(_cut(line, width) for line in _cost(state)),
        *(_cut(line, width) for line in _attention(state)),
    ]
    if console.options.ascii_only:
        for part in parts:
            if isinstance(part, Text):
                part.plain = ascii_only(part.plain)
    return Padding(Group(*parts), (0, 1))


def _attention(state: LiveState) -> list[Text]:
    """Why something was lost or failed, and the last findings that are more than information."""
    from rich.text import Text

    lines = []
    reasons = []
    counts_of = {"lost": state.deaths, "failed": state.failures, "errors": state.errors}
    for kind, counts in counts_of.items():
        if counts:
            reasons.append(f"{kind}{causes(counts)}")
    for limit in crossed_for_good(state):
        reasons.append(f"limit {limit.text} crossed")
    if reasons:
        lines.append(Text.assemble(("why: ", "bold red"), "; ".join(reasons)))
    findings = [live.finding for live in state.findings if live.finding.severity != "info"]
    room = _ATTENTION_LINES - len(lines)
    for finding in findings[-room:]:
        severity = (f"{finding.severity}: ", SEVERITY_STYLE[finding.severity])
        lines.append(Text.assemble(severity, oneline(finding.evidence)))
    return lines


def _last_event(state: LiveState) -> Text:
    """The last event; empty without any."""
    from rich.text import Text

    if not state.events:
        return Text()
    return Text(event_line(state.events[-1]), "magenta")


def _title(plan: Plan, state: LiveState, width: int) -> Text:
    from rich.text import Text

    clock = "0 s"
    if state.elapsed_s >= 1:
        clock = format_duration(int(state.elapsed_s))
    other_urls = ""
    if len(plan.urls) > 1:
        other_urls = f" and {len(plan.urls) - 1} more"
    url = Text(masked_url(plan.urls[0]), "cyan", no_wrap=True)
    room = width - len(f"asyncli  {other_urls}  {clock}")
    title = Text.assemble(("asyncli", "bold"), "  ", _cut(url, room), other_urls, no_wrap=True)
    title.append(" " * max(2, width - title.cell_len - len(clock)))
    return title.append(clock, "bold")


def _phases(state: LiveState) -> Text:
    from rich.text import Text

    line = Text(no_wrap=True)
    for name in PHASES:
        label: str = name
        if name == "hold" and state.until:
            label = f"hold until {state.until}"
        if name == state.phase:
            line.append(f"▶ {label}   ", "bold cyan")
        elif name in state.phases_done:
            line.append(f"✓ {label}   ", "green")
        else:
            line.append(f"· {label}   ", "dim")
    return line


def _bar(state: LiveState, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    share = ""
    if state.progress is not None:
        share = f"{state.progress * 100:.0f} %"
    room = width - _NAME_WIDTH - _SHARE_WIDTH - _TIME_LEFT_WIDTH - 3 * _BETWEEN_COLUMNS
    bar = ProgressBar(
        total=1.0,
        completed=state.progress or 0.0,
        width=room,
        complete_style="cyan",
        finished_style="green",
    )
    row = Table.grid(padding=(0, _BETWEEN_COLUMNS), pad_edge=False)
    row.add_column(width=_NAME_WIDTH)
    row.add_column(width=room)
    row.add_column(width=_SHARE_WIDTH, justify="right")
    row.add_column(width=_TIME_LEFT_WIDTH, no_wrap=True)
    phase = Text(state.phase or "start", "bold")
    row.add_row(phase, bar, share, Text(_time_left(state), "dim"))
    return row


def _time_left(state: LiveState) -> str:
    """When the phase ends."""
    if state.eta_s is not None:
        if state.eta_s <= 0.5:
            return "any moment"
        return f"{format_duration(round(state.eta_s))} left"
    if state.phase != "hold":
        return ""
    if state.refilling:
        return "reopening"
    return "until Ctrl-C"


def _pair(width: int, left: Iterator[Fact], right: Iterator[Fact]) -> RenderableType:
    """Two tables of facts side by side, or where these have no room for their values, one below the
    other; the first fact is the heading.
    """
    from rich.console import Group

    beside = (width - 4) // 2 - _LABEL_WIDTH
    if beside < _LEAST_VALUE_WIDTH:
        value_width = max(1, width - 1 - _LABEL_WIDTH)
        return Group(
            _tables(value_width, [(fact,) for fact in left]),
            _tables(value_width, [(fact,) for fact in right]),
        )
    return _tables(beside, itertools.zip_longest(left, right, fillvalue=("", "", "")))


def _tables(value_width: int, rows: Iterable[Sequence[Fact]]) -> Table:
    """Tables of facts side by side."""
    from rich.table import Table
    from rich.text import Text

    tables = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    for number, facts in enumerate(rows):
        is_heading = number == 0
        cells = []
        for name, value, style in facts:
            label = Text(name, "bold") if is_heading else Text(f"  {name}", "dim")
            cells += [label, Text(value, style)]
            if is_heading:
                tables.add_column(width=_LABEL_WIDTH, no_wrap=True)
                tables.add_column(width=value_width, justify="right", no_wrap=True, overflow="crop")
        tables.add_row(*cells)
    return tables


def _connections(state: LiveState) -> Iterator[Fact]:
    yield "Connections", "", ""
    held = f"{format_count(state.held)} of {format_count(state.asked)}"
    holds_all = state.held >= state.asked
    yield "held", held, "bold green" if holds_all else "bold"
    if state.phase == "ramp":
        achieved = or_dash(state.achieved_per_s, ",.0f")
        asked = or_dash(state.asked_per_s, ",.0f")
        yield "rate", f"{achieved}/s of {asked}/s", ""
    else:
        yield "reopened", format_count(state.reopened), ""
    yield "connecting", format_count(state.connecting), ""
    if state.away and state.phase == "hold":
        yield "away", format_count(state.away), ""
    if state.not_back and state.phase == "hold":
        yield "not back", format_count(state.not_back), "bold yellow"
    yield "lost", format_count(state.lost), _red_above_zero(state.lost)
    yield "failed", format_count(state.failed), _red_above_zero(state.failed)


def _red_above_zero(count: int) -> str:
    if count:
        return "bold red"
    return "green"


def _heartbeats(state: LiveState) -> Iterator[Fact]:
    yield "Heartbeats", "", ""
    yield "answered", f"{or_dash(state.heartbeats_per_s, ',.0f')}/s", "bold"
    yield "latency p50", milliseconds(state.latency_p50_ms), ""
    yield "latency p99", milliseconds(state.latency_p99_ms), ""
    yield "lateness p99", milliseconds(state.lateness_p99_ms), ""
    if state.messages_per_s:
        yield "messages", f"{state.messages_per_s:,.0f}/s", ""
    if state.unanswered:
        yield "unanswered", unanswered(state), "bold yellow"


def _server(state: LiveState) -> Iterator[Fact]:
    yield "Server", "", ""
    yield "active", or_dash(state.active, ",d"), "bold"
    yield "accepted", or_dash(state.accepts, ",d"), ""
    yield "handled", or_dash(state.handled, ",d"), "bold red" if _handles_fewer(state) else ""
    yield "memory", or_bytes(state.server_bytes), ""
    yield "CPU", cores(state.server_cpu_share), ""


def _handles_fewer(state: LiveState) -> bool:
    """Whether the server handles fewer connections than it accepted."""
    if state.accepts is None or state.handled is None:
        return False
    return state.handled < state.accepts


def _generator(state: LiveState) -> Iterator[Fact]:
    yield "asyncli", "", ""
    workers = "-"
    if state.workers:
        workers = format_count(state.workers)
    yield "workers", workers, "bold"
    yield "memory", or_bytes(state.generator_bytes), ""
    yield "CPU", cores(state.generator_cpu_share), ""
    longest_turn = "-"
    if state.longest_turn_s is not None:
        longest_turn = milliseconds(state.longest_turn_s * 1e3)
    yield "longest turn", longest_turn, ""


def _cost(state: LiveState) -> list[Text]:
    """Two lines: the cost so far with its age, and its parts."""
    from rich.text import Text

    streams = with_streams(state.streams)
    total = known_total(state)
    if total is not None:
        first = Text.assemble(
            f"One more connection{streams} costs ",
            (with_error(total), "bold cyan"),
            f" on {state.host}{age_of_cost(state)}",
        )
    elif state.phase == "ramp" or state.cost is None:
        first = Text(f"Cost of a connection{streams} on {state.host}: not known yet", "dim")
    else:
        why = state.cost_unknown or "other programs may be in it"
        first = Text(f"Cost of a connection{streams} on {state.host}: unknown ({why})", "dim")
    return [first, Text(f"  {', '.join(_parts_of_cost(state))}", "dim")]


def _parts_of_cost(state: LiveState) -> Iterator[str]:
    if state.cost is None:
        return
    if state.cost.server_user is not None:
        yield f"server {with_error(state.cost.server_user)}"
    if state.cost.kernel is not None:
        yield f"kernel {with_error(state.cost.kernel)} an end"
    if state.cost.generator_user is not None:
        yield f"asyncli {with_error(state.cost.generator_user)}"


def _cut(line: Text, width: int) -> Text:
    """The line, cut to ``width``."""
    if line.cell_len > width:
        line.truncate(max(1, width - 3))
        line.append("...")
    line.no_wrap = True
    return line
