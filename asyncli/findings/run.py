"""Findings of a run's course and end: stopped, cut off, given up, resumed, incomplete; its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.findings.server import SEE_SERVER
from asyncli.records import ABORTED, CUT, GAVE_UP, STOPPED, Severity
from asyncli.units import format_duration

_SEVERITIES: dict[str, Severity] = {"passed": "info"}


def where(phase: str | None, after_s: float, of_s: float | None) -> str:
    """An instant of a run: so long after the begin of ``phase``, which lasts ``of_s`` (None or 0: not known).

    ``phase`` None: before the baseline; "resume": while a resumed run opens again what it held.
    """
    if phase == "resume":
        return "before all connections of the resumed run were held again"
    if phase is None:
        return "before the baseline"
    return f"{format_duration(round(after_s, 1))} into the {phase}{f' of {format_duration(of_s)}' if of_s else ''}"


def go_on(command: str) -> str:
    """That ``command`` resumes the run."""
    return f"'{command}' goes on with the run"


@finding("verdict_{verdict}", "error")
def verdict(verdict: str, why: str, rule: str) -> Words:
    """The verdict of a run. ``why``: what decided it; ``rule``: the rule that it follows."""
    return Words(why, f"the rule: {rule}", _SEVERITIES.get(verdict))


@finding(STOPPED, "warning")
def stopped_by_user(phase: str | None, after_s: float, of_s: float | None, resume: str) -> Words:
    """The user stopped the run with Ctrl-C or a signal before its plan ended. ``resume``: the command that goes on with it; ""
    where it was drained and is over.
    """
    return Words(
        f"stopped by the user (Ctrl-C or a signal) {where(phase, after_s, of_s)}",
        go_on(resume) if resume else "let the run come to its end, or ask for a shorter one",
    )


@finding(CUT, "warning")
def cut_off(phase: str | None, after_s: float, of_s: float | None) -> Words:
    """The run was ended at once, without a drain, by a second Ctrl-C or signal."""
    return Words(
        f"ended at once (a second Ctrl-C or signal, or its task was cancelled) {where(phase, after_s, of_s)}",
        "the numbers are right as far as they go; run again for the rest",
    )


@finding(ABORTED, "error")
def aborted_by_limit(phase: str | None, after_s: float, of_s: float | None, because: str) -> Words:
    """asyncli stopped the run: a limit of --fail-if was crossed (--abort), or this host had too little memory left (capacity)."""
    return Words(f"stopped {where(phase, after_s, of_s)}, because {because}", "leave out --abort to go on")


@finding(GAVE_UP, "error")
def gave_up(phase: str | None, after_s: float, of_s: float | None, failures: int) -> Words:
    """The ramp was ended early, as nothing had connected. ``failures``: how many attempts had failed by then."""
    return Words(
        f"gave up {where(phase, after_s, of_s)}: {failures:,} attempts to connect had failed, and none had succeeded", SEE_SERVER
    )


@finding("nobody_home", "error")
def nobody_home(failures: int, resume: str) -> Words:
    """A resumed run could open none of its connections again. ``resume``: the command that goes on with it."""
    return Words(
        f"nothing answered where the run held its connections: {failures:,} connects failed, and none succeeded",
        f"see that the server runs; then {go_on(resume)}",
    )


@finding("held_again", "info")
def held_again(held: int, off_s: float, opened_s: float) -> Words:
    """A resumed run holds its connections again. ``off_s``: from the cut to its resumption; ``opened_s``: to open them again."""
    parts = f"{format_duration(round(off_s))} off, and {format_duration(round(opened_s))} to open them again"
    return Words(f"{held:,} connections are held again: {parts}")


@finding("hold_until", "info")
def hold_until(until: str, hold_s: float, ends_local: str) -> Words:
    """A hold that ends by the wall clock: how long that makes it. ``until``: as it was asked for; a time that had passed when the
    hold began ends it at once, and is a warning.
    """
    if hold_s <= 0:
        return Words(
            f"the hold was to end at {until}, which had passed when it began",
            "write a time to come: --hold 'until 07:00'",
            "warning",
        )
    return Words(f"the hold ends at {ends_local}, {format_duration(round(hold_s))} after its begin")


@finding("waiting", "info")
def waiting(what: str) -> Words:
    """Before a run begins, asyncli waits: for the server to listen, for hosts of a cluster, or for the leases of a killed session
    to expire.
    """
    return Words(what)


@finding("watcher_failed", "warning")
def watcher_failed(phase: str | None, after_s: float, of_s: float | None, why: str, path: str) -> Words:
    """What shows the run (screen, log or notebook) raised an error, and shows no more. The run goes on, into ``path``."""
    return Words(
        f"what shows the run (screen, log or notebook) failed {where(phase, after_s, of_s)} and was switched off: {why}",
        f"the run goes on: 'asyncli watch {path}' shows it",
    )


@finding("sample_refused", "warning")
def sample_refused(metric: str, value: float) -> Words:
    """A metric was read as a number that no host could have. It is left out; only the first of a run has a finding."""
    return Words(
        f"{metric} was read as {value:.3g}, which no host could have; it and the like of it are left out",
        "see what sent it: the agent, or the kernel's own files",
    )


@finding("incomplete", "warning")
def incomplete(phase: str | None) -> Words:
    """The run file has no end, so the run still goes on or was killed, in this phase (None: before the first)."""
    return Words(
        f"the run file has no end: the run goes on, or was killed, in its {phase or 'beginning'}",
        "the numbers are right as far as they go; run again for the rest",
    )


@finding("stopped_early", "info")
def stopped_early(after_s: float, of_s: float) -> Words:
    """The hold was shorter than planned."""
    return Words(f"the hold was ended after {after_s:.0f} s of {of_s:.0f} s")


@finding("server_changed", "warning")
def server_changed(differs: Sequence[str], was_held: bool) -> Words:
    """Another server answers a resumed run. ``differs``: in what; ``was_held``: it was resumed in its hold, so no ramp measured
    the cost of this server.
    """
    but = ", and what a connection costs there is not known: it was not there in the ramp" if was_held else ""
    return Words(
        f"another server answers since the run was resumed ({'; '.join(differs)}): what is said of the server is said of this "
        f"one{but}",
        "run again, without --resume, to measure this server",
    )
