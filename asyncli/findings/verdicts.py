"""The reasons of verdicts in words, each a whole clause. :mod:`asyncli.analysis.verdict` picks one
and gives its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncli.model.records import CHURN
from asyncli.model.units import format_clock, format_duration, format_many, was_or_were

RULE = (
    "passed: as many held at the hold's end as asked for, none lost, none still away from an event "
    "whose turn it was to be back, no answer an error (status 400 or more), and no server that a "
    "signal or a debugger had stopped at the end, or that ended by itself after a command; a "
    "--fail-if on held, on lost, on an event's not_back or on a status replaces that part; "
    "invalid: asyncli was the limit, or only its own lateness is above a limit, or you stopped the "
    "run before its hold; untested: nothing connected, or no heartbeat ever answered (of listening "
    "ones: no byte came and no program accepted them), or the server sends such answers unasked as "
    "often; else failed"
)

NO_RECORDS = "the run file has no record of its connections"
RECORDS_DO_NOT_ADD_UP = (
    "the run file lacks records: its seconds do not add up, so losses may be missing"
)
NOTHING_CONNECTED = "nothing ever connected"
NO_HEARTBEAT_DUE = "no heartbeat was due yet (hold for longer, or write --first-beat now)"
NO_ANSWER_RIGHT = "no answer was right"
NOTHING_ANSWERED = "nothing ever answered"
ASYNCLI_WAS_THE_LIMIT = "asyncli was the limit, so latencies and losses do not describe the server"
NONE_LOST = "none was lost"


def unanswered(reason: str, opened: int, sent: int, most_often: str) -> str:
    """``most_often``: the most common wrong answer, "" for none."""
    counts = f"{format_many(opened, 'connection')} opened, {format_many(sent, 'heartbeat')} sent"
    if most_often:
        return f"{reason}: {counts}; most often {most_often}"
    return f"{reason}: {counts}"


def lost_by_asyncli(count: int, with_what: str) -> str:
    if not count:
        return f"asyncli itself lost {with_what}"
    return f"asyncli itself lost {format_many(count, 'connection')} with {with_what}"


def lost_to_suspension(count: int) -> str:
    return f"all {count:,} lost connections ended because this machine was suspended"


def ran_out(resources: Sequence[str], held: int, asked: int) -> str:
    return f"asyncli ran out of {' and '.join(resources)}: it opened {held:,} of {asked:,}"


def ran_out_after_event(resources: Sequence[str], count: int, event: int) -> str:
    return f"asyncli ran out of {' and '.join(resources)}: {not_back(count, event)}"


def failed_in_late_ramp(failed: int, held: int, asked: int) -> str:
    connects = format_many(failed, "connect")
    return f"{connects} failed in a ramp in which asyncli was late: {held:,} of {asked:,} held"


def connections_lost(lost: int, opened: int) -> str:
    return f"{part_of(lost, opened, 'established connection')} lost"


def fewer_held(held: int, asked: int) -> str:
    return f"{part_of(held, asked, 'connection')} held at the end"


def not_back(count: int, event: int) -> str:
    verb = was_or_were(count)
    if event == CHURN:
        return f"{count:,} {verb} not back from churn when the hold ended"
    return f"{count:,} {verb} not back from event {event} when the hold ended"


def server_stopped(for_s: float) -> str:
    return (
        "a signal or a debugger had stopped the server in the last "
        f"{format_duration(max(1, round(for_s)))} of the hold"
    )


def ended_with_server(at_s: float, number: int, after_s: float, count: int) -> str:
    return (
        f"the server's processes ended at {format_clock(at_s)}, {format_duration(round(after_s))} "
        f"after the command of event {number} had ended, and {format_many(count, 'connection')} "
        "with them, which count with that event and not as lost"
    )


def streams_lost(count: int) -> str:
    return f"{format_many(count, 'held stream')} lost"


def answered_with_errors(by_status: Mapping[int, int], answered: int, what: str) -> str:
    """``what`` was answered: a heartbeat, a request."""
    counts = ", ".join(f"{status}: {count:,}" for status, count in sorted(by_status.items()))
    return f"{part_of(sum(by_status.values()), answered, what)} answered with errors ({counts})"


def allowed(reason: str) -> str:
    return f"{reason}, which --fail-if allows"


def stopped_before_hold(stop: str) -> str:
    return f"the hold was not reached: {stop}"


def open_when_stopped(stop: str, held: int, asked: int) -> str:
    return f"{stop}; {part_of(held, asked, 'connection')} open"


def no_end(written: bool | None, end_s: float) -> str:
    """``written``: a process still writes the file; None: unknown."""
    if written is None:
        return f"killed at {format_clock(end_s)}, or still running"
    if written:
        return f"still running at {format_clock(end_s)}"
    return f"ended early at {format_clock(end_s)}"


def lost_but_allowed(count: int) -> str:
    return allowed(f"{count:,} {was_or_were(count)} lost")


def lost_by_asyncli_but_allowed(count: int) -> str:
    return (
        f"{count:,} {was_or_were(count)} lost with asyncli's own processes, which --fail-if "
        "allows, and none by the server"
    )


def connects_retried(failed: int) -> str:
    if failed == 1:
        return "1 connect failed and was retried"
    return f"{format_many(failed, 'connect')} failed and were retried"


def held_in_silence(count: int, for_s: float, *, listens: bool) -> str:
    if listens:
        return f"{count:,} of them without data in the last {format_duration(for_s)}"
    return f"{count:,} of them without a heartbeat in the last {format_duration(for_s)}"


def held_until(
    held: int, requested: int, *, gone: int, waiting: int, churning: int, stopped: bool
) -> str:
    """``gone``, ``waiting``: by events of the plan, for good, and not to be back yet; ``churning``:
    on their way back from churn.
    """
    text = f"{part_of(held, requested, 'connection')} held to the end"
    if stopped:
        text = f"{part_of(held, requested, 'connection')} held until the run was stopped"
    if waiting:
        text += f", {waiting:,} not to be back from an event by then"
    if churning:
        text += f", {churning:,} on the way back from churn"
    if gone:
        text += f", {gone:,} gone by an event"
    return text


def part_of(count: int, of: int, noun: str) -> str:
    """``1 of 1 connection was``, ``3 of 1,200 connections were``."""
    nouns = noun if of == 1 else f"{noun}s"
    verb = "was" if 1 in (count, of) else "were"
    return f"{count:,} of {of:,} {nouns} {verb}"
