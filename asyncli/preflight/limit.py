"""A check against one limit. Pure."""

from __future__ import annotations

import math
from typing import Literal

from asyncli.model.records import Check

Verdict = Literal["ok", "short", "warn", "unknown"]


def limit(
    code: str,
    what: str,
    unit: str,
    have: float | None,
    need: float | None,
    *,
    short: Verdict = "short",
    source: str = "",
    detail: str = "",
    remedy: str = "",
) -> Check:
    """A check: unknown if ``have`` could not be read from ``source``, ok if it suffices, else
    ``short``.
    """
    if have is None:
        unread = f"{source} could not be read"
        return Check(code, what, "unknown", need=need, unit=unit, detail=unread)
    if need is None or need <= have:
        return Check(code, what, "ok", have, need, unit, detail)
    return Check(code, what, short, have, need, unit, detail, remedy)


def round_up(number: float) -> int:
    """Rounded up to two digits."""
    step = int(10 ** max(0, len(str(math.ceil(number))) - 2))
    return math.ceil(number / step) * step
