"""A net that sends a PROXY header first on each connection, before TLS too."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from asyncli.engine.net import KernelNet
from asyncli.engine.spread import Destination
from asyncli.protocols.proxy_header import ProxyHeader


class ProxiedNet:
    """``net`` with a header of ``version`` "v1" or "v2" on each connection. It goes out with the
    first send, also with an empty one, by which a table asks for a connect's outcome. Its bytes are
    not counted.
    """

    def __init__(self, net: KernelNet, destinations: Sequence[Destination], version: str) -> None:
        self._net, self._headers = (
            net,
            [
                ProxyHeader(version, destination.address, destination.port)
                for destination in destinations
            ],
        )
        self._unsent: dict[int, bytes] = {}
        self._raw_send, self.recv, self.clock = net.send, net.recv, net.clock
        self.fileno, self.watch, self.poll = net.fileno, net.watch, net.poll
        self.late_event, self.acknowledged, self.add_counts = (
            net.late_event,
            net.acknowledged,
            net.add_counts,
        )
        self.retransmitted, self.unacknowledged = net.retransmitted, net.unacknowledged
        self.deafen, self.hear = net.deafen, net.hear
        self.limit_segments, self.segment_bytes = net.limit_segments, net.segment_bytes

    def connect(self, destination: int, source: int) -> int:
        handle = self._net.connect(destination, source)
        self._begin(handle, destination, source)
        return handle

    def replace(self, handle: int, destination: int, source: int) -> int:
        self._unsent.pop(handle, None)
        handle = self._net.replace(handle, destination, source)
        self._begin(handle, destination, source)
        return handle

    def close(self, handle: int, abort: bool) -> None:
        self._unsent.pop(handle, None)
        self._net.close(handle, abort)

    def send(self, handle: int, data: bytes) -> int:
        if handle not in self._unsent:
            return self._raw_send(handle, data)
        header = self._unsent[handle]
        taken = self._raw_send(handle, header + data)
        if taken < len(header):
            self._unsent[handle] = header[taken:]
            raise BlockingIOError(errno.EAGAIN, "")
        del self._unsent[handle]
        return taken - len(header)

    def _begin(self, handle: int, destination: int, source: int) -> None:
        # The connection's number by the rule of spread.py, while all destinations are used.
        self._unsent[handle] = self._headers[destination].of(
            source * len(self._headers) + destination
        )
