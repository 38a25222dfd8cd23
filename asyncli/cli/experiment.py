"""``asyncli experiment NAME``: a classic comparison, on real servers, with its source's table beside ours."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from asyncli.errors import PlanError
from asyncli.units import parse_count


@click.command(name="experiment", no_args_is_help=True, context_settings={"max_content_width": 110})
@click.argument("name", metavar="NAME")
@click.option("--quick", is_flag=True, help="A minute's taste instead of the whole.")
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

    NAME is short-vs-keepalive, upstream-keepalive, pipelining, server-models or holding. A server that is not installed is
    left out, and said so. Ctrl-C ends it and keeps what was measured.
    """
    import asyncio

    from asyncli import experiments

    experiment = experiments.load(name)
    changes = _recorded(plan_file, experiment.name) if plan_file is not None else {}
    changes |= {key: _parsed(key, value) for key, value in said.items() if value not in (None, ())}
    plan = experiments.plan_of(experiment, quick, changes)
    folder = Path(out) if out is not None else Path(f"experiment-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    from asyncli.cli.places import UNSEEN, deliver, printing, require_files, require_folder, write_file

    require_folder("--out", str(folder))
    if (folder / "record.json").exists():
        raise PlanError(f"--out: {folder} has a record already; name another folder")
    require_files({"--json": json_file})
    from rich.console import Console

    from asyncli.cli.main import INTERRUPTED
    from asyncli.cli.signals import until_stopped
    from asyncli.experiments.record import Record
    from asyncli.experiments.run import STOPPED, run
    from asyncli.report.experiment import print_experiment
    from asyncli.report.experiment_page import page
    from asyncli.report.jsonout import finite_json

    console = Console(stderr=json_file == "-", highlight=False)
    record: Record | None = None

    def say(words: str) -> None:
        # Nobody looks on any more: the measuring goes on.
        with contextlib.suppress(*UNSEEN):
            if not quiet:
                console.print(words, style="dim")

    async def work() -> None:
        nonlocal record
        record = await run(experiment, plan, quick=quick, say=say)

    asyncio.run(until_stopped(work(), lambda: False))
    assert record is not None
    measured = record
    text = finite_json(msgspec.to_builtins(measured, str_keys=True)) + "\n"

    def keep() -> None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise PlanError(f"--out: {folder} cannot be made ({error.strerror}); name another folder") from None
        write_file("--out", str(folder / "record.json"), text)
        write_file("--out", str(folder / "report.html"), page(measured))

    def pass_on() -> None:
        if json_file is not None:
            write_file("--json", json_file, text)

    def tell() -> None:
        with printing():
            if not quiet:
                print_experiment(measured, console)
            console.print(f"{folder}/report.html, {folder}/record.json", soft_wrap=True)

    deliver(keep, pass_on, tell)
    if record.complete:
        return 0
    return INTERRUPTED if any(one.code == STOPPED for one in record.findings) else 4


def _recorded(file: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        plan = document["plan"]
        of = document["experiment"]
    except OSError as error:
        raise PlanError(f"--plan: {file} cannot be read ({error.strerror}); name a record.json of an experiment") from None
    except (ValueError, TypeError, KeyError):
        raise PlanError(f"--plan: {file} is no record of an experiment; name a record.json that one wrote") from None
    if of != name or not isinstance(plan, dict):
        raise PlanError(f"--plan: {file} is a record of {of}, not of {name}; run 'asyncli experiment {of}'")
    return plan


def _parsed(key: str, value: Any) -> Any:
    if key in ("only", "duration"):
        return list(value) if key == "only" else value
    try:
        return parse_count(value)
    except ValueError as error:
        raise PlanError(f"--{key}: {error}") from None
