"""``asyncli compare A B...``."""

from __future__ import annotations

import string
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from asyncli.cli.places import require_files, write_file
from asyncli.errors import PlanError, StoreError


@click.command(name="compare", no_args_is_help=True)
@click.argument("runs", nargs=-1, metavar="A.db B.db [C.db]...")
@click.option("--json", "json_file", metavar="FILE", help="Write the comparison as JSON instead; '-' for standard output.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page that opens offline; '-' likewise.")
def command(runs: tuple[str, ...], json_file: str | None, html_file: str | None) -> int:
    """Say what differs between runs, with 95 % intervals, and which differences are real.

    The first run is what the others are compared with: two builds of a server, two configurations. Exit status 0
    whatever differs. With --json or --html it is written there instead.
    """
    paths = [Path(run) for run in runs]
    _require_different(paths)
    for path in paths:
        require_files({"--json": json_file, "--html": html_file}, path)

    from asyncli.analysis.compare import Measured, compare, hindrance, measure
    from asyncli.report.comparison import print_comparison, to_json
    from asyncli.store.reader import read_run

    measured: list[Measured] = []
    for name, path in zip(string.ascii_uppercase, paths, strict=False):
        # One run in memory at a time: a night at a sample a second is some hundred megabytes.
        run = read_run(path)
        why = hindrance(str(path), run)
        if why is not None:
            raise StoreError(why)
        twin = next((one for one in measured if one.id == run.id), None)
        if twin is not None:
            raise StoreError(f"{path}: is a copy of {twin.path} (run {run.id}); compare two different runs")
        measured.append(measure(name, str(path), run))
    comparison = compare(measured)
    if json_file is None and html_file is None:
        from rich.console import Console

        print_comparison(comparison, Console(highlight=False))
    if json_file is not None:
        write_file("--json", json_file, to_json(comparison) + "\n")
    if html_file is not None:
        from asyncli.report.comparison_page import page

        write_file("--html", html_file, page(comparison))
        if html_file != "-":
            print(html_file, file=sys.stderr if json_file == "-" else sys.stdout)
    return 0


def _require_different(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise PlanError("RUN: one run alone cannot be compared; name two run files or more")
    if len(paths) > len(string.ascii_uppercase):
        raise PlanError(f"RUN: {len(paths)} runs are more than have letters; compare at most {len(string.ascii_uppercase)}")
    for place, path in enumerate(paths):
        for other in paths[:place]:
            if path == other or (path.exists() and other.exists() and path.samefile(other)):
                raise PlanError(f"RUN: {path} is named twice; compare two different runs")
