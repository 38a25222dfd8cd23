"""Were we alone on this host? The kernel's and the host's memory are everybody's, so their slopes are only ours if we were; and a
latency is only the server's where others left it the CPUs.
"""

from __future__ import annotations

import math

from asyncli.analysis.levels import PART
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.analysis.totals import Totals
from asyncli.findings.host import host_busy, host_shared
from asyncli.metrics import GENERATOR_CPU_S, HOST_CPU_BUSY_S, KERNEL_TCP_ALLOC, SERVER_CPU_S, SESSION_CPU_S
from asyncli.records import Finding
from asyncli.run import Run

#: Of all CPUs, where none was idle: what others use beyond this is missing from what the server and asyncli could do.
MOST_OF_OTHERS = PART


def others_cores(run: Run, start_s: float, stop_s: float) -> float | None:
    """Cores of asyncli's host that neither asyncli nor the server used.

    None where too little was read, or where the server is on that host and its share is not known.
    """
    busy = _cores(run, run.of_ours(HOST_CPU_BUSY_S), start_s, stop_s)
    server = _cores(run, SERVER_CPU_S, start_s, stop_s) if run.place.local else 0.0
    if busy is None or server is None:
        return None
    # Before the first connect there may be no generator.
    ours = (_cores(run, name, start_s, stop_s) or 0.0 for name in (GENERATOR_CPU_S, SESSION_CPU_S))
    return max(0.0, busy - server - sum(ours))


def _cores(run: Run, name: str, start_s: float, stop_s: float) -> float | None:
    # CPU time is read in hundredths of a second: over less than half of one, shares are too rough.
    return run.series(name).per_second(start_s, stop_s, least_s=0.5)


def cpus_taken(run: Run) -> list[Finding]:
    """A finding where all CPUs of asyncli's host were busy, a good part of them with other programs.

    What used less before the first connect, or was not seen then, may be the server's backend.
    """
    start, stop, cpus = run.first_connect_s, run.stop_s, run.place.cpus
    busy = _cores(run, run.of_ours(HOST_CPU_BUSY_S), start, stop)
    before, then = (others_cores(run, *span) for span in ((-math.inf, start), (start, stop)))
    if cpus is None or busy is None or then is None or busy < MOST_CPU_SHARE * cpus:
        return []
    if then < MOST_OF_OTHERS * cpus:
        return []
    return [host_busy(round(cpus), busy, then, None if before is None else before >= MOST_OF_OTHERS * cpus)]


def company(run: Run, totals: Totals) -> list[Finding]:
    """A finding where other programs opened or closed many TCP sockets between the baseline and the hold's end.

    By sockstat's ``alloc``, which counts the sockets of both families in every network namespace, as the slabs do: it
    should rise by as many as we hold, twice that where the server is on this host.
    """
    allocated, start, stop = run.series(KERNEL_TCP_ALLOC), run.first_connect_s, run.stop_s
    before, after = allocated.last(until_s=start), allocated.last(until_s=stop, since_s=max(start, stop - 10.0))
    if before is None or after is None or not math.isfinite(start):
        return []
    ours = totals.open * run.sides.ends
    others = round(after - before) - ours
    # Sockets of daemons come and go by the dozen; and so small a share of ours moves no number that we print by more.
    if abs(others) <= 50 + 0.05 * ours:
        return []
    return [host_shared(run.sides.host, ours, others)]
