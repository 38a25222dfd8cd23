"""Whether other programs used the host: its CPUs, and the kernel's memory for sockets."""

from __future__ import annotations

import itertools
import math

from asyncli.analysis.constants import PART
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.analysis.totals import Totals
from asyncli.findings.host import host_busy, host_shared
from asyncli.metrics import GENERATOR_CPU_S, HOST_CPU_BUSY_S, KERNEL_TCP_ALLOC, SERVER_CPU_S, SESSION_CPU_S
from asyncli.records import Finding
from asyncli.run import Run

#: A smaller share of all CPUs is not missing from what server and asyncli could do.
MOST_OF_OTHERS = PART


def others_cores(run: Run, start_s: float, stop_s: float) -> float | None:
    """Cores of asyncli's host that neither asyncli nor the server used; None where unknown."""
    busy = _cores(run, run.of_ours(HOST_CPU_BUSY_S), start_s, stop_s)
    server = _cores(run, SERVER_CPU_S, start_s, stop_s) if run.place.local else 0.0
    if busy is None or server is None:
        return None
    # Before the first connect there may be no generator.
    ours = (_cores(run, name, start_s, stop_s) or 0.0 for name in (GENERATOR_CPU_S, SESSION_CPU_S))
    return max(0.0, busy - server - sum(ours))


def _cores(run: Run, name: str, start_s: float, stop_s: float) -> float | None:
    # CPU time has a resolution of 10 ms: over less time, shares are too rough.
    return run.series(name).per_second(start_s, stop_s, least_s=0.5)


def cpus_taken(run: Run) -> list[Finding]:
    """A finding of the longest stretch in which all CPUs of asyncli's host were busy, a good part of them with other programs.

    Programs that used less before the first connect may be the server's backend.
    """
    start, stop, cpus = run.first_connect_s, run.stop_s, run.place.cpus
    if cpus is None or not start < stop:
        return []
    taken: list[tuple[float, float]] = []
    # Long enough for CPU time that is read each second or third, in steps of 10 ms; one that is cut short joins the last.
    parts = max(1, int((stop - start) / 10.0))
    borders = [start + (stop - start) * part / parts for part in range(parts + 1)]
    for part in itertools.pairwise(borders):
        busy, others = _cores(run, run.of_ours(HOST_CPU_BUSY_S), *part), others_cores(run, *part)
        if busy is not None and others is not None and busy >= MOST_CPU_SHARE * cpus and others >= MOST_OF_OTHERS * cpus:
            joins = bool(taken) and taken[-1][1] == part[0]
            taken.append((taken.pop()[0] if joins else part[0], part[1]))
    if not taken:
        return []
    span = max(taken, key=lambda one: one[1] - one[0])
    busy, then = _cores(run, run.of_ours(HOST_CPU_BUSY_S), *span), others_cores(run, *span)
    before = others_cores(run, -math.inf, start)
    assert busy is not None
    assert then is not None
    return [host_busy(round(cpus), busy, then, None if before is None else before >= MOST_OF_OTHERS * cpus, span, len(taken))]


def other_sockets(run: Run, totals: Totals) -> list[Finding]:
    """A finding if other programs opened or closed many TCP sockets from the baseline to the hold's end.

    By sockstat's ``alloc``, which counts both families in every network namespace, as the slabs do: it should rise by our ends.
    """
    allocated, start, stop = run.series(KERNEL_TCP_ALLOC), run.first_connect_s, run.stop_s
    before, after = allocated.last(until_s=start), allocated.last(until_s=stop, since_s=max(start, stop - 10.0))
    if before is None or after is None or not math.isfinite(start):
        return []
    ours = totals.open * run.sides.ends
    others = round(after - before) - ours
    # Daemons open and close dozens; a share of 5 % changes no printed digit.
    if abs(others) <= 50 + 0.05 * ours:
        return []
    return [host_shared(run.sides.host, ours, others)]
