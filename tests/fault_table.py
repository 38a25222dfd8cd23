"""docs/reference/faults.md as data: each fault, its test, the report's sentences, and whether the counts agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parent.parent / "docs" / "reference" / "faults.md"


class Row(NamedTuple):
    """A fault. ``counts`` begins with "agree", "differ" or "unknown"; ``says``: sentences of the report."""

    done: str
    test: str
    says: list[str]
    counts: str

    @property
    def name(self) -> str:
        return self.test.rpartition("::")[2]


def rows() -> list[Row]:
    """The table rows of docs/reference/faults.md that name a test."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and "::" in cells[1]:
            done, test, says, counts = cells
            found.append(Row(done, test.strip("`"), says.split(" <br> "), counts))
    return found


def require_said(words: Iterable[str], evidence: Iterable[str]) -> None:
    """Require each of ``words`` in one of ``evidence``, except numbers, instants, and what the table replaces by "[...]"; of two that the
    table has "*or*" between, one."""
    every = [plain(one) for one in evidence]
    for wanted in words:
        alternatives = [[plain(part) for part in either.split("[...]")] for either in wanted.split(" *or* ")]
        assert any(all(part in one for part in parts) for one in every for parts in alternatives), (wanted, every)


def require_counts(row: Row, agrees: bool | None) -> None:
    """Require that the row says whether the counts of client and server agree."""
    word = {True: "agree", False: "differ", None: "unknown"}[agrees]
    assert word in re.split(r"\W+", row.counts), (word, row.counts)


def require_as_written(test: str, summary: Mapping[str, Any]) -> None:
    """Require that the report of this test's run has the sentences and counts of its rows."""
    mine = [one for one in rows() if one.name == test]
    assert mine, test
    for row in mine:
        require_said(row.says, [one["evidence"] for one in summary["findings"]])
        require_counts(row, summary["reconciliation"]["agrees"])


def require_as_printed(test: str, printed: str, agrees: bool | None) -> None:
    """Require that what was printed of this test's run has the sentences of its rows, and their counts."""
    of_test = [row for row in rows() if row.name == test]
    assert of_test, test
    for row in of_test:
        require_said(row.says, [printed])
        require_counts(row, agrees)


def plain(text: str) -> str:
    """The text without numbers and instants, which differ between runs."""
    words = re.sub(r"\d+(?:[,.:-]\d+)*", "#", text)
    # A busy machine may take minutes for what is seconds on another: "2 s" and "1 min 2 s" are one.
    words = re.sub(r"(?:less than )?# (?:ms|s|min|h)\b(?: # (?:s|min)\b)?", "# s", words)
    return re.sub(r",? (?:at|from|between) #(?: (?:to|and) #)?(?= |,|;|:|$)", "", words)
