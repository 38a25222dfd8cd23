"""Findings of the cost of a connection: why it is unknown, or less certain than its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.findings.collected import collect_flags
from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_count,
    format_each,
    format_many,
    format_measured,
    format_share,
)

#: The method of a cost that is no slope begins so: memory in the hold less memory before the first
#: connection, divided by the connections. Unlike a slope it includes one-time costs, and it misses
#: memory that the server had freed before.
LEVELS = "difference of two levels (including one-time costs, without reused memory)"

#: A number whose interval is wider than ± this share of it is not used as a number.
SURE = 0.5
#: The names of costs in sentences.
COST_NAMES = {
    "server_user": "the server",
    "kernel": "the kernel",
    "kernel_queued": "queued buffers",
    "generator_user": "asyncli",
    "behind": "what is behind the server",
    "host_total": "this host in all",
    "residual": "the residual",
    "listing": "inodes of /proc",
}

_SOURCES = {
    "server_user": "the server's processes",
    "kernel": "slab objects (/proc/slabinfo needs root)",
    "kernel_queued": "TCP buffers (/proc/net/sockstat)",
    "generator_user": "asyncli's own processes",
    "behind": "the processes behind the server",
    "host_total": "{host} (/proc/meminfo)",
}


class Moved(TypedDict):
    """How much memory changed at rest on a plateau, and its ``share`` of the climb to it (None: no
    climb).
    """

    plateau: int
    bytes: float
    share: float | None


def _called(names: Sequence[str]) -> str:
    listed = ", ".join(COST_NAMES[name] for name in names)
    return " and ".join(listed.rsplit(", ", 1))


@finding("descriptors_listed", "warning")
def descriptors_listed(
    bytes_per_connection: float, half_width: float, own: bool = False, by_page: bool = False
) -> Words:
    """A program reads /proc as connections come, and the kernel keeps an inode and a dentry for
    each file and descriptor that it looks at. The cost excludes this memory. Monitoring agents list
    the descriptors of processes. ``own``: the server has processes for its connections, and asyncli
    reads some ten files of each. ``by_page``: the server's page of metrics, which asyncli reads,
    says how many descriptors it has.
    """
    excluded = (
        f"excluded from the cost: {format_measured(bytes_per_connection, half_width)} of inodes "
        "and dentries of /proc"
    )
    if own:
        return Words(
            f"{excluded}: asyncli leaves them as it reads files of each process of the server "
            "(stat, smaps_rollup and others)",
            severity="info",
        )
    if by_page:
        return Words(
            f"{excluded}: the server leaves them as it counts its descriptors for its page of "
            "metrics, which asyncli reads",
            severity="info",
        )
    return Words(
        f"{excluded}, left by a program that lists /proc/PID/fd, as monitoring agents do",
        "stop programs that list /proc/PID/fd while you measure",
    )


@finding("processes_excluded", "info")
def processes_excluded(bytes_per_connection: float, half_width: float) -> str:
    """Processes that are neither the server's nor asyncli's took memory before the first connect,
    and at the same pace in the hold: it belongs to no connection. The cost excludes what they took
    in the ramp at that pace.
    """
    memory = format_measured(bytes_per_connection, half_width)
    return (
        f"excluded from the cost: {memory} that processes other than the server's and asyncli's "
        "took in the ramp, as they did before it and after it"
    )


@finding(
    "processes_rise",
    "warning",
    "run on a quiet host, or name these processes with --server-pid if they are the server's",
)
def processes_rise(bytes_per_connection: float, freed: bool) -> str:
    """Processes that are neither the server's nor asyncli's took memory while connections were
    opened, or some time later, or freed it. They may be a part of the server that holds no
    connection, or have nothing to do with it: the cost of the whole host, and the residual, reach
    from the host without that memory to the host with it. ``freed``: they freed it.
    """
    memory = f"{format_each(bytes_per_connection)} a connection"
    if freed:
        return (
            f"other processes freed {memory}, and whether they work for the server is unknown: the "
            "interval of the total reaches from the host with that memory to the host without it"
        )
    return (
        f"other processes took {memory}, and whether they work for the server is unknown: the "
        "interval of the total reaches from the host without that memory to the host with it"
    )


@finding(
    "shared_memory_rises",
    "warning",
    "end the programs that keep files in memory while you measure (browsers, databases), or use "
    "another host; if the server writes such files, they are a part of its cost",
)
def shared_memory_rises(bytes_per_connection: float, half_width: float) -> str:
    """Shared memory, or files in memory (tmpfs, /dev/shm), rose with the connections, and no
    process of the server has it mapped: the server may have written it. The server's cost reaches
    from without it to with all of it.
    """
    memory = format_measured(bytes_per_connection, half_width)
    return (
        f"shared memory on this host rose by {memory} in no process of the server (/dev/shm, "
        "tmpfs): the server may have written it, so the interval of its cost includes it"
    )


@finding("reclaimable_rises", "warning")
def reclaimable_rises(bytes_per_connection: float, half_width: float) -> str:
    """Memory of the server rose with the connections that the kernel can take back: pages of files
    that it has mapped, or memory that it has marked as free (MADV_FREE). A host needs it to be
    fast, not to hold the connections: the interval of the cost reaches from without it to with all
    of it.
    """
    memory = format_measured(bytes_per_connection, half_width)
    return (
        f"of the server's memory, {memory} that rose with the connections are pages of files, or "
        "marked as free: the kernel can take them back, so the interval of the cost reaches from "
        "without them to with them"
    )


@finding("cost_not_sampled", "info", "see the other findings for why it was not read")
def cost_not_sampled(costs: Sequence[str], host: str) -> Words:
    """The sources of these costs were not read in the ramp. asyncli-light computes no cost and no
    drift, because NumPy and SciPy are not installed; the run file has all that they need.
    ``costs``: which; none for asyncli-light.
    """
    if not costs:
        return Words(
            "cost per connection and drift not computed: NumPy and SciPy are not installed here",
            "run 'asyncli report RUN.db' on a host with all of asyncli (pip install asyncli)",
        )
    sources = ", ".join(_SOURCES[name].format(host=host) for name in costs)
    return Words(f"cost unknown of what was not sampled in the ramp: {sources}")


@finding("cost_sockets_closed", "info", "run again while no other program closes connections there")
def cost_sockets_closed(costs: Sequence[str]) -> str:
    """Memory freed by sockets that other programs closed hides some costs. ``costs``: which."""
    return (
        f"cost unknown of {_called(costs)}: "
        "other programs closed as many sockets as these connections opened, or more"
    )


@finding("cost_residual_unknown", "info")
def cost_residual_unknown(needs: Sequence[str]) -> str:
    """The residual per connection is unknown: a cost that it needs is unknown, or its parts were
    read at different times. ``needs``: which.
    """
    if needs:
        return f"the residual is unknown: it needs the cost of {_called(needs)}"
    return "the residual is unknown: its parts were not sampled together"


@finding("residual_large", "warning", "run on a quiet host, or ramp more slowly: --plateaus 8")
def residual_large(rest: float, usual: float, host: str) -> str:
    """More of the whole host's growth than usual is in no measured part: other programs may have
    taken it in the kernel, as in pipes, or the server did, as in pages that no process maps. The
    total's interval reaches from its parts to all of it.
    """
    return (
        f"{format_bytes(rest)} a connection on {host} are in no measured part, "
        f"more than usual (at most {format_bytes(usual)}): "
        "they may be another program's; the interval of the total reaches down to its parts"
    )


@finding("cost_few_points", "info")
def cost_few_points(
    points: int,
    wanted: int,
    levels: Sequence[str],
    unknown: Sequence[str],
    plateaus: int,
    plateaus_wanted: int,
    remedy: str,
    replaced_s: float | None = None,
) -> Words:
    """The ramp has too few samples for a slope. Costs are the difference of memory before the first
    connection and with all of them, or are unknown. ``levels``: those that are a difference;
    ``unknown``: the unknown ones. ``replaced_s``: when processes of the server that held
    connections ended, or others replaced them, before all connections were open.
    """
    evidence = f"ramp too short for a slope: {format_many(points, 'sample')}, {wanted} needed"
    if replaced_s is not None:
        evidence = (
            "the server's processes ended, or others replaced them, after "
            f"{format_clock(replaced_s)}, in the ramp: {format_many(points, 'sample')} until then, "
            f"{wanted} needed for a slope"
        )
        remedy = "see the server's log of that moment, and run again"
    elif 0 < plateaus < plateaus_wanted:
        too_few = f"{format_many(plateaus, 'plateau')}, {plateaus_wanted} needed for a slope"
        evidence = f"{too_few}; {evidence}"
    parts = []
    if levels:
        # That of a total of two levels is unknown.
        costs = [name for name in levels if name != "residual"]
        parts.append(f"the cost of {_called(costs)} is the {LEVELS}")
    if "host_total" in levels:
        parts.append(
            "the residual is unknown, because the memory of the whole host includes other programs"
        )
    if unknown:
        parts.append(f"cost unknown of {_called(unknown)}")
    return Words(f"{evidence}: {'; '.join(parts)}", remedy)


@finding(
    "cost_of_a_part",
    "warning",
    "see the other findings for what ended or disturbed the ramp, and run again",
)
def cost_of_a_part(held: float, asked: int) -> str:
    """The ramp did not reach the planned number, or processes of the server ended with connections
    before it did: the cost is known only up to what it reached until then.
    """
    return (
        f"the cost is of the first {format_count(held)} of {format_count(asked)} connections: "
        "that of the rest is unknown"
    )


@finding("cost_short_lived", "warning", "see the other findings for what ended them")
def cost_short_lived(within_s: float) -> str:
    """Connections lived too briefly: memory is read every second or two, and does not show how many
    were open.
    """
    return (
        f"cost per connection unknown: connections were lost, on average within {within_s:g} s, "
        "too soon to show in memory"
    )


@finding("cost_reused", "warning", "restart the server before the run")
def cost_reused(connections: int) -> str:
    """The server was used before the run: memory that it kept serves new connections, so their cost
    would be too low. Its accepts tell of that use, or its table of descriptors (FDSize of
    /proc/PID/status), which grows with them and never shrinks.
    """
    return (
        f"the server may have held up to {format_count(connections)} connections at once before "
        "this run, and would reuse the memory that it kept of them: its cost of a connection is "
        "unknown"
    )


@finding("cost_in_earlier_memory", "warning")
def cost_in_earlier_memory(server: str, size: float, each: float, with_first: bool) -> Words:
    """The server has memory in advance that its connections may use: it held them while its memory
    did not measurably rise, or its first ones took more than all others. The interval of its cost
    reaches to all of that. ``size``: bytes that it had before the first connect, or took with the
    first connections (``with_first``); ``each``: these by the connections.
    """
    if with_first:
        return Words(
            f"{server} took {format_bytes(size)} with its first connections, more than with all "
            "others: further ones may use that (a pool, an arena, a huge page), up to "
            f"{each:,.0f} B each; how many connections fit there is unknown",
            "open many times as many connections, so that it takes such a piece again",
        )
    return Words(
        f"memory of {server} did not measurably rise with the connections that it held: they may "
        f"use the {format_bytes(size)} that it had before the first connect (a heap touched in "
        f"advance, a pool, fixed tables), up to {each:,.0f} B each; how many connections fit "
        "there is unknown",
        "start the server without such a heap or pool (Java: without -XX:+AlwaysPreTouch), or "
        "read its own count of used memory",
    )


@finding(
    "cost_bent",
    "warning",
    "open as many connections as the server is to hold; --plateaus 8 shows the bend",
)
def cost_bent(cost: str, mean: float, last_ones: float, half: float, most: float) -> str:
    """The memory does not rise in a straight line over the connections: the last ones cost more, or
    less, than all of them on average. The interval of the cost reaches to that of the last ones.
    Where these cost more, no number of connections beyond the measured ones can be told. ``cost``:
    which; ``mean``, ``last_ones``: bytes of one connection on average, and at the end, ``half``:
    half of the 95 % interval at the end; ``most``: how many were held.
    """
    at_last = f"{last_ones:,.0f} B" if last_ones > 0 else "next to nothing"
    evidence = (
        f"the memory of {COST_NAMES[cost]} does not rise in a straight line: a connection cost "
        f"{mean:,.0f} B on average, one of the last {at_last} (± {half:,.0f} B, with {most:,.0f} "
        "held)"
    )
    if last_ones > mean:
        return f"{evidence}; each further connection may cost still more; how much more is unknown"
    return evidence


@finding("cost_if_fresh", "info")
def cost_if_fresh(at_most: int | None, page: bool) -> Words:
    """The server may have held connections before the run: memory that it kept of them makes its
    cost too low. Its accepts would tell, or its table of descriptors, if that were small against
    the connections of this run. ``at_most``: by that table. ``page``: a status page was read; it
    counts no accepts.
    """
    count = "connections" if at_most is None else f"up to {format_many(at_most, 'connection')}"
    evidence = (
        "these costs are right only for a fresh server: "
        f"whether it had held {count} before cannot be seen"
    )
    if page:
        return Words(evidence, "restart the server before the run")
    return Words(evidence, "restart the server before the run, or give --status-url")


@finding(
    "memory_after_ramp",
    "warning",
    "ramp more slowly, so that the line shows it (--plateaus 5 --plateau-rest 30s)",
)
def memory_after_ramp(moved: Mapping[str, float], held: float, rest_s: float) -> Words:
    """The line of the ramp does not predict the memory at the hold's end, so the interval of the
    cost reaches to it: memory that a server takes for a connection some time after its accept, or
    at a later request, is in no slope, and neither is a leak. ``moved``: how many bytes it was
    above the line (below zero: under it), with ``held`` connections; ``rest_s``: how long each
    plateau rested, 0 without any. An info if it is only the whole host's, which includes other
    programs'.
    """
    changes = []
    for name, change in moved.items():
        side = {True: "above", False: "below"}[change > 0]
        amount = format_bytes(abs(change))
        per_connection = format_bytes(abs(change) / held)
        changes.append(
            f"that of {COST_NAMES[name]} is {amount} {side} it ({per_connection} a connection)"
        )
    evidence = (
        f"the memory at the hold's end is not what the ramp predicts: {', '.join(changes)}; "
        "the interval of the cost reaches to that memory"
    )
    is_of_host_alone = not {*moved} - {"host_total"}
    remedy = f"rest longer: --plateau-rest {2 * rest_s:g}s" if rest_s else ""
    return Words(evidence, remedy, "info" if is_of_host_alone else None)


@finding("heap_collected", "info")
def heap_collected(
    server: str, runtime: str, kind: str, pages: Sequence[str], remedy_of_failed: str | None
) -> Words:
    """The server's memory was read of its processes, and its runtime frees memory by a tracing
    collector: what is resident has garbage in it, and free room that the heap fills before the next
    collection. Its own metrics tell what is live. ``runtime``: its name and version; ``kind``:
    go, node, jvm or another; ``pages``: its pages of metrics, which do not; ``remedy_of_failed``:
    that of collections that were asked for in vain; null: none were asked for.
    """
    # Go does not give memory back before its heap has reached its goal.
    than_this = "more than this" if kind == "go" else "more or less than this"
    evidence = (
        f"{runtime} collects the heap of {server} now and then: at rest it may take {than_this}, "
        "and less is alive; neither was read"
    )
    if pages:
        evidence += f" ({' and '.join(pages)} has no heap)"
    remedies = []
    if not pages:
        remedies.append("name its page of metrics (--server-metrics URL)")
    asking = collect_flags(kind)
    if remedy_of_failed is not None:
        remedies.append(f"for collections: {remedy_of_failed}")
    elif asking:
        remedies.append(f"ask for collections ({asking}), which show what is alive")
    elif pages:
        remedies.append("name a page that has it (--server-metrics URL)")
    return Words(evidence, ", or ".join(remedies))


@finding("plateau_unsettled", "warning")
def plateau_unsettled(moved: Mapping[str, Sequence[Moved]], rest_s: float) -> Words:
    """Memory still changed at the end of a plateau's rest; the interval of the cost includes as
    much again.
    """
    changes = "; ".join(_moved(name, plateaus) for name, plateaus in moved.items())
    return Words(
        f"memory still changed in the last half of the rest: {changes}; the interval includes as "
        "much again",
        f"rest longer: --plateau-rest {2 * rest_s:g}s",
    )


def _moved(name: str, moved: Sequence[Moved]) -> str:
    numbers = ", ".join(str(change["plateau"]) for change in moved)
    largest = max(moved, key=lambda change: abs(change["bytes"]))
    amount = f"by up to {format_bytes(abs(largest['bytes']))}"
    share = largest["share"]
    if share is not None and abs(share) < 10:
        amount += f", {format_share(abs(share))} of the climb to it"
    if len(moved) == 1:
        return f"of {COST_NAMES[name]} on plateau {numbers} ({amount})"
    return f"of {COST_NAMES[name]} on plateaus {numbers} ({amount})"
