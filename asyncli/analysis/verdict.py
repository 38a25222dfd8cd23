"""The verdict of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from asyncli.analysis.losses.slowness import Unheard
from asyncli.analysis.totals import Totals, errors, tested
from asyncli.findings import server
from asyncli.findings.losses import lost_with
from asyncli.model.plan import Plan
from asyncli.model.records import ABORTED, CUT, NOTHING_LISTENS, RESUMED, STOPPED, Finding, Tick
from asyncli.model.units import format_clock, format_duration, format_many

Verdict = Literal["passed", "failed", "invalid", "untested"]

RULE = (
    "passed: as many held at the hold's end as asked for, none lost, and no answer an error (status 400 or more); a --fail-if on "
    "held, on lost or on a status replaces that part; invalid: asyncli was the limit, or you stopped the run before its hold; "
    "untested: nothing connected, or no heartbeat ever answered (of listening ones: no byte came and no program accepted them), "
    "or the server sends such answers unasked as often; else failed"
)
#: The numbers of the rule; a --fail-if on one of them replaces its part of the rule.
LOST, HELD, OURS = "connections.lost", "connections.held", "connections.deaths.generator_lost"
STREAMS = "protocol.streams.streams_lost"
# Phases (None: before the first) of a run that has held nothing yet.
_BEFORE_HOLD = (None, "baseline", "ramp")
# Failures for lack of a resource of this host.
_SHORTAGES = ("no_ports", "no_descriptors")


class Judgement(msgspec.Struct):
    """The verdict, and its reason in one line. ``by_limits``: only crossed limits made it fail."""

    verdict: Verdict
    why: str
    by_limits: bool = False


def judge(
    plan: Plan,
    totals: Totals,
    *,
    saturated: bool,
    late_ramp: bool = False,
    complete: bool,
    written: bool | None = None,
    findings: Sequence[Finding] = (),
    limited: Collection[str] = (),
    crossed: Sequence[str] = (),
    end_s: float = 0.0,
    suspended: int = 0,
    unheard: Unheard | None = None,
) -> Judgement:
    """The verdict, first match wins.

    ``findings``: of the run file. ``limited``: keys with a --fail-if; ``crossed``: crossed limits as text, the worst first.
    ``written``: a process still writes the file (None: unknown). ``end_s``: when the records end. ``suspended``: losses because
    this machine was suspended. ``unheard``: held and silent.

    1. untested: nothing connected, or no heartbeat was answered (unless none was due yet and handshakes succeeded), or the server
       sends by itself what answers them, at least as often. If connections listen: no byte came, and no program was seen to
       accept them.
    2. invalid: asyncli was the limit (``saturated``: latencies and losses are its own too), lost connections itself (unless
       a limit allows it), lost connections only to a suspension, ran out of ports or descriptors, or opened fewer than asked in a
       ramp in which it was late itself (``late_ramp``: connects that failed in it may be its own fault). Memory per connection
       depends on none of these.
    3. failed: a connection or held stream was lost, or an answer an error (unless a limit is on it), or a limit crossed.
    4. invalid: the run ended early, such as by a signal before the hold, or is still running (not ``complete``).
    5. failed: fewer were held at the end than asked for (unless a limit says how few may be).
    6. passed.
    """
    whole, held, asked = totals.whole, totals.held, plan.connections
    by_hand = f"; {stop}" if (stop := interrupted(findings)) else ""
    no_hold = stopped_before_hold(findings)
    if why := _untested(plan, totals, findings):
        return Judgement("untested", why + by_hand)
    # A lost worker that held nothing yet has a count of 0.
    gone = whole.deaths.get("generator_lost")
    ours = []
    if gone is not None and OURS not in limited:
        ours.append(f"asyncli itself lost {gone.count:,} connections with {lost_with(findings, 'its').evidence}")
    if saturated:
        ours.append("asyncli was the limit, so latencies and losses do not describe the server")
    if ours:
        return Judgement("invalid", "; and ".join(ours) + (by_hand if no_hold else ""))
    if suspended and suspended == whole.lost:
        return Judgement("invalid", f"all {suspended:,} lost connections ended because this machine was suspended")
    if held < asked and (short := _opened_too_few(whole, held, asked, late_ramp=late_ramp)):
        return Judgement("invalid", short)
    theirs = whole.lost - (gone.count if gone is not None else 0)
    cut, aborted = CUT in ended_by_user(findings), any(one.code == ABORTED for one in findings)
    reasons, wrong = [], answered_with_errors(whole, limited)
    if theirs and LOST not in limited:
        reasons.append(f"{_part(theirs, whole.opened, 'established connection')} lost")
    elif held < asked and HELD not in limited and complete and not cut and not no_hold and not ((crossed or wrong) and aborted):
        reasons.append(f"{_part(held, asked, 'connection')} held at the end{by_hand}")
    streams = whole.protocol.streams_lost if whole.protocol is not None else {}
    if streams and STREAMS not in limited:
        reasons.append(f"{format_many(sum(streams.values()), 'held stream')} lost")
    reasons += wrong
    if reasons or crossed:
        why = "; ".join((*reasons, *crossed)) + (by_hand if no_hold else "")
        return Judgement("failed", why, by_limits=not reasons)
    if no_hold and complete:
        return Judgement("invalid", f"{stop}; {_part(held, asked, 'connection')} open")
    if cut:
        return Judgement("invalid", stop)
    if not complete:
        how = {True: "still running at {}", False: "ended early at {}", None: "killed at {}, or still running"}[written]
        return Judgement("invalid", how.format(format_clock(end_s)) + by_hand)
    lost = f"{whole.lost:,} were lost, which --fail-if allows" if whole.lost else "none was lost"
    if whole.lost and not theirs:
        lost = f"the server lost none; {whole.lost:,} were lost with asyncli's own processes, which --fail-if allows"
    failed = sum(whole.failures.values())
    retried = f"; {format_many(failed, 'connect')} failed and {'was' if failed == 1 else 'were'} retried" if failed else ""
    # With --first-beat sleep, or if they listen, some may have been silent from the start.
    lacked = ("a heartbeat", "data")[plan.listens]
    silent = f"{unheard.count:,} of them without {lacked} in the last {format_duration(unheard.ago_s)}, " if unheard else ""
    end = "until the run was stopped" if by_hand else "to the end"
    why = f"{_part(held, asked, 'connection')} held {end}, {silent}and {lost}{retried}{by_hand}"
    return Judgement("passed", but_allowed(why, whole, "heartbeat"))


def _opened_too_few(whole: Tick, held: int, asked: int, *, late_ramp: bool) -> str:
    """Why fewer were opened than asked for, if asyncli may be the reason; ""."""
    starved = [cause for cause in _SHORTAGES if whole.failures.get(cause)]
    if starved:
        names = " and ".join(cause.removeprefix("no_") for cause in starved)
        return f"asyncli ran out of {names}: it opened {held:,} of {asked:,}"
    if late_ramp and whole.failures:
        failed = format_many(sum(whole.failures.values()), "connect")
        return f"{failed} failed in a ramp in which asyncli was late: {held:,} of {asked:,} held"
    return ""


def _untested(plan: Plan, totals: Totals, findings: Sequence[Finding]) -> str:
    """Why nothing is known of the server, or ""."""
    whole, acceptance = totals.whole, totals.acceptance
    if not totals.recorded:
        return "the run file has no record of its connections"
    if not whole.opened:
        return next((one.evidence for one in findings if one.code == NOTHING_LISTENS), "nothing ever connected")
    if not tested(plan, whole, accepted=acceptance.accepted):
        opened = format_many(whole.opened, "connection")
        if plan.listens:
            return server.not_accepted(whole.opened, acceptance.known).evidence
        broken = whole.protocol.broken if whole.protocol is not None else {}
        most = f"; most often {max(broken, key=broken.__getitem__)}" if broken else ""
        return f"{why_untested(whole.deaths, whole.sent)}: {opened} opened, {format_many(whole.sent, 'heartbeat')} sent{most}"
    unasked = unproven(whole)
    return "" if unasked is None else unasked.evidence


def unproven(whole: Tick) -> Finding | None:
    """The finding where answers prove nothing: the server sends what answers at least as often unasked."""
    unasked = 0 if whole.protocol is None else whole.protocol.unasked
    if not whole.answered or unasked < whole.answered:
        return None
    return server.answers_unproven(unasked, whole.answered)


def why_untested(causes: Collection[str], sent: int) -> str:
    """Why a run is untested though it connected: by the ``causes`` of losses and the number of heartbeats ``sent``."""
    if not (causes or sent):
        return "no heartbeat was due yet (hold for longer, or write --first-beat now)"
    return "no answer was right" if "protocol_error" in causes else "nothing ever answered"


def _part(count: int, of: int, one: str) -> str:
    """``1 of 1 connection was``, ``3 of 1,200 connections were``."""
    return f"{count:,} of {of:,} {one if of == 1 else one + 's'} {'was' if 1 in (count, of) else 'were'}"


def but_allowed(why: str, whole: Tick, what: str) -> str:
    """``why`` it passed, with the error answers to each ``what`` that limits allow."""
    return "; but ".join((why, *(f"{one}, which --fail-if allows" for one in answered_with_errors(whole, what=what))))


def answered_with_errors(whole: Tick, limited: Collection[str] = (), what: str = "heartbeat") -> list[str]:
    """How many answers were errors without a limit on them, in words; nothing if none was."""
    bad = errors(whole, limited)
    counts = ", ".join(f"{status}: {count:,}" for status, count in sorted(bad.items()))
    return [f"{_part(sum(bad.values()), whole.answered, what)} answered with errors ({counts})"] if bad else []


def interrupted(findings: Sequence[Finding]) -> str:
    """How and when the user ended the run early, or ""; nothing if it was resumed."""
    ends = ended_by_user(findings)
    end = ends.get(CUT) or ends.get(STOPPED)
    if end is None:
        return ""
    return f"the hold was not reached: {end.evidence}" if stopped_before_hold(findings) else end.evidence


def stopped_before_hold(findings: Sequence[Finding]) -> bool:
    """Whether the user ended the run before its hold began. Files of older versions do not say in which phase."""
    return any(end.fields.get("phase", "hold") in _BEFORE_HOLD for end in ended_by_user(findings).values())


def ended_by_user(findings: Sequence[Finding]) -> dict[str, Finding]:
    """How the user ended the run, by code of the finding, since it was last resumed."""
    last = max((place for place, one in enumerate(findings) if one.code == RESUMED), default=0)
    return {one.code: one for one in findings[last:] if one.code in (STOPPED, CUT)}
