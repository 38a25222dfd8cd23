"""Whether anything listens at the plan's target on this host, by its socket tables, so that the server gets nothing.

Only where the tables show nothing one connect decides: the kernel may redirect it, as to a container's published port.
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
from asyncli.errors import PlanError
from asyncli.findings import server
from asyncli.places import sockaddr
from asyncli.records import Finding
from asyncli.units import format_duration

# The tables take less than a millisecond.
_LOOK_EVERY_S = 0.1
# A local connect is refused within a millisecond; a redirected one may take longer, and is no refusal.
_REFUSED_WITHIN_S = 0.1

# Or there is no way to it at all.
_REFUSED = {errno.ECONNREFUSED, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT}

#: Address and port; of a Unix socket its path, and 0.
Place = tuple[str, int]


class Missing(NamedTuple):
    """Why nothing listens where the plan aims, and the URL at which its port is open (None: at none)."""

    what: str
    url: str | None = None


def unheard(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """Whether nothing listens at any of ``places`` on this host; None where something does, or it is unknown."""
    if not any((proc / "net" / name).exists() for name in ("tcp", "tcp6")):
        return None
    try:
        for address, port in places:
            # One at any address counts, of whichever family: where it does not answer here, a connect will say so.
            if any(one.address in (None, address.partition("%")[0]) for one in read_listeners(port, proc)):
                return None
        elsewhere = heard_elsewhere(places, proc)
    except OSError:
        return None
    if not all(_refuses(*one) for one in places):
        return None
    shown = ", ".join(f"{_in_url(address)}:{port}" if port else _of_unix(address) for address, port in sorted(places))
    return elsewhere or Missing(f"nothing listens on {shown} of this host")


def heard_elsewhere(places: Collection[Place], proc: Path = PROC) -> Missing | None:
    """Whether a port of ``places`` is listened on at other addresses of this host only; None where it is not."""
    for address, port in sorted(places):
        if port and (others := sorted({one.address for one in read_listeners(port, proc) if one.address is not None})):
            listed = ", ".join(map(_in_url, others))
            what = f"port {port} listens on {listed} only, not on the URL's {_in_url(address)}"
            return Missing(what, f"http://{_in_url(others[0])}:{port}/")
    return None


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _of_unix(path: str) -> str:
    left = os.path.exists(path)
    return f"unix:{path}{' (a file that a server has left behind)' if left else ''}"


def _refuses(address: str, port: int) -> bool:
    family = socket.AF_UNIX if not port else socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_REFUSED_WITHIN_S)
            sock.connect(sockaddr(address, port))
            # A local port may have been chosen that is the very one: it is connected to itself (RFC 9293, 3.5).
            return bool(sock.getsockname() == sock.getpeername())
    except OSError as error:
        return error.errno in _REFUSED


async def wait_for_listener(
    places: Collection[Place], local: bool, wait_s: float, says: Callable[[str], None], stopped: asyncio.Event
) -> float:
    """Until something listens at one of these places, or it is ``stopped``, at most ``wait_s`` seconds: those waited in vain.

    ``says`` hears once what is waited for. Raises :class:`PlanError` where they are not ``local``, of this host: only a connect
    could tell.
    """
    if not wait_s:
        return 0.0
    if not local:
        raise PlanError("--wait-for-server: the server is on another host, whose sockets cannot be seen from here; leave it out")
    begun_s, said = time.monotonic(), False
    while missing := unheard(places):
        waited_s = time.monotonic() - begun_s
        if waited_s >= wait_s or stopped.is_set():
            return min(waited_s, wait_s)
        if not said:
            says(f"waits, for {format_duration(wait_s)} at most, for the server: {missing.what}")
        said = True
        await asyncio.sleep(_LOOK_EVERY_S)
    return 0.0


def nothing_listens(places: Collection[Place], waited_s: float | None, so: str) -> Finding | None:
    """The finding that ends a run before its first connect; None where something listens.

    ``waited_s``: of :func:`wait_for_listener`, None for a command that does not wait. ``so``: what came of it, in words.
    """
    missing = unheard(places)
    return None if missing is None else server.nothing_listens(missing.what, missing.url, waited_s, so)
