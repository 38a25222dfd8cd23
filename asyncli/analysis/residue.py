"""The memory that is still in use after the drain."""

from __future__ import annotations

import math
import statistics

import msgspec

from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series


class Residue(msgspec.Struct):
    """Bytes above the baseline, ``after_s`` seconds after the last close; None where not sampled.
    ``kernel``: of both ends.
    """

    after_s: float | None = None
    server_user: float | None = None
    kernel: float | None = None
    host_total: float | None = None


def residue(run: Run, server: Series, host: Series) -> Residue:
    """Memory at the run's end above the baseline's median. ``host``: without what belongs to no
    connection.
    """
    found = Residue()
    after, start = run.phase("residue"), run.first_connect_s
    if after is None:
        return found
    begin = after.start_s

    def risen(metric: Series) -> tuple[float, float] | None:
        """(Instant, bytes above the baseline) of the last reading."""
        before, left = metric.between(-math.inf, start), metric.between(begin, math.inf)
        return (
            (left.t_s[-1], left.values[-1] - statistics.median(before.values))
            if before.values and left.values
            else None
        )

    for name, metric in (
        ("server_user", server),
        ("kernel", run.series(metrics.KERNEL_SOCKET_BYTES)),
        ("host_total", host),
    ):
        grown = risen(metric)
        if grown is not None:
            at_s, more = grown
            setattr(found, name, more)
            found.after_s = max(found.after_s or 0.0, at_s - begin)
    return found
