"""What the costs of a run are fitted to: memory over time, and the connections that it is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncli.analysis.holders import Holders
from asyncli.analysis.other_programs import memory_of_others, taken_by_themselves
from asyncli.analysis.proxied_sockets import sockets_brought
from asyncli.analysis.server_count import other_clients_of
from asyncli.analysis.server_memory import behind_server, with_files_at_rest
from asyncli.analysis.slope import Fit, Fitter, minus
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series


class Fitters(NamedTuple):
    """Fitters over the connections that a memory is of: asyncli's own; the server's, which may be
    more; and those of what both ends share.
    """

    own: Fitter
    server: Fitter
    shared: Fitter
    #: The server's count is that of its status page alone.
    by_page: bool = False

    @classmethod
    def of(cls, run: Run) -> Fitters:
        own = Fitter(run, run.held)
        server = own
        clients = other_clients_of(run)
        if clients is not None:
            server = Fitter(run, clients.count, " over the server's own count of connections")
        by_page = clients is not None and clients.by_page
        shared = server if run.sides.server else own
        return cls(own, server, shared, by_page)


class HostMemory(NamedTuple):
    """The sampled host's memory over time, without what belongs to no connection. ``alone``: and
    without other programs' memory; empty if that is unknown.
    """

    whole: Series
    alone: Series
    #: Inodes of /proc, which a program that lists descriptors leaves there.
    listing: Series
    #: What other programs took by themselves.
    by_themselves: Series
    note: str = " of memory in use"

    @classmethod
    def of(cls, run: Run, holders: Holders) -> HostMemory:
        used = run.series(metrics.HOST_USED_BYTES)
        listing = run.series(metrics.KERNEL_LISTING_BYTES)
        note = " of memory in use"
        if listing:
            used = minus(used, [listing])
            note = f"{note} less inodes of /proc"
        others = memory_of_others(run, holders)
        by_themselves = taken_by_themselves(run, others, used.t_s)
        alone = minus(used, [others])
        return cls(minus(used, [by_themselves]), alone, listing, by_themselves, note)


class MemoryOverTime(NamedTuple):
    """The memory over time whose slopes are the costs."""

    user: Series
    #: What ``user`` is: PSS, RSS.
    kind: str
    #: Of the programs behind the server.
    behind: Series
    kernel: Series
    generator: Series
    host: HostMemory

    @classmethod
    def of(cls, run: Run, whole: Run, holders: Holders) -> MemoryOverTime:
        user, kind = with_files_at_rest(run, holders)
        return cls(
            user,
            kind,
            # What ends with the server's processes, or starts with new ones, is not behind it.
            behind_server(whole, holders),
            run.series(metrics.KERNEL_SOCKET_BYTES),
            run.series(metrics.GENERATOR_USS_BYTES),
            HostMemory.of(run, holders),
        )


class Readings(NamedTuple):
    """What was read of a run, and the lines through it. ``run``: without what no line may cross
    (:mod:`asyncli.analysis.gaps`).
    """

    run: Run
    holders: Holders
    fitters: Fitters
    memory: MemoryOverTime
    #: The sockets of a connection on the sampled host: those that the kernel counts by ports, and
    #: Unix sockets.
    counted_ends: int
    over_unix: int
    #: By cost: its line as it was read, or the number of its points if they are too few.
    as_read: Mapping[str, Fit | int] = {}

    @classmethod
    def of(cls, run: Run, whole: Run, holders: Holders) -> Readings:
        """``whole``: the run with its gaps."""
        brought = sockets_brought(whole, holders)
        counted_ends = run.sides.ends + brought.tcp
        fitters = Fitters.of(run)
        memory = MemoryOverTime.of(run, whole, holders)
        unfitted = cls(run, holders, fitters, memory, counted_ends, brought.others)
        return unfitted._replace(as_read=unfitted.fit_each(fitters))

    @property
    def ends(self) -> int:
        return self.counted_ends + self.over_unix

    @property
    def behind_programs(self) -> list[str]:
        return list(self.holders.behind)

    def parts(self) -> dict[str, Series]:
        """The parts of the sampled host's memory."""
        memory = self.memory
        parts = {"kernel": memory.kernel}
        if self.run.sides.generator:
            parts["generator_user"] = memory.generator
        if self.run.sides.server:
            parts["server_user"] = memory.user
        if self.behind_programs:
            parts["behind"] = memory.behind
        return parts

    def fit_each(self, fitters: Fitters) -> dict[str, Fit | int]:
        """The fit of each cost, or the number of its points if there are too few."""
        run = self.run
        memory = self.memory
        server = fitters.server
        shared = fitters.shared
        ends = self.ends
        note = f" of {memory.kind}"
        if memory.kind == "RSS":
            note += " (counts shared pages in each process)"
        per_end = ", per socket end"
        if ends == 2:
            per_end += f" (both on {run.sides.host})"
        elif ends > 2:
            per_end += f" ({ends} on {run.sides.host})"
        programs = ", ".join(self.behind_programs)
        queued = run.series(metrics.KERNEL_TCP_MEM_BYTES)
        return {
            "server_user": server.fit("server_user", memory.user, note=note),
            "behind": server.fit("behind", memory.behind, note=f" of PSS of {programs}"),
            "kernel": shared.fit("kernel", memory.kernel, 1 / ends, f" of slab objects{per_end}"),
            "kernel_queued": shared.fit(
                "kernel_queued", queued, 1 / ends, f" of queued TCP buffers{per_end}"
            ),
            "generator_user": fitters.own.fit("generator_user", memory.generator, note=" of USS"),
            "host_total": shared.fit("host_total", memory.host.whole, note=memory.host.note),
        }
