"""The log of a running soak: a line every ten seconds, as text or JSON."""

from __future__ import annotations

import datetime
import os
import re
from typing import TYPE_CHECKING, Any, Self

import msgspec

from asyncli.model.exit_status import exit_status
from asyncli.model.plan import Plan
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_clock, format_count, format_duration
from asyncli.report.answer import one_line
from asyncli.report.format import cores, milliseconds, plus_minus, with_streams
from asyncli.report.livestate import LiveState, Notice
from asyncli.report.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console

_LINE_EVERY_S = 10.0
# Infos on what could not be read are in the report; needs_root sums them up for an ordinary user.
_UNREAD = re.compile(r"preflight_\w+|slabinfo_unreadable|server_processes_unknown|\w+_memory_unprivileged")


class NullView:
    """Shows nothing."""

    def update(self, state: LiveState) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def behind(console: Console) -> bool:
    """Whether the reader of earlier output is slow or stopped (asyncli/cli/stdio.py)."""
    return bool(getattr(getattr(console.file, "buffer", None), "behind", False))


class _Log(NullView):
    """The position of a log between two updates."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._console = console
        self._phase: str | None = None
        self._next_s = 0.0
        self._findings = 0
        self._dropped = 0

    def _lines_dropped(self) -> int:
        """The number of lines dropped since the last call; 0 until the reader catches up."""
        if behind(self._console):
            return 0
        before, self._dropped = self._dropped, getattr(getattr(self._console.file, "buffer", None), "dropped", 0)
        return self._dropped - before

    def write_findings(self, state: LiveState) -> None:
        """Write the findings since the last call, and nothing else."""

    def _new_findings(self, state: LiveState) -> tuple[Notice, ...]:
        """The findings since the last call that the state still has."""
        new = min(state.findings_seen - self._findings, len(state.findings))
        self._findings = state.findings_seen
        return state.findings[len(state.findings) - new :] if new else ()


class PlainView(_Log):
    """A line at each change of phase, each finding, and every ten seconds of the run."""

    def write_findings(self, state: LiveState) -> None:
        for notice in self._new_findings(state):
            one = notice.finding
            if one.severity != "info" or not _UNREAD.fullmatch(one.code):
                self._print(f"{format_clock(notice.t_s)}  {one.severity}: {oneline(one.evidence)}")

    def update(self, state: LiveState) -> None:
        if dropped := self._lines_dropped():
            self._print(f"{format_clock(state.elapsed_s)}  {format_count(dropped)} lines of this log were dropped: no reader")
        self.write_findings(state)
        if state.over:
            return
        if state.phase != self._phase or state.elapsed_s >= self._next_s:
            self._phase = state.phase
            self._next_s = state.elapsed_s + _LINE_EVERY_S
            self._print(plain_line(state))

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


class JsonView(_Log):
    """The log as JSON, an object per line (docs/overnight.md). ``began_s``: when the run started (s since 1970) if it is read
    from a file; None: the time of a line is now.
    """

    def __init__(self, plan: Plan, console: Console, began_s: float | None = None) -> None:
        self._file, self._began_s = console.file, began_s
        self._before = LiveState()
        super().__init__(plan, console)

    def write_findings(self, state: LiveState) -> None:
        for notice in self._new_findings(state):
            self._write("finding", notice.t_s, notice.phase, msgspec.to_builtins(notice.finding))

    def update(self, state: LiveState) -> None:
        if dropped := self._lines_dropped():
            self._write("dropped", state.elapsed_s, state.phase, {"lines": dropped})
        self.write_findings(state)
        self._write_changes(state)
        if state.over:
            return
        if state.phase != self._phase:
            self._phase = state.phase
            self._write("phase", state.elapsed_s, state.phase, {})
        if state.elapsed_s >= self._next_s:
            self._next_s = state.elapsed_s + _LINE_EVERY_S
            self.print_status(state)

    def print_status(self, state: LiveState) -> None:
        """Write a status line now."""
        self._write("status", state.elapsed_s, state.phase, status(state))

    def _write_changes(self, state: LiveState) -> None:
        """Write losses, failures, error answers and server restarts since the last update, which was at ``since_s``."""
        before, self._before = self._before, state
        since = {"since_s": before.elapsed_s}
        for event, count, causes, old in (
            ("lost", state.lost - before.lost, state.deaths, before.deaths),
            ("failed", state.failed - before.failed, state.failures, before.failures),
            ("errors", sum(state.errors.values()) - sum(before.errors.values()), state.errors, before.errors),
        ):
            if count > 0:
                more = {cause: new for cause, number in causes.items() if (new := number - old.get(cause, 0)) > 0}
                self._write(event, state.elapsed_s, state.phase, {"count": count, "causes": more, **since})
        ended, restarted = state.server_ended - before.server_ended, state.server_restarts > before.server_restarts
        if ended > 0 or restarted:
            what = {"ended": ended, "processes": state.server_processes, "counters_restarted": restarted}
            self._write("server", state.elapsed_s, state.phase, {**what, **since})

    def _write(self, event: str, t_s: float, phase: str | None, more: dict[str, Any]) -> None:
        wall = None if self._began_s is None else self._began_s + t_s
        self._file.write(json_line(event, t_s, phase, more, wall) + "\n")
        self._file.flush()


def json_line(event: str, t_s: float, phase: str | None, more: dict[str, Any], wall_s: float | None = None) -> str:
    """One line; ``wall_s``: its time (s since 1970), None for now."""
    utc = datetime.UTC
    when = datetime.datetime.now(utc) if wall_s is None else datetime.datetime.fromtimestamp(wall_s, utc)
    line = {"time": when.isoformat(timespec="milliseconds"), "t_s": round(t_s, 3), "event": event, "phase": phase, **more}
    return msgspec.json.encode(line).decode()


def end_line(summary: Summary, path: str | os.PathLike[str], wall_s: float | None = None) -> str:
    """The last line: verdict, reason, and the one line of $ASYNCLI_LINE."""
    phase = summary.run.phases[-1].name if summary.run.phases else None
    more = {
        "verdict": summary.verdict, "status": exit_status(summary.verdict), "line": one_line(summary),
        "complete": summary.run.complete, "stopped": summary.run.stopped, "run": oneline(os.fspath(path)),
    }  # fmt: skip
    return json_line("end", summary.run.duration_s, phase, more, wall_s)


def status(state: LiveState) -> dict[str, Any]:
    """The state as plain data, without what every line or other lines have."""
    excluded = ("phase", "elapsed_s", "findings", "findings_seen", "phases_done", "over")
    return {key: value for key, value in msgspec.to_builtins(state).items() if key not in excluded}


def plain_line(state: LiveState) -> str:
    """The state as a line of text, without unknown numbers."""
    parts = [f"held {format_count(state.held)} of {format_count(state.asked)}"]
    if state.phase == "ramp" and state.achieved_per_s is not None:
        parts.append(f"{state.achieved_per_s:,.0f}/s (asked {state.asked_per_s:,.0f}/s)")
    if left_s := round(state.eta_s or 0):
        until = f" (until {state.until})" if state.until and state.phase == "hold" else ""
        parts.append(f"{format_duration(left_s)} left{until}")
    if state.refilling and state.phase == "hold":
        parts.append("reopening")
    parts.append(f"lost {format_count(state.lost)}" + causes(state.deaths))
    if state.failed:
        parts.append(f"failed {format_count(state.failed)}" + causes(state.failures))
    if state.errors:
        parts.append(f"errors {format_count(sum(state.errors.values()))}" + causes(state.errors))
    if state.unanswered:
        parts.append(f"unanswered {unanswered(state)}")
    if state.heartbeats_per_s and state.latency_p50_ms is not None:
        parts.append(
            f"{state.heartbeats_per_s:,.0f} beats/s p50 {milliseconds(state.latency_p50_ms)} "
            f"p99 {milliseconds(state.latency_p99_ms)} late p99 {milliseconds(state.lateness_p99_ms)}"
        )
    if state.messages_per_s:
        parts.append(f"{state.messages_per_s:,.0f} messages/s")
    if state.active is not None:
        parts.append(f"server active {format_count(state.active)}")
    if state.server_bytes is not None:
        parts.append(f"server {format_bytes(state.server_bytes)}")
    if state.generator_bytes is not None:
        parts.append(f"asyncli {format_bytes(state.generator_bytes)} {cores(state.generator_cpu_share)}")
    if state.host_per_connection is not None and state.host_per_connection_half is not None:
        each = plus_minus(state.host_per_connection, state.host_per_connection_half)
        parts.append(f"{each} a connection{with_streams(state.streams)} on {state.host}{so_far(state)}")
    return f"{format_clock(state.elapsed_s)}  {state.phase or 'start':<8}  " + "; ".join(parts)


def so_far(state: LiveState) -> str:
    """What follows a cost: whether memory grows by itself is known in the hold only."""
    return " so far" if state.phase == "ramp" else ", first use included"


def unanswered(state: LiveState) -> str:
    """The connections that wait for an answer, and the longest wait: ``100, longest 6 s``."""
    return f"{format_count(state.unanswered)}, longest {format_duration(round(state.longest_wait_s))}"


def causes(counts: dict[str, int]) -> str:
    """The counts, most frequent first: ``" (closed_idle 2, reset 1)"``; "" without any."""
    listed = ", ".join(f"{cause} {format_count(n)}" for cause, n in sorted(counts.items(), key=lambda pair: -pair[1]) if n)
    return f" ({listed})" if listed else ""
