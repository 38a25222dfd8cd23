"""The events of a plan in a run's report: what each did, when who was back, and at what price."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.analysis.away import Away
from asyncli.analysis.constants import MISSED_S
from asyncli.analysis.event_pace import EventPace
from asyncli.analysis.in_vain import InVain
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import Back, Closed, SentAgain, ServerPrice, SpentDescriptors
from asyncli.analysis.slow_readers import SlowReaderCost, SlowReaders
from asyncli.model.planned_events import UNREAD_BYTES
from asyncli.model.records import HANDSHAKES_IN_VAIN, UNRECORDED_S, handshakes_in_vain
from asyncli.model.run import TICK_S
from asyncli.model.text import end_of, oneline
from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_share,
    was_or_were,
)
from asyncli.report import document as doc
from asyncli.report.format import milliseconds
from asyncli.report.summary_parts import (
    AtAddress,
    EventPart,
    OfAnotherEvent,
    known,
    took_nobody,
)

# Of what a command printed; the JSON has more.
_LONGEST_QUOTED = 200
# Of several addresses at which connects failed so many are named.
_MOST_ADDRESSES = 3
# A smaller share of the CPUs that other programs had is no news.
_WORTH_TELLING = 0.1
_ENDED_BY = {"rst": "by RST", "fin": "by FIN"}


def event_blocks(events: list[EventPart]) -> list[doc.Block]:
    """A block of lines for each event that was done."""
    blocks: list[doc.Block] = []
    commands = [event for event in events if event.output is not msgspec.UNSET]
    marks = [event for event in events if event.kind == "mark"]
    for event in events:
        if event.output is not msgspec.UNSET:
            text = _command(event) + _after_mark(event, marks)
            if event is commands[-1]:
                text += _counted_to_the_end(event)
            blocks.append(_headed(f"Event {event.number}", text))
        if event.back is msgspec.UNSET:
            blocks += _of_nobody(event)
            continue
        if event.output is msgspec.UNSET:
            title = "Churn" if event.kind == "churn" else f"Event {event.number}"
            blocks.append(_headed(title, _done(event)))
        if took_nobody(event):
            # What the server spent meanwhile is of others.
            blocks += _heartbeats_meanwhile(event)
            continue
        if event.slow_readers is not msgspec.UNSET:
            blocks.append(doc.Paragraph(_slow_readers(event.slow_readers)))
        blocks.append(doc.Paragraph(_back(event)))
        blocks.append(doc.Paragraph(_price(event)))
        others = _others(event)
        if others:
            blocks.append(doc.Paragraph(others, view=doc.FULL))
    return blocks


def _heartbeats_meanwhile(event: EventPart) -> list[doc.Block]:
    return [doc.Paragraph(text, view=doc.FULL) for text in _heartbeats(event)]


def _of_nobody(event: EventPart) -> list[doc.Block]:
    """What is known beside its end of an event that concerned no connection, or was not seen."""
    if event.output is not msgspec.UNSET:
        return _heartbeats_meanwhile(event)
    if event.interrupted_after_s is not msgspec.UNSET:
        return [_headed(f"Event {event.number}", _unseen(event))]
    return []


def _headed(title: str, text: str) -> doc.Paragraph:
    return doc.Paragraph(((title, "bold"), f": {text}"), "line")


def _command(event: EventPart) -> str:
    """How a command ended, and how many connections the server ended in its time."""
    text = f"run '{oneline(event.text)}' {_when(event)}: {ending(event)}"
    if event.output and event.took_s:
        # What a command prints last says how it went.
        text += f', printed "{end_of(oneline(str(event.output)), _LONGEST_QUOTED)}"'
    if event.ended is msgspec.UNSET:
        return text
    text += without_answers(event)
    if not event.ended:
        return f"{text}; the server ended no connection"
    ended = f"{format_many(event.ended, 'connection')}{_of_clients(event)}"
    ended += f"{_ended_after(event.closed_after)}{_ended_of_others(event)}"
    return f"{text}; the server ended {ended}, {_coming_back(event)}{_interrupted(event)}"


def without_answers(event: EventPart) -> str:
    """That for two seconds or more in its time no client had an answer, or that the server stood
    still for much longer; "" where neither was so.
    """
    silent_s = event.no_answers_s or 0.0
    still_s = event.stood_still_s or 0.0
    if still_s > silent_s + MISSED_S:
        return f"; the server stood still for {format_duration(still_s)} or more"
    if not silent_s:
        return ""
    text = f"; no client was answered for {format_duration(silent_s)}"
    if event.no_answers_at_most_s == silent_s:
        return text
    return f"{text} or more"


def _of_clients(event: EventPart) -> str:
    """Of how many clients the connections were that an event ended, if it ended some of these more
    than once; else "".
    """
    if not isinstance(event.clients, int) or not event.ended_repeatedly:
        return ""
    repeatedly = format_count(event.ended_repeatedly)
    return f" of {format_many(event.clients, 'client')} ({repeatedly} of them more than once)"


def _ended_of_others(event: EventPart) -> str:
    """How many more a command ended, whom another event had silent or stall; "" without any."""
    text = ""
    for others in listed(event.ended_of_others):
        at_most = "" if others.certain else "up to "
        text += f" and {at_most}{format_count(others.count)} that count with event {others.event},"
    return text.removesuffix(",")


def listed(counts: list[OfAnotherEvent] | msgspec.UnsetType) -> list[OfAnotherEvent]:
    """These counts; none where they are absent."""
    if counts is msgspec.UNSET:
        return []
    return counts


def longest_away(event: EventPart) -> str:
    """For how long no client was away whom a command ended, each from its own end; "" where that is
    not known, and of other events, whose clients leave at one instant.
    """
    if event.kind != "run" or not isinstance(event.away, Away):
        return ""
    away = event.away
    if away.max_s is not None:
        return f"no client was away for more than {format_duration(away.max_s)}"
    if away.at_least is None or not away.at_least.max_s:
        return ""
    return f"the longest was away for {format_duration(away.at_least.max_s)} or more"


def _after_mark(event: EventPart, marks: Sequence[EventPart]) -> str:
    """That the user noted something after a command, and the server ended connections after that:
    they count with the command; "" where neither was so.
    """
    closed = event.closed_after
    if not isinstance(closed, Closed) or closed.last_s is None:
        return ""
    if not isinstance(event.took_s, float):
        return ""
    ended_s = event.at_s + event.took_s
    for mark in marks:
        if ended_s < mark.at_s < event.at_s + closed.last_s:
            after = format_duration(mark.at_s - ended_s)
            return (
                f"; what it ended since the mark '{oneline(mark.text)}', {after} after the command "
                "had ended, counts with the event too"
            )
    return ""


def _counted_to_the_end(event: EventPart) -> str:
    """That what the server ended for any reason is counted with the last command, where that ran to
    the hold's end; "" where it did not, or the server ended none.
    """
    if event.status is not None or not event.took_s or not event.ended:
        return ""
    return (
        "; the command ran to the hold's end, so all that the server ended since it began, for "
        "whatever reason, is counted here, and none of it as lost"
    )


def ending(event: EventPart) -> str:
    """How a command ended, and after how long."""
    status = event.status
    if event.took_s is msgspec.UNSET:
        return "it had not ended by the last record"
    if not event.took_s:
        # asyncli's own words, such as that a resumed run runs no commands.
        return oneline(str(event.output))
    took = format_duration(event.took_s if isinstance(event.took_s, float) else 0.0)
    if not isinstance(status, int):
        return f"it did not end by itself: asyncli ended it when the hold ended, after {took}"
    if status < 0:
        return f"ended by signal {-status} after {took}"
    return f"ended with status {status} after {took}"


def _done(event: EventPart) -> str:
    """What was done, and to how many."""
    if event.stalled is not msgspec.UNSET:
        return _stalled(event)
    ended = format_many(known(event.ended), "connection")
    text = f"{event.text} {_when(event)}: {ended}{_of_clients(event)} {_fate(event)}"
    text += _absent(event, "not connected")
    return f"{text}{without_answers(event)}{_interrupted(event)}"


def _unseen(event: EventPart) -> str:
    return (
        f"{event.text} {_when(event)}: the run was interrupted before a second of it was recorded, "
        "and what it did was not seen"
    )


def _is_cut_off(event: EventPart) -> bool:
    """Whether the run was interrupted while clients still stalled or were silent."""
    if not isinstance(event.interrupted_after_s, float):
        return False
    return not isinstance(event.for_s, float) or event.interrupted_after_s < event.for_s


def _interrupted(event: EventPart) -> str:
    """That the run was interrupted before all of an event was over."""
    if not isinstance(event.interrupted_after_s, float):
        return ""
    after = format_duration(event.interrupted_after_s)
    return (
        f"; the run was interrupted {after} after it began or up to "
        f"{format_duration(UNRECORDED_S)} later, and what came then was not seen"
    )


def _absent(event: EventPart, where: str) -> str:
    """How many of the chosen it could not take, and that it shows nothing where these are all."""
    if not event.absent:
        return ""
    absent = format_count(known(event.absent))
    were = was_or_were(known(event.absent))
    text = f"; {absent} of the {format_count(known(event.chosen))} chosen {were} {where}"
    if took_nobody(event):
        text += ": it took nobody, and shows nothing"
    return text


def _stalled(event: EventPart) -> str:
    """How many read nothing, for how long, and over which segments."""
    stalled = format_many(known(event.stalled), "connection")
    lasted = "until the drain"
    if isinstance(event.for_s, float):
        lasted = f"for {format_duration(event.for_s)}"
    done = f"read nothing {lasted}"
    if ended_by(event):
        done = f"were to read nothing {lasted}, and {ended_by(event)} ended all before that"
    if _is_cut_off(event):
        done = f"were to read nothing {lasted}"
    if _is_cut(event):
        done = f"were to read nothing {lasted}, {_cut(event)}"
    text = f"{event.text} {_when(event)}: {stalled} {done}"
    if isinstance(event.segment_bytes, int):
        text += f"; TCP segments of at most {format_count(event.segment_bytes)} B"
    text += _absent(event, "not connected, or in another event")
    return f"{text}{without_answers(event)}{_interrupted(event)}"


#: What is said of a slow reader's cost in one memory, by how well it is known.
_COSTS = {
    "measured": "{amount} of {whose} for each ({total} in all)",
    "at_most": "at most {amount} of {whose} for each ({total} in all)",
    "estimated": "about {amount} of {whose} for each ({total} in all)",
    "at_least": "at least {amount} of {whose} for each ({total} in all)",
}
_REASONS = {
    "nothing_sent": (
        "the server sent nothing meanwhile, and a stall shows something only where it sends"
    ),
    "nothing_waited": (
        "what the server sent meanwhile fitted into the clients' own buffers; stall for longer, or "
        f"have it send each of them more than {format_bytes(UNREAD_BYTES)} meanwhile"
    ),
    "not_read": "nothing read it",
    "early": "no reading was at rest before it, as the stall began too early in the hold",
    "after_another": "no reading was at rest before it, as another event had not settled",
    "too_short": "no reading was in the stall, which was too short",
    "another_event": "no reading was in the stall, which another event cut short",
    "other_connections": "connections of other clients came or went there meanwhile",
    "unix_socket": "nothing tells that of a Unix socket",
    "noise": "its other changes hide it",
    "grows": "it grew by {grows} a second for each at the end",
    "few_readings": "it was read too seldom to tell whether it still grew",
    "ended": "the server ended some of them before",
    "host_wide": "by all TCP memory of its host, other programs' included",
}


def _slow_readers(costs: SlowReaders) -> str:
    """What slow readers cost the server while they stalled."""
    user = _cost(costs.user, "the server's memory")
    kernel = _cost(costs.kernel, "its kernel's memory for sockets")
    if costs.user.status == costs.kernel.status == "unknown" and costs.user.why == costs.kernel.why:
        return f"what a slow reader costs is not known: {_why_of(costs.user)}"
    return f"a slow reader cost {user}; {kernel}"


def _cost(cost: SlowReaderCost, whose: str) -> str:
    reason = ""
    if cost.why is not msgspec.UNSET:
        reason = f": {_why_of(cost)}"
    if cost.per_connection is None or cost.total is None:
        return f"an unknown amount of {whose}{reason}"
    of_each = format_bytes(cost.per_connection)
    if cost.status == "measured" and cost.error:
        # Of the readings: another stall may differ by more, as buffers grow once for all.
        of_each = f"{of_each} (± {format_bytes(cost.error)} as read)"
    text = _COSTS[cost.status].format(amount=of_each, whose=whose, total=format_bytes(cost.total))
    return f"{text}{reason}"


def _why_of(cost: SlowReaderCost) -> str:
    """Why a cost is no exact one; "" where it is."""
    if cost.why is msgspec.UNSET:
        return ""
    return _REASONS[cost.why].format(grows=format_bytes(cost.grows_per_s or 0.0))


def _closed(event: EventPart) -> str:
    """How many the server ended meanwhile; of those that stalled, how and when too."""
    by_commands = _by_commands(event)
    if event.stalled is msgspec.UNSET:
        return f"the server had ended {format_count(known(event.closed))} meanwhile{by_commands}"
    causes = ", ".join(f"{format_count(count)} {cause}" for cause, count in _closes(event))
    text = f"the server ended {format_count(known(event.closed))} of them ({causes})"
    closed = event.closed_after
    after = _ended_after(closed)
    if not after:
        return f"{text}, which was seen when they read again{by_commands}"
    text += after
    if isinstance(closed, Closed) and closed.unseen:
        text += f", {format_count(closed.unseen)} seen only when they read again"
    return f"{text}{by_commands}"


def _by_commands(event: EventPart) -> str:
    """By which commands the server ended them; "" where it did so for their silence, as far as
    anything tells.
    """
    text = ""
    for by in listed(event.closed_by):
        count = f"{format_count(by.count)} of them "
        if not by.certain:
            # The server may have ended some before.
            count = f"up to {count}"
        elif by.count == event.closed:
            count = ""
        text += f", {count}by event {by.event}, which ended other connections too"
    return text


def ended_by(event: EventPart) -> str:
    """Who ended all of those who were to read nothing, before they read again; "" where some read
    again.
    """
    if event.resumed or not event.closed or event.closed != event.stalled:
        return ""
    if isinstance(event.closed_after, Closed) and event.closed_after.unseen:
        return ""
    by = listed(event.closed_by)
    if len(by) == 1 and by[0].count == event.closed:
        return f"event {by[0].event}"
    return "the server"


def _ended_after(closed: Closed | msgspec.UnsetType) -> str:
    """How long after the event the server ended the first and the last of them; "" where that is
    not known.
    """
    if not isinstance(closed, Closed) or closed.first_s is None or closed.last_s is None:
        return ""
    if closed.last_s - closed.first_s < 1:
        return f" after {format_duration(closed.first_s)}"
    return f" after {format_duration(closed.first_s)} to {format_duration(closed.last_s)}"


def _closes(event: EventPart) -> list[tuple[str, int]]:
    return sorted(known(event.closes).items(), key=lambda item: -item[1])


def _fate(event: EventPart) -> str:
    """What became of those whom it concerned."""
    if event.kind == "churn":
        return "ended by RST one after the other, and replaced"
    if event.then is msgspec.UNSET:
        return f"ended {_ENDED_BY[str(event.how)]}, {_coming_back(event)}"
    if event.then == "gone":
        return "fell silent for good"
    assert isinstance(event.for_s, float)
    lasting = f"silent for {format_duration(event.for_s)}"
    if _is_cut(event):
        return f"were to be {lasting} and then to {event.then}, {_cut(event)}"
    if _is_cut_off(event):
        return f"were to be {lasting} and then to {event.then}"
    if event.then == "return":
        return f"fell {lasting}, then were heard again"
    if not event.attempts:
        return f"fell {lasting}, to connect anew {_by(event)}"
    return f"fell {lasting}, then connected anew {_by(event)}"


def _when(event: EventPart) -> str:
    """When it was, on the run's clock and on that of the plan, which counts from the hold's
    start.
    """
    at = f"at {event.at_s:,.1f} s"
    if not isinstance(event.into_hold_s, float):
        return at
    return f"{at} ({event.into_hold_s:,.1f} s into the hold)"


def _is_cut(event: EventPart) -> bool:
    """Whether the hold was over, or the records end, while clients still stalled or were silent."""
    if isinstance(event.cut_after_s, float):
        return True
    if not isinstance(event.records_end_after_s, float):
        return False
    return not isinstance(event.for_s, float) or event.records_end_after_s < event.for_s


def _cut(event: EventPart) -> str:
    """That a silence or a stall was cut, and after what time."""
    if isinstance(event.cut_after_s, float):
        return f"but {format_duration(event.cut_after_s)} into that the hold was over"
    return f"but the records end {format_duration(known(event.records_end_after_s))} into that"


def _by(event: EventPart) -> str:
    """How they come back, as words."""
    if event.policy == "now":
        return "at once"
    return f"by {event.policy}"


def _coming_back(event: EventPart) -> str:
    if not event.attempts:
        return f"to come back {_by(event)}"
    return f"back {_by(event)}"


_NOT_KNOWN = {
    "not_read": "its connections were not counted in that time",
    "other_clients": "other clients hold connections there too",
    "several_servers": "several servers are behind these URLs, and each may differ",
    "own_lost": "asyncli lost connections of its own in that time",
    "losses": "the server ended other connections in that time",
    "another_event": "another event was too near to tell its connections from those of this one",
    "no_time": "the hold was over too soon after it",
    "churn": "churn ended and replaced as many in the second of a reading",
    "disagrees": "the server's count does not fit the connections that are held",
}


def _noticed(event: EventPart, noticed: Noticed) -> str:
    """When the server had noticed those that fell silent, and by when it held none of them."""
    text = _when_noticed(event, noticed)
    if noticed.all_at_most_s is None:
        return text
    return f"{text}; it held none of them after {format_duration(noticed.all_at_most_s)} at most"


def _when_noticed(event: EventPart, noticed: Noticed) -> str:
    if noticed.why is not msgspec.UNSET:
        why = _NOT_KNOWN[noticed.why]
        if noticed.why == "no_time" and isinstance(event.records_end_after_s, float):
            why = "the records end too soon after it"
        return f"when the server noticed is not known: {why}"
    within = f"readings at most {format_duration(noticed.within_s or 0.0)} apart"
    shares = (("50 %", noticed.p50_s), ("90 %", noticed.p90_s), ("all", noticed.all_s))
    times = [f"{format_duration(value)} ({share})" for share, value in shares if value is not None]
    if noticed.at_reconnect and noticed.all_s is not None:
        return (
            "the server let the old ones go as they connected anew, after "
            f"{format_duration(noticed.all_s)} ({within}), and had not noticed the silence"
        )
    left = noticed.left or 0
    still = format_count(left)
    # Another event may have come then: it is not the end of the run.
    then = format_duration(noticed.left_after_s or 0.0)
    if not times:
        silenced = known(event.ended)
        if left >= silenced:
            return f"the server noticed none in {then}: it still held {still} ({within})"
        return (
            f"the server noticed fewer than half in {then}: it still held {still} of "
            f"{format_count(silenced)} ({within})"
        )
    return f"the server noticed after {', '.join(times)}, {within}{_still_held(noticed, then)}"


def _still_held(noticed: Noticed, then: str) -> str:
    """How many it held ``then``, at the last reading, where it had not noticed all."""
    if noticed.all_s is not None:
        return ""
    if noticed.left is not None:
        return f", and still held {format_count(noticed.left)} after {then}"
    if noticed.all_at_most_s is not None:
        return ""
    return "; whether it held any of them after that is not known beside churn"


def _back(event: EventPart) -> str:
    """When they were back, by their first answers, how their connects went, who decided that, and
    when the server noticed those that fell silent.
    """
    parts = []
    if event.then != "gone":
        parts += [_comeback(event), *_descriptors_spent(event), *_paced_by(event)]
    if isinstance(event.noticed, Noticed):
        parts.append(_noticed(event, event.noticed))
    return "; ".join(parts)


def _times_back(event: EventPart, back: Back) -> list[str]:
    """After how long they were back, or how many were; nothing where nothing tells that."""
    shares = (("50 %", back.p50_s), ("90 %", back.p90_s), ("99 %", back.p99_s), ("all", back.all_s))
    times = [f"{format_duration(value)} ({share})" for share, value in shares if value is not None]
    if times:
        after = "back after"
        if event.lost_with_worker or event.unheard:
            # Of these nothing tells: they may have been back before.
            after = "back after at most"
        text = f"{after} {', '.join(times)}"
        if ended_by(event):
            text += " from their ends on"
        elif event.then is not msgspec.UNSET or event.stalled is not msgspec.UNSET:
            text += " from then on"
        return [text]
    came = came_back(event)
    if came:
        return [_few_back(event, came, back)]
    if event.unheard:
        return []
    return ["none was back"]


def _times_away(event: EventPart) -> list[str]:
    """For how long clients were away whom a command ended, each from its own end."""
    away = event.away
    if event.kind != "run" or not isinstance(away, Away):
        return []
    shares = (("50 %", away.p50_s), ("99 %", away.p99_s))
    times = [f"{format_duration(value)} ({share})" for share, value in shares if value is not None]
    parts = []
    if times:
        at_most = "away for" if away.at_least is None else "away for at most"
        parts.append(f"{at_most} {', '.join(times)}")
    longest = longest_away(event)
    if longest:
        parts.append(longest)
    return parts


def _comeback(event: EventPart) -> str:
    back = event.back
    assert back is not msgspec.UNSET
    parts = [*_times_back(event, back), *_times_away(event)]
    if event.closed:
        parts.append(_closed(event))
    parts += _sent_again(event)
    if event.ended_again:
        parts.append(f"{_so_many(event.ended_again)} ended by another event before being back")
    if event.lost_with_worker:
        lost = format_count(known(event.lost_with_worker))
        parts.append(f"{lost} went with a process of asyncli's own before being back")
    if event.waiting:
        waiting = f"{_so_many(event.waiting)} not to be back {before_when(event)}"
        parts.append(f"{waiting}{why_not_to_be_back(event)}")
    if event.unheard:
        parts.append(
            f"whether {_so_many(event.unheard)} back cannot be told: the server sent nothing since"
        )
    if event.not_back:
        parts.append(_not_back(event.not_back, back) + at_addresses(event.not_back_at))
    parts += _error_answers(event)
    parts.append(_attempts(event))
    return "; ".join(parts)


def _sent_again(event: EventPart) -> list[str]:
    """Of those who were heard again: how many awaited an answer, of how many of their requests the
    server's kernel had acknowledged nothing and when their own kernel was to send these again,
    and how many connected anew instead.
    """
    parts = []
    if event.awaited or isinstance(event.sent_again, SentAgain):
        parts.append(_under_way(event))
    if event.timed_out:
        parts.append(
            f"{format_count(known(event.timed_out))} had no answer in time on their old "
            "connections, and connected anew"
        )
    return parts


def before_when(event: EventPart) -> str:
    """Before what those were not to be back whose turn was to come."""
    if isinstance(event.records_end_after_s, float):
        return "by the last record"
    return "before the drain"


def _under_way(event: EventPart) -> str:
    """The requests of those who were heard again and awaited an answer."""
    awaited = event.awaited if isinstance(event.awaited, int) else 0
    sent = event.sent_again
    if not isinstance(sent, SentAgain):
        return (
            f"{format_count(awaited)} awaited an answer, and the server's kernel had acknowledged "
            "all of their requests"
        )
    when = format_duration(sent.last_s)
    if sent.last_s - sent.first_s >= 1:
        when = f"{format_duration(sent.first_s)} to {when}"
    requests = format_many(sent.requests, "request")
    unacknowledged = (
        f"{requests} had not been acknowledged, and the clients' own kernel was to send "
        f"{'it' if sent.requests == 1 else 'them'} again {when} after the silence"
    )
    if not awaited:
        # A run file of an older version has only these.
        return unacknowledged
    text = f"{format_count(awaited)} awaited an answer: {unacknowledged}"
    if awaited > sent.requests:
        acknowledged = format_count(awaited - sent.requests)
        text += f"; the server's kernel had acknowledged the other {acknowledged}"
    return text


def why_not_to_be_back(event: EventPart) -> str:
    """Why those who are heard again on their old connections were not to be back before the drain;
    "" of all others.
    """
    if event.then != "return" or _is_cut(event):
        return ""
    return ", as no kernel had sent again yet what was lost in the silence"


def _error_answers(event: EventPart) -> list[str]:
    """How many answers before they were back were errors, which are no comeback."""
    if not event.error_answers:
        return []
    counts = [f"{format_count(count)} × {status}" for status, count in event.error_answers.items()]
    return [f"answered with errors before that: {', '.join(counts)}"]


def _few_back(event: EventPart, came: int, back: Back) -> str:
    """How many were back, fewer than half, and in what time."""
    text = f"{format_count(came)} of {format_count(concerned(event))} {was_or_were(came)} back"
    if back.waited_s is None:
        return text
    return f"{text} in {format_duration(back.waited_s)}"


def _not_back(count: int, back: Back) -> str:
    """How many were not back, and in what time, which may have been short."""
    if back.waited_s is None:
        return f"{_so_many(count)} not back"
    return f"{_so_many(count)} not back in {format_duration(back.waited_s)}"


def _so_many(count: int | msgspec.UnsetType) -> str:
    """``1 was``, ``1,200 were``."""
    return f"{format_count(known(count))} {was_or_were(known(count))}"


#: Who decided how long a comeback took.
_PACED_BY = {
    "policy": "the waits of the clients decided how long it lasted",
    "queue": "the listen queue decided how long it lasted",
    "server": "the server's pace decided how long it lasted",
    "asyncli": "asyncli's own pace decided how long it lasted",
    "host": "the CPUs that asyncli and the server share decided how long it lasted",
    "standstill": "that the server stood still decided how long it lasted",
}


def _paced_by(event: EventPart) -> list[str]:
    pace = event.pace
    if not isinstance(pace, EventPace) or pace.by is None:
        return []
    if pace.others > _WORTH_TELLING:
        share = format_share(pace.others)
        return [f"{_PACED_BY[pace.by]}: other programs had {share} of what was busy"]
    return [_PACED_BY[pace.by]]


def _descriptors_spent(event: EventPart) -> list[str]:
    spent = event.descriptors_spent
    if not isinstance(spent, SpentDescriptors):
        return []
    return [
        f"meanwhile a process of the server had {format_count(spent.limit)} descriptors open, its "
        f"limit, from {format_clock(spent.from_s)} to {format_clock(spent.until_s)}"
    ]


def concerned(event: EventPart) -> int:
    """How many connections it ended, silenced or had stall."""
    if event.stalled is msgspec.UNSET:
        return known(event.ended)
    return known(event.ended) + event.stalled


def came_back(event: EventPart) -> int:
    """How many of these had an answer again."""
    came = concerned(event) - known(event.ended_again) - known(event.not_back)
    came -= known(event.waiting) + known(event.lost_with_worker) + known(event.unheard)
    return came


#: How connects failed, where the key does not say it in a sentence. A handshake may have been
#: refused by an answer, or have ended without one, as in the listen queue of a process that ends.
_HOW_FAILED = {
    "connect_timeout": "without an answer in time",
    "tls_timeout": "without TLS's handshake in time",
    "tls_failed": "that failed in TLS's handshake",
    "handshake_refused": "refused or ended in the handshake",
    "handshake_timeout": "without an answer to the handshake in time",
    "no_ports": "without a free local port",
    "no_descriptors": "without a free descriptor",
}


def _attempts(event: EventPart) -> str:
    connects = known(event.attempts)
    if not connects:
        return "no connect was made"
    attempts = format_many(connects, "connect")
    failures = event.failures
    assert failures is not msgspec.UNSET
    phantoms = known(event.phantoms)
    if not failures and not phantoms:
        return f"{attempts}, none failed"
    parts = []
    for cause, count in failures.items():
        how = _HOW_FAILED.get(cause, cause)
        parts.append(f"{format_count(count)} {how}{_though_accepted(event, cause)}")
    if phantoms:
        parts += _without_answer(event, phantoms)
    return f"{attempts}, of which failed: {', '.join(parts)}{at_addresses(event.failed_at)}"


def at_addresses(counts: list[AtAddress] | msgspec.UnsetType) -> str:
    """At which of several addresses so many were; "" where there is one."""
    if not isinstance(counts, list) or not counts:
        return ""
    if len(counts) == 1:
        return f", all at {oneline(counts[0].address)}"
    named = []
    for place in counts[:_MOST_ADDRESSES]:
        named.append(f"{format_count(place.count)} at {oneline(place.address)}")
    if len(counts) > len(named):
        named.append(f"the others at {format_count(len(counts) - len(named))} more addresses")
    return f"; by address: {', '.join(named)}"


#: Where connects were that got no answer in time.
_WAITED = {
    "accepted": "that the server accepted and did not answer in {patience}",
    "waiting": "that waited in the server's listen queue for {patience} and were not accepted",
    "acknowledged": "that the server's kernel had and that got no answer in {patience}",
    "dropped": (
        "that this host's kernel called connected and the server's had dropped, as its listen "
        "queue was full"
    ),
}
_WAITED_SOMEWHERE = "that this host's kernel called connected and that got no answer in {patience}"


def _though_accepted(event: EventPart, cause: str) -> str:
    """Of handshakes that were not answered: that the server had accepted their connections."""
    in_vain = event.in_vain
    if cause not in HANDSHAKES_IN_VAIN or not isinstance(in_vain, InVain):
        return ""
    if in_vain.received != "accepted":
        return ""
    return " that the server accepted"


def _without_answer(event: EventPart, phantoms: int) -> list[str]:
    """The connects that succeeded and got no answer: where they were, as far as that is known."""
    in_vain = event.in_vain
    if not isinstance(in_vain, InVain):
        # An older run file does not tell them apart.
        count = format_count(phantoms)
        return [f"{count} that this host's kernel called connected and that got no answer"]
    waited = max(0, in_vain.count - handshakes_in_vain(known(event.failures)))
    parts = []
    if waited:
        where = _WAITED.get(in_vain.received or "", _WAITED_SOMEWHERE)
        patience = format_duration(in_vain.patience_s)
        parts.append(f"{format_count(waited)} {where.format(patience=patience)}")
    if phantoms > waited:
        parts.append(f"{format_count(phantoms - waited)} that ended before any answer")
    return parts


def _price(event: EventPart) -> str:
    """The server's memory before, at most and after, and its CPU."""
    server = event.server
    assert server is not msgspec.UNSET
    parts = []
    if server.memory_before is not None and server.peak is not None:
        before = format_bytes(server.memory_before)
        parts.append(f"server's memory {before} before, {format_bytes(server.peak)} at most")
    parts.append(_kept(event, server))
    if server.cpu_s is not None:
        parts.append(f"{server.cpu_s:,.2f} s of CPU{_own_cpu(event)}")
    return "; ".join(parts)


