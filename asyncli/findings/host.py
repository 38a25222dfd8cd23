"""Findings of a host that other programs use as well."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_clock, format_share


@finding("host_busy", "warning")
def host_busy(
    cpus: int,
    busy_cores: float,
    others_cores: float,
    before: bool | None,
    span_s: tuple[float, float],
    times: int,
) -> Words:
    """All CPUs of asyncli's host were busy, many of them with programs other than asyncli and the
    server, or with other guests of its hypervisor. Programs that used as much before the first
    connect do not work for the server; others may be its backend. ``times``: of so many periods
    this is the longest; ``before``: what they used before (None: not measured).
    """
    when = f"from {format_clock(span_s[0])} to {format_clock(span_s[1])}"
    if times > 1:
        when += f" (the longest of {times} times)"
    busy = format_share(min(1.0, busy_cores / cpus))
    evidence = (
        f"this host's {cpus} CPUs were {busy} busy {when}, {others_cores:.1f} of them with other "
        "programs or guests (steal)"
    )
    if before:
        return Words(f"{evidence}: latencies include it", "stop those programs, or use quiet hosts")
    then = "were not measured" if before is None else "used less"
    return Words(
        f"{evidence}, which {then} before the first connect",
        "unless they work for the server, latencies include their load: stop them and run again",
    )


@finding(
    "server_throttled",
    "warning",
    "raise its quota (systemd CPUQuota=, docker --cpus, limits.cpu of Kubernetes), or take it away",
)
def server_throttled(server: str, cpus: float, throttled: int, periods: int) -> str:
    """The server's control group, or one above it, has a quota of CPU, and used it up while
    connections were held: then all its processes waited for the next period, as a rule for up to
    0.1 s. ``cpus``: cores that it may use on average; ``periods``: those with work to do,
    ``throttled``: of these, in which the quota was used up.
    """
    return (
        f"{server} may use {cpus:.3g} cores (its control group's quota, cpu.max), and had used "
        f"them up in {throttled:,} of {periods:,} periods: its processes waited for the next one, "
        "and latencies and timeouts include that"
    )


@finding("host_shared", "warning")
def host_shared(host: str, ours: int, others: int, perhaps_proxy: bool) -> Words:
    """From the baseline to the hold's end other programs opened more TCP sockets than they closed,
    or closed more, by the kernel's count. The memory of the kernel and of the whole host includes
    theirs. ``others``: how many more (below 0: closed more); ``perhaps_proxy``: as many as a proxy
    opens to its backend, and the server's descriptors, which would show it, are unknown.
    """
    did = "closed"
    effect = "are lower by the memory of those sockets"
    if others > 0:
        did = "opened"
        effect = "include the memory of those sockets"
    who = (
        "other programs, or the server as a proxy (unknown)," if perhaps_proxy else "other programs"
    )
    beside = f"while asyncli's connections took {ours:,}"
    if not ours:
        beside = "and none of asyncli's connections was left"
    return Words(
        f"{who} {did} {abs(others):,} sockets on {host} {beside}: "
        f"the memory of the kernel and of {host} in all, and the residual, {effect}",
        f"run again while no other program on {host} opens or closes connections",
    )


@finding("upstream_sockets", "info")
def upstream_sockets(host: str, ours: int, others: int) -> Words:
    """From the baseline to the hold's end other programs opened more TCP sockets than they closed,
    most were gone after the drain, and the server took two descriptors for each connection, like a
    proxy with a backend. ``others``: how many more.
    """
    return Words(
        f"{others:,} other sockets on {host} were opened and closed with asyncli's {ours:,}, "
        "those of a proxy to its backend: the kernel's cost is per socket of all these, and the "
        f"cost of {host} in all includes them"
    )
