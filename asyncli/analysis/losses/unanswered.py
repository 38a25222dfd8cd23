"""Heartbeats without a complete answer: is the server stopped or slow, or is the network path down?

The kernel of a stopped process still acknowledges, so nothing is retransmitted (RFC 9293, 3.8.4);
what the network loses is retransmitted after 0.2 s, 0.4 s and so on (RFC 6298, TCP_RTO_MIN). The
server's count of requests shows what arrived; incomplete answers show that it answered.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from asyncli.analysis.constants import FEWEST, MISSED_S, NEARLY_ALL, PART
from asyncli.analysis.losses.likelihood import idle_edge, one_of, within
from asyncli.analysis.losses.own_sockets import sent_again
from asyncli.analysis.losses.server_evidence import Evidence, Reception, ServerEvidence, StillOpen
from asyncli.analysis.losses.table import LossCell, LossTable, Reason, pooled, reason, unclaimed
from asyncli.findings import loss_causes
from asyncli.findings.slowness import NoAnswers
from asyncli.model.records import Tick
from asyncli.model.run import Ticks
from asyncli.model.units import format_count, format_duration, format_many


class Silence(NamedTuple):
    """Seconds without an answer while heartbeats ``waited``: from start to end, and how many were
    ``sent`` in vain.
    """

    from_s: float
    to_s: float
    sent: int
    waited: int

    def has(self, cell: LossCell, timeout_s: float) -> bool:
        """Whether it lasted for the timeout, and ``cell`` was sent in it. It began and ended in the
        seconds beside.
        """
        lasted = self.to_s - self.from_s + 2.0 >= NEARLY_ALL * timeout_s
        return (
            lasted
            and self.from_s - 1.5 <= (cell.from_s + cell.to_s) / 2 - timeout_s <= self.to_s + 1.0
        )


def silences(rows: Ticks) -> list[Silence]:
    """The silences in ``rows``, without those in which asyncli itself was stopped."""
    found, before = [], Tick()
    for silent, group in itertools.groupby(
        rows,
        lambda row: (
            not row[1].answered
            and bool(row[1].awaiting or row[1].sent)
            and row[1].longest_turn_s < 0.5
        ),
    ):
        part = list(group)
        if silent:
            # It began in the second before, after an answer.
            sent = sum(tick.sent for _, tick in part) + max(0, before.sent - before.answered)
            found.append(
                Silence(part[0][0] - 1.0, part[-1][0], sent, max(tick.awaiting for _, tick in part))
            )
        before = part[-1][1]
    return found


def period_s(instants: Sequence[float]) -> float | None:
    """The time between events that repeat at regular intervals; None for fewer than three, or
    irregular ones.
    """
    steps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    if len(steps) < 2:
        return None
    usual = statistics.median(steps)
    # Each instant is a second of a tick, and what repeats may itself take longer at times.
    regular = all(abs(step - usual) <= max(MISSED_S, PART * usual) for step in steps)
    return usual if regular and usual > 2 * MISSED_S else None


def silence(table: LossTable) -> None:
    """Claim heartbeats that waited while none of several others was answered: a stop, whatever the
    number of connections.
    """
    alike: dict[Reason, list[list[LossCell]]] = {}
    for one in () if table.plan.listens else silences(table.run.ticks):
        cells = [cell for cell in table.of("heartbeat_timeout") if one.has(cell, table.timeout_s)]
        if cells and one.sent >= FEWEST:
            # When these were sent: requests and heartbeats are counted over the same seconds.
            from_s = max(one.from_s, cells[0].from_s - table.timeout_s + 1.0)
            to_s = min(one.to_s, max(cells[-1].from_s - table.timeout_s, from_s + 2.0))
            evidence = table.server.about(from_s, to_s, unclaimed(cells))
            found = _nobody_answered(
                table, cells, table.run.ticks_between(from_s + 0.9, to_s), evidence
            )
            if found is not None:
                alike.setdefault(found, []).append(cells)
    for found, times in alike.items():
        every_s = period_s([cells[0].since_s for cells in times])
        words = loss_causes.unanswered(found.words, table.timeout_s, len(times), every_s)
        table.claim(itertools.chain(*times), Reason(found.code, words, found.certain, -1))


def unanswered(table: LossTable) -> None:
    """Claim losses by heartbeats without an answer."""
    for event, cells in enumerate(_stretches(table)):
        found = _explain_silence(table, cells) if table.plan.listens else _explain(table, cells)
        if found is not None:
            whole = loss_causes.unheard if table.plan.listens else loss_causes.unanswered
            table.claim(
                cells, Reason(found.code, whole(found.words, table.timeout_s), found.certain, event)
            )


def _stretches(table: LossTable) -> list[list[LossCell]]:
    """The silent losses in groups, farther apart than a heartbeat's gap and timeout."""
    groups: list[list[LossCell]] = []
    pause = table.timeout_s + table.gap_s + 3.0
    for cell in table.of("heartbeat_timeout"):
        if not groups or cell.to_s - groups[-1][-1].to_s > pause:
            groups.append([])
        groups[-1].append(cell)
    return groups


