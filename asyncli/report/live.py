"""The log of a running soak: a line every ten seconds, as text or JSON."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import msgspec

from asyncli.analysis.slope import Cost
from asyncli.model.exit_status import exit_status
from asyncli.model.plan import Plan
from asyncli.model.records import RunEvent
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_clock, format_count, format_duration
from asyncli.report.answer import is_hidden, one_line
from asyncli.report.format import cores, milliseconds, or_dash, with_error, with_streams
from asyncli.report.limits_so_far import LimitSoFar
from asyncli.report.livestate import LiveState, Notice
from asyncli.report.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console

_LINE_EVERY_S = 10.0
# Infos on what could not be read are in the report; needs_root sums them up for an ordinary user.
_UNREAD = re.compile(
    r"preflight_\w+|slabinfo_unreadable|server_processes_unknown|\w+_memory_unprivileged"
)


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
        self._events = 0
        self._dropped = 0

    def _lines_dropped(self) -> int:
        """The number of lines dropped since the last call; 0 until the reader catches up."""
        if behind(self._console):
            return 0
        before = self._dropped
        buffer = getattr(self._console.file, "buffer", None)
        self._dropped = getattr(buffer, "dropped", 0)
        return self._dropped - before

    def write_news(self, state: LiveState) -> None:
        """Write the findings and events since the last call, and nothing else."""

    def _new_findings(self, state: LiveState) -> tuple[Notice, ...]:
        """The findings since the last call that the state still has."""
        new = min(state.findings_seen - self._findings, len(state.findings))
        self._findings = state.findings_seen
        if not new:
            return ()
        return state.findings[len(state.findings) - new :]

    def _new_events(self, state: LiveState) -> tuple[RunEvent, ...]:
        """The events since the last call that the state still has."""
        new = min(state.events_seen - self._events, len(state.events))
        self._events = state.events_seen
        return state.events[len(state.events) - new :]


class PlainView(_Log):
    """A line at each change of phase, each finding and event, and every ten seconds of the run; and
    one with why the cost is unknown.
    """

    _has_told_cost = False
    #: When the hold was first seen (s on the run's clock).
    _hold_s: float | None = None

    def write_news(self, state: LiveState) -> None:
        for notice in self._new_findings(state):
            finding = notice.finding
            if finding.severity == "info" and _UNREAD.fullmatch(finding.code):
                continue
            time = format_clock(notice.t_s)
            self._print(f"{time}  {finding.severity}: {oneline(finding.evidence)}")
        for event in self._new_events(state):
            self._print(event_line(event))
        self._write_unknown_cost(state)

    def _write_unknown_cost(self, state: LiveState) -> None:
        """Once in the hold: why the cost of a connection is unknown, by records of the hold too."""
        if self._has_told_cost or state.phase != "hold":
            return
        if self._hold_s is None:
            self._hold_s = state.elapsed_s
        if not state.cost_unknown or state.cost_at_s is None or state.cost_at_s <= self._hold_s:
            return
        self._has_told_cost = True
        time = format_clock(state.elapsed_s)
        self._print(f"{time}  cost unknown so far: {oneline(state.cost_unknown)}")

    def update(self, state: LiveState) -> None:
        dropped = self._lines_dropped()
        if dropped:
            time = format_clock(state.elapsed_s)
            lines = format_count(dropped)
            self._print(f"{time}  {lines} lines of this log were dropped: no reader")
        self.write_news(state)
        if state.over:
            return
        if state.phase != self._phase or state.elapsed_s >= self._next_s:
            self._phase = state.phase
            self._next_s = state.elapsed_s + _LINE_EVERY_S
            self._print(plain_line(state))

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


class JsonView(_Log):
    """The log as JSON, an object per line (docs/overnight.md). ``began_s``: when the run started
    (s since 1970) if it is read from a file; None: the time of a line is now.
    """

    def __init__(self, plan: Plan, console: Console, began_s: float | None = None) -> None:
        self._file = console.file
        self._began_s = began_s
        self._before = LiveState()
        super().__init__(plan, console)

    def write_news(self, state: LiveState) -> None:
        for notice in self._new_findings(state):
            self._write("finding", notice.t_s, notice.phase, msgspec.to_builtins(notice.finding))
        for event in self._new_events(state):
            self._write(event.kind, told_at_s(event), state.phase, _event_fields(event))

    def update(self, state: LiveState) -> None:
        dropped = self._lines_dropped()
        if dropped:
            self._write("dropped", state.elapsed_s, state.phase, {"lines": dropped})
        self.write_news(state)
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
        """Write losses, failures, error answers and server restarts since the last update:
        ``since_s``. What is counted second by second is of the time since the last second.
        """
        before = self._before
        self._before = state
        lost = state.lost - before.lost
        failed = state.failed - before.failed
        errors = sum(state.errors.values()) - sum(before.errors.values())
        for event, count, causes in (
            ("lost", lost, _new_counts(state.deaths, before.deaths)),
            ("failed", failed, _new_counts(state.failures, before.failures)),
            ("errors", errors, _new_counts(state.errors, before.errors)),
        ):
            if count > 0:
                fields = {"count": count, "causes": causes, "since_s": before.counted_s}
                self._write(event, state.elapsed_s, state.phase, fields)
        ended = state.server_ended - before.server_ended
        is_restarted = state.server_restarts > before.server_restarts
        if ended > 0 or is_restarted:
            fields = {
                "ended": ended,
                "processes": state.server_processes,
                "counters_restarted": is_restarted,
                "since_s": before.elapsed_s,
            }
            self._write("server", state.elapsed_s, state.phase, fields)

    def _write(self, event: str, t_s: float, phase: str | None, fields: dict[str, Any]) -> None:
        wall_s = None if self._began_s is None else self._began_s + t_s
        self._file.write(json_line(event, t_s, phase, fields, wall_s) + "\n")
        self._file.flush()


def _new_counts(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """By how much the counts rose."""
    new_counts = {}
    for cause, count in counts.items():
        new = count - before.get(cause, 0)
        if new > 0:
            new_counts[cause] = new
    return new_counts


def json_line(
    event: str, t_s: float, phase: str | None, fields: dict[str, Any], wall_s: float | None = None
) -> str:
    """One line; ``wall_s``: its time (s since 1970), None for now."""
    time = datetime.datetime.now(datetime.UTC)
    if wall_s is not None:
        time = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
    line = {
        "time": time.isoformat(timespec="milliseconds"),
        "t_s": round(t_s, 3),
        "event": event,
        "phase": phase,
        **fields,
    }
    return msgspec.json.encode(line).decode()


def end_line(summary: Summary, path: str | os.PathLike[str], wall_s: float | None = None) -> str:
    """The last line: verdict, reason, and the one line of $ASYNCLI_LINE."""
    phase = summary.run.phases[-1].name if summary.run.phases else None
    fields = {
        "verdict": summary.verdict,
        "status": exit_status(summary.verdict),
        "line": one_line(summary),
        "complete": summary.run.complete,
        "stopped": summary.run.stopped,
        "run": oneline(os.fspath(path)),
    }
    return json_line("end", summary.run.duration_s, phase, fields, wall_s)


#: What every line or other lines have.
_NOT_IN_STATUS = (
    "phase",
    "elapsed_s",
    "counted_s",
    "away",
    "not_back",
    "hold_left_s",
    "findings",
    "findings_seen",
    "events",
    "events_seen",
    "phases_done",
    "over",
)


def event_line(event: RunEvent) -> str:
    """An event as a line of text: ``0:12:34  mark: deployed 1.4.2``, ``0:20:00  drop 30%``. A
    command has one as it begins and one as it ends: ``0:20:03  run ended with status 0: ./deploy``.
    """
    text = oneline(event.text)
    time = format_clock(told_at_s(event))
    if event.kind not in ("mark", "run"):
        return f"{time}  {text}"
    return f"{time}  {event.kind}{_how_it_ended(event)}: {text}"


def told_at_s(event: RunEvent) -> float:
    """When a log tells of an event (s on the run's clock): of a command that has ended, its end."""
    if event.kind == "run" and "status" in event.fields and event.end_s is not None:
        return event.end_s
    return event.at_s


def _how_it_ended(event: RunEvent) -> str:
    """The end of a command, behind "run"; "" as it begins, and for a mark."""
    if "status" not in event.fields:
        return " begins" if event.kind == "run" else ""
    status = event.fields["status"]
    if status is not None:
        return f" ended with status {status}"
    if event.fields.get("took_s"):
        return " ended by asyncli with the hold"
    return " did not begin"


def _event_fields(event: RunEvent) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": event.text}
    if event.kind == "run" and "status" in event.fields:
        fields["status"] = event.fields["status"]
        fields["took_s"] = event.fields.get("took_s")
    return fields


def status(state: LiveState) -> dict[str, Any]:
    """The state as plain data."""
    fields = msgspec.to_builtins(state)
    return {key: value for key, value in fields.items() if key not in _NOT_IN_STATUS}


def plain_line(state: LiveState) -> str:
    """The state as a line of text, without unknown numbers."""
    parts = [*_progress(state), *_troubles(state), *_rates(state), *_memory(state)]
    time = format_clock(state.elapsed_s)
    return f"{time}  {state.phase or 'start':<8}  {'; '.join(parts)}"


def _progress(state: LiveState) -> Iterator[str]:
    yield f"held {format_count(state.held)} of {format_count(state.asked)}"
    if state.phase == "hold":
        yield from _away(state)
    if state.phase == "ramp" and state.achieved_per_s is not None:
        yield f"{state.achieved_per_s:,.0f}/s (asked {or_dash(state.asked_per_s, ',.0f')}/s)"
    left_s = round(state.eta_s or 0)
    if left_s and state.until and state.phase == "hold":
        yield f"{format_duration(left_s)} left (until {state.until})"
    elif left_s:
        yield f"{format_duration(left_s)} left"
    if state.refilling and state.phase == "hold":
        yield "reopening"


def _away(state: LiveState) -> Iterator[str]:
    """Who is missing by the plan's events."""
    if state.away:
        yield f"{format_count(state.away)} away by events"
    if state.not_back:
        yield f"{format_count(state.not_back)} not back from events"


def _troubles(state: LiveState) -> Iterator[str]:
    yield f"lost {format_count(state.lost)}{causes(state.deaths)}"
    if state.failed:
        yield f"failed {format_count(state.failed)}{causes(state.failures)}"
    if state.errors:
        yield f"errors {format_count(sum(state.errors.values()))}{causes(state.errors)}"
    if state.unanswered:
        yield f"unanswered {unanswered(state)}"
    for limit in crossed_for_good(state):
        yield f"limit {limit.text} crossed"


def crossed_for_good(state: LiveState) -> list[LimitSoFar]:
    """The limits that will be crossed at the end too."""
    return [limit for limit in state.limits if limit.is_crossed and limit.stays_crossed]


def _rates(state: LiveState) -> Iterator[str]:
    if state.heartbeats_per_s and state.latency_p50_ms is not None:
        p50 = milliseconds(state.latency_p50_ms)
        p99 = milliseconds(state.latency_p99_ms)
        late = milliseconds(state.lateness_p99_ms)
        yield f"{state.heartbeats_per_s:,.0f} beats/s p50 {p50} p99 {p99} late p99 {late}"
    if state.messages_per_s:
        yield f"{state.messages_per_s:,.0f} messages/s"


def _memory(state: LiveState) -> Iterator[str]:
    """What the server, asyncli and the host have and use."""
    if state.active is not None:
        yield f"server active {format_count(state.active)}"
    if state.server_bytes is not None:
        yield f"server {format_bytes(state.server_bytes)}"
    if state.generator_bytes is not None:
        cpu = cores(state.generator_cpu_share)
        yield f"asyncli {format_bytes(state.generator_bytes)} {cpu}"
    total = known_total(state)
    if total is not None:
        connection = f"connection{with_streams(state.streams)}"
        yield f"{with_error(total)} a {connection} on {state.host}{age_of_cost(state)}"


def known_total(state: LiveState) -> Cost | None:
    """The cost on the host so far, unless other programs may be in it."""
    if state.cost is None or state.cost.host_total is None or is_hidden(state.cost.host_total):
        return None
    return state.cost.host_total


def age_of_cost(state: LiveState) -> str:
    """How long ago the records end that the cost is of: `` (7 s ago)``."""
    if state.cost_at_s is None:
        return ""
    return f" ({format_duration(round(state.elapsed_s - state.cost_at_s))} ago)"


def unanswered(state: LiveState) -> str:
    """The connections that wait for an answer, and the longest wait: ``100, longest 6 s``."""
    longest = format_duration(round(state.longest_wait_s))
    return f"{format_count(state.unanswered)}, longest {longest}"


def causes(counts: dict[str, int]) -> str:
    """The counts, most frequent first: ``" (closed_idle 2, reset 1)"``; "" without any."""
    texts = []
    for cause, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        if count:
            texts.append(f"{cause} {format_count(count)}")
    if not texts:
        return ""
    return f" ({', '.join(texts)})"
