"""The verdict of a run: that of the first of :data:`RULES` that applies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec

from asyncli.analysis.asked_by_plan import EndedWithServer
from asyncli.analysis.losses.slowness import Unheard
from asyncli.analysis.totals import Totals, errors, tested
from asyncli.findings import server, verdicts
from asyncli.findings.losses import lost_with
from asyncli.model.plan import Plan
from asyncli.model.records import (
    ABORTED,
    CHURN,
    CUT,
    NOTHING_LISTENS,
    RESUMED,
    STOPPED,
    Finding,
    Tick,
)

#: "unjudged": there is none, since a limit cannot be judged in this installation.
Verdict = Literal["passed", "failed", "invalid", "untested", "unjudged"]

#: The keys of what a rule is about; a --fail-if on one of them replaces that part of the rule.
LOST = "connections.lost"
HELD = "connections.held"
LOST_BY_ASYNCLI = "connections.deaths.generator_lost"
STREAMS = "protocol.streams.streams_lost"
# Phases (None: before the first) of a run that has held nothing yet.
_BEFORE_HOLD = (None, "baseline", "ramp")


class Judgement(msgspec.Struct):
    """The verdict, and its reason in one line. ``by_limits``: only limits decided it."""

    verdict: Verdict
    why: str
    by_limits: bool = False


class Case(msgspec.Struct, frozen=True):
    """What is known of a run when it is judged.

    ``saturated``: asyncli was the limit. ``late_ramp``: it was late in the ramp, so connects that
    failed there may be its own fault. ``complete``: the run file has its end; ``written``: a
    process still writes it (None: unknown); ``end_s``: when its records end. ``limited``: keys with
    a --fail-if; ``crossed``: the limits that were crossed or undecided in words, the worst first;
    ``within_lateness``: those that only asyncli's own lateness may have crossed; ``not_judged``:
    those that this installation cannot judge. ``suspended``:
    connections that were lost because this machine was suspended. ``unheard``: connections that
    were silent at the end (None: all were heard). ``ended_with_server``: those that are counted
    with an event, though the server ended by no command.

    A run is *stopped* by its first Ctrl-C or SIGTERM, which drains and reports, *cut* by the
    second, and *aborted* by a crossed limit. ``whole``: the sum of all ticks.
    """

    plan: Plan
    totals: Totals
    saturated: bool
    complete: bool
    late_ramp: bool = False
    written: bool | None = None
    findings: Sequence[Finding] = ()
    limited: Collection[str] = ()
    crossed: Sequence[str] = ()
    within_lateness: Sequence[str] = ()
    not_judged: Sequence[str] = ()
    end_s: float = 0.0
    suspended: int = 0
    unheard: Unheard | None = None
    ended_with_server: Sequence[EndedWithServer] = ()

    @property
    def whole(self) -> Tick:
        return self.totals.whole

    @property
    def held(self) -> int:
        return self.totals.held

    @property
    def asked(self) -> int:
        """How many the plan has at the hold's end: an event may have some fall silent for good, or
        come back later.
        """
        return self.plan.connections - self.whole.waiting - self.totals.gone

    @property
    def not_back(self) -> dict[int, int]:
        """By the number of each event: those whom it ended, and who were not back at the hold's end
        though it was their turn.
        """
        return {number: event.away for number, event in self.whole.events.items() if event.away > 0}

    @property
    def not_back_unlimited(self) -> dict[int, int]:
        """Those of events without a limit on them, in the order of their numbers."""
        unlimited = {}
        for number, count in sorted(self.not_back.items()):
            if not self.has_limit_on(f"events.{number}.not_back"):
                unlimited[number] = count
        return unlimited

    @property
    def is_short(self) -> bool:
        """Whether fewer were held at the hold's end than asked for, without those whom an event had
        ended before.
        """
        return self.held + sum(self.not_back.values()) < self.asked

    @property
    def lost_by_asyncli(self) -> int:
        """Those whose worker ended or hung: "generator" is asyncli's own part of a run."""
        return self.whole.lost_by_asyncli

    @property
    def lost_by_server(self) -> int:
        return self.whole.lost_by_server

    @property
    def failed_connects(self) -> int:
        return self.whole.failed

    @property
    def was_cut(self) -> bool:
        return CUT in ended_by_user(self.findings)

    @property
    def was_aborted(self) -> bool:
        """Whether a crossed limit ended it."""
        return any(finding.code == ABORTED for finding in self.findings)

    @property
    def was_stopped_before_hold(self) -> bool:
        return stopped_before_hold(self.findings)

    @property
    def stop(self) -> str:
        """How and when the user ended the run early, or ""."""
        return interrupted(self.findings)

    def has_limit_on(self, key: str) -> bool:
        return key in self.limited

    def with_stop(self, reason: str) -> str:
        """The reason, and how the user ended the run early."""
        return f"{reason}; {self.stop}" if self.stop else reason

    def with_early_stop(self, reason: str) -> str:
        """The reason, and how the user ended the run, if that was before its hold."""
        return self.with_stop(reason) if self.was_stopped_before_hold else reason


