"""The collector of one host: samples the server, the kernel and asyncli once a second. It sends
nothing but polls of its pages.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from asyncli.collect.answering import PageOf, process_of_page
from asyncli.collect.broker_reader import BrokerReader
from asyncli.collect.forced_collection import Collect
from asyncli.collect.headroom import Headroom
from asyncli.collect.holders import ports_of
from asyncli.collect.kernel import MemoryReader, read_counters, read_sockstat
from asyncli.collect.kernel_log import KernelLog
from asyncli.collect.listeners import Listeners
from asyncli.collect.locate import Found, ServerFacts, describe, doubt, find_server, programs_of
from asyncli.collect.lost_roots import LostRoots
from asyncli.collect.metric_values import mapped_product
from asyncli.collect.metrics_reader import MetricsPages, MetricsReader, PageReader
from asyncli.collect.nginx_workers import NginxWorkers
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
from asyncli.collect.sock_diag import listening_sockets, server_sockets
from asyncli.collect.status_reader import StatusReader
from asyncli.findings.losses import listener_gone
from asyncli.findings.probes import server_master_ended, server_processes_unknown, server_restarted
from asyncli.findings.server import several_servers
from asyncli.model.errors import HostError
from asyncli.model.metrics import (
    KERNEL_TCP_INUSE,
    SERVER_BRIEF,
    SERVER_ENDED,
    SERVER_JOINED,
    SERVER_SOCKETS,
    SERVER_SOCKETS_BYTES,
    SERVER_SOCKETS_ELSEWHERE,
    SERVER_SOCKETS_UNACKNOWLEDGED,
    SERVER_SOCKETS_WAITING,
    SERVER_STARTED,
)
from asyncli.model.metrics_map import mapped_metric
from asyncli.model.places import real_path
from asyncli.model.plan import Plan
from asyncli.model.products import Backend, Frontend
from asyncli.model.records import Finding
from asyncli.model.status_place import is_broker

# The kernel walks all sockets, and we read those of the server's ports: some 1.5 us each
# (bench/README.md).
_MOST_SOCKETS = 250_000
# One or two readings without a listening socket are a restart.
_SURELY_ABSENT = 3


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
        self.collect_by_agent: Collect | None = None
        self._status: StatusReader | None = None
        if plan.status_url is not None:
            self._status = StatusReader(plan.status_url, plan.tls_options, plan.status_headers)
            self._polls["status"] = self._page
        self._metrics = MetricsPages(
            _metrics_readers(plan), has_status_page=plan.status_url is not None
        )
        self._polls.update(self._metrics.polls)
        #: Whose each page of metrics is, by URL.
        self._pages_of: tuple[PageOf, ...] = ()
        self._others: OtherProcesses | None = None
        self._tree: ServerTree | None = None
        self._found_by = ""
        self._kernel_log: KernelLog | None = None
        # The connections at the server's ports when they were last counted.
        self._connections: int | None = None

    async def open(self, *, hold: bool = True) -> None:
        """Read the server's pages once and find its processes; ``hold``: used only by an agent's
        collector.

        Raises :class:`PeerError` for an unknown page, :class:`HostError` for a named process
        that does not exist. A server that is not found is a finding.
        """
        if self._status is not None:
            await self._status.read()
        await self._metrics.open()
        found = await asyncio.to_thread(self._find)
        self.server = await asyncio.to_thread(describe, found, self._header)
        await self._find_processes_of_pages(found.pids)
        self.end()
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

    async def settle_server(self) -> bool:
        """Whether other processes are the server than those that :meth:`open` found: one that ended
        before the first connect is not it. Then :attr:`server` is read again.
        """
        if self._tree is None:
            return False
        living = await asyncio.to_thread(self._tree.living_roots)
        if not living or living == self.server.pids:
            return False
        self._tree.keep_roots(living)
        await self.refresh_server()
        return self.server.pids == living

    def several_servers(self) -> Finding | None:
        """That several programs are the server, each of which may get connections."""
        programs = programs_of(self.server.pids)
        if len(programs) < 2:
            return None
        return several_servers(self.server.name or "", programs)

    async def refresh_server(self) -> None:
        """Read :attr:`server` again: it may have been restarted or reconfigured."""
        if self._tree is None:
            return
        living = await asyncio.to_thread(self._tree.living_roots)
        found = Found(living, self._found_by, apart=self.server.apart)
        facts = await asyncio.to_thread(describe, found, self._header)
        if facts.name is None:
            return
        if facts.not_asked != self.server.not_asked:
            self._report(facts.not_asked)
        self.server = facts
        await self._find_processes_of_pages(living)
        self.end()

    def end(self) -> None:
        """Take into :attr:`server` what the pages of metrics have shown so far."""
        sources = list(self._metrics.sources)
        place = self._metrics.runtime_place
        if place is not None and self._pages_of:
            of_page = self._pages_of[place]
            if self._others is not None:
                of_page = of_page.of_one_of(self._others.behind)
            sources[place] = msgspec.structs.replace(
                sources[place], of_program=of_page.name, of_pid=of_page.pid
            )
        self.server = msgspec.structs.replace(self.server, metrics=tuple(sources))

    async def _find_processes_of_pages(self, server: Sequence[int]) -> None:
        """Find out whose each page of metrics is. ``server``: its root processes."""
        self._pages_of = await asyncio.to_thread(self._processes_of_pages, server)

    def _processes_of_pages(self, server: Sequence[int]) -> tuple[PageOf, ...]:
        pages = zip(self._plan.server_metrics, self._metrics.started_s, strict=True)
        own = self._ours()
        return tuple(process_of_page(url, started_s, server, own) for url, started_s in pages)

    async def close(self) -> None:
        await super().close()
        if self._kernel_log is not None:
            self._kernel_log.close()
        if self._status is not None:
            await self._status.close()
        await self._metrics.close()

    # What is read.

    @property
    def frontends(self) -> dict[str, Frontend]:
        """HAProxy's frontends by its last status page."""
        if self._status is None:
            return {}
        return self._status.frontends

    @property
    def backends(self) -> dict[str, Backend]:
        """HAProxy's backends by its last status page."""
        if self._status is None:
            return {}
        return self._status.backends

    @property
    def all_frontends(self) -> Frontend | None:
        """All frontends together, by its page for people."""
        if self._status is None:
            return None
        return self._status.all_frontends

    @property
    def _header(self) -> str:
        if self._status is None:
            return ""
        return self._status.server_header

    async def _page(self, _: bool) -> ProbeReading:
        assert self._status is not None
        return ProbeReading(await self._status.read())

    def _find(self) -> Found:
        return find_server(self._plan, local=self.local, ours=self._ours())

    def _ours(self) -> set[int]:
        """This process, its ancestors, the generator and asyncli's other processes."""
        own = {stat.pid for stat in ancestors(os.getpid())}
        return own.union(self._generator_pids(), self._helper_pids())

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
        probes |= self._sockets_apart(found, ports)
        if not found.pids:
            return probes | own_probes(self._generator_pids)
        lost = LostRoots(found.pids, self._search, ports)
        tree = self._tree = ServerTree(found.pids, self._relocate, lost.replaced)
        self._found_by = found.how
        server = ProcessGroup("server", tree)
        workers = NginxWorkers()
        self._kernel_log = KernelLog(lambda: server.pids)

        def scan() -> ProbeReading:
            reading = _with_restarts(server.scan(), tree)
            reading.values.update(workers.read(server.living))
            return reading

        probes |= {
            "server": scan,
            "kernel_log": self._kernel_log.read,
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
        self._others = others
        probes["other_processes"] = others.read

        def memory() -> ProbeReading:
            if tree.missing:
                # A partial sum would be a wrong one.
                return ProbeReading()
            return server.memory()

        return probes | own_probes(self._generator_pids, {"server_memory": memory})

    def _listeners(self, found: Found, ports: Sequence[int]) -> dict[str, Probe]:
        """The probe of the server's listening sockets of TCP, which its processes or our namespace
        show; and that it has none while it holds connections.
        """
        is_shown = bool(found.pids) or (self.local and bool(ports))
        has_ports = bool(ports) or not self._knows_targets
        if not is_shown or not has_ports:
            return {}
        listeners = Listeners(ports, found.pids, lambda: self._roots)

        def read() -> ProbeReading:
            reading = listeners.read()
            is_gone = listeners.absent_for >= _SURELY_ABSENT and not found.apart
            if is_gone and self._connections:
                reading.findings.append(listener_gone(self._connections))
            return reading

        return {"listeners": read}

    @property
    def _roots(self) -> Sequence[int]:
        """The server's root processes, as far as they are known."""
        if self._tree is None:
            return ()
        return self._tree.roots

    def _sockets(self, ports: Sequence[int], elsewhere: Sequence[int]) -> ProbeReading:
        """The server's ends of all clients' connections, also at its ports ``elsewhere``; 0 if it
        is in another network namespace. Nothing on a host with so many sockets that counting them
        would delay the other probes.
        """
        if read_sockstat().get(KERNEL_TCP_INUSE, 0.0) > _MOST_SOCKETS:
            self._connections = None
            return ProbeReading()
        sockets = server_sockets(ports, elsewhere, with_memory=self._plan.has_stalls)
        self._connections = sockets.accepted
        values = {
            SERVER_SOCKETS: float(sockets.accepted),
            SERVER_SOCKETS_WAITING: float(sockets.waiting),
            SERVER_SOCKETS_UNACKNOWLEDGED: float(sockets.unacknowledged),
        }
        if self._plan.has_stalls:
            values[SERVER_SOCKETS_BYTES] = float(sockets.memory)
        if elsewhere:
            values[SERVER_SOCKETS_ELSEWHERE] = float(sockets.elsewhere)
        return ProbeReading(values)

    def _sockets_apart(self, found: Found, ports: Sequence[int]) -> dict[str, Probe]:
        """The probe of the memory of the server's sockets in another network namespace of this
        host, if clients are to stall.
        """
        if not self._plan.has_stalls or not found.apart:
            return {}
        pid = found.pids[0]

        def read() -> ProbeReading:
            sockets = server_sockets(ports, with_memory=True, of=pid)
            return ProbeReading({SERVER_SOCKETS_BYTES: float(sockets.memory)})

        return {"sockets_apart": read}

    def _relocate(self) -> Sequence[int]:
        """The roots of a restarted server; none for --server-pid: another process may have that pid
        now.
        """
        if self._plan.server_pid is not None or self._nothing_listens():
            return ()
        return self._search()

    def _search(self) -> Sequence[int]:
        """The roots of the server as it is now; none if it is not found."""
        try:
            return self._find().pids
        except HostError:
            return ()

    def _nothing_listens(self) -> bool:
        """Whether the server to be found by its ports listens at none of them yet. That is known in
        a fraction of a millisecond, and a search takes 0.2 s beside 12,000 descriptors.
        """
        ports = {target.port for target in self._plan.targets if target.port}
        if self._plan.names_server or not ports:
            return False
        try:
            return not listening_sockets(ports)
        except OSError:
            return False


def _metrics_readers(plan: Plan) -> list[PageReader]:
    named = [mapped_metric(text) for text in plan.metrics_map]
    names_active = any(metric.meaning == "active" for metric in named)
    searches = plan.status_url is None and not names_active
    readers: list[PageReader] = []
    for url in plan.server_metrics:
        reads_broker = is_broker(url)
        mapped = mapped_product(named, counts_scrape=reads_broker)
        if reads_broker:
            readers.append(BrokerReader(url, plan.tls_options, mapped))
            continue
        reader = MetricsReader(
            url, plan.tls_options, plan.status_headers, mapped, searches=searches
        )
        readers.append(reader)
    return readers


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
    reading.once_s = tree.search_s
    reading.values[SERVER_ENDED] = float(tree.ended)
    reading.values[SERVER_STARTED] = float(tree.started)
    reading.values[SERVER_JOINED] = float(tree.joined)
    reading.values[SERVER_BRIEF] = float(tree.brief)
    if tree.restarts:
        reading.findings.append(server_restarted(tree.roots[0]))
    if tree.missing:
        reading.findings.append(server_master_ended(min(tree.missing), of_several=True))
    if tree.replaced:
        reading.findings.append(server_restarted(tree.roots[0], sorted(tree.replaced)))
    if tree.orphaned:
        reading.findings.append(server_master_ended(tree.orphaned))
    return reading
