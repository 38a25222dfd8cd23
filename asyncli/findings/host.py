"""Findings of a host that other programs use too."""

from __future__ import annotations

from asyncli.findings import Words, finding


@finding("host_busy", "warning")
def host_busy(cpus: int, busy_cores: float, others_cores: float, before: bool | None) -> Words:
    """All CPUs of asyncli's host were busy, a good part of them with programs other than asyncli and the server. Programs that
    used as much ``before`` the first connect do not work for the server; others (None: not measured then) may be its backend.
    """
    busy = f"{min(1.0, busy_cores / cpus):.0%} busy"
    evidence = f"this host's {cpus} CPUs were {busy}, {others_cores:.1f} of them with other programs"
    if before:
        return Words(f"{evidence}: latencies include this load", "stop those programs, or use quiet hosts")
    then = "were not measured" if before is None else "used less"
    return Words(
        f"{evidence}, which {then} before the first connect",
        "unless they work for the server, latencies include their load: stop them and run again",
    )


@finding("host_shared", "warning")
def host_shared(host: str, ours: int, others: int) -> Words:
    """From the baseline to the hold's end other programs opened ``others`` more TCP sockets than they closed (below 0: closed
    more), by the kernel's count. The memory of the kernel and of the whole host includes theirs.
    """
    did = "opened" if others > 0 else "closed"
    return Words(
        f"other programs {did} {abs(others):,} sockets on {host} while our connections took {ours:,}: the memory of the kernel, "
        f"of {host} in all and the residual include theirs",
        f"run again while no other program on {host} opens connections",
    )
