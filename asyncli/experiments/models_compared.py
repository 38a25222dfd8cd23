"""What is measured of the server models, and what the rounds come to. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from asyncli.experiments.judging import WORTH, Case, Interval, claimed, interval, shown, together
from asyncli.experiments.record import Chart, Claim, Column, Conclusions, Line, Round, Row, Table, of_step, ratio, turned
from asyncli.lab.models import MODELS

#: What a reader calls them.
WORDS = {
    "iterative": "iterative", "fork": "fork per client", "prefork": "prefork", "thread": "thread per client",
    "thread-pool": "thread pool (accept)", "thread-queue": "thread pool (queue)", "asyncio": "asyncio",
}  # fmt: skip
POOLS = ("prefork", "thread-pool", "thread-queue")
#: The source's order, cheapest first; it tries no asyncio.
_RANKS = {"iterative": 1.0, "thread-pool": 2.0, "thread-queue": 3.0, "thread": 4.0, "prefork": 5.0, "fork": 6.0}
_BY_COST = tuple(_RANKS)
# What two may differ by and cost about the same.
_ABOUT = 1.10


class Cell(NamedTuple):
    """One measurement: a model, and where it lies on the axes."""

    model: str
    processes: int
    size: int
    pool: int

    @property
    def step(self) -> str:
        """Its name among the rounds; the pool's only where the model has one."""
        pool = f", pool {self.pool}" if self.model in POOLS else ""
        return f"{self.model}{pool}, {self.processes} × {self.size} B"

    def words(self) -> str:
        """The same for a reader."""
        pool = f", {self.pool:,} members" if self.model in POOLS else ""
        return f"{WORDS[self.model]}{pool}, {many_words(self.processes)}, {self.size:,} B"


def many_words(processes: int) -> str:
    return "1 client process" if processes == 1 else f"{processes:,} client processes"


