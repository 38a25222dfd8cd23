"""``asyncli watch RUN.db``: a look at a soak from another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from asyncli.records import Phase, Sample, Tick

if TYPE_CHECKING:
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower

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
    with Follower(path) as follower, printing():
        fold = LiveFold(follower.plan)
        complete = _take(fold, follower)
        if once:
            print(plain_line(fold.state()) + ("; it has ended" if complete else ""))
            return 0
        view = (JsonView if log_json else LiveView if console.is_terminal else PlainView)(follower.plan, console)
        with view:
            said_s = heard_s = time.monotonic()
            while not complete:
                before = fold.state().elapsed_s
                view.update(fold.state())
                time.sleep(1.0)
                complete = _take(fold, follower)
                now = time.monotonic()
                if fold.state().elapsed_s != before:
                    heard_s = now
                elif now - max(said_s, heard_s) >= _QUIET_S:
                    said_s = now
                    console.print(f"nothing new for {now - heard_s:.0f} s: it stands still, or was killed", markup=False)
            view.update(fold.state())
        print(f"it has ended: asyncli report {path}")
    return 0


def _take(fold: LiveFold, follower: Follower) -> bool:
    """Fold in what is new, in the order in which it came; whether the run is over."""
    news = follower.news()
    events: list[tuple[float, int, object]] = []
    for phase in news.phases:
        events.append((phase.start_s, 0, msgspec.structs.replace(phase, end_s=None)))
        if phase.end_s is not None:
            events.append((phase.end_s, 3, phase))
    events += [(t_s, 1, (t_s, tick)) for t_s, tick in news.ticks]
    events += [(sample.t_s, 2, sample) for sample in news.samples]
    for _, kind, what in sorted(events, key=lambda one: one[:2]):
        match what:
            case Phase():
                fold.phase(what)
            case Sample():
                fold.sample(what)
            case (float() | int() as t_s, Tick() as tick):
                fold.tick(t_s, tick)
    for finding in news.findings:
        fold.finding(finding)
    return news.complete
