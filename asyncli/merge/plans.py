"""One plan of several: what must be alike is compared, what may differ adds up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.core.ramp import Ramp
from asyncli.errors import StoreError
from asyncli.merge.parts import Client
from asyncli.plan import KEYS, Plan, load_plan, plan_document

# What a connection is and does. Where that differs the runs are two experiments, and their sum is none.
_ALIKE = ("urls", "keepalive", "method", "header", "first_beat", "timeout", "connect_timeout", "reopen")
# Ramps in plateaus rest together where they begin within this share of a rest of each other.
_TOGETHER = 0.1


class Began(msgspec.Struct, frozen=True):
    """A client's ramp, and when it began on the common clock (s)."""

    start_s: float
    ramp: Ramp


def require_alike(clients: Sequence[Client]) -> None:
    """Raise :class:`StoreError` in one line where plans differ in what a connection is, or each had a server of its own."""
    first = clients[0]
    for other in clients[1:]:
        for key in _ALIKE:
            field = KEYS[key][0]
            ours, theirs = getattr(first.run.plan, field), getattr(other.run.plan, field)
            if ours != theirs and not (key == "urls" and _asked(first) == _asked(other)):
                # A header's value may be a secret.
                said = "differ" if key == "header" else f"differ: {_shown(ours)} and {_shown(theirs)}"
                raise StoreError(f"{first.name} and {other.name}: their plans' {key} {said}; merge runs of one experiment")
        if first.host != other.host and (alone := [one for one in (first, other) if _loopback(one)]):
            raise StoreError(
                f"{first.name} and {other.name}: {alone[0].name} asked the loopback of its own host, the other ran on "
                "another one; merge runs on one server"
            )
    for place, one in enumerate(clients):
        for other in clients[:place]:
            if one.ids == other.ids or one.run.id == other.run.id:
                raise StoreError(f"{other.name} and {one.name}: are the same run; name each run once")
            if one.ids & other.ids:
                raise StoreError(f"{other.name} and {one.name}: one and the same run is in both; name each run once")


def _asked(client: Client) -> set[tuple[str, int, str]]:
    """What its URLs ask for, however they are written and in which order."""
    return {(one.host, one.port, one.path) for one in client.run.plan.targets}


def _loopback(client: Client) -> bool:
    """Whether it asked nothing but its own host's loopback, where others have another server."""
    destinations = client.run.environment.get("destinations")
    if not isinstance(destinations, list) or not destinations:
        return False
    hosts = [str(one).rpartition(":")[0].strip("[]") for one in destinations]
    return all(one == "::1" or one.startswith("127.") for one in hosts)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def one_plan(clients: Sequence[Client], began: Sequence[Began], held_s: float | None) -> Plan:
    """The sum of the plans: connections add up, and the pace is that from the first batch of all to the last.

    ``began``: the ramps of those that came to one; ``held_s``: how long all held together.
    """
    plans = [one.run.plan for one in clients]
    first = plans[0]
    connections = sum(one.connections for one in plans)
    batch = sum(one.batch for one in plans)
    interval_s, plateaus = first.interval_s, 0
    if began:
        t0 = min(one.start_s for one in began)
        rests = {(one.plateaus, one.plateau_s) for one in plans}
        late_s = max(one.start_s for one in began) - t0
        if len(rests) == 1 and first.plateaus and len(began) == len(clients) and late_s <= _TOGETHER * first.plateau_s:
            plateaus = first.plateaus
        bare = [msgspec.structs.replace(one, ramp=one.ramp.without_rests()) if plateaus else one for one in began]
        end_s = max(one.start_s + one.ramp.end_s + one.ramp.interval_s for one in bare)
        span_s = end_s - t0 - (late_s if plateaus else 0.0)
        interval_s = max(1e-6, span_s * batch / sum(one.ramp.connections for one in began))
    fields: dict[str, Any] = {
        "connections": connections, "batch": batch, "interval_s": interval_s, "plateaus": plateaus, "hold_s": held_s,
        "hold_until": None, "workers": None, "sources": tuple(dict.fromkeys(source for one in plans for source in one.sources)),
        "status_url": next((one.status_url for one in plans if one.status_url is not None), None),
        "server_pid": None, "server_pidfile": None, "server_name": None,
        "fail_if": tuple(dict.fromkeys(limit for one in plans for limit in one.fail_if)), "abort": False,
        "force": any(one.force for one in plans),
    }  # fmt: skip
    # What no plan could be is said here, and not by whoever reads the file.
    return load_plan(plan_document(msgspec.structs.replace(first, **fields)))
