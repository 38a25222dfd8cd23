"""A run to look at while it lasts: a calm screen on a terminal, one line every ten seconds elsewhere, or nothing."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from asyncli.exit_status import exit_status
from asyncli.plan import Plan
from asyncli.records import PHASES, Finding
from asyncli.report.answer import one_line
from asyncli.report.format import cores, milliseconds, or_bytes, or_dash, plus_minus
from asyncli.report.jsonout import finite
from asyncli.report.livestate import LiveFold, LiveState, Notice
from asyncli.report.summary import Summary
from asyncli.report.terminal import SEVERITY_STYLE
from asyncli.text import oneline
from asyncli.units import format_bytes, format_clock, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

__all__ = ["JsonView", "LiveFold", "LiveState", "LiveView", "NullView", "PlainView", "end_line"]

# More often tires the eye, and the terminal.
_SHORTEST_FRAME_S = 0.25
_LINE_EVERY_S = 10.0
# Columns that are farther apart than this are read apart.
_WIDEST = 92

#: (name, value, style on a terminal)
LiveRows = Iterable[tuple[str, str, str]]


class NullView:
    """Shows nothing."""

    def update(self, state: LiveState) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def _behind(console: Console) -> bool:
    """What was printed before is not read yet: the reader is slow, or has stopped (asyncli/cli/outlet.py)."""
    return bool(getattr(getattr(console.file, "buffer", None), "behind", False))


class _Log(NullView):
    """What every log keeps: where it stands between two looks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase: str | None = None
        self._next_s = 0.0
        self._findings = 0
        self._dropped = 0

    def _lines_dropped(self) -> int:
        """Lines that were dropped since the last call, once their reader is back."""
        if _behind(self._console):
            return 0
        before, self._dropped = self._dropped, getattr(getattr(self._console.file, "buffer", None), "dropped", 0)
        return self._dropped - before

    def tell_findings(self, state: LiveState) -> None:
        """The findings since the last call, and nothing of how it stands."""

    def _fresh(self, state: LiveState) -> tuple[Notice, ...]:
        """The findings since the last call, as far as the state still has them."""
        fresh = min(state.findings_seen - self._findings, len(state.findings))
        self._findings = state.findings_seen
        return state.findings[len(state.findings) - fresh :] if fresh else ()


class PlainView(_Log):
    """A log: a line at each change of phase, at each finding, and every ten seconds of the run."""

    def __init__(self, plan: Plan, console: Console) -> None:
        super().__init__(console)

    def tell_findings(self, state: LiveState) -> None:
        for told in self._fresh(state):
            self._print(f"{format_clock(told.t_s)}  {told.finding.severity}: {oneline(told.finding.evidence)}")

    def update(self, state: LiveState) -> None:
        if dropped := self._lines_dropped():
            self._print(f"{format_clock(state.elapsed_s)}  {format_count(dropped)} lines of this log are missing: nobody read it")
        self.tell_findings(state)
        if state.over:
            return
        if state.phase != self._phase or state.elapsed_s >= self._next_s:
            self._phase = state.phase
            self._next_s = state.elapsed_s + _LINE_EVERY_S
            self._print(plain_line(state))

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


class JsonView(_Log):
    """The same log for machines: a JSON object a line; README.md says what ``event`` may be, and what it then has.

    ``began_s``: when the run began (s since 1970), of one that is looked at later; None: its instants are those of the telling.
    """

    def __init__(self, plan: Plan, console: Console, began_s: float | None = None) -> None:
        self._file, self._began_s = console.file, began_s
        self._before = LiveState()
        super().__init__(console)

    def tell_findings(self, state: LiveState) -> None:
        for told in self._fresh(state):
            self._say("finding", told.t_s, told.phase, msgspec.to_builtins(told.finding))

    def update(self, state: LiveState) -> None:
        if dropped := self._lines_dropped():
            self._say("dropped", state.elapsed_s, state.phase, {"lines": dropped})
        self.tell_findings(state)
        self._tell_changes(state)
        if state.over:
            return
        if state.phase != self._phase:
            self._phase = state.phase
            self._say("phase", state.elapsed_s, state.phase, {})
        if state.elapsed_s >= self._next_s:
            self._next_s = state.elapsed_s + _LINE_EVERY_S
            self.say_now(state)

    def say_now(self, state: LiveState) -> None:
        """How it stands, for whoever asks between two lines."""
        self._say("status", state.elapsed_s, state.phase, status(state))

    def _tell_changes(self, state: LiveState) -> None:
        """What was lost, what failed, and what happened to the server since the last look, which was at ``since_s``."""
        before, self._before = self._before, state
        since = {"since_s": before.elapsed_s}
        for event, count, causes, old in (
            ("lost", state.lost - before.lost, state.deaths, before.deaths),
            ("failed", state.failed - before.failed, state.failures, before.failures),
        ):
            if count > 0:
                more = {cause: new for cause, number in causes.items() if (new := number - old.get(cause, 0)) > 0}
                self._say(event, state.elapsed_s, state.phase, {"count": count, "causes": more, **since})
        ended, restarted = state.server_ended - before.server_ended, state.server_restarts > before.server_restarts
        if ended > 0 or restarted:
            what = {"ended": ended, "processes": state.server_processes, "counters_restarted": restarted}
            self._say("server", state.elapsed_s, state.phase, {**what, **since})

    def _say(self, event: str, t_s: float, phase: str | None, more: dict[str, Any]) -> None:
        wall = None if self._began_s is None else self._began_s + t_s
        self._file.write(json_line(event, t_s, phase, more, wall) + "\n")
        self._file.flush()


