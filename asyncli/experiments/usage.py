"""What a server's processes read, wrote and waited, and what the host sent, from counters of /proc that cost it nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from asyncli.collect.processes import ProcessesGoneError, ServerTree
from asyncli.collect.procfs import PROC, read_text

_IO = {"rchar": "read_chars", "wchar": "written_chars", "read_bytes": "disk_read", "write_bytes": "disk_written",
       "syscr": "reads", "syscw": "writes"}  # fmt: skip
_SWITCHES = {"voluntary_ctxt_switches": "waits", "nonvoluntary_ctxt_switches": "preemptions"}


class Usage(msgspec.Struct):
    """Counters since the processes began; None where one of them could not be read.

    ``read_chars``, ``written_chars``: bytes through read(2) and write(2) and their like, sockets included, but not through
    recv(2) and sendfile(2); ``reads``, ``writes``: how many such calls. ``disk_*``: bytes that storage gave or got (all of that:
    proc(5), /proc/PID/io, which includes children that were waited for). ``waits``, ``preemptions``: context switches that a
    process wanted, or not, of those that live. ``segments``: what the whole host sent by TCP since boot (RFC 4022,
    tcpOutSegs), loopback included.
    """

    read_chars: int | None = None
    written_chars: int | None = None
    reads: int | None = None
    writes: int | None = None
    disk_read: int | None = None
    disk_written: int | None = None
    waits: int | None = None
    preemptions: int | None = None
    segments: int | None = None

    def since(self, before: Usage) -> dict[str, int | None]:
        """Each counter less what it was ``before``; None where either is unknown."""
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in self.__struct_fields__}
        return {name: None if now is None or then is None else now - then for name, (now, then) in pairs.items()}


def usage_of(pid: int, proc: Path = PROC) -> Usage:
    """Of ``pid`` and its descendants, as they stand now: about 40 microseconds a process."""
    usage = Usage(segments=parse_segments(_text(f"{proc}/net/snmp")))
    with contextlib.suppress(ProcessesGoneError):
        living = [one.pid for one in ServerTree([pid], proc=proc)() if not one.ended]
        for file, fields in (("io", _IO), ("status", _SWITCHES)):
            texts = [_text(f"{proc}/{one}/{file}") for one in living]
            found = [parse_fields(text, fields) for text in texts]
            for name in fields.values():
                values = [one.get(name) for one in found]
                known = [value for value in values if value is not None]
                setattr(usage, name, sum(known) if len(known) == len(values) else None)
    return usage


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
