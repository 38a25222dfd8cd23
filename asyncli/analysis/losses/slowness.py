"""Faults that ended no connection: no answers for a while, slow answers, TCP retransmissions,
silent connections.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, MISSED_S, PART, WORTH_TELLING
from asyncli.analysis.event_times import (
    EventTime,
    InTime,
    events_begun_in,
    events_of_silence,
    events_when_due,
    events_with_most,
    mark_before,
    times_of_events,
)
from asyncli.analysis.losses.own_sockets import (
    SegmentsAgain,
    all_sent_again,
    any_between,
    drops_by_listeners_s,
    sent_again,
)
from asyncli.analysis.losses.server_evidence import ServerEvidence, stopped_since
from asyncli.analysis.losses.table import began_s
from asyncli.analysis.losses.time_waits import ticks_that_met_time_wait
from asyncli.analysis.losses.unanswered import (
    Silence,
    answered_within_us,
    period_s,
    silences,
    usual_wait_s,
    why_silent,
)
from asyncli.analysis.totals import Totals
from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.findings import slowness as latency
from asyncli.model.metrics import TCP
from asyncli.model.plan import Plan
from asyncli.model.records import SENT_AGAIN_S, STOPPED, Finding, Phase
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run, Ticks, answered_between

# The span (s) of a share, and the fewest retransmissions that matter: clean networks lose less than
# one segment in a thousand.
_SPAN_S = 10.0
_FEWEST = 10


def stalls(run: Run) -> list[Finding]:
    """A finding of the longest stretch of two seconds or more without answers, while some waited
    and none was lost.

    Not near losses, whose diagnosis covers it, and not while the generator was stopped.
    """
    stretches = stretches_without_answers(run)
    if not stretches:
        return []
    longest = max(stretches, key=lambda stretch: stretch.to_s - stretch.from_s)
    from_s, to_s, _, waited = longest
    server = ServerEvidence(run)
    # A page that is polled in the last half second may be answered later (collect/sampler.py).
    evidence = server.about(from_s, to_s - 0.5, waited)
    unacknowledged = _sent_again_in(run, from_s, to_s) >= max(FEWEST, waited / 2)
    why = why_silent(server, evidence, waited, unacknowledged)
    every_s = period_s([stretch.from_s for stretch in stretches])
    words = (server.label, why, evidence.requests, len(stretches), evidence.cores, every_s)
    since_s, until_s = _between_answers(run, longest)
    times = times_of_events(run)
    return [
        latency.no_answers(
            since_s,
            until_s,
            waited,
            *words,
            page_silent=bool(evidence.silent),
            events=events_of_silence(run, from_s, times),
            mark=mark_before(run, from_s),
            others=_named_beside(run, times, longest, stretches),
        )
    ]


def _named_beside(
    run: Run, times: Sequence[EventTime], longest: Silence, stretches: Sequence[Silence]
) -> list[latency.PeriodWords]:
    """The first of the stretches beside the longest; those in the time of an event come before the
    rest, since these have other reasons. ``times``: those of all events.
    """
    in_events: list[latency.PeriodWords] = []
    outside: list[latency.PeriodWords] = []
    for stretch in stretches:
        if len(in_events) == latency.MOST_PERIODS:
            break
        if stretch == longest:
            continue
        since_s, until_s = _between_answers(run, stretch)
        events = events_of_silence(run, stretch.from_s, times)
        periods = in_events if events else outside
        periods.append({"from_s": since_s, "to_s": until_s, "events": events})
    named = [*in_events, *outside][: latency.MOST_PERIODS]
    return sorted(named, key=lambda period: period["from_s"])


def _between_answers(run: Run, stretch: Silence) -> tuple[float, float]:
    """When (s) the last answer before a silence came, and the next one, where that was recorded;
    else from the first to the last whole second without one.
    """
    since_s, until_s = stretch.from_s, stretch.to_s
    for t_s, tick in run.ticks_between(since_s - TICK_S / 2, until_s + 1.5 * TICK_S):
        instants = answered_between(t_s, tick)
        if instants is None or tick.asyncli_stood_still:
            continue
        first_s, last_s = instants
        if t_s < stretch.from_s + TICK_S / 2:
            since_s = min(since_s, last_s)
        elif t_s > stretch.to_s + TICK_S / 2:
            until_s = max(until_s, first_s)
    return since_s, until_s


def _sent_again_in(run: Run, from_s: float, to_s: float) -> int:
    """How many requests of ours nobody acknowledged in a silence, as far as that shows the path: a
    listen queue that is full acknowledges no connect either.
    """
    # TCP sends again at intervals that double, so the last answers may come as long after the
    # silence as it lasted.
    until_s = to_s + (to_s - from_s) + 2.0
    after = sent_again(run.ticks_between(from_s, until_s))
    drops_s = drops_by_listeners_s(run) or []
    if any_between(drops_s, from_s, to_s + MISSED_S):
        return after.heartbeats
    return after.heartbeats + after.connects


def stretches_without_answers(run: Run) -> list[Silence]:
    """The silences of two seconds or more near which no connection was lost."""
    rows = run.ticks_between(run.first_connect_s, run.stop_s)
    long_ones = []
    for stretch in silences(rows):
        if stretch.to_s - stretch.from_s > 1.5 and stretch.waited >= FEWEST:
            long_ones.append(stretch)
    if not long_ones:
        return []
    usual_s = usual_wait_s(rows)
    stretches = []
    for stretch in long_ones:
        until_s = stretch.to_s + 2.5
        if stretch.to_s == rows[-1][0]:
            # Heartbeats that waited when the drain began may be lost in it.
            until_s = math.inf
        lost = any(tick.lost for _, tick in run.ticks_between(stretch.from_s - 0.5, until_s))
        # With few connections, answers may be two ticks apart.
        if stretch.to_s - stretch.from_s >= 1.9 + usual_s and not lost:
            stretches.append(stretch)
    return stretches


def slow_answers(run: Run) -> list[Finding]:
    """A finding of three seconds or more in which a tenth of the heartbeats was late: percentiles
    of a whole night hide some minutes, and medians hide a stopped worker of several.

    Late is ten times the usual latency, and 0.1 s more than it. Not in the seconds near heartbeats
    that timed out or near seconds without answers, nor what asyncli sent late.
    """
    rows = run.ticks_between(run.first_connect_s, run.stop_s)
    usual_us = _usual_latency_us(rows)
    if usual_us is None:
        return []
    stretches = _slow_stretches(run, rows, late_us=max(10 * usual_us, usual_us + 100_000.0))
    if not stretches:
        return []
    longest = max(stretches, key=lambda stretch: stretch.to_s - stretch.from_s)
    from_s = longest.from_s
    to_s = longest.to_s
    median_us = longest.late_us.quantile(0.5) or 0.0
    server = ServerEvidence(run)
    words = (
        longest.late_us.count,
        longest.in_time,
        median_us / 1e6,
        usual_us / 1e6,
        server.label,
        server.about(from_s, to_s, 0).cores,
        len(stretches),
        round(sum(stretch.to_s - stretch.from_s for stretch in stretches)),
        period_s([stretch.from_s for stretch in stretches]),
    )
    in_time = events_when_due(run, longest.due)
    return [
        latency.answers_slow(from_s, to_s, *words, events=in_time.events, in_events=in_time.came)
    ]


def _usual_latency_us(rows: Ticks) -> float | None:
    """The median of the best tenth of the seconds; None without an answer."""
    answered = [tick for _, tick in rows if tick.answered]
    # Some thousand seconds represent a night.
    step = max(1, len(answered) // 2_000)
    medians = sorted(answered_within_us(tick, 0.5) for tick in answered[::step])
    if not medians:
        return None
    return medians[int(PART * len(medians))]


class SlowStretch(NamedTuple):
    """Seconds in which a tenth of the heartbeats was late: the latencies of these, how many others
    were answered in time, and how many of the late ones were due in the second that ends at each
    instant (s).
    """

    from_s: float
    to_s: float
    late_us: Histogram
    in_time: int
    due: list[tuple[float, int]]


def _slow_stretches(run: Run, rows: Ticks, late_us: float) -> list[SlowStretch]:
    """Three seconds or more in which a tenth of the heartbeats took longer than ``late_us``, and
    near which all was not silent.
    """
    late = [_above(late_us, tick.latency_us, tick.answered) for _, tick in rows]
    waiting = _late_at_each_second(rows, late, late_us)
    in_time = [tick.answered - times.count for (_, tick), times in zip(rows, late, strict=True)]
    near_silence = _seconds_near(_silent_spans(rows, run.plan.patience_s), rows)

    def is_slow(number: int) -> bool:
        if number in near_silence:
            return False
        return waiting[number] >= max(1.0, PART * (waiting[number] + in_time[number]))

    # Seconds in which nothing waited or was answered say nothing.
    telling = [number for number, count in enumerate(in_time) if count or waiting[number] > 0]
    stretches = []
    for slow, group in itertools.groupby(telling, is_slow):
        if not slow:
            continue
        seconds = list(group)
        from_s = rows[seconds[0]][0] - 1.0
        to_s = rows[seconds[-1]][0]
        part = slice(seconds[0], seconds[-1] + 1)
        due = _due(rows[part], late[part])
        stretch = SlowStretch(from_s, to_s, summed(late[part]), sum(in_time[part]), due)
        if to_s - from_s > 2.5 and stretch.late_us.count >= FEWEST:
            stretches.append(stretch)
    return stretches


def _due(rows: Ticks, late: Sequence[Histogram]) -> list[tuple[float, int]]:
    """The seconds, by their ends (s), in which the late heartbeats were due that were answered in
    these, and how many.
    """
    due = []
    for (t_s, _), times in zip(rows, late, strict=True):
        for key, count in times.counts.items():
            due.append((t_s - bounds(key)[0] / 1e6, count))
    return due


def _late_at_each_second(rows: Ticks, late: list[Histogram], late_us: float) -> list[int]:
    """How many heartbeats were late and due in each second, without those that asyncli sent late.

    A late heartbeat counts in each second from when it was due: its connection sends no other
    meanwhile.
    """
    sent_late = [_above(late_us / 2, tick.lateness_us, tick.sent) for _, tick in rows]
    changes = [0] * (len(rows) + 1)
    for sign, histograms in ((1, late), (-1, sent_late)):
        for number, times in enumerate(histograms):
            for key, count in times.counts.items():
                due = max(0, number - round(bounds(key)[0] / 1e6))
                changes[due] += sign * count
                changes[number + 1] -= sign * count
    return list(itertools.accumulate(changes))


def _silent_spans(rows: Ticks, patience_s: float) -> list[tuple[float, float]]:
    """The spans (s) in which heartbeats waited that timed out then, and the seconds in which some
    waited and none was answered.
    """
    spans = []
    for t_s, tick in rows:
        if "heartbeat_timeout" in tick.deaths:
            spans.append((began_s(t_s, patience_s), t_s))
        elif not tick.answered and tick.awaiting >= FEWEST:
            spans.append((t_s - 1.0, t_s))
    return spans


def _seconds_near(spans: Sequence[tuple[float, float]], rows: Ticks) -> set[int]:
    """The seconds so near a silence that its late answers, or the next ones due, are in them."""
    seconds: set[int] = set()
    for from_s, to_s in spans:
        first = bisect.bisect_left(rows, from_s - MISSED_S, key=operator.itemgetter(0))
        after = bisect.bisect_right(rows, to_s + MISSED_S, key=operator.itemgetter(0))
        seconds.update(range(first, after))
    return seconds


def _above(least_us: float, times: Histogram, of: int) -> Histogram:
    """The times above ``least_us`` among the ``of`` shortest: an unanswered heartbeat counts as the
    longest.
    """
    above = Histogram(least=times.least, greatest=times.greatest)
    if times.greatest <= least_us:
        return above
    for key, count in times.items():
        if bounds(key)[0] > least_us and of > 0:
            above.counts[key] = min(count, of)
        of -= count
    return above


def packets_lost(run: Run) -> list[Finding]:
    """A finding of ten seconds or more in which our own sockets sent 1 % or more of their requests
    and connects again; and, with an agent, one of as many retransmissions of the server's host,
    whose losses towards us only its counters show. Of connects that met sockets in TIME_WAIT one of
    its own: nothing dropped these.
    """
    if not math.isfinite(run.first_connect_s):
        return []
    # Also those that are seen only as the drain ends their connections.
    own = [sent for sent in all_sent_again(run) if sent.began_s < run.stop_s]
    met_time_wait_s = {t_s for t_s, _ in ticks_that_met_time_wait(run)}
    met = [sent for sent in own if sent.seen_s in met_time_wait_s]
    others = [sent for sent in own if sent.seen_s not in met_time_wait_s]
    in_all = sum(sent.segments for sent in own)
    findings = _sent_again_by(run, _own_spans(run, others), in_all=in_all)
    findings += _sent_again_by(run, _own_spans(run, met), in_all=in_all, met_time_wait=True)
    if run.sides.far is not None:
        findings += _sent_again_by(run, _spans_there(run))
    return findings


class _Span(NamedTuple):
    """Ten seconds: how many segments were sent again, how many others were sent, and which were
    sent again (of the server's host only the seconds).
    """

    again: int
    others: int
    parts: Sequence[SegmentsAgain]

    @property
    def is_worth_telling(self) -> bool:
        return self.again >= _FEWEST and self.share >= WORTH_TELLING

    @property
    def share(self) -> float:
        return self.again / max(1, self.again + self.others)


def _spans(run: Run) -> list[tuple[float, float]]:
    """The spans (s) with a tick: how many others there are is up to the instants, which may be a
    stranger's.
    """
    start_s = run.first_connect_s
    numbers = {
        int((t_s - start_s) / _SPAN_S) for t_s, _ in run.ticks if start_s <= t_s < run.stop_s
    }
    spans = []
    for number in sorted(numbers):
        low_s = start_s + number * _SPAN_S
        spans.append((low_s, min(run.stop_s, low_s + _SPAN_S)))
    return spans


def _own_spans(run: Run, parts: Sequence[SegmentsAgain]) -> list[_Span]:
    """Those of our own sockets, by when connects and requests began."""
    in_order = sorted(parts, key=operator.attrgetter("began_s"))
    spans = []
    for low_s, high_s in _spans(run):
        first = bisect.bisect_left(in_order, low_s, key=operator.attrgetter("began_s"))
        after = bisect.bisect_left(in_order, high_s, key=operator.attrgetter("began_s"))
        in_span = in_order[first:after]
        again = sum(part.segments for part in in_span)
        others = sum(tick.started + tick.sent for _, tick in run.ticks_between(low_s, high_s))
        spans.append(_Span(again, others, in_span))
    return spans


def _spans_there(run: Run) -> list[_Span]:
    """Those of the server's host, of which the seconds are not told apart."""
    spans = []
    for low_s, high_s in _spans(run):
        ticks = run.ticks_between(low_s, high_s)
        again, others = _sent_again_there(run, ticks, low_s, high_s)
        spans.append(_Span(again, others, [SegmentsAgain(t_s, t_s, 0) for t_s, _ in ticks]))
    return spans


def _sent_again_by(
    run: Run, spans: Sequence[_Span], *, in_all: int | None = None, met_time_wait: bool = False
) -> list[Finding]:
    """The finding of the retransmissions in these spans, of so many ``in_all``; without that, of
    those of the server's host. None if there are few.
    """
    telling = [span for span in spans if span.is_worth_telling]
    if not telling:
        return []
    parts = [part for span in telling for part in span.parts]
    is_own = in_all is not None
    in_time = _events_that_sent(run, parts) if is_own else InTime([], 0)
    bursts = _bursts([(part.began_s - TICK_S, part.seen_s) for part in parts])
    from_s, _ = bursts[0]
    _, to_s = bursts[-1]
    times = len(bursts)
    if times >= FEWEST:
        # So many are told by their number.
        bursts = []
    return [
        latency.packets_sent_again(
            is_own,
            sum(span.again for span in telling),
            from_s,
            to_s,
            max(span.share for span in telling),
            _SPAN_S,
            run.sides.one_network,
            events=in_time.events or events_begun_in(run, from_s),
            met_time_wait=met_time_wait,
            bursts=bursts,
            times=times,
            in_events=in_time.came,
            in_all=in_all,
        )
    ]


def _events_that_sent(run: Run, sent: Sequence[SegmentsAgain]) -> InTime:
    """The events to which most of these segments belong: each to the event that its client came
    back from, or else to those in whose time its connect or request began.
    """
    begun: Counter[float] = Counter()
    own: Counter[int] = Counter()
    for part in sent:
        if part.event is None:
            begun[part.began_s] += part.segments
        else:
            own[part.event] += part.segments
    return events_with_most(run, sorted(begun.items()), own)


def _bursts(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """These spans (s) as bursts: those are apart between which there was none for as long as an
    event settles.
    """
    bursts: list[tuple[float, float]] = []
    for from_s, to_s in sorted(spans):
        if bursts and from_s - bursts[-1][1] < EVENT_SETTLES_S:
            bursts[-1] = (bursts[-1][0], max(to_s, bursts[-1][1]))
        else:
            bursts.append((from_s, to_s))
    return bursts


def _sent_again_there(run: Run, ticks: Ticks, low: float, high: float) -> tuple[int, int]:
    """Segments that the server's host sent again, no more than our answers that were late enough
    for it; and those it sent.

    By RetransSegs and OutSegs of /proc/net/snmp, for all programs of a network namespace (RFC
    4022), less the duplicates that the peer reports (TCPDSACKRecv, RFC 2883): probes of a busy end,
    and no loss.
    """

    def rise(name: str) -> float:
        counter = run.series(f"{TCP}{name}")
        return (counter.at(high) or 0.0) - (counter.at(low) or 0.0)

    again = max(0, round(rise("RetransSegs") - rise("TCPDSACKRecv")))
    late = 0
    for _, tick in ticks:
        late += _above(SENT_AGAIN_S * 1e6, tick.latency_us, tick.answered).count
    return min(late, again), max(0, round(rise("OutSegs")))


class Unheard(msgspec.Struct, frozen=True):
    """``count`` held connections were last answered before ``since_s`` (run clock), ``ago_s``
    before the end. ``fault``: the first unanswered heartbeat was sent then; else the hold began.
    ``usual_gap_s``: the mean time between two messages of a listening connection, if that shows the
    silence. ``server_stopped``: a signal or a debugger had stopped the server since then, to the
    end.
    """

    count: int
    since_s: float
    ago_s: float
    fault: bool
    usual_gap_s: float | None = None
    server_stopped: bool = False


def unheard(run: Run, totals: Totals) -> Unheard | None:
    """Held connections without an answer since a fault, or since the hold began; None if there are
    none, or no drain began.
    """
    hold = run.phase("hold")
    drain = run.phase("drain")
    if hold is None or drain is None or _stopped_in_ramp(run):
        return None
    stopped = _since_stopped(run, totals, hold, drain.start_s)
    if stopped is not None:
        return stopped
    if run.plan.listens:
        fell_silent = _fell_silent(run, totals, hold, drain.start_s)
        if fell_silent is not None:
            return fell_silent
    since_s = max(hold.start_s, _first_fault_s(run, hold, drain.start_s))
    count = _not_heard_for(totals, drain.start_s - since_s)
    if not count:
        return None
    return Unheard(count, since_s, drain.start_s - since_s, fault=since_s > hold.start_s)


def _since_stopped(run: Run, totals: Totals, hold: Phase, end_s: float) -> Unheard | None:
    """Those that had no answer since a signal or a debugger stopped the server, to the end."""
    stopped_s = stopped_since(run, end_s)
    if stopped_s is None:
        return None
    since_s = max(hold.start_s, stopped_s)
    count = _not_heard_for(totals, end_s - since_s)
    if not count:
        return None
    return Unheard(count, since_s, end_s - since_s, fault=False, server_stopped=True)


def _not_heard_for(totals: Totals, for_s: float) -> int:
    """The connections that were held and silent at the hold's end for so long (s)."""
    # Buckets are 1/64 of their value wide; one that is partly older counts.
    heard_ms = totals.whole.heard_ms.counts
    return sum(count for key, count in heard_ms.items() if bounds(key)[1] >= for_s * 1e3)


def _stopped_in_ramp(run: Run) -> bool:
    """Whether the user stopped it in the ramp, and so asked for no hold."""
    stops = [finding for finding in run.findings if finding.code == STOPPED]
    return any(finding.fields.get("phase") == "ramp" for finding in stops)


def _first_fault_s(run: Run, hold: Phase, end_s: float) -> float:
    """When the first heartbeat was sent that was not answered; when the hold began without one."""
    faults = [
        began_s(t_s, run.plan.patience_s)
        for t_s, tick in run.ticks
        if "heartbeat_timeout" in tick.deaths
    ]
    if not faults:
        return hold.start_s
    answered_s = max((t_s for t_s, tick in run.ticks if tick.answered), default=hold.start_s)
    # Silence that lasted to the end, for a whole tick at least, counts from its beginning.
    if max(faults) >= answered_s - 1.0 and answered_s <= end_s - 1.0:
        return max(min(faults), answered_s)
    return min(faults)


def _fell_silent(run: Run, totals: Totals, hold: Phase, end_s: float) -> Unheard | None:
    """Listening connections that were silent at the hold's end for ten times as long as a message
    usually takes to come.

    By chance one in 22,000 is: the time to the next of messages that come at random is exponential,
    exp(-10).
    """
    gap_s = _usual_gap_s(run.ticks_between(hold.start_s, end_s), hold.start_s)
    if gap_s is None:
        return None
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


def _usual_gap_s(rows: Ticks, start_s: float) -> float | None:
    """The mean time between two messages of a connection; None if none came."""
    received = [
        (t_s, tick.protocol.messages)
        for t_s, tick in rows
        if tick.protocol is not None and tick.protocol.messages
    ]
    if not received:
        return None
    # As usual is the half in which more came: in the other some may have been silent already.
    last_s = received[-1][0]
    middle_s = (start_s + last_s) / 2
    gaps = []
    for from_s, to_s in ((start_s, middle_s), (middle_s, last_s)):
        held_s = sum(tick.held for t_s, tick in rows if from_s < t_s <= to_s)
        messages = sum(count for t_s, count in received if from_s < t_s <= to_s)
        if messages:
            gaps.append(held_s / messages)
    return min(gaps)


def not_heard(
    seen: Unheard | None, totals: Totals, plan: Plan, *, is_ended_by_asyncli: bool = False
) -> list[Finding]:
    if seen is None:
        return []
    if seen.usual_gap_s is not None:
        return [
            latency.fell_silent(seen.count, totals.held, seen.since_s, seen.ago_s, seen.usual_gap_s)
        ]
    return [
        latency.not_heard(
            seen.count,
            totals.held,
            seen.since_s,
            seen.ago_s,
            fault=seen.fault,
            enough_s=plan.heard_within_s,
            listens=plan.listens,
            server_stopped=seen.server_stopped,
            ended_by_asyncli=is_ended_by_asyncli,
        )
    ]
