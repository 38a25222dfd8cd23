"""What a command of the plan did to the server is no surprise of the run: a deploy restarts it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asyncli.analysis.constants import MISSED_S
from asyncli.findings.probes import MASTER_ENDED, while_commands_ran
from asyncli.findings.run import command_failed
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, RunEvent
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run, Ticks

# What a restart shows, and the field that has its instant. The last ones have none: they are of the
# same restart as the others.
_INSTANT_OF = {
    "server_ended": "at_s",
    "counters_restarted": "at_s",
    "server_processes_changed": "from_s",
    "server_reloaded": "at_s",
    "status_lost": "from_s",
}
_OF_THE_SAME_RESTART = ("server_restarted", MASTER_ENDED)
#: Of these, what shows that the server has gone: long after a command that is its fault.
_GONE = ("server_ended", "status_lost")
#: Those of processes that ended, and connections with them.
_WITH_ENDS = ("server_ended", "server_processes_changed")


def asked_by_plan(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """``findings``, of which those of restarts that were all within the time of commands are notes
    that name the events.
    """
    commands = [event for event in run.events if event.kind == "run"]
    if not commands:
        return list(findings)
    events_at: dict[int, list[int]] = {}
    for place, finding in enumerate(findings):
        if finding.code in _INSTANT_OF:
            events_at[place] = _events_of(finding, commands, run.plan, run)
    same_events = _events_of_restarts(findings, events_at)
    told = []
    for place, finding in enumerate(findings):
        numbers = events_at.get(place, [])
        if finding.code in _OF_THE_SAME_RESTART:
            numbers = same_events
        told.append(while_commands_ran(finding, numbers) if numbers else finding)
    return told


def _events_of_restarts(
    findings: Sequence[Finding], events_at: Mapping[int, list[int]]
) -> list[int]:
    """The events of all findings of restarts, by the findings' places; of those that saw the server
    end, if there are any. None where one is of no event: that may be the restart.
    """
    if not all(events_at.values()):
        return []
    of_ends = [place for place in events_at if findings[place].code == "server_ended"]
    numbers = set()
    for place in of_ends or events_at:
        numbers.update(events_at[place])
    return sorted(numbers)


def command_at(run: Run, at_s: float) -> RunEvent | None:
    """The last command of the plan in whose time an instant is."""
    commands = [event for event in run.events if event.kind == "run"]
    at_work = _at_work(at_s, commands, run.plan.heard_within_s)
    return at_work[-1] if at_work else None


def command_of_ends(run: Run, at_s: float) -> int | None:
    """The number of the command of the plan in whose time processes of the server came or went that
    the reading at ``at_s`` is the first to show.
    """
    commands = [event for event in run.events if event.kind == "run"]
    return _that_ended(run, at_s, _at_work(at_s, commands, run.plan.heard_within_s))


def ticks_before_reading(run: Run, at_s: float) -> Ticks:
    """The seconds in which connections ended with the processes that the reading of these at
    ``at_s`` is the first to miss: from the reading before on. asyncli sees an end up to a second
    late.
    """
    place = bisect_left(run.server_read_s, at_s) - 1
    before_s = run.server_read_s[place] if place >= 0 else at_s - TICK_S
    return run.ticks_between(before_s, at_s + 2 * TICK_S)


def _that_ended(run: Run, at_s: float, at_work: Sequence[RunEvent]) -> int | None:
    """Of these commands the last one with which connections ended when processes did: one that
    began later, and ended none, came after that. The last one where none did.
    """
    ticks = ticks_before_reading(run, at_s)
    for event in reversed(at_work):
        number = event.fields.get("number")
        if any(number in tick.events and tick.events[number].ended for _, tick in ticks):
            return number
    return at_work[-1].fields.get("number") if at_work else None


def asked_so_far(
    finding: Finding, commands: Sequence[RunEvent], plan: Plan, now_s: float
) -> Finding:
    """A finding of a running soak, as :func:`asked_by_plan` would tell it of its events so far."""
    numbers = []
    if finding.code in _INSTANT_OF:
        numbers = _events_of(finding, commands, plan)
    elif finding.code in _OF_THE_SAME_RESTART:
        numbers = _events_at([now_s], commands, plan.heard_within_s)
    return while_commands_ran(finding, numbers) if numbers else finding


def failed_commands(run: Run) -> list[Finding]:
    """Commands of the plan that ended with another status than 0, or did not end by themselves."""
    warnings = []
    for event in run.events:
        number = event.fields.get("number")
        if event.kind != "run" or "status" not in event.fields or number is None:
            continue
        status = event.fields["status"]
        if status != 0:
            took_s = float(event.fields.get("took_s") or 0.0)
            output = str(event.fields.get("output") or "")
            warnings.append(command_failed(number, event.text, status, took_s, output))
    return warnings


class EndedWithServer(NamedTuple):
    """The server's processes ended at ``at_s``, ``after_s`` after the command of an event had ended
    (s), and ``connections`` with them, which are counted with the event and not as lost.
    """

    at_s: float
    number: int
    after_s: float
    connections: int


def ended_with_server(run: Run) -> list[EndedWithServer]:
    """Each time that the server's processes ended by no command of the plan, and connections with
    them that were counted with one: what ends shortly after a command may be its work, but a server
    that goes long after it has gone by itself.
    """
    commands = [event for event in run.events if event.kind == "run"]
    gone = []
    for finding in run.findings:
        is_gone = finding.code == "server_ended"
        if not is_gone or _events_of(finding, commands, run.plan):
            continue
        for at_s in _instants(finding.fields.get(_INSTANT_OF[finding.code])):
            gone += _ended_at(run, at_s, commands)
    return gone


def _ended_at(run: Run, at_s: float, commands: Sequence[RunEvent]) -> list[EndedWithServer]:
    """What ended about the instant ``at_s`` and was counted with a command that had ended."""
    ticks = run.ticks_between(at_s - MISSED_S, at_s + MISSED_S)
    ended = []
    for event in commands:
        number = event.fields.get("number")
        if event.end_s is None or event.end_s > at_s or number is None:
            continue
        count = sum(tick.events[number].ended for _, tick in ticks if number in tick.events)
        if count:
            ended.append(EndedWithServer(at_s, number, at_s - event.end_s, count))
    return ended


def _events_of(
    finding: Finding, commands: Sequence[RunEvent], plan: Plan, run: Run | None = None
) -> list[int]:
    """The numbers of the events in the time of whose commands all instants of a finding are; none
    where one is in that of no command. A server may let connections go long after a command has
    ended, as in a graceful restart: so what it ends is a command's until each has been heard once
    more, and so are its old processes. ``run``: None while it lasts.
    """
    instants = _instants(finding.fields.get(_INSTANT_OF[finding.code]))
    within_s = 0.0 if finding.code in _GONE else plan.heard_within_s
    is_of_ends = finding.code in _WITH_ENDS
    return _events_at(instants, commands, within_s, run if is_of_ends else None)


def _events_at(
    instants: Sequence[float],
    commands: Sequence[RunEvent],
    within_s: float,
    run: Run | None = None,
) -> list[int]:
    """The events of these instants, in their order; none where one is of no event. ``run``: where
    the connections tell that ended then.
    """
    numbers = set()
    for at_s in instants:
        at_work = _at_work(at_s, commands, within_s)
        if not at_work:
            return []
        number = at_work[-1].fields.get("number")
        if run is not None:
            number = _that_ended(run, at_s, at_work)
        if number is None:
            return []
        numbers.add(number)
    return sorted(numbers)


def _at_work(at_s: float, commands: Sequence[RunEvent], within_s: float) -> list[RunEvent]:
    """The commands that had begun by then, in their order. ``within_s``: how long after its end one
    counts at least (s).
    """
    at_work = []
    for event in commands:
        end_s = math.inf
        if event.end_s is not None:
            end_s = event.end_s + max(EVENT_SETTLES_S, within_s)
        if event.at_s <= at_s <= end_s:
            at_work.append(event)
    return at_work


def _instants(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]
