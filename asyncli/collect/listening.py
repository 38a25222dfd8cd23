"""Whether anything listens at the plan's target on this host. Read from the socket tables: this sends the server nothing.

Only if the tables show no listener, one connect decides: the kernel may redirect it, as to a container's published port.
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
# A local connect is refused within a millisecond; a redirected one may take longer and counts as a listener.
_REFUSED_WITHIN_S = 0.1

# Refused, or no route.
_REFUSED = {errno.ECONNREFUSED, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT}

#: Address and port; the path and 0 for a Unix socket.
Place = tuple[str, int]


class Missing(NamedTuple):
    """What is wrong at the plan's target, and the URL at which its port is open (None: at none)."""

    what: str
    url: str | None = None


def no_listener(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """What is wrong if nothing listens at any of ``places`` on this host; None if something does, or if it is unknown."""
    if not any((proc / "net" / name).exists() for name in ("tcp", "tcp6")):
        return None
    try:
        for address, port in places:
            # A wildcard listener of either family counts: if it does not answer at this address, a connect shows it.
            if any(one.address in (None, address.partition("%")[0]) for one in read_listeners(port, proc)):
                return None
        elsewhere = listens_elsewhere(places, proc)
    except OSError:
        return None
    if not all(_is_refused(*one) for one in places):
        return None
    shown = ", ".join(f"{_in_url(address)}:{port}" if port else _unix_url(address) for address, port in sorted(places))
    return elsewhere or Missing(f"nothing listens on {shown} of this host")


def listens_elsewhere(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """The first port of ``places`` that is open only at other addresses of this host; None if there is none."""
    for address, port in sorted(places):
        if port and (others := sorted({one.address for one in read_listeners(port, proc) if one.address is not None})):
            listed = ", ".join(map(_in_url, others))
            what = f"port {port} listens on {listed} only, not on the URL's {_in_url(address)}"
            return Missing(what, f"http://{_in_url(others[0])}:{port}/")
    return None


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _unix_url(path: str) -> str:
    return f"unix:{path}{' (a file that a server left behind)' if os.path.exists(path) else ''}"


def _is_refused(address: str, port: int) -> bool:
    family = socket.AF_UNIX if not port else socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_REFUSED_WITHIN_S)
            sock.connect(sockaddr(address, port))
            # If the kernel chose this port as the local one, the socket is connected to itself (RFC 9293, 3.5).
            return bool(sock.getsockname() == sock.getpeername())
    except OSError as error:
        return error.errno in _REFUSED


async def wait_for_listener(
    places: Collection[Place], local: bool, wait_s: float, on_wait: Callable[[str], None], stopped: asyncio.Event
) -> float:
    """Wait up to ``wait_s`` for a listener at one of ``places``, or until ``stopped``: 0, or the seconds waited in vain.

    ``on_wait`` is called once with a message. Raises :class:`PlanError` if the places are not ``local``: then only a connect
    could tell.
    """
    if not wait_s:
        return 0.0
    if not local:
        raise PlanError("--wait-for-server: the server is on another host, whose sockets cannot be seen from here; leave it out")
    begun_s, announced = time.monotonic(), False
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

    ``waited_s``: from :func:`wait_for_listener`, None for a command that does not wait. ``so``: the consequence, in words.
    """
    missing = no_listener(places)
    return None if missing is None else server.nothing_listens(missing.what, missing.url, waited_s, so)
