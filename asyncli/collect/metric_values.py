"""From a page of metrics to values of ours, by the table of metric_rules.py. Pure.

What a page lacks is absent, and what cannot be a number of bytes or connections is no value: a
gap is no harm, a wrong number divides memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from asyncli.collect.locate import MetricsSource
from asyncli.collect.metric_rules import (
    COUNTS,
    MAPPED_PRODUCT,
    PRODUCTS,
    Join,
    Product,
    Reading,
)
from asyncli.collect.metrics_page import MetricsPage, Row, WantedNames
from asyncli.collect.risen_row import Labels, RisenRow, Scrapes
from asyncli.model.metrics import (
    RUNTIME_COLLECTED_AT_S,
    RUNTIME_DESCRIPTORS,
    RUNTIME_HEAP_BYTES,
    RUNTIME_LIMIT_BYTES,
    RUNTIME_LIVE_BYTES,
    RUNTIME_OUTSIDE_BYTES,
    STATUS_ACTIVE,
    greatest,
)
from asyncli.model.metrics_map import MAPPED, MappedMetric

# When a process started (Unix time), by the client libraries of Go, Node, Java and Python.
_STARTED_S = "process_start_time_seconds"
# What a user may name for what is alive: it is all of it.
_ALIVE = (RUNTIME_LIVE_BYTES, RUNTIME_HEAP_BYTES)
# Until the first collection a runtime writes 0, which is no measure of it.
_ABOVE_ZERO = (RUNTIME_LIVE_BYTES, RUNTIME_COLLECTED_AT_S)


class PageValues:
    """The values of one URL's pages, in the order in which they are read. A metric keeps the
    product and the reading by which it had its first value.
    """

    def __init__(self, mapped: Product | None = None) -> None:
        """``mapped``: metrics that the user has named, before all others."""
        self._table = PRODUCTS if mapped is None else (mapped, *PRODUCTS)
        #: The names to read of a page.
        self.wanted = WantedNames({*_names_of(self._table), _STARTED_S})
        self._recognised: set[str] = set()
        self._ruled_out: set[str] = set()
        self._reading_of: dict[str, Reading] = {}
        self._counting: Product | None = None
        #: What the user has named and the last page had with a value that cannot be one.
        self._unusable: dict[str, float] = {}
        #: Whether the user's metric of active connections has our own; None before its first page.
        self._mapped_has_ours: bool | None = None
        self._last_counts: dict[str, float] = {}
        self._risen = RisenRow()
        #: Our scrapes until the last page, and those before the server's last restart.
        self._last_scrapes = Scrapes()
        self._scrapes_before = Scrapes()

    @property
    def products(self) -> list[str]:
        """The products that its pages were recognised as, in the table's order."""
        return [product.name for product in self._products]

    @property
    def source(self) -> str:
        """The page's name of the metric that counts active connections; "": none does."""
        return self._name_of(STATUS_ACTIVE)

    def _name_of(self, metric: str) -> str:
        """The page's name of a metric of ours; "": it has none."""
        reading = self._reading_of.get(metric)
        if reading is None:
            return ""
        return reading.names[0]

    def source_at(
        self, url: str, interval_s: float, shortest_s: float | None = None
    ) -> MetricsSource:
        """What is read there, and how often, for the run's environment. ``shortest_s``: the
        shortest time that a reading took.
        """
        cpu_ms = None
        if shortest_s is not None:
            cpu_ms = round(shortest_s * 1e3, 2)
        return MetricsSource(
            url=url,
            products=tuple(self.products),
            active_by=self.source or None,
            descriptors_by=self._name_of(RUNTIME_DESCRIPTORS) or None,
            alive_by=self._alive_as_named or None,
            unusable=self._unusable_as_written,
            interval_s=round(interval_s, 1),
            cpu_ms=cpu_ms,
        )

    @property
    def _alive_as_named(self) -> str:
        """The page's name of what the user says is alive; "" where none is named, or it is not
        there.
        """
        if self._table[0].name != MAPPED_PRODUCT:
            return ""
        for reading in self._table[0].readings:
            if reading.metric in _ALIVE and self._reading_of.get(reading.metric) is reading:
                return reading.names[0]
        return ""

    @property
    def _unusable_as_written(self) -> tuple[str, ...]:
        """``my_gauge=NaN``, for each of them."""
        written = []
        for name, value in self._unusable.items():
            number = "NaN" if math.isnan(value) else f"{value:g}"
            written.append(f"{name}={number}")
        return tuple(written)

    @property
    def _products(self) -> list[Product]:
        known = self._recognised - self._ruled_out
        return [product for product in self._table if product.name in known]

    @property
    def refused(self) -> str:
        """Why its pages are of no use, by what they are of; "" if they are of use."""
        for product in self._products:
            if product.refused:
                return product.refused
        return ""

    def recognise(self, page: MetricsPage) -> None:
        names = page.families.keys() | page.stamped
        for product in self._table:
            if not names.isdisjoint(product.unless):
                self._ruled_out.add(product.name)
            if not names.isdisjoint(product.recognised_by):
                self._recognised.add(product.name)
        if self._table[0].name == MAPPED_PRODUCT:
            self._unusable = _impossible(page, self._table[0].readings)

    def runtime(self, page: MetricsPage) -> dict[str, float]:
        """The ``runtime.*`` metrics of a page: those of the server's process, not of an
        exporter's.
        """
        products = self._products
        if any(product.is_exporter for product in products):
            return {}
        values: dict[str, float] = {}
        for product in products:
            for reading in product.readings:
                if reading.metric in COUNTS or reading.metric in values:
                    continue
                if self._reading_of.get(reading.metric, reading) is not reading:
                    continue
                value = joined(page, reading)
                if value is not None:
                    self._reading_of[reading.metric] = reading
                    values[reading.metric] = value
        if self._alive_as_named:
            # It is all that is alive, and nothing is added to it.
            values.pop(RUNTIME_OUTSIDE_BYTES, None)
        return values

    def page_counts(self, page: MetricsPage) -> dict[str, float]:
        """The ``status.*`` counts of a page, as it has them."""
        if self._counting is None:
            self._counting = self._choose_counting(page)
        if self._counting is None:
            return {}
        for reading in _counting_readings(self._counting):
            self._reading_of[reading.metric] = reading
        counts = _counted(self._counting, page)
        if self._mapped_has_ours is None:
            # Just one connection, while we read the page: that is the one.
            is_mapped = self._counting.name == MAPPED_PRODUCT
            self._mapped_has_ours = is_mapped and counts.get(STATUS_ACTIVE) == 1.0
        return counts

    def counts(
        self, page: MetricsPage, page_counts: Mapping[str, float], scrapes: Scrapes
    ) -> dict[str, float]:
        """``page_counts`` of a page that is used, with our own connection and requests in each.
        ``scrapes``: all that we have made so far to read the page, this time included.
        """
        if self._has_restarted(page_counts):
            self._scrapes_before = self._last_scrapes
            self._risen.restart()
        self._last_counts.update(page_counts)
        self._last_scrapes = scrapes
        return self._with_scrapes(page, page_counts, scrapes.less(self._scrapes_before))

    def _with_scrapes(
        self, page: MetricsPage, counts: Mapping[str, float], scrapes: Scrapes
    ) -> dict[str, float]:
        """The counts with our scrapes in each. ``scrapes``: since the server's start."""
        rows: dict[str, dict[Labels, float]] = {}
        for metric in counts:
            reading = self._reading_of[metric]
            if reading.join is Join.RISEN:
                rows[metric] = _by_labels(_rows(page, reading))
        if rows:
            self._risen.update(rows, scrapes)
        with_scrapes = {}
        for metric, count in counts.items():
            if metric in rows:
                with_scrapes[metric] = self._risen.count(metric, rows[metric], scrapes)
            elif self._has_ours(metric):
                with_scrapes[metric] = count
            else:
                with_scrapes[metric] = count + scrapes.of(metric)
        return with_scrapes

    def _has_ours(self, metric: str) -> bool:
        """Whether the page's count has our reading of it."""
        if metric == STATUS_ACTIVE and self._mapped_has_ours:
            return True
        return self._reading_of[metric].counts_scrape

    def _choose_counting(self, page: MetricsPage) -> Product | None:
        """The first product that counts active connections, else the first that counts at all."""
        counting = None
        for product in self._products:
            counts = _counted(product, page)
            if STATUS_ACTIVE in counts:
                return product
            if counts and counting is None:
                counting = product
        return counting

    def _has_restarted(self, counts: Mapping[str, float]) -> bool:
        """Whether a counter of the server fell: it counts from zero again."""
        for metric, count in counts.items():
            if metric != STATUS_ACTIVE and count < self._last_counts.get(metric, -math.inf):
                self._last_counts.clear()
                return True
        return False


