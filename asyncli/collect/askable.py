"""Whether the runtime of a process can be asked for a collection, as far as this is known before it
is asked. Blocking.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

from asyncli.collect.holders import matching_inodes, socket_holders
from asyncli.collect.locate import process_name
from asyncli.collect.procfs import PROC, read_listeners, readable_stat, shares_namespace, tree
from asyncli.model.errors import CannotCollectError
from asyncli.model.units import format_many

#: Where Node opens its inspector, unless --inspect-port names another place.
INSPECTOR_ADDRESS = "127.0.0.1"
INSPECTOR_PORT = 9229
#: How the runtimes are asked that can be asked from outside.
ASKED_BY = {"node": f"Node's inspector, port {INSPECTOR_PORT}", "jvm": "jcmd"}
# Of /proc/PID/status: the signals for which a process has a handler (proc(5)).
_SIGNALS_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]{1,32})$", re.MULTILINE)
# Node's module cluster sets it for each worker.
_OF_WORKER = b"NODE_UNIQUE_ID="
# ARG_MAX is 2 MB by default.
_MOST_OF_ENVIRONMENT = 2 << 20


def require_askable(kind: str, pid: int) -> None:
    """Raise :class:`CannotCollectError` if nobody can ask a process of this runtime, or if this
    process is known not to answer.
    """
    require_kind(kind, pid)
    require_own(pid)
    if kind == "jvm":
        require_jcmd()
        return
    require_same_network(pid)
    require_debug_signal(pid)
    require_no_workers(pid)
    has_inspector(pid)


def require_kind(kind: str, pid: int) -> None:
    """Raise :class:`CannotCollectError` for a runtime that cannot be asked from outside."""
    if kind in ASKED_BY:
        return
    if kind == "go":
        raise CannotCollectError(
            "--collect auto: a program of Go collects only by a page of its own",
            "name it: --collect 'http://HOST:PORT/debug/pprof/heap?gc=1' (net/http/pprof)",
        )
    if kind == "":
        require_own(pid)
    named = kind or "unknown"
    raise CannotCollectError(
        f"--collect auto: the server's runtime is {named}, which cannot be asked for a collection",
        "name a command that asks it: --collect 'COMMAND {pid}', or leave --collect out",
    )


def require_own(pid: int) -> None:
    """Raise :class:`CannotCollectError` for a process that another user's rights protect."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return
    if os.geteuid() not in (0, owner):
        raise of_another_user(pid)


def of_another_user(pid: int) -> CannotCollectError:
    return CannotCollectError(
        f"--collect: process {pid} belongs to another user",
        "run asyncli as that user or as root",
    )


def has_ended(pid: int) -> CannotCollectError:
    return CannotCollectError(
        f"--collect: process {pid} has ended", "see the server's log for why it ended"
    )


def require_jcmd() -> None:
    if shutil.which("jcmd") is None:
        raise CannotCollectError(
            "--collect auto: jcmd is not in PATH",
            "install a JDK of the server's version, or name its jcmd: --collect "
            "'/path/to/jcmd {pid} GC.run' with --server-metrics",
        )


def require_same_network(pid: int) -> None:
    """Raise :class:`CannotCollectError` if the inspector would open where asyncli cannot close it
    again.
    """
    if shares_namespace(pid, "net") is False:
        raise CannotCollectError(
            f"--collect auto: process {pid} is in another network namespace, where its inspector "
            "cannot be reached",
            "run asyncli or its agent there",
        )


def require_debug_signal(pid: int) -> None:
    """Raise :class:`CannotCollectError` unless the process handles SIGUSR1, which would end it
    otherwise (Node with --disable-sigusr1 does not).
    """
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            text = status.read()
    except OSError:
        raise has_ended(pid) from None
    caught = _SIGNALS_CAUGHT.search(text)
    if caught is None or not int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1:
        raise CannotCollectError(
            f"--collect auto: process {pid} does not handle SIGUSR1, so its inspector cannot be "
            "opened",
            "start it without --disable-sigusr1, or name a command: --collect COMMAND",
        )


def require_no_workers(pid: int, proc: Path = PROC) -> None:
    """Raise :class:`CannotCollectError` for the primary process of a cluster of Node: its workers
    hold the connections.
    """
    try:
        processes = tree([readable_stat(pid, proc)], proc)
    except OSError:
        return
    workers = 0
    for member in processes:
        workers += member != pid and _is_worker(member, proc)
    if workers:
        raise CannotCollectError(
            f"--collect auto: process {pid} is the primary one of a cluster of Node and holds no "
            f"connections; its {format_many(workers, 'worker')} do, and one process alone can be "
            "asked",
            "start the server without its cluster, or leave --collect out",
        )


def _is_worker(pid: int, proc: Path) -> bool:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            environment = file.read(_MOST_OF_ENVIRONMENT)
    except OSError:
        return False
    return any(word.startswith(_OF_WORKER) for word in environment.split(b"\0"))


def has_inspector(pid: int, proc: Path = PROC) -> bool:
    """Whether a process has its inspector open. Raises :class:`CannotCollectError` if another one
    has its port.
    """
    listeners = read_listeners(INSPECTOR_PORT, proc)
    inodes = matching_inodes(listeners, {INSPECTOR_ADDRESS})
    if not inodes:
        return False
    holders = socket_holders(inodes, proc)
    if pid in holders:
        return True
    holder = "another user's process"
    if holders:
        lowest = min(holders)
        holder = f"{process_name(lowest, proc) or 'another process'} (pid {lowest})"
    raise CannotCollectError(
        f"--collect auto: {holder} listens at port {INSPECTOR_PORT}, where the inspector of "
        f"process {pid} would open",
        "end that one or its inspector, or start the server with an --inspect-port of its own and "
        "--collect COMMAND",
    )
