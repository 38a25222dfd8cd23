"""The hidden file beside a run file, ``.RUN.db.secrets``: what a resumed run needs and the run file
does not keep.

Only its owner can read it, it belongs to one run with one plan, and the end of the run deletes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncli.model.errors import StoreError
from asyncli.model.private_values import PrivateValues, private_values, recorded_document

_MOST_BYTES = 1 << 20
# A hold until a time of day gets its length when it begins.
_CHANGES = ("hold_s",)


def private_path(run_file: Path) -> Path:
    """Hidden, so that a pattern like ``run.db*``, and GitHub's upload-artifact, leave it out."""
    return run_file.with_name(f".{run_file.name}.secrets")


def write_private(run_file: Path, run_id: str, plan_document: Mapping[str, Any]) -> None:
    """Keep the private values of a plan, if it has any. Where that fails, --resume asks for
    them.
    """
    values = private_values(plan_document)
    if not values:
        return
    content = msgspec.json.encode(PrivateValues(run_id, _digest(plan_document), values))
    with contextlib.suppress(OSError):
        delete_private(run_file)
        # A new file, so that neither a link nor the mode of an old one counts.
        descriptor = os.open(
            private_path(run_file), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "wb") as file:
            file.write(content)


def delete_private(run_file: Path) -> None:
    """Delete the file, if there is one."""
    with contextlib.suppress(OSError):
        private_path(run_file).unlink()


def read_private(run_file: Path, run_id: str, plan_document: Mapping[str, Any]) -> dict[str, Any]:
    """The private values of the run with this recorded plan; {}: none are kept here. Raises
    :class:`StoreError` for a file that others could have written, or that is damaged.
    """
    path = private_path(run_file)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            raise _unusable(path, "is not a file of this user alone (mode 600)")
        content = file.read(_MOST_BYTES + 1)
    try:
        kept = msgspec.json.decode(content, type=PrivateValues)
    except (ValueError, RecursionError):
        raise _unusable(path, "is damaged") from None
    if (kept.run, kept.plan) != (run_id, _digest(plan_document)):
        raise _unusable(path, "is of another run or plan")
    return kept.values


def _digest(plan_document: Mapping[str, Any]) -> str:
    """Binds the values to the server that they were given for: a run file that someone changed gets
    none of them.
    """
    document = {
        field: value
        for field, value in recorded_document(plan_document).items()
        if field not in _CHANGES
    }
    return hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()


def _unusable(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path}: {why}; delete it, and give --resume the headers, texts and files of the run again"
    )
