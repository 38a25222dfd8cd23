"""A limit as a number of connections."""

from __future__ import annotations

import math

import msgspec

from asyncli.analysis.constants import PART
from asyncli.findings.cost import SURE
from asyncli.model.units import format_bytes, format_share


class Ceiling(msgspec.Struct):
    """A limit as a number of connections with its 95 % interval.

    ``connections`` None: no limit, or unknown, as ``how`` says; then ``at_least`` so many fit, if
    that is known.
    """

    name: str
    connections: float | None
    ci95: tuple[float, float] | None
    how: str
    at_least: float | msgspec.UnsetType = msgspec.UNSET

    def rounded(self, number: float) -> float:
        """``number`` to the digits that the interval allows: three, or two."""
        low, high = self.ci95 if self.ci95 is not None else (0.0, 0.0)
        digits = 2
        if self.connections is None or high - low <= 2 * PART * self.connections:
            digits = 3
        return float(f"{number:.{digits}g}")


def _ends(low: float, high: float) -> str:
    """The ends of an interval: whole numbers, or two digits where those would be the same."""
    if round(low) == round(high):
        return f"{low:.2g} to {high:.2g}"
    return f"{low:,.0f} to {high:,.0f}"


class Space(msgspec.Struct, frozen=True):
    """What connections may take of a resource, in ``unit``, and how that was computed."""

    size: float
    how: str
    unit: str = "B"

    def less_once(self, step: float) -> Space:
        """The room less the first use, ``step`` bytes above the baseline."""
        if step <= 0:
            return self
        taken = format_bytes(step) if self.unit == "B" else f"{step:,.0f} {self.unit}"
        return Space(
            max(0.0, self.size - step), f"{self.how}, less {taken} of first use", self.unit
        )

    def ceiling(self, name: str, slope: float, ci95: tuple[float, float], how: str) -> Ceiling:
        """The room divided by ``slope``, with the inverted interval (Fieller's); no number if it
        includes 0 or exceeds ± 50 %.
        """
        low, high = ci95
        if slope <= 0 or low <= 0 or high - low > 2 * SURE * slope:
            why = "includes zero" if low <= 0 else f"is wider than ± {format_share(SURE)}"
            interval = f"{_ends(low, high)} {self.unit}"
            return Ceiling(name, None, None, f"{how}: its interval, {interval}, {why}")
        return Ceiling(
            name,
            math.floor(self.size / slope),
            (math.floor(self.size / high), math.floor(self.size / low)),
            how,
        )
