"""``asyncli watch RUN.db``: show a soak in another terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asyncli.cli.command import Command
from asyncli.cli.web_options import web_lines, web_options, web_place
from asyncli.model.errors import PlanError
from asyncli.model.exit_status import NOT_GOING_ON
from asyncli.model.units import format_duration

if TYPE_CHECKING:
    from asyncli.app.cost_meter import CostMeter
    from asyncli.live.folder_server import FolderServer
    from asyncli.live.page_server import PageServer
    from asyncli.live.serve import ServedAt
    from asyncli.report.live import JsonView, PlainView
    from asyncli.report.livescreen import LiveView
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower, News

# A soak creates its file after its preflight.
_PATIENCE_S = 30.0


@click.command(name="watch", cls=Command)
@click.argument("run", metavar="[RUN.db|FOLDER]", required=False)
@click.option("--once", is_flag=True, help="Print one status line and exit.")
@click.option("--log-json", is_flag=True, help="Print each event as a line of JSON.")
@web_options
def command(run: str | None, once: bool, log_json: bool, **web: Any) -> int:
    """Show a soak that runs in another terminal or in the background. Ctrl-C ends this view, not
    the soak.

    With --web it is shown as a page for browsers, until Ctrl-C, and to Prometheus as /metrics; a
    run that has ended too. Without a run file, or with a folder, the page lists the folder's runs,
    each with a page of its own.

    With --once the exit status is 0 if the run continues or has ended, and 1 if it hangs, was
    killed or was moved.
    """
    from asyncli.cli.outputs import printing

    place = web_place(web)
    path = _path_of(run, has_page=place is not None)
    if place is not None:
        if once or log_json:
            raise PlanError("--web: leave out --once and --log-json, or --web")
        if place.reference is not None and os.path.isdir(path):
            raise PlanError("--reference: the page of a folder has a choice of it; leave it out")
        return _show_page(path, place)
    with printing():
        if once:
            return _show_once(path, log_json)
        return _follow(path, log_json)


def _path_of(run: str | None, *, has_page: bool) -> Path:
    """The run file, or the folder whose runs a page is to list.

    Raises :class:`PlanError` for what is neither.
    """
    if run is None and not has_page:
        raise PlanError(
            "name a run file: asyncli watch RUN.db; or see all runs of this folder as a page: "
            "asyncli watch --web"
        )
    path = Path("." if run is None else run)
    if os.path.isdir(path) and not has_page:
        raise PlanError(
            f"{path}: is a folder; name a run file in it, or see its runs as a page: asyncli watch "
            f"{path} --web"
        )
    if has_page and not os.path.exists(path):
        raise PlanError(f"{path}: there is no such run file or folder")
    return path


def _show_page(path: Path, place: ServedAt) -> int:
    """Serve the page of a run, or of a folder's runs, until Ctrl-C; return 0."""
    import asyncio

    from asyncli.cli.signals import stop_signals
    from asyncli.web.running import run_until

    async def serve() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, stopped.set)
        log = partial(_say, on_stderr=True)
        server = _server_of(path, place, log)
        try:
            await server.read()
            await server.listen()
            for line in web_lines(place, server.port):
                _say(line)
            await run_until(server.run(), stopped)
        finally:
            await server.close()

    asyncio.run(serve())
    return 0


def _server_of(
    path: Path, place: ServedAt, log: Callable[[str], None]
) -> PageServer | FolderServer:
    if not path.is_dir():
        from asyncli.live.serve import server_of

        return server_of(path, place, log)
    from asyncli.live.folder_server import folder_server_of

    return folder_server_of(path, place, log)


def _show_once(path: Path, log_json: bool) -> int:
    from asyncli.live.following import UNLOCKED_S, fold_news, why_ended_of
    from asyncli.report.cost_so_far import cost_so_far
    from asyncli.report.live import json_line, plain_line, status
    from asyncli.report.livestate import LiveFold
    from asyncli.store.follow import Follower
    from asyncli.store.reader import read_run

    follower = Follower(path)
    news = follower.news()
    if news.complete:
        line, machine_line = _end(path, news)
        _say(machine_line if log_json else f"the run has ended; {line}")
        return 0
    fold = LiveFold(news.plan)
    fold_news(fold, news)
    latest = time.monotonic() + UNLOCKED_S
    why_ended = why_ended_of(follower, news)
    while not why_ended and not follower.is_open and time.monotonic() < latest:
        time.sleep(0.2)
        news = follower.news()
        fold_news(fold, news)
        why_ended = why_ended_of(follower, news)
    if why_ended:
        fold.end()
    if fold.state().phase in ("ramp", "hold"):
        fold.cost(cost_so_far(read_run(path, for_report=True)))
    state = fold.state()
    if log_json:
        fields = {**status(state), "trouble": why_ended or None}
        at_s = news.began_s + state.elapsed_s
        _say(json_line("status", state.elapsed_s, state.phase, fields, at_s))
    elif why_ended:
        _say(f"{plain_line(state)}; {why_ended}")
    else:
        _say(plain_line(state))
    return NOT_GOING_ON if why_ended else 0