def _own_cpu(event: EventPart) -> str:
    """asyncli's CPU beside the server's."""
    if not isinstance(event.pace, EventPace):
        return ""
    return f", asyncli {event.pace.generator_cpu_s:,.2f} s"


_UNKNOWN_KEPT = {
    "early": "what it kept is not known: it began less than 5 s into the hold",
    "after_another": "what it kept is not known: it began less than 5 s after another was over",
    "no_time": "what it kept is not known: it had no time to settle",
    "not_read": "what it kept is not known: its memory was not read outside of events",
    "moves": "nothing that shows was kept: its memory changes by {moves} by itself",
    "collected": "what it kept cannot be told: its heap is collected now and then",
    "part_ended": (
        "what it kept is not known: one of its processes ended, and none was found in its place"
    ),
    "other_connections": (
        "what it kept is not known: connections of other clients, or of an earlier event, came or "
        "went there meanwhile"
    ),
}


def _kept(event: EventPart, server: ServerPrice) -> str:
    """What the server did not give back, or why that is not known."""
    moves = format_bytes(server.moves or 0.0)
    if server.why is not msgspec.UNSET:
        return _UNKNOWN_KEPT[server.why].format(moves=moves)
    kept = server.kept or 0.0
    if server.other_processes:
        return _of_others(kept)
    if not kept:
        return "all given back"
    if kept < 0:
        return f"{format_bytes(-kept)} less after it"
    text = f"{format_bytes(kept)} not given back"
    if event.then == "return":
        # They had their connections all the while.
        return text
    return f"{text} ({format_bytes(kept / max(1, concerned(event)))} for each connection)"


