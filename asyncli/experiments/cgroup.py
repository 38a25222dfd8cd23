"""A memory control group for a server: what the kernel charges for it alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

from asyncli.collect.groups import Group, memory_group
from asyncli.experiments.context import Context
from asyncli.findings.experiment import no_group
from asyncli.lab import child
from asyncli.lab.base import LabServer
from asyncli.metrics import SERVER_PSS_BYTES
from asyncli.records import Sample

# Often enough for the shortest plateau's rest.
_EVERY_S = 0.1
# A process that was killed leaves its group once its parent has waited for it.
_EMPTY_S = 5.0


class Charges:
    """The charge of a server's group without file cache, from its start; no samples without a group."""

    def __init__(self) -> None:
        #: By this host's monotonic clock, under the name of the server's memory, whose line it is fitted as.
        self.samples: list[Sample] = []
        #: Whether accepted sockets are in it.
        self.with_sockets = False

    async def read(self, group: Group) -> None:
        """Until it is cancelled."""
        # Since Linux 6.12, and of cgroup v2 alone (inet_csk_accept()).
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        self.with_sockets = group.second and release is not None and (int(release[1]), int(release[2])) >= (6, 12)
        while True:
            self.samples.append(Sample(time.monotonic(), {SERVER_PSS_BYTES: float(group.held_bytes)}))
            await asyncio.sleep(_EVERY_S)


@contextlib.asynccontextmanager
async def charged(context: Context, server: LabServer) -> AsyncIterator[Charges]:
    """Run ``server`` in its own group and sample that; where none can be made, without, and with a finding."""
    charges = Charges()
    async with contextlib.AsyncExitStack() as stack:
        try:
            group = await stack.enter_async_context(own_group())
        except OSError as error:
            if not any(one.code == no_group.code for one in context.findings):
                context.findings.append(no_group(error.strerror or str(error)))
            await stack.enter_async_context(server)
        else:
            with child.inside(group.folder / "cgroup.procs"):
                await stack.enter_async_context(server)
            stack.callback(asyncio.create_task(charges.read(group)).cancel)
        yield charges


@contextlib.asynccontextmanager
async def own_group() -> AsyncIterator[Group]:
    """A memory group, removed at the end, when the server must have ended. Raises OSError where none can be made.

    It is below our own group, so that our limits apply; with cgroup v2 beside it where ours has no limit, since a group with
    processes cannot delegate memory.
    """
    ours = memory_group(*(Path(f"/proc/self/{name}").read_text(encoding="utf-8") for name in ("cgroup", "mountinfo")))
    if ours is None:
        raise FileNotFoundError(errno.ENOENT, "no memory controller")
    place = ours.folder
    if ours.second and "memory" not in ours.read("cgroup.subtree_control").split():
        if ours.read("memory.max").strip() != "max":
            raise PermissionError(errno.EPERM, "our own memory is limited")
        place = place.parent
    group = Group(place / f"asyncli-{os.getpid()}-{os.urandom(4).hex()}", ours.second)
    group.folder.mkdir()
    try:
        # Where no memory is handed on to it, it has no such file.
        group.read("memory.stat")
        yield group
    finally:
        await child.until(lambda: _removed(group.folder), _EMPTY_S)


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
