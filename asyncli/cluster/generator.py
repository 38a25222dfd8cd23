"""The session's end of a fleet: the interface of :class:`~asyncli.engine.generator.Generator`, over an actor on each host.

Laws: a host is asked one thing at a time, and what it said is kept there until the next question says that it has come, so a cut
of the network loses nothing. A host whose processes say nothing for SILENCE_S is not vouched for until they do. After LOST_S,
or as soon as Dask says that its worker is gone, it is lost, and its share goes to others. By then its actor has closed what it
held, because it heard nothing either (actor.LEASH_S).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import msgspec

from asyncli.cluster.muster import Fleet, Member
from asyncli.engine.fleet import Room, TickMerger, held_by, take_over
from asyncli.engine.shard import (
    Adopt,
    Down,
    Drain,
    Failed,
    Measured,
    Shard,
    SilentWorkers,
    Start,
    Ticked,
    Told,
    Up,
    WorkerBack,
    WorkerLost,
    WorkerReplaced,
    WorkerSilent,
)  # fmt: skip
from asyncli.errors import ClusterError, EngineError
from asyncli.findings.generator import cluster_clock, host_back, host_joined, host_lost, host_silent, hosts_all_lost, share_taken
from asyncli.metrics import GENERATOR_CPU_S, SILENT
from asyncli.records import Finding
from asyncli.units import format_duration

_encode = msgspec.msgpack.Encoder().encode
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
# As the host process says it of a worker.
SILENCE_S = 5.0
# Longer than the actor's leash (15 s) and what closing takes, so that nothing is held twice.
LOST_S = 20.0
# An answer comes within a second even where nothing is to be said: so silence is seen, and the leash is kept.
_POLL_S, _ANSWER_S = 1.0, 9.0
_RETRY_S, _WATCH_S = 0.5, 0.2
_START_S, _CLOSE_S = 60.0, 10.0
# How often a clock is asked at once, and again in the run: the least round trip of ten is near the network's own, and a
# quartz that is off by 50 ppm is half a millisecond away after ten seconds.
_FIRST_ROUNDS, _ROUNDS, _CLOCK_S = 10, 5, 10.0
# A batch that is so much off its instant because of clocks is as late as one that the bound on lateness allows.
_DRIFT_S = 0.010
# Turns of our own that were so far apart: we stood still, and nobody was here to hear the hosts. What they have kept comes with
# the next question, which is asked again after _RETRY_S.
_STALL_S, _STALL_OVER_S = 1.0, 1.0
# A host that comes back, or another one, is looked for so often while nobody opens a part of the connections.
_LOOK_S, _MOST_LOOK_S = 3.0, 60.0
# Where no host is left, one is waited for so long: a switch or a scheduler that is started anew takes a minute or two.
ALONE_S = 600.0


class Handle(Protocol):
    """One actor, as Dask gives it."""

    def lost(self) -> str:
        """Why it is gone for good, in words; "" while it is not known to be."""

    async def call(self, method: str, *arguments: object) -> Any: ...
    def release(self) -> None: ...


class Clock(msgspec.Struct):
    """Another host's monotonic clock less ours, seconds: the best of several round trips, right to within ``uncertainty_s``."""

    offset_s: float = 0.0
    uncertainty_s: float = math.inf

    def heard(self, asked_s: float, theirs_s: float, answered_s: float) -> None:
        """A round trip: they looked at their clock somewhere between our two looks at ours."""
        if (half := (answered_s - asked_s) / 2) < self.uncertainty_s:
            self.offset_s, self.uncertainty_s = theirs_s - (asked_s + answered_s) / 2, half


class _Link:
    """Our end of one host."""

    def __init__(self, member: Member, actor: Handle) -> None:
        self.member, self.actor = member, actor
        self.name = member.name
        self.workers = member.workers
        self.clock = Clock()
        #: A drift of its clock beyond this is told.
        self.drift_bound_s = _DRIFT_S
        self.heard = time.monotonic()
        self.after = 0
        self.silent = self.over = False
        self.lost = -math.inf
        self.orders: asyncio.Queue[Down] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []
        #: Numbers that it was told to take over, and has not said that it has.
        self.adopting: set[int] = set()
        self.silent_workers = SilentWorkers()


