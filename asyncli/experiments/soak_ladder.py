"""Soaks of a lab server on a ladder of plateaus, to measure a connection's cost; and the memory
charged to its control group.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.slope import Cost
from asyncli.analysis.totals import in_ms
from asyncli.app.recorder import NoObserver
from asyncli.app.results import Results
from asyncli.app.soak import KnownServer, Soak
from asyncli.collect.cgroups import Group, memory_group
from asyncli.collect.kernel import MemoryReader, read_counters
from asyncli.collect.processes import ProcessesGoneError, ProcessGroup, ServerTree
from asyncli.experiments import ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.findings.experiment import no_group
from asyncli.lab import child
from asyncli.lab.base import LabServer
from asyncli.model.metrics import (
    KERNEL_SLAB,
    SERVER_PROCESSES,
    SERVER_PSS_BYTES,
    SERVER_THREADS,
    STATUS_ACTIVE,
)
from asyncli.model.plan import Layer, Plan, build_plan
from asyncli.model.records import Phase, Sample
from asyncli.model.run import Run
from asyncli.store.reader import read_run

# When memory is read, as shares of a rest: in its last half, of which a plateau's point is made.
_READ_AT = (0.6, 0.85)
# As a share of the kernel's slope; a wider interval is noise from other programs' files.
_MAX_HALF_WIDTH = 0.1


class LadderPlan(ExperimentPlan, frozen=True, kw_only=True):
    """An experiment that climbs ``plateaus``, with a ``rest`` after each."""

    plateaus: Annotated[int, msgspec.Meta(ge=2, le=100)] = 5
    rest: str = "3s"
    keepalive: str
    hold: str
    baseline: str = "3s"


def ladder_soak(server: LabServer, plan: Any, connections: int, rate: int, **keys: Any) -> Plan:
    """The soak of a :class:`LadderPlan`, at about ``rate`` connects a second; ``keys``: further
    ones of a plan file.
    """
    return plan_of_soak(
        server,
        connections=connections,
        ramp=f"{max(1, rate // 100)}/10ms",
        plateaus=plan.plateaus,
        plateau_rest=plan.rest,
        keepalive=plan.keepalive,
        hold=plan.hold,
        baseline=plan.baseline,
        **keys,
    )


def plan_of_soak(server: LabServer, **values: Any) -> Plan:
    """A soak's plan from the keys of a plan file. It has no residue phase, since the server is
    stopped right after it; except for a proxy, whose sockets are attributed by what the residue
    frees.
    """
    keys = {"urls": [server.url], "server_pid": server.pid, "reopen": False, **values}
    plan = build_plan([Layer("{key}", keys)])
    if server.ends > 2:
        return plan
    return msgspec.structs.replace(plan, residue_s=0.0)


class _Ladder(NoObserver):
    """Reads the memory of server, kernel and host at the same instants on every plateau.

    The collector's budget allows reading a thousand processes only once a minute, which could miss
    a short rest.
    """

    def __init__(self, plan: Plan, pid: int) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._pid = pid
        self._ramp_s = 0.0
        self._ramp_started = asyncio.Event()

    def phase(self, phase: Phase) -> None:
        if phase.name == "baseline" and phase.end_s is None:
            self._zero = time.monotonic() - phase.start_s
        if phase.name == "ramp" and phase.end_s is None:
            self._ramp_s = phase.start_s
            self._ramp_started.set()

    async def read(self) -> None:
        """Take all readings."""
        await self._ramp_started.wait()
        group = ProcessGroup("server", ServerTree([self._pid]))
        host = MemoryReader()
        for start_s, end_s in self._plan.schedule.rests():
            for share in _READ_AT:
                at_s = self._ramp_s + start_s + share * (end_s - start_s)
                await asyncio.sleep(max(0.0, self._zero + at_s - time.monotonic()))
                now_s = time.monotonic() - self._zero
                self.samples.append(Sample(now_s, await asyncio.to_thread(_memory_of, group, host)))


def _memory_of(group: ProcessGroup, host: MemoryReader) -> dict[str, float]:
    """The memory metrics that could be read."""
    values = read_counters().values | host.read().values
    with contextlib.suppress(ProcessesGoneError):
        group.scan()
        values |= group.memory().values
    return values


async def run_ladder(server: LabServer, plan: Plan) -> Run:
    """Run the soak; the result's samples include those of each plateau."""
    ladder = _Ladder(plan, server.pid)
    reading = asyncio.create_task(ladder.read())
    try:
        with tempfile.TemporaryDirectory(prefix="asyncli-holding-") as folder:
            path = Path(folder) / "run.db"
            await Soak(
                plan, path, observer=ladder, target=KnownServer(server.label, server.pid)
            ).run()
            run = await asyncio.to_thread(read_run, path)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    samples = sorted([*run.samples, *ladder.samples], key=lambda sample: sample.t_s)
    return msgspec.structs.replace(run, samples=samples)


