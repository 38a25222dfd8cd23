"""Damaged run files: bytes changed, cut short, rows of other types, ticks repacked, missing tables.

Checks: read or refused in one line; a run that is read has finite instants and numbers, usable histograms, and a plan with targets,
also for the list of runs and the live view; and a report can be made of it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sqlite3
import tempfile
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
from chance import maybe, mutated
from recording import a_tick, new_run
from scratch import FOLDER

from asyncli.core.histogram import Histogram
from asyncli.model.errors import StoreError
from asyncli.model.plan import Plan
from asyncli.model.records import HISTOGRAMS, Check, Finding, Phase, Sample, Tick, mark
from asyncli.model.run import Run
from asyncli.store.events import encode_event
from asyncli.store.follow import Follower
from asyncli.store.reader import read_run
from asyncli.store.resume import read_interrupted
from asyncli.store.run_index import read_index_entry
from asyncli.store.schema import ADD_EVENT


class Case(NamedTuple):
    """Edits of a whole file: bytes at offsets, its length, SQL with values. ``reader``: the function that reads it."""

    puts: tuple[tuple[int, bytes], ...] = ()
    length: int | None = None
    sql: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    reader: str = "run"


_FILE = FOLDER / "run.db"
_COLUMNS = {
    "meta": ("key", "value"), "phases": ("name", "start_s", "end_s"), "ticks": ("t_s", "second", "held", "payload"), "metrics": ("id", "name"),
    "samples": ("t_s", "metric", "value"), "findings": ("t_s", "code", "severity", "evidence", "remedy"), "checks": ("place", "payload"),
    "events": ("kind", "at_s", "end_s", "text", "fields"),
}  # fmt: skip
_TABLES = tuple(_COLUMNS)
_VALUES = (
    "", "x", "nan", "null", "1", "[]", "{}", "[" * 3000, '{"a":' * 2000, '{"urls": 3}', '{"urls": ["x"]}', '{"urls": []}', '{"urls": ["http://a/"], "batch": 0}', "1e400", "9" * 5000,
    '{"urls": ["http://a/"], "interval_s": 0}', "1e18", "-1e18", "é", "ramp", "hold", "status.active", b"", b"\xff", b"\xc1", b"[]", 0, 1, -1, 2**62, -(2**63), 0.5, -1.0, 1e300, math.inf, -math.inf, None,
    '{"a": "\ud800"}'.encode("utf-8", "surrogatepass"),
)  # fmt: skip
_META = ("id", "started_wall_s", "plan", "environment", "complete", "dropped")
_ODD = (None, 0, 1, -1, 127, 128, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, -1.0, math.nan, math.inf, 1e300, "", "x", b"", b"\xff", [], [[]], {}, {1: 1}, {"x": "y"}, {-1: 1}, {2**62: 1}, {5000: 5}, {5: -5}, {5: 2**63}, True)


@functools.cache
def whole() -> bytes:
    """A run file as the writer writes it, with small pages, so that more of its bytes matter."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "run.db"
        plan = Plan(urls=("http://127.0.0.1:8080/",), connections=500, seed=7, hold_s=3.0)
        writer = new_run(path, plan, run_id="r1", started_s=1_740_830_400.0, environment={"cpus": 2, "kernel": "6"})
        for name, start_s, end_s in (("baseline", 0.0, 1.0), ("ramp", 1.0, 4.0), ("hold", 4.0, 7.0), ("drain", 7.0, 7.5), ("residue", 7.5, 8.0)):
            writer.phase(Phase(name, start_s, end_s))
        for second in range(8):
            writer.tick(second + 0.9, a_tick(second))
            writer.sample(Sample(second + 0.5, {"host.used_bytes": 1.5e9 + second, "status.active": 1.0 + 10 * second, "server.pss_bytes": 1e7 + 500 * second}))
        writer.finding(2.5, Finding("slow", "warning", "12 ms", "wait"))
        writer.checks([Check("nofile", "descriptors", "ok", have=20000.0, need=600.0)])
        writer.close(True)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as small:
            small.execute(ADD_EVENT, encode_event(mark(5.5, "deployed 1.4.2")))
            small.execute("PRAGMA page_size = 512")
            small.execute("VACUUM")
        return path.read_bytes()


