"""Hosts on one network: network namespaces joined by a bridge, which end with this process.

They have no names: only our descriptors and processes keep them, so nothing remains after a crash,
and the host's own network is unchanged. See network_namespaces(7), bridge(8), veth(4).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncli.model.errors import HostError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_IP_S = 30.0
REMEDY = "run it as root, where network namespaces can be made"
#: The interface of each host.
LINK = "eth0"


class Network:
    """``with Network({"server": "10.0.0.8/24", ...}) as network``: hosts on a bridge, each with its
    address.

    ``sysctls``: by host, for example {"net.ipv4.ip_local_port_range": "1024 61024"}. Entering
    raises :class:`HostError` if namespaces cannot be made. The bridge has its own namespace, so
    that the host's firewall does not see the traffic.
    """

    def __init__(
        self, hosts: Mapping[str, str], sysctls: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.hosts = dict(hosts)
        self._sysctls = sysctls or {}
        self._namespaces: dict[str, int] = {}
        self._bridge = -1

    def __enter__(self) -> Self:
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, host: str) -> str:
        """The host's address without the prefix length."""
        return self.hosts[host].partition("/")[0]

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Move this thread, and what it starts and opens, to ``host`` for the block. Blocks may be
        nested.
        """
        with _entered(self._namespaces[host]):
            yield

    def link(self, host: str, state: str) -> None:
        """Set the host's interface "down" or "up"."""
        with self.inside(host):
            ip("link", "set", LINK, state)

    def add(self, host: str, address: str) -> None:
        """Add an address ("10.0.0.11/24") to the host."""
        with self.inside(host):
            ip("address", "add", address, "dev", LINK)

    def _create(self) -> None:
        self._bridge = _namespace()
        with _entered(self._bridge):
            # Without spanning tree, which would block the ports for half a minute.
            ip("link", "add", "bridge0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
            ip("link", "set", "bridge0", "up")
        for number, (host, address) in enumerate(self.hosts.items()):
            self._namespaces[host] = _namespace()
            port = f"port{number}"
            with _entered(self._bridge):
                # iproute2 takes a path in place of a name (netns_get_fd).
                namespace = f"/proc/{os.getpid()}/fd/{self._namespaces[host]}"
                ip("link", "add", port, "type", "veth", "peer", "name", LINK, "netns", namespace)
                ip("link", "set", port, "master", "bridge0", "up")
            with self.inside(host):
                ip("link", "set", "lo", "up")
                # Without an IPv6 address, whose duplicate detection takes time.
                ip("link", "set", LINK, "addrgenmode", "none")
                ip("address", "add", address, "dev", LINK)
                ip("link", "set", LINK, "up")
                for name, value in self._sysctls.get(host, {}).items():
                    _set(name, value)

    def _remove(self) -> None:
        for namespace in (*self._namespaces.values(), self._bridge):
            if namespace >= 0:
                os.close(namespace)
        self._namespaces = {}
        self._bridge = -1


def _namespace() -> int:
    """A descriptor of a new network namespace, which exists while it is open or has processes."""
    with _entered(None):
        return os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _entered(namespace: int | None) -> Iterator[None]:
    """Move this thread to ``namespace`` (None: a new one) for the block."""
    before = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(before)


def _enter(namespace: int | None) -> None:
    # os.setns and os.unshare are new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if namespace is None:
        action = "made"
        status = libc.unshare(_CLONE_NEWNET)
    else:
        action = "entered"
        status = libc.setns(namespace, _CLONE_NEWNET)
    if status != 0:
        reason = os.strerror(ctypes.get_errno())
        raise HostError(f"a network namespace cannot be {action} ({reason}); {REMEDY}")


def ip(*words: str) -> None:
    """Run iproute2's ip in this thread's namespace. Raises :class:`HostError`."""
    argv: Sequence[str] = ("ip", *words)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_IP_S, check=False)
    except FileNotFoundError:
        raise HostError(
            "there is no program called ip on this host; install it (apt-get install iproute2)"
        ) from None
    except subprocess.TimeoutExpired:
        raise HostError(
            f"'{' '.join(argv)}' has not ended after {_IP_S:.0f} s; look at the host's load"
        ) from None
    if done.returncode != 0:
        raise HostError(
            f"'{' '.join(argv)}' failed: {' '.join(done.stderr.split())[:200]}; {REMEDY}"
        )


def _set(name: str, value: str) -> None:
    path = Path("/proc/sys") / name.replace(".", "/")
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        raise HostError(
            f"sysctl {name} cannot be set to {value!r} in a network namespace ({error.strerror}); "
            f"{REMEDY}"
        ) from None
