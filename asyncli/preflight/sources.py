"""The commands that add missing source addresses or server ports. Pure."""

from __future__ import annotations

import math
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface

from asyncli.engine.spread import Route, Spread
from asyncli.model.masks import masked_url
from asyncli.model.plan import Plan
from asyncli.model.units import format_count
from asyncli.preflight.host_limits import Limits

# Before Linux 6.8 connect() past half of a pair's ports first tries every second one in vain: 30 ms
# for 30,000 (engine/net.py).
HALF = 0.5
#: The widest port range: only root may bind below 1,024.
WIDEST = "1024 65535"
_WIDEST_PORTS = 65_535 - 1024 + 1
# So few addresses get a command each; more get a loop, or the first and the last.
_FEW = 3
# A network of IPv6 has more addresses than a command may name.
_MOST_ADDRESSES = 250


def client_port_remedy(plan: Plan, spread: Spread, limits: Limits) -> str:
    """The remedy for too few ports of a client host."""
    sources = max(1, len(spread.sources))
    destinations = max(1, len(spread.destinations))
    ports = max(1, spread.ports)
    widen = ""
    if limits.ports is None or limits.ports < 0.8 * _WIDEST_PORTS:
        # The other remedies assume the wider range.
        ports = _WIDEST_PORTS - limits.ports_reserved
        widen = f'{limits.sudo}sysctl -w net.ipv4.ip_local_port_range="{WIDEST}"'
        if plan.connections <= sources * destinations * ports * HALF:
            return widen
    remedies = []
    addresses_missing = math.ceil(plan.connections / (destinations * ports * HALF)) - sources
    if addresses_missing > 0:
        remedies.append(_more_addresses(plan, spread, sources, addresses_missing))
    ports_missing = math.ceil(plan.connections / (sources * ports * HALF)) - destinations
    if ports_missing > 0:
        port = "port" if ports_missing == 1 else "ports"
        lines = _listen_lines(plan, ports_missing)
        remedies.append(f"{format_count(ports_missing)} more {port} of the server: {lines}")
    either = "; or ".join(remedies)
    if widen:
        return f"{widen}, and either {either}"
    return either


def _more_addresses(plan: Plan, spread: Spread, sources: int, missing: int) -> str:
    route = spread.route
    if plan.sources and route is not None and len(route.usable) >= sources + missing:
        return (
            f"leave --source out: this host has {len(route.usable)} addresses in that network, "
            "and all are then used"
        )
    address = "address" if missing == 1 else "addresses"
    remedy = f"{format_count(missing)} more {address} of this host"
    if route is not None:
        remedy = f"{remedy}: {_add_commands(route, missing, spread)}"
    if plan.sources:
        remedy = f"{remedy}, and --source for each"
    return remedy


def _add_commands(route: Route, missing: int, spread: Spread) -> str:
    """Commands that add the addresses after the host's own."""
    network = ip_interface(route.source).network
    length = network.prefixlen
    free = _free_addresses(route, missing, spread)
    if len(free) < missing:
        return (
            f"ip addr add ADDRESS/{length} dev {route.interface}, with free addresses of {network}"
        )
    if missing <= _FEW:
        commands = [f"ip addr add {address}/{length} dev {route.interface}" for address in free]
        return " && ".join(commands) + _CHECK_FREE
    head, dot, first = str(free[0]).rpartition(".")
    last_head, _, last = str(free[-1]).rpartition(".")
    if dot and head == last_head:
        add = f"ip addr add {head}.$i/{length} dev {route.interface}"
        return f"for i in $(seq {first} {last}); do {add}; done{_CHECK_FREE}"
    add_first = f"ip addr add {free[0]}/{length} dev {route.interface}"
    return f"{add_first}, and so on up to {free[-1]}{_CHECK_FREE}"


def _free_addresses(route: Route, missing: int, spread: Spread) -> list[IPv4Address | IPv6Address]:
    """The addresses of the network after those that are taken: ``missing``, or fewer."""
    own = ip_interface(route.source)
    network = own.network
    texts = [*route.usable, *(destination.address for destination in spread.destinations)]
    taken = [ip_address(text.partition("%")[0]) for text in texts]
    # An IPv6 address is in no network of IPv4, and the reverse.
    address = max((address for address in taken if address in network), default=own.ip)
    free: list[IPv4Address | IPv6Address] = []
    while len(free) < min(missing, _MOST_ADDRESSES):
        address += 1
        if address not in network or address == network.broadcast_address:
            break
        free.append(address)
    return free


_CHECK_FREE = " (first make sure by ping that no other host uses them)"


def _listen_lines(plan: Plan, missing: int) -> str:
    """The lines for nginx.conf, and the URLs."""
    first = plan.targets[0]
    used = {target.port for target in plan.targets}
    free = [port for port in range(first.port + 1, 65_536) if port not in used][:missing]
    if len(free) < missing:
        return "let it listen on them, and give a URL for each"
    host = f"[{first.host}]" if ":" in first.host else first.host
    scheme = first.url.partition("://")[0]
    path = masked_url(first.path)
    lines = [f"listen {port};" for port in free]
    urls = [f"{scheme}://{host}:{port}{path}" for port in free]
    if missing <= _FEW:
        return f"{' '.join(lines)} in its server block, and the URLs {' '.join(urls)}"
    return (
        f"{lines[0]} to {lines[-1]} ({missing} lines) in its server block, "
        f"and the URLs {urls[0]} to {urls[-1]}"
    )
