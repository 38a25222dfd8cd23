"""Soaks of a lab server for an experiment: up a ladder of plateaus for what a connection costs, or on until something gives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncli.analysis.cost import Costs, costs
from asyncli.analysis.slope import Cost
from asyncli.analysis.totals import fold
from asyncli.app.recorder import NoObserver
from asyncli.app.soak import KnownServer, Soak
from asyncli.collect.kernel import SlabReader, read_counters
from asyncli.collect.processes import ProcessesGoneError, ProcessGroup, ServerTree
from asyncli.lab.program import LabServer
from asyncli.metrics import KERNEL_SLAB, SERVER_CPU_S, SERVER_PROCESSES, SERVER_PSS_BYTES, SERVER_THREADS
from asyncli.plan import Layer, Plan, build_plan
from asyncli.records import Phase, Sample, Tick
from asyncli.run import Run
from asyncli.samples import series
from asyncli.store.reader import read_run

# Shares of a rest at which the server's memory is read: in its last half, which is what a plateau's point is made of.
_READ_AT = (0.6, 0.85)
# Within the time from the word to the generator to its first connect.
_BEFORE_S = 0.05
# A share of the kernel's slope: with a wider interval it is noise of other programs' files.
_KNOWN = 0.1
# Of a clock that counts in them, as proc(5) does.
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ENOUGH_TICKS = 20
# A stop is believed when so many connections, or this share of them, were lost, refused or left without an answer.
_LOST, _LOST_SHARE = 20, 0.01


def plan_of_soak(server: LabServer, **values: Any) -> Plan:
    """A soak's plan by the keys of a plan file, without a residue: the server ends right after it."""
    plan = build_plan([Layer("{key}", {"urls": [server.url], "server_pid": server.pid, **values})])
    return msgspec.structs.replace(plan, residue_s=0.0)


class _Ladder(NoObserver):
    """Reads the memory of server, kernel and host on every plateau, at the same instants.

    The collector reads a thousand processes' once a minute, within its budget, and a short rest may lie between two seconds.
    """

    def __init__(self, plan: Plan, server: LabServer, charged: Callable[[], int] | None) -> None:
        self.samples: list[Sample] = []
        #: The same instants, of what is charged to the server's control group.
        self.charges: list[Sample] = []
        self._charged = charged
        self._plan, self._pid = plan, server.pid
        self._t0 = 0.0
        self._begun = asyncio.Event()

    def phase(self, phase: Phase) -> None:
        if phase.name == "baseline" and phase.end_s is None:
            self._zero = time.monotonic() - phase.start_s
        if phase.name == "ramp" and phase.end_s is None:
            self._charge(phase.start_s - _BEFORE_S)
            self._t0 = phase.start_s
            self._begun.set()

    async def read(self) -> None:
        """All its readings; it is cancelled with the soak."""
        await self._begun.wait()
        group, slabs = ProcessGroup("server", ServerTree([self._pid])), SlabReader()
        for start_s, end_s in self._plan.schedule.rests():
            for share in _READ_AT:
                at_s = self._t0 + start_s + share * (end_s - start_s)
                await asyncio.sleep(max(0.0, self._zero + at_s - time.monotonic()))
                begun_s = time.monotonic() - self._zero
                self._charge(begun_s)
                self.samples.append(Sample(begun_s, await asyncio.to_thread(_memory_of, group, slabs)))

    def _charge(self, at_s: float) -> None:
        if self._charged is not None:
            # Under the name of the server's memory: its line is fitted as that is.
            self.charges.append(Sample(at_s, {SERVER_PSS_BYTES: float(self._charged())}))


def _memory_of(group: ProcessGroup, slabs: SlabReader) -> dict[str, float]:
    """What could be read of it."""
    values = dict(read_counters().values)
    with contextlib.suppress(OSError, ValueError):
        values |= slabs.read().values
    with contextlib.suppress(ProcessesGoneError):
        group.scan()
        values |= group.memory().values
    return values


