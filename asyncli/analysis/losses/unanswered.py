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
from asyncli.analysis.event_times import events_begun_in, mark_before
from asyncli.analysis.losses.likelihood import idle_edge, one_of, within
from asyncli.analysis.losses.own_sockets import sent_again
from asyncli.analysis.losses.server_evidence import Evidence, Reception, ServerEvidence, StillOpen
from asyncli.analysis.losses.slots import most_held
from asyncli.analysis.losses.table import LossCell, LossTable, Reason, pooled, reason, unclaimed
from asyncli.core.histogram import summed
from asyncli.findings import Words, loss_causes
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
    stretches = []
    before = Tick()
    for silent, group in itertools.groupby(rows, lambda row: _is_silent(row[1])):
        part = list(group)
        if silent:
            # It began in the second before, after an answer.
            sent = sum(tick.sent for _, tick in part) + max(0, before.sent - before.answered)
            waited = max(tick.awaiting for _, tick in part)
            stretches.append(Silence(part[0][0] - 1.0, part[-1][0], sent, waited))
        before = part[-1][1]
    return stretches


def _is_silent(tick: Tick) -> bool:
    """Whether heartbeats waited and none was answered, and not because asyncli stood still."""
    if tick.answered or tick.asyncli_stood_still:
        return False
    return bool(tick.awaiting or tick.sent)


def usual_wait_s(rows: Ticks) -> float:
    """How long the fastest answers take (s): that much silence is normal."""
    latencies_us = summed([tick.latency_us for _, tick in rows if tick.answered])
    return (latencies_us.quantile(PART) or 0.0) / 1e6


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
    if table.plan.listens:
        return
    alike: dict[Reason, list[list[LossCell]]] = {}
    for stretch in silences(table.run.ticks):
        cells = [
            cell for cell in table.of("heartbeat_timeout") if stretch.has(cell, table.timeout_s)
        ]
        if not cells or stretch.sent < FEWEST:
            continue
        # When these were sent: requests and heartbeats are counted over the same seconds.
        from_s = max(stretch.from_s, cells[0].from_s - table.timeout_s + 1.0)
        to_s = min(stretch.to_s, max(cells[-1].from_s - table.timeout_s, from_s + 2.0))
        evidence = table.server.about(from_s, to_s, unclaimed(cells))
        asked = table.run.ticks_between(from_s + 0.9, to_s)
        explanation = _nobody_answered(table, cells, asked, evidence)
        if explanation is not None:
            alike.setdefault(explanation, []).append(cells)
    for explanation, times in alike.items():
        every_s = period_s([cells[0].since_s for cells in times])
        words = loss_causes.unanswered(explanation.words, table.timeout_s, len(times), every_s)
        words = with_what_began_it(table, words, times[0], explanation.code, len(times))
        claimed = Reason(explanation.code, words, explanation.certain, -1)
        table.claim(itertools.chain(*times), claimed)


def unanswered(table: LossTable) -> None:
    """Claim losses by heartbeats without an answer."""
    for event, cells in enumerate(silent_stretches(table)):
        if table.plan.listens:
            explanation = _explain_silence(table, cells)
            words = loss_causes.unheard(explanation.words, table.timeout_s)
        else:
            explained = _explain(table, cells)
            if explained is None:
                continue
            explanation = explained
            words = loss_causes.unanswered(explanation.words, table.timeout_s)
            if explanation.code != "silent_drop":
                words = with_what_began_it(table, words, cells, explanation.code)
        table.claim(cells, Reason(explanation.code, words, explanation.certain, event))


def with_what_began_it(
    table: LossTable, words: Words, cells: list[LossCell], code: str, times: int = 1
) -> Words:
    """``words`` with the event of the plan in whose time the first of these heartbeats was sent,
    and with the mark before it. Nothing tells when connections that only listen fell silent.
    """
    if table.plan.listens:
        return words
    since_s = cells[0].since_s
    events = events_begun_in(table.run, since_s)
    return loss_causes.begun_with(words, events, mark_before(table.run, since_s), times, code)


def silent_stretches(table: LossTable) -> list[list[LossCell]]:
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
    server = table.server
    since_s = cells[0].from_s - table.timeout_s + 1.0
    to_s = cells[-1].from_s
    evidence = server.about(max(since_s, 0.0), to_s, unclaimed(cells))
    if evidence.stood_still:
        return _stood_still(evidence, server.label)
    # A connection that opens receives a handshake, which is no event. What came before the last of
    # these fell silent is theirs.
    all_silent_s = cells[-1].to_s - table.timeout_s + 1.0
    heard = sum(
        tick.bytes_received
        for _, tick in table.run.ticks_between(all_silent_s, to_s)
        if not tick.opened
    )
    form = "others_heard" if heard else "nobody_heard"
    return reason("unheard", form, server=server.label)


