"""Follows a run file while it is written.

The first read of a long file skips what a status does not need: it sums ticks without their
histograms, and reads samples only of the baseline's end and the last seconds.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Any

import msgspec

from asyncli.core.histogram import Histogram
from asyncli.model.plan import Plan
from asyncli.model.quantities import TIMES
from asyncli.model.records import (
    Check,
    Deaths,
    Environment,
    Finding,
    Phase,
    RunEvent,
    Sample,
    Tick,
    left_out_s,
)
from asyncli.model.run import Run
from asyncli.store import reader
from asyncli.store.events import decode_event, rows_after
from asyncli.store.lazy_ticks import decode_finding, decode_tick
from asyncli.store.lock import is_locked
from asyncli.store.schema import beside

# Rates are of the last ten seconds; a tick may come late.
_RECENT_S = 15.0
# A commit waits for fsync no longer than this.
_SETTLED_S = 5.0
# What a limit on a quantile of times has in it, as in "latency_ms.p99 > 50ms".
_QUANTILE = "_ms.p"
# Enough of the baseline for the memory's median.
_BASELINE_S = 300.0


class News(msgspec.Struct):
    """What changed since the last read; ``phases``: those that began or ended."""

    #: Its hold includes interruptions.
    plan: Plan
    phases: list[Phase]
    #: At the first read all but the last seconds are summed into one tick, without histograms
    #: that no limit needs.
    ticks: list[tuple[float, Tick]]
    samples: list[Sample]
    #: With their instants.
    findings: list[tuple[float, Finding]]
    #: The writer closed the file at the end of its run.
    complete: bool
    #: When the run began (s since 1970).
    began_s: float = 0.0
    events: list[RunEvent] = msgspec.field(default_factory=list)
    run_id: str = ""
    environment: Environment = msgspec.field(default_factory=dict)
    #: All limits that were checked before the run.
    checks: list[Check] = msgspec.field(default_factory=list)
    #: By the number of an event: who was not to be back yet, of the ticks that the first read sums.
    turns_to_come: dict[int, int] = msgspec.field(default_factory=dict)
    #: How much of the hold so far were interruptions.
    interrupted_s: float = 0.0

    @property
    def has_records(self) -> bool:
        """Whether anything was recorded since the last read."""
        return bool(self.phases or self.ticks or self.samples or self.findings or self.events)


class Follower:
    """Follows the run in ``path``. Between two reads nothing is open, so the writer's checkpoints
    never wait.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._rows = dict.fromkeys(("ticks", "samples", "findings", "events"), 0)
        self._phases: dict[str, Phase] = {}
        self._seen: object = None
        self._written_s = 0.0
        # When the last record came, on the monotonic clock: not before this.
        self._heard_s = time.monotonic()
        self._last: News | None = None
        self._turns_to_come: Counter[int] = Counter()

    def news(self) -> News:
        """What changed since the last call; nothing for a missing file. Raises
        :class:`~asyncli.model.errors.StoreError` as ``read_run`` does.
        """
        seen = [_stamp(self.path), _stamp(beside(self.path, "-wal"))]
        # A file being rewritten is empty at first.
        if self._last is not None and (seen == self._seen or seen[0] is None or not seen[0][1]):
            return msgspec.structs.replace(
                self._last,
                phases=[],
                ticks=[],
                samples=[],
                findings=[],
                events=[],
                turns_to_come={},
            )
        self._last = reader.read_with(self.path, self._read)
        if self._last.has_records:
            self._heard_s = time.monotonic()
        # A commit is readable only after fsync: read such a file again.
        self._seen = seen if self._unwritten_s > _SETTLED_S else None
        return self._last

    def past(
        self,
        metrics: Iterable[str],
        on_tick: Callable[[float, Tick], None],
        on_sample: Callable[[Sample], None],
    ) -> None:
        """Hand over, one by one and in order of time, each tick and what each sample has of these
        ``metrics``, of all rows that :meth:`news` has read or skipped so far.

        Raises :class:`~asyncli.model.errors.StoreError` as ``read_run`` does.
        """
        wanted = frozenset(metrics)
        until = dict(self._rows)

        def hand_over(connection: sqlite3.Connection) -> None:
            ticks = _ticks_until(connection, until["ticks"])
            samples = _samples_until(connection, until["samples"], wanted)
            records = heapq.merge(ticks, samples, key=operator.itemgetter(0))
            for t_s, record in records:
                if isinstance(record, Tick):
                    on_tick(t_s, record)
                elif isinstance(record, Sample):
                    on_sample(record)

        reader.read_with(self.path, hand_over)

    @property
    def quiet_s(self) -> float:
        """How long no record has come (s). Where the disk takes nothing the file is touched at each
        try, and no record comes.
        """
        return max(self._unwritten_s, time.monotonic() - self._heard_s)

    @property
    def _unwritten_s(self) -> float:
        """How long the file has not been written (s)."""
        written_s: float = last_written_s(self.path) or self._written_s
        self._written_s = written_s
        return max(0.0, time.time() - written_s)

    @property
    def is_there(self) -> bool:
        """Whether the file exists and has something in it."""
        stamp = _stamp(self.path)
        return stamp is not None and stamp[1] > 0

    @property
    def is_open(self) -> bool:
        """Whether a process writes the file."""
        return is_locked(self.path)

    def _read(self, connection: sqlite3.Connection) -> News:
        frame = reader.read_frame(connection)
        phases = [phase for phase in frame.phases if self._phases.get(phase.name) != phase]
        self._phases |= {phase.name: phase for phase in phases}
        ticks: list[tuple[float, Tick]] = []
        samples: list[Sample] = []
        turns_to_come: dict[int, int] = {}
        if self._last is None:
            ticks, samples = self._catch_up(connection, frame)
            turns_to_come = dict(self._turns_to_come)
        ticks += [
            (t_s, decode_tick(payload))
            for t_s, payload in self._new_rows(connection, "ticks", "t_s, payload")
        ]
        samples += _samples(connection, self._new_rows(connection, "samples", "t_s, metric, value"))
        reader.require_plausible([t_s for t_s, _ in ticks])
        findings = [decode_finding(row) for row in self._new_rows(connection, "findings", "*")]
        reader.require_plausible([t_s for t_s, _ in findings])
        interrupted_s = _interrupted_s(frame, connection)
        return News(
            _with_interruptions(frame.plan, interrupted_s),
            phases,
            ticks,
            samples,
            findings,
            frame.complete,
            frame.started_wall_s,
            self._new_events(connection),
            frame.id,
            frame.environment,
            reader.read_checks(connection),
            turns_to_come,
            interrupted_s,
        )

    def _catch_up(
        self, connection: sqlite3.Connection, frame: Run
    ) -> tuple[list[tuple[float, Tick]], list[Sample]]:
        """A summary of all rows older than the last seconds."""
        last = connection.execute("SELECT t_s FROM ticks ORDER BY rowid DESC LIMIT 1").fetchone()
        if last is None:
            return [], []
        recent_s = last[0] - _RECENT_S
        self._rows["ticks"] = reader.row_at(connection, "ticks", recent_s)
        self._rows["samples"] = reader.row_at(connection, "samples", recent_s)
        ramp = frame.phase("ramp")
        ramp_s = recent_s if ramp is None else ramp.start_s
        bounds = [
            reader.row_at(connection, "samples", at)
            for at in (ramp_s - _BASELINE_S, min(ramp_s, recent_s))
        ]
        rows = connection.execute(
            "SELECT t_s, metric, value FROM samples WHERE rowid > ? AND rowid <= ? ORDER BY rowid",
            bounds,
        )
        history = sum_ticks(connection, self._rows["ticks"], frame.plan, self._add_turns)
        return ([] if history is None else [history]), _samples(connection, rows.fetchall())

    def _add_turns(self, tick: Tick) -> None:
        for number, counts in tick.events.items():
            self._turns_to_come[number] += counts.turns_to_come

    def _new_events(self, connection: sqlite3.Connection) -> list[RunEvent]:
        rows = rows_after(connection, self._rows["events"])
        if rows:
            self._rows["events"] = rows[-1][0]
        return [decode_event(columns) for _, *columns in rows]

    def _new_rows(
        self, connection: sqlite3.Connection, table: str, columns: str
    ) -> list[tuple[Any, ...]]:
        rows = connection.execute(
            f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid",
            (self._rows[table],),
        ).fetchall()
        if rows:
            self._rows[table] = rows[-1][0]
        return [row[1:] for row in rows]


