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
from asyncli.analysis.event_times import mark_before
from asyncli.analysis.generations import late_end
from asyncli.analysis.holders import holders_of
from asyncli.analysis.losses.likelihood import (
    DEVIATIONS,
    LEAST_SURPRISE,
    idle_edge,
    one_of,
    within,
)
from asyncli.analysis.losses.server_evidence import Evidence
from asyncli.analysis.losses.slots import closed_as_others_opened, most_held, no_slot_left
from asyncli.analysis.losses.table import (
    ENDED,
    LossCell,
    LossTable,
    Reason,
    pooled,
    reason,
    share_awaiting,
    unclaimed,
)
from asyncli.analysis.losses.timeouts import idle_mode, waited_before
from asyncli.analysis.shared_host import is_proxy
from asyncli.analysis.unlistened import unlistened_at
from asyncli.findings import Words
from asyncli.findings.loss_causes import (
    SEE_ITS_LOG,
    after_listener,
    after_mark,
    at_moments,
    by_event,
    describe_crash,
    or_others,
    others_took,
    perhaps_for_memory,
    remedy_of_unexplained,
)
from asyncli.model.run import Run
from asyncli.model.units import format_many

# A moment may touch two ticks; closing takes time (nginx took 5 s to reload with 100,000).
_MOMENT_S = 2.2
_BORDER_S = 1.5
_CLOSES_PER_S = 10_000
# Servers whose work is to pass connections on, in lower case.
_PROXIES = frozenset({"haproxy", "envoy", "traefik"})
# The rate of losses in this time (s) before and after is the usual one.
_AROUND_S = 10.0


def idle_reuse(table: LossTable) -> None:
    """Claim what nginx closed while idle to reuse its slot, because a worker ran out of slots: for
    ours that opened, or for other clients'.
    """
    slots = table.configured("worker_connections")
    if not slots:
        return
    asked_for = table.plan.connections
    cells = _closed_for_others(table, slots)
    if not cells or 2 * unclaimed(cells) < unclaimed(table.of("closed_idle")):
        return
    from_s = min(cell.from_s for cell in cells)
    to_s = max(cell.to_s for cell in cells)
    workers = table.server.workers(math.inf)
    held = max(cell.tick.held for cell in cells)
    if not _may_lack(table, max(held, table.server.most_open(from_s, to_s)), slots):
        return
    # A worker needs four itself: two listeners, the channel to its master, our status connection
    # (ngx_event_process_init).
    certain = asked_for >= (1 - REUSE_BELOW) * slots - 4 * workers and unclaimed(cells) >= FEWEST
    beside = others_took(table.server.others_open(from_s, to_s))
    explanation = reason("idle_reuse", certain=certain, slots=slots, asked=asked_for, **beside)
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


def _closed_for_others(table: LossTable, slots: float) -> list[LossCell]:
    """Losses while idle in seconds in which others opened: ours, or those of other clients that
    fill the ``slots``.
    """
    cells = []
    sudden = []
    # Most runs never fill them, and looking at each second of a night takes seconds.
    were_full = _may_lack(table, table.server.most_open(-math.inf, math.inf), slots)
    for cell in table.of("closed_idle"):
        if not cell.tick.opened and not (were_full and _filled_by_others(table, cell, slots)):
            continue
        cells.append(cell)
        if 0 < table.server.held(cell.from_s) < 2 * cell.unclaimed:
            sudden.append(cell)
    # Reuse closes one connection for each that opens. A moment or two in which half of all ended
    # are another event; many such seconds are reuse.
    if len(sudden) >= FEWEST:
        return cells
    return [cell for cell in cells if cell not in sudden]


def _may_lack(table: LossTable, open_in_all: float, slots: float) -> bool:
    """Whether a worker of nginx may lack ``slots`` (of all workers) while so many are open: the
    kernel's hash gives some of them more than their share.
    """
    workers = table.server.workers(math.inf)
    share = open_in_all / workers
    return share + DEVIATIONS * math.sqrt(share) >= (1 - REUSE_BELOW) * slots / workers


