"""Reads a run file: a finished one, one that is being written, or one whose writer was killed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from asyncli.findings.runfile import samples_skipped
from asyncli.model.errors import NotBegunError, PlanError, StoreError
from asyncli.model.garbage import uncollected
from asyncli.model.metrics import greatest, is_in_reports
from asyncli.model.plan import Plan, load_plan
from asyncli.model.records import MOST, Check, Finding, Gap, Phase, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Samples
from asyncli.model.text import plain, printable
from asyncli.store.events import has_table, read_events
from asyncli.store.lazy_ticks import decode_finding, decode_tick
from asyncli.store.schema import APPLICATION_ID, RESUMED_SCHEMA, beside

T = TypeVar("T")

_BUSY_S = 5.0
# SQLite instructions between two checks, and bytes that a file may exceed its size by.
_ROUND, _SPARE = 100_000, 1_000_000
# The first bytes of every SQLite file (https://www.sqlite.org/fileformat.html, 1.2).
_MAGIC = b"SQLite format 3\0"


# Errors of reading damaged files: SQLite's and msgspec's, missing rows or keys, wrong types,
# impossible instants (OverflowError, OSError), endless nesting, lengths beyond any memory.
_DAMAGE = (
    sqlite3.Error,
    msgspec.MsgspecError,
    PlanError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    OSError,
    RecursionError,
    MemoryError,
)


def read_run(path: str | os.PathLike[str], *, for_report: bool = False) -> Run:
    """The run in ``path``; never writes to it. ``for_report``: without the metrics that no report
    uses, which are a third of the samples.

    Raises :class:`StoreError` (one line) for a file that is missing, unreadable, not SQLite, of
    another program, of a newer asyncli, or damaged.
    """
    if for_report:
        return read_with(path, _load_for_report)
    return read_with(path, _load)


def read_with(path: str | os.PathLike[str], load: Callable[[sqlite3.Connection], T]) -> T:
    """Call ``load`` with a connection to the run file ``path``; raises as :func:`read_run` does."""
    path = Path(path)
    _require_run_file(path)
    with _open_file(path) as connection:
        try:
            _limit_reading(path, connection)
            _identify(path, connection)
            # One transaction: a live file grows, and its tables must be of the same instant.
            connection.execute("BEGIN")
            with uncollected():
                return load(connection)
        except _DAMAGE as error:
            raise _read_error(path, error) from None


def _require_run_file(path: Path) -> None:
    """Refuse what is no run file, without opening it: in the writing process (a notebook) closing
    any descriptor of the file would release SQLite's locks on it
    (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise NotBegunError(
            f"{path}: no such file", to_name="a run file that asyncli wrote (see --out)"
        ) from None
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(
            f"{path}: is a folder; name the run file in it, for example {path / 'run.db'}"
        )
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path}: is not a regular file", to_name=_OF_ASYNCLI)
    if not os.access(path, os.R_OK):
        raise _unreadable(path, os.strerror(errno.EACCES))
    # A writer killed before its first commit leaves an empty file, which SQLite takes for an empty
    # database.
    if not status.st_size:
        raise _empty(path)