def _explain_silence(table: LossTable, cells: list[LossCell]) -> Reason:
    """Why listening connections received nothing."""
    server, since_s, to_s = table.server, cells[0].from_s - table.timeout_s + 1.0, cells[-1].from_s
    found = server.about(max(since_s, 0.0), to_s, unclaimed(cells))
    if found.stood_still:
        return _stood_still(found, server.label)
    # A connection that opens receives a handshake, which is no event. What came before the last of
    # these fell silent is theirs.
    all_silent_s = cells[-1].to_s - table.timeout_s + 1.0
    heard = sum(
        tick.bytes_received
        for _, tick in table.run.ticks_between(all_silent_s, to_s)
        if not tick.opened
    )
    return reason("unheard", "others_heard" if heard else "nobody_heard", server=server.label)


def _explain(table: LossTable, cells: list[LossCell]) -> Reason | None:
    """Why heartbeats were not answered, or None."""
    server, count = table.server, unclaimed(cells)
    from_s, to_s = cells[0].from_s, cells[-1].to_s
    # When the first of these heartbeats was sent.
    asked_s = from_s - table.timeout_s + 1.0
    meanwhile = [tick for _, tick in table.run.ticks_between(asked_s + 0.9, to_s)]
    if 2 * _of_ticks(cells, "spoke") >= count:
        return reason("answered_otherwise", server=server.label)
    if _without_answer(cells):
        return _never(table, cells, "others_")
    found = server.about(max(asked_s, 0.0), to_s, count)
    edge = idle_edge(table.gap_s, pooled(cells).idle_s, waited_s=table.timeout_s)
    if edge is not None:
        return _silent_when_idle(table, cells, found.still_open(count), edge)
    if count < FEWEST:
        return None
    # Where a packet in p is lost, at most p^3 of the heartbeats get no answer within three tries:
    # others are sent again and answered, and these are more unless seven packets in ten are lost.
    again = sent_again(table.run.ticks_between(asked_s - 2.0, to_s)).heartbeats
    if again >= count:
        answered = sum(tick.answered for tick in meanwhile)
        return reason("packets_lost", again=again, share=again / max(again, answered))
    slow = max((answered_within_us(tick, 0.99) for tick in meanwhile), default=0.0) / 1e6
    if 2 * slow >= table.timeout_s:
        # Lateness that ends at the timeout is its bound, not the server's.
        up_to = f", up to {format_duration(slow)}" if slow < NEARLY_ALL * table.timeout_s else ""
        return reason("server_slow", server=server.label, up_to=up_to)
    workers = server.workers(from_s)
    if (
        workers > 1
        and one_of(workers, count, server.held(asked_s))
        and to_s - from_s <= table.gap_s + 3.0
    ):
        return reason("worker_stalled", server=server.label, workers=workers)
    return None


def _silent_when_idle(
    table: LossTable, cells: list[LossCell], kept: StillOpen, edge: float
) -> Reason:
    """Why those that had been idle for ``edge`` seconds or longer got no answer, while others did.

    What is dropped on the way is not acknowledged. What is acknowledged has reached a kernel: the
    server's, or that of a proxy.
    """
    server, for_s = table.server.label, loss_causes.in_seconds(edge)
    if 2 * _of_ticks(cells, "acknowledged") >= kept.of:
        return reason("silent_drop", "idle_forgotten", server=server, for_s=for_s)
    counts = ""
    if kept.are_most and kept.by_kernel:
        counts = f", and {server} still has {format_count(kept.count)} of their sockets"
    elif kept.are_most:
        counts = f", and {server} still counts {format_count(kept.count)} of them as open"
    return reason(
        "silent_drop", certain=bool(counts), low=edge, high=edge + 1, for_s=for_s, counts=counts
    )


