"""The collector of one host: samples the server, the kernel and asyncli once a second. It sends
nothing but status polls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from asyncli.collect.headroom import Headroom
from asyncli.collect.holders import ports_of
from asyncli.collect.kernel import MemoryReader, read_counters, read_sockstat
from asyncli.collect.listeners import Listeners
from asyncli.collect.locate import Found, ServerFacts, describe, doubt, find_server
from asyncli.collect.other_processes import OtherProcesses
from asyncli.collect.privilege import unprivileged
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.processes import (
    ProcessGroup,
    ServerTree,
    listed,
    read_session_cpu,
    read_session_memory,
)
from asyncli.collect.procfs import ancestors, read_unix_ends
from asyncli.collect.sampler import Probe, Sampler, SamplerOptions
from asyncli.collect.server_limits import ServerLimits
from asyncli.collect.sock_diag import server_sockets
from asyncli.collect.status_reader import StatusReader
from asyncli.findings.probes import server_master_ended, server_processes_unknown, server_restarted
from asyncli.model.errors import HostError
from asyncli.model.metrics import (
    KERNEL_TCP_INUSE,
    SERVER_ENDED,
    SERVER_JOINED,
    SERVER_SOCKETS,
    SERVER_SOCKETS_ELSEWHERE,
    SERVER_SOCKETS_UNACKNOWLEDGED,
    SERVER_SOCKETS_WAITING,
    SERVER_STARTED,
)
from asyncli.model.places import real_path
from asyncli.model.plan import Plan
from asyncli.model.products import Frontend

# The kernel walks all sockets, and we read those of the server's ports: some 1.5 us each
# (bench/README.md).
_MOST_SOCKETS = 250_000


class Collector(Sampler):
    """``local``: the target is on this host, so its processes can be found by port.
    ``knows_targets``: the plan's URLs are where clients connect; an agent knows only where the
    server's status page is.

    Use: ``open``, then ``run`` as a task and ``sample_now`` at phase borders, then cancel the task
    and ``close``.
    """

    def __init__(
        self, plan: Plan, options: SamplerOptions, *, local: bool, knows_targets: bool = True
    ) -> None:
        super().__init__(plan, options)
        #: The server as found by :meth:`open`; null if unknown.
        self.server = ServerFacts()
        self.local = local
        self._knows_targets = knows_targets
        #: Set only by :class:`~asyncli.agent.collector.AgentCollector`.
        self.agent: dict[str, Any] | None = None
        self._status: StatusReader | None = None
        if plan.status_url is not None:
            self._status = StatusReader(plan.status_url, plan.tls_options, plan.status_headers)
            self._polls["status"] = self._page
        self._tree: ServerTree | None = None
        self._found_by = ""
        # The connections at the server's ports when they were last counted.
        self._connections: int | None = None

    async def open(self, *, hold: bool = True) -> None:
        """Read the status page once and find the server's processes; ``hold``: used only by an
        agent's collector.

        Raises :class:`PeerError` for an unknown status page, :class:`HostError` for a named process
        that does not exist. A server that is not found is a finding.
        """
        if self._status is not None:
            await self._status.read()
        found = await asyncio.to_thread(self._find)
        self.server = await asyncio.to_thread(describe, found, self._header)
        if found.pids:
            self._report(self.server.not_asked)
        else:
            remedy = "" if found.hidden else found.remedy
            self._report(server_processes_unknown(found.why_not, remedy))
        if self.local:
            self._report(await asyncio.to_thread(doubt, self._plan, found, ours=self._ours()))
        self._report(unprivileged(found.pids, found.hidden, found.remedy))
        self._probes = await asyncio.to_thread(self._standard_probes, found)
        self.begin()

    async def refresh_server(self) -> None:
        """Read :attr:`server` again: it may have been restarted or reconfigured."""
        if self._tree is None:
            return
        found = Found(self._tree.roots, self._found_by, apart=self.server.apart)
        facts = await asyncio.to_thread(describe, found, self._header)
        if facts.name is None:
            return
        if facts.not_asked != self.server.not_asked:
            self._report(facts.not_asked)
        self.server = facts

    def end(self) -> None:
        """Used only by an agent's collector."""

    async def close(self) -> None:
        await super().close()
        if self._status is not None:
            await self._status.close()

    # What is read.

    @property
    def frontends(self) -> dict[str, Frontend]:
        """HAProxy's frontends by its last status page."""
        return {} if self._status is None else self._status.frontends

    @property
    def all_frontends(self) -> Frontend | None:
        """All of them together, by its page for people."""
        return None if self._status is None else self._status.all_frontends

    @property
    def _header(self) -> str:
        return "" if self._status is None else self._status.server_header

    async def _page(self, _: bool) -> ProbeReading:
        assert self._status is not None
        return ProbeReading(await self._status.read())

    def _find(self) -> Found:
        return find_server(self._plan, local=self.local, ours=self._ours())

    def _ours(self) -> set[int]:
        """This process, its ancestors, and the generator."""
        return {*(stat.pid for stat in ancestors(os.getpid())), *self._generator_pids()}

    def _standard_probes(self, found: Found) -> dict[str, Probe]:
        probes: dict[str, Probe] = {"kernel": read_counters, "memory": MemoryReader().read}
        targets = self._plan.targets if self._knows_targets else ()
        ports = sorted({target.port for target in targets if target.port})
        listening = ports_of(found.pids)
        elsewhere = sorted(listening - set(ports)) if ports else []
        if self.local and ports:
            probes["sockets"] = lambda: self._sockets(ports, elsewhere)
        elif self.local and targets and self._plan.listens:
            # The table lists every Unix socket of the host: read it only where nothing else shows
            # that a program accepts.
            paths = {real_path(target.host) for target in targets}
            probes["sockets"] = lambda: _unix_sockets(paths)
        probes |= self._listeners(found, ports)
        if not found.pids:
            return probes | own_probes(self._generator_pids)
        tree = self._tree = ServerTree(found.pids, self._relocate)
        self._found_by = found.how
        server = ProcessGroup("server", tree)
        probes |= {
            "server": lambda: _with_restarts(server.scan(), tree),
            "room": Headroom(lambda: server.pids).read,
        }
        limits = ServerLimits(lambda: server.living)
        probes |= {"limits": limits.read, "mappings": limits.read_mappings}
        # An agent takes those at which the server listens.
        listens = ports or sorted(listening)
        # Read right after the server's processes: those that it forked meanwhile are its own.
        count = (lambda: self._connections) if ports else (lambda: _count(listens))
        others = OtherProcesses(
            lambda: server.pids, self._ours, listens, elsewhere=elsewhere, connections=count
        )
        probes["other_processes"] = others.read
        return probes | own_probes(self._generator_pids, {"server_memory": server.memory})

    def _listeners(self, found: Found, ports: Sequence[int]) -> dict[str, Probe]:
        """The probe of the server's listening sockets of TCP, which its processes or our namespace
        show.
        """
        is_shown = bool(found.pids) or (self.local and bool(ports))
        has_ports = bool(ports) or not self._knows_targets
        if not is_shown or not has_ports:
            return {}
        return {"listeners": Listeners(ports, found.pids, lambda: self._roots).read}

    @property
    def _roots(self) -> Sequence[int]:
        """The server's root processes, as far as they are known."""
        return () if self._tree is None else self._tree.roots

    def _sockets(self, ports: Sequence[int], elsewhere: Sequence[int]) -> ProbeReading:
        """The server's ends of all clients' connections, also at its ports ``elsewhere``; 0 if it
        is in another network namespace. Nothing on a host with so many sockets that counting them
        would delay the other probes.
        """
        if read_sockstat().get(KERNEL_TCP_INUSE, 0.0) > _MOST_SOCKETS:
            self._connections = None
            return ProbeReading()
        sockets = server_sockets(ports)
        self._connections = sockets.accepted
        values = {
            SERVER_SOCKETS: float(sockets.accepted),
            SERVER_SOCKETS_WAITING: float(sockets.waiting),
            SERVER_SOCKETS_UNACKNOWLEDGED: float(sockets.unacknowledged),
        }
        if elsewhere:
            values[SERVER_SOCKETS_ELSEWHERE] = float(server_sockets(elsewhere).accepted)
        return ProbeReading(values)

    def _relocate(self) -> Sequence[int]:
        """The roots of a restarted server; none for --server-pid: another process may have that pid
        now.
        """
        if self._plan.server_pid is not None:
            return ()
        try:
            return self._find().pids
        except HostError:
            return ()


