"""Generations of the server's processes: a reload starts new ones beside those that still hold the
connections.

The new ones take memory of their own, which no connection brought, so a cost and a growth are of
one generation. A generation is told from a pool that grows: it is at least as many workers at once
as the server had, and they stay. Where processes follow the connections, one for each, it is also
more than the connections of that time. A process that takes no worker's place, such as a helper
that a server of one process starts, is none (``server.joined``). Whether earlier workers still
accept is not known, so a generation may also be further workers. Other processes that come or go
are told with their instant.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from asyncli.analysis.asked_by_plan import command_at, command_of_ends, ticks_before_reading
from asyncli.analysis.constants import FEWEST, HALF, MISSED_S
from asyncli.findings.probes import server_ended
from asyncli.findings.server import server_processes_changed, server_reloaded
from asyncli.model.metrics import (
    SERVER_BRIEF,
    SERVER_ENDED,
    SERVER_JOINED,
    SERVER_PROCESSES,
    SERVER_STARTED,
)
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series


class Generation(msgspec.Struct, frozen=True):
    """``started`` processes that appeared between two samples (s), beside ``workers`` of the
    generation before.
    """

    after_s: float
    at_s: float
    started: int
    workers: int


def generations(run: Run) -> list[Generation]:
    """The generations that followed the one before the first connect."""
    ended = run.series(SERVER_ENDED)
    processes = run.series(SERVER_PROCESSES)
    # Files of older versions do not tell workers from other processes.
    started = run.series(SERVER_JOINED) or run.series(SERVER_STARTED)
    follow = has_processes_for_connections(run)
    followers = []
    for (before_s, before), (after_s, after) in pairwise(started.rows()):
        new = after - before
        if new <= 0 or after_s <= run.first_connect_s:
            continue
        # Those that were killed may be replaced after the next reading: they were workers all the
        # same, and what takes their place is beside nobody.
        lately_s = before_s - MISSED_S
        lately = processes.between(lately_s, before_s).values
        # The root is no worker, but of a server with one process.
        workers = max(1.0, max(lately, default=1.0) - 1.0)
        if new < workers:
            continue
        if follow and new <= _opened_between(run, before_s, after_s):
            continue
        settled_s = after_s + MISSED_S
        joined = _rise(started, before_s, settled_s)
        left = _rise(ended, lately_s, settled_s)
        if joined - left >= workers:
            followers.append(Generation(before_s, after_s, round(new), round(workers)))
    return followers


def _rise(counter: Series, from_s: float, to_s: float) -> float:
    return (counter.at(to_s) or 0.0) - (counter.at(from_s) or 0.0)


def _opened_between(run: Run, before_s: float, after_s: float) -> int:
    """How many connections were opened between two samples."""
    ticks = run.ticks_between(before_s - 1.0, after_s + 1.0)
    return sum(tick.opened for _, tick in ticks)


def has_processes_for_connections(run: Run) -> bool:
    """Whether the number of the server's processes rises with the connections."""
    processes = run.series(SERVER_PROCESSES)
    before = processes.last(until_s=run.first_connect_s)
    if before is None:
        return False
    risen = max(processes.between(run.first_connect_s, run.stop_s).values, default=before) - before
    return risen >= HALF * max(run.held.values)


class LateEnd(msgspec.Struct, frozen=True):
    """Of the ``workers`` that a server had when a command of the plan had others started beside
    them, at most ``ended`` have ended so far. ``number``: of the command's event, which began
    ``at_s``.
    """

    number: int
    at_s: float
    workers: int
    ended: int


def late_end(run: Run, to_s: float) -> LateEnd | None:
    """The last command of the plan whose earlier workers may be those that ended by ``to_s``; None
    without one, and where more have ended than there were.
    """
    begun = [new for new in generations(run) if new.at_s <= to_s]
    if not begun:
        return None
    generation = begun[-1]
    command = command_at(run, generation.at_s)
    if command is None:
        return None
    ended = round(_rise(run.series(SERVER_ENDED), generation.after_s, to_s + MISSED_S))
    if ended > generation.workers:
        return None
    number = command.fields["number"]
    return LateEnd(number, command.at_s, generation.workers, ended)


def generation_ends_s(run: Run) -> float:
    """The last sample (s) before the server's processes were joined by a new generation; infinite
    if they never were.
    """
    return next((generation.after_s for generation in generations(run)), math.inf)


