"""What an ordinary user cannot read on this host, and root can."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from asyncli.collect.procfs import PROC
from asyncli.findings.probes import needs_root
from asyncli.records import Finding


def unprivileged(pids: Iterable[int], hidden: bool, remedy: str, proc: Path = PROC) -> Finding | None:
    """The one finding of it, None for root and where nothing is missing. ``pids``: the server's; ``hidden``: they were not found
    because they are another user's, which ``remedy`` mends in part."""
    if os.geteuid() == 0:
        return None
    unknown = ["the server's memory, CPU, limits and configuration"] if hidden else []
    if not all(_readable(proc / f"{pid}/smaps_rollup") for pid in pids):
        unknown.append("the server's PSS and USS (its RSS counts shared pages in every process)")
    if not _readable(proc / "slabinfo"):
        unknown.append("the kernel's memory for sockets (/proc/slabinfo)")
    return needs_root(unknown, as_root(), remedy) if unknown else None


def as_root() -> str:
    """This program for ``sudo``, whose own path has no virtual environment and no ~/.local/bin."""
    program = os.path.abspath(sys.argv[0])
    script = os.path.basename(program) == "asyncli" and os.access(program, os.X_OK)
    return f"sudo {shlex.join([program] if script else [sys.executable, '-m', 'asyncli'])}"


def _readable(path: Path) -> bool:
    try:
        # The mode does not tell: who opens it is asked (ptrace_may_access).
        with path.open("rb") as file:
            file.read(1)
    except PermissionError:
        return False
    except OSError:
        pass  # it is not there: root would not find it either
    return True
