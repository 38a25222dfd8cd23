"""What a recorded run shows of how a storm on its server goes: by the storms that it had, or by its
ramp. Pure.

A ramp or a storm that the server and asyncli kept up with shows only that they are at least as
fast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from asyncli.analysis.handshakes import refused_with_error
from asyncli.analysis.in_vain import answer_timeout_s, in_vain
from asyncli.analysis.standstill import stood_still_s
from asyncli.analysis.storm_bounds import (
    MARGINS,
    StormCpu,
    connected_late,
    cpu_use,
    dropped_between,
    has_come_back,
    nine_of_ten_s,
    took_long,
    waited_for_server_s,
    workers_of,
)
from asyncli.analysis.storm_fit import (
    SEARCH,
    SHARES,
    MeasuredStorm,
    Seen,
    at_pace,
    explain,
    times_s,
    usual_per_s,
)
from asyncli.core.histogram import summed
from asyncli.core.storm import SYNS_EACH_SECOND, Laws
from asyncli.model import metrics
from asyncli.model.planned_events import (
    DEFAULT_RECONNECT,
    choices_of,
    policy_words,
    reconnect_of,
)
from asyncli.model.records import EventCounts, Tick, handshakes_in_vain
from asyncli.model.run import Run


class UnexplainedStorm(msgspec.Struct, frozen=True):
    """A storm of the run that no laws explain: its event, when it began, and after how long all
    were back (s).
    """

    event: int
    at_s: float
    all_s: float


class SlowComeback(msgspec.Struct, frozen=True):
    """An event of the run with whose comebacks the server did not keep up: when it began (s), how
    many it ended or silenced, how many of them were not back at the hold's end, how many connects
    failed, how many got no answer, and how many answers before they were back were errors; and for
    how long (s) the server stood still meanwhile. ``were_accepted``: the server had accepted those
    that got no answer. Handshakes that an error refused are among ``errors`` alone. ``refused``: of
    those that failed, nothing listened where they connected.
    """

    event: int
    at_s: float
    ended: int
    not_back: int
    failed: int
    unanswered: int
    errors: int
    stood_still_s: float = 0.0
    were_accepted: bool = False
    refused: int = 0


class Pace(msgspec.Struct, frozen=True):
    """What the run shows. ``explains``: laws that explain it, the best first. ``by_event``: the
    number of the storm that shows it, and its ``policy``; None: the ramp does.

    ``is_least``: the server kept up, so that it may be faster than ``per_s`` without bound.
    ``tester_per_s``: how fast asyncli connected where it was late; None: it was not.
    ``tester_busy``: its processes were busy, so that the pace may be theirs; ``host_busy``: all
    CPUs were, which asyncli and the server share, and ``others`` is the share that other programs
    had of them. ``error``: by how much (a share) a measured storm
    may differ from the laws. ``unexplained``: storms of the run that no laws explain, which show
    only a least pace. ``slow_comebacks``: events with which it did not keep up, and which show no
    pace; a least pace bounds no storm then.
    """

    explains: tuple[Laws, ...]
    per_s: float
    by_event: int | None
    policy: str | None
    is_least: bool
    tester_per_s: float | None
    tester_busy: bool
    host_busy: bool
    others: float
    error: float
    backlog: int
    connections: int
    unexplained: tuple[UnexplainedStorm, ...] = ()
    slow_comebacks: tuple[SlowComeback, ...] = ()


class Unmeasured(msgspec.Struct, frozen=True):
    """Why the run shows no pace."""

    why: str


def known_backlog(run: Run) -> int | None:
    """The backlog of the server's listening sockets, as its kernel had it, or as the check of
    nginx's configuration; None where neither is known.
    """
    sampled = run.series(metrics.SERVER_LISTENERS_BACKLOG).last()
    if sampled is not None:
        return round(sampled)
    for check in run.checks:
        if check.code == "nginx_backlog" and check.have is not None:
            return round(check.have)
    return None


def measured_pace(run: Run, backlog: int) -> Pace | Unmeasured:
    """What ``run`` shows; ``backlog``: of the server's listening socket."""
    base = Laws(
        accept_per_s=math.inf,
        answer_per_s=math.inf,
        backlog=backlog,
        connect_per_s=workers_of(run) / MARGINS.connect_each_s,
        end_each_s=MARGINS.end_each_s / workers_of(run),
        connect_timeout_s=run.plan.connect_timeout_s,
        answer_timeout_s=answer_timeout_s(run.plan),
        syns_each_second=syns_each_second(run.environment),
    )
    shown = [by_ramp(run, base)]
    for number in sorted(run.event_windows):
        shown.append(by_event(run, number, base))
    paces = [pace for pace in shown if isinstance(pace, Pace)]
    if not paces:
        return shown[0]
    unexplained = tuple(storm for pace in paces for storm in pace.unexplained)
    best = _best(paces)
    slow = _slow_comebacks(run, {pace.by_event for pace in paces if not pace.is_least})
    return msgspec.structs.replace(best, unexplained=unexplained, slow_comebacks=slow)


