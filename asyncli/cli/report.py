"""``asyncli report RUN``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from asyncli.report.document import Picture
    from asyncli.report.summary import Summary
    from asyncli.store.reader import Run


@click.command(name="report")
@click.argument("run", metavar="RUN.db")
@click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON instead; '-' for standard output.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page that opens offline; '-' likewise.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write verdict and limits as JUnit XML; '-' likewise.")
@click.option("--plots", "plots_folder", metavar="DIR", help="Write each figure as PNG and SVG into this folder.")
@click.option("--csv", "csv_folder", metavar="DIR", help="Write the run's tables as CSV into this folder.")
@click.option("-v", "--verbose", is_flag=True, help="Print all of it: rules, notes, every limit.")
def command(
    run: str,
    json_file: str | None,
    html_file: str | None,
    junit_file: str | None,
    plots_folder: str | None,
    csv_folder: str | None,
    verbose: bool,
) -> int:
    """Print the report of a run file: finished, interrupted, or still being written.

    With a flag that names a file or folder it is written there instead, and the names of the files are printed.
    """
    from asyncli.cli.places import printing, require_files, require_folder, write_file, write_folder
    from asyncli.report.analyses import analyse
    from asyncli.report.summary import summarise
    from asyncli.store.claim import is_claimed
    from asyncli.store.reader import read_run

    path = Path(run)
    require_files({"--json": json_file, "--html": html_file, "--junit": junit_file}, path)
    for flag, folder in (("--plots", plots_folder), ("--csv", csv_folder)):
        if folder is not None:
            require_folder(flag, folder)
    read = read_run(path)
    # A night is half a million objects that stay to the end: the collector need not look through them again and again.
    gc.freeze()
    analyses = analyse(read)
    summary = summarise(read, analyses)
    if json_file is html_file is junit_file is plots_folder is csv_folder is None:
        from rich.console import Console

        from asyncli.report.run_report import print_report

        with printing():
            print_report(summary, Console(highlight=False), path, verbose=verbose)
            if not read.complete:
                goes_on = f"It goes on: a process writes it. 'asyncli watch {path}' looks on."
                print(goes_on if is_claimed(path) else "No process writes it: it was killed, or came to no end.")
        return 0
    if json_file is not None:
        from asyncli.report.jsonout import to_json

        write_file("--json", json_file, to_json(summary) + "\n")
    written = [] if json_file in (None, "-") else [Path(str(json_file))]
    if junit_file is not None:
        from asyncli.report.junit import to_junit

        write_file("--junit", junit_file, to_junit(summary))
        written += [] if junit_file == "-" else [Path(junit_file)]
    drawn = []
    if html_file is not None or plots_folder is not None:
        from asyncli.report.figures.run import pictures

        drawn = pictures(read, summary, analyses)
    if html_file is not None:
        from asyncli.report.run_report import render

        write_file("--html", html_file, render(read, summary, analyses, drawn))
        written += [] if html_file == "-" else [Path(html_file)]
    if csv_folder is not None:
        from asyncli.report.csvout import tables, to_csv

        found = tables(read, summary, analyses)
        contents = ((f"{name}.csv", to_csv(table).encode()) for name, table in found.items())
        written += write_folder("--csv", csv_folder, contents, [f"{name}.csv" for name in found], read.id)
    if plots_folder is not None:
        names = [f"{one.name}.{kind}" for one in drawn for kind in ("png", "svg")]
        plots = write_folder("--plots", plots_folder, _plots(drawn, read, summary), names, read.id)
        written += plots
        if not plots:
            print("asyncli: --plots: no figure can be drawn of this run: nothing was recorded over time", file=sys.stderr)
    # What was written is said where it does not end up in the JSON or the page.
    says = sys.stderr if "-" in (json_file, html_file, junit_file) else sys.stdout
    with printing():
        for one in written:
            print(one, file=says)
    return 0


def _plots(drawn: Iterable[Picture], run: Run, summary: Summary) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each figure that there is data for, as PNG and as SVG."""
    from asyncli.cli.places import MARK
    from asyncli.report.answer import server_label
    from asyncli.report.figures.drawing import NothingToDraw, Style
    from asyncli.report.figures.svg import file_png, file_svg

    note = f"{MARK}{run.id} of {run.started}: {summary.connections.held:,} connections on {server_label(summary)}"
    for one in drawn:
        try:
            figure = one.draw(Style(title=one.title, note=note))
        except NothingToDraw:
            continue
        # An id comes from a run file, and a note may hold any server's name: what is found again is the id alone.
        said = f"{MARK}{run.id}. {one.title}. {one.alt()}"
        yield f"{one.name}.png", file_png(figure, said)
        yield f"{one.name}.svg", file_svg(figure, one.name, said).encode()
