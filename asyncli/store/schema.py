"""The run file's tables and its application id. Writer and reader share only this."""

from __future__ import annotations

from pathlib import Path

from asyncli.model.records import SCHEMA

#: The schema of a resumed run file. Higher, so that an older asyncli, which knows no gaps, refuses
#: it instead of fitting across them.
RESUMED_SCHEMA = SCHEMA + 1
#: Columns that old files lack, as (table, column, definition), added when one is resumed. A new
#: column goes to the end of its table, and here with a default.
ADDED_COLUMNS = (("findings", "fields", "TEXT NOT NULL DEFAULT '{}'"),)
#: Added on resuming.
GAPS = "CREATE TABLE IF NOT EXISTS gaps (start_s REAL PRIMARY KEY, end_s REAL);"
#: What was done to the run or noted. Added on resuming: older files lack it. Other processes add
#: rows to it while the run lasts (store/mark.py).
EVENTS = """CREATE TABLE IF NOT EXISTS events (
  kind TEXT NOT NULL, at_s REAL NOT NULL, end_s REAL, text TEXT NOT NULL, fields TEXT NOT NULL);"""
#: Fills a row of it.
ADD_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?)"
#: The number of recorded ticks and findings; it only grows.
RECORDED = (
    "SELECT (SELECT coalesce(max(rowid), 0) FROM ticks) + (SELECT coalesce(max(rowid), 0) FROM "
    "findings)"
)

#: SQLite's application_id of a run file: "asnc" in ASCII. It distinguishes a run from other
#: databases, also for ``file``.
APPLICATION_ID = 0x61736E63

# A tick has its main counts in columns, for people with sqlite3, and is stored whole as msgpack.
# Samples are a narrow table: a missing number is a missing row. No index: rows are written and read
# in order of time.
TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE phases (name TEXT PRIMARY KEY, start_s REAL NOT NULL, end_s REAL);
CREATE TABLE ticks (
  t_s REAL NOT NULL, second INTEGER NOT NULL,
  held INTEGER NOT NULL, opened INTEGER NOT NULL, lost INTEGER NOT NULL,
  sent INTEGER NOT NULL, answered INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE metrics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE samples (
  t_s REAL NOT NULL, metric INTEGER NOT NULL REFERENCES metrics (id), value REAL NOT NULL);
CREATE TABLE findings (
  t_s REAL NOT NULL, code TEXT NOT NULL, severity TEXT NOT NULL,
  evidence TEXT NOT NULL, remedy TEXT NOT NULL, fields TEXT NOT NULL);
{EVENTS}
CREATE TABLE checks (place INTEGER PRIMARY KEY, payload TEXT NOT NULL);
CREATE VIEW named_samples AS
  SELECT samples.t_s AS t_s, metrics.name AS metric, samples.value AS value
  FROM samples JOIN metrics ON metrics.id = samples.metric;
"""


def beside(path: Path, suffix: str) -> Path:
    """The file that SQLite keeps beside ``path``: ``-wal``, its index ``-shm``, or ``-journal``."""
    return path.with_name(path.name + suffix)
