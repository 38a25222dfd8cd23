"""How many connections the server has by its own count, all clients together.

By the accepted sockets at the plan's ports, which the kernel counts exactly, or else by its status
page. A page counts those at the server's other ports as well, and a proxy may connect to itself
there; a page may also count one worker of two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.analysis.slope import OTHERS_INTO_HOLD_S
from asyncli.findings.server import other_clients
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series

# Causes of failed connects that the server may have accepted all the same.
_GIVEN_UP = ("connect_timeout", "tls_timeout", "handshake_timeout")


class OtherClients(msgspec.Struct, frozen=True):
    """``count``: the server's connections over time, those of all clients. ``before``: of others
    before our first connect; ``during``: of others at the hold's start (medians). ``by_page``: by
    its status page alone, which may count something else.
    """

    count: Series
    before: float
    during: float
    by_page: bool


def is_counted_by_sockets(run: Run) -> bool:
    """Whether the kernel's sockets at the plan's ports count the server's connections."""
    # None: the server is in another network namespace, or has no ports.
    return any(run.series(metrics.SERVER_SOCKETS).values)


def server_count(run: Run) -> Series:
    """The server's connections over time, without the one of asyncli's poller; empty if nothing
    counts them.
    """
    if is_counted_by_sockets(run):
        return run.series(metrics.SERVER_SOCKETS)
    return _page(run)


class Elsewhere(NamedTuple):
    """``connections``: :func:`server_count` and those at other ports; ``rise``: of these alone, in
    the run.
    """

    connections: Series
    rise: float


def with_those_elsewhere(run: Run) -> Elsewhere | None:
    """The server's connections at other ports too, by the kernel or by its page, if these rose in
    the run; else None. Whether they are of other clients or of the server itself cannot be told.
    """
    count = run.series(metrics.SERVER_SOCKETS)
    hold = run.phase("hold")
    if hold is None or not any(count.values):
        return None
    further = [run.series(metrics.SERVER_SOCKETS_ELSEWHERE)]
    page = _page(run)
    if len(page):
        further.append(_beyond(page, count, hold.start_s))
    bound = max(FEWEST, WORTH_TELLING * max(run.held.values))
    largest = None
    largest_rise = bound
    for elsewhere in further:
        before, during = _before_and_during(elsewhere, run)
        if during - before > largest_rise:
            largest = elsewhere
            largest_rise = during - before
    if largest is None:
        return None
    every = Series(count.t_s, [value + (largest.at(t_s) or 0.0) for t_s, value in count.rows()])
    return Elsewhere(every, largest_rise)


def is_one_for_each(share: float) -> bool:
    """Whether a count rose by one for each connection (see :func:`risen_for_each`)."""
    return abs(share - 1.0) <= 2 * WORTH_TELLING


def risen_for_each(run: Run, opened: Series, held: Series) -> float | None:
    """By how much a count rose for each connection; None if it was not read before the first
    connect and in the hold's first seconds, before any event of the plan.
    """
    before = opened.between(-math.inf, run.first_connect_s).values
    if not before or run.hold is None:
        return None
    # The server may hold those whom an event had fall silent, or may not.
    events_s = [window.start_s for window in run.event_windows.values()]
    until_s = min([run.hold.end_s, run.hold.start_s + OTHERS_INTO_HOLD_S, *events_s])
    during = opened.between(run.hold.start_s, until_s)
    if not during:
        return None
    connections = statistics.median(held.at(t_s) or 0.0 for t_s in during.t_s)
    connections -= held.at(run.first_connect_s) or 0.0
    if connections <= 0:
        return None
    return (statistics.median(during.values) - statistics.median(before)) / connections


