"""Builds C programs at their first use with the system's compiler."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from asyncli.model.errors import HostError

FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread")
_NEED = "apt-get install gcc libc6-dev"
_BUILD_S = 120.0


@lru_cache
def build(source: Path) -> Path:
    """Build a C source once (half a second); returns the program's path, in a temporary folder of
    this process.

    The compiler is $CC (default ``cc``). Raises :class:`HostError` without one, and with its first
    error if it fails.
    """
    compiler = _compiler()
    try:
        folder = Path(tempfile.mkdtemp(prefix="asyncli-build-"))
    except OSError as error:
        raise HostError(f"no folder to build a program in ({error}); set TMPDIR to one") from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / source.stem
    result = _run([*compiler, *FLAGS, "-o", str(program), source.name], source.parent)
    if result.returncode or not program.is_file():
        lines = [
            line.strip()
            for line in (result.stderr + result.stdout).decode(errors="replace").splitlines()
        ]
        first = next(
            (line for line in lines if "error" in line.lower()), f"exit status {result.returncode}"
        )
        raise HostError(
            f"{compiler[0]} cannot build {source.name}: {first}; install a working compiler and "
            f"the C library's headers ({_NEED})"
        )
    if not os.access(program, os.X_OK):  # it knows of noexec mounts
        raise HostError(
            f"no program can be run from {folder}; set TMPDIR to a folder without noexec"
        )
    return program


def _compiler() -> list[str]:
    """The compiler's resolved path and the flags that $CC gives."""
    given = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(given) or ["cc"]
    except ValueError:
        raise HostError(
            f"CC={given!r} is no command; set it to a C compiler, or unset it"
        ) from None
    path = shutil.which(words[0])
    if path is None:
        if given:
            raise HostError(
                f"no C compiler {words[0]} on this host (CC names it); unset CC or install one: "
                f"{_NEED}"
            )
        raise HostError(f"no C compiler on this host; install one: {_NEED}")
    return [path, *words[1:]]


def _run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    # Messages in English, so that "error" is found.
    env = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BUILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostError(
            f"{argv[0]} has not ended after {_BUILD_S:.0f} s; look at the host's load, or set CC"
        ) from None
    except OSError as error:
        raise HostError(
            f"{argv[0]} cannot be run ({error.strerror}); set CC to a C compiler ({_NEED})"
        ) from None
