"""``asyncli capacity``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from asyncli.app.report_memory import import_report, require_memory
from asyncli.cli.command import Command, environment_lines
from asyncli.cli.options import parsed, plan_from, plan_options
from asyncli.model.errors import PlanError
from asyncli.model.exit_status import INTERRUPTED, exit_status
from asyncli.model.plan import Layer, Plan
from asyncli.model.units import LONGEST_S, format_duration
from asyncli.model.values import parse_connections

#: Default limits of a step. --fail-if on the same number replaces its default.
LIMITS = ("connections.lost > 0", "connections.failed > 0", "heartbeats.latency_ms.p99 > 1s")
_START = "1000"
_WITHIN = "5%"
_KEEPALIVE_S = 20
# Short phases are enough: there are many steps, each with the server at rest.
_DEFAULTS = {"keepalive": _KEEPALIVE_S, "baseline": 2, "residue": 1}
_LEFT_OUT = (
    "connections",
    *_DEFAULTS,
    "hold",
    "plateaus",
    "plateau_rest",
    "collect",
    "events",
    "churn",
    "fail_if",
    "baseline_run",
    "abort",
    "plan_file",
)


@click.command(name="capacity", cls=Command, context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option(
    "--start",
    default=_START,
    metavar="N",
    show_default=True,
    help="First count; it doubles until a count is not held.",
)
@click.option(
    "--most", metavar="N", help="Highest count.  [default: what the preflight allows on this host]"
)
@click.option(
    "--within",
    default=_WITHIN,
    metavar="PERCENT",
    show_default=True,
    help="Precision of the answer.",
)
@click.option(
    "--hold",
    metavar="TIME",
    help="Duration of a step's hold.  [default: keepalive/2 + timeout, so that each is answered]",
)
@click.option(
    "-k",
    "--keepalive",
    metavar="TIME",
    help=f"Sleep 1 s to TIME/2 between heartbeats.  [default: {_KEEPALIVE_S}]",
)
@click.option(
    "--baseline",
    metavar="TIME",
    help="How long to measure before each step's first connect.  [default: 2s]",
)
@click.option(
    "--residue",
    metavar="TIME",
    help="How long to measure after each step's last close.  [default: 1s]",
)
@click.option(
    "--fail-if", metavar="LIMIT", multiple=True,
    help="A limit on any number of a step's JSON; repeatable. It replaces the default limit on "
         "that number. Defaults: lost > 0, connections.failed > 0, heartbeats.latency_ms.p99 > "
         "1s; and no answer may be an error, unless a limit is on its status.",
)  # fmt: skip
@plan_options(without=_LEFT_OUT)
@click.option(
    "--out",
    metavar="FOLDER",
    help="New folder for the steps' run files.  [default: asyncli-capacity-<time> here]",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the result as JSON; '-' for standard output."
)
@click.option(
    "--html", "html_file", metavar="FILE", help="Write it as one offline HTML page; '-' likewise."
)
@click.option("--quiet", is_flag=True, help="Print only errors and the one-line verdict.")
def command(
    urls: tuple[str, ...],
    start: str,
    most: str | None,
    within: str,
    out: str | None,
    json_file: str | None,
    html_file: str | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Find how many connections the server at URL holds, and the bottleneck beyond that: the
    server, this host or the network.

    Each step is a soak of a server at rest that ends at the first crossed limit. The count doubles
    until one is not held; then the gap is halved. The first Ctrl-C drains and reports, the second
    stops at once. Exit status: 0 with an answer, 3 if nothing answered, 4 if this host was the
    limit, 99 if not even one connection is held, the search ended early, or the server limits
    connects in a time.
    """
    require_memory(page=html_file is not None)
    first = parsed("--start", parse_connections, start)
    last = None
    if most is not None:
        last = parsed("--most", parse_connections, most)
    share = _percent(within)
    limits = values.pop("fail_if")
    defaults = Layer("capacity: {key}", _DEFAULTS)
    plan = _with_limits(plan_from({**values, "fail_if": limits}, urls, defaults), limits)
    if plan.hold_until is not None:
        raise PlanError(
            f"--hold: '{values['hold']}' is an instant, but every step has a hold; "
            "write a duration such as 20s"
        )
    if plan.hold_s is None:
        raise PlanError("--hold: 'forever' never ends; write a duration such as 20s")
    # With --silence forever no silence is too long.
    heard_s = plan.heard_within_s if plan.heard_within_s < LONGEST_S else plan.timeout_s
    if values.get("hold") is None:
        plan = msgspec.structs.replace(plan, hold_s=heard_s)
    hint = ""
    if plan.hold_s is not None and plan.hold_s < heard_s:
        silent = format_duration(heard_s)
        if not plan.listens:
            silent = f"{silent}, --keepalive / 2 + --timeout"
        hint = (
            f"--hold {format_duration(plan.hold_s)} is shorter than a connection may be silent "
            f"({silent}): silence that begins late in a step is missed"
        )
    files = {"--json": json_file, "--html": html_file}
    return _run(plan, first, last, share, out=out, files=files, quiet=quiet, hint=hint)


