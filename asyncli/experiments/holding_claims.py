"""What the same soak against every server of the lab comes to: tables, a picture, and claims judged. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from asyncli.experiments.holding_limits import CAUSES, MIB, SHAPES, memory_stop, mib, stops, sure, why_it_stopped
from asyncli.experiments.judging import WORTH, ClaimCase, Interval, Side, claimed, in_every_round, verdict
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Round,
    Rounds,
    bars,
    span,
)
from asyncli.units import format_bytes, format_count

_COST = [
    Column("user", "its processes", "B"), Column("user_half", "±", "B"), Column("socket", "socket", "B"),
    Column("rest", "left over", "B"), Column("own", "one more", "B"), Column("own_half", "±", "B"),
    Column("member", "place in pool", "B"), Column("each", "in all", "B"),
]  # fmt: skip
_STATE = [
    Column("asked", "asked"), Column("held", "held"), Column("processes", "processes"), Column("threads", "threads"),
    Column("start", "none held", "B"), Column("full_bytes", "all held", "B"), Column("p99_ms", "p99", "ms"),
    Column("beat_us", "CPU a beat", "us"),
]  # fmt: skip
_STOPS = [
    Column("memory", "memory"), Column("least", "at least"), Column("most", "at most"), Column("descriptors", "descriptors"),
    Column("ids", "ids"), Column("cut", "cut for"), Column("held_most", "when pushed"),
]  # fmt: skip


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its tables, its picture, and what it says of what was expected."""
    rounds = Rounds(measured)
    met = [name for name in SHAPES if rounds.of(name, "asked")]
    order = sorted(met, key=lambda name: rounds.median(name, "each") or math.inf)
    cost = FigureTable(
        "What one more held connection takes, on the server's side",
        _COST,
        [rounds.row(name, _COST, label=name) for name in order],
        "Slopes of memory over connections held, the least first; ± is half of a 95 % interval. One more: what the server's "
        "control group is charged for it, and its TCP socket where cgroup v1 leaves that out; without such a group, what the "
        "host takes for it, less asyncli's memory and the kernel's for asyncli's end. It is its processes' memory (PSS), the "
        "kernel's objects for its socket, where they are known to ± 10 %, and what is left over: its task and stack in the "
        "kernel, page tables, what processes share. Place in pool: what stood before the first connection, less what the "
        "smallest pool takes where that is known, by the processes or threads that it has more; in all: with that.",
    )
    state = FigureTable(
        "What it was when it held them",
        _STATE,
        [rounds.row(name, _STATE, label=name) for name in ("iterative", *order) if rounds.of(name, "asked")],
        "Memory with none held: what is charged to its control group then, or where it had none its processes' (PSS); with all: "
        "of its processes alone (PSS). p99: of a heartbeat, from due to answered.",
    )
    drawn = [name for name in order if rounds.median(name, "user") is not None]
    charts = [_chart(rounds, drawn)] if drawn else []
    tables = [one for one in (cost, state, _stops_table(plan, rounds, order)) if one.rows]
    return Conclusions(tables, charts, [*_claims(rounds)])


def _chart(rounds: Rounds, names: list[str]) -> Chart:
    sockets = [rounds.median(name, "socket") for name in names]
    parts = [
        bars("its processes", [rounds.median(name, "user") for name in names]),
        bars("kernel, both ends of the socket", [None if one is None else 2 * one for one in sockets]),
        bars("in all on the server's side, with its place in a pool", [rounds.median(name, "each") for name in names]),
    ]
    return Chart("bars", "Memory of a held connection", "", "bytes a connection", parts, names)


