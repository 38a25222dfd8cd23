"""The agent's server: the ordinary collector on its own clock, and what it read to whoever may have it.

Whoever asks passes :meth:`Agent._guard` first: its rate, then its token, then what it asks for, in bounded time and size. What is
refused is counted in the log. Nothing that a client sends changes what is sampled, but that it may ask for a sample at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from asyncli import __version__
from asyncli.agent.exposition import CONTENT_TYPE, exposition
from asyncli.agent.keeping import Lease, Rates, Refusals, Ring, same
from asyncli.agent.wire import (
    LEASE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    Batch,
    Clock,
    Granted,
    Hello,
    Refusal,
    Wish,
)  # fmt: skip
from asyncli.collect.collector import Collector
from asyncli.collect.locate import ServerFacts
from asyncli.environment import boot_id, network, read_host
from asyncli.errors import HostError
from asyncli.plan import Plan
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.limits import Limits, read_limits
from asyncli.records import Sample
from asyncli.text import printable

# A question of ours is a line; the longest body is a lease's.
_LONGEST_BODY = 1024
# What may come on a connection for each request that is heard there, its head included (Prometheus and curl send some hundred
# bytes). Of what never comes to be a request, as of what follows one that was refused, some versions of aiohttp keep all.
_LONGEST_REQUEST = 16 * 1024
# Sessions, a Prometheus and a person with curl are a handful; who comes later waits until one leaves.
_MOST_CONNECTIONS = 64
_HANDSHAKE_S = 5.0
_AGAIN_S = 0.2
# A connection that asks nothing for so long is closed; a session asks once a second.
_IDLE_S = 15.0
# The longest answer is a sample of everything, which takes at most twice the collector's border wait.
_ANSWER_S = 10.0
# A wrong token waits for its answer.
_WRONG_S = 1.0
# What nginx is configured to do is parsed anew no oftener than this.
_FACTS_FOR_S = 5.0
# What was read within so long is the present.
_PRESENT_S = 3.0
_LONGEST_DIGITS = 15
# Many who do not trust a certificate leave without a word, as those do whose time is over.
_LEFT = "it left in the handshake: it gave up waiting, or does not trust the certificate"
# Requests of one address: a session asks once a second, and is behind by ten answers after ten minutes.
_PER_S, _BURST = 10.0, 40.0
# Samples of everything, whatever the budget: a soak has six borders of phases.
_DEAR_PER_S, _DEAR_BURST = 0.5, 12.0

_encode = msgspec.json.Encoder().encode
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Agent:
    """Samples the server that ``plan`` names (its status page, its processes) and serves it at ``host``:``port``.

    ``token``: asked of everybody where given. ``tls``: certificate and key. ``say`` hears a line for each refusal. Use: ``open``,
    then ``run`` until it is cancelled, then ``close``.
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
        #: Where it listens: another one than asked for, where that was 0.
        self.port = port
        self._instance, self._started_s = secrets.token_hex(8), time.monotonic()
        self._ring, self._lease = Ring(), Lease(lambda: secrets.token_urlsafe(18))
        self._rates, self._dear = Rates(_PER_S, _BURST), Rates(_DEAR_PER_S, _DEAR_BURST)
        self._refusals = Refusals()
        self._collector = Collector(
            plan,
            clock=time.monotonic,
            generator_pids=list,
            on_sample=self._sampled,
            on_finding=lambda finding: self._ring.finding(time.monotonic(), finding),
            local=True,
        )
        self._facts: tuple[float, Limits, Configured] | None = None
        self._reading = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._doors: list[asyncio.Task[None]] = []
        self._guests: dict[Any, _Guest] = {}
        self._taken = asyncio.Event()

    @property
    def server(self) -> ServerFacts:
        """The server as found at the start."""
        return self._collector.server

    @property
    def unknown(self) -> list[str]:
        """What cannot be read, in words, with what would mend it."""
        return [f"{one.evidence}; {one.remedy}" if one.remedy else one.evidence for one in self._ring.standing]

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
        # aiohttp's own words for a request that is no HTTP are lines of ours, and count as refusals do.
        log = logging.Logger("asyncli.agent")
        log.addHandler(_Said(lambda: self._refuse("a client", "what it sent is no request")))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=log,
            handle_signals=False,
            keepalive_timeout=_IDLE_S,
            lingering_time=1.0,
            shutdown_timeout=0.5,
        )
        await self._runner.setup()
        try:
            listening = await asyncio.to_thread(_listening, self._host, self.port)
        except OSError as error:
            await self._runner.cleanup()
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HostError(
                f"--listen: {self._host}:{self.port} cannot be had ({reason}); see who listens there, or name another address"
            ) from None
        self.port = listening[0].getsockname()[1]
        self._doors = [asyncio.create_task(self._let_in(one), name="the agent's door") for one in listening]

    async def run(self) -> None:
        """Sample until cancelled."""
        sampling = asyncio.create_task(self._collector.run())
        try:
            while not (over := [one for one in (sampling, *self._doors) if one.done()]):
                await asyncio.wait({sampling, *self._doors}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                self._sweep()
            over[0].result()
        finally:
            sampling.cancel()
            await asyncio.wait({sampling})

    async def close(self) -> None:
        """Let everybody go."""
        for task in (*self._doors, *(guest.coming for guest in self._guests.values())):
            task.cancel()
        if self._doors:
            await asyncio.wait(self._doors)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._collector.close()

    # Connections.

    async def _let_in(self, listening: socket.socket) -> None:
        """Accept until cancelled. Not asyncio's own server: that knows nobody before his TLS handshake is over."""
        assert self._runner is not None
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    sock, address = await loop.sock_accept(listening)
                except OSError:
                    # Gone again; or there are no descriptors, and some seconds later there may be.
                    await asyncio.sleep(_AGAIN_S)
                    continue
                who = _shown(str(address[0]))
                if not self._room_for(who):
                    sock.close()
                    continue
                handler = self._runner.server()
                coming = asyncio.create_task(self._receive(who, handler, sock))
                self._guests[handler] = _Guest(time.monotonic(), coming, _network(str(address[0])))

    def _room_for(self, who: str) -> bool:
        """Whether one more may come in; who has shown no token makes room for who may have one.

        First the oldest stranger of the network with most of them: whoever connects without end pushes out his own, and not one
        from elsewhere whose handshake takes a few round trips.
        """
        self._forget()
        if len(self._guests) < _MOST_CONNECTIONS:
            return True
        self._refuse(who, f"{_MOST_CONNECTIONS} connections are open")
        strangers = [handler for handler, guest in self._guests.items() if not guest.known]
        if not strangers:
            return False
        crowds = Counter(self._guests[one].network for one in strangers)
        self._send_away(min(strangers, key=lambda one: (-crowds[self._guests[one].network], self._guests[one].last_s)))
        return True

    async def _receive(self, who: str, handler: Any, sock: socket.socket) -> None:
        limit_s = None if self._tls is None else _HANDSHAKE_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Bounded(handler, lambda count: self._within(who, handler, count)),
                sock, ssl=self._tls, ssl_handshake_timeout=limit_s,
            )  # fmt: skip
        except OSError as error:
            if self._tls is not None:
                reason = str(getattr(error, "reason", None) or "").lower().replace("_", " ")
                self._refuse(who, f"TLS fails ({reason or _LEFT})")

    def _within(self, who: str, handler: Any, count: int) -> bool:
        """Whether ``count`` bytes more may be heard from a connection; else it is sent away."""
        guest = self._guests.get(handler)
        if guest is None:
            return False
        guest.unheard += count
        if guest.unheard <= _LONGEST_REQUEST:
            return True
        self._refuse(who, f"it sent more than {_LONGEST_REQUEST:,} bytes and no request")
        self._send_away(handler)
        return False

    def _send_away(self, handler: Any) -> None:
        # On its way in, or there.
        self._guests.pop(handler).coming.cancel()
        with contextlib.suppress(AttributeError):
            handler.transport.abort()

    def _forget(self) -> None:
        """Who has gone."""
        server = self._runner.server if self._runner is not None else None
        there = set(server.connections) if server is not None else set()
        self._guests = {one: guest for one, guest in self._guests.items() if one in there or not guest.coming.done()}

    def _sweep(self) -> None:
        """Close what has been silent for long: a request that never ends, a connection that never asks."""
        self._forget()
        now_s = time.monotonic()
        for handler in [one for one, guest in self._guests.items() if not guest.asking and now_s - guest.last_s > _IDLE_S]:
            self._send_away(handler)

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        address = _shown(request.remote or "?")
        guest = self._guests.get(request.protocol)
        if guest is None:
            # Sent away while this was on its way.
            return web.Response(status=503)
        guest.last_s, guest.asking, guest.unheard = time.monotonic(), True, 0
        try:
            may = self._may(request)
            # A stranger of the same address (another program there, a tunnel's other end) uses up nobody's share but his own.
            held = self._lease.known(request.headers.get(LEASE_HEADER, ""))
            whose = (address, "holder" if may and held else "known" if may else "stranger")
            if not self._rates.allow(" ".join(whose), time.monotonic()):
                return self._no(address, 429, "asks too often")
            if not may:
                await asyncio.sleep(_WRONG_S)
                said = "its token is wrong" if "Authorization" in request.headers else "it has no token"
                return self._no(address, 401, said, {"WWW-Authenticate": "Bearer"})
            guest.known = True
            if request.path != "/metrics" and (spoken := request.headers.get(PROTOCOL_HEADER)) != str(PROTOCOL):
                other = "no protocol of ours" if spoken is None else f"protocol {_shown(spoken)}"
                words = f"it speaks {other}, and this agent, asyncli {__version__}, speaks protocol {PROTOCOL}"
                return self._no(address, 426, words)
            async with asyncio.timeout(_ANSWER_S):
                return await handler(request)
        except TimeoutError:
            return self._no(address, 408, "it took too long")
        except web.HTTPException as refused:
            return self._no(address, refused.status, f"{_shown(request.method)} {_shown(request.path)}: {refused.reason}")
        finally:
            guest.last_s, guest.asking = time.monotonic(), False

    def _may(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return same(given.strip(), self._token) and scheme.lower() == "bearer"

    def _no(self, address: str, status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
        self._refuse(address, why)
        return _answer(Refusal(why), status, headers)

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
                clock=Clock(heard_s, time.monotonic()),
                host=str(self._environment["host"]),
                boot_id=boot_id(),
                network=network(),
                server=self.server,
                limits=limits,
                configured=configured,
                status_url=self._plan.status_url,
                environment=self._environment,
                newest=self._ring.newest,
                latest=self._ring.latest(time.monotonic(), _PRESENT_S),
                standing=self._ring.standing,
            )
        )

    async def _read_facts(self) -> tuple[Limits, Configured]:
        """Limits and configuration as they are now, or were some seconds ago: they take a process and tens of milliseconds."""
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
            raise web.HTTPBadRequest(reason=_shown(str(error))) from None
        now_s = time.monotonic()
        address = _shown(request.remote or "?")
        word = self._lease.take(f"{_shown(wish.holder)}, from {address} since {time.strftime('%H:%M:%S')}", now_s)
        if word is None:
            return self._no(address, 409, f"it is held by {self._lease.holder}")
        self._collector.begin()
        return _answer(Granted(word, self._ring.newest))

    async def _leave(self, request: web.Request) -> web.Response:
        self._lease.leave(request.headers.get(LEASE_HEADER, ""))
        return web.Response(status=204)

    async def _samples(self, request: web.Request) -> web.Response:
        heard_s = time.monotonic()
        return self._held_up(request) or self._batch(heard_s, _number(request))

    async def _sample(self, request: web.Request) -> web.Response:
        heard_s = time.monotonic()
        if (no := self._held_up(request)) is not None:
            return no
        after = _number(request)
        if self._dear.allow("", heard_s):
            await self._collector.sample_now()
        else:
            # The next one that comes of itself, in a second at most: a series of short soaks has many borders.
            await self._taken.wait()
        return self._batch(heard_s, after)

    def _sampled(self, sample: Sample) -> None:
        self._ring.sample(sample)
        self._taken.set()
        self._taken.clear()

    def _held_up(self, request: web.Request) -> web.Response | None:
        word = request.headers.get(LEASE_HEADER, "")
        if self._lease.renew(word, time.monotonic()):
            return None
        now = time.monotonic()
        held = f"it is held by {self._lease.holder}" if self._lease.held(now) else "you do not hold it any more"
        return self._no(_shown(request.remote or "?"), 409, held)

    def _batch(self, heard_s: float, after: int) -> web.Response:
        rows, said = self._ring.after(after)
        clock = Clock(heard_s, time.monotonic())
        return _answer(Batch(self._instance, clock, self._ring.first, self._ring.newest, rows, said))

    async def _metrics(self, request: web.Request) -> web.Response:
        text = exposition(self._ring.latest(time.monotonic()), __version__)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


