"""Generations of the server's processes: a reload starts new ones beside those that still hold the connections.

The new ones take memory of their own, which no connection brought, so a cost and a growth are of one generation. A generation is
told from a pool that grows: it is at least as many processes at once as the server had workers, and they stay. Where processes
follow the connections, one for each, it is also more than the connections of that time.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from asyncli.analysis.constants import HALF, MISSED_S
from asyncli.findings.server import server_reloaded
from asyncli.model.metrics import SERVER_ENDED, SERVER_PROCESSES, SERVER_STARTED
from asyncli.model.records import Finding
from asyncli.model.run import Run


class Generation(msgspec.Struct, frozen=True):
    """``started`` processes that appeared between two samples (s), beside ``workers`` of the generation before."""

    after_s: float
    at_s: float
    started: int
    workers: int


def generations(run: Run) -> list[Generation]:
    """The generations that followed the one before the first connect."""
    started, ended, processes = (run.series(name) for name in (SERVER_STARTED, SERVER_ENDED, SERVER_PROCESSES))
    most = max(run.held.values)
    follow = max(started.values, default=0.0) >= HALF * most
    found = []
    for (before_s, before), (after_s, after) in pairwise(started.rows()):
        new = after - before
        if new <= 0 or after_s <= run.first_connect_s:
            continue
        # The root is no worker, but of a server with one process.
        workers = max(1.0, (processes.at(before_s) or 1.0) - 1.0)
        opened = sum(tick.opened for _, tick in run.ticks_between(before_s - 1.0, after_s + 1.0)) if follow else 0
        settled_s = after_s + MISSED_S
        rise = (started.at(settled_s) or 0.0) - before - ((ended.at(settled_s) or 0.0) - (ended.at(before_s) or 0.0))
        if new >= workers and new > opened and rise >= workers:
            found.append(Generation(before_s, after_s, round(new), round(workers)))
    return found


def generation_ends_s(run: Run) -> float:
    """The last sample (s) before the server's processes were joined by a new generation; infinite if they never were."""
    return next((generation.after_s for generation in generations(run)), math.inf)


def reloads(run: Run) -> list[Finding]:
    """A finding for each new generation of processes until the drain."""
    return [
        server_reloaded(generation.at_s, generation.started, generation.workers)
        for generation in generations(run)
        if generation.at_s <= run.stop_s
    ]
