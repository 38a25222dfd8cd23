"""What pipelines against one at a time, threads and tasks are called, and the source's claims of them judged. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from asyncli.experiments.judging import (
    ClaimCase,
    Interval,
    Side,
    claimed,
    in_every_round,
    interval,
    intervals,
    judge_each,
    together,
)
from asyncli.experiments.record import Claim, Rounds, span


class Way(StrEnum):
    """How the same answers are asked for."""

    MANY = "pipelines"
    TEN = "ten pipelines"
    ONE = "one pipeline"
    KEPT = "one at a time"
    THREADS = "threads"
    TASKS = "tasks"


class Page(StrEnum):
    """What is asked for, and of whom."""

    NEAR = "near"
    LARGE = "large"
    FAR = "far"
    WORK = "work"


class OtherStep(StrEnum):
    """What is measured besides each way on each page."""

    UNLIMITED = "no limit"
    CUT = "cut"
    FITTING = "fitting"
    PIPELINED = "pipelined"
    APART = "apart"
    UNREAD = "unread"


WAYS, PAGES = tuple(Way), tuple(Page)
# What one connection would take longer for, one answer after the other, is left out: that is known by multiplication.
_LONGEST_S = 10.0
# As the first servers with such a limit had it, and a depth beyond.
LIMIT, TOO_DEEP = 100, 150
_MOST_DEEP = 10_000
BEHIND = 9
UNREAD_RESPONSES = 100


def step_of(page: str, way: str) -> str:
    """The name of a measurement among the rounds."""
    return f"{page}: {way}"


def connections_of(plan: dict[str, Any], way: str) -> int:
    many = int(plan["connections"])
    return 1 if way == Way.ONE else min(10, many) if way == Way.TEN else many


def depth_of(plan: dict[str, Any], way: str) -> int:
    if way not in (Way.MANY, Way.TEN, Way.ONE):
        return 1
    return min(_MOST_DEEP, -(-int(plan["responses"]) // connections_of(plan, way)))


def too_long(plan: dict[str, Any], page: str, way: str) -> bool:
    return page == Page.WORK and one_by_one_s(plan, way) > _LONGEST_S


def one_by_one_s(plan: dict[str, Any], way: str) -> float:
    return float(plan["responses"]) / connections_of(plan, way) * float(plan["service_ms"]) / 1000


def size_label(size_bytes: float) -> str:
    return f"{size_bytes / 1000:g} kB"


def page_label(plan: dict[str, Any], page: Page) -> str:
    small, large = size_label(plan["page_bytes"]), size_label(plan["large_bytes"])
    return {
        Page.NEAR: f"{small} next door",
        Page.LARGE: f"{large} next door",
        Page.FAR: f"{small} from {plan['round_trip_ms']} ms away",
        Page.WORK: f"{small} that take {plan['service_ms']} ms to make",
    }[page]


def way_label(plan: dict[str, Any], way: str) -> str:
    many, deep = connections_of(plan, way), depth_of(plan, way)
    names: dict[str, str] = {
        Way.KEPT: f"{many} one at a time",
        Way.THREADS: f"{many} threads",
        Way.TASKS: f"{plan['responses']:,} tasks",
    }
    return names.get(way, f"{many} {'pipelines' if many > 1 else 'pipeline'} of {deep:,}")


def cut_label(step: OtherStep) -> str:
    return {
        OtherStep.UNLIMITED: f"no limit, {TOO_DEEP} deep",
        OtherStep.CUT: f"{LIMIT} a connection, {TOO_DEEP} deep",
        OtherStep.FITTING: f"{LIMIT} a connection, {LIMIT} deep",
    }[step]


def order_label(step: str) -> str:
    return "one pipeline" if step == OtherStep.PIPELINED else f"{BEHIND + 1} connections"


def judge(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    """The source's claims, of rounds that are usable."""
    yield from _faster(plan, rounds)
    yield from _whose_gain(plan, rounds)
    yield from _low_cpu(plan, rounds)
    yield from _a_few_do(plan, rounds)
    yield from _head_of_line(plan, rounds)
    yield from _limits_cut(rounds)
    yield from _on_the_wire(plan, rounds)
    yield from _sent_again(rounds)


def _ratios(plan: dict[str, Any], rounds: Rounds, way: Way, other: Way, key: str) -> dict[str, Interval]:
    """One way by another, round by round, on each page where both were measured."""
    pairs = {page_label(plan, page): rounds.ratio(step_of(page, way), step_of(page, other), key) for page in PAGES}
    return intervals(pairs)


