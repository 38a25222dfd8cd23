"""``asyncli report RUN``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asyncli.cli.command import Command
from asyncli.cli.document_output import json_option
from asyncli.cli.options import summary_option
from asyncli.model.garbage import uncollected

if TYPE_CHECKING:
    from asyncli.app.results import Results


@click.command(name="report", cls=Command)
@click.argument("run", metavar="RUN.db")
@json_option
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    help="Write the report as one offline HTML page; '-' likewise.",
)
@click.option(
    "--junit",
    "junit_file",
    metavar="FILE",
    help="Write the verdict and the limits as JUnit XML; '-' likewise.",
)
@click.option(
    "--plots",
    "plots_folder",
    metavar="DIR",
    help="Write each figure as PNG and SVG into this folder.",
)
@click.option(
    "--csv", "csv_folder", metavar="DIR", help="Write the run's tables as CSV into this folder."
)
@summary_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Print the full report: rules, notes, every limit."
)
@uncollected(at_last=True)
def command(
    run: str,
    json_file: str | None,
    html_file: str | None,
    junit_file: str | None,
    plots_folder: str | None,
    csv_folder: str | None,
    summary: str,
    verbose: bool,
) -> int:
    """Print the report of a run file: finished, interrupted, or still being written.

    With a flag that names a file or a folder, write there instead and print the names of the files.
    """
    from asyncli.cli.outputs import require_files, require_folder

    path = Path(run)
    files = {"--json": json_file, "--junit": junit_file, "--html": html_file}
    require_files(files, path)
    for flag, folder in (("--plots", plots_folder), ("--csv", csv_folder)):
        if folder is not None:
            require_folder(flag, folder)
    # Tables have every metric.
    results = _read(path, for_report=csv_folder is None)
    if any((*files.values(), plots_folder, csv_folder)):
        _write(results, files, plots_folder, csv_folder)
    else:
        _print(results, verbose, summary)
    return 0


def _read(path: Path, *, for_report: bool) -> Results:
    from asyncli.app.results import read_results
    from asyncli.store.lock import is_locked

    # Before it is read: a run that ends meanwhile is complete.
    is_written = is_locked(path)
    results = read_results(path, for_report=for_report)
    if not results.records.complete:
        results.records.written = is_written
    return results


def _write(
    results: Results,
    files: Mapping[str, str | None],
    plots_folder: str | None,
    csv_folder: str | None,
) -> None:
    """Write what was asked for, and print the names of the files."""
    from asyncli.cli.outputs import deliver, printing, write_folder, written_reports

    written = [Path(file) for file in files.values() if file not in (None, "-")]

    def write_tables() -> None:
        if csv_folder is None:
            return
        from asyncli.report.csvout import tables, to_csv

        of_run = tables(results.records, results.summary, results.analyses)
        contents = ((f"{name}.csv", to_csv(table).encode()) for name, table in of_run.items())
        names = [f"{name}.csv" for name in of_run]
        written.extend(write_folder("--csv", csv_folder, contents, names, results.records.id))

    def write_plots() -> None:
        if plots_folder is None:
            return
        names = []
        for picture in results.pictures:
            names += [f"{picture.name}.png", f"{picture.name}.svg"]
        run_id = results.records.id
        plots = write_folder("--plots", plots_folder, _plots(results), names, run_id)
        written.extend(plots)
        if not plots:
            print(
                "asyncli: --plots: this run has no figures: nothing was recorded over time",
                file=sys.stderr,
            )

    deliver(*written_reports(files, results), write_tables, write_plots)
    # If a file goes to standard output, the names go to standard error.
    with printing():
        for file in written:
            print(file, file=sys.stderr if "-" in files.values() else sys.stdout)


def _print(results: Results, verbose: bool, summary: str = "text") -> None:
    from rich.console import Console

    from asyncli.cli.outputs import printing
    from asyncli.report.run_report import print_report, report_markdown

    with printing():
        if summary == "markdown":
            print(report_markdown(results.summary, results.path))
            return
        print_report(results.summary, Console(highlight=False), results.path, verbose=verbose)


def _plots(results: Results) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each figure with data, as PNG and as SVG."""
    from asyncli.cli.outputs import MARK
    from asyncli.report.answer import server_label
    from asyncli.report.figures.drawing import NothingToDraw, Style, file_png, file_svg
    from asyncli.report.format import count_or_unknown

    run = results.records
    held = count_or_unknown(results.summary.connections.held)
    server = server_label(results.summary)
    note = f"{MARK}{run.id} of {run.started}: {held} connections on {server}"
    for picture in results.pictures:
        try:
            figure = picture.draw(Style(title=picture.title, note=note))
        except NothingToDraw:
            continue
        # write_folder() recognises the file by the run's id.
        description = f"{MARK}{run.id}. {picture.title}. {picture.alt()}"
        yield f"{picture.name}.png", file_png(figure, description)
        yield f"{picture.name}.svg", file_svg(figure, picture.name, description).encode()