def _filled_by_others(table: LossTable, cell: LossCell, slots: float) -> bool:
    """Whether other clients had so many connections that a worker may have lacked slots."""
    if not table.server.others_open(cell.from_s, cell.to_s):
        return False
    return _may_lack(table, table.server.most_open(cell.from_s, cell.to_s), slots)


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
    sudden = closed_as_others_opened(table)
    before = -1
    while len(instants) > before:
        before = len(instants)
        instants |= {cell.to_s for cell in sudden if is_beside(cell)}
    # The connection that took the slot may have opened in the second before or after.
    table.claim(list(filter(is_beside, table.of("closed_idle"))), reuse[0])


def likely_reuse(table: LossTable) -> None:
    """Claim what closed as others opened, if the server's slots are not known but seem to be full
    (``no_slot_left``): it never held all that were asked for, and closed as it accepted.
    """
    if not no_slot_left(table):
        return
    explanation = reason(
        "idle_reuse",
        "likely_reuse",
        most=most_held(table),
        asked=table.plan.connections,
        name=table.server.name,
    )
    table.claim(closed_as_others_opened(table), explanation)


def graceful_restart(table: LossTable) -> None:
    """Claim what ended as a new generation of the server's processes began, by its page: idle
    connections at once, the others as each has its next heartbeat answered.
    """
    for before_s, after_s in table.server.generations():
        last_of = {
            "closed_idle": after_s + _MOMENT_S,
            "closed_announced": after_s + _MOMENT_S + table.gap_s + table.timeout_s,
        }
        cells = [cell for cell in table.of(*last_of) if before_s < cell.to_s <= last_of[cell.cause]]
        if not cells:
            continue
        from_s = min(cell.from_s for cell in cells)
        to_s = max(cell.to_s for cell in cells)
        count = unclaimed(cells)
        evidence = table.server.about(before_s, to_s, count)
        if not evidence.ended:
            continue
        explanation = reason(
            "reload",
            "reload_by_processes",
            certain=True,
            server=table.server.label,
            ended=evidence.ended,
        )
        held = table.server.held(from_s)
        words = at_moments(explanation.words, [from_s], to_s - from_s, count, held)
        table.claim(cells, msgspec.structs.replace(explanation, words=words))


def workers_in_turn(table: LossTable) -> None:
    """Claim what ended while workers of the server ended in turn, and others took their place."""
    cells = table.of(*ENDED)
    with_workers = [cell for cell in cells if table.server.ended_near(cell.from_s, cell.to_s)]
    count = unclaimed(with_workers)
    if count < max(FEWEST, NEARLY_ALL * unclaimed(cells)):
        return
    from_s = min(cell.from_s for cell in with_workers)
    to_s = max(cell.to_s for cell in with_workers)
    turn = table.server.about(from_s, to_s, count)
    ended = min(turn.ended or 0, turn.started or 0)
    # Fewer are a single event, such as a crash or a reload. A worker whose turn came had served
    # connections of ours, and ended them.
    if ended < FEWEST or ended > count or to_s - from_s <= _MOMENT_S + count / _CLOSES_PER_S:
        return
    # A reload ends idle workers at once, and the others as each answers its last request.
    if table.server.ended_at_once(from_s, to_s):
        return
    held = max(table.server.held(cell.from_s) for cell in with_workers)
    if 2 * count < ended * held / table.server.most_workers(from_s, to_s):
        return
    explanation = reason(
        "workers_in_turn", server=table.server.label, ended=ended, name=table.server.name
    )
    table.claim(with_workers, explanation)


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
        if explanation.code == "box_reset" and _share_idle_times(table, burst):
            continue
        if not explanation.certain and _came_together(table, burst):
            continue
        if explanation.certain or not only_certain:
            kind = (explanation.code, explanation.certain)
            alike.setdefault(kind, []).append((burst, explanation))
    for moments in alike.values():
        largest, explanation = max(moments, key=lambda moment: moment[0].count)
        instants = [burst.from_s for burst, _ in moments]
        length_s = largest.to_s - largest.from_s
        words = at_moments(explanation.words, instants, length_s, largest.count, largest.held)
        words = _with_what_was_before(table.run, words, largest)
        for burst, _ in moments:
            table.claim(burst.cells, msgspec.structs.replace(explanation, words=words))


