"""Where the files of ``configs/`` and ``docs/`` are: in the repository, or inside an installed package."""

from __future__ import annotations

from pathlib import Path

from asyncli.errors import HostError


def config_file(name: str) -> Path:
    """The path of ``configs/<name>``, for example ``nginx.conf`` or ``smoke.toml``; :class:`HostError` if missing.

    A wheel carries the folder as ``asyncli/_configs``; an editable install and a checkout have only ``configs/`` beside
    the package.
    """
    return _packaged("configs", name)


def document(name: str) -> Path:
    """The path of ``docs/<name>``, likewise."""
    return _packaged("docs", name)


def _packaged(folder: str, name: str) -> Path:
    package = Path(__file__).resolve().parent.parent
    for path in (package / f"_{folder}" / name, package.parent / folder / name):
        if path.is_file():
            return path
    raise HostError(f"{folder}/{name}: not part of this installation of asyncli; install it again from a complete wheel")
