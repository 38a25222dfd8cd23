"""The cost of a connection: the slope of memory over connections held, with its 95 % interval.

A quotient would spread fixed cost (nginx writes all its slots at the start) over the connections.
If the ramp is too short for a slope (:mod:`asyncli.analysis.slope`), the cost is a difference of
two levels, and its method says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from asyncli.analysis.absent_server import absent_server
from asyncli.analysis.constants import MISSED_S, NEARLY_ALL, PART, WORTH_TELLING
from asyncli.analysis.drift import Drift, MetricName, counted, in_words, is_settling
from asyncli.analysis.gaps import for_cost
from asyncli.analysis.holders import Holders, holders_of, memory_of
from asyncli.analysis.other_programs import memory_of_others, taken_by_themselves
from asyncli.analysis.residue import Residue, residue
from asyncli.analysis.server_count import other_clients_of, with_those_elsewhere
from asyncli.analysis.server_memory import (
    BEFORE,
    behind_server,
    held_before,
    reclaimable,
    server_memory,
    unmapped_shared,
    with_files_at_rest,
)
from asyncli.analysis.shared_host import (
    counted_sockets,
    other_families,
    sockets_beside,
    unix_sockets_each,
)
from asyncli.analysis.slope import (
    FEWEST_PLATEAUS,
    OTHERS_INTO_HOLD_S,
    PAGES,
    Cost,
    Fit,
    Fitter,
    minus,
    plus,
)
from asyncli.analysis.totals import Totals, tested
from asyncli.findings import cost as findings
from asyncli.findings.server import (
    connections_elsewhere,
    held_behind,
    held_by_others,
    server_holds_nothing,
)
from asyncli.findings.unknown import cost_grew, cost_of_others
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series

# Costs that size a server. Queued buffers and asyncli's own memory change at rest too, and a longer
# rest would not help.
_SIZED = frozenset({"server_user", "kernel", "host_total"})
# Bytes of the buckets of a connecting end (one for its port, one for port and address), and of a
# socket in TIME_WAIT too.
_BUCKETS = 256


class Costs(msgspec.Struct):
    """The costs; None where unknown, with the reason in ``unknown`` and in ``findings``.

    ``kernel_queued``: pages of queued TCP buffers per socket end, in no other cost. ``fits``: the
    points and lines, by the same names. ``client_total``: of asyncli's own host if the server is on
    another; in no other cost. ``streams``: HTTP/2 streams held by each connection. ``ends``:
    sockets per connection on the sampled host, including a proxy's to its backend; ``kernel`` is
    per socket.
    """

    server_user: Cost | None = None
    kernel: Cost | None = None
    kernel_queued: Cost | None = None
    generator_user: Cost | None = None
    host_total: Cost | None = None
    residual: Cost | None = None
    client_total: Cost | None = None
    findings: list[Finding] = msgspec.field(default_factory=list)
    fits: dict[str, Fit] = msgspec.field(default_factory=dict)
    residue: Residue = msgspec.field(default_factory=Residue)
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    streams: float | msgspec.UnsetType = msgspec.UNSET
    ends: int = 2
    #: Who holds the connections; and what the programs behind the server cost.
    holders: Holders = Holders()
    behind: Cost | None = None
    #: Memory of the server's control group, if that has a limit; in no other cost.
    server_group: Cost | None = None

    def rising(self, *names: str) -> list[str]:
        """Which of these costs are more for the last connections than for all on average."""
        rising = []
        for name in names:
            fit = self.fits.get(name)
            if fit is not None and any(bend.rises for bend in fit.bends):
                rising.append(name)
        return rising

    def cost_of(self, name: str) -> Cost | None:
        """The cost ``name``; None where it is unknown."""
        # By name: each adjustment is of several costs.
        cost: Cost | None = getattr(self, name)
        return cost

    def set_cost(self, name: str, cost: Cost | None) -> None:
        setattr(self, name, cost)

    @property
    def behind_programs(self) -> list[str]:
        """The programs that hold as many connections behind the server."""
        return list(self.holders.behind)


def costs(run: Run) -> Costs:
    """The costs of a run on the host that was sampled (:mod:`asyncli.model.topology`)."""
    whole = run
    holders = holders_of(run)
    beside = sockets_beside(run, holders)
    over_unix = unix_sockets_each(run, holders)
    run = for_cost(run)
    counted_ends = run.sides.ends
    if beside is not None:
        counted_ends += beside[2]
    own = Fitter(run, run.held)
    result = Costs(streams=own.streams, ends=counted_ends + over_unix, holders=holders)
    server = own
    clients = other_clients_of(run)
    if clients is not None:
        server = Fitter(run, clients.count, " over the server's own count of connections")
    shared = server if run.sides.server else own

    memory = _Memory.of(run, whole, holders)
    fitted = _fit_each(result, run, memory, own, server, shared)
    # As fitted, before the sockets of other programs are allowed for.
    kernel_of_all = fitted["kernel"]
    host_of_all = fitted["host_total"]
    others = _sockets_of_others(run, shared, counted_ends, over_unix)
    of_all_programs = {"kernel": memory.kernel, "host_total": memory.host.whole}
    _include_other_sockets(result, fitted, of_all_programs, shared, others)
    for name, fit in fitted.items():
        if isinstance(fit, Fit):
            result.set_cost(name, fit.cost)
            result.fits[name] = fit
    _fit_further(result, run, own, server)
    _include_bends(result)
    _include_those_elsewhere(result, memory.user, run)
    if run.sides.server:
        _include_shared_memory(result, server.fit("shared_memory", unmapped_shared(run)))
        _include_reclaimable(result, server, run)
    _include_queued(result)
    waits = shared.fit("time_waits", run.series(metrics.KERNEL_TCP_TW), known_to=0.0)
    _include_time_waits(result, waits)
    parts = memory.parts(run, result)
    _require_parts_below_total(result, parts)
    left_over = minus(memory.host.whole, list(parts.values()))
    _fit_residual(result, shared.fit("residual", left_over), parts)
    without_files = minus(memory.kernel, [run.series(metrics.KERNEL_FILES_BYTES)])
    fit_without_files = shared.fit("kernel", without_files, 1 / result.ends)
    _include_other_files(result, kernel_of_all, fit_without_files)
    alone = shared.fit("host_total", memory.host.alone)
    _include_other_programs(result, host_of_all, alone)
    _name_excluded(result, memory.host, shared)
    result.residue = residue(run, server_memory(run, holders)[0], memory.host.whole)
    _name_unknown(result, fitted, run, own, server)
    result.findings += [*_after_ramp(result), *_caveats(result, run, own, shared, server)]
    if result.residual is None:
        _say_why_no_residual(result, parts)
    return result


class _Memory(NamedTuple):
    """The memory over time whose slopes are the costs."""

    user: Series
    #: What ``user`` is: PSS, RSS.
    kind: str
    #: Of the programs behind the server.
    behind: Series
    kernel: Series
    generator: Series
    host: _HostMemory

    @classmethod
    def of(cls, run: Run, whole: Run, holders: Holders) -> _Memory:
        user, kind = with_files_at_rest(run, holders)
        return cls(
            user,
            kind,
            # What ends with the server's processes, or starts with new ones, is not behind it.
            behind_server(whole, holders),
            run.series(metrics.KERNEL_SOCKET_BYTES),
            run.series(metrics.GENERATOR_USS_BYTES),
            _HostMemory.of(run, holders),
        )

    def parts(self, run: Run, known: Costs) -> dict[str, Series]:
        """The parts of the sampled host's memory."""
        parts = {"kernel": self.kernel}
        if run.sides.generator:
            parts["generator_user"] = self.generator
        if run.sides.server:
            parts["server_user"] = self.user
        if known.behind_programs:
            parts["behind"] = self.behind
        return parts


