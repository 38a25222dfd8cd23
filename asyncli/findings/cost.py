"""Findings of memory: why the cost of a connection is unknown, or less certain than its interval; what grows with time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.units import format_bytes, format_count, format_duration, format_many

#: How the method of a cost begins that is no slope: memory in the hold less memory before the first connection, divided by the
#: connections. Unlike a slope it includes one-time costs, and it misses memory that the server had freed before.
LEVELS = "difference of two levels (including one-time costs, without reused memory)"

#: The parts of a cost in words.
CALLED = {
    "server_user": "the server", "kernel": "the kernel", "kernel_queued": "queued buffers", "generator_user": "asyncli",
    "host_total": "this host in all", "residual": "the residual", "listing": "inodes of /proc",
}  # fmt: skip

_SOURCES = {
    "server_user": "the server's processes",
    "kernel": "slab objects (/proc/slabinfo needs root)",
    "kernel_queued": "TCP buffers (/proc/net/sockstat)",
    "generator_user": "asyncli's own processes",
    "host_total": "{host} (/proc/meminfo)",
}


class Moved(TypedDict):
    """How much memory changed at rest on a plateau, and its ``share`` of the climb to it (None: no climb)."""

    plateau: int
    bytes: float
    share: float | None


def _called(names: Sequence[str]) -> str:
    return ", ".join(CALLED[name] for name in names)


@finding("descriptors_listed", "warning", "stop programs that list /proc/PID/fd while you measure")
def descriptors_listed(bytes_per_connection: float, half_width: float) -> str:
    """Another program lists the descriptors of processes, and the kernel keeps an inode and a dentry of /proc for each. This
    memory grows with the connections; the cost excludes it.
    """
    return (
        f"excluded from the cost: {bytes_per_connection:,.0f} B a connection (± {half_width:,.0f}) of inodes and dentries of "
        "/proc, left by a program that lists /proc/PID/fd, as monitoring agents do"
    )


@finding("cost_not_sampled", "info", "see the other findings for why it was not read")
def cost_not_sampled(costs: Sequence[str], host: str) -> str:
    """The sources of these costs were not read in the ramp."""
    return f"cost unknown of what was not sampled in the ramp: {', '.join(_SOURCES[name].format(host=host) for name in costs)}"


@finding("cost_sockets_closed", "info", "run again while no other program closes connections there")
def cost_sockets_closed(costs: Sequence[str]) -> str:
    """What other programs' closed sockets gave back hides these ``costs``."""
    return f"cost unknown of {_called(costs)}: other programs closed as many sockets as these connections opened, or more"


@finding("cost_residual_unknown", "info")
def cost_residual_unknown(needs: Sequence[str]) -> str:
    """What the host uses per connection beyond its known parts is unknown: it ``needs`` a cost that is unknown, or its parts were
    read at different times.
    """
    why = f"it needs the cost of {_called(needs)}" if needs else "its parts were not sampled together"
    return f"the residual is unknown: {why}"


@finding("cost_few_points", "info")
def cost_few_points(
    points: int, wanted: int, levels: Sequence[str], unknown: Sequence[str], plateaus: int, plateaus_wanted: int, remedy: str
) -> Words:
    """The ramp has too few samples for a slope. The costs in ``levels`` are the difference of memory before the first connection
    and with all of them; those in ``unknown`` are unknown.
    """
    evidence = f"ramp too short for a slope: {format_many(points, 'sample')}, {wanted} needed"
    if 0 < plateaus < plateaus_wanted:
        evidence = f"{format_many(plateaus, 'plateau')}, {plateaus_wanted} needed for a slope; {evidence}"
    parts = [f"{LEVELS} is the cost of {_called(levels)}"] if levels else []
    parts += [f"cost unknown of {_called(unknown)}"] if unknown else []
    return Words(f"{evidence}: {'; '.join(parts)}", remedy)


@finding("cost_of_a_part", "warning", "see the other findings for what ended the ramp, and run again")
def cost_of_a_part(held: float, asked: int) -> str:
    """The ramp did not reach the planned number, so the cost is known only up to what it reached."""
    return f"the ramp reached {format_count(held)} of {format_count(asked)} connections: the cost of the rest is unknown"


