"""An experiment's record: its rounds, and their tables, charts and judged claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from asyncli.model.records import Environment, Finding

_T = TypeVar("_T")

#: Increased when older versions could not read new records.
SCHEMA = 1
#: One measurement: ``step``, ``round`` (from 0), and figures by name. ``usable`` False, with the
#: reason in ``unusable``: it failed and is excluded from tables and claims.
Round = dict[str, Any]
Unit = Literal["", "/s", "ms", "us", "s", "B", "cores", "share"]
Verdict = Literal["holds", "holds in part", "mostly refuted", "does not hold", "cannot say"]
#: Their meaning; see :mod:`asyncli.experiments.judging`.
VERDICTS = (
    "holds: shown in every case; holds in part: in some; does not hold: the opposite is shown in "
    "every case; mostly refuted: in more than half, and the claim in none; cannot say: none of "
    "these. Shown: the rounds' whole 95 % interval is on that side of the rule; with one or two "
    "rounds, or a zero among them, the range of values, 1.5 times wider on each side."
)


class Column(msgspec.Struct):
    """A figure of a table: its key in a row, its heading and its unit."""

    key: str
    label: str
    unit: Unit = ""


class FigureRow(msgspec.Struct):
    """A row: each figure's values by round, and the source's figures as it prints them."""

    label: str
    values: dict[str, list[float]]
    # Numbers in older records.
    source: Mapping[str, str | float] = msgspec.field(default_factory=dict)

    def median(self, key: str) -> float | None:
        """The median of a figure's rounds; None: never measured."""
        values = self.values.get(key)
        if not values:
            return None
        return statistics.median(values)

    def has(self, key: str) -> bool:
        """Whether the row has this figure, measured or the source's."""
        return bool(self.values.get(key)) or key in self.source


class FigureTable(msgspec.Struct):
    """A table of figures, printed as median (least to greatest)."""

    title: str
    columns: list[Column]
    rows: list[FigureRow]
    caption: str = ""

    @property
    def filled_columns(self) -> list[Column]:
        """The columns with a value, measured or the source's."""
        return [column for column in self.columns if any(row.has(column.key) for row in self.rows)]


class ChartLine(msgspec.Struct):
    """A named series of a chart."""

    label: str
    xs: list[float]
    ys: list[float]


class Chart(msgspec.Struct):
    """A chart of ``lines`` over a common axis, or ``bars``: then each line's ``xs`` are indexes of
    ``categories``.
    """

    kind: Literal["lines", "bars"]
    title: str
    x_label: str
    y_label: str
    lines: list[ChartLine]
    categories: list[str] = msgspec.field(default_factory=list)
    caption: str = ""


class Claim(msgspec.Struct):
    """A claim, its verdict (see :func:`asyncli.experiments.judging.verdict`), the evidence, and the
    most important ``figure``.
    """

    claim: str
    verdict: Verdict
    why: str
    figure: str = ""


class Conclusions(msgspec.Struct):
    """Tables, charts and claims, without empty tables and charts."""

    tables: list[FigureTable] = msgspec.field(default_factory=list)
    charts: list[Chart] = msgspec.field(default_factory=list)
    claims: list[Claim] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = [table for table in self.tables if table.rows]
        for chart in self.charts:
            chart.lines = [line for line in chart.lines if line.ys]
        self.charts = [chart for chart in self.charts if chart.lines]


class Record(msgspec.Struct):
    """The content of ``record.json``.

    ``complete``: it ran to its end and has conclusions. ``command`` repeats it in the record's
    folder; empty in old records.
    """

    schema: int
    experiment: str
    title: str
    question: str
    source: str
    plan: dict[str, Any]
    quick: bool
    started: str
    duration_s: float
    complete: bool
    rounds: list[Round]
    conclusions: Conclusions
    findings: list[Finding]
    environment: Environment
    command: str = ""


def record_of(text: bytes) -> Record:
    """Decode a record. Raises ``ValueError`` if it is none of this schema."""
    try:
        record = msgspec.json.decode(text, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ValueError(
            "is not an experiment's record; name a record.json of an experiment"
        ) from None
    if record.schema != SCHEMA:
        raise ValueError(
            f"has schema {record.schema}, but this asyncli reads {SCHEMA}; "
            "use the asyncli that wrote it"
        )
    return record


def rotated(items: Sequence[_T], number: int) -> list[_T]:
    """``items`` in the order of round ``number``: rotated, and reversed every other round, so that
    each is first, last, and before or after another equally often.
    """
    count = len(items)
    step = -1 if number % 2 else 1
    return [items[(number + step * place) % count] for place in range(count)]


class Rounds(list[Round]):
    """Rounds, with figures by step and key; missing figures are skipped."""

    def in_step(self, step: str) -> list[Round]:
        """The measurements of a step, in the order of rounds."""
        return [measurement for measurement in self if measurement["step"] == step]

    def of(self, step: str, key: str) -> list[float]:
        """A figure's values in a step, in the order of rounds."""
        values = [measurement.get(key) for measurement in self.in_step(step)]
        return [float(value) for value in values if value is not None]

    def median(self, step: str, key: str) -> float | None:
        """The median of a figure in a step; None: never measured."""
        values = self.of(step, key)
        if not values:
            return None
        return statistics.median(values)

    def by_round(self, step: str, key: str) -> dict[int, float]:
        """A figure's values by the number of the round."""
        values = {}
        for measurement in self.in_step(step):
            if measurement.get(key) is not None:
                values[measurement["round"]] = float(measurement[key])
        return values

    def ratio(self, step: str, other: str, key: str) -> list[float]:
        """``step`` divided by ``other`` in each round, so that common noise cancels."""
        divisors = self.by_round(other, key)
        ratios = []
        for number, value in self.by_round(step, key).items():
            if divisors.get(number):
                ratios.append(value / divisors[number])
        return ratios

    def ratios(self, pairs: Mapping[str, tuple[str, str]], key: str) -> dict[str, list[float]]:
        """The :meth:`ratio` of labelled pairs of steps."""
        return {label: self.ratio(*steps, key) for label, steps in pairs.items()}

    def row(
        self,
        step: str,
        columns: list[Column],
        source: Mapping[str, str] | None = None,
        label: str | None = None,
    ) -> FigureRow:
        """A step's figures, and the source's, as a row."""
        values = {column.key: self.of(step, column.key) for column in columns}
        return FigureRow(label or step, values, dict(source or {}))

    def table(
        self,
        title: str,
        columns: list[Column],
        steps: Mapping[str, str] | Iterable[str],
        caption: str = "",
        source: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> FigureTable:
        """A table with a row for each measured step; a mapping of ``steps`` gives their labels."""
        labels = steps if isinstance(steps, Mapping) else {step: step for step in steps}
        rows = [self.row(step, columns, source.get(step), label) for step, label in labels.items()]
        return FigureTable(
            title, columns, [row for row in rows if any(row.values.values())], caption
        )


def bars(label: str, values: Sequence[float | None]) -> ChartLine:
    """A bar for each category with a known value."""
    known = {float(place): value for place, value in enumerate(values) if value is not None}
    return ChartLine(label, list(known), list(known.values()))


def span(values: list[float], spec: str = ".2f") -> str:
    """``least to greatest``, or one number if they are equal."""
    low = format(min(values), spec)
    high = format(max(values), spec)
    if low == high:
        return low
    return f"{low} to {high}"
