"""The events of a plan in the first lines of a run's report: who was back after each, and when."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.analysis.handshakes import refused_with_error
from asyncli.analysis.in_vain import InVain
from asyncli.analysis.noticed import Noticed
from asyncli.model.records import handshakes_in_vain
from asyncli.model.units import format_count, format_duration, format_many, was_or_were
from asyncli.report.run_provoked import (
    at_addresses,
    before_when,
    came_back,
    concerned,
    ended_by,
    ending,
    listed,
    longest_away,
    why_not_to_be_back,
    without_answers,
)
from asyncli.report.summary_parts import EventPart, known, took_nobody

# Each of so many has a line of its own; of more, those after which all was well are one line.
_MOST_LINES = 3


def event_lines(events: Sequence[EventPart], protocol: str) -> list[str]:
    """A sentence for each event of the plan that was done; of many, one for those from which all
    were back and none of whose connects failed. ``protocol``: of the plan's connections.
    """
    done = [event for event in events if was_done(event)]
    if len(done) <= _MOST_LINES:
        return [line_of(event, protocol) for event in done]
    well = [event for event in done if _all_is_well(event)]
    others = [event for event in done if not _all_is_well(event)]
    # Those for which the run failed have a line first.
    chosen = sorted(others, key=lambda event: not event.not_back)[:_MOST_LINES]
    numbers = {event.number for event in chosen}
    lines = [line_of(event, protocol) for event in others if event.number in numbers]
    if well:
        lines.append(_well(well, done))
    left_out = len(others) - len(lines) + bool(well)
    if left_out > 0:
        lines.append(f"Of {format_many(left_out, 'more event')} the section Events says more.")
    return lines


def was_done(event: EventPart) -> bool:
    """Whether it is an event of the plan, and no mark, of which anything is known."""
    is_command = event.output is not msgspec.UNSET
    return is_command or event.back is not msgspec.UNSET


def _all_is_well(event: EventPart) -> bool:
    """Whether all whom it ended were back, and no connect failed; of a command, whether it ended
    with status 0.
    """
    if event.output is not msgspec.UNSET and event.status != 0:
        return False
    if without_answers(event):
        return False
    if event.back is msgspec.UNSET:
        return True
    if event.then == "gone" or took_nobody(event):
        return False
    return came_back(event) == concerned(event) and not (_failed(event) or _unanswered(event))


def _well(well: Sequence[EventPart], done: Sequence[EventPart]) -> str:
    """One sentence for all of these events: those that ended some, and the others."""
    came_back_from = [event for event in well if _ended_some(event)]
    ended_nobody = len(well) - len(came_back_from)
    of_all = f"of {format_many(len(done), 'event')}"
    if not came_back_from:
        return f"{format_count(ended_nobody)} {of_all} ended no connection."
    slowest = max(came_back_from, key=_all_s)
    text = f"After {format_count(len(came_back_from))} {of_all} all were back"
    if _all_s(slowest):
        text += f", {format_duration(_all_s(slowest))} at most (event {slowest.number})"
    text += ", and no connect failed"
    if ended_nobody:
        text += f"; {format_count(ended_nobody)} ended no connection"
    return f"{text}."


def _ended_some(event: EventPart) -> bool:
    """Whether it ended some connections, or had some stall."""
    return event.back is not msgspec.UNSET and concerned(event) > 0


def _all_s(event: EventPart) -> float:
    if event.back is msgspec.UNSET:
        return 0.0
    return event.back.all_s or 0.0


def line_of(event: EventPart, protocol: str) -> str:
    """A sentence on an event that was done. ``protocol``: of the plan's connections."""
    title = "Churn" if event.kind == "churn" else f"Event {event.number} ({event.kind})"
    return f"{title}: {'; '.join(_parts(event, protocol))}."


def _parts(event: EventPart, protocol: str) -> list[str]:
    parts = []
    if event.output is not msgspec.UNSET:
        parts.append(f"{ending(event)}{without_answers(event)}")
        if event.ended == 0:
            return [*parts, "the server ended no connection"]
    if event.back is msgspec.UNSET:
        return parts
    if took_nobody(event):
        return [f"it took none of the {format_count(known(event.chosen))} chosen"]
    if event.then == "gone":
        return [_silent(event)]
    parts += _ended_repeatedly(event)
    parts.append(f"{_were_back(event)}{_how_connects_went(event, protocol)}")
    if event.output is msgspec.UNSET:
        parts[-1] += without_answers(event)
    parts += _not_back(event)
    parts += _ended_of_others(event)
    longest = longest_away(event)
    if longest:
        parts.append(longest)
    return parts


