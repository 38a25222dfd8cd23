"""A real worker on the real clock."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import msgspec
from programs import DEADLINE_S

from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.net import RealNet
from asyncli.engine.shard import Start, Stop, build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.engine.worker import Worker
from asyncli.model.plan import Plan
from asyncli.model.records import Tick
from asyncli.protocols.settings import HttpSettings


async def test_a_replacement_worker_reports_no_stall_before_its_start() -> None:
    spread = Spread((Destination(socket.AF_INET, "127.0.0.1", 9),), (), 1, True, 1000)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        worker = Worker(build_shard(Plan(urls=("http://127.0.0.1:9/",), connections=10), spread), 0, theirs, replaces=True)
        running = asyncio.create_task(worker.run())
        try:
            ours.send(msgspec.msgpack.encode(Start(time.monotonic() - 79.0)))
            message = await asyncio.get_running_loop().sock_recv(ours, 1 << 20)
            tick = msgspec.msgpack.decode(message, type=Tick)
            assert tick.second in (79, 80, 81)
            assert tick.longest_turn_s < 10
        finally:
            ours.send(msgspec.msgpack.encode(Stop()))
            await running


def test_a_heartbeat_larger_than_the_kernels_buffers_is_sent_whole() -> None:
    large = b"HEAD / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (16 << 20) + b"\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Destination(socket.AF_INET, *listener.getsockname())
        plan = Plan(urls=("http://127.0.0.1:9/",), connections=1)
        shard = msgspec.structs.replace(build_shard(plan, Spread((address,), (), 1, True, 1000)), settings=HttpSettings("HEAD", (large,)))
        net = RealNet((address,), ())
        table, read = ConnectionTable(shard, 0, net), 0
        table.start(net.clock())
        table.turn()
        served, _ = listener.accept()
        with served:
            served.setblocking(False)
            deadline = time.monotonic() + DEADLINE_S
            while not (tick := table.take_tick(1)).answered:
                assert not tick.lost
                assert time.monotonic() < deadline
                with contextlib.suppress(BlockingIOError):
                    read += len(served.recv(1 << 20))
                    if read == len(large):
                        served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                table.turn()
            assert (tick.held, tick.awaiting, read) == (1, 0, len(large))
            table.drain()
            while not table.drained:
                table.turn()
