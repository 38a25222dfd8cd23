"""The original experiment's hosts as one fleet, of which one loses its cable in the midst of the hold, and gets it back."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.totals import fold, sum_of_counts
from asyncli.errors import EngineError, HostError, PlanError
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.judging import ClaimCase, claimed, in_every_round
from asyncli.experiments.netns_testbed import (
    CLIENTS,
    FLEET,
    SERVER,
    SESSION,
    SYSCTLS,
    Programs,
    Running,
    in_rounds,
    serving,
    soak_words,
    suffix,
)  # fmt: skip
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, FigureTable, Round, Rounds
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.metrics import STATUS_ACTIVE
from asyncli.run import Run
from asyncli.store.reader import read_run, read_with
from asyncli.units import format_duration, parse_duration

_PORT = 80
_STAYS, _CUT = CLIENTS
# What a soak takes beside its phases: looking at the hosts, the clocks' offsets, processes, preflight, report.
_SLACK_S = 90.0
# The last look at the server's sockets, so long before the hold's end.
_LAST_LOOK_S = 1.0
_LOOK_S = 30.0
# Beyond the time that the ramp takes for as many: ticks come once a second.
_SOON_S = 5.0
_TICK_S = 1.2

_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END = (
    "before the cut", "the host is silent", "the host is lost", "all are held again", "the cable is put back",
    "the server has let the dead go", "near the hold's end",
)  # fmt: skip
_COLUMNS = [
    Column("after_s", "after the cut", "s"), Column("held", "held by us"), Column("active", "Active"), Column("opened", "opened"),
    Column("lost", "lost"), Column("reopened", "opened again"), Column("of_9", "server's sockets of .9"),
    Column("of_10", "server's sockets of .10"),
]  # fmt: skip


class PeerCounts(NamedTuple):
    """What the server's kernel has of either client, at an instant of this host's monotonic clock."""

    at_s: float
    counts: Counter[str]


class Watched(NamedTuple):
    """When the cable was pulled and put back (s, this host's monotonic clock), and what was seen before, then and at the end."""

    cut_s: float
    back_s: float
    before: PeerCounts
    then: PeerCounts
    at_end: PeerCounts


# Measuring.


async def _run(context: Context) -> None:
    # It says in one line that Dask is not installed here.
    importlib.import_module("asyncli.cluster.link")
    hold_s, cut_s = parse_duration(context.plan["duration"]), parse_duration(context.plan["cut"])
    if hold_s < (least_s := cut_s + 2 * _LAST_LOOK_S):
        raise PlanError(
            f"--duration: {context.plan['duration']} is too short for a cut of {context.plan['cut']}; "
            f"write {format_duration(least_s)} or more"
        )
    await in_rounds(context, "nginx with a fleet of two", _round)


async def _round(context: Context, number: int, folder: Path) -> None:
    plan = context.plan
    file = folder / f"run{suffix(number)}.db"
    with Network(FLEET, SYSCTLS) as network:
        # Room for the dead beside those that are opened again.
        most = (len(CLIENTS) + 1) * plan["connections"]
        async with (
            serving(context, network, most) as (nginx, _),
            Programs(network) as programs,
        ):
            url, token = await programs.agent(nginx.status_url)
            address = await programs.cluster(SESSION)
            words = soak_words(plan, nginx, len(CLIENTS) * plan["connections"], file)
            words += ["--cluster", address, "--agent", url, "--log-json"]
            watched = await _watch(plan, network, programs.start(SESSION, "the soak", "asyncli", words, token))
    run = await asyncio.to_thread(read_run, file)
    told_s = await asyncio.to_thread(read_with, file, _told)
    found = figures_of(run, told_s, watched, {host: network.address(host) for host in CLIENTS})
    for step, one in found.items():
        context.add(step, number, **one)
    context.findings += [one for one in run.findings if one.code.startswith("host_")]
    context.tell(number, "the fleet", f"{found['sum']['held']:,} of {found['sum']['asked']:,} held at the end; {file}")


async def _watch(plan: dict[str, Any], network: Network, soak: Running) -> Watched:
    """Pull the cable of one client midway in the hold, put it back, and wait for the soak's end."""
    hold_s, cut_s = parse_duration(plan["duration"]), parse_duration(plan["cut"])
    ramp_s = len(CLIENTS) * plan["connections"] / plan["rate"]
    await soak.until_said('"event":"phase","phase":"hold"', parse_duration(plan["baseline"]) + ramp_s + _SLACK_S)
    begun_s = time.monotonic()
    await _until(begun_s + (hold_s - cut_s) / 2, soak)
    before, cut_at_s = _look(network), time.monotonic()
    network.link(_CUT, "down")
    await _until(cut_at_s + cut_s, soak)
    then, back_at_s = _look(network), time.monotonic()
    network.link(_CUT, "up")
    await _until(begun_s + hold_s - _LAST_LOOK_S, soak)
    at_end = _look(network)
    if not await child.until(lambda: soak.ended, parse_duration(plan["baseline"]) + ramp_s + _SLACK_S):
        raise EngineError(f"the soak has not ended ({soak.last_words}); look at the host's load")
    return Watched(cut_at_s, back_at_s, before, then, at_end)


async def _until(at_s: float, soak: Running) -> None:
    """Until that instant of the monotonic clock. Raises :class:`EngineError` where the soak ends before."""
    if await child.until(lambda: soak.ended, at_s - time.monotonic()):
        raise EngineError(f"the soak ended with {soak.process.returncode} in the midst of it: {soak.last_words}")


def _look(network: Network) -> PeerCounts:
    # By netlink: /proc/net/tcp takes five seconds for 75,000, in which they change.
    argv = ["ss", "--no-header", "--tcp", "--numeric", "state", "established", "sport", "=", f":{_PORT}"]
    try:
        with network.inside(SERVER):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_LOOK_S, check=True)
    except FileNotFoundError:
        raise HostError("there is no program called ss on this host; install it (apt-get install iproute2)") from None
    except subprocess.SubprocessError as error:
        raise HostError(f"'{' '.join(argv)}' failed ({error}); look at the host's load") from None
    return PeerCounts(time.monotonic(), by_peer(done.stdout))