def _fit_each(
    known: Costs, run: Run, memory: _Memory, own: Fitter, server: Fitter, shared: Fitter
) -> dict[str, Fit | int]:
    """The fit of each cost, or the number of its points if there are too few."""
    note = f" of {memory.kind}"
    if memory.kind == "RSS":
        note += " (counts shared pages in each process)"
    ends = known.ends
    per_end = ", per socket end"
    if ends > 1:
        per_end += f" ({'both' if ends == 2 else ends} on {run.sides.host})"
    programs = ", ".join(known.behind_programs)
    queued = run.series(metrics.KERNEL_TCP_MEM_BYTES)
    return {
        "server_user": server.fit("server_user", memory.user, note=note),
        "behind": server.fit("behind", memory.behind, note=f" of PSS of {programs}"),
        "kernel": shared.fit("kernel", memory.kernel, 1 / ends, f" of slab objects{per_end}"),
        "kernel_queued": shared.fit(
            "kernel_queued", queued, 1 / ends, f" of queued TCP buffers{per_end}"
        ),
        "generator_user": own.fit("generator_user", memory.generator, note=" of USS"),
        "host_total": shared.fit("host_total", memory.host.whole, note=memory.host.note),
    }


def _name_unknown(
    result: Costs, fitted: Mapping[str, Fit | int], run: Run, own: Fitter, server: Fitter
) -> None:
    """Findings about the costs with too few points, or with none."""
    few = {}
    unread = []
    for name, fit in fitted.items():
        if fit == 0:
            unread.append(name)
        elif isinstance(fit, int):
            few[name] = fit
    levels = {**own.levels, **server.levels}
    _name_unsampled(result, few, levels, own.points_wanted, run.plan)
    _name_unread(result, unread, run)


def _say_why_no_residual(known: Costs, parts: Collection[str]) -> None:
    if known.host_total is not None and known.host_total.of_levels:
        known.unknown["residual"] = (
            "a difference of two levels of the whole host includes other programs"
        )
        return
    missing = [name for name in ("host_total", *parts) if known.cost_of(name) is None]
    known.findings.append(findings.cost_residual_unknown(missing))
    known.unknown["residual"] = known.findings[-1].evidence


def _fit_further(result: Costs, run: Run, own: Fitter, server: Fitter) -> None:
    """Fit what is no part of the sampled host's total: the server's control group, and asyncli's
    host if that is another.
    """
    group = server.fit(
        "server_group",
        run.series(metrics.SERVER_GROUP_BYTES),
        note=" of its control group's memory",
    )
    if isinstance(group, Fit):
        result.server_group = group.cost
    if run.sides.far is not None:
        client = own.fit(
            "client_total",
            run.series(run.of_ours(metrics.HOST_USED_BYTES)),
            note=" of memory in use",
        )
        if isinstance(client, Fit):
            result.client_total = client.cost


