"""What clients that read nothing for a time cost the server meanwhile: in its own memory, where it
keeps what it cannot send, and in the kernel's, where its sockets keep the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.analysis.server_count import has_other_connections
from asyncli.model import metrics
from asyncli.model.planned_events import UNREAD_BYTES
from asyncli.model.records import EventCounts, Gap
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run
from asyncli.model.samples import Series

#: How well a cost is known. ``at_most``: it is hidden in other changes of that size; ``at_least``:
#: it still grew at the end, or the server ended some of the connections; ``estimated``: others'
#: changes are in it.
Status = Literal["measured", "at_most", "at_least", "estimated", "unknown"]
#: Why a cost is no exact one. ``nothing_sent``: the server sent nothing meanwhile;
#: ``nothing_waited``: what it sent fitted into the clients' own buffers; ``not_read``: the memory
#: was not read; ``noise``; ``grows``; ``ended``: the server ended some; ``host_wide``: by the TCP
#: memory of the whole host, other sockets' included. ``few_readings``: it was read too seldom to
#: tell whether it still grew. Where it was not read at rest before the stall, which began too
#: ``early`` in the hold or too soon ``after_another`` event; or not in the stall, which was
#: ``too_short`` or cut by ``another_event``. ``other_connections``: those of other clients came or
#: went meanwhile. ``unix_socket``: nothing tells the kernel's memory of these.
Why = Literal[
    "nothing_sent",
    "nothing_waited",
    "not_read",
    "early",
    "after_another",
    "too_short",
    "another_event",
    "other_connections",
    "unix_socket",
    "noise",
    "grows",
    "few_readings",
    "ended",
    "host_wide",
]


class SlowReaderCost(msgspec.Struct, frozen=True):
    """A memory (bytes): by how much it was more at the end of the stall than before, in all and for
    each connection that stalled, the ``error`` of the latter by the readings' spread before, which
    is not by how much another stall may differ; how fast that of a connection grew at the end
    (bytes a second), 0 if not; and what of all was left when it had settled. None where unknown.
    """

    status: Status
    total: float | None = None
    per_connection: float | None = None
    error: float | None = None
    grows_per_s: float | None = None
    kept: float | None = None
    why: Why | msgspec.UnsetType = msgspec.UNSET


class SlowReaders(msgspec.Struct, frozen=True):
    """The server's own memory, and that of its sockets in the kernel."""

    user: SlowReaderCost
    kernel: SlowReaderCost


class _CountedStall(NamedTuple):
    """Since when the hold was at rest, when it began and ended, and when memory had settled after
    it (s on the run's clock); what it counted; how many the server ended meanwhile; why a memory
    that is read in the run may not have been read in the rest before it, and in it; and whether
    connections of others came or went.
    """

    rested_since_s: float
    start_s: float
    end_s: float
    settled_s: float
    counts: EventCounts
    ended: int
    why_no_rest: Why
    why_not_during: Why
    has_other_connections: bool


def slow_readers(
    run: Run,
    window: Gap,
    counts: EventCounts,
    memory: Series,
    for_s: float | None,
    *,
    by_commands: int = 0,
) -> SlowReaders:
    """What the stall in this window cost. ``memory``: the server's (bytes). ``for_s``: how long it
    lasted; None: until the drain. ``by_commands``: how many the server ended only then.
    """
    start_s = window.start_s
    assert window.end_s is not None
    end_s = window.end_s
    if for_s is not None:
        end_s = min(end_s, start_s + for_s)
    stall = _CountedStall(
        rested_since_s=run.rested_since_s(start_s),
        start_s=start_s,
        end_s=end_s,
        settled_s=window.end_s,
        counts=counts,
        # What asyncli gave up as it read again was not ended before.
        ended=counts.closed - counts.closes.get("heartbeat_timeout", 0) - by_commands,
        why_no_rest=_why_no_rest(run, start_s),
        why_not_during=_why_not_during(run, start_s, end_s),
        has_other_connections=has_other_connections(
            run,
            counts.stalled,
            (run.rested_since_s(start_s), start_s),
            (start_s, end_s - TICK_S / 2),
            # Those are held as long as they read nothing.
            fewer=counts.closed,
        ),
    )
    sockets, is_of_host = _sockets_memory(run)
    user = _cost(memory, stall)
    kernel = _cost(sockets, stall)
    if kernel.why == "not_read" and not run.plan.has_ports:
        kernel = msgspec.structs.replace(kernel, why="unix_socket")
    if is_of_host and kernel.total is not None:
        kernel = msgspec.structs.replace(kernel, status="estimated", why="host_wide")
    return SlowReaders(user, kernel)


def _sockets_memory(run: Run) -> tuple[Series, bool]:
    """The memory of the server's sockets; or of all TCP sockets of its host, and True."""
    sockets = run.series(metrics.SERVER_SOCKETS_BYTES)
    if any(sockets.values):
        return sockets, False
    if not run.sides.server or not run.plan.has_ports:
        return Series([], []), True
    return run.series(metrics.KERNEL_TCP_MEM_BYTES), True


