"""Findings of asyncli's host: other programs, its clocks, a suspended machine; limits of host and server against the plan."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.records import Severity
from asyncli.units import format_bytes, format_clock, format_duration


@finding("host_busy", "warning")
def host_busy(
    cpus: int, busy_cores: float, others_cores: float, before: bool | None, span_s: tuple[float, float], times: int
) -> Words:
    """All CPUs of asyncli's host were busy, a good part of them with programs other than asyncli and the server, or with other
    guests of its hypervisor: in the longest of ``times`` stretches. Programs that used as much ``before`` the first connect do
    not work for the server; others (None: not measured then) may be its backend.
    """
    when = f"from {format_clock(span_s[0])} to {format_clock(span_s[1])}"
    more = f" (the longest of {times} times)" if times > 1 else ""
    evidence = (
        f"this host's {cpus} CPUs were {min(1.0, busy_cores / cpus):.0%} busy {when}{more}, {others_cores:.1f} of them with "
        "other programs or guests (steal)"
    )
    if before:
        return Words(f"{evidence}: latencies include it", "stop those programs, or use quiet hosts")
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


@finding("suspended", "warning", "keep it awake: systemd-inhibit asyncli ...")
def suspended(at_s: float, for_s: float, from_local: str, to_local: str) -> str:
    """asyncli's machine was suspended. The run's clock stopped and no heartbeat was sent, so idle timeouts may have closed
    connections.
    """
    return (
        f"this machine was suspended for {format_duration(round(for_s, 1))}, from {from_local} to {to_local} (run clock "
        f"{format_clock(at_s)}): no heartbeats were sent, so the server or a middle box may have closed idle connections"
    )


@finding("{whose}_stalled", "warning", "see what stopped it (SIGSTOP), or give it more CPU and memory")
def stalled(whose: str, until_s: float, for_s: float) -> str:
    """asyncli's session or agent was stopped or got no CPU. Samples are missing; the workers continued and their counts are
    complete.
    """
    return (
        f"asyncli's own process was stopped for {format_duration(round(for_s, 1))}, until {format_clock(until_s)}: samples are "
        "missing, counts are complete"
    )


@finding("clock_stepped", "info")
def clock_stepped(at_s: float, by_s: float, to_local: str) -> str:
    """The wall clock was set. asyncli measures by the monotonic clock, which a step does not change."""
    by = f"{'forward' if by_s > 0 else 'back'} by {format_duration(abs(round(by_s, 1)))} to {to_local}"
    return f"the wall clock of this machine was set {by} at {format_clock(at_s)}; no measurement depends on it"


_SEVERITIES: dict[str, Severity] = {"short": "error", "unknown": "info"}


@finding("preflight_{check}", "warning")
def preflight(
    check: str, verdict: str, what: str, have: float | None, need: float | None, unit: str, detail: str, remedy: str
) -> Words:
    """A limit of this host or of the server may be too low for the plan. ``verdict``: with "short" the run fails for certain,
    with "warn" it may, with "unknown" asyncli could not read the limit. ``have`` and ``need`` are in ``unit``.
    """
    said = ", ".join(f"{_amount(one, unit)} {word}" for one, word in ((have, "available"), (need, "needed")) if one is not None)
    evidence = "; ".join(part for part in (f"{what}: {said}" if said else what, detail) if part)
    return Words(evidence, remedy, _SEVERITIES.get(verdict))


def _amount(number: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(number)
    # The check's name has the unit of a count.
    return f"{number:,.10g} {unit}" if unit in ("s", "a second") else f"{number:,.10g}"