def _figures(plan: dict[str, Any], rounds: Rounds, way: Way, key: str) -> dict[str, Interval]:
    return intervals({page_label(plan, page): rounds.of(step_of(page, way), key) for page in PAGES})


def _faster(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    for way, name, theirs in ((Way.THREADS, "threads", "5"), (Way.TASKS, "asynchronous tasks", "12 and more")):
        if times := _ratios(plan, rounds, way, Way.MANY, "duration_s"):
            yield claimed(
                f"Pipelines are more than 10 times faster than {name}.", judge_each(times, above=10),
                "above 10, each page by itself", lead="Times as long as the pipelines: ",
                more=f"By the source's own figures it was {theirs}",
            )  # fmt: skip


def _whose_gain(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    """The gain over threads is a product: of another client (threads by one at a time), and of pipelines (one at a time by them).

    The second is the larger where one at a time takes longer than the geometric mean of the two others.
    """
    cases = []
    for page in PAGES:
        many, kept, threads = (rounds.by_round(step_of(page, way), "duration_s") for way in (Way.MANY, Way.KEPT, Way.THREADS))
        whole = [at for at in kept if many.get(at) and threads.get(at)]
        if whole:
            share = interval([kept[at] / math.sqrt(many[at] * threads[at]) for at in whole])
            gain = interval([threads[at] / many[at] for at in whole])
            same = interval([kept[at] / many[at] for at in whole])
            words = f"{page_label(plan, page)}: {same.words()}, {share.words(1)}"
            cases.append(ClaimCase(words, together([gain.above(1), share.above(1)]), (same, share)))
    if cases:
        yield claimed(
            "It is pipelining that makes the difference.", cases,
            "above 1 of that mean, and threads slower than pipelines, each page by itself",
            lead="The same client without pipelines takes so many times as long as with them, and so many times the geometric "
            "mean of pipelines and threads: ",
            more="Above that mean pipelining is the larger of the two factors of the gain over threads; the other is the client "
            "program",
        )  # fmt: skip


# Of the others' CPU, and of a core; and what is nearly full.
_LOW, _FULL = 0.5, 0.9


def _low_cpu(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    cases = []
    others = {
        way: (_ratios(plan, rounds, Way.MANY, way, "cpu_s"), _figures(plan, rounds, way, "cores"))
        for way in (Way.THREADS, Way.TASKS)
    }
    for page, mine in _figures(plan, rounds, Way.MANY, "cores").items():
        sides, known, cores, cpu = [mine.below(_LOW)], [mine], [f"pipelines {mine.words(_LOW)}"], []
        for way, (shares, busy) in others.items():
            if page in shares and page in busy:
                share, full = shares[page], busy[page]
                sides += [share.below(_LOW), full.above(_FULL)]
                known += [share, full]
                cores.append(f"{way} {full.words(_FULL)}")
                cpu.append(f"{share.words(_LOW)} of {way}'")
        if cpu:
            cases.append(ClaimCase(f"{page}: {', '.join(cores)}, CPU {' and '.join(cpu)}", together(sides), (*known,)))
    if cases:
        yield claimed(
            "The client's CPU is low with pipelines, and nearly full with threads and tasks.", cases,
            f"with pipelines below {_LOW} of a core and of the others' CPU, theirs above {_FULL} of a core, each page by itself",
            lead="Cores that are busy, and the pipelines' CPU for the same answers by the others': ",
        )  # fmt: skip


# What is nearly as well.
_NEARLY = 1.25


def _a_few_do(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    ten, one = (_ratios(plan, rounds, way, Way.MANY, "duration_s") for way in (Way.TEN, Way.ONE))
    if ten:
        many = connections_of(plan, Way.TEN)
        alone = "; ".join(f"{page}: {known.words()}" for page, known in one.items())
        yield claimed(
            f"A few pipelines do nearly as well as {plan['connections']}.", judge_each(ten, below=_NEARLY),
            f"{many} take less than {_NEARLY} times as long, each page by itself",
            lead=f"{many} take so many times as long: ", more=f"1 alone, not judged: {alone}" if alone else "",
        )  # fmt: skip


def _head_of_line(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    first, apart = rounds.by_round(OtherStep.PIPELINED, "first_behind_ms"), rounds.by_round(OtherStep.APART, "last_behind_ms")
    both = [at for at in first if at in apart]
    if not both:
        return
    slow = plan["slow_ms"]

    def cured(at: int) -> Side:
        if apart[at] >= slow / 2:  # the host itself was slow
            return None
        return True if first[at] < slow / 2 else False if first[at] >= 0.9 * slow else None

    words = (
        f"Behind an answer that takes {slow} ms, none of {BEHIND} quick ones in its pipeline comes before "
        f"{span([first[at] for at in both], '.0f')} ms; on connections of their own all are there after "
        f"{span([apart[at] for at in both], '.1f')} ms"
    )
    yield claimed(
        "Pipelining cures head-of-line blocking.", [ClaimCase(words, in_every_round(map(cured, both)))],
        "in every round the first comes in less than half of the slow one's time; does not hold where in none before 0.9 of it",
    )  # fmt: skip


def _limits_cut(rounds: Rounds) -> Iterator[Claim]:
    cut, free = rounds.by_round(OtherStep.CUT, "resent"), rounds.by_round(OtherStep.UNLIMITED, "resent")
    if not cut:
        return

    def more(at: int) -> Side:
        """Where requests are asked again without a limit too, it is not the limit that is seen."""
        if at not in free:
            return None
        return True if cut[at] > 0 == free[at] else False if cut[at] <= free[at] else None

    words = (
        f"With keepalive_requests {LIMIT} and pipelines {TOO_DEEP} deep, {span([*cut.values()], ',.0f')} of "
        f"{span(rounds.of(OtherStep.CUT, 'total'), ',.0f')} requests had to be asked again"
    )
    if free:
        words += f", {span([*free.values()], ',.0f')} without a limit"
    if fitting := rounds.of(OtherStep.FITTING, "resent"):
        words += f", {span(fitting, ',.0f')} in pipelines as deep as the limit"
    yield claimed(
        "Servers' limits of requests a connection cut pipelines midway.", [ClaimCase(words, in_every_round(map(more, cut)))],
        "in every round some with the limit, and none without",
    )  # fmt: skip


# One at a time each request is a segment and so is its answer: two at least.
_SHARED = 1.5


def _on_the_wire(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    if fewer := _figures(plan, rounds, Way.MANY, "segments_each"):
        kept = [one for page in PAGES for one in rounds.of(step_of(page, Way.KEPT), "segments_each")]
        yield claimed(
            "In a pipeline several requests and answers share a TCP segment.", judge_each(fewer, below=_SHARED),
            f"below {_SHARED} segments an answer, each page by itself",
            lead="Segments an answer, requests, answers and acknowledgements together: ",
            more=f"One at a time {span(kept)}" if kept else "",
        )  # fmt: skip
    if closed := rounds.of(OtherStep.UNREAD, "window_closed"):
        sent = [one / 1000 for one in rounds.of(OtherStep.UNREAD, "before_bytes")]
        words = f"Unread, it closed after {span(sent, ',.0f')} kB" if any(closed) else "It did not"
        read = [one for page in PAGES for one in rounds.of(step_of(page, Way.MANY), "window_closed")]
        if read:
            words += f"; in the {plan['connections']} pipelines, which are read at once, {span(read, ',.0f')} times a run"
        yield claimed(
            "The receive window closes when the reader of a pipeline is slow.",
            [ClaimCase(words, in_every_round(one > 0 for one in closed))], "it closes in every round",
        )  # fmt: skip


def _sent_again(rounds: Rounds) -> Iterator[Claim]:
    pairs = []
    for page in PAGES:
        burst, single = (rounds.by_round(step_of(page, way), "retransmitted") for way in (Way.MANY, Way.KEPT))
        pairs += [(burst[at], single[at]) for at in burst if at in single]
    if not pairs:
        return

    def more(mine: float, theirs: float) -> Side:
        """By two standard deviations of a count, or not at all."""
        return True if mine - theirs > 2 * math.sqrt(mine + theirs) else False if mine <= theirs > 0 else None

    mine, theirs = (span([pair[at] for pair in pairs], ",.0f") for at in (0, 1))
    words = f"{mine} retransmitted segments a run, {theirs} one at a time"
    side = in_every_round(more(*pair) for pair in pairs)
    yield claimed(
        "Bursts of pipelines bring retransmissions.", [ClaimCase(words, side)],
        "in every run more than one at a time by two standard deviations of a count; it does not hold where in every run some "
        "are sent again one at a time, and no fewer",
        more="Loopback drops nothing by itself, so a line that does is needed to tell" if side is None else "",
    )  # fmt: skip
