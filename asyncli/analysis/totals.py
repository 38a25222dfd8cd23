"""Sums of ticks: of the whole run, and of each phase."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import msgspec

from asyncli.core.adding import added_up
from asyncli.core.events import Reconnect
from asyncli.core.histogram import Histogram, bucket
from asyncli.model.metrics import SERVER_SOCKETS, SERVER_SOCKETS_WAITING
from asyncli.model.plan import Plan
from asyncli.model.planned_events import DEFAULT_RECONNECT, reconnect_of
from asyncli.model.records import NOTHING_LISTENS, Gap, PhaseName, Tick
from asyncli.model.run import TICK_S, Run

#: Causes of failed connects for lack of a resource of asyncli's host.
SHORTAGES = ("no_ports", "no_descriptors")


class Lateness(msgspec.Struct):
    """Sent (or opened) minus due, in ms; None without a record."""

    p50: float | None
    p99: float | None
    max: float | None


class Latency(msgspec.Struct):
    """Answered minus due, in ms; None without a record."""

    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None


class Acceptance(msgspec.Struct, frozen=True):
    """What the kernel of the server's host says of the connections: whether a program has
    ``accepted`` any, and how many none had accepted at any instant of the hold (``waiting``).
    ``known``: those sockets were seen. The kernel alone grants a connect.
    """

    known: bool = False
    accepted: bool = False
    waiting: int = 0


class Unaccounted(msgspec.Struct, frozen=True):
    """From ``at_s`` on ``count`` connections are held more (below zero: fewer) than the records of
    seconds account for.
    """

    at_s: float
    count: int


class Totals(msgspec.Struct):
    """Sums of ticks: counts and histograms are valid, gauges are not."""

    whole: Tick = msgspec.field(default_factory=Tick)
    by_phase: dict[PhaseName, Tick] = msgspec.field(default_factory=dict)
    #: Open at the client when the drain began, or at the last tick without a drain.
    open: int = 0
    #: Of these, connections without an unanswered heartbeat, or with the answer in the drain, and
    #: none that waits unaccepted.
    held: int = 0
    #: Of a run that listens.
    acceptance: Acceptance = msgspec.field(default_factory=Acceptance)
    #: Those whom events of the plan had stay away for good since the run was last resumed: a
    #: resumption opens all connections.
    gone: int = 0
    #: The most open at the end of any second.
    peak: int = 0
    #: The most pending connects at the end of any second of the ramp, per worker.
    pending_peak_per_worker: float = 0.0
    #: What asyncli's host ran out of for connects at the hold's end, by the number of the event of
    #: those who came back from one, and None for all others.
    short_of: dict[int | None, list[str]] = msgspec.field(default_factory=dict)
    #: The run file has records of the connections, or none was to be opened: else every count here
    #: is unknown, not zero.
    recorded: bool = True
    #: Where the records do not add up: some are missing.
    missing: Unaccounted | None = None
    #: CPU time (s) of the workers between the first and the last tick of each phase, and the time
    #: between.
    cpu_s: dict[PhaseName, tuple[float, float]] = msgspec.field(default_factory=dict)

    def during(self, *names: PhaseName) -> Tick:
        return added_up(Tick(), *(self.by_phase[name] for name in names if name in self.by_phase))


def _is_recorded(run: Run) -> bool:
    """Whether ticks were recorded. None are in a file that could not be written, or whose run was
    killed at its start.
    """
    if run.ticks or any(finding.code == NOTHING_LISTENS for finding in run.findings):
        return True
    return run.complete and not run.dropped


def _missing(run: Run) -> Unaccounted | None:
    """The first second before the drain that does not add up: what is held or comes back on a new
    connection is what was, plus what opened, less what was lost and what events ended.
    """
    standing = 0
    for (t_s, tick), phase in zip(run.ticks, run.phases_of_ticks, strict=True):
        # The drain may begin in a second that is the hold's by its middle.
        has_drained = bool(tick.drained or tick.held_at_drain)
        if phase in ("drain", "residue") or has_drained:
            return None
        ended = tick.lost + tick.ended_by_events + tick.coming_back_lost
        unaccounted = tick.held + tick.coming_back - (standing + tick.opened - ended)
        if unaccounted:
            return Unaccounted(t_s - 1.0, unaccounted)
        standing = tick.held + tick.coming_back
    return None


def fold(run: Run) -> Totals:
    """The totals of a run. A tick belongs to the phase at the middle of its second; a tick in a gap
    to none.
    """
    totals = Totals(recorded=_is_recorded(run), missing=_missing(run))
    parts: dict[PhaseName, list[int]] = {}
    in_gaps: list[Tick] = []
    at_drain = 0
    for number, ((t_s, tick), name) in enumerate(zip(run.ticks, run.phases_of_ticks, strict=True)):
        if any(_is_within(gap, t_s) for gap in run.gaps):
            in_gaps.append(tick)
        else:
            parts.setdefault(name, []).append(number)
        totals.peak = max(totals.peak, tick.held, tick.held_at_drain)
        # The sum over workers that have begun the drain.
        at_drain = max(at_drain, tick.held_at_drain)
        if name == "ramp" and tick.workers:
            totals.pending_peak_per_worker = max(
                totals.pending_peak_per_worker, tick.connecting / tick.workers
            )
    for name, part in parts.items():
        totals.by_phase[name] = _sum_of(run, part)
        start_s, first_tick = run.ticks[part[0]]
        end_s, last_tick = run.ticks[part[-1]]
        if end_s > start_s:
            # The processes of a resumed run begin at zero.
            totals.cpu_s[name] = (max(0.0, _cpu(last_tick) - _cpu(first_tick)), end_s - start_s)
    totals.whole = added_up(Tick(), *in_gaps, *totals.by_phase.values())
    totals.whole.events = {number: run.counts_of_event(number) for number in totals.whole.events}
    totals.gone = _gone(run)
    totals.short_of = _short_of(run)
    if run.ticks:
        totals.open = at_drain or run.ticks[-1][1].held
        if run.plan.listens:
            totals.acceptance = _acceptance(run)
        not_held = totals.whole.unanswered + totals.acceptance.waiting
        not_held += sum(event.closed_in_drain for event in totals.whole.events.values())
        totals.held = max(0, totals.open - not_held)
    return totals


def _short_of(run: Run) -> dict[int | None, list[str]]:
    """See :class:`Totals`: who is missing for that reason has tried again in the last time in which
    every client does. A shortage that was over before explains nobody's absence.
    """
    policy = reconnect_of(run.plan.reconnect or DEFAULT_RECONNECT)
    # Connects of the ramp are tried again with the default's backoff, whatever the policy is.
    tries_within_s = max(Reconnect().longest_wait_s, policy.longest_wait_s) + TICK_S
    short_of: dict[int | None, list[str]] = {}
    for _, tick in run.ticks_between(run.stop_s - tries_within_s, run.stop_s + TICK_S):
        for number, failures in _failures_by_event(tick):
            for cause in SHORTAGES:
                if cause not in failures:
                    continue
                resources = short_of.setdefault(number, [])
                resource = cause.removeprefix("no_")
                if resource not in resources:
                    resources.append(resource)
    return short_of


def _failures_by_event(tick: Tick) -> Iterator[tuple[int | None, Mapping[str, int]]]:
    yield None, tick.failures
    for number, counts in tick.events.items():
        yield number, counts.failures


def _gone(run: Run) -> int:
    """How many are gone for good by events since the run was last interrupted."""
    since_s = max([gap.start_s for gap in run.gaps], default=-math.inf)
    gone = 0
    for _, tick in run.ticks_between(since_s, math.inf):
        gone += sum(event.gone for event in tick.events.values())
    return gone


def _sum_of(run: Run, numbers: list[int]) -> Tick:
    """The sum of the ticks with these ascending numbers."""
    ticks = [run.ticks[number][1] for number in numbers]
    first = numbers[0]
    beyond = numbers[-1] + 1
    if beyond - first > len(numbers):
        # Ticks in a gap are between them.
        return added_up(Tick(), *ticks)
    times = {
        "latency_us": run.latency_sums.between(first, beyond),
        "lateness_us": run.lateness_sums.between(first, beyond),
    }
    return added_up(Tick(), *ticks, known=times)


def _is_within(gap: Gap, t_s: float) -> bool:
    """Whether a tick at ``t_s`` counts what happened in the gap."""
    if gap.end_s is None:
        return gap.start_s < t_s
    return gap.start_s < t_s <= gap.end_s


def _acceptance(run: Run) -> Acceptance:
    accepted, waiting = run.series(SERVER_SOCKETS), run.series(SERVER_SOCKETS_WAITING)
    ours = accepted.between(run.first_connect_s, run.stop_s).values
    last = waiting.last(until_s=run.stop_s, since_s=run.first_connect_s) or 0.0
    if not (any(ours) or last):
        return Acceptance()
    least = last
    if run.hold is not None:
        # At one instant some may have just come.
        least = min(waiting.between(run.hold.start_s, run.stop_s).values, default=last)
    return Acceptance(True, any(ours), round(least))


def tested(plan: Plan, *ticks: Tick, accepted: bool) -> bool:
    """Whether the server was heard: it answered a heartbeat, or sent something else after one. If
    no heartbeat was due: it completed the protocol's handshake. If connections listen: it also did
    if it completed TLS's, or sent data, or if a program was seen to have ``accepted`` them.
    """
    if any(tick.answered or tick.spoke for tick in ticks):
        return True
    if plan.listens:
        return accepted or any(
            tick.bytes_received or _granted(tick) or _spoke_tls(tick) for tick in ticks
        )
    return not any(tick.sent for tick in ticks) and any(
        tick.opened and _granted(tick) for tick in ticks
    )


def _granted(tick: Tick) -> bool:
    return tick.protocol is not None and bool(tick.protocol.handshake_us)


def _spoke_tls(tick: Tick) -> bool:
    return tick.tls is not None and tick.tls.full + tick.tls.resumed > 0


def never_answered(tick: Tick) -> int:
    """How many connections were never answered: not accepted, or the last packet of the handshake
    was lost.
    """
    dead = tick.deaths.get("heartbeat_timeout")
    return 0 if dead is None else dead.requests.counts.get(bucket(0), 0)


def redirects(tick: Tick) -> dict[int, int]:
    """Answers that say that the work is elsewhere, by status (RFC 9110, 15.4); 304 says that
    nothing has changed.
    """
    by_status = tick.by_status
    return {status: count for status, count in by_status.items() if _is_redirect(status)}


def _is_redirect(status: int) -> bool:
    return 300 <= status < 400 and status != 304


def errors(whole: Tick, limited: Collection[str] = ()) -> dict[int, int]:
    """Error answers (400 or more) by status, without the statuses that a key of ``limited``
    names.
    """
    named = {key.rpartition(".")[2] for key in limited if ".by_status." in key}
    return {
        status: count
        for status, count in whole.by_status.items()
        if status >= 400 and str(status) not in named
    }


def _cpu(tick: Tick) -> float:
    return tick.cpu_user_s + tick.cpu_system_s


def in_ms(histogram: Histogram, *quantiles: float) -> list[float | None]:
    """Quantiles of a histogram of microseconds, in ms; None without a record."""
    values_ms: list[float | None] = []
    for value_us in histogram.quantiles(quantiles):
        if value_us is None:
            values_ms.append(None)
        else:
            values_ms.append(value_us / 1e3)
    return values_ms
