"""What a server that holds connections takes, how many of them fit, and what stops the next one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from asyncli.errors import HostError
from asyncli.experiments.record import Round
from asyncli.units import format_bytes


class Shape(NamedTuple):
    """How a server holds: by events, a process or a thread for each connection; in ``pool``, made before the first one.

    ``many``: its descriptors and memory maps are those of several processes. ``guess_bytes``: more than a connection takes on
    a host with both ends, to keep a ladder within the memory there is.
    """

    holds: Literal["event", "process", "thread"]
    guess_bytes: int
    pool: bool = False
    many: bool = False


MIB = 1 << 20
SHAPES = {
    "nginx": Shape("event", 16_000, many=True),
    "nginx-proxy": Shape("event", 16_000, many=True),
    "haproxy": Shape("event", 20_000),
    "apache-event": Shape("event", 24_000, many=True),
    "builtin": Shape("event", 24_000, many=True),
    "asyncio": Shape("event", 24_000),
    "apache-prefork": Shape("process", 2 * MIB, pool=True, many=True),
    "fork": Shape("process", 400_000, many=True),
    "prefork": Shape("process", 400_000, pool=True, many=True),
    "thread": Shape("thread", 100_000),
    "thread-pool": Shape("thread", 100_000, pool=True),
    "thread-queue": Shape("thread", 100_000, pool=True),
}
# A third of the memory that is free, and never more: this is a host on which others work.
_SHARE_OF_FREE = 1 / 3
# A slope with a wider interval than this is no ground to divide by.
_SURE = 0.5
# What a server of one process has open besides its connections, and some to spare.
_OWN_DESCRIPTORS = 100
# A push asks for so much more than is reckoned.
_BEYOND = 1.3


def fitting(name: str, plan: dict[str, Any], free_bytes: float) -> int:
    """Connections for a server's ladder: as many as were asked for, within its kind and a third of the free memory.

    Raises :class:`HostError` where that is fewer than a ladder has steps.
    """
    shape = SHAPES[name]
    asked = plan["connections"] if shape.holds == "event" else min(plan["connections"], plan["members"])
    many = min(asked, int(free_bytes * _SHARE_OF_FREE / shape.guess_bytes))
    if many < plan["plateaus"]:
        raise HostError(f"{format_bytes(free_bytes)} of free memory are too few for a ladder on {name}; free some")
    return int(many)


def priced(
    shape: Shape, found: dict[str, Any], start_bytes: float, workers: int, alone: Sequence[float] | None
) -> dict[str, float | None]:
    """``member``: what a process or thread of a pool took at the start; ``each``: with it, all that a connection takes.

    ``alone``: what the smallest pool takes at the start, and its members; unknown, the program's fixed cost is in ``member``.
    """
    own = found["own"]
    if not shape.pool:
        return {"member": None, "each": own}
    member = start_bytes / max(1, workers)
    if alone is not None and workers > alone[1]:
        member = max(0.0, start_bytes - alone[0]) / (workers - alone[1])
    return {"member": member, "each": None if own is None else own + member}


def sure(one: Round) -> bool:
    """Whether what a connection takes in all is known well enough to divide by it."""
    each, half = one.get("each"), one.get("own_half")
    return each is not None and half is not None and each > 0 and half <= _SURE * each


class HoldingLimit(NamedTuple):
    """So many connections, and what ends there, of its kind and in words; with an interval where it has one."""

    number: float
    kind: Literal["memory", "descriptors", "ids", "maps"]
    words: str
    least: float | None = None
    most: float | None = None


def memory_stop(one: Round, limit_bytes: float) -> HoldingLimit | None:
    """How many fit into ``limit_bytes`` on the server's side; None where its slope is not known to ± 50 %."""
    if not sure(one):
        return None
    each, half = one["each"], one["own_half"]
    # Of a pool's start each counts the members already.
    fixed = one["start"] - (one["workers"] * one["member"] if one.get("member") is not None else 0.0)
    room = limit_bytes - max(0.0, fixed)
    if room <= 0:
        return HoldingLimit(0.0, "memory", "memory, all of which its start takes", 0.0, 0.0)
    least, most = (math.floor(room / one_takes) for one_takes in (each + half, each - half))
    return HoldingLimit(math.floor(room / each), "memory", "memory", least, most)


