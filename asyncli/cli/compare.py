"""``asyncli compare A B...``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.cli.outputs import deliver, file_writers, printing, require_files, same_file
from asyncli.model.errors import PlanError


@click.command(name="compare", cls=Command)
@click.argument("runs", nargs=-1, metavar="A.db B.db [C.db]...")
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
def command(runs: tuple[str, ...], json_file: str | None, html_file: str | None) -> int:
    """Report the differences between runs, with 95 % intervals, and which of them are real.

    Each run is compared with the first: two builds of a server, two configurations. The exit status
    is 0 whatever differs.
    """
    from asyncli.app.results import compare_results
    from asyncli.report.comparison_report import comparison_document, require_comparable, to_json
    from asyncli.report.html import page
    from asyncli.report.terminal import print_document

    paths = [Path(run) for run in runs]
    files = {"--json": json_file, "--html": html_file}
    require_comparable("RUN", len(paths))
    for place, path in enumerate(paths):
        if any(same_file(path, other) for other in paths[:place]):
            raise PlanError(f"RUN: {path} is named twice; compare two different runs")
        require_files(files, path)
    comparison = compare_results((path, None) for path in paths)
    if json_file is None and html_file is None:
        from rich.console import Console

        with printing():
            print_document(comparison_document(comparison), Console(highlight=False))

    def json() -> str:
        return to_json(comparison) + "\n"

    def html() -> str:
        return page(comparison_document(comparison))

    deliver(*file_writers(files, {"--json": json, "--html": html}))
    if html_file not in (None, "-"):
        with printing():
            print(html_file, file=sys.stderr if json_file == "-" else sys.stdout)
    return 0
