"""What is measured of the server models, and what the rounds come to. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from asyncli.experiments.record import Chart, Claim, Column, Conclusions, Line, Round, Row, Table, Verdict, of_step, ratio, span
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
# What a ratio must be off 1 by before it is a difference: repeats of one cell differ by this much; more where none were made.
_SAME, _SAME_ONCE = 0.02, 0.05
_ABOUT = 0.10


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
    """The value of an axis at which the others are measured."""
    return axis[len(axis) // 2]


def cells(plan: dict[str, Any]) -> list[Cell]:
    """All that a round measures, neighbours differing in the model: what the host does meanwhile meets all of them alike.

    Each axis is measured at the middle of the others.
    """
    processes, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    found = [Cell(model, many, size, pool) for many in plan["processes"] for model in MODELS]
    found += [Cell(model, processes, many, pool) for many in plan["bytes"] for model in MODELS]
    found += [Cell(model, processes, size, many) for many in plan["pools"] for model in POOLS]
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
    " Verdicts: a ratio counts where it is more than 2 % off 1 in every round (5 % with fewer than three rounds); a claim"
    " holds in part where it does so with some numbers of client processes, or for some pools, only."
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

    Each pair is judged by itself: the least of several that scatter alike would lie below all that it is compared with.
    """
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    sides, decides = [], {}
    for many in plan["processes"]:
        found = {pair: _by(rounds, *(Cell(model, many, size, pool) for model in pair)) for pair in pairs}
        if all(found.values()):
            sides.append(min(map(_side, found.values())))
            decides[many] = min(found.items(), key=lambda one: statistics.median(one[1]))
    if not sides:
        return
    names = {many: f"{WORDS[high]} by {WORDS[low]}" for many, ((high, low), _) in decides.items()}
    spans = {many: f"{span(ratios)} with {many_words(many)}" for many, (_, ratios) in decides.items()}
    if len(set(names.values())) == 1:
        figures = f"{next(iter(names.values()))} {'; '.join(spans.values())}"
    else:
        figures = "; ".join(f"{names[many]} {spans[many]}" for many in spans)
    yield Claim(
        claim, _verdict(sides), f"{'CPU a connection, the closest pair: ' if len(pairs) > 1 else 'CPU a connection, '}{figures}."
    )


def _by(rounds: list[Round], one: Cell, other: Cell) -> list[float]:
    return ratio(rounds, one.step, other.step, "cpu_us")


def _side(ratios: list[float]) -> int:
    """1 where every round's ratio is above 1, -1 where every one is below, by more than repeats differ; else 0."""
    least = _SAME if len(ratios) > 2 else _SAME_ONCE
    return 1 if min(ratios) > 1 + least else -1 if max(ratios) < 1 - least else 0


def _verdict(sides: list[int]) -> Verdict:
    """Of the sides under each load: all as claimed, some, none, or none to be seen."""
    if all(side > 0 for side in sides):
        return "holds"
    if any(side > 0 for side in sides):
        return "holds in part"
    return "does not hold" if any(side < 0 for side in sides) else "cannot say"


def _pools_equal(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    _, size, pool = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    found = {
        many: ratios
        for many in plan["processes"]
        if (ratios := _by(rounds, *(Cell(model, many, size, pool) for model in ("thread-queue", "thread-pool"))))
    }
    if not found:
        return
    why = f"Queue by accept {'; '.join(f'{span(ratios)} with {many_words(many)}' for many, ratios in found.items())}."
    near = [max(abs(one - 1) for one in ratios) <= _ABOUT for ratios in found.values()]
    far = [min(abs(one - 1) for one in ratios) > _ABOUT for ratios in found.values()]
    equal: Verdict = "holds" if all(near) else "holds in part" if any(near) else "does not hold" if all(far) else "cannot say"
    yield Claim("The two pools of threads cost about the same.", equal, f"{why} About the same: within 10 %.")
    yield Claim(
        "Of the two the queue costs more: it needs a mutex and a condition variable.",
        _verdict([*map(_side, found.values())]),
        why,
    )


def _pools_grow(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    """By the whole axis, and by the part of it on which there is a member for every client already."""
    processes, size, _ = (_middle(plan[key]) for key in ("processes", "bytes", "pools"))
    large = max(plan["pools"])
    enough = min((pool for pool in plan["pools"] if pool >= processes), default=large)
    for claim, small in (
        ("Smaller pools do better.", min(plan["pools"])),
        ("Members of a pool beyond one for each client cost more.", enough),
    ):
        cells_of = {model: [Cell(model, processes, size, pool) for pool in (large, small)] for model in POOLS}
        found = {model: ratios for model, pair in cells_of.items() if small < large and (ratios := _by(rounds, *pair))}
        if found:
            each = "; ".join(f"{WORDS[model]} {span(ratios)}" for model, ratios in found.items())
            why = f"CPU a connection, {large:,} members by {small:,}, {many_words(processes)}: {each}."
            yield Claim(claim, _verdict([*map(_side, found.values())]), why)