def json_line(event: str, t_s: float, phase: str | None, more: dict[str, Any], wall_s: float | None = None) -> str:
    """One line of the log for machines; ``wall_s``: when it was (s since 1970), None for now."""
    utc = datetime.UTC
    when = datetime.datetime.now(utc) if wall_s is None else datetime.datetime.fromtimestamp(wall_s, utc)
    line = {"time": when.isoformat(timespec="milliseconds"), "t_s": round(t_s, 3), "event": event, "phase": phase, **more}
    return msgspec.json.encode(finite(line)).decode()


def end_line(summary: Summary, path: str | os.PathLike[str], wall_s: float | None = None) -> str:
    """The last line of that log: the verdict, why, and the one line of $ASYNCLI_LINE."""
    phase = summary.run.phases[-1].name if summary.run.phases else None
    more = {
        "verdict": summary.verdict, "status": exit_status(summary.verdict), "line": one_line(summary),
        "complete": summary.run.complete, "stopped": summary.run.stopped, "run": oneline(os.fspath(path)),
    }  # fmt: skip
    return json_line("end", summary.run.duration_s, phase, more, wall_s)


def status(state: LiveState) -> dict[str, Any]:
    """One look as plain data, without what a log says by itself."""
    of_the_log = ("phase", "elapsed_s", "findings", "findings_seen", "phases_done", "over")
    return {key: value for key, value in msgspec.to_builtins(state).items() if key not in of_the_log}


def plain_line(state: LiveState) -> str:
    """One look as one line of a log; what is not known is left out."""
    parts = [f"held {format_count(state.held)} of {format_count(state.asked)}"]
    if state.phase == "ramp" and state.achieved_per_s is not None:
        parts.append(f"{state.achieved_per_s:,.0f}/s (asked {state.asked_per_s:,.0f}/s)")
    if state.eta_s is not None:
        until = f" (until {state.until})" if state.until and state.phase == "hold" else ""
        parts.append(f"{format_duration(round(state.eta_s))} left{until}")
    elif state.refilling and state.phase == "hold":
        parts.append("opens again what it held")
    parts.append(f"lost {format_count(state.lost)}" + _causes(state.deaths))
    if state.failed:
        parts.append(f"failed {format_count(state.failed)}" + _causes(state.failures))
    if state.unanswered:
        parts.append(f"unanswered {unanswered(state)}")
    if state.heartbeats_per_s and state.latency_p50_ms is not None:
        parts.append(
            f"{state.heartbeats_per_s:,.0f} beats/s p50 {milliseconds(state.latency_p50_ms)} "
            f"p99 {milliseconds(state.latency_p99_ms)} late p99 {milliseconds(state.lateness_p99_ms)}"
        )
    if state.active is not None:
        parts.append(f"server active {format_count(state.active)}")
    if state.server_bytes is not None:
        parts.append(f"server {format_bytes(state.server_bytes)}")
    if state.generator_bytes is not None:
        parts.append(f"asyncli {format_bytes(state.generator_bytes)} {cores(state.generator_cpu_share)}")
    if state.host_per_connection is not None and state.host_per_connection_half is not None:
        each = plus_minus(state.host_per_connection, state.host_per_connection_half).replace("±", "+-")
        parts.append(f"{each} a connection on {state.host}, first use included")
    return f"{format_clock(state.elapsed_s)}  {state.phase or 'start':<8}  " + "; ".join(parts)


