"""A report as data: sections of tables, figures, notes and findings. Builders make it, renderers print it.

terminal.py prints it as text, html.py as a page. A new row of a report is a line in one builder.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli.records import Finding
from asyncli.text import oneline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from asyncli.report.figures.drawing import Style


class View(enum.Flag):
    """Where a block is shown: the short terminal report, the one of ``-v``, the page."""

    SHORT = enum.auto()
    VERBOSE = enum.auto()
    PAGE = enum.auto()


TERMINAL = View.SHORT | View.VERBOSE
FULL = View.VERBOSE | View.PAGE
ALL = TERMINAL | View.PAGE

#: Text, or parts of text each with a style for terminals.
Words = str | tuple[str | tuple[str, str], ...]
#: Text of a cell, or (text, style). What follows a line's end is said beside it: the range of a median.
Cell = str | tuple[str, str]


def plain(words: Words) -> str:
    """The text alone."""
    parts = (words,) if isinstance(words, str) else words
    return "".join(one if isinstance(one, str) else one[0] for one in parts)


def cell_text(cell: Cell) -> str:
    """The text of a cell."""
    return cell if isinstance(cell, str) else cell[0]


class Paragraph(msgspec.Struct, frozen=True):
    """``role``: "text", "line" (it breaks under its beginning), "note" (set in), "answer", "room", "doubt", "run" or
    "missing".

    ``style``: on a terminal.
    """

    words: Words
    role: str = "note"
    style: str = ""
    view: View = ALL


class VerdictLine(msgspec.Struct, frozen=True):
    word: str
    why: str
    view: View = ALL


class TableColumn(msgspec.Struct, frozen=True):
    """``kind``: a "number" stands right, a "word" left, and neither is ever broken; "words" may be."""

    name: str
    kind: str = "number"
    view: View = ALL

    @property
    def number(self) -> bool:
        return self.kind == "number"


class TableRow(msgspec.Struct, frozen=True):
    """``strong``: sums the others up, or is to be seen first. ``group``: a heading over the rows that follow."""

    label: str
    cells: Sequence[Cell] = ()
    style: str = ""
    strong: bool = False
    group: bool = False
    view: View = ALL


class DataTable(msgspec.Struct, frozen=True):
    """``columns`` are those after the first, which names the row; over that stands ``heading``.

    ``caption``: in place of the heading where there is room for a sentence. ``kind``: its looks on a page. ``width``: the
    least of the first column on a terminal.
    """

    heading: str
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    caption: str = ""
    kind: str = ""
    width: int = 24
    view: View = ALL

    def seen(self, view: View) -> DataTable:
        """The rows and columns that ``view`` shows."""
        rows = [row for row in self.rows if row.view & view]
        places = [place for place, one in enumerate(self.columns) if one.view & view]
        return msgspec.structs.replace(self, rows=rows).part(places)

    def part(self, places: Sequence[int]) -> DataTable:
        """The columns at these places."""
        columns = [self.columns[place] for place in places]
        rows = [msgspec.structs.replace(row, cells=[row.cells[place] for place in places if row.cells]) for row in self.rows]
        return msgspec.structs.replace(self, columns=columns, rows=rows)

    @property
    def title(self) -> str:
        return self.caption or self.heading


class ListedItem(msgspec.Struct, frozen=True):
    """A finding, a diagnosis or a claim. ``mark``: severity or verdict; ``more``: remedy or reason; ``small``: its code."""

    mark: str
    word: str
    text: str
    more: str = ""
    small: str = ""


class ItemList(msgspec.Struct, frozen=True):
    """``heading``: above it on a terminal."""

    items: Sequence[ListedItem]
    heading: str = ""
    view: View = ALL


class Bullets(msgspec.Struct, frozen=True):
    """``strong``: what is to be read before all else."""

    items: Sequence[str]
    strong: bool = False
    view: View = ALL


class Definitions(msgspec.Struct, frozen=True):
    """(what, what is said of it)."""

    items: Sequence[tuple[str, str]]
    heading: str = ""
    view: View = ALL


class Folded(msgspec.Struct, frozen=True):
    """What a page shows when it is asked for."""

    summary: str
    block: DataTable | Definitions
    view: View = View.PAGE


class Picture(msgspec.Struct, frozen=True):
    """A figure. ``draw`` raises NothingToDraw where there is no data; only after it came through may ``alt`` be asked: what the
    figure shows, in a sentence with its numbers. ``caption``: how to read it. ``optional``: left out where there is no data.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Style], Figure]
    alt: Callable[[], str]
    optional: bool = False
    view: View = View.PAGE


Block = Paragraph | VerdictLine | DataTable | ItemList | Bullets | Definitions | Folded | Picture


class Section(msgspec.Struct, frozen=True):
    """``heading``: on the page and in its contents. ``tight``: no empty line parts it from the next on a short report."""

    id: str
    heading: str
    blocks: Sequence[Block]
    tight: bool = False


class Document(msgspec.Struct, frozen=True):
    """``kind``: "report", "comparison" or "experiment". ``widest``: columns of a terminal; beyond them the eye loses a line."""

    kind: str
    title: str
    headline: str
    byline: Sequence[str]
    sections: Sequence[Section]
    footer: str = ""
    description: str = ""
    widest: int = 96


def finding_items(findings: Iterable[Finding]) -> list[ListedItem]:
    """Findings as items of a list."""
    return [
        ListedItem(
            one.severity, one.severity, oneline(one.evidence), f"remedy: {oneline(one.remedy)}" if one.remedy else "", one.code
        )
        for one in findings
    ]


_SIGN = re.compile(r"(^|[ (])-(?=\d)")


def typeset(text: str) -> str:
    """A cell as print has it: signs are minus signs, what is not known is a dash."""
    return "–" if text == "-" else _SIGN.sub(r"\1−", text)


def numbers(*names: str) -> list[TableColumn]:
    """Columns of numbers."""
    return [TableColumn(name) for name in names]


def pairs(heading: str, rows: Iterable[tuple[str, str]], view: View = View.PAGE) -> DataTable:
    """A table of names and what they are."""
    found = [TableRow(oneline(name), [oneline(value)]) for name, value in rows]
    return DataTable(heading, [TableColumn("", kind="words")], found, kind="keys", view=view)


def drawn_blocks(drawn: Mapping[str, Picture], *names: str) -> list[Block]:
    return [drawn[name] for name in names if name in drawn]
