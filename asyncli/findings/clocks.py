"""Findings of the session's clocks: suspended, stood still, stepped."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.units import format_clock, format_duration


@finding("suspended", "warning")
def suspended(at_s: float, for_s: float, from_local: str, to_local: str) -> Words:
    """The machine that asyncli runs on slept. The run's clock stood still; what was silent for so long may be lost since."""
    return Words(
        f"this machine was suspended for {format_duration(round(for_s, 1))}, from {from_local} to {to_local} "
        f"({format_clock(at_s)} by the run's clock, which stood still): no heartbeat was sent meanwhile, and the server or a box "
        "on the way may have ended what was silent for so long",
        "keep it awake: systemd-inhibit asyncli ...",
    )


@finding("{whose}_stalled", "warning")
def stalled(whose: str, until_s: float, for_s: float) -> Words:
    """asyncli's session, or its agent, was stopped or got no CPU. The workers went on, and their counts are whole; samples are
    missing.
    """
    return Words(
        f"asyncli's own process stood still for {format_duration(round(for_s, 1))}, until {format_clock(until_s)}: there are no "
        "samples of that time; the workers went on, and what they counted waited in them, so the counts are whole",
        "see who stopped it (SIGSTOP), or leave it CPU and memory",
    )


@finding("clock_stepped", "info")
def clock_stepped(at_s: float, by_s: float, to_local: str) -> Words:
    """Somebody set the wall clock. asyncli times everything by the monotonic clock, which no step moves."""
    by = f"{'forward' if by_s > 0 else 'back'} by {format_duration(abs(round(by_s, 1)))}, to {to_local}"
    return Words(f"this machine's wall clock was stepped {by}, at {format_clock(at_s)}: nothing that asyncli times goes by it")
