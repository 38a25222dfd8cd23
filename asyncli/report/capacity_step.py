"""A step of ``asyncli capacity``: a soak as the search counts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from asyncli.analysis.bottleneck import (
    LATE,
    REFUSING,
    RELOADED,
    TIMERS,
    UNSERVED,
    AnalysedRun,
    Bottleneck,
    find_bottlenecks,
    served_most,
    was_never_served,
)
from asyncli.analysis.capacity import TRIES, Outcome, Tried
from asyncli.analysis.constants import WORTH_TELLING
from asyncli.analysis.saturation import saturation
from asyncli.analysis.totals import Totals, errors, tested
from asyncli.findings.bottleneck import words_of
from asyncli.model.metrics import GENERATOR_CPU_S, SERVER_CPU_S
from asyncli.model.records import CUT, STOPPED, Deaths, Finding
from asyncli.model.run import Run
from asyncli.report.analyses import Analyses
from asyncli.report.format import milliseconds
from asyncli.report.summary import Summary, limits_of, not_kept
from asyncli.report.thresholds import Outcome as LimitOutcome

# Findings of a step that doubt what its connections were served: they doubt the capacity too.
_DOUBTS_SERVICE = frozenset(
    {
        "answers_differ",
        "answers_look_like_errors",
        "answers_slow",
        "event_stream",
        "fell_silent",
        "memory_limit_reached",
        "no_answers",
        "not_heard",
        "other_clients",
        "redirected",
        "several_servers",
        "streams_not_allowed",
    }
)

_OUTCOMES: dict[Outcome, str] = {
    "held": "held",
    "failed": "not held",
    "ours": "this host was the limit",
    "stopped": "stopped",
}


class Step(msgspec.Struct, omit_defaults=True):
    """One step: a soak of ``asked`` connections, stored in ``run_file``. None: unknown.

    ``crossed``: keys of crossed limits and of error answers, empty if too few were held.
    ``served``: the most held and answered at once. ``available_bytes``: the least free memory of
    this host. ``cores``: CPU in the last ten seconds before the drain. ``ramp_per_s``: connects a
    second; ``slower_ramp``: fewer than in the other steps. ``unserved``: nearly all that was lost
    or did not connect had never been answered. ``untested``: nothing was heard of the server,
    and nothing was lost.
    ``doubts``: findings that doubt what its connections were served, where they were held.
    ``undecided``: the limit that it could not decide, where it held all and crossed none.
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
    unserved: bool = False
    ramp_per_s: float = 0.0
    slower_ramp: bool = False
    untested: bool = False
    doubts: list[Finding] = []
    undecided: str = ""

    @property
    def tested(self) -> bool:
        """Whether the server answered, or accepted a listener, at least once."""
        if self.untested:
            return False
        return bool(self.answered or (self.opened and self.listens))

    @property
    def is_explained(self) -> bool:
        """Whether the bottleneck is known and not chance."""
        if not self.gave_way:
            return False
        return self.gave_way[0].side != "unknown" and not self.tried.chance

    @property
    def tried(self) -> Tried:
        first = self.gave_way[0].code if self.gave_way else ""
        return Tried(
            self.asked,
            self.outcome,
            self.tested,
            self.served,
            chance=self._is_chance,
            timed=self.outcome == "failed" and first in TIMERS,
            lived_s=self.lived_s,
            ended_s=self.ended_s,
            refused=bool(self.gave_way) and self.gave_way[0].refuses,
            shared=any(map(_is_evidence_against_server, self.gave_way)),
            unserved=self.unserved and not any(way.reached for way in self.gave_way[:1]),
            per_s=self.ramp_per_s,
            slower=self.slower_ramp,
            undecided=self.undecided,
        )

    @property
    def _is_chance(self) -> bool:
        """Whether the same count may be held when it is tried again."""
        if self.outcome == "ours":
            return all(way.code in LATE for way in self.gave_way if way.side == "host")
        if self.outcome == "failed" and self.gave_way:
            return self.gave_way[0].is_incident
        return False


def _is_evidence_against_server(bottleneck: Bottleneck) -> bool:
    # Slow answers are what a busy host shows; what else the server did may be its own limit.
    return bottleneck.side != "host" and bottleneck.code != "slow"


