"""Resolves the plan's host names and sources once, before the first connect.

Nothing is sent to the target: names go to the resolver, sources are tested by bind() alone.
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
from asyncli.model.errors import HostError, PlanError
from asyncli.model.places import look_up
from asyncli.model.plan import Plan
from asyncli.model.values import Target

# A pair may use half its ports before connect() slows down noticeably; further sources cost a
# bind() a connection, so they are used only beyond this share.
_ONE_SOURCE_SHARE = 0.5


def plan_spread(
    plan: Plan,
    *,
    ports: int,
    nofile: int,
    cpus: int,
    listens: Callable[[str, int], bool] = lambda address, port: False,
) -> Spread:
    """Resolve the plan's URLs and spread its connections. Blocking (DNS): call it in a thread.

    ``ports``: usable local ports; ``nofile``: the descriptor limit of a process; ``listens``:
    whether anything on this host listens at a loopback address and port. Raises :class:`PlanError`
    for a name that does not resolve and :class:`HostError` for a source that is not this host's.
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
    own = {
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in _FAMILIES
    }
    # Ignore addresses without a route (IPv6 where there is none). And where a name has a loopback
    # address with a listener, its other addresses may have none: the server is here.
    routed = [one for one in destinations if _source_address(one) is not None] or destinations
    here = {
        one.target for one in routed if _is_loopback(one.address) and listens(one.address, one.port)
    }
    local = all(
        _is_loopback(one.address) or one.address in own or one.target in here for one in routed
    )
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
    """The addresses of a target that this host has a route to; all, if it has none or the plan
    names the addresses.
    """
    host, port = target.host, target.port
    if not port:
        _check_socket(host)
    try:
        addresses = look_up(target)
    except (OSError, UnicodeError) as error:
        raise PlanError(
            f"host {host!r} cannot be resolved ({_reason(error)}); check the name, or write its address"
        ) from None
    if not addresses:
        raise PlanError(f"host {host!r} has neither an IPv4 nor an IPv6 address; write its address")
    if target.addresses or not port:
        return addresses
    return [
        one for one in addresses if _source_address(Destination(one[0], one[1], port)) is not None
    ] or addresses


def _check_socket(path: str) -> None:
    """Raise :class:`HostError` if no connect to this path can succeed. A missing path is allowed:
    the server may start later.
    """
    try:
        mode = None if path.startswith("@") else os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(
            f"unix:{path} is not accessible ({_reason(error)}); run as a user with access, or name another"
        ) from None
    if mode is not None and not stat.S_ISSOCK(mode):
        raise HostError(f"unix:{path} is not a socket; name the one that the server listens on")
    if mode is not None and not os.access(path, os.W_OK, effective_ids=True):
        raise HostError(
            f"unix:{path}: a connect needs write permission; run as the server's user, or chmod the socket"
        )


_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _check_source(source: str) -> None:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((source, 0))
    except OSError as error:
        raise HostError(
            f"source {source} is not an address of this host ({_reason(error)}); `ip address` lists its addresses"
        ) from None


def _choose_sources(
    connections: int, destinations: tuple[Destination, ...], ports: int, routes: dict[int, Route]
) -> tuple[str, ...]:
    chosen: list[str] = []
    for family in _FAMILIES:
        of_family = [one for one in destinations if one.family == family]
        if not of_family:
            continue
        share = -(-connections * len(of_family) // len(destinations))
        if all(_is_loopback(one.address) for one in of_family):
            if family == socket.AF_INET:
                chosen += loopback_sources(sources_wanted(share, len(of_family), ports))
        elif (
            share > len(of_family) * ports * _ONE_SOURCE_SHARE
            and family in routes
            and len(routes[family].usable) > 1
        ):
            chosen += routes[family].usable
    return tuple(chosen)


def _routes(destinations: tuple[Destination, ...]) -> dict[int, Route]:
    """By family, the route to the first destination that is not on loopback."""
    found: dict[int, Route] = {}
    for one in destinations:
        if (
            one.family not in found
            and not _is_loopback(one.address)
            and (route := _route(one)) is not None
        ):
            found[one.family] = route
    return found


def _route(destination: Destination) -> Route | None:
    """The outgoing interface and its usable source addresses; None if there is no route.

    Usable are those in the network of the address that the kernel chooses: the server may have no
    route to another network of the interface. If that network has one address (a /32), all
    addresses of the interface are usable.
    """
    if (routed := _source_address(destination)) is None:
        return None
    # An alias ("eth0:1") is an address of its interface with a label.
    addresses: dict[str, dict[str, int]] = {}
    for label, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == destination.family:
                address = entry.address.partition("%")[0]
                addresses.setdefault(label.partition(":")[0], {})[address] = _length(
                    entry.netmask, destination.family
                )
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
            return Route(
                interface,
                source,
                tuple(dict.fromkeys([routed, *sorted(usable, key=ipaddress.ip_address)])),
            )
    return None


def _source_address(destination: Destination) -> str | None:
    """The source address that the kernel chooses; None if there is no route."""
    try:
        with socket.socket(destination.family, socket.SOCK_DGRAM) as sock:
            sock.connect(
                (destination.address, destination.port)
            )  # a datagram socket: sends nothing
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def _length(netmask: str | None, family: int) -> int:
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return int(ipaddress.ip_address(netmask)).bit_count()


# linux/if_addr.h: DADFAILED, DEPRECATED, TENTATIVE.
_UNUSABLE_FLAGS = 0x08 | 0x20 | 0x40


def _unusable() -> set[str]:
    """IPv6 addresses that are no source now: duplicate address detection runs or has failed, or
    they are deprecated.
    """
    try:
        lines = Path("/proc/thread-self/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    rows = (line.split() for line in lines)
    return {
        str(ipaddress.IPv6Address(int(row[0], 16)))
        for row in rows
        if int(row[4], 16) & _UNUSABLE_FLAGS
    }
