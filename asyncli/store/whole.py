"""Writes a run file all at once, of a run that is known whole."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncli.errors import StoreError
from asyncli.plan import plan_document
from asyncli.records import SCHEMA, Finding, Tick
from asyncli.samples import Samples
from asyncli.store.reader import Run
from asyncli.store.schema import APPLICATION_ID, GAPS, RESUMED_SCHEMA, TABLES
from asyncli.store.writer import require_free

_pack = msgspec.msgpack.Encoder().encode


def write_run(path: str | os.PathLike[str], run: Run, findings: Sequence[tuple[float, Finding]]) -> None:
    """``run`` as the new run file ``path``, or no file; ``findings`` in place of the run's own, each with its instant (s).

    Raises :class:`StoreError` (one line) where the file exists, its folder does not, or it cannot be written.
    """
    path = Path(path)
    require_free(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".asyncli-", dir=path.parent) as folder:
            part = Path(folder) / "run.db"
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                _fill(connection, run, findings)
            part.chmod(0o600 if run.plan.headers else 0o644)
            # A link fails where the name is taken by now; a rename would replace what bears it.
            os.link(part, path)
    except FileExistsError:
        require_free(path)
        raise
    except (sqlite3.Error, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: cannot be written ({why}); name a file on a disk with room with --out") from None


def _fill(connection: sqlite3.Connection, run: Run, findings: Sequence[tuple[float, Finding]]) -> None:
    version = RESUMED_SCHEMA if run.gaps else SCHEMA
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; BEGIN; {TABLES}")
    meta = {
        "id": run.id,
        "started_wall_s": _json(run.started_wall_s),
        "plan": _json(plan_document(run.plan)),
        "environment": _json(run.environment),
        "complete": _json(run.complete),
        "dropped": _json(run.dropped),
    }

    def put(table: str, rows: Iterator[tuple[Any, ...]], columns: int) -> None:
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)

    put("meta", iter(meta.items()), 2)
    put("phases", ((one.name, one.start_s, one.end_s) for one in run.phases), 3)
    put("ticks", (_row(t_s, tick) for t_s, tick in run.ticks), 8)
    assert isinstance(run.samples, Samples)
    numbers = {name: number for number, name in enumerate(run.samples.metrics, 1)}
    put("metrics", ((number, name) for name, number in numbers.items()), 2)
    put("samples", _narrow(run.samples, numbers), 3)
    put("findings", ((t_s, one.code, one.severity, one.evidence, one.remedy) for t_s, one in findings), 5)
    put("checks", ((place, _json(check)) for place, check in enumerate(run.checks)), 2)
    if run.gaps:
        connection.execute(GAPS)
        put("gaps", ((gap.start_s, gap.end_s) for gap in run.gaps), 2)
    connection.execute("COMMIT")


def _row(t_s: float, tick: Tick) -> tuple[Any, ...]:
    return (t_s, tick.second, tick.held, tick.opened, tick.lost, tick.sent, tick.answered, _pack(tick))


def _narrow(samples: Samples, numbers: dict[str, int]) -> Iterator[tuple[float, int, float]]:
    """A row for each number that was read, in the order of time."""
    for sample in samples:
        for name, value in sample.values.items():
            if math.isfinite(value):
                yield sample.t_s, numbers[name], value


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
