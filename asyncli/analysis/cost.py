"""The cost of a connection: the slope of memory over connections held, with its 95 % interval.

A quotient would spread fixed cost (nginx writes all its slots at the start) over the connections.
If the ramp is too short for a slope (:mod:`asyncli.analysis.slope`), the cost is a difference of
two levels, and its method says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
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

    @property
    def behind_programs(self) -> list[str]:
        """The programs that hold as many connections behind the server."""
        return list(self.holders.behind)


def costs(run: Run) -> Costs:
    """The costs of a run on the host that was sampled (:mod:`asyncli.model.topology`)."""
    whole, holders = run, holders_of(run)
    beside, over_unix = sockets_beside(run, holders), unix_sockets_each(run, holders)
    run = for_cost(run)
    where, held = run.sides, run.held
    clients = other_clients_of(run)
    ours = Fitter(run, held)
    counted_ends = where.ends + (beside[2] if beside is not None else 0)
    ends = counted_ends + over_unix
    result = Costs(streams=ours.streams, ends=ends, holders=holders)
    server = (
        ours
        if clients is None
        else Fitter(run, clients.count, " over the server's own count of connections")
    )
    shared = server if where.server else ours

    user, kind = with_files_at_rest(run, holders)
    note = f" of {kind}" + (" (counts shared pages in each process)" if kind == "RSS" else "")
    # What ends with the server's processes, or starts with new ones, is not behind it.
    behind = behind_server(whole, holders)
    kernel, generator = (
        run.series(name) for name in (metrics.KERNEL_SOCKET_BYTES, metrics.GENERATOR_USS_BYTES)
    )
    host = _HostMemory.of(run, holders)

    both = ", per socket end" + (
        f" ({'both' if ends == 2 else ends} on {where.host})" if ends > 1 else ""
    )
    found = {
        "server_user": server.fit("server_user", user, note=note),
        "behind": server.fit(
            "behind", behind, note=f" of PSS of {', '.join(result.behind_programs)}"
        ),
        "kernel": shared.fit("kernel", kernel, 1 / ends, f" of slab objects{both}"),
        "kernel_queued": shared.fit(
            "kernel_queued",
            run.series(metrics.KERNEL_TCP_MEM_BYTES),
            1 / ends,
            f" of queued TCP buffers{both}",
        ),
        "generator_user": ours.fit("generator_user", generator, note=" of USS"),
        "host_total": shared.fit("host_total", host.whole, note=host.note),
    }
    of_all_programs = dict(found)
    others = _sockets_of_others(run, shared, counted_ends, over_unix)
    _include_other_sockets(
        result, found, {"kernel": kernel, "host_total": host.whole}, shared, others
    )
    for name, one in found.items():
        if isinstance(one, Fit):
            setattr(result, name, one.cost)
            result.fits[name] = one
    _fit_further(result, run, ours, server)
    _include_bends(result)
    _include_those_elsewhere(result, user, run)
    if where.server:
        _include_shared_memory(result, server.fit("shared_memory", unmapped_shared(run)))
        _include_reclaimable(result, server, run)
    _include_queued(result)
    _include_time_waits(
        result, shared.fit("time_waits", run.series(metrics.KERNEL_TCP_TW), known_to=0.0)
    )
    parts = {"kernel": kernel}
    for name, memory, is_part in (
        ("generator_user", generator, where.generator), ("server_user", user, where.server),
        ("behind", behind, bool(result.behind_programs)),
    ):  # fmt: skip
        if is_part:
            parts[name] = memory
    _hold_the_parts(result, parts)
    _fit_residual(result, shared.fit("residual", minus(host.whole, list(parts.values()))), parts)
    without_files = minus(kernel, [run.series(metrics.KERNEL_FILES_BYTES)])
    _include_other_files(
        result, of_all_programs["kernel"], shared.fit("kernel", without_files, 1 / ends)
    )
    _include_other_programs(
        result, of_all_programs["host_total"], shared.fit("host_total", host.alone)
    )
    _name_excluded(result, host, shared)
    result.residue = residue(run, server_memory(run, holders)[0], host.whole)
    few = {name: points for name, points in found.items() if isinstance(points, int) and points}
    _name_unsampled(result, few, {**ours.levels, **server.levels}, ours.points_wanted, run.plan)
    _name_unread(result, [name for name, points in found.items() if points == 0], run)
    result.findings += [*_after_ramp(result), *_caveats(result, run, held, ours, shared, server)]
    if result.residual is None:
        _say_why_no_residual(result, parts)
    return result


def _say_why_no_residual(known: Costs, parts: Collection[str]) -> None:
    if known.host_total is not None and known.host_total.of_levels:
        known.unknown["residual"] = (
            "a difference of two levels of the whole host includes other programs"
        )
        return
    missing = [name for name in ("host_total", *parts) if getattr(known, name) is None]
    known.findings.append(findings.cost_residual_unknown(missing))
    known.unknown["residual"] = known.findings[-1].evidence


def _fit_further(result: Costs, run: Run, ours: Fitter, server: Fitter) -> None:
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
        client = ours.fit(
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
    moved, held = {}, 0.0
    for name in sorted(_SIZED & known.fits.keys()):
        fit = known.fits[name]
        by = fit.off_at_end * (known.ends if name == "kernel" else 1)
        if abs(by) > WORTH_TELLING * abs(fit.line.slope) * fit.held_at_end:
            moved[name], held = by, fit.held_at_end
    return [findings.memory_after_ramp(moved, held)] if moved else []


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
        used, listing = (
            run.series(metrics.HOST_USED_BYTES),
            run.series(metrics.KERNEL_LISTING_BYTES),
        )
        note = " of memory in use"
        if listing:
            used, note = minus(used, [listing]), f"{note} less inodes of /proc"
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
    each = taken.cost.bytes_per_connection
    if abs(each) > PART * abs(total.bytes_per_connection):
        result.findings.append(findings.processes_excluded(each, taken.cost.half_width))


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
    """How far the interval of the cost ``alone`` reaches below, and above, that of the ``whole``.
    """
    if not isinstance(whole, Fit) or not isinstance(alone, Fit):
        return 0.0, 0.0
    (low, high), (low_alone, high_alone) = whole.cost.ci95, alone.cost.ci95
    return max(0.0, low - low_alone), max(0.0, high_alone - high)


def _reach(known: Costs, name: str, lower: float, higher: float, without: str = "") -> None:
    """Widen a cost by so many bytes at either end; the value moves with its middle. ``without``:
    why, if it is worth telling.
    """
    cost: Cost | None = getattr(known, name)
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
    one: Cost | None = getattr(costs, name)
    if one is not None and name == "residual":
        one = getattr(costs, "host_total", None) or one
    return one is not None and (one.ci95[0] > 0 or max(map(abs, one.ci95)) < 1)


def known_costs(run: Run, totals: Totals, drift: Mapping[MetricName, Drift]) -> Costs:
    """The costs as reports, lists and comparisons show them: without those that growth, reuse or
    other programs make unknown.
    """
    cost = costs(run)
    none = Costs(residue=cost.residue, streams=cost.streams, ends=cost.ends, holders=cost.holders)
    if totals.whole.opened and not tested(
        run.plan, totals.whole, accepted=totals.acceptance.accepted
    ):
        return none
    if _mean_life_s(run) < MISSED_S:
        # Memory that is read every second or two does not show how many were open.
        none.findings.append(findings.cost_short_lived(MISSED_S))
        none.unknown = dict.fromkeys(findings.COST_NAMES, none.findings[0].evidence)
        return none
    _allow_for_growth(cost, drift, run)
    _allow_for_what_the_hold_leaves_open(cost, drift, run)
    if (
        reused := next(
            (one for one in cost.findings if one.code == findings.cost_reused.code), None
        )
    ) is not None:
        # The server's memory is in all of these.
        _exclude(cost, reused, "server_user", "host_total", "residual")
    if (others := _in_no_part(cost, run)) is not None:
        _exclude(cost, others, "host_total", "residual")
        cost.findings.append(others)
    else:
        _include_unexplained(cost, run)
    if (absent := absent_server(run)) is not None:
        _exclude(cost, absent, "server_user", "residual")
        cost.findings += [absent] if absent not in run.findings else []
    else:
        _require_holders(cost, run)
        _include_earlier_memory(cost, run)
    return cost


def _include_earlier_memory(cost: Costs, run: Run) -> None:
    """Widen the server's cost by memory that it has in advance, if its connections may use that.

    What holds a connection has memory for it. If far less was taken than the server had before the
    first connect, it may be in there: a heap touched in advance, a pool. And what came with the
    first connections, if it is more than all others took, may have room for further ones: a pool,
    an arena, a huge page.
    """
    known = cost.server_user
    before_first = (-math.inf, run.first_connect_s)
    own = run.series(metrics.SERVER_ANON_SHMEM_BYTES).between(*before_first).values
    with_files = server_memory(run, cost.holders)[0].between(*before_first).values
    if known is None or not own or not with_files:
        return
    most = max(run.held.values)
    earlier = statistics.median(own)
    with_first = known.fixed_bytes - statistics.median(with_files)
    at_most = known.ci95[1]
    in_advance = 0.0
    # Two levels of few connections show no rise of any server.
    if not known.of_levels and known.ci95[0] <= 0 and PART * earlier / most >= at_most:
        in_advance = earlier
    if with_first / most > at_most:
        in_advance = max(in_advance, with_first)
    if in_advance == 0:
        return
    server = run.place.server_label or "the server"
    each = in_advance / most
    is_with_first = in_advance == with_first
    cost.findings.append(findings.cost_in_earlier_memory(server, in_advance, each, is_with_first))
    ci95 = (known.ci95[0], at_most + each)
    method = f"{known.method}; the interval includes memory that the server had in advance"
    _revise(cost, "server_user", ci95=ci95, method=method)


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
    ticks = run.ticks_between(
        -math.inf, hold.start_s + OTHERS_INTO_HOLD_S if hold is not None else math.inf
    )
    lost = sum(
        tick.lost - (tick.deaths["generator_lost"].count if "generator_lost" in tick.deaths else 0)
        for _, tick in ticks
    )
    return sum(tick.held for _, tick in ticks) / lost if lost else math.inf


def _allow_for_growth(cost: Costs, drift: Mapping[MetricName, Drift], run: Run) -> None:
    """Remove two-level differences that include growth in the hold. Widen slopes by as much growth,
    or settling, in the ramp.
    """
    grows, ramp = {name for name, one in drift.items() if one.verdict == "grows"}, run.phase("ramp")
    # The host's memory and asyncli's change by themselves.
    settling = {
        name for name, one in drift.items() if is_settling(one) and (one.bytes_per_hour or 0.0) > 0
    }
    settling -= {"host_total", "generator_user"}
    start_s, end_s = (ramp.start_s, ramp.end_s or run.stop_s) if ramp is not None else (0.0, 0.0)
    asked = counted(run, lambda tick: tick.answered)
    answers = (asked.at(end_s) or 0.0) - (asked.at(start_s) or 0.0)
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        found = getattr(cost, name)
        if found is None:
            continue
        grown = grows if found.of_levels else grows | settling
        included = [one for one in drift if one in grown and name in (one, "host_total")]
        if not included:
            continue
        if found.of_levels:
            grew = cost_grew(
                findings.COST_NAMES[name],
                {findings.COST_NAMES[one]: in_words(drift[one]) for one in included},
            )
            _exclude(cost, grew, name, "residual")
            cost.findings.append(grew)
        else:
            # By time or by request: in a short ramp each connection sends its first heartbeat.
            most = max(_most_grown(drift[one], end_s - start_s, answers) for one in included)
            low, high = found.ci95
            # At most all that grew in the ramp grew with time.
            more = min(
                most / (cost.ends if name == "kernel" else 1) / max(run.held.values), max(0.0, low)
            )
            method = f"{found.method}; the interval includes growth in the ramp as in the hold"
            each = found.bytes_per_connection - more / 2
            _revise(cost, name, bytes_per_connection=each, ci95=(low - more, high), method=method)


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
    ramp, known, change = run.phase("ramp"), cost.server_user, drift.get("server_user")
    if known is None or known.of_levels or ramp is None or change is None or change.ci95 is None:
        return
    if change.verdict not in ("unknown", "too_short") or is_settling(change):
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


def _most_grown(one: Drift, seconds: float, answers: float) -> float:
    """The most (bytes) that it grows in so long, or with so many answers, at the upper end of its
    rate.
    """
    rate = one.bytes_per_hour or 0.0
    upper = max(one.ci95) if one.ci95 is not None else rate
    by_answer = (one.bytes_per_request or 0.0) * upper / rate if rate > 0 else 0.0
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
        found = (
            Fitter(run, run.held).fit("others", memory_of_others(run, cost.holders))
            if run.sides.server
            else None
        )
        rest = found.cost.bytes_per_connection if isinstance(found, Fit) else 0.0
    return (
        cost_of_others(rest, total.bytes_per_connection)
        if rest > total.bytes_per_connection / 2
        else None
    )


def _explained_bytes(cost: Costs) -> float:
    """Bytes of a connection that the measured parts explain. Only root can read /proc/slabinfo:
    else the kernel's part counts as twice what it is.
    """
    names = [
        name
        for name in ("server_user", "behind", "kernel", "generator_user")
        if getattr(cost, name) is not None
    ]
    unread = cost.ends * PAGES if cost.kernel is None else 0.0
    return _sum_of(cost, names, "bytes_per_connection") + unread


def _has_a_thread_each(run: Run) -> bool:
    """Whether the server's threads or processes rise with the connections: their stacks and page
    tables are in no part.
    """
    threads = run.series(metrics.SERVER_THREADS)
    before, most = (
        threads.last(until_s=run.first_connect_s) or 0.0,
        max(threads.values, default=0.0),
    )
    return most - before >= max((tick.held for _, tick in run.ticks), default=0) / 2


def _include_unexplained(cost: Costs, run: Run) -> None:
    """Widen the total down to its parts, and the residual to zero, if that is larger than it
    usually is, and say so.

    Usually the residual is page tables, free parts of slabs and pages of the kernel: at most some
    600 B and three hundredths of the parts, for all servers of the atlas (docs/atlas.md,
    bench/README.md) but those with a thread for each connection. What is more may be another
    program's in the kernel: pipes, files, other sockets.
    """
    total, rest, where = cost.host_total, cost.residual, run.sides
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
    known, most = getattr(cost, name), max(cost.fits[name].n)
    value = changes.get("bytes_per_connection", known.bytes_per_connection)
    fixed = known.fixed_bytes + (known.bytes_per_connection - value) * most
    revised = msgspec.structs.replace(known, **changes, fixed_bytes=fixed)
    setattr(cost, name, revised)
    cost.fits[name] = msgspec.structs.replace(cost.fits[name], cost=revised)


def _exclude(cost: Costs, why: Finding, *names: str) -> None:
    for name in names:
        setattr(cost, name, None)
        cost.fits.pop(name, None)
        cost.unknown[name] = why.evidence


def _sockets_of_others(run: Run, fitter: Fitter, counted_ends: int, over_unix: int) -> Series:
    """The sockets of other programs over time, of every family: so many of those counted, and of
    others, are a connection's.
    """
    others = fitter.other_sockets(counted_sockets(run), counted_ends)
    further = other_families(run)
    return plus(others, [fitter.other_sockets(further, over_unix)]) if further else others


def _include_other_sockets(
    result: Costs,
    found: dict[str, Fit | int],
    read: dict[str, Series],
    fitter: Fitter,
    others: Series,
) -> None:
    """Widen costs in ``found`` by what the sockets of ``others``, other programs, may cost, or move
    them to ``result.unknown``.

    The kernel counts the sockets of all programs. Each of the others may cost between nothing and
    as much as one of ours: the interval includes both, and the value is halfway. Sockets of others
    that do not follow our connections are in a slope's interval already.
    """
    kernel, ends = found["kernel"], result.ends
    of_others = fitter.fit("other_sockets", others, 1 / ends, known_to=0.0)
    if not isinstance(kernel, Fit) or not isinstance(of_others, Fit):
        return
    low, high = of_others.cost.ci95
    if not kernel.cost.of_levels and low <= 0 <= high:
        return
    sockets = 1.0 + of_others.cost.bytes_per_connection
    if sockets <= 0:
        # The cost of one of them has no bound.
        result.findings.append(
            findings.cost_sockets_closed([name for name in read if found.pop(name)])
        )
        result.unknown |= dict.fromkeys(read, result.findings[-1].evidence)
        return
    price = max(0.0, kernel.cost.bytes_per_connection / sockets)
    for name, metric in read.items():
        fits, scale = [found[name]], 1 / ends if name == "kernel" else 1.0
        for each in (price, price / 2):
            theirs = Series(others.t_s, [each * one for one in others.values])
            fits.append(fitter.fit(name, minus(metric, [theirs]), scale))
        known = [
            one
            for one in fits
            if isinstance(one, Fit) and one.cost.of_levels == kernel.cost.of_levels
        ]
        if len(known) == len(fits):
            alone, _, middle = known
            bounds = [bound for one in known for bound in one.cost.ci95]
            cost = msgspec.structs.replace(
                middle.cost, ci95=(min(bounds), max(bounds)), method=alone.cost.method
            )
            found[name] = msgspec.structs.replace(middle, cost=cost)


def _include_time_waits(known: Costs, waits: Fit | int) -> None:
    """Widen costs by what sockets in TIME_WAIT hold, which expire while ours open: themselves, and
    as many buckets as a connecting end, or none where they share their port's. The value is
    halfway.
    """
    if not isinstance(waits, Fit) or waits.cost.ci95[0] <= 0 <= waits.cost.ci95[1]:
        return
    for name, most in (("kernel", _BUCKETS / known.ends), ("host_total", 2 * _BUCKETS)):
        if (one := getattr(known, name)) is not None:
            least, *_, greatest = sorted(most * each for each in (0.0, *waits.cost.ci95))
            each, ci95 = (
                most * waits.cost.bytes_per_connection / 2,
                (one.ci95[0] - greatest, one.ci95[1] - least),
            )
            method = f"{one.method}; the interval includes sockets in TIME_WAIT"
            _revise(
                known,
                name,
                bytes_per_connection=one.bytes_per_connection - each,
                ci95=ci95,
                method=method,
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
    (low, high), (low_of_all, high_of_all) = cost.ci95, by_all.cost.ci95
    ci95 = (min(low, low_of_all), max(high, high_of_all))
    ours = max(run.held.values)
    known.findings.append(connections_elsewhere(round(elsewhere.rise), round(ours)))
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
    server, taken = known.server_user, fitter.fit("reclaimable", reclaimable(run))
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
        if getattr(known, name) is not None:
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


def _reach_up(known: Costs, name: str, rise: Cost, what: str) -> None:
    """Widen a known cost from without ``rise`` to with all of it; the value is halfway."""
    cost: Cost = getattr(known, name)
    middle = cost.bytes_per_connection + rise.bytes_per_connection / 2
    ci95 = (cost.ci95[0], cost.ci95[1] + rise.ci95[1])
    _revise(
        known,
        name,
        bytes_per_connection=middle,
        ci95=ci95,
        method=f"{cost.method}; the interval includes {what}",
    )


def _hold_the_parts(known: Costs, parts: Collection[str]) -> None:
    """Widen the total to the sum of its parts if that is more; the value is halfway. Other programs
    then freed memory.
    """
    total = known.host_total
    if total is None or any(getattr(known, name) is None for name in parts):
        return
    least = _sum_of(known, parts, "bytes_per_connection")
    if least > total.ci95[1]:
        each = (total.ci95[0] + least) / 2
        method = (
            f"{total.method}; widened to the sum of its parts, because other programs freed memory"
        )
        ci95 = (total.ci95[0], least)
        _revise(known, "host_total", bytes_per_connection=each, ci95=ci95, method=method)


def _sum_of(known: Costs, parts: Collection[str], field: str) -> float:
    return math.fsum(
        (known.ends if name == "kernel" else 1) * getattr(getattr(known, name), field)
        for name in parts
    )


def _fit_residual(known: Costs, found: Fit | int, parts: Collection[str]) -> None:
    """The residual: what the host uses per connection beyond the known parts: the difference of the
    slopes.

    The errors of the parts are not independent: the interval is that of ``found``, of the
    differences, with the value and zero.
    """
    total, users = (
        known.host_total,
        [name for name in ("server_user", "behind", "generator_user") if name in parts],
    )
    if (
        total is None
        or total.of_levels
        or any(getattr(known, name) is None for name in parts)
        or not isinstance(found, Fit)
    ):
        return
    value = total.bytes_per_connection - _sum_of(known, parts, "bytes_per_connection")
    fixed = total.fixed_bytes - _sum_of(known, parts, "fixed_bytes")
    own, less = found.cost, "".join(f"- {name} " for name in users)
    low, high = (
        min(own.ci95[0], value - own.half_width),
        max(own.ci95[1], value + own.half_width, 0.0),
    )
    method = f"host_total {less}- {known.ends} x kernel; interval: {own.method}"
    cost = Cost(value, (low, high), fixed, method, own.points, own.r2)
    known.residual, known.fits["residual"] = cost, msgspec.structs.replace(found, cost=cost)


_REPORTED = frozenset(findings.COST_NAMES) - {"kernel_queued", "listing"}


def _few_points(levels: dict[str, int], few: dict[str, int], wanted: int, plan: Plan) -> Finding:
    points = max([*levels.values(), *few.values()])
    of_levels, unknown = (
        [one for one in findings.COST_NAMES if one in _REPORTED & {*names}]
        for names in (levels, few)
    )
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


def _caveats(known: Costs, run: Run, held: Series, *fitters: Fitter) -> list[Finding]:
    if not known.fits:
        return []
    found = []
    plan, most, first = run.plan, max(held.values), run.within((-math.inf, run.first_connect_s))
    readings = {name: first.series(name).values for name in BEFORE}
    before, perhaps = held_before({name: values[0] for name, values in readings.items() if values})
    # Memory kept of half as many connections hides half of the cost.
    if known.server_user is not None and 2 * before >= most:
        found.append(findings.cost_reused(round(before)))
    elif (
        2 * perhaps >= most
        and run.sides.server
        and (known.server_user is not None or known.host_total is not None)
    ):
        found.append(
            findings.cost_if_fresh(
                round(perhaps) if math.isfinite(perhaps) else None, plan.status_url is not None
            )
        )
    if most < NEARLY_ALL * plan.connections:
        found.append(findings.cost_of_a_part(most, plan.connections))
    moving = {
        name: moved
        for one in fitters
        for name, moved in one.unsettled.items()
        if name in _SIZED and name in known.fits
    }
    if moving:
        found.append(findings.plateau_unsettled(moving, plan.plateau_s))
    return found
