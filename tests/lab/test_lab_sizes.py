"""Pure parts of the lab: versions, sizes, ports, and configuration files."""

from __future__ import annotations

import errno
import math
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.lab import ports
from asyncli.lab.executables import parse_version, size
from asyncli.lab.resources import config_file
from asyncli.lab.wire import status_page
from asyncli.model.errors import HostError


def test_version_of_a_distributions_nginx() -> None:
    text = "nginx version: nginx/1.22.1\nTLS SNI support enabled\nconfigure arguments: --with-http_stub_status_module"
    binary = parse_version(text)
    assert (binary.version, binary.version_text, binary.stub_status) == ((1, 22, 1), "nginx/1.22.1", True)


def test_version_of_others() -> None:
    binary = parse_version("nginx version: openresty/1.21.4.1\nconfigure arguments: --without-http_scgi_module")
    assert (binary.version, binary.stub_status) == ((1, 21, 4, 1), False)
    assert binary.without == {"http_scgi_module"}
    assert parse_version("bash: nginx: command not found") is None


@pytest.mark.parametrize(("connections", "most"), [(1, 2), (1_000, 2), (100_000, 6), (1_000_000, 60)])
def test_a_cap_of_20_000_descriptors_suffices(connections: int, most: int) -> None:
    sizes = size(connections, nofile=20_000, cpus=2)
    assert sizes.workers <= most
    assert sizes.slots <= 20_000


@given(connections=st.integers(1, 2_000_000), nofile=st.integers(20_000, 2_000_000), cpus=st.integers(1, 128))
def test_an_unlucky_worker_keeps_a_sixteenth_of_its_slots(connections: int, nofile: int, cpus: int) -> None:
    sizes = size(connections, nofile=nofile, cpus=cpus)
    mean = connections / sizes.workers
    unlucky = mean + 6 * math.sqrt(mean)
    assert sizes.workers >= cpus
    assert sizes.slots - unlucky - 8 > sizes.slots / 16 - 16
    assert sizes.slots >= 1.15 * mean
    assert unlucky + 2 * sizes.workers < nofile


def test_more_than_can_be_held_is_one_clear_line() -> None:
    with pytest.raises(HostError, match=r"10,000,000 connections .* raise the hard limit"):
        size(10_000_000, nofile=1_024, cpus=2)
    with pytest.raises(HostError, match="leave --workers out"):
        size(100_000, nofile=20_000, cpus=2, workers=2)


def test_a_pair_of_ports_is_free_and_low() -> None:
    main, status = ports.free_pair("127.0.0.1")
    assert status == main + 1
    assert ports.bind_error("127.0.0.1", main) is None
    assert ports.status_port_after(main) == status
    with socket.create_server(("127.0.0.1", status)):
        assert ports.status_port_after(main) not in {main, status}
    assert ports.status_port_after(65_535) < 65_535


def test_a_listener_that_shares_its_port_is_seen() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = ports.bind_error("127.0.0.1", other.getsockname()[1])
    assert error.errno == errno.EADDRINUSE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on every port")
def test_a_port_for_root_says_so() -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii")) <= 80:
        pytest.skip("this host lets everybody listen on port 80")
    with pytest.raises(HostError, match="needs root"):
        ports.require_free("127.0.0.1", 80)


def test_addresses() -> None:
    assert ports.host_port("::1", 80) == "[::1]:80"
    assert ports.host_port("127.0.0.1", 80) == "127.0.0.1:80"
    assert [ports.reachable(one) for one in ("0.0.0.0", "::", "10.1.1.1")] == ["127.0.0.1", "::1", "10.1.1.1"]


def test_the_template_is_found_and_a_missing_file_is_one_clear_line() -> None:
    assert "stub_status" in config_file("nginx.conf").read_text(encoding="utf-8")
    with pytest.raises(HostError, match=r"configs/nothing\.conf: not part of this installation"):
        config_file("nothing.conf")


def test_the_status_page_of_the_built_in_server_is_nginx_to_the_byte() -> None:
    assert status_page(active=291, accepts=16630948, handled=16630946, requests=31070465, reading=6, writing=179) == (
        b"Active connections: 291 \nserver accepts handled requests\n 16630948 16630946 31070465 \nReading: 6 Writing: 179 Waiting: 106 \n"
    )
