"""asyncli in Python and in notebooks: load, inspect, plot and compare runs, and make new ones.

run = asyncli.load("run.db")           # any machine that runs Python: no uvloop, no Linux
run.summary.verdict, run.cost(), run.plot.cost(), run.frames.ticks

async with asyncli.lab_server("nginx", connections="10k") as server:
    run = await asyncli.soak(server, connections="10k", hold="30s")
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis import compare as comparing
from asyncli.analysis.verdict import Verdict
from asyncli.app.report_memory import import_report
from asyncli.app.results import Results, compare_results, free_name
from asyncli.model.errors import HostError, PlanError
from asyncli.model.plan import Layer, Plan, build_plan, load_plan, plan_document
from asyncli.model.records import Environment, Finding
from asyncli.model.topology import Sides, sides
from asyncli.notebook import LogObserver, NotebookObserver, kernel_shell, show_figure, show_figures
from asyncli.report.answer import heap_is_collected, memory_name, one_line
from asyncli.report.comparison_report import comparison_document, require_comparable
from asyncli.report.cost_answer import answers
from asyncli.report.differences import words
from asyncli.report.figures.drawing import NothingToDraw, Style
from asyncli.report.figures.forest import forest
from asyncli.report.figures.timeline_and_deaths import timeline_panels
from asyncli.report.figures.timeline_data import timeline
from asyncli.report.live_thresholds import require_limits
from asyncli.report.livestate import LiveObserver
from asyncli.report.run_costs import server_level
from asyncli.report.run_report import print_report
from asyncli.report.tables import (
    CostView,
    DeathView,
    DriftView,
    EventsView,
    Frames,
    frame_of,
)
from asyncli.report.terminal import html_of, print_document, text_of
from asyncli.store.reader import read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Console

    from asyncli.lab.base import LabServer
    from asyncli.report.document import Picture

__all__ = ["Compared", "Plots", "Recorded", "compare", "lab_server", "load", "make_plan", "soak"]


def load(run: str | os.PathLike[str]) -> Recorded:
    """The run in the file ``run``: finished, interrupted, or still being written (its state now;
    load it again for more).

    Raises :class:`StoreError` (no FileNotFoundError) for a file that is missing, of another
    program, newer, or damaged.
    """
    path = Path(run)
    return Recorded(path, read_run(path))


def compare(first: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Compared:
    """The differences between runs (files, or results of :func:`load`), and which are real.

    Raises :class:`~asyncli.model.errors.StoreError` for a file that cannot be read or compared,
    PlanError for a single run.
    """
    require_comparable("compare", 1 + len(others))
    files = []
    for run in (first, *others):
        records = run.records if isinstance(run, Recorded) else None
        files.append((Path(run), records))
    return Compared(compare_results(files))


def make_plan(urls: str | Sequence[str], **settings: Any) -> Plan:
    """A plan from the keys of a plan file, with units: ``make_plan(url, connections="100k",
    hold="8h", ramp="10/10ms")``.

    Raises :class:`~asyncli.model.errors.PlanError` with the key, the problem and the remedy.
    """
    plan = build_plan([Layer("plan: {key}", {**settings, "urls": urls})])
    require_limits(plan)
    return plan


def lab_server(
    name: str | None = None,
    *,
    connections: int | str | None = None,
    keepalive: float | str = 60,
    **options: Any,
) -> LabServer:
    """A local server: ``async with asyncli.lab_server("nginx", connections="10k") as server: ...``.
    It ends with the block.

    ``name``: as in ``asyncli lab``; None: an nginx with stub_status, else the built-in server.
    ``connections``: how many it must hold (None: 100,000 on nginx and the built-in server, fewer on
    others). ``keepalive``: seconds (or "1h"), a tenth of the server's timeout. Raises PlanError for
    a bad argument, :class:`~asyncli.model.errors.HostError` if it cannot start.
    """
    from asyncli import lab
    from asyncli.model.units import parse_count, parse_duration

    try:
        seconds = parse_duration(keepalive)
        if connections is not None:
            options["connections"] = parse_count(connections)
    except ValueError as error:
        raise PlanError(f"lab_server: {error}") from None
    return lab.choose(name, keepalive_s=seconds, **options)


async def soak(
    aim: str | Sequence[str] | LabServer | Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool | None = None,
    cluster: Any = None,
    **settings: Any,
) -> Recorded:
    """Soak in the running loop and return the recorded run: ``run = await asyncli.soak(plan)`` in a
    notebook's cell.

    ``aim``: a :class:`Plan`; or URLs or a running lab server, with the plan's keys as ``settings``
    (``connections="10k", hold="30s"``). ``out``: a new file, by default ``asyncli-<time>.db`` here.
    ``progress``: show the soak; None: only in a notebook, True: also elsewhere (a line every ten
    seconds on standard error). ``cluster``: a Dask client or the address of its cluster, whose
    hosts open the connections (docs/cluster.md).

    Cancelling ends it at once and leaves a valid file. Raises
    :class:`~asyncli.model.errors.AsyncliError` for a bad plan, if the preflight refuses, or if the
    file exists.
    """
    try:
        from asyncli.app.soak import KnownServer, Soak
    except ImportError as error:
        raise HostError(
            f"a soak needs Linux ({error}); a run file can be read anywhere: asyncli.load(path)"
        ) from None
    plan = _plan_of(aim, settings)
    import_report()
    target = None
    if not isinstance(aim, Plan | str | Sequence):
        target = KnownServer(aim.label, aim.pid)
    path = free_name() if out is None else Path(out)
    observer = _observer_of(plan, progress)
    fleet = None
    if cluster is not None:
        from asyncli.cluster.link import Cluster

        fleet = Cluster.of(cluster)
    run = Soak.shown_by(observer, plan, path, target=target, cluster=fleet)
    try:
        await run.run()
    except BaseException:
        # The output of an interrupted soak must not look live.
        if run.started and isinstance(observer, NotebookObserver):
            observer.end(f"interrupted; the recorded part: asyncli.load({os.fspath(run.out)!r})")
        raise
    recorded = await asyncio.to_thread(load, run.recorded)
    if isinstance(observer, NotebookObserver):
        observer.end(f"{recorded.verdict}: {recorded.summary.why} ({recorded.path.name})")
    return recorded


def _observer_of(plan: Plan, progress: bool | None) -> LiveObserver:
    """What shows a soak; ``progress``: as for :func:`soak`."""
    if progress is not False and kernel_shell() is not None:
        return NotebookObserver(plan)
    if progress:
        return LogObserver(plan)
    return LiveObserver(plan)


def _plan_of(aim: str | Sequence[str] | LabServer | Plan, settings: dict[str, Any]) -> Plan:
    if isinstance(aim, Plan):
        if settings:
            raise PlanError(
                f"soak: a plan takes no settings ({', '.join(settings)}); give URLs instead of a "
                "plan"
            )
        return _checked(aim)
    if isinstance(aim, str | Sequence):
        return make_plan(aim, **settings)
    if not hasattr(aim, "status_url"):
        raise PlanError(f"soak: {aim!r} is not a target; give a URL, a plan or a lab server")
    known: dict[str, Any] = {}
    if aim.status_url is not None:
        known["status_url"] = aim.status_url
    if aim.metrics_url is not None:
        known["server_metrics"] = [aim.metrics_url]
    if aim.authority is not None:
        known["ca"] = str(aim.authority)
    known["server_pid"] = aim.pid
    return make_plan(aim.url, **{**known, **settings})


def _checked(plan: Plan) -> Plan:
    """Check a plan that may not come from :func:`make_plan`. Raises :class:`PlanError`."""
    try:
        checked = load_plan(plan_document(plan))
        if not checked.targets:
            raise PlanError("it has no URL")
    except (PlanError, TypeError, ValueError) as error:
        why = str(error).removeprefix("recorded ")
        raise PlanError(f"soak: {why}; make the plan with asyncli.make_plan(url, ...)") from None
    return checked


_WIDTH = 110


class Recorded(Results):
    """A recorded run; also an ``os.PathLike`` of its file.

    ``summary`` has every number of the report, ``frames`` every record as DataFrames, ``plot`` the
    report's figures.
    """

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def verdict(self) -> Verdict:
        """``"passed"``, ``"failed"``, ``"invalid"`` or ``"untested"``; ``"unjudged"`` if this
        installation cannot judge a limit.
        """
        return self.summary.verdict

    @property
    def complete(self) -> bool:
        """Whether the run ended and closed its file."""
        return self.records.complete

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.records.plan

    @property
    def environment(self) -> Environment:
        """The hosts and the server: kernel, limits, CPUs, memory, server version."""
        return self.records.environment

    @property
    def findings(self) -> list[Finding]:
        """The findings, errors first."""
        return self.summary.findings

    @cached_property
    def frames(self) -> Frames:
        """``ticks``, ``samples``, ``deaths``, ``phases``, ``events``, ``findings``, ``checks`` as
        pandas DataFrames.
        """
        return Frames(self.records, self.findings, self.summary.events or ())

    @cached_property
    def plot(self) -> Plots:
        """The report's figures: ``run.plot.cost()``, ``run.plot.timeline()``..."""
        return Plots(self)

    def cost(self) -> CostView:
        """What one more connection costs in the server, the kernel, asyncli and in all: bytes with
        95 % intervals.
        """
        return CostView(
            self.analyses.costs,
            " ".join(answers(self.summary)),
            server=memory_name(self.summary),
            where=self._sides,
            held=self.summary.connections.held_or_peak or 0,
            level=server_level(self.summary),
            heap_fills=heap_is_collected(self.summary),
        )

    def drift(self) -> DriftView:
        """Whether memory grew over the hold: bytes an hour with 95 % intervals, and a verdict by a
        stated rule.
        """
        return DriftView(self.analyses.drifts, memory_name(self.summary), self._sides.host)

    def deaths(self) -> DeathView:
        """The lost connections: which side closed them, when and why."""
        return DeathView(self.analyses.totals.whole.deaths, self.analyses.diagnoses)

    def events(self) -> EventsView:
        """What was done to the run or noted: the events of its plan with what the report says of
        each, and marks.
        """
        return EventsView(self.records, self.summary.events or [])

    def report(self, *, verbose: bool = False) -> str:
        """The report as text, as ``asyncli report`` prints it; ``verbose``: as with ``-v``."""

        def print_text(console: Console) -> None:
            print_report(self.summary, console, self.path, verbose=verbose)

        return text_of(print_text, _WIDTH)

    def __repr__(self) -> str:
        return f"<asyncli run {os.fspath(self.path)!r}: {one_line(self.summary)}>"

    def _repr_html_(self) -> str:
        def print_short(console: Console) -> None:
            print_report(self.summary, console, self.path)

        return html_of(print_short, _WIDTH)

    @property
    def _sides(self) -> Sides:
        return sides(self.environment)


