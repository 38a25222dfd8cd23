"""The tutorial on run files: its cells run, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import lzma
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from documented import ROOT, blocks

#: The page's file name -> stored run.
RUNS = {"first.db": "clean", "remote.db": "agent", "night.db": "leak", "runs/clean.db": "clean", "runs/fleet.db": "fleet"}


def _stored(name: str, folder: Path, called: str) -> None:
    (folder / called).write_bytes(lzma.decompress((ROOT / "tests" / "golden" / f"{name}.db.xz").read_bytes()))


def test_the_queries_of_the_run_file_answer(tmp_path: Path) -> None:
    _stored("agent", tmp_path, "run.db")
    (block, *_) = [one for one in blocks(ROOT / "docs" / "reference" / "run-file.md") if one.language != "inline"]
    queries = re.findall(r'^sqlite3 run\.db "(.*)"$', block.text, re.MULTILINE)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as database:
        answers = [database.execute(query).fetchall() for query in queries]
    assert (len(answers) > 2, all(answers)) == (True, True)


def test_its_cells_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "runs").mkdir()
    for name, stored in RUNS.items():
        _stored(stored, tmp_path, name)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    said = ""
    cells = shown = 0
    for block in blocks(ROOT / "docs" / "tutorial" / "your-runs.md"):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, "a cell of your-runs.md", "exec"), known)
            said = out.getvalue()
            cells += 1
        elif block.language == "text":
            assert said.strip("\n") == block.text.strip("\n")
            shown += 1
    assert (cells > 8, shown > 2) == (True, True)
