"""Findings of the agent on the server's host."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_clock, format_duration


@finding("agent", "info")
def agent(url: str, server: str, where: str, error_s: float) -> str:
    """An agent on the server's host takes its samples. ``error_s``: how far the time of a sample
    may be off.
    """
    return (
        f"the agent at {url} samples {server} on {where}; its clock is known to ± "
        f"{format_duration(error_s)}"
    )


@finding("agent_in_the_clear", "warning", "start the agent with --tls-cert and use https://")
def agent_in_the_clear(url: str) -> str:
    """The connection to the agent is not encrypted: anyone on the network path can read its
    token.
    """
    return f"the token of the agent at {url} is sent unencrypted"


@finding("agent_restarted", "warning", "see the agent's log for why it ended")
def agent_restarted(url: str, at_s: float) -> str:
    """Another agent process answers than before; its counters are added to those of the first."""
    return f"the agent at {url} was restarted at {format_clock(at_s)}; its counters are continued"


@finding("agent_lost", "warning")
def agent_lost(from_s: float, why: str, keeps_s: float) -> Words:
    """The agent does not answer. It buffers some minutes of samples, so a gap is known only when it
    answers again.
    """
    return Words(
        f"no contact with the agent since {format_clock(from_s)}: {why}",
        f"the agent buffers {format_duration(keeps_s)} of samples; agent_gap reports what is "
        "missing in the end",
    )


@finding("agent_back", "info")
def agent_back(at_s: float, after_s: float) -> str:
    """The agent answers again and had buffered all samples."""
    return (
        f"the agent answers again at {format_clock(at_s)}, after {format_duration(after_s)}; no "
        "samples are missing"
    )


@finding("agent_gap", "warning", "figures leave this gap blank")
def agent_gap(from_s: float, to_s: float, why: str) -> str:
    """There are no samples of the server's host for this time."""
    gap = f"{format_clock(from_s)} to {format_clock(to_s)} ({format_duration(to_s - from_s)})"
    return f"no samples of the server's host from {gap}: {why}"
