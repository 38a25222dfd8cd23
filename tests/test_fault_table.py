"""docs/faults.md names tests that exist, and leaves none out of those that provoke faults."""

from __future__ import annotations

import ast
from pathlib import Path

import fault_table
import pytest

TESTS = Path(__file__).parent
ROWS = fault_table.rows()


def named_in(name: str) -> set[str]:
    """The names of the tests in a file of this name."""
    (path,) = TESTS.rglob(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_each_line_has_its_test_and_words(row: fault_table.Row) -> None:
    assert row.name in named_in(Path(row.test.partition("::")[0]).name)
    assert row.done
    assert row.counts
    assert all(row.says)


@pytest.mark.parametrize("name", ["test_faults_server.py", "test_faults_network.py"])
def test_each_fault_has_its_line(name: str) -> None:
    assert named_in(name) == {row.name for row in ROWS if row.test.startswith(f"{name}::")}


def test_numbers_and_instants_are_not_words() -> None:
    said = "99 connections died at 0:00:03 within 1 s (99 of 100 held; of ages 2-3 s), from 0:00:04 to 0:00:09: why"
    again = "1,100 connections died at 9:00:03 within 40 ms (9 of 10 held; of ages 3 s): why"
    assert fault_table.plain(said) == fault_table.plain(again)
    assert fault_table.plain("page http://127.0.0.1:81/s: gone from 0:00:02 on") == fault_table.plain("page http://10.0.0.2:9/s: gone from 1:00:02 on")
