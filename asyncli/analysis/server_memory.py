"""The memory of the server's and of other processes, and whether the server may keep some of
earlier connections.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from asyncli.analysis.constants import MINUTE_S
from asyncli.analysis.holders import Holders, memory_of
from asyncli.analysis.slope import minus, plus
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series

#: The metrics that :func:`held_before` reads, with the value of one that was not read.
_OTHERWISE = {
    metrics.STATUS_ACCEPTS: math.inf,
    metrics.STATUS_CONNECTS: 0.0,
    metrics.SERVER_DESCRIPTORS_TABLE: math.inf,
    metrics.SERVER_DESCRIPTORS_CLOSED: 0.0,
}
BEFORE = tuple(_OTHERWISE)


def held_before(first: Mapping[str, float]) -> tuple[float, float]:
    """How many other connections the server held at once before our first, and how many it may have
    held. ``first``: the first reading of each metric of :data:`BEFORE`.

    By its tables of descriptors, and by what it had accepted, which it may have held one after
    another.
    """
    accepted, polls, table, closed = (_OTHERWISE | dict(first)).values()
    at_most = max(closed, min(accepted - polls, table))
    if accepted == math.inf:
        return max(closed, 0.0), at_most
    return at_most, at_most


def server_memory(run: Run, holders: Holders) -> tuple[Series, str]:
    """The memory of the server's processes over time, and its kind: "PSS", or "RSS" if PSS was not
    read.

    If other processes hold its connections, what these took since the first connect is part of it.
    ``holders``: by the whole run, also if this is a part of one.
    """
    proportional = run.series(metrics.SERVER_PSS_BYTES)
    if len(proportional):
        return _with_holders(run, proportional, holders), "PSS"
    return _with_holders(run, run.series(metrics.SERVER_RSS_BYTES), holders), "RSS"


def _with_holders(run: Run, own: Series, holders: Holders) -> Series:
    of_programs = [memory_of(run, program) for program in holders.in_place]
    taken = [memory for memory in of_programs if len(memory)]
    if not taken:
        return own
    return plus(own, taken)


def memory_in_all(run: Run, holders: Holders) -> Series:
    """:func:`server_memory` with what PSS does not have: huge pages, and what is in swap. Empty
    where that was not read.
    """
    files = run.series(metrics.SERVER_FILE_BYTES)
    in_memory = run.series(metrics.SERVER_ANON_SHMEM_BYTES)
    if not files or not in_memory:
        return Series()
    return _with_holders(run, plus(files, [in_memory]), holders)


def behind_server(run: Run, holders: Holders) -> Series:
    """What the programs behind the server took since the first connect; empty without any, or if
    one may not be read.
    """
    taken = [memory_of(run, program) for program in holders.behind]
    if not taken or not all(map(len, taken)):
        return Series()
    first, *further = taken
    return plus(first, further)


def with_files_at_rest(run: Run, holders: Holders) -> tuple[Series, str]:
    """:func:`server_memory` for the cost of a connection: of PSS, pages of files count as before
    the first connect.

    Those of programs and libraries belong to no connection, and PSS of them falls when another
    program that maps the same files starts in the ramp. The memory in use on the host has no such
    pages either, nor what the server has marked as free: :func:`reclaimable` is apart.
    """
    memory, kind = server_memory(run, holders)
    own = _with_holders(run, run.series(metrics.SERVER_ANON_SHMEM_BYTES), holders)
    files = minus(memory, [own]) if kind == "PSS" else Series()
    if not files:
        return memory, kind
    at_rest = statistics.median(
        files.between(-math.inf, run.first_connect_s).values or files.values
    )
    marked_free = run.series(metrics.SERVER_LAZYFREE_BYTES)
    held = minus(own, [marked_free]) if any(marked_free.values) else own
    return Series(held.t_s, [value + at_rest for value in held.values]), kind


def reclaimable(run: Run) -> Series:
    """What the kernel can take back from the server's processes, since the first connect: pages of
    files that they have touched, and memory that they have marked as free.

    PSS of files rises too when another program that maps the same files ends, and resident pages
    count shared ones in each process: it is the smaller rise of both.
    """
    shares = run.series(metrics.SERVER_FILE_BYTES)
    resident = run.series(metrics.SERVER_FILE_RSS_BYTES)
    shares_before = shares.last(until_s=run.first_connect_s)
    resident_before = resident.last(until_s=run.first_connect_s)
    if shares_before is None or resident_before is None:
        return Series()
    rises = [
        max(0.0, min(share - shares_before, (resident.at(t_s) or 0.0) - resident_before))
        for t_s, share in shares.rows()
    ]
    marked_free = run.series(metrics.SERVER_LAZYFREE_BYTES)
    files = Series(shares.t_s, rises)
    if not marked_free:
        return files
    return plus(files, [marked_free])


def at_hold_end(run: Run, metric: Series) -> float | None:
    """``metric`` at the hold's end (or where the run ended before): its last reading, if that is at
    most a minute old.

    A mean of the last minute would be lower than what a server that grows has at the end.
    """
    return metric.last(until_s=run.stop_s, since_s=max(run.first_connect_s, run.stop_s - MINUTE_S))


def unmapped_shared(run: Run) -> Series:
    """Shared memory and files in memory (tmpfs) on the sampled host that no process of the server
    has mapped, over time.
    """
    return minus(run.series(metrics.HOST_SHMEM_BYTES), [run.series(metrics.SERVER_SHMEM_BYTES)])
