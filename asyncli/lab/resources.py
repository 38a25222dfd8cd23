"""Finds the files of ``configs/`` and ``docs/``, in the repository or in an installed package."""

from __future__ import annotations

from pathlib import Path

from asyncli.model.errors import HostError


def config_file(name: str) -> Path:
    """The path of ``configs/<name>``, for example ``nginx.conf`` or ``smoke.toml``. Raises
    :class:`HostError` if it is missing.

    A wheel has the folder as ``asyncli/_configs``; an editable install and a checkout have
    ``configs/`` beside the package.
    """
    return _packaged("configs", name)


def document(name: str) -> Path:
    """The path of ``docs/<name>``; see :func:`config_file`."""
    return _packaged("docs", name)


def _packaged(folder: str, name: str) -> Path:
    package = Path(__file__).resolve().parent.parent
    for path in (package / f"_{folder}" / name, package.parent / folder / name):
        if path.is_file():
            return path
    raise HostError(
        f"{folder}/{name}: not part of this installation of asyncli; install it again from a "
        "complete wheel"
    )
