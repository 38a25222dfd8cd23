"""Small tables for a notebook: the same cells as aligned text (``repr``) and as HTML (``_repr_html_``)."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.cost import Cost, Costs, Fit, Residue
from asyncli.analysis.drift import RULE as DRIFT_RULE
from asyncli.analysis.drift import Drift, in_words
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.core.histogram import Histogram
from asyncli.records import Deaths
from asyncli.report.frames import pandas
from asyncli.report.words import COSTS, cost_rows, interval
from asyncli.text import oneline
from asyncli.topology import Sides
from asyncli.units import format_count, format_duration

if TYPE_CHECKING:
    from pandas import DataFrame

# Colours come from whoever shows it: a notebook may be dark.
_CELL = "padding: 2px 12px 2px 0; border: none; font-variant-numeric: tabular-nums;"
_HEAD = f"{_CELL} font-weight: normal; opacity: 0.65; border-bottom: 1px solid;"


class Table(msgspec.Struct, frozen=True):
    """Cells as words. The first column is a name and stands left; numbers stand right, those of ``wordy`` columns left.

    ``strong``: the rows to be seen first.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    wordy: tuple[str, ...] = ()
    strong: tuple[int, ...] = ()

    def __repr__(self) -> str:
        if not self.rows:
            return "\n".join([self.caption, *self.notes])
        lines = [self.caption, ""] if self.caption else []
        cells = [self.columns, *self.rows]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        for row in cells:
            parts = [
                cell.ljust(width) if self._stands_left(place) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(parts).rstrip())
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def _repr_html_(self) -> str:
        def cells(tag: str, style: str, row: Sequence[str], bold: bool = False) -> str:
            weight = " font-weight: 600;" if bold else ""
            return "".join(
                f'<{tag} style="{style}{weight} text-align: {"left" if self._stands_left(place) else "right"};">'
                f"{html.escape(cell)}</{tag}>"
                for place, cell in enumerate(row)
            )

        body = "".join(f"<tr>{cells('td', _CELL, row, place in self.strong)}</tr>" for place, row in enumerate(self.rows))
        caption = f'<div style="font-weight: 600; margin-bottom: 4px;">{html.escape(self.caption)}</div>' if self.caption else ""
        notes = "".join(f'<div style="opacity: 0.75; max-width: 60em;">{html.escape(note)}</div>' for note in self.notes)
        if not self.rows:
            return f'<div style="margin: 4px 0;">{caption}{notes}</div>'
        head = cells("th", _HEAD, self.columns)
        return (
            f'<div style="margin: 4px 0;">{caption}<table style="border-collapse: collapse; margin: 0 0 4px 0;">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>"
        )

    def _stands_left(self, place: int) -> bool:
        return place == 0 or self.columns[place] in self.wordy


class CostView:
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
        self._rows = cost_rows(costs, server, where)
        self._held = held

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
    def table(self) -> Table:
        """What ``repr`` and HTML show."""
        rows = [
            (oneline(row.label), "-", "-", "-", "-")
            if row.cost is None
            else (
                oneline(row.label),
                f"{row.cost.bytes_per_connection:z,.0f}",
                interval(*row.cost.ci95),
                row.of_ends(row.fixed),
                row.of_ends(row.at(self._held)),
            )
            for row in self._rows
        ]
        columns = ("cost of a connection", "bytes", "95 % interval", "fixed", f"at {format_count(self._held)}")
        return Table(self.answer, columns, tuple(rows), strong=(len(rows) - 1,))

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class DriftView(Mapping[str, Drift]):
    """How each metric moved over the hold: ``view["server_user"]`` is a :class:`~asyncli.analysis.drift.Drift`."""

    def __init__(self, drifts: Mapping[Any, Drift], server: str, host: str = "this host") -> None:
        self._drifts: dict[str, Drift] = dict(drifts)
        self._labels = {
            "server_user": f"{oneline(server)}, user memory",
            "kernel": "kernel, socket objects",
            "generator_user": "asyncli, user memory",
            "host_total": f"{host} in all",
        }

    def __getitem__(self, name: str) -> Drift:
        return self._drifts[name]

    def __iter__(self) -> Iterator[str]:
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
    def table(self) -> Table:
        """What ``repr`` and HTML show."""
        rows = tuple(
            (
                self._labels.get(name, name),
                in_words(one),
                "-" if one.p_value is None else f"{one.p_value:.3f}",
                format_count(one.minutes),
            )
            for name, one in self._drifts.items()
        )
        columns = ("drift over the hold", "verdict", "p", "minutes")
        return Table("", columns, rows, (f"Rule: {DRIFT_RULE}.",), wordy=("verdict",))

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class DeathView:
    """Why established connections ended.

    ``diagnoses``: a :class:`~asyncli.analysis.losses.attribution.Diagnosis` for each mechanism, the most frequent cause first.
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
    def table(self) -> Table:
        """What ``repr`` and HTML show."""
        if not self.by_cause:
            return Table("No established connection was lost.", ("lost, by cause", "connections"), ())
        rows = tuple(
            (cause, format_count(dead.count), _middle(dead.age_s), _middle(dead.idle_s), _number(dead.requests))
            for cause, dead in self.by_cause.items()
        )
        notes = tuple(f"{oneline(one.evidence)}. {oneline(one.remedy)}" if one.remedy else oneline(one.evidence) for one in self)
        caption = f"{format_count(self.count)} established connections were lost."
        return Table(caption, ("cause", "connections", "age (median)", "idle for", "requests"), rows, notes)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _middle(histogram: Histogram) -> str:
    value = histogram.quantile(0.5)
    return "-" if value is None else format_duration(value)


def _number(histogram: Histogram) -> str:
    value = histogram.quantile(0.5)
    return "-" if value is None else format_count(value)
