"""Faults that ended no connection: no answers for a while, slow answers, TCP retransmissions,
silent connections.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from asyncli.analysis.constants import FEWEST, MISSED_S, PART, WORTH_TELLING
from asyncli.analysis.losses.own_sockets import sent_again
from asyncli.analysis.losses.server_evidence import ServerEvidence
from asyncli.analysis.losses.table import began_s
from asyncli.analysis.losses.unanswered import answered_within_us, period_s, silences, why_silent
from asyncli.analysis.totals import Totals
from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.findings import slowness as latency
from asyncli.model.metrics import TCP
from asyncli.model.plan import Plan
from asyncli.model.records import SENT_AGAIN_S, STOPPED, Finding, Phase
from asyncli.model.run import Run, Ticks

# The span (s) of a share, and the fewest retransmissions that matter: clean networks lose less than
# one segment in a thousand.
_SPAN_S, _FEWEST = 10.0, 10


def stalls(run: Run) -> list[Finding]:
    """A finding of the longest stretch of two seconds or more without answers, while some waited
    and none was lost.

    Not near losses, whose diagnosis covers it, and not while the generator was stopped.
    """
    rows = run.ticks_between(run.first_connect_s, run.stop_s)
    if not (
        quiet := [
            one for one in silences(rows) if one.to_s - one.from_s > 1.5 and one.waited >= FEWEST
        ]
    ):
        return []
    # The fastest answers take so long: that much silence is normal.
    usual_s = (
        summed([tick.latency_us for _, tick in rows if tick.answered]).quantile(PART) or 0.0
    ) / 1e6
    found = []
    for one in quiet:
        # Heartbeats that waited when the drain began may be lost in it.
        until_s = math.inf if one.to_s == rows[-1][0] else one.to_s + 2.5
        lost = any(tick.lost for _, tick in run.ticks_between(one.from_s - 0.5, until_s))
        # With few connections, answers may be two ticks apart.
        if one.to_s - one.from_s >= 1.9 + usual_s and not lost:
            found.append(one)
    if not found:
        return []
    from_s, to_s, _, waited = max(found, key=lambda one: one.to_s - one.from_s)
    server = ServerEvidence(run)
    # A page that is polled in the last half second may be answered later (collect/sampler.py).
    evidence = server.about(from_s, to_s - 0.5, waited)
    # TCP sends again at intervals that double, so the last answers may come as long after the
    # silence as it lasted.
    after = sent_again(run.ticks_between(from_s, to_s + (to_s - from_s) + 2.0))
    why = why_silent(
        server, evidence, waited, after.heartbeats + after.connects >= max(FEWEST, waited / 2)
    )
    every_s = period_s([one.from_s for one in found])
    words = (server.label, why, evidence.requests, len(found), evidence.cores, every_s)
    return [latency.no_answers(from_s, to_s, waited, *words)]


def slow_answers(run: Run) -> list[Finding]:
    """A finding of three seconds or more in which a tenth of the heartbeats was late: percentiles
    of a whole night hide some minutes, and medians hide a stopped worker of several.

    Late is ten times the usual latency, and 0.1 s more than it. Not near heartbeats that timed out
    or seconds without answers, nor what asyncli sent late.
    """
    rows = run.ticks_between(run.first_connect_s, run.stop_s)
    answered = [tick for _, tick in rows if tick.answered]
    # Some thousand seconds represent a night.
    medians = sorted(
        answered_within_us(tick, 0.5) for tick in answered[:: max(1, len(answered) // 2_000)]
    )
    if not medians:
        return []
    # The median of the best tenth of the seconds.
    usual_us = medians[int(PART * len(medians))]
    late_us = max(10 * usual_us, usual_us + 100_000.0)
    # A late heartbeat counts in each second from when it was due: its connection sends no other
    # meanwhile.
    late = [_above(late_us, tick.latency_us, tick.answered) for _, tick in rows]
    sent_late = [_above(late_us / 2, tick.lateness_us, tick.sent) for _, tick in rows]
    changes = [0] * (len(rows) + 1)
    for sign, histograms in ((1, late), (-1, sent_late)):
        for number, times in enumerate(histograms):
            for key, count in times.counts.items():
                changes[max(0, number - round(bounds(key)[0] / 1e6))] += sign * count
                changes[number + 1] -= sign * count
    waiting = list(itertools.accumulate(changes))
    in_time = [tick.answered - times.count for (_, tick), times in zip(rows, late, strict=True)]

    def is_slow(number: int) -> bool:
        return waiting[number] >= max(1.0, PART * (waiting[number] + in_time[number]))

    found = []
    # Seconds in which nothing waited or was answered say nothing.
    told = (number for number, count in enumerate(in_time) if count or waiting[number] > 0)
    for slow in (list(group) for slows, group in itertools.groupby(told, is_slow) if slows):
        from_s, to_s, part = rows[slow[0]][0] - 1.0, rows[slow[-1]][0], slice(slow[0], slow[-1] + 1)
        took, others = summed(late[part]), sum(in_time[part])
        around = run.ticks_between(from_s - 2.0, to_s + 3.0)
        silent = any(
            "heartbeat_timeout" in one.deaths or (not one.answered and one.awaiting >= FEWEST)
            for _, one in around
        )
        if to_s - from_s > 2.5 and took.count >= FEWEST and not silent:
            found.append((from_s, to_s, took, others))
    if not found:
        return []
    from_s, to_s, took, others = max(found, key=lambda one: one[1] - one[0])
    median_us, server = took.quantile(0.5) or 0.0, ServerEvidence(run)
    cores, all_s = (
        server.about(from_s, to_s, 0).cores,
        round(sum(to_s - from_s for from_s, to_s, *_ in found)),
    )
    every_s = period_s([one[0] for one in found])
    words = (
        took.count,
        others,
        median_us / 1e6,
        usual_us / 1e6,
        server.label,
        cores,
        len(found),
        all_s,
        every_s,
    )
    return [latency.answers_slow(from_s, to_s, *words)]


def _above(least_us: float, times: Histogram, of: int) -> Histogram:
    """The times above ``least_us`` among the ``of`` shortest: an unanswered heartbeat counts as the
    longest.
    """
    found = Histogram(least=times.least, greatest=times.greatest)
    for key, count in times.items() if times.greatest > least_us else ():
        if bounds(key)[0] > least_us and of > 0:
            found.counts[key] = min(count, of)
        of -= count
    return found


def packets_lost(run: Run) -> list[Finding]:
    """A finding of ten seconds or more in which our own sockets sent 1 % or more of their requests
    and connects again; and, with an agent, one of as many retransmissions of the server's host,
    whose losses towards us only its counters show.
    """
    start, stop = run.first_connect_s, run.stop_s
    if not math.isfinite(start):
        return []
    found = []
    # Spans with a tick: how many others there are is up to the instants, which may be a stranger's.
    spans = sorted({int((t_s - start) / _SPAN_S) for t_s, _ in run.ticks if start <= t_s < stop})
    for here in (True, False):
        worst, count, instants = 0.0, 0, list[float]()
        for number in spans:
            low, high = start + number * _SPAN_S, min(stop, start + (number + 1) * _SPAN_S)
            ticks = run.ticks_between(low, high)
            again, sent = _ours_again(ticks) if here else _theirs_again(run, ticks, low, high)
            if again >= _FEWEST and again >= WORTH_TELLING * (again + sent):
                worst, count = max(worst, again / (again + sent)), count + again
                instants += [
                    t_s
                    for t_s, tick in ticks
                    if not here or (tick.tcp is not None and tick.tcp.segments)
                ]
        if count:
            network = run.sides.one_network
            found.append(
                latency.packets_sent_again(
                    here, count, instants[0] - 1.0, instants[-1], worst, _SPAN_S, network
                )
            )
    return found


def _ours_again(ticks: Ticks) -> tuple[int, int]:
    """Segments that our own sockets sent again, and how many connects and requests they sent."""
    return sent_again(ticks).segments, sum(tick.started + tick.sent for _, tick in ticks)


def _theirs_again(run: Run, ticks: Ticks, low: float, high: float) -> tuple[int, int]:
    """Segments that the server's host sent again, no more than our answers that were late enough
    for it; and those it sent.

    By RetransSegs and OutSegs of /proc/net/snmp, for all programs of a network namespace (RFC
    4022), less the duplicates that the peer reports (TCPDSACKRecv, RFC 2883): probes of a busy end,
    and no loss.
    """
    if run.sides.far is None:
        return 0, 0
    counters = (run.series(f"{TCP}{name}") for name in ("RetransSegs", "OutSegs", "TCPDSACKRecv"))
    again, sent, known = (
        (counter.at(high) or 0.0) - (counter.at(low) or 0.0) for counter in counters
    )
    late = sum(
        _above(SENT_AGAIN_S * 1e6, tick.latency_us, tick.answered).count for _, tick in ticks
    )
    return min(late, max(0, round(again - known))), max(0, round(sent))


class Unheard(msgspec.Struct, frozen=True):
    """``count`` held connections were last answered before ``since_s`` (run clock), ``ago_s``
    before the end. ``fault``: the first unanswered heartbeat was sent then; else the hold began.
    ``usual_gap_s``: the mean time between two messages of a listening connection, if that shows the
    silence.
    """

    count: int
    since_s: float
    ago_s: float
    fault: bool
    usual_gap_s: float | None = None


def unheard(run: Run, totals: Totals) -> Unheard | None:
    """Held connections without an answer since a fault, or since the hold began; None if there are
    none, or no drain began.
    """
    hold, drain = run.phase("hold"), run.phase("drain")
    # Stopped in the ramp, the user asked for no hold.
    if (
        hold is None
        or drain is None
        or any(one.code == STOPPED and one.fields.get("phase") == "ramp" for one in run.findings)
    ):
        return None
    if run.plan.listens and (quiet := _fell_silent(run, totals, hold, drain.start_s)) is not None:
        return quiet
    faults = [
        began_s(t_s, run.plan.patience_s)
        for t_s, tick in run.ticks
        if "heartbeat_timeout" in tick.deaths
    ]
    # Silence that lasted to the end, for a whole tick at least, counts from its beginning.
    answered_s = max((t_s for t_s, tick in run.ticks if tick.answered), default=hold.start_s)
    silent = any(one >= answered_s - 1.0 for one in faults) and answered_s <= drain.start_s - 1.0
    since_s = max(
        hold.start_s, min(faults, default=hold.start_s), answered_s if silent else hold.start_s
    )
    ago_s = drain.start_s - since_s
    # Buckets are 1/64 of their value wide; one that is partly older counts.
    count = sum(
        n for key, n in totals.whole.heard_ms.counts.items() if bounds(key)[1] >= ago_s * 1e3
    )
    return Unheard(count, since_s, ago_s, since_s > hold.start_s) if count else None


def _fell_silent(run: Run, totals: Totals, hold: Phase, end_s: float) -> Unheard | None:
    """Listening connections that were silent at the hold's end for ten times as long as a message
    usually takes to come.

    By chance one in 22,000 is: the time to the next of messages that come at random is exponential,
    exp(-10).
    """
    rows = run.ticks_between(hold.start_s, end_s)
    received = [
        (t_s, tick.protocol.messages)
        for t_s, tick in rows
        if tick.protocol is not None and tick.protocol.messages
    ]
    if not received:
        return None
    # As usual is the half in which more came: in the other some may have been silent already.
    middle_s = (hold.start_s + received[-1][0]) / 2
    gaps = []
    for from_s, to_s in ((hold.start_s, middle_s), (middle_s, received[-1][0])):
        held_s = sum(tick.held for t_s, tick in rows if from_s < t_s <= to_s)
        messages = sum(count for t_s, count in received if from_s < t_s <= to_s)
        if messages:
            gaps.append(held_s / messages)
    gap_s = min(gaps)
    silent_s = max(gap_s / PART, MISSED_S)
    silent = {
        key: count
        for key, count in totals.whole.heard_ms.counts.items()
        if bounds(key)[0] >= silent_s * 1e3
    }
    count = sum(silent.values())
    if count < FEWEST or silent_s > end_s - hold.start_s:
        return None
    ago_s = bounds(min(silent))[0] / 1e3
    return Unheard(count, end_s - ago_s, ago_s, fault=False, usual_gap_s=gap_s)


def not_heard(seen: Unheard | None, totals: Totals, plan: Plan) -> list[Finding]:
    if seen is None:
        return []
    if seen.usual_gap_s is not None:
        return [
            latency.fell_silent(seen.count, totals.held, seen.since_s, seen.ago_s, seen.usual_gap_s)
        ]
    since = (seen.since_s, seen.ago_s, seen.fault)
    return [latency.not_heard(seen.count, totals.held, *since, plan.heard_within_s, plan.listens)]