class Plots:
    """The report's figures by their names: ``run.plot.cost()``. Each is a
    :class:`matplotlib.figure.Figure`; without data, one that says why. A cell of a notebook shows
    each that it makes.
    """

    def __init__(self, run: Recorded) -> None:
        self._run = run

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(picture.name for picture in self._run.pictures)]

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        picture = self._picture(name)

        def plot() -> Figure:
            return _figure(picture.draw, picture.title, self._note)

        plot.__name__ = name
        plot.__doc__ = f"{picture.title}. {picture.caption}"
        return plot

    def _picture(self, name: str) -> Picture:
        """Raise AttributeError if there is none of this name."""
        pictures = []
        # Python's own tools (copy, pickle) ask for private names, even before there is a run.
        if not name.startswith("_"):
            pictures = self._run.pictures
        for picture in pictures:
            if picture.name == name:
                return picture
        names = ", ".join(picture.name for picture in pictures)
        raise AttributeError(f"there is no figure {name!r}; the figures are {names}")

    def latency(self) -> Figure:
        """Heartbeats' latency (due to answered) and asyncli's lateness (due to sent) over time."""
        over_time = timeline(self._run.records, server=memory_name(self._run.summary))
        panels = [panel for panel in over_time.panels if panel.key in ("latency", "lateness")]
        shown = msgspec.structs.replace(over_time, panels=panels)

        def draw(style: Style) -> Figure:
            return timeline_panels(shown, style=style)

        return _figure(draw, "Latency and lateness over time", self._note)

    @property
    def _note(self) -> str:
        return f"{self._run.path.name}, started {self._run.records.started}"