@functools.cache
def _payloads() -> tuple[bytes, ...]:
    return tuple(msgspec.msgpack.encode(a_tick(second)) for second in range(8))


def generate(chance: Random) -> Case:
    """Some damage."""
    reader = ("head", "follower")[chance.randrange(2)] if maybe(chance, 5) else "run"
    if maybe(chance, 400):
        reader = "report"
    match chance.randrange(8):
        case 0 | 1 | 2 | 3:
            return Case(_puts(chance), reader=reader)
        case 4:
            return Case(length=chance.randrange(len(whole()) + 1), reader=reader)
        case 5:
            payload = mutated(chance, chance.choice(_payloads())) if maybe(chance, 2) else _repacked(chance)
            return Case(sql=(("UPDATE ticks SET payload = ? WHERE rowid = ?", (payload, 1 + chance.randrange(8))),), reader=reader)
        case _:
            return Case(sql=tuple(_statement(chance) for _ in range(1 + chance.randrange(2))), reader=reader)


def _puts(chance: Random) -> tuple[tuple[int, bytes], ...]:
    data = whole()
    puts = []
    for _ in range(1 + chance.randrange(3)):
        if maybe(chance, 3):
            # At the headers of pages: their kind, cells and pointers.
            at = chance.randrange(len(data) // 512) * 512 + chance.randrange(24)
        else:
            at = chance.randrange(100 if maybe(chance, 8) else len(data))
        match chance.randrange(4):
            case 0:
                new = bytes([data[at] ^ 1 << chance.randrange(8)])
            case 1:
                new = bytes([chance.randrange(256)])
            case 2:
                new = chance.randbytes(1 + chance.randrange(8))
            case _:
                start = chance.randrange(len(data) // 512) * 512 if maybe(chance, 8) else chance.randrange(len(data))
                new = data[start : start + chance.choice((2, 4, 16, 512))]
        puts.append((at, new))
    return tuple(puts)


def _repacked(chance: Random) -> bytes:
    """A tick with another value somewhere in it."""
    document = msgspec.msgpack.decode(chance.choice(_payloads()), strict=False)
    place: Any = document
    while True:
        names = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not names:
            break
        name = chance.choice(names)
        if isinstance(place[name], dict | list) and len(place[name]) and not maybe(chance, 4):
            place = place[name]
            continue
        match chance.randrange(6):
            case 0:
                del place[name]
            case 1 if isinstance(place, dict):
                key = chance.choice(_ODD)
                place[key if isinstance(key, int | str) else "x"] = place.pop(name)
            case _:
                place[name] = chance.choice(_ODD)
        break
    return msgspec.msgpack.encode(document)


def _statement(chance: Random) -> tuple[str, tuple[Any, ...]]:
    table = chance.choice(_TABLES)
    value = chance.choice(_VALUES)
    match chance.randrange(12):
        case 0 | 1 | 2:
            return "UPDATE meta SET value = ? WHERE key = ?", (value, chance.choice(_META))
        case 3:
            columns = _COLUMNS[table]
            return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", tuple(chance.choice(_VALUES) for _ in columns)
        case 4:
            return f"DELETE FROM {table}{' WHERE rowid % 2' if table not in ('meta',) and maybe(chance, 2) else ''}", ()
        case 5:
            return f"DROP TABLE {table}", ()
        case 6:
            return f"ALTER TABLE {table} RENAME COLUMN {chance.choice(_COLUMNS[table])} TO other", ()
        case 7:
            return f"PRAGMA {chance.choice(('user_version', 'application_id', 'encoding', 'auto_vacuum'))} = {chance.choice((-1, 0, 1, 2, 1634954851))}", ()
        case _:
            return f"UPDATE {table} SET {chance.choice(_COLUMNS[table])} = ?{' WHERE rowid = 1' if table not in ('meta', 'phases') else ''}", (value,)


def made(case: Case) -> bytes:
    """The damaged file's bytes, before the SQL."""
    data = bytearray(whole())
    for at, new in case.puts:
        data[at : at + len(new)] = new
    return bytes(data if case.length is None else data[: case.length])


def write(case: Case, path: Path) -> None:
    """Write the damaged file."""
    path.write_bytes(made(case))
    if case.sql:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            for statement, values in case.sql:
                with contextlib.suppress(sqlite3.Error):  # SQLite itself refuses much of it
                    connection.execute(statement, values)


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    write(case, _FILE)
    try:
        _READ[case.reader](_FILE)
    except StoreError as error:
        words = str(error)
        assert len(words.splitlines()) == 1, words
        assert len(words) < 600, f"{len(words)} characters of complaint"
        assert ";" in words, f"says not how to mend it: {words}"
        return f"refused, {'damaged' if 'damaged' in words else 'otherwise'}"
    finally:
        # SQLite makes a WAL for a file that claims to have one; the next file must not get it.
        for suffix in ("", "-wal", "-shm"):
            Path(f"{_FILE}{suffix}").unlink(missing_ok=True)
    return "accepted" if case.reader == "run" else f"accepted, {case.reader}"


def _sound(run: Run) -> None:
    """Check that all numbers are usable."""
    numbers = [number for one in run.phases for number in (one.start_s, one.end_s) if number is not None]
    numbers += [t_s for t_s, _ in run.ticks]
    numbers += [event.at_s for event in run.events]
    for _, tick in run.ticks:
        numbers += [tick.cpu_user_s, tick.cpu_system_s, tick.longest_turn_s, tick.longest_wait_s, float(tick.held)]
        histograms: list[Histogram] = [getattr(tick, name) for name in HISTOGRAMS]
        histograms += [one for dead in tick.deaths.values() for one in (dead.age_s, dead.idle_s, dead.requests)]
        histograms += [tick.asked.waiting_us] if tick.asked else []
        for one in histograms:
            numbers += [value for value in one.opened().quantiles((0.5, 0.99, 1.0)) if value is not None]
    for sample in run.samples:
        numbers += [sample.t_s, *sample.values.values()]
    assert all(isinstance(number, float | int) for number in numbers), [number for number in numbers if not isinstance(number, float | int)][:3]
    assert all(map(math.isfinite, numbers)), [number for number in numbers if not math.isfinite(number)][:3]
    assert all(isinstance(text, str) for text in (run.id, *(name for sample in run.samples for name in sample.values)))
    assert run.plan.targets
    assert run.plan.schedule.end_s >= 0
    total = Tick()
    for _, tick in run.ticks:
        total.merge_counts(tick)
    msgspec.json.encode(run.environment)


def _whole_run(path: Path) -> None:
    _sound(read_run(path))


def _head(path: Path) -> None:
    _sound(read_index_entry(path))


def _follower(path: Path) -> None:
    follower = Follower(path)
    news = follower.news()
    assert all(math.isfinite(number) for one in news.samples for number in (one.t_s, *one.values.values()))
    assert all(math.isfinite(t_s) for t_s, _ in news.ticks)
    assert not follower.news().ticks


def _resumed(path: Path) -> None:
    before = read_interrupted(path)
    assert math.isfinite(before.last_s + before.held_s)


def _report(path: Path) -> None:
    """The outputs of ``asyncli report``."""
    from rich.console import Console

    from asyncli.report.jsonout import to_json
    from asyncli.report.run_report import print_report
    from asyncli.report.summary import summarise

    summary = summarise(read_run(path))
    to_json(summary)
    with Path(os.devnull).open("w") as nowhere:
        print_report(summary, Console(file=nowhere), path)


_READ = {"run": _whole_run, "head": _head, "follower": _follower, "resumed": _resumed, "report": _report}