def own_probes(
    generator_pids: Callable[[], Sequence[int]], expensive: dict[str, Probe] | None = None
) -> dict[str, Probe]:
    """The probes of the generator and the session; ``expensive`` ones run after the cheap ones."""
    generator = ProcessGroup("generator", listed(generator_pids), may_be_empty=True)
    return {
        "generator": generator.scan, "session": read_session_cpu, **(expensive or {}),
        "generator_memory": generator.memory, "session_memory": read_session_memory,
    }  # fmt: skip


def _unix_sockets(paths: Collection[str]) -> ProbeReading:
    ends = [read_unix_ends(path) for path in paths]
    accepted = sum(accepted_there for accepted_there, _ in ends)
    waiting = sum(waiting_there for _, waiting_there in ends)
    return ProbeReading({SERVER_SOCKETS: float(accepted), SERVER_SOCKETS_WAITING: float(waiting)})


def _count(ports: Sequence[int]) -> int | None:
    """The accepted connections at these ports; None if there are none, or too many sockets on the
    host to count them.
    """
    if not ports or read_sockstat().get(KERNEL_TCP_INUSE, 0.0) > _MOST_SOCKETS:
        return None
    return server_sockets(ports).accepted


def _with_restarts(reading: ProbeReading, tree: ServerTree) -> ProbeReading:
    reading.values[SERVER_ENDED] = float(tree.ended)
    reading.values[SERVER_STARTED] = float(tree.started)
    reading.values[SERVER_JOINED] = float(tree.joined)
    if tree.restarts:
        reading.findings.append(server_restarted(tree.roots[0]))
    if tree.orphaned:
        reading.findings.append(server_master_ended(tree.orphaned))
    return reading