def _name_unsampled(
    result: Costs, few: dict[str, int], levels: dict[str, int], wanted: int, plan: Plan
) -> None:
    """A finding about the costs of which there are too ``few`` points for a slope (name -> points),
    two ``levels`` or not.
    """
    of_levels = {name: points for name, points in levels.items() if name in result.fits}
    if not of_levels and not few:
        return
    result.findings.append(_few_points(of_levels, few, wanted, plan))
    result.unknown |= dict.fromkeys(few, result.findings[-1].evidence)


def _name_unread(result: Costs, unread: list[str], run: Run) -> None:
    """A finding about the costs of which nothing was read, where there was something to read."""
    wanted = {"kernel_queued": run.plan.has_ports, "behind": bool(result.behind_programs)}
    missing = [name for name in unread if wanted.get(name, True)]
    if missing:
        result.findings.append(findings.cost_not_sampled(missing, run.sides.host))
        result.unknown |= dict.fromkeys(missing, result.findings[-1].evidence)


def _after_ramp(known: Costs) -> list[Finding]:
    """A finding of the memory that sizes a server, if the ramp's lines do not predict it at the
    hold's end.
    """
    moved = {}
    held = 0.0
    for name in sorted(_SIZED & known.fits.keys()):
        fit = known.fits[name]
        by = fit.off_at_end * _times(known, name)
        if abs(by) > WORTH_TELLING * abs(fit.line.slope) * fit.held_at_end:
            moved[name] = by
            held = fit.held_at_end
    if not moved:
        return []
    return [findings.memory_after_ramp(moved, held)]


def _times(known: Costs, name: str) -> int:
    """How many times a cost is in that of a connection: the kernel's is of one socket end."""
    return known.ends if name == "kernel" else 1


class _HostMemory(NamedTuple):
    """The sampled host's memory over time, without what belongs to no connection. ``alone``: and
    without other programs' memory; empty if that is unknown.
    """

    whole: Series
    alone: Series
    #: Inodes of /proc, which a program that lists descriptors leaves there.
    listing: Series
    #: What other programs took by themselves.
    by_themselves: Series
    note: str = " of memory in use"

    @classmethod
    def of(cls, run: Run, holders: Holders) -> _HostMemory:
        used = run.series(metrics.HOST_USED_BYTES)
        listing = run.series(metrics.KERNEL_LISTING_BYTES)
        note = " of memory in use"
        if listing:
            used = minus(used, [listing])
            note = f"{note} less inodes of /proc"
        others = memory_of_others(run, holders)
        by_themselves = taken_by_themselves(run, others, used.t_s)
        alone = minus(used, [others])
        return cls(minus(used, [by_themselves]), alone, listing, by_themselves, note)


def _name_excluded(result: Costs, host: _HostMemory, fitter: Fitter) -> None:
    """Findings of what the host's cost excludes."""
    listed = fitter.fit("listing", host.listing)
    # A listing leaves some 900 B per socket. It grows with the connections.
    if isinstance(listed, Fit) and listed.cost.ci95[0] > 50.0:
        result.findings.append(
            findings.descriptors_listed(listed.cost.bytes_per_connection, listed.cost.half_width)
        )
    total = result.host_total
    taken = fitter.fit("others", host.by_themselves)
    if total is None or not isinstance(taken, Fit):
        return
    rise = taken.cost.bytes_per_connection
    if abs(rise) > PART * abs(total.bytes_per_connection):
        result.findings.append(findings.processes_excluded(rise, taken.cost.half_width))


def _include_other_programs(known: Costs, whole: Fit | int, alone: Fit | int) -> None:
    """Widen the host's cost, and the residual, to those without other programs' memory; the values
    are halfway.

    ``whole``, ``alone``: the host's memory with it and without it
    (:mod:`asyncli.analysis.other_programs`).
    """
    lower, higher = _beyond(whole, alone)
    was_known = is_measured(known, "host_total")
    _reach(known, "residual", lower, higher)
    _reach(known, "host_total", lower, higher, "other programs' memory")
    total = known.host_total
    # Noise may hide the whole host's cost even with their memory.
    if total is None or not was_known or not isinstance(whole, Fit) or not isinstance(alone, Fit):
        return
    if max(lower, higher) > PART * abs(total.bytes_per_connection):
        taken = whole.cost.bytes_per_connection - alone.cost.bytes_per_connection
        known.findings.append(findings.processes_rise(abs(taken), taken < 0))


def _include_other_files(known: Costs, whole: Fit | int, alone: Fit | int) -> None:
    """Widen the kernel's cost, and the host's, to those without open files that are no sockets:
    they may be other programs'.

    ``whole``, ``alone``: the kernel's memory with these files and without them.
    """
    lower, _ = _beyond(whole, alone)
    _reach(known, "kernel", lower, 0.0, "open files that are no sockets")
    _reach(known, "host_total", known.ends * lower, 0.0)


def _beyond(whole: Fit | int, alone: Fit | int) -> tuple[float, float]:
    """How far the interval of the cost ``alone`` reaches below and above that of the ``whole``."""
    if not isinstance(whole, Fit) or not isinstance(alone, Fit):
        return 0.0, 0.0
    low, high = whole.cost.ci95
    low_alone, high_alone = alone.cost.ci95
    return max(0.0, low - low_alone), max(0.0, high_alone - high)


