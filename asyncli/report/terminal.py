"""What every text for a terminal shares: severities in colour, lines set in, and a way to print where only ASCII is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
#: Of a run file's state, "going on" and "incomplete" among the verdicts.
VERDICT_STYLE = {
    "passed": "bold green", "failed": "bold red", "invalid": "bold magenta", "untested": "bold yellow",
    "going on": "bold cyan", "incomplete": "bold magenta",
}  # fmt: skip
# Wider than any table.
_UNBOUNDED = 10_000
_ASCII = str.maketrans({"±": "+-", "×": "x", "µ": "u", "…": "~"})
#: Blanks at a line's end, with the codes of colour after them.
_BLANKS = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


def ascii_only(text: str) -> str:
    """``text`` for a terminal that would end it with an encoding error at the first sign beyond ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def print_parts(parts: Iterable[RenderableType], console: Console, widest: int) -> None:
    """Print ``parts`` one below the other: text no wider than ``widest``, tables as wide as they must be.

    No cell is ever cut: where a terminal is too narrow for a table, the columns that do not fit stand below it under the same
    names of rows.
    """
    from rich.table import Table

    with console.capture() as captured:
        for part in parts:
            if not isinstance(part, Table):
                console.print(part, width=min(console.width, widest))
                continue
            for table in _folded(part, console) if console.is_terminal else [part]:
                console.print(_Wide(table, max(_needed(table, console), min(console.width, widest))), crop=False)
    # rich leaves the blank at which it breaks a line, and fills each cell of a table.
    text = _BLANKS.sub(r"\1", captured.get())
    console.file.write(ascii_only(text) if console.options.ascii_only else text)
    console.file.flush()


class _Wide:
    """A table at its own width, be that more than the console's."""

    def __init__(self, table: Table, width: int) -> None:
        self._table, self._width = table, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self._table, options.update(width=self._width))


def _needed(table: Table, console: Console) -> int:
    """The width at which nothing of ``table`` that must not be broken is cut."""
    from rich.measure import Measurement

    options, width = console.options.update(width=_UNBOUNDED), 0
    for column in table.columns:
        sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        # Where a cell may not be broken at its blanks it is as wide as all of it.
        widest = max(one.maximum if column.no_wrap else one.minimum for one in sizes)
        width += max(widest, column.min_width or 0) + table.padding[1] + table.padding[3]
    return width if table.pad_edge else width - table.padding[1]


def _folded(table: Table, console: Console) -> Iterator[Table]:
    """``table`` in as many parts, each with its first column, as the console's width wants."""
    places = list(range(1, len(table.columns)))
    while places:
        some = len(places)
        while some > 1 and _needed(_part_of(table, places[:some]), console) > console.width:
            some -= 1
        part = table if some == len(table.columns) - 1 else _part_of(table, places[:some])
        if _needed(part, console) > console.width:
            # Not even one fits beside the names: they may be broken.
            part.columns[0].no_wrap, part.columns[0].min_width = False, None
        yield part
        places = places[some:]


def _part_of(table: Table, places: Sequence[int]) -> Table:
    """The first column of ``table`` and those at ``places``."""
    from rich.table import Table as Part

    part = Part(
        box=None, padding=table.padding, pad_edge=table.pad_edge, show_edge=table.show_edge, header_style=table.header_style
    )
    columns = [table.columns[place] for place in (0, *places)]
    for one in columns:
        part.add_column(one.header, justify=one.justify, min_width=one.min_width, no_wrap=one.no_wrap, ratio=one.ratio)
    for row in zip(*(one.cells for one in columns), strict=True):
        part.add_row(*row)
    return part


class Indented:
    """Text set in by ``indent``, its first line by ``first``; rich's Padding would fill each line with blanks to its end."""

    def __init__(self, text: Text, indent: int, first: int = 0) -> None:
        self._text, self._indent, self._first = text, indent, first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for place, line in enumerate(self._text.wrap(console, options.max_width - self._indent)):
            line.rstrip()
            yield Text.assemble(" " * (self._indent if place else self._first), line)