def step_of(run: Run, analyses: Analyses, summary: Summary, run_file: str) -> Step:
    outcomes, _ = limits_of(run, summary, analyses)
    crossed = _crossed(outcomes)
    totals = analyses.totals
    wrong = errors(totals.whole, [limit.threshold.key for limit in outcomes])
    keys = [limit.threshold.key for limit in crossed]
    keys += [f"heartbeats.by_status.{status}" for status in sorted(wrong)]
    latency_ms = summary.heartbeats.latency_ms.p99
    slow = ""
    if any(key.startswith("heartbeats.latency_ms") for key in keys):
        slow = f"a heartbeat in a hundred took {milliseconds(latency_ms)} or longer"
    limits = saturation(run, totals)
    analysed = AnalysedRun(run, totals, analyses.diagnoses, limits, slow)
    bottlenecks: list[Bottleneck] = []
    undecided = _undecided_limit(outcomes, summary, keys)
    outcome = _outcome_without_failure(run, summary, undecided)
    if outcome is None:
        bottlenecks = find_bottlenecks(analysed)
        outcome = _whose_failure(bottlenecks, summary)
    reason = summary.why
    if outcome == "ours":
        reason = bottlenecks[0].evidence
    elif outcome == "failed" and crossed:
        reason = f"{crossed[0].threshold.text} (it was {crossed[0].amount})"
    return Step(
        asked=run.plan.connections,
        outcome=outcome,
        why=reason,
        crossed=keys,
        opened=summary.connections.opened or 0,
        answered=summary.heartbeats.answered or 0,
        held=summary.connections.held or 0,
        served=_served(run, totals),
        lost=summary.connections.lost or 0,
        failed=summary.connections.failed or 0,
        latency_p99_ms=latency_ms,
        lateness_p99_ms=summary.heartbeats.lateness_ms.p99,
        available_bytes=analysed.least_available(),
        server_bytes=summary.server.memory[0].hold_end,
        server_cores=analysed.cores(SERVER_CPU_S),
        asyncli_cores=analysed.cores(GENERATOR_CPU_S),
        duration_s=summary.run.duration_s,
        gave_way=bottlenecks,
        server=analysed.server,
        run_file=run_file,
        listens=run.plan.listens,
        lived_s=max(0.0, run.stop_s - run.first_connect_s),
        ended_s=_age_of_youngest_lost(totals.whole.deaths.values()),
        unserved=was_never_served(totals.whole, listens=run.plan.listens),
        ramp_per_s=run.plan.asked_per_s,
        untested=_is_untested(summary),
        doubts=_doubts_of_service(outcome, summary),
        undecided=undecided,
    )


def _crossed(outcomes: Sequence[LimitOutcome]) -> list[LimitOutcome]:
    """The limits that were crossed, each once. Whether asyncli's lateness did it, the bottlenecks
    tell.
    """
    crossed = [limit for limit in not_kept(outcomes) if limit.crossed or limit.by_lateness]
    return list(dict.fromkeys(crossed))


def _undecided_limit(
    outcomes: Sequence[LimitOutcome], summary: Summary, crossed: Sequence[str]
) -> str:
    """The limit of a step that held all its connections and crossed no limit, where one could not
    be decided; "" if there is none.
    """
    counts = summary.connections
    if crossed or counts.lost or counts.failed or summary.verdict != "failed":
        return ""
    undecided = [limit.threshold.text for limit in outcomes if limit.crossed is None]
    return next(iter(undecided), "")


def _served(run: Run, totals: Totals) -> int:
    """The most held and answered at once. What a second's end counts as held may be refused a
    moment later: where nothing was answered, none was served.
    """
    if not tested(run.plan, totals.whole, accepted=totals.acceptance.accepted):
        return 0
    return served_most(run.ticks)


def _is_untested(summary: Summary) -> bool:
    """Whether nothing was heard of the server; one that ends connections was heard."""
    return summary.verdict == "untested" and not summary.connections.lost


def _doubts_of_service(outcome: Outcome, summary: Summary) -> list[Finding]:
    if outcome != "held":
        return []
    return [finding for finding in summary.findings if finding.code in _DOUBTS_SERVICE]


def _outcome_without_failure(run: Run, summary: Summary, undecided: str) -> Outcome | None:
    """None: the count was not held."""
    if undecided or any(finding.code in (STOPPED, CUT) for finding in run.findings):
        return "stopped"
    if summary.verdict == "passed":
        return "held"
    return None


def _whose_failure(bottlenecks: Sequence[Bottleneck], summary: Summary) -> Outcome:
    """Whether this host was the limit or the server failed."""
    if not bottlenecks:
        return "failed"
    first = bottlenecks[0]
    if first.side == "host":
        return "ours"
    # A certain limit of the server counts even in an invalid run.
    is_limit_of_server = first.side == "server" and first.certain
    if summary.verdict == "invalid" and not is_limit_of_server:
        return "ours"
    return "failed"