def _reach(known: Costs, name: str, lower: float, higher: float, without: str = "") -> None:
    """Widen a cost by so many bytes at either end; the value moves with its middle. ``without``:
    why, if it is worth telling.
    """
    cost = known.cost_of(name)
    if cost is None:
        return
    method = cost.method
    if without and max(lower, higher) > PART * abs(cost.bytes_per_connection):
        method = f"{method}; the interval reaches to that without {without}"
    ci95 = (cost.ci95[0] - lower, cost.ci95[1] + higher)
    value = cost.bytes_per_connection + (higher - lower) / 2
    _revise(known, name, bytes_per_connection=value, ci95=ci95, method=method)


def is_measured(costs: object, name: str) -> bool:
    """Whether a cost is known, and its interval above zero or within a byte of it. Of a residual,
    the interval of the total.
    """
    cost: Cost | None = getattr(costs, name)
    if cost is None:
        return False
    if name == "residual":
        cost = getattr(costs, "host_total", None) or cost
    return cost.ci95[0] > 0 or max(map(abs, cost.ci95)) < 1


def known_costs(run: Run, totals: Totals, drift: Mapping[MetricName, Drift]) -> Costs:
    """The costs as reports, lists and comparisons show them: without those that growth, reuse or
    other programs make unknown.
    """
    cost = costs(run)
    none = Costs(residue=cost.residue, streams=cost.streams, ends=cost.ends, holders=cost.holders)
    was_tested = tested(run.plan, totals.whole, accepted=totals.acceptance.accepted)
    if totals.whole.opened and not was_tested:
        return none
    if _mean_life_s(run) < MISSED_S:
        # Memory that is read every second or two does not show how many were open.
        none.findings.append(findings.cost_short_lived(MISSED_S))
        none.unknown = dict.fromkeys(findings.COST_NAMES, none.findings[0].evidence)
        return none
    _allow_for_growth(cost, drift, run)
    _allow_for_what_the_hold_leaves_open(cost, drift, run)
    for reused in cost.findings:
        if reused.code == findings.cost_reused.code:
            # The server's memory is in all of these.
            _exclude(cost, reused, "server_user", "host_total", "residual")
    others = _in_no_part(cost, run)
    if others is not None:
        _exclude(cost, others, "host_total", "residual")
        cost.findings.append(others)
    else:
        _include_unexplained(cost, run)
    absent = absent_server(run)
    if absent is not None:
        _exclude(cost, absent, "server_user", "residual")
        if absent not in run.findings:
            cost.findings.append(absent)
    else:
        _require_holders(cost, run)
        _include_earlier_memory(cost, run)
    return cost


def _include_earlier_memory(cost: Costs, run: Run) -> None:
    """Widen the server's cost by memory that it has in advance, if its connections may use that."""
    known = cost.server_user
    before_first = (-math.inf, run.first_connect_s)
    own = run.series(metrics.SERVER_ANON_SHMEM_BYTES).between(*before_first).values
    with_files = server_memory(run, cost.holders)[0].between(*before_first).values
    if known is None or not own or not with_files:
        return
    held = max(run.held.values)
    had = _had_before_the_first(known, statistics.median(own), held)
    with_first = _came_with_the_first(known, statistics.median(with_files), held)
    in_advance = max(had, with_first)
    if in_advance == 0:
        return
    server = run.place.server_label or "the server"
    per_connection = in_advance / held
    cost.findings.append(
        findings.cost_in_earlier_memory(
            server, in_advance, per_connection, in_advance == with_first
        )
    )
    ci95 = (known.ci95[0], known.ci95[1] + per_connection)
    method = f"{known.method}; the interval includes memory that the server had in advance"
    _revise(cost, "server_user", ci95=ci95, method=method)


def _had_before_the_first(known: Cost, earlier: float, held: float) -> float:
    """The memory that the server had before the first connect, if connections may be in it; else 0.

    What holds a connection has memory for it. If far less was taken than the server had, it may be
    in there: a heap touched in advance, a pool.
    """
    # Two levels of few connections show no rise of any server.
    if known.of_levels or known.ci95[0] > 0:
        return 0.0
    if PART * earlier / held < known.ci95[1]:
        return 0.0
    return earlier


def _came_with_the_first(known: Cost, before: float, held: float) -> float:
    """The memory that came with the first connections, if it is more than all others took; else 0.

    It may have room for further ones: a pool, an arena, a huge page.
    """
    with_first = known.fixed_bytes - before
    if with_first / held <= known.ci95[1]:
        return 0.0
    return max(0.0, with_first)


def _require_holders(cost: Costs, run: Run) -> None:
    """Say which other programs hold the connections; without those that do, the server's cost is
    unknown.
    """
    server = run.place.server_label or "the server"
    if cost.behind_programs:
        cost.findings.append(held_behind(server, cost.behind_programs, cost.behind is not None))
    programs = cost.holders.in_place
    if cost.holders.server is not False and not programs:
        return
    if not programs:
        nobody = server_holds_nothing(server, round(max(run.held.values)))
        cost.findings.append(nobody)
        _exclude(cost, nobody, "server_user", "residual")
        return
    memory_read = all(len(memory_of(run, program)) for program in programs)
    by_others = held_by_others(
        server, list(programs), memory_read, shared=cost.holders.server is not False
    )
    cost.findings.append(by_others)
    if not memory_read:
        _exclude(cost, by_others, "server_user", "residual")


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
        lost += tick.lost
        if "generator_lost" in tick.deaths:
            lost -= tick.deaths["generator_lost"].count
    if not lost:
        return math.inf
    return held_s / lost