def _follow(path: Path, log_json: bool) -> int:
    from asyncli.store.follow import Follower

    # Standard output is for the view and the verdict, or with --log-json for a machine.
    note = partial(_say, on_stderr=True)
    follower = Follower(path)
    try:
        news = _first_news(follower, path)
        news, why_ended = _show_until_end(follower, news, note, log_json=log_json)
    except KeyboardInterrupt:
        return 0
    if news.complete:
        line, machine_line = _end(path, news)
        if log_json:
            _say(machine_line)
        _say(line, on_stderr=log_json)
    if not follower.is_there:
        note(why_ended)
    elif news.complete:
        note(f"{why_ended}: asyncli report {path}")
    else:
        resume = f"to continue it: asyncli soak --resume {path}"
        note(f"{why_ended}: asyncli report {path}; {resume}")
    return 0


def _show_until_end(
    follower: Follower, news: News, note: Callable[[str], None], *, log_json: bool
) -> tuple[News, str]:
    """Show a run until it ends; return its last records and why it does not continue."""
    from asyncli.app.cost_meter import CostMeter
    from asyncli.live.following import QUIET_S, fold_news, why_ended_of
    from asyncli.report.livescreen import LiveView
    from asyncli.report.livestate import LiveFold

    fold = LiveFold(news.plan)
    noted_s = 0.0
    with _view(news, log_json=log_json) as view, CostMeter(follower.path) as meter:
        after_news = None if isinstance(view, LiveView) else view.write_news
        while True:
            fold_news(fold, news, after_news)
            _fold_cost(fold, meter)
            why_ended = why_ended_of(follower, news)
            if why_ended and (news.complete or not follower.is_open):
                fold.end()
                view.update(fold.state())
                return news, why_ended
            view.update(fold.state())
            if why_ended and time.monotonic() >= noted_s + QUIET_S:
                noted_s = time.monotonic()
                note(why_ended)
            time.sleep(1.0)
            news = follower.news()


def _fold_cost(fold: LiveFold, meter: CostMeter) -> None:
    """Fold the cost so far if it is known, and have it computed again if that is due."""
    so_far = meter.turn(time.monotonic(), is_held=fold.state().phase in ("ramp", "hold"))
    if so_far is not None:
        fold.cost(so_far)


def _view(news: News, *, log_json: bool) -> JsonView | LiveView | PlainView:
    from rich.console import Console

    from asyncli.cli.screen import is_screen
    from asyncli.report.live import JsonView, PlainView
    from asyncli.report.livescreen import LiveView

    console = Console(highlight=False)
    if log_json:
        return JsonView(news.plan, console, news.began_s)
    if is_screen(console):
        return LiveView(news.plan, console)
    return PlainView(news.plan, console)


def _say(line: str, *, on_stderr: bool = False) -> None:
    print(line, file=sys.stderr if on_stderr else sys.stdout, flush=True)


def _first_news(follower: Follower, path: Path) -> News:
    """The first records of a run; waits for a run that has not created its file."""
    from asyncli.model.errors import NotBegunError

    latest = time.monotonic() + _PATIENCE_S
    was_said = False
    while True:
        try:
            return follower.news()
        except NotBegunError:
            if time.monotonic() >= latest:
                raise
            if not was_said:
                patience = format_duration(_PATIENCE_S)
                _say(f"asyncli: waiting up to {patience} for {path}", on_stderr=True)
            was_said = True
            time.sleep(0.1)


def _end(path: Path, news: News) -> tuple[str, str]:
    """The last line of a run, as text and as JSON."""
    from asyncli.report.answer import one_line
    from asyncli.report.live import end_line
    from asyncli.report.summary import summarise
    from asyncli.store.reader import read_run

    summary = summarise(read_run(path, for_report=True))
    ended_s = news.began_s + summary.run.duration_s
    return one_line(summary, warnings=True), end_line(summary, path, ended_s)
