"""Whether anything listens where the plan aims, on this host: by its tables of sockets, so that nothing is sent to a server.

Only where they have nothing one connect tells: a rule of the kernel's may lead it elsewhere, as to a container's published port.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

from asyncli.collect.procfs import PROC, read_listeners
from asyncli.errors import PlanError
from asyncli.units import format_duration

# Whoever waits for a server that is starting up wants it as soon as it listens; the tables take less than a millisecond.
_LOOK_EVERY_S = 0.1
# A connect to this host is refused within a millisecond. One that is led elsewhere and takes longer is no refusal.
_REFUSED_WITHIN_S = 0.1

# Or there is no way to it at all.
_REFUSED = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT}

#: Address and port.
Place = tuple[str, int]


def unheard(places: Collection[Place], proc: Path = PROC) -> str:
    """That nothing listens at any of these places of this host, in words; "" where something does, or it cannot be known."""
    if not any((proc / "net" / name).exists() for name in ("tcp", "tcp6")):
        return ""
    try:
        for address, port in places:
            # One at any address counts, of whichever family: where it does not answer here, a connect will say so.
            if any(one.address in (None, address.partition("%")[0]) for one in read_listeners(port, proc)):
                return ""
    except OSError:
        return ""
    if not all(_refuses(*one) for one in places):
        return ""
    shown = ", ".join(f"{f'[{address}]' if ':' in address else address}:{port}" for address, port in sorted(places))
    return f"nothing listens on {shown}"


def _refuses(address: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(_REFUSED_WITHIN_S)
            sock.connect((address, port))
            # A local port may have been chosen that is the very one: it is connected to itself (RFC 9293, 3.5).
            return bool(sock.getsockname() == sock.getpeername())
    except OSError as error:
        return error.errno in _REFUSED


async def wait_for_listener(
    places: Collection[Place], local: bool, wait_s: float, says: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """Until something listens at one of these places, or it is ``stopped``, at most ``wait_s`` seconds.

    ``says`` hears once what is waited for. Raises :class:`PlanError` where they are not ``local``, of this host: only a connect
    could tell.
    """
    if not wait_s:
        return
    if not local:
        raise PlanError("--wait-for-server: the server is on another host, whose sockets cannot be seen from here; leave it out")
    until_s, said = time.monotonic() + wait_s, False
    while (what := unheard(places)) and time.monotonic() < until_s and not stopped.is_set():
        if not said:
            says(f"waits, for {format_duration(wait_s)} at most, for the server: {what}")
        said = True
        await asyncio.sleep(_LOOK_EVERY_S)
