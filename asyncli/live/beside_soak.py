"""The live page as a process beside a soak, which starts it and ends it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path

import msgspec

from asyncli.live.serve import ListensAt, ServedAt, Settings
from asyncli.model.errors import HostError
from asyncli.model.own_process import command_of, environment_of

# An import takes a second, on a busy machine several.
_PATIENCE_S = 30.0
# A night that is laid under the run is read before: 8 s, on a busy machine minutes.
_PATIENCE_WITH_REFERENCE_S = 300.0
# It ends at once, but for an answer that it is writing.
_ENDING_S = 3.0


class PageBeside:
    """Serves the run in ``path`` at ``place``, from :meth:`start` to :meth:`close`."""

    def __init__(self, path: str | os.PathLike[str], place: ServedAt) -> None:
        self._path = Path(path).absolute()
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        #: Where it listens, once it does.
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
        settings = Settings(str(self._path), self._place, os.getpid())
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._process.stdin.flush()
        ready = self._ready()
        if ready.problem:
            self.close()
            raise HostError(ready.problem)
        self.port = ready.port

    def _ready(self) -> ListensAt:
        assert self._process is not None
        assert self._process.stdout is not None
        received = b""
        patience_s = _PATIENCE_S
        if self._place.reference is not None:
            patience_s = _PATIENCE_WITH_REFERENCE_S
        latest_s = time.monotonic() + patience_s
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while not received.endswith(b"\n"):
            left_s = max(0.0, latest_s - time.monotonic())
            if not poll.poll(left_s * 1e3):
                return ListensAt(problem=f"--web: its process did not start in {patience_s:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return ListensAt(problem="--web: its process ended as it started")
            received += part
        return msgspec.json.decode(received, type=ListensAt)

    def close(self) -> None:
        """Have it end, once it has lingered. Without that its port is free again afterwards."""
        process = self._process
        self._process = None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._place.linger_s:
            return
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The process; the one that computes the cost is its child."""
        return [] if self._process is None else [self._process.pid]
