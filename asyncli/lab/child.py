"""Starting a server as a child that cannot outlive us, and ending it with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

import asyncli
from asyncli.errors import HostError
from asyncli.secret_variables import for_child

# How the child is tied to us: this interpreter asks the kernel for SIGTERM at our death (PR_SET_PDEATHSIG = 1), checks
# that we did not die before it asked, and becomes the server. Why not otherwise: `setpriv --pdeathsig` is missing on
# some systems and leaves that gap open, and a preexec_fn runs Python between fork and exec, which can deadlock in a
# process with threads (a notebook). The signal comes when the
# *thread* that forked ends: start servers from one that stays.
_TIE = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1,signal.SIGTERM,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(0);"
    "sys.argv[2] and open(sys.argv[2],'w').write('0');"
    "os.execv(sys.argv[3],sys.argv[3:])"
)
#: A server gets this long to end by itself, seconds; then its whole process group is killed.
GRACE_S = 5.0
# Looking whether a thing has happened costs a few microseconds; 10 ms is below what a user can notice.
_LOOK_S = 0.01
_GROUP: contextvars.ContextVar[str] = contextvars.ContextVar("group", default="")


@contextlib.contextmanager
def inside(procs: Path) -> Iterator[None]:
    """Servers that are started in here join the control group of this ``cgroup.procs``, before they become what they are.

    Joined later, what they had taken so far would stay charged to us (cgroups(7)).
    """
    token = _GROUP.set(str(procs))
    try:
        yield
    finally:
        _GROUP.reset(token)


def spawn(
    argv: Sequence[str],
    *,
    stdout: int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` (its first word an absolute path) in a session of its own, tied to our life.

    A session of its own: Ctrl-C in the terminal reaches us and not the server, which would end in the middle of the
    drain, and its process group can be killed whole.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), _GROUP.get(), *argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=for_child() if env is None else env,
        start_new_session=True,
    )


def finds_us() -> dict[str, str]:
    """Our environment, for a child that is Python and must find this very package, installed or not."""
    home = str(Path(asyncli.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    return {**for_child(), "PYTHONPATH": path}


def group_alive(group: int) -> bool:
    """Whether any process of the group still runs. A zombie does not: its ports are closed; init reaps it some day."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
    return False


def kill_group(group: int) -> None:
    """SIGKILL for what is left of the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def until(happened: Callable[[], bool], timeout_s: float) -> bool:
    """Look every 10 ms until ``happened()`` is true; False when that took longer than ``timeout_s``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not happened():
        if loop.time() > end:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """The first line of its stdout, a pipe, without the line's end; what there was of it where it ended before.

    None when that took longer than ``timeout_s``.
    """
    assert process.stdout is not None
    stdout = process.stdout.fileno()
    os.set_blocking(stdout, False)
    text = bytearray()

    def complete() -> bool:
        try:
            some = os.read(stdout, 4096)
        except BlockingIOError:
            return False
        text.extend(some)
        return not some or b"\n" in text

    return bytes(text).partition(b"\n")[0] if await until(complete, timeout_s) else None


async def run_module(module: str, arguments: Iterable[object], timeout_s: float) -> tuple[bytes | None, str]:
    """The first line that ``python -m module`` prints, None without one in time, and the last one of its stderr; it has ended.

    Raises :class:`HostError` where it cannot be started.
    """
    with tempfile.TemporaryFile() as stderr:
        argv = [sys.executable, "-m", module, *map(str, arguments)]
        try:
            process = spawn(argv, stdout=subprocess.PIPE, stderr=stderr, env=finds_us())
        except OSError as error:
            raise HostError(f"{module} could not be started ({error.strerror}); see the host's limits of processes") from None
        try:
            line = await first_line(process, timeout_s)
        finally:
            try:
                await end(process)
            finally:
                assert process.stdout is not None
                process.stdout.close()
        stderr.seek(0)
        said = stderr.read().decode(errors="replace").strip().splitlines()
    return line, said[-1] if said else "it said nothing"


async def end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """SIGTERM, up to ``grace_s`` to obey, then SIGKILL for the group; returns when none is left. Safe to repeat."""
    group = process.pid
    try:
        if process.poll() is None:
            process.terminate()
            await until(lambda: process.poll() is not None, grace_s)
    finally:
        # Also when we are cancelled: nothing may stay behind.
        kill_group(group)
        process.wait()
    # Grandchildren are not ours to wait for; look until they are gone, so that their ports are free when we return.
    await until(lambda: not group_alive(group), grace_s)