def _best(paces: Sequence[Pace]) -> Pace:
    """The pace of the run, of those that its parts show."""
    fastest = max(paces, key=lambda pace: pace.per_s)
    bounded = []
    slower = []
    for pace in paces:
        if pace.is_least:
            continue
        if pace.per_s > MARGINS.contradicted * fastest.per_s:
            bounded.append(pace)
        else:
            # It was another bound, since the server was seen to be faster; but it may come again.
            slower.append(pace.explains[0])
    if not bounded:
        return msgspec.structs.replace(fastest, explains=(*fastest.explains, *slower))
    # A storm rather than a ramp; of storms the one that the laws explain best.
    return min(bounded, key=lambda pace: (pace.by_event is None, pace.error))


def syns_each_second(environment: Mapping[str, object]) -> int:
    """How often this run's clients send a SYN again after one second, before each wait doubles."""
    sysctls = environment.get("sysctls")
    if isinstance(sysctls, Mapping):
        linear = sysctls.get("net.ipv4.tcp_syn_linear_timeouts")
        if isinstance(linear, str) and linear.isdigit():
            return int(linear) + 1
    major, _, rest = str(environment.get("kernel") or "").partition(".")
    minor, _, _ = rest.partition(".")
    if not major.isdigit() or not minor.isdigit():
        return SYNS_EACH_SECOND
    # The sysctl came with Linux 6.5.
    if (int(major), int(minor)) < (6, 5):
        return 1
    return SYNS_EACH_SECOND


# -- by a storm


def by_event(run: Run, number: int, base: Laws) -> Pace | Unmeasured:
    """What event ``number`` shows, if it ended connections by itself."""
    counts = run.counts_of_event(number)
    start_s = run.event_windows[number].start_s
    why = _why_unmeasured(run, number, counts)
    if why is not None:
        return Unmeasured(why)
    measured = _measured_storm(run, number, counts)
    back_s = times_s(counts.back_ms)
    all_s = measured.seen.back_s[-1] or math.inf
    cpu = cpu_use(run, start_s, start_s + all_s)
    tester_per_s = _tester_per_s(measured, counts, base)
    if tester_per_s is not None:
        base = msgspec.structs.replace(base, connect_per_s=tester_per_s)
    waited_s = waited_for_server_s(counts)
    is_least = not took_long(waited_s, all_s) and not measured.seen.dropped
    if is_least:
        least_per_s = max(_mean_per_s(measured), usual_per_s(back_s, MARGINS.lasts_s))
        laws = _least_laws(measured, base, least_per_s)
        misses = _later_s(measured, laws) / all_s
        explains: tuple[Laws, ...] = (laws,)
        error = max(_later(measured, laws), MARGINS.error)
    else:
        explanation = explain(measured, base, counts.back_ms.count / all_s)
        misses = explanation.loss
        explains = explanation.laws
        error = max(_error(measured, explains[0]), misses, MARGINS.error)
    unexplained: tuple[UnexplainedStorm, ...] = ()
    if misses > MARGINS.unexplained:
        is_least = True
        unexplained = (UnexplainedStorm(number, start_s, all_s),)
        laws = _least_laws(measured, base, _mean_per_s(measured))
        explains = (laws,)
        error = max(_later(measured, laws), MARGINS.error)
    is_late = tester_per_s is not None
    explains = _with_busy_cpus(explains, cpu, late=is_late, is_least=is_least)
    return Pace(
        explains=explains,
        per_s=min(explains[0].accept_per_s, explains[0].answer_per_s),
        by_event=number,
        policy=policy_words(measured.policy),
        is_least=is_least,
        tester_per_s=tester_per_s,
        tester_busy=cpu.tester_busy or tester_per_s is not None,
        host_busy=cpu.host_busy,
        others=cpu.others if cpu.host_busy else 0.0,
        error=error,
        backlog=base.backlog,
        connections=len(measured.numbers),
        unexplained=unexplained,
    )