def _age_of_youngest_lost(deaths: Iterable[Deaths]) -> float:
    """In whole seconds, rounded up; 0 if none was lost."""
    ages = [dead.age_s.least + 1.0 for dead in deaths if dead.count]
    return min(ages, default=0.0)


def with_lifetime_limit(steps: Sequence[Step]) -> list[Step]:
    """``steps``, with a lifetime limit in place of a likely reload if all failed ones lost
    connections of the same age: a single event would find those of each step at another age. None
    of ``steps`` was held.
    """
    failed = [step for step in steps if step.outcome == "failed"]
    if not _lost_at_same_age(failed) or not any(map(_is_likely_reload, failed)):
        return list(steps)
    age_s = min(step.ended_s for step in failed) - 1.0
    words = words_of("same_age", steps=len(failed), age_s=age_s)
    limit = Bottleneck("server", "lifetime", words.evidence, words.remedy, certain=False)
    judged = []
    for step in steps:
        if step.outcome == "failed":
            judged.append(msgspec.structs.replace(step, gave_way=[limit]))
        else:
            judged.append(step)
    return judged


def _lost_at_same_age(failed: Sequence[Step]) -> bool:
    if len(failed) < 2:
        return False
    ages = [step.ended_s for step in failed]
    # Ages are whole seconds, rounded up: 1 is a connection that was closed at once.
    return min(ages) > 1.0 and max(ages) - min(ages) <= 1.0


def _is_likely_reload(failed: Step) -> bool:
    first = failed.gave_way[0]
    return first.code in RELOADED and not first.certain


def with_own_limit(steps: Sequence[Step]) -> list[Step]:
    """``steps``, with the server's limit in place of this host's lateness where all tries of a
    count held the same number, and the server did not serve the others: what is late by chance is
    not late for the same number twice.
    """
    last = steps[-1]
    tries = [place for place, step in enumerate(steps) if _is_late_try(step, last.asked)]
    if len(tries) < TRIES or not 0 < last.held < last.asked:
        return list(steps)
    held = [steps[place].held for place in tries]
    if max(held) - min(held) > WORTH_TELLING * last.asked:
        return list(steps)
    judged = list(steps)
    for place in tries:
        limit = _limit_of_server(steps[place])
        if limit is None:
            return list(steps)
        judged[place] = _failed_by_limit(steps[place], limit, tries=len(tries), held=last.held)
    return judged


def _is_late_try(step: Step, asked: int) -> bool:
    return step.asked == asked and step.outcome == "ours" and step.tried.chance


def _limit_of_server(step: Step) -> Bottleneck | None:
    for bottleneck in step.gave_way:
        if bottleneck.code in REFUSING | UNSERVED:
            return bottleneck
    return None


def _failed_by_limit(step: Step, limit: Bottleneck, *, tries: int, held: int) -> Step:
    """``step`` as one that the server failed by ``limit``."""
    words = words_of(
        "own_limit",
        steps=tries,
        asked=step.asked,
        held=held,
        why=limit.evidence,
        remedy=limit.remedy,
    )
    own_limit = Bottleneck("server", "own_limit", words.evidence, words.remedy, limit.certain)
    others = [bottleneck for bottleneck in step.gave_way if bottleneck is not limit]
    return msgspec.structs.replace(
        step, outcome="failed", why=words.evidence, gave_way=[own_limit, *others]
    )


def outcome_of(step: Step) -> str:
    """The outcome of a step in words, whose limit it was included."""
    return _OUTCOMES[step.outcome]


def short_outcome(step: Step) -> str:
    """The outcome of a step in a word or two, and that its ramp was slower."""
    if step.slower_ramp:
        return f"{_outcome_in_short(step)} (slower ramp)"
    return _outcome_in_short(step)


def _outcome_in_short(step: Step) -> str:
    if step.outcome == "ours":
        return "our limit"
    if step.outcome != "failed":
        return _OUTCOMES[step.outcome]
    return f"not held: {_failed_by(step)}"


def _failed_by(step: Step) -> str:
    """The quantity that was not as asked."""
    if not step.crossed:
        return "too few"
    key = step.crossed[0].removeprefix("heartbeats.by_")
    if "latency_ms" in key:
        return "latency"
    if not key.startswith("status."):
        key = key.rpartition(".")[2]
    return key.replace(".", " ")


def doubts_of_largest_held(steps: Sequence[Step]) -> list[Finding]:
    """The findings that doubt what the connections of the largest held step were served."""
    held = [step for step in steps if step.outcome == "held"]
    if not held:
        return []
    return max(held, key=lambda step: step.asked).doubts