def _stops_table(plan: dict[str, Any], rounds: Rounds, order: list[str]) -> FigureTable:
    limit = plan["limit_mib"] * MIB
    rows, reasons = [], []
    for name in order:
        of_it = [one for one in rounds if one["step"] == name]
        ladders = [stops(SHAPES[name], one, limit) for one in of_it]
        memories = [stop for one in of_it if (stop := memory_stop(one, limit)) is not None]
        # Where memory cannot be reckoned, it may be what ends first.
        firsts = [ladder[0] for one, ladder in zip(of_it, ladders, strict=True) if sure(one)]
        values = {
            "least": [stop.least for stop in memories if stop.least is not None],
            "memory": [stop.number for stop in memories],
            "most": [stop.most for stop in memories if stop.most is not None],
            "cut": rounds.of(name, "cut"),
            "held_most": rounds.of(f"{name}, pushed", "most"),
        }
        for kind in ("descriptors", "ids"):
            values[kind] = [stop.number for ladder in ladders for stop in ladder if stop.kind == kind]
        if firsts:
            reasons.append(f"{name} by {statistics.mode(stop.words for stop in firsts)}")
        else:
            reasons.append(f"{name} not known, its slope being too wide")
        rows.append(FigureRow(name, values))
    return FigureTable(
        f"The most that each would hold in {mib(limit)}, by each thing that would stop it",
        _STOPS,
        rows,
        f"What stops each first: {'; '.join(reasons) or 'not known'}. Reckoned, not measured. Memory: the limit, less what is "
        "there with none held, by what a connection takes in all, with its 95 % interval; a pool is taken to be as large as "
        "then fits. Descriptors, and ids of processes or threads: of this host. Cut for: its slots or pool in this test, which "
        "a setting changes. When pushed: measured, in a control group with that limit on what is charged to it, "
        "which are no TCP sockets of cgroup v1: more fit then than are reckoned with them.",
    )


def _claims(rounds: Rounds) -> Iterator[Claim]:
    yield from _tenth(rounds)
    yield from _sockets(rounds)
    yield from _touched(rounds)
    yield from _more_than_a_thread(rounds)
    yield from _one_at_a_time(rounds)
    for name in SHAPES:
        yield from _pushed(rounds, name)


def _between(rounds: Rounds, name: str) -> Interval | None:
    """Where what a connection takes in all may lie, by the intervals of all rounds' slopes; None where it is not sure."""
    known = [
        (one["each"] - one["own_half"], one["each"] + one["own_half"]) for one in rounds if one["step"] == name and sure(one)
    ]
    return Interval(min(low for low, _ in known), max(high for _, high in known)) if known else None


def _by(one: Interval, other: Interval) -> Interval:
    return Interval(one.low / other.high, one.high / other.low)


_TENTH = 0.1


def _tenth(rounds: Rounds) -> Iterator[Claim]:
    known = {name: both for name in SHAPES if (both := _between(rounds, name)) is not None}
    for kind in ("process", "thread"):
        pairs = {
            (event, other): _by(known[event], known[other])
            for event in known
            for other in known
            if SHAPES[event].holds == "event" and SHAPES[other].holds == kind
        }
        if not pairs:
            continue
        sides = [one.below(_TENTH) for one in pairs.values()]
        near, far = max(pairs, key=lambda pair: pairs[pair].high), min(pairs, key=lambda pair: pairs[pair].low)
        said = [
            f"{event} takes {pairs[event, other].words(_TENTH)} of what {other} does"
            for event, other in dict.fromkeys((near, far))
        ]
        why = (
            f"{'; at the other end '.join(said)}. Pairs that are below: {sides.count(True)} of {len(sides)}; that are not: "
            f"{sides.count(False)}; that cannot be told: {sides.count(None)}. {_SLOPES} Rule: below {_TENTH}, each pair."
        )
        text = f"A server of events holds a connection for less than a tenth of what a {kind} for each takes."
        yield Claim(text, verdict(sides), why)


_SLOPES = "By the 95% intervals of the slopes."
# The kernel takes its objects in slabs, and each CPU keeps some of them: some hundred kB that come and go, and so hundreds of
# bytes of each of a thousand sockets. No interval of a ladder of minutes shows that.
_ENOUGH_SOCKETS = 5_000


def _sockets(rounds: Rounds) -> Iterator[Claim]:
    ends = {
        name: (rounds.median(name, "kernel"), rounds.median(name, "kernel_half") or 0.0)
        for name in SHAPES
        if (rounds.median(name, "held") or 0.0) >= _ENOUGH_SOCKETS
    }
    # With a wider interval it is of other programs' files as well.
    known = {name: Interval(end - half, end + half) for name, (end, half) in ends.items() if end and half <= 0.1 * end}
    if len(known) < 2:
        return
    low, high = min(known, key=lambda name: known[name].high), max(known, key=lambda name: known[name].low)
    # The least that the two furthest are apart by, and the most that any two can be.
    least, most = min(one.low for one in known.values()), max(one.high for one in known.values())
    apart = Interval(max(1.0, known[high].low / known[low].high), most / least)
    words = (
        f"An end takes {known[low].words()} B ({low}) to {known[high].words()} B ({high}), the mean of both ends, of servers "
        f"that held {_ENOUGH_SOCKETS:,} or more: {apart.words(WORTH)} times apart"
    )
    claim = "What the kernel keeps for a socket does not depend on the server."
    yield claimed(claim, [ClaimCase(words, apart.below(WORTH))], f"less than {WORTH:g} times", more=_SLOPES.removesuffix("."))


