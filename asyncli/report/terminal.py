"""A document as text for a terminal: for 80 columns, without colour, piped, and in ASCII."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from asyncli.model.text import ascii_only, oneline, printable
from asyncli.report import document as doc

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
#: Of a verdict, the state of a run file, a capacity step, a claim.
VERDICT_STYLE = {
    "passed": "bold green",
    "failed": "bold red",
    "invalid": "bold magenta",
    "untested": "bold yellow",
    "unjudged": "bold yellow",
    "running": "bold cyan",
    "incomplete": "bold magenta",
    "found": "bold green",
    "held": "bold green",
    "stopped": "bold yellow",
    "ours": "bold magenta",
    "holds": "bold green",
    "holds in part": "bold yellow",
    "mostly refuted": "bold red",
    "does not hold": "bold red",
    "cannot say": "bold magenta",
}
# Wider than any table.
_UNBOUNDED = 10_000
# Row labels wrap where a table is too wide, if so many columns are left for them.
_WRAPPED_LABEL = 24
#: Indentation of a paragraph and of its first line, by role.
_INDENT = {"note": (2, 2), "line": (2, 0), "event": (2, 0), "run": (3, 0)}
#: Trailing blanks, with colour codes after them.
_BLANKS = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


def print_document(
    document: doc.Document, console: Console, view: doc.View = doc.View.VERBOSE
) -> None:
    """Print the blocks of ``document`` that are in ``view``. No cell is cut: columns that do not
    fit are printed below, with the row labels again.
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
    before: doc.Section | None = None
    for section in document.sections:
        parts = _parts_of_section(section, view)
        if not parts:
            continue
        if before is not None:
            both_tight = before.tight and section.tight
            if not both_tight or view is not doc.View.SHORT:
                yield ""
        yield from parts
        before = section


def _parts_of_section(section: doc.Section, view: doc.View) -> list[RenderableType | doc.DataTable]:
    """The printable parts without empty lines at the end."""
    parts: list[RenderableType | doc.DataTable] = []
    for block in section.blocks:
        if block.view & view:
            parts += _block(block, view)
    while parts and parts[-1] == "":
        parts.pop()
    return parts


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
        case doc.ItemList(items, heading):
            yield from _headed(heading, [_item(item) for item in items])
        case doc.Bullets(items):
            yield from [Indented(Text(text), 4, 2) for text in items]
        case doc.Definitions(items, heading):
            lines = [Indented(Text(f"{term}: {text}"), 4, 2) for term, text in items]
            yield from _headed(heading, lines)


def _headed(heading: str, lines: Sequence[Indented]) -> Iterator[RenderableType]:
    """The lines, if any, under their heading, if any."""
    from rich.text import Text

    if heading and lines:
        yield Text(heading, "bold")
    yield from lines


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
    if item.below:
        # On a line of its own, so that a command can be copied.
        text.append(f"\n{item.below}", "dim")
    return Indented(text, 2, 2)


def styled(words: doc.Words, style: str = "") -> Text:
    from rich.text import Text

    if isinstance(words, str):
        words = (words,)
    parts = []
    for part in words:
        text, own_style = _with_style(part, "")
        parts.append((printable(text), own_style))
    return Text.assemble(*parts, style=style, overflow="fold")


def _with_style(text: str | tuple[str, str], otherwise: str) -> tuple[str, str]:
    """The text and its own style, or the other."""
    if isinstance(text, str):
        return text, otherwise
    return text


def _print_table(table: doc.DataTable, console: Console, width: int) -> None:
    # A table of labels alone lists paths, which nothing breaks in a pipe.
    is_list_in_pipe = not console.is_terminal and not table.columns
    if is_list_in_pipe or not has_width(console):
        console.print(_Wide(_grid(table), max(_needed(table, console), width)), crop=False)
        return
    if _fits_beside_wrapped_labels(table, console):
        console.print(_Wide(_with_wrapped_labels(table), width), crop=False)
        return
    for part in _folded(table, console):
        grid = _grid(part)
        needed = _needed(part, console)
        if needed > console.width:
            # Row labels may wrap if not even one column fits beside them.
            grid = _with_wrapped_labels(part)
            needed = width
        console.print(_Wide(grid, max(needed, width)), crop=False)


def _fits_beside_wrapped_labels(table: doc.DataTable, console: Console) -> bool:
    """Whether all columns fit if long row labels wrap, which is easier to read than two tables."""
    longest = max((len(row.label) for row in table.rows), default=0)
    needed = _needed(table, console)
    return needed > console.width >= needed - longest + _WRAPPED_LABEL


def _with_wrapped_labels(table: doc.DataTable) -> Table:
    grid = _grid(table)
    labels = grid.columns[0]
    labels.no_wrap = False
    labels.min_width = None
    return grid


def _console(file: io.StringIO, width: int, **settings: Any) -> Console:
    """A console that writes to ``file``, even in a notebook, where rich's default displays its
    output.
    """
    from rich.console import Console

    return Console(file=file, width=width, highlight=False, force_jupyter=False, **settings)


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
    code_format = '<pre style="line-height: 1.4; overflow-x: auto;">{code}</pre>'
    return record.export_html(inline_styles=True, code_format=code_format)


class _Wide:
    """A table at its own width, even beyond the console's."""

    def __init__(self, table: Table, width: int) -> None:
        self._table = table
        self._width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self._table, options.update(width=self._width))


def _grid(table: doc.DataTable) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_edge=False,
        show_header=bool(table.heading) or any(column.name for column in table.columns),
        header_style="dim",
    )
    grid.add_column(Text(table.heading, "bold not dim"), min_width=table.width, no_wrap=True)
    for column in table.columns:
        grid.add_column(
            Text(printable(column.name)),
            justify="right" if column.number else "left",
            no_wrap=column.kind != "words",
            overflow="fold",
        )
    for row in table.rows:
        style = row.style
        if not style and (row.strong or row.group):
            style = "bold"
        grid.add_row(Text(printable(row.label), style), *(_cell(cell, style) for cell in row.cells))
    return grid


def _cell(cell: doc.Cell, style: str) -> Text:
    from rich.text import Text

    text, own_style = _with_style(cell, style)
    first, _, second = text.partition("\n")
    lines = [(printable(first), own_style)]
    if second:
        lines.append((f"\n{printable(second)}", "dim"))
    return Text.assemble(*lines)


def _needed(table: doc.DataTable, console: Console) -> int:
    """The minimum width at which no cell is cut."""
    from rich.measure import Measurement

    options = console.options.update(width=_UNBOUNDED)
    width = 0
    for column in _grid(table).columns:
        widest = column.min_width or 0
        for cell in (column.header, *column.cells):
            size = Measurement.get(console, options, cell)
            needed = size.minimum
            if column.no_wrap:
                # Such a cell needs its whole width.
                needed = size.maximum
            widest = max(widest, needed)
        width += widest + 2
    return width - 2


def has_width(console: Console) -> bool:
    """Whether the output is only so wide: a terminal, or as the variable COLUMNS says. A pipe or a
    file has no width.
    """
    return console.is_terminal or bool(os.environ.get("COLUMNS"))


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
        self._text = text
        self._indent = indent
        self._first = first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        from rich.text import Text

        for place, line in enumerate(self._text.wrap(console, options.max_width - self._indent)):
            line.rstrip()
            indent = self._indent
            if place == 0:
                indent = self._first
            yield Text.assemble(" " * indent, line)
