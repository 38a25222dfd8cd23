"""Measures what it costs to see who holds the connections: CPU time of one reading of the two
probes that tell it.

    python bench/holders.py [--rounds 5]

``sockets``: the server's sockets at its port, asked of the kernel, by the number of connections
(both ends on this host). ``processes``: the descriptors of every process of the host. Loopback
only; a quiet host.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from common import command, machine, spread_of
from slabs import connect

from asyncli.collect.other_processes import OtherProcesses
from asyncli.collect.sock_diag import server_sockets

CONNECTIONS = (0, 1000, 4000, 9000)


def taken_ms(read: Callable[[], object]) -> float:
    begun = time.thread_time()
    read()
    return (time.thread_time() - begun) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(command())
    print(machine())
    without_any = 0.0
    for count in CONNECTIONS:
        ends = connect(count)
        port = ends[0].getpeername()[1] if ends else 1
        found = server_sockets([port])
        assert found.accepted == count, found
        times = [taken_ms(lambda port=port: server_sockets([port])) for _ in range(rounds)]
        print(f"sockets, {count:5} connections: {spread_of(times)} ms")
        if count:
            print(f"  {1e3 * (min(times) - without_any) / count:.1f} us a connection")
        else:
            without_any = min(times)
        for end in ends:
            end.close()
    others = OtherProcesses(list, lambda: [os.getpid()], [1], connections=lambda: 1)
    times = [taken_ms(others.read) for _ in range(rounds)]
    print(f"processes, {len(os.listdir('/proc'))} entries of /proc: {spread_of(times)} ms")


if __name__ == "__main__":
    main()
