"""Resolves the plan's host names and sources once, before the first connect.

Nothing is sent to the target: names go to the resolver, sources are tested by bind() alone.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterable
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
    destinations = _destinations(plan)
    workers = plan.workers or workers_needed(plan.most_open, nofile, cpus, plan.batch)
    if not plan.has_ports:
        # Both ends of a Unix socket are on one host.
        return Spread(destinations, sources=(), workers=workers, local=True, ports=0)
    is_local = _is_local(destinations, listens)
    for source in plan.sources:
        _check_source(source)
    routes = {} if is_local else _routes(destinations)
    sources = plan.sources
    if not sources:
        sources = _choose_sources(plan.connections, destinations, ports, routes)
    return Spread(
        destinations=destinations,
        sources=sources,
        workers=workers,
        local=is_local,
        ports=ports,
        route=next(iter(routes.values()), None),
    )


def _destinations(plan: Plan) -> tuple[Destination, ...]:
    """The addresses of each target, in the plan's order."""
    destinations = []
    for number, target in enumerate(plan.targets):
        for family, address in _addresses(target):
            destinations.append(Destination(family, address, target.port, number))
    return tuple(destinations)


def _addresses(target: Target) -> list[tuple[int, str]]:
    """(family, address) of a target, where this host has a route to it; all, if it has none or the
    plan names the addresses.
    """
    host = target.host
    port = target.port
    if not port:
        _check_socket(host)
    try:
        addresses = look_up(target)
    except (OSError, UnicodeError) as error:
        raise PlanError(
            f"host {host!r} cannot be resolved ({_reason(error)}); check the name, or write its "
            "address"
        ) from None
    if not addresses:
        raise PlanError(f"host {host!r} has neither an IPv4 nor an IPv6 address; write its address")
    if target.addresses or not port:
        return addresses
    routed = []
    for family, address in addresses:
        if _source_address(Destination(family, address, port)) is not None:
            routed.append((family, address))
    return routed or addresses


def _is_local(destinations: tuple[Destination, ...], listens: Callable[[str, int], bool]) -> bool:
    """Whether the server is on this host. Addresses without a route do not count (IPv6 where there
    is none). Where a name has a loopback address with a listener, its other addresses may have
    none: the server is here.
    """
    own = _own_addresses()
    counted = _with_a_route(destinations) or destinations
    targets_here = set()
    for destination in counted:
        address = destination.address
        if _is_loopback(address) and listens(address, destination.port):
            targets_here.add(destination.target)
    for destination in counted:
        is_own = _is_loopback(destination.address) or destination.address in own
        if not is_own and destination.target not in targets_here:
            return False
    return True


def _with_a_route(destinations: Iterable[Destination]) -> list[Destination]:
    routed = []
    for destination in destinations:
        if _source_address(destination) is not None:
            routed.append(destination)
    return routed


def _own_addresses() -> set[str]:
    """The IP addresses of this host."""
    own = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family in _FAMILIES:
                own.add(entry.address)
    return own


def _check_socket(path: str) -> None:
    """Raise :class:`HostError` if no connect to this path can succeed. A missing path is allowed:
    the server may start later.
    """
    if path.startswith("@"):
        # An abstract name is in no file system.
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(
            f"unix:{path} is not accessible ({_reason(error)}); run as a user with access, or "
            "name another"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise HostError(f"unix:{path} is not a socket; name the one that the server listens on")
    if not os.access(path, os.W_OK, effective_ids=True):
        raise HostError(
            f"unix:{path}: a connect needs write permission; run as the server's user, or chmod "
            "the socket"
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
            f"source {source} is not an address of this host ({_reason(error)}); `ip address` "
            "lists its addresses"
        ) from None


def _choose_sources(
    connections: int, destinations: tuple[Destination, ...], ports: int, routes: dict[int, Route]
) -> tuple[str, ...]:
    """The sources to bind, of each family that needs more than the kernel's choice."""
    chosen: list[str] = []
    for family in _FAMILIES:
        of_family = [destination for destination in destinations if destination.family == family]
        if not of_family:
            continue
        share = -(-connections * len(of_family) // len(destinations))
        if all(_is_loopback(destination.address) for destination in of_family):
            # IPv6 has one loopback address.
            if family == socket.AF_INET:
                chosen += loopback_sources(sources_wanted(share, len(of_family), ports))
            continue
        fits_one_source = share <= len(of_family) * ports * _ONE_SOURCE_SHARE
        if family in routes and not fits_one_source:
            usable = routes[family].usable
            if len(usable) > 1:
                chosen += usable
    return tuple(chosen)


def _routes(destinations: tuple[Destination, ...]) -> dict[int, Route]:
    """By family, the route to the first destination that is not on loopback and has one."""
    routes: dict[int, Route] = {}
    for destination in destinations:
        if destination.family in routes or _is_loopback(destination.address):
            continue
        route = _route(destination)
        if route is not None:
            routes[destination.family] = route
    return routes


def _route(destination: Destination) -> Route | None:
    """The outgoing interface and its usable source addresses; None if there is no route."""
    chosen = _source_address(destination)
    if chosen is None:
        return None
    for interface, lengths in _prefix_lengths(destination.family).items():
        if chosen in lengths:
            source = f"{chosen}/{lengths[chosen]}"
            network = ipaddress.ip_interface(source).network
            usable = sorted(_usable(lengths, network), key=ipaddress.ip_address)
            return Route(interface, source, tuple(dict.fromkeys([chosen, *usable])))
    return None


def _prefix_lengths(family: int) -> dict[str, dict[str, int]]:
    """Interface -> its addresses of this family -> the length of their prefixes."""
    interfaces: dict[str, dict[str, int]] = {}
    for label, entries in psutil.net_if_addrs().items():
        # An alias ("eth0:1") is an address of its interface with a label.
        interface = label.partition(":")[0]
        for entry in entries:
            if entry.family == family:
                address = entry.address.partition("%")[0]
                lengths = interfaces.setdefault(interface, {})
                lengths[address] = _length(entry.netmask, family)
    return interfaces


def _usable(
    addresses: Iterable[str], network: ipaddress.IPv4Network | ipaddress.IPv6Network
) -> list[str]:
    """Of an interface's ``addresses``, those that may be sources: the ones in the ``network`` of
    the address that the kernel chooses, since the server may have no route to another network of
    the interface. If that network has one address (a /32), all of the interface may.
    """
    unready = _unready()
    usable = []
    for address in addresses:
        parsed = ipaddress.ip_address(address)
        if parsed.is_link_local or address in unready:
            continue
        if network.num_addresses == 1 or parsed in network:
            usable.append(address)
    return usable


def _source_address(destination: Destination) -> str | None:
    """The source address that the kernel chooses; None if there is no route."""
    try:
        with socket.socket(destination.family, socket.SOCK_DGRAM) as sock:
            # A datagram socket sends nothing.
            sock.connect((destination.address, destination.port))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def _length(netmask: str | None, family: int) -> int:
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return int(ipaddress.ip_address(netmask)).bit_count()


# linux/if_addr.h: DADFAILED, DEPRECATED, TENTATIVE.
_UNREADY_FLAGS = 0x08 | 0x20 | 0x40


def _unready() -> set[str]:
    """IPv6 addresses that are no source now: duplicate address detection runs or has failed, or
    they are deprecated.
    """
    try:
        lines = Path("/proc/thread-self/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    unready = set()
    for line in lines:
        address, _, _, _, flags, *_ = line.split()
        if int(flags, 16) & _UNREADY_FLAGS:
            unready.add(str(ipaddress.IPv6Address(int(address, 16))))
    return unready
