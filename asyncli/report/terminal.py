"""What every text for a terminal shares: severities in colour, lines set in, and a way to print where only ASCII is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
#: Of a run file's state, "going on" and "incomplete" among the verdicts.
VERDICT_STYLE = {
    "passed": "bold green", "failed": "bold red", "invalid": "bold magenta", "untested": "bold yellow",
    "going on": "bold cyan", "incomplete": "bold magenta",
}  # fmt: skip
_ASCII = str.maketrans({"±": "+-", "×": "x", "µ": "u", "…": "~"})
#: Blanks at a line's end, with the codes of colour after them.
_BLANKS = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


def ascii_only(text: str) -> str:
    """``text`` for a terminal that would end it with an encoding error at the first sign beyond ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def print_parts(parts: Iterable[RenderableType], console: Console, widest: int) -> None:
    """Print ``parts`` one below the other, no wider than ``widest``."""
    from rich.console import Group

    with console.capture() as captured:
        console.print(Group(*parts), width=min(console.width, widest))
    # rich leaves the blank at which it breaks a line, and fills each cell of a table.
    text = _BLANKS.sub(r"\1", captured.get())
    console.file.write(ascii_only(text) if console.options.ascii_only else text)
    console.file.flush()


class Indented:
    """Text set in by ``indent``, its first line by ``first``; rich's Padding would fill each line with blanks to its end."""

    def __init__(self, text: Text, indent: int, first: int = 0) -> None:
        self._text, self._indent, self._first = text, indent, first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for place, line in enumerate(self._text.wrap(console, options.max_width - self._indent)):
            line.rstrip()
            yield Text.assemble(" " * (self._indent if place else self._first), line)
