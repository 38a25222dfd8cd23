"""Findings of how many connections would fit: not known, far from what was measured, or what gave way instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from asyncli.findings import Words, finding
from asyncli.units import format_count, format_many

#: Of which ceiling nothing is known.
_OF = {"memory": "memory", "worker_connections": "the server's connection slots", "descriptors": "its descriptors"}
Why = Literal["available_not_read", "cost_not_known", "interval_too_wide", "process_not_named", "configuration_not_read"]


@finding("forecast_unknown", "info")
def forecast_unknown(of: Sequence[str], why: Why, how: str) -> Words:
    """How many connections would fit is not known by memory, or by a limit of the server's. ``how``: memory was reckoned."""
    quieter = "ramp more slowly or to more connections, on a quiet host"
    said, remedy = {
        "available_not_read": (
            "the memory available before the first connect was not read",
            "see the other findings for why it was not read",
        ),
        "cost_not_known": ("what a connection costs on this host is not known", quieter),
        "interval_too_wide": (how, quieter),
        "process_not_named": (
            "the server's configuration was not read",
            "name its main process with --server-pid, so that its limits and configuration can be read",
        ),
        "configuration_not_read": ("asyncli cannot read this server's configuration from here", ""),
    }[why]
    return Words(f"how many connections would fit is not known by {' and '.join(_OF[name] for name in of)}: {said}", remedy)


@finding("forecast_far", "info")
def forecast_far(connections: float, times: float, measure: int) -> Words:
    """The straight line of memory goes on for ``times`` what was measured. ``measure``: so many connections are near enough."""
    return Words(
        f"the {format_count(connections)} connections that memory would hold are {times:,.0f} times what was measured: caches, "
        "tables and the server itself may behave otherwise there",
        f"measure nearer to it, with at least -c {measure}",
    )


@finding("gave_way", "info")
def gave_way(
    lost: int, failed: int, server: str, served: int | None, asked: int, side: str, what: str, certain: bool, limit: bool,
    why: str, remedy: str,
) -> Words:  # fmt: skip
    """Connections were lost, or failed to open, so there is no forecast but what gave way: ``what``, on one ``side``. An error
    where it is a ``limit`` of the server that was read and reached. ``served``: the most that were answered at once, where these
    are fewer than were asked for.
    """
    did = [f"{format_many(lost, 'connection')} {'was' if lost == 1 else 'were'} lost"] if lost else []
    did += [f"{format_many(failed, 'connect')} failed"] if failed else []
    where = ""
    if served is not None:
        where = f"{server} served at most about {format_count(float(f'{served:.2g}'))} of {format_count(asked)} at once; "
    likely = "" if certain or side == "unknown" else "it looks as if this gave way: "
    return Words(f"no forecast, as {' and '.join(did)}: {where}{likely}{why}", remedy, "error" if limit else "info")
