"""Where the lab keeps the programs that it builds, and how one is built there."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncli.model.errors import HostError

#: The longest that a build may take (s). Go: 40 s of CPU if its standard library is not built yet,
#: then 10 s for each program; Maven: 10 s, of which half is to download 50 MB.
BUILD_S = 300.0


def cache_folder() -> Path:
    """The user's cache of asyncli."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "asyncli")


@contextmanager
def building(name: str, tool: str, target: Path, settings: str) -> Iterator[Path]:
    """The path at which ``tool`` is to make the file or folder ``target`` of the program ``name``;
    it is moved there at the end. ``settings``: what to look at if that takes too long.

    Raises :class:`HostError` for a build of more than :data:`BUILD_S`, or without a folder.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another run may look for it, or have built it meanwhile.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, name)
            yield made
            if not target.exists():
                made.rename(target)
    except subprocess.TimeoutExpired:
        raise HostError(
            f"{name}: {tool} has not built it after {BUILD_S:.0f} s; look at the host's load, or "
            f"at {settings}"
        ) from None
    except OSError as error:
        raise HostError(
            f"{name}: no folder to build it in ({error}); set XDG_CACHE_HOME to one that can be "
            "written"
        ) from None
