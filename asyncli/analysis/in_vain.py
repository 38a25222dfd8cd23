"""Where the connects of an event's clients were that got no answer in time, though their own kernel
called them connected: with the server's program, in its listen queue, or nowhere. Pure.

The kernel of a client calls a connect connected when the server's kernel has granted it. Where the
listen queue is full, that drops what follows and acknowledges none of it. Else it acknowledges a
request whether or not the program has accepted the connection: that is in its list of sockets,
where an accepted one has an inode, and one that waits for that has none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, NEARLY_ALL, PART
from asyncli.findings.losses import answers_none
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import EventCounts, Finding, Gap
from asyncli.model.run import TICK_S, Run
from asyncli.model.samples import Series

#: A program of the server's had accepted nearly all of them; they waited in its listen queue; the
#: server's kernel had them, and whether a program did is not known; its listening sockets dropped
#: them.
Received = Literal["accepted", "waiting", "acknowledged", "dropped"]


class InVain(msgspec.Struct, frozen=True):
    """Connects that got no answer in time (``count``), of which the server's kernel acknowledged
    all that was sent on so many (``acknowledged``). ``patience_s``: how long each waited.
    ``received``: where they were; None: not known.
    """

    count: int
    acknowledged: int
    patience_s: float
    received: Received | None


def in_vain(run: Run, window: Gap, counts: EventCounts) -> InVain | None:
    """Those of an event, which has these counts; None where each was answered, or ended."""
    if not counts.in_vain:
        return None
    return InVain(
        counts.in_vain,
        counts.acknowledged,
        answer_timeout_s(run.plan),
        _received(run, window, counts),
    )


def answer_timeout_s(plan: Plan) -> float:
    """How long a client waits for the first answer after TCP's connect (s)."""
    # The answer to a handshake has the time limit of a connect.
    if _has_handshake(plan):
        return plan.connect_timeout_s
    return plan.timeout_s


def _has_handshake(plan: Plan) -> bool:
    """Whether a handshake of TLS or of a protocol follows TCP's."""
    return plan.tls is not None or plan.protocol not in ("http", "tcp")


def _received(run: Run, window: Gap, counts: EventCounts) -> Received | None:
    if counts.acknowledged <= PART * counts.in_vain:
        if _has_dropped(run, window):
            return "dropped"
        return None
    if counts.acknowledged < NEARLY_ALL * counts.in_vain:
        return None
    return _by_sockets(run, window, counts) or "acknowledged"


def _has_dropped(run: Run, window: Gap) -> bool:
    """Whether the server's listening sockets have dropped connects since the event."""
    dropped = run.series(metrics.SERVER_LISTENERS_DROPPED)
    before = dropped.last(window.start_s)
    after = dropped.last(run.stop_s)
    return before is not None and after is not None and after > before


def _by_sockets(run: Run, window: Gap, counts: EventCounts) -> Received | None:
    """Where they were by the kernel's list of the server's sockets, as far as that adds up."""
    accepted = run.series(metrics.SERVER_SOCKETS)
    waiting = run.series(metrics.SERVER_SOCKETS_WAITING)
    if _has_other_clients(run, accepted, window.start_s):
        return None
    readings = _readings(run, window, accepted, waiting)
    if sum(reading.stood >= FEWEST for reading in readings) < 2:
        # One may be of a chance moment.
        return None
    most_queued = max(reading.queued for reading in readings)
    # Others may be answered later than these: what waited has to be few beside these alone.
    are_few = most_queued <= PART * counts.in_vain
    if are_few and _adds_up(readings, [reading.taken for reading in readings]):
        return "accepted"
    if _adds_up(readings, [reading.queued for reading in readings]):
        return "waiting"
    return None


class _Reading(NamedTuple):
    """What is known of an instant at which the server's sockets were read. ``stood``: connects that
    stood without an answer, on the line between the seconds around it; ``at_least``: those that
    surely did; ``taken``: sockets that the server had accepted beside the held ones; ``queued``:
    connects in its listen queue.
    """

    stood: float
    at_least: float
    taken: float
    queued: float