def _stood_still(found: Evidence, name: str) -> Reason:
    """The server's processes used no CPU and its status page was silent: a signal had stopped them,
    or they waited.
    """
    forms: dict[NoAnswers, str] = {
        "stopped": "",
        "waited": "waited_for_something",
        "stood_still": "stood_still",
    }
    return reason(
        "server_stalled",
        forms[how_it_stood_still(found)],
        certain=found.halted is True,
        server=name,
    )


def how_it_stood_still(found: Evidence) -> Literal["stopped", "waited", "stood_still"]:
    """By the state of the server's processes; "stood_still" where it was not read."""
    if found.halted is None:
        return "stood_still"
    return "stopped" if found.halted else "waited"


def _nobody_answered(
    table: LossTable, cells: list[LossCell], asked: Ticks, found: Evidence
) -> Reason | None:
    """Why none of the heartbeats was answered that were sent when these were ``asked``; None where
    it is no silence of all: these connections were never answered, and others were before.
    """
    name, count, sent = table.server.label, unclaimed(cells), sum(tick.sent for _, tick in asked)
    if no_route := sum(tick.failures.get("unreachable", 0) for _, tick in asked):
        return reason(
            "path_cut", "no_route", certain=True, connects=format_many(no_route, "connect")
        )
    segments = sent_again([(cell.to_s, cell.tick) for cell in _distinct(cells)]).segments
    unacknowledged = (
        segments >= max(FEWEST, count / 2) and 2 * _of_ticks(cells, "acknowledged") < count
    )
    # A listen queue that is full acknowledges nothing either.
    if table.server.local and _without_answer(cells):
        unacknowledged = False
    why = why_silent(table.server, found, sent, unacknowledged)
    if why == "unacknowledged":
        return reason("path_cut", why, segments=format_many(segments, "TCP segment"))
    if found.stood_still:
        return _stood_still(found, name)
    if part := _part_of_an_answer(table, cells):
        return reason("answers_in_part", part=part)
    if 2 * _of_ticks(cells, "spoke") >= count:
        return reason("answered_otherwise", server=name)
    if why == "computing":
        return reason("server_stalled", why, server=name, cores=found.cores)
    # A handshake needs only the kernel. So neither a page that answers nor its count of requests,
    # some of connections that were given up in the queue, tells of those that nobody has accepted.
    never = table.server.local and _without_answer(cells)
    if never and any(
        tick.answered for t_s, tick in table.run.ticks if t_s < cells[-1].from_s - table.timeout_s
    ):
        return None
    if why == "slow":
        return reason(
            "answers_late", server=name, requests=format_many(found.requests or 0, "request")
        )
    if never:
        return _never(table, cells, "never_")
    if why == "page_answered":
        # What was acknowledged has reached a kernel behind the path: the server's, or that of a
        # proxy.
        if 2 * _of_ticks(cells, "acknowledged") >= count:
            return reason("server_stalled", "part_stood_still")
        return reason("path_cut", why)
    return reason(
        "server_stalled", "stopped_here" if table.server.local else "nobody_answered", server=name
    )


def _without_answer(cells: list[LossCell]) -> bool:
    """Whether none of the lost connections was ever answered."""
    return within(pooled(cells).requests, 0, 0) > NEARLY_ALL * unclaimed(cells)


def _of_ticks(cells: list[LossCell], count: Literal["acknowledged", "spoke"]) -> int:
    """The sum of a count over the ticks of ``cells``."""
    return sum(getattr(cell.tick, count) for cell in _distinct(cells))


def _distinct(cells: Sequence[LossCell]) -> list[LossCell]:
    """A cell of each tick: the cells of several causes may share one."""
    return list({id(cell.tick): cell for cell in cells}.values())


