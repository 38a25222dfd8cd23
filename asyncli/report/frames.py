"""A run as pandas DataFrames: seconds on the run's own clock, units in the names, and NaN for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asyncli.core.histogram import Histogram
from asyncli.metrics import METRICS
from asyncli.records import PHASES, Finding, Sample
from asyncli.run import Run
from asyncli.samples import metrics_of

if TYPE_CHECKING:
    from pandas import DataFrame

_QUANTILES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
# Fields of a tick that are columns as they are.
_AS_THEY_ARE = (
    "second", "workers", "held", "connecting", "awaiting", "cpu_user_s", "cpu_system_s", "started", "opened", "reopened", "lost",
    "sent", "answered", "beats_failed", "bytes_sent", "bytes_received", "longest_turn_s",
)  # fmt: skip


def pandas() -> Any:
    """The module; raises ImportError with how to get it."""
    try:
        import pandas
    except ImportError:
        raise ImportError('frames need pandas, which is not installed: pip install "asyncli[pandas]"') from None
    return pandas


class Frames:
    """The records of a run as DataFrames: ``ticks``, ``samples``, ``deaths``, ``phases``, ``findings``, ``checks``.

    Each is made when it is asked for, and kept. They need pandas (``pip install "asyncli[pandas]"``), else ImportError.
    """

    def __init__(self, run: Run, findings: list[Finding]) -> None:
        self._run, self._findings = run, findings

    @cached_property
    def ticks(self) -> DataFrame:
        """One row a second of the generator. Index ``t_s``: the second's end.

        ``phase``. Gauges at the second's end: ``workers``, ``held``, ``connecting``, ``awaiting`` (connections);
        ``cpu_user_s``, ``cpu_system_s`` (of the workers since their start). Counts of the second: ``started``, ``opened``,
        ``reopened``, ``lost``, ``failed`` (connections); ``sent``, ``answered``, ``beats_failed`` (heartbeats);
        ``bytes_sent``, ``bytes_received``. ``latency_*_ms`` (due to answered), ``lateness_*_ms`` (due to sent),
        ``connect_*_ms``, ``ramp_lateness_*_ms``, with p50, p90, p99, p999 and max: NaN in a second without any.
        ``longest_turn_s``: the longest that a worker stood still.
        """
        run = self._run
        ticks = [tick for _, tick in run.ticks]
        columns: dict[str, Any] = {"phase": pandas().Categorical(run.phases_of_ticks, PHASES, ordered=True)}
        for name in _AS_THEY_ARE:
            columns[name] = [getattr(tick, name) for tick in ticks]
        columns["failed"] = [sum(tick.failures.values()) for tick in ticks]
        for field in ("latency", "lateness", "connect", "ramp_lateness"):
            columns |= _quantiles(field, [getattr(tick, f"{field}_us") for tick in ticks])
        frame: DataFrame = pandas().DataFrame(columns, index=self._index([t_s for t_s, _ in run.ticks]))
        return frame

    @cached_property
    def samples(self) -> DataFrame:
        """One row for each reading of the server, the kernel and the host; one column a metric. Index ``t_s``.

        Names and meanings: ``asyncli.metrics.METRICS``. NaN where a metric was not read at that instant.
        """
        samples = self._run.samples
        nan = float("nan")
        rows = [one.values for one in samples]
        columns = {name: [values.get(name, nan) for values in rows] for name in ordered_metrics(samples)}
        frame: DataFrame = pandas().DataFrame(columns, index=self._index([one.t_s for one in samples]))
        return frame

    @cached_property
    def deaths(self) -> DataFrame:
        """One row for each second and cause of established connections that ended. Index ``t_s``: the second's end.

        ``phase``, ``cause``, ``count``; of those that ended, the medians ``age_p50_s`` (since they were established),
        ``idle_p50_s`` (since the last answer) and ``requests_p50``.
        """
        run = self._run
        rows = [
            (t_s, name, cause, dead.count, *(one.quantile(0.5) for one in (dead.age_s, dead.idle_s, dead.requests)))
            for (t_s, tick), name in zip(run.ticks, run.phases_of_ticks, strict=True)
            for cause, dead in tick.deaths.items()
            if dead.count
        ]
        names = ("t_s", "phase", "cause", "count", "age_p50_s", "idle_p50_s", "requests_p50")
        frame: DataFrame = pandas().DataFrame(rows, columns=list(names)).set_index("t_s")
        numbers = dict.fromkeys(("age_p50_s", "idle_p50_s", "requests_p50"), float)
        return frame.astype({"count": int, **numbers})

    @cached_property
    def phases(self) -> DataFrame:
        """One row a phase, by its name: ``start_s``, ``end_s``, ``duration_s``; NaN for one without an end."""
        rows = {
            one.name: (one.start_s, one.end_s, None if one.end_s is None else one.end_s - one.start_s) for one in self._run.phases
        }
        names = ["start_s", "end_s", "duration_s"]
        frame: DataFrame = pandas().DataFrame.from_dict(rows, orient="index", columns=names).astype(float)
        return frame.rename_axis("phase")

    @cached_property
    def findings(self) -> DataFrame:
        """What should be known or mended, errors first: ``severity``, ``code``, ``evidence``, ``remedy``."""
        rows = [(one.severity, one.code, one.evidence, one.remedy) for one in self._findings]
        frame: DataFrame = pandas().DataFrame(rows, columns=["severity", "code", "evidence", "remedy"])
        return frame

    @cached_property
    def checks(self) -> DataFrame:
        """The limits that the preflight read: ``code``, ``what``, ``verdict``, ``have``, ``need``, ``unit``."""
        names = ["code", "what", "verdict", "have", "need", "unit"]
        rows = [tuple(getattr(one, name) for name in names) for one in self._run.checks]
        frame: DataFrame = pandas().DataFrame(rows, columns=names)
        return frame.astype({"have": float, "need": float})

    def __repr__(self) -> str:
        return "<frames of the run: ticks, samples, deaths, phases, findings, checks>"

    def _index(self, t_s: list[float]) -> Any:
        return pandas().Index(t_s, dtype=float, name="t_s")


def ordered_metrics(samples: Sequence[Sample]) -> list[str]:
    """The names of what was read, in the order of METRICS, families by name."""
    names = set(metrics_of(samples))
    known = [name for name in METRICS if name in names]
    return [*known, *sorted(names - set(known))]


def _quantiles(field: str, histograms: list[Histogram]) -> dict[str, list[float]]:
    nan = float("nan")
    shares = [q for _, q in _QUANTILES]
    nothing = [nan] * len(shares)
    rows = [[nan if value is None else value / 1e3 for value in one.quantiles(shares)] if one else nothing for one in histograms]
    columns = zip(*rows, strict=True) if rows else ([] for _ in shares)
    return {f"{field}_{label}_ms": list(column) for (label, _), column in zip(_QUANTILES, columns, strict=True)}
