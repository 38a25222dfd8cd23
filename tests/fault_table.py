"""docs/faults.md as data: what was done, by which test, what the report says, how the counts stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parent.parent / "docs" / "faults.md"


class Row(NamedTuple):
    """One fault. ``counts`` begins with "agree", "differ" or "unknown"; ``says``: one or several sentences of the report."""

    done: str
    test: str
    says: list[str]
    counts: str

    @property
    def name(self) -> str:
        return self.test.rpartition("::")[2]


def rows() -> list[Row]:
    """The lines of the tables of docs/faults.md that name a test."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and "::" in cells[1]:
            done, test, says, counts = cells
            found.append(Row(done, test.strip("`"), says.split(" <br> "), counts))
    return found


def require_said(words: Iterable[str], evidence: Iterable[str]) -> None:
    """Each of ``words`` is in one of ``evidence``, but for numbers, instants, and what the table leaves out as "[...]"."""
    every = [plain(one) for one in evidence]
    for wanted in words:
        parts = [plain(part) for part in wanted.split("[...]")]
        assert any(all(part in one for part in parts) for one in every), (wanted, every)


def require_counts(row: Row, agrees: bool | None) -> None:
    """How the client's counts stood beside the server's own is what the line says."""
    word = {True: "agree", False: "differ", None: "unknown"}[agrees]
    assert word in re.split(r"\W+", row.counts), (word, row.counts)


def require_as_written(test: str, summary: Mapping[str, Any]) -> None:
    """The report of this test's run says what its lines of the table do."""
    mine = [one for one in rows() if one.name == test]
    assert mine, test
    for row in mine:
        require_said(row.says, [one["evidence"] for one in summary["findings"]])
        require_counts(row, summary["reconciliation"]["agrees"])


def plain(text: str) -> str:
    """The words without what differs from run to run: numbers, and when it was."""
    words = re.sub(r"\d+(?:[,.:-]\d+)*", "#", text)
    words = re.sub(r"# (?:ms|s|min)\b", "# s", words)
    return re.sub(r",? (?:at|from|between) #(?: (?:to|and) #)?(?= |,|;|:|$)", "", words)
