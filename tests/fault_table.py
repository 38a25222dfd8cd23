"""docs/faults.md as data: what was done, by which test, what the report says, how the counts stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

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


def plain(text: str) -> str:
    """The words without what differs from run to run: numbers, and when it was."""
    words = re.sub(r"\d+(?:[,.:-]\d+)*", "#", text)
    words = re.sub(r"# (?:ms|s|min)\b", "# s", words)
    return re.sub(r",? (?:at|from|between) #(?: (?:to|and) #)?(?= |,|;|:|$)", "", words)
