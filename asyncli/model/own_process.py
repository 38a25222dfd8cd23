"""How asyncli starts a module of its own as another process."""

from __future__ import annotations

import os
import sys

from asyncli.model.secret_variables import for_child


def command_of(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module``.

    -P: a file in the user's folder must not shadow a module.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def environment_of() -> dict[str, str]:
    """The environment of such a process: without secrets, and with this process's path, so that it
    can import what this one can (a notebook's path).
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**for_child(), "PYTHONPATH": path}
