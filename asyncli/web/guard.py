"""Guards a server against strangers: its rate for each address, its token, and the Host of each
request. Times in seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from aiohttp import web

from asyncli.model.values import is_address
from asyncli.web.listener import IDLE_S, SERVER, shown

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# The delay of the answer to a wrong token.
_WRONG_TOKEN_S = 1.0
_ADDRESSES = 256
# Log lines about refusals: so many at once, then one in so many seconds.
_LINES = 10.0
_LINE_EVERY_S = 5.0


class Rates:
    """A token bucket for each recent address: ``burst`` requests, refilled with ``per_s`` a
    second.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, address: str, now_s: float) -> bool:
        left, then_s = self._buckets.pop(address, (self._burst, now_s))
        left = min(self._burst, left + self._per_s * max(0.0, now_s - then_s))
        is_allowed = left >= 1.0
        self._buckets[address] = (left - is_allowed, now_s)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return is_allowed


class Refusals:
    """Log lines about refusals, rate-limited; suppressed lines are counted."""

    def __init__(self) -> None:
        self._rate = Rates(1.0 / _LINE_EVERY_S, _LINES)
        self._suppressed = 0

    def line(self, address: str, why: str, now_s: float) -> str | None:
        if not self._rate.allow("", now_s):
            self._suppressed += 1
            return None
        suppressed = self._suppressed
        self._suppressed = 0
        if not suppressed:
            return f"refused {address}: {why}"
        return f"refused {address}: {why} (and {suppressed:,} more since the last line)"


def equal_secrets(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape")
    )


class RefusedError(Exception):
    """A request that is answered with ``status`` and ``why``. ``is_logged``: False for what every
    client meets, such as data that comes in a moment.
    """

    def __init__(self, status: int, why: str, *, is_logged: bool = True) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.is_logged = is_logged


class Guard:
    """``token``: required of all clients that :meth:`check_token` is asked about; None: of none.
    ``listens_at``: the name or address of the server. ``log`` gets a line for each refusal.
    """

    def __init__(
        self,
        token: str | None,
        listens_at: str,
        log: Callable[[str], None],
        *,
        per_s: float,
        burst: float,
    ) -> None:
        self._token = token
        self._listens_at = listens_at
        self._log = log
        self._rates = Rates(per_s, burst)
        self._refusals = Refusals()

    def check_rate(self, whose: str) -> None:
        """Limit the rate of ``whose`` requests. Raises :class:`RefusedError`.

        Clients with and without a token may share an address (a tunnel): name both kinds.
        """
        if not self._rates.allow(whose, time.monotonic()):
            raise RefusedError(429, "asks too often")

    def check_host(self, request: web.Request) -> None:
        """Refuse another site's name: without a token, a page in a browser on this host could read
        the answers once its name resolves to loopback (DNS rebinding). An address cannot be
        rebound. Raises :class:`RefusedError`.
        """
        named = request.headers.get("Host")
        if self._token is None and named is not None and not is_own_name(named, self._listens_at):
            raise RefusedError(
                403,
                "without the right token (Authorization: Bearer TOKEN) it must name an address or "
                f"localhost, and its Host is {shown(named)}",
            )

    async def check_token(self, request: web.Request) -> None:
        """Raises :class:`RefusedError` for a request without the token, after a delay."""
        if self.is_authorized(request):
            return
        await asyncio.sleep(_WRONG_TOKEN_S)
        if "Authorization" in request.headers:
            raise RefusedError(401, "its token is wrong")
        raise RefusedError(401, "it has no token")

    def is_authorized(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return equal_secrets(given.strip(), self._token) and scheme.lower() == "bearer"

    def refuse(self, address: str, why: str) -> None:
        """Log a refusal."""
        line = self._refusals.line(address, why, time.monotonic())
        if line is not None:
            self._log(line)


def quiet_runner(app: web.Application, guard: Guard) -> web.AppRunner:
    """A runner whose only log is the guard's: what is no HTTP request counts as a refusal."""

    def count(_: logging.LogRecord) -> bool:
        guard.refuse("a client", "it sent no HTTP request")
        return False

    app.on_response_prepare.append(hide_versions)
    log = logging.Logger("asyncli.web", logging.WARNING)
    log.addFilter(count)
    return web.AppRunner(
        app,
        access_log=None,
        logger=log,
        handle_signals=False,
        keepalive_timeout=IDLE_S,
        lingering_time=1.0,
        shutdown_timeout=0.5,
    )


def is_own_name(host_header: str, listens_at: str) -> bool:
    """Whether a Host header (``localhost:9165``, ``[::1]:9165``) has an address, "localhost", or
    the server's own name.
    """
    host, _, port = host_header.rpartition(":")
    if not port.isdigit() or not host:
        host = host_header
    if host.lower() in ("localhost", listens_at.lower()):
        return True
    return is_address(host.removeprefix("[").removesuffix("]"))


async def hide_versions(_: web.Request, response: web.StreamResponse) -> None:
    """Do not reveal the versions of Python and aiohttp."""
    response.headers["Server"] = SERVER
