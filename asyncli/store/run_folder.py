"""Finds the run files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from asyncli.store.reader import is_sqlite


def run_files(root: Path, *, recursive: bool = False) -> Iterator[tuple[Path, OSError | None]]:
    """SQLite files and files named ``*.db``, in name order, each with the error that hides it, if
    any; ``root`` itself with the error if it cannot be listed.

    Hidden folders and symbolic links to folders, which could form a cycle, are skipped.
    """
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError as error:
        yield root, error
        return
    folders = []
    for entry in entries:
        path = root / entry.name
        has_name_of_run = entry.name.endswith(".db")
        try:
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            # Only regular files: opening a pipe would block.
            elif entry.is_file() and (has_name_of_run or is_sqlite(path)):
                yield path, None
        except OSError as error:
            if has_name_of_run:
                yield path, error
    if not recursive:
        return
    for folder in folders:
        if not folder.name.startswith("."):
            yield from run_files(folder, recursive=True)


def run_file_in(folder: Path, name: str) -> Path | None:
    """The file that :func:`run_files` finds as ``name`` in ``folder``; None for any other name, so
    that no name leads out of the folder.
    """
    if not name or "/" in name or "\0" in name:
        return None
    path = folder / name
    try:
        if path.is_file() and (name.endswith(".db") or is_sqlite(path)):
            return path
    except OSError:
        return None
    return None