def pss_of(pid: int) -> float | None:
    """Bytes of memory (PSS) of ``pid`` and its descendants; None where it cannot be read. Blocking."""
    return _memory_of(ProcessGroup("server", ServerTree([pid])), SlabReader()).get(SERVER_PSS_BYTES)


class Climbed(NamedTuple):
    """A soak's records; its samples, with those of each plateau among them; and what the server's control group was charged."""

    run: Run
    samples: list[Sample]
    charges: list[Sample]


async def climb(server: LabServer, plan: Plan, charged: Callable[[], int] | None = None) -> Climbed:
    """A soak by ``plan``. ``charged``: bytes of the server's control group now, where it is in one of its own."""
    ladder = _Ladder(plan, server, charged)
    reading = asyncio.create_task(ladder.read())
    try:
        run = await _recorded(server, plan, ladder)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return Climbed(run, sorted([*run.samples, *ladder.samples], key=lambda one: one.t_s), ladder.charges)


async def _recorded(server: LabServer, plan: Plan, watcher: NoObserver, tell: Callable[[Soak], None] = lambda _: None) -> Run:
    with tempfile.TemporaryDirectory(prefix="asyncli-holding-") as folder:
        path = Path(folder) / "run.db"
        soak = Soak(plan, path, observer=watcher, target=KnownServer(server.label, server.pid))
        tell(soak)
        await soak.run()
        return await asyncio.to_thread(read_run, path)


def figures_of(climbed: Climbed, *, sockets_charged: bool = True) -> dict[str, Any]:
    """What a soak says of its server, bytes by the cost's names, each with the half of its 95 % interval. Pure.

    ``own``: all that one more connection takes on the server's side (:func:`own_cost`); ``charge``: the part of it that its
    control group is charged.

    ``socket``: the kernel's objects for an end, where they are known to ± 10 %; other programs' are in the same
    caches. ``rest``: what of it is neither the server's own memory nor its socket.
    """
    run, samples, charges = climbed
    seen = msgspec.structs.replace(run, samples=samples)
    totals, cost, start, end = fold(run), costs(seen), seen.first_connect_s, seen.stop_s
    found: dict[str, Any] = {
        "asked": run.plan.connections,
        "held": totals.held,
        "lost": totals.whole.lost,
        "failed": sum(totals.whole.failures.values()),
        "causes": {name: dead.count for name, dead in totals.whole.deaths.items()} | totals.whole.failures,
        "p99_ms": as_ms(totals.whole.latency_us.quantile(0.99)),
        "processes": seen.series(SERVER_PROCESSES).last(until_s=end),
        "threads": seen.series(SERVER_THREADS).last(until_s=end),
        "idle_bytes": seen.series(SERVER_PSS_BYTES).last(until_s=start),
        "full_bytes": seen.series(SERVER_PSS_BYTES).last(until_s=end),
        "charged_bytes": charges[0].values[SERVER_PSS_BYTES] if charges else None,
        "beat_us": _beat_us(run, samples),
    }
    charge = slope(run, charges) if charges else None
    for key, one in (("user", cost.server_user), ("kernel", cost.kernel), ("host", cost.host_total), ("charge", charge)):
        found[key] = one and one.bytes_per_connection
        found[f"{key}_half"] = one and one.half_width
    found |= own_cost(run, cost, charges, samples, sockets_charged=sockets_charged)
    known_well = cost.kernel is not None and cost.kernel.half_width <= _KNOWN * cost.kernel.bytes_per_connection
    found["socket"] = found["kernel"] if known_well else None
    parts = [found[key] for key in ("own", "user", "socket")]
    found["rest"] = parts[0] - parts[1] - parts[2] if None not in parts else None
    return found


