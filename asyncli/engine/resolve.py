"""Where the plan's names and sources stand in this network: resolved once, before the first connect.

Nothing is sent to the target here: names go to the resolver, sources are tried with bind() alone.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from asyncli.engine.spread import (
    Destination,
    Spread,
    loopback_sources,
    sources_wanted,
    workers_needed,
)
from asyncli.errors import HostError, PlanError
from asyncli.plan import Plan

# With one source a pair may use half its ports before connect() slows down noticeably; a second source costs a bind() a
# connection, so it is taken only past this.
_ONE_SOURCE_SHARE = 0.5


def lay_out(plan: Plan, *, ports: int, nofile: int, cpus: int) -> Spread:
    """Resolve the plan's URLs and spread its connections. Blocking (DNS): call it in a thread.

    ``ports``: usable local ports; ``nofile``: descriptors a process of ours may have. Raises :class:`PlanError` for a name
    that does not resolve and :class:`HostError` for a source that is not this host's.
    """
    destinations = tuple(
        Destination(family, address, target.port, number)
        for number, target in enumerate(plan.targets)
        for family, address in _addresses(target.host, target.port)
    )
    own = _own_addresses()
    local = all(_is_loopback(one.address) or one.address in own for one in destinations)
    for source in plan.sources:
        _check_source(source)
    return Spread(
        destinations=destinations,
        sources=plan.sources or _choose_sources(plan.connections, destinations, ports, own),
        workers=plan.workers or workers_needed(plan.connections, nofile, cpus),
        local=local,
        ports=ports,
    )


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PlanError(f"host {host!r} cannot be resolved ({_words(error)}); check the name, or write its address") from None
    addresses = dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found if family in _FAMILIES)
    if not addresses:
        raise PlanError(f"host {host!r} has neither an IPv4 nor an IPv6 address; write its address")
    return list(addresses)


_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _own_addresses() -> set[str]:
    return {entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in _FAMILIES}


def _check_source(source: str) -> None:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((source, 0))
    except OSError as error:
        raise HostError(
            f"source {source} is not an address of this host ({_words(error)}); `ip address` lists those that are"
        ) from None


def _choose_sources(connections: int, destinations: tuple[Destination, ...], ports: int, own: set[str]) -> tuple[str, ...]:
    chosen: list[str] = []
    for family in _FAMILIES:
        there = [one for one in destinations if one.family == family]
        if not there:
            continue
        share = -(-connections * len(there) // len(destinations))
        if all(_is_loopback(one.address) for one in there):
            if family == socket.AF_INET:
                chosen += loopback_sources(sources_wanted(share, len(there), ports))
        elif share > len(there) * ports * _ONE_SOURCE_SHARE:
            chosen += _neighbours(there[0], own)
    return tuple(chosen)


def _neighbours(destination: Destination, own: set[str]) -> list[str]:
    """The addresses of the interface that the route to ``destination`` leaves by; [] when it has only one."""
    with socket.socket(destination.family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((destination.address, destination.port))  # a datagram socket: chooses a route, sends nothing
        except OSError:
            return []
        routed = sock.getsockname()[0]
    for entries in psutil.net_if_addrs().values():
        addresses = [entry.address for entry in entries if entry.family == destination.family]
        if routed in addresses:
            usable = [address for address in addresses if address in own and not address.lower().startswith("fe80")]
            return usable if len(usable) > 1 else []
    return []