def _first_lines(searched: str, hint: str, *, quiet: bool) -> list[str]:
    """What is printed before the search: the range that is ``searched``, and a ``hint``."""
    lines = environment_lines(quiet=quiet)
    if quiet:
        return lines
    lines.append(searched)
    if hint:
        lines.append(f"warning: {hint}")
    return lines


def _run(
    plan: Plan,
    start: int,
    most: int | None,
    within: float,
    *,
    out: str | None,
    files: dict[str, str | None],
    quiet: bool,
    hint: str,
) -> int:
    """Search and report; return the exit status.

    ``most`` None: what this host can carry. ``hint``: printed before step 1.
    """
    import asyncio

    from asyncli.app.capacity import CapacitySearch
    from asyncli.app.results import free_name
    from asyncli.app.search_range import in_words, make_search
    from asyncli.cli.outputs import deliver, file_writers, made_folder, printing, require_files
    from asyncli.cli.screen import Screen, is_screen, message_console, report_console, speaker
    from asyncli.cli.signals import until_stopped
    from asyncli.report.capacity_report import capacity_document, one_line
    from asyncli.report.jsonout import to_json
    from asyncli.report.terminal import print_document

    require_files(files)
    import_report(page=files["--html"] is not None)
    folder = Path(out) if out is not None else free_name("asyncli-capacity", "")
    messages = message_console()
    console = report_console(to_stderr="-" in files.values())
    say = speaker(messages, quiet)
    warn = speaker(messages, quiet=False)
    search: CapacitySearch | None = None

    async def work() -> None:
        nonlocal search
        search_range = await make_search(plan, start, most, within)
        preface = _first_lines(in_words(search_range, start), hint, quiet=quiet)

        def say_after_preface(line: str) -> None:
            # A search that the preflight refuses prints nothing.
            while preface:
                warn(preface.pop(0))
            say(line)

        with made_folder("--out", folder, new=True):
            search = CapacitySearch(
                msgspec.structs.replace(plan, connections=search_range.most),
                search_range,
                folder,
                # A log gets one line per step.
                make_observer=lambda of: Screen(of, messages, quiet or not is_screen(messages)),
                say=say_after_preface,
            )
            await search.run()

    def stop() -> bool:
        if search is None:
            return False
        search.stop()
        return True

    finished = asyncio.run(until_stopped(work(), stop))
    if search is None or not (search.steps or search.no_listener):
        print(
            "asyncli: interrupted during the first step; there is nothing to report",
            file=sys.stderr,
        )
        return INTERRUPTED
    result = search.result

    def tell() -> None:
        with printing():
            if quiet:
                print(one_line(result), file=console.file)
            else:
                say("")
                print_document(capacity_document(result), console)

    def json() -> str:
        return to_json(result) + "\n"

    def html() -> str:
        from asyncli.report.html import page

        return page(capacity_document(result))

    deliver(tell, *file_writers(files, {"--json": json, "--html": html}))
    if not finished:
        return INTERRUPTED
    return exit_status(result.verdict)


def _with_limits(plan: Plan, given: tuple[str, ...]) -> Plan:
    """The plan with the default limits on those numbers that have no --fail-if."""
    from asyncli.report.summary import Summary
    from asyncli.report.thresholds import parse

    limited = {parse(text, Summary).key for text in given}
    defaults = [text for text in LIMITS if parse(text, Summary).key not in limited]
    return msgspec.structs.replace(plan, fail_if=(*given, *defaults), abort=True)


def _percent(text: str) -> float:
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 50:
        raise PlanError(
            f"--within: {text!r} is not a precision; write a percentage from 0.1% to 50%"
        )
    return number / 100
