"""An HTTP server behind a guard: who may ask, how long an answer may take, and what is refused in
one place for all servers of asyncli.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from asyncli.model.errors import AsyncliError, HostError
from asyncli.model.text import printable
from asyncli.web.guard import Guard, Handler, RefusedError, quiet_runner
from asyncli.web.listener import GuardedListener, shown

#: The status of a refusal by a run that cannot do what is asked.
_CONFLICT = 409


class Doorkeeper(Protocol):
    """What a server knows about its requests."""

    async def admit(self, request: web.Request, address: str) -> bool:
        """Whether the client of ``address`` has the token, so that it is not evicted for others.

        Raises :class:`~asyncli.web.guard.RefusedError` for a request that is refused.
        """

    def longest_s(self, request: web.Request) -> float | None:
        """How long (s) its answer may take, with reading its body; None: the handler sees to it."""

    def refusal(self, status: int, why: str) -> web.Response:
        """The answer to a request that is refused."""


class GuardedServer:
    """Serves ``routes`` at ``host``:``port``; ``flag`` names the address in errors.

    ``doorkeeper`` is asked about each request, and ``guard`` logs refusals. Bodies have at most
    ``longest_body`` bytes. Use: :meth:`open`, then :meth:`sweep` once a second, then :meth:`close`.
    """

    def __init__(
        self,
        routes: Sequence[web.RouteDef],
        doorkeeper: Doorkeeper,
        guard: Guard,
        *,
        host: str,
        port: int,
        flag: str,
        tls: ssl.SSLContext | None,
        longest_body: int,
    ) -> None:
        #: The port it listens on.
        self.port = port
        self._routes = routes
        self._doorkeeper = doorkeeper
        self._guard = guard
        self._host = host
        self._flag = flag
        self._tls = tls
        self._longest_body = longest_body
        self._runner: web.AppRunner | None = None
        self._listener: GuardedListener | None = None

    async def open(self) -> None:
        """Listen. Raises :class:`~asyncli.model.errors.HostError` where it cannot."""

        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        app = web.Application(middlewares=[answer], client_max_size=self._longest_body)
        app.add_routes(self._routes)
        self._runner = quiet_runner(app, self._guard)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = GuardedListener(self._runner.server, self._tls, self._guard.refuse)
        try:
            self.port = await self._listener.open(self._host, self.port, self._flag)
        except HostError:
            await self.close()
            raise

    def sweep(self) -> None:
        """Close connections that are idle, or whose request never ends."""
        if self._listener is not None:
            self._listener.sweep()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that accept connections; one that ends has failed."""
        return [] if self._listener is None else self._listener.tasks

    @property
    def connections(self) -> int:
        """How many are open."""
        if self._runner is None or self._runner.server is None:
            return 0
        return len(self._runner.server.connections)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        address = shown(request.remote or "?")
        client = None
        if self._listener is not None:
            client = self._listener.clients.get(request.protocol)
        if client is None:
            # Evicted meanwhile.
            return web.Response(status=503)
        client.request_started()
        is_logged = True
        try:
            client.authenticated |= await self._doorkeeper.admit(request, address)
            async with asyncio.timeout(self._doorkeeper.longest_s(request)):
                return await handler(request)
        except TimeoutError:
            status = 408
            why = "it took too long"
        except RefusedError as refused:
            status = refused.status
            why = refused.why
            is_logged = refused.is_logged
        except web.HTTPRequestEntityTooLarge as refused:
            status = refused.status
            why = f"the body of the request is longer than {self._longest_body:,} bytes"
        except web.HTTPException as refused:
            status = refused.status
            why = f"{shown(request.method)} {shown(request.path)}: {refused.reason}"
        except AsyncliError as error:
            status = _CONFLICT
            why = printable(str(error))
            is_logged = False
        finally:
            client.request_ended()
        if is_logged:
            self._guard.refuse(address, why)
        return self._doorkeeper.refusal(status, why)


def get(path: str, handler: Handler) -> web.RouteDef:
    """A route of GET alone."""
    return web.get(path, handler, allow_head=False)
