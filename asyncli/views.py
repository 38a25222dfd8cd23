"""Runs in Python and notebooks: a recorded one, its figures, and a comparison."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis import compare as comparing
from asyncli.analysis.verdict import Verdict
from asyncli.app.results import Results
from asyncli.errors import PlanError
from asyncli.notebook import show_figures
from asyncli.plan import Plan
from asyncli.records import Environment, Finding
from asyncli.report import comparison_report
from asyncli.report.answer import answer, one_line, server_name
from asyncli.report.figures.drawing import NothingToDraw, Style
from asyncli.report.figures.events import timeline_panels
from asyncli.report.figures.panels import timeline
from asyncli.report.run_report import print_report
from asyncli.report.tables import CostView, DeathView, DriftView, Frames, frame_of
from asyncli.report.terminal import html_of, print_document, text_of
from asyncli.topology import Sides, sides

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Console


_WIDTH = 110


class Recorded(Results):
    """A recorded run; also a path to its file.

    ``summary`` has every number of the report, ``frames`` every record as DataFrames, ``plot`` the report's figures.
    """

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def verdict(self) -> Verdict:
        """``"passed"``, ``"failed"``, ``"invalid"`` or ``"untested"``."""
        return self.summary.verdict

    @property
    def complete(self) -> bool:
        """The run came to its end and its file was closed."""
        return self.records.complete

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.records.plan

    @property
    def environment(self) -> Environment:
        """Where it ran: kernel, limits, CPUs, memory, server."""
        return self.records.environment

    @property
    def findings(self) -> list[Finding]:
        """The findings, errors first."""
        return self.summary.findings

    @cached_property
    def frames(self) -> Frames:
        """``ticks``, ``samples``, ``deaths``, ``phases``, ``findings``, ``checks`` as pandas DataFrames."""
        return Frames(self.records, self.findings)

    @cached_property
    def plot(self) -> Plots:
        """The report's figures: ``run.plot.cost()``, ``run.plot.timeline()``..."""
        return Plots(self)

    def cost(self) -> CostView:
        """What one more connection costs in the server, the kernel, asyncli and in all: bytes with 95 % intervals."""
        name, held = server_name(self.summary), self.summary.connections.held
        return CostView(self.analyses.costs, answer(self.summary), server=name, where=self._sides, held=held)

    def drift(self) -> DriftView:
        """Whether memory grew over the hold: bytes an hour with 95 % intervals, and a verdict by a stated rule."""
        return DriftView(self.analyses.drifts, server_name(self.summary), self._sides.host)

    def deaths(self) -> DeathView:
        """Who closed established connections, when and why."""
        return DeathView(self.analyses.totals.whole.deaths, self.analyses.diagnoses)

    def report(self, *, verbose: bool = False) -> str:
        """The report as text, as ``asyncli report`` prints it; ``verbose``: as with ``-v``."""
        return text_of(lambda console: print_report(self.summary, console, self.path, verbose=verbose), _WIDTH)

    def __repr__(self) -> str:
        return f"<asyncli run {os.fspath(self.path)!r}: {one_line(self.summary)}>"

    def _repr_html_(self) -> str:
        return html_of(lambda console: print_report(self.summary, console, self.path), _WIDTH)

    @property
    def _sides(self) -> Sides:
        return sides(self.environment)