def _with_what_was_before(run: Run, words: Words, burst: Burst) -> Words:
    """``words`` with what the user or a command of the plan did shortly before."""
    absence = unlistened_at(run, burst.from_s)
    if absence is not None:
        words = after_listener(words, absence.from_s, absence.events)
    mark = mark_before(run, burst.from_s)
    if mark is not None:
        words = after_mark(words, mark)
    return words


def _share_idle_times(table: LossTable, burst: Burst) -> bool:
    """Whether the resets have a common idle time, or those that awaited an answer a least one: it
    is better evidence than their moment, as they were opened at one moment too.
    """
    if _mostly_idle_resets(burst):
        return idle_mode(table, burst.of("reset")) is not None
    resets = table.of("reset")
    waited_s = waited_before(table, resets)
    return idle_edge(table.gap_s, pooled(resets).idle_s, waited_s) is not None


def _came_together(table: LossTable, burst: Burst) -> bool:
    """Whether its connections were opened in its seconds, and ended at an age at which most of the
    others ended too: many came at once, as after a standstill of ours, and all were short-lived.
    """
    in_burst = {id(cell) for cell in burst.cells}
    others = [cell for cell in table.of(*ENDED) if id(cell) not in in_burst]
    here = pooled(burst.cells).age_s
    elsewhere = pooled(others).age_s
    oldest_s = burst.to_s - burst.from_s - 1
    return (
        unclaimed(others) >= FEWEST
        and within(here, 0, oldest_s) >= NEARLY_ALL * here.count
        and 2 * within(elsewhere, 0, oldest_s) > elsewhere.count
    )


def _find(table: LossTable) -> list[Burst]:
    """Bursts among the unclaimed cells, in order of time: seconds with far more losses than at an
    even rate.
    """
    by_second: dict[float, list[LossCell]] = {}
    for cell in table.of(*ENDED):
        by_second.setdefault(cell.to_s, []).append(cell)
    instants = sorted(by_second)
    taken: set[float] = set()
    #: How many unexplained losses each second has.
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

    @property
    def counted_down(self) -> bool:
        """Whether the server's own count fell by most of the lost ones, as nginx's does for what
        ends in order and not for what a crash or the kernel ends.
        """
        return self.is_direct and self.evidence.excess is not None and not self.are_still_counted

    @property
    def are_still_counted(self) -> bool:
        """Whether the server still counts most of the lost ones."""
        return 2 * self.still_counted >= self.burst.count

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
    """The kernel killed the workers that ended for lack of memory, by its log, which names them."""
    ended = case.evidence.ended
    if not ended or not _held_so_many(case, ended):
        return None
    if not case.evidence.killed.are_certainly(ended):
        return None
    return _killed_for_memory(case, ended, certain=True)


def _workers_perhaps_killed_for_memory(case: _Case) -> Reason | None:
    """Workers ended as the kernel killed processes for lack of memory that may be others, and
    nothing shows that they ended in order.
    """
    evidence = case.evidence
    if not evidence.ended or not evidence.killed.number or not _held_so_many(case, evidence.ended):
        return None
    if case.counted_down or case.count("closed_announced"):
        return None
    return _killed_for_memory(case, evidence.ended, certain=False)


def _killed_for_memory(case: _Case, ended: int, *, certain: bool) -> Reason:
    return reason(
        "worker_crash",
        "workers_killed_for_memory",
        certain=certain,
        server=case.server,
        killed=format_many(ended, "worker"),
        workers=case.workers,
        or_others="" if certain else or_others(*case.evidence.killed),
    )


def _older_than_a_command(case: _Case) -> Reason | None:
    """Those that ended were there before a command of the plan, which had others started beside
    them, as a deploy does that lets the earlier workers go on for a time.
    """
    if not case.evidence.ended:
        return None
    late = late_end(case.table.run, case.burst.to_s)
    if late is None:
        return None
    return reason(
        "reload",
        "reload_by_processes",
        # One alone may be a new one that crashed.
        certain=late.ended == late.workers,
        server=case.server,
        ended=case.evidence.ended,
        **by_event(late.number, case.burst.from_s - late.at_s),
    )