def _allow_for_growth(cost: Costs, drift: Mapping[MetricName, Drift], run: Run) -> None:
    """Remove two-level differences that include growth in the hold. Widen slopes by as much growth,
    or settling, in the ramp.
    """
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        known = cost.cost_of(name)
        if known is None:
            continue
        grown = [part for part in drift if name in (part, "host_total")]
        if known.of_levels:
            growing = [part for part in grown if drift[part].verdict == "grows"]
            if growing:
                _exclude_levels(cost, name, {part: drift[part] for part in growing})
            continue
        changing = [drift[part] for part in grown if _grew_or_settled(part, drift[part])]
        if changing:
            _widen_by_growth(cost, name, known, changing, run)


def _grew_or_settled(name: MetricName, drift: Drift) -> bool:
    """Whether it grew in the hold, or may have: the host's and asyncli's change by themselves."""
    if drift.verdict == "grows":
        return True
    if name in ("host_total", "generator_user"):
        return False
    return is_settling(drift) and (drift.bytes_per_hour or 0.0) > 0


def _exclude_levels(cost: Costs, name: str, growing: Mapping[MetricName, Drift]) -> None:
    """A difference of two levels includes the growth between them: it is no cost."""
    described = {findings.COST_NAMES[part]: in_words(drift) for part, drift in growing.items()}
    grew = cost_grew(findings.COST_NAMES[name], described)
    _exclude(cost, grew, name, "residual")
    cost.findings.append(grew)


def _widen_by_growth(
    cost: Costs, name: str, known: Cost, changing: Collection[Drift], run: Run
) -> None:
    """Widen a slope by as much growth in the ramp as in the hold, by time or by request: in a short
    ramp each connection sends its first heartbeat.
    """
    ramp = run.phase("ramp")
    start_s = 0.0
    end_s = 0.0
    if ramp is not None:
        start_s = ramp.start_s
        end_s = ramp.end_s or run.stop_s
    answered = counted(run, lambda tick: tick.answered)
    answers = (answered.at(end_s) or 0.0) - (answered.at(start_s) or 0.0)
    grown = max(_most_grown(drift, end_s - start_s, answers) for drift in changing)
    low, high = known.ci95
    # At most all that grew in the ramp grew with time.
    with_time = min(grown / _times(cost, name) / max(run.held.values), max(0.0, low))
    method = f"{known.method}; the interval includes growth in the ramp as in the hold"
    value = known.bytes_per_connection - with_time / 2
    _revise(cost, name, bytes_per_connection=value, ci95=(low - with_time, high), method=method)


def _allow_for_what_the_hold_leaves_open(
    cost: Costs, drift: Mapping[MetricName, Drift], run: Run
) -> None:
    """Widen the server's slope by what may have come, or gone, by the clock in the ramp: as much as
    the hold does not exclude.

    In a ramp, time and connections rise together. Memory that fills by the clock and is freed now
    and then, such as a collected heap or a batch that is written, looks like a connection's there,
    and like no steady growth in the hold. The memory of the kernel, of the host and of asyncli
    changes by itself, by other programs too.
    """
    ramp = run.phase("ramp")
    known = cost.server_user
    change = drift.get("server_user")
    if known is None or known.of_levels or ramp is None or change is None or change.ci95 is None:
        return
    if change.verdict != "too_short" or is_settling(change):
        return
    # Bytes a connection, of a rate of bytes an hour.
    scale = ((ramp.end_s or run.stop_s) - ramp.start_s) / 3600 / max(run.held.values)
    low, high = known.ci95
    came = min(max(0.0, change.ci95[1]) * scale, max(0.0, low))
    went = max(0.0, -change.ci95[0]) * scale
    if max(came, went) <= WORTH_TELLING * abs(known.bytes_per_connection):
        return
    method = f"{known.method}; the interval includes what the hold leaves open: growth by the clock"
    value = known.bytes_per_connection + (went - came) / 2
    _revise(
        cost,
        "server_user",
        bytes_per_connection=value,
        ci95=(low - came, high + went),
        method=method,
    )


def _most_grown(drift: Drift, seconds: float, answers: float) -> float:
    """The most (bytes) that it grows in so long, or with so many answers, at the upper end of its
    rate.
    """
    rate = drift.bytes_per_hour or 0.0
    upper = max(drift.ci95) if drift.ci95 is not None else rate
    by_answer = (drift.bytes_per_request or 0.0) * upper / rate if rate > 0 else 0.0
    return max(upper / 3600 * seconds, by_answer * answers)


def _in_no_part(cost: Costs, run: Run) -> Finding | None:
    """A finding if more than half of the whole host's cost is in no measured part: in other
    processes, if the server is unknown.

    Not of a proxy, whose backend may have it, nor of a server with a thread or a process for each
    connection: its stacks and page tables are in no part.
    """
    total = cost.host_total
    # A cost whose interval reaches zero is hidden anyway.
    if total is None or total.ci95[0] <= 0 or cost.ends > run.sides.ends or _has_a_thread_each(run):
        return None
    rest = total.bytes_per_connection - _explained_bytes(cost)
    if cost.server_user is None:
        rest = _rise_of_others(cost, run)
    if rest <= total.bytes_per_connection / 2:
        return None
    return cost_of_others(rest, total.bytes_per_connection)