def changes(run: Run) -> list[Finding]:
    """A finding for each new generation of processes until the drain, and of all others that came
    or went without losses.
    """
    new = [generation for generation in generations(run) if generation.at_s <= run.stop_s]
    findings = [
        server_reloaded(generation.at_s, generation.started, generation.workers)
        for generation in new
    ]
    if not has_processes_for_connections(run) or _end_before_connections(run):
        findings += _others(run, new)
    return findings


def _end_before_connections(run: Run) -> bool:
    """Whether more processes of the server ended than connections, as of one that starts a process
    for each request: on a busy machine as many of these live at once as there are connections.
    """
    over = 0
    for _, tick in run.ticks_between(run.first_connect_s, run.stop_s):
        over += tick.lost + tick.failed + tick.coming_back_lost + tick.ended_by_events
    ended = _rise(run.series(SERVER_ENDED), run.first_connect_s, run.stop_s)
    return ended - over >= HALF * max(run.held.values)


def _others(run: Run, new: list[Generation]) -> list[Finding]:
    """Of the others, those in the time of each command of the plan, and those at no command's."""
    settled = [generation.at_s for generation in new]
    started = _apart_from(_steps(run, SERVER_STARTED), settled)
    ended = _apart_from(_steps(run, SERVER_ENDED), settled)
    brief = misses_processes(run)
    instants_of: dict[int | None, list[float]] = {}
    for t_s in sorted({*started, *ended}):
        number = command_of_ends(run, _gone_s(run, t_s) or t_s)
        instants_of.setdefault(number, []).append(t_s)
    findings = []
    counted: set[tuple[float, int]] = set()
    for number, instants in instants_of.items():
        came = sum(started.get(t_s, 0) for t_s in instants)
        went = sum(ended.get(t_s, 0) for t_s in instants)
        by_events = _ended_by_events(run, instants, number, counted) if went else 0
        from_s = _gone_s(run, instants[0]) or instants[0]
        findings.append(
            server_processes_changed(
                came, went, from_s, instants[-1], brief=brief, by_events=by_events
            )
        )
    return findings


def _gone_s(run: Run, read_s: float) -> float | None:
    """When (s) the server was seen to have ended, of which the reading at ``read_s`` is the first
    one after it was back; None of any other.
    """
    place = bisect_left(run.server_read_s, read_s) - 1
    before_s = run.server_read_s[place] if place >= 0 else read_s
    for finding in run.findings:
        if finding.code == server_ended.code and before_s < finding.fields["at_s"] < read_s:
            return float(finding.fields["at_s"])
    return None


def _ended_by_events(
    run: Run, instants: Sequence[float], command: int | None, counted: set[tuple[float, int]]
) -> int:
    """How many connections events ended in the seconds about these instants, or the server of those
    whom an event had silenced, without those of other commands than this one. ``counted``: in which
    seconds those of which events are in an earlier finding, and then those of this one too.
    """
    total = 0
    for at_s in instants:
        for t_s, tick in ticks_before_reading(run, at_s):
            for number, counts in tick.events.items():
                is_of_another = number != command and number in run.commands
                if is_of_another or (t_s, number) in counted:
                    continue
                counted.add((t_s, number))
                total += counts.ended - counts.silenced + counts.closed
    return total


def misses_processes(run: Run) -> bool:
    """Whether processes of the server came and went between two readings: most of those that ended
    had been seen by one reading only. Then its CPU time is a lower bound.
    """
    brief = run.series(SERVER_BRIEF).last() or 0.0
    ended = run.series(SERVER_ENDED).last() or 0.0
    return brief >= FEWEST and brief >= HALF * ended


def _apart_from(steps: dict[float, int], settled: list[float]) -> dict[float, int]:
    """The steps that are at no new generation's instant."""
    apart = {}
    for t_s, step in steps.items():
        if not any(at_s - MISSED_S <= t_s <= at_s + MISSED_S for at_s in settled):
            apart[t_s] = step
    return apart


def _steps(run: Run, name: str) -> dict[float, int]:
    """The instant (s) of each rise of a counter of processes while connections were held and none
    was lost -> the rise.
    """
    steps = {}
    for (before_s, before), (after_s, after) in pairwise(run.series(name).rows()):
        if after <= before or not run.first_connect_s < after_s <= run.stop_s:
            continue
        if not any(tick.lost for _, tick in run.ticks_between(before_s - 1.0, after_s + 1.0)):
            steps[after_s] = round(after - before)
    return steps
