"""Findings of the preflight: limits of this host and of the server against the plan."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.records import Severity
from asyncli.model.units import format_bytes, format_count, format_duration, format_rate

_SEVERITIES: dict[str, Severity] = {"short": "error", "unknown": "info"}


@finding("preflight_{check}", "warning", values="the code of a limit in 'asyncli check --json'")
def preflight(
    check: str,
    verdict: str,
    what: str,
    have: float | None,
    need: float | None,
    unit: str,
    detail: str,
    remedy: str,
) -> Words:
    """A limit of this host or of the server may be too low for the plan. ``verdict``: with "short"
    the run fails for certain, with "warn" it may, with "unknown" the limit or what the plan needs
    of it is unknown. ``have`` and ``need`` are in ``unit``.
    """
    amounts = []
    if have is not None:
        amounts.append(f"{_amount(have, unit)} available")
    if need is not None:
        amounts.append(f"{_amount(need, unit)} needed")
    says = []
    if amounts:
        says.append(", ".join(amounts))
    if detail:
        says.append(detail)
    evidence = what
    if says:
        evidence = f"{what}: {'; '.join(says)}"
    return Words(evidence, remedy, _SEVERITIES.get(verdict))


def _amount(number: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(number)
    if unit == "a second":
        return format_rate(number)
    if unit == "s":
        return format_duration(number)
    # The check's name contains the unit of a count.
    return format_count(number)