def _rise_of_others(cost: Costs, run: Run) -> float:
    """By how much other processes rose per connection on the server's host; 0 where unknown."""
    if not run.sides.server:
        return 0.0
    fit = Fitter(run, run.held).fit("others", memory_of_others(run, cost.holders))
    if not isinstance(fit, Fit):
        return 0.0
    return fit.cost.bytes_per_connection


def _explained_bytes(cost: Costs) -> float:
    """Bytes of a connection that the measured parts explain. Only root can read /proc/slabinfo:
    else the kernel's part counts as twice what it is.
    """
    parts = ("server_user", "behind", "kernel", "generator_user")
    known = [name for name in parts if cost.cost_of(name) is not None]
    unread = cost.ends * PAGES if cost.kernel is None else 0.0
    return _sum_of(cost, known, lambda part: part.bytes_per_connection) + unread


def _has_a_thread_each(run: Run) -> bool:
    """Whether the server's threads or processes rise with the connections: their stacks and page
    tables are in no part.
    """
    threads = run.series(metrics.SERVER_THREADS)
    before = threads.last(until_s=run.first_connect_s) or 0.0
    rise = max(threads.values, default=0.0) - before
    return rise >= max((tick.held for _, tick in run.ticks), default=0) / 2


def _include_unexplained(cost: Costs, run: Run) -> None:
    """Widen the total down to its parts, and the residual to zero, if that is larger than it
    usually is, and say so.

    Usually the residual is page tables, free parts of slabs and pages of the kernel: at most some
    600 B and three hundredths of the parts, for all servers of the atlas (docs/atlas.md,
    bench/README.md) but those with a thread for each connection. What is more may be another
    program's in the kernel: pipes, files, other sockets.
    """
    total = cost.host_total
    rest = cost.residual
    where = run.sides
    if total is None or total.of_levels or cost.ends > where.ends or _has_a_thread_each(run):
        return
    if where.server and cost.server_user is None:
        return
    explained = _explained_bytes(cost)
    usual = 1000.0 + explained / 20
    unexplained = total.bytes_per_connection - explained
    low, high = total.ci95
    if unexplained <= usual or low <= explained:
        return
    method = (
        f"{total.method}; the interval reaches down to its parts, because the residual is large"
    )
    value = (explained + high) / 2
    _revise(cost, "host_total", bytes_per_connection=value, ci95=(explained, high), method=method)
    if rest is not None:
        ci95 = (min(0.0, rest.ci95[0]), max(rest.ci95[1], high - explained))
        _revise(cost, "residual", bytes_per_connection=value - explained, ci95=ci95)
    cost.findings.append(findings.residual_large(unexplained, usual, where.host))


def _revise(cost: Costs, name: str, **changes: Any) -> None:
    """Change a cost. The level with all connections was read: another slope keeps it, by another
    fixed part.
    """
    known = cost.cost_of(name)
    assert known is not None
    held = max(cost.fits[name].n)
    value = changes.get("bytes_per_connection", known.bytes_per_connection)
    fixed = known.fixed_bytes + (known.bytes_per_connection - value) * held
    revised = msgspec.structs.replace(known, **changes, fixed_bytes=fixed)
    cost.set_cost(name, revised)
    cost.fits[name] = msgspec.structs.replace(cost.fits[name], cost=revised)


def _exclude(cost: Costs, why: Finding, *names: str) -> None:
    for name in names:
        cost.set_cost(name, None)
        cost.fits.pop(name, None)
        cost.unknown[name] = why.evidence


def _sockets_of_others(run: Run, fitter: Fitter, counted_ends: int, over_unix: int) -> Series:
    """The sockets of other programs over time, of every family: so many of those counted, and of
    others, are a connection's.
    """
    others = fitter.other_sockets(counted_sockets(run), counted_ends)
    further = other_families(run)
    if not further:
        return others
    return plus(others, [fitter.other_sockets(further, over_unix)])


def _include_other_sockets(
    result: Costs,
    fitted: dict[str, Fit | int],
    read: dict[str, Series],
    fitter: Fitter,
    others: Series,
) -> None:
    """Widen costs in ``fitted`` by what the sockets of ``others``, other programs, may cost, or
    move them to ``result.unknown``.

    The kernel counts the sockets of all programs. Each of the others may cost between nothing and
    as much as one of ours: the interval includes both, and the value is halfway. Sockets of others
    that do not follow our connections are in a slope's interval already.
    """
    kernel = fitted["kernel"]
    of_others = fitter.fit("other_sockets", others, 1 / result.ends, known_to=0.0)
    if not isinstance(kernel, Fit) or not isinstance(of_others, Fit):
        return
    low, high = of_others.cost.ci95
    if not kernel.cost.of_levels and low <= 0 <= high:
        return
    sockets = 1.0 + of_others.cost.bytes_per_connection
    if sockets <= 0:
        # The cost of one of them has no bound.
        closed = [name for name in read if fitted.pop(name)]
        result.findings.append(findings.cost_sockets_closed(closed))
        result.unknown |= dict.fromkeys(read, result.findings[-1].evidence)
        return
    price = max(0.0, kernel.cost.bytes_per_connection / sockets)
    for name, metric in read.items():

        def less(each: float, name: str = name, metric: Series = metric) -> Fit | int:
            """The fit without what the others cost at such a price."""
            of_others = Series(others.t_s, [each * count for count in others.values])
            return fitter.fit(name, minus(metric, [of_others]), 1 / _times(result, name))

        between = _between(fitted[name], less(price), less(price / 2), kernel.cost.of_levels)
        if between is not None:
            fitted[name] = between


