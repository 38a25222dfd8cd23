"""Findings of a search for a server's capacity."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_count, format_duration, format_many, format_rate


@finding(
    "not_at_rest", "warning", "connections that the server still holds count towards the next step"
)
def not_at_rest(why: str) -> str:
    """The server still held connections between two steps, and the next step includes them."""
    return why


def refuses_all(asked: int, held: int, evidence: str) -> Words:
    """Words of ``limit_moved`` for a server that refused every connection of a step."""
    return Words(
        f"in the step of {format_count(asked)} the server served none, but in another it served "
        f"{format_count(held)}: it keeps state of earlier steps, or limits connects in a time; "
        f"{evidence}",
        "see its error log for what it counts or blocks (a limit on connects in a time, a block of "
        "this client's address, descriptors that it does not close), and packet filters on the "
        "way; restart the server, then confirm by one soak, with a slower --ramp too: asyncli soak "
        f"-c {held}",
    )


@finding("server_gone", "error", "start it again, under a supervisor that restarts it")
def server_gone(why: str) -> str:
    """The server ended during the search, so the search ended."""
    return why


@finding(
    "server_silent",
    "error",
    "see what it waits for: its log, its CPU, a debugger or its stack; restart it",
)
def server_silent(why: str) -> str:
    """The server answered nothing more, though its port is open or cannot be seen from here, so the
    search ended.
    """
    return why


@finding("limit_moved", "warning")
def limit_moved(asked: int, served: int, held: int, refusal: str = "") -> Words:
    """The server served more in one step than in another in which it refused connections: their
    number is not what it limits.
    ``refusal``: how it refused every connection of that step; "" if it served some.
    """
    if refusal:
        return refuses_all(asked, held, refusal)
    evidence = (
        f"in the step of {format_count(asked)} the server served {format_count(served)} and "
        f"refused more, but in another it served {format_count(held)}: it keeps state of earlier "
        "steps, or limits the rate of connects, so their number is not what it limits"
    )
    return Words(
        evidence,
        "restart the server, then confirm by one soak, with a slower --ramp too: asyncli soak -c "
        f"{held}",
    )


@finding("broker_served_before", "warning")
def broker_served_before(held: int, steps: int) -> Words:
    """The answer rests on a step after others on the same broker. Mosquitto 2.0.11 takes each ended
    client twice off the count that max_connections limits (measured: 121 allowed, 221 held after
    100 had come and gone).
    """
    evidence = (
        f"{format_count(held)} were held by a broker that had served {format_many(steps, 'step')} "
        "before: each step has client ids of its own, but a broker that counts ended clients "
        "wrongly, as mosquitto 2.0 does for max_connections, lets in more"
    )
    return Words(evidence, f"restart the broker, then confirm by one soak: asyncli soak -c {held}")


def not_a_fresh_broker(steps: int) -> str:
    """What the answer of a search says where it rests on a step after ``steps`` others."""
    return (
        f"not proven for a fresh broker, because this one had served {format_many(steps, 'step')} "
        "before"
    )


def same_at_slower_pace(per_s: float, slower_per_s: float, told_apart_s: float) -> str:
    """What a search says whose slower step served the same number."""
    return (
        f"Opened at {format_rate(slower_per_s)} instead of {format_rate(per_s)}, as many were "
        "served: the limit is not on connects in a time, unless that time is longer than "
        f"{format_duration(told_apart_s)}."
    )


def undecided_at_slower_pace(
    asked: int, per_s: float, slower_per_s: float, served: int, served_slower: int
) -> str:
    """What a search says whose slower step does not tell what the limit is on."""
    return (
        f"Of {format_count(asked)}, {format_count(served)} were served at {format_rate(per_s)}, "
        f"and {format_count(served_slower)} at {format_rate(slower_per_s)}: whether the limit is "
        "on their number or on connects in a time is unknown."
    )


@finding("same_clients", "warning", "write {{random}} in it, which differs in each step")
def same_clients(flag: str) -> str:
    """The clients of each step have the names of the last one's, so a server may know their
    sessions from there.
    """
    return (
        f"{flag} names the same clients in each step: a server that keeps sessions knows them "
        "from the step before"
    )
