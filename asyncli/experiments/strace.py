"""System calls of a server's processes, counted by strace -c while the block runs.

Each traced call stops the process twice (ptrace(2)), so the server is many times slower: nothing is timed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from asyncli.collect.procfs import read_text
from asyncli.errors import HostError
from asyncli.lab import child

# To attach takes about a millisecond a process, and the table is written within a few more.
_PATIENCE_S = 20.0
_TRACER = re.compile(r"^TracerPid:\s+(\d+)", re.MULTILINE)
_REMEDY = "run as root or with CAP_SYS_PTRACE, in a container with --cap-add SYS_PTRACE"
_ENDED = re.compile(r"^State:\s+[ZX]", re.MULTILINE)


def parse_counts(text: str) -> dict[str, int]:
    """System call -> how often, of the table that ``strace -c`` prints; its total is left out. Pure.

    A line is the share of time, seconds, microseconds a call, calls, errors (blank where there was none) and the name.
    """
    counts = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) in (5, 6) and fields[3].isdigit() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3])
    return counts


@contextlib.asynccontextmanager
async def counting(pids: Sequence[int]) -> AsyncIterator[dict[str, int]]:
    """Count the system calls of ``pids`` and of what they fork; filled at the block's end. Raises
    :class:`~asyncli.errors.HostError` where strace is missing, or may not trace them."""
    program = shutil.which("strace")
    if program is None:
        raise HostError("strace is not installed; install it (apt-get install strace)")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="asyncli-strace-") as folder:
        table, said = Path(folder, "table"), Path(folder, "stderr")
        argv = [os.path.abspath(program), "-c", "-f", "-o", str(table), *(word for pid in pids for word in ("-p", str(pid)))]
        with said.open("wb") as stderr:
            process = child.spawn(argv, stderr=stderr, env={**os.environ, "LC_ALL": "C"})
        try:
            if not await child.until(lambda: process.poll() is not None or _attached(process.pid, pids), _PATIENCE_S):
                raise HostError(
                    f"strace has not attached to {len(pids)} processes within {_PATIENCE_S:.0f} s; see the host's load"
                )
            if process.poll() is not None:
                complaint = " ".join(said.read_text(encoding="utf-8", errors="replace").split()) or "it said nothing"
                raise HostError(f"strace did not start: {complaint}; {_REMEDY}")
            yield counts
            process.send_signal(signal.SIGINT)
            await child.until(lambda: process.poll() is not None, _PATIENCE_S)
            if process.poll() != -signal.SIGINT or not table.exists():
                raise HostError(
                    "strace wrote no table of system calls; see that it was not killed, and that TMPDIR can be written"
                )
            counts.update(parse_counts(table.read_text(encoding="utf-8", errors="replace")))
        finally:
            # It lets go of what it traces when it ends, however it ends.
            await child.end(process)


def _attached(tracer: int, pids: Sequence[int]) -> bool:
    """Whether all that live are traced (proc(5), TracerPid). Where none does, strace ends by itself."""
    tracers = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            text = read_text(f"/proc/{pid}/status")
            found = _TRACER.search(text)
            if found is not None and not _ENDED.search(text):
                tracers.add(int(found[1]))
    return tracers == {tracer}