def _ended_repeatedly(event: EventPart) -> list[str]:
    """That it ended more connections than it concerned clients, since some came back to be ended
    again.
    """
    if not isinstance(event.clients, int) or not event.ended_repeatedly:
        return []
    ends = format_count(concerned(event))
    repeatedly = format_count(known(event.ended_repeatedly) or 0)
    of = format_many(event.clients, "client")
    return [f"{ends} ends of {of}, {repeatedly} of them ended more than once"]


def _ended_of_others(event: EventPart) -> list[str]:
    """How many a command ended of those whom another event had silent or stall."""
    parts = []
    for others in listed(event.ended_of_others):
        at_most = "" if others.certain else "up to "
        ended = f"{at_most}{format_count(others.count)} more that it ended"
        parts.append(f"{ended} count with event {others.event}")
    return parts


def _silent(event: EventPart) -> str:
    """Of clients that fell silent for good: whether the server noticed."""
    silent = f"{format_many(known(event.ended), 'connection')} fell silent for good"
    noticed = event.noticed
    if not isinstance(noticed, Noticed) or noticed.why is not msgspec.UNSET:
        return f"{silent}, and when the server noticed is not known"
    if noticed.all_s is not None:
        return f"{silent}, and the server noticed all within {format_duration(noticed.all_s)}"
    if noticed.left is None and noticed.all_at_most_s is not None:
        at_most = format_duration(noticed.all_at_most_s)
        return f"{silent}, and the server noticed all within {at_most} at most"
    if noticed.left is None:
        return f"{silent}, and whether the server noticed all is not known"
    left = format_count(noticed.left)
    after = format_duration(noticed.left_after_s or 0.0)
    return f"{silent}, and the server held {left} of them still after {after}"


def _were_back(event: EventPart) -> str:
    came = came_back(event)
    of = concerned(event)
    all_s = _all_s(event)
    if not came and event.unheard:
        return f"none of {format_count(of)} is known to be back"
    if not came:
        return f"none of {format_count(of)} was back"
    if came < of:
        return f"{format_count(came)} of {format_count(of)} were back"
    if event.ended_repeatedly:
        return f"all were back after {format_duration(all_s)}"
    if ended_by(event):
        after = f"{format_duration(all_s)} after {ended_by(event)} had ended them"
        return f"{format_count(came)} were back {after}"
    if event.stalled is not msgspec.UNSET:
        return f"{format_count(came)} were back {format_duration(all_s)} after they read again"
    if event.then is not msgspec.UNSET:
        return f"{format_count(came)} were back {format_duration(all_s)} after their silence"
    return f"{format_count(came)} were back after {format_duration(all_s)}"


def _not_back(event: EventPart) -> list[str]:
    """Of those who were not, why."""
    counts = (
        (event.waiting, f"{{were}} not to be back {before_when(event)}{why_not_to_be_back(event)}"),
        (event.ended_again, "{were} ended by another event before that"),
        (event.lost_with_worker, "went with a process of asyncli's own before that"),
        (event.unheard, "to whom the server sent nothing since, so that nothing tells"),
    )
    sentences = []
    if event.not_back:
        missing = f"{format_count(event.not_back)} {was_or_were(event.not_back)} not back"
        where = at_addresses(event.not_back_at)
        sentences.append(f"{missing}, though it was their turn{where}")
    for count, why in counts:
        if count:
            number = known(count)
            sentences.append(f"{format_count(number)} {why.format(were=was_or_were(number))}")
    return sentences


def _how_connects_went(event: EventPart, protocol: str) -> str:
    failed = _failed(event)
    unanswered = _unanswered(event)
    errors = sum((event.error_answers or {}).values())
    refused = refused_with_error(protocol, known(event.failures), errors)
    errors -= refused
    parts = []
    if failed:
        parts.append(f"{format_many(failed, 'connect')} failed")
    if refused:
        parts.append(f"{format_count(refused)} of them by an answer with an error")
    if unanswered:
        parts.append(f"{format_many(unanswered, 'connect')} {_how_unanswered(event)}")
    if not parts and known(event.attempts) > 0:
        parts.append("no connect failed")
    if errors:
        parts.append(f"{format_many(errors, 'answer')} before that {was_or_were(errors)} errors")
    if not parts:
        return ""
    return f"; {', '.join(parts)}"


def _failed(event: EventPart) -> int:
    """How many connects failed, without the handshakes that got no answer in time."""
    return sum(known(event.failures).values()) - handshakes_in_vain(known(event.failures))


def _unanswered(event: EventPart) -> int:
    """How many connects succeeded and got no answer."""
    return known(event.phantoms) + handshakes_in_vain(known(event.failures))


def _how_unanswered(event: EventPart) -> str:
    """That they got no answer, though the server had accepted them where that is known."""
    in_vain = event.in_vain
    if not isinstance(in_vain, InVain) or in_vain.received != "accepted":
        return "got no answer"
    if in_vain.count < _unanswered(event):
        return "got no answer"
    return f"{was_or_were(in_vain.count)} accepted and not answered"
