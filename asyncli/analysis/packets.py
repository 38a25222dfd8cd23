"""Was the way clean? TCP sends again what nobody acknowledged, and counts it: the trace that lost packets leave."""

from __future__ import annotations

import itertools
import math

from asyncli.findings.latency import packets_sent_again
from asyncli.metrics import TCP
from asyncli.records import Finding
from asyncli.run import Run
from asyncli.samples import Series

# Over so long (s) a share is told; and from this share and number on it is worth a word: a clean way of today loses fewer than
# one in a thousand, and one or two are sent again for want of patience (RFC 6298, 2.4).
_SPAN_S, _SHARE, _FEWEST = 10.0, 0.01, 10


def sent_again(run: Run) -> list[Finding]:
    """What this host had to send again, and where an agent counted it the server's host."""
    ours = run.of_ours(TCP)
    found = _of_one(run, ours, here=True)
    if ours != TCP:
        found += _of_one(run, TCP, here=False)
    return found


def _of_one(run: Run, family: str, *, here: bool) -> list[Finding]:
    """A finding where a host had to send 1 % or more of its TCP segments again within ten seconds of ramp and hold.

    Of all programs in its network namespace (RetransSegs and OutSegs of /proc/net/snmp; OutSegs leaves out what is sent again,
    RFC 4022). Of what was lost on the way here only the other side's counters tell.
    """
    again, out = run.series(f"{family}RetransSegs"), run.series(f"{family}OutSegs")
    start, stop = run.first_connect_s, run.stop_s
    if not math.isfinite(start) or not len(again) or not len(out):
        return []
    worst, count, first_s, last_s = 0.0, 0.0, math.inf, -math.inf
    for number in range(math.ceil((stop - start) / _SPAN_S)):
        low, high = start + number * _SPAN_S, min(stop, start + (number + 1) * _SPAN_S)
        more, sent = ((counter.at(high) or 0.0) - (counter.at(low) or 0.0) for counter in (again, out))
        share = more / (more + sent) if more > 0 and sent >= 0 else 0.0
        if more >= _FEWEST and share >= _SHARE:
            rises = _rises(again, low, high)
            worst, count = max(worst, share), count + more
            first_s, last_s = min(first_s, rises[0] - 1.0), rises[-1]
    return [packets_sent_again(here, count, first_s, last_s, worst, _SPAN_S)] if count else []


def _rises(counter: Series, low: float, high: float) -> list[float]:
    """The instants between these at which it had risen, one at least."""
    near = counter.between(low - 1.0, high + 1.0)
    rows = itertools.pairwise(zip(near.t_s, near.values, strict=True))
    return [t_s for (_, before), (t_s, after) in rows if after > before and low <= t_s <= high] or [high]