def _readings(run: Run, window: Gap, accepted: Series, waiting: Series) -> list[_Reading]:
    """Those since the event at which connects stood in the second before or after, without those
    while a worker of asyncli stood still: how many stood then is known only from its end.
    """
    standing = _standing(run)
    started = [tick.started for _, tick in run.ticks]
    late = [
        (t_s - tick.longest_turn_s, t_s + tick.longest_turn_s)
        for t_s, tick in run.ticks
        if tick.asyncli_stood_still
    ]
    readings: list[_Reading] = []
    for t_s, sockets in accepted.between(window.start_s, run.stop_s).rows():
        after = bisect_left(standing.t_s, t_s)
        stood = standing.at(t_s) or 0.0
        around = standing.values[max(0, after - 1) : after + 1]
        in_queue = waiting.at(t_s)
        if in_queue is None or max(around, default=0.0) < FEWEST:
            continue
        if any(from_s <= t_s <= to_s for from_s, to_s in late):
            continue
        # Whoever stands at a second's end and did not start in it stood all the while.
        at_least = 0.0
        if after < len(standing):
            at_least = max(0.0, standing.values[after] - started[after])
        taken = max(0.0, sockets - (run.held.at(t_s) or 0.0))
        readings.append(_Reading(stood, at_least, taken, in_queue))
    return readings


def _adds_up(readings: list[_Reading], seen: list[float]) -> bool:
    """Whether nearly all connects that stood were seen. Clients that give up and come back in step
    stand, or none does, from one second to the next, and a reading between the two is one or the
    other: then as many have to be seen as stood at most, none may be missed that surely stood, and
    more than half have to be seen of all.
    """
    stood = sum(reading.stood for reading in readings)
    shown = sum(min(reading.stood, count) for reading, count in zip(readings, seen, strict=True))
    if shown >= NEARLY_ALL * stood:
        return True
    missed = sum(
        max(0.0, reading.at_least - count) for reading, count in zip(readings, seen, strict=True)
    )
    if missed > PART * sum(reading.at_least for reading in readings):
        return False
    at_most = max(reading.stood for reading in readings)
    if max(seen) < NEARLY_ALL * at_most:
        return False
    return 2 * sum(min(at_most, count) for count in seen) > stood


def _standing(run: Run) -> Series:
    """How many connects without an answer stand by their own kernel, at the end of each second; in
    older run files, and during handshakes, also those that the server's kernel has not granted.
    """
    instants_s = [t_s for t_s, _ in run.ticks]
    granted = [float(row.coming_back) for _, row in run.ticks]
    if any(granted) and not _has_handshake(run.plan):
        return Series(instants_s, granted)
    return Series(instants_s, [float(row.connecting) for _, row in run.ticks])


def _has_other_clients(run: Run, accepted: Series, at_s: float) -> bool:
    """Whether other clients held connections on the server just before, or it was not read."""
    before = accepted.last(at_s)
    if before is None:
        return True
    held = run.held.at(at_s) or 0.0
    return abs(before - held) > max(FEWEST, PART * held)


# -- a server that answers nobody


def unanswered_since(run: Run) -> list[Finding]:
    """A finding if the server has answered nobody since an event, and its program accepts
    connections, or leaves all in the listen queue.
    """
    for number, window in sorted(run.event_windows.items()):
        counts = run.counts_of_event(number)
        seen = in_vain(run, window, counts)
        if seen is None or seen.received not in ("accepted", "waiting") or seen.count < FEWEST:
            continue
        if _has_answered_none_since(run, number, window):
            return [
                answers_none(seen.received, seen.count, number, window.start_s, seen.patience_s)
            ]
    return []


def _has_answered_none_since(run: Run, number: int, window: Gap) -> bool:
    """Whether the server sent nothing to anybody from the event on, or from its end; and whether
    none had waited for an answer before it in vain, as of a server that was silent already.
    """
    over_s = _over_s(run, number, window.start_s)
    if run.stop_s - over_s < answer_timeout_s(run.plan):
        return False
    # The second in which it was over has answers from before.
    for _, tick in run.ticks_between(over_s + TICK_S, run.stop_s):
        if tick.answered or tick.bytes_received:
            return False
    heard_s = [t_s for t_s, tick in run.ticks if tick.answered or tick.bytes_received]
    last_s = max(heard_s, default=math.inf)
    if last_s >= window.start_s:
        return math.isfinite(last_s)
    return not any(tick.sent for _, tick in run.ticks_between(last_s, window.start_s))


def _over_s(run: Run, number: int, start_s: float) -> float:
    """When an event was over: of a command, its end."""
    planned = run.plan.event_numbered(number)
    if planned is not None and planned.for_s is not None:
        return start_s + planned.for_s
    for event in run.events:
        if event.fields.get("number") == number and event.end_s is not None:
            return event.end_s
    return start_s
