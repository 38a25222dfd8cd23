"""``asyncli watch RUN.db``: a look at a soak from another terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from asyncli.exit_status import NOT_GOING_ON
from asyncli.units import format_duration

if TYPE_CHECKING:
    from asyncli.records import Finding
    from asyncli.report.livestate import LiveFold, LiveState
    from asyncli.store.follow import Follower, News

# A writer commits once a second; after so long without a commit it hangs.
_QUIET_S = 10.0
# A file without a lock belongs to a killed run, unless it still grows: not every file system has locks.
_UNCLAIMED_S = 3.0
# A new soak makes its file after its preflight.
_PATIENCE_S = 30.0


@click.command(name="watch")
@click.argument("run", metavar="RUN.db")
@click.option("--once", is_flag=True, help="Print one status line, and end.")
@click.option("--log-json", is_flag=True, help="A JSON object a line for each event.")
def command(run: str, once: bool, log_json: bool) -> int:
    """Show a soak that runs elsewhere, in another terminal or in the background. Ctrl-C ends the watching, not the soak.

    With --once the exit status is 0 for a run that goes on or has ended, and 1 for one that hangs, was killed or was moved.
    """
    from asyncli.cli.outputs import printing

    path = Path(run)
    with printing():
        return _look_once(path, log_json) if once else _look_on(path, log_json)


def _look_once(path: Path, log_json: bool) -> int:
    from asyncli.report.live import json_line, plain_line, status
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

    follower = Follower(path)
    news = follower.news()
    if news.complete:
        line, machine = _end(path, news)
        _say(machine if log_json else f"it has ended; {line}")
        return 0
    fold, latest = LiveFold(news.plan), time.monotonic() + _UNCLAIMED_S
    _take(fold, news)
    while not (how := _how_it_is(follower, news)) and not follower.is_open and time.monotonic() < latest:
        time.sleep(0.2)
        news = follower.news()
        _take(fold, news)
    if how:
        fold.end()
    state = fold.state()
    if log_json:
        more = {**status(state), "trouble": how or None}
        _say(json_line("status", state.elapsed_s, state.phase, more, news.began_s + state.elapsed_s))
    else:
        _say("; ".join([plain_line(state), *([how] if how else [])]))
    return NOT_GOING_ON if how else 0


def _look_on(path: Path, log_json: bool) -> int:
    from rich.console import Console

    from asyncli.report.live import JsonView, PlainView
    from asyncli.report.livescreen import LiveView
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

    console = Console(highlight=False)
    # Beside objects for a machine, words for people go elsewhere.
    note = partial(_say, to_people=log_json)
    follower = Follower(path)
    try:
        news = _first_news(follower, path)
        fold = LiveFold(news.plan)
        if log_json:
            view: JsonView | LiveView | PlainView = JsonView(news.plan, console, news.began_s)
        else:
            view = (LiveView if console.is_terminal else PlainView)(news.plan, console)
        with view:
            said_s = 0.0
            while True:
                _take(fold, news, None if isinstance(view, LiveView) else view.tell_findings)
                how = _how_it_is(follower, news)
                ended = bool(how) and (news.complete or not follower.is_open)
                if ended:
                    fold.end()
                view.update(fold.state())
                if ended:
                    break
                if how and time.monotonic() >= said_s + _QUIET_S:
                    said_s = time.monotonic()
                    note(how)
                time.sleep(1.0)
                news = follower.news()
    except KeyboardInterrupt:
        return 0
    if news.complete:
        line, machine = _end(path, news)
        if log_json:
            _say(machine)
        note(line)
    goes_on = "" if news.complete else f"; asyncli soak --resume {path} goes on with it"
    there = f": asyncli report {path}{goes_on}" if follower.is_there else ""
    note(f"{how}{there}")
    return 0


def _say(line: str, *, to_people: bool = False) -> None:
    """One line; ``to_people``: beside standard output, which is a machine's."""
    print(line, file=sys.stderr if to_people else sys.stdout, flush=True)


def _first_news(follower: Follower, path: Path) -> News:
    """Wait for a run that has not begun: a soak makes its file after its preflight."""
    from asyncli.errors import NotBegunError

    latest, waits = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            return follower.news()
        except NotBegunError:
            if time.monotonic() >= latest:
                raise
            if not waits:
                _say(f"asyncli: waiting for {path}, for up to {format_duration(_PATIENCE_S)}", to_people=True)
            waits = True
            time.sleep(0.1)


def _end(path: Path, news: News) -> tuple[str, str]:
    """How a run ended: a line for people and one for machines."""
    from asyncli.report.answer import one_line
    from asyncli.report.live import end_line
    from asyncli.report.summary import summarise
    from asyncli.store.reader import read_run

    summary = summarise(read_run(path))
    return one_line(summary), end_line(summary, path, news.began_s + summary.run.duration_s)


def _how_it_is(follower: Follower, news: News) -> str:
    """Why the run does not go on; "" while it does."""
    if news.complete:
        return "it has ended"
    quiet_s, there = time.time() - follower.quiet_since_s, follower.is_there
    if quiet_s < (_QUIET_S if follower.is_open or not there else _UNCLAIMED_S):
        return ""
    if not there:
        why = "the file was moved or deleted, which ended the run"
    elif follower.is_open:
        why = "its process hangs"
    else:
        why = "no process writes it: the run ended early"
    return f"nothing new for {format_duration(round(quiet_s))}, and {why}"


def _take(fold: LiveFold, news: News, told: Callable[[LiveState], None] | None = None) -> None:
    """Fold in what is new, in order of time; ``told`` is called after each finding."""
    # When, in which order at one instant, and what is told then.
    events: list[tuple[float, int, Callable[[], None]]] = []
    for phase in news.phases:
        events.append((phase.start_s, 0, partial(fold.phase, msgspec.structs.replace(phase, end_s=None))))
        if phase.end_s is not None:
            events.append((phase.end_s, 4, partial(fold.phase, phase)))

    def find(t_s: float, finding: Finding) -> None:
        fold.finding(finding, t_s)
        if told is not None:
            told(fold.state())

    events += [(t_s, 1, partial(fold.tick, t_s, tick)) for t_s, tick in news.ticks]
    events += [(sample.t_s, 2, partial(fold.sample, sample)) for sample in news.samples]
    events += [(t_s, 3, partial(find, t_s, finding)) for t_s, finding in news.findings]
    fold.planned(news.plan)
    for *_, tell in sorted(events, key=lambda one: one[:2]):
        tell()
