"""Bytes that a plan has sent on connections of raw TCP, and what it expects of the server: as texts with escapes."""

from __future__ import annotations

import re

import msgspec

from asyncli.units import shown
from asyncli.values import parse_text

_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|.|$)", re.DOTALL)
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "0": "\0", "\\": "\\"}
# Of an answer of so many bytes: more is not one. A pattern may take the square of a line's length.
_LONGEST_ANSWER, _LONGEST_LINE = 65_536, 4096


def unescaped(text: str) -> bytes:
    r"""The bytes of a text with ``\r \n \t \0 \\ \xHH``."""
    return b"".join(_bytes_of(part, place) for place, part in enumerate(_ESCAPED.split(text)))


def _bytes_of(part: str, place: int) -> bytes:
    if not place % 2:
        return part.encode()
    if len(part) == 3:
        return bytes((int(part[1:], 16),))
    if part not in _ESCAPES:
        part = part if part.isprintable() else ascii(part)[1:-1]
        raise ValueError(rf"'\{part}' is no escape; write one of \r \n \t \0 \\ \xHH")
    return _ESCAPES[part].encode()


def parse_sent(value: object) -> str:
    """Bytes to send, as a text with escapes."""
    text = parse_text(value)
    unescaped(text)
    return text


class Expected(msgspec.Struct, frozen=True):
    """What is awaited: ``exact`` bytes, a line in which ``line`` is found, ``size`` bytes; else any."""

    exact: bytes = b""
    line: re.Pattern[bytes] | None = None
    size: int = 0

    def end_in(self, come: bytes) -> int | None:
        """Where it ends in what has come; None: not yet. ``ValueError``: something else came."""
        if self.exact:
            if not self.exact.startswith(come[: len(self.exact)]):
                raise ValueError(f"{come[:80]!r} in place of {self.exact[:80]!r}")
            return len(self.exact) if len(come) >= len(self.exact) else None
        if self.line is None:
            return (self.size or len(come)) if len(come) >= self.size else None
        end = come.find(b"\n") + 1
        if (end or len(come)) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE:,} bytes")
        if not end:
            return None
        if not self.line.search(come[:end].rstrip(b"\r\n")):
            raise ValueError(f"{come[:end][:80]!r} in place of {'/' + self.line.pattern.decode() + '/'!r}")
        return end


def parse_expected(value: object) -> Expected:
    """``any``, ``N bytes``, ``/REGEX/`` of a line, or the bytes themselves with escapes."""
    text = parse_text(value)
    if text == "any":
        return Expected()
    if (size := re.fullmatch(r"([0-9]{1,9}) bytes?", text)) is not None:
        if not 1 <= int(size[1]) <= _LONGEST_ANSWER:
            raise ValueError(f"{shown(value)} is not the size of an answer; write 1 to {_LONGEST_ANSWER:,} bytes")
        return Expected(size=int(size[1]))
    if len(text) > 1 and text[0] == text[-1] == "/":
        try:
            return Expected(line=re.compile(text[1:-1].encode()))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{shown(value)} is not a regular expression ({error}); write for example /^220 /") from None
    return Expected(exact=unescaped(text))


def checked_expected(value: object) -> str:
    parse_expected(value)
    return str(value)
