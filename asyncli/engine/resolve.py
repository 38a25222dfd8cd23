"""Where the plan's names and sources stand in this network: resolved once, before the first connect.

Nothing is sent to the target here: names go to the resolver, sources are tried with bind() alone.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import psutil

from asyncli.engine.spread import (
    Destination,
    Route,
    Spread,
    loopback_sources,
    sources_wanted,
    workers_needed,
)
from asyncli.errors import HostError, PlanError
from asyncli.places import look_up
from asyncli.plan import Plan
from asyncli.values import Target

# With one source a pair may use half its ports before connect() slows down noticeably; a second source costs a bind() a
# connection, so it is taken only past this.
_ONE_SOURCE_SHARE = 0.5


def plan_spread(
    plan: Plan, *, ports: int, nofile: int, cpus: int, listens: Callable[[str, int], bool] = lambda address, port: False
) -> Spread:
    """Resolve the plan's URLs and spread its connections. Blocking (DNS): call it in a thread.

    ``ports``: usable local ports; ``nofile``: descriptors a process of ours may have; ``listens``: whether anything on this host
    listens at that address of loopback and that port. Raises :class:`PlanError` for a name that does not resolve and
    :class:`HostError` for a source that is not this host's.
    """
    destinations = tuple(
        Destination(family, address, target.port, number)
        for number, target in enumerate(plan.targets)
        for family, address in _addresses(target)
    )
    workers = plan.workers or workers_needed(plan.connections, nofile, cpus, plan.batch)
    if not plan.has_ports:
        # Both ends of a Unix socket are on one host.
        return Spread(destinations, sources=(), workers=workers, local=True, ports=0)
    own = _own_addresses()
    # Where the server is neither an address tells that this host has no way to (IPv6 where there is none), nor one beside which
    # its name has one of loopback that is listened at: that nobody may answer at.
    there = [one for one in destinations if _way(one) is not None] or destinations
    here = {one.target for one in there if _is_loopback(one.address) and listens(one.address, one.port)}
    local = all(_is_loopback(one.address) or one.address in own or one.target in here for one in there)
    for source in plan.sources:
        _check_source(source)
    routes = {} if local else _routes(destinations)
    return Spread(
        destinations=destinations,
        sources=plan.sources or _choose_sources(plan.connections, destinations, ports, routes),
        workers=workers,
        local=local,
        ports=ports,
        route=next(iter(routes.values()), None),
    )


def _addresses(target: Target) -> list[tuple[int, str]]:
    """Of a name the addresses that this host has a way to; all, where it has one to none of them, or the plan says them."""
    host, port = target.host, target.port
    if not port:
        _check_socket(host)
    try:
        addresses = look_up(target)
    except (OSError, UnicodeError) as error:
        raise PlanError(f"host {host!r} cannot be resolved ({_words(error)}); check the name, or write its address") from None
    if not addresses:
        raise PlanError(f"host {host!r} has neither an IPv4 nor an IPv6 address; write its address")
    if target.addresses or not port:
        return addresses
    return [one for one in addresses if _way(Destination(one[0], one[1], port)) is not None] or addresses


def _check_socket(path: str) -> None:
    """Raise :class:`HostError` where no connect to this path can do. Where nothing is there the server may be to come."""
    try:
        mode = None if path.startswith("@") else os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(f"unix:{path} cannot be looked at ({_words(error)}); run as a user who may, or name another") from None
    if mode is not None and not stat.S_ISSOCK(mode):
        raise HostError(f"unix:{path} is no socket; name the one that the server listens on")
    if mode is not None and not os.access(path, os.W_OK, effective_ids=True):
        raise HostError(f"unix:{path} may not be written by this user, as a connect must; run as the server's user, or chmod it")


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


def _choose_sources(
    connections: int, destinations: tuple[Destination, ...], ports: int, routes: dict[int, Route]
) -> tuple[str, ...]:
    chosen: list[str] = []
    for family in _FAMILIES:
        there = [one for one in destinations if one.family == family]
        if not there:
            continue
        share = -(-connections * len(there) // len(destinations))
        if all(_is_loopback(one.address) for one in there):
            if family == socket.AF_INET:
                chosen += loopback_sources(sources_wanted(share, len(there), ports))
        elif share > len(there) * ports * _ONE_SOURCE_SHARE and family in routes and len(routes[family].usable) > 1:
            chosen += routes[family].usable
    return tuple(chosen)


def _routes(destinations: tuple[Destination, ...]) -> dict[int, Route]:
    """By family, the way to the first destination that is not on loopback."""
    found: dict[int, Route] = {}
    for one in destinations:
        if one.family not in found and not _is_loopback(one.address) and (route := _route(one)) is not None:
            found[one.family] = route
    return found


def _route(destination: Destination) -> Route | None:
    """The interface by which connections leave, and the addresses there that answers come back to; None where there is none.

    Those of the network of the address that the kernel would choose: to another network of the same interface the server may
    know no way. One that is a network by itself (a /32) stands for all of the interface.
    """
    if (routed := _way(destination)) is None:
        return None
    # An alias ("eth0:1") is an address of its interface with a label.
    addresses: dict[str, dict[str, int]] = {}
    for label, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == destination.family:
                address = entry.address.partition("%")[0]
                addresses.setdefault(label.partition(":")[0], {})[address] = _length(entry.netmask, destination.family)
    for interface, lengths in addresses.items():
        if routed in lengths:
            source = f"{routed}/{lengths[routed]}"
            network = ipaddress.ip_interface(source).network
            unusable = _unusable()
            usable = [
                one
                for one in lengths
                if (network.num_addresses == 1 or ipaddress.ip_address(one) in network)
                and not ipaddress.ip_address(one).is_link_local
                and one not in unusable
            ]
            return Route(interface, source, tuple(dict.fromkeys([routed, *sorted(usable, key=ipaddress.ip_address)])))
    return None


def _way(destination: Destination) -> str | None:
    """The address that the kernel would connect from; None where this host has no way there."""
    try:
        with socket.socket(destination.family, socket.SOCK_DGRAM) as sock:
            sock.connect((destination.address, destination.port))  # a datagram socket: chooses a route, sends nothing
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def _length(netmask: str | None, family: int) -> int:
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return int(ipaddress.ip_address(netmask)).bit_count()


# linux/if_addr.h: DADFAILED, DEPRECATED, TENTATIVE.
_NOT_YET_OR_NO_MORE = 0x08 | 0x20 | 0x40


def _unusable() -> set[str]:
    """IPv6 addresses that cannot be connected from now: not yet found to be free, found to be taken, or running out."""
    try:
        lines = Path("/proc/thread-self/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    rows = (line.split() for line in lines)
    return {str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if int(row[4], 16) & _NOT_YET_OR_NO_MORE}
