"""Findings of memory that grows with time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.findings.collected import BY_COMMAND, collect_flags
from asyncli.findings.cost import SURE
from asyncli.model.units import format_bytes, format_count, format_duration, format_many

# A rate is extrapolated to so many times the examined part at most.
_FARTHEST = 100
_MEMORY = {
    "server_user": "the server's memory",
    "live_heap": "what is alive in the server's heap",
    "kernel": "the kernel's memory for sockets on this host",
    "generator_user": "asyncli's own memory",
    "host_total": "the memory in use on this host",
}
_REMEDIES = {
    "server_user": (
        "see what the server keeps of each request: modules, caches, buffers; until that is "
        "mended, restart it in time; to fail such runs: --fail-if 'drift.server_user > 1MB/h'"
    ),
    "live_heap": (
        "see what the server keeps: heap profiles or snapshots of two instants show it; to fail "
        "such runs: --fail-if 'drift.live_heap > 1MB/h'"
    ),
    "kernel": (
        "see which cache grows with slabtop -s c, and whether other programs open connections"
    ),
    "generator_user": "report it as a bug",
    "host_total": "see what else grows on this host: ps --sort -rss, slabtop -s c",
}


def examined(from_s: float, to_s: float) -> str:
    """The length of the examined part of the hold, the same everywhere: ``14 s``."""
    return format_duration(round(to_s - from_s))


def by_the_hour(bytes_per_hour: float, ci95: tuple[float, float]) -> str:
    """``144 MB an hour (140 MB to 148 MB)``, without sign; of a narrow interval the rate alone."""
    rate = format_bytes(abs(bytes_per_hour))
    low, high = map(format_bytes, sorted(map(abs, ci95)))
    if low == high:
        return f"{rate} an hour"
    return f"{rate} an hour ({low} to {high})"


@finding("drift_grows", "warning")
def drift_grows(
    metric: str,
    from_s: float,
    to_s: float,
    bytes_per_hour: float,
    ci95: tuple[float, float],
    bytes_per_request: float | None,
    available_bytes: float | None,
    long_hold_s: float | None,
    heap_limit_bytes: float | None,
    kind: str,
    alive_bytes: float | None = None,
) -> Words:
    """Memory grows by more than 0.1 % an hour with a constant number of connections: the median of
    the slopes between any two points of the hold (Theil-Sen), with its 95 % interval.
    ``bytes_per_request``: the same per answered heartbeat. ``long_hold_s``: a hold that would tell
    a leak from memory that is freed later; None: this one does. ``heap_limit_bytes``: of the
    collected heap (None: unknown, or the server takes more); ``kind``: its runtime;
    ``alive_bytes``: what stayed alive after the drain, where that is as much as grew (None: it is
    not, or unknown): then no garbage grew. An info if all
    of the server's memory is less than the limit of its collected heap.
    """
    if heap_limit_bytes is not None:
        asking = collect_flags(kind) or BY_COMMAND
        limit = format_bytes(heap_limit_bytes)
        grown = format_bytes(bytes_per_hour * (to_s - from_s) / 3600)
        return Words(
            f"the server's heap is filling: its memory grew by {grown} in {examined(from_s, to_s)} "
            f"of the hold, and all of it is less than the {limit} that its heap may take; a leak "
            "looks the same until then",
            f"ask for collections, which show what is alive ({asking})",
            severity="info",
        )
    evidence = (
        f"{_MEMORY[metric]} grows by {by_the_hour(bytes_per_hour, ci95)} "
        f"in {examined(from_s, to_s)} of the hold"
    )
    if bytes_per_request is not None:
        digits = ",.0f" if bytes_per_request >= 10 else ".2g"
        evidence += f": {bytes_per_request:{digits}} B per heartbeat, if heartbeats are the cause"
    if alive_bytes is not None:
        return Words(
            f"{evidence}; {format_bytes(alive_bytes)} were still alive after the drain, by a "
            "collection that asyncli asked for: no garbage grows so",
            _REMEDIES[metric],
        )
    left_s = math.inf if available_bytes is None else available_bytes / bytes_per_hour * 3600
    if long_hold_s is not None and left_s > long_hold_s:
        return Words(
            f"{evidence}; memory that is freed later, as garbage is, grows so too",
            f"hold for {format_duration(long_hold_s)} or longer (--hold); "
            f"if it still grows, {_REMEDIES[metric]}",
        )
    if available_bytes is not None:
        lasts = _lasts(left_s, _FARTHEST * (to_s - from_s))
        available = f"the {format_bytes(available_bytes)} available on this host"
        evidence += f"; at that rate {available} {lasts}"
    low, high = ci95
    if high - low > 2 * SURE * bytes_per_hour:
        remedy = f"hold longer (--hold) for a closer rate; {_REMEDIES[metric]}"
    else:
        remedy = _REMEDIES[metric]
    return Words(evidence, remedy)


def _lasts(left_s: float, farthest_s: float) -> str:
    """How long available memory lasts; a time beyond ``farthest_s`` is not extrapolated."""
    if left_s > farthest_s:
        return f"lasts for {_FARTHEST} times as long or more: {_days(farthest_s)}"
    return f"is used up in {_days(left_s)}"


def _days(seconds: float) -> str:
    """A duration, from two days on in days."""
    if seconds < 48 * 3600:
        return format_duration(seconds)
    return f"{format_count(seconds / 86400)} days"


@finding("drift_unknown", "info")
def drift_unknown(
    metrics: Sequence[str],
    points: int,
    wanted: int,
    too_short: bool,
    left_by_events_s: float | None = None,
) -> Words:
    """Growth is unknown: the hold was too short, or events of the plan left too little of it, or
    too many minutes lack samples or have another number of connections. ``too_short``: whether
    there was too little time; ``left_by_events_s``: how much of it at most was without an event in
    one piece, where that is the reason (s).
    """
    unknown = f"growth unknown of {', '.join(_MEMORY[metric] for metric in metrics)}"
    if left_by_events_s is not None:
        return Words(
            f"{unknown}: the events of the plan leave {format_duration(left_by_events_s)} of the "
            f"hold at most without one: {format_many(points, 'point')}, {wanted} needed",
            "hold longer before or after the events; a command of the plan lasts until it has "
            "ended, so start in the background what is to go on",
        )
    if too_short:
        return Words(
            f"{unknown}: hold too short: {format_many(points, 'point')}, {wanted} needed",
            "hold longer (--hold)",
        )
    return Words(
        f"{unknown}: samples or connections are missing: {format_many(points, 'point')}, {wanted} "
        "needed",
        "see the other findings for what was lost or not read",
    )
