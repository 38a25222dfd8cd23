"""Findings of the forecast of how many connections fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from asyncli.findings import Words, finding
from asyncli.model.units import format_count

_CEILINGS = {
    "memory": "memory",
    "worker_connections": "the server's connection slots",
    "descriptors": "its descriptors",
}
Why = Literal[
    "available_not_read",
    "cost_not_known",
    "of_two_levels",
    "interval_too_wide",
    "process_not_named",
    "configuration_not_read",
]
_QUIETER = "ramp more slowly or to more connections, on a quiet host"


@finding("forecast_unknown", "info")
def forecast_unknown(of: Sequence[str], why: Why, how: str) -> Words:
    """How many connections fit by memory or by a limit of the server is unknown. ``how``: how
    memory was computed.
    """
    reason, remedy = {
        "available_not_read": (
            "available memory was not read before the first connect",
            "see the other findings for why",
        ),
        "cost_not_known": ("the cost of a connection on this host is unknown", _QUIETER),
        "of_two_levels": (
            "a difference of two levels includes first use, so the cost of one more is unknown",
            _QUIETER,
        ),
        "interval_too_wide": (how, _QUIETER),
        "process_not_named": (
            "the server's configuration was not read",
            "name its main process with --server-pid",
        ),
        "configuration_not_read": ("asyncli cannot read this server's configuration from here", ""),
    }[why]
    return Words(
        f"capacity by {' and '.join(_CEILINGS[name] for name in of)} is unknown: {reason}", remedy
    )


@finding("forecast_far", "info")
def forecast_far(connections: float, times: float, measure: int) -> Words:
    """The memory forecast extrapolates far beyond the measured number of connections, and the cost
    may change on the way. ``times``: how many times as far; ``measure``: a count that is large
    enough.
    """
    return Words(
        f"the forecast of {format_count(connections)} connections by memory is {times:,.0f} times "
        "the measured count: the cost may change",
        f"measure with -c {measure} or more",
    )


@finding("gave_way", "info")
def gave_way(
    lost: int,
    failed: int,
    server: str,
    served: int | None,
    asked: int,
    side: str,
    what: str,
    certain: bool,
    limit: bool,
    why: str,
    remedy: str,
    streams: int,
) -> Words:
    """Connections were lost or failed to open, so the bottleneck is reported in place of a
    forecast. An error if it is a known limit of the server that was reached. ``what``: the
    bottleneck, on one ``side``; ``limit``: whether it is such a limit; ``served``: the most
    answered at once, if fewer than planned; ``streams``: lost ones of HTTP/2 that were to be held.
    """
    cause = why
    if not certain and side != "unknown":
        cause = f"the likely cause: {why}"
    if served is not None:
        about = f"at most about {format_count(float(f'{served:.2g}'))} of {format_count(asked)}"
        # What is on the way may have kept the others from the server.
        most = f"{server} served {about} at once" if certain else f"{about} were served at once"
        cause = f"{most}. {_as_sentence(cause, server)}"
    return Words(f"{cause}. So there is no forecast", remedy, "error" if limit else "info")


def _as_sentence(text: str, server: str) -> str:
    """``text`` with a capital, unless it begins with the name of the server, or asyncli's."""
    if text.startswith(("asyncli", server)) and not text.startswith("the "):
        return text
    return f"{text[:1].upper()}{text[1:]}"
