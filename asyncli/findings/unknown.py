"""Findings of numbers that a report does not know, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncli.findings import Words, finding


@finding("server_numbers_unknown", "info")
def server_numbers_unknown(unknown: Sequence[str], can_be_named: bool) -> Words:
    """Of the server's processes these numbers were not read. ``can_be_named``: a flag that names the processes would help."""
    return Words(
        f"of the server's processes these are not known: {', '.join(unknown)}",
        "name the server's processes with --server-pid, --server-pidfile or --server-name" if can_be_named else "",
    )


@finding("generator_numbers_unknown", "info")
def generator_numbers_unknown(unknown: Sequence[str]) -> Words:
    """These numbers of asyncli's own processes are not known."""
    return Words(
        f"not known of the generator: {', '.join(unknown)} (no samples of the generator's processes, nothing held, or no "
        "heartbeat answered in the hold)"
    )


@finding("ramp_unknown", "info")
def ramp_unknown() -> Words:
    """The ramp opened no connection, so it has no rate."""
    return Words("no rate was achieved: the ramp opened nothing")


@finding("latency_unknown", "info")
def latency_unknown() -> Words:
    """No heartbeat was answered or waited for, so there is no latency."""
    return Words("latencies are not known: no heartbeat was answered, or waited for")


@finding("residue_unknown", "info")
def residue_unknown(of: Sequence[str], drained: bool, planned: bool) -> Words:
    """What memory stays after the drain is not known ``of`` these. ``drained``: the run came so far; ``planned``: it had a
    baseline and a residue to read it in.
    """
    if not drained:
        return Words("what stays after the drain is not known: the run never came so far")
    return Words(
        f"what stays after the drain is not known of {', '.join(of)}: it was not read both before and after",
        "see the other findings for why" if planned else "keep a --baseline and a --residue of some seconds",
    )


@finding("cost_grew", "info")
def cost_grew(of: str, grew: Mapping[str, str]) -> Words:
    """What a connection costs is left out, as memory grew in the hold and a difference of two levels counts that as cost.
    ``grew``: whose memory, and by how much.
    """
    each = ", ".join(f"memory of {whose} {by}" for whose, by in grew.items())
    return Words(
        f"what a connection costs {of} is not known: {each}, and a difference of two levels holds that too",
        "ramp more slowly (--ramp), or see what grows",
    )
