"""Findings of what a connection costs: where a cost is not known, or its interval is weaker than it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.units import format_bytes, format_count

#: How the method of a cost begins that is no slope: memory in the hold less memory before the first connection, by the
#: connections. A slope has none of what the first ones take once; and a server that has served before fills what it then freed.
LEVELS = "difference of two levels, with what the first connections take once, without what came out of freed memory"

#: The parts of a cost in words.
CALLED = {
    "server_user": "the server", "kernel": "the kernel", "kernel_queued": "queued buffers", "generator_user": "asyncli",
    "host_total": "this host in all", "residual": "what is left over", "listing": "inodes of /proc",
}  # fmt: skip

SETTLED = (
    "a plateau has settled when the medians of the third and the last quarter of its rest differ by no more than 1 % of the "
    "climb to it, or by no more than 2.5 deviations of the metric's own noise (that of its samples from one to the next, "
    "taken to wander)"
)

_SOURCES = {
    "server_user": "the server's processes",
    "kernel": "slab objects (/proc/slabinfo needs root)",
    "kernel_queued": "TCP buffers (/proc/net/sockstat)",
    "generator_user": "asyncli's own processes",
    "host_total": "{host} (/proc/meminfo)",
}


class Moved(TypedDict):
    """By how much memory still moved at rest on a plateau, and the ``share`` of the climb to it (None: there was none)."""

    plateau: int
    bytes: float
    share: float | None


def _called(names: Sequence[str]) -> str:
    return ", ".join(CALLED[name] for name in names)


@finding("descriptors_listed", "warning")
def descriptors_listed(bytes_per_connection: float, half_width: float) -> Words:
    """Another program lists the descriptors of processes, and the kernel keeps an inode and a dentry of /proc for each: memory
    that rises with the connections, and is left out of what they cost.
    """
    return Words(
        f"{bytes_per_connection:,.0f} B a connection (± {half_width:,.0f}) more are in use on this host, which are not counted "
        "above: inodes and dentries of /proc, left by a program that lists /proc/PID/fd, as monitoring agents do that count "
        "descriptors",
        "expect them where such a program runs, or have it count less often",
    )


@finding("cost_not_sampled", "info")
def cost_not_sampled(costs: Sequence[str], host: str) -> Words:
    """What these costs are reckoned from was not read in the ramp."""
    sources = ", ".join(_SOURCES[name].format(host=host) for name in costs)
    return Words(
        f"no cost is known of what was not sampled in the ramp: {sources}", "see the other findings for why it was not read"
    )


@finding("cost_residual_unknown", "info")
def cost_residual_unknown(needs: Sequence[str]) -> Words:
    """What the host uses for a connection beyond its known parts is not known: it ``needs`` a cost that is not known, or its
    parts were read at different times.
    """
    why = f"it needs the cost of {_called(needs)}" if needs else "its parts were not sampled together"
    return Words(f"what is left over is not known: {why}")


@finding("cost_few_points", "info")
def cost_few_points(
    points: int, wanted: int, levels: Sequence[str], unknown: Sequence[str], plateaus: int, plateaus_wanted: int, remedy: str
) -> Words:
    """The ramp gives too few points for a slope. Of the costs in ``levels`` there is the difference of memory before the first
    connection and with all of them instead; of those in ``unknown`` there is none.
    """
    evidence = f"the ramp was too short for a slope of memory ({points} points of the {wanted} that it wants)"
    if 0 < plateaus < plateaus_wanted:
        evidence = f"{plateaus} of the {plateaus_wanted} plateaus that a slope of memory wants, and {evidence}"
    parts = [f"the {LEVELS}, is the cost of {_called(levels)}"] if levels else []
    parts += [f"no cost is known of {_called(unknown)}"] if unknown else []
    return Words(f"{evidence}: {'; '.join(parts)}", remedy)


@finding("cost_of_a_part", "warning")
def cost_of_a_part(held: float, asked: int) -> Words:
    """The ramp did not come to the number that was asked for: its slope is known for what it reached."""
    return Words(
        f"the ramp came to {format_count(held)} of {format_count(asked)} connections: what one more costs is known for those, "
        "not for the rest",
        "see the other findings for what ended it, and run again",
    )


@finding("plateaus_too_few", "info")
def plateaus_too_few(reached: int, plateaus: int, wanted: int) -> Words:
    """Fewer plateaus were rested on to the end than a slope through them wants, so it goes through the seconds of the ramp."""
    return Words(
        f"{reached} of {plateaus} {'plateau was' if plateaus == 1 else 'plateaus were'} rested on to the end, and a slope wants "
        f"{wanted}: the seconds of the ramp were used instead",
        "let the ramp come to its end" if plateaus >= wanted else "--plateaus 5",
    )


@finding("plateau_unsettled", "warning")
def plateau_unsettled(moved: Mapping[str, Sequence[Moved]], rest_s: float) -> Words:
    """Memory still moved at the end of a plateau's rest; the interval of the cost is wide enough for as much again."""
    what = "; ".join(_moved(name, each) for name, each in moved.items())
    return Words(
        f"memory still moved in the last half of the rest: {what}; the interval is wide enough for as much again",
        f"rest longer: --plateau-rest {2 * rest_s:g}s",
    )


def _moved(name: str, moved: Sequence[Moved]) -> str:
    numbers = ", ".join(str(one["plateau"]) for one in moved)
    most = max(moved, key=lambda one: abs(one["bytes"]))
    share = most["share"]
    climb = f", {abs(share):.0%} of the climb to it" if share is not None and abs(share) < 10 else ""
    on = "plateau" if len(moved) == 1 else "plateaus"
    return f"of {CALLED[name]} on {on} {numbers} (by up to {format_bytes(most['bytes'])}{climb})"


@finding("cost_samples_gap", "warning")
def cost_samples_gap(gaps: Mapping[str, tuple[float, float]]) -> Words:
    """Nothing was read in a good part of the ramp, from when to when on the run's clock: the slope is taken from either side."""
    spans = ", ".join(f"of {CALLED[name]} from {begin:,.0f} s to {end:,.0f} s" for name, (begin, end) in gaps.items())
    return Words(
        f"no samples in a good part of the ramp: {spans}; the slope there is taken from what lies on either side",
        "see the other findings for why nothing was read",
    )
