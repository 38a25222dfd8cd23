"""The table of events: its rows as records."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.model.records import MOST, RunEvent

_COLUMNS = ("kind", "at_s", "end_s", "text", "fields")
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether the file has this table: older ones lack some."""
    row = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)
    ).fetchone()
    return row is not None


def rows_after(connection: sqlite3.Connection, row: int) -> list[tuple[Any, ...]]:
    """The rows of events after this one, in the order in which they were written: each its number
    and its columns.
    """
    if not has_table(connection, "events"):
        return []
    columns = ", ".join(_COLUMNS)
    return connection.execute(
        f"SELECT rowid, {columns} FROM events WHERE rowid > ? ORDER BY rowid", (row,)
    ).fetchall()


def decode_event(columns: Sequence[Any]) -> RunEvent:
    """An event by its columns. Raises :class:`msgspec.MsgspecError` or TypeError if it is none."""
    values = dict(zip(_COLUMNS, columns, strict=True))
    values["fields"] = _decode_fields(values["fields"])
    event = msgspec.convert(values, RunEvent)
    for instant_s in (event.at_s, event.end_s):
        if instant_s is not None and not -MOST <= instant_s <= MOST:
            raise msgspec.ValidationError(f"an event beyond {MOST:g} s")
    return event


def encode_event(event: RunEvent) -> tuple[Any, ...]:
    """The columns of an event."""
    fields = msgspec.json.encode(event.fields).decode()
    return event.kind, event.at_s, event.end_s, event.text, fields


def read_events(connection: sqlite3.Connection) -> list[RunEvent]:
    """The events of a run, in order of time; none in an older file."""
    events = [decode_event(columns) for _, *columns in rows_after(connection, 0)]
    return sorted(events, key=lambda event: event.at_s)
