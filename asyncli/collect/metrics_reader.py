"""Reads servers' pages of metrics, each over one kept connection; of all URLs together also what
brokers publish (broker_reader.py).
"""

from __future__ import annotations

import difflib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from asyncli.collect.count_search import CountSearch
from asyncli.collect.http import HttpAnswer, KeptConnection, ask_page
from asyncli.collect.locate import MetricsSource
from asyncli.collect.metric_rules import COUNTS, Product
from asyncli.collect.metric_values import PageValues, started_at
from asyncli.collect.metrics_page import (
    MetricsPage,
    NotMetricsPage,
    WantedNames,
    parse_metrics,
)
from asyncli.collect.page_counts import ImpossibleCountsError, PageCounts
from asyncli.collect.probe_budget import SHORTEST_PERIOD_S, ProbeReading
from asyncli.collect.risen_row import Scrapes
from asyncli.collect.sampler import Poll
from asyncli.collect.status_pages import excerpt
from asyncli.model.certificates import client_context
from asyncli.model.errors import PeerError
from asyncli.model.masks import masked_page
from asyncli.model.metrics import (
    PAGE,
    RUNTIME_CONNECTIONS,
    RUNTIME_DESCRIPTORS,
    STATUS_ACTIVE,
    STATUS_CONNECTS,
    STATUS_POLLS,
    STATUS_UNANSWERED,
)
from asyncli.model.quotation import Quotation
from asyncli.model.status_place import status_place
from asyncli.model.text import oneline
from asyncli.model.units import shown
from asyncli.model.values import TlsOptions, parse_url

#: For one page, connecting included: a later answer belongs to another second.
TIMEOUT_S = 2.0
# The server spends CPU time on each page, at most what we wait for it: so not more than 1 % of a
# core. Fewer than one page in 10 s are too few for a ramp.
_LONGEST_PERIOD_S = 10.0
_PERIODS_OF_A_SCRAPE = 100.0
# Rounds of the sampler are on whole seconds, but for what delays them.
_ROUND_JITTER_S = 0.5
# A scrape that a busy moment delayed says little of the next one.
_RECENT_SCRAPES = 3
# Prometheus text: OpenMetrics has nothing more of use, and a compressed page costs the server more.
_HEADERS = {
    "User-Agent": "asyncli",
    "Accept": "text/plain;version=0.0.4;q=1, application/json;q=0.5, */*;q=0.1",
    "Accept-Encoding": "identity",
}
_PROBE = "metrics"
# What asyncli's readings of the page are in goes with the counts.
_OF_COUNTS = frozenset({*COUNTS, STATUS_POLLS, STATUS_CONNECTS, STATUS_UNANSWERED})
# What a gauge of connections is called.
_SPOKEN_OF = ("connection", "client", "session", "socket")
_MOST_PROPOSED = 5

_UNREACHED = (
    "see that the server runs and --server-metrics names its host and port, or leave it out"
)
_WRONG_PAGE = (
    "aim --server-metrics at a page of Prometheus text or JSON, such as /metrics, or leave it out"
)
_LOGIN = (
    "write its login into --server-metrics (http://USER:PASSWORD@HOST/), or --status-header "
    "'Authorization: ...'"
)
_FORBIDDEN = "let this host and this login read the page, or leave --server-metrics out"
_FAILED = "see the server's log for why, or leave --server-metrics out"
_TOO_LONG = "aim --server-metrics at a page with fewer metrics"
_WRONG_COUNTS = "see what serves this page, or leave --server-metrics out"
_NAME_SERVERS_PAGE = "name the page of the server's own process, or leave it out"
_REDIRECT = "write the URL of the page itself"