class _Guest:
    """A connection: ``coming`` is its way in, TLS included; ``network``: whence; when it was last heard of, whether it is being
    answered, whether it has shown the token, and how many bytes came since the last request."""

    __slots__ = ("asking", "coming", "known", "last_s", "network", "unheard")

    def __init__(self, now_s: float, coming: asyncio.Task[None], network: str) -> None:
        self.last_s, self.coming, self.network = now_s, coming, network
        self.asking = self.known = False
        self.unheard = 0


class _Bounded(asyncio.Protocol):
    """What ``handler`` would be told by its transport, but for bytes that are not ``within`` bounds."""

    def __init__(self, handler: Any, within: Callable[[int], bool]) -> None:
        self._handler, self._within = handler, within

    def data_received(self, data: bytes) -> None:
        if self._within(len(data)):
            self._handler.data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)

    def eof_received(self) -> bool | None:
        heard: bool | None = self._handler.eof_received()
        return heard

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


class _Said(logging.Handler):
    def __init__(self, refuse: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._refuse = refuse

    def emit(self, record: logging.LogRecord) -> None:
        self._refuse()


def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of ``host``, on one port. Raises :class:`OSError`."""
    found: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            # Of port 0 the kernel chooses one, for all of them.
            at = (address[0], found[0].getsockname()[1], *address[2:]) if found else address
            found.append(socket.create_server(at, family=family, backlog=_MOST_CONNECTIONS))
            found[-1].setblocking(False)
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """What speaks TLS with this certificate. Raises :class:`HostError` in one line where it cannot."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for flag, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            raise HostError(f"{flag} {path}: cannot be read ({error.strerror}); name a file in PEM") from None
    try:
        # No passphrase is asked for: the agent has no terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        what = "hold no certificate with its key, in PEM and without a passphrase"
        named = f"--tls-cert {certificate}" + (f" and --tls-key {key}" if key else "")
        raise HostError(f"{named}: {what} ({str(why).lower().replace('_', ' ')}); name both files") from None
    return context


def doubt(context: ssl.SSLContext, certificate: str) -> str | None:
    """Why even those who trust this very certificate will refuse it, as OpenSSL says it ("certificate has expired")."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trusting.load_verify_locations(certificate)
        ends = trusting.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
        for end in ends * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return None  # of what cannot be tried nothing is said
    return None


async def _nameless(_: web.Request, response: web.StreamResponse) -> None:
    """Which Python and which library answer is nobody's business."""
    response.headers["Server"] = "asyncli"


def _answer(what: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(what), status=status, content_type="application/json", headers=headers)


def _network(address: str) -> str:
    """Whose an address is: of IPv6 a host has a network of 64 bits to itself (RFC 4291, 2.5.1)."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address


def _number(request: web.Request) -> int:
    """The ``after`` of a question."""
    text = request.query.get("after", "")
    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_DIGITS:
        raise web.HTTPBadRequest(reason="after= is no number")
    return int(text)


def _shown(text: str) -> str:
    """Somebody else's words for a log: on one line, and short."""
    return printable(text[:200])