def figures_of(run: Run, charges: Charges | None = None, ends: int = 2) -> dict[str, Any]:
    """A soak's figures: costs in bytes, each with half of its 95 % interval. ``ends``: socket ends
    per connection on this host, with a proxy's to its backend. Pure.

    ``socket``: the kernel's objects for one end, if known to ± 10 %. ``rest``: :func:`own_cost`
    less the server's memory and socket.
    """
    analyses = Results(Path(), run).analyses
    totals = analyses.totals
    costs = analyses.costs
    end_s = run.stop_s
    figures: dict[str, Any] = {
        "asked": run.plan.connections,
        "held": totals.held,
        "lost": totals.whole.lost,
        "failed": totals.whole.failed,
        "causes": totals.whole.lost_by_cause | totals.whole.failures,
        "p99_ms": in_ms(totals.whole.latency_us, 0.99)[0],
        "processes": run.series(SERVER_PROCESSES).last(until_s=end_s),
        "threads": run.series(SERVER_THREADS).last(until_s=end_s),
        "full_bytes": run.series(SERVER_PSS_BYTES).last(until_s=end_s),
        **own_cost(run, costs, charges, ends),
    }
    share_of_end = costs.ends / ends
    for key, cost, share in (
        ("user", costs.server_user, 1.0),
        ("kernel", costs.kernel, share_of_end),
        ("host", costs.host_total, 1.0),
    ):
        figures[key] = None if cost is None else share * cost.bytes_per_connection
        figures[f"{key}_half"] = None if cost is None else share * cost.half_width
    figures["socket"] = figures["kernel"] if _is_precise(costs.kernel) else None
    own, user, socket = (figures[key] for key in ("own", "user", "socket"))
    figures["rest"] = None if None in (own, user, socket) else own - user - socket
    return figures


def _is_precise(cost: Cost | None) -> bool:
    if cost is None:
        return False
    return cost.half_width <= _MAX_HALF_WIDTH * cost.bytes_per_connection


def own_cost(
    run: Run, cost: Costs, charges: Charges | None = None, ends: int = 2
) -> dict[str, float | None]:
    """``own``: the bytes of one more connection on the server's side, if both sides are this host;
    ``own_half``: half of its interval; None: unknown. It is what the server's control group is
    charged, and its TCP socket if that is not; without a group all that the host uses, less
    asyncli's memory and the kernel's for its end; for a proxy without a group it is unknown.
    """
    if charges is not None and charges.samples:
        parts = [(part, 1) for part in _charged(run, charges, ends)]
    elif ends > 2:
        return {"own": None, "own_half": None}
    else:
        parts = [(cost.host_total, 1), (cost.kernel, -1), (cost.generator_user, -1)]
    known = [(part, sign) for part, sign in parts if part is not None]
    if len(known) < len(parts):
        return {"own": None, "own_half": None}
    # Their errors may be correlated, so they add up.
    return {
        "own": sum(sign * part.bytes_per_connection for part, sign in known),
        "own_half": sum(part.half_width for part, _ in known),
    }


