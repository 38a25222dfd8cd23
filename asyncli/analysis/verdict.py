"""The verdict of a run, by a rule that is printed with it."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncli.analysis.totals import Totals
from asyncli.plan import Plan

Verdict = Literal["passed", "failed", "invalid", "untested"]

RULE = (
    "passed: as many held at the hold's end as were asked for, and none lost; invalid: the generator was the limit; "
    "untested: nothing ever connected; else failed"
)
# Attempts that failed for want of these never left this host.
_OURS = ("no_ports", "no_descriptors")


class Judgement(msgspec.Struct):
    """The verdict and, in one line of words, what decided it."""

    verdict: Verdict
    why: str


def judge(plan: Plan, totals: Totals, *, saturated: bool, complete: bool) -> Judgement:
    """The verdict, first match wins:

    1. untested: nothing ever connected.
    2. invalid: the generator was the limit. It passed a stated bound (``saturated``), lost a worker, or could not open
       what was asked for want of its own ports or descriptors.
    3. failed: an established connection was lost.
    4. invalid: the run was killed (not ``complete``), so its hold has no end to be judged at.
    5. failed: fewer are held at the hold's end than were asked for.
    6. passed.
    """
    whole, held, asked = totals.whole, totals.held, plan.connections
    if not whole.opened:
        return Judgement("untested", "nothing ever connected")
    # There with a count of 0 when the worker held nothing yet: its share was never opened all the same.
    gone = whole.deaths.get("generator_lost")
    starved = {cause: whole.failures[cause] for cause in _OURS if whole.failures.get(cause)}
    if saturated:
        return Judgement("invalid", "the generator was the limit, so the numbers are its own rather than the server's")
    if gone is not None:
        return Judgement("invalid", f"the generator itself lost {gone.count:,} connections with a worker of its own")
    if held < asked and starved:
        names = " and ".join(cause.removeprefix("no_") for cause in starved)
        return Judgement("invalid", f"the generator ran out of {names}: it opened {held:,} of {asked:,}")
    if whole.lost:
        return Judgement("failed", f"{whole.lost:,} of {whole.opened:,} established connections were lost")
    if not complete:
        return Judgement("invalid", "the run has no end: it goes on, or it was killed")
    if held < asked:
        return Judgement("failed", f"{held:,} of {asked:,} connections were held at the end")
    return Judgement("passed", f"{held:,} of {asked:,} connections were held to the end, and none was lost")


def exit_status(verdict: Verdict) -> int:
    """The exit status that stands for a verdict."""
    return {"passed": 0, "untested": 3, "invalid": 4, "failed": 99}[verdict]