def _explain(table: LossTable, cells: list[LossCell]) -> Reason | None:
    """Why heartbeats were not answered, or None."""
    server = table.server
    count = unclaimed(cells)
    from_s = cells[0].from_s
    to_s = cells[-1].to_s
    # When the first of these heartbeats was sent.
    asked_s = from_s - table.timeout_s + 1.0
    meanwhile = [tick for _, tick in table.run.ticks_between(asked_s + 0.9, to_s)]
    if 2 * _of_ticks(cells, "spoke") >= count:
        return reason("answered_otherwise", server=server.label)
    if _without_answer(cells):
        return _never(table, cells, loss_causes.OTHERS_ANSWERED)
    explanation = _stopped_worker(table, cells)
    if explanation is not None:
        return explanation
    edge = idle_edge(table.gap_s, pooled(cells).idle_s, waited_s=table.timeout_s)
    if edge is not None:
        evidence = server.about(max(asked_s, 0.0), to_s, count)
        return _silent_when_idle(table, cells, evidence.still_open(count), edge)
    if count < FEWEST:
        return None
    # Where a packet in p is lost, at most p^3 of the heartbeats get no answer within three tries:
    # others are sent again and answered, and these are more unless seven packets in ten are lost.
    again = sent_again(table.run.ticks_between(asked_s - 2.0, to_s)).heartbeats
    if again >= count:
        answered = sum(tick.answered for tick in meanwhile)
        return reason("packets_lost", again=again, share=again / max(again, answered))
    slow_s = max((answered_within_us(tick, 0.99) for tick in meanwhile), default=0.0) / 1e6
    if 2 * slow_s >= table.timeout_s:
        up_to = ""
        # Lateness that ends at the timeout is its bound, not the server's.
        if slow_s < NEARLY_ALL * table.timeout_s:
            up_to = f", up to {format_duration(slow_s)}"
        return reason("server_slow", server=server.label, up_to=up_to)
    workers = server.workers(from_s)
    if (
        workers > 1
        and one_of(workers, count, server.held(asked_s))
        and to_s - from_s <= table.gap_s + 3.0
    ):
        return reason(
            "worker_stalled",
            server=server.label,
            stopped="one",
            workers=format_many(workers, "worker"),
            by="",
        )
    return None


def _stopped_worker(table: LossTable, cells: list[LossCell]) -> Reason | None:
    """A part of the server's processes was seen stopped for as long as these heartbeats waited, and
    was not before any of these connections had to be heard. Nothing tells how many each holds.
    """
    if unclaimed(cells) < FEWEST:
        return None
    # Some were sent until a second later.
    waited_from_s = cells[0].since_s + 1.0
    heard_s = cells[0].since_s - table.gap_s
    part = table.server.stopped_part(heard_s, waited_from_s, cells[-1].to_s - 1.0)
    if part is None:
        return None
    kind = "worker" if part.are_workers else "process"
    return reason(
        "worker_stalled",
        certain=True,
        server=table.server.label,
        stopped=format_count(part.stopped),
        workers=format_many(part.all_of_them, kind),
        by=", by a signal or a debugger",
    )


def _silent_when_idle(
    table: LossTable, cells: list[LossCell], kept: StillOpen, edge: float
) -> Reason:
    """Why those that had been idle for ``edge`` seconds or longer got no answer, while others did.

    What is dropped on the way is not acknowledged. What is acknowledged has reached a kernel: the
    server's, or that of a proxy.
    """
    server = table.server.label
    for_s = loss_causes.in_seconds(edge)
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


def _stood_still(evidence: Evidence, name: str) -> Reason:
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
        forms[how_it_stood_still(evidence)],
        certain=evidence.halted is True,
        server=name,
    )


def how_it_stood_still(evidence: Evidence) -> Literal["stopped", "waited", "stood_still"]:
    """By the state of the server's processes; "stood_still" where it was not read."""
    if evidence.halted is None:
        return "stood_still"
    return "stopped" if evidence.halted else "waited"


def _nobody_answered(
    table: LossTable, cells: list[LossCell], asked: Ticks, evidence: Evidence
) -> Reason | None:
    """Why none of the heartbeats was answered that were sent when these were ``asked``; None where
    it is no silence of all: these connections were never answered, and others were before.
    """
    unreachable = sum(tick.failures.get("unreachable", 0) for _, tick in asked)
    if unreachable:
        connects = format_many(unreachable, "connect")
        return reason("path_cut", "no_route", certain=True, connects=connects)
    segments = sent_again([(cell.to_s, cell.tick) for cell in _distinct(cells)]).segments
    unacknowledged = _were_unacknowledged(table, cells, segments)
    sent = sum(tick.sent for _, tick in asked)
    why = why_silent(table.server, evidence, sent, unacknowledged)
    if why == "unacknowledged":
        return _unacknowledged(table, cells, format_many(segments, "TCP segment"))
    if evidence.stood_still:
        return _stood_still(evidence, table.server.label)
    return _answers_of_another_kind(table, cells) or _no_answers(table, cells, why, evidence)


