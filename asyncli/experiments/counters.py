"""What the kernel's TCP did meanwhile: segments, retransmissions, windows that closed.

The counters are of our network namespace, all its traffic and both ends of it: on loopback a segment is counted once as it goes
out. Source: Documentation/networking/snmp_counter.rst of the kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from asyncli.collect.kernel import parse_counters
from asyncli.collect.procfs import PROC, read_text
from asyncli.metrics import TCP

#: A figure's name -> the counters whose sum it is; one that a kernel lacks counts as 0.
COUNTED: dict[str, tuple[str, ...]] = {
    "segments": ("OutSegs",),
    "retransmitted": ("RetransSegs",),
    "timeouts": ("TCPTimeouts",),
    # "Want": its buffer was full, and a window that had been promised could not be taken back (RFC 9293 3.8.6).
    "window_closed": ("TCPToZeroWindowAdv", "TCPWantZeroWindowAdv"),
}
_FILES = {"net/snmp": "Tcp", "net/netstat": "TcpExt"}


class Counters(dict[str, float]):
    """What was counted since it was made, by the names of :data:`COUNTED`; empty where the kernel's files cannot be read."""

    def __init__(self, proc: Path = PROC) -> None:
        super().__init__()
        self._proc = proc
        self._begun = _read(proc)
        self.update_now()

    def update_now(self) -> None:
        """Read again."""
        now = _read(self._proc)
        if now and self._begun:
            self.update(
                {name: sum(now.get(one, 0.0) - self._begun.get(one, 0.0) for one in sums) for name, sums in COUNTED.items()}
            )


@contextlib.contextmanager
def counting(proc: Path = PROC) -> Iterator[Counters]:
    """What the kernel counts inside: complete at its end."""
    found = Counters(proc)
    try:
        yield found
    finally:
        found.update_now()


def _read(proc: Path) -> dict[str, float]:
    wanted = {one for sums in COUNTED.values() for one in sums}
    values: dict[str, float] = {}
    for file, group in _FILES.items():
        try:
            values |= parse_counters(read_text(proc / file), group, wanted)
        except (OSError, ValueError):
            return {}
    return {name.removeprefix(TCP): value for name, value in values.items()}
