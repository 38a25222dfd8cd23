"""Connections of workers that a command of the plan killed, which nginx's status page goes on to
count. Pure.

Its counters are in memory that all workers share, and each worker takes off the connections that it
closes: one that is killed takes off none (ngx_close_connection in src/core/ngx_connection.c).
"""

from __future__ import annotations

from typing import Any

from asyncli.analysis.constants import FEWEST
from asyncli.analysis.counts import Client, CountPair, Pages, compared_held
from asyncli.model.metrics import SERVER_ENDED
from asyncli.model.products import product_of
from asyncli.model.records import RunEvent
from asyncli.model.run import Run


def killed_by_commands(run: Run, client: Client, pages: Pages) -> list[tuple[RunEvent, int]]:
    """The commands of the plan in whose time processes of nginx ended, with how many more
    connections it counted since than were held: no more than ended then.
    """
    if run.plan.status_url is None or product_of(run.place.server_name) != "nginx":
        return []
    held = compared_held(client, pages, run.first_connect_s, run.stop_s)
    killed = []
    for number, command in run.commands.items():
        until_s = _next_event_s(run, command)
        before = _settled_excess(held, command.at_s)
        after = _settled_excess(held, until_s)
        if before is None or after is None or not _any_ended(run, command.at_s, until_s):
            continue
        risen = after - before
        ended = run.counts_of_event(number).ended
        if FEWEST <= risen <= ended + FEWEST:
            killed.append((command, risen))
    return killed


def _next_event_s(run: Run, command: RunEvent) -> float:
    """When the next event of the plan began, or the drain."""
    later = [
        event.at_s for event in run.events if event.kind != "mark" and event.at_s > command.at_s
    ]
    return min(later, default=run.stop_s)


def _settled_excess(held: CountPair, until_s: float) -> int | None:
    """By how much the server counted more than was held, on the last page until then that few
    connections came or went near; None without one.
    """
    settled: Any = (held.t_s <= until_s) & (held.greatest - held.least <= FEWEST)
    if not settled.any():
        return None
    return round(float((held.second - held.first)[settled][-1]))


def _any_ended(run: Run, from_s: float, until_s: float) -> bool:
    ended = run.series(SERVER_ENDED)
    return (ended.at(until_s) or 0.0) > (ended.at(from_s) or 0.0)
