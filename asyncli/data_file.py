"""The file of ``--data``: a row for each connection, whose columns are fields of what it sends."""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from asyncli.consistency import filled_texts, flag_of, require_fields
from asyncli.errors import PlanError
from asyncli.plan import Plan
from asyncli.protocol_table import PROTOCOLS
from asyncli.template import FIELDS, NAME, Data
from asyncli.units import format_bytes, format_many, shown

# What goes to each host in a piece.
_MOST_BYTES = 1 << 30
# Of a text of MQTT that is made of a row: two bytes say how long it is.
_LONGEST_TEXT, _OF_MQTT = 65_535, PROTOCOLS["mqtt"].keys
# What may stand in a line of a request; elsewhere all but NUL, which no text of a plan has.
_MAY_BE = {
    "urls": (re.compile(r"[!-~]*"), "a URL has no such character: percent-encode it"),
    "headers": (re.compile(r"[\t -~]*"), "a header has no such character: leave it out"),
}
_ANY = re.compile(r"[^\0]*")


def read_data(plan: Plan, most: int | None = None) -> Data | None:
    """The rows that the connections of ``plan`` (or ``most``, if there are so many) use; None: it has no file. Blocking. Raises
    :class:`PlanError` for a file that does not do.
    """
    if plan.data is None:
        return None
    where, path = f"--data: {shown(plan.data)}", Path(plan.data)
    try:
        if not path.is_file():
            raise PlanError(f"{where} is not a file; name one of comma-separated values, with a line of names before its rows")
        with path.open(encoding="utf-8-sig", newline="") as file:
            data = _used(plan, where, file, plan.connections if most is None else most)
    except OSError as error:
        raise PlanError(f"{where} cannot be read ({error.strerror}); name a file of comma-separated values") from None
    except UnicodeDecodeError:
        raise PlanError(f"{where} is not UTF-8; write it as such") from None
    except csv.Error as error:
        raise PlanError(f"{where} is not a file of comma-separated values ({error}); write one row a line") from None
    if most is None and data.rows < plan.connections:
        what = f"{format_many(data.rows, 'row')}, and each of {plan.connections:,} connections takes one"
        raise PlanError(f"{where} has {what}; write -c {max(1, data.rows)}, or add rows")
    return data


def described(data: Data) -> dict[str, Any]:
    """As a run records it, without its values: the same where the same is filled in."""
    digest = hashlib.sha256(msgspec.msgpack.encode(data)).hexdigest()
    return {"rows": data.rows, "columns": list(data.columns), "sha256": digest}


def _used(plan: Plan, where: str, file: TextIO, most: int) -> Data:
    """Of the first ``most`` rows the columns that ``plan`` has as fields."""
    lines = csv.reader(file, strict=True)
    columns = _columns(where, next(lines, []))
    said = {field: getattr(plan, field) for field in Plan.__struct_fields__}
    require_fields(said, {}, columns)
    made = list(filled_texts(said, columns))
    uses = [(field, name) for field, text in made for name in text.names if name not in FIELDS]
    if not uses:
        known = ", ".join(f"{{{name}}}" for name in columns[:10])
        raise PlanError(f"{where}: nothing that is sent has a field of its columns; write one of {known}, or leave the file out")
    names = sorted({name for _, name in uses})
    places = [columns.index(name) for name in names]
    allowed = [[_MAY_BE[field] for field, name in uses if name == one and field in _MAY_BE] or [(_ANY, "")] for one in names]
    texts, ends = bytearray(), array("Q")
    of_mqtt = [(field, text) for field, text in made if field in _OF_MQTT]
    for row in _rows(where, lines, len(columns), most):
        values = [row[place] for place in places]
        for value, patterns, name in zip(values, allowed, names, strict=True):
            for pattern, how in patterns:
                if pattern.fullmatch(value) is None or "\0" in value:
                    raise PlanError(f"{where}, line {lines.line_num}: its {name} cannot be sent; {how or 'write it without NUL'}")
        begin = len(texts)
        texts += "\0".join(values).encode()
        if len(texts) > _MOST_BYTES:
            raise PlanError(f"{where}: more than {format_bytes(_MOST_BYTES)} of it would be used; write less")
        for field, text in of_mqtt:
            # Most rows are far too short for it.
            if text.text.count("{") * (len(texts) - begin) + len(text.text) < _LONGEST_TEXT // 2:
                continue
            size = len(text.fill({"n": most, "random": "0" * 6, **dict(zip(names, values, strict=True))}).encode())
            if size > _LONGEST_TEXT:
                what = f"{flag_of(field)} would be {size:,} bytes, and MQTT has room for {_LONGEST_TEXT:,}"
                raise PlanError(f"{where}, line {lines.line_num}: {what}; write shorter values, or use its columns fewer times")
        ends.append(len(texts))
    return Data(tuple(names), bytes(texts), ends.tobytes())


def _columns(where: str, names: list[str]) -> list[str]:
    columns = [name.strip() for name in names]
    if not any(re.fullmatch(NAME, name) for name in columns):
        raise PlanError(f"{where} has no line of names first; write for example: device,token")
    for name in columns:
        if name in FIELDS:
            raise PlanError(f"{where}: {{{name}}} is a field by itself; call that column another name")
        if columns.count(name) > 1 and name:
            raise PlanError(f"{where} has two columns called {shown(name)}; call one of them another name")
    return columns


def _rows(where: str, lines: Iterator[list[str]], width: int, most: int) -> Iterator[list[str]]:
    """Those that are no empty lines."""
    number = 0
    for row in lines:
        if not row:
            continue
        if number == most:
            return
        number += 1
        if len(row) != width:
            what = f"row {number:,} has {format_many(len(row), 'value')}, and there are {format_many(width, 'column')}"
            raise PlanError(f"{where}: {what}; write a value for each, in double quotes where it has a comma in it")
        yield row
