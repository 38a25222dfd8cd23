"""Other network namespaces of this host, as of containers: their addresses, and who listens there.

Only processes that may be traced show their namespace: our own user's, or all for root.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from ipaddress import IPv6Address
from pathlib import Path

from asyncli.collect.holders import addresses_of, matching_inodes, socket_holders
from asyncli.collect.procfs import PROC, all_pids, link, read_listeners, read_text
from asyncli.collect.sock_diag import inside_network_of
from asyncli.model.values import Target

# A leaf of the routing trie, and below it the kind of its route.
_LOCAL_ADDRESS = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def has_target(pid: int, targets: Sequence[Target], proc: Path = PROC) -> bool:
    """Whether an address of ``targets`` is one of the process's network namespace."""
    own = _addresses_in(pid, proc)
    return any(own & addresses_of(target) for target in targets)


def listening_elsewhere(targets: Sequence[Target], proc: Path = PROC) -> set[int]:
    """The processes of other network namespaces of this host that listen at ``targets``."""
    holders: set[int] = set()
    addresses = {target: addresses_of(target) for target in targets}
    for pid in _others(proc):
        own = _addresses_in(pid, proc)
        for target in targets:
            if own & addresses[target]:
                listeners = read_listeners(target.port, proc / str(pid))
                holders |= socket_holders(matching_inodes(listeners, addresses[target]), proc)
    return holders


def source_ports_of(pid: int, proc: Path = PROC) -> int | None:
    """How many local ports the process may connect from to one address, by the settings of its
    network namespace; None where that is hidden.
    """
    settings = proc / "sys/net/ipv4"
    try:
        # /proc/sys/net shows the settings of the thread that reads it.
        with _network_of(pid, proc):
            first, last = map(int, read_text(settings / "ip_local_port_range").split())
            reserved = read_text(settings / "ip_local_reserved_ports").strip()
    except (OSError, ValueError):
        return None
    ports = set(range(first, last + 1))
    for part in filter(None, reserved.split(",")):
        low, _, high = part.partition("-")
        ports -= set(range(int(low), int(high or low) + 1))
    return len(ports)


def _network_of(pid: int, proc: Path) -> contextlib.AbstractContextManager[None]:
    if link(pid, "ns/net", proc) == link("self", "ns/net", proc):
        return contextlib.nullcontext()
    return inside_network_of(pid)


def _others(proc: Path) -> list[int]:
    """A process of each network namespace that is not ours."""
    seen = {link("self", "ns/net", proc)}
    pids = []
    for pid in all_pids(proc):
        namespace = link(pid, "ns/net", proc)
        if namespace is not None and namespace not in seen:
            seen.add(namespace)
            pids.append(pid)
    return pids


def _addresses_in(pid: int, proc: Path) -> set[str]:
    """The addresses of the process's network namespace; none where they are hidden."""
    addresses = set()
    try:
        addresses.update(_LOCAL_ADDRESS.findall(read_text(proc / str(pid) / "net/fib_trie")))
        for line in read_text(proc / str(pid) / "net/if_inet6").splitlines():
            addresses.add(str(IPv6Address(int(line.split()[0], 16))))
    except OSError:
        pass
    return {address for address in addresses if address != "::1" and not address.startswith("127.")}
