"""Connects that met sockets in TIME_WAIT of a server that has gone. Pure.

Who ends a connection first keeps its socket in TIME_WAIT for a minute, here the server that was
stopped; its clients have none, so their kernel gives the same ports to new connects. Where
something listens, such a connect is granted. Where nothing does, Linux answers its SYN as a packet
of the earlier connection (tcp_v4_rcv in net/ipv4/tcp_ipv4.c: TCP_TW_SYN falls through to
TCP_TW_ACK): the client resets that, which ends the TIME_WAIT, and sends the SYN again a second
later. So no packet was lost on the way, and no listen queue was full.
"""

from __future__ import annotations

from asyncli.analysis.constants import MISSED_S
from asyncli.analysis.losses.own_sockets import any_between, drops_by_listeners_s
from asyncli.model.records import Tick
from asyncli.model.run import TICK_S, Run, Ticks


def ticks_that_met_time_wait(run: Run) -> Ticks:
    """The seconds in which connects were sent again for that reason, as far as it can be told: in
    one network, where others were refused, no listening socket dropped any, and the server had
    ended no fewer connections than were sent again.
    """
    drops_s = drops_by_listeners_s(run)
    if drops_s is None or not run.sides.one_network:
        return []
    refused_s = [t_s for t_s, tick in run.ticks if tick.failed_by(["refused"])]
    if not refused_s:
        return []
    met = []
    ended = 0
    again = 0
    for t_s, tick in run.ticks:
        ended += _ended_by_server(run, tick)
        segments = _only_of_connects(tick)
        # It is sent again after a second, and seen to be when it is granted or refused.
        from_s = t_s - TICK_S - MISSED_S
        is_refused = any_between(refused_s, from_s, t_s)
        is_dropped = any_between(drops_s, from_s, t_s + MISSED_S)
        if segments and is_refused and not is_dropped and again + segments <= ended:
            again += segments
            met.append((t_s, tick))
    return met


def _only_of_connects(tick: Tick) -> int:
    """The segments that were sent again, if none of them was a heartbeat's."""
    own = tick.tcp
    if own is None or own.heartbeats or own.unanswered:
        return 0
    return own.segments


def _ended_by_server(run: Run, tick: Tick) -> int:
    """How many connections may have ended on the server's side first."""
    of_commands = sum(tick.events[number].ended for number in run.commands if number in tick.events)
    return tick.lost + of_commands
