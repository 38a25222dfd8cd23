"""Where the connects of an event's clients were that got no answer in time, though their own kernel
called them connected: with the server's program, in its listen queue, or nowhere. Pure.

The kernel of a client calls a connect connected when the server's kernel has granted it. Where the
listen queue is full, that drops what follows and acknowledges none of it. Else it acknowledges a
request whether or not the program has accepted the connection: that is in its list of sockets,
where an accepted one has an inode, and one that waits for that has none.
"""

from __future__ import annotations

import math
from typing import Literal

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
    standing = _standing(run)
    readings: list[float] = []
    stood = 0.0
    taken = 0.0
    queued = 0.0
    most_queued = 0.0
    for t_s, sockets in accepted.between(window.start_s, run.stop_s).rows():
        unanswered = standing.at(t_s) or 0.0
        in_queue = waiting.at(t_s)
        if unanswered < FEWEST or in_queue is None:
            continue
        readings.append(t_s)
        stood += unanswered
        taken += max(0.0, min(unanswered, sockets - (run.held.at(t_s) or 0.0)))
        queued += min(unanswered, in_queue)
        most_queued = max(most_queued, in_queue)
    if not readings[1:]:
        # One may be of a chance moment.
        return None
    # Others may be answered later than these: what waited has to be few beside these alone.
    if taken >= NEARLY_ALL * stood and most_queued <= PART * counts.in_vain:
        return "accepted"
    if queued >= NEARLY_ALL * stood:
        return "waiting"
    return None


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