class MetricsReader:
    """Reads one URL. For one event loop; close it.

    ``options``: for https. ``mapped``: metrics that the user has named. ``searches``: a row that
    counts connections is looked for where no rule names one. Raises
    :class:`~asyncli.model.errors.HostError` if the files of ``options`` cannot be read.
    """

    def __init__(
        self,
        url: str,
        options: TlsOptions | None = None,
        headers: Iterable[str] = (),
        mapped: Product | None = None,
        *,
        searches: bool = False,
    ) -> None:
        place = status_place(url)
        #: For display, without its login and query; and what is requested.
        self.url = masked_page(url)
        self._requested = place.url
        tls = client_context(options or TlsOptions()) if parse_url(place.url).secure else None
        own_headers = {}
        for header in (*place.headers, *headers):
            name, _, value = header.partition(":")
            own_headers[name] = value.strip()
        # An error page may repeat them.
        self._quotation = Quotation(own_headers.values())
        self._connection = KeptConnection({**_HEADERS, **own_headers}, tls, socket=place.socket)
        self._pages = PageValues(mapped)
        #: When the process of the last page started, by the page (Unix time); None: it does not
        #: say.
        self.started_s: float | None = None
        #: None: not needed.
        self._search = CountSearch() if searches else None
        self._wanted = self._pages.wanted
        #: The rows of the last page that may count connections, where no rule names the metric.
        self.rows: dict[str, float] = {}
        self._page_counts = PageCounts(self._pages)
        self._named = frozenset() if mapped is None else frozenset(mapped.recognised_by)
        self.missing: dict[str, str] | None = None
        self._answered = 0
        #: Whether the page has had a value.
        self._was_of_use = False
        self._took_s: deque[float] = deque(maxlen=_RECENT_SCRAPES)
        self._due_s = 0.0

    @property
    def interval_s(self) -> float:
        """The seconds from one reading to the next."""
        scrape_s = self._shortest_s or 0.0
        return min(_LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, _PERIODS_OF_A_SCRAPE * scrape_s))

    @property
    def source(self) -> MetricsSource:
        """What is read, for the run's environment."""
        return self._pages.source_at(self.url, self.interval_s, self._shortest_s)

    @property
    def _shortest_s(self) -> float | None:
        """The shortest of the last readings, which bounds what the others cost in CPU time too."""
        return min(self._took_s, default=None)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due_s

    async def read(self) -> dict[str, float]:
        """The page as ``runtime.*`` and ``status.*`` metrics; the counts include our own connection
        and requests. Sets :attr:`rows`.

        Raises :class:`PeerError` if it does not answer in time, is no page of metrics, or has none
        that asyncli knows.
        """
        import aiohttp  # noqa: F401 - here: its 200 ms are no part of a scrape

        # A page that fails is read again in the next second.
        self._due_s = 0.0
        begun_s = time.monotonic()
        answer = await ask_page(
            self._connection, self._requested, TIMEOUT_S, self._error, _UNREACHED
        )
        now_s = time.monotonic()
        self._answered += 1
        self._require_page(answer)
        page = self._parse(answer.body, now_s)
        if self.missing is None:
            self.missing = _missing(self._named, page, answer.body)
        self._pages.recognise(page)
        self.started_s = started_at(page)
        if self._pages.refused:
            raise self._error(self._pages.refused, _NAME_SERVERS_PAGE)
        values = self._pages.runtime(page) | self._counts(page, now_s)
        self._set_rows(page)
        if not values and not self.rows and page.stamped:
            complaint = "gives its values with timestamps, so they are of other instants"
            raise self._error(complaint, _NAME_SERVERS_PAGE)
        if not self._pages.products and not self.rows:
            raise self._error("has no metric that asyncli knows", _way_to_map(answer.body))
        is_of_use = bool(values or self.rows)
        if self._was_of_use and not is_of_use:
            raise self._error("has no usable value of what it had before", _WRONG_COUNTS)
        self._was_of_use = is_of_use
        self._took_s.append(now_s - begun_s)
        self._due_s = begun_s + self.interval_s - _ROUND_JITTER_S
        return values

    async def close(self) -> None:
        await self._connection.close()

    def _require_page(self, answer: HttpAnswer) -> None:
        """Raise :class:`PeerError` unless this is a whole page with status 200."""
        status = f"{answer.status} {self._quotation(answer.reason)}".strip()
        location = answer.headers.get("Location", "")
        if 300 <= answer.status < 400 and location:
            location = excerpt(self._quotation(masked_page(location)))
            raise self._error(f"is redirected ({status}) to {location}", _REDIRECT)
        if answer.status in (401, 407):
            raise self._error(f"answered {status}", _LOGIN)
        if answer.status != 200:
            remedy = _WRONG_PAGE
            if answer.status == 403:
                remedy = _FORBIDDEN
            elif answer.status >= 500:
                remedy = _FAILED
            beginning = ""
            if answer.body:
                beginning = f" {excerpt(answer.body.decode('utf-8', 'replace'))}"
            raise self._error(f"answered {status}{self._quotation(beginning)}", remedy)
        if not answer.whole:
            raise self._error("is longer than 1 MiB, so it is not used", _TOO_LONG)

    def _parse(self, body: bytes, now_s: float) -> MetricsPage:
        try:
            if self._search is not None and self._search.is_due(now_s):
                return self._whole(body, self._search, now_s)
            return self._wanted.parse(body)
        except NotMetricsPage as error:
            raise self._error(str(error), _WRONG_PAGE) from None

    def _whole(self, body: bytes, search: CountSearch, now_s: float) -> MetricsPage:
        """The whole page, of which rows are chosen that may count connections."""
        begun_s = time.thread_time()
        page = parse_metrics(body)
        search.take(page, now_s)
        names = self._pages.wanted.names | search.names
        if names != self._wanted.names:
            self._wanted = WantedNames(names)
        search.rest(now_s, time.thread_time() - begun_s)
        return page

    def _set_rows(self, page: MetricsPage) -> None:
        if self._pages.source:
            # A rule names the metric.
            self._search = None
            self._wanted = self._pages.wanted
        self.rows = {} if self._search is None else self._search.values(page)

    def _counts(self, page: MetricsPage, now_s: float) -> dict[str, float]:
        """The page's counts, with those of our own scrapes beside them."""
        connects = float(self._connection.connects)
        requests = float(self._connection.requests)
        scrapes = Scrapes(connects, requests, float(self._answered))
        try:
            return self._page_counts.of(page, now_s, scrapes)
        except ImpossibleCountsError as error:
            complaint = f"has impossible counts, so it is not used: {error}"
            raise self._error(complaint, _WRONG_COUNTS) from None

    def _error(self, what: str, remedy: str) -> PeerError:
        return PeerError(f"metrics page {self.url}: {oneline(what)}; {remedy}")


