"""What a run that was merged of several clients' knows of each of them: in its environment, under ``merged``."""

from __future__ import annotations

import msgspec

from asyncli.core.ramp import Ramp
from asyncli.records import Environment, Finding


class ClientRamp(msgspec.Struct):
    """A client's ramp, and when it began (s)."""

    start_s: float
    ramp: Ramp


class Joint(msgspec.Struct):
    """``ramps``: of those that came to one. ``saturated``: where one was its own limit, which may not show in the whole.

    ``ids``: of all the runs in it.
    """

    ids: list[str] = []
    ramps: list[ClientRamp] = []
    saturated: list[Finding] = []


def joint(environment: Environment) -> Joint | None:
    """None of a run of one client, and of a file in which it cannot be understood."""
    try:
        return msgspec.convert(environment["merged"], Joint)
    except (KeyError, msgspec.ValidationError):
        return None


def ramps_of(environment: Environment) -> list[tuple[float, Ramp]] | None:
    """When each client's ramp began (s), and how it goes; None of a run of one client."""
    clients = joint(environment)
    return None if clients is None else [(one.start_s, one.ramp) for one in clients.ramps]
