"""Clients that were started by hand, each with a run file of its own, become one run on one clock.

:func:`merge_files` reads them and writes the run; :func:`joined` is what it comes to, and pure.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from asyncli.analysis.joint import joint
from asyncli.analysis.saturation import saturation
from asyncli.analysis.totals import fold
from asyncli.errors import StoreError
from asyncli.merge.clocks import Clock, Shift, shifts
from asyncli.merge.limits import of_the_server
from asyncli.merge.parts import Client
from asyncli.merge.plans import Began, one_plan, require_alike
from asyncli.merge.sides import Side, common_samples
from asyncli.merge.times import Placed, common_gaps, common_phases, common_ticks, held_to_the_end, require_together
from asyncli.records import Check, Environment, Finding
from asyncli.store.claim import is_claimed
from asyncli.store.reader import Run, read_run, read_with
from asyncli.store.whole import write_run
from asyncli.store.writer import require_free

__all__ = ["Client", "Merged", "joined", "merge_files", "read_client"]

# A file that says nothing of its uncertainty is taken to be off by no more than this (s) where pages are compared.
_UNKNOWN_HALF_S = 1.0
# Who could not sample the server says so; of the whole run it is not true where another client, or its agent, did.
_NOT_SAMPLED = "server_processes_unknown"


class Merged(msgspec.Struct):
    """The run, with each finding's instant (s), and by the name of each client how its clock lies to the first's."""

    run: Run
    findings: list[tuple[float, Finding]]
    clocks: dict[str, Shift]
    #: By their names, the clients' own.
    clients: dict[str, Run]


def merge_files(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Merged:
    """The runs in ``paths`` as the new run file ``out``. Raises :class:`StoreError` in one line for what stands in the way."""
    require_free(Path(out))
    merged = joined([read_client(path) for path in paths])
    write_run(out, merged.run, merged.findings)
    return merged


def read_client(path: str | os.PathLike[str]) -> Client:
    """A client's run file. Raises :class:`StoreError` for one that cannot be read, or that a run still writes."""
    path = Path(path)
    run = read_run(path)
    if is_claimed(path):
        raise StoreError(f"{path}: its run goes on; merge it when it is over")
    times = read_with(
        path, lambda connection: [float(t_s) for (t_s,) in connection.execute("SELECT t_s FROM findings ORDER BY rowid")]
    )
    return Client(str(path), run, times)


