"""The cost of a connection: the slope of memory over connections held, with its 95 % interval.

A quotient would spread fixed cost (nginx writes all its slots at the start) over the connections.
If the ramp is too short for a slope (:mod:`asyncli.analysis.slope`), the cost is a difference of
two levels, and its method says so.

Start at :func:`known_costs`: a line through each part's memory
(:mod:`asyncli.analysis.cost_readings`), what else was read beside it
(:mod:`asyncli.analysis.adjustments`), and what the whole run says of it
(:mod:`asyncli.analysis.run_adjustments`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from asyncli.analysis import adjustments, run_adjustments
from asyncli.analysis.collected import heap_costs
from asyncli.analysis.constants import MISSED_S, NEARLY_ALL, PART, WORTH_TELLING
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.cost_readings import Fitters, Readings
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.gaps import for_cost, replaced_in_ramp_s
from asyncli.analysis.generations import has_processes_for_connections
from asyncli.analysis.go_limit import limit_reached
from asyncli.analysis.holders import holders_of
from asyncli.analysis.residue import residue
from asyncli.analysis.run_adjustments import WholeRun
from asyncli.analysis.server_memory import BEFORE, held_before, server_memory
from asyncli.analysis.shared_host import other_sockets
from asyncli.analysis.slope import FEWEST_PLATEAUS, OTHERS_INTO_HOLD_S, Fit
from asyncli.analysis.totals import Totals, tested
from asyncli.findings import cost as findings
from asyncli.findings.collected import heap_of_a_part
from asyncli.findings.host import host_shared
from asyncli.model import metrics
from asyncli.model.installed import can_compute
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.model.run import Run

# Costs that size a server. Queued buffers and asyncli's own memory change at rest too, and a longer
# rest would not help.
_SIZED = frozenset({"server_user", "kernel", "host_total"})
_REPORTED = frozenset(findings.COST_NAMES) - {"kernel_queued", "listing"}


def known_costs(run: Run, totals: Totals, drift: Mapping[MetricName, Drift]) -> Costs:
    """The costs as reports, lists and comparisons show them: without those that growth, reuse or
    other programs make unknown.
    """
    if not can_compute():
        not_installed = findings.cost_not_sampled([], run.sides.host)
        return Costs().noting(not_installed).without(not_installed, *findings.COST_NAMES)
    known = costs(run)
    none = Costs(
        residue=known.residue, streams=known.streams, ends=known.ends, holders=known.holders
    )
    was_tested = tested(run.plan, totals.whole, accepted=totals.acceptance.accepted)
    if totals.whole.opened and not was_tested:
        return none
    if _mean_life_s(run) < MISSED_S:
        # Memory that is read every second or two does not show how many were open.
        brief = findings.cost_short_lived(MISSED_S)
        return none.noting(brief).without(brief, *findings.COST_NAMES)
    whole_run = WholeRun(run, drift)
    for adjust in run_adjustments.ADJUSTMENTS:
        known = adjust(whole_run, known)
    return known


def costs(run: Run) -> Costs:
    """The costs of a run on the host that was sampled (:mod:`asyncli.model.topology`), by what was
    read while the connections rose.
    """
    holders = holders_of(run)
    seen = Readings.of(for_cost(run), run, holders)
    known = Costs(streams=seen.fitters.own.streams, ends=seen.ends, holders=holders)
    for name, fit in seen.as_read.items():
        if isinstance(fit, Fit):
            known = known.fitted(name, fit)
    known = _with_other_hosts(seen, known)
    replaced_s = replaced_in_ramp_s(run)
    heap = heap_costs(seen.run, seen.fitters.server, replaced_s, holders)
    known = msgspec.structs.replace(known, heap=heap).noting(*heap.findings)
    if heap_of_a_part.code not in [finding.code for finding in heap.findings]:
        known = known.noting(*limit_reached(seen.run))
    for adjust in adjustments.ADJUSTMENTS:
        known = adjust(seen, known)
    return _with_caveats(seen, known, replaced_s)


def _with_other_hosts(seen: Readings, known: Costs) -> Costs:
    """With what is no part of the sampled host's total: the server's control group, and asyncli's
    host if that is another.
    """
    group = seen.fitters.server.fit(
        "server_group",
        seen.run.series(metrics.SERVER_GROUP_BYTES),
        note=" of its control group's memory",
    )
    if isinstance(group, Fit):
        known = msgspec.structs.replace(known, server_group=group.cost)
    if seen.run.sides.far is None:
        return known
    client = seen.fitters.own.fit(
        "client_total",
        seen.run.series(seen.run.of_ours(metrics.HOST_USED_BYTES)),
        note=" of memory in use",
    )
    if isinstance(client, Fit):
        known = msgspec.structs.replace(known, client_total=client.cost)
    return known


# What is missing, and what the costs may miss.


def _with_caveats(seen: Readings, known: Costs, replaced_s: float | None) -> Costs:
    """With the residue, the reasons of what is unknown, and findings of what the costs miss.
    ``replaced_s``: when processes of the server were replaced in the ramp.
    """
    run = seen.run
    known = known.noting(*_excluded(seen, known))
    level, _ = server_memory(run, seen.holders)
    known = msgspec.structs.replace(known, residue=residue(run, level, seen.memory.host.whole))
    known = _with_reasons(seen, known, replaced_s)
    known = known.noting(*_after_ramp(known, run), *_caveats(known, run, seen.fitters))
    if known.residual is None:
        known = _with_reason_of_residual(seen, known)
    return known


def _excluded(seen: Readings, known: Costs) -> list[Finding]:
    """Findings of what the host's cost excludes."""
    fitter = seen.fitters.shared
    host = seen.memory.host
    excluded = []
    listed = fitter.fit("listing", host.listing)
    # A listing leaves some 900 B per socket. It grows with the connections.
    if isinstance(listed, Fit) and listed.cost.ci95[0] > 50.0:
        excluded.append(
            findings.descriptors_listed(
                listed.cost.bytes_per_connection,
                listed.cost.half_width,
                own=has_processes_for_connections(seen.run),
                by_page=bool(seen.run.series(metrics.RUNTIME_DESCRIPTORS)),
            )
        )
    total = known.host_total
    taken = fitter.fit("others", host.by_themselves)
    if total is None or not isinstance(taken, Fit):
        return excluded
    rise = taken.cost.bytes_per_connection
    if abs(rise) > PART * abs(total.bytes_per_connection):
        excluded.append(findings.processes_excluded(rise, taken.cost.half_width))
    return excluded


