"""Reads the parts of a run file that a list of runs needs: no histograms, and few metrics of the
hold.

A night has millions of samples, and 43,200 ticks of mostly histograms. The verdict needs counts and
asyncli's lateness, the cost needs the ramp and what grows in the hold.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Collection

import msgspec

from asyncli.core.histogram import Histogram, bucket
from asyncli.model.metrics import family_of
from asyncli.model.records import Finding, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Samples
from asyncli.store.lazy_ticks import StoredHistogram, decode_tick
from asyncli.store.reader import (
    read_findings,
    read_frame,
    read_samples,
    read_ticks,
    read_with,
    row_at,
    text_of,
)

# The cost needs a few seconds of the hold, with the server's count.
_INTO_HOLD_S = 15.0
#: Below this (us) no verdict calls asyncli late: the bounds of analysis.saturation are higher.
PUNCTUAL_US = 40_000


def read_index_entry(path: str | os.PathLike[str], whole: Collection[str] = ()) -> Run:
    """The run in ``path``, reduced to what the verdict and the cost need.

    No checks; ticks without latencies, and with one bucket for a small lateness; samples until 15 s
    into the hold, and all of the metrics, or families of metrics, ``whole``. Raises
    :class:`~asyncli.model.errors.StoreError`.
    """
    return read_with(path, lambda connection: _load(connection, whole))


def _load(connection: sqlite3.Connection, whole: Collection[str]) -> Run:
    run = read_frame(connection)
    run.ticks = read_ticks(connection, _decode_light)
    hold = run.phase("hold")
    until_s = math.inf if hold is None else hold.start_s + _INTO_HOLD_S
    run.samples, skipped = _samples(connection, until_s, whole)
    run.findings = [*read_findings(connection), *skipped]
    return run


class _Extremes(msgspec.Struct, array_like=True):
    """A packed histogram without decoding its buckets."""

    counts: msgspec.Raw = msgspec.Raw()
    least: int = -1
    greatest: int = -1


_decode_extremes = msgspec.msgpack.Decoder(_Extremes).decode


def _decode_light(payload: bytes) -> Tick:
    tick = decode_tick(payload)
    tick.latency_us = tick.connect_us = Histogram()
    lateness = tick.lateness_us
    if isinstance(lateness, StoredHistogram):
        extremes = _decode_extremes(lateness._packed)
        # One lateness per heartbeat. One bucket is cheap to sum.
        if tick.sent and extremes.greatest <= PUNCTUAL_US:
            tick.lateness_us = Histogram(
                {bucket(extremes.greatest): tick.sent}, extremes.least, extremes.greatest
            )
    return tick


def _samples(
    connection: sqlite3.Connection, until_s: float, whole: Collection[str]
) -> tuple[Samples, list[Finding]]:
    names = {
        number: text_of(name)
        for number, name in connection.execute("SELECT id, name FROM metrics ORDER BY id")
    }
    numbers = ", ".join(
        str(number) for number, name in names.items() if name in whole or family_of(name) in whole
    )
    return read_samples(
        connection,
        names,
        f"WHERE rowid <= {row_at(connection, 'samples', until_s)} OR metric IN ({numbers})",
    )
