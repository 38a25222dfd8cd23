"""docs/reference/faults.md names existing tests, and all that provoke faults."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import fault_table

TESTS = Path(__file__).parent
ROWS = fault_table.rows()


@functools.cache
def named_in(name: str) -> set[str]:
    """The names of the tests in a file of this name, and of what it provokes."""
    (path,) = TESTS.rglob(name)
    found = set()
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                found.add(name)
            case ast.FunctionDef(name=name, decorator_list=[ast.Call(func=ast.Name(id="fault"))]):
                found.add(name)
            case ast.Expr(value=ast.Call(func=ast.Name(id="plain" | "boxed"), args=[ast.Constant(value=str(name)), *_])):
                found.add(name)
    return found


def test_each_line_has_its_test_and_words() -> None:
    for row in ROWS:
        assert row.name in named_in(Path(row.test.partition("::")[0]).name)
        assert row.done, row.name
        assert row.counts, row.name
        assert all(row.says), row.name
    provoked = {name for name in named_in("test_faults.py") if not name.startswith("test_")}
    assert provoked == {row.name for row in ROWS if row.test.startswith("test_faults.py::")}


def test_numbers_and_instants_are_not_words() -> None:
    said = "99 connections died at 0:00:03 within 1 s (99 of 100 held; of ages 2-3 s), from 0:00:04 to 0:00:09: why"
    again = "1,100 connections died at 9:00:03 within 40 ms (9 of 10 held; of ages 3 s): why"
    assert fault_table.plain(said) == fault_table.plain(again)
    assert fault_table.plain("page http://127.0.0.1:81/s: gone from 0:00:02 on") == fault_table.plain("page http://10.0.0.2:9/s: gone from 1:00:02 on")