def joined(clients: Sequence[Client]) -> Merged:
    """One run of the clients'.

    Raises :class:`StoreError` in one line where they are no one run: other plans, servers or times, or fewer than two.
    """
    if len(clients) < 2:
        raise StoreError("one run alone is merged already; name two run files or more")
    require_alike(clients)
    found = shifts([one.clock for one in clients], [one.samples for one in clients])
    # The earliest zero is that of all.
    zero_s = min(one.shift_s for one in found)
    placed = [Placed(one, shift.shift_s - zero_s) for one, shift in zip(clients, found, strict=True)]
    require_together(placed, sure=all(one.half_s is not None for one in found))
    phases = common_phases(placed)
    began = [ramp for one in placed for ramp in _ramps(one)]
    hold = next((one for one in phases if one.name == "hold"), None)
    held_s = None if hold is None or hold.end_s is None else hold.end_s - hold.start_s
    side = common_samples(
        [
            (one.client, one.shift_s, _UNKNOWN_HALF_S if shift.half_s is None else shift.half_s)
            for one, shift in zip(placed, found, strict=True)
        ]
    )
    saturated = [finding for one in clients for finding in _saturated(one)]
    clocks = {one.name: shift for one, shift in zip(clients, found, strict=True)}
    environment = _environment(clients, side)
    environment["clock"] = _clock(clients, zero_s)
    environment["merged"] = {
        "clients": [
            {
                "name": one.client.name, "id": one.client.run.id, "host": one.client.run.environment.get("host"),
                "connections": one.client.run.plan.connections, "seed": one.client.run.plan.seed, "shift_s": one.shift_s,
                "half_s": clocks[one.client.name].half_s, "how": clocks[one.client.name].how,
            }
            for one in placed
        ],
        "ids": sorted({one for client in clients for one in client.ids}),
        "server_side": None if side.server is None else side.server.name,
        "page": None if side.page is None else side.page.name,
        "ramps": [{"start_s": one.start_s, "ramp": msgspec.to_builtins(one.ramp)} for one in began],
        "saturated": [msgspec.to_builtins(one) for one in saturated],
    }  # fmt: skip
    told = [(0.0, one) for one in _of_merging(placed, phases_held=held_to_the_end(placed, phases), clocks=clocks, side=side)]
    for one in placed:
        for t_s, finding in zip(one.client.told_s, one.client.run.findings, strict=False):
            if not (side.processes and finding.code == _NOT_SAMPLED):
                told.append((t_s + one.shift_s, _whose(one.client.name, finding)))
    plan = one_plan(clients, began, held_s)
    started_wall_s = clients[0].clock.wall_s + zero_s
    run = Run(
        id=uuid.uuid4().hex[:12],
        started=datetime.fromtimestamp(started_wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        plan=plan,
        environment=environment,
        phases=phases,
        ticks=common_ticks(placed, phases),
        samples=side.samples,
        findings=[one for _, one in told],
        checks=[
            *of_the_server([*([side.server] if side.server is not None else ()), *clients], plan.connections),
            *(_check_of(one.name, check) for one in clients for check in one.run.checks),
        ],
        complete=all(one.run.complete for one in clients),
        dropped=sum(one.run.dropped for one in clients),
        gaps=common_gaps(placed),
        started_wall_s=started_wall_s,
    )
    return Merged(run, told, clocks, {one.name: one.run for one in clients})


def _ramps(placed: Placed) -> list[Began]:
    """When its ramp began, if it did; of a run that was merged before, those of its clients."""
    run, start = placed.client.run, placed.start_of("ramp")
    if (known := joint(run.environment)) is not None:
        return [Began(one.start_s + placed.shift_s, one.ramp) for one in known.ramps]
    return [] if start is None else [Began(start, run.plan.schedule)]


def _whose(name: str, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, evidence=f"{name}: {finding.evidence}")


def _check_of(name: str, check: Check) -> Check:
    """A client's limit against its own plan, under a code of its own: nothing is reckoned from it for all of them."""
    return msgspec.structs.replace(check, code=f"{name}: {check.code}", what=f"{name}: {check.what}")


def _saturated(client: Client) -> list[Finding]:
    """Where this client was the limit of its part: among the others' numbers it might not show."""
    run = client.run
    if (known := joint(run.environment)) is not None:
        return known.saturated
    found = saturation(run.plan, fold(run.ticks, run.phases, run.gaps), run.phases, run.ticks, run.environment)
    return [_whose(client.name, one) for one in found if one.code.startswith("generator_saturated_")]


def _of_merging(placed: Sequence[Placed], *, phases_held: dict[str, int], clocks: dict[str, Shift], side: Side) -> list[Finding]:
    parts = ", ".join(
        f"{one.client.name} ({phases_held[one.client.name]:,} of {one.client.run.plan.connections:,} held)" for one in placed
    )
    found = [Finding("merged", "info", f"merged of {len(placed)} runs: {parts}")]
    first, *others = clocks.items()
    for name, shift in others:
        known = f"± {shift.half_s * 1e3:,.1f} ms" if shift.half_s else "exactly" if shift.half_s == 0 else "not known how exactly"
        evidence = f"the clock of {name} began {shift.shift_s:+,.3f} s after that of {first[0]}, {known}: by {shift.how}"
        sure = shift.half_s is not None
        remedy = "" if sure else "see that both hosts' clocks are set by NTP, or let both poll the server's --status-url"
        found.append(Finding("merge_clock", "info" if sure else "warning", evidence, remedy))
    if all(one.start_of("hold") is not None for one in placed) and not _all_held(placed):
        evidence = "there is no time at which all of them held: one had begun its drain before another came to its hold"
        found.append(
            Finding("merge_never_together", "error", evidence, "start them together, with a hold that outlasts the ramps")
        )
    for one in placed:
        if one.client.run.dropped:
            evidence = f"{one.client.name}: {one.client.run.dropped:,} records are missing from the run file"
            found.append(Finding("merge_records_missing", "error", evidence))
    if len({one.client.host for one in placed}) > 1:
        for one in placed:
            if one.client.run.environment.get("local") is True:
                evidence = f"{one.client.name} ran on the server's host: what is said of that host counts its own ends as well"
                found.append(Finding("merge_mixed", "warning", evidence, "run the clients on hosts of their own"))
    return [*found, *side.findings]


def _all_held(placed: Sequence[Placed]) -> bool:
    return max(one.start_of("hold") or 0.0 for one in placed) < min(one.let_go_s for one in placed)


# What adds up over hosts, and over clients.
_PER_HOST, _PER_CLIENT = ("cpus", "memory_bytes"), ("workers", "sources")


def _environment(clients: Sequence[Client], side: Side) -> Environment:
    """What is alike as it is; numbers of hosts and clients added up; of the rest, what differs is not known of them all."""
    environments = [one.run.environment for one in clients]
    hosts = {one.host: one.run.environment for one in reversed(clients)}
    whole: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in environments for key in one):
        values = [one.get(key) for one in environments]
        if all(value == values[0] for value in values):
            whole[key] = values[0]
        elif all(isinstance(value, str) for value in values):
            whole[key] = ", ".join(dict.fromkeys(map(str, values)))
        else:
            whole[key] = None
    for names, of in ((_PER_HOST, list(hosts.values())), (_PER_CLIENT, environments)):
        for name in names:
            numbers = [one.get(name) for one in of]
            whole[name] = sum(numbers) if all(isinstance(one, int | float) for one in numbers) else None
    if side.server is not None:
        whole["server"] = dict(side.server.server)
        # Whoever reads this host's memory then reads both ends.
        whole["local"] = set(hosts) == {side.server.watched}
        agent = side.server.run.environment.get("agent")
        if agent is not None:
            whole["agent"] = agent
    # A run that is merged again is still one that went on by the wall clock.
    if resumed := sorted({when for one in environments for when in one.get("resumed") or ()}):
        whole["resumed"] = resumed
    whole["wall_start"] = min((str(one.get("wall_start")) for one in environments), default=None)
    return whole


def _clock(clients: Sequence[Client], zero_s: float) -> dict[str, Any]:
    """The clock of the whole, as a file's environment tells it: that of one host only where all ran on it."""
    first: Clock = clients[0].clock
    alike = first.monotonic_s is not None and all(one.clock.scale == first.scale for one in clients)
    boots = {one.clock.boot for one in clients}
    return {
        "wall_s": first.wall_s + zero_s,
        "monotonic_s": first.monotonic_s + zero_s if alike and first.monotonic_s is not None else None,
        "boot_id": first.boot if len(boots) == 1 else None,
        "time_ns": (first.scale or "").partition(" ")[2] or None,
    }
