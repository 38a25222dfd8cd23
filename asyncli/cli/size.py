"""``asyncli size RUN -c N``."""

from __future__ import annotations

from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.cli.document_output import deliver_document, document_files, document_options
from asyncli.cli.options import parsed
from asyncli.cli.outputs import require_files
from asyncli.model.errors import PlanError
from asyncli.model.garbage import uncollected
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
@document_options
@uncollected(at_last=True)
def command(
    run: str, connections: str, memory: str | None, json_file: str | None, html_file: str | None
) -> int:
    """Size a fleet by a run: memory of so many connections on the server, how many hosts, and the
    first known limits on each.

    By the parts that the run measured, also of one that is invalid for other reasons. The exit
    status is 0 whatever is known.
    """
    from asyncli.app.results import read_results
    from asyncli.report.size_report import size_document, to_json

    wanted = parsed("--connections", parse_count, connections)
    host_bytes = None
    if memory is not None:
        host_bytes = _memory(memory)
    path = Path(run)
    files = document_files(json_file, html_file)
    require_files(files, path)
    results = read_results(path, for_report=True)
    if not any(results.records.held.values):
        raise PlanError(
            f"RUN: {run} held no connections, so nothing was measured; name a run that held some"
        )
    sizing = results.sized(wanted, host_bytes)
    deliver_document(
        files,
        lambda: size_document(sizing, results.summary, run),
        lambda: to_json(sizing, results.summary, run),
    )
    return 0


def _memory(text: str) -> float:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise PlanError(f"--memory: {error}") from None