def _why_unmeasured(run: Run, number: int, counts: EventCounts) -> str | None:
    """Why the comebacks of an event show no pace of the server; None if they do."""
    event = run.plan.event_numbered(number)
    if event is None or event.do not in ("drop", "storm"):
        return "it has no storm"
    if not has_come_back(counts):
        return "too few of its storm came back"
    if counts.error_answers:
        # Until it served them, the server's pace decided nothing.
        return "errors answered clients of its storm"
    start_s = run.event_windows[number].start_s
    if stood_still_s(run, start_s, start_s + counts.back_ms.greatest / 1e3):
        return "the server stood still while clients of its storm waited"
    return None


def _slow_comebacks(run: Run, explained: Collection[int | None]) -> tuple[SlowComeback, ...]:
    """The events with which the server did not keep up, without those that show its pace."""
    slow = []
    for number, window in sorted(run.event_windows.items()):
        counts = run.counts_of_event(number)
        not_back = max(0, counts.away)
        handshakes = handshakes_in_vain(counts.failures)
        unanswered = counts.phantoms + handshakes
        errors = sum(counts.error_answers.values())
        # Those that an answer with an error refused are among the errors.
        failed = sum(counts.failures.values()) - handshakes
        failed -= refused_with_error(run.plan.protocol, counts.failures, errors)
        if number in explained or not counts.attempts:
            continue
        end_s = run.stop_s
        if not not_back:
            end_s = window.start_s + counts.back_ms.greatest / 1e3
        still_s = stood_still_s(run, window.start_s, end_s)
        if not (not_back or failed or unanswered or errors or still_s):
            continue
        waited = in_vain(run, window, counts)
        slow.append(
            SlowComeback(
                event=number,
                at_s=window.start_s,
                ended=counts.ended,
                not_back=not_back,
                failed=failed,
                unanswered=unanswered,
                errors=errors,
                stood_still_s=still_s,
                were_accepted=waited is not None and waited.received == "accepted",
                refused=counts.failures.get("refused", 0),
            )
        )
    return tuple(slow)


def _mean_per_s(measured: MeasuredStorm) -> float:
    """The mean pace of a storm's answers since its first connects were due."""
    last_s = measured.seen.back_s[-1] or math.inf
    lasted_s = max(MARGINS.grain_s, last_s - measured.policy.soonest_s)
    return len(measured.numbers) / lasted_s


def _least_laws(measured: MeasuredStorm, base: Laws, per_s: float) -> Laws:
    """The laws of a server of this pace, which accepts no faster than it must for a listen queue
    that was never full.
    """
    for ratio in MARGINS.least_ratios:
        laws = at_pace(base, per_s, ratio)
        if measured.seen.dropped != 0 or not measured.simulated(laws).dropped:
            return laws
    return laws


