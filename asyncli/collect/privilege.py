"""What root can read on this host and an ordinary user cannot."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from asyncli.collect.procfs import PROC
from asyncli.findings.probes import needs_root
from asyncli.model.masks import MASK, masked_page
from asyncli.model.records import Finding

_HEADER_FLAGS = ("--header", "--status-header")
_SECRET_FLAGS = (*_HEADER_FLAGS, "--send", "--expect", "--greeting", "--ws-message", "--on-finish")


def unprivileged(
    pids: Iterable[int], hidden: bool, remedy: str, proc: Path = PROC
) -> Finding | None:
    """One finding of all that needs root; None for root and if nothing is missing. ``pids``: the
    server's. ``hidden``: they belong to another user and were not found; ``remedy`` helps in part.
    """
    if os.geteuid() == 0:
        return None
    unknown = []
    if hidden:
        unknown.append("the server's memory, CPU, limits and configuration")
    if not all(_readable(proc / f"{pid}/smaps_rollup") for pid in pids):
        unknown.append("the server's PSS and USS (its RSS counts shared pages in every process)")
    if not _readable(proc / "slabinfo"):
        unknown.append("the kernel's memory for sockets (/proc/slabinfo)")
    if not unknown:
        return None
    return needs_root(unknown, as_root(), remedy)


def as_root() -> str:
    """The command that runs this program again by ``sudo``, whose PATH lacks a virtual environment
    and ~/.local/bin.
    """
    program = os.path.abspath(sys.argv[0])
    arguments = sys.argv[1:]
    is_script = os.path.basename(program) == "asyncli" and os.access(program, os.X_OK)
    command = shlex.join([program] if is_script else [sys.executable, "-m", "asyncli"])
    if not is_script and not program.endswith("/asyncli/__main__.py"):
        return f"sudo {command} ... (with the same arguments)"
    kept = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        # The file of --out exists now.
        if "--out" not in (before, word.partition("=")[0]):
            kept.append(word)
    return f"sudo {command} {shlex.join(_without_secrets(kept))}"


def _without_secrets(words: list[str]) -> list[str]:
    """The words of a command with ``***`` for what may be secret: the command is recorded, and
    shown with a run. A line can be pasted, and the secrets written in it again.
    """
    shown: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        flag, equals, value = word.partition("=")
        if before in _SECRET_FLAGS:
            shown.append(_masked(before, word))
        elif flag in _SECRET_FLAGS and equals:
            shown.append(f"{flag}={_masked(flag, value)}")
        elif "://" in word:
            shown.append(masked_page(word))
        else:
            shown.append(word)
    return shown


def _masked(flag: str, value: str) -> str:
    """A header keeps its name."""
    name, colon, _ = value.partition(":")
    if flag in _HEADER_FLAGS and colon:
        return f"{name}: {MASK}"
    return MASK


def _readable(path: Path) -> bool:
    try:
        # The mode is not enough: the kernel checks at open (ptrace_may_access).
        with path.open("rb") as file:
            file.read(1)
    except PermissionError:
        return False
    except OSError:
        pass  # absent, for root as well
    return True
