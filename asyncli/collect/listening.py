"""Whether anything listens at the plan's target on this host. Read from the socket tables: this
sends the server nothing.

Only if the tables show no listener, one connect decides: the kernel may redirect it, as to a
container's published port.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.procfs import PROC, read_listeners
from asyncli.findings import server
from asyncli.model.errors import PlanError
from asyncli.model.places import sockaddr
from asyncli.model.records import Finding
from asyncli.model.units import format_duration

# Reading the tables takes less than a millisecond.
_POLL_S = 0.1
# A local connect is refused within a millisecond; a redirected one may take longer and counts as a
# listener.
_REFUSED_WITHIN_S = 0.1

# Refused, or no route.
_REFUSED = {
    errno.ECONNREFUSED,
    errno.ENOENT,
    errno.EADDRNOTAVAIL,
    errno.ENETUNREACH,
    errno.EAFNOSUPPORT,
}

#: Address and port; the path and 0 for a Unix socket.
Place = tuple[str, int]


class Missing(NamedTuple):
    """What is wrong at the plan's target, and the URL at which its port is open (None: at none)."""

    what: str
    url: str | None = None


def no_listener(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """What is wrong if nothing listens at any of ``places`` on this host; None if something does,
    or if it is unknown.
    """
    if not any((proc / "net" / name).exists() for name in ("tcp", "tcp6")):
        return None
    try:
        for address, port in places:
            # A wildcard listener of either family counts: if it does not answer at this address, a
            # connect shows it.
            answering = (None, address.partition("%")[0])
            if any(listener.address in answering for listener in read_listeners(port, proc)):
                return None
        elsewhere = listens_elsewhere(places, proc)
    except OSError:
        return None
    if not all(_is_refused(address, port) for address, port in places):
        return None
    if elsewhere is not None:
        return elsewhere
    urls = []
    for address, port in sorted(places):
        urls.append(f"{_in_url(address)}:{port}" if port else _unix_url(address))
    return Missing(f"nothing listens on {', '.join(urls)} of this host")


def listens_elsewhere(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """The first port of ``places`` that is open only at other addresses of this host; None if there
    is none.
    """
    for address, port in sorted(places):
        if not port:
            continue
        addresses = {listener.address for listener in read_listeners(port, proc)}
        others = sorted(other for other in addresses if other is not None)
        if others:
            listed = ", ".join(map(_in_url, others))
            what = f"port {port} listens on {listed} only, not on the URL's {_in_url(address)}"
            return Missing(what, f"http://{_in_url(others[0])}:{port}/")
    return None


def _in_url(address: str) -> str:
    if ":" in address:
        return f"[{address}]"
    return address


def _unix_url(path: str) -> str:
    if os.path.exists(path):
        return f"unix:{path} (a file that a server left behind)"
    return f"unix:{path}"


def _family_of(address: str, port: int) -> socket.AddressFamily:
    if not port:
        return socket.AF_UNIX
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET


def _is_refused(address: str, port: int) -> bool:
    try:
        with socket.socket(_family_of(address, port), socket.SOCK_STREAM) as sock:
            sock.settimeout(_REFUSED_WITHIN_S)
            sock.connect(sockaddr(address, port))
            # If the kernel chose this port as the local one, the socket is connected to itself (RFC
            # 9293, 3.5).
            return bool(sock.getsockname() == sock.getpeername())
    except OSError as error:
        return error.errno in _REFUSED


async def wait_for_listener(
    places: Collection[Place],
    local: bool,
    wait_s: float,
    on_wait: Callable[[str], None],
    stopped: asyncio.Event,
) -> float:
    """Wait up to ``wait_s`` for a listener at one of ``places``, or until ``stopped``: 0, or the
    seconds waited in vain.

    ``on_wait`` is called once with a message. Raises :class:`PlanError` if the places are not
    ``local``: then only a connect could tell.
    """
    if not wait_s:
        return 0.0
    if not local:
        raise PlanError(
            "--wait-for-server: the server's address is not of this network namespace, "
            "so its sockets cannot be seen from here; leave it out"
        )
    begun_s = time.monotonic()
    announced = False
    while missing := no_listener(places):
        waited_s = time.monotonic() - begun_s
        if waited_s >= wait_s or stopped.is_set():
            return min(waited_s, wait_s)
        if not announced:
            on_wait(f"waiting up to {format_duration(wait_s)} for the server: {missing.what}")
        announced = True
        await asyncio.sleep(_POLL_S)
    return 0.0


def nothing_listens(places: Collection[Place], waited_s: float | None, so: str) -> Finding | None:
    """The finding that ends a run before its first connect; None if something listens.

    ``waited_s``: from :func:`wait_for_listener`, None for a command that does not wait. ``so``: the
    consequence, in words.
    """
    missing = no_listener(places)
    if missing is None:
        return None
    return server.nothing_listens(missing.what, missing.url, waited_s, so)