def _later_s(measured: MeasuredStorm, laws: Laws) -> float:
    """By how much the measured times of half of the clients and more are later than simulated."""
    later_s = 0.0
    for seen_s, at_s in _times_of_most(measured, laws):
        later_s = max(later_s, seen_s - at_s)
    return later_s


def _later(measured: MeasuredStorm, laws: Laws) -> float:
    """The same as a share of the simulated times: a bound has to hold for its own storm."""
    later = 0.0
    for seen_s, at_s in _times_of_most(measured, laws):
        later = max(later, seen_s / at_s - 1)
    return later


def _times_of_most(measured: MeasuredStorm, laws: Laws) -> list[tuple[float, float]]:
    """The times (s) of half of the clients and more: as they were seen, and simulated."""
    seen = measured.seen.back_s
    simulated = measured.simulated(laws).back_s
    times = []
    for share, seen_s, at_s in zip(SHARES, seen, simulated, strict=True):
        if share >= MARGINS.half and seen_s and at_s:
            times.append((seen_s, at_s))
    return times


def _measured_storm(run: Run, number: int, counts: EventCounts) -> MeasuredStorm:
    plan = run.plan
    chosen = choices_of(plan.planned_events, plan.seed, plan.connections)[number]
    window = run.event_windows[number]
    back_s = times_s(counts.back_ms)
    return MeasuredStorm(
        policy=reconnect_of(run.plan.reconnect or DEFAULT_RECONNECT),
        seed=run.plan.seed,
        event=number,
        numbers=tuple(row for row in range(run.plan.connections) if row in chosen),
        seen=Seen(
            back_s=tuple(back_s[math.ceil(part * len(back_s)) - 1] for part in SHARES),
            usual_per_s=usual_per_s(back_s),
            dropped=dropped_between(run, window.start_s, window.end_s or run.end_s),
        ),
    )


def _tester_per_s(measured: MeasuredStorm, counts: EventCounts, base: Laws) -> float | None:
    """How fast asyncli connected, if it was late; None if it was not."""
    all_s = measured.seen.back_s[-1] or math.inf
    latest_s = counts.lateness_us.greatest / 1e6
    if not connected_late(latest_s, all_s):
        return None
    if measured.policy.how != "now":
        return usual_per_s(times_s(counts.back_ms), MARGINS.lasts_s)
    # It went on ending connections meanwhile. Where the server was slower, the last connect was
    # late by what all connects took.
    waited_s = waited_for_server_s(counts)
    if measured.seen.dropped or took_long(waited_s, all_s):
        return counts.ended / latest_s
    return 1 / max(1e-6, all_s / counts.ended - base.end_each_s)


def _error(measured: MeasuredStorm, laws: Laws) -> float:
    """By how much the simulated time differs after which 99 % were back."""
    at = SHARES.index(0.99)
    measured_s = measured.seen.back_s[at]
    simulated_s = measured.simulated(laws).back_s[at]
    if simulated_s is None or not measured_s:
        return math.inf
    return abs(simulated_s - measured_s) / measured_s


# -- by the ramp


