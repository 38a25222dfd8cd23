"""The agent's server: the ordinary collector on its own clock, served over HTTP.

:meth:`Agent._guard` checks each request's rate, token and protocol, in bounded time and size, and logs refusals. A client cannot
change what is sampled; it may ask for a sample at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from asyncli import __version__
from asyncli.agent.buffer import SampleBuffer
from asyncli.agent.exposition import CONTENT_TYPE, exposition
from asyncli.agent.lease import Lease, Rates, Refusals, same
from asyncli.agent.listener import IDLE_S, Door, shown
from asyncli.agent.wire import LEASE_HEADER, PROTOCOL, PROTOCOL_HEADER, Batch, Granted, Hello, Instants, Refusal, Wish
from asyncli.collect.collector import Collector
from asyncli.collect.locate import ServerFacts
from asyncli.collect.sampler import Watching
from asyncli.environment import boot_id, network, read_host
from asyncli.errors import HostError
from asyncli.plan import Plan
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.limits import Limits, read_limits
from asyncli.records import Sample

# The longest body is a lease's.
_LONGEST_BODY = 1024
# The longest answer is a sample of everything: twice the collector's border wait.
_ANSWER_S = 10.0
# A wrong token waits for its answer.
_WRONG_S = 1.0
# nginx's configuration is parsed at most this often.
_FACTS_FOR_S = 5.0
# Younger values are current.
_PRESENT_S = 3.0
_LONGEST_DIGITS = 15
# Requests of one address: a session asks once a second, and catches up ten answers after ten minutes.
_PER_S, _BURST = 10.0, 40.0
# Samples of everything, which ignore the budget: a soak has six borders of phases.
_DEAR_PER_S, _DEAR_BURST = 0.5, 12.0

_encode = msgspec.json.Encoder().encode
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Agent:
    """Samples the server that ``plan`` names and serves the samples at ``host``:``port``.

    ``token``: required of all clients. ``say`` gets a line for each refusal. Use: ``open``, then ``run`` until cancelled, then
    ``close``.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        token: str | None,
        tls: ssl.SSLContext | None,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._host, self._token, self._tls, self._say = plan, host, token, tls, say
        #: The port it listens on.
        self.port = port
        self._instance, self._started_s = secrets.token_hex(8), time.monotonic()
        self._buffer, self._lease = SampleBuffer(), Lease(lambda: secrets.token_urlsafe(18))
        self._rates, self._dear = Rates(_PER_S, _BURST), Rates(_DEAR_PER_S, _DEAR_BURST)
        self._refusals = Refusals()
        watching = Watching(on_sample=self._sampled, on_finding=lambda one: self._buffer.finding(time.monotonic(), one))
        self._collector = Collector(plan, watching, local=True)
        self._facts: tuple[float, Limits, Configured] | None = None
        self._reading = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._taken = asyncio.Event()

    @property
    def server(self) -> ServerFacts:
        return self._collector.server

    @property
    def unknown(self) -> list[str]:
        """What cannot be read, with the remedy."""
        return [f"{one.evidence}; {one.remedy}" if one.remedy else one.evidence for one in self._buffer.standing]

    async def open(self) -> None:
        """Find the server, take a first sample and listen.

        Raises :class:`~asyncli.errors.AsyncliError` where the server is not there, or the address cannot be had.
        """
        await self._collector.open()
        await self._collector.sample_now()

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard], client_max_size=_LONGEST_BODY)
        app.on_response_prepare.append(_nameless)
        app.add_routes([
            web.get("/v1/hello", self._hello, allow_head=False),
            web.post("/v1/lease", self._take),
            web.delete("/v1/lease", self._leave),
            web.get("/v1/samples", self._samples, allow_head=False),
            web.post("/v1/sample", self._sample),
            web.get("/metrics", self._metrics, allow_head=False),
        ])  # fmt: skip
        # aiohttp logs a request that is no HTTP: it counts as a refusal.
        log = logging.Logger("asyncli.agent")
        log.addHandler(_OnWarning(lambda: self._refuse("a client", "what it sent is no request")))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=log,
            handle_signals=False,
            keepalive_timeout=IDLE_S,
            lingering_time=1.0,
            shutdown_timeout=0.5,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._door = Door(self._runner.server, self._tls, self._refuse)
        try:
            self.port = await self._door.open(self._host, self.port)
        except OSError as error:
            await self._runner.cleanup()
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HostError(
                f"--listen: {self._host}:{self.port} cannot be had ({reason}); see who listens there, or name another address"
            ) from None

    async def run(self) -> None:
        assert self._door is not None
        sampling = asyncio.create_task(self._collector.run())
        tasks = {sampling, *self._door.tasks}
        try:
            while not (over := [one for one in tasks if one.done()]):
                await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                self._door.sweep()
            over[0].result()
        finally:
            sampling.cancel()
            await asyncio.wait({sampling})

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._collector.close()

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        address = shown(request.remote or "?")
        guest = self._door.guests.get(request.protocol) if self._door is not None else None
        if guest is None:
            # Evicted meanwhile.
            return web.Response(status=503)
        guest.heard()
        try:
            self._count(request, address)
            if not self._may(request):
                await asyncio.sleep(_WRONG_S)
                raise _RefusedError(401, "its token is wrong" if "Authorization" in request.headers else "it has no token")
            guest.known = True
            if request.path != "/metrics" and (spoken := request.headers.get(PROTOCOL_HEADER)) != str(PROTOCOL):
                other = "no protocol of ours" if spoken is None else f"protocol {shown(spoken)}"
                raise _RefusedError(426, f"it speaks {other}, and this agent, asyncli {__version__}, speaks protocol {PROTOCOL}")
            async with asyncio.timeout(_ANSWER_S):
                return await handler(request)
        except TimeoutError:
            status, why = 408, "it took too long"
        except _RefusedError as refused:
            status, why = refused.status, refused.why
        except web.HTTPException as refused:
            status, why = refused.status, f"{shown(request.method)} {shown(request.path)}: {refused.reason}"
        finally:
            guest.answered()
        self._refuse(address, why)
        return _answer(Refusal(why), status, {"WWW-Authenticate": "Bearer"} if status == 401 else None)

    def _count(self, request: web.Request, address: str) -> None:
        """Limit the rate, apart for clients without a token, which may share an address (a tunnel)."""
        may, held = self._may(request), self._lease.known(request.headers.get(LEASE_HEADER, ""))
        whose = "holder" if may and held else "known" if may else "stranger"
        if not self._rates.allow(f"{address} {whose}", time.monotonic()):
            raise _RefusedError(429, "asks too often")

    def _may(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return same(given.strip(), self._token) and scheme.lower() == "bearer"

    def _refuse(self, address: str, why: str) -> None:
        line = self._refusals.line(address, why, time.monotonic())
        if line is not None:
            self._say(line)

    # Answers.

    async def _hello(self, request: web.Request) -> web.Response:
        heard_s = time.monotonic()
        limits, configured = await self._read_facts()
        return _answer(
            Hello(
                protocol=PROTOCOL,
                asyncli=__version__,
                instance=self._instance,
                started_s=self._started_s,
                clock=Instants(heard_s, time.monotonic()),
                host=str(self._environment["host"]),
                boot_id=boot_id(),
                network=network(),
                server=self.server,
                limits=limits,
                configured=configured,
                status_url=self._plan.status_url,
                environment=self._environment,
                newest=self._buffer.newest,
                latest=self._buffer.latest(time.monotonic(), _PRESENT_S),
                standing=self._buffer.standing,
            )
        )

    async def _read_facts(self) -> tuple[Limits, Configured]:
        """Limits and configuration, cached for some seconds, as they take a process."""
        async with self._reading:
            if self._facts is None or time.monotonic() - self._facts[0] > _FACTS_FOR_S:
                await self._collector.describe_anew()
                server = self.server
                limits = await asyncio.to_thread(read_limits)
                configured = await asyncio.to_thread(read_configured, server.pid, server.exe, server.config_path)
                self._environment: dict[str, Any] = await asyncio.to_thread(read_host, limits)
                self._facts = time.monotonic(), limits, configured
            return self._facts[1:]

    async def _take(self, request: web.Request) -> web.Response:
        try:
            wish = msgspec.json.decode(await request.read(), type=Wish)
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(reason=shown(str(error))) from None
        now_s = time.monotonic()
        address = shown(request.remote or "?")
        token = self._lease.take(f"{shown(wish.holder)}, from {address} since {time.strftime('%H:%M:%S')}", now_s)
        if token is None:
            raise _RefusedError(409, f"it is held by {self._lease.holder}")
        self._collector.begin()
        return _answer(Granted(token, self._buffer.newest))

    async def _leave(self, request: web.Request) -> web.Response:
        self._lease.leave(request.headers.get(LEASE_HEADER, ""))
        return web.Response(status=204)

    async def _samples(self, request: web.Request) -> web.Response:
        heard_s = time.monotonic()
        self._renew(request)
        return self._batch(heard_s, _number(request))

    async def _sample(self, request: web.Request) -> web.Response:
        heard_s = time.monotonic()
        self._renew(request)
        after = _number(request)
        if self._dear.allow("", heard_s):
            await self._collector.sample_now()
        else:
            # Wait for the next regular sample: a series of short soaks has many borders.
            await self._taken.wait()
        return self._batch(heard_s, after)

    def _sampled(self, sample: Sample) -> None:
        self._buffer.sample(sample)
        self._taken.set()
        self._taken.clear()

    def _renew(self, request: web.Request) -> None:
        now_s = time.monotonic()
        if not self._lease.renew(request.headers.get(LEASE_HEADER, ""), now_s):
            held = f"it is held by {self._lease.holder}" if self._lease.held(now_s) else "you do not hold it any more"
            raise _RefusedError(409, held)

    def _batch(self, heard_s: float, after: int) -> web.Response:
        rows, said = self._buffer.after(after)
        clock = Instants(heard_s, time.monotonic())
        return _answer(Batch(self._instance, clock, self._buffer.first, self._buffer.newest, rows, said))

    async def _metrics(self, request: web.Request) -> web.Response:
        text = exposition(self._buffer.latest(time.monotonic()), __version__)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


class _RefusedError(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class _OnWarning(logging.Handler):
    def __init__(self, refuse: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._refuse = refuse

    def emit(self, record: logging.LogRecord) -> None:
        self._refuse()


async def _nameless(_: web.Request, response: web.StreamResponse) -> None:
    """Do not reveal the versions of Python and aiohttp."""
    response.headers["Server"] = "asyncli"


def _answer(what: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(what), status=status, content_type="application/json", headers=headers)


def _number(request: web.Request) -> int:
    text = request.query.get("after", "")
    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_DIGITS:
        raise web.HTTPBadRequest(reason="after= is no number")
    return int(text)