class Plots:
    """The report's figures, each a :class:`matplotlib.figure.Figure`; without data, a figure that says why."""

    def __init__(self, run: Recorded) -> None:
        self._run = run

    def parts(self) -> Figure:
        """What one connection costs, as a bar: server, kernel, asyncli, and what is left over."""
        return self._picture("parts")

    def cost(self) -> Figure:
        """Memory over connections held: the points, the line of each cost with its 95 % band, and the raw seconds."""
        return self._picture("cost")

    def drift(self) -> Figure:
        """Memory over the hold, as medians of a minute, with the Theil-Sen line through them."""
        return self._picture("drift")

    def timeline(self) -> Figure:
        """Connections, memory, heartbeats, latencies, lateness and deaths on one time axis."""
        return self._picture("timeline")

    def latency(self) -> Figure:
        """Latency of heartbeats (due to answered) and lateness of asyncli (due to sent) over time."""
        over_time = timeline(self._run.records, server=server_name(self._run.summary))
        panels = [one for one in over_time.panels if one.key in ("latency", "lateness")]
        part = msgspec.structs.replace(over_time, panels=panels)
        return _figure(lambda style: timeline_panels(part, style=style), "Latency and lateness over time", self._note)

    def deaths(self) -> Figure:
        """How old, how long idle and after how many requests connections ended, by cause."""
        return self._picture("deaths")

    def _picture(self, name: str) -> Figure:
        picture = next(one for one in self._run.pictures if one.name == name)
        return _figure(picture.draw, picture.title, self._note)

    @property
    def _note(self) -> str:
        return f"{self._run.path.name}, begun {self._run.records.started}"


def _figure(draw: Callable[[Style], Figure], title: str, note: str) -> Figure:
    show_figures()
    try:
        return draw(Style(title=title, note=note))
    except NothingToDraw as nothing:
        return _says(str(nothing), title)


def _says(words: str, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 0.9), dpi=72)
    figure.text(0.015, 0.65, title, weight="bold", size=14)
    figure.text(0.015, 0.2, words, size=12)
    return figure


class Compared:
    """Two runs or more, number by number. The first is what the others are compared with; they are called A, B, C...

    ``comparison`` is the data, ``frame`` one row for each number and pair of runs, ``plot()`` the relative differences.
    """

    def __init__(self, comparison: comparing.Comparison) -> None:
        self.comparison = comparison

    @property
    def findings(self) -> list[Finding]:
        """What to know before believing a difference."""
        return self.comparison.findings

    @property
    def differences(self) -> list[comparing.Difference]:
        """One for each number and pair of runs: values, difference, interval, p, verdict."""
        return self.comparison.differences

    @property
    def frame(self) -> DataFrame:
        """One row for each number and pair of runs. Index ``key``.

        ``name``, ``unit``, ``first`` and ``second`` (the runs' letters), ``value_first``, ``value_second``, ``difference``
        (second less first) with ``ci95_low`` and ``ci95_high``, ``relative`` (a share of the first), ``p_value``, ``verdict``
        ("higher", "lower", "no_difference", "cannot_say", after Holm), ``words``. NaN where unknown.
        """
        rows = [
            (
                one.key, comparing.ROW_OF[one.key].name, one.unit, *one.between, *one.values, one.difference,
                *(one.ci95 or (None, None)), one.relative, one.p_value, one.verdict, comparison_report.words(one),
            )
            for one in self.differences
        ]  # fmt: skip
        numbers = ["value_first", "value_second", "difference", "ci95_low", "ci95_high", "relative", "p_value"]
        names = ["key", "name", "unit", "first", "second", *numbers, "verdict", "words"]
        return frame_of(names, rows, "key", numbers)

    def plot(self, second: str = "B") -> Figure:
        """How much the run called ``second`` differs from the first, number by number, in per cent with 95 % intervals."""
        rows = [one for one in self.differences if one.between[1] == second]
        if not rows:
            names = ", ".join(run.name for run in self.comparison.runs[1:])
            raise PlanError(f"plot: there is no run {second!r} beside the first; write one of {names}")
        from asyncli.report.figures.comparison import forest

        title = f"How much {second} differs from {rows[0].between[0]}"
        return _figure(lambda style: forest(rows, style=style), title, "Filled marks are real differences, open ones are not.")

    def __repr__(self) -> str:
        return text_of(self._print, _WIDTH)

    def _repr_html_(self) -> str:
        return html_of(self._print, _WIDTH)

    def _print(self, console: Console) -> None:
        print_document(comparison_report.comparison_document(self.comparison), console)
