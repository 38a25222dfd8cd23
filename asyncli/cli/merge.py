"""``asyncli merge A.db B.db...``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from asyncli.cli.places import deliver, printing, require_files, same_file, write_file
from asyncli.errors import PlanError


@click.command(name="merge", no_args_is_help=True)
@click.argument("runs", nargs=-1, metavar="A.db B.db [C.db]...")
@click.option("--out", metavar="RUN.db", help="The run file to write; never overwritten.  [default: asyncli-<time>.db here]")
@click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON as well; '-' for standard output.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report as one HTML page that opens offline; '-' likewise.")
@click.option("--quiet", is_flag=True, help="Print errors and the one-line verdict, nothing else.")
def command(runs: tuple[str, ...], out: str | None, json_file: str | None, html_file: str | None, quiet: bool) -> int:
    """Make one run of the runs of several clients on one server, on one clock.

    Connections add up, seconds are laid over each other, and the server's side is counted once. The file is as any other: report,
    compare and watch take it. Exit status 0 whatever the verdict.
    """
    from asyncli.session import free_name

    paths = [Path(run) for run in runs]
    if len(paths) < 2:
        raise PlanError("RUN: one run alone is merged already; name two run files or more")
    for place, path in enumerate(paths):
        if any(same_file(path, other) for other in paths[:place]):
            raise PlanError(f"RUN: {path} is named twice; name each run once")
    path = Path(out) if out is not None else free_name()
    for one in (*paths, path):
        require_files({"--json": json_file, "--html": html_file}, one)
    from rich.console import Console

    from asyncli.merge import merge_files
    from asyncli.report.analyses import analyse
    from asyncli.report.jsonout import to_json
    from asyncli.report.summary import summarise
    from asyncli.report.text import one_line, print_report
    from asyncli.store.reader import read_run

    merge_files(paths, path)
    run = read_run(path)
    analyses = analyse(run)
    summary = summarise(run, analyses)
    piped = "-" in (json_file, html_file)

    def tell() -> None:
        with printing():
            if quiet:
                print(one_line(summary), file=sys.stderr if piped else sys.stdout)
            else:
                print_report(summary, Console(stderr=piped, highlight=False), path)

    def keep() -> None:
        if json_file is not None:
            write_file("--json", json_file, to_json(summary) + "\n", f"'asyncli report {path} --json FILE' writes it elsewhere")

    def draw() -> None:
        if html_file is not None:
            from asyncli.report.page import render

            page = render(run, summary, analyses)
            write_file("--html", html_file, page, f"'asyncli report {path} --html FILE' writes it elsewhere")

    deliver(tell, keep, draw)
    return 0
