"""Were we alone on this host? The kernel's and the host's memory are everybody's, so their slopes are only ours if we were."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.analysis.series import Ticks, end_of_hold, first_connect, series
from asyncli.analysis.sides import sides
from asyncli.analysis.totals import Totals
from asyncli.records import Environment, Finding, Phase, Sample

# Sockets of daemons come and go by the dozen; and a share of ours below this moves no number that we print by more.
_FEW, _SHARE = 50, 0.05
# The count of sockets at the hold's end may be this old (s).
_STALE_S = 10.0


def company(
    totals: Totals, phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample], environment: Environment
) -> list[Finding]:
    """A finding where other programs opened or closed many TCP sockets between the baseline and the hold's end.

    By sockstat's ``alloc``, which counts the sockets of both families in every network namespace, as the slabs do: it
    should rise by as many as we hold, twice that where the server is on this host.
    """
    allocated = series(samples, "kernel.tcp_alloc")
    start, stop = first_connect(phases, ticks), end_of_hold(phases, ticks, samples)
    before, after = allocated.last(until_s=start), allocated.last(until_s=stop, since_s=max(start, stop - _STALE_S))
    if before is None or after is None or not math.isfinite(start):
        return []
    where = sides(environment)
    ours = totals.open * where.ends
    others = round(after - before) - ours
    if abs(others) <= _FEW + _SHARE * ours:
        return []
    did = "opened" if others > 0 else "closed"
    evidence = (
        f"while our connections took {ours:,} sockets on {where.host}, others {did} {abs(others):,}: what is said here of the "
        f"kernel, of {where.host} in all and of what is left over counts those too"
    )
    return [Finding("host_shared", "warning", evidence, f"run again while nothing else on {where.host} opens connections")]
