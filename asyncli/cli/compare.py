"""``asyncli compare A B...``."""

from __future__ import annotations

from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.cli.document_output import deliver_document, document_files, document_options
from asyncli.cli.outputs import require_files, same_file
from asyncli.model.errors import PlanError


@click.command(name="compare", cls=Command)
@click.argument("runs", nargs=-1, metavar="A.db B.db [C.db]...")
@document_options
def command(runs: tuple[str, ...], json_file: str | None, html_file: str | None) -> int:
    """Report the differences between runs, with 95 % intervals, and which of them are real.

    Each run is compared with the first: two builds of a server, two configurations. The exit status
    is 0 whatever differs.
    """
    from asyncli.app.results import compare_results
    from asyncli.report.comparison_report import comparison_document, require_comparable, to_json

    paths = [Path(run) for run in runs]
    files = document_files(json_file, html_file)
    require_comparable("RUN", len(paths))
    for place, path in enumerate(paths):
        if any(same_file(path, other) for other in paths[:place]):
            raise PlanError(f"RUN: {path} is named twice; compare two different runs")
        require_files(files, path)
    comparison = compare_results((path, None) for path in paths)
    deliver_document(
        files,
        lambda: comparison_document(comparison),
        lambda: to_json(comparison),
    )
    return 0