def aimed(shape: Shape, one: Round, limit_bytes: float, free_bytes: float) -> int:
    """Connections to ask of a server in a limit that should not hold them all: what its one process and this host allow."""
    first = stops(shape, one, limit_bytes)[0].number
    free = free_bytes * _SHARE_OF_FREE / max(1.0, one["host"] or shape.guess_bytes)
    descriptors = math.inf if shape.many or not one.get("nofile") else one["nofile"] - _OWN_DESCRIPTORS
    return max(1, math.ceil(min(_BEYOND * first, free, descriptors)))


def ramp_of(connections: int, within_s: float) -> str:
    """The ramp of a plan that opens so many in no more than ``within_s``, by batches 10 ms apart or, of one, farther."""
    rate = connections / within_s
    batch = max(1, math.ceil(rate / 100))
    return f"{batch}/{max(1, math.floor(1000 * batch / rate))}ms"


def charged_alone(shape: Shape, one: Round) -> Round:
    """A round with what its group is charged as what a connection takes; as it is where that was not read."""
    if one.get("charge") is None:
        return one
    found = {**one, "own": one["charge"], "own_half": one["charge_half"]}
    return found | priced(shape, found, one["start"], one["workers"], one.get("alone"))


def stops(shape: Shape, one: Round, limit_bytes: float) -> list[HoldingLimit]:
    """Every stop that is known of a server, the first one first."""
    found = [memory_stop(one, limit_bytes)]
    of_what = "of a pool that is to be as large" if shape.pool else ""
    if found[0] is not None:
        found[0] = found[0]._replace(words=f"{found[0].words}, {of_what}".rstrip(", "))
    if shape.holds != "process" and one.get("nofile"):
        count = one.get("workers") or 1 if shape.many else 1
        words = (
            "descriptors of its one process" if count == 1 else f"descriptors of its {count} processes (more of them hold more)"
        )
        found.append(HoldingLimit(one["nofile"] * count, "descriptors", words))
    if shape.holds != "event":
        ids = [number for number in (one.get("pid_max"), one.get("threads_max")) if number]
        if ids:
            members = "processes" if shape.holds == "process" else "threads"
            found.append(HoldingLimit(min(ids), "ids", f"ids for {members} (kernel.pid_max)"))
    if shape.holds == "thread" and one.get("map_max"):
        # A stack and its guard page.
        words = "memory maps of one process (vm.max_map_count): two for each thread"
        found.append(HoldingLimit(one["map_max"] // 2, "maps", words))
    return sorted((stop for stop in found if stop is not None), key=lambda stop: stop.number)


def why_it_stopped(one: Round) -> str:
    """What a push came to, in words."""
    held = f"{one['most']:,} held at most, in {format_bytes(one['used_at_most'])}"
    lost = ", ".join(
        f"{count:,} {CAUSES.get(cause, cause)}" for cause, count in sorted(one["causes"].items(), key=lambda pair: -pair[1])
    )
    then = f"; then {lost}" if lost else ""
    if one["killed"]:
        what = "a process" if one["killed"] == 1 else f"{one['killed']:,} processes"
        return f"{held}{then}: the kernel killed {what} of it for want of memory"
    if one["complaint"]:
        return f"{held}{then}: it says {one['complaint'].removesuffix(' (said once)')!r}"
    if one["stopped"]:
        what = f"the kernel refused it memory {one['refused']:,} times" if one["refused"] else "its limit of memory was not met"
        return f"{held}{then}: {what}"
    of_all = (
        "all that it was asked for" if one["most"] >= 0.999 * one["asked"] else f"of {one['asked']:,}, in the time it was given"
    )
    return f"{held}: nothing stopped it ({of_all})"


CAUSES = {
    "closed_idle": "closed by the server", "closed_awaiting": "closed instead of an answer", "reset": "reset",
    "refused": "refused", "heartbeat_timeout": "without an answer in time", "connect_timeout": "not accepted",
}  # fmt: skip


def mib(limit_bytes: float) -> str:
    """A limit in words."""
    return f"{limit_bytes / MIB:,.0f} MiB"