Rule = Callable[[Case], Judgement | None]


def judge(case: Case) -> Judgement:
    """The verdict of a run and its reason."""
    for rule in RULES:
        judgement = rule(case)
        if judgement is not None:
            return judgement
    return passed(case)


# Untested: nothing is known of the server.


def records_are_missing(case: Case) -> Judgement | None:
    if case.totals.recorded:
        return None
    return Judgement("untested", case.with_stop(verdicts.NO_RECORDS))


def nothing_connected(case: Case) -> Judgement | None:
    if case.whole.opened:
        return None
    for finding in case.findings:
        if finding.code == NOTHING_LISTENS:
            return Judgement("untested", case.with_stop(finding.evidence))
    return Judgement("untested", case.with_stop(verdicts.NOTHING_CONNECTED))


def nothing_answered(case: Case) -> Judgement | None:
    """No heartbeat was answered, unless none was due yet and handshakes succeeded. If connections
    listen: no byte came, and no program was seen to accept them.
    """
    acceptance = case.totals.acceptance
    if tested(case.plan, case.whole, accepted=acceptance.accepted):
        return None
    if case.plan.listens:
        reason = server.not_accepted(case.whole.opened, acceptance.known).evidence
    else:
        why = why_untested(case.whole.deaths, case.whole.sent)
        reason = verdicts.unanswered(
            why, case.whole.opened, case.whole.sent, _most_often_wrong(case.whole)
        )
    return Judgement("untested", case.with_stop(reason))


def answers_prove_nothing(case: Case) -> Judgement | None:
    """The server sends by itself what answers heartbeats, at least as often."""
    finding = unproven(case.whole)
    if finding is None:
        return None
    return Judgement("untested", case.with_stop(finding.evidence))


# Invalid: asyncli is the reason. The costs that the report has are right even then: memory per
# connection depends on none of this.


def asyncli_was_at_fault(case: Case) -> Judgement | None:
    """It lost connections itself, unless a limit allows it; or it was the limit. A worker that was
    lost before it held a connection counts too.
    """
    reasons = []
    if "generator_lost" in case.whole.deaths and not case.has_limit_on(LOST_BY_ASYNCLI):
        with_what = lost_with(case.findings, "its").evidence
        reasons.append(verdicts.lost_by_asyncli(case.lost_by_asyncli, with_what))
    if case.saturated:
        reasons.append(verdicts.ASYNCLI_WAS_THE_LIMIT)
    if not reasons:
        return None
    return Judgement("invalid", case.with_early_stop("; and ".join(reasons)))


def only_a_suspension_lost_connections(case: Case) -> Judgement | None:
    if not case.suspended or case.suspended < case.whole.lost:
        return None
    return Judgement("invalid", verdicts.lost_to_suspension(case.suspended))


def ports_or_descriptors_ran_out(case: Case) -> Judgement | None:
    """Some are missing at the end, or not back from an event without a limit on them, and asyncli's
    host had nothing left for such connects by then.
    """
    short_of = case.totals.short_of
    reasons = []
    if case.is_short and None in short_of:
        reasons.append(verdicts.ran_out(short_of[None], case.held, case.asked))
    for number, count in case.not_back_unlimited.items():
        if number in short_of:
            reasons.append(verdicts.ran_out_after_event(short_of[number], count, number))
    if not reasons:
        return None
    return Judgement("invalid", "; ".join(reasons))


def connects_failed_in_a_late_ramp(case: Case) -> Judgement | None:
    """Some of those who are missing at the end may never have been held. A loss without a limit is
    the server's, however late the ramp was: nobody can come back to a server that has ended.
    """
    if not case.is_short or not case.late_ramp or not case.whole.failures:
        return None
    if case.lost_by_server and not case.has_limit_on(LOST):
        return None
    if case.asked - case.held <= case.lost_by_server:
        return None
    reason = verdicts.failed_in_late_ramp(case.failed_connects, case.held, case.asked)
    return Judgement("invalid", reason)


