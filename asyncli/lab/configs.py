"""Where the files of ``configs/`` are: in the repository, or inside an installed package."""

from __future__ import annotations

from pathlib import Path

from asyncli.errors import HostError


def config_file(name: str) -> Path:
    """The path of ``configs/<name>``, for example ``nginx.conf`` or ``smoke.toml``; :class:`HostError` if missing.

    A wheel carries the folder as ``asyncli/_configs``; an editable install and a checkout have only ``configs/`` beside
    the package.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_configs", package.parent / "configs"):
        path = folder / name
        if path.is_file():
            return path
    raise HostError(f"configs/{name}: not part of this installation of asyncli; install it again from a complete wheel")
