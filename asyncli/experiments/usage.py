"""What a server's processes read, wrote and waited, and what the host sent, from counters of /proc that cost it nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from asyncli.collect.processes import ProcessesGoneError, ServerTree
from asyncli.collect.procfs import PROC, read_text

_IO = {"rchar": "read_chars", "wchar": "written_chars", "read_bytes": "disk_read", "write_bytes": "disk_written",
       "syscr": "reads", "syscw": "writes"}  # fmt: skip
_SWITCHES = {"voluntary_ctxt_switches": "waits", "nonvoluntary_ctxt_switches": "preemptions"}


class Usage(msgspec.Struct):
    """Counters since the processes began; None where one of them could not be read.

    - ``read_chars``, ``written_chars``: bytes through read(2) and write(2) and their like, sockets included, but not through
      recv(2) and sendfile(2); ``reads``, ``writes``: how many such calls; ``disk_*``: bytes that storage gave or got. Children
      that were waited for are included (proc(5), /proc/PID/io).
    - ``waits``, ``preemptions``: context switches that a process wanted, or not; ``cpu_ns``: its time on a CPU, ``queued_ns``:
      ready to run and waiting for one (schedstat). Of those that live. /proc/PID/stat is not used: it cuts user and system time
      off to 10 ms each, of a hundred processes a second in all.
    - ``segments``: what the whole host sent by TCP since boot, loopback included (RFC 4022, tcpOutSegs).
    """

    read_chars: int | None = None
    written_chars: int | None = None
    reads: int | None = None
    writes: int | None = None
    disk_read: int | None = None
    disk_written: int | None = None
    waits: int | None = None
    preemptions: int | None = None
    cpu_ns: int | None = None
    queued_ns: int | None = None
    segments: int | None = None

    def since(self, before: Usage) -> dict[str, int | None]:
        """Each counter less what it was ``before``; None where either is unknown."""
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in self.__struct_fields__}
        return {name: None if now is None or then is None else now - then for name, (now, then) in pairs.items()}


def usage_of(pid: int, proc: Path = PROC) -> Usage:
    """Of ``pid`` and its descendants, as they stand now: about 60 microseconds a process."""
    usage = Usage(segments=parse_segments(_text(f"{proc}/net/snmp")))
    with contextlib.suppress(ProcessesGoneError):
        living = [one.pid for one in ServerTree([pid], proc=proc)() if not one.ended]
        for file, fields in (("io", _IO), ("status", _SWITCHES)):
            found = [parse_fields(_text(f"{proc}/{one}/{file}"), fields) for one in living]
            for name in fields.values():
                setattr(usage, name, _sum(one.get(name) for one in found))
        times = [_times_ns(one, proc) for one in living]
        usage.cpu_ns, usage.queued_ns = (_sum(one[at] for one in times) for at in (0, 1))
    return usage


def _times_ns(pid: int, proc: Path) -> tuple[int | None, int | None]:
    """On a CPU and waiting for one, of all its threads; None where the kernel keeps no such count (CONFIG_SCHED_INFO)."""
    with contextlib.suppress(OSError):
        texts = [_text(f"{proc}/{pid}/task/{thread}/schedstat").split() for thread in os.listdir(f"{proc}/{pid}/task")]
        return _sum(int(one[0]) if one else None for one in texts), _sum(int(one[1]) if one else None for one in texts)
    return None, None


def _sum(values: Iterable[int | None]) -> int | None:
    """None where one of them is unknown: a part of a sum is a wrong one."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) if len(known) == len(every) else None


def parse_fields(text: str, names: dict[str, str]) -> dict[str, int]:
    """The numbers of lines ``name: number``, by the name that ``names`` gives each. Pure."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {names[name]: int(value) for name, _, value in pairs if name in names and value.strip().isdigit()}


def parse_segments(text: str) -> int | None:
    """tcpOutSegs of a /proc/net/snmp text: a line of names, and below it one of numbers. Pure."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return None
    number = dict(zip(*lines, strict=True)).get("OutSegs", "")
    return int(number) if number.isdigit() else None


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""