@finding("cost_reused", "warning", "restart the server before the run")
def cost_reused(accepted: int) -> str:
    """The server had accepted connections before the first one of this run. Memory that it kept of them serves new ones, and its
    cost of a connection is then too low.
    """
    return (
        f"the server had accepted {format_count(accepted)} connections before this run, and uses what memory it kept of them "
        "again: its cost of a connection is unknown"
    )


@finding("plateau_unsettled", "warning")
def plateau_unsettled(moved: Mapping[str, Sequence[Moved]], rest_s: float) -> Words:
    """Memory still changed at the end of a plateau's rest; the interval of the cost includes as much again."""
    what = "; ".join(_moved(name, each) for name, each in moved.items())
    return Words(
        f"memory still changed in the last half of the rest: {what}; the interval includes as much again",
        f"rest longer: --plateau-rest {2 * rest_s:g}s",
    )


def _moved(name: str, moved: Sequence[Moved]) -> str:
    numbers = ", ".join(str(one["plateau"]) for one in moved)
    most = max(moved, key=lambda one: abs(one["bytes"]))
    share = most["share"]
    climb = f", {abs(share):.0%} of the climb to it" if share is not None and abs(share) < 10 else ""
    on = "plateau" if len(moved) == 1 else "plateaus"
    return f"of {CALLED[name]} on {on} {numbers} (by up to {format_bytes(most['bytes'])}{climb})"


# Longer than any planned run (h).
_FOR_EVER_H = 10 * 365 * 24.0
_MEMORY = {
    "server_user": "the server's memory",
    "kernel": "the kernel's memory for sockets on this host",
    "generator_user": "asyncli's own memory",
    "host_total": "the memory in use on this host",
}
_REMEDIES = {
    "server_user": "hold longer (--hold); if it continues, see what the server keeps per request: modules, caches, buffers",
    "kernel": "see which cache grows with slabtop -s c, and whether other programs open connections",
    "generator_user": "hold longer (--hold); if it continues, report it as a bug",
    "host_total": "see what else grows on this host: ps --sort -rss, slabtop -s c",
}


def by_the_hour(bytes_per_hour: float, ci95: tuple[float, float]) -> str:
    """``144 MB an hour (140 MB to 148 MB)``, without sign."""
    rate, low, high = (format_bytes(abs(value)) for value in (bytes_per_hour, *sorted(map(abs, ci95))))
    return f"{rate} an hour ({low} to {high})"


@finding("drift_grows", "warning")
def drift_grows(
    metric: str, from_s: float, to_s: float, bytes_per_hour: float, ci95: tuple[float, float], bytes_per_request: float | None,
    available_bytes: float | None,
) -> Words:  # fmt: skip
    """Memory grows by more than 0.1 % an hour with a constant number of connections: the median of the slopes between any two
    points of the hold (Theil-Sen), with its 95 % interval. ``bytes_per_request``: the same per answered heartbeat.
    """
    evidence = f"{_MEMORY[metric]} grows by {by_the_hour(bytes_per_hour, ci95)} in {format_duration(to_s - from_s)} of the hold"
    if bytes_per_request is not None:
        evidence += f": {_few_bytes(bytes_per_request)} per heartbeat, if heartbeats are the cause"
    if available_bytes is not None:
        left_h = available_bytes / bytes_per_hour
        lasts = "lasts for more than ten years" if left_h > _FOR_EVER_H else f"is used up in {_long(left_h)}"
        evidence += f"; at that rate the {format_bytes(available_bytes)} available on this host {lasts}"
    return Words(evidence, _REMEDIES[metric])


@finding("drift_unknown", "info")
def drift_unknown(metrics: Sequence[str], points: int, wanted: int, too_short: bool) -> Words:
    """Whether memory grows is unknown: the hold was ``too_short``, or too many of its minutes have no samples or another number
    of connections.
    """
    what = f"growth unknown of {', '.join(_MEMORY[metric] for metric in metrics)}"
    if too_short:
        return Words(f"{what}: hold too short: {points} points, {wanted} needed", "hold longer (--hold)")
    return Words(
        f"{what}: samples or connections are missing: {points} points, {wanted} needed",
        "see the other findings for what was lost or not read",
    )


def _few_bytes(value: float) -> str:
    return f"{value:,.0f} B" if value >= 10 else f"{value:.2g} B"


def _long(hours: float) -> str:
    return format_duration(hours * 3600) if hours < 48 else f"{format_count(hours / 24)} days"
