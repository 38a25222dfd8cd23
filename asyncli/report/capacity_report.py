"""The result of ``asyncli capacity``: its JSON (docs/capacity.md) and its report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli import __version__
from asyncli.analysis.bottleneck import (
    LATE,
    REFUSING,
    RELOADED,
    TIMERS,
    UNSERVED,
    AnalysedRun,
    Bottleneck,
    Side,
    find_bottlenecks,
    served_most,
)  # fmt: skip
from asyncli.analysis.capacity import TRIES, Bracket, Outcome, Prediction, Search, Tried, Verdict
from asyncli.analysis.constants import WORTH_TELLING
from asyncli.analysis.forecast import Ceiling
from asyncli.analysis.saturation import saturation
from asyncli.analysis.totals import errors
from asyncli.findings.bottleneck import words_of
from asyncli.model.metrics import GENERATOR_CPU_S, SERVER_CPU_S
from asyncli.model.records import CUT, STOPPED, Environment, Finding
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report.analyses import Analyses
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, drawn_alone, sheet, ticks
from asyncli.report.format import about, about_to, capitalised, ceiling, milliseconds, or_bytes, or_dash
from asyncli.report.summary import Summary, limits_of, not_kept
from asyncli.report.terminal import VERDICT_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Version of the JSON.
SCHEMA = 1
_SIDES: dict[Side, str] = {
    "server": "the server", "host": "this host, not the server", "network": "the network", "unknown": "unknown",
}  # fmt: skip


class Step(msgspec.Struct, omit_defaults=True):
    """One step: a soak of ``asked`` connections, stored in ``run_file``. None: unknown.

    ``crossed``: keys of crossed limits and of error answers, empty if too few were held. ``served``: the most held and answered
    at once. ``available_bytes``: the least free memory of this host. ``cores``: CPU in the last ten seconds before the drain.
    """

    asked: int
    outcome: Outcome
    why: str
    crossed: list[str]
    opened: int
    answered: int
    held: int
    served: int
    lost: int
    failed: int
    latency_p99_ms: float | None
    lateness_p99_ms: float | None
    available_bytes: float | None
    server_bytes: float | None
    server_cores: float | None
    asyncli_cores: float | None
    duration_s: float
    gave_way: list[Bottleneck]
    server: str
    run_file: str
    listens: bool = False
    lived_s: float = 0.0
    ended_s: float = 0.0

    @property
    def tested(self) -> bool:
        """Whether the server answered, or accepted a listener, at least once."""
        return bool(self.answered or (self.opened and self.listens))

    @property
    def is_explained(self) -> bool:
        """Whether the bottleneck is known and not chance."""
        return bool(self.gave_way) and self.gave_way[0].side != "unknown" and not self.tried.chance

    @property
    def tried(self) -> Tried:
        first = self.gave_way[0].code if self.gave_way else ""
        chance = self.outcome == "ours" and all(one.code in LATE for one in self.gave_way if one.side == "host")
        chance |= self.outcome == "failed" and bool(self.gave_way) and self.gave_way[0].is_incident
        timed = self.outcome == "failed" and first in TIMERS
        refused = first in REFUSING
        # Slow answers are what a busy host shows; what else the server did may be its own limit.
        shared = any(one.side != "host" and one.code != "slow" for one in self.gave_way)
        return Tried(
            self.asked, self.outcome, self.tested, self.served, chance, timed, self.lived_s, self.ended_s, refused, shared,
        )  # fmt: skip


class Capacity(msgspec.Struct):
    """The JSON of ``asyncli capacity``. ``gave_way``: the bottlenecks at the smallest count that was not held."""

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


def step_of(run: Run, analyses: Analyses, summary: Summary, run_file: str) -> Step:
    outcomes, _ = limits_of(run.plan, summary)
    crossed = list(dict.fromkeys(one for one in not_kept(outcomes) if one.crossed))
    wrong = errors(analyses.totals.whole, [one.threshold.key for one in outcomes])
    limits = [*(one.threshold.key for one in crossed), *(f"heartbeats.by_status.{status}" for status in sorted(wrong))]
    latency = summary.heartbeats.latency_ms.p99
    slow = f"a heartbeat in a hundred took {milliseconds(latency)} or longer"
    slow = slow if any(one.startswith("heartbeats.latency_ms") for one in limits) else ""
    seen = AnalysedRun(run, analyses.totals, analyses.diagnoses, saturation(run, analyses.totals), slow)
    stopped = any(one.code in (STOPPED, CUT) for one in run.findings)
    held = summary.verdict == "passed" and not stopped
    bottlenecks = [] if held or stopped else find_bottlenecks(seen)
    # A certain limit of the server counts even in an invalid run.
    limit = bool(bottlenecks) and bottlenecks[0].side == "server" and bottlenecks[0].certain
    ours = bool(bottlenecks) and (bottlenecks[0].side == "host" or (summary.verdict == "invalid" and not limit))
    outcome: Outcome = "stopped" if stopped else "held" if held else "ours" if ours else "failed"
    reason = summary.why
    if outcome == "ours":
        reason = bottlenecks[0].evidence
    elif outcome == "failed" and crossed:
        reason = f"{crossed[0].threshold.text} (it was {crossed[0].amount})"
    return Step(
        asked=run.plan.connections,
        outcome=outcome,
        why=reason,
        crossed=limits,
        opened=summary.connections.opened or 0,
        answered=summary.heartbeats.answered or 0,
        held=summary.connections.held or 0,
        served=served_most(run.ticks),
        lost=summary.connections.lost or 0,
        failed=summary.connections.failed or 0,
        latency_p99_ms=latency,
        lateness_p99_ms=summary.heartbeats.lateness_ms.p99,
        available_bytes=seen.least_available(),
        server_bytes=summary.server.memory[0].hold_end,
        server_cores=seen.cores(SERVER_CPU_S),
        asyncli_cores=seen.cores(GENERATOR_CPU_S),
        duration_s=summary.run.duration_s,
        gave_way=bottlenecks,
        server=seen.server,
        run_file=run_file,
        listens=run.plan.listens,
        lived_s=max(0.0, run.stop_s - run.first_connect_s),
        ended_s=min((dead.age_s.least + 1.0 for dead in analyses.totals.whole.deaths.values() if dead.count), default=0.0),
    )


def with_lifetime_limit(steps: Sequence[Step]) -> list[Step]:
    """``steps``, with a lifetime limit in place of a likely reload if all failed ones lost connections of the same age: a single
    event would find those of each step at another age. None of ``steps`` was held."""
    failed = [one for one in steps if one.outcome == "failed"]
    ages = [one.ended_s for one in failed]
    # Ages are whole seconds, rounded up: 1 is a connection that was closed at once.
    same_age = len(ages) > 1 and min(ages) > 1.0 and max(ages) - min(ages) <= 1.0
    if not same_age or all(one.gave_way[0].certain or one.gave_way[0].code not in RELOADED for one in failed):
        return list(steps)
    words = words_of("same_age", steps=len(failed), age_s=min(ages) - 1.0)
    limit = Bottleneck("server", "lifetime", words.evidence, words.remedy, certain=False)
    return [msgspec.structs.replace(one, gave_way=[limit]) if one.outcome == "failed" else one for one in steps]


def with_own_limit(steps: Sequence[Step]) -> list[Step]:
    """``steps``, with the server's limit in place of this host's lateness where all tries of a count held the same number, and
    the server did not serve the others: what is late by chance is not late for the same number twice."""
    last = steps[-1]
    tries = [one for one in steps if one.asked == last.asked and one.outcome == "ours" and one.tried.chance]
    limits = [next((way for way in one.gave_way if way.code in REFUSING | UNSERVED), None) for one in tries]
    apart = max((one.held for one in tries), default=0) - min((one.held for one in tries), default=0)
    if len(tries) < TRIES or None in limits or not 0 < last.held < last.asked or apart > WORTH_TELLING * last.asked:
        return list(steps)
    failed = {}
    for one, limit in zip(tries, limits, strict=True):
        assert limit is not None
        fields = {"steps": len(tries), "asked": one.asked, "held": last.held, "why": limit.evidence, "remedy": limit.remedy}
        words = words_of("own_limit", **fields)
        ways = [Bottleneck("server", "own_limit", words.evidence, words.remedy, limit.certain)]
        ways += [way for way in one.gave_way if way is not limit]
        failed[id(one)] = msgspec.structs.replace(one, outcome="failed", why=words.evidence, gave_way=ways)
    return [failed.get(id(one), one) for one in steps]


def one_line(found: Capacity) -> str:
    return oneline(f"{found.verdict}: {sentence(found)}")


def sentence(found: Capacity) -> str:
    """The answer: the counts that were held and not held."""
    held, failed, name = found.bracket.held, found.bracket.failed, found.server
    if found.verdict in ("untested", "failed"):
        return found.why
    what = f"{name} holds {format_many(held, 'connection')}"
    if failed is not None and not held:
        what = f"{name} did not hold {format_many(failed, 'connection')}, the smallest count tried"
    elif failed is not None:
        what += f", and does not hold {format_count(failed)}"
        seen = max((one.served for one in found.steps if one.outcome == "failed" and one.asked == failed), default=0)
        if not found.bracket.is_narrow(found.search.within) and held < seen < failed:
            what += f", of which it held {format_count(seen)}"
    elif held:
        what = f"{name} holds at least {format_many(held, 'connection')}"
    else:
        what = f"how many connections {name} holds is unknown"
    return f"{what}; {found.why}" if found.why else what


def step_line(step: Step) -> str:
    """The log line of a finished step."""
    parts = [f"{format_count(step.asked)} connections: {_OUTCOMES[step.outcome]}"]
    if step.outcome != "held":
        parts.append(oneline(step.why))
    parts.append(f"p99 {milliseconds(step.latency_p99_ms)}")
    return "; ".join(parts)


_OUTCOMES: dict[Outcome, str] = {"held": "held", "failed": "not held", "ours": "this host was the limit", "stopped": "stopped"}


def capacity_document(found: Capacity) -> doc.Document:
    answer = oneline(sentence(found))
    invalid = [doc.Paragraph("The server's own limit is unknown: it may hold more.", "doubt", "bold magenta")]
    sections = [
        doc.Section("answer", "", [doc.VerdictLine(found.verdict, answer), *(invalid if found.verdict == "invalid" else [])]),
        doc.Section("gave-way", "Bottleneck", _bottlenecks(found)),
        doc.Section("forecast", "Forecast", _forecast(found)),
        doc.Section("steps", "Steps", _steps(found)),
        *([doc.Section("findings", "Findings", [doc.ItemList(doc.finding_items(found.findings))])] if found.findings else []),
        doc.Section("files", "", _files(found)),
    ]
    byline = [oneline(", ".join(found.urls)), f"started {found.started}, took {format_duration(found.duration_s)}"]
    headline = capitalised(answer, found.server)
    return doc.Document(
        "capacity", f"{found.server}: {found.verdict}", headline, byline, sections, f"Made by asyncli {__version__}."
    )


def _bottlenecks(found: Capacity) -> list[doc.Block]:
    if not found.gave_way:
        return []
    first, *others = found.gave_way
    likely = "" if first.certain or first.side == "unknown" else " (likely)"
    either = found.verdict == "invalid" and found.steps and found.steps[-1].tried.is_undecided
    side = "this host or the server" if either else _SIDES[first.side]
    what = f"{side}: {first.code.replace('_', ' ')}{likely}"
    lines = [(oneline(first.evidence), ""), *([(f"remedy: {oneline(first.remedy)}", "dim")] if first.remedy else [])]
    lines += [(f"also: {oneline(one.evidence)}", "") for one in others]
    return [
        doc.Paragraph(f"Bottleneck  {what}", "line", "bold", view=doc.TERMINAL),
        doc.Paragraph(what, "line", view=doc.View.PAGE),
        *(doc.Paragraph(line, style=style) for line, style in lines),
    ]


def _forecast(found: Capacity) -> list[doc.Block]:
    one = found.forecast
    if one is None:
        return []
    # Such as Apache's workers: only when all are busy does its page tell how many it may have.
    reached = any(first.reached for first in found.gave_way[:1])
    inside = found.bracket.held <= one.connections < (found.bracket.failed or math.inf)
    judgement = f"this agrees with the measurement{'' if inside else f', within {found.search.within * 100:.3g} %'}"
    if one.agrees is None:
        judgement = "not contradicted by the measurement"
    elif not one.agrees and found.bracket.failed is not None and one.connections >= found.bracket.failed:
        judgement = "the bottleneck is a lower limit" if reached else "the bottleneck is not a limit that asyncli can read"
    elif not one.agrees:
        judgement = "more were held"
    shown = Ceiling(one.name, one.connections, one.ci95, one.how)
    many = about(shown) + (f" ({about_to(shown)})" if one.ci95 is not None else "")
    text = f"the first {'known ' * (one.agrees is False and reached)}limit was {ceiling(one.name)}, at about {many}: {judgement}"
    return [
        doc.Paragraph("Forecast", "line", "bold", view=doc.TERMINAL),
        doc.Paragraph(text, style="yellow" if one.agrees is False else ""),
    ]


def _steps(found: Capacity) -> list[doc.Block]:
    if not found.steps:
        return []
    rows = []
    for one in found.steps:
        cells = (
            format_count(one.opened), format_count(one.held), (format_count(one.lost), "red" if one.lost else ""),
            (format_count(one.failed), "red" if one.failed else ""), milliseconds(one.latency_p99_ms),
            milliseconds(one.lateness_p99_ms), or_bytes(one.available_bytes), or_dash(one.server_cores, ".2f"),
            (outcome_of(one), VERDICT_STYLE[one.outcome]),
        )  # fmt: skip
        rows.append(doc.TableRow(format_count(one.asked), cells))
    columns = [doc.TableColumn(name) for name in ("opened", "held", "lost", "failed", "p99", "late", "free", "CPU")]
    # Explain steps that give no answer, or were repeated.
    unusable = [one for one in found.steps if one.outcome == "ours" or one.tried.chance]
    lines = dict.fromkeys(f"{format_count(one.asked)}: {oneline(one.gave_way[0].evidence)}" for one in unusable)
    limits = "; ".join(one.removeprefix("connections.").removeprefix("heartbeats.") for one in found.limits)
    key = "Bars: connections held and answered at once; filled if the step was held. Vertical line: the answer."
    return [
        doc.Picture("steps", "The steps", key, lambda style: steps(found, style=style), lambda: steps_alt(found), optional=True),
        doc.DataTable("Steps", [*columns, doc.TableColumn("", kind="word")], rows, width=0),
        *map(doc.Paragraph, lines),
        doc.Paragraph(f"Held: {found.rule}. Limits: {limits}.", style="dim"),
    ]


def outcome_of(step: Step) -> str:
    """The outcome of a step in a word or two."""
    if step.outcome != "failed":
        return "our limit" if step.outcome == "ours" else _OUTCOMES[step.outcome]
    key = step.crossed[0].removeprefix("heartbeats.by_") if step.crossed else "held"
    name = "latency" if "latency_ms" in key else key if key.startswith("status.") else key.rpartition(".")[2]
    return f"not held: {name.replace('.', ' ')}"


def _files(found: Capacity) -> list[doc.Block]:
    if not found.steps:
        return []
    many, within = format_many(len(found.steps), "step"), f"{found.search.within * 100:.3g} %"
    last = shlex.quote(str(Path(found.folder, found.steps[-1].run_file)))
    return [
        doc.Paragraph(f"{many} in {format_duration(found.duration_s)}; searched to within {within}.", "text"),
        doc.Paragraph(("Run files       ", (found.folder, "bold")), "text"),
        doc.Paragraph(("A step's report ", (f"asyncli report {last}", "bold")), "text"),
    ]


_COLOUR = {"held": "ours", "failed": "kernel", "ours": "violet", "stopped": "rest"}


def _by_count(found: Capacity) -> list[Step]:
    return sorted(found.steps, key=lambda one: one.asked)


@drawn_alone
def steps(found: Capacity, *, style: Style = WIDE) -> Figure:
    """A bar per step up to the most that it served, and a thin line up to the count that was tried."""
    rows = _by_count(found)
    if not rows:
        raise NothingToDraw("No step has finished.")
    figure, ((ax,),) = sheet(style, [24.0 * len(rows)], (60.0, 130.0 if style.narrow else 190.0, 8.0, 26.0))
    for place, one in enumerate(rows):
        colour, served, held = COLOURS[_COLOUR[one.outcome]], min(one.served, one.asked), one.outcome == "held"
        ax.plot([served, one.asked], [place, place], color=COLOURS["rule"], linewidth=0.8)
        ax.barh(place, served, 0.42, color=colour if held else COLOURS["paper"], edgecolor=colour, hatch="" if held else "////")
        if found.bracket.held:
            ax.plot([found.bracket.held] * 2, [place - 0.34, place + 0.34], color=COLOURS["ink"], linewidth=1.4, clip_on=False)
        label = outcome_of(one) + ("" if style.narrow else f", p99 {milliseconds(one.latency_p99_ms)}")
        ax.annotate(
            label, (1.0, place), xycoords=("axes fraction", "data"), xytext=(12, 0), textcoords="offset points", va="center",
            color=COLOURS["soft"] if held else colour, size=11,
        )  # fmt: skip
    ax.grid(visible=False)
    ax.set_yticks(range(len(rows)), [format_count(one.asked) for one in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, rows[-1].asked)
    ticks(ax.xaxis, "", 4)
    return figure


def steps_alt(found: Capacity) -> str:
    """The figure in a sentence."""
    return f"Steps: {'; '.join(f'{format_count(one.asked)} {outcome_of(one)}' for one in _by_count(found))}."
