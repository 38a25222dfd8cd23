"""Two hosts on a line with delay, limited rate and packet loss: network namespaces with TUN
devices, and a program between them.

Linux has netem for this, but not every kernel is built with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from asyncli.lab import child, compiler
from asyncli.lab.network import REMEDY, Network, ip
from asyncli.model.errors import HostError
from asyncli.model.units import format_share

NEAR = "near"
FAR = "far"
#: The addresses on the line.
ADDRESSES = {NEAR: "10.77.0.1", FAR: "10.77.0.2"}
# The bridge of the two namespaces, beside the line; it carries no traffic.
_CABLE = {NEAR: "10.78.0.1/30", FAR: "10.78.0.2/30"}
_DEVICE = b"line0"
# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
# The queue in front of the line, as the time that sending it takes: a router's, not a modem's.
_QUEUE_MS = 50


class Quality(NamedTuple):
    """A line's quality in each direction: half of ``round_trip_ms``, megabits a second, and the
    share of packets lost.
    """

    round_trip_ms: float
    mbit_s: float
    lost: float

    @property
    def words(self) -> str:
        return (
            f"on a line of {self.round_trip_ms:g} ms, {self.mbit_s:g} Mbit/s, "
            f"{format_share(self.lost, 1)} lost"
        )


@contextlib.asynccontextmanager
async def line(quality: Quality, seed: int) -> AsyncIterator[Network]:
    """A network of the hosts NEAR and FAR, whose :data:`ADDRESSES` the line joins. Raises
    :class:`HostError`.
    """
    program = await asyncio.to_thread(compiler.build, Path(__file__).with_suffix(".c"))
    with Network(_CABLE) as network, contextlib.ExitStack() as opened:
        devices = []
        for host, address in ADDRESSES.items():
            with network.inside(host):
                devices.append(_device())
                opened.callback(os.close, devices[-1])
                ip("address", "add", f"{address}/30", "dev", _DEVICE.decode())
                ip("link", "set", _DEVICE.decode(), "up")
        delay_us = 1e3 * quality.round_trip_ms / 2
        bits_s = 1e6 * quality.mbit_s
        queue_us = 1e3 * _QUEUE_MS
        lost_of_million = 1e6 * quality.lost
        numbers = [
            f"{number:.0f}" for number in (delay_us, bits_s, queue_us, lost_of_million, seed)
        ]
        argv = [str(program), *map(str, devices), *numbers]
        process = child.spawn(argv, pass_fds=devices)
        try:
            yield network
        finally:
            await child.end(process)


def _device() -> int:
    """A descriptor of a new TUN device in this thread's namespace; closing it removes the
    device.
    """
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(
            f"/dev/net/tun cannot be opened ({error.strerror}); {REMEDY}, with the kernel's "
            "module tun"
        ) from None
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(device)
        raise HostError(f"a TUN device cannot be made ({error.strerror}); {REMEDY}") from None
    return device
