"""Findings of unknown numbers, and why they are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from asyncli.findings import Words, finding
from asyncli.model.units import format_bytes


@finding("server_numbers_unknown", "info")
def server_numbers_unknown(unknown: Sequence[str], can_be_named: bool) -> Words:
    """These numbers of the server's processes were not read. ``can_be_named``: a flag that names
    the processes would help.
    """
    remedy = ""
    if can_be_named:
        remedy = "name the server's processes with --server-pid, --server-pidfile or --server-name"
    return Words(f"unknown of the server's processes: {', '.join(unknown)}", remedy)


@finding("generator_numbers_unknown", "info")
def generator_numbers_unknown(unknown: Sequence[str]) -> str:
    """These numbers of asyncli's own processes are unknown."""
    return (
        f"unknown of asyncli: {', '.join(unknown)} (not sampled, nothing held, or no heartbeat "
        "answered in the hold)"
    )


@finding(
    "counts_unknown",
    "warning",
    "see that the run file's disk has room and no limit (ulimit -f), and run again",
)
def counts_unknown() -> str:
    """The run file has no record of the connections: it could not be written, or the run was killed
    at its start.
    """
    return (
        "the run file has no record of its connections, so how many were opened, held or lost is "
        "unknown"
    )


@finding("nothing_to_measure", "info")
def nothing_to_measure(
    of: Literal["ramp", "latency", "event"], number: int = 0, chosen: int = 0
) -> Words:
    """The ramp opened no connection, so it has no rate; or no heartbeat was sent and answered, so
    there is no latency; or, a warning, an event of the plan took none of the connections that were
    chosen for it. ``number``: of the event; ``chosen``: how many these were.
    """
    if of == "event":
        return Words(
            f"event {number} took nobody, and shows nothing: each of the {chosen:,} chosen was not "
            "connected, or in another event",
            "have it come after the others are over, or choose fewer for these",
            "warning",
        )
    if of == "ramp":
        return Words("the ramp has no rate: it opened no connection")
    return Words("latency is unknown: no heartbeat was answered")


@finding("residue_unknown", "info")
def residue_unknown(of: Sequence[str], drained: bool, lacks: Sequence[str]) -> Words:
    """Memory after the drain is unknown. ``of``: of what; ``drained``: the run drained; ``lacks``:
    phases that were not planned.
    """
    if not drained:
        return Words("memory after the drain is unknown: the run ended before its drain")
    remedy = "see the other findings for why"
    if lacks:
        flags = [f"--{phase}" for phase in lacks]
        remedy = f"plan some seconds of {' and '.join(flags)}"
    return Words(
        f"memory after the drain is unknown of {', '.join(of)}: "
        "it was not read both before and after",
        remedy,
    )


@finding(
    "cost_of_others",
    "warning",
    "run on a quiet host, name processes of the server that were not found (--server-pid), or ramp "
    "more slowly: --plateaus 8",
)
def cost_of_others(rest: float, total: float) -> str:
    """The whole host's cost is unknown: most of it is in none of the measured parts. It is other
    programs' memory, or the memory of a server that was not read.
    """
    of_total = f"{format_bytes(rest)} of {format_bytes(total)} a connection"
    return (
        f"{of_total} are in no measured part and may be other programs': the cost on the whole "
        "host is unknown"
    )


@finding("cost_grew", "info", "ramp more slowly (--ramp), or see what grows")
def cost_grew(of: str, grew: Mapping[str, str]) -> str:
    """A cost from two memory levels is unknown, because memory grew in the hold. ``grew``: whose
    memory, and by how much.
    """
    growing = " and ".join(grew)
    return (
        f"cost per connection unknown for {of}: memory of {growing} grows, which a difference of "
        "two levels includes"
    )
