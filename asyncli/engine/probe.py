"""A test connection before a run: the TLS handshake, its parameters and CPU time, then the
protocol's handshake.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from asyncli.engine.probe_exchange import ProbeExchange
from asyncli.engine.probe_failures import why_failed, why_untrusted
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread, show
from asyncli.engine.tls_facts import TlsFacts, shake_hands
from asyncli.findings.probes import probe_answered, probe_refused
from asyncli.findings.server import address_dropped
from asyncli.model.certificates import client_context
from asyncli.model.errors import HostError
from asyncli.model.masks import masked_url
from asyncli.model.plan import Plan, plan_document
from asyncli.model.private_values import secret_texts
from asyncli.model.quotation import Quotation
from asyncli.model.records import Finding
from asyncli.model.template import Data
from asyncli.model.values import Target
from asyncli.protocols.proxy_header import ProxyHeader

# The first handshake of a process loads libraries, and other programs only slow a handshake down:
# the fastest of several counts.
_TIMES = 10


class Probed(NamedTuple):
    """TLS parameters of the first URL's server, and by URL the completed steps with their seconds;
    no steps: not reached. ``findings``: error answers, unreachable addresses of names that have a
    reachable one, and with --force what failed.
    """

    tls: TlsFacts | None
    steps: dict[str, list[tuple[str, float]]]
    findings: list[Finding]


class _UntrustedError(HostError):
    """The server's certificate was refused. ``facts``: what an unverified handshake negotiates."""

    def __init__(self, why: str, facts: TlsFacts | None) -> None:
        super().__init__(why)
        self.facts = facts


def probe(plan: Plan, spread: Spread, data: Data | None = None, *, beats: bool = False) -> Probed:
    """Do the TLS and protocol handshakes with each URL's first address; with ``beats``, with the
    first reachable one, and send a heartbeat too. Blocking: call it in a thread.

    Without TLS, protocol handshake and ``beats`` it does not connect. Unreachable servers are no
    error here: the ramp reports them. Raises :class:`~asyncli.model.errors.HostError` for what
    fails, in one line. With ``plan.force`` that is a finding, and without ``beats`` only the TLS
    handshake is done.
    """
    shard = build_shard(plan, spread, data)
    protocol = shard.new_protocol(int)
    # Each handshake and heartbeat is that of the first connection.
    quotation = Quotation((*secret_texts(plan_document(plan)), *shard.fields(int).of_data(0)))
    shakes_hands = protocol.handshake is not None and not plan.force
    if plan.tls is None and not beats and not shakes_hands:
        return Probed(None, {}, [])
    context = None
    if plan.tls is not None:
        context = client_context(plan.tls, plan.offered_alpn)
    tls: TlsFacts | None = None
    steps = {}
    findings = []
    for number, target in enumerate(plan.targets):
        address, unreachable = _choose_address(plan, spread, number, beats=beats)
        if address is None:
            continue
        exchange = ProbeExchange(plan, target, number, protocol, beats, quotation)
        try:
            # Only the first server's facts are reported, so no other handshake is repeated.
            facts = _probe_address(exchange, address, context, _TIMES if tls is None else 1)
        except HostError as error:
            if not plan.force:
                raise
            facts = _facts_of(error)
            findings.append(probe_refused(str(error)))
        tls = tls or facts
        steps[target.url] = exchange.steps
        findings += _findings_after(exchange, unreachable)
    return Probed(tls, steps, findings)


def _findings_after(
    exchange: ProbeExchange, unreachable: Sequence[Destination]
) -> Iterator[Finding]:
    """Findings of a target: addresses that cannot be reached though another is, an error answer."""
    if exchange.steps:
        for address in unreachable:
            yield address_dropped(show(address))
    if exchange.is_error_answer:
        over_tls = exchange.plan.tls is not None
        yield probe_answered(masked_url(exchange.target.url), exchange.status, over_tls)


def _facts_of(error: HostError) -> TlsFacts | None:
    """What the server negotiates whose test connection failed; None: unknown."""
    if isinstance(error, _UntrustedError):
        return error.facts
    return None


def _choose_address(
    plan: Plan, spread: Spread, number: int, *, beats: bool
) -> tuple[Destination | None, list[Destination]]:
    """Which address of the target ``number`` to probe, and those that cannot be reached. Where
    none can, the first; None: it has no address here.
    """
    addresses = [address for address in spread.destinations if address.target == number]
    if not addresses:
        return None, []
    if not beats or len(addresses) == 1:
        return addresses[0], []
    unreachable = [address for address in addresses if not _is_reachable(plan, address)]
    for address in addresses:
        if address not in unreachable:
            return address, unreachable
    return addresses[0], unreachable


def _probe_address(
    exchange: ProbeExchange, address: Destination, context: ssl.SSLContext | None, times: int
) -> TlsFacts | None:
    """The facts of the fastest of as many TLS handshakes; the first connection runs the exchange
    too. None: without TLS, which needs one connection, or not reached. Raises :class:`HostError`.
    """
    fastest: TlsFacts | None = None
    for _ in range(times):
        began_s = time.monotonic()
        try:
            sock = _connect(exchange.plan, address)
        except OSError:
            return fastest
        with sock:
            run = None
            if not exchange.steps:
                exchange.steps.append(("connected", time.monotonic() - began_s))
                run = exchange.run
            if context is None:
                exchange.run(sock, b"")
                return None
            facts = _negotiate(sock, context, exchange.plan, exchange.target, address, run)
        if fastest is None or facts.cpu_s < fastest.cpu_s:
            fastest = facts
    return fastest


def _negotiate(
    sock: socket.socket,
    context: ssl.SSLContext,
    plan: Plan,
    target: Target,
    address: Destination,
    run: Callable[[socket.socket, bytes], None] | None,
) -> TlsFacts:
    """Do a TLS handshake, then call ``run``. Raises :class:`HostError`, with the remedy."""
    try:
        return shake_hands(sock, context, target.name, run)
    except ssl.SSLCertVerificationError as error:
        facts = _unverified(plan, target, address)
        certificate = None if facts is None else facts.certificate
        why = why_untrusted(error, target.name, certificate, plan.ca)
        raise _UntrustedError(f"{masked_url(target.url)}: {why}", facts) from None
    except OSError as error:
        why = why_failed(error, plan, target)
        raise HostError(f"{masked_url(target.url)}: {why}") from None


def _unverified(plan: Plan, target: Target, address: Destination) -> TlsFacts | None:
    """What an unverified handshake negotiates."""
    options = msgspec.structs.replace(plan.tls_options, ca=None, insecure=True)
    try:
        with _connect(plan, address) as sock:
            context = client_context(options, plan.offered_alpn)
            return shake_hands(sock, context, target.name)
    except (OSError, HostError):
        return None


def _connect(plan: Plan, address: Destination) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(plan.connect_timeout_s)
        sock.connect(address.sockaddr)
        if plan.proxy_protocol is not None:
            sock.sendall(ProxyHeader(plan.proxy_protocol, address.address, address.port).of(0))
    except OSError:
        sock.close()
        raise
    return sock


def _is_reachable(plan: Plan, address: Destination) -> bool:
    with contextlib.suppress(OSError), _connect(plan, address):
        return True
    return False
