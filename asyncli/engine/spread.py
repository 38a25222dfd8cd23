"""Spreads a plan over processes, sources and destinations. Pure: facts of the host are arguments.

Connection ``i`` goes to destination ``i mod D`` from source ``(i div D) mod S``, so every (source,
destination) pair has the same share and no pair runs out of ports before another.
"""

from __future__ import annotations

import math

import msgspec

from asyncli.model.places import sockaddr

# connect() searches a pair's port range at random: with a tenth in use nearly every first probe
# hits a free port; past a half the search shows (47 us a connect grows to 117 us as the 28,232
# default ports fill).
FULLEST_PAIR = 0.10
# connect() tries every second port first (__inet_hash_connect): once half of a pair's ports are in
# use, it tries all of those in vain each time. At this share it still tries five.
CROWDED = 0.4
# A worker's own descriptors: three standard ones, its epoll set, the loop's, the link to the host,
# and slack for imports.
OWN_DESCRIPTORS = 64
# One process handles tens of thousands of connections without strain; below this a second one only
# costs memory.
CONNECTIONS_WORTH_A_PROCESS = 10_000


class Destination(msgspec.Struct, frozen=True):
    """One address of the server: ``family`` is socket.AF_INET, AF_INET6 or AF_UNIX, ``target`` the
    URL's index in the plan.

    For a Unix socket ``port`` is 0, and ``address`` its path, or ``@`` and its abstract name.
    """

    family: int
    address: str
    port: int
    target: int = 0

    @property
    def sockaddr(self) -> tuple[str, int] | str:
        """The argument of connect()."""
        return sockaddr(self.address, self.port)


class Route(msgspec.Struct, frozen=True):
    """The route from this host: ``interface``, the source address that the kernel chooses with its
    prefix length ("10.0.0.9/24"), and the ``usable`` source addresses of that network, the kernel's
    choice first.
    """

    interface: str
    source: str
    usable: tuple[str, ...]


class Spread(msgspec.Struct, frozen=True):
    """The source and destination addresses of the connections, and the number of processes.

    ``sources`` are addresses to bind, each for the destinations of its family; for a family without
    any the kernel chooses (no bind: one source). ``ports``: usable local ports. ``local``: the
    server is on this host, which then has both ends of each connection. ``route``: to a server on
    another host.
    """

    destinations: tuple[Destination, ...]
    sources: tuple[str, ...]
    workers: int
    local: bool
    ports: int
    route: Route | None = None

    @property
    def pairs(self) -> int:
        """(source, destination) pairs."""
        return sum(
            max(1, len(sources_for(destination, self.sources))) for destination in self.destinations
        )

    @property
    def capacity(self) -> int:
        """Connections that the ports allow: pairs x usable ports."""
        return self.pairs * self.ports

    def crowds(self, connections: int) -> bool:
        """Whether this many fill the ports to where the kernel's default search for a free one gets
        slow.
        """
        return connections > self.capacity * CROWDED


def show(destination: Destination) -> str:
    """``127.0.0.1:80``, ``[::1]:80`` or ``unix:/run/app.sock``."""
    if not destination.port:
        return f"unix:{destination.address}"
    address = f"[{destination.address}]" if ":" in destination.address else destination.address
    return f"{address}:{destination.port}"


def sources_for(destination: Destination, sources: tuple[str, ...]) -> tuple[str, ...]:
    """The sources of the destination's family (an IPv6 address contains a colon)."""
    return tuple(source for source in sources if (":" in source) == (":" in destination.address))


def workers_needed(connections: int, nofile: int, cpus: int, batch: int = 1) -> int:
    """Number of processes: as many as the descriptor limit requires or the CPUs can use, whichever
    is more; at least 1.
    """
    room = max(1, nofile - OWN_DESCRIPTORS)
    workers = max(
        1,
        math.ceil(connections / room),
        min(cpus, math.ceil(connections / CONNECTIONS_WORTH_A_PROCESS)),
    )
    # One process opens a whole batch; worker 0 never has fewer than another.
    while batch <= room < share(connections, batch, workers, 0):
        workers += 1
    return workers


def sources_wanted(connections: int, destinations: int, ports: int) -> int:
    """Number of sources that keeps each pair below FULLEST_PAIR of its ports."""
    return max(1, math.ceil(connections / (destinations * ports * FULLEST_PAIR)))


def loopback_sources(count: int) -> tuple[str, ...]:
    """``count`` addresses of 127.0.0.0/8 without 127.0.0.1, which other programs use; empty for
    one: no bind needed.
    """
    if count <= 1:
        return ()
    # 127.1.0.1 upwards, 250 to a block; many hosts use 127.0.0.x (127.0.0.53, for example).
    return tuple(
        f"127.1.{index // 250}.{index % 250 + 1}" for index in range(min(count, 250 * 250))
    )


def share(connections: int, batch: int, workers: int, worker: int) -> int:
    """Number of connections that worker ``worker`` of ``workers`` opens: batch j belongs to worker
    j mod n.
    """
    batches = math.ceil(connections / batch)
    mine = len(range(worker, batches, workers))
    last_is_mine = batches > 0 and (batches - 1) % workers == worker
    return mine * batch - (batches * batch - connections if last_is_mine else 0)
