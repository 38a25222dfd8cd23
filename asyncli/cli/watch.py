"""``asyncli watch RUN.db``: a look at a soak from another terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from asyncli.units import format_duration

if TYPE_CHECKING:
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower, News

# A writer commits once a second; one that has committed nothing for so long stands still, or was killed.
_QUIET_S = 10.0


@click.command(name="watch", no_args_is_help=True)
@click.argument("run", metavar="RUN.db")
@click.option("--once", is_flag=True, help="One line of how it stands, and no more.")
@click.option("--log-json", is_flag=True, help="A JSON object a line for each event.")
def command(run: str, once: bool, log_json: bool) -> int:
    """Show how a soak stands that another terminal, or nobody, looks at. Ctrl-C ends the looking, not the soak."""
    from rich.console import Console

    from asyncli.cli.places import printing
    from asyncli.report.live import JsonView, LiveView, PlainView, plain_line
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

    path = Path(run)
    console = Console(highlight=False)
    # Beside objects for a machine, words for people go elsewhere.
    notes = Console(stderr=log_json, highlight=False)
    follower = Follower(path)
    news = follower.news()
    fold = LiveFold(news.plan)
    _take(fold, news)
    with printing():
        if once:
            console.print("; ".join([plain_line(fold.state()), *_how_it_is(follower, news)]), soft_wrap=True, markup=False)
            return 0
        try:
            with (JsonView if log_json else LiveView if console.is_terminal else PlainView)(news.plan, console) as view:
                view.update(fold.state())
                said_s = 0.0
                while True:
                    how = _how_it_is(follower, news)
                    if how and (news.complete or not follower.is_open):
                        break
                    if how and time.monotonic() >= said_s + _QUIET_S:
                        said_s = time.monotonic()
                        notes.print(*how, soft_wrap=True, markup=False)
                    time.sleep(1.0)
                    news = follower.news()
                    _take(fold, news)
                    view.update(fold.state())
        except KeyboardInterrupt:
            return 0
        goes_on = "" if news.complete else f"; asyncli soak --resume {path} goes on with it"
        there = f": asyncli report {path}{goes_on}" if follower.is_there else ""
        notes.print(f"{how[0]}{there}", soft_wrap=True, markup=False)
    return 0


def _how_it_is(follower: Follower, news: News) -> list[str]:
    """That it goes on no more, in words; nothing for a run that goes on."""
    if news.complete:
        return ["it has ended"]
    quiet_s = time.time() - follower.quiet_since_s
    if quiet_s < _QUIET_S:
        return []
    if not follower.is_there:
        why = "the file was moved or deleted: the run's own log says where it goes on"
    elif follower.is_open:
        why = "it stands still"
    else:
        why = "no process writes it: the run was killed, or came to no end"
    return [f"nothing new for {format_duration(round(quiet_s))}, and {why}"]


def _take(fold: LiveFold, news: News) -> None:
    """Fold in what is new, in the order in which it came."""
    # When, in which order at one instant, and what is told then.
    events: list[tuple[float, int, Callable[[], None]]] = []
    for phase in news.phases:
        events.append((phase.start_s, 0, partial(fold.phase, msgspec.structs.replace(phase, end_s=None))))
        if phase.end_s is not None:
            events.append((phase.end_s, 3, partial(fold.phase, phase)))
    events += [(t_s, 1, partial(fold.tick, t_s, tick)) for t_s, tick in news.ticks]
    events += [(sample.t_s, 2, partial(fold.sample, sample)) for sample in news.samples]
    fold.planned(news.plan)
    for *_, tell in sorted(events, key=lambda one: one[:2]):
        tell()
    for finding in news.findings:
        fold.finding(finding)