def by_ramp(run: Run, base: Laws) -> Pace | Unmeasured:
    """What the ramp shows: the most first answers in a second; and where the server was slower than
    asyncli, but its queue never full, its pace.
    """
    ramp = run.phase("ramp")
    ticks = _ramp_ticks(run)
    if ramp is None or not ticks:
        return Unmeasured("it has no ramp")
    most_per_s = _most_answers(ticks)
    if not most_per_s:
        return Unmeasured("its ramp had no answers")
    latest_s = max(tick.ramp_lateness_us.greatest for _, tick in ticks) / 1e6
    waited_s = nine_of_ten_s(summed([tick.connect_us for _, tick in ticks]))
    waited_s += nine_of_ten_s(summed([tick.latency_us for _, tick in ticks]))
    schedule = run.plan.schedule
    last_due_s = schedule.due_s(schedule.batches - 1) + max(0.0, latest_s)
    last_tick_s, _ = ticks[-1]
    took_s = max(0.001, min(last_tick_s - run.first_connect_s, last_due_s + waited_s))
    mean_per_s = run.plan.connections / took_s
    has_waited = took_long(waited_s, took_s)
    dropped = dropped_between(run, ramp.start_s, last_tick_s)
    is_least = not has_waited or dropped != 0
    tester_per_s = None
    # With a full queue the server was at times slower than asyncli, which waited for it.
    if not has_waited and dropped == 0 and connected_late(latest_s, took_s):
        tester_per_s = mean_per_s
        base = msgspec.structs.replace(base, connect_per_s=tester_per_s)
    cpu = cpu_use(run, ramp.start_s, ramp.start_s + took_s)
    if is_least:
        per_s = max(most_per_s, mean_per_s)
        explains = _storms_at(base, per_s, (1.0,))
    else:
        # The server may accept faster than it answers.
        per_s = mean_per_s
        explains = _storms_at(base, per_s, SEARCH.ratios)
    is_late = tester_per_s is not None
    explains = _with_busy_cpus(explains, cpu, late=is_late, is_least=is_least)
    return Pace(
        explains=explains,
        per_s=per_s,
        by_event=None,
        policy=None,
        is_least=is_least,
        tester_per_s=tester_per_s,
        tester_busy=cpu.tester_busy or tester_per_s is not None,
        host_busy=cpu.host_busy,
        others=cpu.others if cpu.host_busy else 0.0,
        error=MARGINS.error,
        backlog=base.backlog,
        connections=run.plan.connections,
    )


def _storms_at(base: Laws, per_s: float, ratios: Sequence[float]) -> tuple[Laws, ...]:
    """The laws of storms at a ramp's pace, and at the least that a storm's may be."""
    explains = []
    for storm_per_s in (per_s, 1 / (1 / per_s + MARGINS.ending_s)):
        for ratio in ratios:
            explains.append(at_pace(base, storm_per_s, ratio))
    return tuple(explains)


def _ramp_ticks(run: Run) -> list[tuple[float, Tick]]:
    """Those until all connections of the ramp had their first answer, or it ended otherwise."""
    until_s = min([run.stop_s, *(gap.start_s for gap in run.disturbances)])
    ticks = []
    for t_s, tick in run.ticks:
        if not run.first_connect_s < t_s <= until_s:
            continue
        ticks.append((t_s, tick))
        if tick.held - tick.awaiting >= MARGINS.ramped * run.plan.connections:
            break
    return ticks


def _most_answers(ticks: Sequence[tuple[float, Tick]]) -> int:
    """The most first answers in a second."""
    greatest = 0
    answered_before = 0
    for _, tick in ticks:
        answered = tick.held - tick.awaiting
        greatest = max(greatest, answered - answered_before)
        answered_before = answered
    return greatest


def _with_busy_cpus(
    explains: tuple[Laws, ...], cpu: StormCpu, *, late: bool, is_least: bool
) -> tuple[Laws, ...]:
    """``explains``, and if CPUs were busy or asyncli ``late`` the laws with the paces that these
    may have the next time.
    """
    if not (cpu.tester_busy or cpu.host_busy or late):
        return explains
    if is_least and not (cpu.tester_busy or late):
        # The server had that pace although other programs had the CPUs: it is a bound as it is.
        return explains
    faster = MARGINS.of_busy
    if cpu.host_busy:
        # Without the other programs.
        faster = max(faster, 1 / max(0.1, 1 - cpu.others))
    best = explains[0]
    around = []
    for times in (1 / MARGINS.of_busy, faster):
        around.append(
            msgspec.structs.replace(
                best,
                accept_per_s=best.accept_per_s * times,
                answer_per_s=best.answer_per_s * times,
                connect_per_s=best.connect_per_s * times,
            )
        )
    return (*explains, *around)
