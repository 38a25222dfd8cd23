"""The line between two namespaces: delay, rate and losses, measured with sockets at its ends."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from asyncli.lab.line import ADDRESSES, FAR, NEAR, Quality, line
from asyncli.lab.network import Network
from asyncli.model.errors import HostError

pytestmark = pytest.mark.compiler


@contextlib.contextmanager
def ends(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two UDP sockets; datagrams from the first go to the second."""
    with contextlib.ExitStack() as stack:
        found = []
        for host in (NEAR, FAR):
            with network.inside(host):
                found.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            found[-1].bind((ADDRESSES[host], 0))
            found[-1].settimeout(5)
        found[0].connect(found[1].getsockname())
        yield found[0], found[1]


async def test_delay_rate_and_losses() -> None:
    try:
        async with line(Quality(round_trip_ms=40, mbit_s=8, lost=0.0), 1) as network:
            with ends(network) as (near, far):
                begun = time.monotonic()
                for number in range(40):
                    near.send(number.to_bytes(1, "big") * 972)  # 1,000 B with the headers of IP and UDP: 1 ms each
                came = [far.recv(2_000)[0] for _ in range(40)]
                assert came == [*range(40)]
                # One way, and 40 packets at the rate: a least, whatever this machine does.
                assert time.monotonic() - begun >= 0.020 + 0.040
        async with line(Quality(round_trip_ms=0, mbit_s=1_000, lost=0.5), 1) as network:
            with ends(network) as (near, far):
                for number in range(200):
                    near.send(number.to_bytes(1, "big"))
                far.settimeout(0.3)
                came = []
                with contextlib.suppress(TimeoutError):
                    while True:
                        came += far.recv(100)
                assert came == sorted(came)
                assert 60 < len(came) < 140  # of 200 by 0.5: 5.6 deviations either way
    except HostError as error:
        pytest.skip(str(error))
