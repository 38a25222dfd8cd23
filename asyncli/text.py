"""Foreign texts: a server's, names of processes and hosts, another's run file. Pure.

Each is made printable where it becomes a record (records.Finding and Check, collect.locate.ServerFacts, the environment, a run
file), and again where a line is printed.
"""

from __future__ import annotations

from typing import Any

import msgspec


def printable(text: str) -> str:
    """``text`` without control characters and invalid Unicode: blanks for white space, "?" for the rest."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def oneline(text: str) -> str:
    """As :func:`printable`, with single blanks."""
    return " ".join(printable(text).split())


def first_line(data: bytes) -> str:
    """Of what a peer gives as its reason, which may be long, or no text."""
    return oneline(data.partition(b"\n")[0][:80].decode(errors="replace"))


def plain(value: Any) -> Any:
    """Plain data with every text in it printable, at any depth."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def tidy(record: msgspec.Struct) -> None:
    """Make the texts of a record printable that is being made, frozen or not: for its ``__post_init__``."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, str) and not value.isprintable():
            msgspec.structs.force_setattr(record, name, printable(value))