def _unacknowledged(table: LossTable, cells: list[LossCell], segments: str) -> Reason:
    """Nobody acknowledged the heartbeats: the way there is cut, or only the way back, where the
    server's sockets had sent answers that nobody acknowledged.
    """
    answering = table.server.unacknowledged(cells[0].since_s, cells[-1].to_s)
    if 2 * answering < min(unclaimed(cells), most_held(table)):
        answering = 0
    way = loss_causes.way_cut(answering)
    return reason("path_cut", "unacknowledged", segments=segments, way=way)


def _were_unacknowledged(table: LossTable, cells: list[LossCell], segments: int) -> bool:
    """Whether nobody acknowledged most of the heartbeats, of which ``segments`` were sent again."""
    # A listen queue that is full acknowledges nothing either.
    if table.server.local and _without_answer(cells):
        return False
    count = unclaimed(cells)
    return segments >= max(FEWEST, count / 2) and 2 * _of_ticks(cells, "acknowledged") < count


def _answers_of_another_kind(table: LossTable, cells: list[LossCell]) -> Reason | None:
    """The server sent something that is no complete answer."""
    part = _part_of_an_answer(table, cells)
    if part:
        return reason("answers_in_part", part=part)
    if 2 * _of_ticks(cells, "spoke") >= unclaimed(cells):
        return reason("answered_otherwise", server=table.server.label)
    return None


def _no_answers(
    table: LossTable, cells: list[LossCell], why: NoAnswers, evidence: Evidence
) -> Reason | None:
    """Why nothing came: by ``why``, and by whether these connections were ever answered."""
    name = table.server.label
    if why == "computing":
        return reason("server_stalled", why, server=name, cores=evidence.cores)
    # A handshake needs only the kernel. So neither a page that answers nor its count of requests,
    # some of connections that were given up in the queue, tells of those that nobody has accepted.
    never = table.server.local and _without_answer(cells)
    if never and _answered_before(table, cells[-1].from_s - table.timeout_s):
        return None
    if why == "slow":
        requests = format_many(evidence.requests or 0, "request")
        return reason("answers_late", server=name, requests=requests)
    if never:
        return _never(table, cells, loss_causes.NONE_ANSWERED)
    if _forgotten_when_idle(table):
        return None
    if why == "page_answered":
        # What was acknowledged has reached a kernel behind the path: the server's, or that of a
        # proxy.
        if 2 * _of_ticks(cells, "acknowledged") >= unclaimed(cells):
            return reason("server_stalled", "part_stood_still")
        return reason("path_cut", why)
    form = "stopped_here" if table.server.local else "nobody_answered"
    return reason("server_stalled", form, server=name)


def _forgotten_when_idle(table: LossTable) -> bool:
    """Whether the run's silent connections had been idle for longer than chance explains.

    Nothing has to stand still for a second without an answer then: those that were asked in it had
    been forgotten, and so few are left that no other was asked.
    """
    silent = pooled(table.of("heartbeat_timeout"))
    return idle_edge(table.gap_s, silent.idle_s, waited_s=table.timeout_s) is not None


def _answered_before(table: LossTable, t_s: float) -> bool:
    """Whether any heartbeat was answered before ``t_s``."""
    return any(tick.answered for tick_s, tick in table.run.ticks if tick_s < t_s)


def _without_answer(cells: list[LossCell]) -> bool:
    """Whether none of the lost connections was ever answered."""
    return within(pooled(cells).requests, 0, 0) > NEARLY_ALL * unclaimed(cells)


def _of_ticks(cells: list[LossCell], count: Literal["acknowledged", "spoke"]) -> int:
    """The sum of a count over the ticks of ``cells``."""
    ticks = [cell.tick for cell in _distinct(cells)]
    if count == "spoke":
        return sum(tick.spoke for tick in ticks)
    return sum(tick.acknowledged for tick in ticks)


def _distinct(cells: Sequence[LossCell]) -> list[LossCell]:
    """A cell of each tick: the cells of several causes may share one."""
    return list({id(cell.tick): cell for cell in cells}.values())


