"""Where a command writes a document that it made of runs: on the terminal, or as ``--json [FILE]``
and ``--html FILE``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from asyncli.cli.outputs import deliver, file_writers, printing

if TYPE_CHECKING:
    from asyncli.report.document import Document

Decorated = TypeVar("Decorated", bound=Callable[..., int])

#: Adds the option of a JSON file, which the command gets as ``json_file``.
json_option = click.option(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write JSON instead; '-': to stdout.",
)


def document_options(function: Decorated) -> Decorated:
    """Add the options of the two files, which the command gets as ``json_file`` and
    ``html_file``.
    """
    as_html = click.option(
        "--html",
        "html_file",
        metavar="FILE",
        help="Write it as one offline HTML page; '-' likewise.",
    )
    return json_option(as_html(function))


def document_files(json_file: str | None, html_file: str | None) -> dict[str, str | None]:
    """The files by flag."""
    return {"--json": json_file, "--html": html_file}


def deliver_document(
    files: Mapping[str, str | None], document: Callable[[], Document], json: Callable[[], str]
) -> None:
    """Write the :func:`document_files`, and print the name of the page; without any, print the
    document. ``document`` and ``json`` make what is asked for. Raises
    :class:`~asyncli.model.errors.PlanError` for a file that cannot be written.
    """
    from asyncli.report.html import page
    from asyncli.report.terminal import print_document

    if all(file is None for file in files.values()):
        from rich.console import Console

        with printing():
            print_document(document(), Console(highlight=False))
    texts = {"--json": lambda: json() + "\n", "--html": lambda: page(document())}
    deliver(*file_writers(files, texts))
    html_file = files["--html"]
    if html_file not in (None, "-"):
        with printing():
            print(html_file, file=sys.stderr if files["--json"] == "-" else sys.stdout)
