"""Reads the file of ``--data``: a row for each connection, whose columns are template fields."""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from asyncli.model.consistency import flag_of, plan_templates, require_fields
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.template import FIELDS, NAME, NONCE, Data, Template
from asyncli.model.units import format_bytes, format_many, shown

# It is sent to each host in one piece.
_MOST_BYTES = 1 << 30
# MQTT gives a text's length in two bytes.
_LONGEST_TEXT = 65_535
_MQTT_FIELDS = PROTOCOLS["mqtt"].keys
# Allowed in a request's lines; elsewhere everything but NUL, which no text of a plan has.
_ALLOWED = {
    "urls": (re.compile(r"[!-~]*"), "percent-encode what a URL cannot have"),
    "headers": (re.compile(r"[\t -~]*"), "leave out what a header cannot have"),
}
_ANY = re.compile(r"[^\0]*")


class _Column(msgspec.Struct, frozen=True):
    """A column that the plan uses. ``place``: its index in a row. ``allowed``: patterns that its
    values must match, each with what to do if they do not.
    """

    name: str
    place: int
    allowed: tuple[tuple[re.Pattern[str], str], ...]

    def remedy_for(self, value: str) -> str:
        """What to do about a value that cannot be sent; "" if it can."""
        for pattern, remedy in self.allowed:
            if pattern.fullmatch(value) is None or "\0" in value:
                return remedy or "write it without NUL"
        return ""


def read_data(plan: Plan, most: int | None = None) -> Data | None:
    """The rows for the connections of ``plan`` (or at most ``most`` rows); None: it has no file.
    Blocking. Raises :class:`PlanError` for an unusable file.
    """
    if plan.data is None:
        return None
    where = f"--data: {shown(plan.data)}"
    path = Path(plan.data)
    limit = plan.connections if most is None else most
    try:
        if not path.is_file():
            raise PlanError(
                f"{where} is not a file; name one of comma-separated values, "
                "with a line of names before its rows"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            data = _read_rows(plan, where, file, limit)
    except OSError as error:
        raise PlanError(
            f"{where} cannot be read ({error.strerror}); name a file of comma-separated values"
        ) from None
    except UnicodeDecodeError:
        raise PlanError(f"{where} is not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise PlanError(
            f"{where} is not a file of comma-separated values ({error}); write one row a line"
        ) from None
    if most is None and data.rows < plan.connections:
        raise PlanError(
            f"{where} has only {format_many(data.rows, 'row')} for {plan.connections:,} "
            f"connections; write -c {max(1, data.rows)}, or add rows"
        )
    return data


def described(data: Data) -> dict[str, Any]:
    """What a run records about it, without its values; equal for equal data."""
    digest = hashlib.sha256(msgspec.msgpack.encode(data)).hexdigest()
    return {"rows": data.rows, "columns": list(data.columns), "sha256": digest}


def _read_rows(plan: Plan, where: str, file: TextIO, most: int) -> Data:
    """The columns that ``plan`` uses as fields, from the first ``most`` rows."""
    lines = csv.reader(file, strict=True)
    names = _column_names(where, next(lines, []))
    fields = msgspec.structs.asdict(plan)
    require_fields(fields, {}, names)
    templates = list(plan_templates(fields, names))
    columns = _used_columns(templates, names)
    if not columns:
        known = ", ".join(f"{{{name}}}" for name in names[:10])
        raise PlanError(
            f"{where}: the plan uses none of its columns; "
            f"write one of {known}, or leave the file out"
        )
    templates_of_mqtt = [(field, text) for field, text in templates if field in _MQTT_FIELDS]
    texts = bytearray()
    ends = array("Q")
    for row in _rows(where, lines, len(names), most):
        values = {}
        for column in columns:
            value = row[column.place]
            remedy = column.remedy_for(value)
            if remedy:
                place = f"{where}, line {lines.line_num}"
                raise PlanError(f"{place}: {column.name} cannot be sent; {remedy}")
            values[column.name] = value
        text = "\0".join(values.values()).encode()
        texts += text
        if len(texts) > _MOST_BYTES:
            raise PlanError(
                f"{where}: the used columns are larger than {format_bytes(_MOST_BYTES)}; "
                "use fewer or shorter ones"
            )
        for field, template in templates_of_mqtt:
            # Most rows are far too short to exceed it.
            if template.text.count("{") * len(text) + len(template.text) < _LONGEST_TEXT // 2:
                continue
            size = len(template.fill({"n": most, "random": "0" * 6, **values}).encode())
            if size > _LONGEST_TEXT:
                raise PlanError(
                    f"{where}, line {lines.line_num}: {flag_of(field)} would be {size:,} bytes, "
                    f"more than the {_LONGEST_TEXT:,} of MQTT; "
                    "write shorter values, or use its columns fewer times"
                )
        ends.append(len(texts))
    return Data(tuple(column.name for column in columns), bytes(texts), ends.tobytes())


def _used_columns(templates: Iterable[tuple[str, Template]], names: list[str]) -> list[_Column]:
    """The columns that are fields of ``templates``, in the order of their names."""
    fields_by_column: dict[str, list[str]] = {}
    for field, template in templates:
        for name in template.names - {*FIELDS, NONCE}:
            fields_by_column.setdefault(name, []).append(field)
    columns = []
    for name, fields in sorted(fields_by_column.items()):
        allowed = [_ALLOWED[field] for field in fields if field in _ALLOWED]
        if not allowed:
            allowed = [(_ANY, "")]
        columns.append(_Column(name, names.index(name), tuple(allowed)))
    return columns


def _column_names(where: str, names: list[str]) -> list[str]:
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
            values = format_many(len(row), "value")
            columns = format_many(width, "column")
            raise PlanError(
                f"{where}: row {number:,} has {values} for {columns}; "
                "write a value for each, in double quotes if it contains a comma"
            )
        yield row
