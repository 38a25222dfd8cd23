"""Which of several rows of a page has our connections: HAProxy's frontends. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncli.model.metrics import STATUS_ACTIVE, STATUS_REQUESTS

#: The labels of a row: its name among those of its metric.
Labels = frozenset[tuple[str, str]]
#: Our metric -> row -> value.
Rows = Mapping[str, Mapping[Labels, float]]


class Scrapes(NamedTuple):
    """What reading the page has added to counts that include it: connections and requests, and how
    many of these had an answer.
    """

    connects: float = 0.0
    requests: float = 0.0
    answered: float = 0.0

    def less(self, earlier: Scrapes) -> Scrapes:
        """What was added since ``earlier``."""
        return Scrapes(
            self.connects - earlier.connects,
            self.requests - earlier.requests,
            self.answered - earlier.answered,
        )

    def of(self, metric: str) -> float:
        """What is ours in a count: of active connections the one that is open."""
        if metric == STATUS_ACTIVE:
            return 1.0
        if metric == STATUS_REQUESTS:
            return self.requests
        return self.connects


class RisenRow:
    """Counts all rows as they were on the first page, and with what that row has changed since
    whose active connections have risen most. So a frontend of other clients changes nothing.

    The row that serves the page of metrics may be ours or another one.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[Labels, float]] = {}
        self._scrapes_on_first = Scrapes()
        self._is_first = True
        self._ours: Labels | None = None
        self._rise = 0.0
        #: The rows that may serve the page: each had a session and each of our requests, so far.
        self._may_serve_page: set[Labels] = set()

    def restart(self) -> None:
        """The server counts from zero again, and so do our scrapes: there, its first page is one
        without any.
        """
        for metric, rows in self._first.items():
            if metric != STATUS_ACTIVE:
                self._first[metric] = dict.fromkeys(rows, 0.0)
        self._scrapes_on_first = Scrapes()

    def update(self, rows: Rows, scrapes: Scrapes) -> None:
        """Take a page. ``scrapes``: until now, since the server's start."""
        if self._is_first:
            self._is_first = False
            self._first = {metric: dict(by_labels) for metric, by_labels in rows.items()}
            self._scrapes_on_first = scrapes
            self._may_serve_page = set(rows.get(STATUS_ACTIVE, {}))
        for labels, sessions in rows.get(STATUS_ACTIVE, {}).items():
            rise = sessions - self._first_of(STATUS_ACTIVE, labels)
            if rise > self._rise:
                self._ours = labels
                self._rise = rise
        answered = scrapes.less(self._scrapes_on_first).answered
        for labels in list(self._may_serve_page):
            if not self._serves(labels, rows, answered):
                self._may_serve_page.remove(labels)

    def _serves(self, labels: Labels, rows: Rows, answered: float) -> bool:
        """Whether a row can have had ``answered`` requests of ours since the first page, on the
        connection that we keep.
        """
        if not rows.get(STATUS_ACTIVE, {}).get(labels):
            return False
        requests = rows.get(STATUS_REQUESTS, {}).get(labels, 0.0)
        return requests - self._first_of(STATUS_REQUESTS, labels) >= answered

    def count(self, metric: str, rows: Mapping[Labels, float], scrapes: Scrapes) -> float:
        """The count with our own connection and requests, as the server would have them in it."""
        count = sum(self._first.get(metric, {}).values())
        if self._ours is not None:
            count += rows.get(self._ours, 0.0) - self._first_of(metric, self._ours)
        # The first page has the connection that is kept.
        is_in_ours = self._ours is not None and self._may_serve_page == {self._ours}
        if metric == STATUS_ACTIVE or is_in_ours:
            return count
        return count + scrapes.less(self._scrapes_on_first).of(metric)

    def _first_of(self, metric: str, labels: Labels) -> float:
        # A row that came later began at zero.
        return self._first.get(metric, {}).get(labels, 0.0)