def _between(
    as_read: Fit | int, least: Fit | int, middle: Fit | int, of_levels: bool
) -> Fit | None:
    """The fit ``middle`` with an interval that includes those of all three; None if one has too few
    points, or is of another kind.
    """
    bounds: list[float] = []
    for fit in (as_read, least, middle):
        if not isinstance(fit, Fit) or fit.cost.of_levels != of_levels:
            return None
        bounds += fit.cost.ci95
    assert isinstance(as_read, Fit)
    assert isinstance(middle, Fit)
    ci95 = (min(bounds), max(bounds))
    cost = msgspec.structs.replace(middle.cost, ci95=ci95, method=as_read.cost.method)
    return msgspec.structs.replace(middle, cost=cost)


def _include_time_waits(known: Costs, waits: Fit | int) -> None:
    """Widen costs by what sockets in TIME_WAIT hold, which expire while ours open: themselves, and
    as many buckets as a connecting end, or none where they share their port's. The value is
    halfway.
    """
    if not isinstance(waits, Fit) or waits.cost.ci95[0] <= 0 <= waits.cost.ci95[1]:
        return
    for name, buckets in (("kernel", _BUCKETS / known.ends), ("host_total", 2 * _BUCKETS)):
        cost = known.cost_of(name)
        if cost is None:
            continue
        least, *_, greatest = sorted(buckets * count for count in (0.0, *waits.cost.ci95))
        halfway = buckets * waits.cost.bytes_per_connection / 2
        _revise(
            known,
            name,
            bytes_per_connection=cost.bytes_per_connection - halfway,
            ci95=(cost.ci95[0] - greatest, cost.ci95[1] - least),
            method=f"{cost.method}; the interval includes sockets in TIME_WAIT",
        )


def _include_bends(known: Costs) -> None:
    """Widen the costs of programs to what the last connections cost, where that is not the line's
    slope, and the host's as much; the values are halfway.
    """
    for name in ("server_user", "behind"):
        fit = known.fits.get(name)
        if fit is None or not fit.bends:
            continue
        low, high = fit.cost.ci95
        lowest = min(bend.last_ones - bend.half for bend in fit.bends)
        highest = max(bend.last_ones + bend.half for bend in fit.bends)
        lower = max(0.0, low - lowest)
        higher = max(0.0, highest - high)
        _reach(known, name, lower, higher)
        _reach(known, "host_total", lower, higher)
        method = f"{fit.cost.method}; the line is bent: the interval reaches to its end's slope"
        _revise(known, name, method=method)
        bend = fit.bends[0]
        known.findings.append(
            findings.cost_bent(name, bend.mean, bend.last_ones, bend.half, max(fit.n))
        )


def _include_those_elsewhere(known: Costs, user: Series, run: Run) -> None:
    """Widen the server's cost to that by all its connections, if others at other ports rose too;
    the value is halfway.
    """
    elsewhere = with_those_elsewhere(run)
    if known.server_user is None or elsewhere is None:
        return
    by_all = Fitter(run, elsewhere.connections).fit("server_user", user)
    if not isinstance(by_all, Fit):
        return
    cost = known.server_user
    low, high = cost.ci95
    low_of_all, high_of_all = by_all.cost.ci95
    ci95 = (min(low, low_of_all), max(high, high_of_all))
    held = max(run.held.values)
    known.findings.append(connections_elsewhere(round(elsewhere.rise), round(held)))
    method = f"{cost.method}; the interval includes that by the connections at other ports too"
    _revise(known, "server_user", bytes_per_connection=sum(ci95) / 2, ci95=ci95, method=method)


def _include_shared_memory(known: Costs, shared: Fit | int) -> None:
    """Widen the server's cost by shared memory that rose with the connections and is in no
    process's; the value is halfway.
    """
    server = known.server_user
    if server is None or not isinstance(shared, Fit):
        return
    rise = shared.cost
    if rise.ci95[0] <= 0 or rise.bytes_per_connection <= PART * server.bytes_per_connection:
        return
    known.findings.append(findings.shared_memory_rises(rise.bytes_per_connection, rise.half_width))
    _reach_up(known, "server_user", rise, "shared memory that no process has mapped")


def _include_reclaimable(known: Costs, fitter: Fitter, run: Run) -> None:
    """Widen the costs of the server and of the host by memory that rose with the connections and
    that the kernel can take back; the values are halfway.
    """
    server = known.server_user
    taken = fitter.fit("reclaimable", reclaimable(run))
    if server is None or not isinstance(taken, Fit):
        return
    rise = taken.cost
    # Two levels have the first use of a program's pages in them: that is no more than what else a
    # connection takes.
    worth_telling = server.bytes_per_connection * (1.0 if rise.of_levels else PART)
    if rise.ci95[0] <= 0 or rise.bytes_per_connection <= worth_telling:
        return
    known.findings.append(findings.reclaimable_rises(rise.bytes_per_connection, rise.half_width))
    for name in ("server_user", "host_total"):
        _reach_up(known, name, rise, "memory that the kernel can take back")


