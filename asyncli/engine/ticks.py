"""How a worker's ticks reach its host process."""

from __future__ import annotations

import contextlib
import socket

import msgspec

from asyncli.records import Tick

_encode = msgspec.msgpack.Encoder().encode


class TickSender:
    """Sends ticks over a link that must never be waited for: what does not fit now goes out merged with the next."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._unsent: Tick | None = None

    def send(self, tick: Tick) -> None:
        if self._unsent is not None:
            tick.merge_counts(self._unsent)
        self._unsent = tick
        with contextlib.suppress(BlockingIOError, OSError):
            self._link.send(_encode(tick))
            self._unsent = None
