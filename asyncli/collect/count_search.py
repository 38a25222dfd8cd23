"""Which rows of a server's page may count its active connections, where no rule names the metric.
Pure.

Their values are recorded, and analysis/count_by_values.py tells by them which row follows the
connections, once these are closed. To read a whole page is dear (2.4 ms for 64 kB), so that is done
now and then: on the first pages, until a row whose name speaks of connections has risen, and then
whenever the time since the first page has doubled, or each minute. In between only the names are
read that are watched.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from asyncli.collect.metrics_page import UNTYPED, Family, MetricsPage
from asyncli.model.page_rows import LONGEST_ROW, SPOKEN_OF, place_among_names, row_name

#: So many rows of a page are watched at once.
MOST_WATCHED = 20
#: A name with more rows has one for each client or room, and none of them counts all.
MOST_ROWS_OF_A_NAME = 50
# So many rows of the first page are kept, to see which ones change: 4 MB at most.
_MOST_KEPT = 20_000
# No server holds more connections than this; what is larger counts something else.
_LARGEST = 10_000_000.0
# A row that has risen by so much may count connections; one that changes by a few may be anything.
_RISEN = 20.0
# At least so often (s) a page is read whole: an agent may sample for days, and several runs.
_LONGEST_REST_S = 60.0
# After a whole page the search rests for so many times its CPU time: 0.2 % of a core.
_RESTS = 500.0
# A busy moment may lengthen one reading (to 40 ms, after which a whole ramp was missed), which says
# nothing of the next: of so many the shortest is taken, and the first ones have a short rest.
_RECENT = 3
_LONGEST_FIRST_REST_S = 2.0

# OpenMetrics writes "unknown" for what has no type.
_KINDS = frozenset({"gauge", "unknown", UNTYPED})
# A name with one of these words counts no connections. Descriptors, goroutines and threads often
# rise by one for each connection, and by others: what they differ by says nothing of connections.
_OF_SOMETHING_ELSE = frozenset(
    {
        "byte", "bytes", "second", "seconds", "milliseconds", "ms", "ratio", "percent", "time",
        "timestamp", "total", "created", "sum", "bucket", "info", "uptime", "pid",
        "goroutine", "goroutines", "thread", "threads", "fd", "fds", "descriptors", "files",
    }
)  # fmt: skip
# The words of snake_case, of camelCase and of dotted names.
_WORD = re.compile(r"[A-Z]?[a-z]++|[A-Z]++(?![a-z])")


class _Candidate(NamedTuple):
    """A row that may count connections. ``rise``: the most that it was above its value on the first
    page, where a row that came later was 0.
    """

    row: str
    name: str
    labels: dict[str, str]
    value: float
    rise: float
    has_changed: bool


class CountSearch:
    """Watches the rows of one URL's pages that may count connections. Instants are in seconds."""

    def __init__(self) -> None:
        #: Row -> its value on the first page; None before that.
        self._first: dict[str, float] | None = None
        #: Whether all rows of the first page are in it.
        self._first_is_whole = True
        self._watched: dict[str, _Candidate] = {}
        self._begun_s = 0.0
        #: Until when the search rests, and when its time has doubled, or a minute is over.
        self._rests_until_s = -math.inf
        self._doubled_s = 0.0
        self._took_s: deque[float] = deque(maxlen=_RECENT)

    @property
    def names(self) -> frozenset[str]:
        """The names to read of each page."""
        return frozenset(candidate.name for candidate in self._watched.values())

    def is_due(self, now_s: float) -> bool:
        """Whether the whole page is to be read."""
        if self._first is None:
            return True
        if now_s < self._rests_until_s:
            return False
        return not self._has_risen or now_s >= self._doubled_s

    def rest(self, now_s: float, took_s: float) -> None:
        """Note that the whole page was read, in ``took_s`` of CPU time."""
        self._took_s.append(took_s)
        rest_s = _RESTS * min(self._took_s)
        if len(self._took_s) < _RECENT:
            rest_s = min(rest_s, _LONGEST_FIRST_REST_S)
        self._rests_until_s = now_s + rest_s

    def take(self, page: MetricsPage, now_s: float) -> None:
        """Choose which rows of a whole page are watched."""
        if self._first is None:
            self._begun_s = now_s
            self._keep_first(page)
        self._doubled_s = now_s + min(_LONGEST_REST_S, max(1.0, now_s - self._begun_s))
        self._update_rises(page)
        chosen = heapq.nsmallest(MOST_WATCHED, self._candidates(page), key=_order)
        self._watched = {candidate.row: candidate for candidate in chosen}
        if self._has_risen:
            for candidate in chosen:
                if not candidate.has_changed:
                    del self._watched[candidate.row]

    def values(self, page: MetricsPage) -> dict[str, float]:
        """The watched rows of a page, whole or not, and their values."""
        self._update_rises(page)
        values = {}
        for row, candidate in self._watched.items():
            value = _value_of(page, candidate)
            if value is not None:
                values[row] = value
        return values

    @property
    def _has_risen(self) -> bool:
        """Whether a row has risen that may well be the one: memory and the like rise too."""
        for candidate in self._watched.values():
            if candidate.rise >= _RISEN and _speaks_of_connections(candidate.name):
                return True
        return False

    def _keep_first(self, page: MetricsPage) -> None:
        self._first = {}
        for row, _, _, value in _rows(page):
            if len(self._first) == _MOST_KEPT:
                self._first_is_whole = False
                return
            self._first.setdefault(row, value)

    def _first_of(self, row: str) -> float | None:
        """The value of a row on the first page; None if it is not known."""
        assert self._first is not None
        if row in self._first:
            return self._first[row]
        return 0.0 if self._first_is_whole else None

    def _update_rises(self, page: MetricsPage) -> None:
        """Take the values of the watched rows into their rises, and forget those whose name has too
        many rows by now.
        """
        for row, candidate in list(self._watched.items()):
            family = page.families.get(candidate.name)
            if family is not None and len(family.rows) > MOST_ROWS_OF_A_NAME:
                del self._watched[row]
                continue
            value = _value_of(page, candidate)
            first = self._first_of(row)
            if value is None or first is None:
                continue
            self._watched[row] = candidate._replace(
                value=value,
                rise=max(candidate.rise, value - first),
                has_changed=candidate.has_changed or value != first,
            )

    def _candidates(self, page: MetricsPage) -> Iterator[_Candidate]:
        """The watched rows that have changed, and the others of a whole page."""
        changed = set()
        for row, candidate in self._watched.items():
            if candidate.has_changed:
                changed.add(row)
                yield candidate
        for row, name, labels, value in _rows(page):
            first = self._first_of(row)
            if first is None or row in changed:
                continue
            rise = max(0.0, value - first)
            yield _Candidate(row, name, labels, value, rise, has_changed=value != first)


