"""Texts of a peer, without what they repeat of the secrets that asyncli sent: an echo, or "no user
hunter2". Pure.

A peer may repeat a secret in another form. These are looked for, in any case of letters: as it was
sent, percent-encoded, in base64, the text that a base64 has in it, and hexadecimal. A form is
hidden wherever at least six of its characters stand together, or all of a shorter one, because a
peer's text may be cut.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping

from asyncli.model.masks import MASK

# A word of fewer characters is not looked for.
_SHORTEST_WORD = 4
_TOGETHER = 6
# Encoded forms of longer texts are not looked for, only those of their words.
_LONGEST_ENCODED = 1000
_WORD = re.compile(r"[-+/=.~\w]+")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
_RESERVED = re.compile(rb"[^-._~0-9A-Za-z]")


class Quotation:
    """Hides in a peer's texts what they repeat of ``secrets``."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            for word in _words(secret):
                forms.update(map(_folded, _forms(word)))
        short = [form for form in forms if _SHORTEST_WORD <= len(form) < _TOGETHER]
        self._short = sorted(short, key=len, reverse=True)
        # No printable text has a NUL, so nothing is found across two forms.
        self._long = "\0".join(form for form in forms if len(form) >= _TOGETHER)

    def __call__(self, text: str) -> str:
        """``text`` with ``***`` for what it repeats."""
        kept: list[str] = []
        hidden_to = 0
        folded = _folded(text)
        for place, character in enumerate(text):
            repeated = self._repeated(folded[place : place + _TOGETHER])
            if repeated and place >= hidden_to:
                kept.append(MASK)
            hidden_to = max(hidden_to, place + repeated)
            if place >= hidden_to:
                kept.append(character)
        return "".join(kept)

    def _repeated(self, part: str) -> int:
        """How many characters at the beginning of ``part`` repeat a secret."""
        if len(part) == _TOGETHER and part in self._long:
            return _TOGETHER
        for word in self._short:
            if part.startswith(word):
                return len(word)
        return 0

    def counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Texts -> how many, with those alike added up."""
        added: dict[str, int] = {}
        for text, count in counts.items():
            quoted = self(text)
            added[quoted] = added.get(quoted, 0) + count
        return added


def _words(secret: str) -> Iterator[str]:
    """A secret as a whole and its words, such as user and password of a login."""
    text = _ESCAPE.sub(_unescaped, secret).strip()
    for word in dict.fromkeys((text, *text.split(), *_WORD.findall(text))):
        if len(word) >= _SHORTEST_WORD:
            yield word
            yield from _within(word)


def _unescaped(escape: re.Match[str]) -> str:
    """The character of an escape of --send; a blank for one that no word has."""
    character = " "
    if escape[1]:
        character = chr(int(escape[1], 16))
    elif escape[2] in "\\\"'":
        character = escape[2]
    if not character.isprintable():
        return " "
    return character


def _within(word: str) -> Iterator[str]:
    """The text in a base64, such as ``user:password`` of the Basic scheme, and its words."""
    try:
        text = base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    if not text.isprintable():
        return
    for part in (text, *_WORD.findall(text)):
        if len(part) >= _SHORTEST_WORD:
            yield part


def _forms(word: str) -> Iterator[str]:
    data = word.encode(errors="surrogateescape")
    # Of a text with blanks only the words, because its blanks stand in a peer's own sentence too.
    if not any(character.isspace() for character in word):
        # As it is, and as a text of unknown encoding and one with control characters are shown.
        yield from (word, data.decode("latin-1"), repr(data)[2:-1])
    if len(data) > _LONGEST_ENCODED:
        return
    yield _RESERVED.sub(lambda byte: b"%%%02x" % byte[0][0], data).decode()
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        yield encoded.decode()
        yield encoded.decode().rstrip("=")
    yield data.hex()


def _folded(text: str) -> str:
    """``text`` without the case of its letters, and as long as before."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    folded = []
    for character in text:
        lower = character.lower()
        folded.append(lower if len(lower) == 1 else character)
    return "".join(folded)
