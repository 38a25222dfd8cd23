"""Standard output and standard error whose reader may hang: a terminal stopped by Ctrl-S, a
sleeping ssh, a stopped pipe.

A thread writes, so that a measurement never waits for a reader. In a running loop, output beyond a
bound is dropped and counted. Outside a loop, where a report is printed, the process waits for the
reader; after a signal it waits only while the reader still reads.
"""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

from asyncli.cli.signals import Signals, stop_signals
from asyncli.model.text import AS_ASCII

# A log line is 100 to 200 bytes: a day of a log for people, two hours of one for machines.
_MOST_IN_A_LOOP = 1 << 20
# A report with an HTML page takes some MB; beyond this, write() waits for the reader.
_MOST = 16 << 20
# An interrupted command ends at once, but gives a live reader time to get its output.
_INTERRUPTED_S = 1.0
# A reader behind ssh recovers after two lost packets (1 s and 2 s, RFC 6298); docker stop kills 10
# s after SIGTERM.
_SIGNALLED_S = 3.0
# A write returns once all of it is read: 4 kB at a time show that a slow reader is alive.
_LONGEST_WRITE = 4096
_POLL_S = 0.2


class UnwrittenError(OSError):
    """Writing to an outlet failed; ``filename``: what was being printed, or None."""


class Outlet(io.BufferedIOBase):
    """A buffer that a thread writes to ``fd``.

    The next write, flush or wait after a failed write raises :class:`UnwrittenError`, once.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: What is being printed.
        self.what: str | None = None
        #: Writes that were dropped because the reader was too far behind.
        self.dropped = 0
        self._waiting: collections.deque[tuple[str | None, bytes]] = collections.deque()
        self._bytes = 0
        self._progress_s = 0.0
        self._failed: UnwrittenError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def behind(self) -> bool:
        """Whether the reader is behind, so that a frame of a live screen can be skipped."""
        return self._bytes > 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        data = bytes(data)
        with self._changed:
            self._raise()
            if _in_a_loop():
                if self._bytes and self._bytes + len(data) > _MOST_IN_A_LOOP:
                    self.dropped += 1
                    return len(data)
            else:
                while self._bytes and self._bytes + len(data) > _MOST:
                    self._changed.wait()
                    self._raise()
            if data:
                self._waiting.append((self.what, data))
                self._bytes += len(data)
                self._changed.notify_all()
            if self._thread is None:
                name = f"asyncli-output-{self._fd}"
                self._thread = threading.Thread(target=self._write, name=name, daemon=True)
                self._thread.start()
        return len(data)

    def flush(self) -> None:
        # Without the lock: the interpreter flushes once more at its end, when the thread may have
        # stopped with the lock held.
        self._raise()

    def wait(self, patience_s: float) -> None:
        """Wait until all is written, or nothing was read for ``patience_s``.

        Raises :class:`UnwrittenError`.
        """
        start_s = time.monotonic()
        with self._changed:
            while self._bytes:
                progress_s = max(start_s, self._progress_s)
                left_s = progress_s + patience_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, _POLL_S))
            self._raise()

    def _raise(self) -> None:
        error = self._failed
        if error is not None:
            self._failed = None
            raise error

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                what, data = self._waiting.popleft()
            try:
                self._put(data)
            except OSError as error:
                with self._changed:
                    self._failed = UnwrittenError(error.errno, error.strerror, what)
                    self._waiting.clear()
                    self._bytes = 0
                    self._changed.notify_all()
                continue
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                written = os.write(self._fd, left[:_LONGEST_WRITE])
                left = left[written:]
                self._progress_s = time.monotonic()
            except BlockingIOError:
                # Another process made this terminal non-blocking.
                select.select([], [self._fd], [])


def _in_a_loop() -> bool:
    # Importing asyncio would take longer than all of --help.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def outlet_of(stream: TextIO | None) -> Outlet | None:
    """The outlet of a stream; None if it has none."""
    buffer = getattr(stream, "buffer", None)
    if isinstance(buffer, Outlet):
        return buffer
    return None


@contextlib.contextmanager
def outlets() -> Iterator[list[Outlet]]:
    """Replace standard output and standard error by outlets; by one outlet if both are the same
    file, to keep the order.
    """
    before = sys.stdout, sys.stderr
    made: list[Outlet] = []
    sys.stdout = _through_outlet(sys.stdout, made)
    sys.stderr = _through_outlet(sys.stderr, made)
    try:
        yield made
    finally:
        sys.stdout, sys.stderr = before


def _through_outlet(stream: TextIO | None, made: list[Outlet]) -> TextIO | None:
    """The stream through one of the outlets ``made``, or a new one; itself if it is closed."""
    if stream is None:
        return None
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(  # type: ignore[type-var]
        _outlet(fd, made), stream.encoding, AS_ASCII, line_buffering=True, write_through=True
    )


def _outlet(fd: int, made: list[Outlet]) -> Outlet:
    for outlet in made:
        if _same_file(outlet.fileno(), fd):
            return outlet
    outlet = Outlet(fd)
    made.append(outlet)
    return outlet


def _same_file(fd: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(fd, other)
    except OSError:
        return False


class _EndedBySignal(BaseException):
    pass


def await_readers(made: list[Outlet], status: int, interrupted: int) -> int:
    """Wait for the readers and return the exit status.

    After a signal, wait only while the reader reads. A signal ends the wait; the status is then
    ``interrupted`` if it is the second of a run, or if nothing ran. Raises :class:`UnwrittenError`.
    """

    def signalled(_number: int, _frame: FrameType | None) -> None:
        raise _EndedBySignal

    before = {number: signal.signal(number, signalled) for number in stop_signals()}
    patience_s = math.inf
    if status == interrupted or Signals.late:
        patience_s = _INTERRUPTED_S
    elif Signals.count:
        patience_s = _SIGNALLED_S
    try:
        for outlet in made:
            outlet.wait(patience_s)
        return status
    except _EndedBySignal:
        if Signals.ran and Signals.count == 0:
            return status
        return interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