def _with_reasons(seen: Readings, known: Costs, replaced_s: float | None) -> Costs:
    """With findings about the costs that have too few points, or none."""
    few = {}
    unread = []
    for name, fit in seen.as_read.items():
        if name in known.unknown or isinstance(fit, Fit):
            continue
        if fit == 0:
            unread.append(name)
        else:
            few[name] = fit
    known = _with_few_points(seen, known, few, replaced_s)
    # Nothing was read where there was something to read.
    wanted = {"kernel_queued": seen.run.plan.has_ports, "behind": bool(known.behind_programs)}
    missing = [name for name in unread if wanted.get(name, True)]
    if not missing:
        return known
    not_sampled = findings.cost_not_sampled(missing, seen.run.sides.host)
    return known.noting(not_sampled).without(not_sampled, *missing)


def _with_few_points(
    seen: Readings, known: Costs, few: Mapping[str, int], replaced_s: float | None
) -> Costs:
    """With a finding about the costs of which there are too ``few`` points for a slope (name ->
    points), two levels or not.
    """
    fitters = seen.fitters
    levels = {**fitters.own.levels, **fitters.server.levels}
    of_levels = {name: points for name, points in levels.items() if name in known.fits}
    if not of_levels and not few:
        return known
    wanted = fitters.own.points_wanted
    too_few = _few_points(of_levels, few, wanted, seen.run.plan, replaced_s)
    return known.noting(too_few).without(too_few, *few)


def _few_points(
    levels: Mapping[str, int],
    few: Mapping[str, int],
    wanted: int,
    plan: Plan,
    replaced_s: float | None,
) -> Finding:
    points = max([*levels.values(), *few.values()])
    reported = [name for name in findings.COST_NAMES if name in _REPORTED]
    of_levels = [name for name in reported if name in levels]
    unknown = [name for name in reported if name in few]
    remedy = "--plateaus 5" if plan.plateaus else ramp_that_fits(plan)
    return findings.cost_few_points(
        points, wanted, of_levels, unknown, plan.plateaus, FEWEST_PLATEAUS, remedy, replaced_s
    )


