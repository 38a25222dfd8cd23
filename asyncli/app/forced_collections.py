"""Asks the server's runtime for collections at the instants of a soak that show what is alive:
before the first connect, at the beginning and at the end of each plateau's rest, at the hold's end
and after the drain.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping

from asyncli.app.progress import Progress, wait_for
from asyncli.collect.answering import Answerer, Answering, answering_at
from asyncli.collect.askable import ASKED_BY, require_askable
from asyncli.collect.forced_collection import (
    Collect,
    Collection,
    StillAlive,
    by_command,
    by_runtime,
    by_url,
    collection,
    require_small_heap,
)
from asyncli.collect.locate import ServerFacts
from asyncli.findings.collected import collection_failed
from asyncli.model import metrics
from asyncli.model.errors import CannotCollectError, PeerError
from asyncli.model.masks import masked_page
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding, Sample
from asyncli.model.run import LOOKS_AFTER_DRAIN, SETTLING_COLLECTIONS

# A collection before a plateau's end begins so early (s), or by so many times the longest so far.
_LEAD_S = 1.0
_TIMES_LONGEST = 3.0
# In a rest there are three of them, and what is between.
_RESTS_OF_COLLECTIONS = 6.0
# The first may free what the server's start left, and loads code.
_BEFORE_CONNECTS = 2
# What connecting left to runtimes goes at the second collection (Node: 25 B a connection). So at a
# rest's beginning there are two, and what rises from the second one to that of the rest's end rises
# by the clock.
_AT_REST_BEGIN = 2
_AT_HOLD_END = 2
# The first two of a rest are at these shares of the time before the last one: a different one in
# each rest, so that they do not all meet what a server does once a second at one of its instants.
_EARLIEST = 0.1
_VARIED_BY = 0.3
_GOLDEN = (math.sqrt(5) - 1) / 2
# The looks after the drain are so far apart (s): no whole second, since that is when servers do
# what they do again and again.
_BETWEEN_LOOKS_S = 2.3
# A runtime's own library may count a collection some ms after its end: Node and the JVM tell it by
# events.
_COUNTED_WITHIN_S = 0.5
# What only a collection changes, whatever is alive after it.
_COUNTED = (metrics.RUNTIME_COLLECTED_AT_S, metrics.RUNTIME_COLLECTIONS)


class ForcedCollections:
    """The collections of one soak. After one that fails no more are asked for.

    What an answer says is alive is believed only if it is the server's process that answers, or if
    its page of metrics counts the collection; of another host's server without such a page it is
    not known.

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
        #: Who collects; None until it is looked up.
        self._answering: Answering | None = None
        self._is_asked = command != "" or plan.collect is not None

    async def before_connects(self) -> None:
        for _ in range(_BEFORE_CONNECTS):
            await self.take()

    async def after_drain(self) -> None:
        for _ in range(SETTLING_COLLECTIONS):
            await self.take()
        for _ in range(LOOKS_AFTER_DRAIN):
            if self._may_ask:
                await wait_for(self._progress.stopped, _BETWEEN_LOOKS_S)
                await self.take()

    async def at_hold_end(self) -> None:
        for _ in range(_AT_HOLD_END):
            await self.take()

    async def at_plateaus(self, t0_s: float) -> None:
        """Collect in each rest of the ramp, which began at ``t0_s`` (of time.monotonic): soon after
        its beginning, if there is time, and just before its end. Ends with the last one.
        """
        for number, (begin, end) in enumerate(self._plan.schedule.rests()):
            if not self._is_asked:
                return
            last_due_s = max(begin, end - self._lead_s())
            end_s = t0_s + end - self._progress.zero_s
            room_s = last_due_s - begin
            if room_s >= self._lead_s():
                share = _EARLIEST + _VARIED_BY * (number * _GOLDEN % 1.0)
                await _until(t0_s + begin + share * room_s)
                for _ in range(_AT_REST_BEGIN):
                    await self.take(before_s=end_s)
            await _until(t0_s + max(begin, end - self._lead_s()))
            await self.take(before_s=end_s)

    def _lead_s(self) -> float:
        """How long before a rest's end its last collection begins."""
        return max(_LEAD_S, _TIMES_LONGEST * self._longest_s)

    async def take(self, before_s: float | None = None) -> None:
        """Ask for a collection, and record what is alive after it. ``before_s`` (on the run's
        clock): one that ends later is of a ramp that goes on, and is not used.
        """
        if not self._may_ask:
            return
        try:
            sample = await self._collected(before_s)
        except CannotCollectError as error:
            self._end(error.why, error.remedy)
            return
        except PeerError as error:
            self._end(str(error), "")
            return
        if sample is not None:
            self._on_sample(sample)

    @property
    def _may_ask(self) -> bool:
        """Who stops a run does not wait for a collection."""
        progress = self._progress
        return self._is_asked and not progress.stopped.is_set() and not progress.failed

    def _end(self, why: str, remedy: str) -> None:
        self._is_asked = False
        self._on_finding(collection_failed(why, remedy))

    async def _collected(self, before_s: float | None) -> Sample | None:
        """What is alive after a collection; None if the run is stopped meanwhile. Raises
        :class:`PeerError` if none can be made, or if nothing shows that the server made it.
        """
        if self._answering is None:
            self._answering = await asyncio.to_thread(self._who_answers)
        before: Mapping[str, float] = {}
        if self._plan.collect != "auto":
            before = (await self._read_all()).values
        asked_s = self._progress.now_s()
        try:
            collected = await self._unless_stopped()
        except asyncio.CancelledError:
            # The ramp has ended meanwhile, and all of its rests with it.
            cut_s = self._progress.now_s()
            if before_s is not None and cut_s >= before_s and self._may_ask:
                too_long = _longer_than_rest(cut_s - asked_s, " or more")
                self._end(too_long.why, too_long.remedy)
            raise
        if collected is None:
            return None
        alive, took_s = collected
        self._longest_s = max(self._longest_s, took_s)
        now_s = self._progress.now_s()
        if before_s is not None and now_s > before_s:
            raise _longer_than_rest(took_s)
        if alive is None:
            alive = await self._by_page(before)
        else:
            await self._require_of_server(self._answering, before)
            alive = await self._as_named(alive)
        values = {metrics.RUNTIME_FORCED_BYTES: alive.heap_bytes, metrics.RUNTIME_FORCED_S: took_s}
        if alive.outside_bytes is not None:
            values[metrics.RUNTIME_FORCED_BYTES] += alive.outside_bytes
            values[metrics.RUNTIME_FORCED_OUTSIDE_BYTES] = alive.outside_bytes
        return Sample(now_s, values)

    def _who_answers(self) -> Answering:
        """Whose process collects, as far as this is known before it is asked. Blocking."""
        if self._command != "" or self._plan.collect is None:
            return Answering(Answerer.UNKNOWN)
        if self._plan.collect == "auto":
            return Answering(Answerer.SERVER)
        # An agent's server is on another host.
        pids = () if self._by_agent is not None else self._server.pids
        return answering_at(self._plan.collect, pids)

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
        pid = _known_pid(self._server)
        if not self._longest_s:
            require_small_heap((await self._read_all()).values)
        return by_runtime(self._server.runtime.kind, pid)

    async def _require_of_server(self, answering: Answering, before: Mapping[str, float]) -> None:
        """Raise :class:`PeerError` if an answer that says what is alive is of another process than
        the server's, by who listens there, or by the page of metrics, which had the values
        ``before``.
        """
        if answering.answerer is Answerer.SERVER:
            return
        if answering.answerer is Answerer.ANOTHER:
            raise _answered_by_another(self._plan.collect or "", answering)
        page = await self._page_after(before)
        if counts_collections(page) and not shows_collection(before, page):
            raise _not_collected()

    async def _as_named(self, alive: StillAlive) -> StillAlive:
        """What is alive by the metric that the user has named for it; by the runtime's answer where
        none is named, with what its objects hold outside the heap by the page, where the answer
        does not have it. Raises :class:`PeerError` if the page lacks what is named.
        """
        named = _alive_by(self._server)
        if not named and (alive.outside_bytes is not None or not self._server.metrics):
            return alive
        page = (await self._read_all()).values
        if not named:
            return StillAlive(alive.heap_bytes, page.get(metrics.RUNTIME_OUTSIDE_BYTES))
        live = page.get(metrics.RUNTIME_LIVE_BYTES, page.get(metrics.RUNTIME_HEAP_BYTES))
        if live is None:
            raise CannotCollectError(
                f"--metrics-map: the page had no usable value of {named} after it",
                "name a metric that the page always has, or leave it out",
            )
        return StillAlive(live)

    async def _by_page(self, before: Mapping[str, float]) -> StillAlive:
        """What is alive by the page of metrics, which had the values ``before``. Raises
        :class:`PeerError` if it does not say that, or shows no collection.
        """
        page = await self._page_after(before)
        outside = page.get(metrics.RUNTIME_OUTSIDE_BYTES)
        live = page.get(metrics.RUNTIME_LIVE_BYTES)
        heap = page.get(metrics.RUNTIME_HEAP_BYTES)
        if live is None and heap is None:
            raise self._nothing_says_alive()
        if shows_collection(before, page):
            return StillAlive(live if live is not None else heap or 0.0, outside)
        # What such a page says is of its last collection, whenever that was.
        if live is not None and not counts_collections(page):
            return StillAlive(live, outside)
        raise _not_collected()

    def _nothing_says_alive(self) -> CannotCollectError:
        if not self._server.metrics:
            return CannotCollectError(
                "neither its answer nor a page of metrics says what is alive after it",
                "name the server's page with --server-metrics",
            )
        urls = " and ".join(source.url for source in self._server.metrics)
        return CannotCollectError(
            f"neither its answer nor {urls} says what is alive after it",
            "name the metric that does with --metrics-map live=NAME, or a page of net/http/pprof",
        )

    async def _page_after(self, before: Mapping[str, float]) -> Mapping[str, float]:
        """The page after a collection; read once more where it does not show one yet."""
        page = (await self._read_all()).values
        if counts_collections(page) and not shows_collection(before, page):
            await asyncio.sleep(_COUNTED_WITHIN_S)
            page = (await self._read_all()).values
        return page


