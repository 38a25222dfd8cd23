"""Findings of clocks: the machine suspended, asyncli stopped, the wall clock stepped."""

from __future__ import annotations

from asyncli.findings import finding
from asyncli.model.units import format_clock, format_duration


@finding("suspended", "warning", "keep it awake: systemd-inhibit asyncli ...")
def suspended(at_s: float, for_s: float, from_local: str, to_local: str) -> str:
    """asyncli's machine was suspended: the run's clock stopped, no heartbeat was sent, and idle
    timeouts may have expired.
    """
    return (
        f"this machine was suspended for {format_duration(round(for_s, 1))}, from {from_local} to "
        f"{to_local} (run clock {format_clock(at_s)}): no heartbeats were sent, so the server or "
        "a middle box may have closed idle connections"
    )


@finding(
    "{whose}_stalled",
    "warning",
    "see what stopped it (SIGSTOP), or give it more CPU and memory",
    values="session or agent",
)
def stalled(whose: str, until_s: float, for_s: float) -> str:
    """asyncli's session or agent was stopped or got no CPU. Samples are missing; workers continued,
    with complete counts.
    """
    return (
        f"asyncli's own process was stopped for {format_duration(round(for_s, 1))}, until "
        f"{format_clock(until_s)}: samples are missing, counts are complete"
    )


@finding("clock_stepped", "info")
def clock_stepped(at_s: float, by_s: float, to_local: str) -> str:
    """The wall clock was set. asyncli measures by the monotonic clock, which a step does not
    change.
    """
    direction = "back"
    if by_s > 0:
        direction = "forward"
    step = format_duration(abs(round(by_s, 1)))
    return (
        f"the wall clock of this machine was set {direction} by {step} to {to_local} at "
        f"{format_clock(at_s)}; no measurement depends on it"
    )
