"""The real worker, on the real clock: what it says of itself."""

from __future__ import annotations

import asyncio
import socket
import time

import msgspec

from asyncli.engine.shard import Start, Stop, build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.engine.worker import Worker
from asyncli.plan import Plan
from asyncli.records import Tick


async def test_a_worker_that_takes_anothers_place_did_not_stand_still_before() -> None:
    spread = Spread((Destination(socket.AF_INET, "127.0.0.1", 9),), (), 1, True, 1000)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        worker = Worker(build_shard(Plan(urls=("http://127.0.0.1:9/",), connections=10), spread), 0, theirs, replaces=True)
        running = asyncio.create_task(worker.run())
        try:
            ours.send(msgspec.msgpack.encode(Start(time.monotonic() - 79.0)))
            said = await asyncio.get_running_loop().sock_recv(ours, 1 << 20)
            tick = msgspec.msgpack.decode(said, type=Tick)
            assert tick.second in (79, 80, 81)
            assert tick.longest_turn_s < 10
        finally:
            ours.send(msgspec.msgpack.encode(Stop()))
            await running
