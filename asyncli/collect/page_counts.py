"""The counts of the pages of one URL, with those of asyncli's own readings. Pure."""

from __future__ import annotations

from asyncli.collect.metric_values import PageValues
from asyncli.collect.metrics_page import MetricsPage
from asyncli.collect.risen_row import Scrapes
from asyncli.collect.status_pages import StatusPage, impossible_count
from asyncli.model.metrics import STATUS_CONNECTS, STATUS_POLLS, STATUS_UNANSWERED


class ImpossibleCountsError(ValueError):
    """A page has counts that no server can have. Its text says which."""


class PageCounts:
    """Checks the counts of each page against the one before."""

    def __init__(self, values: PageValues) -> None:
        self._values = values
        #: The counts of the last page, and when it was read.
        self._before: dict[str, float] | None = None
        self._before_s = 0.0

    def of(self, page: MetricsPage, now_s: float, scrapes: Scrapes) -> dict[str, float]:
        """The counts of a page that was read at ``now_s``, with our readings beside them; empty if
        it counts nothing. ``scrapes``: all of them so far, this one included.

        Raises :class:`ImpossibleCountsError`.
        """
        page_counts = self._values.page_counts(page)
        if not page_counts:
            return {}
        since_s = now_s - self._before_s
        why = impossible_count(StatusPage("metrics", page_counts), self._before, since_s)
        if why:
            raise ImpossibleCountsError(why)
        self._before = page_counts
        self._before_s = now_s
        own = {
            STATUS_POLLS: scrapes.requests,
            STATUS_CONNECTS: scrapes.connects,
            STATUS_UNANSWERED: scrapes.requests - scrapes.answered,
        }
        return {**self._values.counts(page, page_counts, scrapes), **own}
