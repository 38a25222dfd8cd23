"""Findings of a host that others use too."""

from __future__ import annotations

from asyncli.findings import Words, finding


@finding("host_busy", "warning")
def host_busy(cpus: int, busy_cores: float, others_cores: float, before: bool | None) -> Words:
    """All CPUs of asyncli's host were busy, a good part of them with programs that are neither asyncli nor the server. What used
    as much ``before`` the first connect is no work of the server's; what used less, or was not seen then (None), may be its
    backend.
    """
    busy = f"{min(1.0, busy_cores / cpus):.0%} busy"
    evidence = f"this host's {cpus} CPUs were {busy}, {others_cores:.1f} of them with other programs"
    if before:
        return Words(
            f"{evidence}: latencies are longer than the server's own",
            "stop those programs, or run asyncli and the server on quiet hosts",
        )
    return Words(
        f"{evidence}, which {'were not seen' if before is None else 'used less'} before the first connect",
        "if they do not work for the server, latencies are longer than its own: stop them, and run again",
    )


@finding("host_shared", "warning")
def host_shared(host: str, ours: int, others: int) -> Words:
    """Between the baseline and the hold's end other programs opened ``others`` TCP sockets more than they closed (below 0:
    fewer), by the kernel's count: its memory and the whole host's are theirs too.
    """
    did = "opened" if others > 0 else "closed"
    return Words(
        f"while our connections took {ours:,} sockets on {host}, others {did} {abs(others):,}: what is said here of the kernel, "
        f"of {host} in all and of what is left over counts those too",
        f"run again while nothing else on {host} opens connections",
    )