def _unreadable(path: Path, why: str | None) -> StoreError:
    return StoreError(f"{path}: cannot be read ({why}); see its permissions")


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection.

    A WAL needs its index, the file ``-shm``. From a read-only folder the file and its WAL are
    copied: ``immutable=1`` would ignore the WAL.
    """
    with contextlib.ExitStack() as stack:
        connection = _connect(path)
        if connection is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncli-")))
            try:
                for name in (path.name, path.name + "-wal"):
                    if (source := path.with_name(name)).exists():
                        shutil.copyfile(source, folder / name)
            except OSError as error:
                raise StoreError(
                    f"{path}: its folder is read-only and it cannot be copied to {folder} "
                    f"({error.strerror}); copy it and its -wal file to a writable folder"
                ) from None
            connection = _connect(folder / path.name)
        if connection is None:
            raise StoreError(
                f"{path}: SQLite cannot open it; copy it and its -wal file to a writable folder"
            )
        stack.callback(connection.close)
        yield connection


class _UnknownPlanError(PlanError):
    """The plan of a run that another version of asyncli wrote, and that this one cannot read."""


def _connect(path: Path) -> sqlite3.Connection | None:
    """A working read-only connection, or None if SQLite cannot open a file that it needs."""
    uri = path.absolute().as_uri() + "?mode=ro"
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except _DAMAGE as error:
        if connection is not None:
            connection.close()
        if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return None
        raise _read_error(path, error) from None
    return connection


def _code(error: Exception) -> int | None:
    """SQLite's primary error code; some of Python's errors have none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _limit_reading(path: Path, connection: sqlite3.Connection) -> None:
    """Bound the reading of a hostile file, with circular pages or an endless view
    (https://www.sqlite.org/security.html). One of our rows has at least ten bytes and takes about
    ten SQLite instructions.
    """
    with contextlib.suppress(OSError):
        files = [file for file in (path, beside(path, "-wal")) if file.exists()]
        size = sum(file.stat().st_size for file in files)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size + _SPARE)
        rounds = iter(range(1 + (_SPARE + 16 * size) // _ROUND))
        connection.set_progress_handler(lambda: next(rounds, None) is None, _ROUND)


def _read_error(path: Path, error: Exception) -> StoreError:
    if _code(error) == sqlite3.SQLITE_BUSY:
        return StoreError(
            f"{path}: another program has locked it; end its transaction and try again"
        )
    if _code(error) == sqlite3.SQLITE_NOTADB and not is_sqlite(path):
        return StoreError(f"{path}: is not a run file (not SQLite)", to_name=_OF_ASYNCLI)
    why = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, _UnknownPlanError):
        return StoreError(f"{path}: {error}; read it with that version, or with a later one")
    return StoreError(f"{path}: the file is damaged ({why}); sqlite3's .recover may save the rest")


def is_sqlite(path: Path) -> bool:
    """Whether it starts with SQLite's magic bytes. Not for a file that this process writes: see
    :func:`_require_run_file`.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
    return False


#: What is named by who named another file.
_OF_ASYNCLI = "a run file that asyncli wrote"


def _empty(path: Path, or_else: str = "") -> StoreError:
    return NotBegunError(
        f"{path}: is empty: its run has not begun, or ended before it began{or_else}",
        to_name="another run file",
    )


def _identify(path: Path, connection: sqlite3.Connection) -> None:
    # Before the first commit there is only a header; later much is in the WAL.
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise _empty(path, ", or it was copied without its -wal file: copy both")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path}: is a SQLite file of another program", to_name=_OF_ASYNCLI)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > RESUMED_SCHEMA:
        raise StoreError(
            f"{path}: was written by a newer asyncli (schema {version}, this one reads up to "
            f"{RESUMED_SCHEMA}); upgrade asyncli"
        )


def require_plausible(numbers: Sequence[float], most: float = MOST) -> None:
    """Raise ValueError or TypeError for an impossible value: SQLite's columns take any type."""
    if numbers and not (min(numbers) >= -MOST and max(numbers) <= most):
        raise ValueError(f"a number beyond {most:g}")


def text_of(value: object) -> str:
    """``value`` as printable text. Raises TypeError for another type."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a text")
    return printable(value)


def read_frame(connection: sqlite3.Connection) -> Run:
    """The run without its long tables: no ticks, samples, findings or checks."""
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    started_wall_s = msgspec.json.decode(meta["started_wall_s"], type=float)
    started = datetime.fromtimestamp(started_wall_s, UTC)
    phases = [
        msgspec.convert({"name": name, "start_s": start_s, "end_s": end_s}, Phase)
        for name, start_s, end_s in connection.execute(
            "SELECT name, start_s, end_s FROM phases ORDER BY start_s"
        )
    ]
    require_plausible([phase.start_s for phase in phases])
    require_plausible([phase.end_s for phase in phases if phase.end_s is not None])
    environment = plain(msgspec.json.decode(meta["environment"], type=dict[str, Any]))
    return Run(
        id=text_of(meta["id"]),
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        plan=_plan_of(msgspec.json.decode(meta["plan"]), environment),
        environment=environment,
        phases=phases,
        ticks=[],
        samples=(),
        findings=[],
        checks=[],
        complete=meta.get("complete") == "true",
        dropped=int(meta.get("dropped", 0)),
        gaps=_gaps(connection),
        events=read_events(connection),
        started_wall_s=started_wall_s,
    )


def _plan_of(document: Any, environment: Mapping[str, Any]) -> Plan:
    """The recorded plan. A later version may have options, or values of them, that this one has
    not.
    """
    try:
        return load_plan(document)
    except PlanError as error:
        # In a checkout git is asked for the version.
        from asyncli import __version__

        wrote = environment.get("asyncli")
        if not isinstance(wrote, str) or wrote == __version__:
            raise
        raise _UnknownPlanError(
            f"was written by asyncli {wrote}, whose plans this one ({__version__}) does not know: "
            f"{error}"
        ) from None


def _gaps(connection: sqlite3.Connection) -> list[Gap]:
    if not has_table(connection, "gaps"):
        return []
    rows = connection.execute("SELECT start_s, end_s FROM gaps ORDER BY start_s").fetchall()
    require_plausible([number for row in rows for number in row if number is not None])
    return [msgspec.convert({"start_s": start_s, "end_s": end_s}, Gap) for start_s, end_s in rows]


def row_at(connection: sqlite3.Connection, table: str, until_s: float) -> int:
    """The last row of ``ticks`` or ``samples`` until ``until_s``, 0 for none. By bisection, so an
    agent's late samples may shift it a little.
    """
    low = 0
    (last_row,) = connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()
    high = int(last_row)
    query = f"SELECT t_s FROM {table} WHERE rowid <= ? ORDER BY rowid DESC LIMIT 1"
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(query, (middle,)).fetchone()
        if row is None or not plausible(row[0]) or row[0] <= until_s:
            low = middle
        else:
            high = middle - 1
    return low


def read_ticks(
    connection: sqlite3.Connection, decode: Callable[[bytes], Tick]
) -> list[tuple[float, Tick]]:
    """Every tick with its instant; ``decode`` converts its payload."""
    ticks = [
        (t_s, decode(blob))
        for t_s, blob in connection.execute("SELECT t_s, payload FROM ticks ORDER BY rowid")
    ]
    require_plausible([t_s for t_s, _ in ticks])
    return ticks


def read_findings(connection: sqlite3.Connection) -> list[Finding]:
    """The findings made during the run, in order."""
    return [
        finding
        for _, finding in map(
            decode_finding, connection.execute("SELECT * FROM findings ORDER BY rowid")
        )
    ]


def _load_for_report(connection: sqlite3.Connection) -> Run:
    return _load(connection, for_report=True)


def _load(connection: sqlite3.Connection, *, for_report: bool = False) -> Run:
    run = read_frame(connection)
    run.ticks = read_ticks(connection, decode_tick)
    names = {
        number: text_of(name)
        for number, name in connection.execute("SELECT id, name FROM metrics ORDER BY id")
    }
    left_out: dict[int, str] = {}
    if for_report:
        left_out = {number: name for number, name in names.items() if not is_in_reports(name)}
    samples, skipped = read_samples(connection, names, _without(left_out))
    samples.left_out = frozenset(left_out.values())
    run.samples = samples
    run.findings = [*read_findings(connection), *skipped]
    run.checks = read_checks(connection)
    running = run.running_commands
    if running:
        run.events = sorted([*run.events, *running], key=lambda event: event.at_s)
    return run


def _without(left_out: Mapping[int, str]) -> str:
    """The condition that leaves out the rows of these metrics, except those with an impossible
    number, which are counted.
    """
    if not left_out:
        return ""
    by_greatest: dict[float, list[str]] = {}
    for number, name in left_out.items():
        by_greatest.setdefault(min(MOST, greatest(name)), []).append(str(number))
    are_possible = []
    for greatest_possible, numbers in by_greatest.items():
        of_these = f"metric IN ({', '.join(numbers)})"
        are_possible.append(f"{of_these} AND value BETWEEN {-MOST} AND {greatest_possible}")
    is_usual = (
        f"({' OR '.join(are_possible)}) AND typeof(value) = 'real' "
        f"AND typeof(t_s) = 'real' AND t_s BETWEEN {-MOST} AND {MOST}"
    )
    # Any of it may be NULL in a damaged file.
    return f"WHERE ({is_usual}) IS NOT TRUE"


def read_checks(connection: sqlite3.Connection) -> list[Check]:
    """The limits that were checked before the run."""
    check = msgspec.json.Decoder(Check).decode
    rows = connection.execute("SELECT payload FROM checks ORDER BY place")
    return [check(payload) for (payload,) in rows]


# Indices into the list of instants, and the values there.
Column = tuple[list[int], list[float]]


class Columns(dict[int, Column]):
    """Metric's number -> its column. A number without a metric has one too, which is
    skipped later.
    """

    def __missing__(self, number: int) -> Column:
        column: Column = ([], [])
        self[number] = column
        return column


def read_samples(
    connection: sqlite3.Connection, names: Mapping[int, str], where: str = ""
) -> tuple[Samples, list[Finding]]:
    """The rows of the metrics ``names`` as columns, and a finding about skipped rows."""
    # Create the columns first, to fix their order.
    columns = Columns({number: ([], []) for number in names})
    t_s: list[float] = []
    instant, place = None, -1
    # Runs some million times.
    for at, metric, value in connection.execute(
        f"SELECT t_s, metric, value FROM samples {where} ORDER BY rowid"
    ):
        if at != instant:
            instant = at
            t_s.append(at)
            place += 1
        places, values = columns[metric]
        places.append(place)
        values.append(value)
    return _as_samples(t_s, columns, names)


def _as_samples(
    t_s: list[float], columns: Columns, names: Mapping[int, str]
) -> tuple[Samples, list[Finding]]:
    """The columns in order of time (an agent's samples may be written minutes late), and a finding
    about skipped rows: of an unknown metric, or with an impossible number.
    """
    unknown = sum(len(columns.pop(number)[0]) for number in [*columns] if number not in names)
    known = {names[number]: column for number, column in columns.items() if column[0]}
    odd = 0
    try:
        require_plausible(t_s)
        for name, (_, values) in known.items():
            require_plausible(values, min(MOST, greatest(name)))
    except (ValueError, TypeError):
        t_s, known, odd = _usable(t_s, known)
    skipped = unknown + odd
    if not skipped:
        return _in_order(t_s, known), []
    return _in_order(t_s, known), [samples_skipped(skipped)]


def plausible(value: object, most: float = MOST) -> bool:
    """Whether ``value`` is a possible number."""
    return isinstance(value, int | float) and -MOST <= value <= most


def _usable(
    t_s: list[float], columns: dict[str, Column]
) -> tuple[list[float], dict[str, Column], int]:
    """Drop impossible instants and values; returns the rest and the number of dropped values."""
    kept_places = [place for place, at in enumerate(t_s) if plausible(at)]
    moved = {place: number for number, place in enumerate(kept_places)}
    usable, skipped = {}, 0
    for name, (places, values) in columns.items():
        greatest_possible = min(MOST, greatest(name))
        rows = zip(places, values, strict=True)
        kept = [
            (moved[place], value)
            for place, value in rows
            if place in moved and plausible(value, greatest_possible)
        ]
        skipped += len(places) - len(kept)
        if kept:
            usable[name] = [place for place, _ in kept], [value for _, value in kept]
    return [t_s[place] for place in kept_places], usable, skipped


def _in_order(t_s: list[float], columns: dict[str, Column]) -> Samples:
    if any(after < before for before, after in itertools.pairwise(t_s)):
        order = sorted(range(len(t_s)), key=t_s.__getitem__)
        place = {old: new for new, old in enumerate(order)}
        t_s = [t_s[old] for old in order]
        for name, (places, values) in columns.items():
            rows = sorted((place[old], value) for old, value in zip(places, values, strict=True))
            columns[name] = ([new for new, _ in rows], [value for _, value in rows])
    return Samples(t_s, columns)