def _charged(run: Run, charges: Charges, ends: int) -> list[Cost | None]:
    """What the server's control group is charged, and the server's TCP sockets if that is not."""
    zero_s = run.environment["clock"]["monotonic_s"]
    samples = [Sample(sample.t_s - zero_s, sample.values) for sample in charges.samples]
    parts = [_slope(run, samples)]
    if not charges.with_sockets:
        # One end was accepted by the server; a proxy's end to its backend is charged to the group
        # that created it.
        tcp = run.series(f"{KERNEL_SLAB}TCP")
        of_one_end = [Sample(t_s, {SERVER_PSS_BYTES: value / ends}) for t_s, value in tcp.rows()]
        parts.append(_slope(run, of_one_end))
    return parts


def _slope(run: Run, samples: list[Sample]) -> Cost | None:
    """The slope of samples named as the server's memory over the connections of ``run`` and other
    clients.
    """
    active = run.series(STATUS_ACTIVE)
    active_samples = [Sample(t_s, {STATUS_ACTIVE: value}) for t_s, value in active.rows()]
    both = sorted([*active_samples, *samples], key=lambda sample: sample.t_s)
    charged_run = msgspec.structs.replace(run, samples=both)
    return Results(Path(), charged_run).analyses.costs.server_user


# Enough for the shortest rest.
_CHARGE_INTERVAL_S = 0.1
# A killed process leaves its group only when its parent has reaped it.
_REMOVE_S = 5.0


class Charges:
    """The memory charged to a server's control group from its start, without file cache; no samples
    without a group.
    """

    def __init__(self) -> None:
        #: On this host's monotonic clock, named as the server's memory, since it is fitted like
        #: that.
        self.samples: list[Sample] = []
        #: The charge includes accepted sockets.
        self.with_sockets = False

    async def read(self, group: Group) -> None:
        """Sample until cancelled."""
        # Since Linux 6.12, and only with cgroup v2 (inet_csk_accept()).
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        if group.second and release is not None:
            self.with_sockets = (int(release[1]), int(release[2])) >= (6, 12)
        while True:
            self.samples.append(
                Sample(time.monotonic(), {SERVER_PSS_BYTES: float(group.held_bytes)})
            )
            await asyncio.sleep(_CHARGE_INTERVAL_S)


@contextlib.asynccontextmanager
async def measured_in_cgroup(context: Context, server: LabServer) -> AsyncIterator[Charges]:
    """Run ``server`` in a control group of its own and sample that. If none can be made, run it
    without, and add a finding.
    """
    charges = Charges()
    async with contextlib.AsyncExitStack() as stack:
        try:
            group = await stack.enter_async_context(new_cgroup())
        except OSError as error:
            if not any(finding.code == no_group.code for finding in context.findings):
                context.findings.append(no_group(error.strerror or str(error)))
            await stack.enter_async_context(server)
        else:
            with child.in_cgroup(group.folder / "cgroup.procs"):
                await stack.enter_async_context(server)
            stack.callback(asyncio.create_task(charges.read(group)).cancel)
        yield charges


@contextlib.asynccontextmanager
async def new_cgroup() -> AsyncIterator[Group]:
    """A memory control group, removed at the block's end, when the server must have ended. Raises
    OSError if none can be made.

    It is below our own group, so that our limits apply. With cgroup v2 it is beside ours if ours
    has no limit, since a group with processes cannot delegate memory.
    """
    cgroup = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    own_group = memory_group(cgroup, mountinfo)
    if own_group is None:
        raise FileNotFoundError(errno.ENOENT, "no memory controller")
    place = own_group.folder
    if own_group.second and "memory" not in own_group.read("cgroup.subtree_control").split():
        if own_group.read("memory.max").strip() != "max":
            raise PermissionError(errno.EPERM, "our own memory is limited")
        place = place.parent
    name = f"asyncli-{os.getpid()}-{os.urandom(4).hex()}"
    group = Group(place / name, own_group.second)
    group.folder.mkdir()
    try:
        # Fails if the memory controller is not delegated to it.
        group.read("memory.stat")
        yield group
    finally:
        await child.until(lambda: _remove(group.folder), _REMOVE_S)


def _remove(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
