"""Serves the live page of one run, and its metrics. Start at :class:`PageServer`."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncli.live.access import Access
from asyncli.live.answers import asset, healthy, page_file
from asyncli.live.feed import RunFeed
from asyncli.live.run_page import RunPage
from asyncli.web.guarded_server import GuardedServer, get

#: The longest body is a mark.
LONGEST_BODY = 4096


class PageServer:
    """Serves the run in ``path`` at ``host``:``port``.

    ``token``: what changes the run needs it. ``must_have_token``: so does looking. ``stop``: ends
    the run as Ctrl-C does; None where that cannot be done. ``with_page``: False: the metrics alone.
    ``reference``: a run that is laid under it (:mod:`asyncli.live.reference`).

    Use: :meth:`read` and :meth:`listen`, then :meth:`run` until cancelled, then :meth:`close`.
    """

    def __init__(
        self,
        path: Path,
        *,
        host: str,
        port: int,
        token: str,
        must_have_token: bool,
        tls: ssl.SSLContext | None,
        log: Callable[[str], None],
        stop: Callable[[], None] | None = None,
        with_page: bool = True,
        reference: dict[str, Any] | None = None,
    ) -> None:
        self._run = RunPage(path, stop)
        self._reference = reference
        access = Access(token, host, log, must_have_token=must_have_token)
        routes = [get("/-/healthy", healthy), get("/metrics", self._run.metrics)]
        if with_page:
            routes += [
                web.get("/", _page),
                web.get("/assets/{name}", asset),
                get("/history", self._history),
                get("/events", self._run.events),
                get("/download/{file}", self._run.download),
                web.post("/mark", self._run.mark),
                web.post("/stop", self._run.end),
            ]
        self._access = access
        #: What listens.
        self.server = GuardedServer(
            routes,
            access,
            access.guard,
            host=host,
            port=port,
            flag="--web" if with_page else "--metrics",
            tls=tls,
            longest_body=LONGEST_BODY,
        )

    async def _history(self, request: web.Request) -> web.Response:
        return self._run.history(self._reference, is_owner=self._access.is_owner(request))

    @property
    def feed(self) -> RunFeed:
        """The run."""
        return self._run.feed

    @property
    def is_ending_awaited(self) -> bool:
        """Whether somebody looks at the page who has not been sent the verdict."""
        return self._run.readers > 0 and not self._run.is_ending_sent

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.server.port

    async def read(self) -> None:
        """Read the run. Raises :class:`~asyncli.model.errors.AsyncliError` for what is no run file,
        or has not begun.
        """
        await self._run.read()

    async def listen(self) -> None:
        """Listen; data is refused until the run has been read.

        Raises :class:`~asyncli.model.errors.HostError` where it cannot listen.
        """
        await self.server.open()

    async def run(self) -> None:
        """Read what is new once a second, until cancelled."""
        await self._run.run(self.server.sweep)

    async def close(self) -> None:
        await self._run.close()
        await self.server.close()


async def _page(_: web.Request) -> web.Response:
    return page_file("index.html")
