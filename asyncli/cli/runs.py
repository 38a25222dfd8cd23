"""``asyncli runs [FOLDER]``."""

from __future__ import annotations

import os
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asyncli.cli.command import Command
from asyncli.cli.document_output import json_option
from asyncli.cli.outputs import deliver, file_writers, printing, require_files
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.garbage import uncollected

if TYPE_CHECKING:
    from asyncli.report.listing import Listed


@click.command(name="runs", cls=Command)
@click.argument("folder", default=".", metavar="[FOLDER]")
@click.option("-r", "--recursive", is_flag=True, help="Search subfolders too.")
@json_option
def command(folder: str, recursive: bool, json_file: str | None) -> int:
    """List the run files of a folder (default: the current one), newest first, then broken files
    with the reason.
    """
    root = Path(folder)
    if not os.path.exists(root):
        raise PlanError(f"FOLDER: {folder} does not exist; name a folder of run files")
    if not os.path.isdir(root):
        raise PlanError(
            f"FOLDER: {folder} is not a folder; 'asyncli report {folder}' shows the run in it"
        )
    files = {"--json": json_file}
    require_files(files, root)

    from asyncli.report.listing import Listing, Unread, newest_first, print_listing, to_json
    from asyncli.store.run_folder import run_files

    runs: list[Listed] = []
    unread: list[Unread] = []
    now = time.time()
    for path, error in run_files(root, recursive=recursive):
        name = str(path.relative_to(root))
        try:
            if error is not None:
                raise error
            runs.append(_listed(path, name, now))
        except StoreError as broken:
            why = str(broken)
            # Some errors lack the path.
            if str(path) not in why:
                why = f"{path}: {why}"
            unread.append(Unread(name, why))
        except OSError as closed:
            why = f"{path}: cannot be read ({closed.strerror}); see its permissions"
            unread.append(Unread(name, why))
    listing = Listing(folder, newest_first(runs), unread)
    deliver(*file_writers(files, {"--json": lambda: to_json(listing) + "\n"}))
    if json_file is None:
        from rich.console import Console

        with printing():
            print_listing(listing, Console(highlight=False))
    return 0


@uncollected()
def _listed(path: Path, name: str, now_s: float) -> Listed:
    """The run in ``path`` as in the list, ``now_s`` seconds since 1970.

    Raises :class:`StoreError` as ``read_run`` does, and OSError.
    """
    from asyncli.report.listing import READ_WHOLE, listed
    from asyncli.store.follow import last_written_s, size_bytes
    from asyncli.store.lock import is_locked
    from asyncli.store.reader import read_run
    from asyncli.store.run_index import read_index_entry

    size = size_bytes(path)
    # A locked file is live, even if its process hangs or its disk is full.
    changed_s = 0.0 if is_locked(path) else now_s - last_written_s(path)
    run = read_index_entry(path, READ_WHOLE)
    age_s = now_s - datetime.fromisoformat(run.started).timestamp()
    whole = partial(read_run, path, for_report=True)
    return listed(run, name, size, changed_s=changed_s, age_s=age_s, whole=whole)
