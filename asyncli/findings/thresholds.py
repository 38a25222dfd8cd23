"""Findings of the limits of --fail-if."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.findings.cost import shared_memory_rises
from asyncli.model.units import format_duration


@finding("limit_kept", "info")
def limit_kept(limit: str, key: str, value: float | None, amount: str) -> str:
    """A limit of --fail-if was kept. ``value`` is that of ``key`` in the JSON (null: unknown, and
    what is known of it suffices); ``amount`` is the same with its unit.
    """
    return f"kept: {limit}: {key} is {amount}"


@finding("limit_crossed", "error")
def limit_crossed(
    limit: str, key: str, value: float | None, amount: str, by_then: bool = False
) -> str:
    """A limit of --fail-if was crossed, so the run failed. ``value`` is that of ``key`` in the
    JSON; null: unknown, and what is known of it suffices. ``by_then``: a view of the run, such as
    that of ``asyncli watch``, has read no single seconds of the time in which that happened, so the
    finding's time is the latest that it may have been.
    """
    if by_then:
        return f"crossed by then: {limit}: {key} is {amount}"
    return f"crossed: {limit}: {key} is {amount}"


@finding("limit_unknown", "error")
def limit_unknown(
    limit: str,
    key: str | None,
    value: float | None,
    amount: str,
    by_lateness: bool,
    not_judged: str | None = None,
    by_shared_memory: bool = False,
) -> Words:
    """A limit of --fail-if cannot be decided, so the run failed: its value is unknown, or its 95 %
    interval includes the limit; or the interval of its difference from earlier runs includes both
    0 and the limit, which more of these (--baseline-run) make narrower. ``by_lateness``: of a
    latency, it is above the limit, or surely higher than in earlier runs, only with asyncli's own
    lateness, which without another reason to fail makes the run invalid. ``key`` null: this asyncli
    cannot parse the limit, and ``amount`` says why. One that is not judged fails no run: with
    asyncli-light, which lacks NumPy and SciPy, a run whose limit needs them has no verdict, and the
    run file has all that is needed; or if another limit ended the run. ``not_judged``:
    "not_installed", "ended_early"; null of a limit that was judged.
    ``by_shared_memory``: the interval of a cost is wide because of shared memory that may be
    another program's.
    """
    if key is None:
        return Words(f"--fail-if: {amount}")
    if not_judged == "not_installed":
        return Words(
            f"not judged: {limit}: {key} is {amount}",
            "run 'asyncli report RUN.db' on a host with all of asyncli (pip install asyncli)",
            "warning",
        )
    if not_judged == "ended_early":
        return Words(
            f"not judged: {limit}: another limit was crossed and ended the run before this one was "
            "sure",
            "see the limit that was crossed first; this one needs a run that goes on for longer",
            "info",
        )
    undecided = f"undecided: {limit}: {key} is {amount}"
    if by_lateness:
        return Words(
            undecided,
            "give asyncli's host more CPU time (fewer connections, no other programs, another "
            "host); or raise the limit",
        )
    if by_shared_memory:
        return Words(
            f"{undecided}; the interval reaches to shared memory of this host that no process of "
            "the server has mapped, and that may be another program's",
            f"{shared_memory_rises.remedy}; or leave the limit out",
        )
    if value is None and ": " in amount:
        return Words(undecided, "remove the cause, or leave the limit out")
    if value is None:
        return Words(undecided, "see what is unknown among the findings, or leave the limit out")
    if " worse " in limit:
        return Words(
            undecided,
            "more connections, a slower ramp or more baseline runs narrow the interval; or leave "
            "the limit out",
        )
    return Words(
        undecided, "more connections or a longer hold narrow the interval; or leave the limit out"
    )


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
