"""Starts servers as child processes that end with us, and ends them with all of their own
children.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

import asyncli
from asyncli.model.errors import HostError
from asyncli.model.secret_variables import for_child

# This interpreter asks the kernel for SIGTERM at our death (PR_SET_PDEATHSIG = 1), checks that we
# still live, and execs the server. `setpriv --pdeathsig` is missing on some systems and has a race;
# a preexec_fn can deadlock in a process with threads (a notebook). The signal is sent when the
# *thread* that forked ends: start servers from a thread that stays.
_LAUNCHER = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1,signal.SIGTERM,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(0);"
    "sys.argv[2] and open(sys.argv[2],'w').write('0');"
    "os.execv(sys.argv[3],sys.argv[3:])"
)
#: Time between SIGTERM and SIGKILL (s).
GRACE_S = 5.0
# A poll costs microseconds.
_POLL_S = 0.01
_GROUP: contextvars.ContextVar[str] = contextvars.ContextVar("group", default="")


@contextlib.contextmanager
def in_cgroup(procs: Path | None) -> Iterator[None]:
    """Servers started in the block join the control group of this ``cgroup.procs`` (None: ours)
    before they exec: memory taken before they join would stay charged to us (cgroups(7)).
    """
    token = _GROUP.set(str(procs or ""))
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
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``argv`` (with an absolute path) as a child that ends with us, in its own session:
    Ctrl-C does not reach it, and its process group can be killed.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), _GROUP.get(), *argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=for_child() if env is None else env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def import_environment() -> dict[str, str]:
    """Our environment, for a Python child that must import this package whether it is installed or
    not.
    """
    home = str(Path(asyncli.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    return {**for_child(), "PYTHONPATH": path}


def group_alive(group: int) -> bool:
    """Whether a process of the group runs; zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() not in (
                psutil.STATUS_ZOMBIE,
                psutil.STATUS_DEAD,
            ):
                return True
    return False


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll every 10 ms until ``condition()`` is true; returns False after ``timeout_s``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not condition():
        if loop.time() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """The first line of its stdout (a pipe) without the line end, or what there was when it ended;
    None after ``timeout_s``.
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

    if not await until(complete, timeout_s):
        return None
    return bytes(text).partition(b"\n")[0]


async def run_module(
    module: str, arguments: Iterable[object], timeout_s: float
) -> dict[str, Any] | None:
    """Run ``python -m module``; returns the JSON of its first line of output, None if no line comes
    in time. Raises :class:`HostError`, with the last line of its stderr, if it cannot be started or
    prints something else.
    """
    with tempfile.TemporaryFile() as stderr:
        argv = [sys.executable, "-m", module, *map(str, arguments)]
        try:
            process = spawn(argv, stdout=subprocess.PIPE, stderr=stderr, env=import_environment())
        except OSError as error:
            raise HostError(
                f"{module} could not be started ({error.strerror}); see the host's limits of "
                "processes"
            ) from None
        try:
            line = await first_line(process, timeout_s)
        finally:
            try:
                await end(process)
            finally:
                assert process.stdout is not None
                process.stdout.close()
        stderr.seek(0)
        errors = stderr.read().decode(errors="replace").strip().splitlines() or [
            "it printed nothing"
        ]
    try:
        return None if line is None else dict(json.loads(line))
    except ValueError:
        raise HostError(
            f"{module} failed: {errors[-1]}; run it by hand to see more (python -m {module})"
        ) from None


async def end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Send SIGTERM, and after ``grace_s`` SIGKILL to the group; returns when no process is left.
    Safe to repeat.
    """
    group = process.pid
    try:
        if process.poll() is None:
            process.terminate()
            await until(lambda: process.poll() is not None, grace_s)
    finally:
        kill_group(group)
        process.wait()
    # Grandchildren cannot be waited for: poll until they have ended, so that their ports are free.
    await until(lambda: not group_alive(group), grace_s)
