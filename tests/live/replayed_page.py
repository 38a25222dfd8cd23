"""A run file replayed fast through the live page's own server and stream, and the heap of the browser that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from devtools import Browser, Tab

from asyncli.live.page_server import PageServer
from asyncli.live.page_state import Sent
from asyncli.model.records import Phase, Sample, Tick
from asyncli.store.follow import News
from asyncli.store.reader import read_run

_TOKEN = "a-token-of-the-replay-0123456789"
# Turns until the page has to have caught up, so that nothing waits in the browser's buffers.
_AHEAD = 20
_CAUGHT_UP_S = 60.0


class Heap(NamedTuple):
    """Of the page, after a collection that was forced: bytes in use of JavaScript's heap, nodes of the document and those that
    only a script still has, and listeners. ``at_s``: of the run. ``events``: how many the page was sent until then.
    """

    at_s: int
    events: int
    used_bytes: int
    nodes: int
    listeners: int


class ReplayFollower:
    """Hands out a run second by second, as :class:`~asyncli.store.follow.Follower` does while it is written."""

    is_there = True
    is_open = True

    def __init__(self, path: Path, begins_s: int) -> None:
        self.path = path
        self.at_s = begins_s
        self._run = read_run(path)
        self._ticks = iter(self._run.ticks)
        self._samples = iter(self._run.samples)
        self._next_tick: tuple[float, Tick] | None = next(self._ticks, None)
        self._next_sample: Sample | None = next(self._samples, None)
        self._first: News | None = None

    quiet_s = 0.0

    def news(self) -> News:
        """The next second; at first all until it begins."""
        if self._first is None:
            self._first = self._until(self.at_s, -1.0)
            return self._first
        before_s = self.at_s
        self.at_s += 1
        return self._until(self.at_s, before_s)

    def past(self, metrics: Iterable[str], on_tick: Callable[[float, Tick], None], on_sample: Callable[[Sample], None]) -> None:
        """What the first news had."""
        assert self._first is not None
        for t_s, tick in self._first.ticks:
            on_tick(t_s, tick)
        for sample in self._first.samples:
            on_sample(sample)

    def _until(self, end_s: float, after_s: float) -> News:
        run = self._run
        phases = []
        for phase in run.phases:
            if after_s < phase.start_s <= end_s:
                phases.append(Phase(phase.name, phase.start_s))
            if phase.end_s is not None and after_s < phase.end_s <= end_s:
                phases.append(phase)
        return News(
            run.plan,
            phases,
            list(self._ticks_until(end_s)),
            list(self._samples_until(end_s)),
            [],
            complete=False,
            began_s=run.started_wall_s,
            environment=run.environment,
            checks=run.checks,
        )

    def _ticks_until(self, end_s: float) -> Iterator[tuple[float, Tick]]:
        while self._next_tick is not None and self._next_tick[0] <= end_s:
            yield self._next_tick
            self._next_tick = next(self._ticks, None)

    def _samples_until(self, end_s: float) -> Iterator[Sample]:
        while self._next_sample is not None and self._next_sample.t_s <= end_s:
            yield self._next_sample
            self._next_sample = next(self._samples, None)


class _CountingServer(PageServer):
    """Counts the events that a page is sent."""

    events = 0

    def count_events(self) -> None:
        next_event = self._run._next_event

        def counted(sent: Sent) -> tuple[str, dict[str, Any]]:
            self.events += 1
            return next_event(sent)

        self._run._next_event = counted  # type: ignore[method-assign]


async def replayed(browser: Browser, path: Path, *, begins_s: int, measured_at_s: Iterable[int]) -> list[Heap]:
    """Show the run in ``path`` from its first ``begins_s`` seconds on, second by second, with all tables of numbers open, and
    measure the page's heap at these seconds of the run.
    """
    options = {"host": "127.0.0.1", "port": 0, "token": _TOKEN, "must_have_token": False, "tls": None}
    server = _CountingServer(path, log=lambda line: None, **options)  # type: ignore[arg-type]
    server.count_events()
    follower = ReplayFollower(path, begins_s)
    server.feed.follower = follower  # type: ignore[assignment]
    await server.read()
    await server.listen()
    try:
        tab = await browser.tab()
        await tab.show(f"http://127.0.0.1:{server.port}/", width=1400)
        await _until_shown(tab, begins_s, server)
        await tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        heaps = []
        for at_s in measured_at_s:
            while follower.at_s < at_s:
                await server._run.turn()
                server.server.sweep()
                # The stream is written.
                await asyncio.sleep(0.002)
                if follower.at_s % _AHEAD == 0:
                    await _until_shown(tab, follower.at_s, server)
            heaps.append(await _heap_of(tab, follower.at_s, server.events))
        assert tab.complaints == []
        return heaps
    finally:
        await server.close()


async def _until_shown(tab: Tab, at_s: int, server: PageServer) -> None:
    """Wait until the page shows this second of the run."""
    shown = "(document.getElementById('left').textContent.match(/[0-9]+/g) || []).slice(0, 3).reduce((sum, part) => 60 * sum + Number(part), 0)"
    async with asyncio.timeout(_CAUGHT_UP_S):
        while await tab.evaluate(shown) < at_s - 2:
            # The stream may have begun after the last turn.
            async with server._run._turned:
                server._run._turned.notify_all()
            await asyncio.sleep(0.005)


async def _heap_of(tab: Tab, at_s: int, events: int) -> Heap:
    await tab.call("Performance.enable")
    for _ in range(2):
        await tab.call("HeapProfiler.collectGarbage")
    answer = await tab.call("Performance.getMetrics")
    values: dict[str, Any] = {metric["name"]: metric["value"] for metric in answer["metrics"]}
    return Heap(at_s, events, int(values["JSHeapUsedSize"]), int(values["Nodes"]), int(values["JSEventListeners"]))
