"""Reads an interrupted run, to resume it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from asyncli.findings.run import BY_SIGNAL, where
from asyncli.model.errors import StoreError
from asyncli.model.metrics import GENERATOR_CPU_S, SESSION_CPU_S
from asyncli.model.records import (
    ABORTED,
    CUT,
    GAVE_UP,
    NOTHING_LISTENS,
    RESUMED,
    STOPPED,
    Finding,
    Gap,
    Phase,
    Tick,
    left_out_s,
)
from asyncli.model.run import Run
from asyncli.model.units import format_instant, instant_of
from asyncli.store.follow import sum_ticks
from asyncli.store.lazy_ticks import decode_tick
from asyncli.store.reader import read_findings, read_frame, read_with
from asyncli.store.schema import RECORDED

#: Counters of asyncli's own processes, which a resumed run continues.
OUR_COUNTERS = (GENERATOR_CPU_S, SESSION_CPU_S)
#: The environment's key for the end of a hold by the wall clock (s since 1970).
HOLD_ENDS = "hold_ends_s"


class Interrupted(msgspec.Struct, frozen=True):
    """An interrupted run. Times in seconds since its start."""

    path: Path
    #: Without its long tables.
    run: Run
    #: The value of ``HOLD_ENDS``.
    hold_ends_s: float | None
    #: The last recorded instant.
    last_s: float
    #: From the last tick.
    held: int
    awaiting: int
    coming_back: int
    #: The last values of :data:`OUR_COUNTERS`.
    counted: dict[str, float]
    #: Its counts, without histograms.
    so_far: Tick
    #: Why its session ended it; "" if it was killed.
    ended_by: str
    #: The events of the plan that had begun, by their numbers: how many of those whom each ended
    #: were not back.
    away: dict[int, int]
    #: The value of ``schema.RECORDED``: a greater one later means that another process resumed the
    #: run.
    recorded: int

    @property
    def hold(self) -> Phase | None:
        """Its hold; None if it was interrupted before, and starts again."""
        return self.run.phase("hold")

    @property
    def recorded_events(self) -> list[int]:
        """The numbers of the events of the plan that are recorded."""
        numbers = []
        for event in self.run.events:
            number = event.fields.get("number")
            if isinstance(number, int):
                numbers.append(number)
        return numbers

    @property
    def held_s(self) -> float:
        """Seconds of the hold that were measured."""
        if self.hold is None:
            return 0.0
        return max(
            0.0,
            self.last_s
            - self.hold.start_s
            - left_out_s(self.run.gaps, self.hold.start_s, self.last_s),
        )

    @property
    def ends_s(self) -> float | None:
        """The end of its hold by the wall clock (s since 1970); None without one."""
        plan, started_wall_s = self.run.plan, self.run.started_wall_s
        if plan.hold_until is None:
            return None
        if self.hold is None or plan.hold_s is None:
            # The first such time of day after the run began.
            return instant_of(plan.hold_until, started_wall_s)
        # Computed when the hold began: the wall clock may have been stepped since.
        return self.hold_ends_s or started_wall_s + self.hold.start_s + plan.hold_s

    def left_s(self, now_s: float) -> float | None:
        """Seconds left of the hold at ``now_s`` (s since 1970); None: until stopped."""
        if (ends_s := self.ends_s) is not None:
            return max(0.0, ends_s - now_s)
        if self.run.plan.hold_s is None:
            return None
        return max(0.0, self.run.plan.hold_s - self.held_s)


def read_interrupted(path: str | os.PathLike[str]) -> Interrupted:
    """The run in ``path``. Raises :class:`StoreError` as ``read_run`` does, and if its hold is over
    or would be by now.
    """
    return read_with(path, lambda connection: _require_hold_left(_read(Path(path), connection)))


def _require_hold_left(before: Interrupted) -> Interrupted:
    ends_s = before.ends_s
    if before.left_s(time.time()) == 0 and (before.hold is not None or ends_s is not None):
        if ends_s is None:
            raise _nothing_left(before.path, "its hold was complete")
        end = format_instant(ends_s)
        raise _nothing_left(before.path, f"its hold was to end at {end}, which has passed")
    return before


def _nothing_left(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path}: {why}, so there is nothing to resume; start it again, or see 'asyncli report "
        f"{path}'"
    )


class _Ended(msgspec.Struct):
    """The fields of the finding of a stopped run."""

    phase: str | None
    after_s: float
    of_s: float | None
    because: str = ""
    by: str = BY_SIGNAL


def _last_finding(codes: Collection[str], connection: sqlite3.Connection) -> Finding | None:
    """The last finding with one of these codes since the run was last resumed."""
    last = None
    for finding in read_findings(connection):
        if finding.code == RESUMED:
            last = None
        elif finding.code in codes:
            last = finding
    return last


def _end_reason(finding: Finding | None) -> str:
    if finding is None:
        return "its hold was complete"
    if finding.code in (NOTHING_LISTENS, GAVE_UP):
        return f"it never connected ({finding.evidence})"
    if not finding.fields:
        # Written by an older asyncli.
        return f"it ended before that ({finding.evidence})"
    ended = msgspec.convert(finding.fields, _Ended)
    by = "" if ended.because else f" by the user ({ended.by})"
    because = f", because {ended.because}" if ended.because else ""
    return (
        f"it was stopped{by} {where(ended.phase, ended.after_s, ended.of_s)} and drained{because}"
    )


def _away(frame: Run, connection: sqlite3.Connection) -> dict[int, int]:
    """The events that had begun, and how many are away by each (see ``Interrupted.away``)."""
    away: dict[int, int] = {}
    plan = frame.plan
    if not (plan.events or plan.churn):
        return away
    for event in frame.events:
        number = event.fields.get("number")
        if isinstance(number, int):
            away[number] = 0
    for (payload,) in connection.execute("SELECT payload FROM ticks"):
        for number, counts in decode_tick(payload).events.items():
            away[number] = away.get(number, 0) + counts.away
    return away


_ALL_ROWS = 2**62
# Codes of findings with which a session ended its run.
_ENDINGS = ("generator_failed", "generator_silent", "asyncli_failed", "nobody_home", CUT, STOPPED)


def _read(path: Path, connection: sqlite3.Connection) -> Interrupted:
    frame = read_frame(connection)
    if frame.complete or any(phase.name in ("drain", "residue") for phase in frame.phases):
        end = _last_finding((STOPPED, ABORTED, GAVE_UP, NOTHING_LISTENS), connection)
        raise _nothing_left(path, _end_reason(end))
    row = connection.execute(
        "SELECT t_s, payload FROM ticks ORDER BY rowid DESC LIMIT 1"
    ).fetchone()
    (last_sample_s,) = connection.execute("SELECT max(t_s) FROM samples").fetchone()
    (recorded,) = connection.execute(RECORDED).fetchone()
    last = Tick()
    last_tick_s = 0.0
    if row is not None:
        last = decode_tick(row[1])
        last_tick_s = row[0]
    _, so_far = sum_ticks(connection, _ALL_ROWS, frame.plan) or (0.0, Tick())
    spans: list[Phase | Gap] = [*frame.phases, *frame.gaps]
    instants = [span.start_s if span.end_s is None else span.end_s for span in spans]
    ended = _last_finding(_ENDINGS, connection)
    newest = (
        "SELECT value FROM samples WHERE metric = (SELECT id FROM metrics WHERE name = ?) ORDER "
        "BY rowid DESC LIMIT 1"
    )
    counted = {
        name: value for name in OUR_COUNTERS for (value,) in connection.execute(newest, (name,))
    }
    return Interrupted(
        path=path,
        run=frame,
        hold_ends_s=msgspec.convert(frame.environment.get(HOLD_ENDS), float | None),
        last_s=max([*instants, last_tick_s, last_sample_s or 0.0]),
        held=last.held,
        awaiting=last.awaiting,
        coming_back=last.coming_back,
        counted=counted,
        so_far=so_far,
        away=_away(frame, connection),
        ended_by="" if ended is None else ended.evidence,
        recorded=recorded,
    )
