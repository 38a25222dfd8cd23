"""Safe use of other users' programs and files by a process that may be root.

A program is run only if only root or we could have written it. A file that another user's process
names is read only if that user may read it, if it is a regular file, and up to a limit: asyncli
must not show root's files, block on a FIFO, or read endlessly.

Both are used through the checked descriptor, so a later rename has no effect.
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

# A program prints its version within milliseconds, but a file system may hang.
_TIMEOUT_S = 5.0
# `nginx -V` with all of its modules is 2 kB.
_LONGEST_ANSWER = 64 * 1024
# Without secrets, and without variables for the loader or the locale.
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PATH_FLAGS = os.O_PATH | os.O_CLOEXEC


class User(NamedTuple):
    """The numeric real user and groups of a process."""

    uid: int
    groups: frozenset[int] = frozenset()
    #: Its real, effective, saved and file system's user.
    all: frozenset[int] = frozenset()


#: A user without any permission.
NOBODY = User(-1)


class ProgramOutput(NamedTuple):
    """A program's output, or ``why_not``: the reason why it was not run. ``distrusted``: others
    could change its file.
    """

    text: str = ""
    why_not: str = ""
    distrusted: bool = False


class _PathFile(NamedTuple):
    """An O_PATH descriptor of a file, and the stat of it and of every folder above it."""

    fd: int
    steps: list[tuple[str, os.stat_result]]


def ask_server(exe: str, flag: str, pid: int, proc: Path = Path("/proc")) -> ProgramOutput:
    """The output of ``exe``, the program of the process ``pid``, for ``flag``: see
    :func:`ask_program`.

    It is run only if it is the file that the process runs (not a container's or a newer one), and
    if only root or we may write it and every folder above it.
    """
    with contextlib.ExitStack() as stack:
        try:
            opened = _open_path(exe)
            stack.callback(os.close, opened.fd)
            for step in reversed(opened.steps):
                distrust = _writable_by_others(step)
                if distrust:
                    return ProgramOutput(why_not=distrust, distrusted=True)
            path, file = opened.steps[-1]
            running = os.stat(f"{proc}/{pid}/exe")
            if (file.st_dev, file.st_ino) != (running.st_dev, running.st_ino):
                return ProgramOutput(
                    why_not=f"the process runs another file than {path}: that was replaced, "
                    "or the process is in a container"
                )
            return ProgramOutput(ask_program(exe, flag, fd=opened.fd))
        except OSError as error:
            return ProgramOutput(why_not=f"{exe}: {error.strerror}")


def ask_program(path: str, flag: str, fd: int | None = None) -> str:
    """A program's output for ``flag``, stdout and stderr, at most 64 KiB; "" if it cannot be run.

    ``fd``: the open file with the name ``path``. The program gets a minimal environment, no
    terminal and 5 s, and its children are killed with it. It must be trusted; use
    :func:`ask_server` for others.
    """
    path = os.path.abspath(path)
    until_s = time.monotonic() + _TIMEOUT_S
    output = b""
    executable = path
    pass_fds: tuple[int, ...] = ()
    if fd is not None:
        executable = f"/proc/self/fd/{fd}"
        # A script's interpreter opens it again by this name.
        pass_fds = (fd,)
    try:
        process = subprocess.Popen(
            [path, flag],
            executable=executable,
            pass_fds=pass_fds,
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
    # Not select(): it takes no descriptor above 1,023, and an agent or a notebook may have more.
    poll = select.poll()
    with process.stdout as pipe:
        poll.register(pipe, select.POLLIN)
        while len(output) < _LONGEST_ANSWER and poll.poll(
            max(0.0, until_s - time.monotonic()) * 1e3
        ):
            part = os.read(pipe.fileno(), _LONGEST_ANSWER - len(output))
            if not part:
                break
            output += part
    # Before the leader is reaped: until then the group's number cannot be reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TIMEOUT_S)
    return output.decode("utf-8", "replace")


def read_regular(path: str | os.PathLike[str], most: int, user: User | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes that ``user`` (None: we) may read.

    Raises OSError: EACCES if ``user`` may not read it, EINVAL if it is not a regular file, EFBIG if
    it is longer.
    """
    name = os.fspath(path)
    fd = _open_for(name, user)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        # /proc has regular files that block until there is something to read.
        opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(fd)
    with open(opened, "rb", buffering=0) as file:
        parts = []
        size = 0
        while part := file.read(min(1 << 20, most + 1 - size)):
            parts.append(part)
            size += len(part)
            if size > most:
                raise OSError(errno.EFBIG, f"longer than {most:,} bytes", name)
        return b"".join(parts)


def user_of(pid: int, proc: Path = Path("/proc")) -> User:
    """The real user of a process, regardless of set-user-ID programs; NOBODY if it has ended."""
    try:
        fields = {}
        for line in (proc / str(pid) / "status").read_text("ascii", "replace").splitlines():
            name, _, values = line.partition(":")
            fields[name] = values.split()
        users = [int(user) for user in fields["Uid"]]
        groups = [int(group) for group in (fields["Gid"][0], *fields.get("Groups", []))]
        return User(users[0], frozenset(groups), frozenset(users))
    except (OSError, KeyError, IndexError, ValueError):
        return NOBODY


def _open_for(path: str, user: User | None) -> int:
    """An O_PATH descriptor of the file at ``path``. Raises OSError if ``user`` may not read it."""
    if user is None or user.uid in (0, os.geteuid()):
        return os.open(path, _PATH_FLAGS)
    opened = _open_path(path)
    *folders, (_, file) = opened.steps
    may_search = all(_allows(folder, user, 1) for _, folder in folders)
    if may_search and _allows(file, user, 4):
        return opened.fd
    os.close(opened.fd)
    raise OSError(errno.EACCES, f"user {user.uid}, who runs the server, may not read it", path)


def _open_path(path: str) -> _PathFile:
    """Open the file at ``path``, walking from the root with one descriptor after the other. Raises
    OSError.
    """
    fd = os.open("/", _PATH_FLAGS | os.O_DIRECTORY)
    place = ""
    steps = [("/", os.fstat(fd))]
    try:
        for name in Path(os.path.realpath(path, strict=True)).parts[1:]:
            # Links are resolved above; O_NOFOLLOW refuses one that was created since.
            below = os.open(name, _PATH_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
            place = f"{place}/{name}"
            steps.append((place, os.fstat(fd)))
    except OSError:
        os.close(fd)
        raise
    return _PathFile(fd, steps)


def _writable_by_others(step: tuple[str, os.stat_result]) -> str:
    """Why users other than root and us could change this step of a path; "": they cannot. An ACL
    shows in the group's bits.
    """
    place, file = step
    if file.st_uid not in (0, os.geteuid()):
        return f"{place} belongs to user {file.st_uid}"
    if file.st_mode & _GROUP_OR_OTHERS_WRITE:
        return f"others may write {place} (mode {stat.S_IMODE(file.st_mode):o})"
    return ""


def _allows(file: os.stat_result, user: User, bit: int) -> bool:
    """Whether ``user`` has the permission (4 read, 1 search); the first matching class decides
    (path_resolution(7)).
    """
    if file.st_uid == user.uid:
        mode = file.st_mode >> 6
    elif file.st_gid in user.groups:
        mode = file.st_mode >> 3
    else:
        mode = file.st_mode
    return bool(mode & bit)
