"""Ends the connections of one process one after the other, at a pace, so that all were ended once
before any is ended twice.
"""

from __future__ import annotations

import math
from array import array

from asyncli.core.events import choose
from asyncli.engine.held_connections import HeldConnections
from asyncli.engine.shard import Shard
from asyncli.model.records import CHURN


class Churn:
    """The churn of ``shard``. Instants are those of the net's clock (s)."""

    def __init__(self, shard: Shard, connections: HeldConnections) -> None:
        self._shard = shard
        self._connections = connections
        # Rows and their ranks among all connections, in the order of these; empty until it begins.
        self._rows = array("i")
        self._ranks = array("i")
        self._begun_at = 0.0
        self._next = 0
        self._cycle = 0

    def start(self, at: float, since: float) -> None:
        """The hold began ``at``; what was due before ``since`` is left out."""
        shard = self._shard
        if not shard.churn_per_s:
            return
        connections = self._connections
        choice = choose(shard.seed, CHURN, shard.ramp.connections, 1.0)
        ranked = [(choice.rank(connections.number(row)), row) for row in range(connections.rows)]
        ranked.sort()
        self._ranks = array("i", [rank for rank, _ in ranked])
        self._rows = array("i", [row for _, row in ranked])
        self._begun_at = at
        connections.comebacks.begin(CHURN, at, 0.0)
        if not ranked:
            return
        self._cycle = max(0, math.floor((since - at) * shard.churn_per_s))
        while self._due() < since:
            self._advance()

    @property
    def next_instant(self) -> float | None:
        """When the next connection is due."""
        return self._due() if self._rows else None

    def provoke(self, now: float, at_most: int) -> bool:
        """End those that are due, up to ``at_most``. True if more are due."""
        if not self._rows:
            return False
        for _ in range(at_most):
            if self._due() > now:
                return False
            self._connections.end_by_event(self._rows[self._next], CHURN, abort=True)
            self._advance()
        return True

    def _due(self) -> float:
        # Each share of the time in which all are replaced once belongs to one connection.
        place = self._cycle + (self._ranks[self._next] + 1) / self._shard.ramp.connections
        return self._begun_at + place / self._shard.churn_per_s

    def _advance(self) -> None:
        self._next += 1
        if self._next == len(self._rows):
            self._next = 0
            self._cycle += 1
