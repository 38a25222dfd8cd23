"""What a notebook shows of a run: its cost, its drift and its losses, each as a table, a DataFrame and the values themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis.cost import Costs, Residue
from asyncli.analysis.drift import RULE as DRIFT_RULE
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.slope import Cost, Fit
from asyncli.records import Deaths
from asyncli.report.document import DataTable
from asyncli.report.format import COSTS
from asyncli.report.frames import pandas
from asyncli.report.run_costs import cost_table, drift_table
from asyncli.report.run_events import deaths_table
from asyncli.text import oneline
from asyncli.topology import Sides
from asyncli.units import format_count

if TYPE_CHECKING:
    from pandas import DataFrame


class TableView:
    """What shows itself as its ``table``."""

    @property
    def table(self) -> DataTable:
        """What ``repr`` and HTML show."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class CostView(TableView):
    """What one more connection costs, part by part: each a :class:`~asyncli.analysis.cost.Cost` in bytes, or None.

    ``view["kernel"]`` or ``view.kernel``; ``answer`` is the sentence, ``fits`` the points behind each, ``residue`` what
    stayed after the drain, ``frame`` all of it as a DataFrame.
    """

    def __init__(self, costs: Costs, answer: str, *, server: str, where: Sides, held: int) -> None:
        self.server_user: Cost | None = costs.server_user
        self.kernel: Cost | None = costs.kernel
        self.kernel_queued: Cost | None = costs.kernel_queued
        self.generator_user: Cost | None = costs.generator_user
        self.host_total: Cost | None = costs.host_total
        self.residual: Cost | None = costs.residual
        self.fits: dict[str, Fit] = costs.fits
        self.residue: Residue = costs.residue
        self.answer = answer
        self._costs, self._server, self._where, self._held = costs, server, where, held

    def __getitem__(self, name: str) -> Cost | None:
        """The cost called ``name``; KeyError for a name that is none."""
        if name not in COSTS:
            raise KeyError(f"{name!r} is not a cost; they are {', '.join(COSTS)}")
        found: Cost | None = getattr(self, name)
        return found

    @property
    def frame(self) -> DataFrame:
        """One row a part, by its name: ``bytes_per_connection``, ``ci95_low``, ``ci95_high``, ``fixed_bytes`` (all bytes; the
        kernel's per socket end), ``r2``, ``points``, ``method``. NaN where unknown."""
        rows = {
            name: (one.bytes_per_connection, *one.ci95, one.fixed_bytes, one.r2, one.points, one.method)
            if (one := self[name]) is not None
            else (None, None, None, None, None, 0, "")
            for name in COSTS
        }
        names = ["bytes_per_connection", "ci95_low", "ci95_high", "fixed_bytes", "r2", "points", "method"]
        frame: DataFrame = pandas().DataFrame.from_dict(rows, orient="index", columns=names)
        return frame.astype(dict.fromkeys(names[:5], float)).rename_axis("part")

    @property
    def table(self) -> DataTable:
        """What ``repr`` and HTML show."""
        return cost_table(self._costs, self._server, self._where, self._held, self.answer)


class DriftView(TableView, Mapping[MetricName, Drift]):
    """How each metric moved over the hold: ``view["server_user"]`` is a :class:`~asyncli.analysis.drift.Drift`."""

    def __init__(self, drifts: Mapping[MetricName, Drift], server: str, host: str = "this host") -> None:
        self._drifts, self._server, self._host = dict(drifts), server, host

    def __getitem__(self, name: MetricName) -> Drift:
        return self._drifts[name]

    def __iter__(self) -> Iterator[MetricName]:
        return iter(self._drifts)

    def __len__(self) -> int:
        return len(self._drifts)

    @property
    def frame(self) -> DataFrame:
        """One row a metric, by its name: ``verdict``, ``bytes_per_hour``, ``ci95_low``, ``ci95_high``,
        ``within_bytes_per_hour``, ``p_value``, ``minutes``. NaN where unknown."""
        rows = {
            name: (
                one.verdict,
                one.bytes_per_hour,
                *(one.ci95 or (None, None)),
                one.within_bytes_per_hour,
                one.p_value,
                one.minutes,
            )
            for name, one in self._drifts.items()
        }
        names = ["verdict", "bytes_per_hour", "ci95_low", "ci95_high", "within_bytes_per_hour", "p_value", "minutes"]
        frame: DataFrame = pandas().DataFrame.from_dict(rows, orient="index", columns=names)
        return frame.astype(dict.fromkeys(names[1:6], float)).rename_axis("metric")

    @property
    def table(self) -> DataTable:
        """What ``repr`` and HTML show."""
        table = drift_table(self._drifts, self._server, self._host)
        return msgspec.structs.replace(table, notes=[f"Rule: {DRIFT_RULE}."])


class DeathView(TableView):
    """Why established connections ended.

    ``diagnoses``: a :class:`~asyncli.analysis.diagnosis.Diagnosis` for each mechanism, the most frequent cause first.
    ``by_cause``: cause -> the ages (s), idle times (s) and request numbers of those that ended so.
    """

    def __init__(self, by_cause: Mapping[str, Deaths], diagnoses: Sequence[Diagnosis]) -> None:
        self.by_cause = dict(sorted(((c, d) for c, d in by_cause.items() if d.count), key=lambda pair: (-pair[1].count, pair[0])))
        self.diagnoses = list(diagnoses)

    def __iter__(self) -> Iterator[Diagnosis]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)

    @property
    def count(self) -> int:
        """Established connections that ended before the drain."""
        return sum(dead.count for dead in self.by_cause.values())

    @property
    def frame(self) -> DataFrame:
        """One row a diagnosis: ``cause``, ``code``, ``count``, ``certain``, ``from_s``, ``to_s`` (of the first and the last that
        died so), ``evidence``, ``remedy``."""
        names = ["cause", "code", "count", "certain", "from_s", "to_s", "evidence", "remedy"]
        rows = [tuple(getattr(one, name) for name in names) for one in self.diagnoses]
        frame: DataFrame = pandas().DataFrame(rows, columns=names)
        return frame.astype({"from_s": float, "to_s": float})

    @property
    def table(self) -> DataTable:
        """What ``repr`` and HTML show."""
        if not self.by_cause:
            return deaths_table({}, "No established connection was lost.")
        notes = [f"{oneline(one.evidence)}. {oneline(one.remedy)}" if one.remedy else oneline(one.evidence) for one in self]
        return deaths_table(self.by_cause, f"{format_count(self.count)} established connections were lost.", notes)