def own_cost(
    run: Run, cost: Costs, charges: Sequence[Sample], samples: Sequence[Sample], *, sockets_charged: bool, clients: int = 1
) -> dict[str, float | None]:
    """``own``, bytes that one more connection takes on the server's side; ``own_half``, half of its interval; None if unknown.

    What the server's control group is charged (``charges``), and its TCP socket where that is not; without a group what the host
    takes, less the clients' memory and the kernel's for their end. Of several ``clients`` one was sampled.
    """
    if charges:
        parts = [(slope(run, charges), 1), *([] if sockets_charged else [(slope(run, _tcp_of_an_end(samples)), 1)])]
    else:
        parts = [(cost.host_total, 1), (cost.kernel, -1), (cost.generator_user, -clients)]
    known = [(one, times) for one, times in parts if one is not None]
    if len(known) < len(parts):
        return {"own": None, "own_half": None}
    # Their errors may go together, so they are added as they are.
    return {
        "own": sum(times * one.bytes_per_connection for one, times in known),
        "own_half": sum(abs(times) * one.half_width for one, times in known),
    }


def slope(run: Run, samples: Sequence[Sample]) -> Cost | None:
    """The line of samples that bear the name of the server's memory."""
    return costs(msgspec.structs.replace(run, samples=samples)).server_user


def _tcp_of_an_end(samples: Sequence[Sample]) -> list[Sample]:
    """The TCP sockets of the host, of which a connection has one at either end."""
    tcp = series(samples, f"{KERNEL_SLAB}TCP")
    return [Sample(t_s, {SERVER_PSS_BYTES: value / 2}) for t_s, value in zip(tcp.t_s, tcp.values, strict=True)]


def as_ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3


def _beat_us(run: Run, samples: Sequence[Sample]) -> float | None:
    """CPU of the server in the hold by the heartbeats that it answered there, microseconds; None where too little to measure."""
    hold = run.phase("hold")
    if hold is None or hold.end_s is None:
        return None
    spent = series(samples, SERVER_CPU_S).between(hold.start_s, hold.end_s)
    answered = [(t_s, tick.answered) for t_s, tick in run.ticks]
    if len(spent) < 2:
        return None
    beats = sum(count for t_s, count in answered if spent.t_s[0] < t_s <= spent.t_s[-1])
    spent_s = spent.values[-1] - spent.values[0]
    if all(abs(value * _TICKS_PER_S - round(value * _TICKS_PER_S)) < 1e-6 for value in spent.values):
        # Read in ticks, each of which may be one too few: of twenty, 5 %.
        beats = beats if spent_s >= _ENOUGH_TICKS / _TICKS_PER_S else 0
    return 1e6 * spent_s / beats if beats else None


class _Push(NoObserver):
    """Looks for the moment at which a server takes no more, and stops the soak there."""

    def __init__(self, used: Callable[[], int]) -> None:
        self.found: dict[str, Any] = {"most": 0, "used_at_most": 0, "lost": 0, "failed": 0, "causes": {}, "stopped": False}
        self.stop: Callable[[], None] = lambda: None
        self._used = used
        self._draining = False

    def phase(self, phase: Phase) -> None:
        self._draining |= phase.name == "drain"

    def tick(self, t_s: float, tick: Tick) -> None:
        if self._draining:
            return
        found = self.found
        # A connection that waits in the listen queue is open at our end, and its first heartbeat unanswered.
        served = tick.held - tick.awaiting
        if served > found["most"]:
            found["most"], found["used_at_most"] = served, self._used()
        found["lost"] += tick.lost
        found["failed"] += sum(tick.failures.values())
        for cause, count in (*((name, dead.count) for name, dead in tick.deaths.items()), *tick.failures.items()):
            found["causes"][cause] = found["causes"].get(cause, 0) + count
        if found["lost"] + found["failed"] >= max(_LOST, _LOST_SHARE * found["most"]):
            if found["stopped"]:
                # One second more, for what comes of it.
                self.stop()
            found["stopped"] = True


async def push(server: LabServer, plan: Plan, used: Callable[[], int], within_s: float) -> dict[str, Any]:
    """Open connections by ``plan`` until the server takes no more, for ``within_s`` at most; what happened.

    ``used``: bytes of the server's memory now.
    """
    watcher = _Push(used)
    with contextlib.ExitStack() as stack:

        def tell(soak: Soak) -> None:
            watcher.stop = soak.stop
            stack.callback(asyncio.get_running_loop().call_later(within_s, soak.stop).cancel)

        await _recorded(server, plan, watcher, tell)
    return watcher.found