def _processes_went_on(case: _Case) -> Reason | None:
    """The server's processes all went on: they did it, something behind them, or a middle box
    before them.
    """
    table, burst, evidence = case
    if not evidence.lived:
        return None
    if _reset_on_the_way(burst, evidence):
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
    if not _reset_on_the_way(case.burst, case.evidence):
        return None
    return _reset_by_a_box(case)


def _worker_crashed(case: _Case) -> Reason | None:
    """A worker that crashed counts nothing down, though its sockets are closed."""
    ended = case.evidence.ended
    if not ended or not _looks_crashed(case):
        return None
    return reason(
        "worker_crash",
        certain=case.is_direct,
        server=case.server,
        kept=case.still_counted,
        crashed=describe_crash(ended, case.workers),
        perhaps=perhaps_for_memory(*case.evidence.killed),
    )


def _worker_seems_crashed(case: _Case) -> Reason | None:
    """The same where the server's processes were not read."""
    if case.evidence.ended is not None or not _looks_crashed(case):
        return None
    # One of several workers cannot lose all.
    if case.burst.all_of_them and case.workers > 1:
        return None
    if not case.is_direct:
        return reason(
            "worker_crash", "worker_crash_or_proxy", server=case.server, kept=case.still_counted
        )
    return reason(
        "worker_crash",
        server=case.server,
        kept=case.still_counted,
        crashed=describe_crash(1, case.workers),
        perhaps="",
    )


def _looks_crashed(case: _Case) -> bool:
    """Whether the server still counts most, and ended none in order. After a reload nginx no longer
    counts them; Apache's scoreboard may count those of a process that ended in order until another
    takes its place.
    """
    if case.table.server.name == "Apache":
        return False
    return case.are_still_counted and not case.count("closed_announced")


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
    """All workers ended, and there were several: one that ended may have crashed."""
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


#: The first that applies explains a burst; without one its cause is unknown. A rule that applies
#: may also say that the cause is unknown: :func:`_processes_went_on` always does so at the least,
#: where the server's processes lived, so that no rule below it looks at such a burst.
_RULES: tuple[Callable[[_Case], Reason | None], ...] = (
    _server_ended,
    _server_restarted,
    _workers_killed_for_memory,
    _older_than_a_command,
    _processes_went_on,
    _counters_restarted,
    _middle_box_reset,
    _worker_crashed,
    _worker_seems_crashed,
    _connects_were_refused,
    _page_stayed_silent,
    _workers_perhaps_killed_for_memory,
    _all_workers_ended,
    _all_were_closed,
    _workers_announced_the_end,
    _worker_ended,
    _middle_box_seems_to_reset,
)


def _held_so_many(case: _Case, ended: int) -> bool:
    """Whether as many were lost as so many workers may have held; else what ended was a helper."""
    return 2 * case.burst.count >= min(ended, case.workers) * case.burst.held / case.workers


def _are_mostly_resets(burst: Burst) -> bool:
    return 2 * unclaimed(burst.of("reset")) >= burst.count


def _mostly_idle_resets(burst: Burst) -> bool:
    """Whether most were reset while no heartbeat awaited an answer."""
    return _are_mostly_resets(burst) and share_awaiting(burst.of("reset")) < 0.5


def _reset_on_the_way(burst: Burst, evidence: Evidence) -> bool:
    """Whether most were reset on the way: the server still has most of them. By its own count alone
    only if they were reset while idle, as it may not count down what it resets with a request.
    """
    kept = evidence.still_open(burst.count)
    if not kept.are_most:
        return False
    return _mostly_idle_resets(burst) or (kept.by_kernel and _are_mostly_resets(burst))


def _reset_by_a_box(case: _Case) -> Reason:
    kept = case.evidence.still_open(case.burst.count)
    form = "box_reset" if kept.by_kernel else "box_reset_by_count"
    return reason("box_reset", form, certain=kept.by_kernel, server=case.server, kept=kept.count)


def _passes_on(table: LossTable, burst: Burst) -> bool:
    """Whether the server holds a connection to a backend for each of ours: by its configuration and
    its descriptors, else by its name.
    """
    if table.server.has_no_backend:
        return False
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
