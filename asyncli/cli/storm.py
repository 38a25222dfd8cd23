"""``asyncli storm RUN``."""

from __future__ import annotations

from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.cli.document_output import deliver_document, document_files, document_options
from asyncli.cli.options import parsed
from asyncli.cli.outputs import require_files
from asyncli.model.garbage import uncollected
from asyncli.model.planned_events import reconnect_of
from asyncli.model.units import parse_count

_POLICIES = ("now", "jitter:10s", "backoff:1s..60s")


@click.command(name="storm", cls=Command)
@click.argument("run", metavar="RUN.db")
@click.option(
    "--reconnect",
    "policies",
    metavar="HOW",
    multiple=True,
    help="How clients come back: now, jitter:10s, backoff:1s..60s, fixed:3s; repeatable.  "
    "[default: the first three]",
)
@click.option(
    "-c", "--connections", metavar="N", help="Connections of the storm.  [default: the run's]"
)
@click.option(
    "--backlog",
    metavar="N",
    help="Backlog of the server's listening socket.  [default: as the run has it]",
)
@document_options
@uncollected(at_last=True)
def command(
    run: str,
    policies: tuple[str, ...],
    connections: str | None,
    backlog: str | None,
    json_file: str | None,
    html_file: str | None,
) -> int:
    """Predict a storm by a run: when clients that were all ended at once are back, for each way to
    come back, and the least jitter at which fewer than 0.1 % of the connects fail.

    By the storms that the run had, or by its ramp. The exit status is 0 whatever is predicted.
    """
    from asyncli.app.predicted_storm import predict_storm
    from asyncli.report.storm_report import storm_document, to_json
    from asyncli.store.reader import read_run

    wanted = [parsed("--reconnect", reconnect_of, how) for how in policies or _POLICIES]
    count = None
    if connections is not None:
        count = parsed("--connections", parse_count, connections)
    room = None
    if backlog is not None:
        room = parsed("--backlog", parse_count, backlog)
    path = Path(run)
    files = document_files(json_file, html_file)
    require_files(files, path)
    records = read_run(path, for_report=True)
    answer = predict_storm(records, run, wanted, count, room)
    deliver_document(
        files,
        lambda: storm_document(answer, records, run),
        lambda: to_json(answer, records, run),
    )
    return 0
