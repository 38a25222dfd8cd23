"""``asyncli watch RUN.db``: show a soak in another terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from asyncli.model.exit_status import NOT_GOING_ON
from asyncli.model.units import format_duration

if TYPE_CHECKING:
    from asyncli.model.records import Finding
    from asyncli.report.livestate import LiveFold, LiveState
    from asyncli.store.follow import Follower, News

# A writer commits once a second: after this long without a commit it hangs.
_QUIET_S = 10.0
# A file without a lock belongs to a killed run, unless it still grows: not every file system has locks.
_UNLOCKED_S = 3.0
# A soak creates its file after its preflight.
_PATIENCE_S = 30.0


@click.command(name="watch")
@click.argument("run", metavar="RUN.db")
@click.option("--once", is_flag=True, help="Print one status line and exit.")
@click.option("--log-json", is_flag=True, help="Print each event as a line of JSON.")
def command(run: str, once: bool, log_json: bool) -> int:
    """Show a soak that runs in another terminal or in the background. Ctrl-C ends this view, not the soak.

    With --once the exit status is 0 if the run continues or has ended, and 1 if it hangs, was killed or was moved.
    """
    from asyncli.cli.outputs import printing

    path = Path(run)
    with printing():
        return _show_once(path, log_json) if once else _follow(path, log_json)


def _show_once(path: Path, log_json: bool) -> int:
    from asyncli.report.live import json_line, plain_line, status
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

    follower = Follower(path)
    news = follower.news()
    if news.complete:
        line, machine = _end(path, news)
        _say(machine if log_json else f"it has ended; {line}")
        return 0
    fold, latest = LiveFold(news.plan), time.monotonic() + _UNLOCKED_S
    _fold_news(fold, news)
    while not (trouble := _why_ended(follower, news)) and not follower.is_open and time.monotonic() < latest:
        time.sleep(0.2)
        news = follower.news()
        _fold_news(fold, news)
    if trouble:
        fold.end()
    state = fold.state()
    if log_json:
        more = {**status(state), "trouble": trouble or None}
        _say(json_line("status", state.elapsed_s, state.phase, more, news.began_s + state.elapsed_s))
    else:
        _say("; ".join([plain_line(state), *([trouble] if trouble else [])]))
    return NOT_GOING_ON if trouble else 0


def _follow(path: Path, log_json: bool) -> int:
    from rich.console import Console

    from asyncli.report.live import JsonView, PlainView
    from asyncli.report.livescreen import LiveView
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

    console = Console(highlight=False)
    # With --log-json standard output is for a machine, so notes go to standard error.
    note = partial(_say, on_stderr=log_json)
    follower = Follower(path)
    try:
        news = _first_news(follower, path)
        fold = LiveFold(news.plan)
        if log_json:
            view: JsonView | LiveView | PlainView = JsonView(news.plan, console, news.began_s)
        else:
            view = (LiveView if console.is_terminal else PlainView)(news.plan, console)
        with view:
            noted_s = 0.0
            while True:
                _fold_news(fold, news, None if isinstance(view, LiveView) else view.write_findings)
                why = _why_ended(follower, news)
                ended = bool(why) and (news.complete or not follower.is_open)
                if ended:
                    fold.end()
                view.update(fold.state())
                if ended:
                    break
                if why and time.monotonic() >= noted_s + _QUIET_S:
                    noted_s = time.monotonic()
                    note(why)
                time.sleep(1.0)
                news = follower.news()
    except KeyboardInterrupt:
        return 0
    if news.complete:
        line, machine = _end(path, news)
        if log_json:
            _say(machine)
        note(line)
    resume = "" if news.complete else f"; to continue it: asyncli soak --resume {path}"
    commands = f": asyncli report {path}{resume}" if follower.is_there else ""
    note(f"{why}{commands}")
    return 0


def _say(line: str, *, on_stderr: bool = False) -> None:
    print(line, file=sys.stderr if on_stderr else sys.stdout, flush=True)


def _first_news(follower: Follower, path: Path) -> News:
    """The first records of a run; waits for a run that has not created its file."""
    from asyncli.model.errors import NotBegunError

    latest, waiting = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            return follower.news()
        except NotBegunError:
            if time.monotonic() >= latest:
                raise
            if not waiting:
                _say(f"asyncli: waiting up to {format_duration(_PATIENCE_S)} for {path}", on_stderr=True)
            waiting = True
            time.sleep(0.1)


def _end(path: Path, news: News) -> tuple[str, str]:
    """The last line of a run, as text and as JSON."""
    from asyncli.report.answer import one_line
    from asyncli.report.live import end_line
    from asyncli.report.summary import summarise
    from asyncli.store.reader import read_run

    summary = summarise(read_run(path))
    return one_line(summary, warnings=True), end_line(summary, path, news.began_s + summary.run.duration_s)


def _why_ended(follower: Follower, news: News) -> str:
    """Why the run does not continue; "" while it does."""
    if news.complete:
        return "it has ended"
    quiet_s, there = time.time() - follower.quiet_since_s, follower.is_there
    if quiet_s < (_QUIET_S if follower.is_open or not there else _UNLOCKED_S):
        return ""
    if not there:
        why = "the file was moved or deleted, which ended the run"
    elif follower.is_open:
        why = "its process hangs"
    else:
        why = "no process writes it: the run ended early"
    return f"nothing new for {format_duration(round(quiet_s))}, and {why}"


def _fold_news(fold: LiveFold, news: News, after_finding: Callable[[LiveState], None] | None = None) -> None:
    """Fold new records in time order, and call ``after_finding`` after each finding."""
    # (time, order among records of that time, fold)
    events: list[tuple[float, int, Callable[[], None]]] = []
    for phase in news.phases:
        events.append((phase.start_s, 0, partial(fold.phase, msgspec.structs.replace(phase, end_s=None))))
        if phase.end_s is not None:
            events.append((phase.end_s, 4, partial(fold.phase, phase)))

    def fold_finding(t_s: float, finding: Finding) -> None:
        fold.finding(finding, t_s)
        if after_finding is not None:
            after_finding(fold.state())

    events += [(t_s, 1, partial(fold.tick, t_s, tick)) for t_s, tick in news.ticks]
    events += [(sample.t_s, 2, partial(fold.sample, sample)) for sample in news.samples]
    events += [(t_s, 3, partial(fold_finding, t_s, finding)) for t_s, finding in news.findings]
    fold.planned(news.plan)
    for *_, fold_event in sorted(events, key=lambda one: one[:2]):
        fold_event()
