"""Follows a run file while it is written: what has come since the last look."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from asyncli.plan import Plan
from asyncli.records import Finding, Phase, Sample, Tick
from asyncli.store import reader
from asyncli.store.stored import open_tick


class News(msgspec.Struct):
    """What was committed since the look before; ``phases`` are those that began, ended, or both."""

    phases: list[Phase]
    ticks: list[tuple[float, Tick]]
    samples: list[Sample]
    findings: list[Finding]
    #: The writer closed the file at the end of its run.
    complete: bool


class Follower:
    """The run in ``path``; ``with`` opens and closes it. Raises :class:`~asyncli.errors.StoreError` as ``read_run`` does.

    Nothing is kept open between two looks but a connection that cannot write: the writer's checkpoints wait for nobody.
    """

    plan: Plan

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        self._seen = dict.fromkeys(("ticks", "samples", "findings"), 0)
        self._phases: dict[str, Phase] = {}
        self._metrics: dict[int, str] = {}

    def __enter__(self) -> Self:
        reader.look(self._path)
        with contextlib.ExitStack() as stack:
            self._connection = stack.enter_context(reader.opened_file(self._path))
            try:
                reader.bound(self._path, self._connection)
                reader.identify(self._path, self._connection)
                self.plan = reader.read_frame(self._connection).plan
            except reader.DAMAGE as error:
                raise reader.wrong(self._path, error) from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def news(self) -> News:
        """What has come since the last call; at first all that there is."""
        try:
            reader.bound(self._path, self._connection)
            self._connection.execute("BEGIN")
            try:
                return self._read()
            finally:
                self._connection.execute("COMMIT")
        except reader.DAMAGE as error:
            raise reader.wrong(self._path, error) from None

    def _read(self) -> News:
        frame = reader.read_frame(self._connection)
        phases = [one for one in frame.phases if self._phases.get(one.name) != one]
        self._phases |= {one.name: one for one in phases}
        self._metrics |= {number: reader.words(name) for number, name in self._connection.execute("SELECT id, name FROM metrics")}
        ticks = [(t_s, open_tick(payload)) for t_s, payload in self._new("ticks", "t_s, payload")]
        rows = self._new("samples", "t_s, metric, value")
        samples = [
            Sample(t_s, {self._metrics[metric]: value for _, metric, value in of_one})
            for t_s, of_one in itertools.groupby(rows, key=lambda row: row[0])
        ]
        reader.measurable([t_s for t_s, _ in ticks])
        reader.measurable([number for t_s, _, value in rows for number in (t_s, value)])
        names = Finding.__struct_fields__
        findings = [
            msgspec.convert(dict(zip(names, row, strict=True)), Finding)
            for row in self._new("findings", "code, severity, evidence, remedy")
        ]
        return News(phases, ticks, samples, findings, frame.complete)

    def _new(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        rows = self._connection.execute(
            f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid", (self._seen[table],)
        ).fetchall()
        if rows:
            self._seen[table] = rows[-1][0]
        return [row[1:] for row in rows]
