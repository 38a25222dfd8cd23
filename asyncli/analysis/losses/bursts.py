"""Many connections that end at one moment, or for lack of slots: by the instants, the status page
and the server's processes.

Sources in nginx 1.22: ngx_drain_connections (idle reuse), ngx_close_idle_connections (a worker that
shuts down), the shared counters of ngx_event_core_module (a killed worker never counts its
connections down).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, NEARLY_ALL, REUSE_BELOW
from asyncli.analysis.holders import holders_of
from asyncli.analysis.losses.likelihood import DEVIATIONS, LEAST_SURPRISE, one_of
from asyncli.analysis.losses.server_evidence import Evidence
from asyncli.analysis.losses.table import (
    ENDED,
    LossCell,
    LossTable,
    Reason,
    reason,
    share_awaiting,
    unclaimed,
)
from asyncli.analysis.losses.timeouts import idle_mode
from asyncli.analysis.shared_host import is_proxy
from asyncli.findings.loss_causes import SEE_ITS_LOG, at_moments, remedy_of_unexplained

# A moment may touch two ticks; closing takes time (nginx took 5 s to reload with 100,000).
_MOMENT_S = 2.2
_BORDER_S = 1.5
_CLOSES_PER_S = 10_000
# Servers whose work is to pass connections on, in lower case.
_PROXIES = frozenset({"haproxy", "envoy", "traefik"})
# The rate of losses in this time (s) before and after is the usual one.
_AROUND_S = 10.0


def idle_reuse(table: LossTable) -> None:
    """Claim what nginx closed while idle to reuse its slot, because a worker ran out of slots."""
    slots = table.configured("worker_connections")
    asked_for = table.plan.connections
    cells = _closed_as_others_opened(table)
    # A moment that closes half of all is no reuse, but seconds that do are: each new connection
    # takes the slot of another.
    sudden = [cell for cell in cells if 0 < table.server.held(cell.from_s) < 2 * cell.unclaimed]
    if len(sudden) < FEWEST:
        cells = [cell for cell in cells if cell not in sudden]
    if not slots or not cells or 2 * unclaimed(cells) < unclaimed(table.of("closed_idle")):
        return
    from_s = min(cell.from_s for cell in cells)
    to_s = max(cell.to_s for cell in cells)
    workers = table.server.workers(math.inf)
    held = max(cell.tick.held for cell in cells)
    share = max(held, table.server.most_active(from_s, to_s)) / workers
    if share + DEVIATIONS * math.sqrt(share) < (1 - REUSE_BELOW) * slots / workers:
        return
    # A worker needs four itself: two listeners, the channel to its master, our status connection
    # (ngx_event_process_init).
    certain = asked_for >= (1 - REUSE_BELOW) * slots - 4 * workers and unclaimed(cells) >= FEWEST
    explanation = reason("idle_reuse", certain=certain, slots=slots, asked=asked_for)
    # A heartbeat may cross with the close.
    instants = {cell.to_s for cell in cells}
    count = unclaimed(cells)
    table.claim(cells, explanation)
    crossed = [
        cell
        for cell in table.of("closed_awaiting", "reset")
        if cell.to_s in instants and cell.unclaimed <= count
    ]
    table.claim(crossed, explanation)


def rest_of_reuse(table: LossTable) -> None:
    """Claim what else closed while idle, and by no certain event, as slots certainly lacked: in a
    sudden second, or beside.
    """
    reuse: list[Reason] = []
    instants: set[float] = set()
    for (_, explanation), attribution in table.attributions.items():
        if explanation.code == "idle_reuse" and explanation.certain:
            reuse.append(explanation)
            instants |= attribution.instants
    if not reuse:
        return

    def is_beside(cell: LossCell) -> bool:
        return any(abs(cell.to_s - to_s) <= _BORDER_S for to_s in instants)

    # Sudden seconds may follow each other.
    sudden = _closed_as_others_opened(table)
    before = -1
    while len(instants) > before:
        before = len(instants)
        instants |= {cell.to_s for cell in sudden if is_beside(cell)}
    # The other may open in the second beside.
    table.claim(list(filter(is_beside, table.of("closed_idle"))), reuse[0])


def likely_reuse(table: LossTable) -> None:
    """Claim the same if the slots are unknown: the server never held all that were asked for, and
    closed as it accepted.
    """
    if table.plan.upgrades:
        return
    cells = _closed_as_others_opened(table)
    if unclaimed(cells) < max(FEWEST, NEARLY_ALL * unclaimed(table.of("closed_idle"))):
        return
    held = max(tick.held for _, tick in table.run.ticks)
    asked_for = table.plan.connections
    # It closes one for another, so those that it has stay; a timer ends the last ones too.
    if 2 * table.totals.open < held or held >= NEARLY_ALL * asked_for:
        return
    from_s = min(cell.from_s for cell in cells)
    to_s = max(cell.to_s for cell in cells)
    opened = sum(tick.opened for _, tick in table.run.ticks_between(from_s, to_s))
    if 2 * opened < unclaimed(cells):
        return
    name = table.server.name
    table.claim(cells, reason("idle_reuse", "likely_reuse", most=held, asked=asked_for, name=name))


def _closed_as_others_opened(table: LossTable) -> list[LossCell]:
    """Losses while idle, in seconds in which others opened."""
    return [cell for cell in table.of("closed_idle") if cell.tick.opened]


class Burst(msgspec.Struct):
    """Many losses within seconds; ``held``: before them, less those that ended by other causes
    meanwhile.
    """

    cells: list[LossCell]
    from_s: float
    to_s: float
    count: int
    held: float

    @property
    def all_of_them(self) -> bool:
        return self.count >= NEARLY_ALL * self.held

    def of(self, cause: str) -> list[LossCell]:
        return [cell for cell in self.cells if cell.cause == cause]


def bursts(table: LossTable, *, only_certain: bool) -> None:
    """Claim bursts that the server's counts or processes explain (certain), or the share of the
    losses (likely).

    Bursts of one kind share the reason of the largest.
    """
    alike: dict[tuple[str, bool], list[tuple[Burst, Reason]]] = {}
    for burst in _find(table):
        evidence = table.server.about(burst.from_s, burst.to_s, burst.count)
        explanation = _explain(table, burst, evidence)
        # A common idle time is better evidence: they were opened at one moment too.
        is_reset = explanation.code == "box_reset"
        if is_reset and idle_mode(table, burst.of("reset")) is not None:
            continue
        if explanation.certain or not only_certain:
            kind = (explanation.code, explanation.certain)
            alike.setdefault(kind, []).append((burst, explanation))
    for moments in alike.values():
        largest, explanation = max(moments, key=lambda moment: moment[0].count)
        instants = [burst.from_s for burst, _ in moments]
        length_s = largest.to_s - largest.from_s
        words = at_moments(explanation.words, instants, length_s, largest.count, largest.held)
        for burst, _ in moments:
            table.claim(burst.cells, msgspec.structs.replace(explanation, words=words))


def _find(table: LossTable) -> list[Burst]:
    """Bursts among the unclaimed cells, in order of time: seconds with far more losses than at an
    even rate.
    """
    by_second: dict[float, list[LossCell]] = {}
    for cell in table.of(*ENDED):
        by_second.setdefault(cell.to_s, []).append(cell)
    instants = sorted(by_second)
    taken: set[float] = set()
    dead = {t_s: unclaimed(cells) for t_s, cells in by_second.items()}

    def near(peak: float, reach_s: float) -> list[float]:
        first = bisect.bisect_left(instants, peak - reach_s)
        end = bisect.bisect_right(instants, peak + reach_s)
        return instants[first:end]

    peaks = [t_s for t_s in instants if dead[t_s] >= FEWEST]
    groups = []
    for peak in sorted(peaks, key=lambda t_s: -dead[t_s]):
        if peak in taken:
            continue
        # It lasts as long as closing its connections takes.
        reach_s = 0.0
        count = 0
        while reach_s < _BORDER_S + count / _CLOSES_PER_S:
            reach_s = _BORDER_S + count / _CLOSES_PER_S
            seconds = [t_s for t_s in near(peak, reach_s) if t_s not in taken]
            count = sum(dead[t_s] for t_s in seconds)
        from_s = seconds[0] - 1.0
        to_s = seconds[-1]
        recorded_s = len(table.run.ticks_between(from_s - _AROUND_S, to_s + _AROUND_S))
        share = count / sum(dead[t_s] for t_s in near(peak, reach_s + _AROUND_S))
        # With more than a few losses at both borders it is no burst.
        lasting = (
            to_s - from_s > _MOMENT_S + count / _CLOSES_PER_S
            and min(dead[seconds[0]], dead[seconds[-1]]) >= FEWEST
        )
        if lasting or share - (to_s - from_s) / recorded_s < LEAST_SURPRISE:
            continue
        taken.update(seconds)
        others = sum(tick.lost for _, tick in table.run.ticks_between(from_s, to_s)) - count
        held = max(table.server.held(from_s), table.server.held(from_s - 1.0)) - others
        cells: list[LossCell] = []
        for t_s in seconds:
            cells += by_second[t_s]
        groups.append(Burst(cells, from_s, to_s, count, held))
    return sorted(groups, key=lambda burst: burst.from_s)


class _Case(NamedTuple):
    """A burst and what the samples say of the server around it."""

    table: LossTable
    burst: Burst
    evidence: Evidence

    @property
    def server(self) -> str:
        return self.table.server.label

    @property
    def is_direct(self) -> bool:
        """Whether the sampled server is the one that we connect to."""
        return self.table.server.direct

    @property
    def workers(self) -> int:
        return self.table.server.workers(self.burst.from_s)

    @property
    def still_counted(self) -> int:
        """How many of the lost ones the server still counts."""
        return min(self.evidence.excess or 0, self.burst.count)

    def count(self, cause: str) -> int:
        return unclaimed(self.burst.of(cause))

    @property
    def were_closed(self) -> bool:
        """Whether the server closed most while idle, or announced some ends."""
        return (
            2 * self.count("closed_idle") >= self.burst.count or self.count("closed_announced") > 0
        )


def _explain(table: LossTable, burst: Burst, evidence: Evidence) -> Reason:
    """The reason by the first rule that applies: by evidence of the server, else by the share of
    the losses.
    """
    case = _Case(table, burst, evidence)
    for rule in _RULES:
        explanation = rule(case)
        if explanation is not None:
            return explanation
    return _unknown(table, "burst")


def _server_ended(case: _Case) -> Reason | None:
    if not case.evidence.gone:
        return None
    return reason("server_ended", certain=True, server=case.server)


def _server_restarted(case: _Case) -> Reason | None:
    if not case.evidence.restarted or case.evidence.lived:
        return None
    return reason("server_restarted", certain=True, server=case.server)


def _workers_killed_for_memory(case: _Case) -> Reason | None:
    """The kernel killed workers for lack of memory: certain if their control group counts as many
    victims as workers ended; likely by the host's count, whose victims may be others.
    """
    ended = case.evidence.ended
    if not ended or not _held_so_many(case, ended):
        return None
    is_certain = case.evidence.killed_in_group >= ended
    if not is_certain and not case.evidence.killed_on_host:
        return None
    return reason(
        "worker_crash",
        "workers_killed_for_memory",
        certain=is_certain,
        server=case.server,
        ended=ended,
        workers=case.workers,
    )


def _processes_went_on(case: _Case) -> Reason | None:
    """The server's processes all went on: they did it, something behind them, or a middle box
    before them.
    """
    table, burst, evidence = case
    if not evidence.lived:
        return None
    if _reset_before_it(burst, evidence):
        return _reset_by_a_box(case)
    if evidence.counters_restarted:
        return reason("backend_ended", "backend_restarted")
    if _passes_on(table, burst):
        return reason("backend_ended", server=table.server.name or case.server)
    # A box that lost its table tells the server nothing, whose sockets would still be open.
    if _mostly_idle_resets(burst) and burst.all_of_them and evidence.open_sockets is None:
        return reason("box_reset", "box_seems_reset")
    return _unknown(table, "burst_of_living")


def _counters_restarted(case: _Case) -> Reason | None:
    evidence = case.evidence
    if not evidence.counters_restarted:
        return None
    if evidence.restarted is None:
        return reason("reload", "likely_reload", server=case.server)
    return reason(
        "reload", "reload_by_counters", certain=not evidence.restarted, server=case.server
    )


def _middle_box_reset(case: _Case) -> Reason | None:
    # The kernel closes a killed process's connections by FIN, and by RST only with unread requests.
    if case.evidence.ended or case.count("closed_announced"):
        return None
    if not _reset_before_it(case.burst, case.evidence):
        return None
    return _reset_by_a_box(case)


def _worker_crashed(case: _Case) -> Reason | None:
    """A worker that crashed counts nothing down, though its sockets are closed. After a reload
    nginx no longer counts them; Apache's scoreboard may count those of a process that ended in
    order until another takes its place.
    """
    evidence = case.evidence
    burst = case.burst
    if case.table.server.name == "Apache":
        return None
    if 2 * case.still_counted < burst.count or case.count("closed_announced"):
        return None
    if evidence.ended is None:
        if burst.all_of_them and case.workers > 1:
            return None
        if not case.is_direct:
            return reason(
                "worker_crash", "worker_crash_or_proxy", server=case.server, kept=case.still_counted
            )
    elif not evidence.ended:
        return None
    of = f", {evidence.ended or 1} of {case.workers}" if case.workers > 1 else ""
    is_certain = case.is_direct and bool(evidence.ended)
    return reason(
        "worker_crash", certain=is_certain, server=case.server, kept=case.still_counted, of=of
    )


def _connects_were_refused(case: _Case) -> Reason | None:
    # A packet filter refuses them too.
    if case.evidence.listened_since:
        return None
    if not case.burst.all_of_them or not _refused_after(case.table, case.burst):
        return None
    return reason("server_ended", "connects_refused", server=case.server)


def _page_stayed_silent(case: _Case) -> Reason | None:
    if not case.burst.all_of_them or not case.evidence.silent_since:
        return None
    return reason("server_ended", "page_never_again", server=case.server)


def _all_workers_ended(case: _Case) -> Reason | None:
    """A single worker may also have crashed."""
    ended = case.evidence.ended
    if not case.burst.all_of_them or not ended or not 1 < case.workers <= ended:
        return None
    # Nginx counts down what ends in order, and not what a crash ends: that was looked at above.
    if case.is_direct and case.evidence.excess is not None:
        return reason(
            "reload", "reload_by_processes", certain=True, server=case.server, ended=ended
        )
    return reason("reload", "reload_or_crash", server=case.server, ended=ended)


def _all_were_closed(case: _Case) -> Reason | None:
    if not case.burst.all_of_them or not case.were_closed:
        return None
    if case.evidence.reconnected and case.evidence.excess is not None:
        return reason("reload", "reload_by_counts", certain=case.is_direct, server=case.server)
    return reason("reload", "likely_reload", server=case.server)


def _workers_announced_the_end(case: _Case) -> Reason | None:
    """A worker that crashes announces nothing: these ended in order, and others replaced them."""
    evidence = case.evidence
    if not evidence.ended or not evidence.started or not _held_so_many(case, evidence.ended):
        return None
    if 2 * case.count("closed_announced") < case.burst.count:
        return None
    return reason(
        "reload", "reload_by_processes", certain=True, server=case.server, ended=evidence.ended
    )


def _worker_ended(case: _Case) -> Reason | None:
    """A worker's end, if as many were lost as one may have held; else what ended was a helper."""
    burst = case.burst
    ended = case.evidence.ended
    workers = case.workers
    if workers <= 1:
        return None
    if ended is None:
        if not one_of(workers, burst.count, burst.held):
            return None
        return reason(
            "worker_ended", "worker_or_backend_ended", server=case.server, workers=workers
        )
    if not ended or not _held_so_many(case, ended):
        return None
    return reason("worker_ended", certain=True, server=case.server, ended=ended, workers=workers)


