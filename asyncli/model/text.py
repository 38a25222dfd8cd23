"""Makes untrusted texts printable: a server's, names of processes and hosts, another user's run
file. Pure.

This is done where a text becomes a record (records.Finding and Check, collect.locate.ServerFacts,
the environment, a run file), and again where a line is printed.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msgspec

#: The error handler of our streams, for signs that their encoding lacks.
AS_ASCII = "asyncli.ascii"
#: So much of a peer's text is shown.
MOST_SHOWN = 80
_CLOSING = {"(": ")", "[": "]", "{": "}", "'": "'", '"': '"'}
_SIGNS = {"±": "+-", "×": "x", "µ": "u", "…": "~", "✓": "x", "▶": ">", "·": "."}


def printable(text: str) -> str:
    """``text`` with blanks for white space, and "?" for other control characters and invalid
    Unicode.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    return "?"


def oneline(text: str) -> str:
    """``text`` made :func:`printable`, with white space collapsed to single blanks."""
    return " ".join(printable(text).split())


def ascii_only(text: str) -> str:
    """``text`` without signs that an ASCII terminal cannot encode."""
    return "".join(sign if sign.isascii() else _SIGNS.get(sign, "?") for sign in text)


def _replace_by_ascii(error: UnicodeError) -> tuple[str, int]:
    """A handler of ``codecs``: what replaces the text that cannot be encoded, and where to
    go on.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_only(error.object[error.start : error.end]), error.end


codecs.register_error(AS_ASCII, _replace_by_ascii)


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """The beginning of a text, with an ellipsis where it is cut."""
    if len(text) <= most:
        return text
    return f"{text[:most]}..."


def end_of(text: str, most: int = MOST_SHOWN) -> str:
    """The end of a text, after an ellipsis where it is cut."""
    if len(text) <= most:
        return text
    return f"...{text[-most:]}"


def brief(data: bytes) -> str:
    """The beginning of a peer's reason, which may be long or not be text."""
    text = oneline(data[:MOST_SHOWN].decode(errors="replace"))
    if len(data) <= MOST_SHOWN:
        return text
    return f"{text}..."


def quoted(data: bytes, most: int = MOST_SHOWN) -> str:
    """The beginning of a peer's bytes in quotes, with an ellipsis where they are cut."""
    if len(data) <= most:
        return repr(data)
    return f"{data[:most]!r}..."


def first_part(text: str, end: str) -> str:
    """What of a sentence precedes the first ``end`` that is in no bracket and in no quotation."""
    inside: list[str] = []
    for place, character in enumerate(text):
        if not inside and text.startswith(end, place):
            return text[:place]
        before = text[max(0, place - 2) : place].removesuffix("b")[-1:]
        if inside and character == inside[-1]:
            inside.pop()
            continue
        is_apostrophe = character in "'\"" and before.isalnum()
        if character in _CLOSING and not is_apostrophe and inside[-1:] not in (["'"], ['"']):
            inside.append(_CLOSING[character])
    return text


def plain(value: Any) -> Any:
    """A copy of plain data with all texts made printable, at any depth."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def tidy(record: msgspec.Struct) -> None:
    """Make a record's texts printable, even if it is frozen: for its ``__post_init__``."""
    # Here: --help needs none of it.
    import msgspec

    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, str) and not value.isprintable():
            msgspec.structs.force_setattr(record, name, printable(value))
