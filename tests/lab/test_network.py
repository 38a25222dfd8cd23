"""Hosts in network namespaces, and that nothing remains of them however we end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import alive, until

from asyncli.lab.network import Network
from asyncli.model.errors import HostError

HOSTS = {"server": "10.66.0.8/24", "a": "10.66.0.9/24", "b": "10.66.0.10/24"}
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(HOSTS, {"a": {"net.ipv4.ip_local_port_range": "1024 61024"}}) as made:
            yield made
    except HostError as error:
        pytest.skip(str(error))


def namespaces() -> set[str]:
    """The network namespaces that this process has open or is in."""
    found = set()
    for link in (*Path("/proc/self/fd").iterdir(), Path("/proc/self/ns/net")):
        try:
            place = os.readlink(link)
        except OSError:
            continue
        if place.startswith("net:"):
            found.add(place)
    return found


def connected(network: Network, host: str) -> str:
    """The source address of a connection from ``host`` at the server."""
    with network.inside("server"):
        listener = socket.create_server(("10.66.0.8", 8080))
    with listener, network.inside(host), socket.create_connection(("10.66.0.8", 8080), 5):
        peer: str = listener.accept()[1][0]
        return peer


def test_each_host_has_its_address_and_its_own_sysctls(network: Network) -> None:
    before = _RANGE.read_text(encoding="ascii")
    assert (connected(network, "a"), connected(network, "b")) == ("10.66.0.9", "10.66.0.10")
    with network.inside("a"):
        assert _RANGE.read_text(encoding="ascii").split() == ["1024", "61024"]
        with network.inside("b"):
            assert _RANGE.read_text(encoding="ascii") == before
        assert _RANGE.read_text(encoding="ascii").split() == ["1024", "61024"]
    assert _RANGE.read_text(encoding="ascii") == before


def test_what_is_started_inside_stays_there_and_a_pulled_cable_cuts_it_off(network: Network) -> None:
    with network.inside("a"):
        said = subprocess.run(["ip", "-br", "address", "show", "eth0"], capture_output=True, text=True, check=True).stdout
    assert "10.66.0.9/24" in said
    network.link("a", "down")
    with pytest.raises(OSError, match="unreachable"):
        connected(network, "a")
    network.link("a", "up")
    assert connected(network, "a") == "10.66.0.9"


def test_nothing_is_left_at_the_end_nor_after_an_error() -> None:
    before = namespaces()
    try:
        with Network(HOSTS) as network:
            assert len(namespaces()) == len(before) + 4
            links = set(os.listdir("/sys/class/net"))
            with network.inside("server"):
                listener = socket.create_server(("10.66.0.8", 8080))
            listener.close()
    except HostError as error:
        pytest.skip(str(error))
    assert namespaces() == before
    assert set(os.listdir("/sys/class/net")) == links
    with pytest.raises(HostError, match=r"sysctl net\.no\.such cannot be set to '1' in a network namespace"), Network(HOSTS, {"a": {"net.no.such": "1"}}):
        pass
    assert namespaces() == before


def test_a_kill_leaves_neither_namespaces_nor_what_ran_in_them(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from asyncli.model.errors import HostError
from asyncli.lab import child
from asyncli.lab.network import Network
try:
    with Network({HOSTS!r}) as network:
        with network.inside("a"):
            process = child.spawn(["/bin/sleep", "1000"])
        print(process.pid, flush=True)
        sys.stdin.read()
except HostError:
    print("none", flush=True)
"""
    ours = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        word = ours.stdout.readline().strip()
        if word == "none":
            pytest.skip("no network namespaces")
        pid = int(word)
        namespace = os.readlink(f"/proc/{pid}/ns/net")
        assert namespace != os.readlink("/proc/self/ns/net")
    finally:
        ours.send_signal(signal.SIGKILL)
        ours.communicate()
    until(lambda: not alive(pid), "the process in the namespace has ended")
    until(lambda: namespace not in _everybodys(), "the namespace is gone")


def _everybodys() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found
