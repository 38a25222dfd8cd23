"""``asyncli experiment NAME``: a classic comparison, on real servers, with its source's table beside ours."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asyncli.errors import PlanError, StoreError
from asyncli.exit_status import INTERRUPTED, INVALID, PASSED, UNTESTED
from asyncli.experiments import ABOUT
from asyncli.units import parse_count

if TYPE_CHECKING:
    from asyncli.experiments.record import Record


def _names() -> str:
    widest = max(map(len, ABOUT))
    lines = [f"  {name:<{widest}}  {about}" for name, about in ABOUT.items()]
    return "\n".join(["\b", "What there is to compare:", *lines])


@click.command(name="experiment", no_args_is_help=True, context_settings={"max_content_width": 110}, epilog=_names())
@click.argument("name", metavar="NAME")
@click.option("--quick", is_flag=True, help="A taste of half a minute: one round, from which little can be concluded.")
@click.option("--rounds", metavar="N", help="Repeat each measurement so often, in turns.")
@click.option("--duration", metavar="TIME", help="How long each measurement lasts, where it goes by time.")
@click.option("--connections", metavar="N", help="Connections at a time.")
@click.option("--only", metavar="SERVER", multiple=True, help="Leave the other servers out; repeatable.")
@click.option("--plan", "plan_file", metavar="RECORD.json", help="Run again what a record was made by.")
@click.option("--out", metavar="FOLDER", help="For record.json and report.html.  [default: experiment-NAME-<time> here]")
@click.option("--json", "json_file", metavar="FILE", help="Write the record there as well; '-' for standard output.")
@click.option("--quiet", is_flag=True, help="Print errors and where the record is, nothing else.")
def command(
    name: str, quick: bool, plan_file: str | None, out: str | None, json_file: str | None, quiet: bool, **said: Any
) -> int:
    """Set up the servers, measure in turns, and say whether what NAME's source claims holds here.

    NAME is short-vs-keepalive, upstream-keepalive, pipelining, server-models, holding, two-clients or
    client-lost. A server that is not installed is left out, and said so. Ctrl-C ends it and keeps what was measured.

    Exit status: 0 measured, 2 usage or a record that cannot be written, 3 nothing measured, 4 ended early, 130 stopped.
    """
    import asyncio

    from asyncli import experiments

    experiment = experiments.load(name)
    changes: dict[str, Any] = {}
    if plan_file is not None:
        recorded = _recorded(plan_file, experiment.name)
        if quick and not recorded.quick:
            raise PlanError(f"--quick: {plan_file} is the plan of a whole run; leave --quick or --plan out")
        quick, changes = recorded.quick, recorded.plan
        experiments.plan_of(experiment, quick, changes, f"--plan: {plan_file}: ")
    changes = changes | {key: _parsed(key, value) for key, value in said.items() if value not in (None, ())}
    unknown = next((key for key in changes if key in said and key not in experiment.plan.__struct_fields__), None)
    if unknown is not None:
        raise PlanError(f"--{unknown}: {name} has no such thing; leave it out")
    plan = experiments.plan_of(experiment, quick, changes, "--")
    folder = Path(out) if out is not None else Path(f"experiment-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    from asyncli.cli.outputs import deliver, made_folder, printing, require_files, require_folder, write_file

    require_folder("--out", str(folder))
    if (folder / "record.json").exists():
        raise PlanError(f"--out: {folder} has a record already; name another folder")
    require_files({"--json": json_file})
    from rich.console import Console

    from asyncli.cli.screen import speaker
    from asyncli.cli.signals import until_stopped
    from asyncli.experiments.run import run
    from asyncli.report.experiment_report import print_experiment

    # What is said has paths and compilers' complaints in it: brackets are no markup, and colons no emoji.
    console = Console(stderr=json_file == "-", highlight=False, markup=False, emoji=False)
    done: tuple[Record, str | None] | None = None

    async def work() -> None:
        nonlocal done
        record = await run(experiment, plan, quick=quick, say=speaker(console, quiet, "dim"), folder=folder)
        # Here, where a second Ctrl-C waits its turn, and before a word is printed: whoever reads it may have left.
        done = (record, _keep(record, folder))

    with made_folder("--out", folder):
        asyncio.run(until_stopped(work(), lambda: False))
    assert done is not None
    record, lost = done

    def tell() -> None:
        with printing():
            # What is kept nowhere else is printed at least.
            if not quiet or lost:
                print_experiment(record, console)
            if not lost:
                console.print(f"{folder}/report.html, {folder}/record.json", soft_wrap=True)

    def pass_on() -> None:
        if json_file is not None:
            write_file("--json", json_file, _text(record))

    def complain() -> None:
        if lost:
            raise StoreError(lost)

    deliver(tell, pass_on, complain)
    return _exit_status(record)


def _keep(record: Record, folder: Path) -> str | None:
    """Write the record and its page, each whole or not at all; what to complain of."""
    from asyncli.report.experiment_report import page

    part = folder / "part"
    try:
        folder.mkdir(exist_ok=True)
        # The record first: the page can be made of it.
        for name, text in (("record.json", _text(record)), ("report.html", page(record))):
            part.write_text(text, encoding="utf-8")
            part.replace(folder / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        return f"--out: {folder} cannot be written ({error.strerror}); what was measured is kept nowhere but in what is printed"
    return None


def _text(record: Record) -> str:
    import msgspec

    from asyncli.report.jsonout import finite_json

    return finite_json(msgspec.to_builtins(record, str_keys=True)) + "\n"


def _exit_status(record: Record) -> int:
    from asyncli.experiments.run import counted
    from asyncli.findings.experiment import stopped

    if any(one.code == stopped.code for one in record.findings):
        return INTERRUPTED
    if not record.complete:
        return INVALID
    return PASSED if counted(record.rounds) else UNTESTED


def _recorded(file: str, name: str) -> Record:
    from asyncli.experiments.record import record_of

    try:
        record = record_of(Path(file).read_bytes())
    except OSError as error:
        raise PlanError(f"--plan: {file} cannot be read ({error.strerror}); name a record.json of an experiment") from None
    except ValueError as error:
        raise PlanError(f"--plan: {file} {error}") from None
    if record.experiment != name:
        raise PlanError(f"--plan: {file} is a record of {record.experiment}, not of {name}; name one of {name}")
    return record


def _parsed(key: str, value: Any) -> Any:
    if key in ("only", "duration"):
        return list(value) if key == "only" else value
    try:
        return parse_count(value)
    except ValueError as error:
        raise PlanError(f"--{key}: {error}") from None
