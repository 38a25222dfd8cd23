"""What makes each heartbeat a question of its own: bytes that the peer cannot know before it has
read them, and must return.

A process has 256 of them, random, and a row takes the next one for each heartbeat. So a row takes
one byte, the engine compares a read with one of 256 whole answers, and neither an answer sent in
advance nor one of the last 255 again is the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: So many that a byte says which.
COUNT = 256
SIZE = 4


class Nonces:
    """The nonces of one protocol object: ``texts``, and the whole ``answers``, which are ``head``
    and a nonce. ``owed``: by row, the number of its last heartbeat's.
    """

    def __init__(self, entropy: Callable[[int], bytes], head: bytes) -> None:
        self._entropy = entropy
        drawn = entropy(COUNT * SIZE)
        self.texts = [drawn[at : at + SIZE] for at in range(0, len(drawn), SIZE)]
        self.answers: Sequence[bytes] = [head + text for text in self.texts]
        self.owed = bytearray()

    def add_row(self, row: int) -> None:
        """Make room for ``row`` and some more. Each begins at another number, so another row's
        answer is seldom right.
        """
        if row >= len(self.owed):
            self.owed += self._entropy(row + COUNT - len(self.owed))

    def take(self, row: int) -> int:
        """The number of the row's next heartbeat, which it then owes."""
        number = self.owed[row] = (self.owed[row] + 1) % COUNT
        return number

    def text(self, row: int, before: int = 0) -> bytes:
        """The nonce that the answer to the row's last heartbeat must return, or to one so many
        ``before`` it.
        """
        return self.texts[(self.owed[row] - before) % COUNT]
