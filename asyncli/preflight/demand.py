"""What a plan demands of the hosts: heartbeats a second, gaps between them, ages. Pure."""

from __future__ import annotations

import time

from asyncli.engine.spread import Spread
from asyncli.model.plan import Plan
from asyncli.model.units import instant_of

# The queues must bear a server that accepts nothing for so long.
STALL_S = 1.0


def ends(spread: Spread) -> int:
    """The ends of a connection on this host."""
    return 2 if spread.local else 1


def longest_gap_s(plan: Plan) -> float:
    """The longest pause (s) between two heartbeats of a connection."""
    return plan.keepalive_s / 2


def mean_gap_s(plan: Plan) -> float:
    """The mean pause (s) between heartbeats: it is uniform in [1, keepalive/2]."""
    return (1 + plan.keepalive_s / 2) / 2


def beats_per_s(plan: Plan) -> float:
    """Heartbeats a second with all connections open; 0 for a plan that only listens."""
    if plan.listens:
        return 0.0
    return plan.connections / mean_gap_s(plan)


def oldest_s(plan: Plan) -> float | None:
    """The age (s) of the first connection at the hold's end; None without an end."""
    if plan.hold_until is not None:
        now_s = time.time()
        left_s = instant_of(plan.hold_until, now_s) - now_s - plan.baseline_s
        return max(plan.schedule.end_s, left_s)
    if plan.hold_s is None:
        return None
    return plan.schedule.end_s + plan.hold_s
