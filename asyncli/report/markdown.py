"""A report as GitHub's Markdown, for the summary of a job or a comment on a pull request.

Reports quote texts of servers and of the network, of which nothing may become markup, a link, a
mention of a user or a reference to an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from asyncli.model.text import oneline
from asyncli.report import document as doc

# Characters that begin markup of GitHub's Markdown wherever they stand, or in a table.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$])")
# Of a list, where a line begins with it.
_OF_LIST = re.compile(r"^([-+]|\d+[.)])(?=\s|$)")
# GitHub finds these in the text that Markdown has made, so no escape hides them; a comment does.
_NAMES = re.compile(r"([@#]|\bwww(?=\.)|\bGH(?=-\d)|:(?=//|[\w+-]+:))")
_NOTHING = "<!-- -->"
_ALIGNED = {True: "--:", False: ":--"}


def markdown(document: doc.Document) -> str:
    """The blocks of ``document`` that are for a pull request."""
    lines = [f"## {escaped(document.headline)}", ""]
    for section in document.sections:
        for block in section.blocks:
            if block.view & doc.View.SUMMARY:
                lines += _lines_of(block)
    if document.footer:
        lines += [f"<sub>{escaped(document.footer)}</sub>", ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """The text, of which nothing is markup."""
    plain_text = _MARKUP.sub(r"\\\1", oneline(text))
    return _NAMES.sub(rf"\1{_NOTHING}", plain_text)


def _escaped_line(text: str) -> str:
    """The text as a paragraph of its own, of which nothing is markup."""
    return _OF_LIST.sub(r"\\\1", escaped(text))


def _lines_of(block: doc.Block) -> Iterator[str]:
    """The lines of a block, with an empty one after it."""
    match block:
        case doc.VerdictLine(word, why, but):
            yield f"**{escaped(f'{word.upper()} {but}'.rstrip())}** {escaped(why)}"
        case doc.Paragraph(words):
            yield _escaped_line(doc.plain(words))
        case doc.DataTable():
            table = block.for_view(doc.View.SUMMARY)
            if not table.rows:
                return
            yield from _table(table)
        case doc.ItemList(items):
            if not items:
                return
            for item in items:
                below = f"<br>{escaped(item.below)}" if item.below else ""
                yield f"- **{escaped(item.word)}** {escaped(item.text)}{below}"
        case doc.Bullets(items):
            for text in items:
                yield f"- {_escaped_line(text)}"
        case _:
            return
    yield ""


def _table(table: doc.DataTable) -> Iterator[str]:
    names = [table.heading, *(column.name for column in table.columns)]
    yield _row(names)
    yield _row_of([":--", *(_ALIGNED[column.number] for column in table.columns)])
    for row in table.rows:
        cells = [doc.cell_text(cell) for cell in row.cells] or [""] * len(table.columns)
        yield _row([row.label, *cells])


def _row(cells: Sequence[str]) -> str:
    return _row_of([escaped(cell) for cell in cells])


def _row_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