def _interrupted_s(frame: Run, connection: sqlite3.Connection) -> float:
    """How much of the hold so far were interruptions (s)."""
    hold = frame.phase("hold")
    if not frame.gaps or hold is None:
        return 0.0
    last = [
        connection.execute(f"SELECT t_s FROM {table} ORDER BY rowid DESC LIMIT 1").fetchone()
        for table in ("ticks", "samples")
    ]
    until_s = max([hold.start_s, *(row[0] for row in last if row is not None)])
    return left_out_s(frame.gaps, hold.start_s, until_s)


def _with_interruptions(plan: Plan, interrupted_s: float) -> Plan:
    """The plan with a hold that is longer by its interruptions, unless the wall clock ends it."""
    if plan.hold_s is None or plan.hold_until is not None:
        return plan
    return msgspec.structs.replace(plan, hold_s=plan.hold_s + interrupted_s)


def sum_ticks(
    connection: sqlite3.Connection,
    until_row: int,
    plan: Plan,
    on_tick: Callable[[Tick], None] = lambda tick: None,
) -> tuple[float, Tick] | None:
    """The sum of the counts of the ticks up to a row, with the last one's gauges; without
    histograms and events. Each that is read is given to ``on_tick``.

    Seconds in which all were held and nothing changed are skipped, unless the plan has limits: then
    heartbeats count too, and the histograms have their greatest value alone; all values if a limit
    is on a quantile of them.
    """
    last = connection.execute(
        "SELECT t_s, payload FROM ticks WHERE rowid <= ? ORDER BY rowid DESC LIMIT 1", (until_row,)
    ).fetchone()
    if last is None:
        return None
    gauges = decode_tick(last[1])
    whole = Tick(
        second=gauges.second, workers=gauges.workers, held=gauges.held, connecting=gauges.connecting
    )
    query = "SELECT payload FROM ticks WHERE rowid <= ?"
    places: tuple[int, ...] = (until_row,)
    needs_times = any(_QUANTILE in limit for limit in plan.fail_if)
    if not plan.fail_if:
        query += " AND (opened <> 0 OR lost <> 0 OR held < ?)"
        places = (until_row, plan.connections)
    for (payload,) in connection.execute(query, places):
        tick = decode_tick(payload)
        if plan.fail_if:
            _add_heartbeats(whole, tick, with_times=needs_times)
        on_tick(tick)
        whole.opened += tick.opened
        whole.reopened += tick.reopened
        for cause, count in tick.failures.items():
            whole.failures[cause] = whole.failures.get(cause, 0) + count
        for cause, deaths in tick.deaths.items():
            whole.deaths.setdefault(cause, Deaths()).count += deaths.count
    return last[0], whole