def _middle(axis: list[int]) -> int:
    """The value of an axis, in whatever order it was written, at which the others are measured."""
    return sorted(axis)[len(axis) // 2]


def cells(plan: dict[str, Any], number: int = 0) -> list[Cell]:
    """All that round ``number`` measures, neighbours differing in the model, and each axis in an order that turns with the round:
    what the host does meanwhile, and what came before, meets all of them alike.

    Each axis is measured at the middle of the others.
    """
    processes, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    models, pools = turned([*MODELS], number), turned(POOLS, number)
    found = [Cell(model, many, size, pool) for many in turned(plan["processes"], number) for model in models]
    found += [Cell(model, processes, many, pool) for many in turned(plan["bytes"], number) for model in models]
    found += [Cell(model, processes, size, many) for many in turned(plan["pools"], number) for model in pools]
    return list(dict.fromkeys(found))


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    processes, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    middle = {model: Cell(model, processes, size, pool) for model in MODELS}
    measured = [cell for cell in middle.values() if of_step(rounds, cell.step, "cpu_us")]
    order = sorted(measured, key=lambda cell: _median(rounds, cell, "cpu_us"))
    return Conclusions(
        [_ranking(rounds, order), _loads(plan, rounds), _rates(plan, rounds), _sizes(plan, rounds), _pool_sizes(plan, rounds)],
        [_bars(rounds, order), _pool_lines(plan, rounds), _process_bars(plan, rounds)],
        [*_claims(plan, rounds)],
    )


def _median(rounds: list[Round], cell: Cell, key: str) -> float:
    return Row("", {key: of_step(rounds, cell.step, key)}).median(key) or 0.0


_HOW = (
    "User and system are as the kernel samples them at its ticks. A process that ends before a tick hits it has no sample, and"
    " the kernel calls all of its time user time: for fork per client only the sum is told."
)


def _ranking(rounds: list[Round], order: list[Cell]) -> Table:
    columns = [
        Column("rank", "rank"), Column("theirs", "the source's"), Column("cpu_us", "CPU", "us"),
        Column("user_us", "user", "us"), Column("system_us", "system", "us"),
    ]  # fmt: skip
    rows = []
    for cell in order:
        values = {one.key: of_step(rounds, cell.step, one.key) for one in columns}
        theirs = [_RANKS[cell.model]] if cell.model in _RANKS else []
        rows.append(Row(WORDS[cell.model], values | {"rank": _ranks(rounds, cell, order), "theirs": theirs}))
    where = ""
    if order:
        one = order[0]
        pools = [cell.pool for cell in order if cell.model in POOLS]
        where = f", {many_words(one.processes)}, {one.size:,} B" + (f", pools of {pools[0]}" if pools else "")
    return Table(f"The models by CPU time a connection{where}", columns, rows, _HOW)


def _ranks(rounds: list[Round], cell: Cell, order: list[Cell]) -> list[float]:
    """Its rank in each round among the source's six, as the source ranks them."""
    if cell.model not in _RANKS:
        return []
    others = [one.step for one in order if one.model in _RANKS and one != cell]
    mine = [one for one in rounds if one["step"] == cell.step and one.get("cpu_us") is not None]
    cost = {(one["step"], one["round"]): one["cpu_us"] for one in rounds if one.get("cpu_us") is not None}
    return [1.0 + sum(cost.get((step, one["round"]), math.inf) < one["cpu_us"] for step in others) for one in mine]


def _loads(plan: dict[str, Any], rounds: list[Round]) -> Table:
    """The source's own table, of the runs as they were made."""
    columns = [
        Column("processes", "clients"), Column("user_s", "user CPU", "s"),
        Column("system_s", "system CPU", "s"), Column("cpu_s", "both", "s"), Column("loops", "loops"),
    ]  # fmt: skip
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    every = [Cell(model, many, size, pool) for model in MODELS for many in plan["processes"]]
    rows = [
        Row(cell.model, {one.key: of_step(rounds, cell.step, one.key) for one in columns})
        for cell in every
        if of_step(rounds, cell.step, "cpu_us")
    ]
    caption = "Clients are processes, loops the connections that each makes: as many as cost the server about the same CPU time."
    return Table(f"In the source's terms: client processes, the server's CPU time, {size:,} bytes", columns, rows, caption)


def _rates(plan: dict[str, Any], rounds: list[Round]) -> Table:
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    columns = [Column(str(many), many_words(many), "/s") for many in plan["processes"]]
    rows = [
        _across(rounds, WORDS[model], {str(many): Cell(model, many, size, pool) for many in plan["processes"]}, "per_s")
        for model in MODELS
    ]
    caption = "Client and server share this host's CPUs, so these are of both; the CPU time is the server's alone."
    return Table(f"Connections a second, {size:,} bytes", columns, _measured(rows), caption)


def _sizes(plan: dict[str, Any], rounds: list[Round]) -> Table:
    processes, _, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    columns = [Column(str(size), f"{size:,} B", "us") for size in sorted(plan["bytes"])]
    rows = [
        _across(rounds, WORDS[model], {str(size): Cell(model, processes, size, pool) for size in plan["bytes"]})
        for model in MODELS
    ]
    return Table("CPU time a connection by bytes", columns, _measured(rows), f"{many_words(processes).capitalize()}.")


def _pool_sizes(plan: dict[str, Any], rounds: list[Round]) -> Table:
    processes, size, _ = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    columns = [Column(str(pool), f"pool of {pool:,}", "us") for pool in sorted(plan["pools"])]
    rows = [
        _across(rounds, WORDS[model], {str(pool): Cell(model, processes, size, pool) for pool in plan["pools"]})
        for model in POOLS
    ]
    caption = f"{many_words(processes).capitalize()}: more members than that cannot all have a client."
    return Table("CPU time a connection by the pool's size", columns, _measured(rows), caption)


def _across(rounds: list[Round], label: str, of: dict[str, Cell], figure: str = "cpu_us") -> Row:
    """A row with a column for each cell."""
    return Row(label, {key: of_step(rounds, cell.step, figure) for key, cell in of.items()})


def _measured(rows: list[Row]) -> list[Row]:
    return [row for row in rows if any(row.values.values())]


def _bars(rounds: list[Round], order: list[Cell]) -> Chart:
    """User and system time; both in one where they are not told apart."""
    told = {"user": "user_us", "system": "system_us"}
    at = {cell: float(number) for number, cell in enumerate(order)}
    apart = [cell for cell in order if of_step(rounds, cell.step, "user_us")]
    rest = [cell for cell in order if cell not in apart]
    lines = [
        Line(label, [at[cell] for cell in apart], [_median(rounds, cell, key) for cell in apart]) for label, key in told.items()
    ]
    if rest:
        lines.append(
            Line("both, not told apart", [at[cell] for cell in rest], [_median(rounds, cell, "cpu_us") for cell in rest])
        )
    return Chart(
        "bars", "The server's CPU time a connection", "", "us a connection", lines, [WORDS[cell.model] for cell in order]
    )


def _line(rounds: list[Round], label: str, points: dict[int, Cell]) -> Line:
    there = {x: cell for x, cell in sorted(points.items()) if of_step(rounds, cell.step, "cpu_us")}
    return Line(label, [float(x) for x in there], [_median(rounds, cell, "cpu_us") for cell in there.values()])


def _pool_lines(plan: dict[str, Any], rounds: list[Round]) -> Chart:
    processes, size, _ = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    lines = [_line(rounds, WORDS[model], {pool: Cell(model, processes, size, pool) for pool in plan["pools"]}) for model in POOLS]
    title = f"Larger pools, {many_words(processes)}"
    return Chart("lines", title, "members of the pool", "us of CPU a connection", [line for line in lines if line.ys])


def _process_bars(plan: dict[str, Any], rounds: list[Round]) -> Chart:
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    there = [
        one for one in MODELS if any(of_step(rounds, Cell(one, many, size, pool).step, "cpu_us") for many in plan["processes"])
    ]
    lines = []
    for many in plan["processes"]:
        cells_of = {float(at): Cell(model, many, size, pool) for at, model in enumerate(there)}
        known = {at: cell for at, cell in cells_of.items() if of_step(rounds, cell.step, "cpu_us")}
        lines.append(Line(many_words(many), [*known], [_median(rounds, cell, "cpu_us") for cell in known.values()]))
    return Chart("bars", "More clients", "", "us of CPU a connection", lines, [WORDS[model] for model in there])


def _claims(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    """The source's order, neighbour by neighbour, each judged under every number of client processes."""
    iterative, *rest = _BY_COST
    yield from _dearer(plan, rounds, "The iterative server costs the least CPU a connection.", [(one, iterative) for one in rest])
    yield from _pools_equal(plan, rounds)
    than_pools = [("thread", "thread-pool"), ("thread", "thread-queue")]
    yield from _dearer(plan, rounds, "A thread per client costs more than either pool of threads.", than_pools)
    yield from _dearer(plan, rounds, "Preforked processes cost more than a thread per client.", [("prefork", "thread")])
    *rest, fork = _BY_COST
    yield from _dearer(plan, rounds, "A process forked for each client costs the most.", [(fork, one) for one in rest])
    yield from _pools_grow(plan, rounds)


def _dearer(plan: dict[str, Any], rounds: list[Round], claim: str, pairs: list[tuple[str, str]]) -> Iterator[Claim]:
    """That the first of each pair costs more than the second. Where a model is missing, it might be the one that decides.

    Each pair is judged by itself, and the one that decides is shown: the least of several that scatter alike would lie below all
    that it is compared with.
    """
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    cases, names = [], set()
    for many in plan["processes"]:
        found = {pair: known for pair in pairs if (known := _by(rounds, *(Cell(model, many, size, pool) for model in pair)))}
        if len(found) == len(pairs):
            (high, low), known = min(found.items(), key=lambda one: _weight(one[1]))
            name = f"{WORDS[high]} by {WORDS[low]}"
            names.add(name)
            words = f"{name} {known.words(WORTH)} with {many_words(many)}"
            cases.append(Case(words, together(one.above(WORTH) for one in found.values()), (known,)))
    if len(names) == 1:  # named once
        name = names.pop()
        cases = [one._replace(words=one.words.removeprefix(f"{name} ") if at else one.words) for at, one in enumerate(cases)]
    if cases:
        which = "the pair that decides: " if len(pairs) > 1 else ""
        rule = f"above {WORTH:g}{', of each pair' if which else ''}, each number of client processes by itself"
        yield claimed(claim, cases, rule, lead=f"CPU a connection, {which}")


def _weight(known: Interval) -> tuple[int, float]:
    """Of pairs that must all be above: what is refuted comes before what is not known, and that before what is shown."""
    return (False, None, True).index(known.above(WORTH)), known.low


def _by(rounds: list[Round], one: Cell, other: Cell) -> Interval | None:
    ratios = ratio(rounds, one.step, other.step, "cpu_us")
    return interval(ratios) if ratios else None


def _pools_equal(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    pair = ("thread-queue", "thread-pool")
    found = {many: _by(rounds, *(Cell(model, many, size, pool) for model in pair)) for many in plan["processes"]}
    bounds = (1 / _ABOUT, WORTH, _ABOUT)
    cases = [Case(f"{one.words(*bounds)} with {many_words(many)}", None, (one,)) for many, one in found.items() if one]
    if not cases:
        return
    lead, each = "CPU a connection, queue by accept ", "each number of client processes by itself"
    equal = [case._replace(side=one.within(1 / _ABOUT, _ABOUT)) for case in cases for one in case.known]
    rule = f"from {shown(1 / _ABOUT)} to {shown(_ABOUT)}, {each}"
    yield claimed("The two pools of threads cost about the same.", equal, rule, lead=lead)
    more = [case._replace(side=one.above(WORTH)) for case in cases for one in case.known]
    claim = "Of the two the queue costs more: it needs a mutex and a condition variable."
    yield claimed(claim, more, f"above {WORTH:g}, {each}", lead=lead)


def _pools_grow(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    """By the whole axis, and by the part of it on which there is a member for every client already."""
    processes, size, _ = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    large = max(plan["pools"])
    enough = min((pool for pool in plan["pools"] if pool >= processes), default=large)
    for claim, small in (
        ("Smaller pools do better.", min(plan["pools"])),
        ("Members of a pool beyond one for each client cost more.", enough),
    ):
        if small == large:
            continue
        found = {model: _by(rounds, *(Cell(model, processes, size, pool) for pool in (large, small))) for model in POOLS}
        cases = [Case(f"{WORDS[model]} {one.words(WORTH)}", one.above(WORTH), (one,)) for model, one in found.items() if one]
        if cases:
            lead = f"CPU a connection, {large:,} members by {small:,}, {many_words(processes)}: "
            yield claimed(claim, cases, f"above {WORTH:g}, each kind of pool by itself", lead=lead)
