"""Random choices, as a ``random.Random``: from a seed, from hypothesis, or from a fuzzer's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import AnyStr, TypeVar

_One = TypeVar("_One")

#: Inserted by mutations: line ends, separators, signs, ends of ranges.
ODD_BYTES = (
    b"\r", b"\n", b"\r\n", b"\n\n", b" ", b"\t", b"\0", b":", b";", b",", b"0", b"9", b"-", b"%", b"\x7f", b"\x80", b"\xff", b"=", b'"', b"'", b"[", b"]", b"{",
    b"\xc2\x85", b"\xe2\x80\xa8", b"\xf0\x9f\xa6\x80", b"\xed\xb2\x80", b"\xd9\xa3",
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "\t", "\n", "\r", "\0", "\x1b[31m", "\x85", "\u2028", "\u0663", "\uff11", "\xb2", "\udc80", "é", "-", "+", ".", "..", ",", ":", ";", "_", "/", "%", "*", "[", "]", "{", "}",
    "'", '"', "0", "9", "e9", "nan", "inf", "1e999", "9" * 20, "9" * 400, "9" * 5000, "0x" + "f" * 5000,
)  # fmt: skip


class FromBytes(Random):
    """Choices read from bytes, so that a coverage-guided fuzzer can steer them; after their end always the first choice."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._at = data, 0

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / 65_536


def maybe(chance: Random, one_in: int) -> bool:
    """True once in ``one_in`` times."""
    return chance.randrange(one_in) == 0


def several(chance: Random, most: int, of: Sequence[_One]) -> list[_One]:
    """Up to ``most`` choices of ``of``, with repetition."""
    return [chance.choice(of) for _ in range(chance.randrange(most + 1))]


def mutated(chance: Random, data: AnyStr, odd: Sequence[AnyStr] = ODD_BYTES) -> AnyStr:
    """``data`` with some of it changed, inserted, removed or repeated, or cut off; of a text with ``ODD_TEXTS``."""
    for _ in range(1 + chance.randrange(3)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + 1 + chance.randrange(8))
        match chance.randrange(6):
            case 0:
                data = data[:at] + chance.choice(odd) + data[at:]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:]
            case 3:
                any_one = bytes([chance.randrange(256)]) if isinstance(data, bytes) else chr(chance.randrange(256))
                data = data[:at] + any_one + data[at + 1 :]
            case 4:
                data = data[:at] + chance.choice(odd) + data[end:]
            case _:
                data = data[:at] if maybe(chance, 4) else data
    return data
