"""The result of ``asyncli capacity``: its JSON (docs/capacity.md) and its report."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli import __version__
from asyncli.analysis.bottleneck import Bottleneck, Side
from asyncli.analysis.capacity import Bracket, Prediction, Search, Verdict
from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.pace import PaceTest
from asyncli.findings.capacity import same_at_slower_pace, undecided_at_slower_pace
from asyncli.model.records import Environment, Finding
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report.capacity_step import Step, outcome_of, short_outcome
from asyncli.report.format import (
    about,
    about_to,
    capitalised,
    ceiling,
    milliseconds,
    or_bytes,
    or_dash,
)
from asyncli.report.terminal import VERDICT_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from asyncli.report.figures.drawing import Style

#: Version of the JSON.
SCHEMA = 1
_SIDES: dict[Side, str] = {
    "server": "the server",
    "host": "this host, not the server",
    "network": "the network",
    "unknown": "unknown",
}


class Capacity(msgspec.Struct):
    """The JSON of ``asyncli capacity``. ``gave_way``: the bottlenecks at the smallest count that
    was not held. ``pace``: what a step with a slower ramp showed; None if there was none.
    """

    schema: int
    verdict: Verdict
    why: str
    started: str
    duration_s: float
    folder: str
    urls: tuple[str, ...]
    server: str
    bracket: Bracket
    rule: str
    limits: list[str]
    gave_way: list[Bottleneck]
    forecast: Prediction | None
    steps: list[Step]
    findings: list[Finding]
    search: Search
    plan: dict[str, Any]
    environment: Environment
    pace: PaceTest | None = None


def one_line(capacity: Capacity) -> str:
    return oneline(f"{capacity.verdict}: {sentence(capacity)}")


def sentence(capacity: Capacity) -> str:
    """The answer: the counts that were held and not held."""
    if capacity.verdict in ("untested", "failed"):
        return capacity.why
    answer = _answer(capacity)
    if not capacity.why:
        return answer
    return f"{answer}; {capacity.why}"


def _answer(capacity: Capacity) -> str:
    held = capacity.bracket.held
    failed = capacity.bracket.failed
    server = capacity.server
    if failed is None:
        if not held:
            return f"how many connections {server} holds is unknown"
        return f"{server} holds at least {format_many(held, 'connection')}"
    if not held:
        return (
            f"{server} did not hold {format_many(failed, 'connection')}, the smallest count tried"
        )
    counts = f"{format_many(held, 'connection')}, and does not hold {format_count(failed)}"
    served = _most_served(capacity, failed)
    if capacity.bracket.is_narrow(capacity.search.within) or not held < served < failed:
        return f"{server} holds {counts}"
    return f"{server} holds {counts}, of which it held {format_count(served)}"


def _most_served(capacity: Capacity, asked: int) -> int:
    """The most connections that a failed step of so many held and answered at once."""
    served = []
    for step in capacity.steps:
        if step.outcome == "failed" and step.asked == asked:
            served.append(step.served)
    return max(served, default=0)


def step_line(step: Step) -> str:
    """The log line of a finished step."""
    parts = [f"{format_count(step.asked)} connections: {outcome_of(step)}"]
    if step.outcome != "held":
        parts.append(oneline(step.why))
    parts.append(f"p99 {milliseconds(step.latency_p99_ms)}")
    return "; ".join(parts)


def capacity_document(capacity: Capacity) -> doc.Document:
    answer = oneline(sentence(capacity))
    first: list[doc.Block] = [doc.VerdictLine(capacity.verdict, answer)]
    if capacity.verdict == "invalid":
        doubt = "The server's own limit is unknown: it may hold more."
        first.append(doc.Paragraph(doubt, "doubt", "bold magenta"))
    if _may_be_of_another_kind(capacity):
        doubt = _of_paces(capacity.pace)
        if capacity.environment.get("sources") == 1:
            doubt = f"{_ONE_ADDRESS} {doubt}"
        first.append(doc.Paragraph(doubt, "doubt"))
    sections = [
        doc.Section("answer", "", first),
        doc.Section("gave-way", "Bottleneck", _bottlenecks(capacity)),
        doc.Section("forecast", "Forecast", _forecast(capacity)),
        doc.Section("steps", "Steps", _steps(capacity)),
    ]
    if capacity.findings:
        findings = doc.ItemList(doc.finding_items(capacity.findings))
        sections.append(doc.Section("findings", "Findings", [findings]))
    sections.append(doc.Section("files", "", _files(capacity)))
    lasted = format_duration(capacity.duration_s)
    return doc.Document(
        "capacity",
        f"{capacity.server}: {capacity.verdict}",
        capitalised(answer, capacity.server),
        [oneline(", ".join(capacity.urls)), f"started {capacity.started}, took {lasted}"],
        sections,
        f"Made by asyncli {__version__}.",
    )


_ONE_ADDRESS = (
    "All connections came from one address: a limit for each client address looks the same. To "
    "tell them apart, search again with several addresses (--source)."
)
_ONE_PACE = (
    "All were opened at one pace: a limit on connects in a time looks the same too. To tell them "
    "apart, search again with a slower --ramp."
)


def _of_paces(pace: PaceTest | None) -> str:
    """What is known of a limit on connects in a time where a count was found."""
    if pace is None:
        return _ONE_PACE
    if pace.limits == "number":
        return same_at_slower_pace(pace.per_s, pace.slower_per_s, pace.told_apart_s)
    return undecided_at_slower_pace(
        pace.asked, pace.per_s, pace.slower_per_s, pace.served, pace.served_slower
    )


def _may_be_of_another_kind(capacity: Capacity) -> bool:
    """Whether a count that was found may be what the server grants to one client address, or in a
    time.
    """
    if capacity.verdict != "found":
        return False
    is_known_limit = bool(capacity.gave_way) and capacity.gave_way[0].reached
    return not is_known_limit and not capacity.urls[0].startswith("unix:")


def _bottlenecks(capacity: Capacity) -> list[doc.Block]:
    if not capacity.gave_way:
        return []
    first, *others = capacity.gave_way
    name = f"{_side(capacity)}: {first.code.replace('_', ' ')}"
    if first.code == "unknown":
        name = "unknown"
    if not first.certain and first.side != "unknown":
        name += " (likely)"
    blocks: list[doc.Block] = [
        doc.Paragraph(f"Bottleneck  {name}", "line", "bold", view=doc.TERMINAL),
        doc.Paragraph(name, "line", view=doc.View.PAGE),
        doc.Paragraph(oneline(first.evidence)),
    ]
    if first.remedy:
        blocks.append(doc.Paragraph(f"remedy: {oneline(first.remedy)}", style="dim"))
    for other in others:
        blocks.append(doc.Paragraph(f"also: {oneline(other.evidence)}"))
    return blocks


def _side(capacity: Capacity) -> str:
    """The side that the first bottleneck is on."""
    is_undecided = bool(capacity.steps) and capacity.steps[-1].tried.is_undecided
    if capacity.verdict == "invalid" and is_undecided:
        return "this host or the server"
    first = capacity.gave_way[0]
    if first.side == "unknown" and first.code != "unknown":
        # What is known of it is no shortage of this host.
        return "the server or the network"
    return _SIDES[first.side]


def _forecast(capacity: Capacity) -> list[doc.Block]:
    prediction = capacity.forecast
    if prediction is None:
        return []
    is_refuted = prediction.agrees is False
    # Only what was seen to be used up is the first one.
    is_first = prediction.agrees and _reached_a_read_limit(capacity)
    limit = "limit" if is_first else "known limit"
    shown = Ceiling(prediction.name, prediction.connections, prediction.ci95, prediction.how)
    many = about(shown)
    if prediction.ci95 is not None:
        many += f" ({about_to(shown)})"
    judgement = _judgement(prediction, capacity)
    text = f"the first {limit} was {ceiling(prediction.name)}, at about {many}: {judgement}"
    return [
        doc.Paragraph("Forecast", "line", "bold", view=doc.TERMINAL),
        doc.Paragraph(text, style="yellow" if is_refuted else ""),
    ]


def _reached_a_read_limit(capacity: Capacity) -> bool:
    # Such as Apache's workers: only when all are busy does its page tell how many it may have.
    return bool(capacity.gave_way) and capacity.gave_way[0].reached


def _judgement(prediction: Prediction, capacity: Capacity) -> str:
    """Whether the measurement agrees with the forecast."""
    failed = capacity.bracket.failed
    if prediction.agrees is None:
        return "not contradicted by the measurement"
    if prediction.agrees and not _reached_a_read_limit(capacity):
        return "near the measurement, but this limit was not seen to be used up"
    if prediction.agrees:
        if capacity.bracket.held <= prediction.connections < (failed or math.inf):
            return "this agrees with the measurement"
        return f"this agrees with the measurement, within {_within(capacity)}"
    if failed is None or prediction.connections < failed:
        return "more were held"
    if _reached_a_read_limit(capacity):
        return "too high, because the bottleneck is a lower limit"
    return "too high: what gave way before is no limit that asyncli can read"


def _within(capacity: Capacity) -> str:
    return f"{capacity.search.within * 100:.3g} %"


def _steps(capacity: Capacity) -> list[doc.Block]:
    if not capacity.steps:
        return []
    # Explain steps that give no answer, or were repeated.
    reasons = []
    for step in capacity.steps:
        if step.outcome == "ours" or step.tried.chance:
            reasons.append(f"{format_count(step.asked)}: {oneline(step.gave_way[0].evidence)}")
    limits = []
    for key in capacity.limits:
        limits.append(key.removeprefix("connections.").removeprefix("heartbeats."))
    columns = doc.numbers("opened", "held", "lost", "failed", "p99", "late", "free", "CPU")
    columns.append(doc.TableColumn("", kind="word"))

    # Figures need NumPy, which asyncli-light leaves out; the text does not.
    def draw(style: Style) -> Figure:
        from asyncli.report.figures.capacity_steps import capacity_steps

        return capacity_steps(capacity.steps, capacity.bracket.held, style=style)

    def alt() -> str:
        from asyncli.report.figures.capacity_steps import capacity_steps_alt

        return capacity_steps_alt(capacity.steps)

    picture = doc.Picture(
        "steps",
        "The steps",
        "Bars: connections held and answered at once; filled if the step was held. "
        "Vertical line: the answer.",
        draw,
        alt,
        optional=True,
    )
    return [
        picture,
        doc.DataTable("Steps", columns, [_step_row(step) for step in capacity.steps], width=0),
        *map(doc.Paragraph, dict.fromkeys(reasons)),
        doc.Paragraph(f"Held: {capacity.rule}. Limits: {'; '.join(limits)}.", style="dim"),
    ]


def _step_row(step: Step) -> doc.TableRow:
    cells = (
        format_count(step.opened),
        format_count(step.held),
        _bad_count(step.lost),
        _bad_count(step.failed),
        milliseconds(step.latency_p99_ms),
        milliseconds(step.lateness_p99_ms),
        or_bytes(step.available_bytes),
        or_dash(step.server_cores, ".2f"),
        (short_outcome(step), VERDICT_STYLE[step.outcome]),
    )
    return doc.TableRow(format_count(step.asked), cells)


def _bad_count(count: int) -> doc.Cell:
    return format_count(count), "red" if count else ""


def _files(capacity: Capacity) -> list[doc.Block]:
    if not capacity.steps:
        return []
    many = format_many(len(capacity.steps), "step")
    lasted = format_duration(capacity.duration_s)
    last = shlex.quote(str(Path(capacity.folder, capacity.steps[-1].run_file)))
    text = f"{many} in {lasted}; searched to within {_within(capacity)}."
    return [
        doc.Paragraph(text, "text"),
        doc.Paragraph(("Run files       ", (capacity.folder, "bold")), "text"),
        doc.Paragraph(("A step's report ", (f"asyncli report {last}", "bold")), "text"),
    ]
