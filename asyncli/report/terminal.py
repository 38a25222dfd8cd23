"""A document as text for a terminal: for 80 columns, without colour, piped, and in ASCII."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from asyncli.model.text import ascii_only, oneline, printable
from asyncli.report import document as doc

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
#: Of a verdict, the state of a run file, a capacity step, a claim.
VERDICT_STYLE = {
    "passed": "bold green", "failed": "bold red", "invalid": "bold magenta", "untested": "bold yellow",
    "running": "bold cyan", "incomplete": "bold magenta",
    "found": "bold green", "held": "bold green", "stopped": "bold yellow", "ours": "bold magenta",
    "holds": "bold green", "holds in part": "bold yellow", "mostly refuted": "bold red", "does not hold": "bold red",
    "cannot say": "bold magenta",
}  # fmt: skip
# Wider than any table.
_UNBOUNDED = 10_000
#: Indentation of a paragraph and of its first line, by role.
_INDENT = {"note": (2, 2), "line": (2, 0), "run": (3, 0)}
#: Trailing blanks, with colour codes after them.
_BLANKS = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


def print_document(document: doc.Document, console: Console, view: doc.View = doc.View.VERBOSE) -> None:
    """Print the blocks of ``document`` that are in ``view``. No cell is cut: columns that do not fit are printed below, with the
    row labels again.
    """
    width = min(console.width, document.widest)
    with console.capture() as captured:
        for part in _parts(document, view):
            if isinstance(part, doc.DataTable):
                _print_table(part, console, width)
            else:
                console.print(part, width=width)
    # rich leaves blanks at line breaks and in cells.
    text = _BLANKS.sub(r"\1", captured.get())
    console.file.write(ascii_only(text) if console.options.ascii_only else text)
    console.file.flush()


def _parts(document: doc.Document, view: doc.View) -> Iterator[RenderableType | doc.DataTable]:
    """The printable parts in order, with an empty line between sections."""
    tight: bool | None = None
    for section in document.sections:
        shown = [part for block in section.blocks if block.view & view for part in _block(block, view)]
        while shown and shown[-1] == "":
            shown.pop()
        if not shown:
            continue
        if tight is not None and not (tight and section.tight and view is doc.View.SHORT):
            yield ""
        tight = section.tight
        yield from shown


def _block(block: doc.Block, view: doc.View) -> Iterator[RenderableType | doc.DataTable]:
    from rich.text import Text

    match block:
        case doc.VerdictLine(word, why, but):
            style = "bold yellow" if but else VERDICT_STYLE[word]
            yield Text.assemble((f"{word.upper()} {but}".rstrip(), style), "  ", oneline(why))
            yield ""
        case doc.Paragraph():
            yield _paragraph(block)
        case doc.DataTable():
            table = block.for_view(view)
            if table.rows:
                yield table
        case doc.ItemList(items, heading) if items:
            if heading:
                yield Text(heading, "bold")
            yield from map(_item, items)
        case doc.Bullets(items):
            for text in items:
                yield Indented(Text(text), 4, 2)
        case doc.Definitions(items, heading):
            if heading and items:
                yield Text(heading, "bold")
            for term, text in items:
                yield Indented(Text(f"{term}: {text}"), 4, 2)


def _paragraph(paragraph: doc.Paragraph) -> RenderableType:
    style = paragraph.style
    if not style and paragraph.role == "answer":
        style = "bold"
    text = styled(paragraph.words, style)
    if paragraph.role not in _INDENT:
        return text
    return Indented(text, *_INDENT[paragraph.role])


def _item(item: doc.ListedItem) -> Indented:
    from rich.text import Text

    style = SEVERITY_STYLE.get(item.mark) or VERDICT_STYLE[item.mark]
    text = Text.assemble((item.word, style), f"  {item.text}")
    if item.more:
        # On a line of its own, so that a command can be copied.
        text.append(f"\n{item.more}", "dim")
    return Indented(text, 2, 2)


def styled(words: doc.Words, style: str = "") -> Text:
    from rich.text import Text

    parts = []
    for part in (words,) if isinstance(words, str) else words:
        text, own_style = (part, "") if isinstance(part, str) else part
        parts.append((printable(text), own_style))
    return Text.assemble(*parts, style=style, overflow="fold")


def _print_table(table: doc.DataTable, console: Console, width: int) -> None:
    for part in _folded(table, console) if console.is_terminal else [table]:
        grid = _grid(part)
        needed = _needed(part, console)
        if console.is_terminal and needed > console.width:
            # Row labels may wrap if not even one column fits beside them.
            grid.columns[0].no_wrap, grid.columns[0].min_width = False, None
            needed = width
        console.print(_Wide(grid, max(needed, width)), crop=False)


def _console(file: io.StringIO, width: int, **more: Any) -> Console:
    """A console that writes to ``file``, even in a notebook, where rich's default displays its output."""
    from rich.console import Console

    return Console(file=file, width=width, highlight=False, force_jupyter=False, **more)


