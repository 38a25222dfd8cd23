"""``asyncli report RUN``."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(name="report", no_args_is_help=True)
@click.argument("run", metavar="RUN.db")
@click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON instead; '-' for standard output.")
def command(run: str, json_file: str | None) -> int:
    """Print the report of a run file: finished, interrupted, or still being written."""
    from rich.console import Console

    from asyncli.cli.jsonfile import require_json_place, write_json
    from asyncli.report.jsonout import to_json
    from asyncli.report.summary import summarise
    from asyncli.report.text import print_report
    from asyncli.store.reader import read_run

    path = Path(run)
    if json_file is not None:
        require_json_place(json_file, path)
    summary = summarise(read_run(path))
    if json_file == "-":
        sys.stdout.write(to_json(summary) + "\n")
    elif json_file is not None:
        write_json(summary, json_file, "name another file")
    else:
        print_report(summary, Console(highlight=False), path)
    return 0
