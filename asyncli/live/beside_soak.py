"""What shows a run to others while it lasts (page, metrics, OTLP), as a process beside the soak,
which starts it and ends it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncli.live.serve import (
    LAST_LOOK_S,
    LAST_VALUES_S,
    EndsHold,
    ListensAt,
    SentTo,
    ServedAt,
    Settings,
)
from asyncli.model.errors import HostError
from asyncli.model.own_process import LinesFrom, command_of, environment_of

# An import takes a second, on a busy machine several.
_PATIENCE_S = 30.0
# A night that is laid under the run is read before: 8 s, on a busy machine minutes.
_PATIENCE_WITH_REFERENCE_S = 300.0
# It ends at once, but for an answer that it is writing.
_ENDING_S = 3.0


class PageBeside:
    """Serves the run in ``path`` at ``place``, and sends its metrics to ``otlp``, from
    :meth:`start` to :meth:`close`.
    """

    def __init__(
        self, path: str | os.PathLike[str], place: ServedAt | None, otlp: SentTo | None = None
    ) -> None:
        self._path = Path(path).absolute()
        self._place = place
        self._otlp = otlp
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: LinesFrom | None = None
        #: Called when who looks at the page ends the hold.
        self.end_hold: Callable[[], None] = lambda: None
        #: Where it listens, once it does; 0: it serves nothing.
        self.port = 0

    def start(self) -> None:
        """Start it, and block until it listens. Raises :class:`HostError` where it cannot."""
        self._process = subprocess.Popen(
            command_of("asyncli.live.serve"),
            env=environment_of(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A line there would break the soak's screen.
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the run, which ends this process after its report.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines = LinesFrom(self._process.stdout)
        settings = Settings(str(self._path), self._place, self._otlp)
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._process.stdin.flush()
        ready = self._ready(self._lines)
        if ready.problem:
            self.close()
            raise HostError(ready.problem)
        self.port = ready.port

    def _ready(self, lines: LinesFrom) -> ListensAt:
        patience_s = _PATIENCE_S
        if self._place is not None and self._place.reference is not None:
            patience_s = _PATIENCE_WITH_REFERENCE_S
        line = lines.next(patience_s)
        if line is not None:
            return msgspec.json.decode(line, type=ListensAt)
        if lines.has_ended:
            return ListensAt(problem=f"{self._flag}: its process ended as it started")
        return ListensAt(problem=f"{self._flag}: its process did not start in {patience_s:.0f} s")

    @property
    def _flag(self) -> str:
        """The option that asked for this process."""
        if self._place is None:
            return "--otlp"
        return self._place.flag

    def fileno(self) -> int:
        """The descriptor that is readable when :meth:`notices` may have one."""
        assert self._lines is not None
        return self._lines.fileno()

    def notices(self, timeout_s: float = 0.0) -> list[str]:
        """The lines for the user that have come since the last call, or come within this time until
        the process ends.
        """
        latest_s = time.monotonic() + timeout_s
        notices: list[str] = []
        while self._lines is not None:
            line = self._lines.next(max(0.0, latest_s - time.monotonic()))
            if line is None:
                return notices
            # It ends after a line of another kind, which says why.
            with contextlib.suppress(msgspec.MsgspecError):
                said = msgspec.json.decode(line, type=str | EndsHold)
                if isinstance(said, EndsHold):
                    self.end_hold()
                else:
                    notices.append(said)
        return notices

    @property
    def has_ended(self) -> bool:
        """Whether no further notice comes."""
        return self._lines is None or self._lines.has_ended

    def close(self) -> list[str]:
        """Have it end, once it has lingered, and return its last notices. Without lingering its
        port is free again afterwards.
        """
        process = self._process
        self._process = None
        if process is None:
            return []
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        notices: list[str] = []
        if self._place is None or not self._place.linger_s:
            notices = self._end(process)
        if process.stdout is not None:
            process.stdout.close()
        self._lines = None
        return notices

    def _end(self, process: subprocess.Popen[bytes]) -> list[str]:
        patience_s = _ENDING_S + LAST_LOOK_S
        if self._otlp is not None:
            patience_s += LAST_VALUES_S
        notices = self.notices(patience_s)
        try:
            process.wait(_ENDING_S if self.has_ended else 0.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if self._otlp is not None:
                notices.append("warning: --otlp: the last values may not have been sent")
        return notices

    @property
    def pids(self) -> list[int]:
        """The process; the one that computes the cost is its child."""
        return [] if self._process is None else [self._process.pid]
