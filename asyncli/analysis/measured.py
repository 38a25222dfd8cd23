"""The numbers of a run that ``compare`` uses: each an estimate with an interval, or the reason for
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from asyncli.analysis.after_drain import stays_alive
from asyncli.analysis.constants import FEWEST, MINUTE_S
from asyncli.analysis.cost import known_costs
from asyncli.analysis.cost_parts import Costs, is_measured, known_of_heap
from asyncli.analysis.drift import Drift, MetricName, counted, drifts, source_of
from asyncli.analysis.estimates import (
    ALPHA,
    Estimate,
    Rate,
    at_least,
    by_stretch,
    count_stretches,
    last_of,
    quantile,
)
from asyncli.analysis.gaps import of_one_server
from asyncli.analysis.generations import misses_processes
from asyncli.analysis.heap_cost import HEAP_COSTS, why_no_heap
from asyncli.analysis.holders import Holders
from asyncli.analysis.saturation import has_late_ramp, is_saturated, saturation
from asyncli.analysis.server_count import other_clients_found
from asyncli.analysis.server_memory import at_hold_end, server_memory
from asyncli.analysis.shared_host import other_sockets
from asyncli.analysis.slope import PAGES
from asyncli.analysis.totals import Totals, fold
from asyncli.analysis.verdict import Case, Verdict, judge
from asyncli.core.histogram import Histogram, summed
from asyncli.findings.compare import DIRECTIVE, compare_burst
from asyncli.model.metrics import SERVER_ANON_SHMEM_BYTES, SERVER_CPU_S, SERVER_PSS_BYTES
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.records import Environment, Finding, Tick, left_out_s
from asyncli.model.run import Hold, Run, Ticks
from asyncli.model.units import format_duration

_NONE = Histogram()
_COSTS = ("server_user", "kernel", "generator_user", "host_total", "residual")
_QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
HOST = ("host", "machine", "cpu_model", "cpus", "memory_bytes", "kernel")
OURS = ("asyncli",)
HOLD_TOO_SHORT = "hold too short to tell growth"
# Constant limits; other limits are momentary readings.
_LIMITS = (
    "nofile_hard",
    "nproc",
    "file_max",
    "conntrack_max",
    "cgroup_memory_limit",
    "cpu_quota",
    "superuser",
)

ALIVE_AFTER_DRAIN = "residue.live"
#: Rows of runs on a server whose runtime says them.
OF_HEAP = frozenset({ALIVE_AFTER_DRAIN, *(f"cost.{name}" for name in HEAP_COSTS)})

#: A number, or the reason for none.
Measured = Estimate | Rate | str


class MeasuredRun(msgspec.Struct):
    """A run to compare: its numbers by key of a row, its facts and findings."""

    name: str
    path: str
    id: str
    started: str
    verdict: Verdict
    why: str
    complete: bool
    #: Why its numbers describe the generator; "" if they do not.
    spoiled: str
    held: int
    hold_s: float
    #: Flat facts: plan keys, ``server.label``, ``kernel``...
    facts: dict[str, Any]
    numbers: dict[str, Measured]
    #: How late asyncli sent heartbeats in the hold, by quantile ("p99").
    late_ms: dict[str, float]
    #: The kind of the server's memory ("PSS"), by key of a row.
    kinds: dict[str, str]
    #: Keys of rows that are differences of two levels, which include first use.
    levels: frozenset[str]
    #: Pages of files (B) in the server's PSS at the hold's end; None if not read.
    files: float | None
    #: Keys of rows with a cost or growth that is hidden: its interval reaches zero.
    hidden: frozenset[str]
    findings: list[Finding]
    #: Heartbeats that were sent in the ramp for each connection opened there; None if none was.
    beats_in_ramp: float | None = None
    #: Why the costs of the server's heap that are not among the numbers are unknown.
    why_no_heap: str = ""

    def number(self, key: str) -> Measured:
        """The number under ``key`` (of a row), or the reason for none."""
        if key == ALIVE_AFTER_DRAIN:
            return self.numbers.get(key, "no collection after the drain (--collect asks for them)")
        if key in OF_HEAP:
            return self.numbers.get(key, self.why_no_heap or "unknown")
        return self.numbers.get(key, "unknown")


def measure(
    name: str,
    path: str,
    run: Run,
    costs: Costs | None = None,
    growth: dict[MetricName, Drift] | None = None,
) -> MeasuredRun:
    """All numbers of ``run``, which has the name ``name`` ("A") and the file ``path``. ``costs``,
    ``growth``: of this run, if the caller has them.
    """
    # The verdict needs no latencies, and the histograms of a night are slow to add.
    quick = [
        (t_s, msgspec.structs.replace(tick, latency_us=_NONE, connect_us=_NONE))
        for t_s, tick in run.ticks
    ]
    totals = fold(msgspec.structs.replace(run, ticks=quick))
    measured = run.undisturbed
    limits = saturation(run, totals)
    case = Case(
        run.plan,
        totals,
        saturated=is_saturated(limits),
        late_ramp=has_late_ramp(limits),
        complete=run.complete,
        findings=run.findings,
    )
    judgement = judge(case)
    # An incomplete run is invalid; judge its numbers as if it were complete.
    at_end = judge(msgspec.structs.replace(case, complete=True))
    hold = measured.hold
    numbers: dict[str, Measured] = {}
    grown = growth
    if grown is None:
        grown, _ = drifts(run)
    known = costs
    if known is None:
        known = known_costs(run, totals, grown)
    levels = _costs(numbers, known)
    _memory(numbers, run, known.holders)
    _alive_after_drain(numbers, run)
    _cpu(numbers, run)
    latency = by_stretch(hold, lambda tick: tick.latency_us, "answered")
    numbers |= {f"latency.{name}": quantile(latency, q) for name, q in _QUANTILES.items()}
    lateness = by_stretch(hold, lambda tick: tick.lateness_us, "sent")
    numbers["lateness.p99"] = quantile(lateness, _QUANTILES["p99"])
    late_ms = _late_ms(hold)
    _losses(numbers, totals, measured)
    _drift(numbers, grown)
    hidden = {
        f"cost.{name}"
        for name in _COSTS
        if known.cost_of(name) is not None and not is_measured(known, name)
    }
    hidden |= {f"drift.{name}" for name, drift in grown.items() if drift.verdict == "too_short"}
    spoiled = ""
    if at_end.verdict == "invalid":
        spoiled = at_end.why
    return MeasuredRun(
        name=name,
        path=path,
        id=run.id,
        started=run.started,
        verdict=judgement.verdict,
        why=judgement.why,
        complete=run.complete,
        spoiled=spoiled,
        held=totals.held,
        hold_s=measured.held_for_s,
        facts=facts(run.plan, run.environment),
        numbers=numbers,
        late_ms=late_ms,
        kinds=_kinds(run, known.holders),
        levels=levels,
        files=_files(run),
        hidden=frozenset(hidden),
        findings=[*other_clients_found(run), *other_sockets(run), *_bursts(name, measured.ticks)],
        beats_in_ramp=_beats_in_ramp(run),
        why_no_heap=why_no_heap(run, known.heap),
    )


def _beats_in_ramp(run: Run) -> float | None:
    ramp = run.phase("ramp")
    if ramp is None:
        return None
    end_s = run.stop_s if ramp.end_s is None else ramp.end_s
    ticks = [tick for t_s, tick in run.ticks if ramp.start_s < t_s <= end_s]
    opened = sum(tick.opened for tick in ticks)
    if not opened:
        return None
    return sum(tick.sent for tick in ticks) / opened


def _late_ms(hold: Hold | None) -> dict[str, float]:
    """Quantiles of how late asyncli sent heartbeats in the hold."""
    if hold is None:
        return {}
    late = summed([tick.lateness_us for _, tick in hold.ticks])
    late_ms = {}
    for name, q in _QUANTILES.items():
        late_us = late.quantile(q)
        if late_us is not None:
            late_ms[name] = late_us / 1e3
    return late_ms


def _costs(numbers: dict[str, Measured], known: Costs) -> frozenset[str]:
    """Add the costs to ``numbers``; return the keys of rows that are differences of two levels."""

    def why(name: str) -> str:
        return known.unknown.get(name, "no slope is known")

    # A heap is not missed where the server has none.
    for name in (*_COSTS, *known_of_heap(known)):
        cost = known.cost_of(name)
        if cost is None:
            numbers[f"cost.{name}"] = why(name)
            continue
        low, high = cost.ci95
        numbers[f"cost.{name}"] = Estimate(
            cost.bytes_per_connection, low, high, max(1, cost.points - 2)
        )
    server = known.server_user
    line = known.fits.get("server_user")
    if server is None:
        numbers["fixed.server_user"] = why("server_user")
    elif line is None:
        numbers["fixed.server_user"] = "no interval of the fixed part is known"
    else:
        low, high = line.band(0.0)
        numbers["fixed.server_user"] = Estimate(
            server.fixed_bytes, low, high, max(1, server.points - 2)
        )
    levels = {f"cost.{name}" for name, fit in known.fits.items() if fit.cost.of_levels}
    if "cost.server_user" in levels:
        levels.add("fixed.server_user")
    return frozenset(levels)


def _kinds(run: Run, holders: Holders) -> dict[str, str]:
    """The kind of the server's memory in each row: PSS, RSS and USS are not comparable."""
    keys = ["cost.server_user", "fixed.server_user", "memory.server_hold_end"]
    if run.sides.server:
        # With the server on the sampled host, the residual depends on the server's memory.
        keys.append("cost.residual")
    source = source_of(run, "server_user").removeprefix("server.").removesuffix("_bytes")
    return dict.fromkeys(keys, server_memory(run, holders)[1]) | {
        "drift.server_user": source.replace("_", " + ").upper()
    }


