"""Ticks on their way from workers to the session."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

import msgspec

from asyncli.model.records import EventCounts, Tick

_encode = msgspec.msgpack.Encoder().encode


class TickSender:
    """Sends a worker's ticks without ever blocking: a tick that does not fit now is merged into the
    next one.
    """

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


def without_held(last: Tick) -> Tick:
    """The last gauges of a silent worker or host, without its connections: it is unknown whether
    they are still open.
    """
    return msgspec.structs.replace(
        last, held=0, connecting=0, coming_back=0, awaiting=0, longest_wait_s=0.0
    )


def away_by_event(tick: Tick) -> dict[int, int]:
    """By the number of each event of the plan: how many more it ended in this second than came
    back.
    """
    return {number: counts.away for number, counts in tick.events.items()}


def count_away_as_lost(tick: Tick, away: Mapping[int, int]) -> None:
    """Count those who were ended by events and are ``away`` as gone with a process of asyncli."""
    for number, count in away.items():
        if count > 0:
            tick.events.setdefault(number, EventCounts()).lost_with_worker += count