def _of_others(difference: float) -> str:
    """By how much (bytes) the processes after a restart have more than those before it."""
    if not difference:
        return "as much in the processes after it"
    if difference < 0:
        return f"{format_bytes(-difference)} less in the processes after it"
    return f"{format_bytes(difference)} more in the processes after it"


def _was_brief(event: EventPart) -> bool:
    """Whether all were back within a second, so that those held as one ended do not show it."""
    back = event.back
    if event.for_s is not msgspec.UNSET or event.lost_with_worker:
        return False
    if back is msgspec.UNSET or back.all_s is None:
        return False
    return back.all_s <= TICK_S


def _heartbeats(event: EventPart) -> list[str]:
    """How long heartbeats took in its time, and outside of all events."""
    latency = event.latency_ms
    if latency is msgspec.UNSET or latency.others_p99 is None:
        return []
    return [
        f"heartbeats meanwhile: p99 {milliseconds(latency.others_p99)}, outside of events "
        f"{milliseconds(latency.outside_p99)}"
    ]


def _others(event: EventPart) -> str:
    """What else is known: the others' heartbeats, and whether asyncli was late itself."""
    latency = event.latency_ms
    lateness = event.lateness_ms
    assert latency is not msgspec.UNSET
    assert lateness is not msgspec.UNSET
    parts = []
    if latency.connect_p50 is not None:
        connects = f"{milliseconds(latency.connect_p50)} (p50), {milliseconds(latency.connect_p99)}"
        parts.append(f"connects took {connects} (p99)")
    if latency.answer_p50 is not None:
        answers = f"{milliseconds(latency.answer_p50)} (p50), {milliseconds(latency.answer_p99)}"
        parts.append(f"first answers took {answers} (p99)")
    parts += _heartbeats(event)
    if latency.connect_p50 is not None:
        late = f"{milliseconds(lateness.p50)} late (p50), {milliseconds(lateness.max)} at most"
        parts.append(f"asyncli connected {late}")
    if isinstance(event.least_held, int) and not _was_brief(event):
        parts.append(f"the fewest held as a second ended: {format_count(event.least_held)}")
    if event.listen_overflows:
        overflows = format_many(round(event.listen_overflows), "listen overflow")
        parts.append(f"{overflows} on this host, of all its servers")
    if event.segments_sent_again:
        parts.append(f"{format_many(known(event.segments_sent_again), 'segment')} sent again")
    return "; ".join(parts)
