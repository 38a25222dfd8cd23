"""Free ports for lab servers."""

from __future__ import annotations

import errno
import random
import socket
from ipaddress import ip_address
from pathlib import Path

from asyncli.model.errors import HostError

# Below the first ephemeral port: no client uses such a port, so none can block a restart.
_LOWEST = 10_000
_DEFAULT_EPHEMERAL = 32_768
_MIN_RANGE = 1_000
_TRIES = 200


def family_of(address: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6 for a numeric address. Raises :class:`HostError` for anything else."""
    try:
        return socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise HostError(
            f"{address!r} is not an IP address to listen on; write for example 127.0.0.1"
        ) from None


def host_port(address: str, port: int) -> str:
    """``127.0.0.1:80``, ``[::1]:80``."""
    if family_of(address) == socket.AF_INET6:
        return f"[{address}]:{port}"
    return f"{address}:{port}"


def reachable(address: str) -> str:
    """The address to connect to for a listener on ``address``: loopback for a wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def bind_error(address: str, port: int) -> OSError | None:
    """The error of listening on this port now, or None.

    Without SO_REUSEPORT, to detect a listener that shares its port; with SO_REUSEADDR, to ignore
    TIME_WAIT.
    """
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def require_free(address: str, port: int) -> None:
    """Raise :class:`HostError` if a server could not listen on this port."""
    error = bind_error(address, port)
    if error is None:
        return
    known = {
        errno.EADDRINUSE: f"port {port} of {address} is taken; stop what listens there (ss -ltnp "
        f"'sport = :{port}'), or use --port 0",
        errno.EACCES: (
            f"port {port} needs root to listen on; use a port from 1024 up, or --port 0 for a "
            "free one"
        ),
        errno.EADDRNOTAVAIL: (
            f"{address} is no address of this host; use 127.0.0.1 or one that `ip address` shows"
        ),
    }
    other = (
        f"cannot listen on {host_port(address, port)} ({error.strerror}); use another port or "
        "address"
    )
    raise HostError(known.get(error.errno or 0, other))


def ephemeral() -> int:
    """The number of local ports for connections to one address and port."""
    low, high = _ephemeral()
    return high - low + 1


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = (
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        )
        return int(low), int(high)
    except (OSError, ValueError):
        return _DEFAULT_EPHEMERAL, 60_999


def status_port_after(port: int) -> int:
    """A free port for the status page: the next one, so that its URL can be known in advance, or
    another if that is taken.
    """
    if port < 65_535 and bind_error("127.0.0.1", port + 1) is None:
        return port + 1
    return free_pair("127.0.0.1")[1]


def free_pair(address: str) -> tuple[int, int]:
    """A port that is free on ``address``, and the next one, free on 127.0.0.1, for the status page.

    If two lab servers draw the same port, which reuseport would share silently, they collide on the
    exclusive status port and draw again.
    """
    highest = min(_ephemeral()[0], _DEFAULT_EPHEMERAL)
    if highest - _LOWEST < _MIN_RANGE:
        highest = 60_000
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, highest - 1)
        error = bind_error(address, port)
        if error is not None and error.errno != errno.EADDRINUSE:
            require_free(address, port)
        if error is None and bind_error("127.0.0.1", port + 1) is None:
            return port, port + 1
    raise HostError(
        f"no free port on {address} between {_LOWEST} and {highest}; stop other servers, or name "
        "one with --port"
    )
