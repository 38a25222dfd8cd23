"""How many connections the server has by its own count, all clients together.

By its status page, and by the accepted sockets at its ports that the kernel counts. A page may count one worker of two, and the
kernel counts only the plan's ports, while the server's memory is of all: the larger of the two counts.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.analysis.slope import OTHERS_INTO_HOLD_S
from asyncli.findings.server import other_clients
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series


class OtherClients(msgspec.Struct, frozen=True):
    """``count``: the server's connections over time, those of all clients. ``before``: of others before our first connect;
    ``during``: of others at the hold's start (medians).
    """

    count: Series
    before: float
    during: float


def server_count(run: Run) -> Series:
    """The server's connections over time, without the one of asyncli's poller; empty if nothing counts them."""
    active = run.series(metrics.STATUS_ACTIVE)
    page = Series(active.t_s, [max(0.0, value - 1.0) for value in active.values])
    sockets = run.series(metrics.SERVER_SOCKETS)
    if not any(sockets.values):
        # The server is in another network namespace, or has no ports.
        return page
    if not len(page):
        return sockets
    return Series(page.t_s, [max(value, sockets.at(t_s) or 0.0) for t_s, value in page.rows()])


def other_clients_of(run: Run) -> OtherClients | None:
    """The server's count where other clients hold more of its connections than ours could explain; else None."""
    count, held = server_count(run), run.held
    hold = run.phase("hold")
    bound = max(FEWEST, WORTH_TELLING * max(held.values))
    earlier = count.between(-math.inf, run.first_connect_s)
    before = statistics.median(earlier.values) if earlier.values else 0.0
    during = 0.0
    if hold is not None:
        hold_end_s = math.inf if hold.end_s is None else hold.end_s
        later = count.between(hold.start_s, min(hold.start_s + OTHERS_INTO_HOLD_S, hold_end_s))
        excess = [value - (held.at(t_s) or 0.0) for t_s, value in later.rows()]
        during = statistics.median(excess) if excess else 0.0
    if max(before, during) <= bound:
        return None
    return OtherClients(count, before, max(0.0, during))


def other_clients_found(run: Run) -> list[Finding]:
    """A finding if other clients held connections on the server during this run."""
    others = other_clients_of(run)
    if others is None:
        return []
    return [other_clients(round(others.before), round(others.during), round(max(run.held.values)))]
