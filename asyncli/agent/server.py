"""The agent's server: a collector on the agent's clock, served over HTTP.

:meth:`Agent.admit` checks each request's rate, token and protocol, in bounded time and size, and
logs refusals. A client cannot change what is sampled; it may request an immediate sample, and a
collection of the server's heap if whoever started the agent allows that.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from asyncli import __version__
from asyncli.agent.buffer import SampleBuffer
from asyncli.agent.exposition import exposition
from asyncli.agent.lease import Lease
from asyncli.agent.wire import (
    LEASE_HEADER,
    NO_COLLECTIONS,
    PROTOCOL,
    PROTOCOL_HEADER,
    Batch,
    Collected,
    Hello,
    Instants,
    LeaseGrant,
    LeaseRequest,
    Refusal,
)
from asyncli.collect.collector import Collector
from asyncli.collect.forced_collection import (
    LONGEST_S,
    Collect,
    by_runtime,
    collection,
    require_small_heap,
)
from asyncli.collect.locate import ServerFacts
from asyncli.collect.sampler import SamplerOptions
from asyncli.environment import boot_id, network, read_host
from asyncli.model.errors import CannotCollectError, PeerError
from asyncli.model.masks import masked_page
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.host_limits import Limits, read_limits
from asyncli.web.guard import Guard, Rates, RefusedError
from asyncli.web.guarded_server import GuardedServer, get
from asyncli.web.listener import shown

# The longest body is a lease request.
_LONGEST_BODY = 1024
# The longest answer takes twice the collector's border wait: a sample of everything.
_ANSWER_S = 10.0
# A collection may take so long, and the server's processes are read before it.
_COLLECTION_S = LONGEST_S + 5.0
# nginx's configuration is parsed at most this often.
_FACTS_FOR_S = 5.0
# Values younger than this are current.
_PRESENT_S = 3.0
_LONGEST_DIGITS = 15
# Requests of one address: a session asks once a second, and ten times in a row after a cut of ten
# minutes.
_PER_S = 10.0
_BURST = 40.0
# Immediate samples, which ignore the budget: a soak has six phase borders.
_IMMEDIATE_PER_S = 0.5
_IMMEDIATE_BURST = 12.0
# Collections, each of which stops the server: a soak has two before its first connect, three in
# each plateau's rest, and ten at its end.
_COLLECTIONS_PER_S = 0.5
_COLLECTIONS_BURST = 20.0

_encode = msgspec.json.Encoder().encode


class Agent:
    """Samples the server that ``plan`` names and serves the samples at ``host``:``port``.

    ``token``: required of all clients. ``collects``: it asks the server's runtime for collections
    if a session requests them. ``log`` gets a line for each refusal. Use: ``open``, then ``run``
    until cancelled, then ``close``.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        token: str | None,
        tls: ssl.SSLContext | None,
        log: Callable[[str], None],
        collects: bool = False,
    ) -> None:
        self._plan = plan
        self._host = host
        self._tls = tls
        self._collects = collects
        #: The port it listens on.
        self.port = port
        self._instance = secrets.token_hex(8)
        self._started_s = time.monotonic()
        self._buffer = SampleBuffer()
        self._lease = Lease(lambda: f"{self._instance}.{secrets.token_urlsafe(18)}")
        self._began = time.strftime("%H:%M:%S")
        self._guarded = Guard(token, host, log, per_s=_PER_S, burst=_BURST)
        self._immediate_rate = Rates(_IMMEDIATE_PER_S, _IMMEDIATE_BURST)
        self._collection_rate = Rates(_COLLECTIONS_PER_S, _COLLECTIONS_BURST)
        options = SamplerOptions(on_sample=self._sampled, on_finding=self._found)
        self._collector = Collector(plan, options, local=True, knows_targets=False)
        self._facts: tuple[float, Limits, Configured] | None = None
        self._reading = asyncio.Lock()
        self._collecting = asyncio.Lock()
        self._server: GuardedServer | None = None
        self._next_sample = asyncio.Event()

    @property
    def server(self) -> ServerFacts:
        return self._collector.server

    @property
    def unknown(self) -> list[str]:
        """What cannot be read, with the remedies."""
        unknown = []
        for finding in self._buffer.lasting:
            if finding.remedy:
                unknown.append(f"{finding.evidence}; {finding.remedy}")
            else:
                unknown.append(finding.evidence)
        return unknown

    async def open(self) -> None:
        """Find the server, take a first sample and listen.

        Raises :class:`~asyncli.model.errors.AsyncliError` if there is no server, or it cannot
        listen at the address.
        """
        await self._collector.open()
        await self._collector.sample_now()

        self._server = GuardedServer(
            [
                get("/v1/hello", self._hello),
                web.post("/v1/lease", self._take_lease),
                web.delete("/v1/lease", self._release_lease),
                get("/v1/samples", self._samples),
                web.post("/v1/sample", self._sample),
                web.post("/v1/collection", self._collection),
                get("/metrics", self._metrics),
            ],
            self,
            self._guarded,
            host=self._host,
            port=self.port,
            flag="--listen",
            tls=self._tls,
            longest_body=_LONGEST_BODY,
        )
        await self._server.open()
        self.port = self._server.port

    async def run(self) -> None:
        assert self._server is not None
        sampling = asyncio.create_task(self._collector.run())
        tasks = {sampling, *self._server.tasks}
        try:
            done: set[asyncio.Task[Any]] = set()
            while not done:
                done, _ = await asyncio.wait(
                    tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                self._server.sweep()
            done.pop().result()
        finally:
            sampling.cancel()
            await asyncio.wait({sampling})

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._collector.close()

    async def admit(self, request: web.Request, address: str) -> bool:
        """Check a request's rate, Host, token and protocol."""
        self._guarded.check_rate(f"{address} {self._kind_of(request)}")
        self._guarded.check_host(request)
        await self._guarded.check_token(request)
        _check_protocol(request)
        return True

    def longest_s(self, request: web.Request) -> float:
        """How long the answer to a request may take."""
        return _COLLECTION_S if request.path == "/v1/collection" else _ANSWER_S

    def refusal(self, status: int, why: str) -> web.Response:
        """The answer to a request that is refused."""
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return _answer(Refusal(why), status, headers)

    def _kind_of(self, request: web.Request) -> str:
        if not self._guarded.is_authorized(request):
            return "stranger"
        if self._lease.matches(request.headers.get(LEASE_HEADER, "")):
            return "holder"
        return "authenticated"

    # Answers.

    async def _hello(self, request: web.Request) -> web.Response:
        received_s = time.monotonic()
        limits, configured = await self._read_facts()
        return _answer(
            Hello(
                protocol=PROTOCOL,
                asyncli=__version__,
                instance=self._instance,
                started_s=self._started_s,
                clock=Instants(received_s, time.monotonic()),
                host=str(self._environment["host"]),
                boot_id=boot_id(),
                network=network(),
                server=self.server,
                limits=limits,
                configured=configured,
                status_url=self._plan.status_url and masked_page(self._plan.status_url),
                environment=self._environment,
                newest=self._buffer.newest,
                latest=self._buffer.latest(time.monotonic(), _PRESENT_S),
                lasting=self._buffer.lasting,
                collects=self._collects,
            )
        )

    async def _read_facts(self) -> tuple[Limits, Configured]:
        """Limits and configuration, cached for some seconds: reading them may run a program."""
        async with self._reading:
            if self._facts is None or time.monotonic() - self._facts[0] > _FACTS_FOR_S:
                await self._collector.refresh_server()
                server = self.server
                limits = await asyncio.to_thread(read_limits)
                configured = await asyncio.to_thread(
                    read_configured, server.pid, server.exe, server.config_path, pids=server.pids
                )
                configured = msgspec.structs.replace(
                    configured,
                    frontends=self._collector.frontends,
                    backends=self._collector.backends,
                    all_frontends=self._collector.all_frontends,
                )
                self._environment: dict[str, Any] = await asyncio.to_thread(read_host, limits)
                self._facts = time.monotonic(), limits, configured
            return self._facts[1:]

    async def _take_lease(self, request: web.Request) -> web.Response:
        try:
            asked = msgspec.json.decode(await request.read(), type=LeaseRequest)
        except (ValueError, RecursionError) as error:
            raise web.HTTPBadRequest(reason=shown(str(error))) from None
        now_s = time.monotonic()
        address = shown(request.remote or "?")
        since = time.strftime("%H:%M:%S")
        token = self._lease.take(f"{shown(asked.holder)}, from {address} since {since}", now_s)
        if token is None:
            raise RefusedError(409, f"it is held by {self._lease.holder}")
        self._collector.begin()
        return _answer(LeaseGrant(token, self._buffer.newest))

    async def _release_lease(self, request: web.Request) -> web.Response:
        self._lease.release(request.headers.get(LEASE_HEADER, ""))
        return web.Response(status=204)

    async def _samples(self, request: web.Request) -> web.Response:
        received_s = time.monotonic()
        self._renew(request)
        return self._batch(received_s, _after(request))

    async def _sample(self, request: web.Request) -> web.Response:
        received_s = time.monotonic()
        self._renew(request)
        after = _after(request)
        if self._immediate_rate.allow("", received_s):
            await self._collector.sample_now()
        else:
            # Wait for the next regular sample: a series of short soaks has many borders.
            await self._next_sample.wait()
        return self._batch(received_s, after)

    async def _collection(self, request: web.Request) -> web.Response:
        """Ask the server's runtime for a collection, as the runtime alone decides: nothing of the
        request is used.
        """
        self._renew(request)
        if not self._collects:
            raise RefusedError(403, NO_COLLECTIONS)
        if not self._collection_rate.allow("", time.monotonic()):
            raise RefusedError(429, "asks for too many collections")
        # One at a time: a session that lost its connection may ask again meanwhile.
        async with self._collecting:
            try:
                done = await collection(await self._how_to_collect())
            except CannotCollectError as error:
                return _answer(Collected(None, error.why, remedy=error.remedy))
            except PeerError as error:
                return _answer(Collected(None, str(error)))
        if done.alive is None:
            return _answer(Collected(None))
        alive = done.alive
        return _answer(Collected(alive.heap_bytes, outside_bytes=alive.outside_bytes))

    async def _how_to_collect(self) -> Collect:
        """How to ask the server's process as it is now. Raises :class:`PeerError`."""
        await self._collector.refresh_server()
        server = self.server
        if server.pid is None:
            raise CannotCollectError(
                "--collect auto: the server's process is unknown",
                "name it to the agent with --server-pid",
            )
        require_small_heap(self._buffer.latest(time.monotonic()))
        return by_runtime(server.runtime.kind, server.pid)

    def _found(self, finding: Finding) -> None:
        self._buffer.finding(time.monotonic(), finding)

    def _sampled(self, sample: Sample) -> None:
        self._buffer.sample(sample)
        self._next_sample.set()
        self._next_sample.clear()

    def _renew(self, request: web.Request) -> None:
        now_s = time.monotonic()
        token = request.headers.get(LEASE_HEADER, "")
        if self._lease.renew(token, now_s):
            return
        if self._lease.held(now_s):
            raise RefusedError(409, f"it is held by {self._lease.holder}")
        if token.startswith(f"{self._instance}."):
            raise RefusedError(409, "your lease has expired")
        raise RefusedError(409, f"you have no lease of this agent, which started at {self._began}")

    def _batch(self, received_s: float, after: int) -> web.Response:
        rows, findings = self._buffer.after(after)
        clock = Instants(received_s, time.monotonic())
        first = self._buffer.first
        return _answer(Batch(self._instance, clock, first, self._buffer.newest, rows, findings))

    async def _metrics(self, request: web.Request) -> web.Response:
        values = self._buffer.latest(time.monotonic())
        body, content_type = exposition(values, __version__, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _check_protocol(request: web.Request) -> None:
    """Refuse a client of another version. Prometheus names none."""
    if request.path == "/metrics":
        return
    spoken = request.headers.get(PROTOCOL_HEADER)
    if spoken == str(PROTOCOL):
        return
    this_agent = f"this agent, asyncli {__version__}, speaks protocol {PROTOCOL}"
    if spoken is None:
        raise RefusedError(426, f"it names no protocol, and {this_agent}")
    raise RefusedError(426, f"it speaks protocol {shown(spoken)}, and {this_agent}")


def _answer(
    content: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=_encode(content), status=status, content_type="application/json", headers=headers
    )


def _after(request: web.Request) -> int:
    text = request.query.get("after", "")
    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_DIGITS:
        raise web.HTTPBadRequest(reason="after= is no number")
    return int(text)
