"""Asks the server's runtime for collections at the instants of a soak that show what is alive:
before the first connect, at the end of each plateau, at the hold's end and after the drain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from asyncli.app.progress import Progress
from asyncli.collect.forced_collection import (
    Collect,
    Collection,
    by_command,
    by_runtime,
    by_url,
    collection,
    require_small_heap,
)
from asyncli.collect.locate import ServerFacts
from asyncli.findings.collected import collection_failed
from asyncli.model import metrics
from asyncli.model.errors import PeerError
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample

# A collection before a plateau's end begins so early (s), or by so many times the longest so far.
_LEAD_S = 1.0
_TIMES_LONGEST = 3.0
# The first may free what the server's start left, and loads code.
_BEFORE_CONNECTS = 2
# What Go's pools keep of closed connections (sync.Pool, two buffers of 4 kB of each in net/http)
# goes at the second collection, and so do objects with finalizers.
_AFTER_DRAIN = 2


class ForcedCollections:
    """The collections of one soak. After one that fails no more are asked for.

    ``command``: of ``--collect COMMAND``; "" where the plan says how. ``read_all``: reads
    everything now, the page of metrics too, which says what is alive where the collection does not.
    ``by_agent``: asks the agent on the server's host, which alone can ask its processes; None
    without an agent.
    """

    def __init__(
        self,
        plan: Plan,
        command: str,
        server: ServerFacts,
        progress: Progress,
        *,
        read_all: Callable[[], Awaitable[Sample]],
        by_agent: Collect | None,
        on_sample: Callable[[Sample], None],
        on_finding: Callable[[Finding], None],
    ) -> None:
        self._plan = plan
        self._command = command
        self._server = server
        self._progress = progress
        self._read_all = read_all
        self._by_agent = by_agent
        self._on_sample = on_sample
        self._on_finding = on_finding
        self._longest_s = 0.0
        self._is_asked = command != "" or plan.collect is not None

    async def before_connects(self) -> None:
        for _ in range(_BEFORE_CONNECTS):
            await self.take()

    async def after_drain(self) -> None:
        for _ in range(_AFTER_DRAIN):
            await self.take()

    async def at_plateaus(self, t0_s: float) -> None:
        """Collect just before the end of each rest of the ramp, which began at ``t0_s`` (of
        time.monotonic); ends with the last one.
        """
        for begin, end in self._plan.schedule.rests():
            if not self._is_asked:
                return
            lead_s = max(_LEAD_S, _TIMES_LONGEST * self._longest_s)
            due_s = t0_s + max(begin, end - lead_s)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await self.take(before_s=t0_s + end - self._progress.zero_s)

    async def take(self, before_s: float | None = None) -> None:
        """Ask for a collection, and record what is alive after it. ``before_s`` (on the run's
        clock): one that ends later is of a ramp that goes on, and is not used.
        """
        progress = self._progress
        # Who stops a run does not wait for a collection.
        if not self._is_asked or progress.stopped.is_set() or progress.failed:
            return
        try:
            collected = await self._unless_stopped()
        except PeerError as error:
            self._is_asked = False
            self._on_finding(collection_failed(str(error)))
            return
        if collected is None:
            return
        live, took_s = collected
        self._longest_s = max(self._longest_s, took_s)
        now_s = progress.now_s()
        if before_s is not None and now_s > before_s:
            self._is_asked = False
            rest = f"a collection took {took_s:.1f} s, longer than was left of the plateau's rest"
            self._on_finding(collection_failed(f"{rest}; use a longer --plateau-rest"))
            return
        if live is None:
            live = await self._by_page()
        if live is None:
            return
        values = {metrics.RUNTIME_FORCED_BYTES: live, metrics.RUNTIME_FORCED_S: took_s}
        self._on_sample(Sample(now_s, values))

    async def _unless_stopped(self) -> Collection | None:
        """A collection; None if the run is stopped meanwhile. Raises :class:`PeerError`."""
        asking = asyncio.create_task(self._collection())
        stopping = asyncio.create_task(self._progress.stopped.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            return None
        finally:
            stopping.cancel()
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})

    async def _collection(self) -> Collection:
        return await collection(await self._how())

    async def _how(self) -> Collect:
        """How to ask. Raises :class:`PeerError` where the server cannot be asked."""
        if self._command != "":
            return by_command(self._command, self._server.pid)
        assert self._plan.collect is not None
        if self._plan.collect != "auto":
            return by_url(self._plan.collect, self._plan.tls_options)
        if self._by_agent is not None:
            return self._by_agent
        if self._server.pid is None:
            raise PeerError(
                "--collect auto: the server's process is unknown; name it with --server-pid"
            )
        if not self._longest_s:
            await self._require_small_heap()
        return by_runtime(self._server.runtime.kind, self._server.pid)

    async def _require_small_heap(self) -> None:
        sample = await self._read_all()
        require_small_heap(sample.values.get(metrics.SERVER_RSS_BYTES, 0.0))

    async def _by_page(self) -> float | None:
        """What is alive by the page of metrics, just after a collection; None if it does not
        say.
        """
        sample = await self._read_all()
        for name in (metrics.RUNTIME_LIVE_BYTES, metrics.RUNTIME_HEAP_BYTES):
            if name in sample.values:
                return sample.values[name]
        self._is_asked = False
        self._on_finding(
            collection_failed(
                "neither its answer nor a page of metrics says what is alive after it; name the "
                "server's page with --server-metrics"
            )
        )
        return None
