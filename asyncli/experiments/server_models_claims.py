"""What is measured of the server models, and what the rounds come to. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from asyncli.experiments.judging import WORTH, ClaimCase, Interval, claimed, intervals, shown, together
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Claim,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Round,
    Rounds,
    Unit,
    bars,
    turned,
)  # fmt: skip
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


class ModelLoad(NamedTuple):
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


def at(
    plan: dict[str, Any], model: str, processes: int | None = None, size: int | None = None, pool: int | None = None
) -> ModelLoad:
    """The model's cell on each axis where it is given, else at the middle value, in whatever order the axis was written."""
    middle = [sorted(plan[key])[len(plan[key]) // 2] for key in ("processes", "bytes", "pools")]
    given = (processes, size, pool)
    return ModelLoad(model, *(there if one is None else one for one, there in zip(given, middle, strict=True)))


def cells(plan: dict[str, Any], number: int = 0) -> list[ModelLoad]:
    """All that round ``number`` measures, neighbours differing in the model, and each axis in an order that turns with the round:
    what the host does meanwhile, and what came before, meets all of them alike.

    Each axis is measured at the middle of the others.
    """
    models, pools = turned([*MODELS], number), turned(POOLS, number)
    found = [at(plan, model, processes=many) for many in turned(plan["processes"], number) for model in models]
    found += [at(plan, model, size=many) for many in turned(plan["bytes"], number) for model in models]
    found += [at(plan, model, pool=many) for many in turned(plan["pools"], number) for model in pools]
    return list(dict.fromkeys(found))


_HOW = (
    "User and system are as the kernel samples them at its ticks. A process that ends before a tick hits it has no sample, and"
    " the kernel calls all of its time user time: for fork per client only the sum is told."
)


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    rounds = Rounds(measured)
    middle = [at(plan, model) for model in MODELS]
    order = sorted((cell for cell in middle if _cpu(rounds, cell) is not None), key=lambda cell: _cpu(rounds, cell) or 0.0)
    clients = many_words(middle[0].processes).capitalize()
    size = middle[0].size
    tables = [
        _ranking(rounds, order),
        _loads(plan, rounds),
        _by_axis(
            f"Connections a second, {size:,} bytes", rounds,
            {many_words(many): [at(plan, model, processes=many) for model in MODELS] for many in plan["processes"]},
            "Client and server share this host's CPUs, so these are of both; the CPU time is the server's alone.", "per_s", "/s",
        ),
        _by_axis(
            "CPU time a connection by bytes", rounds,
            {f"{many:,} B": [at(plan, model, size=many) for model in MODELS] for many in sorted(plan["bytes"])}, f"{clients}.",
        ),
        _by_axis(
            "CPU time a connection by the pool's size", rounds,
            {f"pool of {many:,}": [at(plan, model, pool=many) for model in POOLS] for many in sorted(plan["pools"])},
            f"{clients}: more members than that cannot all have a client.",
        ),
    ]  # fmt: skip
    charts = [_bars(rounds, order), _pool_lines(plan, rounds), _process_bars(plan, rounds)]
    return Conclusions(tables, charts, _claims(plan, rounds))


def _cpu(rounds: Rounds, cell: ModelLoad) -> float | None:
    return rounds.median(cell.step, "cpu_us")


def _ranking(rounds: Rounds, order: list[ModelLoad]) -> FigureTable:
    columns = [
        Column("rank", "rank"), Column("theirs", "the source's"), Column("cpu_us", "CPU", "us"),
        Column("user_us", "user", "us"), Column("system_us", "system", "us"),
    ]  # fmt: skip
    rows = []
    for cell in order:
        row = rounds.row(cell.step, columns, label=WORDS[cell.model])
        row.values |= {"rank": _ranks(rounds, cell, order), "theirs": [_RANKS[cell.model]] if cell.model in _RANKS else []}
        rows.append(row)
    where = ""
    if order:
        pools = [cell.pool for cell in order if cell.model in POOLS]
        where = f", {many_words(order[0].processes)}, {order[0].size:,} B" + (f", pools of {pools[0]}" if pools else "")
    return FigureTable(f"The models by CPU time a connection{where}", columns, rows, _HOW)


def _ranks(rounds: Rounds, cell: ModelLoad, order: list[ModelLoad]) -> list[float]:
    """Its rank in each round among the source's six, as the source ranks them."""
    if cell.model not in _RANKS:
        return []
    others = [rounds.by_round(one.step, "cpu_us") for one in order if one.model in _RANKS and one != cell]
    mine = rounds.by_round(cell.step, "cpu_us")
    return [1.0 + sum(other.get(number, math.inf) < cpu_us for other in others) for number, cpu_us in mine.items()]


def _loads(plan: dict[str, Any], rounds: Rounds) -> FigureTable:
    """The source's own table, of the runs as they were made."""
    columns = [
        Column("processes", "clients"), Column("user_s", "user CPU", "s"),
        Column("system_s", "system CPU", "s"), Column("cpu_s", "both", "s"), Column("loops", "loops"),
    ]  # fmt: skip
    every = [at(plan, model, processes=many) for model in MODELS for many in plan["processes"]]
    rows = [rounds.row(cell.step, columns, label=cell.model) for cell in every if _cpu(rounds, cell) is not None]
    caption = "Clients are processes, loops the connections that each makes: as many as cost the server about the same CPU time."
    title = f"In the source's terms: client processes, the server's CPU time, {every[0].size:,} bytes"
    return FigureTable(title, columns, rows, caption)


def _by_axis(
    title: str,
    rounds: Rounds,
    axis: dict[str, list[ModelLoad]],
    caption: str,
    figure: str = "cpu_us",
    unit: Unit = "us",
) -> FigureTable:
    """A column for each value of an axis, a row for each model: heading -> the cell of each there."""
    columns = [Column(str(number), heading, unit) for number, heading in enumerate(axis)]
    values: dict[str, dict[str, list[float]]] = {}
    for number, of_models in enumerate(axis.values()):
        for cell in of_models:
            values.setdefault(WORDS[cell.model], {})[str(number)] = rounds.of(cell.step, figure)
    return FigureTable(title, columns, [FigureRow(label, row) for label, row in values.items() if any(row.values())], caption)


def _bars(rounds: Rounds, order: list[ModelLoad]) -> Chart:
    """User and system time; both in one where they are not told apart."""

    def of(label: str, key: str, *, apart: bool) -> ChartLine:
        mine = [bool(rounds.of(cell.step, "user_us")) is apart for cell in order]
        return bars(label, [rounds.median(cell.step, key) if it else None for cell, it in zip(order, mine, strict=True)])

    lines = [of("user", "user_us", apart=True), of("system", "system_us", apart=True)]
    if (both := of("both, not told apart", "cpu_us", apart=False)).ys:
        lines.append(both)
    categories = [WORDS[cell.model] for cell in order]
    return Chart("bars", "The server's CPU time a connection", "", "us a connection", lines, categories)


def _pool_lines(plan: dict[str, Any], rounds: Rounds) -> Chart:
    lines = []
    for model in POOLS:
        found = {float(pool): _cpu(rounds, at(plan, model, pool=pool)) for pool in sorted(plan["pools"])}
        known = {pool: cpu for pool, cpu in found.items() if cpu is not None}
        lines.append(ChartLine(WORDS[model], list(known), list(known.values())))
    title = f"Larger pools, {many_words(at(plan, POOLS[0]).processes)}"
    return Chart("lines", title, "members of the pool", "us of CPU a connection", [line for line in lines if line.ys])


def _process_bars(plan: dict[str, Any], rounds: Rounds) -> Chart:
    known = {many: [_cpu(rounds, at(plan, model, processes=many)) for model in MODELS] for many in plan["processes"]}
    there = [number for number in range(len(MODELS)) if any(values[number] is not None for values in known.values())]
    lines = [bars(many_words(many), [values[number] for number in there]) for many, values in known.items()]
    categories = [WORDS[MODELS[number]] for number in there]
    return Chart("bars", "More clients", "", "us of CPU a connection", lines, categories)


def _claims(plan: dict[str, Any], rounds: Rounds) -> list[Claim]:
    """The source's order, neighbour by neighbour, each judged under every number of client processes."""
    iterative, *dearer, fork = _BY_COST
    return [
        *_dearer(
            plan, rounds, "The iterative server costs the least CPU a connection.", [(one, iterative) for one in (*dearer, fork)]
        ),
        *_pools_equal(plan, rounds),
        *_dearer(
            plan, rounds, "A thread per client costs more than either pool of threads.",
            [("thread", "thread-pool"), ("thread", "thread-queue")],
        ),
        *_dearer(plan, rounds, "Preforked processes cost more than a thread per client.", [("prefork", "thread")]),
        *_dearer(
            plan, rounds, "A process forked for each client costs the most.", [(fork, one) for one in (iterative, *dearer)]
        ),
        *_pools_grow(plan, rounds),
    ]  # fmt: skip


def _dearer(plan: dict[str, Any], rounds: Rounds, claim: str, pairs: list[tuple[str, str]]) -> Iterator[Claim]:
    """That the first of each pair costs more than the second. Where a model is missing, it might be the one that decides.

    Each pair is judged by itself, and the one that decides is shown: the least of several that scatter alike would lie below all
    that it is compared with.
    """
    cases = []
    for many in plan["processes"]:
        found = intervals({pair: _ratio(rounds, *(at(plan, model, processes=many) for model in pair)) for pair in pairs})
        if len(found) == len(pairs):
            (high, low), known = min(found.items(), key=lambda one: _weight(one[1]))
            words = f"{WORDS[high]} by {WORDS[low]} {known.words(WORTH)} with {many_words(many)}"
            cases.append(ClaimCase(words, together(one.above(WORTH) for one in found.values()), (known,)))
    if cases:
        which = "the pair that decides: " if len(pairs) > 1 else ""
        rule = f"above {WORTH:g}{', of each pair' if which else ''}, each number of client processes by itself"
        yield claimed(claim, cases, rule, lead=f"CPU a connection, {which}")


def _weight(known: Interval) -> tuple[int, float]:
    """Of pairs that must all be above: what is refuted comes before what is not known, and that before what is shown."""
    return (False, None, True).index(known.above(WORTH)), known.low


def _ratio(rounds: Rounds, one: ModelLoad, other: ModelLoad) -> list[float]:
    return rounds.ratio(one.step, other.step, "cpu_us")


def _pools_equal(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    pair = ("thread-queue", "thread-pool")
    found = intervals({many: _ratio(rounds, *(at(plan, model, many) for model in pair)) for many in plan["processes"]})
    if not found:
        return
    least = 1 / _ABOUT
    words = {many: f"{known.words(least, WORTH, _ABOUT)} with {many_words(many)}" for many, known in found.items()}
    lead, each = "CPU a connection, queue by accept ", "each number of client processes by itself"
    equal = [ClaimCase(words[many], known.within(least, _ABOUT), (known,)) for many, known in found.items()]
    rule = f"from {shown(least)} to {shown(_ABOUT)}, {each}"
    yield claimed("The two pools of threads cost about the same.", equal, rule, lead=lead)
    more = [ClaimCase(words[many], known.above(WORTH), (known,)) for many, known in found.items()]
    claim = "Of the two the queue costs more: it needs a mutex and a condition variable."
    yield claimed(claim, more, f"above {WORTH:g}, {each}", lead=lead)


def _pools_grow(plan: dict[str, Any], rounds: Rounds) -> Iterator[Claim]:
    """By the whole axis, and by the part of it on which there is a member for every client already."""
    processes, large = at(plan, POOLS[0]).processes, max(plan["pools"])
    enough = min((pool for pool in plan["pools"] if pool >= processes), default=large)
    for claim, small in (
        ("Smaller pools do better.", min(plan["pools"])),
        ("Members of a pool beyond one for each client cost more.", enough),
    ):
        found = {model: _ratio(rounds, *(at(plan, model, pool=pool) for pool in (large, small))) for model in POOLS}
        known = intervals(found)
        cases = [ClaimCase(f"{WORDS[model]} {one.words(WORTH)}", one.above(WORTH), (one,)) for model, one in known.items()]
        if cases and small != large:
            lead = f"CPU a connection, {large:,} members by {small:,}, {many_words(processes)}: "
            yield claimed(claim, cases, f"above {WORTH:g}, each kind of pool by itself", lead=lead)
