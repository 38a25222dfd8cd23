"""Reads the file of ``--data``: a row for each connection, whose columns are template fields."""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from asyncli.model.consistency import flag_of, plan_templates, require_fields
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.template import FIELDS, NAME, NONCE, Data
from asyncli.model.units import format_bytes, format_many, shown

# It is sent to each host in one piece.
_MOST_BYTES = 1 << 30
# MQTT gives a text's length in two bytes.
_LONGEST_TEXT, _MQTT_FIELDS = 65_535, PROTOCOLS["mqtt"].keys
# Allowed in a request's lines; elsewhere everything but NUL, which no text of a plan has.
_ALLOWED = {
    "urls": (re.compile(r"[!-~]*"), "percent-encode what a URL cannot have"),
    "headers": (re.compile(r"[\t -~]*"), "leave out what a header cannot have"),
}
_ANY = re.compile(r"[^\0]*")


def read_data(plan: Plan, most: int | None = None) -> Data | None:
    """The rows for the connections of ``plan`` (or at most ``most`` rows); None: it has no file. Blocking. Raises
    :class:`PlanError` for an unusable file."""
    if plan.data is None:
        return None
    where, path = f"--data: {shown(plan.data)}", Path(plan.data)
    try:
        if not path.is_file():
            raise PlanError(f"{where} is not a file; name one of comma-separated values, with a line of names before its rows")
        with path.open(encoding="utf-8-sig", newline="") as file:
            data = _read_rows(plan, where, file, plan.connections if most is None else most)
    except OSError as error:
        raise PlanError(f"{where} cannot be read ({error.strerror}); name a file of comma-separated values") from None
    except UnicodeDecodeError:
        raise PlanError(f"{where} is not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise PlanError(f"{where} is not a file of comma-separated values ({error}); write one row a line") from None
    if most is None and data.rows < plan.connections:
        what = f"only {format_many(data.rows, 'row')} for {plan.connections:,} connections"
        raise PlanError(f"{where} has {what}; write -c {max(1, data.rows)}, or add rows")
    return data


def described(data: Data) -> dict[str, Any]:
    """What a run records about it, without its values; equal for equal data."""
    digest = hashlib.sha256(msgspec.msgpack.encode(data)).hexdigest()
    return {"rows": data.rows, "columns": list(data.columns), "sha256": digest}


def _read_rows(plan: Plan, where: str, file: TextIO, most: int) -> Data:
    """The columns that ``plan`` uses as fields, from the first ``most`` rows."""
    lines = csv.reader(file, strict=True)
    columns = _columns(where, next(lines, []))
    fields = {field: getattr(plan, field) for field in Plan.__struct_fields__}
    require_fields(fields, {}, columns)
    templates = list(plan_templates(fields, columns))
    uses = [(field, name) for field, text in templates for name in text.names if name not in (*FIELDS, NONCE)]
    if not uses:
        known = ", ".join(f"{{{name}}}" for name in columns[:10])
        raise PlanError(f"{where}: the plan uses none of its columns; write one of {known}, or leave the file out")
    names = sorted({name for _, name in uses})
    places = [columns.index(name) for name in names]
    allowed = [[_ALLOWED[field] for field, name in uses if name == one and field in _ALLOWED] or [(_ANY, "")] for one in names]
    texts, ends = bytearray(), array("Q")
    of_mqtt = [(field, text) for field, text in templates if field in _MQTT_FIELDS]
    for row in _rows(where, lines, len(columns), most):
        values = [row[place] for place in places]
        for value, patterns, name in zip(values, allowed, names, strict=True):
            for pattern, how in patterns:
                if pattern.fullmatch(value) is None or "\0" in value:
                    raise PlanError(f"{where}, line {lines.line_num}: {name} cannot be sent; {how or 'write it without NUL'}")
        begin = len(texts)
        texts += "\0".join(values).encode()
        if len(texts) > _MOST_BYTES:
            raise PlanError(f"{where}: the used columns are larger than {format_bytes(_MOST_BYTES)}; use fewer or shorter ones")
        for field, text in of_mqtt:
            # Most rows are far too short to exceed it.
            if text.text.count("{") * (len(texts) - begin) + len(text.text) < _LONGEST_TEXT // 2:
                continue
            size = len(text.fill({"n": most, "random": "0" * 6, **dict(zip(names, values, strict=True))}).encode())
            if size > _LONGEST_TEXT:
                what = f"{flag_of(field)} would be {size:,} bytes, more than the {_LONGEST_TEXT:,} of MQTT"
                raise PlanError(f"{where}, line {lines.line_num}: {what}; write shorter values, or use its columns fewer times")
        ends.append(len(texts))
    return Data(tuple(names), bytes(texts), ends.tobytes())


def _columns(where: str, names: list[str]) -> list[str]:
    columns = [name.strip() for name in names]
    if not any(re.fullmatch(NAME, name) for name in columns):
        raise PlanError(f"{where} has no header line; write for example: device,token")
    for name in columns:
        if name in (*FIELDS, NONCE):
            raise PlanError(f"{where}: {{{name}}} is a built-in field; rename that column")
        if columns.count(name) > 1 and name:
            raise PlanError(f"{where} has two columns called {shown(name)}; rename one of them")
    return columns


def _rows(where: str, lines: Iterator[list[str]], width: int, most: int) -> Iterator[list[str]]:
    """Up to ``most`` rows, without empty lines."""
    number = 0
    for row in lines:
        if not row:
            continue
        if number == most:
            return
        number += 1
        if len(row) != width:
            what = f"row {number:,} has {format_many(len(row), 'value')} for {format_many(width, 'column')}"
            raise PlanError(f"{where}: {what}; write a value for each, in double quotes if it contains a comma")
        yield row
