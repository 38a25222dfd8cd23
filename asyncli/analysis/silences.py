"""Heartbeats that were not answered, or not in whole: does the server stand still, is it slow, or is it the way to it?

Three witnesses tell them apart. A process that stands still has a kernel that acknowledges what comes all the same, so that
nothing is sent again (RFC 9293, 3.8.4); what is lost on the way is sent again after 0.2 s, 0.4 s and so on (RFC 6298, and
TCP_RTO_MIN of Linux). The server's count of requests says what arrived. And bytes that are no whole answer say that it answered.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from asyncli.analysis.mortality import FEWEST, Case, Cell, Share, in_seconds, left, one_of, within
from asyncli.analysis.timers import idle_edge, known_idle
from asyncli.analysis.witness import Cut, Testimony, Witness
from asyncli.core.histogram import summed
from asyncli.findings.latency import NoAnswers, answers_slow, no_answers, no_answers_more
from asyncli.findings.losses import befell, cut_off
from asyncli.records import Finding, Tick
from asyncli.run import Run
from asyncli.units import format_count, format_duration, format_many

# As good as nobody; half and most of them.
_NOBODY, _HALF, _MOST = 0.05, 0.5, 0.9
# Who answers nobody and uses so much of a core does not stand still.
_BUSY_CORES = 0.5
# Where so many are expected at random moments, none comes by accident one time in twenty (e^-3).
_EXPECTED = 3.0
# So much of an answer, on the average, is a part of one; bytes and ticks are otherwise exact.
_PART = 0.1
_FIRST_RESEND_S = 0.2
# Two ticks may fall between the answers of a quiet fleet; and a generator that stands still itself is no witness.
_STALL_S, _OURS_S = 2.0, 0.5
_MOST_STALLS = 3

# Answers came late in a second in which half of them took so many times as long as at the best of times, and so much longer (us);
# for so many seconds, and parted by no more than so many (s).
_TIMES_USUAL, _BEYOND_USUAL_US = 10.0, 100_000.0
_SLOW_S, _PARTED_S = 3, 3.0
# The best of times is the tenth part of the seconds with the quickest answers; of a long run so many of them tell.
_BEST, _ENOUGH = 0.1, 2_000

_ACCEPTS = "see whether it accepts (ss -ltn: Recv-Q), and its limits on connections"
_WAY = "see routes, firewalls and links between here and the server"


def client_cut(case: Case) -> None:
    """A client host of a cluster was silent to asyncli too, and told of these deaths when it spoke again: its own way was cut."""
    for place, cut in enumerate(case.witness.cuts(case.timeout_s)):
        cells = [cell for cell in case.of("heartbeat_timeout") if cut.holds(cell.to_s, case.timeout_s)]

        def words(share: Share, cut: Cut = cut) -> tuple[str, str]:
            said = cut_off(cut.hosts, cut.last_s)
            return f"{befell('heartbeat_timeout', share.count)} ({format_duration(case.timeout_s)}): {said.evidence}", said.remedy

        case.take_all(cells, "client_cut", words, False, place)


def silences(case: Case) -> None:
    """Heartbeats without an answer: the server stands still, or is slow, or a box on the way drops connections silently."""
    for place, cells in enumerate(_stretches(case)):
        code, said, remedy, certain = _why_silent(case, cells)
        if code == "":
            continue

        def words(share: Share, said: str = said, remedy: str = remedy) -> tuple[str, str]:
            return f"{befell('heartbeat_timeout', share.count)} ({format_duration(case.timeout_s)}): {said}{share.when()}", remedy

        case.take_all(cells, code, words, certain, place)


def _stretches(case: Case) -> list[list[Cell]]:
    """The silent deaths, parted where none died for longer than a heartbeat and its patience take."""
    parted: list[list[Cell]] = []
    pause = case.timeout_s + case.gap_s + 3.0
    for cell in sorted(case.of("heartbeat_timeout"), key=lambda one: one.to_s):
        if not parted or cell.to_s - parted[-1][-1].to_s > pause:
            parted.append([])
        parted[-1].append(cell)
    return parted


def _why_silent(case: Case, cells: list[Cell]) -> tuple[str, str, str, bool]:
    """Code, words, remedy, and whether the server itself bears it out; code "" where nothing fits."""
    count = left(cells)
    from_s, to_s = cells[0].from_s, cells[-1].to_s
    # When the first of those heartbeats went out, and the last: what is answered later says nothing of them.
    asked_s = from_s - case.timeout_s + 1.0
    until_s = max(cells[-1].from_s - case.timeout_s, asked_s + 2.0)
    if case.answers_per_s * (until_s - asked_s) < _EXPECTED:
        # So few beat that a second or two without an answer is nothing; then all up to the last death must tell.
        until_s = max(until_s, to_s - 1.0)
    meanwhile = [tick for _, tick in case.between(asked_s + 0.9, to_s)]
    asked = [tick for _, tick in case.between(asked_s + 0.9, until_s)]
    if sum(tick.answered for tick in asked) < _NOBODY * count:
        said = case.witness.about(max(asked_s, 0.0), until_s, count)
        return _nobody_answered(case, cells, meanwhile, asked, said)
    said = case.witness.about(max(asked_s, 0.0), to_s, count)
    name = case.witness.called
    if within(case.pool(cells).requests, 0, 0) > _MOST * count:
        return "never_accepted", f"others were answered, and these never: {_not_accepted(name)}", _ACCEPTS, False
    edge = idle_edge(case, case.pool(cells).idle_s, count, waited_s=case.timeout_s)
    if edge is not None:
        whose = known_idle(edge, edge + 1)
        holds = said.excess is not None and said.excess >= _HALF * count
        counts = f", and {name} still counts {format_count(min(said.excess or 0, count))} of them as open" if holds else ""
        why = (
            f"all of them had been idle for {in_seconds(edge)} or longer, while others were answered{counts}: "
            f"{'' if holds else 'looks like '}a box on the way drops idle connections without a word"
            f"{f' ({whose})' if whose else ''}"
        )
        return "silent_drop", why, "beat more often than that (--keepalive below twice that time), or raise its timeout", holds
    # What falls silent is sent again by itself; so much more of it is of those that went on.
    of_the_dead = count * (1.0 + math.log2(max(1.0, case.timeout_s / _FIRST_RESEND_S)))
    resent = 0 if case.witness.local else said.resent or 0
    if count >= FEWEST and said.segments and resent >= 2 * of_the_dead:
        share = resent / (resent + said.segments)
        why = f"others were answered, but {share:.0%} of this host's TCP segments were sent again: packets were lost on the way"
        return "packets_lost", why, "see links, cables and firewalls between (ip -s link), and the server's own counters", False
    slow = max((_of_answers(tick, 0.99) for tick in meanwhile), default=0.0) / 1e6
    if slow >= _HALF * case.timeout_s and count >= FEWEST:
        why = f"others were answered late, up to {format_duration(slow)}: looks like {name} or the way to it is overloaded"
        return "server_slow", why, "ask less of it (--connections, --keepalive), or wait longer (--timeout)", False
    workers = case.witness.workers(from_s)
    held = case.witness.held(asked_s)
    if workers and workers > 1 and count >= FEWEST and one_of(workers, count, held) and to_s - from_s <= case.gap_s + 3.0:
        why = f"others were answered: looks like a worker of {name}, one of {workers}, stands still with its connections"
        return "worker_stalled", why, "see what its workers do (ps, its error log)", False
    return "", "", "", False


def _not_accepted(name: str) -> str:
    return f"looks like {name} has not accepted them (its listen queue holds them)"


def _nobody_answered(
    case: Case, cells: list[Cell], meanwhile: Sequence[Tick], asked: Sequence[Tick], said: Testimony
) -> tuple[str, str, str, bool]:
    name, count = case.witness.called, left(cells)
    sent = sum(tick.sent for tick in asked)
    no_route = sum(tick.failures.get("unreachable", 0) for tick in meanwhile)
    if no_route:
        why = (
            f"nobody was answered, and {format_many(no_route, 'connect')} found no route or were forbidden: the way to it was cut"
        )
        return "path_cut", why, _WAY, True
    if _unacknowledged(case.witness, said, sent):
        return "path_cut", f"nobody was answered, {_sent_again(said)}", _WAY, False
    if said.silent and said.still:
        why = f"{name} stood still: it answered nobody, its status page neither, and its processes used no CPU"
        return "server_stalled", why, "see who stopped it (SIGSTOP, a debugger, a frozen cgroup)", count >= FEWEST
    if part := _part_of_an_answer(case, cells):
        why = (
            f"of each answer only a part came ({part:.0%} on the average): looks like a slow line, or a box on the way that "
            "holds answers back"
        )
        return "answers_in_part", why, "see the bandwidth and the boxes between here and the server", False
    if said.silent is False and said.requests is not None and said.requests >= max(FEWEST, _HALF * sent):
        why = (
            f"{name} counted {format_many(said.requests, 'request')} meanwhile, and none was answered in time: looks like "
            "answers come late, or are lost on the way back"
        )
        return "answers_late", why, "see its load, and boxes on the way; a longer --timeout tells late from lost", False
    if said.silent is False:
        none = said.requests is not None and said.requests <= _NOBODY * sent and sent >= FEWEST
        counted = " and counted no request" if none else ""
        why = f"nobody was answered, though the server's status page answered{counted}: looks like the way to it was cut"
        return "path_cut", why, _WAY, False
    if count >= FEWEST and said.cores is not None and said.cores >= _BUSY_CORES:
        why = f"looks like {name} was busy, and answered nobody: it used {said.cores:.1f} cores meanwhile"
        return "server_stalled", why, "see what its processes did (top, perf, its error log)", False
    if case.witness.local and within(case.pool(cells).requests, 0, 0) > _MOST * count:
        return "never_accepted", f"nobody was answered: {_not_accepted(name)}", _ACCEPTS, False
    if count >= FEWEST:
        why = f"nobody was answered meanwhile: looks like {name} stood still, or the way to it was cut"
        return "server_stalled", why, "see whether it runs, and routes and firewalls between", False
    return "", "", "", False


def _unacknowledged(witness: Witness, said: Testimony, sent: int) -> bool:
    """Whether what was sent had to be sent again, and nearly all of it: nobody's kernel acknowledged it.

    The kernel counts for the whole host; on this host alone a server that is seen to stand still says more.
    """
    if witness.local and said.silent and said.still:
        return False
    return said.resent is not None and said.resent >= max(FEWEST, _HALF * sent)


def _sent_again(said: Testimony) -> str:
    return (
        f"and nothing that was sent was acknowledged ({format_many(said.resent or 0, 'TCP segment')} sent again): looks like "
        "the way to it was cut, or its host was down"
    )


# -- answers that broke off


def cut_short(case: Case) -> None:
    """Closed in the midst of an answer: more bytes came than the whole answers of those seconds have."""
    cells = case.of("closed_awaiting")
    part = _part_of_an_answer(case, cells)
    if part is None or left(cells) < FEWEST:
        return

    def words(share: Share) -> tuple[str, str]:
        return (
            f"{befell('closed_awaiting', share.count)}, after a part of it had come ({part:.0%} on the average): looks like a "
            f"box on the way that breaks answers off, or a worker that ended while it wrote{share.when()}",
            "see the boxes between here and the server, and its error log",
        )

    case.take_all(cells, "cut_short", words, False)


def _part_of_an_answer(case: Case, cells: Sequence[Cell]) -> float | None:
    """The share of an answer that each of the dead got on the average; None where it was none, or is not known."""
    quiet = [tick for _, tick in case.ticks if tick.answered and not tick.deaths]
    answered = sum(tick.answered for tick in quiet)
    size = sum(tick.bytes_received for tick in quiet) / answered if answered else 0.0
    if not size:
        return None
    # A farewell and what is no HTTP are bytes of another kind.
    others = {"closed_announced", "protocol_error"}
    ticks = {id(cell.tick): cell.tick for cell in cells if not others & cell.tick.deaths.keys()}.values()
    dead = sum(cell.left for cell in cells if id(cell.tick) in {id(tick) for tick in ticks})
    beyond = sum(tick.bytes_received - tick.answered * size for tick in ticks)
    part = beyond / (dead * size) if dead else 0.0
    return part if _PART <= part <= 1.0 else None


# -- silences that nobody died of


def stalls(run: Run) -> list[Finding]:
    """A finding for each stretch of two seconds or more in which nobody was answered, though some waited, and nobody died of it.

    Not where connections died meanwhile or soon after: their diagnosis says it. Not where the generator itself stood still.
    """
    start, stop, ticks = run.first_connect_s, run.stop_s, run.ticks
    found: list[tuple[float, float, int]] = []
    rows = [(t_s, tick) for t_s, tick in ticks if start < t_s <= stop]
    drained = [(t_s, tick) for t_s, tick in ticks if t_s > stop]
    begun: int | None = None
    for place, (_, tick) in enumerate(rows):
        silent = not tick.answered and tick.awaiting > 0 and tick.longest_turn_s < _OURS_S
        if silent and begun is None:
            begun = place
        if begun is None or (silent and place + 1 < len(rows)):
            continue
        last = place if silent else place - 1
        waited = max(one.awaiting for _, one in rows[begun : last + 1])
        around = rows[max(0, begun - 1) : place + 2]
        # What waited when the drain began dies in it.
        nobody_died = not any(one.lost for _, one in (*around, *(drained if place + 1 == len(rows) else ())))
        if last - begun + 1 >= _STALL_S and waited >= FEWEST and nobody_died:
            found.append((rows[begun][0] - 1.0, rows[last][0], waited))
        begun = None
    if not found:
        return []
    witness = Witness(run)
    told = [_stall(witness, *one) for one in found[:_MOST_STALLS]]
    if len(found) > _MOST_STALLS:
        told.append(no_answers_more(len(found) - _MOST_STALLS))
    return told


def _stall(witness: Witness, from_s: float, to_s: float, waited: int) -> Finding:
    said = witness.about(from_s, to_s, waited)
    if _unacknowledged(witness, said, waited):
        why: NoAnswers = "unacknowledged"
    elif said.silent and said.still:
        why = "stopped"
    elif said.silent is False:
        why = "slow" if said.requests is not None and said.requests >= _HALF * waited else "page_answered"
    else:
        why = "unknown"
    return no_answers(from_s, to_s, waited, witness.called, why, said.requests)


# -- answers that came late, of which nobody died


def slow_answers(run: Run) -> list[Finding]:
    """A finding that says when answers came late for three seconds or more, if they did: half of all in each of these seconds.

    Over a night the percentiles of the whole hide some minutes, and never say when. Not where heartbeats were given up or nobody
    was answered: their own findings say it. Nor where asyncli itself sent them late.
    """
    start, stop, ticks = run.first_connect_s, run.stop_s, run.ticks
    rows = [(t_s, tick) for t_s, tick in ticks if start < t_s <= stop and tick.answered]
    some = rows[:: max(1, len(rows) // _ENOUGH)]
    medians = sorted(_of_answers(tick, 0.5) for _, tick in some)
    if not medians:
        return []
    usual_us = medians[int(_BEST * len(medians))]
    late_us = max(_TIMES_USUAL * usual_us, usual_us + _BEYOND_USUAL_US)
    slow = [
        (t_s, tick)
        for t_s, tick in rows
        if tick.latency_us.greatest > late_us
        and (median := _of_answers(tick, 0.5)) > late_us
        and (tick.lateness_us.quantile(0.5) or 0.0) < _HALF * median
    ]
    spells: list[list[tuple[float, Tick]]] = []
    for row in slow:
        if not spells or row[0] - spells[-1][-1][0] > _PARTED_S:
            spells.append([])
        spells[-1].append(row)
    silent = [t_s for t_s, tick in ticks if "heartbeat_timeout" in tick.deaths or (not tick.answered and tick.awaiting >= FEWEST)]
    told = [one for one in spells if _is_told(one, silent)]
    if not told:
        return []
    longest = max(told, key=len)
    from_s, to_s = longest[0][0] - 1.0, longest[-1][0]
    took = summed([tick.latency_us for _, tick in longest]).quantile(0.5) or 0.0
    witness = Witness(run)
    cores, all_s = witness.about(from_s, to_s, 0).cores, sum(map(len, told))
    return [answers_slow(from_s, to_s, took / 1e6, usual_us / 1e6, witness.called, cores, len(told), all_s)]


def _is_told(spell: Sequence[tuple[float, Tick]], silent: Sequence[float]) -> bool:
    """Whether it was long enough, of enough answers, and no part of a silence (its instants in order)."""
    near = bisect.bisect_left(silent, spell[0][0] - _PARTED_S)
    apart = near == len(silent) or silent[near] > spell[-1][0] + _PARTED_S
    return len(spell) >= _SLOW_S and sum(tick.answered for _, tick in spell) >= FEWEST and apart


def _of_answers(tick: Tick, q: float) -> float:
    """The quantile (us) of the latencies of what was answered: what was given up waited longest, and is in the histogram too
    unless an older asyncli made it, or it went with a process of ours.
    """
    every = tick.latency_us.count
    return (tick.latency_us.quantile(q * min(1.0, tick.answered / every)) or 0.0) if every else 0.0