def _include_queued(known: Costs) -> None:
    """Widen the kernel's cost by data that rose with the connections in their socket buffers; the
    value is halfway. It may be there for a moment, or for as long as nobody reads it.
    """
    queued = known.kernel_queued
    if known.kernel is None or queued is None or queued.ci95[0] <= 0:
        return
    if queued.bytes_per_connection > PART * known.kernel.bytes_per_connection:
        _reach_up(known, "kernel", queued, "data in the buffers of sockets")


def _reach_up(known: Costs, name: str, rise: Cost, of: str) -> None:
    """Widen a cost from without ``rise`` to with all of it; the value is halfway."""
    cost = known.cost_of(name)
    if cost is None:
        return
    middle = cost.bytes_per_connection + rise.bytes_per_connection / 2
    ci95 = (cost.ci95[0], cost.ci95[1] + rise.ci95[1])
    _revise(
        known,
        name,
        bytes_per_connection=middle,
        ci95=ci95,
        method=f"{cost.method}; the interval includes {of}",
    )


def _require_parts_below_total(known: Costs, parts: Collection[str]) -> None:
    """Widen the total to the sum of its parts if that is more; the value is halfway. Other programs
    then freed memory.
    """
    total = known.host_total
    if total is None or any(known.cost_of(name) is None for name in parts):
        return
    least = _sum_of(known, parts, lambda part: part.bytes_per_connection)
    if least <= total.ci95[1]:
        return
    halfway = (total.ci95[0] + least) / 2
    method = f"{total.method}; widened to the sum of its parts, because other programs freed memory"
    ci95 = (total.ci95[0], least)
    _revise(known, "host_total", bytes_per_connection=halfway, ci95=ci95, method=method)


def _sum_of(known: Costs, parts: Collection[str], value: Callable[[Cost], float]) -> float:
    """The sum of a ``value`` of these parts, each of which is known."""
    terms = []
    for name in parts:
        part = known.cost_of(name)
        assert part is not None
        terms.append(_times(known, name) * value(part))
    return math.fsum(terms)


def _fit_residual(known: Costs, fit: Fit | int, parts: Collection[str]) -> None:
    """The residual: what the host uses per connection beyond the known parts: the difference of the
    slopes.

    The errors of the parts are not independent: the interval is that of ``fit``, of the
    differences, with the value and zero.
    """
    total = known.host_total
    if total is None or total.of_levels or not isinstance(fit, Fit):
        return
    if any(known.cost_of(name) is None for name in parts):
        return
    value = total.bytes_per_connection
    value -= _sum_of(known, parts, lambda part: part.bytes_per_connection)
    fixed = total.fixed_bytes - _sum_of(known, parts, lambda part: part.fixed_bytes)
    own = fit.cost
    low = min(own.ci95[0], value - own.half_width)
    high = max(own.ci95[1], value + own.half_width, 0.0)
    users = [name for name in ("server_user", "behind", "generator_user") if name in parts]
    less = "".join(f"- {name} " for name in users)
    method = f"host_total {less}- {known.ends} x kernel; interval: {own.method}"
    cost = Cost(value, (low, high), fixed, method, own.points, own.r2)
    known.residual = cost
    known.fits["residual"] = msgspec.structs.replace(fit, cost=cost)


_REPORTED = frozenset(findings.COST_NAMES) - {"kernel_queued", "listing"}


def _few_points(levels: dict[str, int], few: dict[str, int], wanted: int, plan: Plan) -> Finding:
    points = max([*levels.values(), *few.values()])
    reported = [name for name in findings.COST_NAMES if name in _REPORTED]
    of_levels = [name for name in reported if name in levels]
    unknown = [name for name in reported if name in few]
    remedy = "--plateaus 5" if plan.plateaus else ramp_that_fits(plan)
    return findings.cost_few_points(
        points, wanted, of_levels, unknown, plan.plateaus, FEWEST_PLATEAUS, remedy
    )


def ramp_that_fits(plan: Plan) -> str:
    """The option of a ramp with enough points for a slope."""
    # A sample a second: 20 s fill seven bins.
    per_s = min(plan.connections / 20.0, plan.asked_per_s / 2)
    if per_s < 1:
        return "--plateaus 5" if plan.connections >= 5 else "use more connections"
    digit = 10 ** math.floor(math.log10(per_s))
    return f"--ramp {math.floor(per_s / digit) * digit}/s"


def _caveats(known: Costs, run: Run, *fitters: Fitter) -> list[Finding]:
    if not known.fits:
        return []
    caveats = _reuse(known, run)
    plan = run.plan
    held = max(run.held.values)
    if held < NEARLY_ALL * plan.connections:
        caveats.append(findings.cost_of_a_part(held, plan.connections))
    moving = {}
    for fitter in fitters:
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
    at_most = round(perhaps) if math.isfinite(perhaps) else None
    return [findings.cost_if_fresh(at_most, run.plan.status_url is not None)]
