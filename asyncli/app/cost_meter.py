"""The cost of a connection while a run lasts: the report's own, from the records so far, computed
in a process of its own, so that neither the run's loop nor its memory has any of the work.

That process has imported what a report needs before the run begins. It answers each request from a
fork, whose memory is free again before the next sample is taken.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import msgspec

from asyncli.app.report_memory import import_report
from asyncli.model.errors import AsyncliError
from asyncli.model.garbage import uncollected
from asyncli.model.own_process import LinesFrom, command_of, environment_of
from asyncli.model.plan import Plan
from asyncli.report.cost_so_far import CostSoFar, cost_so_far
from asyncli.report.relative_limits import LOOK_EVERY_S
from asyncli.store.reader import read_run

#: The cost is computed at most this often, and takes this share of a core at most (it is nice).
EVERY_S = LOOK_EVERY_S
_MOST_OF_A_CORE = 0.025
# An import takes a second, on a busy machine several. Without it the run has no cost to show.
_PATIENCE_S = 30.0
# The process's first line.
_READY = b"ready"


class _Answer(msgspec.Struct, array_like=True):
    """``so_far`` is None if it could not be computed; ``cpu_s``: the CPU time of computing it."""

    so_far: CostSoFar | None = None
    cpu_s: float = 0.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Answer).decode


def is_worth_showing(plan: Plan) -> bool:
    """Whether connections are held for long enough to show what they cost meanwhile: a shorter run
    has its report before the second figure.
    """
    return plan.hold_s is None or plan.schedule.end_s + plan.hold_s >= 2 * EVERY_S


class CostMeter:
    """Computes the cost of the run in ``path`` on request, for ``most_of_a_core`` at most. Where
    its process was not started, cannot be, or has ended, there is no cost to show, and the run
    goes on.
    """

    def __init__(
        self, path: str | os.PathLike[str], most_of_a_core: float = _MOST_OF_A_CORE
    ) -> None:
        self._most_of_a_core = most_of_a_core
        self._path = Path(path).absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: LinesFrom | None = None
        self._is_asked = False
        self._next_s = -1.0

    def start(self) -> None:
        """Start the process; :meth:`wait` for it before memory is measured."""
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command_of("asyncli.app.cost_meter", str(self._path)),
                env=environment_of(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the run, which ends this process after its hold.
                start_new_session=True,
            )
            assert self._process.stdout is not None
            self._lines = LinesFrom(self._process.stdout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Block until the process has imported what it needs."""
        latest_s = time.monotonic() + _PATIENCE_S
        while self._process is not None and self._line(latest_s - time.monotonic()) is None:
            if time.monotonic() >= latest_s:
                self.close()

    def turn(self, now_s: float, *, is_held: bool) -> CostSoFar | None:
        """The cost that was asked for, once it has been computed. While connections are held
        (``is_held``), it is asked for again if that is due.
        """
        so_far = self.answer(now_s)
        if is_held:
            self.ask(now_s)
        return so_far

    def ask(self, now_s: float) -> bool:
        """Have the cost computed, if that is due at ``now_s``; whether it is now."""
        if self._process is None or self._is_asked or now_s < self._next_s:
            return False
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError:
            self.close()
            return False
        self._is_asked = True
        self._next_s = now_s + EVERY_S
        return True

    def answer(self, now_s: float, timeout_s: float = 0.0) -> CostSoFar | None:
        """The cost that was asked for, once it has been computed."""
        if not self._is_asked:
            return None
        line = self._line(timeout_s)
        if line == _READY:
            line = self._line(timeout_s)
        if line is None:
            return None
        self._is_asked = False
        try:
            answer = _decode(line)
        except msgspec.MsgspecError:
            answer = _Answer()
        self._next_s = max(self._next_s, now_s + answer.cpu_s / self._most_of_a_core)
        return answer.so_far

    def _line(self, timeout_s: float) -> bytes | None:
        """The next line of the process; None if there is none in this time, or it has ended."""
        if self._process is None or self._lines is None:
            return None
        line = self._lines.next(timeout_s)
        if line is None and self._lines.has_ended:
            self.close()
        return line

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        # It leads a session of its own, in which its fork is too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @property
    def pids(self) -> list[int]:
        """The process; its forks are its children."""
        return [] if self._process is None else [self._process.pid]


def serve(path: str) -> None:
    """Answer each line of standard input with the cost so far of the run in ``path``, in JSON."""
    import_report()
    # The server and asyncli's workers go first.
    os.nice(19)
    gc.collect()
    gc.freeze()
    _write(_READY + b"\n")
    while sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            os._exit(_answer(path))
        _, status = os.waitpid(pid, 0)
        if status != 0:
            _write(_encode(_Answer()) + b"\n")


@uncollected()
def _answer(path: str) -> int:
    """Write one answer; the exit status."""
    try:
        so_far = cost_so_far(read_run(path, for_report=True))
    except (AsyncliError, MemoryError):
        return 1
    _write(_encode(_Answer(so_far, time.process_time())) + b"\n")
    return 0


def _write(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.argv[1])
