"""Two hosts on a cable: network namespaces of the test's own, in which links go down and packets are lost."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000  # linux/sched.h; os.setns is there only since Python 3.12
_NUMBERS = itertools.count()
#: Where the server is on the cable, and where it is on another one, for those who watch it.
SERVER, CLIENT, WATCHED = "10.213.0.2", "10.213.0.1", "10.213.1.2"


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the network namespace ``name``, and with it what it starts and opens, until the end of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as before, open(f"/run/netns/{name}", "rb") as there:
        _enter(libc, there.fileno())
        try:
            yield
        finally:
            _enter(libc, before.fileno())


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Cable:
    """A client's and a server's namespace, joined by two cables: what is done to the first leaves the second alone."""

    def __init__(self) -> None:
        name = f"asyncli-{os.getpid()}-{next(_NUMBERS)}"
        self.client, self.server = f"{name}c", f"{name}s"

    def lay(self) -> None:
        for name in (self.client, self.server):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number in (0, 1):
            ours, theirs = f"c{number}", f"s{number}"
            _run("ip", "-n", self.client, "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.server)
            for namespace, link, host in ((self.client, ours, 1), (self.server, theirs, 2)):
                _run("ip", "-n", namespace, "address", "add", f"10.213.{number}.{host}/24", "dev", link)
                _run("ip", "-n", namespace, "link", "set", link, "up")

    def remove(self) -> None:
        for name in (self.client, self.server):
            if Path(f"/run/netns/{name}").exists():
                _run("ip", "netns", "del", name)

    def link(self, state: str) -> None:
        """The client's end of the first cable goes "down", or "up"."""
        _run("ip", "-n", self.client, "link", "set", "c0", state)

    def drop(self, rule: str = "") -> None:
        """Of what arrives at either end of the first cable, drop what ``rule`` (nft's) says: all of it, without one."""
        for namespace, link in ((self.client, "c0"), (self.server, "s0")):
            table = f"table ip fault {{ chain in {{ type filter hook prerouting priority -300; iifname {link} {rule} drop; }}; }}"
            _run("ip", "netns", "exec", namespace, "nft", table)

    def pass_all(self) -> None:
        """Drop nothing any more."""
        for namespace in (self.client, self.server):
            _run("ip", "netns", "exec", namespace, "nft", "delete table ip fault")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


@contextmanager
def a_cable() -> Iterator[Cable]:
    """Two namespaces on a cable, gone at the end of the block with all that is in them."""
    cable = Cable()
    try:
        cable.lay()
        yield cable
    finally:
        cable.remove()


def can_be_made() -> bool:
    """Whether this user on this kernel can make namespaces and drop packets in them, and the programs are there."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nft") is None:
        return False
    try:
        with a_cable() as cable:
            cable.drop("tcp dport 9")
    except AssertionError:
        return False
    return True