def _touched(rounds: Rounds) -> Iterator[Claim]:
    takes = [
        (one["own"], one.get("own_half") or 0.0, one["stack_bytes"])
        for one in rounds
        if one["step"] == "thread" and one.get("own") and one.get("stack_bytes")
    ]
    if not takes:
        return
    share = Interval(
        min((own - half) / reserved for own, half, reserved in takes),
        max((own + half) / reserved for own, half, reserved in takes),
    )
    words = (
        f"{span([own for own, *_ in takes], ',.0f')} B in all, {share.words(_TENTH, 1)} of the {format_bytes(takes[0][2])} that "
        "its stack reserves"
    )
    # What a stack reserves is the user's choice (ulimit -s): of a small one a thread may touch much.
    side = True if share.below(_TENTH) else False if share.above(1) else None
    yield claimed(
        "A thread for each connection takes of its stack what it touched, not what is reserved.", [ClaimCase(words, side)],
        f"below {_TENTH} of what is reserved; does not hold above all of it", more=_SLOPES.removesuffix("."),
    )  # fmt: skip


def _more_than_a_thread(rounds: Rounds) -> Iterator[Claim]:
    process, thread = _between(rounds, "fork"), _between(rounds, "thread")
    if process and thread:
        known = _by(process, thread)
        case = ClaimCase(f"{known.words(2)} times", known.above(2))
        claim = "A process for each connection takes more than twice what a thread takes."
        yield claimed(claim, [case], "above 2 times", more=_SLOPES.removesuffix("."))


# What a client sees of a server that has not come to it.
_WAITING = {"heartbeat_timeout", "connect_timeout"}


def _one_at_a_time(rounds: Rounds) -> Iterator[Claim]:
    of_it = [one for one in rounds if one["step"] == "iterative" and one.get("held") is not None]
    if of_it:
        others = {cause for one in of_it for cause in one.get("causes") or ()}
        words = (
            f"{span([one['held'] for one in of_it], '.0f')} of {max(one['asked'] for one in of_it):.0f} had answers to the end"
        )
        if others:
            words += f", the others were {', '.join(CAUSES.get(one, one) for one in sorted(others))}"
        side = in_every_round(one["held"] == 1 and {*(one.get("causes") or ())} <= _WAITING for one in of_it)
        yield claimed(
            "The iterative server holds one connection, and all others wait for its end.", [ClaimCase(words, side)],
            "one in every round, and of the others none refused, closed or reset",
            more="It has no slope, and no row in the tables of cost",
        )  # fmt: skip


# What a push may differ by from what was reckoned.
_RECKONED = (0.8, 1.25)


def _pushed(rounds: Rounds, name: str) -> Iterator[Claim]:
    of_it = [one for one in rounds if one["step"] == f"{name}, pushed"]
    if not of_it:
        return
    shares = [one["most"] / one["reckoned"] for one in of_it if one["reckoned"]]
    reckoned = f"{format_count(of_it[-1]['reckoned'])} reckoned" + (f" ({span(shares)} of it)" if shares else "")
    yield claimed(
        f"Pushed in {mib(of_it[0]['limit'])}, {name} holds what was reckoned, and no more.",
        [ClaimCase(f"{reckoned}; {why_it_stopped(of_it[-1])}", in_every_round(map(_as_reckoned, of_it)))],
        f"in every round {_RECKONED[0]} to {_RECKONED[1]} of it, and want of memory stopped it: a process killed, memory refused "
        "it, or its own word",
    )  # fmt: skip


def _as_reckoned(one: Round) -> Side:
    """Held as many as was reckoned. What something else than its limit of memory stopped could hold more than it was seen to."""
    if not one["reckoned"]:
        return None
    least, most = _RECKONED
    share = one["most"] / one["reckoned"]
    if share > most:
        return False
    for_memory = one["stopped"] and (one["killed"] or one["refused"] or "memory" in one["complaint"])
    return share >= least if for_memory else None