def _never(table: LossTable, cells: list[LossCell], others: str) -> Reason:
    """None of their heartbeats was ever answered. A TCP handshake needs only the kernel; later
    handshakes, an accept. The kernel's list of the server's sockets tells too, while they all
    waited.
    """
    whole, label, name = table.totals.whole, table.server.label, table.server.name
    if whole.tls is not None or (whole.protocol is not None and whole.protocol.handshake_us.count):
        return reason("never_answered", f"{others}answered", server=label, name=name)
    seen = _acceptance(table, cells)
    if seen.of == "accepted":
        return _did_not_answer(table, cells, f"{others}answered_though_accepted")
    if seen.of == "waiting":
        return reason(
            "never_accepted",
            f"{others}left_waiting",
            certain=True,
            server=label,
            name=name,
            waiting=seen.waiting,
        )
    return reason("never_accepted", f"{others}accepted", server=label, name=name)


def _did_not_answer(table: LossTable, cells: list[LossCell], form: str) -> Reason:
    """For certain, unless as many of its sockets had sent what was not acknowledged: answers that
    were lost on the way.
    """
    server = table.server
    unacknowledged = server.unacknowledged(cells[0].from_s - table.timeout_s, cells[-1].to_s)
    may_be_lost = 2 * unacknowledged >= unclaimed(cells)
    or_lost = ""
    if may_be_lost:
        sockets = format_many(unacknowledged, "socket")
        or_lost = f", or its answers were lost on the way: {sockets} of it had sent what nobody acknowledged"
    return reason(
        "never_answered",
        form,
        certain=not may_be_lost,
        server=server.label,
        name=server.name,
        or_lost=or_lost,
    )


def _acceptance(table: LossTable, cells: list[LossCell]) -> Reception:
    """By readings of the kernel's list between two seconds in which these connections, or as many
    of them as at once, waited.
    """
    rows = table.run.ticks_between(cells[0].from_s - table.timeout_s, cells[-1].to_s)
    count = min(unclaimed(cells), max((tick.awaiting for _, tick in rows), default=0))
    waited = [
        (from_s, to_s)
        for (from_s, before), (to_s, after) in itertools.pairwise(rows)
        if min(before.awaiting, after.awaiting) >= NEARLY_ALL * count > 0
    ]
    return table.server.acceptance(waited, count)


def why_silent(
    server: ServerEvidence, found: Evidence, sent: int, unacknowledged: bool
) -> NoAnswers:
    """Why no heartbeat was answered while ``sent`` of them waited. ``unacknowledged``: by their own
    sockets, which sent them again and again.
    """
    if unacknowledged:
        return "unacknowledged"
    if found.stood_still:
        return how_it_stood_still(found)
    # A thread that computes uses one core. Samples are a second apart, so a stall of two seconds
    # shows half of that.
    if found.cores is not None and 2 * found.cores >= 1:
        return "computing"
    if found.silent is not False or not server.counts_beats or found.requests is None:
        # A page that counts no heartbeats proves nothing: a backend behind it may have stopped.
        return "unknown"
    return "slow" if found.requests >= max(FEWEST, sent / 2) else "page_answered"


def cut_short(table: LossTable) -> None:
    """Claim what was closed within an answer: more bytes came than complete answers have."""
    cells = table.of("closed_awaiting")
    if unclaimed(cells) >= FEWEST and (part := _part_of_an_answer(table, cells)) is not None:
        table.claim(cells, reason("cut_short", part=part))


def _part_of_an_answer(table: LossTable, cells: Sequence[LossCell]) -> float | None:
    """The mean share of an answer that each lost connection received; None if none, or unknown."""
    if table.plan.upgrades:
        return None
    quiet = [tick for _, tick in table.run.ticks if tick.answered and not tick.deaths]
    answered = sum(tick.answered for tick in quiet)
    size = sum(tick.bytes_received for tick in quiet) / answered if answered else 0.0
    # The bytes of a 408, or of what is not HTTP, are no part of an answer.
    alone = [
        cell
        for cell in cells
        if not {"closed_announced", "protocol_error"} & cell.tick.deaths.keys()
    ]
    ticks = {id(cell.tick): cell.tick for cell in alone}.values()
    if not size or not alone:
        return None
    part = sum(tick.bytes_received - tick.answered * size for tick in ticks) / (
        unclaimed(alone) * size
    )
    return part if PART <= part <= 1.0 else None


def answered_within_us(tick: Tick, q: float) -> float:
    """A quantile (us) of the answered latencies. Newer histograms contain unanswered heartbeats
    too, as the longest.
    """
    every = tick.latency_us.count
    return (
        (tick.latency_us.quantile(q * min(1.0, tick.answered / every)) or 0.0)
        if tick.answered and every
        else 0.0
    )