def _alive_by(server: ServerFacts) -> str:
    """The metric of the server's page that a user has named for what is alive; "" without one."""
    for source in server.metrics:
        if source.alive_by:
            return source.alive_by
    return ""


async def _until(due_s: float) -> None:
    """Wait until then (of time.monotonic)."""
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))


def check_collections(plan: Plan, server: ServerFacts) -> Check | None:
    """Whether a soak of this plan can ask for collections, as far as that is known before it asks;
    None where the plan does not. Blocking.

    An agent's server is on another host, where only the agent can tell.
    """
    if plan.collect is None:
        return None
    try:
        return _askable(plan, plan.collect, server)
    except CannotCollectError as error:
        return Check("collections", _SUBJECT, "warn", detail=error.why, remedy=error.remedy)


_SUBJECT = "collections of the server's heap"


def _askable(plan: Plan, collect: str, server: ServerFacts) -> Check:
    """The check of collections that nothing is known to hinder. Raises
    :class:`CannotCollectError`.
    """
    if collect == "auto" and plan.agent is not None:
        detail = "the agent asks for them, if it can"
        return Check("collections", _SUBJECT, "unknown", detail=detail)
    if collect == "auto":
        pid = _known_pid(server)
        require_askable(server.runtime.kind, pid)
        asked_by = ASKED_BY[server.runtime.kind]
        return Check("collections", _SUBJECT, "ok", detail=f"process {pid} by {asked_by}")
    pids = () if plan.agent is not None else server.pids
    answering = answering_at(collect, pids)
    if answering.answerer is Answerer.SERVER:
        detail = f"the server itself answers at {masked_page(collect)}"
        return Check("collections", _SUBJECT, "ok", detail=detail)
    if answering.answerer is Answerer.ANOTHER and not plan.server_metrics:
        raise _answered_by_another(collect, answering)
    # Another process may collect, and the server's page count it.
    detail = f"whether the server's process collects by {masked_page(collect)}, only a soak tells"
    return Check("collections", _SUBJECT, "unknown", detail=detail)


