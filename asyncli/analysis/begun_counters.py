"""Counters of a page of metrics that have no row until they count for the first time. Pure.

A counter with labels has no row on a page of Prometheus before its first event (Caddy's requests,
and whatever client libraries count by route or status). A server that nobody had used has none
before the first connect: it counted zero there, which is known once a row has come with no more
than what asyncli had done by then. What has more may have had no value before for another reason.
"""

from __future__ import annotations

import math

import msgspec

from asyncli.analysis.constants import MISSED_S
from asyncli.model.metrics import (
    PROBE,
    STATUS_ACCEPTS,
    STATUS_CONNECTS,
    STATUS_HANDLED,
    STATUS_POLLS,
    STATUS_REQUESTS,
    STATUS_UNANSWERED,
)
from asyncli.model.records import Sample
from asyncli.model.run import Run

# A counter of a page, and which of our own counts is in its values.
_OWN_IN = {
    STATUS_ACCEPTS: STATUS_CONNECTS,
    STATUS_HANDLED: STATUS_CONNECTS,
    STATUS_REQUESTS: STATUS_POLLS,
}
_OWN = (STATUS_POLLS, STATUS_CONNECTS, STATUS_UNANSWERED)


def with_begun_counters(run: Run) -> Run:
    """The run whose last page before the first connect has the counters that came later, at zero.
    The run itself if they were there, if no page was read by then, or if they count more than ours.
    """
    if run.plan.status_url is not None:
        return run
    counters = [name for name in _OWN_IN if run.series(name)]
    if not counters or min(run.series(name).t_s[0] for name in counters) <= run.first_connect_s:
        return run
    pages_before = run.series(f"{PROBE}metrics").between(-math.inf, run.first_connect_s).t_s
    if not pages_before:
        return run
    own = {name: run.series(name).values[0] for name in _OWN if run.series(name)}
    # Our readings so far are in each count of a later page (collect/metric_values.py).
    begun = dict(own)
    for name in counters:
        first_s = run.series(name).t_s[0]
        begun[name] = own.get(_OWN_IN[name], 0.0)
        if run.series(name).values[0] - begun[name] > _done_until(run, first_s + MISSED_S):
            return run
    samples = []
    for sample in run.samples:
        if sample.t_s == pages_before[-1]:
            samples.append(Sample(sample.t_s, {**sample.values, **begun}))
        else:
            samples.append(sample)
    return msgspec.structs.replace(run, samples=samples)


def _done_until(run: Run, until_s: float) -> int:
    """Connects and requests that asyncli had begun: no more can be counted of it."""
    done = 0
    for t_s, tick in run.ticks:
        if t_s > until_s:
            break
        done += tick.started + tick.sent
    return done
