"""Who refused or dropped connects: the server's sockets, or something on the way. Pure.

A reset that answers a connect does not say who sent it: a packet filter sends the same. The kernel
of the server's host sends it only if no socket listens there; a full listen queue drops connects,
or resets them after it granted them (tcp_abort_on_overflow). So the sockets decide, where the host
is sampled: :mod:`asyncli.collect.listeners`. So do they of connects without an answer: the kernel
counts for each listening socket what it dropped.
"""

from __future__ import annotations

import bisect

import msgspec

from asyncli.model.metrics import (
    SERVER_LISTENERS,
    SERVER_LISTENERS_DROPPED,
    SERVER_LISTENERS_OPENED,
)
from asyncli.model.run import Run
from asyncli.model.samples import Series


class RefusedConnects(msgspec.Struct):
    """How many were refused while nothing listened (``unheard``), and while the same sockets
    listened all the while (``on_the_way``).
    """

    unheard: int = 0
    on_the_way: int = 0


def refusals(run: Run) -> RefusedConnects:
    """The refused connects of a run, by whether the server listened in their second."""
    counts = RefusedConnects()
    for t_s, tick in run.ticks:
        refused = tick.failures.get("refused", 0)
        if not refused:
            continue
        listened = did_listen(run, t_s - 1.0, t_s)
        if listened is False:
            counts.unheard += refused
        elif listened:
            counts.on_the_way += refused
    return counts


def did_listen(run: Run, from_s: float, to_s: float) -> bool | None:
    """Whether the server's listening sockets, all of them and the same ones, were there from
    ``from_s`` to ``to_s``. False: there was an instant without any. None: unknown, as where no
    connection was ever granted: then they may be at another address.
    """
    listening = run.series(SERVER_LISTENERS)
    every = max(listening.values, default=0.0)
    if not every or not any(tick.opened for _, tick in run.ticks):
        return None
    around = _around(listening, from_s, to_s)
    if not around:
        return None
    if 0 in listening.between(from_s, to_s).values or not any(around.values):
        return False
    # Of several addresses some may have no socket.
    if min(around.values) < every or len(run.place.destinations) > 1:
        return None
    # The same sockets at two readings were there all the time between them.
    opened = _around(run.series(SERVER_LISTENERS_OPENED), from_s, to_s)
    if not opened or opened.values[0] != opened.values[-1]:
        return None
    return True


def dropped_by_listeners(run: Run) -> Series | None:
    """How many connects the server's listening sockets had dropped, until the drain; None where
    that is not known, as where sockets were closed, with what they counted.
    """
    until_s = run.stop_s + 1.0
    dropped = run.series(SERVER_LISTENERS_DROPPED).between(0.0, until_s)
    if len(dropped) < 2:
        return None
    for name in (SERVER_LISTENERS, SERVER_LISTENERS_OPENED):
        counts = run.series(name).between(0.0, until_s).values
        if not counts or min(counts) != max(counts):
            return None
    # Of several addresses some may have no socket.
    if not any(run.series(SERVER_LISTENERS).values) or len(run.place.destinations) > 1:
        return None
    return dropped


def _around(readings: Series, from_s: float, to_s: float) -> Series:
    """The readings from the last one before ``from_s`` to the first after ``to_s``; none without
    these two.
    """
    first = bisect.bisect_right(readings.t_s, from_s) - 1
    last = bisect.bisect_left(readings.t_s, to_s)
    if first < 0 or last == len(readings):
        return Series()
    return readings.between(readings.t_s[first], readings.t_s[last])
