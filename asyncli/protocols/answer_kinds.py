"""How answers begin, where any answer is accepted: those of another kind than the first one are
counted.
"""

from __future__ import annotations

import re

from asyncli.model.tcp_values import MOST_KINDS

#: So many bytes of an answer are kept to be shown.
SHOWN_BYTES = 40
# So many bytes decide how an answer begins: signs, and the word after them.
_WORD_BYTES, _MOST_WORDS = 24, 64
_WORD = re.compile(rb"\W{0,4}\w{0,20}")
_NUMBER = re.compile(rb"[-+]?\d+")
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)


def kind_of(answer: bytes) -> bytes:
    """How an answer begins: signs such as ``+``, ``-`` or ``$``, and the word after them, in which
    all numbers are alike.
    """
    word = _WORD.match(answer[:_WORD_BYTES])
    return _NUMBER.sub(b"0", word[0] if word else b"")


class AnswerKinds:
    """Counts answers that begin otherwise than the first one. What begins with one of ``usual``
    need not be asked about: the first one's word without numbers, or anything once answers began in
    too many ways to tell kinds.
    """

    def __init__(self) -> None:
        self.usual: tuple[bytes, ...] = ()
        self._first = b""
        # Beginnings, with all digits alike -> their kind; and the first answer of each other kind.
        self._kinds: dict[bytes, bytes] = {}
        self._samples: dict[bytes, bytes] = {}
        self._counts: dict[bytes, int] = {}

    def begin(self, answer: bytes) -> None:
        """This is the first answer."""
        self._first = kind_of(answer)
        # With the byte at which the word ends.
        beginning = answer[: len(self._first) + 1]
        ends = len(self._first) < len(beginning) < _WORD_BYTES
        self.usual = (beginning,) if ends and not _NUMBER.search(beginning) else ()

    def is_other(self, answer: bytes) -> bool:
        """Whether it begins otherwise than the first one; counted if so."""
        beginning = answer[:_WORD_BYTES].translate(_ALIKE)
        kind = self._kinds.get(beginning)
        if kind is None:
            kind = kind_of(answer)
            if len(self._kinds) < _MOST_WORDS:
                self._kinds[beginning] = kind
        if kind == self._first:
            return False
        if kind not in self._samples:
            self._samples[kind] = answer[:SHOWN_BYTES]
            if len(self._samples) + 1 > MOST_KINDS:
                self.usual = (b"",)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return True

    def take(self) -> dict[str, int]:
        """How many of each other kind came since the last call, by how the first of the
        kind began.
        """
        counts, self._counts = self._counts, {}
        return {repr(self._samples[kind]): count for kind, count in counts.items()}
