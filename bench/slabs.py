"""Measures what one end of a connection takes, after earlier connections were closed: how much the
readings depend on the past.

    python bench/slabs.py [--rounds 3]

In every round 2,000 connections on both CPUs are closed in random order, so that thousands of
objects are free in slabs that the kernel keeps; then 100 to 1,000 are opened. Bytes per end: the
objects of the four largest caches by slabinfo alone, and by the kernel's own counters; memory in
use with the free objects of slabs, and without. Root, and a quiet host.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import time

from common import command, machine, spread_of

from asyncli.collect.kernel import MemoryReader, parse_meminfo, parse_slabinfo, parse_zoneinfo
from asyncli.collect.procfs import read_text
from asyncli.model.metrics import HOST_USED_BYTES, KERNEL_SLAB

CACHES = ("TCP", "sock_inode_cache", "filp", "dentry")


def readings() -> dict[str, float]:
    listed, memory = (
        parse_slabinfo(read_text("/proc/slabinfo"), CACHES),
        MemoryReader().read().values,
    )
    used = parse_meminfo(read_text("/proc/meminfo"))[HOST_USED_BYTES] - parse_zoneinfo(
        read_text("/proc/zoneinfo")
    )
    return {
        "slabinfo": sum(one.active_bytes for one in listed.values()),
        "counters": sum(memory[f"{KERNEL_SLAB}{name}"] for name in CACHES),
        "used": used,
        "used less free": memory[HOST_USED_BYTES],
    }


def connect(count: int) -> list[socket.socket]:
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        for number in range(count):
            if number % 7 == 0:
                os.sched_setaffinity(0, {random.choice(range(os.cpu_count() or 1))})
            ends += [socket.create_connection(listener.getsockname()), listener.accept()[0]]
    return ends


def close(ends: list[socket.socket]) -> None:
    random.shuffle(ends)
    for end in ends:
        end.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(
        f"{machine()}\n"
        f"{command()}\n"
        "\n"
        f"| connections | {' | '.join(readings())} |\n"
        "|---|---|---|---|---|"
    )
    found: dict[int, list[dict[str, float]]] = {100: [], 200: [], 500: [], 1000: []}
    for _ in range(rounds):
        close(connect(2000))
        for count, rows in found.items():
            time.sleep(1.2)
            before = readings()
            ends = connect(count)
            time.sleep(0.3)
            after = readings()
            rows.append({name: (after[name] - before[name]) / count / 2 for name in before})
            close(ends)
    for count, rows in found.items():
        print(
            f"| {count} | "
            f"{' | '.join(spread_of([row[name] for row in rows]).replace('.00', '') for name in rows[0])} "
            "|"
        )


if __name__ == "__main__":
    main()
