"""Findings of the limits of --fail-if."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.model.units import format_duration


@finding("limit_kept", "info")
def limit_kept(limit: str, key: str, value: float, amount: str) -> str:
    """A limit of --fail-if was kept. ``value`` is that of ``key`` in the JSON; ``amount`` is the
    same with its unit.
    """
    return f"kept: {limit}: {key} is {amount}"


@finding("limit_crossed", "error")
def limit_crossed(limit: str, key: str, value: float, amount: str) -> str:
    """A limit of --fail-if was crossed, so the run failed. ``value`` is that of ``key`` in the
    JSON.
    """
    return f"crossed: {limit}: {key} is {amount}"


@finding("limit_unknown", "error")
def limit_unknown(limit: str, key: str | None, value: float | None, amount: str) -> Words:
    """A limit of --fail-if cannot be decided, so the run failed: its value is unknown, or its 95 %
    interval includes the limit. ``key`` null: this asyncli cannot parse the limit, and ``amount``
    says why.
    """
    if key is None:
        return Words(f"--fail-if: {amount}")
    narrow = (
        "more connections or a longer hold narrow the interval"
        if value is not None
        else "see why it is unknown"
    )
    return Words(f"undecided: {limit}: {key} is {amount}", f"{narrow}; or leave the limit out")


@finding("limit_not_compared", "error")
def limit_not_compared(limit: str, key: str, value: float | None, amount: str) -> Words:
    """A limit that compares with earlier runs cannot be decided, so the run failed: the interval of
    the difference has both 0 and the limit in it, or the difference is unknown. ``value`` is that
    of this run, in the unit of ``key``.
    """
    remedy = "see why it is unknown; or leave the limit out"
    if value is not None:
        remedy = (
            "more connections, a longer hold or more baseline runs narrow the interval; or set a "
            "limit that is further from 0"
        )
    return Words(f"undecided: {limit}: {key} is {amount}", remedy)


@finding("drift_hold", "warning")
def drift_hold(limits: Sequence[str], least_s: float, hold_s: float) -> Words:
    """The hold is too short for a limit on drift, which will be unknown. ``least_s``: the shortest
    hold that suffices.
    """
    least = format_duration(least_s)
    return Words(
        f"{' and '.join(limits)}: drift needs a hold of at least {least}; this one is "
        f"{format_duration(hold_s)}",
        f"hold for {least} or longer (--hold), or leave the limit out",
    )