def _files(run: Run) -> float | None:
    memory = at_hold_end(run, run.series(SERVER_PSS_BYTES))
    own = at_hold_end(run, run.series(SERVER_ANON_SHMEM_BYTES))
    if memory is None or own is None:
        return None
    return memory - own


def _memory(numbers: dict[str, Measured], run: Run, holders: Holders) -> None:
    memory, _ = server_memory(of_one_server(run), holders)
    hold, level = run.hold, at_hold_end(run, memory)
    key = "memory.server_hold_end"
    if hold is None:
        numbers[key] = "the run did not reach its hold"
        return
    in_hold = memory.between(hold.start_s, hold.end_s)
    last = in_hold.between(hold.end_s - MINUTE_S, hold.end_s).values
    # Servers with many processes are read less often.
    last = last if len(last) >= FEWEST else in_hold.values[-FEWEST:]
    if level is None:
        numbers[key] = "the memory of the server's processes was not read at the hold's end"
    elif len(last) < FEWEST:
        numbers[key] = f"{len(last)} of {FEWEST} readings of the server's memory in the hold"
    else:
        numbers[key] = at_least(last_of(last), PAGES / 2)


def _alive_after_drain(numbers: dict[str, Measured], run: Run) -> None:
    """Add what is alive after the drain beyond what was before, where collections told it. Repeats
    scatter by more than it is known to.
    """
    stays = stays_alive(run)
    if stays is not None:
        numbers[ALIVE_AFTER_DRAIN] = Estimate(stays, stays, stays)


