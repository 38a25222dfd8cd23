"""``asyncli size RUN -c N``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.cli.options import parsed
from asyncli.cli.outputs import deliver, file_writers, printing, require_files
from asyncli.model.errors import PlanError
from asyncli.model.units import parse_count, parse_memory


@click.command(name="size", cls=Command)
@click.argument("run", metavar="RUN.db")
@click.option(
    "-c", "--connections", metavar="N", required=True, help="Connections to size for: 1M, 250k."
)
@click.option(
    "--memory",
    metavar="BYTES",
    help="Memory of each host, such as 64G or 512MiB. [default: of the run's server host]",
)
@click.option(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write JSON instead; '-': to stdout.",
)
@click.option(
    "--html", "html_file", metavar="FILE", help="Write it as one offline HTML page; '-' likewise."
)
def command(
    run: str, connections: str, memory: str | None, json_file: str | None, html_file: str | None
) -> int:
    """Size a fleet by a run: memory of so many connections on the server, how many hosts, and the
    first known limits on each.

    By the parts that the run measured, also of one that is invalid for other reasons. The exit
    status is 0 whatever is known.
    """
    from asyncli.app.results import read_results
    from asyncli.report.html import page
    from asyncli.report.size_report import size_document, to_json
    from asyncli.report.terminal import print_document

    wanted = parsed("--connections", parse_count, connections)
    host_bytes = None
    if memory is not None:
        host_bytes = _memory(memory)
    path = Path(run)
    files = {"--json": json_file, "--html": html_file}
    require_files(files, path)
    results = read_results(path)
    if not any(results.records.held.values):
        raise PlanError(
            f"RUN: {run} held no connections, so nothing was measured; name a run that held some"
        )
    sizing = results.sized(wanted, host_bytes)
    document = size_document(sizing, results.summary, run)
    if json_file is None and html_file is None:
        from rich.console import Console

        with printing():
            print_document(document, Console(highlight=False))

    def json() -> str:
        return to_json(sizing, results.summary, run) + "\n"

    def html() -> str:
        return page(document)

    deliver(*file_writers(files, {"--json": json, "--html": html}))
    if html_file not in (None, "-"):
        with printing():
            print(html_file, file=sys.stderr if json_file == "-" else sys.stdout)
    return 0


def _memory(text: str) -> float:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise PlanError(f"--memory: {error}") from None
