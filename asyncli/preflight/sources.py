"""The commands that add missing source addresses or server ports. Pure."""

from __future__ import annotations

import math
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface

from asyncli.engine.spread import Route, Spread
from asyncli.model.plan import Plan
from asyncli.model.private_values import masked_url
from asyncli.model.units import format_count
from asyncli.preflight.host_limits import Limits

# Before Linux 6.8 connect() past half of a pair's ports first tries every second one in vain: 30 ms for 30,000 (engine/net.py).
HALF = 0.5
#: The widest port range: only root may bind below 1,024.
WIDEST = "1024 65535"
_WIDEST_PORTS = 65_535 - 1024 + 1
# So few addresses get a command each; more get a loop, or the first and the last.
_FEW = 3


def client_port_remedy(plan: Plan, spread: Spread, limits: Limits) -> str:
    """The remedy for too few ports of a client host."""
    route = spread.route
    sources, destinations, ports = max(1, len(spread.sources)), max(1, len(spread.destinations)), max(1, spread.ports)
    widen = f'{limits.sudo}sysctl -w net.ipv4.ip_local_port_range="{WIDEST}"'
    if limits.ports is None or limits.ports < 0.8 * _WIDEST_PORTS:
        if plan.connections <= sources * destinations * (_WIDEST_PORTS - limits.ports_reserved) * HALF:
            return widen
        # The other remedies assume the wider range.
        ports = _WIDEST_PORTS - limits.ports_reserved
        widen += ", and either "
    else:
        widen = ""
    remedies = []
    missing = math.ceil(plan.connections / (destinations * ports * HALF)) - sources
    if missing > 0 and plan.sources and route is not None and len(route.usable) >= sources + missing:
        remedies.append(f"leave --source out: this host has {len(route.usable)} addresses in that network, and all are then used")
    elif missing > 0:
        given = ", and --source for each" if plan.sources else ""
        how = f": {_add_commands(route, missing, spread)}" if route is not None else ""
        remedies.append(f"{format_count(missing)} more address{'es' if missing > 1 else ''} of this host{how}{given}")
    more = math.ceil(plan.connections / (sources * ports * HALF)) - destinations
    if more > 0:
        remedies.append(f"{format_count(more)} more port{'s' if more > 1 else ''} of the server: {_listen_lines(plan, more)}")
    return widen + "; or ".join(remedies)


def _add_commands(route: Route, missing: int, spread: Spread) -> str:
    """Commands that add the addresses after the host's own."""
    own = ip_interface(route.source)
    taken = {ip_address(one.partition("%")[0]) for one in (*route.usable, *(to.address for to in spread.destinations))}
    network = own.network
    free: list[IPv4Address | IPv6Address] = []
    at = max((one for one in taken if one in network and one.version == own.version), default=own.ip)
    while len(free) < missing and len(free) < 250:
        at += 1
        if at not in network or at == network.broadcast_address:
            break
        free.append(at)
    length = network.prefixlen
    if len(free) < missing:
        return f"ip addr add ADDRESS/{length} dev {route.interface}, with free addresses of {network}"
    if missing <= _FEW:
        return " && ".join(f"ip addr add {one}/{length} dev {route.interface}" for one in free) + _CHECK_FREE
    head, dot, last = str(free[0]).rpartition(".")
    if dot and str(free[-1]).rpartition(".")[0] == head:
        numbers = f"$(seq {last} {str(free[-1]).rpartition('.')[2]})"
        return f"for i in {numbers}; do ip addr add {head}.$i/{length} dev {route.interface}; done" + _CHECK_FREE
    return f"ip addr add {free[0]}/{length} dev {route.interface}, and so on up to {free[-1]}" + _CHECK_FREE


_CHECK_FREE = " (first make sure by ping that no other host uses them)"


def _listen_lines(plan: Plan, more: int) -> str:
    """The lines for nginx.conf, and the URLs."""
    first, used = plan.targets[0], {target.port for target in plan.targets}
    free = [port for port in range(first.port + 1, 65_536) if port not in used][:more]
    host = f"[{first.host}]" if ":" in first.host else first.host
    if len(free) < more:
        return "let it listen on them, and give a URL for each"
    shown = free if more <= _FEW else [free[0], free[-1]]
    between, ends = (" ", "") if more <= _FEW else (" to ", f" ({more} lines)")
    lines = between.join(f"listen {one};" for one in shown)
    urls = between.join(f"{first.url.partition('://')[0]}://{host}:{one}{masked_url(first.path)}" for one in shown)
    return f"{lines}{ends} in its server block, and the URLs {urls}"
