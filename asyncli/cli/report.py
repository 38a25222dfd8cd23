"""``asyncli report RUN``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from asyncli.errors import PlanError


@click.command(name="report", no_args_is_help=True)
@click.argument("run", metavar="RUN.db")
@click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON instead; '-' for standard output.")
def command(run: str, json_file: str | None) -> int:
    """Print the report of a run file: finished, interrupted, or still being written."""
    from rich.console import Console

    from asyncli.report.jsonout import to_json
    from asyncli.report.summary import summarise
    from asyncli.report.text import print_report
    from asyncli.store.reader import read_run

    path = Path(run)
    summary = summarise(read_run(path))
    if json_file == "-":
        sys.stdout.write(to_json(summary) + "\n")
    elif json_file is not None:
        try:
            Path(json_file).write_text(to_json(summary) + "\n", encoding="utf-8")
        except OSError as error:
            raise PlanError(f"--json: {json_file} cannot be written ({error.strerror}); name another file") from None
    else:
        print_report(summary, Console(highlight=False), path)
    return 0
