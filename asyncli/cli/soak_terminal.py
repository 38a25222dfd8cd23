"""Runs a soak for a terminal: live screen, signals, report, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from asyncli.app.report_memory import import_report
from asyncli.app.results import Results, free_name, read_results
from asyncli.app.soak import KnownServer, Soak
from asyncli.cli.outputs import Outputs, deliver, printing, require_files, written_reports
from asyncli.cli.screen import Screen, message_console, report_console, speaker
from asyncli.cli.signals import until_stopped
from asyncli.findings.run import BY_PAGE
from asyncli.lab.base import LabServer
from asyncli.model.exit_status import INTERRUPTED, exit_status
from asyncli.model.plan import Plan
from asyncli.model.text import ascii_only
from asyncli.report.answer import one_line
from asyncli.report.jsonout import to_json
from asyncli.report.live import end_line
from asyncli.report.live_thresholds import unwatched
from asyncli.report.run_report import print_report, report_markdown
from asyncli.store.writer import require_free

if TYPE_CHECKING:
    from asyncli.live.beside_soak import PageBeside
    from asyncli.live.serve import SentTo, ServedAt

# A command that sends a mail or calls a webhook needs seconds; the exit status must not wait for
# one that hangs.
PATIENCE_S = 60.0


def run_soak(
    plan: Plan,
    to: Outputs,
    *,
    lab: LabServer | None = None,
    page_at: ServedAt | None = None,
    otlp_to: SentTo | None = None,
    preface: Sequence[str] = (),
    **options: Any,
) -> int:
    """Run ``plan``, report, and return the exit status. ``lab``: a server to start first and to aim
    the plan at. ``page_at``: where the run is shown to browsers and to Prometheus meanwhile.
    ``otlp_to``: where its metrics are sent. ``preface``: lines to print before the first state of
    the run.

    ``options``: ``resume``, ``cluster``, ``wait_for_server_s`` and ``collect_by`` of
    :class:`~asyncli.app.soak.Soak`.
    """
    path = Path(to.out) if to.out is not None else free_name()
    if options.get("resume") is None:
        require_free(path)
    require_files(to.files, path)
    # Standard output is for the report, and with --log-json for that log; a file that goes there
    # (--json -) takes it from both.
    messages = message_console()
    log = messages
    if to.log_json:
        log = report_console(to_stderr=to.piped)
    console = report_console(to_stderr=to.piped or to.log_json)
    unwatched_limits = unwatched(plan)
    if unwatched_limits and not to.quiet:
        limits = " and ".join(unwatched_limits)
        print(f"asyncli: --abort does not stop at {limits}: judged at the end", file=sys.stderr)
    import_report(page=to.html_file is not None)
    page = _page_beside(path, page_at, otlp_to, messages, to)
    if page is not None:
        options["helper_pids"] = lambda: page.pids
    try:
        status, results = asyncio.run(
            _soak(plan, path, to, log, messages, lab, page, preface, options)
        )
        if results is not None:
            _report(results, status, path, to, log, console)
    finally:
        if page is not None:
            say = speaker(messages, to.quiet)
            for notice in page.close():
                say(notice)
    return status


def _page_beside(
    path: Path,
    place: ServedAt | None,
    otlp_to: SentTo | None,
    messages: Console,
    to: Outputs,
) -> PageBeside | None:
    """The process of page, metrics and OTLP, which listens; None where nothing of it is asked
    for.
    """
    if place is None and otlp_to is None:
        return None
    from asyncli.cli.otlp_options import otlp_line
    from asyncli.cli.web_options import web_lines
    from asyncli.live.beside_soak import PageBeside

    page = PageBeside(path, place, otlp_to)
    page.start()
    say = speaker(messages, to.quiet)
    if place is not None:
        # Nothing else tells a new token, or a port that the kernel chose.
        is_known = place.token_file is not None and place.port
        say_place = speaker(messages, to.quiet and bool(is_known))
        for line in web_lines(place, page.port):
            say_place(line)
    if otlp_to is not None:
        say(otlp_line(otlp_to))
    return page


@contextlib.contextmanager
def _notices_shown(page: PageBeside | None, screen: Screen) -> Iterator[None]:
    """Show what the process of page and metrics has to say, when it says it."""
    if page is None or page.has_ended:
        yield
        return
    loop = asyncio.get_running_loop()
    descriptor = page.fileno()

    def show() -> None:
        for notice in page.notices():
            screen.say(notice)
        if page.has_ended:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, show)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


def _report(
    results: Results, status: int, path: Path, to: Outputs, log: Console, console: Console
) -> None:

    def tell() -> None:
        with printing():
            if to.log_json:
                print(end_line(results.summary, path), file=log.file)
            if to.summary == "markdown":
                print(report_markdown(results.summary, path), file=console.file)
            elif not to.quiet:
                print_report(results.summary, console, path, verbose=to.verbose)
            elif not to.log_json:
                print(one_line(results.summary), file=console.file)

    def finish() -> None:
        if to.on_finish is not None:
            _run_command(to.on_finish, results, status)

    # The page is the last file, because its figures take seconds.
    deliver(tell, *written_reports(to.files, results, kept=True), finish)


async def _soak(
    plan: Plan,
    path: Path,
    to: Outputs,
    log: Console,
    messages: Console,
    lab: LabServer | None,
    page: PageBeside | None,
    preface: Sequence[str],
    options: dict[str, Any],
) -> tuple[int, Results | None]:
    soak: Soak | None = None

    def end_hold() -> None:
        if soak is not None:
            soak.stop(by=BY_PAGE)

    if page is not None:
        page.end_hold = end_hold

    async def work() -> None:
        nonlocal plan, soak
        async with contextlib.AsyncExitStack() as stack:
            target = None
            if lab is not None:
                await stack.enter_async_context(lab)
                plan = _aimed_at(plan, lab)
                target = KnownServer(lab.label, lab.pid)
                say = speaker(messages, to.quiet)
                say(f"{lab.label} listens at {lab.url} with {lab.workers} workers (pid {lab.pid})")
            with Screen(plan, log, to.quiet, to.log_json, preface) as screen:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, screen.print_status)
                soak = Soak.shown_by(screen, plan, path, target=target, **options)
                with _notices_shown(page, screen):
                    await soak.run()

    def stop() -> bool:
        if soak is None or not soak.recording:
            return False
        soak.stop()
        return True

    finished = await until_stopped(work(), stop)
    if soak is None or not soak.started:
        print(f"asyncli: {_interrupted_early(path, options)}", file=sys.stderr)
        return INTERRUPTED, None
    if soak.trouble is not None:
        print(f"asyncli: {soak.trouble}", file=sys.stderr)
    results = await asyncio.to_thread(read_results, soak.recorded)
    if not finished:
        return INTERRUPTED, results
    return exit_status(results.summary.verdict), results


def _aimed_at(plan: Plan, lab: LabServer) -> Plan:
    pages = () if lab.metrics_url is None else (lab.metrics_url,)
    aimed = msgspec.structs.replace(
        plan,
        urls=(lab.url,),
        status_url=lab.status_url,
        server_metrics=pages,
        server_pid=lab.pid,
    )
    if lab.authority is None or plan.insecure:
        return aimed
    return msgspec.structs.replace(aimed, ca=str(lab.authority))


def _interrupted_early(path: Path, options: dict[str, Any]) -> str:
    if options.get("resume") is None:
        return "interrupted before the first measurement; there is nothing to report"
    command = f"asyncli soak --resume {path}"
    cluster = options.get("cluster")
    if cluster is not None:
        command = f"{command} {cluster.flags}"
    return f"interrupted before it was resumed; '{command}' continues the run"


def _run_command(command: str, results: Results, status: int) -> None:
    """Run the shell command of ``--on-finish``, with the summary's JSON on its standard input and
    the verdict in its environment.

    If it fails, print a line; the exit status of the run does not change.
    """
    summary = results.summary
    variables = {
        "ASYNCLI_VERDICT": summary.verdict,
        "ASYNCLI_STATUS": str(status),
        "ASYNCLI_LINE": ascii_only(one_line(summary)),
        "ASYNCLI_RUN": str(results.path.absolute()),
    }
    why = ""
    try:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            input=to_json(summary),
            text=True,
            env=os.environ | variables,
            timeout=PATIENCE_S,
            check=False,
            stdout=sys.stderr,
        )
        if ended.returncode:
            why = f"ended with status {ended.returncode}"
    except subprocess.TimeoutExpired:
        why = f"has not ended within {PATIENCE_S:.0f} s"
    except OSError as error:
        why = f"cannot be run ({error.strerror})"
    if why:
        # Not the command itself: it may have a secret, such as the URL of a webhook.
        print(f"asyncli: --on-finish: the command {why}", file=sys.stderr)
