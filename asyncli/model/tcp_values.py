"""Parses the bytes that a plan sends on raw TCP connections, and the answers that it expects: texts
with escapes.
"""

from __future__ import annotations

import re

import msgspec

from asyncli.model.template import NONCE
from asyncli.model.text import quoted
from asyncli.model.units import shown
from asyncli.model.values import parse_text

#: In plain bytes of an expected answer: the heartbeat's own.
NONCE_FIELD = f"{{{NONCE}}}"
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|.|$)", re.DOTALL)
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "0": "\0", "\\": "\\"}
#: Answers that begin in more ways vary by nature, such as random or binary ones.
MOST_KINDS = 8
# The second is lower: a pattern's time may grow with the square of a line's length.
_LONGEST_ANSWER = 65_536
_LONGEST_LINE = 4096


def unescaped(text: str) -> bytes:
    r"""The bytes of a text with ``\r \n \t \0 \\ \xHH``."""
    return b"".join(_bytes_of(part, place) for place, part in enumerate(_ESCAPED.split(text)))


def _bytes_of(part: str, place: int) -> bytes:
    if not place % 2:
        return part.encode()
    if len(part) == 3:
        return bytes((int(part[1:], 16),))
    if part not in _ESCAPES:
        if not part.isprintable():
            part = ascii(part)[1:-1]
        raise ValueError(rf"'\{part}' is not an escape; write one of \r \n \t \0 \\ \xHH")
    return _ESCAPES[part].encode()


def parse_sent(value: object) -> str:
    """Check a text with escapes for bytes to send."""
    text = parse_text(value)
    unescaped(text)
    return text


class Expected(msgspec.Struct, frozen=True):
    """The expected answer: ``exact`` bytes, a line that matches ``line``, ``size`` bytes, or else
    any bytes.
    """

    exact: bytes = b""
    line: re.Pattern[bytes] | None = None
    size: int = 0

    def end_in(self, received: bytes) -> int | None:
        """The offset at which the answer ends in ``received``; None: incomplete. Raises
        ``ValueError`` for another answer.
        """
        if self.exact:
            return self._end_of_exact(received)
        if self.line is not None:
            return _end_of_line(received, self.line)
        if len(received) < self.size:
            return None
        return self.size or len(received)

    def _end_of_exact(self, received: bytes) -> int | None:
        if not self.exact.startswith(received[: len(self.exact)]):
            raise ValueError(f"{quoted(received)} in place of {quoted(self.exact)}")
        if len(received) < len(self.exact):
            return None
        return len(self.exact)


def _end_of_line(received: bytes, pattern: re.Pattern[bytes]) -> int | None:
    end = received.find(b"\n") + 1
    if (end or len(received)) > _LONGEST_LINE:
        raise ValueError(f"a line of more than {_LONGEST_LINE:,} bytes")
    if not end:
        return None
    if not pattern.search(received[:end].rstrip(b"\r\n")):
        expected = f"/{pattern.pattern.decode()}/"
        raise ValueError(f"{quoted(received[:end])} in place of {expected!r}")
    return end


def asks_for_nonce(expect: str) -> bool:
    """Whether an expected answer, in plain bytes, repeats the heartbeat's ``{nonce}``."""
    if not expect:
        return False
    return bool(parse_expected(expect).exact) and NONCE_FIELD in expect


def parse_expected(value: object) -> Expected:
    """Parse ``any``, ``N bytes``, ``/REGEX/`` for a line, or the bytes themselves with escapes."""
    text = parse_text(value)
    if text == "any":
        return Expected()
    match = re.fullmatch(r"([0-9]{1,9}) bytes?", text)
    if match is not None:
        size = int(match[1])
        if not 1 <= size <= _LONGEST_ANSWER:
            raise ValueError(
                f"{shown(value)} is not the size of an answer; write 1 to {_LONGEST_ANSWER:,} bytes"
            )
        return Expected(size=size)
    if len(text) > 1 and text[0] == text[-1] == "/":
        try:
            return Expected(line=re.compile(text[1:-1].encode()))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(
                f"{shown(value)} is not a regular expression ({error}); write for example /^220 /"
            ) from None
    return Expected(exact=unescaped(text))


def checked_expected(value: object) -> str:
    parse_expected(value)
    return str(value)
