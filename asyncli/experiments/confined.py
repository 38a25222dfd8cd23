"""A memory limit for a server and all that it starts: a control group of our own, made for it and removed after it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from asyncli.collect.groups import Group, memory_group
from asyncli.errors import HostError
from asyncli.findings.experiment import no_group
from asyncli.lab import child

if TYPE_CHECKING:
    from asyncli.experiments.context import Context

# A process that was killed leaves its group once its parent has waited for it.
_EMPTY_S = 5.0
_REMEDY = "run it as root, where the memory controller may be written"


class MemoryGroup:
    """``async with MemoryGroup(limit_bytes) as group, ...``: what is started ``inside()`` has so much memory, kernel's included.

    Without a limit it only counts. What it never counts is the TCP socket of an accepted connection where it does not
    :attr:`charges_sockets`.

    It is made below the group that we are in, so whatever limits us limits it too; of cgroup v2 beside it, where that has no
    limit of its own. The server must have ended before the block does. Entering raises :class:`HostError` where no group can
    be made. Bytes throughout; the files are those of Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
    """

    def __init__(self, limit_bytes: int | None = None, *, proc: Path = Path("/proc/self")) -> None:
        self.limit_bytes = limit_bytes
        self._proc = proc
        self._group: Group | None = None

    async def __aenter__(self) -> Self:
        try:
            place = find_place(
                (self._proc / "cgroup").read_text(encoding="utf-8"), (self._proc / "mountinfo").read_text(encoding="utf-8")
            )
            if place is None:
                raise HostError(f"this host offers no memory control group below ours; {_REMEDY}")
            remove_leftovers(place.folder)
            folder = place.folder / f"asyncli-{os.getpid()}-{_pid_namespace(self._proc)}-{id(self):x}"
            folder.mkdir()
            self._group = Group(folder, place.second)
            if self.limit_bytes is not None:
                self._write("memory.max" if place.second else "memory.limit_in_bytes", self.limit_bytes)
                # What may be swapped out is not limited. Both files are missing where the kernel does not account for swap.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    name, most = ("memory.swap.max", 0) if place.second else ("memory.memsw.limit_in_bytes", self.limit_bytes)
                    self._write(name, most)
        except OSError as error:
            await self._remove()
            raise HostError(f"no memory control group can be made ({error.strerror}: {error.filename}); {_REMEDY}") from None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._remove()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Lab servers that are started in here are in the group, from their first byte on."""
        with child.inside(self._there.folder / "cgroup.procs"):
            yield

    @property
    def used_bytes(self) -> int:
        """What is charged to it now: user memory, page cache, sockets, stacks and tables."""
        return self._there.used_bytes

    @property
    def held_bytes(self) -> int:
        """The same without the page cache, which is given back when it is needed."""
        return self._there.held_bytes

    @property
    def charges_sockets(self) -> bool:
        """Whether accepted sockets are charged to it: since Linux 6.12, and of cgroup v2 alone (inet_csk_accept())."""
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        return self._there.second and release is not None and (int(release[1]), int(release[2])) >= (6, 12)

    @property
    def refused(self) -> int:
        """How often a page was refused for the limit."""
        return self._there.refused

    @property
    def killed(self) -> int:
        """Processes that the kernel ended for want of memory."""
        return self._there.killed

    async def _remove(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await child.until(lambda: _removed(group.folder), _EMPTY_S)

    @property
    def _there(self) -> Group:
        if self._group is None:
            raise HostError("the memory control group is not there; enter it first")
        return self._group

    def _write(self, name: str, value: int) -> None:
        (self._there.folder / name).write_text(str(value), encoding="ascii")


def find_place(cgroup: str, mountinfo: str) -> Group | None:
    """Where a group can be made below that of a process, by its ``cgroup`` and ``mountinfo`` (proc(5)); None without one.

    Of cgroup v2 the one above it where ours, without a limit, does not hand its memory on to groups below: a group with
    processes in it cannot, but for the root ("no internal processes").
    """
    ours = memory_group(cgroup, mountinfo)
    if ours is None or not ours.second:
        return ours
    for folder in (ours.folder, ours.folder.parent):
        with contextlib.suppress(OSError):
            if "memory" in (folder / "cgroup.subtree_control").read_text(encoding="ascii").split():
                return Group(folder, second=True)
            if ours.read("memory.max").strip() != "max":
                return None
    return None


def remove_leftovers(folder: Path, proc: Path = Path("/proc")) -> None:
    """Remove the groups below ``folder`` whose maker was killed. One with processes in it stays: it cannot be removed.

    Only those of our pid namespace: a container's makers, which may well live, are not to be seen in our /proc by the pid in
    their group's name.
    """
    for group in folder.glob(f"asyncli-*-{_pid_namespace(proc / 'self')}-*"):
        maker = group.name.split("-")[1]
        if maker.isdigit() and not (proc / maker).exists():
            _removed(group)


def _pid_namespace(proc_self: Path) -> int:
    """Its number, the host's own (namespaces(7))."""
    return (proc_self / "ns/pid").stat().st_ino


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


async def counted(context: Context, stack: contextlib.AsyncExitStack) -> MemoryGroup | None:
    """A control group that counts; where none can be made, a finding once, and None."""
    try:
        return await stack.enter_async_context(MemoryGroup())
    except HostError as error:
        why, _, remedy = str(error).partition("; ")
        if all(one.code != no_group.code for one in context.findings):
            context.findings.append(no_group(why, remedy))
        return None
