"""How findings name the events of a plan, and their commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from asyncli.model.text import oneline


class EventWords(TypedDict):
    """An event of the plan: its number and what it was."""

    number: int
    kind: str


class MarkWords(TypedDict):
    """A note of the user's (``asyncli mark``), and how long (s) after it something was first seen;
    below zero: in the second of it, so that which came first is not known.
    """

    text: str
    before_s: float


def near(mark: MarkWords) -> str:
    """``just after your mark 'deploy 1.2'``."""
    text = f"your mark '{oneline(mark['text'])}'"
    if mark["before_s"] >= 0:
        return f"just after {text}"
    return f"within a second of {text}"


def named(event: EventWords) -> str:
    """``event 1, a planned command``, ``event 2 (storm)``."""
    if event["kind"] == "run":
        return f"event {event['number']}, a planned command"
    return f"event {event['number']} ({event['kind']})"


def in_the_time_of(events: Sequence[EventWords]) -> str:
    """``in the time of event 1, a planned command, and of event 2 (storm)``."""
    return f"in the time of {', and of '.join(map(named, events))}"


def commands_first(events: Sequence[EventWords], remedy: str) -> str:
    """The remedy of what was in the time of these events: their commands before the rest."""
    commands = see_commands(events)
    if not commands:
        return remedy
    return f"{commands}; {remedy}"


def see_commands(events: Sequence[EventWords]) -> str:
    """Where the reason is, of what was in the time of a command; "" without one."""
    numbers = [str(event["number"]) for event in events if event["kind"] == "run"]
    if not numbers:
        return ""
    return (
        f"see what the command of event {' and of event '.join(numbers)} did, and what it printed"
    )
