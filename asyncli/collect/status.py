"""A reader of a server's status page (nginx, Apache, HAProxy) that keeps one connection to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from asyncli.collect.pages import NotStatusPage, StatusPage, excerpt, parse_page
from asyncli.errors import PeerError
from asyncli.metrics import (
    STATUS_ACCEPTS,
    STATUS_ACTIVE,
    STATUS_CONNECTS,
    STATUS_HANDLED,
    STATUS_POLLS,
    STATUS_REQUESTS,
    STATUS_UNANSWERED,
)
from asyncli.text import oneline

if TYPE_CHECKING:
    import aiohttp

#: One poll, connecting included: with one poll a second, later than this the number no longer belongs to its second.
TIMEOUT_S = 2.0
# nginx's page is 100 bytes; Apache's has a character for each process or thread, HAProxy's a line for each server behind it.
# What is longer is something else, of which an error shows the beginning.
_LONGEST = 1 << 20


class StatusReader:
    """Reads one status URL over one kept connection, and counts what it sends. For one event loop; close it."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        #: Requests written to the socket, a repeat on a connection that the server had closed included.
        self.polls = 0
        #: Of these, those that a page answered.
        self.pages = 0
        #: Connections made: nginx ends one after keepalive_requests (1000) polls, so an overnight run makes many.
        self.connects = 0
        #: The Server header of the last answer, "" when there was none.
        self.server_header = ""
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> dict[str, float]:
        """The page as ``status.*`` metrics, ``status.polls`` with them.

        On every kind of page ``status.active``, ``accepts``, ``handled`` and ``requests``, as far as they are there, have our
        own connections and requests in them. Raises :class:`PeerError` (one line) when it cannot be reached in time or is no
        page that we know.
        """
        import aiohttp  # 200 ms of import that a run without a status URL does not owe

        if self._session is None:
            self._session = self._open()
        try:
            # No redirect is followed: nothing is sent to an address that the user did not give.
            async with self._session.get(self.url, allow_redirects=False) as response:
                self.server_header = response.headers.get("Server", "")
                text = await _beginning(response)
                if response.status != 200:
                    what = f"answered {response.status} {response.reason} {excerpt(text)}"
                    raise self._error(what, _SEE_LOG if self.pages else _WRONG_PAGE)
                try:
                    page = parse_page(text)
                    self.pages += 1
                    return self._with_us(page)
                except NotStatusPage:
                    kind = response.content_type
                    what = f"answered {kind} {excerpt(text)}, no status page"
                    raise self._error(what, _SEE_LOG if self.pages else _WRONG_PAGE) from None
        except TimeoutError:
            raise self._error(f"no answer in {self._timeout_s:g} s", _UNREACHED) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(f"cannot be read ({_reason(error)})", _UNREACHED) from None

    def _with_us(self, page: StatusPage) -> dict[str, float]:
        polls, connects = float(self.polls), float(self.connects)
        unanswered = polls - self.pages
        values = {**page.values, STATUS_POLLS: polls, STATUS_CONNECTS: connects, STATUS_UNANSWERED: unanswered}
        if not page.with_us:
            # Those who read the counts take our one connection, our connects and our polls out of them again.
            ours = {STATUS_ACTIVE: 1.0, STATUS_ACCEPTS: connects, STATUS_HANDLED: connects, STATUS_REQUESTS: polls}
            values |= {name: values[name] + count for name, count in ours.items() if name in values}
        return values

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._sent)
        trace.on_connection_create_end.append(self._connected)
        return aiohttp.ClientSession(
            # Longer than nginx's 75 s: the server ends the connection, so its accepts count only what was needed.
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers={"User-Agent": "asyncli", "Accept": "text/plain"},
            # A status page has no business with cookies, and a cookie would change what we send.
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )

    async def _sent(self, *_: Any) -> None:
        self.polls += 1

    async def _connected(self, *_: Any) -> None:
        self.connects += 1

    def _error(self, what: str, remedy: str) -> PeerError:
        return PeerError(f"status page {self.url}: {oneline(what)}; {remedy}")


_WRONG_PAGE = "aim --status-url at nginx's stub_status, Apache's server-status?auto or HAProxy's ;csv, or leave it out"
# It was the right page before.
_SEE_LOG = "see the server's error log"
_UNREACHED = "see that the server runs and --status-url names its host and port, or leave it out"


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The body, or as much of a long one as an error shows: the rest is never loaded."""
    body = bytearray()
    async for part in response.content.iter_chunked(_LONGEST):
        body += part
        if len(body) >= _LONGEST:
            response.close()
            break
    return body.decode("utf-8", "replace")


def _reason(error: BaseException) -> str:
    """The system's own words for a failed connection where there are any: aiohttp's repeat host and TLS settings."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, OSError) and cause.errno:
        # A failed name look-up has a negative errno of its own kind; asyncio's other texts repeat the address.
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return excerpt(str(error) or type(error).__name__, 80).strip('"')