def unanswered(state: LiveState) -> str:
    """``100, longest 6 s``: how many connections wait for an answer, and the longest wait."""
    return f"{format_count(state.unanswered)}, longest {format_duration(round(state.longest_wait_s))}"


def _causes(counts: dict[str, int]) -> str:
    listed = ", ".join(f"{cause} {format_count(n)}" for cause, n in sorted(counts.items(), key=lambda pair: -pair[1]) if n)
    return f" ({listed})" if listed else ""


class LiveView(NullView):
    """A screen in place, redrawn at most four times a second, gone when the run is over."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._live: Live | None = None
        self._phase: str | None = None
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        from rich.live import Live

        # Our own updates drive it: no thread of rich's that wakes for nothing beside a measurement.
        self._live = Live(console=self._console, auto_refresh=False, screen=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, state: LiveState) -> None:
        now = time.monotonic()
        if self._live is None or (state.phase == self._phase and now - self._drawn_s < _SHORTEST_FRAME_S):
            return
        if _behind(self._console):
            return
        self._phase, self._drawn_s = state.phase, now
        self._live.update(screen(self._plan, state, self._console), refresh=True)


def screen(plan: Plan, state: LiveState, console: Console) -> RenderableType:
    """The whole picture of one state, for the console's width; 22 lines at 80 columns."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    width = min(console.width - 2, _WIDEST)
    plain = console.options.ascii_only
    parts: list[RenderableType] = [_title(plan, state, width), _phases(state, plain), "", _bar(state, width), ""]
    connections, heartbeats, server, generator = panels(state)
    parts += [_pair(width, connections, heartbeats), "", _pair(width, server, generator), ""]
    parts += _cost(state, plain)
    room = 2
    if state.lost or state.failed:
        why = "; ".join(part for part in (_why("lost", state.deaths), _why("failed", state.failures)) if part)
        parts.append(_cut(Text.assemble(("why: ", "bold red"), why), width))
        room = 1
    serious = [told.finding for told in state.findings if told.finding.severity != "info"]
    parts += [_finding(finding, width, plain) for finding in serious[-room:]]
    return Padding(Group(*parts), (0, 1))


def _title(plan: Plan, state: LiveState, width: int) -> Text:
    from rich.text import Text

    clock = format_duration(int(state.elapsed_s)) if state.elapsed_s >= 1 else "0 s"
    more = f" and {len(plan.urls) - 1} more" if len(plan.urls) > 1 else ""
    room = width - len("asyncli  ") - len(more) - len(clock) - 2
    url = plan.urls[0] if len(plan.urls[0]) <= room else plan.urls[0][: max(1, room - 3)] + "..."
    title = Text.assemble(("asyncli", "bold"), "  ", (url, "cyan"), more, no_wrap=True)
    title.append(" " * max(2, width - title.cell_len - len(clock)))
    return title.append(clock, "bold")


def _phases(state: LiveState, plain: bool) -> Text:
    from rich.text import Text

    done, now, later = ("x", ">", ".") if plain else ("✓", "▶", "·")
    line = Text(no_wrap=True)
    for name in PHASES:
        said = f"hold until {state.until}" if name == "hold" and state.until else name
        if name == state.phase:
            line.append(f"{now} {said}   ", "bold cyan")
        elif name in state.phases_done:
            line.append(f"{done} {said}   ", "green")
        else:
            line.append(f"{later} {said}   ", "dim")
    return line