def ramp_that_fits(plan: Plan) -> str:
    """The option of a ramp with enough points for a slope."""
    # A sample a second: 20 s fill seven bins.
    per_s = min(plan.connections / 20.0, plan.asked_per_s / 2)
    if per_s < 1:
        return "--plateaus 5" if plan.connections >= 5 else "use more connections"
    digit = 10 ** math.floor(math.log10(per_s))
    return f"--ramp {math.floor(per_s / digit) * digit}/s"


def _with_reason_of_residual(seen: Readings, known: Costs) -> Costs:
    if known.host_total is not None and known.host_total.of_levels:
        reason = "a difference of two levels of the whole host includes other programs"
        return msgspec.structs.replace(known, unknown={**known.unknown, "residual": reason})
    missing = [name for name in ("host_total", *seen.parts()) if known.cost_of(name) is None]
    unknown = findings.cost_residual_unknown(missing)
    return known.noting(unknown).without(unknown, "residual")


def _after_ramp(known: Costs, run: Run) -> list[Finding]:
    """A finding of the memory that sizes a server, if the ramp's lines do not predict it at the
    hold's end. Where other programs opened or closed many sockets, that is why the kernel's and the
    host's is another.
    """
    names = _SIZED & known.fits.keys()
    if any(finding.code == host_shared.code for finding in other_sockets(run)):
        names &= {"server_user"}
    off_line = {}
    held = 0.0
    for name in sorted(names):
        fit = known.fits[name]
        if _fills_its_heap(known, name):
            continue
        off_at_end = fit.off_at_end * known.times_in_connection(name)
        if abs(off_at_end) > WORTH_TELLING * abs(fit.line.slope) * fit.held_at_end:
            off_line[name] = off_at_end
            held = fit.held_at_end
    if not off_line:
        return []
    rest_s = run.plan.plateau_s if run.plan.plateaus else 0.0
    return [findings.memory_after_ramp(off_line, held, rest_s)]


def _fills_its_heap(known: Costs, name: str) -> bool:
    """Whether memory that came after the ramp has its place in a heap that fills to its goal, whose
    cost is told.
    """
    goal = known.heap.at_goal
    fit = known.fits.get(known.with_heap)
    if goal is None or fit is None or name not in (known.with_heap, "host_total"):
        return False
    at_end = fit.line.slope * fit.held_at_end + fit.off_at_end
    return 0 <= at_end <= goal.ci95[1] * fit.held_at_end


def _caveats(known: Costs, run: Run, fitters: Fitters) -> list[Finding]:
    """Findings of what the costs may miss: memory used again, connections that were not held,
    plateaus that were too short.
    """
    if not known.fits:
        return []
    caveats = _reuse(known, run)
    plan = run.plan
    held = max(run.held.values)
    if held < NEARLY_ALL * plan.connections:
        caveats.append(findings.cost_of_a_part(held, plan.connections))
    moving = {}
    for fitter in (fitters.own, fitters.shared, fitters.server):
        for name, moved in fitter.unsettled.items():
            if name in _SIZED and name in known.fits:
                moving[name] = moved
    if moving:
        caveats.append(findings.plateau_unsettled(moving, plan.plateau_s))
    return caveats


def _reuse(known: Costs, run: Run) -> list[Finding]:
    """A finding if the server held many connections before, or may have: memory kept of half as
    many connections hides half of the cost.
    """
    held = max(run.held.values)
    before_first = run.within((-math.inf, run.first_connect_s))
    readings = {name: before_first.series(name).values for name in BEFORE}
    first = {name: values[0] for name, values in readings.items() if values}
    before, perhaps = held_before(first)
    if known.server_user is not None and 2 * before >= held:
        return [findings.cost_reused(round(before))]
    if 2 * perhaps < held or not run.sides.server:
        return []
    if known.server_user is None and known.host_total is None:
        return []
    at_most = None
    if math.isfinite(perhaps):
        at_most = round(perhaps)
    return [findings.cost_if_fresh(at_most, run.plan.status_url is not None)]


def _mean_life_s(run: Run) -> float:
    """How long connections lived in the ramp and in the first seconds of the hold, by Little's law;
    infinite without losses.
    """
    hold = run.phase("hold")
    until_s = math.inf
    if hold is not None:
        until_s = hold.start_s + OTHERS_INTO_HOLD_S
    lost = 0
    held_s = 0
    for _, tick in run.ticks_between(-math.inf, until_s):
        held_s += tick.held
        lost += tick.lost_by_server
    if not lost:
        return math.inf
    return held_s / lost
