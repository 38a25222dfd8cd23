"""The session's side of one host: orders, messages and its clock; and the resource usage of all
hosts.

A host keeps its messages until the next poll confirms them, so a network cut loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from asyncli.cluster.placement import Member
from asyncli.collect.clocks import ClockOffset, Exchange, Offset
from asyncli.engine.shard import Down, Shard, SilentWorkers, Up
from asyncli.findings.generator import cluster_clock
from asyncli.model.errors import ClusterError, EngineError
from asyncli.model.metrics import GENERATOR_CPU_S
from asyncli.model.records import Finding

_encode = msgspec.msgpack.Encoder().encode
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
# The actor answers a poll within a second, even without messages.
_POLL_S, _ANSWER_S = 1.0, 9.0
#: A failed call is repeated after so long.
RETRY_S = 0.5
_START_S = 60.0
CLOSE_S = 10.0
# Rounds of a clock measurement at the start, and every ten seconds: the shortest round trip of ten
# is near the network's, and 50 ppm drift half a millisecond in ten seconds.
_FIRST_ROUNDS, _ROUNDS, _CLOCK_S = 10, 5, 10.0
# The same as the bound on lateness.
_DRIFT_S = 0.010


class Handle(Protocol):
    """A host's actor in Dask."""

    def lost(self) -> str:
        """Why it was lost; "" if it was not."""

    async def call(self, method: str, *arguments: object) -> Any: ...
    def release(self) -> None: ...


class RemoteHost:
    """``on_messages`` is called for each answer, even an empty one; ``on_finding`` for a drift of
    the host's clock.
    """

    def __init__(
        self,
        member: Member,
        actor: Handle,
        *,
        on_messages: Callable[[RemoteHost, list[Up]], None],
        on_finding: Callable[[Finding], None],
    ) -> None:
        self.member, self.actor = member, actor
        self.name, self.workers = member.name, member.workers
        #: Its clock minus ours when it was opened.
        self.clock = Offset(0.0, math.inf)
        self.heard_s = time.monotonic()
        self.lost_s = -math.inf
        self.silent = self.over = False
        self.orders: asyncio.Queue[Down] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []
        #: Worker numbers that it was ordered to adopt and has not confirmed.
        self.adopting: set[int] = set()
        self.silent_workers = SilentWorkers()
        self._on_messages, self._on_finding = on_messages, on_finding
        # A larger drift is reported.
        self._drift_bound_s = _DRIFT_S

    async def open(self, shard: Shard) -> None:
        """Measure its clock and start its processes. Raises :class:`ClusterError` or
        :class:`EngineError`.
        """
        try:
            self.clock = await self._measure_clock(_FIRST_ROUNDS)
            async with asyncio.timeout(_START_S):
                why_not = await self.actor.call("open", _encode(shard))
        except TimeoutError:
            why_not = f"nothing within {_START_S:.0f} s"
        except (OSError, RuntimeError) as error:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise ClusterError(f"{self.name} was lost while it started: {words}") from None
        if why_not:
            raise EngineError(f"{self.name}: {why_not}")
        self.heard_s = time.monotonic()

    def begin(self, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """Start the tasks that carry orders and messages; ``on_end`` is called when one ends."""
        for task_of, name in (
            (self._read_messages, "reader"),
            (self._send_orders, "orders"),
            (self._watch_clock, "clock"),
        ):
            task = asyncio.create_task(task_of(), name=f"the {name} of {self.name}")
            task.add_done_callback(on_end)
            self.tasks.append(task)

    async def close(self) -> None:
        """End its processes, if it can be reached, and release its actor."""
        with contextlib.suppress(Exception):
            if not self.actor.lost():
                async with asyncio.timeout(CLOSE_S):
                    await self.actor.call("close")
        self.actor.release()

    async def _measure_clock(self, rounds: int) -> Offset:
        clock = ClockOffset()
        for _ in range(rounds):
            asked_s = time.monotonic()
            async with asyncio.timeout(_ANSWER_S):
                theirs_s = await self.actor.call("clock")
            clock.add(Exchange(asked_s, theirs_s, theirs_s, time.monotonic()))
        offset = clock.now(time.monotonic())
        assert offset is not None
        return offset

    async def _watch_clock(self) -> None:
        """Report a drift of its clock since the start."""
        while True:
            await asyncio.sleep(_CLOCK_S)
            try:
                now = await self._measure_clock(_ROUNDS)
            except Exception:  # a cut network or a lost actor, which _read_messages handles
                continue
            drift_s = now.offset_s - self.clock.offset_s
            if abs(drift_s) - now.error_s - self.clock.error_s > self._drift_bound_s:
                # A steady drift grows: report it again only at ten times the size.
                self._drift_bound_s = 10 * abs(drift_s)
                self._on_finding(cluster_clock(self.name, drift_s))

    async def _send_orders(self) -> None:
        number = 0
        while True:
            order = _encode(await self.orders.get())
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await self.actor.call("carry_out", number, order)
                    break
                except Exception:  # as in _watch_clock; the actor ignores an order that it has
                    await asyncio.sleep(RETRY_S)
            number += 1

    async def _read_messages(self) -> None:
        after = 0
        while not self.over:
            try:
                async with asyncio.timeout(_POLL_S + _ANSWER_S):
                    frames = await self.actor.call("messages", after, _POLL_S)
            except Exception:
                await asyncio.sleep(RETRY_S)
                continue
            after += len(frames)
            self._on_messages(self, [_up.decode(frame) for frame in frames])


class Usage:
    """The last measurement of each host, and the CPU time of lost ones, which still counts."""

    def __init__(self) -> None:
        self._last: dict[str, Mapping[str, float]] = {}
        self._heard: set[str] = set()
        self._spent_s = 0.0

    def measured(
        self, host: str, values: Mapping[str, float], living: Collection[str]
    ) -> dict[str, float] | None:
        """The sum over all hosts, once each of the ``living`` has reported since the last sum."""
        self._last[host] = values
        self._heard.add(host)
        if not self._heard.issuperset(living):
            return None
        self._heard.clear()
        whole: Counter[str] = Counter()
        for counts in ({GENERATOR_CPU_S: self._spent_s}, *self._last.values()):
            whole.update(counts)
        return dict(whole)

    def lose(self, host: str) -> None:
        self._spent_s += self._last.pop(host, {}).get(GENERATOR_CPU_S, 0.0)