def _known_pid(server: ServerFacts) -> int:
    """The server's process. Raises :class:`CannotCollectError` where it is unknown."""
    if server.pid is None:
        raise CannotCollectError(
            "--collect auto: the server's process is unknown", "name it with --server-pid"
        )
    return server.pid


def _answered_by_another(url: str, answering: Answering) -> CannotCollectError:
    return CannotCollectError(
        f"--collect {masked_page(url)} is answered by {answering.name} (pid {answering.pid}), "
        "which is not the server's process",
        "name a page of the server's own process",
    )


def _longer_than_rest(took_s: float, or_more: str = "") -> CannotCollectError:
    """Of a collection that took so long, or so long at its cut."""
    return CannotCollectError(
        f"one took {took_s:.1f} s{or_more}, longer than was left of the plateau's rest",
        f"rest longer: --plateau-rest {math.ceil(_RESTS_OF_COLLECTIONS * took_s)}s",
    )


def _not_collected() -> CannotCollectError:
    return CannotCollectError(
        "the server's page of metrics shows none after asyncli had asked for one",
        "name a page or a command that collects the heap of the server's process",
    )


def counts_collections(page: Mapping[str, float]) -> bool:
    """Whether a page counts collections, or says when the last one was."""
    return any(name in page for name in _COUNTED)


def shows_collection(before: Mapping[str, float], page: Mapping[str, float]) -> bool:
    """Whether a page counts more collections than the one before, or a later one."""
    return any(name in page and page[name] != before.get(name) for name in _COUNTED)