def _bar(state: LiveState, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    said = ("opens again" if state.refilling else "until Ctrl-C") if state.phase == "hold" else ""
    if state.eta_s is not None:
        said = f"{format_duration(round(state.eta_s))} left" if state.eta_s >= 0.5 else "any moment"
    share = "" if state.progress is None else f"{state.progress * 100:.0f} %"
    row = Table.grid(padding=(0, 2), pad_edge=False)
    room = width - 8 - 5 - 15 - 6
    bar = ProgressBar(total=1.0, completed=state.progress or 0.0, width=room, complete_style="cyan", finished_style="green")
    row.add_column(width=8)
    row.add_column(width=room)
    row.add_column(width=5, justify="right")
    row.add_column(width=15, no_wrap=True)
    row.add_row(Text(state.phase or "start", "bold"), bar, share, Text(said, "dim"))
    return row


def _pair(width: int, left: tuple[str, LiveRows], right: tuple[str, LiveRows]) -> RenderableType:
    from rich.table import Table

    half = (width - 2) // 2
    pair = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    pair.add_column(width=half)
    pair.add_column(width=half)
    pair.add_row(_facts(*left, half), _facts(*right, half))
    return pair


def _facts(heading: str, rows: LiveRows, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    facts.add_column(width=14, no_wrap=True)
    facts.add_column(width=width - 15, justify="right", no_wrap=True, overflow="crop")
    facts.add_row(Text(heading, "bold"), "")
    for name, value, style in rows:
        facts.add_row(Text(f"  {name}", "dim"), Text(value, style))
    return facts


def panels(state: LiveState) -> list[tuple[str, LiveRows]]:
    """What a live view shows in its four tables: (heading, rows)."""
    return [
        ("Connections", _connections(state)), ("Heartbeats", _heartbeats(state)), ("Server", _server(state)),
        ("Generator", _generator(state)),
    ]  # fmt: skip


def _connections(state: LiveState) -> LiveRows:
    whole = state.held >= state.asked
    yield "held", f"{format_count(state.held)} of {format_count(state.asked)}", "bold green" if whole else "bold"
    if state.phase == "ramp" or state.achieved_per_s:
        yield "rate", f"{or_dash(state.achieved_per_s, ',.0f')}/s of {state.asked_per_s:,.0f}/s", ""
    else:
        yield "reopened", format_count(state.reopened), ""
    yield "connecting", format_count(state.connecting), ""
    yield "lost", format_count(state.lost), "bold red" if state.lost else "green"
    yield "failed", format_count(state.failed), "bold red" if state.failed else "green"


def _heartbeats(state: LiveState) -> LiveRows:
    yield "answered", f"{or_dash(state.heartbeats_per_s, ',.0f')}/s", "bold"
    yield "latency p50", milliseconds(state.latency_p50_ms), ""
    yield "latency p99", milliseconds(state.latency_p99_ms), ""
    yield "lateness p99", milliseconds(state.lateness_p99_ms), ""
    if state.unanswered:
        yield "unanswered", unanswered(state), "bold yellow"


def _server(state: LiveState) -> LiveRows:
    yield "active", or_dash(state.active, ",d"), "bold"
    yield "accepted", or_dash(state.accepts, ",d"), ""
    behind = state.accepts is not None and state.handled is not None and state.handled < state.accepts
    yield "handled", or_dash(state.handled, ",d"), "bold red" if behind else ""
    yield "memory", or_bytes(state.server_bytes), ""
    yield "CPU", cores(state.server_cpu_share), ""


def _generator(state: LiveState) -> LiveRows:
    yield "workers", format_count(state.workers) if state.workers else "-", "bold"
    yield "memory", or_bytes(state.generator_bytes), ""
    yield "CPU", cores(state.generator_cpu_share), ""
    yield "longest turn", "-" if state.longest_turn_s is None else milliseconds(state.longest_turn_s * 1e3), ""


def _cost(state: LiveState, plain: bool) -> list[Text]:
    """Two lines: what a connection costs so far, and where; never without its error."""
    from rich.text import Text

    def each(value: float, half: float) -> str:
        return plus_minus(value, half).replace("±", "+-" if plain else "±")

    whole, half = state.host_per_connection, state.host_per_connection_half
    if whole is None or half is None:
        first = Text(f"A connection's cost on {state.host}: not yet known", "dim")
    else:
        first = Text.assemble("A connection costs ", (each(whole, half), "bold cyan"), f" on {state.host}, first use included")
    parts = [
        f"{where} {each(value, half)}"
        for value, half, where in (
            (state.server_per_connection, state.server_per_connection_half, "server"),
            (state.kernel_per_connection, state.kernel_per_connection_half, "kernel, all ends,"),
            (state.generator_per_connection, state.generator_per_connection_half, "asyncli"),
        )
        if value is not None and half is not None
    ]
    return [first, Text("  " + ", ".join(parts), "dim")]


def _finding(finding: Finding, width: int, plain: bool) -> Text:
    from rich.text import Text

    words = oneline(finding.evidence)
    words = words.encode("ascii", "replace").decode() if plain else words
    return _cut(Text.assemble((f"{finding.severity}: ", SEVERITY_STYLE[finding.severity]), words), width)


def _why(what: str, counts: dict[str, int]) -> str:
    return f"{what}{_causes(counts)}" if any(counts.values()) else ""


def _cut(line: Text, width: int) -> Text:
    """The line's beginning, as much as fits."""
    if line.cell_len > width:
        line.truncate(width - 3)
        line.append("...")
    line.no_wrap = True
    return line