class PageReader(Protocol):
    """Reads one URL: a page of metrics, or a broker. ``rows``: of the last page, those that may
    count connections. ``missing``: the metrics of --metrics-map that the first page lacks, each
    with the name on it that is most like it, "" without one; None: they may come later.
    ``started_s``: when the process of the last page started, by the page (Unix time); None: it does
    not say.
    """

    rows: dict[str, float]
    missing: dict[str, str] | None
    started_s: float | None

    @property
    def source(self) -> MetricsSource: ...

    @property
    def is_due(self) -> bool: ...

    async def read(self) -> dict[str, float]: ...

    async def close(self) -> None: ...


class MetricsPages:
    """The pages of all URLs. The counts are of one page, and what is said of the runtime is of one:
    another page's would be another process's. Both are of the first page that counts active
    connections, if it has both.

    ``has_status_page``: a status page gives the counts. For one event loop; close it.
    """

    def __init__(self, readers: Sequence[PageReader], *, has_status_page: bool) -> None:
        self._readers = readers
        self._has_status_page = has_status_page
        #: The places of the URLs whose counts and whose runtime's metrics are used; None: no page
        #: has had any.
        self._counts_of: int | None = None
        self._runtime_of: int | None = None

    @property
    def polls(self) -> dict[str, Poll]:
        """The poll of each URL by its name; the first one's is ``metrics``."""
        polls: dict[str, Poll] = {}
        for place in range(len(self._readers)):
            name = _PROBE if place == 0 else f"{_PROBE}_{place + 1}"
            polls[name] = self._poll_of(place)
        return polls

    @property
    def sources(self) -> tuple[MetricsSource, ...]:
        """What is read, by URL, for the run's environment. At most one of them counts."""
        return tuple(self._source_of(place) for place in range(len(self._readers)))

    @property
    def runtime_place(self) -> int | None:
        """The place of the URL whose page says what is known of a runtime; None: none has yet."""
        return self._runtime_of

    @property
    def started_s(self) -> tuple[float | None, ...]:
        """When the processes of the pages started, by URL (Unix time); None: it does not say."""
        return tuple(reader.started_s for reader in self._readers)

    def _source_of(self, place: int) -> MetricsSource:
        source = self._readers[place].source
        if self._counts_of == place and not self._has_status_page:
            return source
        return msgspec.structs.replace(source, active_by=None)

    async def open(self) -> None:
        """Read each page once. Raises :class:`PeerError` for one that cannot be used."""
        pages = [await reader.read() for reader in self._readers]
        self._require_named()
        for place, values in enumerate(pages):
            self._choose(place, values)
            if self._has_status_page and values and values.keys() <= _OF_COUNTS:
                raise PeerError(
                    f"metrics page {self._readers[place].source.url}: has only counts, and "
                    "--status-url has these; leave one of the two out"
                )
        # Requests alone, which an earlier page may count, are no reason to leave this one out.
        for place, values in enumerate(pages):
            # A broker's count comes later.
            if self._readers[place].source.active_by:
                self._counts_of = place
                if values.keys() - _OF_COUNTS:
                    self._runtime_of = place
                return

    def _require_named(self) -> None:
        """Raise :class:`PeerError` for a metric of --metrics-map that no page has."""
        lacking: dict[str, list[str]] = {}
        for reader in self._readers:
            for name, similar in (reader.missing or {}).items():
                lacking.setdefault(name, []).append(similar)
        for name, of_pages in lacking.items():
            if len(of_pages) == len(self._readers):
                urls = " and ".join(reader.source.url for reader in self._readers)
                remedy = _remedy_of_name(max(of_pages))
                raise PeerError(f"--metrics-map: {urls} has no metric {shown(name)}; {remedy}")

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close()

    def _poll_of(self, place: int) -> Poll:
        async def poll(everything: bool) -> ProbeReading:
            if not everything and not self._readers[place].is_due:
                return ProbeReading()
            return ProbeReading(await self._read(place))

        return poll

    async def _read(self, place: int) -> dict[str, float]:
        values = await self._readers[place].read()
        self._choose(place, values)
        return self._used(place, values) | self._rows(place)

    def _rows(self, place: int) -> dict[str, float]:
        """The rows of a page that may count connections, as ``page.*``; none where a rule names the
        metric on any page.
        """
        if any(reader.source.active_by for reader in self._readers):
            return {}
        rows = {}
        for row, value in self._readers[place].rows.items():
            rows[f"{PAGE}{place + 1}.{row}"] = value
        return rows

    def _choose(self, place: int, values: Mapping[str, float]) -> None:
        """The first page that has counts, or says something of a runtime, goes on to do so."""
        if self._counts_of is None and not values.keys().isdisjoint(_OF_COUNTS):
            self._counts_of = place
        if self._runtime_of is None and values.keys() - _OF_COUNTS:
            self._runtime_of = place

    def _used(self, place: int, values: Mapping[str, float]) -> dict[str, float]:
        """The values of a page that are used."""
        used = {}
        for metric, value in values.items():
            if metric not in _OF_COUNTS:
                if self._runtime_of == place:
                    used[metric] = value
            elif self._counts_of == place and not self._has_status_page:
                used[metric] = value
        says_descriptors = RUNTIME_DESCRIPTORS in values
        if self._runtime_of == place and STATUS_ACTIVE in values and not says_descriptors:
            # It tells whether the page's process holds the connections.
            used[RUNTIME_CONNECTIONS] = values[STATUS_ACTIVE]
        return used


def _missing(named: frozenset[str], page: MetricsPage, body: bytes) -> dict[str, str]:
    """Those of the ``named`` metrics that a page lacks, each with the most similar name on it."""
    missing = {}
    for name in sorted(named - page.families.keys() - page.stamped):
        similar = difflib.get_close_matches(name, parse_metrics(body).families, n=1)
        missing[name] = similar[0] if similar else ""
    return missing


def _remedy_of_name(similar: str) -> str:
    """How to name a metric that no page has. ``similar``: one that a page has; "" without one."""
    if similar:
        return f"did you mean {shown(similar)}?"
    return (
        "write a name that is on the page; if it comes with the first request, send one before the "
        "run"
    )


def _way_to_map(body: bytes) -> str:
    """How to use a page of an unknown program: gauges of it that may count connections."""
    names = []
    for name, family in parse_metrics(body).families.items():
        if family.kind == "gauge" and any(word in name.lower() for word in _SPOKEN_OF):
            names.append(name)
    if not names:
        return "name one that counts connections with --metrics-map active=NAME, or leave it out"
    proposed = ", ".join(excerpt(name).strip('"') for name in names[:_MOST_PROPOSED])
    return f"name what counts connections with --metrics-map active=NAME: {proposed}"
