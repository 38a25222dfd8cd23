"""The collector: once a second what the server, the kernel and we ourselves use, without ever blocking the event loop.

Everything in /proc is read by one thread; the status page by the loop. A probe that fails leaves a gap and a
finding, and never ends the run. Nothing is sent anywhere but to the status URL that the plan gives.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asyncli.collect.kernel import SlabReader, read_counters
from asyncli.collect.locate import Found, ServerFacts, describe, find_server, own_ancestry
from asyncli.collect.probes import Outage, Reading, Schedule
from asyncli.collect.processes import (
    ProcessesGoneError,
    ProcessGroup,
    ServerTree,
    listed,
    read_session_cpu,
    read_session_memory,
)
from asyncli.collect.room import Room
from asyncli.collect.status import StatusReader
from asyncli.errors import HostError
from asyncli.findings.probes import server_ended, server_master_ended, server_processes_unknown, server_restarted
from asyncli.metrics import PROBE, SERVER_ENDED
from asyncli.plan import Plan
from asyncli.records import Finding, Sample

# A sample waits this long for what was asked in its second; what comes later joins the next one, so a slow status page
# costs neither the second nor the kernel's numbers.
_ROUND_WAIT_S = 0.5
# A thread that is stuck in the kernel (a process that holds its memory map, a dead disk) is an outage from here on.
_STALL_S = 2.0
# At a phase border everything is awaited: longer than the status page's own limit of 2 s.
_BORDER_WAIT_S = 2.5

Read = Callable[[], Reading]


class _Outcome:
    """One blocking probe's round: what it gave or why not, and its CPU time."""

    __slots__ = ("cost_s", "error", "name", "reading")

    def __init__(self, name: str, reading: Reading | None, error: Exception | None, cost_s: float) -> None:
        self.name, self.reading, self.error, self.cost_s = name, reading, error, cost_s


class _Job:
    """The due probes of one second, run in turn in the thread; outcomes come back through a deque as they finish."""

    def __init__(self, probes: Sequence[tuple[str, Read]], begun_s: float) -> None:
        self.begun_s = begun_s
        self.current = probes[0][0]
        self.outcomes: deque[_Outcome] = deque()
        self.future: asyncio.Future[None] | None = None
        self._probes = probes

    def run(self) -> None:
        for name, read in self._probes:
            self.current = name
            reading, error = None, None
            # CPU time, not wall time: on a busy host the wait for a core is no cost of the probe.
            begun = time.thread_time()
            try:
                reading = read()
            except Exception as caught:  # whatever a probe does wrong is a gap, never the end of a run of hours
                error = caught
            self.outcomes.append(_Outcome(name, reading, error, time.thread_time() - begun))


