"""A run as pandas DataFrames: its tables (csvout.py), with NaN for unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asyncli.records import PHASES, Finding
from asyncli.report.csvout import COLUMNS, OF_PROTOCOL, death_rows, finding_rows, ordered_metrics, phase_rows, tick_rows
from asyncli.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame


def pandas() -> Any:
    """The module. Raises ImportError with the command that installs it."""
    try:
        import pandas
    except ImportError:
        raise ImportError('frames need pandas, which is not installed: pip install "asyncli[pandas]"') from None
    return pandas


def frame_of(names: Sequence[str], rows: Iterable[Any], index: str = "", numbers: Iterable[str] = ()) -> DataFrame:
    """Rows as a DataFrame; ``numbers``: columns in which None becomes NaN."""
    frame: DataFrame = pandas().DataFrame(list(rows), columns=list(names))
    frame = frame.astype(dict.fromkeys(numbers, float))
    return frame.set_index(index) if index else frame


class Frames:
    """The records of a run as DataFrames: ``ticks``, ``samples``, ``deaths``, ``phases``, ``findings``, ``checks``.

    Columns are those of ``--csv``, described in its table ``columns``. Each is made on first use. Needs pandas
    (``pip install "asyncli[pandas]"``), else ImportError.
    """

    def __init__(self, run: Run, findings: list[Finding]) -> None:
        self._run, self._findings = run, findings

    @cached_property
    def ticks(self) -> DataFrame:
        """A row per second of the generator; index ``t_s``: its end."""
        names = [*COLUMNS["ticks"]][1:]
        numbers = [name for name in names if name.endswith("_ms") or name in OF_PROTOCOL]
        frame = frame_of(names, tick_rows(self._run), "t_s", numbers)
        return frame.assign(phase=pandas().Categorical(frame["phase"], PHASES, ordered=True))

    @cached_property
    def samples(self) -> DataFrame:
        """A row per sample, a column per metric (``asyncli.metrics.METRICS``); index ``t_s``; NaN where a metric was not read."""
        metrics = ordered_metrics(self._run.samples)
        rows = ([one.t_s, *map(one.values.get, metrics)] for one in self._run.samples)
        return frame_of(["t_s", *metrics], rows, "t_s", metrics)

    @cached_property
    def deaths(self) -> DataFrame:
        """A row per second and cause of lost connections, with ages, idle times and requests; index ``t_s``: the second's end."""
        names = [*COLUMNS["deaths"]][1:]
        frame = frame_of(names, death_rows(self._run), "t_s", names[5:])
        return frame[frame["kind"] == "lost"].drop(columns="kind").astype({"count": int})

    @cached_property
    def phases(self) -> DataFrame:
        """A row per phase, by name: ``start_s``, ``end_s``, ``duration_s``; NaN without an end."""
        numbers = ["start_s", "end_s", "duration_s"]
        return frame_of(["phase", *numbers], phase_rows(self._run), "phase", numbers)

    @cached_property
    def findings(self) -> DataFrame:
        """Errors first: ``severity``, ``code``, ``evidence``, ``remedy``."""
        return frame_of([*COLUMNS["findings"]][1:], finding_rows(self._findings))

    @cached_property
    def checks(self) -> DataFrame:
        """The preflight's limits: ``code``, ``what``, ``verdict``, ``have``, ``need``, ``unit``."""
        names = ["code", "what", "verdict", "have", "need", "unit"]
        return frame_of(names, ([getattr(one, name) for name in names] for one in self._run.checks), "", ["have", "need"])

    def __repr__(self) -> str:
        return "<frames of the run: ticks, samples, deaths, phases, findings, checks>"
