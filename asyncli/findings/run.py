"""Findings of the course of a run: stopped, given up, resumed, incomplete; and of its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.model.metrics import PAGE
from asyncli.model.records import ABORTED, CUT, DECIDED, GAVE_UP, STOPPED, Severity
from asyncli.model.text import end_of, oneline, shortened
from asyncli.model.units import format_duration, format_many

#: How the user can stop a run.
BY_SIGNAL = "Ctrl-C or a signal"
BY_PAGE = "on the page"
_SO_FAR = "the numbers are those so far; run again for the rest"
# Of a command, and of what it printed.
_LONGEST_QUOTED = 100
_SEVERITIES: dict[str, Severity] = {"passed": "info", "unjudged": "warning"}


def where(phase: str | None, after_s: float, of_s: float | None) -> str:
    """``5 min into the hold of 12 h``. ``phase``: None before the baseline, "resume" while a
    resumed run reopens connections.
    """
    if phase == "resume":
        return "before the resumed run had reopened its connections"
    if phase is None:
        return "before the baseline"
    after = format_duration(round(after_s, 1))
    if of_s and of_s > after_s:
        return f"{after} into the {phase} of {format_duration(of_s)}"
    return f"{after} into the {phase}"


def resume_with(command: str) -> str:
    return f"continue the run with '{command}'"


def _verdict(verdict: str, why: str, rule: str, by_limits: bool) -> Words:
    """The verdict of a run. ``why``: what decided it; ``rule``: the rule behind it; ``by_limits``:
    only limits decided it.
    """
    return Words(why, f"the rule: {rule}", _SEVERITIES.get(verdict))


verdict = finding(
    "verdict_{verdict}", "error", values="failed, invalid, untested or unjudged (a warning)"
)(_verdict)
finding("verdict_passed", _SEVERITIES["passed"])(_verdict)


@finding("command_failed", "warning")
def command_failed(
    number: int, command: str, status: int | None, took_s: float, output: str
) -> Words:
    """A command of the plan did not succeed, so the run may not show what it was to show.
    ``number``: of its event; ``status``: its exit status, negative: a signal; null: asyncli ended
    it with the hold, or could not run it; ``took_s``: how long it ran, 0 if it did not; ``output``:
    the end of what it printed, or why it did not run.
    """
    named = f"the command of event {number}, '{shortened(oneline(command), _LONGEST_QUOTED)}'"
    if status is None and not took_s:
        return Words(f"{named}: {output}", "run it by hand if it is still to be done")
    about = f"{named},"
    printed = f': "{end_of(oneline(output), _LONGEST_QUOTED)}"' if output else ""
    took = format_duration(took_s)
    if status is None:
        return Words(
            f"{about} had not ended after {took}: asyncli ended it when the hold ended{printed}",
            "let it end by itself, or lengthen --hold",
        )
    how = f"with status {status}"
    if status < 0:
        how = f"by signal {-status}"
    return Words(
        f"{about} ended {how} after {took}{printed}", "run it by hand, and see what it says"
    )


@finding(STOPPED, "warning")
def stopped_by_user(
    phase: str | None, after_s: float, of_s: float | None, resume: str, by: str = BY_SIGNAL
) -> Words:
    """The user stopped the run with Ctrl-C or a signal, or on the page. ``by``: in which way;
    ``resume``: the command that continues it, "" if it was drained.
    """
    return Words(
        f"stopped by the user ({by}) {where(phase, after_s, of_s)}",
        resume_with(resume) if resume else "let the run finish, or plan a shorter one",
    )


@finding(CUT, "warning", _SO_FAR)
def cut_off(phase: str | None, after_s: float, of_s: float | None) -> str:
    """A second Ctrl-C or signal ended the run at once, without a drain."""
    return (
        "ended at once (a second Ctrl-C or signal, or its task was cancelled) "
        f"{where(phase, after_s, of_s)}"
    )


@finding(ABORTED, "error", "leave out --abort to continue past a crossed limit")
def aborted_by_limit(phase: str | None, after_s: float, of_s: float | None, because: str) -> str:
    """asyncli stopped the run: a limit of --fail-if was crossed (--abort), or this host ran low on
    memory (capacity).
    """
    return f"stopped {where(phase, after_s, of_s)}, because {because}"


@finding(DECIDED, "info")
def decided_early(
    phase: str | None, after_s: float, of_s: float | None, is_worse: bool, because: str
) -> str:
    """The run ended before its planned end: it was sure that a limit that compares with earlier
    runs is crossed, or that each is kept. ``is_worse``: crossed. ``because``: the difference as it
    was known then, with an interval for a smaller chance of error than that of the limit in the
    report: all looks at a run that goes on share one half of the chance.
    """
    ended = f"ended {where(phase, after_s, of_s)}"
    then = (
        "at that moment, with wider intervals, since each look before the end has only a part of "
        f"the chances of error: {because}"
    )
    if is_worse:
        return f"{ended}, since a limit was surely crossed; {then}"
    return f"{ended}, since each limit was surely kept; {then}"


# As many files are listed with their reasons.
_LISTED = 5


@finding(
    "baseline_runs_left_out", "warning", "move them out of the folder, or name the runs themselves"
)
def baseline_runs_left_out(files: Sequence[str], used: int) -> str:
    """Run files of a folder of --baseline-run were not compared with. ``files``: each with the
    reason; ``used``: how many were.
    """
    text = (
        f"{format_many(used, 'baseline run')} of a folder; left out: {'; '.join(files[:_LISTED])}"
    )
    others = len(files) - _LISTED
    if others <= 0:
        return text
    return f"{text}; and {others:,} more, which the JSON lists (files of this finding)"


@finding(GAVE_UP, "error", "see the findings on connects that failed")
def gave_up(phase: str | None, after_s: float, of_s: float | None, failures: int) -> str:
    """The ramp ended early, because nothing had connected and many connects had failed.
    ``failures``: how many.
    """
    return f"gave up after {format_duration(round(after_s, 1))}: all {failures:,} connects failed"


@finding("nobody_home", "error")
def nobody_home(failures: int, resume: str) -> Words:
    """A resumed run could reopen none of its connections. ``resume``: the command that continues
    it.
    """
    return Words(
        f"no connection was reopened: all {failures:,} connects failed",
        f"start the server, then {resume_with(resume)}",
    )


@finding("held_again", "info")
def held_again(held: int, off_s: float, opened_s: float) -> str:
    """A resumed run has reopened its connections. ``off_s``: from the interruption to the
    resumption; ``opened_s``: to reopen.
    """
    parts = (
        f"{format_duration(round(off_s))} interrupted, {format_duration(round(opened_s))} to reopen"
    )
    return f"{held:,} connections are held again: {parts}"


@finding("hold_until", "info")
def hold_until(until: str, hold_s: float, ends_local: str) -> Words:
    """When a hold ends that was planned by the wall clock. A warning if that time had passed when
    the hold began.
    """
    if hold_s <= 0:
        return Words(
            f"the hold was to end at {until}, which had passed",
            "give a later time: --hold 'until 07:00'",
            "warning",
        )
    return Words(f"the hold ends at {ends_local}, {format_duration(round(hold_s))} after it began")


@finding("waiting", "info")
def waiting(what: str) -> str:
    """asyncli waits before a run: for the server to listen, for cluster hosts, or until leases of a
    killed session expire.
    """
    return what


@finding("watcher_failed", "warning")
def watcher_failed(
    phase: str | None, after_s: float, of_s: float | None, why: str, path: str
) -> Words:
    """The display (screen, log or notebook) raised an error and was switched off. The run
    continues. ``path``: its file.
    """
    return Words(
        f"the display (screen, log or notebook) failed {where(phase, after_s, of_s)} and was "
        f"switched off: {why}",
        f"the run continues: 'asyncli watch {path}' shows it",
    )


# Metrics that the server itself says.
_SAID_BY_SERVER = ("runtime.", PAGE, "status.")


@finding("sample_refused", "warning")
def sample_refused(metric: str, value: float, also: Sequence[str] = ()) -> Words:
    """A metric had a value that no host can have, and was left out. Only the first sample of a run
    with such values is reported: also says which other metrics had them.
    """
    evidence = f"{metric} was read as {value:.3g}, which is impossible"
    if also:
        evidence += f", and so were {', '.join(also)}"
    remedy = "see what sent it: the agent, or the kernel's files"
    if metric.startswith(_SAID_BY_SERVER):
        remedy = "see the server's page of metrics, or its status page: it has that number"
    return Words(f"{evidence}; such values are left out", remedy)


@finding("incomplete", "warning", _SO_FAR)
def incomplete(phase: str | None, written: bool | None) -> Words:
    """The run file has no end: the run ended early, or it is still being written. ``phase``: the
    last one (None: before the first); ``written``: whether it still is (None: unknown).
    """
    where = f"in its {phase}" if phase else "at its start"
    if written:
        return Words(
            f"the run is still running, {where}",
            "'asyncli watch' shows the run",
        )
    remedy = ""
    if phase not in ("drain", "residue"):
        remedy = "asyncli soak --resume continues it"
    if written is None:
        return Words(
            f"the run file has no end: the run was killed {where}, or is still running", remedy
        )
    return Words(
        f"the run file has no end and no process writes it: the run ended early, {where}", remedy
    )


@finding("stopped_early", "info")
def stopped_early(after_s: float, of_s: float) -> str:
    """The hold was shorter than planned."""
    return f"the hold was ended after {after_s:.0f} s of {of_s:.0f} s"


@finding("server_changed", "warning", "run again, without --resume, to measure this server")
def server_changed(differs: Sequence[str], was_held: bool) -> str:
    """Another server answers since the resumption. ``differs``: what differs; ``was_held``: in the
    hold, so its cost was never measured.
    """
    if was_held:
        return (
            f"another server answers since the run was resumed ({'; '.join(differs)}): "
            "server numbers are of this one; "
            "its cost per connection is unknown, because the ramp measured the other"
        )
    return (
        f"another server answers since the run was resumed ({'; '.join(differs)}): "
        "server numbers are of this one"
    )