#: What CPU time is spent on: events of a tick.
_EVENTS: dict[str, Callable[[Tick], float]] = {
    "answered": lambda tick: tick.answered,
    "opened": lambda tick: tick.opened,
}


def _cpu(numbers: dict[str, Measured], run: Run) -> None:
    """Add the server's CPU per request in the hold, and per connection in the ramp (heartbeats
    included).
    """
    ramp = run.phase("ramp")
    hold = run.phase("hold")
    ramp_end_s = run.stop_s
    if hold is not None:
        ramp_end_s = hold.start_s
    for key, part, end_s, count, name in (
        ("cpu.per_request", hold, run.stop_s, "answered", "hold"),
        ("cpu.per_connection", ramp, ramp_end_s, "opened", "ramp"),
    ):
        if part is None:
            numbers[key] = f"the run did not reach its {name}"
        elif misses_processes(run):
            numbers[key] = "processes of the server came and went between two readings"
        else:
            numbers[key] = _per(run, part.start_s, end_s, count, name)


def _per(run: Run, start_s: float, end_s: float, count: str, name: str) -> Measured:
    """Microseconds of the server's CPU per event of ``count``: the ratio of the sums.

    Its error is the spread of stretches about their trend: in the ramp heartbeats of held
    connections make each stretch more expensive than the one before, which is no noise.
    """
    import numpy as np

    from asyncli.analysis.special import stdtrit

    cpu = run.series(SERVER_CPU_S).between(start_s, end_s)
    if not len(cpu):
        return "the CPU time of the server's processes was not read"
    # Start and end at readings. CPU time has a resolution of 10 ms, samples and ticks come once a
    # second.
    k = count_stretches(cpu.t_s[-1] - cpu.t_s[0], least_s=2.0)
    if k is None:
        return f"the {name} is too short for the spread of its stretches"
    edges = np.linspace(cpu.t_s[0], cpu.t_s[-1], k + 1)
    counts = counted(run, _EVENTS[count])
    spent = np.diff(np.interp(edges, cpu.t_s, cpu.values))
    done = np.diff(np.interp(edges, counts.t_s, counts.values))
    if done.sum() <= 0:
        return f"nothing was {count} in the {name}"
    if spent.min() < 0:
        return "the server's processes changed: its CPU time fell"
    ratio = float(spent.sum() / done.sum())
    off = spent - ratio * done
    middle = np.arange(k) - (k - 1) / 2
    rest = off - (off @ middle) / (middle @ middle) * middle
    error = math.sqrt(float(rest @ rest) / (k - 2) * k) / float(done.sum())
    # No better than the resolution.
    half = max(float(stdtrit(k - 2, 1 - ALPHA / 2)) * error, 0.01 / float(done.sum()))
    return Estimate(ratio * 1e6, (ratio - half) * 1e6, (ratio + half) * 1e6, k - 2)


