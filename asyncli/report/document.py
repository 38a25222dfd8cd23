"""A report as data: sections of tables, figures, notes and findings. Builders make it, renderers print it.

terminal.py prints it as text, html.py as a page, and a table of it shows itself in a notebook. A new row of a report is a line in
one builder.
"""

from __future__ import annotations

import enum
import html
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
    least of the first column on a terminal. ``narrower``: what a terminal shows that this does not fit, the widest first.
    """

    heading: str
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    caption: str = ""
    notes: Sequence[str] = ()
    kind: str = ""
    width: int = 24
    view: View = ALL
    narrower: Sequence[DataTable] = ()

    def seen(self, view: View) -> DataTable:
        """The rows and columns that ``view`` shows."""
        places = [place for place, one in enumerate(self.columns) if one.view & view]
        rows = [
            msgspec.structs.replace(row, cells=[row.cells[place] for place in places] if row.cells else ())
            for row in self.rows
            if row.view & view
        ]
        return msgspec.structs.replace(self, columns=[self.columns[place] for place in places], rows=rows)

    def without(self, name: str) -> DataTable:
        """All but the column of this name."""
        return msgspec.structs.replace(
            self, columns=[one if one.name != name else msgspec.structs.replace(one, view=View(0)) for one in self.columns]
        ).seen(ALL)

    @property
    def title(self) -> str:
        return self.caption or self.heading

    def __repr__(self) -> str:
        table = self.seen(View.PAGE)
        if not table.rows:
            return "\n".join([self.title, *self.notes])
        cells = [["", *(one.name for one in table.columns)], *([row.label, *map(cell_text, row.cells)] for row in table.rows)]
        widths = [max(len(row[place]) for row in cells if place < len(row)) for place in range(len(table.columns) + 1)]
        left = [True, *(not one.number for one in table.columns)]
        lines = [self.title, ""] if self.title else []
        for row in cells:
            parts = [
                one.ljust(width) if to_left else one.rjust(width) for one, width, to_left in zip(row, widths, left, strict=False)
            ]
            lines.append("  ".join(parts).rstrip())
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def _repr_html_(self) -> str:
        table = self.seen(View.PAGE)

        def line(tag: str, style: str, row: Sequence[str]) -> str:
            return "".join(
                f'<{tag} style="{style} text-align: {"right" if place and table.columns[place - 1].number else "left"};">'
                f"{html.escape(one)}</{tag}>"
                for place, one in enumerate(row)
            )

        body = "".join(
            f"<tr>{line('td', _CELL + ' font-weight: 600;' * row.strong, [row.label, *map(cell_text, row.cells)])}</tr>"
            for row in table.rows
        )
        title = f'<div style="font-weight: 600; margin-bottom: 4px;">{html.escape(self.title)}</div>' if self.title else ""
        notes = "".join(f'<div style="opacity: 0.75; max-width: 60em;">{html.escape(note)}</div>' for note in self.notes)
        if table.rows:
            head = line("th", _HEAD, ["", *(one.name for one in table.columns)])
            title += (
                '<table style="border-collapse: collapse; margin: 0 0 4px 0;">'
                f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
        return f'<div style="margin: 4px 0;">{title}{notes}</div>'


# Colours come from whoever shows it: a notebook may be dark.
_CELL = "padding: 2px 12px 2px 0; border: none; font-variant-numeric: tabular-nums;"
_HEAD = f"{_CELL} font-weight: normal; opacity: 0.65; border-bottom: 1px solid;"


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


class FactTiles(msgspec.Struct, frozen=True):
    """(what, number, beside it, the section that has more)."""

    items: Sequence[tuple[str, str, str, str]]
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


Block = Paragraph | VerdictLine | DataTable | ItemList | Bullets | Definitions | Folded | FactTiles | Picture


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


def pairs(heading: str, rows: Iterable[tuple[str, str]]) -> DataTable:
    """A table of names and what they are, for a page."""
    found = [TableRow(oneline(name), [oneline(value)]) for name, value in rows]
    return DataTable(heading, [TableColumn("", kind="words")], found, kind="keys", view=View.PAGE)


def drawn_blocks(drawn: Mapping[str, Picture], *names: str) -> list[Block]:
    return [drawn[name] for name in names if name in drawn]