def started_at(page: MetricsPage) -> float | None:
    """When the process of a page started (Unix time); None where the page does not say it of one
    process.
    """
    family = page.families.get(_STARTED_S)
    if family is None or len(family.rows) != 1:
        return None
    started_s = family.rows[0].value
    if not math.isfinite(started_s) or started_s <= 0:
        return None
    return started_s


def _counting_readings(product: Product) -> list[Reading]:
    """Its readings of counts; no product has two of one count."""
    return [reading for reading in product.readings if reading.metric in COUNTS]


def _counted(product: Product, page: MetricsPage) -> dict[str, float]:
    """The page's own counts."""
    counts: dict[str, float] = {}
    for reading in _counting_readings(product):
        value = joined(page, reading)
        if value is not None and _is_complete(page, reading, product):
            counts[reading.metric] = value
    return counts


def mapped_product(
    mapped: Iterable[MappedMetric], *, counts_scrape: bool = False
) -> Product | None:
    """What a user names with --metrics-map, as a product; None without any. ``counts_scrape``:
    whether our own reading counts in it, as with a broker. Of a page that is not known: it does
    not, unless the first page has one connection.
    """
    readings = []
    for metric in mapped:
        where = {label: (value,) for label, value in metric.labels.items()}
        reading = Reading(
            MAPPED[metric.meaning], (metric.name,), where, counts_scrape=counts_scrape
        )
        readings.append(reading)
    if not readings:
        return None
    return Product(MAPPED_PRODUCT, tuple(sorted(_names(readings))), tuple(readings))


