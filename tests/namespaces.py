"""Networks for tests: two hosts in namespaces, where links go down and packets are dropped, and one of a test's own, where nobody else has
a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from asyncli.lab.network import LINK, Network
from asyncli.model.errors import HostError

#: The addresses on the first cable, and the server's on the second, for monitoring.
SERVER, CLIENT, WATCHED = "10.213.0.2", "10.213.0.1", "10.213.1.2"


class Cable(Network):
    """A "client" and a "server", joined by two cables; faults affect only the first."""

    def __init__(self) -> None:
        super().__init__({"client": f"{CLIENT}/24", "server": f"{SERVER}/24"})

    def _create(self) -> None:
        super()._create()
        with self.inside("client"):
            _run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", f"/proc/{os.getpid()}/fd/{self._namespaces['server']}")
        for host, address in (("client", "10.213.1.1"), ("server", WATCHED)):
            with self.inside(host):
                _run("ip", "address", "add", f"{address}/24", "dev", "eth1")
                _run("ip", "link", "set", "eth1", "up")

    def drop(self, rule: str = "") -> None:
        """Drop packets that arrive at either end of the first cable and match ``rule`` (nft syntax; default: all)."""
        for host in self.hosts:
            with self.inside(host):
                _run("nft", f"table ip fault {{ chain in {{ type filter hook prerouting priority -300; iifname {LINK} {rule} drop; }}; }}")

    def pass_all(self) -> None:
        """Stop dropping packets."""
        for host in self.hosts:
            with self.inside(host):
                _run("nft", "delete table ip fault")


@contextmanager
def own_network() -> Iterator[None]:
    """Move this thread, and what it starts, for the block to a network with nothing but a loopback interface."""
    with Network({"own": f"{CLIENT}/24"}) as network, network.inside("own"):
        yield


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


def can_be_made() -> bool:
    """Whether namespaces can be made here, and packets dropped in them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nft") is None:
        return False
    try:
        with Cable() as cable:
            cable.drop("tcp dport 9")
    except (AssertionError, HostError):
        return False
    return True