def text_of(show: Callable[[Console], None], width: int) -> str:
    out = io.StringIO()
    show(_console(out, width, color_system=None))
    return out.getvalue().rstrip()


def html_of(show: Callable[[Console], None], width: int) -> str:
    """The terminal output of ``show`` as HTML, in a notebook's colours."""
    from rich.text import Text

    out = io.StringIO()
    show(_console(out, width, force_terminal=True, color_system="standard", _environ={}))
    record = _console(io.StringIO(), width, record=True, _environ={})
    record.print(Text.from_ansi(out.getvalue().rstrip()), soft_wrap=True)
    return record.export_html(inline_styles=True, code_format='<pre style="line-height: 1.4; overflow-x: auto;">{code}</pre>')


class _Wide:
    """A table at its own width, even beyond the console's."""

    def __init__(self, table: Table, width: int) -> None:
        self._table, self._width = table, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self._table, options.update(width=self._width))


def _grid(table: doc.DataTable) -> Table:
    from rich.table import Table
    from rich.text import Text

    headed = bool(table.heading) or any(one.name for one in table.columns)
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=headed, header_style="dim")
    grid.add_column(Text(table.heading, "bold not dim"), min_width=table.width, no_wrap=True)
    for column in table.columns:
        whole = column.kind != "words"
        justify: JustifyMethod = "right" if column.number else "left"
        grid.add_column(Text(printable(column.name)), justify=justify, no_wrap=whole, overflow="fold")
    for row in table.rows:
        style = row.style or ("bold" if row.strong or row.group else "")
        grid.add_row(Text(printable(row.label), style), *(_cell(one, style) for one in row.cells))
    return grid


def _cell(cell: doc.Cell, style: str) -> Text:
    from rich.text import Text

    text, own = (cell, style) if isinstance(cell, str) else cell
    first, _, beside = text.partition("\n")
    return Text.assemble((printable(first), own), (f"\n{printable(beside)}" if beside else "", "dim"))


def _needed(table: doc.DataTable, console: Console) -> int:
    """The minimum width at which no cell is cut."""
    from rich.measure import Measurement

    grid, options, width = _grid(table), console.options.update(width=_UNBOUNDED), 0
    for column in grid.columns:
        sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        # Cells that do not wrap need their whole width.
        widest = max(one.maximum if column.no_wrap else one.minimum for one in sizes)
        width += max(widest, column.min_width or 0) + 2
    return width - 2


def fitting(table: doc.DataTable, console: Console) -> doc.DataTable:
    """``table`` without the last columns that do not fit."""
    count = len(table.columns)
    while count > 1 and _needed(table.select(range(count)), console) > console.width:
        count -= 1
    return table.select(range(count))


def _folded(table: doc.DataTable, console: Console) -> Iterator[doc.DataTable]:
    """``table`` in parts that fit, each with the first column."""
    while table.columns:
        part = fitting(table, console)
        yield part
        table = table.select(range(len(part.columns), len(table.columns)))


class Indented:
    """Indented text; rich's Padding would fill lines with blanks."""

    def __init__(self, text: Text, indent: int, first: int = 0) -> None:
        self._text, self._indent, self._first = text, indent, first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        from rich.text import Text

        for place, line in enumerate(self._text.wrap(console, options.max_width - self._indent)):
            line.rstrip()
            yield Text.assemble(" " * (self._indent if place else self._first), line)
