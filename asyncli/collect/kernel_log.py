"""Which processes the kernel killed for lack of memory, by its log (/dev/kmsg).

The counters of a host and of a control group say how many, and not which. The log may be read with
CAP_SYSLOG, or where kernel.dmesg_restrict is 0.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, link
from asyncli.model import metrics

KERNEL_LOG = Path("/dev/kmsg")
# The pids in the log are those of the first namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"
# A record: "priority,sequence,time,flags;text" (Documentation/ABI/testing/dev-kmsg). Programs may
# write records too: theirs have a facility, the part of the priority from 8 up.
_FIRST_FACILITY = 8
_RECORD_BYTES = 8192
# __oom_kill_process of mm/oom_kill.c: "Out of memory: Killed process 7935 (python3) ...".
_KILLED = re.compile(r"\bKilled process (\d+) ")


def killed_pid(record: str) -> int | None:
    """The process that the kernel killed for lack of memory, by a record of its log; None if it
    says something else.
    """
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdigit() or int(priority) >= _FIRST_FACILITY:
        return None
    match = _KILLED.search(text)
    if match is None:
        return None
    return int(match[1])


class KernelLog:
    """Counts those of the processes ``pids`` that the kernel kills from now on. Blocking for no
    longer than the records take that are there.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], *, log: Path = KERNEL_LOG, proc: Path = PROC
    ) -> None:
        self._pids = pids
        self._seen: set[int] = set()
        self._killed = 0
        self._descriptor: int | None = None
        if link("self", "ns/pid", proc) == _FIRST_NAMESPACE:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)

    def read(self) -> ProbeReading:
        """``server.killed``; nothing where the log may not be read, or lost records."""
        if self._descriptor is None:
            return ProbeReading()
        self._seen.update(self._pids())
        try:
            self._read_records(self._descriptor)
        except OSError:
            # Records were overwritten before they were read (EPIPE): the count is not known.
            self.close()
            return ProbeReading()
        return ProbeReading({metrics.SERVER_KILLED: float(self._killed)})

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_records(self, descriptor: int) -> None:
        """Raises OSError."""
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            if not record:
                return
            pid = killed_pid(record.decode("utf-8", "replace"))
            if pid in self._seen:
                self._killed += 1
