"""The same requests by ordinary Python programs: a thread for each connection, or a task for each request.

``python -m asyncli.experiments.baseline_clients threads --url URL`` runs one by hand. It is a process, so that its CPU can be
measured, and prints one line of JSON: see :class:`Answers`. Imports are done before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from asyncli.errors import HostError
from asyncli.lab import child

_TIMEOUT_S = 60.0


class Answers(NamedTuple):
    """Seconds from the first request to the last answer, CPU seconds (user and system) of the process in that time, body bytes,
    and milliseconds from each request to its answer."""

    duration_s: float
    cpu_s: float
    answered: int
    failed: int
    bytes: int
    latencies_ms: list[float]


#: The answer's status (0 for none), the bytes of its body, and its milliseconds.
Exchange = tuple[int, int, float]


def by_threads(url: str, connections: int, responses: int) -> list[Exchange]:
    """A thread for each connection, one request after the other (http.client)."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"

    def work(number: int) -> list[Exchange]:
        found: list[Exchange] = []
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        for _ in range(number, responses, connections):
            begun = time.monotonic()
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                size = len(answer.read())
            except (OSError, http.client.HTTPException):
                found.append((0, 0, 0.0))
                connection.close()  # the next request connects again
                continue
            found.append((answer.status, size, (time.monotonic() - begun) * 1000))
        connection.close()
        return found

    with ThreadPoolExecutor(connections) as pool:
        return [one for some in pool.map(work, range(connections)) for one in some]


def by_tasks(url: str, connections: int, responses: int) -> list[Exchange]:
    """A task for each request, all made at once, on a pool of connections (aiohttp)."""
    import aiohttp

    async def ask(session: aiohttp.ClientSession, begun: float) -> Exchange:
        try:
            async with session.get(url) as answer:
                size = len(await answer.read())
        except (TimeoutError, aiohttp.ClientError):
            return 0, 0, 0.0
        return answer.status, size, (time.monotonic() - begun) * 1000

    async def work() -> list[Exchange]:
        # A task mostly waits for a connection, which is not bounded.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections), timeout=timeout) as session:
            return await asyncio.gather(*(ask(session, time.monotonic()) for _ in range(responses)))

    return asyncio.run(work())


#: name -> the client.
CLIENTS: dict[str, Callable[[str, int, int], list[Exchange]]] = {"threads": by_threads, "tasks": by_tasks}


async def run_client(client: str, url: str, connections: int, responses: int, timeout_s: float = 120.0) -> dict[str, Any]:
    """Run a client as a process. Raises :class:`HostError` where it fails or takes too long."""
    flags = [client, f"--url={url}", f"--connections={connections}", f"--responses={responses}"]
    said = await child.run_module("asyncli.experiments.baseline_clients", flags, timeout_s)
    if said is None:
        raise HostError(f"the client of {client} has not ended after {timeout_s:.0f} s; leave more CPU to it")
    return said


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.baseline_clients``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncli.experiments.baseline_clients", description="requests by threads, or by tasks"
    )
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("--url", required=True, help="what to ask for")
    parser.add_argument("--connections", type=int, default=100, help="threads, or connections of the pool (100)")
    parser.add_argument("--responses", type=int, default=10_000, help="how many answers in all (10,000)")
    chosen = parser.parse_args(argv)
    if chosen.client == "tasks":
        import aiohttp  # noqa: F401 (before the clock starts)
    # A full collection would walk asyncli's own imports, which an ordinary program does not have.
    gc.collect()
    gc.freeze()
    begun, cpu_s = time.monotonic(), time.process_time()
    exchanges = CLIENTS[chosen.client](chosen.url, chosen.connections, chosen.responses)
    duration_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu_s
    # An answer that is an error has failed, and is none.
    latencies = [round(ms, 3) for status, _, ms in exchanges if status == 200]
    answered, size = len(latencies), sum(size for _, size, _ in exchanges)
    print(json.dumps(Answers(duration_s, cpu_s, answered, len(exchanges) - answered, size, latencies)._asdict()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
