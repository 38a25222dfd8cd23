"""Connects that met sockets in TIME_WAIT of a server that has gone. Pure.

Who ends a connection first keeps its socket in TIME_WAIT for a minute (TCP_TIMEWAIT_LEN in
include/net/tcp.h), here the server that was stopped; its clients have none, so their kernel gives
the same ports to new connects. Where something listens, such a connect is granted. Where nothing
does, Linux answers its SYN as a packet of the earlier connection (tcp_v4_rcv in
net/ipv4/tcp_ipv4.c: TCP_TW_SYN falls through to TCP_TW_ACK): the client resets that, which ends the
TIME_WAIT, and sends the SYN again a second later. So no packet was lost on the way, and no listen
queue was full.
"""

from __future__ import annotations

from collections import deque

from asyncli.analysis.constants import MINUTE_S, MISSED_S
from asyncli.analysis.losses.own_sockets import any_between, drops_by_listeners_s
from asyncli.model.records import Tick
from asyncli.model.run import TICK_S, Run, Ticks

#: A connect is sent again after a second, and seen to be when it is granted or refused.
_SEEN_AFTER_S = TICK_S + MISSED_S


def ticks_that_met_time_wait(run: Run) -> Ticks:
    """The seconds in which connects were sent again for that reason, as far as it can be told: in
    one network, where others were refused, no listening socket dropped any, and the server had
    ended no fewer connections meanwhile than were sent again.
    """
    drops_s = drops_by_listeners_s(run)
    if drops_s is None or not run.sides.one_network:
        return []
    refused_s = [t_s for t_s, tick in run.ticks if tick.failed_by(["refused"])]
    if not refused_s:
        return []
    met = []
    ended = _Recent()
    again = _Recent()
    for t_s, tick in run.ticks:
        ended.add(t_s, _ended_by_server(run, tick))
        segments = _only_of_connects(tick)
        from_s = t_s - _SEEN_AFTER_S
        is_refused = any_between(refused_s, from_s, t_s)
        is_dropped = any_between(drops_s, from_s, t_s + MISSED_S)
        if not segments or not is_refused or is_dropped:
            continue
        if again.until(t_s) + segments <= ended.until(t_s):
            again.add(t_s, segments)
            met.append((t_s, tick))
    return met


class _Recent:
    """How many were counted for as long as a socket in TIME_WAIT may be met."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, t_s: float, count: int) -> None:
        self._counts.append((t_s, count))
        self._sum += count

    def until(self, t_s: float) -> int:
        """Their sum at an instant that is no earlier than the last one."""
        oldest_s = t_s - MINUTE_S - _SEEN_AFTER_S
        while self._counts and self._counts[0][0] < oldest_s:
            _, count = self._counts.popleft()
            self._sum -= count
        return self._sum


def _only_of_connects(tick: Tick) -> int:
    """The segments that were sent again, if none of them was a heartbeat's."""
    own = tick.tcp
    if own is None or own.heartbeats or own.unanswered:
        return 0
    return own.segments


def _ended_by_server(run: Run, tick: Tick) -> int:
    """How many connections may have ended on the server's side first."""
    of_commands = sum(
        counts.ended for number, counts in tick.events.items() if number in run.commands
    )
    return tick.lost_by_server + of_commands