def _figure(draw: Callable[[Style], Figure], title: str, note: str) -> Figure:
    show_figures()
    figure = _drawn(draw, title, note)
    show_figure(figure)
    return figure


def _drawn(draw: Callable[[Style], Figure], title: str, note: str) -> Figure:
    try:
        return draw(Style(title=title, note=note))
    except NothingToDraw as nothing:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.0, 0.9), dpi=72)
        figure.text(0.015, 0.65, title, weight="bold", size=14)
        figure.text(0.015, 0.2, str(nothing), size=12)
        return figure


class Compared:
    """A comparison of two or more runs, called A, B, C... Each is compared with the first, number
    by number.

    ``comparison`` is the data, ``frame`` has a row per number and pair of runs, ``plot()`` shows
    the relative differences.
    """

    def __init__(self, comparison: comparing.Comparison) -> None:
        self.comparison = comparison

    @property
    def findings(self) -> list[Finding]:
        """Reasons to doubt a difference."""
        return self.comparison.findings

    @property
    def differences(self) -> list[comparing.Difference]:
        """Values, difference, interval, p and verdict of each number and pair of runs."""
        return self.comparison.differences

    @property
    def frame(self) -> DataFrame:
        """A row per number and pair of runs; index ``key``.

        ``name``, ``unit``, ``first`` and ``second`` (the runs' letters), ``value_first``,
        ``value_second``, ``difference`` (second minus first) with ``ci95_low`` and ``ci95_high``,
        ``relative`` (a share of the first), ``p_value``, ``verdict`` ("higher", "lower",
        "no_difference", "cannot_say", after Holm), ``words``. NaN where unknown.
        """
        numbers = [
            "value_first",
            "value_second",
            "difference",
            "ci95_low",
            "ci95_high",
            "relative",
            "p_value",
        ]
        names = ["key", "name", "unit", "first", "second", *numbers, "verdict", "words"]
        rows = [_row_of(difference) for difference in self.differences]
        return frame_of(names, rows, "key", numbers)

    def plot(self, second: str = "B") -> Figure:
        """The differences of the run called ``second`` from the first, in per cent with 95 %
        intervals.
        """
        of_second = [
            difference for difference in self.differences if difference.between[1] == second
        ]
        if not of_second:
            names = ", ".join(run.name for run in self.comparison.runs[1:])
            raise PlanError(
                f"plot: no run {second!r} to compare with the first; write one of {names}"
            )
        first = of_second[0].between[0]
        title = f"How much {second} differs from {first}"
        note = "Filled marks are real differences, open ones are not."

        def draw(style: Style) -> Figure:
            return forest(of_second, style=style)

        return _figure(draw, title, note)

    def __repr__(self) -> str:
        return text_of(self._print, _WIDTH)

    def _repr_html_(self) -> str:
        return html_of(self._print, _WIDTH)

    def _print(self, console: Console) -> None:
        print_document(comparison_document(self.comparison), console)


def _row_of(difference: comparing.Difference) -> tuple[Any, ...]:
    """The values of a row of :attr:`Compared.frame`, in the order of its columns."""
    low_and_high = difference.ci95 or (None, None)
    return (
        difference.key,
        comparing.ROW_OF[difference.key].name,
        difference.unit,
        *difference.between,
        *difference.values,
        difference.difference,
        *low_and_high,
        difference.relative,
        difference.p_value,
        difference.verdict,
        words(difference),
    )
