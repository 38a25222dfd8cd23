"""Programs of ours in C, built at first use by the system's compiler and kept for the next."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from asyncli.errors import HostError

#: No -march: the program may lie in a home folder that several machines share.
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread")
_NEED = "apt-get install gcc libc6-dev"
_BUILD_S = 120.0


def build(source: Path) -> Path:
    """The program of a C source, an absolute path: from the user's cache, or compiled into it (about half a second).

    The compiler is $CC (``cc``); the cache $XDG_CACHE_HOME/asyncli (``~/.cache/asyncli``), or a temporary folder that
    goes with this process where that cannot be written or run from. A changed source, flag or compiler builds anew.
    Raises :class:`HostError` without a compiler, and with its first complaint where it fails.
    """
    compiler = _compiler()
    try:
        parts = (source.read_bytes(), " ".join((*FLAGS, *compiler)).encode(), os.uname().machine.encode())
    except OSError:
        raise HostError(
            f"{source.name}: not part of this installation of asyncli; install it again from a complete wheel"
        ) from None
    identity = _run([*compiler, "--version"], Path("/")).stdout
    key = hashlib.sha256(b"\0".join((*parts, identity))).hexdigest()[:32]
    name = f"{source.stem}-{key}"
    for find in (_cache_folder, _temporary_folder):
        if (folder := find()) is not None:
            program = folder / name
            if not _runs(program):
                # Read-only, full, or a file where the folder should be.
                with contextlib.suppress(OSError):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    _compile(compiler, source, program)
            if _runs(program):
                return program
    raise HostError(f"no program can be built in or run from {folder}; set TMPDIR or XDG_CACHE_HOME to a folder without noexec")


def _cache_folder() -> Path | None:
    """Where built programs are kept (XDG Base Directory Specification: a relative path counts as none); None without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "asyncli"
    try:
        return Path.home() / ".cache" / "asyncli"
    except RuntimeError:
        return None


@lru_cache(maxsize=1)
def _temporary_folder() -> Path:
    """A folder for this process's life."""
    try:
        folder = tempfile.mkdtemp(prefix="asyncli-build-")
    except OSError as error:
        raise HostError(f"no folder to build a program in ({error}); set TMPDIR or XDG_CACHE_HOME to one") from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compiler() -> list[str]:
    """The compiler and its own flags, its path resolved."""
    given = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(given) or ["cc"]
    except ValueError:
        raise HostError(f"CC={given!r} is no command; set it to a C compiler, or unset it") from None
    path = shutil.which(words[0])
    if path is None:
        which = f"no C compiler {words[0]} on this host (CC names it); unset CC" if given else "no C compiler on this host"
        raise HostError(f"{which}{' or' if given else ';'} install one: {_NEED}")
    return [path, *words[1:]]


def _compile(compiler: list[str], source: Path, program: Path) -> None:
    """Build beside the program and rename: of two first uses at once each finds a whole program. OSError: no place for it."""
    # A folder, and not an open file: what is open for writing in any process cannot be run (ETXTBSY).
    with tempfile.TemporaryDirectory(prefix="build-", dir=program.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / program.name
        result = _run([*compiler, *FLAGS, "-o", str(made), source.name], source.parent)
        if result.returncode or not made.is_file():
            lines = [line.strip() for line in (result.stderr + result.stdout).decode(errors="replace").splitlines()]
            said = next((line for line in lines if "error" in line.lower()), f"exit status {result.returncode}")
            raise HostError(
                f"{compiler[0]} cannot build {source.name}: {said}; it needs a working compiler with its C library's headers "
                f"({_NEED})"
            )
        made.chmod(0o700)
        made.replace(program)


def _run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    # In its own words it would be translated, and the word "error" not be found.
    env = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{argv[0]} has not ended after {_BUILD_S:.0f} s; look at the host's load, or set CC") from None
    except OSError as error:
        raise HostError(f"{argv[0]} cannot be run ({error.strerror}); set CC to a C compiler ({_NEED})") from None


def _runs(program: Path) -> bool:
    """Whether it is there to be run, and nobody else could have put it there. access(2) knows of noexec mounts."""
    try:
        return program.stat().st_uid == os.geteuid() and os.access(program, os.X_OK)
    except OSError:
        return False