def _middle_box_seems_to_reset(case: _Case) -> Reason | None:
    if not case.burst.all_of_them or case.evidence.open_sockets is not None:
        return None
    if 2 * case.count("reset") < case.burst.count:
        return None
    return reason("box_reset", "box_seems_reset")


#: The first that applies explains a burst; without one its cause is unknown.
_RULES: tuple[Callable[[_Case], Reason | None], ...] = (
    _server_ended,
    _server_restarted,
    _workers_killed_for_memory,
    _processes_went_on,
    _counters_restarted,
    _middle_box_reset,
    _worker_crashed,
    _connects_were_refused,
    _page_stayed_silent,
    _all_workers_ended,
    _all_were_closed,
    _workers_announced_the_end,
    _worker_ended,
    _middle_box_seems_to_reset,
)


def _held_so_many(case: _Case, ended: int) -> bool:
    """Whether as many were lost as so many workers may have held; else what ended was a helper."""
    return 2 * case.burst.count >= min(ended, case.workers) * case.burst.held / case.workers


def _mostly_idle_resets(burst: Burst) -> bool:
    """Whether most were reset while no heartbeat awaited an answer."""
    resets = burst.of("reset")
    return 2 * unclaimed(resets) >= burst.count and share_awaiting(resets) < 0.5


