"""A run for notebooks: tables of cost, drift and losses, with a DataFrame and the values of each;
its records as DataFrames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.cost_parts import Costs, known_of_heap
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.heap_cost import HEAP_COSTS
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.slope import Cost
from asyncli.model.records import PHASES, Deaths, Finding
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.topology import Sides
from asyncli.model.units import format_count, format_many
from asyncli.report.csvout import (
    COLUMNS,
    PROTOCOL_COLUMNS,
    death_rows,
    event_rows,
    finding_rows,
    ordered_metrics,
    phase_rows,
    sample_rows,
    tick_rows,
)
from asyncli.report.document import Block, DataTable, Document, Paragraph, Section
from asyncli.report.event_lines import line_of, was_done
from asyncli.report.format import COSTS
from asyncli.report.run_costs import cost_table, drift_table
from asyncli.report.run_events import deaths_table, events_table
from asyncli.report.summary_parts import EventPart
from asyncli.report.terminal import html_of, print_document, text_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

_WIDTH = 110


class TableView:
    """A table with a title and notes."""

    def __init__(self, table: DataTable, title: str = "", notes: Sequence[str] = ()) -> None:
        blocks: list[Block] = [table]
        if title:
            blocks.insert(0, Paragraph(title, "text", "bold"))
        for note in notes:
            blocks.append(Paragraph(oneline(note)))
        self._document = Document("", "", "", [], [Section("", "", blocks)], widest=_WIDTH)

    def print(self, console: Console) -> None:
        print_document(self._document, console)

    def __repr__(self) -> str:
        return text_of(self.print, _WIDTH)

    def _repr_html_(self) -> str:
        return html_of(self.print, _WIDTH)


class CostView(TableView):
    """The cost of a connection, part by part: each a :class:`~asyncli.analysis.slope.Cost` in
    bytes, or None.

    ``view["kernel"]`` or ``view.kernel``; ``answer``: the sentence, ``fits``: the points,
    ``residue``: memory after the drain.
    """

    def __init__(
        self,
        costs: Costs,
        answer: str,
        *,
        server: str,
        where: Sides,
        held: int,
        level: float | None = None,
        heap_fills: bool = False,
    ) -> None:
        table = cost_table(costs, server, where, held, level, heap_fills=heap_fills)
        super().__init__(table, answer)
        self.server_user = costs.server_user
        self.behind = costs.behind
        self.kernel = costs.kernel
        self.kernel_queued = costs.kernel_queued
        self.generator_user = costs.generator_user
        self.residual = costs.residual
        self.host_total = costs.host_total
        self.live = costs.heap.live
        self.stacks = costs.heap.stacks
        self.at_goal = costs.heap.at_goal
        self.fits = costs.fits
        self.residue = costs.residue
        self.answer = answer
        self._by_name = {name: costs.cost_of(name) for name in (*COSTS, *HEAP_COSTS)}
        self._of_heap = known_of_heap(costs)

    def __getitem__(self, name: str) -> Cost | None:
        """The cost called ``name``. Raises KeyError."""
        if name not in self._by_name:
            raise KeyError(f"{name!r} is not a cost; they are {', '.join(self._by_name)}")
        return self._by_name[name]

    @property
    def frame(self) -> DataFrame:
        """A row per part: ``bytes_per_connection``, ``ci95_low``, ``ci95_high``, ``fixed_bytes``
        (the kernel's per socket end), ``r2``, ``points``, ``method``. Costs of a collected heap
        have a row where they are known.
        """
        rows: list[tuple[object, ...]] = []
        for name in (*COSTS, *self._of_heap):
            cost = self[name]
            if cost is None:
                rows.append((name, None, None, None, None, None, 0, ""))
                continue
            line = (cost.fixed_bytes, cost.r2, cost.points, cost.method)
            rows.append((name, cost.bytes_per_connection, *cost.ci95, *line))
        numbers = ["bytes_per_connection", "ci95_low", "ci95_high", "fixed_bytes", "r2"]
        return frame_of(["part", *numbers, "points", "method"], rows, index="part", numbers=numbers)


class DriftView(TableView, Mapping[MetricName, Drift]):
    """Drift of each metric over the hold: ``view["server_user"]`` is a
    :class:`~asyncli.analysis.drift.Drift`.
    """

    def __init__(
        self, drifts: Mapping[MetricName, Drift], server: str, host: str = "this host"
    ) -> None:
        super().__init__(drift_table(drifts, server, host))
        self._drifts = dict(drifts)

    def __getitem__(self, name: MetricName) -> Drift:
        return self._drifts[name]

    def __iter__(self) -> Iterator[MetricName]:
        return iter(self._drifts)

    def __len__(self) -> int:
        return len(self._drifts)

    @property
    def frame(self) -> DataFrame:
        """A row per metric: ``verdict``, ``bytes_per_hour``, ``ci95_low``, ``ci95_high``,
        ``within_bytes_per_hour``, ``p_value``, ``minutes``.
        """
        rows = []
        for name, drift in self.items():
            rate = (drift.bytes_per_hour, *(drift.ci95 or (None, None)))
            sureness = (drift.within_bytes_per_hour, drift.p_value, drift.minutes)
            rows.append((name, drift.verdict, *rate, *sureness))
        numbers = ["bytes_per_hour", "ci95_low", "ci95_high", "within_bytes_per_hour", "p_value"]
        return frame_of(
            ["metric", "verdict", *numbers, "minutes"], rows, index="metric", numbers=numbers
        )


class DeathView(TableView):
    """Why connections were lost.

    ``diagnoses``: :class:`~asyncli.analysis.losses.attribution.Diagnosis`, the most frequent cause
    first. ``by_cause``: cause -> ages (s), idle times (s) and request numbers.
    """

    def __init__(self, by_cause: Mapping[str, Deaths], diagnoses: Sequence[Diagnosis]) -> None:
        counted = [(cause, deaths) for cause, deaths in by_cause.items() if deaths.count]
        self.by_cause = dict(sorted(counted, key=lambda pair: (-pair[1].count, pair[0])))
        self.diagnoses = list(diagnoses)
        title = "No established connection was lost."
        if self.count:
            title = f"{format_count(self.count)} established connections were lost."
        notes = [f"{diagnosis.evidence}. {diagnosis.remedy}" for diagnosis in diagnoses]
        super().__init__(deaths_table(self.by_cause), title, notes)

    def __iter__(self) -> Iterator[Diagnosis]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)

    @property
    def count(self) -> int:
        """Connections lost before the drain."""
        return sum(deaths.count for deaths in self.by_cause.values())

    @property
    def frame(self) -> DataFrame:
        """A row per diagnosis: ``cause``, ``code``, ``count``, ``certain``, ``from_s``, ``to_s``
        (first and last loss), ``evidence``, ``remedy``.
        """
        names = ["cause", "code", "count", "certain", "from_s", "to_s", "evidence", "remedy"]
        rows = [_fields(diagnosis, names) for diagnosis in self.diagnoses]
        return frame_of(names, rows, numbers=["from_s", "to_s"])


class EventsView(TableView):
    """What was done to the run or noted, and what the report says of each event of the plan.

    ``view[1]``: the first event, an :class:`~asyncli.report.summary_parts.EventPart`, with the
    numbers of the JSON; 0 is churn. ``view.said[1]``: the report's sentence on it.
    """

    def __init__(self, run: Run, events: Sequence[EventPart]) -> None:
        self._run = run
        self.events = list(events)
        #: The report's sentences, by the number of the event; of a mark there is none.
        self.said = {}
        for event in events:
            if was_done(event):
                self.said[event.number] = line_of(event, run.plan.protocol)
        title = format_many(len(self.events), "event")
        if not self.events:
            title = "Nothing was done to the run, or noted."
        table = events_table(run.phases, self.events)
        super().__init__(table, title, list(self.said.values()))

    def __getitem__(self, number: int) -> EventPart:
        """The event with this number. Raises KeyError."""
        for event in self.events:
            if event.number == number:
                return event
        raise KeyError(f"the run has no event {number}")

    def __iter__(self) -> Iterator[EventPart]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def frame(self) -> DataFrame:
        """A row per event, as ``run.frames.events``."""
        return Frames(self._run, [], self.events).events


def pandas() -> Any:
    """The module. Raises ImportError with the command that installs it."""
    try:
        import pandas
    except ImportError:
        raise ImportError(
            'frames need pandas, which is not installed: pip install "asyncli[pandas]"'
        ) from None
    return pandas


def frame_of(
    names: Sequence[str], rows: Iterable[Any], index: str = "", numbers: Iterable[str] = ()
) -> DataFrame:
    """Rows as a DataFrame; ``numbers``: columns in which None becomes NaN."""
    frame: DataFrame = pandas().DataFrame(list(rows), columns=list(names))
    frame = frame.astype(dict.fromkeys(numbers, float))
    if not index:
        return frame
    return frame.set_index(index)


def _fields(record: msgspec.Struct, names: Iterable[str]) -> list[Any]:
    """The values of these fields of a record."""
    values = msgspec.structs.asdict(record)
    return [values[name] for name in names]


class Frames:
    """The records of a run as DataFrames: ``ticks``, ``samples``, ``deaths``, ``phases``,
    ``events``, ``findings``, ``checks``.

    Columns are those of ``--csv``, described in its table ``columns``. Each is made on first use.
    Needs pandas (``pip install "asyncli[pandas]"``), else ImportError.
    """

    def __init__(self, run: Run, findings: list[Finding], events: Sequence[EventPart] = ()) -> None:
        self._run = run
        self._findings = findings
        self._events = events

    @cached_property
    def ticks(self) -> DataFrame:
        """A row per second of the generator; index ``t_s``: its end."""
        names = [*COLUMNS["ticks"]][1:]
        numbers = [name for name in names if name.endswith("_ms") or name in PROTOCOL_COLUMNS]
        frame = frame_of(names, tick_rows(self._run), "t_s", numbers)
        return frame.assign(phase=pandas().Categorical(frame["phase"], PHASES, ordered=True))

    @cached_property
    def samples(self) -> DataFrame:
        """A row per sample, a column per metric (model/metrics.py); index ``t_s``; NaN where a
        metric was not read.
        """
        metrics = ordered_metrics(self._run.samples)
        return frame_of(["t_s", *metrics], sample_rows(self._run, metrics), "t_s", metrics)

    @cached_property
    def deaths(self) -> DataFrame:
        """A row per second and cause of lost connections, with ages, idle times and requests; index
        ``t_s``: the second's end.
        """
        names = [*COLUMNS["deaths"]][1:]
        frame = frame_of(names, death_rows(self._run), "t_s", names[5:])
        return frame[frame["kind"] == "lost"].drop(columns="kind").astype({"count": int})

    @cached_property
    def phases(self) -> DataFrame:
        """A row per phase, by name: ``start_s``, ``end_s``, ``duration_s``; NaN without an end."""
        numbers = ["start_s", "end_s", "duration_s"]
        return frame_of(["phase", *numbers], phase_rows(self._run), "phase", numbers)

    @cached_property
    def events(self) -> DataFrame:
        """What was done to the run or noted, by number: ``kind``, ``at_s``, ``end_s``, ``phase``,
        ``text``, and what an event of the plan did.
        """
        names = [*COLUMNS["events"]][1:]
        numbers = ["at_s", "end_s", *names[6:]]
        return frame_of(names, event_rows(self._run, self._events), "number", numbers)

    @cached_property
    def findings(self) -> DataFrame:
        """Errors first: ``severity``, ``code``, ``evidence``, ``remedy``."""
        return frame_of([*COLUMNS["findings"]][1:], finding_rows(self._findings))

    @cached_property
    def checks(self) -> DataFrame:
        """The preflight's limits: ``code``, ``what``, ``verdict``, ``have``, ``need``, ``unit``."""
        names = ["code", "what", "verdict", "have", "need", "unit"]
        rows = [_fields(check, names) for check in self._run.checks]
        return frame_of(names, rows, numbers=["have", "need"])

    def __repr__(self) -> str:
        return "<frames of the run: ticks, samples, deaths, phases, events, findings, checks>"
