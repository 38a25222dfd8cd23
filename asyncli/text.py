"""Texts from outside: a server's words, names of processes and hosts, another's run file. Pure.

Each is made printable once, where it becomes a record of ours (records.Finding and Check, collect.locate.ServerFacts, the
environment, what a run file holds); and again where a line is printed, which may have come another way.
"""

from __future__ import annotations

from typing import Any

import msgspec


def printable(text: str) -> str:
    """``text`` without what could steer a terminal, or is no Unicode (bytes that are no UTF-8): a blank for each line end, tab
    or the like, "?" for each of the rest.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def oneline(text: str) -> str:
    """The same, trimmed, and with one blank for each run of them."""
    return " ".join(printable(text).split())


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
