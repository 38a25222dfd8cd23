"""Runs a soak for a terminal: the screen while it lasts, signals, the report, the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console

from asyncli.cli.finish import run_command
from asyncli.cli.main import INTERRUPTED
from asyncli.cli.places import UNSEEN, deliver, printing, require_files, write_file
from asyncli.cli.signals import until_stopped
from asyncli.lab import LabServer
from asyncli.plan import Plan
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.answer import one_line
from asyncli.report.jsonout import to_json
from asyncli.report.junit import to_junit
from asyncli.report.live import JsonView, LiveView, NullView, PlainView, end_line, plain_line
from asyncli.report.livelimits import too_short, unwatched
from asyncli.report.livestate import Observer
from asyncli.report.run_report import print_report
from asyncli.report.summary import Summary, exit_status, summarise
from asyncli.session import Fleet, Soak, Target, free_name
from asyncli.store.reader import Run, read_run
from asyncli.store.resume import Interrupted
from asyncli.store.writer import require_free


class Screen(Observer):
    """Folds what happens into a state and shows it."""

    def __init__(self, plan: Plan, console: Console, quiet: bool, log_json: bool) -> None:
        super().__init__(plan)
        self._console = console
        if quiet:
            self._view = NullView()
        else:
            self._view = (JsonView if log_json else LiveView if console.is_terminal else PlainView)(plan, console)

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception, *UNSEEN):
            self._view.__exit__(None, None, None)

    def say_now(self) -> None:
        """One line of how it stands, for whoever asked by SIGUSR1."""
        with contextlib.suppress(*UNSEEN):
            if isinstance(self._view, JsonView):
                self._view.say_now(self.fold.state())
                return
            self._console.print(plain_line(self.fold.state()), soft_wrap=True, markup=False, highlight=False)

    def look(self, at_once: bool) -> None:
        """A screen that is gone (the reader of a pipe has left) ends the showing, never the soak."""
        try:
            self._view.update(self.fold.state())
        except UNSEEN:
            self._view = NullView()


class Files(NamedTuple):
    """Where a soak writes; None: nowhere, but for the run file, which then has a name of its own."""

    out: str | None = None
    json: str | None = None
    html: str | None = None
    junit: str | None = None


def run_soak(
    plan: Plan,
    to: Files,
    *,
    verbose: bool = False,
    quiet: bool = False,
    log_json: bool = False,
    on_finish: str | None = None,
    lab: LabServer | None = None,
    aim: Callable[[Plan, LabServer], Plan] | None = None,
    resume: Interrupted | None = None,
    cluster: Fleet | None = None,
    wait_for_server_s: float = 0.0,
) -> int:
    """Run ``plan`` and report; the exit status. With ``lab`` that server is started first and ``aim`` points the plan at it.

    ``resume``: the run that ``to.out`` has the beginning of. ``cluster``: the hosts that open the connections; None: this one.

    ``on_finish``: a command of the user's that hears the verdict at the end, whatever it is.
    """
    out, json_file, html_file, junit_file = to
    path = Path(out) if out is not None else free_name()
    if resume is None:
        require_free(path)
    require_files({"--json": json_file, "--html": html_file, "--junit": junit_file}, path)
    # With the JSON, the page or the XML on standard output, everything else goes to standard error; and everything for the eye
    # where a log for machines is there.
    piped = "-" in (json_file, html_file, junit_file)
    log = Console(stderr=piped, highlight=False)
    console = Console(stderr=piped or log_json, highlight=False)
    if not quiet and (late := unwatched(plan)):
        print(f"asyncli: --abort: only the end tells of {' and '.join(late)}", file=sys.stderr)
    running = _soak(plan, path, console, log, quiet, log_json, lab, aim, resume, cluster, wait_for_server_s)
    status, path, read = asyncio.run(running)
    if read is None:
        return status
    run, analyses, summary = read

    def tell() -> None:
        with printing():
            if log_json:
                print(end_line(summary, path), file=log.file)
            if not quiet:
                print_report(summary, console, path, verbose=verbose)
            elif not log_json:
                print(one_line(summary), file=console.file)

    def keep() -> None:
        if json_file is not None:
            write_file("--json", json_file, to_json(summary) + "\n", f"'asyncli report {path} --json FILE' writes it elsewhere")

    def tell_ci() -> None:
        if junit_file is not None:
            write_file("--junit", junit_file, to_junit(summary), f"'asyncli report {path} --junit FILE' writes it elsewhere")

    def draw() -> None:
        if html_file is not None:
            _write_page(run, analyses, summary, html_file, f"'asyncli report {path} --html FILE' writes it elsewhere")

    # The page last: a figure takes seconds, and the answer should not wait for it.
    def tell_the_user() -> None:
        if on_finish is not None:
            run_command(on_finish, summary, path, status)

    deliver(tell, keep, tell_ci, draw, tell_the_user)
    return status


def _write_page(run: Run, analyses: Analyses, summary: Summary, html_file: str, mend: str) -> None:
    from asyncli.report.run_report import render

    write_file("--html", html_file, render(run, summary, analyses), mend)


def _read(path: Path) -> tuple[Run, Analyses, Summary]:
    run = read_run(path)
    analyses = analyse(run)
    return run, analyses, summarise(run, analyses)


async def _soak(
    plan: Plan,
    path: Path,
    console: Console,
    log: Console,
    quiet: bool,
    log_json: bool,
    lab: LabServer | None,
    aim: Callable[[Plan, LabServer], Plan] | None,
    resume: Interrupted | None,
    cluster: Fleet | None,
    wait_for_server_s: float,
) -> tuple[int, Path, tuple[Run, Analyses, Summary] | None]:
    soak: Soak | None = None

    async def work() -> None:
        nonlocal plan, soak
        async with contextlib.AsyncExitStack() as stack:
            target = None
            if lab is not None and aim is not None:
                await stack.enter_async_context(lab)
                plan = aim(plan, lab)
                target = Target(lab.label, lab.pid)
                if not quiet:
                    with contextlib.suppress(*UNSEEN):
                        console.print(f"{lab.label} listens at {lab.url} with {lab.workers} workers (pid {lab.pid})")
            with Screen(plan, log, quiet, log_json) as screen:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, screen.say_now)
                soak = Soak(
                    plan,
                    path,
                    watcher=screen,
                    target=target,
                    resume=resume,
                    cluster=cluster,
                    wait_for_server_s=wait_for_server_s,
                    findings=too_short(plan) if resume is None else (),
                )
                screen.stop, screen.failed = soak.stop, soak.watcher_failed
                await soak.run()

    def stop() -> bool:
        if soak is None or not soak.recording:
            return False
        soak.stop()
        return True

    finished = await until_stopped(work(), stop)
    if soak is None or not soak.started:
        hosts = "" if cluster is None else f" {cluster.flags}"
        goes_on = f"'asyncli soak --resume {path}{hosts}' goes on with the run"
        what = "the first measurement; there is nothing to report" if resume is None else f"it was resumed; {goes_on}"
        print(f"asyncli: interrupted before {what}", file=sys.stderr)
        return INTERRUPTED, path, None
    if soak.trouble is not None:
        print(f"asyncli: {soak.trouble}", file=sys.stderr)
    read = await asyncio.to_thread(_read, soak.out)
    return (exit_status(read[2].verdict) if finished else INTERRUPTED), soak.out, read
