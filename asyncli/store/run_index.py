"""Reads what a list of runs needs of a run file: no histograms, and no samples of the hold.

A night has a million samples and 43,200 ticks, which are mostly histograms. The verdict needs counts and asyncli's lateness, the
cost needs the ramp.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Sequence

import msgspec

from asyncli.core.histogram import Histogram, bucket
from asyncli.metrics import HOST_USED_BYTES, KERNEL_LISTING_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES, STATUS_ACTIVE
from asyncli.records import Finding, Phase, Tick
from asyncli.run import Run
from asyncli.samples import Samples
from asyncli.store.decoding import StoredHistogram, open_tick
from asyncli.store.reader import read_findings, read_frame, read_samples, read_ticks, read_with, row_at

# The cost reads a few seconds of the hold, and the server's own count there.
_INTO_HOLD_S = 15.0
# Metrics of the whole host's cost, and of the server's.
_METRICS = (HOST_USED_BYTES, KERNEL_LISTING_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES, STATUS_ACTIVE)
#: Below this (us) no verdict calls asyncli late: the bounds of analysis.saturation are higher.
PUNCTUAL_US = 40_000


def read_index_entry(path: str | os.PathLike[str]) -> Run:
    """What the verdict and the cost need of the run in ``path``.

    No checks; ticks without latencies, and one bucket for a small lateness; few metrics, until 15 s into the hold. Raises
    :class:`~asyncli.errors.StoreError`.
    """
    return read_with(path, _load)


def _load(connection: sqlite3.Connection) -> Run:
    run = read_frame(connection)
    run.ticks = read_ticks(connection, _light)
    run.samples, skipped = _samples(connection, _until(run.phases))
    run.findings = [*read_findings(connection), *skipped]
    return run


class _Ends(msgspec.Struct, array_like=True):
    """A packed histogram whose buckets are passed over."""

    counts: msgspec.Raw = msgspec.Raw()
    least: int = -1
    greatest: int = -1


_ends = msgspec.msgpack.Decoder(_Ends).decode


def _light(payload: bytes) -> Tick:
    tick = open_tick(payload)
    tick.latency_us = tick.connect_us = Histogram()
    late = tick.lateness_us
    if isinstance(late, StoredHistogram):
        ends = _ends(late._packed)
        # One lateness a heartbeat; one bucket is cheap to sum.
        if tick.sent and ends.greatest <= PUNCTUAL_US:
            tick.lateness_us = Histogram({bucket(ends.greatest): tick.sent}, ends.least, ends.greatest)
    return tick


def _until(phases: Sequence[Phase]) -> float | None:
    """The instant (s) after which no sample is read; None for a run that never came to its hold."""
    return next((one.start_s + _INTO_HOLD_S for one in phases if one.name == "hold"), None)


def _samples(connection: sqlite3.Connection, until_s: float | None) -> tuple[Samples, list[Finding]]:
    marks = ", ".join("?" for _ in _METRICS)
    names = dict(connection.execute(f"SELECT id, name FROM metrics WHERE name IN ({marks}) ORDER BY id", _METRICS))
    last = row_at(connection, "samples", math.inf if until_s is None else until_s)
    wanted = ", ".join(map(str, names)) or "NULL"
    return read_samples(connection, names, f"WHERE rowid <= {last} AND metric IN ({wanted})")
