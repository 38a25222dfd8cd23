"""The answer of ``asyncli storm`` as a document and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli import __version__
from asyncli.analysis.provoked import Back, back_of
from asyncli.analysis.standstill import standstills
from asyncli.analysis.storm_forecast import FAILS_BELOW, Jitter, StormForecast
from asyncli.analysis.storm_pace import Pace, SlowComeback, UnexplainedStorm
from asyncli.model.planned_events import DEFAULT_RECONNECT, policy_words, reconnect_of
from asyncli.model.records import SCHEMA
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.units import (
    format_count,
    format_duration,
    format_many,
    format_rate,
    format_share,
    was_or_were,
)
from asyncli.report import document as doc
from asyncli.report import jsonout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from asyncli.report.figures.drawing import Style

# Beyond so many times the measured count other limits may come first: asyncli size says so too.
_FAR = 10
# A difference between laws and run that a reader should know.
_WORTH_TELLING = 0.1
# A storm that the server kept up with is followed by one of so many times its connections.
_LARGER = 4
# An interval whose end is so many times its beginning is wide.
_WIDE = 1.5
_BARS = "▁▂▃▄▅▆▇█"

_BINDS = {
    "policy": "The waits of the clients decide how long it lasts.",
    "queue": (
        "The listen queue decides how long it lasts: the kernel of a client whose connect it drops "
        "tries again after a second or more."
    ),
    "server": "The server's pace decides how long it lasts.",
    "asyncli": "asyncli's own pace decides how long it lasts.",
    "host": "The CPUs that asyncli and the server share decide how long it lasts.",
}


class Answer(msgspec.Struct, frozen=True):
    """What is asked and answered: storms of ``connections`` by several policies."""

    connections: int
    pace: Pace
    forecasts: tuple[StormForecast, ...]
    least_jitter: Jitter


def storm_document(answer: Answer, run: Run, path: str) -> doc.Document:
    """The document; ``path``: the run file that it is computed from."""
    blocks: list[doc.Block] = [doc.Paragraph(_basis(answer.pace), "text")]
    for forecast in answer.forecasts:
        blocks += _forecast(forecast, answer.pace)
        blocks += [doc.Paragraph(measured) for measured in _measured(forecast, run)]
    if answer.forecasts:
        blocks.append(_picture(answer.forecasts))
    blocks.append(doc.Paragraph(_advice(answer.least_jitter, answer.pace), "answer"))
    for doubt in doubts(answer, run):
        blocks.append(doc.Paragraph(doubt, "doubt", "yellow"))
    url = oneline(run.plan.urls[0])
    headline = f"Storm of {format_many(answer.connections, 'connection')} on {url}"
    byline = [f"computed from {path}, run {run.id} of {run.started}"]
    sections = [doc.Section("answer", "Answer", blocks)]
    footer = f"Computed by asyncli {__version__}."
    return doc.Document("storm", headline, headline, byline, sections, footer)


def _basis(pace: Pace) -> str:
    """What of the run the answer rests on."""
    shown = "By the ramp of the run"
    if pace.by_event is not None:
        shown = f"By event {pace.by_event} of the run (--reconnect {pace.policy})"
    rate = format_rate(pace.per_s)
    if pace.is_least:
        rate = f"at least {rate}"
    queue = format_count(pace.backlog + 1)
    return f"{shown}: {rate} get their first answer; the listen queue has room for {queue}."


def _forecast(forecast: StormForecast, pace: Pace) -> list[doc.Block]:
    if forecast.is_at_most:
        text = f"back after at most {_times(forecast.latest, forecast.until_s)}"
    elif forecast.only_at_pace:
        text = f"at that pace back after {_times(forecast.back, forecast.until_s)}"
    else:
        text = f"back after {_times(forecast.back, forecast.until_s)}{_between(forecast, pace)}"
    back = doc.Paragraph(((forecast.policy, "bold"), f": {text}"), "line")
    connects = doc.Paragraph(f"{_connects(forecast)} {_bound(forecast)}")
    blocks: list[doc.Block] = [back, connects]
    if forecast.curve:
        # Of a bound that is the time of its laws alone, which the times above reach beyond.
        end_s = None if forecast.is_at_most else forecast.back.all_s
        until = "" if end_s is None else f" {format_duration(end_s)}"
        bars = f"{_sparkline(forecast.curve, forecast.connections)}{until}"
        blocks.append(doc.Paragraph(bars, view=doc.TERMINAL))
    return blocks


def _measured(forecast: StormForecast, run: Run) -> list[str]:
    """The storms of the run that were of as many connections, by the same policy."""
    plan = run.plan
    policy = policy_words(reconnect_of(plan.reconnect or DEFAULT_RECONNECT))
    if policy != forecast.policy or plan.connections != forecast.connections:
        return []
    sentences = []
    for number in run.event_windows:
        event = plan.event_numbered(number)
        if event is None or event.do not in ("drop", "storm") or event.share < 1.0:
            continue
        counts = run.counts_of_event(number)
        back = back_of(number, counts)
        # Those who went with a process of asyncli may have been back before.
        if back.p50_s is not None and not counts.lost_with_worker:
            sentences.append(
                f"Event {number} of the run was such a storm: back after {_times(back, None)}."
            )
    return sentences


def _picture(forecasts: Sequence[StormForecast]) -> doc.Picture:
    """The curves of all storms on common axes, for the page."""

    def draw(style: Style) -> Figure:
        from asyncli.report.figures.storms import storm_curves

        return storm_curves(forecasts, style=style)

    def alt() -> str:
        sentences = []
        for forecast in forecasts:
            sentences.append(
                f"{forecast.policy}: back after {_times(forecast.back, forecast.until_s)}."
            )
        return f"Clients that are back over time. {' '.join(sentences)}"

    return doc.Picture(
        "storms",
        "Clients that are back, over the seconds since all were ended",
        "By the pace that is named above. A curve that the run only bounds is the slowest one.",
        draw,
        alt,
        section="answer",
    )


def _times(back: Back, until_s: float | None) -> str:
    shares = (("50 %", back.p50_s), ("90 %", back.p90_s), ("99 %", back.p99_s), ("all", back.all_s))
    times = [f"{format_duration(value)} ({share})" for share, value in shares if value is not None]
    if until_s is not None:
        # The first share whose time is not known.
        share, _ = shares[len(times)]
        times.append(f"more than {format_duration(until_s)} ({share})")
    return ", ".join(times)


def _between(forecast: StormForecast, pace: Pace) -> str:
    """The interval of the time after which 99 % are back, and why it is wide where it is."""
    earliest_s = forecast.earliest.p99_s
    latest_s = forecast.latest.p99_s
    if earliest_s is None:
        return ""
    if latest_s is None:
        return f"; 99 % after {format_duration(earliest_s)} or more"
    interval = f"; 99 % between {format_duration(earliest_s)} and {format_duration(latest_s)}"
    if latest_s <= _WIDE * earliest_s:
        return interval
    if pace.unexplained:
        return f"{interval}, so far apart as no laws explain event {pace.unexplained[0].event}"
    if pace.error > _WORTH_TELLING:
        error = format_share(pace.error)
        return f"{interval}, so far apart as the laws differ from the run by up to {error}"
    return interval


def _connects(forecast: StormForecast) -> str:
    connects = format_many(forecast.attempts, "connect")
    if forecast.until_s is not None:
        connects += " until then"
    busiest = f"{connects}, up to {format_count(forecast.busiest_s)} in a second"
    if forecast.failed is None or forecast.met_full is None:
        return f"{busiest}; how many fail or meet a full listen queue is not known."
    if not forecast.met_full and not forecast.failed:
        return f"{busiest}; none fails or meets a full listen queue."
    failed = format_count(forecast.failed)
    met_full = format_count(forecast.met_full)
    if forecast.counts_at_most:
        return (
            f"At most {busiest}; at most {failed} fail, and at most {met_full} meet a full listen "
            "queue."
        )
    return f"{busiest}; {failed} fail, {met_full} meet a full listen queue."


def _bound(forecast: StormForecast) -> str:
    is_bounded = forecast.is_at_most or forecast.only_at_pace
    if is_bounded and forecast.bound in ("server", "queue", "host"):
        return "The run does not show what decides how long it lasts."
    return _BINDS[forecast.bound]


def _sparkline(curve: Sequence[int], connections: int) -> str:
    bars = []
    for count in curve:
        level = min(len(_BARS) - 1, int(count / connections * len(_BARS)))
        bars.append(_BARS[level])
    return "".join(bars)


def _advice(jitter: Jitter, pace: Pace) -> str:
    below = format_share(FAILS_BELOW, 1)
    if jitter.least_s is None:
        return (
            f"At no jitter up to an hour fewer than {below} of the connects fail or meet a full "
            "listen queue."
        )
    if pace.is_least and pace.slow_comebacks:
        return (
            f"Least jitter at that pace: {format_duration(jitter.least_s)}. Fewer than {below} of "
            "the connects fail or meet a full listen queue then, if the server keeps that pace."
        )
    or_less = " or less" if jitter.is_at_most else ""
    return (
        f"Least jitter: {format_duration(jitter.least_s)}{or_less}. Fewer than {below} of the "
        "connects fail or meet a full listen queue then."
    )


def doubts(answer: Answer, run: Run) -> list[str]:
    """What makes the answer less sure."""
    pace = answer.pace
    sentences = []
    if pace.is_least and pace.tester_per_s is None:
        sentences.append(_how_to_find_the_pace(run, pace.slow_comebacks))
    for storm in pace.unexplained:
        sentences.append(_unexplained(storm, is_basis=storm.event == pace.by_event))
    if pace.tester_busy:
        sentences.append(
            "asyncli itself was the bound in that part of the run: other clients may connect "
            "faster, and fill the listen queue sooner. More workers or hosts raise the bound."
        )
    elif pace.host_busy:
        sentences.append(
            "All CPUs were busy in that part of the run, and asyncli was on them too: without it "
            "the server may be faster."
        )
    if pace.others > _WORTH_TELLING:
        sentences.append(
            f"Other programs had {format_share(pace.others)} of the busy CPUs in that part of the "
            "run: without them the server and asyncli may be faster. Run again on a quiet host."
        )
    if pace.error > _WORTH_TELLING:
        sentences.append(
            f"The laws differ from what was measured by up to {format_share(pace.error)}."
        )
    if answer.connections > _FAR * pace.connections:
        measured = format_count(pace.connections)
        sentences.append(
            f"This is more than {_FAR} times the {measured} connections that were measured: other "
            "limits may come first."
        )
    return sentences


def _unexplained(storm: UnexplainedStorm, *, is_basis: bool) -> str:
    """``is_basis``: its mean pace is the least one, on which the answer rests."""
    at = format_duration(storm.at_s)
    lasted = format_duration(storm.all_s)
    if is_basis:
        return (
            f"Event {storm.event} of the run, at {at}, does not follow the laws of one listen "
            f"queue and one pace: all were back after {lasted}, and why not sooner is not known. "
            "Its mean pace is taken as the least one."
        )
    return (
        f"Event {storm.event} of the run, at {at}, does not follow the laws of one listen queue "
        f"and one pace: all were back after {lasted}. What decided that is not in this answer."
    )


def _how_to_find_the_pace(run: Run, slow_comebacks: Sequence[SlowComeback]) -> str:
    """What shows how fast a server can be that kept up with its clients: what was not done yet."""
    plan = run.plan
    if slow_comebacks:
        return _what_slow_ones_show(slow_comebacks)
    kept_up = _how_it_kept_up(run)
    connections = plan.connections
    shown_by = "A storm of clients that come back at once shows it"
    if _had_all_at_once(run):
        connections *= _LARGER
        shown_by = "A larger storm may show it"
    soak = f"asyncli soak {oneline(plan.urls[0])} -c {connections}"
    return (
        f"{kept_up} {shown_by}: {soak} --at 5s storm --reconnect now; so does a ramp that is too "
        "fast for it."
    )


def _how_it_kept_up(run: Run) -> str:
    """That nothing shows how fast the server can be, as it kept up with its clients whenever it did
    not stand still.
    """
    longest = max(standstills(run), key=lambda span: span.lasted_s, default=None)
    if longest is None:
        return (
            "The server kept up with its clients all the time, so how fast it can be is not known."
        )
    still = format_duration(round(longest.lasted_s))
    return (
        f"The server stood still for {still} or more, at {format_duration(longest.from_s)}. At all "
        "other times it kept up with its clients, so how fast it can be is not known."
    )


def _what_slow_ones_show(slow_comebacks: Sequence[SlowComeback]) -> str:
    """What went wrong in the events whose comebacks show no pace, and that this bounds nothing."""
    slow = " ".join(map(_slow_comeback, slow_comebacks))
    if any(comeback.stood_still_s for comeback in slow_comebacks):
        return (
            f"{slow} A server that stands still shows no pace: a storm may take longer than is "
            "said here. A storm while it runs shows it."
        )
    if all(comeback.refused or comeback.errors for comeback in slow_comebacks):
        # Whether it was slow besides is not known: it was gone, or answered something else.
        event = "that event" if len(slow_comebacks) == 1 else "these events"
        text = f"{slow} So the server's pace is not known from {event}"
    else:
        text = (
            f"{slow} So the server did not keep up with its clients, and too little is known of "
            "that to tell its pace"
        )
    text += ": a storm may take longer than at the pace above, or not end."
    if any(comeback.not_back for comeback in slow_comebacks):
        text += " A longer hold after the event may show it."
    return text


def _slow_comeback(slow: SlowComeback) -> str:
    parts = []
    if slow.stood_still_s:
        parts.append(f"the server stood still for {format_duration(round(slow.stood_still_s))}")
    if slow.not_back:
        of = f"{format_count(slow.not_back)} of {format_count(slow.ended)}"
        parts.append(f"{of} were not back when the hold ended")
    if slow.refused:
        refused = format_many(slow.refused, "connect")
        parts.append(f"{refused} {was_or_were(slow.refused)} refused")
    if slow.failed > slow.refused:
        failed = format_many(slow.failed - slow.refused, "connect")
        parts.append(f"{failed} failed")
    if slow.unanswered:
        how = "got no answer"
        if slow.were_accepted:
            how = f"{was_or_were(slow.unanswered)} accepted and not answered"
        parts.append(f"{format_many(slow.unanswered, 'connect')} {how}")
    if slow.errors:
        parts.append(f"{format_many(slow.errors, 'answer')} {was_or_were(slow.errors)} errors")
    return f"After event {slow.event}, at {format_duration(slow.at_s)}, {_listed(parts)}."


def _listed(parts: Sequence[str]) -> str:
    """``one``, ``one and two``, ``one, two and three``."""
    *before, last = parts
    if not before:
        return last
    return f"{', '.join(before)} and {last}"


def _had_all_at_once(run: Run) -> bool:
    """Whether all clients of the run came back at one instant already."""
    policy = reconnect_of(run.plan.reconnect or DEFAULT_RECONNECT)
    if policy.how not in ("now", "fixed"):
        return False
    for number in run.event_windows:
        event = run.plan.event_numbered(number)
        if event is not None and event.do in ("drop", "storm") and event.share == 1.0:
            return True
    return False


def to_json(answer: Answer, run: Run, path: str) -> str:
    """The answer as JSON."""
    pace = answer.pace
    measured: dict[str, Any] = {
        "per_s": pace.per_s,
        "is_least": pace.is_least,
        "by_event": pace.by_event,
        "policy": pace.policy,
        "connections": pace.connections,
        "backlog": pace.backlog,
        "tester_per_s": pace.tester_per_s,
        "tester_busy": pace.tester_busy,
        "host_busy": pace.host_busy,
        "others": pace.others,
        "error": pace.error,
        "unexplained": msgspec.to_builtins(pace.unexplained),
        "slow_comebacks": msgspec.to_builtins(pace.slow_comebacks),
    }
    storm = {
        "connections": answer.connections,
        "pace": measured,
        "forecasts": msgspec.to_builtins(answer.forecasts),
        "least_jitter": msgspec.to_builtins(answer.least_jitter),
    }
    of_run = {"id": run.id, "file": path}
    return jsonout.to_json(
        {"schema": SCHEMA, "run": of_run, "storm": storm, "doubts": doubts(answer, run)}
    )
