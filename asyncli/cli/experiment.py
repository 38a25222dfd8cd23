"""``asyncli experiment NAME``: a classic comparison on real servers."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asyncli.cli.command import Command
from asyncli.cli.options import parsed
from asyncli.experiments import ABOUT
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.exit_status import INTERRUPTED, INVALID, PASSED, UNTESTED
from asyncli.model.units import parse_count

if TYPE_CHECKING:
    from asyncli.experiments.record import Record


def _names() -> str:
    widest = max(map(len, ABOUT))
    lines = [f"  {name:<{widest}}  {about}" for name, about in ABOUT.items()]
    return "\n".join(["\b", "Experiments:", *lines])


@click.command(
    name="experiment",
    cls=Command,
    no_args_is_help=True,
    context_settings={"max_content_width": 110},
    epilog=_names(),
)
@click.argument("name", metavar="NAME")
@click.option(
    "--quick", is_flag=True, help="One round of half a minute: too short for firm conclusions."
)
@click.option("--rounds", metavar="N", help="Repeat each measurement N times, interleaved.")
@click.option("--duration", metavar="TIME", help="Duration of each timed measurement.")
@click.option("--connections", metavar="N", help="Concurrent connections.")
@click.option("--keepalive", metavar="TIME", help="Sleep up to TIME/2 between heartbeats.")
@click.option(
    "--only", metavar="SERVER", multiple=True, help="Measure this server only; repeatable."
)
@click.option("--plan", "plan_file", metavar="RECORD.json", help="Use the plan of this record.")
@click.option(
    "--out",
    metavar="FOLDER",
    help="Folder for record.json and report.html.  [default: experiment-NAME-<time> here]",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the record to this file; '-' for standard output.",
)
@click.option("--quiet", is_flag=True, help="Print only errors and the path of the record.")
def command(
    name: str,
    quick: bool,
    plan_file: str | None,
    out: str | None,
    json_file: str | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Start the servers, measure them in turn, and check the claims of the experiment's source.

    A server that is not installed is skipped, with a finding. Ctrl-C ends the experiment and keeps
    what was measured.

    Exit status: 0 measured, 2 usage or a record that cannot be written, 3 nothing measured, 4 ended
    early, 130 stopped.
    """
    import asyncio

    from asyncli import experiments

    experiment = experiments.load(name)
    changes: dict[str, Any] = {}
    if plan_file is not None:
        recorded = _recorded(plan_file, experiment.name)
        if quick and not recorded.quick:
            raise PlanError(
                f"--quick: {plan_file} is the plan of a full run; leave out --quick or --plan"
            )
        quick = recorded.quick
        changes = recorded.plan
        experiments.plan_of(experiment, quick, changes, f"--plan: {plan_file}: ")
    changes = changes | _given(values)
    for key in changes:
        if key in values and key not in experiment.plan.__struct_fields__:
            raise PlanError(f"--{key}: not a setting of {name}; leave it out")
    plan = experiments.plan_of(experiment, quick, changes, "--")
    folder = Path(out) if out is not None else _new_folder(name)
    from asyncli.cli.outputs import (
        deliver,
        file_writers,
        made_folder,
        printing,
        require_files,
        require_folder,
    )

    require_folder("--out", str(folder))
    if (folder / "record.json").exists():
        raise PlanError(f"--out: {folder} already has a record; name another folder")
    files = {"--json": json_file}
    require_files(files)
    from rich.console import Console

    from asyncli.cli.screen import message_console, speaker
    from asyncli.cli.signals import until_stopped
    from asyncli.experiments.context import run
    from asyncli.report.experiment_report import experiment_document
    from asyncli.report.terminal import print_document

    # Messages contain paths and compilers' errors: no markup, no emoji.
    console = Console(stderr=json_file == "-", highlight=False, markup=False, emoji=False)
    done: tuple[Record, str | None] | None = None

    async def work() -> None:
        nonlocal done
        say = speaker(message_console(), quiet, "dim")
        record = await run(experiment, plan, quick=quick, say=say, folder=folder)
        # Before anything is printed, and where a second Ctrl-C cannot interrupt it.
        done = (record, _write(record, folder))

    with made_folder("--out", folder):
        asyncio.run(until_stopped(work(), lambda: False))
    assert done is not None
    record, error = done

    def tell() -> None:
        with printing():
            if not quiet or error:
                print_document(experiment_document(record), console)
            if not error:
                console.print(f"{folder}/report.html, {folder}/record.json", soft_wrap=True)

    def complain() -> None:
        if error:
            raise StoreError(error)

    deliver(tell, *file_writers(files, {"--json": lambda: _text(record)}), complain)
    return _exit_status(record)


def _write(record: Record, folder: Path) -> str | None:
    """Write the record and its page atomically; return the error, or None."""
    from asyncli.report.experiment_report import experiment_document
    from asyncli.report.html import page

    part = folder / "part"
    try:
        folder.mkdir(exist_ok=True)
        # The record first: the page can be made from it.
        part.write_text(_text(record), encoding="utf-8")
        part.replace(folder / "record.json")
        part.write_text(page(experiment_document(record)), encoding="utf-8")
        part.replace(folder / "report.html")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        return (
            f"--out: {folder} cannot be written ({error.strerror}); "
            "the measurements are only printed"
        )
    return None


def _text(record: Record) -> str:
    from asyncli.report.jsonout import to_json

    return f"{to_json(record)}\n"


def _exit_status(record: Record) -> int:
    from asyncli.experiments.context import counted
    from asyncli.findings.experiment import stopped

    if any(finding.code == stopped.code for finding in record.findings):
        return INTERRUPTED
    if not record.complete:
        return INVALID
    return PASSED if counted(record.rounds) else UNTESTED


def _recorded(file: str, name: str) -> Record:
    from asyncli.experiments.record import record_of

    try:
        record = record_of(Path(file).read_bytes())
    except OSError as error:
        raise PlanError(
            f"--plan: {file} cannot be read ({error.strerror}); "
            "name the record.json of an experiment"
        ) from None
    except ValueError as error:
        raise PlanError(f"--plan: {file} {error}") from None
    if record.experiment != name:
        raise PlanError(
            f"--plan: {file} is a record of {record.experiment}, not of {name}; name one of {name}"
        )
    return record


def _new_folder(name: str) -> Path:
    return Path(f"experiment-{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of the flags that were given."""
    settings = {}
    for key, value in values.items():
        if value not in (None, ()):
            settings[key] = _parsed(key, value)
    return settings


def _parsed(key: str, value: Any) -> Any:
    if key == "only":
        return list(value)
    if key in ("duration", "keepalive"):
        return value
    return parsed(f"--{key}", parse_count, value)
