"""Reads a server's status page over one kept connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from asyncli.collect.http import KeptConnection, ask_page
from asyncli.collect.status_pages import (
    NotStatusPage,
    OurBackend,
    OurFrontend,
    StatusPage,
    all_frontends,
    excerpt,
    html_url,
    impossible_count,
    parse_page,
)
from asyncli.model.certificates import client_context
from asyncli.model.errors import PeerError
from asyncli.model.masks import masked_page
from asyncli.model.metrics import (
    STATUS_CONNECTS,
    STATUS_LIMIT_IN_ALL,
    STATUS_POLLS,
    STATUS_UNANSWERED,
)
from asyncli.model.products import STATUS_PAGES, Backend, Frontend
from asyncli.model.quotation import Quotation
from asyncli.model.status_place import status_place
from asyncli.model.text import oneline
from asyncli.model.values import TlsOptions, parse_url

#: For one poll, connecting included: a later answer belongs to another second.
TIMEOUT_S = 2.0
_WRONG_PAGE = (
    "aim --status-url at "
    f"{', '.join(f'{page} of {server}' for server, page in STATUS_PAGES.items())}, or leave it out"
)
_LOGIN = (
    "write its login into --status-url (http://USER:PASSWORD@HOST/), or --status-header "
    "'Authorization: ...'"
)
_WRONG_COUNTS = "see what serves this page, or leave --status-url out"
# For a page that was right before.
_SEE_LOG = "see the server's error log"
_UNREACHED = "see that the server runs and --status-url names its host and port, or leave it out"


class StatusReader:
    """Reads a status URL and counts the polls. For one event loop; close it.

    ``options``: for https. Raises :class:`~asyncli.model.errors.HostError` if their files cannot be
    read.
    """

    def __init__(
        self, url: str, options: TlsOptions | None = None, headers: Iterable[str] = ()
    ) -> None:
        place = status_place(url)
        #: For display, without its login; and what is requested.
        self.url = masked_page(url)
        self._requested = place.url
        #: Polls that a page answered.
        self.pages = 0
        #: The Server header of the last answer, "" if it had none.
        self.server_header = ""
        #: HAProxy's frontends by the last page.
        self.frontends: dict[str, Frontend] = {}
        #: Its backends by the last page.
        self.backends: dict[str, Backend] = {}
        #: All frontends together, by its page for people; None if that does not tell. Read once.
        self.all_frontends: Frontend | None = None
        self._html_was_read = False
        # Polls that had an answer.
        self._answered = 0
        self._ours = OurFrontend()
        self._behind = OurBackend()
        #: The counts of the last page that was used, and when it was read.
        self._before: dict[str, float] | None = None
        self._before_s = 0.0
        tls = client_context(options or TlsOptions()) if parse_url(place.url).secure else None
        own = {
            name: value.strip()
            for name, _, value in (header.partition(":") for header in (*place.headers, *headers))
        }
        # An error page may repeat them.
        self._quotation = Quotation(own.values())
        sent = {"User-Agent": "asyncli", "Accept": "text/plain", **own}
        self._connection = KeptConnection(sent, tls, socket=place.socket)

    async def read(self) -> dict[str, float]:
        """The page as ``status.*`` metrics, always including our own connection and requests.

        Raises :class:`PeerError` if it does not answer in time or is no known page.
        """
        answer = await ask_page(
            self._connection, self._requested, TIMEOUT_S, self._error, _UNREACHED
        )
        self.server_header = answer.headers.get("Server", "")
        text = answer.body.decode("utf-8", "replace")
        shown = self._quotation(excerpt(text))
        wrong = _SEE_LOG if self.pages else _WRONG_PAGE
        if answer.status != 200:
            if answer.status in (401, 407):
                wrong = _LOGIN
            raise self._error(
                f"answered {answer.status} {self._quotation(answer.reason or '')} {shown}", wrong
            )
        try:
            page = parse_page(text)
        except NotStatusPage:
            raise self._error(
                f"answered {answer.content_type} {shown}, which is not a status page", wrong
            ) from None
        now_s = time.monotonic()
        if why := impossible_count(page, self._before, now_s - self._before_s):
            raise self._error(f"has impossible counts, so it is not used: {why}", _WRONG_COUNTS)
        self._before, self._before_s = page.values, now_s
        return await self._take(page)

    async def _take(self, page: StatusPage) -> dict[str, float]:
        """The values of a page that is used, with ``status.limit_in_all`` of a HAProxy."""
        self.pages += 1
        self._answered += 1
        self.frontends = dict(page.frontends)
        self.backends = dict(page.backends)
        values = self._with_polls(page)
        if page.kind == "haproxy" and not self._html_was_read:
            self._html_was_read = True
            await self._read_html()
        if self.all_frontends is not None:
            values[STATUS_LIMIT_IN_ALL] = float(self.all_frontends.limit)
        return values

    async def _read_html(self) -> None:
        """Read HAProxy's page for people. Without it that limit is unknown: no error."""
        import aiohttp

        url = html_url(self._requested)
        if url is None:
            return
        # HAProxy sends what is asked for in the URL, whatever is accepted.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            answer = await self._connection.ask("GET", url, within_s=TIMEOUT_S)
            self._answered += 1
            if answer.status == 200:
                self.all_frontends = all_frontends(answer.body.decode("utf-8", "replace"))

    def _with_polls(self, page: StatusPage) -> dict[str, float]:
        polls, connects = float(self._connection.requests), float(self._connection.connects)
        counts = {
            STATUS_POLLS: polls,
            STATUS_CONNECTS: connects,
            STATUS_UNANSWERED: polls - self._answered,
        }
        limits = self._ours.limit(page.frontends) | self._behind.limit(page.backends)
        return {**page.values, **limits, **counts}

    async def close(self) -> None:
        await self._connection.close()

    def _error(self, what: str, remedy: str) -> PeerError:
        return PeerError(f"status page {self.url}: {oneline(what)}; {remedy}")