def _order(candidate: _Candidate) -> tuple[bool, bool, float]:
    """First those that have changed, of these those whose names speak of connections, and of these
    those that have risen most.
    """
    is_silent = not _speaks_of_connections(candidate.name)
    return not candidate.has_changed, is_silent, -candidate.rise


def _speaks_of_connections(name: str) -> bool:
    return place_among_names(name) < len(SPOKEN_OF)


def _rows(page: MetricsPage) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """The rows of a page that may count connections: row, name, labels, value."""
    for name, family in page.families.items():
        if not _may_count(name, family):
            continue
        for labels, value in family.rows:
            # Without labels --metrics-map means all rows of the name.
            is_ambiguous = not labels and len(family.rows) > 1
            if is_ambiguous or not _is_small_count(value):
                continue
            row = row_name(name, labels)
            if row:
                yield row, name, labels, value


def _may_count(name: str, family: Family) -> bool:
    if family.kind not in _KINDS or len(name) > LONGEST_ROW:
        return False
    if len(family.rows) > MOST_ROWS_OF_A_NAME:
        return False
    words = {word.lower() for word in _WORD.findall(name)}
    return words.isdisjoint(_OF_SOMETHING_ELSE)


def _is_small_count(value: float) -> bool:
    return 0 <= value <= _LARGEST and value.is_integer()


def _value_of(page: MetricsPage, candidate: _Candidate) -> float | None:
    """The value of a row on a page; None if it is not there, or is no count."""
    family = page.families.get(candidate.name)
    if family is None:
        return None
    for labels, value in family.rows:
        if labels == candidate.labels:
            return value if _is_small_count(value) else None
    return None
