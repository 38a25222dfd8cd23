"""The session's side of a fleet: the interface of :class:`~asyncli.engine.generator.Generator`,
over an actor on each host.

A host silent for SILENCE_S counts as holding nothing until it answers. After LOST_S, or when Dask
loses its worker, it is lost, and others open its share; by then its actor has closed its
connections (actor.SESSION_TIMEOUT_S).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from asyncli.cluster.placement import Member, Placement
from asyncli.cluster.remote_host import CLOSE_S, Handle, RemoteHost, Usage
from asyncli.engine import shard as wire
from asyncli.engine.fleet import Room, TickMerger
from asyncli.findings.generator import (
    host_back,
    host_joined,
    host_lost,
    host_silent,
    hosts_all_lost,
    share_taken,
)
from asyncli.model.errors import AsyncliError
from asyncli.model.metrics import SILENT
from asyncli.model.records import Finding
from asyncli.model.units import format_duration

# As for a worker in the host process.
SILENCE_S = 5.0
# Longer than the actor's timeout (15 s) and the time of closing, so that nothing is held twice.
LOST_S = 20.0
_WATCH_S = 0.2
# Turns so far apart mean that this process hung. Messages buffered meanwhile arrive with the next
# poll (remote_host.RETRY_S).
_STALL_S, _STALL_OVER_S = 1.0, 1.0
# How often to look for a returned or new host while a share is idle.
_FIND_S, _MOST_FIND_S = 3.0, 60.0
# How long to wait for a host if none is left: a switch or scheduler restarts within a minute or
# two.
NO_HOST_S = 600.0


class ClusterGenerator:
    """``pids`` is empty: the processes are on other hosts."""

    #: An order goes through the scheduler, to some twenty hosts.
    lead_s = 0.5
    #: By then a host that missed the drain is lost, and counts as drained.
    drain_s = LOST_S

    def __init__(
        self,
        fleet: Placement,
        shard: wire.Shard,
        start_actor: Callable[[Member], Awaitable[Handle]],
        find: Callable[[set[str]], Awaitable[list[Member]]],
    ) -> None:
        self.pids: list[int] = []
        self._fleet, self._shard = fleet, shard
        self._start_actor, self._find = start_actor, find
        self._hosts: dict[str, RemoteHost] = {}
        # Hosts with an actor to release at the end.
        self._with_actor: list[RemoteHost] = []
        self._merging = TickMerger()
        self._out: asyncio.Queue[wire.Up | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._t0: float | None = None
        self._hold: wire.HoldBegun | None = None
        self._draining = self._closed = False
        # Numbers of workers whose host was lost.
        self._idle: tuple[int, ...] = ()
        self._no_host_since_s = math.inf
        self._usage = Usage()
        self._watched_s = math.inf
        # Until then messages buffered during a hang may still arrive.
        self._stalled_until = -math.inf

    async def start(self) -> None:
        """Start a host process on each host. Raises :class:`ClusterError` or :class:`EngineError`
        if one fails.
        """
        opening = [asyncio.create_task(self._open(member)) for member in self._fleet.members]
        try:
            await asyncio.gather(*opening)
        except BaseException:
            for opening_task in opening:
                opening_task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(self._watch(), name="the fleet's watcher"),
            asyncio.create_task(self._find_hosts(), name="the search for hosts"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)

    def begin(self, t0: float) -> None:
        """Start the ramp at ``t0`` of our monotonic clock, converted to the clock of each host."""
        self._t0 = t0
        for host in self._living():
            host.orders.put_nowait(wire.Start(t0 + host.clock.offset_s))

    def hold(self, order: wire.HoldBegun) -> None:
        """The hold begins, and the instants of events are known."""
        self._hold = order
        for host in self._living():
            host.orders.put_nowait(_on_clock_of(host, order))

    def command_lasts(self, order: wire.CommandLasts) -> None:
        """A command still runs, or the server still has processes from before it."""
        for host in self._living():
            until = order.until + host.clock.offset_s
            host.orders.put_nowait(msgspec.structs.replace(order, until=until))

    def drain(self) -> None:
        self._draining = True
        for host in self._living():
            host.orders.put_nowait(wire.Drain())

    async def messages(self) -> AsyncIterator[wire.Up]:
        """The hosts' messages, with ticks merged into one a second; a last :class:`Failed` after
        the loss of all hosts.
        """
        while (message := await self._out.get()) is not None:
            yield message
            if isinstance(message, wire.Failed):
                return

    def document(self) -> list[dict[str, Any]]:
        """Each host, its share and its clock for the run file; hosts that joined later come
        last.
        """
        placed = {member.name for member in self._fleet.members}
        documents = [self._fleet.document(member) for member in self._fleet.members]
        for name, host in self._hosts.items():
            if name not in placed:
                joined = msgspec.structs.replace(host.member, workers=host.workers)
                documents.append(self._fleet.document(joined) | {"came_later": True})
        for document in documents:
            if document["name"] in self._hosts:
                clock = self._hosts[document["name"]].clock
                document["clock_offset_s"] = clock.offset_s
                document["clock_uncertainty_s"] = clock.error_s
        return documents

    async def close(self) -> None:
        """End the processes of all hosts and wait for it, at most CLOSE_S: a released actor ends
        itself.
        """
        if self._closed:
            return
        self._closed = True
        self._out.put_nowait(None)
        for task in [*self._tasks, *(task for host in self._hosts.values() for task in host.tasks)]:
            task.cancel()
        closing = asyncio.gather(
            *(host.close() for host in self._with_actor), return_exceptions=True
        )
        try:
            await asyncio.wait_for(asyncio.shield(closing), CLOSE_S)
        except TimeoutError:
            pass
        finally:
            for host in self._with_actor:
                host.actor.release()

    # -- one host

    async def _open(self, member: Member) -> RemoteHost:
        actor = await self._start_actor(member)
        host = RemoteHost(
            member, actor, on_messages=self._on_messages, on_finding=self._record_finding
        )
        self._with_actor.append(host)
        try:
            await host.open(self._fleet.shard_of(self._shard, member))
        except AsyncliError:
            self._schedule_close(host)
            raise
        self._hosts[member.name] = host
        self._merging.join(host.name, len(host.workers))
        host.begin(self._on_task_end)
        return host

    def _on_messages(self, host: RemoteHost, messages: list[wire.Up]) -> None:
        now = time.monotonic()
        # After the start only ticks count as contact: the actor may answer while its processes
        # hang.
        if self._t0 is None or any(isinstance(message, wire.Ticked) for message in messages):
            if host.silent:
                host.silent = False
                self._merging.set_silent(host.name, False)
                self._record_finding(host_back(host.name, now - host.heard_s))
                # The analysis uses this to explain the host's losses meanwhile.
                self._out.put_nowait(
                    wire.ProcessUsage({f"{SILENT}{host.name}": now - host.heard_s})
                )
            host.heard_s = now
        for message in messages:
            if not host.over:
                self._on_message(host, message)
        self._forward(now)

    def _on_message(self, host: RemoteHost, message: wire.Up) -> None:
        match message:
            case wire.Ticked(tick=tick):
                tick.dropped = self._dropped(host, tick.dropped)
                host.silent_workers.ticked()
                self._merging.add(host.name, tick)
            case wire.ProcessUsage(values=values):
                living = [living_host.name for living_host in self._living()]
                whole = self._usage.measured(host.name, values, living)
                if whole is not None:
                    self._out.put_nowait(wire.ProcessUsage(whole))
            case wire.Failed(why=why, away=away):
                self._lose(host, f"has given up ({why})", for_good=not away)
            case wire.WorkerReplaced(worker=worker) if worker in host.adopting:
                host.adopting.discard(worker)
            case (
                wire.WorkerLost() | wire.WorkerReplaced() | wire.WorkerSilent() | wire.WorkerBack()
            ):
                host.silent_workers.heard(message)
                message.host = host.name
                self._out.put_nowait(message)
            case wire.HostFinding():
                self._out.put_nowait(message)

    def _dropped(self, host: RemoteHost, dropped: dict[int, int]) -> dict[int, int]:
        """Convert indices of the host's destinations to the fleet's."""
        destinations = self._fleet.destinations
        by_index = {}
        for number, count in dropped.items():
            destination = host.member.spread.destinations[number]
            if destination in destinations:
                by_index[destinations.index(destination)] = count
        return by_index

    # -- all of them

    def _living(self) -> list[RemoteHost]:
        return [host for host in self._hosts.values() if not host.over]

    def _forward(self, now: float) -> None:
        if self._t0 is not None and now >= self._stalled_until:
            for tick in self._merging.due(now - self._t0):
                self._out.put_nowait(wire.Ticked(tick))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            stood_still_s, self._watched_s = now - self._watched_s, now
            if stood_still_s > _STALL_S:
                self._stalled_until = now + _STALL_OVER_S
            for host in self._living():
                if stood_still_s > _STALL_S:
                    host.heard_s += stood_still_s
                quiet_s = now - host.heard_s
                if why := host.actor.lost():
                    self._lose(host, why)
                elif quiet_s > LOST_S:
                    self._lose(host, f"has been silent for {LOST_S:.0f} s")
                elif quiet_s > SILENCE_S and not host.silent:
                    host.silent = True
                    self._merging.set_silent(host.name, True)
                    self._record_finding(
                        host_silent(host.name, self._merging.held(host.name), quiet_s)
                    )
            self._forward(now)
            if self._living() or self._draining:
                self._no_host_since_s = math.inf
            elif now - self._no_host_since_s > NO_HOST_S:
                self._no_host_since_s = math.inf
                self._give_up(
                    f"every host is lost, and none joined within {format_duration(NO_HOST_S)}"
                )

    def _lose(self, host: RemoteHost, why: str, for_good: bool = False) -> None:
        """Lose a host: its connections are the generator's loss, and others open its share.
        ``for_good``: it gave up.
        """
        if host.over:
            return
        host.over = True
        host.lost_s = time.monotonic()
        self._forward(host.lost_s)
        held = self._merging.lose(host.name, host.silent_workers.held, host.silent_workers.awaiting)
        for process in host.silent_workers:
            how = "was lost with its host"
            self._out.put_nowait(
                wire.WorkerLost(process.worker, process.pid, how, process.held, host=host.name)
            )
        self._usage.lose(host.name)
        for task in host.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._schedule_close(host)
        self._idle += host.workers
        takers = ""
        if not self._draining:
            takers = self._reopen()
        if self._idle and not self._draining:
            self._merging.mark_unopened()
        then = ""
        if takers:
            share = self._fleet.share(host.workers)
            then = f"; its share of {share:,} is {self._reopened}: {takers}"
        self._record_finding(host_lost(host.name, why, held, then))
        if not self._living():
            self._all_lost(f"the last one, {host.name}, {why}", for_good)

    def _all_lost(self, why: str, for_good: bool) -> None:
        """Wait for hosts to join; give up if there is nothing to reopen."""
        if for_good or self._draining or self._t0 is None or not self._fleet.plan.reopen:
            self._give_up(f"every host is lost; {why}")
            return
        self._no_host_since_s = time.monotonic()
        heard = [
            host.heard_s
            for host in self._hosts.values()
            if self._no_host_since_s - host.lost_s < LOST_S
        ]
        apart_s = max(heard) - min(heard)
        within_s = None
        if len(heard) > 1 and apart_s < SILENCE_S:
            within_s = apart_s
        self._record_finding(hosts_all_lost(why, within_s, NO_HOST_S))

    def _give_up(self, why: str) -> None:
        if self._t0 is not None:
            self._out.put_nowait(wire.Ticked(self._merging.rest()))
        self._out.put_nowait(wire.Failed(why))

    def _reopen(self) -> str:
        """Assign idle worker numbers to hosts with room; returns in words to which."""
        living = {host.name: host for host in self._living()}
        free = {name: self._room_left(host) for name, host in living.items() if not host.silent}
        taken, self._idle = self._fleet.take_over(self._idle, free)
        for name, numbers in taken.items():
            self._assign(living[name], numbers)
        parts = [f"{self._fleet.share(numbers):,} on {name}" for name, numbers in taken.items()]
        if self._idle:
            parts.append(f"{self._fleet.share(self._idle):,} once a host has room for them")
        return ", ".join(parts)

    def _room_left(self, host: RemoteHost) -> Room:
        room = host.member.room
        return msgspec.structs.replace(
            room, connections=room.connections - self._fleet.share(host.workers)
        )

    def _assign(self, host: RemoteHost, numbers: tuple[int, ...]) -> None:
        """Assign these idle worker numbers to the host."""
        host.workers += numbers
        host.adopting.update(numbers)
        host.orders.put_nowait(
            wire.Adopt(numbers, crowded=host.member.spread.crowds(self._fleet.share(host.workers)))
        )
        self._merging.join(host.name, len(numbers))
        self._merging.replaced(len(numbers))

    async def _find_hosts(self) -> None:
        """While worker numbers are idle: assign them to hosts with room, or add a host that
        returned or is new.
        """
        pause_s = _FIND_S
        while True:
            await asyncio.sleep(pause_s)
            if not self._idle or self._draining:
                continue
            idle = self._idle
            now = self._reopen()
            if self._idle != idle:
                self._record_finding(share_taken(self._fleet.share(idle), self._reopened, now))
                continue
            try:
                members = await self._find({host.member.seen.place for host in self._living()})
            except Exception:  # a cluster in trouble raises anything: try again later
                continue
            for member in members:
                with contextlib.suppress(Exception):
                    await self._add_host(member)
                    # A host that is soon lost again must not hammer the server.
                    pause_s = min(2 * pause_s, _MOST_FIND_S)

    async def _add_host(self, member: Member) -> None:
        if self._draining:
            return
        taken, over = self._fleet.take_over(self._idle, {member.name: member.room})
        if not (numbers := taken.get(member.name, ())):
            return
        name, again = member.name, 1
        while name in self._hosts:
            again += 1
            name = f"{member.name} ({again})"
        self._idle = over
        # It starts without workers, then adopts these.
        empty = msgspec.structs.replace(member, name=name, workers=())
        try:
            host = await self._open(empty)
        except BaseException:
            self._idle += numbers
            raise
        if self._t0 is not None:
            host.orders.put_nowait(wire.Start(self._t0 + host.clock.offset_s))
        if self._hold is not None:
            host.orders.put_nowait(_on_clock_of(host, self._hold))
        self._assign(host, numbers)
        if self._draining:
            host.orders.put_nowait(wire.Drain())
        self._record_finding(host_joined(name, self._fleet.share(numbers), self._fleet.plan.reopen))

    def _schedule_close(self, host: RemoteHost) -> None:
        """Close the host in the background, if it can still be reached."""
        self._tasks.append(asyncio.create_task(self._close_host(host)))

    async def _close_host(self, host: RemoteHost) -> None:
        await host.close()
        self._with_actor.remove(host)

    @property
    def _reopened(self) -> str:
        return "reopened" if self._fleet.plan.reopen else "taken over"

    def _record_finding(self, finding: Finding) -> None:
        self._out.put_nowait(wire.HostFinding(finding))

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """Report a failed task: a bug, which would otherwise look like a silent fleet."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closed:
            self._out.put_nowait(
                wire.Failed(why=f"{task.get_name()} failed: {type(error).__name__}: {error}")
            )


def _on_clock_of(host: RemoteHost, order: wire.HoldBegun) -> wire.HoldBegun:
    return msgspec.structs.replace(order, at=order.at + host.clock.offset_s)
