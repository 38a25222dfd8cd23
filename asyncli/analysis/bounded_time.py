"""How long something lasted of which the beginning or the end is known within bounds. Pure."""

from __future__ import annotations

from typing import NamedTuple


class BoundedTime(NamedTuple):
    """It lasted so long (s): at least and at most; infinite: no end of it is known."""

    at_least_s: float
    at_most_s: float

    def or_longer(self, other: BoundedTime) -> BoundedTime:
        """The bounds of the longer one of the two."""
        return BoundedTime(
            max(self.at_least_s, other.at_least_s), max(self.at_most_s, other.at_most_s)
        )


NO_TIME = BoundedTime(0.0, 0.0)
