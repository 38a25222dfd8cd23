"""``--json FILE``: where it may go, and writing it."""

from __future__ import annotations

import os
from pathlib import Path

from asyncli.errors import PlanError
from asyncli.report.jsonout import to_json
from asyncli.report.summary import Summary


def require_json_place(json_file: str, run_file: Path) -> None:
    """Raise :class:`PlanError` for a ``--json`` that could not be written, while there is still time to say so."""
    if json_file == "-":
        return
    path = Path(json_file)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        what = "is a folder" if path.is_dir() else "lies in a folder that does not exist or cannot be written"
        raise PlanError(f"--json: {json_file} {what}; name another file")
    if path.absolute() == run_file.absolute() or (path.exists() and run_file.exists() and path.samefile(run_file)):
        raise PlanError(f"--json: {json_file} is the run file itself; name another file")


def write_json(summary: Summary, json_file: str, mend: str) -> None:
    """The summary as JSON into a file. Raises :class:`PlanError` with ``mend`` where it cannot be written."""
    try:
        Path(json_file).write_text(to_json(summary) + "\n", encoding="utf-8")
    except OSError as error:
        raise PlanError(f"--json: {json_file} cannot be written ({error.strerror}); {mend}") from None
