"""A report as data: sections of tables, figures, notes and findings. terminal.py prints it as text,
html.py as a page, markdown.py for a pull request.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli.model.records import Finding
from asyncli.model.text import oneline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from asyncli.report.figures.drawing import Style


class View(enum.Flag):
    """Where a block is shown: the short terminal report, the one of ``-v``, the page, the summary
    for a pull request.
    """

    SHORT = enum.auto()
    VERBOSE = enum.auto()
    PAGE = enum.auto()
    SUMMARY = enum.auto()


TERMINAL = View.SHORT | View.VERBOSE
FULL = View.VERBOSE | View.PAGE
ALL = TERMINAL | View.PAGE | View.SUMMARY

#: Text, or parts of text, each with a style for terminals.
Words = str | tuple[str | tuple[str, str], ...]
#: Text of a cell, or (text, style). A second line is a remark on the first: the range of a median.
Cell = str | tuple[str, str]


def plain(words: Words) -> str:
    """The text alone."""
    if isinstance(words, str):
        return words
    return "".join(map(cell_text, words))


def cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


class Paragraph(msgspec.Struct, frozen=True):
    """``role``: "text", "line" (indented from its second line on), "note" (indented), "event" (the
    same), "answer", "headroom", "doubt" or "run". ``style``: on a terminal.
    """

    words: Words
    role: str = "note"
    style: str = ""
    view: View = ALL


class VerdictLine(msgspec.Struct, frozen=True):
    """``but``: what follows a pass that needs attention (``with 2 warnings``); it is not shown as a
    clean pass.
    """

    word: str
    why: str
    but: str = ""
    view: View = ALL


class TableColumn(msgspec.Struct, frozen=True):
    """``kind``: "number" (right-aligned) and "word" (left-aligned) never wrap; "words" may.
    ``is_of_user``: what a user wrote, which is shown as it was written.
    """

    name: str
    kind: str = "number"
    view: View = ALL
    is_of_user: bool = False

    @property
    def number(self) -> bool:
        return self.kind == "number"


class TableRow(msgspec.Struct, frozen=True):
    """``strong``: a sum, or important. ``group``: a heading over the rows below."""

    label: str
    cells: Sequence[Cell] = ()
    style: str = ""
    strong: bool = False
    group: bool = False
    view: View = ALL


class DataTable(msgspec.Struct, frozen=True):
    """``columns``: those after the first, which has the row labels under ``heading``. ``caption``:
    replaces the heading on a page. ``kind``: CSS classes. ``width``: minimum width of the first
    column on a terminal.
    """

    heading: str
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    caption: str = ""
    kind: str = ""
    width: int = 24
    view: View = ALL

    def for_view(self, view: View) -> DataTable:
        """The table with the rows and columns of ``view``."""
        rows = [row for row in self.rows if row.view & view]
        indices = [index for index, column in enumerate(self.columns) if column.view & view]
        return msgspec.structs.replace(self, rows=rows).select(indices)

    def select(self, indices: Sequence[int]) -> DataTable:
        """The table with the columns at ``indices``."""
        columns = [self.columns[i] for i in indices]
        rows = []
        for row in self.rows:
            # The heading of a group has no cells.
            cells = [row.cells[i] for i in indices] if row.cells else []
            rows.append(msgspec.structs.replace(row, cells=cells))
        return msgspec.structs.replace(self, columns=columns, rows=rows)

    @property
    def title(self) -> str:
        return self.caption or self.heading


class ListedItem(msgspec.Struct, frozen=True):
    """A finding, a diagnosis or a claim. ``mark``: severity or verdict; ``below``: remedy or
    reason; ``small``: its code.
    """

    mark: str
    word: str
    text: str
    below: str = ""
    small: str = ""


class ItemList(msgspec.Struct, frozen=True):
    """``heading``: on a terminal."""

    items: Sequence[ListedItem]
    heading: str = ""
    view: View = ALL


class Bullets(msgspec.Struct, frozen=True):
    """``strong``: emphasised on a page."""

    items: Sequence[str]
    strong: bool = False
    view: View = ALL


class Definitions(msgspec.Struct, frozen=True):
    """(Term, text)."""

    items: Sequence[tuple[str, str]]
    heading: str = ""
    view: View = ALL


class Folded(msgspec.Struct, frozen=True):
    """Collapsed on a page."""

    summary: str
    block: DataTable | Definitions
    view: View = View.PAGE


class Picture(msgspec.Struct, frozen=True):
    """A figure. ``draw`` raises NothingToDraw without data; ``alt``, its text for screen readers,
    is valid only after ``draw``. ``caption``: how to read it. ``optional``: omitted without data.
    ``section``: the id of the section that it stands in, at the end or ``first``.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Style], Figure]
    alt: Callable[[], str]
    optional: bool = False
    view: View = View.PAGE
    section: str = ""
    first: bool = False


Block = Paragraph | VerdictLine | DataTable | ItemList | Bullets | Definitions | Folded | Picture


class Section(msgspec.Struct, frozen=True):
    """``heading``: on the page and in its contents. ``tight``: no empty line before the next
    section of a short report.
    """

    id: str
    heading: str
    blocks: Sequence[Block]
    tight: bool = False

    def with_pictures(self, pictures: Iterable[Picture]) -> Section:
        """The section with those of the ``pictures`` that belong in it."""
        before: list[Picture] = []
        after: list[Picture] = []
        for picture in pictures:
            if picture.section == self.id:
                place = before if picture.first else after
                place.append(picture)
        blocks = [*before, *self.blocks, *after]
        return msgspec.structs.replace(self, blocks=blocks)


class Document(msgspec.Struct, frozen=True):
    """``kind``: "report", "comparison", "experiment", "bench"... ``widest``: maximum columns of
    text on a terminal.
    """

    kind: str
    title: str
    headline: str
    byline: Sequence[str]
    sections: Sequence[Section]
    footer: str = ""
    description: str = ""
    widest: int = 96


def finding_items(findings: Iterable[Finding]) -> list[ListedItem]:
    items = []
    for finding in findings:
        remedy = ""
        if finding.remedy:
            remedy = f"remedy: {oneline(finding.remedy)}"
        evidence = oneline(finding.evidence)
        items.append(ListedItem(finding.severity, finding.severity, evidence, remedy, finding.code))
    return items


_SIGN = re.compile(r"(^|[ (])-(?=\d)")


def typeset(text: str) -> str:
    """A cell with typographic minus signs, and a dash for unknown."""
    if text == "-":
        return "–"
    return _SIGN.sub(r"\1−", text)


def headed_line(heading: str, text: str) -> Paragraph:
    """A line of the short report."""
    return Paragraph(((heading, "bold"), f": {text}"), "line", view=View.SHORT)


def numbers(*names: str) -> list[TableColumn]:
    return [TableColumn(name) for name in names]


def pairs(heading: str, rows: Iterable[tuple[str, str]], view: View = View.PAGE) -> DataTable:
    """A table of names and values."""
    table_rows = [TableRow(oneline(name), [oneline(value)]) for name, value in rows]
    columns = [TableColumn("", kind="words")]
    return DataTable(heading, columns, table_rows, kind="keys", view=view)
