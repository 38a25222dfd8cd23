"""Findings of a session whose server is watched by an agent."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.units import format_clock, format_duration


@finding("agent", "info")
def agent(url: str, server: str, where: str, error_s: float) -> Words:
    """An agent beside the server samples it. ``error_s``: how far from the run's clock an instant of its samples may lie."""
    return Words(f"the agent at {url} samples {server} on {where}; its clock is known to ± {format_duration(error_s)}")


@finding("agent_in_the_clear", "warning")
def agent_in_the_clear(url: str) -> Words:
    """Whoever listens on the network can read the agent's token."""
    return Words(
        f"the token of the agent at {url} crosses the network in the clear", "start the agent with --tls-cert, and write https://"
    )


@finding("agent_restarted", "warning")
def agent_restarted(url: str, at_s: float) -> Words:
    """The agent is another process than before; its counters are added to those of the one before."""
    return Words(
        f"the agent at {url} was started anew, at {format_clock(at_s)}; its counters go on from where they were",
        "see its log for why it ended",
    )


@finding("agent_lost", "warning")
def agent_lost(from_s: float, why: str, keeps_s: float) -> Words:
    """The agent does not answer. It keeps some minutes of samples, so a gap is known only when it is heard again."""
    return Words(
        f"nothing was heard of the server's host from {format_clock(from_s)} on: {why}",
        f"the agent keeps what it reads for {format_duration(keeps_s)}; what is missing in the end has a finding of its own",
    )


@finding("agent_back", "info")
def agent_back(at_s: float, after_s: float) -> Words:
    """The agent answers again, and had kept all that it sampled."""
    after = format_duration(after_s)
    return Words(f"the agent answers again, at {format_clock(at_s)}, after {after}: nothing is missing, as it had kept it")


@finding("agent_gap", "warning")
def agent_gap(from_s: float, to_s: float, why: str) -> Words:
    """Nothing is known of the server's host in that time."""
    return Words(
        f"nothing is known of the server's host from {format_clock(from_s)} to {format_clock(to_s)} "
        f"({format_duration(to_s - from_s)}): {why}",
        "its numbers have a gap, which no figure of the report bridges",
    )
