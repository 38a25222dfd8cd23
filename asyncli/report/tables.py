"""Tables of a run for notebooks: cost, drift and losses, with a DataFrame and the values of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from asyncli.analysis.cost import Costs
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.slope import Cost
from asyncli.records import Deaths
from asyncli.report.document import Block, DataTable, Document, Paragraph, Section
from asyncli.report.format import COSTS
from asyncli.report.frames import frame_of
from asyncli.report.run_costs import cost_table, drift_table
from asyncli.report.run_events import deaths_table
from asyncli.report.terminal import html_of, print_document, text_of
from asyncli.text import oneline
from asyncli.topology import Sides
from asyncli.units import format_count

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

_WIDTH = 110


class TableView:
    """A table with a title and notes."""

    def __init__(self, table: DataTable, title: str = "", notes: Sequence[str] = ()) -> None:
        blocks: list[Block] = [Paragraph(title, "text", "bold"), table, *(Paragraph(oneline(note)) for note in notes)]
        self._document = Document("", "", "", [], [Section("", "", blocks)], widest=_WIDTH)

    def print(self, console: Console) -> None:
        print_document(self._document, console)

    def __repr__(self) -> str:
        return text_of(self.print, _WIDTH)

    def _repr_html_(self) -> str:
        return html_of(self.print, _WIDTH)


class CostView(TableView):
    """The cost of a connection, part by part: each a :class:`~asyncli.analysis.slope.Cost` in bytes, or None.

    ``view["kernel"]`` or ``view.kernel``; ``answer``: the sentence, ``fits``: the points, ``residue``: memory after the drain.
    """

    def __init__(self, costs: Costs, answer: str, *, server: str, where: Sides, held: int) -> None:
        super().__init__(cost_table(costs, server, where, held), answer)
        self.server_user, self.kernel, self.kernel_queued = costs.server_user, costs.kernel, costs.kernel_queued
        self.generator_user, self.host_total, self.residual = costs.generator_user, costs.host_total, costs.residual
        self.fits, self.residue, self.answer = costs.fits, costs.residue, answer

    def __getitem__(self, name: str) -> Cost | None:
        """The cost called ``name``. Raises KeyError."""
        if name not in COSTS:
            raise KeyError(f"{name!r} is not a cost; they are {', '.join(COSTS)}")
        found: Cost | None = getattr(self, name)
        return found

    @property
    def frame(self) -> DataFrame:
        """A row per part: ``bytes_per_connection``, ``ci95_low``, ``ci95_high``, ``fixed_bytes`` (the kernel's per socket end),
        ``r2``, ``points``, ``method``.
        """
        rows = [
            (name, one.bytes_per_connection, *one.ci95, one.fixed_bytes, one.r2, one.points, one.method)
            if (one := self[name]) is not None
            else (name, None, None, None, None, None, 0, "")
            for name in COSTS
        ]
        numbers = ["bytes_per_connection", "ci95_low", "ci95_high", "fixed_bytes", "r2"]
        return frame_of(["part", *numbers, "points", "method"], rows, index="part", numbers=numbers)


class DriftView(TableView, Mapping[MetricName, Drift]):
    """Drift of each metric over the hold: ``view["server_user"]`` is a :class:`~asyncli.analysis.drift.Drift`."""

    def __init__(self, drifts: Mapping[MetricName, Drift], server: str, host: str = "this host") -> None:
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
        """A row per metric: ``verdict``, ``bytes_per_hour``, ``ci95_low``, ``ci95_high``, ``within_bytes_per_hour``, ``p_value``,
        ``minutes``."""
        rows = [
            (
                name,
                one.verdict,
                one.bytes_per_hour,
                *(one.ci95 or (None, None)),
                one.within_bytes_per_hour,
                one.p_value,
                one.minutes,
            )
            for name, one in self.items()
        ]
        numbers = ["bytes_per_hour", "ci95_low", "ci95_high", "within_bytes_per_hour", "p_value"]
        return frame_of(["metric", "verdict", *numbers, "minutes"], rows, index="metric", numbers=numbers)


class DeathView(TableView):
    """Why connections were lost.

    ``diagnoses``: :class:`~asyncli.analysis.losses.attribution.Diagnosis`, the most frequent cause first. ``by_cause``: cause ->
    ages (s), idle times (s) and request numbers.
    """

    def __init__(self, by_cause: Mapping[str, Deaths], diagnoses: Sequence[Diagnosis]) -> None:
        self.by_cause = dict(sorted(((c, d) for c, d in by_cause.items() if d.count), key=lambda pair: (-pair[1].count, pair[0])))
        self.diagnoses = list(diagnoses)
        title = (
            f"{format_count(self.count)} established connections were lost."
            if self.count
            else "No established connection was lost."
        )
        super().__init__(deaths_table(self.by_cause), title, [f"{one.evidence}. {one.remedy}" for one in diagnoses])

    def __iter__(self) -> Iterator[Diagnosis]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)

    @property
    def count(self) -> int:
        """Connections lost before the drain."""
        return sum(dead.count for dead in self.by_cause.values())

    @property
    def frame(self) -> DataFrame:
        """A row per diagnosis: ``cause``, ``code``, ``count``, ``certain``, ``from_s``, ``to_s`` (first and last loss),
        ``evidence``, ``remedy``.
        """
        names = ["cause", "code", "count", "certain", "from_s", "to_s", "evidence", "remedy"]
        return frame_of(names, [[getattr(one, name) for name in names] for one in self.diagnoses], numbers=["from_s", "to_s"])
