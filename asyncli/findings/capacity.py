"""Findings of a search for a server's capacity."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_count, format_many


@finding("not_at_rest", "warning", "connections that the server still holds count towards the next step")
def not_at_rest(why: str) -> str:
    """The server still held connections between two steps, and the next step includes them."""
    return why


@finding("server_gone", "error", "start it again, under a supervisor that restarts it")
def server_gone(why: str) -> str:
    """The server ended during the search, so the search ended."""
    return why


@finding("server_silent", "error", "see what it waits for: its log, its CPU, a debugger or its stack; restart it")
def server_silent(why: str) -> str:
    """The server answered nothing more, though its port is open or cannot be seen from here, so the search ended."""
    return why


@finding("limit_moved", "warning")
def limit_moved(asked: int, served: int, held: int) -> Words:
    """The server served more in one step than in another in which it refused connections: their number is not what it limits."""
    evidence = (
        f"in the step of {format_count(asked)} the server served {format_count(served)} and refused more, but in another it "
        f"served {format_count(held)}: it keeps state of earlier steps, or limits the rate of connects, so their number is not "
        "what it limits"
    )
    return Words(evidence, f"restart the server, then confirm by one soak, with a slower --ramp too: asyncli soak -c {held}")


@finding("broker_served_before", "warning")
def broker_served_before(held: int, steps: int) -> Words:
    """The answer rests on a step after others on the same broker. Mosquitto 2.0.11 takes each ended client twice off the count
    that max_connections limits (measured: 121 allowed, 221 held after 100 had come and gone)."""
    evidence = (
        f"{format_count(held)} were held by a broker that had served {format_many(steps, 'step')} before: each step has client "
        "ids of its own, but a broker that counts ended clients wrongly, as mosquitto 2.0 does for max_connections, lets in more"
    )
    return Words(evidence, f"restart the broker, then confirm by one soak: asyncli soak -c {held}")


def not_a_fresh_broker(steps: int) -> str:
    """What the answer of a search says where it rests on a step after ``steps`` others."""
    return f"not proven for a fresh broker, because this one had served {format_many(steps, 'step')} before"


@finding("same_clients", "warning", "write {{random}} in it, which differs in each step")
def same_clients(flag: str) -> str:
    """The clients of each step have the names of the last one's, so a server may know their sessions from there."""
    return f"{flag} names the same clients in each step: a server that keeps sessions knows them from the step before"