def _never(table: LossTable, cells: list[LossCell], beats: str) -> Reason:
    """None of their heartbeats was ever answered; ``beats``: whether others were.

    A TCP handshake needs only the kernel; later handshakes, an accept. The kernel's list of the
    server's sockets tells too, while they all waited.
    """
    whole = table.totals.whole
    label = table.server.label
    name = table.server.name
    if whole.tls is not None or (whole.protocol is not None and whole.protocol.handshake_us.count):
        return reason("never_answered", beats=beats, server=label, name=name)
    seen = _acceptance(table, cells)
    if seen.of == "accepted":
        return _did_not_answer(table, cells, beats)
    if seen.of == "waiting":
        return reason(
            "never_accepted",
            "left_waiting",
            certain=True,
            beats=beats,
            server=label,
            name=name,
            waiting=seen.waiting,
        )
    return reason("never_accepted", beats=beats, server=label, name=name)


def _did_not_answer(table: LossTable, cells: list[LossCell], beats: str) -> Reason:
    """For certain, unless as many of its sockets had sent what was not acknowledged: answers that
    were lost on the way.
    """
    server = table.server
    unacknowledged = server.unacknowledged(cells[0].from_s - table.timeout_s, cells[-1].to_s)
    may_be_lost = 2 * unacknowledged >= unclaimed(cells)
    or_lost = ""
    if may_be_lost:
        sockets = format_many(unacknowledged, "socket")
        or_lost = (
            f", or its answers were lost on the way: {sockets} of it had sent"
            " what nobody acknowledged"
        )
    return reason(
        "never_answered",
        "never_answered_though_accepted",
        certain=not may_be_lost,
        beats=beats,
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
    server: ServerEvidence, evidence: Evidence, sent: int, unacknowledged: bool
) -> NoAnswers:
    """Why no heartbeat was answered while ``sent`` of them waited. ``unacknowledged``: by their own
    sockets, which sent them again and again.
    """
    if unacknowledged:
        return "unacknowledged"
    if evidence.stood_still:
        return how_it_stood_still(evidence)
    # A thread that computes uses one core. Samples are a second apart, so a stall of two seconds
    # shows half of that.
    if evidence.cores is not None and 2 * evidence.cores >= 1:
        return "computing"
    if evidence.silent is not False or not server.counts_beats or evidence.requests is None:
        # A page that counts no heartbeats proves nothing: a backend behind it may have stopped.
        return "unknown"
    return "slow" if evidence.requests >= max(FEWEST, sent / 2) else "page_answered"


def cut_short(table: LossTable) -> None:
    """Claim what was closed within an answer."""
    cells = table.of("closed_awaiting")
    if unclaimed(cells) < FEWEST:
        return
    part = _part_of_an_answer(table, cells)
    if part is not None:
        table.claim(cells, reason("cut_short", part=part))


def _part_of_an_answer(table: LossTable, cells: Sequence[LossCell]) -> float | None:
    """The mean share of an answer that each lost connection received; None if most received
    none, or if it is unknown.

    That an answer began, the parser saw; bytes alone may be of other answers that are longer.
    """
    if table.plan.upgrades or 2 * _in_message(cells) < unclaimed(cells):
        return None
    size = _bytes_of_an_answer(table.run.ticks)
    # The bytes of a 408, or of what is not HTTP, are no part of an answer.
    alone = [
        cell
        for cell in cells
        if not {"closed_announced", "protocol_error"} & cell.tick.deaths.keys()
    ]
    if not size or not alone:
        return None
    ticks = [cell.tick for cell in _distinct(alone)]
    beyond = sum(tick.bytes_received - tick.answered * size for tick in ticks)
    part = beyond / (unclaimed(alone) * size)
    return part if PART <= part <= 1.0 else None


def _in_message(cells: Sequence[LossCell]) -> int:
    """How many of the lost connections had received a part of an answer."""
    counted = 0
    for cell in cells:
        counted += cell.dead.in_message
        if cell.cause == "heartbeat_timeout" and not cell.dead.idle_ms:
            # An older run file has them in the tick.
            counted += cell.tick.spoke
    return counted


def _bytes_of_an_answer(rows: Ticks) -> float:
    """The mean size of an answer, by seconds without losses; 0 without such a second."""
    quiet = [tick for _, tick in rows if tick.answered and not tick.deaths]
    answered = sum(tick.answered for tick in quiet)
    if not answered:
        return 0.0
    return sum(tick.bytes_received for tick in quiet) / answered


def answered_within_us(tick: Tick, q: float) -> float:
    """A quantile (us) of the answered latencies. Newer histograms contain unanswered heartbeats
    too, as the longest.
    """
    recorded = tick.latency_us.count
    if not tick.answered or not recorded:
        return 0.0
    return tick.latency_us.quantile(q * min(1.0, tick.answered / recorded)) or 0.0