def _losses(numbers: dict[str, Measured], totals: Totals, run: Run) -> None:
    whole = totals.whole
    hours = connection_hours(run) / 1e3
    for key, count in (("lost", whole.lost_by_server), ("reopened", _reopened_of_server(run))):
        if hours <= 0:
            numbers[key] = "no connection was held for a whole second"
        elif count is None:
            numbers[key] = "nothing tells how many of those were reopened that asyncli lost itself"
        else:
            numbers[key] = Rate(count, hours)
    attempts = (whole.opened + whole.failed) / 1e3
    if attempts > 0:
        numbers["failed"] = Rate(whole.failed, attempts)
    else:
        numbers["failed"] = "nothing was attempted"


def _reopened_of_server(run: Run) -> int | None:
    """How many of the reopened connections the server had lost, not asyncli itself; None where
    nothing tells.

    Each replaces one that was lost before it. So up to any second at least as many were the
    server's as asyncli had not lost, and the other way round.
    """
    reopened = 0
    lost_by_server = 0
    lost_by_asyncli = 0
    of_server = 0
    of_asyncli = 0
    for _, tick in run.ticks:
        reopened += tick.reopened
        lost_by_server += tick.lost_by_server
        lost_by_asyncli += tick.lost_by_asyncli
        of_server = max(of_server, reopened - lost_by_asyncli)
        of_asyncli = max(of_asyncli, reopened - lost_by_server)
    if not lost_by_asyncli:
        return reopened
    # Who takes over a lost process's share opens those too that it had not opened.
    of_server_at_most = reopened - of_asyncli
    if of_server < of_server_at_most:
        return None
    return of_server_at_most


