"""Reads the part of a run file that a list of runs shows, without what makes it long: histograms, and samples of the hold.

A night's file has some million samples and 43,200 ticks, and most of a tick is its histograms. A list shows the verdict, which
needs counts and asyncli's lateness, and the cost of a connection, which needs the ramp.
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
from asyncli.store.reader import read_findings, read_frame, read_samples, read_ticks, read_with, row_at
from asyncli.store.stored import StoredHistogram, open_tick

# The cost looks a few seconds into the hold, and at the server's own count there, which may come seldom.
_INTO_HOLD_S = 15.0
# What the cost on the host in all, and where that is unknown the server's, is made of.
_METRICS = (HOST_USED_BYTES, KERNEL_LISTING_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES, STATUS_ACTIVE)
#: Below this (us) no verdict calls asyncli late: the bounds of analysis.saturation are higher.
PUNCTUAL_US = 40_000


def read_index_entry(path: str | os.PathLike[str]) -> Run:
    """What the verdict and the cost on the whole host, or in the server, need of the run in ``path``.

    No checks; ticks without latencies, and with one bucket for a small lateness; few metrics, until 15 s into the hold. Raises
    :class:`~asyncli.errors.StoreError` as :func:`~asyncli.store.reader.read_run` does.
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
        # Each heartbeat that was sent has left one lateness. Adding up many that are in one bucket is next to nothing.
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
