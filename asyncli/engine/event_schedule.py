"""Does the events of a plan to the connections of one process, each at its instant.

What is not yet done when the next event is due is done first, so that each event meets the
connections as the one before has left them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

from asyncli.engine.held_connections import HeldConnections
from asyncli.engine.shard import Shard
from asyncli.engine.stalls import StallingConnections
from asyncli.model.planned_events import PlannedEvent, choices_of


class EventSchedule:
    """The events of ``shard`` that concern connections, and those in which a command may have the
    server end some. Instants are those of the net's clock
    (s).
    """

    def __init__(self, shard: Shard, connections: HeldConnections) -> None:
        self._shard = shard
        self._connections = connections
        self._chosen = choices_of(shard.events, shard.seed, shard.ramp.connections)
        #: (instant, number from 1, event), in the order of their instants.
        self._coming: deque[tuple[float, int, PlannedEvent]] = deque()
        self._doing: Iterator[None] | None = None

    def start(self, at: float, events_s: Sequence[float], since: float) -> None:
        """The hold began ``at``; each event is due so long after it. Those due before ``since`` are
        left out.
        """
        coming = []
        for number, (event, after_s) in enumerate(
            zip(self._shard.events, events_s, strict=True), start=1
        ):
            if event.do != "mark" and at + after_s >= since:
                coming.append((at + after_s, number, event))
        self._coming = deque(sorted(coming))

    @property
    def next_instant(self) -> float | None:
        """When the next event is due."""
        if not self._coming:
            return None
        instant, _, _ = self._coming[0]
        return instant

    def provoke(self, now: float, at_most: int) -> bool:
        """Do what is due to up to ``at_most`` connections. True if more is due."""
        for _ in range(at_most):
            if self._doing is None:
                if not self._coming or self._coming[0][0] > now:
                    return False
                self._doing = self._do(*self._coming.popleft())
            if next(self._doing, True):
                self._doing = None
        return True

    def _do(self, at: float, number: int, event: PlannedEvent) -> Iterator[None]:
        """Do an event to its connections, one for each call."""
        connections = self._connections
        if event.do == "run":
            # Until each has been heard once more: a server ends idle connections at once, others
            # with their next answer.
            connections.comebacks.begin_command(number, at, at + self._shard.heard_within_s)
            return
        outage_s = event.for_s or 0.0
        if event.do == "stall" and event.for_s is None:
            outage_s = math.inf
        connections.comebacks.begin(number, at, outage_s)
        chosen = self._chosen[number]
        for row in range(connections.rows):
            if connections.number(row) not in chosen:
                continue
            if event.do == "stall":
                assert isinstance(connections, StallingConnections)
                connections.stall_by_event(row, number, at + outage_s)
            elif event.do == "vanish":
                connections.silence_by_event(row, number, at + outage_s, event.then)
            else:
                connections.end_by_event(row, number, abort=event.how == "rst")
            yield