def _add_heartbeats(whole: Tick, tick: Tick, *, with_times: bool) -> None:
    whole.sent += tick.sent
    whole.answered += tick.answered
    whole.beats_failed += tick.beats_failed
    for status, count in tick.by_status.items():
        whole.by_status[status] = whole.by_status.get(status, 0) + count
    for times in TIMES:
        if not times.key:
            continue
        if with_times:
            times.of(whole).merge(times.of(tick))
        else:
            _keep_longest(times.of(whole), times.of(tick).greatest)


def _keep_longest(longest_us: Histogram, further_us: int) -> None:
    if further_us > longest_us.greatest:
        longest_us.counts.clear()
        longest_us.add(further_us)


def _ticks_until(connection: sqlite3.Connection, row: int) -> Iterator[tuple[float, Tick]]:
    query = "SELECT t_s, payload FROM ticks WHERE rowid <= ? ORDER BY rowid"
    for t_s, payload in connection.execute(query, (row,)):
        if reader.plausible(t_s):
            yield t_s, decode_tick(payload)


def _samples_until(
    connection: sqlite3.Connection, row: int, wanted: Set[str]
) -> Iterator[tuple[float, Sample]]:
    names = {}
    for number, text in connection.execute("SELECT id, name FROM metrics"):
        name = reader.text_of(text)
        if name in wanted:
            names[number] = name
    if not names:
        return
    places = ", ".join("?" * len(names))
    query = (
        "SELECT t_s, metric, value FROM samples "
        f"WHERE rowid <= ? AND metric IN ({places}) ORDER BY rowid"
    )
    rows = connection.execute(query, (row, *names))
    for t_s, of_one in itertools.groupby(rows, key=operator.itemgetter(0)):
        values = {}
        for _, metric, value in of_one:
            if reader.plausible(value):
                values[names[metric]] = value
        if values and reader.plausible(t_s):
            yield t_s, Sample(t_s, values)


def _samples(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> list[Sample]:
    names = {
        number: reader.text_of(name)
        for number, name in connection.execute("SELECT id, name FROM metrics")
    }
    rows = [
        row
        for row in rows
        if row[1] in names and reader.plausible(row[0]) and reader.plausible(row[2])
    ]
    return [
        Sample(t_s, {names[metric]: value for _, metric, value in of_one})
        for t_s, of_one in itertools.groupby(rows, key=lambda row: row[0])
    ]


def last_written_s(path: Path) -> float:
    """When the run in ``path`` or its WAL was last written (s since 1970); 0 for no file. A reader
    leaves an empty WAL.
    """
    stamps = (_stamp(path), _stamp(beside(path, "-wal")))
    return max((stamp[0] for stamp in stamps if stamp is not None and stamp[1]), default=0.0)


def size_bytes(path: Path) -> int:
    """The disk space of the run in ``path``, with its WAL."""
    size = 0
    for file in (path, beside(path, "-wal")):
        stamp = _stamp(file)
        if stamp is not None:
            _, file_size, _ = stamp
            size += file_size
    return size


def _stamp(path: Path) -> tuple[float, int, int] | None:
    """A file's last write (s since 1970), size and inode; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size, status.st_ino
