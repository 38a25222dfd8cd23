"""Assigns each lost connection to one diagnosis."""

from __future__ import annotations

from functools import partial

import msgspec

from asyncli.analysis.constants import FEWEST
from asyncli.analysis.losses import bursts, recorded, timeouts, unanswered
from asyncli.analysis.losses.table import LossTable, Reason, reason, unclaimed
from asyncli.analysis.totals import Totals
from asyncli.findings.loss_causes import remedy_of_unexplained
from asyncli.model.run import Run

# First what the run or the server confirms, then single numbers of the lost connections, then when
# they ended.
_MECHANISMS = (
    recorded.generator_lost,
    recorded.unreadable,
    recorded.tls_error,
    recorded.goodbye,
    recorded.http_error,
    recorded.client_cut,
    timeouts.keepalive_off,
    timeouts.configured,
    bursts.idle_reuse,
    recorded.suspended,
    bursts.graceful_restart,
    partial(bursts.bursts, only_certain=True),
    bursts.rest_of_reuse,
    timeouts.likely_idle_timeout,
    bursts.workers_in_turn,
    bursts.likely_reuse,
    timeouts.closed_at_once,
    unanswered.cut_short,
    timeouts.forgotten,
    timeouts.exact_request_limit,
    timeouts.announced_request_limit,
    timeouts.likely_age_limit,
    timeouts.refused_at_heartbeats,
    partial(bursts.bursts, only_certain=False),
    timeouts.likely_keepalive_requests,
    unanswered.silence,
    unanswered.unanswered,
)


class Diagnosis(msgspec.Struct, frozen=True):
    """``count`` losses of one cause with one explanation; code "unexplained" or "too_few" without
    one.

    ``certain``: confirmed by the server's configuration, counts or processes; else likely.
    ``from_s``, ``to_s``: the seconds of the first and the last loss. ``incident``: the same number
    for all losses of one event, which may have several causes.
    """

    cause: str
    code: str
    count: int
    evidence: str
    remedy: str
    certain: bool
    from_s: float
    to_s: float
    incident: int = 0


def diagnose(run: Run, totals: Totals) -> list[Diagnosis]:
    """The diagnoses of a run's losses, most frequent first; the counts of a cause add up to its
    deaths.
    """
    if not totals.whole.deaths:
        return []
    table = LossTable(run, totals)
    for mechanism in (*_MECHANISMS, _unexplained):
        mechanism(table)
    diagnoses = []
    of_cause: dict[str, int] = {}
    incidents: dict[Reason, int] = {}
    for (cause, why), claimed in table.attributions.items():
        incident = incidents.setdefault(why, len(incidents) + 1)
        evidence, remedy, _ = claimed.words(
            why, listens=run.plan.listens, protocol=run.plan.protocol
        )
        diagnoses.append(
            Diagnosis(
                cause,
                why.code,
                claimed.count,
                evidence,
                remedy,
                why.certain,
                claimed.from_s,
                claimed.to_s,
                incident,
            )
        )
        of_cause[cause] = of_cause.get(cause, 0) + claimed.count

    def most_frequent_first(diagnosis: Diagnosis) -> tuple[int, str, int, float]:
        cause = diagnosis.cause
        return -of_cause[cause], cause, -diagnosis.count, diagnosis.from_s

    return sorted(diagnoses, key=most_frequent_first)


def _unexplained(table: LossTable) -> None:
    causes = dict.fromkeys(cell.cause for cell in table.cells if cell.unclaimed)
    for event, cause in enumerate(causes):
        cells = table.of(cause)
        code = "too_few" if unclaimed(cells) < FEWEST else "unexplained"
        remedy = remedy_of_unexplained(table.plan.protocol, cause, table.server.name)
        explanation = reason(code, event=event, remedy=remedy)
        if cause == "heartbeat_timeout" and len(unanswered.silent_stretches(table)) == 1:
            words = unanswered.with_what_began_it(table, explanation.words, cells, code)
            explanation = msgspec.structs.replace(explanation, words=words)
        table.claim(cells, explanation)
