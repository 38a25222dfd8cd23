"""The live view of a run on a terminal or in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console

from asyncli.cli.outputs import OUTPUT_GONE
from asyncli.model.plan import Plan
from asyncli.report.live import JsonView, NullView, PlainView, plain_line
from asyncli.report.livescreen import LiveView
from asyncli.report.livestate import LiveObserver


class Screen(LiveObserver):
    """Folds the records of a run into a state and shows it.

    ``preface``: lines to print before the first state, also with ``quiet``, so that a run that the
    preflight refuses prints nothing but that. With ``log_json`` they go to standard error.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        quiet: bool,
        log_json: bool = False,
        preface: Sequence[str] = (),
    ) -> None:
        super().__init__(plan)
        self._console = console
        self._is_quiet = quiet
        self._preface = list(preface)
        self.shows_cost = not quiet
        if quiet:
            self._view = NullView()
        elif log_json:
            self._view = JsonView(plan, console)
        elif is_screen(console):
            self._view = LiveView(plan, console)
        else:
            self._view = PlainView(plan, console)

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception, *OUTPUT_GONE):
            self._view.__exit__(None, None, None)

    def print_status(self) -> None:
        """Print a status line (at SIGUSR1)."""
        with contextlib.suppress(*OUTPUT_GONE):
            if isinstance(self._view, JsonView):
                self._view.print_status(self.fold.state())
                return
            line = plain_line(self.fold.state())
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def show(self, at_once: bool) -> None:
        """Update the view. A terminal that is gone ends the view, not the soak."""
        try:
            self._print_preface()
            self._view.update(self.fold.state())
        except OUTPUT_GONE:
            self._view = NullView()

    def _print_preface(self) -> None:
        lines = self._preface
        self._preface = []
        for line in lines:
            self._print(line)

    def _print(self, line: str) -> None:
        if isinstance(self._view, JsonView):
            print(line, file=sys.stderr)
        else:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def say(self, line: str) -> None:
        """Print a line beside the view, which goes on below it."""
        if self._is_quiet:
            return
        with contextlib.suppress(*OUTPUT_GONE):
            self._print(line)


def is_screen(console: Console) -> bool:
    """Whether it can be redrawn: a terminal. FORCE_COLOR colours the output of a pipe, where
    nothing can be redrawn.
    """
    return console.is_interactive and console.file.isatty()


def message_console() -> Console:
    """Standard error, for progress and messages."""
    return Console(stderr=True, highlight=False)


def report_console(*, to_stderr: bool) -> Console:
    """Standard output, for a report; standard error if a file or a JSON log goes there."""
    return Console(stderr=to_stderr, highlight=False)


def speaker(console: Console, quiet: bool, style: str | None = None) -> Callable[[str], None]:
    """A function that prints progress lines.

    A terminal that is gone ends the output, not the run.
    """

    def say(line: str) -> None:
        if quiet:
            return
        with contextlib.suppress(*OUTPUT_GONE):
            console.print(line, style=style, soft_wrap=True, markup=False, emoji=False)

    return say
