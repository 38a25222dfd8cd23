"""The memory that is still in use after the drain."""

from __future__ import annotations

import math
import statistics
from typing import Any

import msgspec

from asyncli.analysis.after_drain import by_the_clock, stacks_stay, steady_rise
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series


class LivePace(msgspec.Struct):
    """How fast what is alive in the server's heap rises by the clock alone, when nothing is
    connected. ``ci95``: its interval, which reaches to 0 where no rise is certain.
    """

    bytes_per_s: float
    ci95: tuple[float, float]


class Residue(msgspec.Struct):
    """Bytes above the baseline, ``after_s`` seconds after the last close; None where not sampled.
    ``kernel``: of both ends. ``live``: what is alive just after a forced collection, and
    ``live_pace`` how fast that rises (None: too few collections); absent where none was asked for.
    ``stacks``: of the runtime's threads, after these collections; absent where no page has them.
    """

    after_s: float | None = None
    server_user: float | None = None
    kernel: float | None = None
    host_total: float | None = None
    live: float | msgspec.UnsetType = msgspec.UNSET
    live_pace: LivePace | msgspec.UnsetType | None = msgspec.UNSET
    stacks: float | msgspec.UnsetType | None = msgspec.UNSET


def residue(run: Run, server: Series, host: Series) -> Residue:
    """Memory at the run's end above the baseline's median. ``host``: without what belongs to no
    connection.
    """
    after = run.phase("residue")
    if after is None:
        return Residue()
    start = run.first_connect_s
    begin = after.start_s

    def risen(metric: Series) -> tuple[float, float] | None:
        """(Instant, bytes above the baseline) of the last reading."""
        before = metric.between(-math.inf, start)
        left = metric.between(begin, math.inf)
        if not before.values or not left.values:
            return None
        return left.t_s[-1], left.values[-1] - statistics.median(before.values)

    series = {
        "server_user": server,
        "kernel": run.series(metrics.KERNEL_SOCKET_BYTES),
        "host_total": host,
        "live": run.series(metrics.RUNTIME_FORCED_BYTES),
    }
    left_bytes: dict[str, Any] = {}
    after_s = None
    for name, metric in series.items():
        rise = risen(metric)
        if rise is not None:
            at_s, left_bytes[name] = rise
            after_s = max(after_s or 0.0, at_s - begin)
    known = Residue(**left_bytes, after_s=after_s)
    if run.series(metrics.RUNTIME_FORCED_BYTES):
        known.live_pace = _live_pace(run)
        if run.series(metrics.RUNTIME_STACKS_BYTES):
            known.stacks = stacks_stay(run)
    return known


def _live_pace(run: Run) -> LivePace | None:
    forced = run.series(metrics.RUNTIME_FORCED_BYTES)
    growth = by_the_clock(run, forced)
    if growth is None:
        return None
    low = growth.per_s - growth.half
    if steady_rise(run, forced) is None:
        low = min(0.0, low)
    return LivePace(growth.per_s, (low, growth.per_s + growth.half))