def connection_hours(run: Run) -> float:
    """Connection-hours until the drain, without interruptions of the run."""
    seconds = 0.0
    before = None
    for t_s, tick in run.ticks:
        if t_s > run.stop_s + 0.5:
            break
        lasted_s = 1.0
        if before is not None:
            # A longer step is a gap that is not on record.
            lasted_s = min(t_s - before - left_out_s(run.gaps, before, t_s), MINUTE_S)
        seconds += tick.held * lasted_s
        before = t_s
    return seconds / 3600


def _drift(numbers: dict[str, Measured], by_name: Mapping[MetricName, Drift]) -> None:
    names: tuple[MetricName, ...] = ("server_user", "kernel", "host_total")
    for name in names:
        drift = by_name.get(name)
        if drift is None:
            numbers[f"drift.{name}"] = "it was not sampled in the hold"
        elif drift.bytes_per_hour is None or drift.ci95 is None or drift.p_value is None:
            numbers[f"drift.{name}"] = HOLD_TOO_SHORT
        elif drift.verdict == "too_short" and (name == "host_total" or drift.p_value < ALPHA):
            # The interval is no bound: other programs change the host's memory, and what is certain
            # may be settling.
            numbers[f"drift.{name}"] = HOLD_TOO_SHORT
        else:
            numbers[f"drift.{name}"] = Estimate(drift.bytes_per_hour, *drift.ci95)


def _bursts(name: str, ticks: Ticks) -> list[Finding]:
    """A finding if one second has most losses: rates count each loss as an independent event."""
    lost = [(tick.lost_by_server, t_s) for t_s, tick in ticks if tick.deaths]
    total = sum(count for count, _ in lost)
    in_a_second, at_s = max(lost, default=(0, 0.0))
    if total < FEWEST or 2 * in_a_second < total:
        return []
    return [compare_burst(name, in_a_second, total, at_s)]


def _without_address(collect: str | None) -> str | None:
    """What asks for collections; of a page its path: its address is a part of the server's."""
    page = urlsplit(collect or "")
    if page.scheme not in ("http", "https"):
        return collect
    return urlunsplit(page._replace(scheme="", netloc=""))


def facts(plan: Plan, environment: Environment) -> dict[str, Any]:
    """Flat facts of a run: server, plan keys (``plan.hold_s``), host, limits and sysctls."""
    server = environment.get("server")
    known: dict[str, Any] = {}
    if isinstance(server, dict):
        known |= {
            f"server.{key}": server.get(key) for key in ("label", "version", "exe", "config_hash")
        }
        known |= {
            f"{DIRECTIVE}{name}": value for name, value in (server.get("directives") or {}).items()
        }
    known["protocol"] = PROTOCOLS[plan.protocol].title
    known |= {
        f"plan.{key}": value
        for key, value in msgspec.to_builtins(plan).items()
        if key not in ("batch", "interval_s")
    }
    if plan.hold_until is not None:
        # Its length varies by seconds.
        del known["plan.hold_s"]
    # They are compared with the run, and change nothing of it.
    del known["plan.baseline_runs"]
    if not plan.abort:
        # Limits judge what was measured, and change nothing of it.
        del known["plan.fail_if"]
    known["plan.collect"] = _without_address(plan.collect)
    known["plan.ramp"] = f"{plan.batch}/{format_duration(plan.interval_s).replace(' ', '')}"
    known |= {
        key: environment.get(key) for key in (*HOST, *OURS, "python", "local", "workers", "sources")
    }
    for name, keys in (("sysctls", None), ("limits", _LIMITS)):
        part = environment.get(name)
        if isinstance(part, dict):
            known |= {f"{name}.{key}": part[key] for key in (keys or part) if key in part}
    return known