def _reset_before_it(burst: Burst, evidence: Evidence) -> bool:
    """Whether most were reset while idle, and the server still has most of them: the reset came on
    the way.
    """
    return _mostly_idle_resets(burst) and evidence.still_open(burst.count).are_most


def _reset_by_a_box(case: _Case) -> Reason:
    kept = case.evidence.still_open(case.burst.count)
    form = "box_reset" if kept.by_kernel else "box_reset_by_count"
    return reason("box_reset", form, certain=kept.by_kernel, server=case.server, kept=kept.count)


def _passes_on(table: LossTable, burst: Burst) -> bool:
    """Whether the server holds a connection to a backend for each of ours: by its descriptors, else
    by its name.
    """
    has_backends = is_proxy(table.run, holders_of(table.run), burst.from_s)
    if has_backends is None:
        return table.server.name.lower() in _PROXIES
    return has_backends


def _unknown(table: LossTable, form: str) -> Reason:
    plan = table.plan
    remedy = SEE_ITS_LOG
    if plan.protocol == "mqtt":
        remedy = remedy_of_unexplained(plan.protocol, "closed_idle", table.server.name)
    return reason("burst", form, server=table.server.label, remedy=remedy)


def _refused_after(table: LossTable, burst: Burst) -> bool:
    after = [tick for _, tick in table.run.ticks_between(burst.to_s - 1.0, burst.to_s + 3.0)]
    refused = sum(tick.failures.get("refused", 0) for tick in after)
    return refused >= FEWEST and sum(tick.opened for tick in after[1:]) == 0
