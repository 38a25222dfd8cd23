"""One keep-alive HTTP connection to an untrusted peer: no redirect, cookie or proxy; answers
bounded in time and size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncli.model.certificates import reason_of
from asyncli.model.errors import PeerError, UntrustedPeerError
from asyncli.model.text import oneline

if TYPE_CHECKING:
    import ssl

    import aiohttp

# Apache's status page has a character for each process or thread, HAProxy's a line for each server;
# an agent's longest answer is a quarter of this.
_LONGEST = 1 << 20
_ENDLESS = "name a page that ends, or leave it out"


class HttpAnswer(NamedTuple):
    """``whole`` is false if ``body`` was cut off."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    whole: bool


class UnfinishedAnswerError(TimeoutError):
    """The peer answered, and its answer did not end in time."""


class KeptConnection:
    """A client for one event loop; close it. ``requests`` and ``connects`` count what was sent.
    ``socket``: the path of a Unix socket to connect to, or ``@`` and its abstract name.
    """

    def __init__(
        self, headers: Mapping[str, str], tls: ssl.SSLContext | None = None, socket: str = ""
    ) -> None:
        self._socket = re.sub("^@", "\0", socket)
        self.requests = self.connects = 0
        self._headers, self._tls = headers, tls
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        url: str,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        most: int = _LONGEST,
    ) -> HttpAnswer:
        """The answer, cut off after ``most`` bytes. Raises TimeoutError
        (:class:`UnfinishedAnswerError` once it has begun), and aiohttp's errors (:func:`reason`).
        """
        import aiohttp  # here: it takes 200 ms, and most runs have no peer

        session = self._session = self._session or self._open()
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with session.request(
            method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            answer, whole = bytearray(), True
            try:
                async for part in response.content.iter_chunked(1 << 16):
                    answer += part
                    if len(answer) >= most:
                        response.close()
                        whole = False
                        break
            except TimeoutError:
                raise UnfinishedAnswerError from None
            why, headers, kind = response.reason or "", response.headers, response.content_type
            return HttpAnswer(response.status, why, headers, kind, bytes(answer), whole)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._sent)
        trace.on_connection_create_end.append(self._connected)
        # Longer than nginx's 75 s, so that only the server closes connections.
        kept_s = 300
        connector: aiohttp.BaseConnector
        if self._socket:
            connector = aiohttp.UnixConnector(self._socket, limit=1, keepalive_timeout=kept_s)
        else:
            connector = aiohttp.TCPConnector(
                limit=1, keepalive_timeout=kept_s, ssl=self._tls or True
            )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            trace_configs=[trace],
        )

    async def _sent(self, *_: Any) -> None:
        self.requests += 1

    async def _connected(self, *_: Any) -> None:
        self.connects += 1


async def ask_page(
    connection: KeptConnection,
    url: str,
    within_s: float,
    error_of: Callable[[str, str], PeerError],
    unreached: str,
) -> HttpAnswer:
    """A page of the server. Raises what ``error_of`` makes of a failure and its remedy;
    ``unreached``: that of a server that does not answer.
    """
    import aiohttp

    try:
        return await connection.ask("GET", url, within_s=within_s)
    except UnfinishedAnswerError:
        raise error_of(f"the page did not end within {within_s:g} s", _ENDLESS) from None
    except TimeoutError:
        raise error_of(f"no answer in {within_s:g} s", unreached) from None
    except aiohttp.ClientSSLError as error:
        raise UntrustedPeerError(*error_of(*untrusted(error, "--ca")).args) from None
    except (aiohttp.ClientError, OSError) as error:
        raise error_of(f"cannot be read ({reason(error)})", unreached) from None


def reason(error: BaseException) -> str:
    """The error text of a failed connection: the system's or OpenSSL's, if there is one."""
    import ssl

    import aiohttp

    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer was cut off or damaged"
    # Its text quotes the bytes that could not be read.
    if type(error) is aiohttp.ClientResponseError:
        return "what it answers is not valid HTTP"
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        return reason_of(cause)
    if isinstance(cause, OSError) and cause.errno:
        # A failed name look-up has a negative errno with its own text; asyncio's other texts repeat
        # the address.
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return oneline(str(error) or type(error).__name__)[:80]


def untrusted(error: aiohttp.ClientSSLError, ca: str) -> tuple[str, str]:
    """How the peer's TLS failed, and the remedy; ``ca``: the flag that names an authority."""
    import aiohttp

    if not isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS fails ({reason(error)})", "write http:// if it does not speak TLS"
    why = reason(error)
    remedy = (
        "renew it"
        if "expired" in why
        else f"name its authority with {ca}, and the host as the certificate does"
    )
    return f"its certificate is not trusted ({why})", remedy