def _beyond(page: Series, count: Series, hold_s: float) -> Series:
    """What the page counts more than the kernel, at the instants of the kernel's count: between two
    of these it is not known, and neither is the page's between the ramp and the hold, which began
    at ``hold_s``.
    """
    in_hold = page.between(hold_s, math.inf)
    beyond = []
    for t_s, value in count.rows():
        counted = page
        if t_s >= hold_s and len(in_hold):
            counted = in_hold
        beyond.append(max(0.0, (counted.at(t_s) or 0.0) - value))
    return Series(count.t_s, beyond)


def _before_and_during(count: Series, run: Run) -> tuple[float, float]:
    """Medians of a count before our first connect and in the first seconds of the hold; 0 where it
    was not read.
    """
    hold = run.phase("hold")
    earlier = count.between(-math.inf, run.first_connect_s).values
    later: list[float] = []
    if hold is not None:
        hold_end_s = math.inf if hold.end_s is None else hold.end_s
        in_hold = count.between(hold.start_s, hold_end_s)
        # The probe may be slow to come: then its first reading.
        later = (
            in_hold.between(hold.start_s, hold.start_s + OTHERS_INTO_HOLD_S).values
            or in_hold.values[:1]
        )
    return _median(earlier), _median(later)


def has_other_connections(
    run: Run,
    concerned: int,
    before_s: tuple[float, float],
    after_s: tuple[float, float],
    *,
    more: int = 0,
    fewer: int = 0,
) -> bool:
    """Whether between the latter two instants (s on the run's clock) the server has so many
    connections more or fewer than between the former, beside those that are held, that their memory
    matters beside that of so many whom an event concerned (medians). ``more`` and ``fewer``: by how
    many these themselves may change that. False where nothing counts them.
    """
    count = server_count(run)
    before = _less(count.between(*before_s), run.held).values
    after = _less(count.between(*after_s), run.held).values
    if not before or not after:
        return False
    risen = statistics.median(after) - statistics.median(before)
    bound = max(FEWEST, WORTH_TELLING * concerned)
    return not -bound - fewer <= risen <= bound + more


def _median(values: Sequence[float]) -> float:
    """0 without a value."""
    if not values:
        return 0.0
    return statistics.median(values)


def _page(run: Run) -> Series:
    """Active connections by the status page, without our poller's."""
    active = run.series(metrics.STATUS_ACTIVE)
    return Series(active.t_s, [max(0.0, value - 1.0) for value in active.values])


def other_clients_of(run: Run) -> OtherClients | None:
    """The server's count where other clients hold more of its connections than ours could explain;
    else None. Ours are those that are held, those whose handshake is not done, which it may have
    accepted, and those that were lost or given up here, which it may still have.
    """
    count = server_count(run)
    bound = max(FEWEST, WORTH_TELLING * max(run.held.values))
    of_others = _less(count, run.held)
    before, during = _before_and_during(of_others, run)
    if max(before, during) <= bound:
        return None
    unexplained = _less(of_others, _begun_and_not_held(run))
    if max(_before_and_during(unexplained, run)) <= bound:
        return None
    by_page = not is_counted_by_sockets(run)
    return OtherClients(count, before, max(0.0, during), by_page)


def _less(count: Series, part: Series) -> Series:
    return Series(count.t_s, [value - (part.at(t_s) or 0.0) for t_s, value in count.rows()])


def _begun_and_not_held(run: Run) -> Series:
    """How many connects were pending at each tick, and how many had been lost, given up or ended by
    events since the start: a connect that is given up after a time may have been accepted.
    """
    ended = 0
    counts = []
    for _, tick in run.ticks:
        ended += tick.lost + tick.ended_by_events
        ended += tick.failed_by(_GIVEN_UP)
        counts.append(float(ended + tick.connecting))
    return Series([t_s for t_s, _ in run.ticks], counts)


def other_clients_found(run: Run) -> list[Finding]:
    """A finding if other clients held connections on the server during this run."""
    others = other_clients_of(run)
    if others is None:
        return []
    held = round(max(run.held.values))
    before = round(others.before)
    during = round(others.during)
    return [other_clients(before, during, held, by_page=others.by_page)]