class Collector:
    """Samples on the whole seconds of ``clock`` (the run's own, in seconds) go to ``on_sample``, in the loop's thread.

    ``generator_pids`` names the host process and its workers, each until it has ended. ``local``: the target is on this
    host, so its processes may be looked for by port. Use: ``open``, then ``run`` as a task and ``sample_now`` at the
    borders of phases, then cancel the task and ``close``.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        clock: Callable[[], float],
        generator_pids: Callable[[], Sequence[int]],
        on_sample: Callable[[Sample], None],
        on_finding: Callable[[Finding], None],
        local: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        probes: Sequence[tuple[str, Read]] | None = None,
    ) -> None:
        #: The server as found by :meth:`open`; null where unknown.
        self.server = ServerFacts()
        self.local = local
        #: What the environment keeps of an agent that reads in our place: here nobody does.
        self.agent: dict[str, Any] | None = None
        self._plan = plan
        self._clock, self._sleep = clock, sleep
        self._generator_pids = generator_pids
        self._on_sample, self._on_finding = on_sample, on_finding
        self._status = None if plan.status_url is None else StatusReader(plan.status_url)
        self._probes = None if probes is None else tuple(probes)
        self._tree: ServerTree | None = None
        self._found_by = ""
        self._schedules: dict[str, Schedule] = {}
        self._begun: tuple[float, float] | None = None
        self._outages: dict[str, Outage] = {}
        self._said: set[str] = set()
        self._pids: tuple[int, ...] = ()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncli-probes")
        self._lock = asyncio.Lock()
        self._job: _Job | None = None
        self._poll: asyncio.Task[tuple[dict[str, float], float]] | None = None
        self._polled_s = 0.0

    @property
    def status_connects(self) -> int:
        """Connections that the status polls have made: what they added to the server's accepts."""
        return 0 if self._status is None else self._status.connects

    async def open(self, *, hold: bool = True) -> None:
        """Read the status page once and find the server's processes; ``hold``: of an agent's collector, here nothing.

        Raises :class:`PeerError` when the given status URL is no status page that we know, :class:`HostError` when a process
        that the plan names does not exist. A server that is merely not found is a finding.
        """
        header = ""
        if self._status is not None:
            await self._status.read()
            header = self._status.server_header
        self._pids = tuple(self._generator_pids())
        in_thread = asyncio.get_running_loop().run_in_executor
        found = await in_thread(self._thread, self._find)
        self.server = await in_thread(self._thread, describe, found, header)
        self._say(server_processes_unknown(found.why_not, found.remedy) if not found.pids else self.server.not_asked)
        if self._probes is None:
            self._probes = self._standard_probes(found)
        self.begin()

    async def describe_anew(self) -> None:
        """Have :attr:`server` speak of the processes and the configuration of now: who looks on for weeks sees it restarted."""
        if self._tree is not None:
            header = "" if self._status is None else self._status.server_header
            facts = await asyncio.to_thread(describe, Found(self._tree.roots, self._found_by), header)
            # Of one that has just ended there is nothing to say.
            if facts.name is not None:
                self._say(facts.not_asked if facts.not_asked != self.server.not_asked else None)
                self.server = facts

    async def run(self) -> None:
        """Sample until cancelled. A second that passed while the loop was busy is a gap: it is not made up for."""
        while True:
            second = math.floor(self._clock()) + 1
            while (wait_s := second - self._clock()) > 0:
                await self._sleep(wait_s)
            async with self._lock:
                await self._round(float(second))

    async def sample_now(self) -> Sample:
        """Everything read at once, whatever its budget, for the borders of phases; ``on_sample`` gets it as well.

        Takes as long as the slowest answer: some tens of milliseconds, at most 5 s when the status page hangs. What
        did not answer is absent.
        """
        async with self._lock:
            return await self._round(self._clock(), everything=True)

    def begin(self) -> None:
        """A run begins, as long as the plan's: its first seconds may be read more often than the budget allows all along."""
        now_s = self._clock()
        self._begun = (now_s, self._plan.lasts_s)
        for one in self._schedules.values():
            one.begin(*self._begun)

    def end(self) -> None:
        """The run is over: what is missing by now stays so. Here each probe has said it."""

    async def close(self) -> None:
        """Close the connection to the status page, and let the thread go."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.wait({self._poll})
            self._poll = None
        if self._status is not None:
            await self._status.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # One round.

    async def _round(self, now_s: float, everything: bool = False) -> Sample:
        self._pids = tuple(self._generator_pids())
        values: dict[str, float] = {}
        if everything:
            # What is under way was asked before the border: it is awaited and dropped, then asked again.
            await self._wait(_BORDER_WAIT_S)
            self._gather(now_s, {})
        sample = Sample(t_s=self._clock(), values=values)
        self._launch(now_s, everything)
        await self._wait(_BORDER_WAIT_S if everything else _ROUND_WAIT_S)
        self._gather(now_s, values)
        if values:
            self._on_sample(sample)
        return sample

    def _launch(self, now_s: float, everything: bool) -> None:
        if self._status is not None and self._poll is None:
            self._poll, self._polled_s = asyncio.ensure_future(_timed(self._status)), self._clock()
        if self._job is None:
            due = [(name, read) for name, read in self._probes or () if everything or self._schedule(name).due(now_s)]
            if due:
                self._job = _Job(due, now_s)
                self._job.future = asyncio.get_running_loop().run_in_executor(self._thread, self._job.run)

    async def _wait(self, timeout_s: float) -> None:
        pending: set[asyncio.Future[None] | asyncio.Task[tuple[dict[str, float], float]]] = set()
        if self._job is not None and self._job.future is not None:
            pending.add(self._job.future)
        if self._poll is not None:
            pending.add(self._poll)
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    def _gather(self, now_s: float, values: dict[str, float]) -> None:
        """Take in whatever has come."""
        if self._poll is not None and self._poll.done():
            poll, self._poll = self._poll, None
            self._take_poll(now_s, poll, values)
        job = self._job
        if job is None or job.future is None:
            return
        # Asked first: an outcome that comes between the two questions is then taken in the next second, not lost.
        done = job.future.done()
        while job.outcomes:
            self._take(now_s, job.outcomes.popleft(), values)
        if done:
            self._job = None
        elif now_s - job.begun_s >= _STALL_S:
            self._say(self._outage(job.current).failed(job.begun_s, f"no answer in {now_s - job.begun_s:.0f} s"))

    def _take(self, now_s: float, outcome: _Outcome, values: dict[str, float]) -> None:
        name = outcome.name
        self._say(self._schedule(name).spent(now_s, outcome.cost_s))
        if outcome.reading is None:
            lost = self._outage(name).failed(now_s, _words(outcome.error))
            # That the server itself is gone explains every loss after it, and must not hide among the probes' gaps.
            ended = lost is not None and isinstance(outcome.error, ProcessesGoneError)
            self._say(server_ended(now_s, _words(outcome.error), self._plan.server_pid) if ended else lost)
            return
        self._say(self._outage(name).answered(now_s))
        values.update(outcome.reading.values)
        values[f"{PROBE}{name}"] = outcome.cost_s
        for finding in outcome.reading.findings:
            if finding.code not in self._said:
                self._said.add(finding.code)
                self._on_finding(finding)

    def _take_poll(self, now_s: float, poll: asyncio.Task[tuple[dict[str, float], float]], values: dict[str, float]) -> None:
        error = poll.exception()
        if error is not None:
            # It has been silent since it was asked.
            self._say(self._outage("status").failed(self._polled_s, _words(error)))
            return
        page, took_s = poll.result()
        self._say(self._outage("status").answered(now_s))
        values.update(page)
        values[f"{PROBE}status"] = took_s

    def _say(self, finding: Finding | None) -> None:
        if finding is not None:
            self._on_finding(finding)

    def _schedule(self, name: str) -> Schedule:
        if name not in self._schedules:
            one = self._schedules[name] = Schedule(name)
            if self._begun is not None:
                one.begin(*self._begun)
        return self._schedules[name]

    def _outage(self, name: str) -> Outage:
        return self._outages.setdefault(name, Outage(name))

    # What is read.

    def _find(self) -> Found:
        return find_server(self._plan, local=self.local, ours=own_ancestry() | set(self._pids))

    def _standard_probes(self, found: Found) -> tuple[tuple[str, Read], ...]:
        """Cheap ones first: a dear one that stalls holds up only those behind it."""
        generator = ProcessGroup("generator", listed(lambda: self._pids), may_be_empty=True)
        probes: list[tuple[str, Read]] = [("kernel", read_counters), ("slab", SlabReader().read)]
        memory: list[tuple[str, Read]] = []
        if found.pids:
            tree = self._tree = ServerTree(found.pids, self._find_again)
            self._found_by = found.how
            server = ProcessGroup("server", tree)
            probes += [("server", lambda: _with_restarts(server.scan(), tree)), ("room", Room(lambda: server.pids).read)]
            memory.append(("server_memory", server.memory))
        probes += [("generator", generator.scan), ("session", read_session_cpu)]
        memory += [("generator_memory", generator.memory), ("session_memory", read_session_memory)]
        return (*probes, *memory)

    def _find_again(self) -> Sequence[int]:
        """Roots of a server that came back. A pid that the plan names is not looked for: a new process may bear it."""
        if self._plan.server_pid is not None:
            return ()
        try:
            return self._find().pids
        except HostError:
            return ()


async def _timed(status: StatusReader) -> tuple[dict[str, float], float]:
    """The status page and the seconds it took. Its CPU stays within the budget, so it has no schedule."""
    begun = time.perf_counter()
    page = await status.read()
    return page, time.perf_counter() - begun


def _with_restarts(reading: Reading, tree: ServerTree) -> Reading:
    reading.values[SERVER_ENDED] = float(tree.ended)
    if tree.restarts:
        reading.findings.append(server_restarted(tree.roots[0]))
    if tree.orphaned:
        reading.findings.append(server_master_ended(tree.orphaned))
    return reading


def _words(error: BaseException | None) -> str:
    """An error in one line: a user's error as it stands, any other with its type."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text if text and type(error).__module__.startswith("asyncli.") else f"{type(error).__name__}: {text}"
