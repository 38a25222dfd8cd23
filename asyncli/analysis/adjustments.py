"""What a line through memory does not know of a cost, by what else was read: each adjustment widens
costs to what they may be, or excludes one, and says why. :data:`ADJUSTMENTS` has their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from asyncli.analysis.constants import PART
from asyncli.analysis.cost_parts import Costs, is_measured
from asyncli.analysis.cost_readings import Fitters, Readings
from asyncli.analysis.server_count import with_those_elsewhere
from asyncli.analysis.server_memory import reclaimable, unmapped_shared
from asyncli.analysis.shared_host import counted_sockets, other_families
from asyncli.analysis.slope import Cost, Fit, Fitter, minus, plus
from asyncli.findings import cost as findings
from asyncli.findings.server import connections_elsewhere
from asyncli.model import metrics
from asyncli.model.samples import Series

# Bytes of the buckets of a connecting end (one for its port, one for port and address), and of a
# socket in TIME_WAIT too.
_BUCKETS = 256


#: New costs by what was read; the same ones where there is nothing to adjust.
Adjustment: TypeAlias = Callable[[Readings, Costs], Costs]


# Sockets and connections that are not ours.


def sockets_of_others(seen: Readings, known: Costs) -> Costs:
    """Widen costs by what the sockets of other programs may cost, or exclude them.

    The kernel counts the sockets of all programs. Each of the others may cost between nothing and
    as much as one of ours: the interval includes both, and the value is halfway. Sockets of others
    that do not follow our connections are in a slope's interval already.
    """
    fitter = seen.fitters.shared
    others = _others_over_time(seen)
    kernel = seen.as_read["kernel"]
    of_others = fitter.fit("other_sockets", others, 1 / known.ends, known_to=0.0)
    if not isinstance(kernel, Fit) or not isinstance(of_others, Fit):
        return known
    low, high = of_others.cost.ci95
    if not kernel.cost.of_levels and low <= 0 <= high:
        return known
    read = {"kernel": seen.memory.kernel, "host_total": seen.memory.host.whole}
    sockets = 1.0 + of_others.cost.bytes_per_connection
    if sockets <= 0:
        # The cost of one of them has no bound.
        closed = findings.cost_sockets_closed([name for name in read if seen.as_read[name]])
        return known.without(closed, *read).noting(closed)
    price = max(0.0, kernel.cost.bytes_per_connection / sockets)
    for name, metric in read.items():
        scale = 1 / known.times_in_connection(name)
        least = fitter.fit(name, _less_sockets(metric, others, price), scale)
        middle = fitter.fit(name, _less_sockets(metric, others, price / 2), scale)
        between = _between(seen.as_read[name], least, middle, kernel.cost.of_levels)
        if between is not None:
            known = known.fitted(name, between)
    return known


def _others_over_time(seen: Readings) -> Series:
    """The sockets of other programs over time, of every family: so many of those counted, and of
    others, are a connection's.
    """
    fitter = seen.fitters.shared
    others = fitter.other_sockets(counted_sockets(seen.run), seen.counted_ends)
    further = other_families(seen.run)
    if not further:
        return others
    return plus(others, [fitter.other_sockets(further, seen.over_unix)])


def _less_sockets(metric: Series, sockets: Series, price: float) -> Series:
    """The memory without so many ``sockets``, of ``price`` bytes each."""
    of_sockets = Series(sockets.t_s, [price * count for count in sockets.values])
    return minus(metric, [of_sockets])


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


def connections_at_other_ports(seen: Readings, known: Costs) -> Costs:
    """Widen the server's cost to that by all its connections, if others at other ports rose too;
    the value is halfway.
    """
    elsewhere = with_those_elsewhere(seen.run)
    if known.server_user is None or elsewhere is None:
        return known
    by_all = Fitter(seen.run, elsewhere.connections).fit("server_user", seen.memory.user)
    if not isinstance(by_all, Fit):
        return known
    held = max(seen.run.held.values)
    rose = connections_elsewhere(round(elsewhere.rise), round(held))
    words = "that by the connections at other ports too"
    return known.noting(rose).reaching_to("server_user", by_all.cost, words)


def count_of_a_page(seen: Readings, known: Costs) -> Costs:
    """Widen the costs by the server's page to those by our connections alone, since it may count
    something else; the values are halfway.
    """
    if not seen.fitters.by_page:
        return known
    own = seen.fitters.own
    for name, fit in seen.fit_each(Fitters(own, own, own)).items():
        cost = known.cost_of(name)
        if cost is None or not isinstance(fit, Fit):
            continue
        low, high = fit.cost.ci95
        # Of what is asyncli's own, both counts are the same.
        if low < cost.ci95[0] or high > cost.ci95[1]:
            known = known.reaching_to(name, fit.cost, "that by asyncli's connections alone")
    return known


def time_waits(seen: Readings, known: Costs) -> Costs:
    """Widen costs by what sockets in TIME_WAIT hold, which expire while ours open: themselves, and
    as many buckets as a connecting end, or none where they share their port's. The value is
    halfway.
    """
    count = seen.run.series(metrics.KERNEL_TCP_TW)
    waits = seen.fitters.shared.fit("time_waits", count, known_to=0.0)
    if not isinstance(waits, Fit) or waits.cost.ci95[0] <= 0 <= waits.cost.ci95[1]:
        return known
    for name, buckets in (("kernel", _BUCKETS / known.ends), ("host_total", 2 * _BUCKETS)):
        cost = known.cost_of(name)
        if cost is None:
            continue
        least, *_, greatest = sorted(buckets * count for count in (0.0, *waits.cost.ci95))
        halfway = buckets * waits.cost.bytes_per_connection / 2
        known = known.revised(
            name,
            bytes_per_connection=cost.bytes_per_connection - halfway,
            ci95=(cost.ci95[0] - greatest, cost.ci95[1] - least),
            method=f"{cost.method}; the interval includes sockets in TIME_WAIT",
        )
    return known


# Memory that the line does not show.


def bends(seen: Readings, known: Costs) -> Costs:
    """Widen the costs of programs to what the last connections cost, where that is not the line's
    slope, and the host's as much; the values are halfway. A heap that is collected bends as it
    fills, which says nothing of what further connections cost. No connection costs less than
    nothing: where memory falls at the line's end, a collection or a cache freed what others took.
    """
    for name in ("server_user", "behind"):
        fit = known.fits.get(name)
        if fit is None or not fit.bends:
            continue
        low, high = fit.cost.ci95
        lowest = min(bend.last_ones - bend.half for bend in fit.bends)
        highest = max(bend.last_ones + bend.half for bend in fit.bends)
        lower = max(0.0, low - max(0.0, lowest))
        higher = max(0.0, highest - high)
        method = f"{fit.cost.method}; the line is bent: the interval reaches to its end's slope"
        known = known.widened(name, lower, higher).widened("host_total", lower, higher)
        known = known.revised(name, method=method)
        if name == "server_user" and seen.run.place.server_runtime.collected:
            as_straight = msgspec.structs.replace(fit, bends=[])
            known = msgspec.structs.replace(known, fits={**known.fits, name: as_straight})
            continue
        bend = fit.bends[0]
        bent = findings.cost_bent(name, bend.mean, bend.last_ones, bend.half, max(fit.n))
        known = known.noting(bent)
    return known


def shared_memory(seen: Readings, known: Costs) -> Costs:
    """Widen the server's cost by shared memory that rose with the connections and is in no
    process's; the value is halfway.
    """
    if not seen.run.sides.server:
        return known
    shared = seen.fitters.server.fit("shared_memory", unmapped_shared(seen.run))
    server = known.server_user
    if server is None or not isinstance(shared, Fit):
        return known
    rise = shared.cost
    if rise.ci95[0] <= 0 or rise.bytes_per_connection <= PART * server.bytes_per_connection:
        return known
    rises = findings.shared_memory_rises(rise.bytes_per_connection, rise.half_width)
    words = "shared memory that no process has mapped"
    return known.noting(rises).reaching_up("server_user", rise, words)


def reclaimable_memory(seen: Readings, known: Costs) -> Costs:
    """Widen the costs of the server and of the host by memory that rose with the connections and
    that the kernel can take back; the values are halfway.
    """
    if not seen.run.sides.server:
        return known
    server = known.server_user
    taken = seen.fitters.server.fit("reclaimable", reclaimable(seen.run))
    if server is None or not isinstance(taken, Fit):
        return known
    rise = taken.cost
    # Two levels have the first use of a program's pages in them: that is no more than what else a
    # connection takes.
    worth_telling = server.bytes_per_connection
    if not rise.of_levels:
        worth_telling *= PART
    if rise.ci95[0] <= 0 or rise.bytes_per_connection <= worth_telling:
        return known
    known = known.noting(findings.reclaimable_rises(rise.bytes_per_connection, rise.half_width))
    for name in ("server_user", "host_total"):
        known = known.reaching_up(name, rise, "memory that the kernel can take back")
    return known


def queued_data(_: Readings, known: Costs) -> Costs:
    """Widen the kernel's cost by data that rose with the connections in their socket buffers; the
    value is halfway. It may be there for a moment, or for as long as nobody reads it.
    """
    queued = known.kernel_queued
    if known.kernel is None or queued is None or queued.ci95[0] <= 0:
        return known
    if queued.bytes_per_connection <= PART * known.kernel.bytes_per_connection:
        return known
    return known.reaching_up("kernel", queued, "data in the buffers of sockets")


# The total and its parts.


def parts_below_total(seen: Readings, known: Costs) -> Costs:
    """Widen the total to the sum of its parts if that is more; the value is halfway. Other programs
    then freed memory.
    """
    total = known.host_total
    parts = seen.parts()
    if total is None or any(known.cost_of(name) is None for name in parts):
        return known
    least = known.sum_of(parts, lambda part: part.bytes_per_connection)
    if least <= total.ci95[1]:
        return known
    halfway = (total.ci95[0] + least) / 2
    method = f"{total.method}; widened to the sum of its parts, because other programs freed memory"
    ci95 = (total.ci95[0], least)
    return known.revised("host_total", bytes_per_connection=halfway, ci95=ci95, method=method)


def residual(seen: Readings, known: Costs) -> Costs:
    """Add the residual: what the host uses per connection beyond the known parts: the difference of
    the slopes.

    The errors of the parts are not independent: the interval is that of a line through the
    differences, with the value and zero.
    """
    parts = seen.parts()
    left_over = minus(seen.memory.host.whole, list(parts.values()))
    fit = seen.fitters.shared.fit("residual", left_over)
    total = known.host_total
    if total is None or total.of_levels or not isinstance(fit, Fit):
        return known
    if any(known.cost_of(name) is None for name in parts):
        return known
    value = total.bytes_per_connection
    value -= known.sum_of(parts, lambda part: part.bytes_per_connection)
    fixed = total.fixed_bytes - known.sum_of(parts, lambda part: part.fixed_bytes)
    own = fit.cost
    low = min(own.ci95[0], value - own.half_width)
    high = max(own.ci95[1], value + own.half_width, 0.0)
    users = [name for name in ("server_user", "behind", "generator_user") if name in parts]
    less = "".join(f"- {name} " for name in users)
    method = f"host_total {less}- {known.ends} x kernel; interval: {own.method}"
    cost = Cost(value, (low, high), fixed, method, own.points, own.r2)
    return known.fitted("residual", msgspec.structs.replace(fit, cost=cost))


# What may be other programs', by what was read of all.


def files_of_others(seen: Readings, known: Costs) -> Costs:
    """Widen the kernel's cost, and the host's, to those without open files that are no sockets:
    they may be other programs'.
    """
    without_files = minus(seen.memory.kernel, [seen.run.series(metrics.KERNEL_FILES_BYTES)])
    alone = seen.fitters.shared.fit("kernel", without_files, 1 / known.ends)
    lower, _ = _beyond(seen.as_read["kernel"], alone)
    return known.widened("kernel", lower, 0.0, "open files that are no sockets").widened(
        "host_total", known.ends * lower, 0.0
    )


def memory_of_other_programs(seen: Readings, known: Costs) -> Costs:
    """Widen the host's cost, and the residual, to those without other programs' memory; the values
    are halfway (:mod:`asyncli.analysis.other_programs`).
    """
    whole = seen.as_read["host_total"]
    alone = seen.fitters.shared.fit("host_total", seen.memory.host.alone)
    lower, higher = _beyond(whole, alone)
    was_known = is_measured(known, "host_total")
    known = known.widened("residual", lower, higher)
    known = known.widened("host_total", lower, higher, "other programs' memory")
    total = known.host_total
    # Noise may hide the whole host's cost even with their memory.
    if total is None or not was_known or not isinstance(whole, Fit) or not isinstance(alone, Fit):
        return known
    if max(lower, higher) <= PART * abs(total.bytes_per_connection):
        return known
    taken = whole.cost.bytes_per_connection - alone.cost.bytes_per_connection
    return known.noting(findings.processes_rise(abs(taken), taken < 0))


def _beyond(whole: Fit | int, alone: Fit | int) -> tuple[float, float]:
    """How far the interval of the cost ``alone`` reaches below and above that of the ``whole``."""
    if not isinstance(whole, Fit) or not isinstance(alone, Fit):
        return 0.0, 0.0
    low, high = whole.cost.ci95
    low_alone, high_alone = alone.cost.ci95
    return max(0.0, low - low_alone), max(0.0, high_alone - high)


#: In this order: each changes the costs that the ones before left. ``bench/rent.py`` takes each
#: away in turn.
ADJUSTMENTS: tuple[Adjustment, ...] = (
    sockets_of_others,
    bends,
    connections_at_other_ports,
    count_of_a_page,
    shared_memory,
    reclaimable_memory,
    queued_data,
    time_waits,
    parts_below_total,
    residual,
    files_of_others,
    memory_of_other_programs,
)
