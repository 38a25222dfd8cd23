"""Real source addresses of a client host's interface, in a network namespace of the test."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import here

from asyncli.collect.listening import no_listener
from asyncli.engine import resolve
from asyncli.engine.net import RealNet
from asyncli.engine.resolve import plan_spread
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Route, Spread
from asyncli.lab.network import Network
from asyncli.model.errors import HostError
from asyncli.model.plan import Plan

URL = "http://10.77.0.8:8080/"


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network({"server": "10.77.0.8/24", "client": "10.77.0.9/24"}) as made:
            yield made
    except HostError as error:
        pytest.skip(str(error))


def laid_out(network: Network, connections: int, **plan: object) -> tuple[tuple[str, ...], Route | None]:
    with network.inside("client"):
        found = plan_spread(Plan(urls=(URL,), connections=connections, **plan), ports=1000, nofile=1024, cpus=1)  # type: ignore[arg-type]
    return found.sources, found.route


def test_addresses_of_the_outgoing_interface_are_found(network: Network) -> None:
    assert laid_out(network, 900) == ((), Route("eth0", "10.77.0.9/24", ("10.77.0.9",)))
    for address in ("10.77.0.11/24", "10.77.0.12/32", "10.99.0.1/24"):
        network.add("client", address)
    # An address of another network: the server may have no route to it.
    usable = ("10.77.0.9", "10.77.0.11", "10.77.0.12")
    assert laid_out(network, 900) == (usable, Route("eth0", "10.77.0.9/24", usable))
    # Where one does, it is not bound.
    assert laid_out(network, 400)[0] == ()
    assert laid_out(network, 900, sources=("10.77.0.12",))[0] == ("10.77.0.12",)
    with network.inside("client"):
        subprocess.run(["ip", "addr", "add", "10.77.0.13/24", "dev", "eth0", "label", "eth0:1"], check=True)
    assert "10.77.0.13" in laid_out(network, 900)[0]


def test_an_address_without_a_route_does_not_make_the_server_remote(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    for other, local in (("2001:db8::1", True), ("10.77.0.8", False)):
        both = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6 if ":" in other else socket.AF_INET, other)]
        monkeypatch.setattr(resolve, "_addresses", lambda target, both=both: both)
        with network.inside("client"):
            found = plan_spread(Plan(urls=(URL,), connections=2), ports=1000, nofile=1024, cpus=1)
        assert (found.local, len(found.destinations)) == (local, 2)


def test_a_name_with_a_listener_on_loopback_is_local(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other addresses may have a route and no listener."""
    both = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "10.77.0.77")]
    monkeypatch.setattr(resolve, "_addresses", lambda target: both)
    with network.inside("client"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        plan, listens = Plan(urls=(URL,), connections=2), lambda address, port: no_listener([(address, port)]) is None
        assert not plan_spread(plan, ports=1000, nofile=1024, cpus=1, listens=listens).local
        with socket.create_server(("127.0.0.1", 8080)):
            assert plan_spread(plan, ports=1000, nofile=1024, cpus=1, listens=listens).local


def test_a_family_with_loopback_alone_is_resolved(network: Network) -> None:
    with network.inside("client"):
        Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1", encoding="ascii")
        Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("0", encoding="ascii")
        for words in ("link set lo up", "addr replace ::1/128 dev lo"):
            subprocess.run(["ip", *words.split()], check=True)
        assert [one.address for one in _destinations("http://[::1]:8080/")] == ["::1"]
        # And IPv4 where all else is IPv6.
        Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("0", encoding="ascii")
        for words in ("addr flush dev eth0", "-6 addr add fd00:77::9/64 dev eth0 nodad"):
            subprocess.run(["ip", *words.split()], check=True)
        assert [one.address for one in _destinations("http://127.0.0.1:8080/")] == ["127.0.0.1"]


def test_only_addresses_with_a_route_are_tried(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 80, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.77.0.8", 80))]  # fmt: skip
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with network.inside("client"):
        assert [one.address for one in _destinations("http://server.example/")] == ["10.77.0.8"]
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        assert [one.address for one in _destinations("http://server.example/")] == ["2001:db8::1", "10.77.0.8"]


def _destinations(url: str) -> tuple[Destination, ...]:
    return plan_spread(Plan(urls=(url,), connections=2), ports=1000, nofile=1024, cpus=1).destinations


def test_the_preflight_refuses_too_few_source_addresses_and_its_remedy_works(network: Network, tmp_path: Path) -> None:
    def check() -> str:
        with network.inside("client"):
            Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("10000 65000", encoding="ascii")
            return here(tmp_path, "check", "-c", "60000", URL).out

    command = "ip addr add 10.77.0.10/24 dev eth0 && ip addr add 10.77.0.11/24 dev eth0"
    assert command in " ".join(check().split())
    with network.inside("client"):
        subprocess.run(command, shell=True, check=True)
    assert "ip addr add" not in check()


def _connected(network: Network, count: int, sources: tuple[str, ...] = (), crowded: bool = False) -> list[tuple[str, int]]:
    """The local ends of ``many`` connections."""
    with network.inside("server"):
        listener = socket.create_server(("10.77.0.8", 8080), backlog=64)
    with listener, network.inside("client"):
        net = RealNet((Destination(socket.AF_INET, "10.77.0.8", 8080),), sources, crowded)
        handles = [net.connect(0, number) for number in range(count)]
        try:
            ends = []
            for handle in handles:
                with socket.socket(fileno=os.dup(handle)) as one:
                    ends.append(one.getsockname())
        finally:
            for handle in handles:
                net.close(handle, abort=True)
    return ends


@pytest.mark.skipif(tuple(map(int, os.uname().release.split(".")[:2])) < (6, 8), reason="before Linux 6.8 it helps nothing")
def test_crowded_sources_search_all_ports_from_the_start(network: Network) -> None:
    # By default every second port is tried first; once those are in use, each connect tries all of them in vain.
    assert len({port % 2 for _, port in _connected(network, 32)}) == 1
    assert {port % 2 for _, port in _connected(network, 32, crowded=True)} == {0, 1}


@pytest.mark.parametrize(("connections", "crowded"), [(400, False), (401, True)])
def test_a_shard_is_crowded_if_most_ports_will_be_used(connections: int, crowded: bool) -> None:
    spread = Spread((Destination(socket.AF_INET, "10.77.0.8", 8080),), (), 1, False, 1000)
    assert build_shard(Plan(urls=(URL,), connections=connections), spread).crowded is crowded