def _why_no_rest(run: Run, start_s: float) -> Why:
    """Why there may be no reading at rest before a stall."""
    hold_s = start_s if run.hold is None else run.hold.start_s
    for window in run.event_windows.values():
        if window.start_s < start_s and (window.end_s or math.inf) > start_s - EVENT_SETTLES_S:
            return "after_another"
    if hold_s > start_s - EVENT_SETTLES_S:
        return "early"
    return "not_read"


def _why_not_during(run: Run, start_s: float, end_s: float) -> Why:
    """Why there may be no reading in a stall."""
    if any(window.start_s == end_s for window in run.event_windows.values()):
        return "another_event"
    if end_s - start_s < 2 * TICK_S:
        return "too_short"
    return "not_read"


def _cost(memory: Series, stall: _CountedStall) -> SlowReaderCost:
    counts = stall.counts
    before = memory.between(stall.rested_since_s, stall.start_s).values
    # The second in which it ends is one of reading again.
    during = memory.between(stall.start_s, stall.end_s - TICK_S / 2)
    why = _why_unknown(memory, stall, before, during)
    if why is not None:
        return SlowReaderCost("unknown", why=why)
    level = statistics.median(before)
    noise = (max(before) - min(before)) / 2
    earlier, later = _halves_of_the_end(during)
    total = during.values[-1] - level
    growth = _growth_per_s(earlier, later, max(noise, WORTH_TELLING * total))
    if stall.ended:
        total = max(during.values) - level
    elif growth == 0:
        # A reading may fall into the instant of a message to all.
        total = statistics.median(later.values) - level
    cost = SlowReaderCost(
        "measured",
        total=total,
        per_connection=total / counts.stalled,
        error=noise / counts.stalled,
        grows_per_s=None if growth is None else growth / counts.stalled,
        kept=_kept(memory, level, stall.end_s, stall.settled_s),
    )
    if stall.ended:
        return msgspec.structs.replace(cost, status="at_least", why="ended")
    if total <= noise:
        return _hidden(cost, total + noise, counts.stalled)
    if growth is None:
        return msgspec.structs.replace(cost, status="at_least", why="few_readings")
    if growth:
        return msgspec.structs.replace(cost, status="at_least", why="grows")
    return cost


def _why_unknown(
    memory: Series, stall: _CountedStall, before: Sequence[float], during: Series
) -> Why | None:
    """Why a memory tells nothing of a stall; None if it does."""
    if not stall.counts.stalled or not memory:
        return "not_read"
    if _fits_clients(stall.counts):
        return _why_it_fits(stall.counts)
    if not before:
        return stall.why_no_rest
    if not during:
        return stall.why_not_during
    if stall.has_other_connections:
        return "other_connections"
    return None


def _hidden(cost: SlowReaderCost, bound: float, stalled: int) -> SlowReaderCost:
    """A cost that other changes hide; not even bounded where the memory fell by more than these, as
    by a collection of garbage.
    """
    if bound <= 0:
        return SlowReaderCost("unknown", why="noise")
    return msgspec.structs.replace(
        cost, status="at_most", total=bound, per_connection=bound / stalled, why="noise"
    )


def _fits_clients(counts: EventCounts) -> bool:
    """Whether all that waited for those that read again was in their own kernel: then nothing says
    what a slow reader costs the server.
    """
    if not counts.resumed:
        return False
    return counts.waited_bytes <= UNREAD_BYTES * counts.resumed


def _why_it_fits(counts: EventCounts) -> Why:
    if counts.waited_bytes:
        return "nothing_waited"
    return "nothing_sent"


def _halves_of_the_end(during: Series) -> tuple[Series, Series]:
    """The last third, or the last five readings, in two halves; the first is empty with a single
    reading.
    """
    last_s = during.t_s[-1]
    third = during.between(last_s - (last_s - during.t_s[0]) / 3, last_s)
    count = max(len(third), min(FEWEST, len(during)))
    middle = len(during) - (count + 1) // 2
    first = len(during) - count
    earlier = Series(during.t_s[first:middle], during.values[first:middle])
    return earlier, Series(during.t_s[middle:], during.values[middle:])


def _growth_per_s(earlier: Series, later: Series, least: float) -> float | None:
    """How fast it grew between two spans (bytes a second); 0 if by no more than ``least``, None
    without the first one.
    """
    if not len(earlier):
        return None
    growth = statistics.median(later.values) - statistics.median(earlier.values)
    if growth <= least:
        return 0.0
    return growth / (statistics.median(later.t_s) - statistics.median(earlier.t_s))


def _kept(memory: Series, level: float, end_s: float, settled_s: float) -> float | None:
    """What was left in the second half of the time in which it settles; None if another event or
    the drain came before.
    """
    settled = memory.between(end_s + EVENT_SETTLES_S / 2, settled_s).values
    if not settled:
        return None
    return statistics.median(settled) - level
