"""A memory limit for a server and all that it starts: a control group of our own, made for it and removed after it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from asyncli.collect.groups import Group, memory_group
from asyncli.errors import HostError
from asyncli.experiments.context import Context, why_and_remedy
from asyncli.findings.experiment import no_group
from asyncli.lab import child
from asyncli.lab.program import LabServer

# A process that was killed leaves its group once its parent has waited for it.
_EMPTY_S = 5.0
_REMEDY = "run it as root, where the memory controller may be written"


class OwnGroup(Group):
    """A group that we made."""

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Lab servers that are started in here are in the group, from their first byte on."""
        with child.inside(self.folder / "cgroup.procs"):
            yield

    @property
    def charges_sockets(self) -> bool:
        """Whether accepted sockets are charged to it: since Linux 6.12, and of cgroup v2 alone (inet_csk_accept())."""
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        return self.second and release is not None and (int(release[1]), int(release[2])) >= (6, 12)


@contextlib.asynccontextmanager
async def own_group(limit_bytes: int | None = None, *, proc: Path = Path("/proc/self")) -> AsyncIterator[OwnGroup]:
    """A group that counts, or has so much memory, the kernel's included; the server must have ended before the block does.

    It is made below the group that we are in, so whatever limits us limits it too; of cgroup v2 beside it, where that has no
    limit of its own. Raises :class:`HostError` where none can be made. The files are those of
    Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
    """
    group: OwnGroup | None = None
    try:
        try:
            place = find_place((proc / "cgroup").read_text(encoding="utf-8"), (proc / "mountinfo").read_text(encoding="utf-8"))
            if place is None:
                raise HostError(f"this host offers no memory control group below ours; {_REMEDY}")
            remove_leftovers(place.folder)
            folder = place.folder / f"asyncli-{os.getpid()}-{_pid_namespace(proc)}-{os.urandom(4).hex()}"
            folder.mkdir()
            group = OwnGroup(folder, place.second)
            if limit_bytes is not None:
                _limit(group, limit_bytes)
        except OSError as error:
            raise HostError(f"no memory control group can be made ({error.strerror}: {error.filename}); {_REMEDY}") from None
        yield group
    finally:
        if group is not None:
            folder = group.folder
            await child.until(lambda: _removed(folder), _EMPTY_S)


def _limit(group: Group, limit_bytes: int) -> None:
    (group.folder / ("memory.max" if group.second else "memory.limit_in_bytes")).write_text(str(limit_bytes), encoding="ascii")
    # What may be swapped out is not limited. Both files are missing where the kernel does not account for swap.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        name, most = ("memory.swap.max", 0) if group.second else ("memory.memsw.limit_in_bytes", limit_bytes)
        (group.folder / name).write_text(str(most), encoding="ascii")


@contextlib.asynccontextmanager
async def counted(context: Context, server: LabServer) -> AsyncIterator[OwnGroup | None]:
    """``server`` runs in a control group that counts; where none can be made a finding says so once, and it runs without."""
    async with contextlib.AsyncExitStack() as stack:
        group = None
        try:
            group = await stack.enter_async_context(own_group())
        except HostError as error:
            if not context.found(no_group.code):
                context.findings.append(no_group(*why_and_remedy(error)))
        stack.push_async_callback(server.stop)
        with group.inside() if group is not None else contextlib.nullcontext():
            await server.start()
        yield group


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
