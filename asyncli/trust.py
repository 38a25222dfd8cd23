"""Other users' programs and files, met by a process that may be root.

A program is run only where only root or we could have put it there. A file that another user's process names is read only where
that user may read it, only a regular file, and only up to a bound: asyncli must not show root's files, wait at a FIFO, or read
without end.

Both are used by the descriptor that was checked, so a later rename changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

# It prints and exits within milliseconds; a file system may hang.
_TIMEOUT_S = 5.0
# `nginx -V` with all of its modules is 2 kB.
_LONGEST_ANSWER = 64 * 1024
# No secret, and nothing that changes the loader or the locale.
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PATH_FLAGS = os.O_PATH | os.O_CLOEXEC


class User(NamedTuple):
    """A process's real user and groups, by number."""

    uid: int
    groups: frozenset[int] = frozenset()


#: A user without any permission.
NOBODY = User(-1)


class ProgramOutput(NamedTuple):
    """A program's output, or ``why_not`` it was not run. ``distrusted``: others could change its file."""

    text: str = ""
    why_not: str = ""
    distrusted: bool = False


class _PathFile(NamedTuple):
    """A path's file, open without being read or run, and what the kernel says of it and of every folder above it."""

    fd: int
    steps: list[tuple[str, os.stat_result]]


def ask_server(exe: str, flag: str, pid: int, proc: Path = Path("/proc")) -> ProgramOutput:
    """The output of ``exe``, the program of the process ``pid``, for ``flag``: see :func:`ask_program`.

    It is run only where it is the file that the process runs (not a container's, nor a newer one), and where only root or we may
    write it and every folder above it.
    """
    try:
        found = _open_path(exe)
    except OSError as error:
        return ProgramOutput(why_not=f"{exe}: {error.strerror}")
    try:
        open_to = next((said for said in map(_writable_by_others, reversed(found.steps)) if said), "")
        if open_to:
            return ProgramOutput(why_not=open_to, distrusted=True)
        path, file = found.steps[-1]
        theirs = os.stat(f"{proc}/{pid}/exe")
        if (file.st_dev, file.st_ino) != (theirs.st_dev, theirs.st_ino):
            why_not = f"the process runs another file than {path}: that was replaced, or is outside of its container"
            return ProgramOutput(why_not=why_not)
        return ProgramOutput(ask_program(exe, flag, fd=found.fd))
    except OSError as error:
        return ProgramOutput(why_not=f"{exe}: {error.strerror}")
    finally:
        os.close(found.fd)


def ask_program(path: str, flag: str, fd: int | None = None) -> str:
    """A program's output for ``flag``, stdout and stderr, at most 64 KiB; "" where it cannot be run.

    ``fd``: the open file, of which ``path`` is the name. It gets a minimal environment, no terminal and 5 s; its children end
    with it. It must be trusted: others go to :func:`ask_server`.
    """
    path, until_s = os.path.abspath(path), time.monotonic() + _TIMEOUT_S
    said = b""
    try:
        process = subprocess.Popen(
            [path, flag],
            executable=path if fd is None else f"/proc/self/fd/{fd}",
            # A script's interpreter opens it once more, by this name.
            pass_fds=() if fd is None else (fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return ""
    assert process.stdout is not None
    # Not select(): it takes no descriptor past 1,023, of which an agent or a notebook may have more.
    poll = select.poll()
    with process.stdout as pipe:
        poll.register(pipe, select.POLLIN)
        while len(said) < _LONGEST_ANSWER and poll.poll(max(0.0, until_s - time.monotonic()) * 1e3):
            part = os.read(pipe.fileno(), _LONGEST_ANSWER - len(said))
            if not part:
                break
            said += part
    # Before the leader is reaped: until then the group's number is not reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TIMEOUT_S)
    return said.decode("utf-8", "replace")


def read_regular(path: str | os.PathLike[str], most: int, user: User | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes that ``user`` (None: we) may read.

    Raises OSError: EACCES where ``user`` may not read it, EINVAL for no regular file, EFBIG for a longer one.
    """
    name = os.fspath(path)
    fd = _open_for(name, user)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        # /proc and the like have regular files that wait for something to read.
        opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(fd)
    with open(opened, "rb", buffering=0) as file:
        parts, size = [], 0
        while part := file.read(min(1 << 20, most + 1 - size)):
            parts.append(part)
            size += len(part)
            if size > most:
                raise OSError(errno.EFBIG, f"longer than {most:,} bytes", name)
        return b"".join(parts)


def user_of(pid: int, proc: Path = Path("/proc")) -> User:
    """The real user of a process, whatever a set-user-ID file adds. NOBODY where it has ended."""
    try:
        lines = (proc / str(pid) / "status").read_text("ascii", "replace").splitlines()
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return User(int(fields["Uid"][0]), frozenset(map(int, [fields["Gid"][0], *fields.get("Groups", [])])))
    except (OSError, KeyError, IndexError, ValueError):
        return NOBODY


def _open_for(path: str, user: User | None) -> int:
    """A descriptor (O_PATH) of the file that ``path`` leads to, where ``user`` may read it; else OSError."""
    if user is None or user.uid in (0, os.geteuid()):
        return os.open(path, _PATH_FLAGS)
    found = _open_path(path)
    *folders, (_, file) = found.steps
    if all(_allows(folder, user, 1) for _, folder in folders) and _allows(file, user, 4):
        return found.fd
    os.close(found.fd)
    raise OSError(errno.EACCES, f"user {user.uid}, whose server it is, may not read it", path)


def _open_path(path: str) -> _PathFile:
    """The file that ``path`` leads to, found from the root by one descriptor after the other. Raises OSError."""
    fd = os.open("/", _PATH_FLAGS | os.O_DIRECTORY)
    at = ""
    steps = [("/", os.fstat(fd))]
    try:
        for name in Path(os.path.realpath(path, strict=True)).parts[1:]:
            # Resolved above: a symbolic link was put there since.
            below = os.open(name, _PATH_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd, at = below, f"{at}/{name}"
            steps.append((at, os.fstat(fd)))
    except OSError:
        os.close(fd)
        raise
    return _PathFile(fd, steps)


def _writable_by_others(step: tuple[str, os.stat_result]) -> str:
    """Why others than root and we could change what is there; "" where they cannot. An access list shows in the group's bits."""
    at, found = step
    if found.st_uid not in (0, os.geteuid()):
        return f"{at} belongs to user {found.st_uid}"
    if found.st_mode & _GROUP_OR_OTHERS_WRITE:
        return f"others may write {at} (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _allows(found: os.stat_result, user: User, bit: int) -> bool:
    """Whether ``user`` has the permission (4 read, 1 search): the first class that fits decides (path_resolution(7))."""
    shift = 6 if found.st_uid == user.uid else 3 if found.st_gid in user.groups else 0
    return bool(found.st_mode >> shift & bit)