# Failed: the server is the reason.


def the_server_failed(case: Case) -> Judgement | None:
    """A connection or a held stream was lost, fewer were held than asked for, some were not back
    from an event, an answer was an error, a limit was crossed, the server was stopped at the end,
    or it ended by no command of an event with which its connections are counted. A limit on one of
    these replaces its part, but for the last ones.
    """
    wrong = _answered_with_errors(case.whole, case.limited)
    reasons = []
    if case.lost_by_server and not case.has_limit_on(LOST):
        reasons.append(verdicts.connections_lost(case.lost_by_server, case.whole.opened))
    elif _held_too_few(case, has_reason=bool(case.crossed or wrong)):
        reasons.append(case.with_stop(verdicts.fewer_held(case.held, case.asked)))
    if not _is_excused(case, has_reason=bool(case.crossed or wrong)):
        reasons += _not_back(case)
    lost_streams = _lost_streams(case.whole)
    if lost_streams and not case.has_limit_on(STREAMS):
        reasons.append(verdicts.streams_lost(lost_streams))
    for ended in case.ended_with_server:
        reasons.append(verdicts.ended_with_server(*ended))
    reasons += [*_server_stopped(case), *wrong]
    if not reasons and not case.crossed:
        return None
    why = case.with_early_stop("; ".join((*reasons, *case.crossed, *case.within_lateness)))
    return Judgement("failed", why, by_limits=not reasons)


def _server_stopped(case: Case) -> list[str]:
    if case.unheard is None or not case.unheard.server_stopped:
        return []
    return [verdicts.server_stopped(case.unheard.ago_s)]


def _held_too_few(case: Case, *, has_reason: bool) -> bool:
    """Whether too few were held at the end of a run that reached its end. ``has_reason``: there is
    another reason to fail, which an aborted run is told by.
    """
    return case.is_short and not _is_excused(case, has_reason=has_reason)


def _is_excused(case: Case, *, has_reason: bool) -> bool:
    """Whether nothing is said of those who are missing at the end: a limit on them replaces it, or
    the run did not reach its end.
    """
    if case.has_limit_on(HELD):
        return True
    if not case.complete or case.was_cut or case.was_stopped_before_hold:
        return True
    return has_reason and case.was_aborted


def _not_back(case: Case) -> list[str]:
    """Those who were not back from events without a limit on them, in words."""
    reasons = []
    for number, count in case.not_back_unlimited.items():
        reasons.append(case.with_stop(verdicts.not_back(count, number)))
    return reasons


# Unjudged: the run may have passed or not.


def limits_cannot_be_judged(case: Case) -> Judgement | None:
    """Nothing else made the run fail, and this installation cannot judge one of its limits."""
    if not case.not_judged:
        return None
    reasons = list(case.not_judged)
    if not case.complete:
        reasons.insert(0, verdicts.no_end(case.written, case.end_s))
    return Judgement("unjudged", case.with_stop("; ".join(reasons)), by_limits=True)


# Invalid: the run did not come to its end, or its records did not.


def records_do_not_add_up(case: Case) -> Judgement | None:
    """Some connections that were opened are in no later count; None missing: all are."""
    if case.totals.missing is None:
        return None
    return Judgement("invalid", verdicts.RECORDS_DO_NOT_ADD_UP)


def stopped_before_its_hold(case: Case) -> Judgement | None:
    if not case.was_stopped_before_hold or not case.complete:
        return None
    return Judgement("invalid", verdicts.open_when_stopped(case.stop, case.held, case.asked))


def cut_by_the_user(case: Case) -> Judgement | None:
    if not case.was_cut:
        return None
    return Judgement("invalid", case.stop)


def not_complete(case: Case) -> Judgement | None:
    if case.complete:
        return None
    return Judgement("invalid", case.with_stop(verdicts.no_end(case.written, case.end_s)))


def limits_within_lateness(case: Case) -> Judgement | None:
    """A limit on latencies is undecided only because of asyncli's own lateness, of which nothing
    is the server's.
    """
    if not case.within_lateness:
        return None
    return Judgement("invalid", case.with_stop("; ".join(case.within_lateness)), by_limits=True)