class ClusterGenerator:
    """A fleet of host processes. ``pids`` is empty: they are no processes of this host to look at."""

    #: The word goes through the scheduler, and to some twenty hosts at once.
    lead_s = 0.5
    #: A host that hears of the drain no more is lost by then, and counts as drained.
    drain_s = LOST_S

    def __init__(
        self,
        fleet: Fleet,
        shard: Shard,
        engage: Callable[[Member], Awaitable[Handle]],
        look: Callable[[set[str]], Awaitable[list[Member]]],
    ) -> None:
        self.pids: list[int] = []
        self.last_words = "it said nothing"
        self._fleet, self._shard = fleet, shard
        self._engage, self._look = engage, look
        self._links: dict[str, _Link] = {}
        # All that ever had an actor: what must be let go at the end.
        self._engaged: list[_Link] = []
        self._merging = TickMerger()
        self._heard: asyncio.Queue[Up | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._t0: float | None = None
        self._draining = self._closed = False
        # Workers' numbers that nobody is, since their host was lost.
        self._idle: tuple[int, ...] = ()
        # Since when no host is left.
        self._alone = math.inf
        self._measured: dict[str, dict[str, float]] = {}
        self._spent: dict[str, float] = {}
        self._measured_of: set[str] = set()
        self._watched = math.inf
        # Until then what came while we stood still is awaited, and no second is overdue.
        self._stalled_until = -math.inf

    async def start(self) -> None:
        """Start a host process on each host. Raises :class:`ClusterError` or :class:`EngineError` where one does not stand up."""
        opening = [asyncio.create_task(self._open(member)) for member in self._fleet.members]
        try:
            await asyncio.gather(*opening)
        except BaseException:
            for one in opening:
                one.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(task, name=name)
            for task, name in ((self._watch(), "the fleet's watcher"), (self._look_out(), "the look-out for hosts"))
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def begin(self, t0: float) -> None:
        """Start the ramp at ``t0`` of this host's monotonic clock: each host is told the same instant by its own."""
        self._t0 = t0
        for link in self._living():
            link.orders.put_nowait(Start(t0 + link.clock.offset_s))

    def drain(self) -> None:
        self._draining = True
        for link in self._living():
            link.orders.put_nowait(Drain())

    async def messages(self) -> AsyncIterator[Up]:
        """What the hosts say, their ticks made one; when all are lost, a last :class:`Failed`."""
        while (message := await self._heard.get()) is not None:
            yield message
            if isinstance(message, Failed):
                return

    def document(self) -> list[dict[str, Any]]:
        """What each host is, its share at the start, and its clock, for the run file; then those that came later, with theirs."""
        dealt = {member.name for member in self._fleet.members}
        documents = [self._fleet.document(member) for member in self._fleet.members]
        for name, link in self._links.items():
            if name not in dealt:
                came = msgspec.structs.replace(link.member, workers=link.workers)
                documents.append(self._fleet.document(came) | {"came_later": True})
        for one in documents:
            if (there := self._links.get(one["name"])) is not None:
                one |= {"clock_offset_s": there.clock.offset_s, "clock_uncertainty_s": there.clock.uncertainty_s}
        return documents

    async def close(self) -> None:
        """End every host's processes and wait for it; cancelled, a moment only: an actor that is released ends by itself."""
        if self._closed:
            return
        self._closed = True
        self._heard.put_nowait(None)
        for task in [*self._tasks, *(task for link in self._links.values() for task in link.tasks)]:
            task.cancel()
        closing = asyncio.gather(*map(self._dismiss, self._engaged), return_exceptions=True)
        try:
            await asyncio.wait_for(asyncio.shield(closing), _CLOSE_S)
        except TimeoutError:
            pass
        finally:
            for link in self._engaged:
                link.actor.release()

    # -- one host

    async def _open(self, member: Member) -> _Link:
        link = _Link(member, await self._engage(member))
        self._engaged.append(link)
        shard = _encode(self._fleet.shard_of(self._shard, member))
        try:
            for _ in range(_FIRST_ROUNDS):
                await self._ask_clock(link, link.clock)
            async with asyncio.timeout(_START_S):
                why_not = await link.actor.call("open", shard)
        except TimeoutError:
            why_not = f"nothing within {_START_S:.0f} s"
        except (OSError, RuntimeError) as error:
            self._leave(link)
            raise ClusterError(f"{member.name} was lost while it started: {_words(error)}") from None
        if why_not:
            self._leave(link)
            raise EngineError(f"{member.name}: {why_not}")
        link.heard = time.monotonic()
        self._links[member.name] = link
        self._merging.join(link.name, len(link.workers))
        for what, name in ((self._follow, "reader"), (self._order, "orders"), (self._keep_time, "clock")):
            task = asyncio.create_task(what(link), name=f"the {name} of {link.name}")
            task.add_done_callback(self._ended)
            link.tasks.append(task)
        return link

    async def _ask_clock(self, link: _Link, clock: Clock) -> None:
        asked = time.monotonic()
        async with asyncio.timeout(_ANSWER_S):
            theirs = await link.actor.call("clock")
        clock.heard(asked, theirs, time.monotonic())

    async def _keep_time(self, link: _Link) -> None:
        """Measure its clock again: what it has drifted since its host was told when to begin."""
        while True:
            await asyncio.sleep(_CLOCK_S)
            now = Clock()
            try:
                for _ in range(_ROUNDS):
                    await self._ask_clock(link, now)
            except Exception:  # whatever a cut network, or an actor that has gone, raises: the reader minds it
                continue
            drift_s = now.offset_s - link.clock.offset_s
            if abs(drift_s) - now.uncertainty_s - link.clock.uncertainty_s > link.drift_bound_s:
                # What is milliseconds after minutes is seconds after days.
                link.drift_bound_s = 10 * abs(drift_s)
                self._tell(cluster_clock(link.name, drift_s))

    async def _order(self, link: _Link) -> None:
        number = 0
        while True:
            order = await link.orders.get()
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await link.actor.call("tell", number, _encode(order))
                    break
                except Exception:  # as in _keep_time; an order that has come is not obeyed twice
                    await asyncio.sleep(_RETRY_S)
            number += 1

    async def _follow(self, link: _Link) -> None:
        while not link.over:
            try:
                async with asyncio.timeout(_POLL_S + _ANSWER_S):
                    frames = await link.actor.call("said", link.after, _POLL_S)
            except Exception:
                await asyncio.sleep(_RETRY_S)
                continue
            now = time.monotonic()
            link.after += len(frames)
            said = [_up.decode(frame) for frame in frames]
            # Once they run it is the processes that are to be heard, and not the actor that answers for them.
            if self._t0 is None or any(isinstance(message, Ticked) for message in said):
                if link.silent:
                    link.silent = False
                    self._merging.silence(link.name, False)
                    self._tell(host_back(link.name, now - link.heard))
                    # For whoever explains what it lost meanwhile, of which it tells from now on.
                    self._heard.put_nowait(Measured({f"{SILENT}{link.name}": now - link.heard}))
                link.heard = now
            for message in said:
                if not link.over:
                    self._take(link, message)
            self._forward(now)

    def _take(self, link: _Link, message: Up) -> None:
        match message:
            case Ticked(tick=tick):
                tick.dropped = self._dropped(link, tick.dropped)
                link.silent_workers.ticked()
                self._merging.heard(link.name, tick)
            case Measured(values=values):
                self._measure(link.name, values)
            case Failed(why=why, away=away):
                self._lose(link, f"has given up ({why})", for_good=not away)
            case WorkerReplaced(worker=worker) if worker in link.adopting:
                link.adopting.discard(worker)
            case WorkerLost() | WorkerReplaced() | WorkerSilent() | WorkerBack():
                link.silent_workers.heard(message)
                message.host = link.name
                self._heard.put_nowait(message)
            case Told():
                self._heard.put_nowait(message)

    def _dropped(self, link: _Link, dropped: dict[int, int]) -> dict[int, int]:
        """Places in its own list of destinations, as places in the fleet's."""
        theirs, ours = link.member.spread.destinations, self._fleet.destinations
        return {ours.index(theirs[number]): count for number, count in dropped.items() if theirs[number] in ours}

    async def _dismiss(self, link: _Link) -> None:
        with contextlib.suppress(Exception):
            if not link.actor.lost():
                async with asyncio.timeout(_CLOSE_S):
                    await link.actor.call("close")

    # -- all of them

    def _living(self) -> list[_Link]:
        return [link for link in self._links.values() if not link.over]

    def _forward(self, now: float) -> None:
        if self._t0 is not None and now >= self._stalled_until:
            for tick in self._merging.due(now - self._t0):
                self._heard.put_nowait(Ticked(tick))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            stood_still_s, self._watched = now - self._watched, now
            if stood_still_s > _STALL_S:
                self._stalled_until = now + _STALL_OVER_S
            for link in self._living():
                if stood_still_s > _STALL_S:
                    link.heard += stood_still_s
                quiet_s = now - link.heard
                if why := link.actor.lost():
                    self._lose(link, why)
                elif quiet_s > LOST_S:
                    self._lose(link, f"has said nothing for {LOST_S:.0f} s")
                elif quiet_s > SILENCE_S and not link.silent:
                    link.silent = True
                    self._merging.silence(link.name, True)
                    self._tell(host_silent(link.name, self._merging.held(link.name), quiet_s))
            self._forward(now)
            if self._living() or self._draining:
                self._alone = math.inf
            elif now - self._alone > ALONE_S:
                self._alone = math.inf
                self._give_up(f"every host is lost, and none came within {format_duration(ALONE_S)}")

    def _lose(self, link: _Link, why: str, for_good: bool = False) -> None:
        """A host is gone: what it held is our loss, and others open its share again as far as they have room. ``for_good``: it
        ended by itself, and would do so again.
        """
        if link.over:
            return
        link.over, link.lost = True, time.monotonic()
        self._forward(link.lost)
        held = self._merging.lose(link.name, link.silent_workers.held, link.silent_workers.awaiting)
        for one in link.silent_workers:
            self._heard.put_nowait(WorkerLost(one.worker, one.pid, "went with its host", one.held, host=link.name))
        self._spent_by(link.name)
        for task in link.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._leave(link)
        self._idle += link.workers
        who = "" if self._draining else self._reopen()
        if self._idle and not self._draining:
            self._merging.unopened()
        then = f"; its share of {self._share(link.workers):,} is {self._again}: {who}" if who else ""
        self._tell(host_lost(link.name, why, held, then))
        if not self._living():
            self._all_lost(f"the last one, {link.name}, {why}", for_good)

    def _all_lost(self, why: str, for_good: bool) -> None:
        """Whoever comes within a while is taken in; where there is nothing to open again, or nobody to come, this is the end."""
        if for_good or self._draining or self._t0 is None or not self._fleet.plan.reopen:
            self._give_up(f"every host is lost; {why}")
            return
        self._alone = time.monotonic()
        heard = [link.heard for link in self._links.values() if self._alone - link.lost < LOST_S]
        apart_s = max(heard) - min(heard)
        at_once = len(heard) > 1 and apart_s < SILENCE_S
        self._tell(hosts_all_lost(why, apart_s if at_once else None, ALONE_S))

    def _give_up(self, why: str) -> None:
        if self._t0 is not None:
            self._heard.put_nowait(Ticked(self._merging.rest()))
        self._heard.put_nowait(Failed(why))

    def _reopen(self) -> str:
        """Give those that nobody is to who has room; in words, who that is."""
        living = {link.name: link for link in self._living()}
        free = {name: self._room_left(link) for name, link in living.items() if not link.silent}
        fleet = self._fleet
        taken, self._idle = take_over(fleet.plan.connections, fleet.plan.batch, fleet.workers, self._idle, free)
        for name, numbers in taken.items():
            self._hand(living[name], numbers)
        parts = [f"{self._share(numbers):,} on {name}" for name, numbers in taken.items()]
        if self._idle:
            parts.append(f"{self._share(self._idle):,} once a host has room for them")
        return ", ".join(parts)

    def _room_left(self, link: _Link) -> Room:
        room = link.member.room
        return msgspec.structs.replace(room, connections=room.connections - self._share(link.workers))

    def _hand(self, link: _Link, numbers: tuple[int, ...]) -> None:
        """From now on these of the lost are its."""
        link.workers += numbers
        link.adopting.update(numbers)
        link.orders.put_nowait(Adopt(numbers, crowded=link.member.spread.crowds(self._share(link.workers))))
        self._merging.join(link.name, len(numbers))
        self._merging.taken(len(numbers))

    async def _look_out(self) -> None:
        """While nobody opens a part of the connections: give it to who has room by now, or take in a host: one that is there
        again, or a new one.
        """
        pause_s = _LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            if not self._idle or self._draining:
                continue
            idle = self._idle
            now = self._reopen()
            if self._idle != idle:
                self._tell(share_taken(self._share(idle), self._again, now))
                continue
            try:
                found = await self._look({link.member.seen.place for link in self._living()})
            except Exception:  # whatever a cluster in trouble raises: the next look may find more
                continue
            for member in found:
                with contextlib.suppress(Exception):
                    await self._take_in(member)
                    # Who comes only to be lost again does not hammer the server.
                    pause_s = min(2 * pause_s, _MOST_LOOK_S)

    async def _take_in(self, member: Member) -> None:
        fleet = self._fleet
        if self._draining:
            return
        taken, over = take_over(fleet.plan.connections, fleet.plan.batch, fleet.workers, self._idle, {member.name: member.room})
        if not (numbers := taken.get(member.name, ())):
            return
        name, again = member.name, 1
        while name in self._links:
            again += 1
            name = f"{member.name} ({again})"
        self._idle = over
        # It opens them as one that takes over: first the host without workers, then those.
        empty = msgspec.structs.replace(member, name=name, workers=())
        try:
            link = await self._open(empty)
        except BaseException:
            self._idle += numbers
            raise
        if self._t0 is not None:
            link.orders.put_nowait(Start(self._t0 + link.clock.offset_s))
        self._hand(link, numbers)
        if self._draining:
            link.orders.put_nowait(Drain())
        self._tell(host_joined(name, self._share(numbers), fleet.plan.reopen))

    def _leave(self, link: _Link) -> None:
        """In case it hears: nothing may be held there that nobody counts."""
        self._tasks.append(asyncio.create_task(self._let_go(link)))

    async def _let_go(self, link: _Link) -> None:
        await self._dismiss(link)
        link.actor.release()
        self._engaged.remove(link)

    @property
    def _again(self) -> str:
        return "opened again" if self._fleet.plan.reopen else "gone on with"

    def _share(self, numbers: tuple[int, ...]) -> int:
        fleet = self._fleet
        return held_by(fleet.plan.connections, fleet.plan.batch, fleet.workers, numbers)

    # -- what the processes use, summed

    def _measure(self, name: str, values: dict[str, float]) -> None:
        self._measured[name] = values
        self._measured_of.add(name)
        if self._measured_of >= {link.name for link in self._living()}:
            self._measured_of.clear()
            whole = dict(self._spent)
            for one in self._measured.values():
                for key, value in one.items():
                    whole[key] = whole.get(key, 0.0) + value
            self._heard.put_nowait(Measured(whole))

    def _spent_by(self, name: str) -> None:
        """CPU time that a lost host has used stays used."""
        key = GENERATOR_CPU_S
        self._spent[key] = self._spent.get(key, 0.0) + self._measured.pop(name, {}).get(key, 0.0)

    def _tell(self, finding: Finding) -> None:
        self._heard.put_nowait(Told(finding))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours that fails is a bug, which must not hide behind a fleet that looks silent."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closed:
            self._heard.put_nowait(Failed(why=f"{task.get_name()} failed: {type(error).__name__}: {error}"))


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