def joined(page: MetricsPage, reading: Reading) -> float | None:
    """The value of a reading on a page; None if it is not there, or cannot be a value."""
    total = 0.0
    for name in reading.names:
        values = []
        for row in _rows_of_name(page, name, reading):
            value = row.value * reading.factor
            if row.value == reading.undefined:
                continue
            if not is_possible(reading.metric, value):
                return None
            values.append(value)
        if not values:
            return None
        total += max(values) if reading.join is Join.MAX else sum(values)
    if not is_possible(reading.metric, total):
        return None
    return total


def _impossible(page: MetricsPage, readings: Iterable[Reading]) -> dict[str, float]:
    """The names of readings that a page has without a value that can be one, and what it has: the
    first such row, else the sum.
    """
    impossible = {}
    for reading in readings:
        rows = _rows(page, reading)
        if not rows or joined(page, reading) is not None:
            continue
        values = [row.value for row in rows]
        wrong = [value for value in values if not is_possible(reading.metric, value)]
        impossible[reading.names[0]] = wrong[0] if wrong else sum(values)
    return impossible


def is_possible(metric: str, value: float) -> bool:
    """Whether a value is one that ``metric`` can have: NaN, -1, infinity and 2**64 are written for
    "none".
    """
    if metric in _ABOVE_ZERO and value == 0:
        return False
    # The registry has no bound for limits, of which a runtime writes the greatest for "none".
    bounded = RUNTIME_HEAP_BYTES if metric == RUNTIME_LIMIT_BYTES else metric
    return 0 <= value <= greatest(bounded) and math.isfinite(value)


def _is_complete(page: MetricsPage, reading: Reading, product: Product) -> bool:
    """Whether each row of active connections has one here too: of those that have none, the one
    with our connections could be.
    """
    if reading.join is not Join.RISEN or reading.metric == STATUS_ACTIVE:
        return True
    active = next(other for other in product.readings if other.metric == STATUS_ACTIVE)
    return _by_labels(_rows(page, active)).keys() <= _by_labels(_rows(page, reading)).keys()


def _rows(page: MetricsPage, reading: Reading) -> list[Row]:
    rows: list[Row] = []
    for name in reading.names:
        rows += _rows_of_name(page, name, reading)
    return rows


def _rows_of_name(page: MetricsPage, name: str, reading: Reading) -> list[Row]:
    family = page.families.get(name)
    if family is None:
        return []
    rows = [row for row in family.rows if _matches(row, reading)]
    if len(rows) < 2:
        return rows
    # A page may not have a row twice; where it has, a sum would count it twice, and of two values
    # of one row none is known to be right.
    row_of: dict[Labels, Row] = {}
    for row in rows:
        labels = frozenset(row.labels.items())
        earlier = row_of.get(labels, row)
        row_of[labels] = row if earlier.value == row.value else row._replace(value=math.nan)
    return list(row_of.values())


def _matches(row: Row, reading: Reading) -> bool:
    labels = row.labels
    has_wanted = all(labels.get(label) in values for label, values in reading.where.items())
    has_refused = any(labels.get(label) in values for label, values in reading.unless.items())
    return has_wanted and not has_refused


def _by_labels(rows: Iterable[Row]) -> dict[Labels, float]:
    return {frozenset(row.labels.items()): row.value for row in rows}


def _names_of(products: Sequence[Product]) -> set[str]:
    names: set[str] = set()
    for product in products:
        names.update(product.recognised_by)
        names.update(product.unless)
        names.update(_names(product.readings))
    return names


def _names(readings: Iterable[Reading]) -> set[str]:
    names: set[str] = set()
    for reading in readings:
        names.update(reading.names)
    return names
