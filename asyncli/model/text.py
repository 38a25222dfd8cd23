"""Makes untrusted texts printable: a server's, names of processes and hosts, another user's run file. Pure.

This is done where a text becomes a record (records.Finding and Check, collect.locate.ServerFacts, the environment, a run file),
and again where a line is printed.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec

#: The error handler of our streams, for signs that their encoding lacks.
AS_ASCII = "asyncli.ascii"
_SIGNS = {"±": "+-", "×": "x", "µ": "u", "…": "~", "✓": "x", "▶": ">", "·": "."}


def printable(text: str) -> str:
    """``text`` with blanks for white space, and "?" for other control characters and invalid Unicode."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def oneline(text: str) -> str:
    """``text`` made :func:`printable`, with white space collapsed to single blanks."""
    return " ".join(printable(text).split())


def ascii_only(text: str) -> str:
    """``text`` without signs that an ASCII terminal cannot encode."""
    return "".join(one if one.isascii() else _SIGNS.get(one, "?") for one in text)


codecs.register_error(AS_ASCII, lambda error: (ascii_only(error.object[error.start : error.end]), error.end))  # type: ignore[attr-defined]


def brief(data: bytes) -> str:
    """The beginning of a peer's reason, which may be long or not be text."""
    return oneline(data[:80].decode(errors="replace"))


def plain(value: Any) -> Any:
    """A copy of plain data with all texts made printable, at any depth."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def tidy(record: msgspec.Struct) -> None:
    """Make a record's texts printable, even if it is frozen: for its ``__post_init__``."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, str) and not value.isprintable():
            msgspec.structs.force_setattr(record, name, printable(value))