def by_peer(listed: str) -> Counter[str]:
    """Connections by the peer's address, of what ss(8) lists."""
    return Counter(line.split()[3].rpartition(":")[0] for line in listed.splitlines())


# Reckoning: pure.


def _told(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """The findings' codes, and when each was made (s)."""
    return [(str(code), float(t_s)) for code, t_s in connection.execute("SELECT code, t_s FROM findings ORDER BY rowid")]


def figures_of(
    run: Run, told_s: Sequence[tuple[str, float]], watched: Watched, addresses: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Each moment's figures, what all of it adds up to (``sum``), and the ``timeline``, by the seconds after the cut."""
    zero_s = run.environment["clock"]["monotonic_s"]
    cut_s, back_s = watched.cut_s - zero_s, watched.back_s - zero_s
    asked, active = run.plan.connections, run.series(STATUS_ACTIVE)
    end_s = run.stop_s

    def told(code: str) -> float | None:
        return next((t_s for name, t_s in told_s if name == code and t_s > cut_s), None)

    def first_held(after_s: float | None) -> float | None:
        return None if after_s is None else next((t_s for t_s, tick in run.ticks if t_s > after_s and tick.held == asked), None)

    lost_s = told("host_lost")
    again_s = first_held(lost_s)
    gone_s = None
    if again_s is not None:
        # The agent's poller is one of them.
        later = zip(active.t_s, active.values, strict=True)
        gone_s = next((t_s for t_s, count in later if max(again_s, back_s) < t_s <= end_s and count <= asked + 1), None)
    moments = {
        _BEFORE: (cut_s, watched.before), _SILENT: (told("host_silent"), None), _LOST: (lost_s, None), _AGAIN: (again_s, None),
        _BACK: (back_s, watched.then), _GONE: (gone_s, None), _END: (watched.at_end.at_s - zero_s, watched.at_end),
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, (at_s, seen) in moments.items():
        if at_s is not None:
            # That a host is silent shows in the next tick. That it is lost as well, but by then others have opened some again: of
            # the instant between, the rest is as it was.
            late = [tick for t_s, tick in run.ticks if t_s <= at_s + _TICK_S]
            past = late if name == _SILENT else [tick for t_s, tick in run.ticks if t_s <= at_s]
            counts = sum_of_counts(past)
            lost = sum_of_counts(late).lost if name == _LOST else counts.lost
            # What was opened shows in the first page that was read after it.
            read = active.first(since_s=at_s) if name == _AGAIN else active.last(until_s=at_s)
            found[name] = {
                "after_s": at_s - cut_s, "held": past[-1].held if past else 0, "active": read, "opened": counts.opened,
                "lost": lost, "reopened": counts.reopened,
                **({"of_9": seen.counts[addresses[_STAYS]], "of_10": seen.counts[addresses[_CUT]]} if seen is not None else {}),
            }  # fmt: skip
    totals = fold(run)
    known, _ = reconcile(run, totals)
    whole = totals.whole
    # Of no use without a hold, or where nobody was lost.
    failures = fitness(None if run.complete else "the soak did not come to its end", None if totals.held else "nothing was held")
    found["sum"] = {
        **failures, "asked": asked, "held": totals.held, "opened": whole.opened, "lost": whole.lost,
        "causes": {name: dead.count for name, dead in whole.deaths.items()}, "failed": sum(whole.failures.values()),
        "accepted": known.accepts_delta, "lost_after_s": None if lost_s is None else lost_s - cut_s,
        "again_s": None if again_s is None or lost_s is None else again_s - lost_s,
    }  # fmt: skip
    found["timeline"] = {
        **failures, "held_s": [t_s - cut_s for t_s, _ in run.ticks], "held": [tick.held for _, tick in run.ticks],
        "active_s": [t_s - cut_s for t_s in active.t_s], "active": list(active.values),
    }  # fmt: skip
    return found


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its table and picture, and its claims."""
    rounds = Rounds(measured)
    by_step = {name: [one for one in rounds if one["step"] == name] for name in (_BEFORE, _BACK, _GONE, _END, "sum", "timeline")}
    rows = [rounds.row(step, _COLUMNS) for step in (_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END)]
    table = FigureTable(
        "The cut",
        _COLUMNS,
        [row for row in rows if row.values["after_s"]],
        "A host that is silent holds nothing that counts; when it is lost, nobody has opened its share again yet. Active counts "
        "the agent's poller, and connections whose client is gone for as long as the server does not know. The server's sockets: "
        "established ones in its kernel, by the client's address.",
    )
    charts = []
    if by_step["timeline"]:
        one = by_step["timeline"][0]
        kinds = {"held by us": "held", "active on the server": "active"}
        lines = [ChartLine(label, one[f"{kind}_s"], one[kind]) for label, kind in kinds.items()]
        charts.append(Chart("lines", "Before, while and after", "seconds after the cut", "connections", lines))
    return Conclusions([table], charts, [*_claims(plan, by_step)])


def _claims(plan: dict[str, Any], by_step: dict[str, list[Round]]) -> Iterator[Claim]:
    sums = by_step["sum"]
    if not sums:
        return
    first = sums[0]

    def claim(text: str, words: str, sides: Iterable[bool], rule: str) -> Claim:
        return claimed(text, [ClaimCase(words, in_every_round(sides))], rule)

    causes = ", ".join(f"{count:,} {name}" for name, count in first["causes"].items()) or "none"
    # One round with another loss is enough to refute it.
    ours = all(set(one["causes"]) <= {"generator_lost"} and not one["failed"] for one in sums)
    yield claim(
        "Nothing is lost on the server's account.", f"Lost: {causes}; failed to connect: {first['failed']:,}", [ours],
        "all that are lost are the generator's own loss, and none failed, in every round",
    )  # fmt: skip
    yield claim(
        "The sum adds up to the last connection.",
        f"{first['opened']:,} opened - {first['lost']:,} lost = {first['held']:,} held, of {first['asked']:,}",
        (one["opened"] - one["lost"] == one["held"] == one["asked"] for one in sums),
        "opened less lost is held, and all that were asked for, in every round",
    )
    accepted = "not known how many" if first["accepted"] is None else f"{first['accepted']:,.0f}"
    known = all(one["accepted"] is not None for one in sums)
    yield claim(
        "The server accepted as many as were opened.", f"{accepted} accepted, {first['opened']:,} opened",
        [one["accepted"] == one["opened"] for one in sums] if known else [],
        "the same count, less the agent's own connection, in every round",
    )  # fmt: skip
    if first["again_s"] is not None:
        # Each process opens at its own part of the pace, whosever it was.
        soon_s = len(CLIENTS) * plan["connections"] / plan["rate"] + _SOON_S
        yield claim(
            "Once the host is given up, its share is open again as fast as the ramp opened it.",
            f"lost {first['lost_after_s']:.1f} s after the cut, all held again {first['again_s']:.1f} s later",
            (one["again_s"] is not None and one["again_s"] <= soon_s for one in sums),
            f"within {soon_s:.1f} s",
        )
    before, back = by_step[_BEFORE], by_step[_BACK]
    if not (before and back):
        return
    grown = [(now["of_9"] - then["of_9"], then["of_10"]) for then, now in zip(before, back, strict=False)]
    yield claim(
        "The other host opened them: the server's kernel has them from there.",
        f"its sockets of the other grew by {grown[0][0]:,}; {grown[0][1]:,} were of the one that was cut off",
        (more == lost for more, lost in grown),
        "as many more as the one that was cut off had, in every round",
    )
    words = f"Active {back[0]['active']:,.0f} when the cable was put back, {back[0]['of_10']:,} of them dead"
    if gone := by_step[_GONE]:
        words += f"; gone {gone[0]['after_s'] - back[0]['after_s']:.0f} s later"
    elif end := by_step[_END]:
        words += f"; {end[0]['of_10']:,} still there at the hold's end"
    yield claim(
        "The server counts the dead ones until it learns that they are.", words,
        (one["active"] == one["of_9"] + one["of_10"] + 1 and one["of_10"] > 0 for one in back),
        "Active is the sockets of both and the poller, those of the one that was cut off among them, in every round",
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="client-lost",
    title="One nginx, a fleet of two, and one of them cut off",
    question="What becomes of {connections:,} connections of each of two hosts when one loses its cable, and gets it back?",
    source="ours: the hosts of the original experiment, as one fleet by Dask, with an agent beside nginx",
    defaults={
        "rounds": 1,
        "duration": "100s",
        "connections": 25_000,
        "rate": 4_000,
        "keepalive": "60s",
        "baseline": "5s",
        "cut": "40s",
        "only": [],
    },
    quick={"connections": 200, "duration": "28s", "rate": 800, "keepalive": "8s", "baseline": "1s", "cut": "25s"},
    run=_run,
    conclude=conclude,
    servers=("nginx",),
    # One of them must hold all: a client's ports are 60,001.
    bounds={
        "connections": (1, 30_000),
        "rate": (1, 10_000),
        "keepalive": (2.0, 3_600.0),
        "rounds": (1, 100),
        # A host is lost after 20 s; the agent keeps ten minutes, and what was cut for longer is another thing.
        "cut": (1.0, 600.0),
    },
)