def passed(case: Case) -> Judgement:
    events = case.whole.events
    waiting = {number: counts.waiting for number, counts in events.items()}
    churning = waiting.pop(CHURN, 0)
    held = verdicts.held_until(
        case.held,
        case.plan.connections,
        gone=case.totals.gone,
        waiting=sum(waiting.values()),
        churning=churning,
        stopped=bool(case.stop),
    )
    if case.unheard is None:
        why = f"{held}, and {_losses_of_a_pass(case)}"
    else:
        # Connections without a first heartbeat (--first-beat sleep, or listeners) may have been
        # silent from the start.
        unheard = case.unheard
        silent = verdicts.held_in_silence(unheard.count, unheard.ago_s, listens=case.plan.listens)
        why = f"{held}, {silent}, and {_losses_of_a_pass(case)}"
    for number, count in sorted(case.not_back.items()):
        why = f"{why}; but {verdicts.allowed(verdicts.not_back(count, number))}"
    if case.failed_connects:
        why = f"{why}; {verdicts.connects_retried(case.failed_connects)}"
    return Judgement("passed", but_allowed(case.with_stop(why), case.whole, "heartbeat"))


def _losses_of_a_pass(case: Case) -> str:
    if not case.whole.lost:
        return verdicts.NONE_LOST
    if not case.lost_by_server:
        return verdicts.lost_by_asyncli_but_allowed(case.whole.lost)
    return verdicts.lost_but_allowed(case.whole.lost)


#: The verdict is that of the first rule that applies; without one, the run has passed.
RULES: tuple[Rule, ...] = (
    records_are_missing,
    nothing_connected,
    nothing_answered,
    answers_prove_nothing,
    asyncli_was_at_fault,
    only_a_suspension_lost_connections,
    ports_or_descriptors_ran_out,
    connects_failed_in_a_late_ramp,
    the_server_failed,
    limits_cannot_be_judged,
    stopped_before_its_hold,
    cut_by_the_user,
    not_complete,
    records_do_not_add_up,
    limits_within_lateness,
)


def unproven(whole: Tick) -> Finding | None:
    """The finding where answers prove nothing: the server sends what answers at least as often
    unasked.
    """
    unasked = 0 if whole.protocol is None else whole.protocol.unasked
    if not whole.answered or unasked < whole.answered:
        return None
    return server.answers_unproven(unasked, whole.answered)


def why_untested(causes: Collection[str], sent: int) -> str:
    """Why a run is untested though it connected: by the ``causes`` of losses and the number of
    heartbeats ``sent``.
    """
    if not causes and not sent:
        return verdicts.NO_HEARTBEAT_DUE
    if "protocol_error" in causes:
        return verdicts.NO_ANSWER_RIGHT
    return verdicts.NOTHING_ANSWERED


def but_allowed(why: str, whole: Tick, what: str) -> str:
    """``why`` it passed, with the error answers to each ``what`` that limits allow."""
    errors_allowed = [
        verdicts.allowed(reason) for reason in _answered_with_errors(whole, what=what)
    ]
    return "; but ".join((why, *errors_allowed))


def _answered_with_errors(
    whole: Tick, limited: Collection[str] = (), what: str = "heartbeat"
) -> list[str]:
    """How many answers were errors without a limit on them, in words; nothing if none was."""
    by_status = errors(whole, limited)
    if not by_status:
        return []
    return [verdicts.answered_with_errors(by_status, whole.answered, what)]


def _most_often_wrong(whole: Tick) -> str:
    """The most common wrong answer; "" for none."""
    if whole.protocol is None or not whole.protocol.broken:
        return ""
    broken = whole.protocol.broken
    return max(broken, key=broken.__getitem__)


def _lost_streams(whole: Tick) -> int:
    if whole.protocol is None:
        return 0
    return sum(whole.protocol.streams_lost.values())


# How the user ended a run.


def interrupted(findings: Sequence[Finding]) -> str:
    """How and when the user ended the run early, or ""; nothing if it was resumed."""
    ends = ended_by_user(findings)
    end = ends.get(CUT) or ends.get(STOPPED)
    if end is None:
        return ""
    if stopped_before_hold(findings):
        return verdicts.stopped_before_hold(end.evidence)
    return end.evidence


def stopped_before_hold(findings: Sequence[Finding]) -> bool:
    """Whether the user ended the run before its hold began. Files of older versions do not say in
    which phase.
    """
    return any(
        end.fields.get("phase", "hold") in _BEFORE_HOLD for end in ended_by_user(findings).values()
    )


def ended_by_user(findings: Sequence[Finding]) -> dict[str, Finding]:
    """How the user ended the run, by code of the finding, since it was last resumed."""
    ends: dict[str, Finding] = {}
    for finding in findings:
        if finding.code == RESUMED:
            ends = {}
        elif finding.code in (STOPPED, CUT):
            ends[finding.code] = finding
    return ends
