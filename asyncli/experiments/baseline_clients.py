"""Baseline clients that send the same requests: a thread per connection (http.client), or a task
per request (aiohttp).

``python -m asyncli.experiments.baseline_clients threads --url URL`` runs one by hand. It is a
process, so that its CPU time can be measured. Its line of JSON has the seconds from the first
request to the last answer, the process's user and system CPU seconds in that time, counts of
requests, body bytes, and each answer's latency. It imports everything before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import itertools
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from asyncli.lab import child
from asyncli.model.errors import HostError

_TIMEOUT_S = 60.0


#: The answer's status (0: no answer), the bytes of its body, and its latency (ms).
Exchange = tuple[int, int, float]


def by_threads(url: str, connections: int, responses: int) -> list[Exchange]:
    """Send requests with a thread per connection, one request after the other (http.client)."""
    parts = urlsplit(url)
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"

    def work(number: int) -> list[Exchange]:
        exchanges: list[Exchange] = []
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=_TIMEOUT_S
        )
        for _ in range(number, responses, connections):
            begun = time.monotonic()
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                size = len(answer.read())
            except (OSError, http.client.HTTPException):
                exchanges.append((0, 0, 0.0))
                connection.close()  # the next request connects again
                continue
            exchanges.append((answer.status, size, (time.monotonic() - begun) * 1000))
        connection.close()
        return exchanges

    with ThreadPoolExecutor(connections) as pool:
        return list(itertools.chain.from_iterable(pool.map(work, range(connections))))


def by_tasks(url: str, connections: int, responses: int) -> list[Exchange]:
    """Send requests with a task for each, all created at once, on a pool of connections
    (aiohttp).
    """
    import aiohttp

    async def ask(session: aiohttp.ClientSession, begun: float) -> Exchange:
        try:
            async with session.get(url) as answer:
                size = len(await answer.read())
        except (TimeoutError, aiohttp.ClientError):
            return 0, 0, 0.0
        return answer.status, size, (time.monotonic() - begun) * 1000

    async def work() -> list[Exchange]:
        # Without a total timeout: a task mostly waits for a free connection.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections), timeout=timeout
        ) as session:
            return await asyncio.gather(*(ask(session, time.monotonic()) for _ in range(responses)))

    return asyncio.run(work())


#: name -> the client.
CLIENTS: dict[str, Callable[[str, int, int], list[Exchange]]] = {
    "threads": by_threads,
    "tasks": by_tasks,
}


async def run_client(
    client: str, url: str, connections: int, responses: int, timeout_s: float = 120.0
) -> dict[str, Any]:
    """Run a client as a process. Raises :class:`HostError` if it fails or takes too long."""
    flags = [client, f"--url={url}", f"--connections={connections}", f"--responses={responses}"]
    result = await child.run_module("asyncli.experiments.baseline_clients", flags, timeout_s)
    if result is None:
        raise HostError(
            f"the client with {client} has not ended after {timeout_s:.0f} s; stop other programs "
            "on this host"
        )
    return result


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.baseline_clients``; returns the exit
    status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m asyncli.experiments.baseline_clients",
        description="send requests by threads or by tasks",
    )
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("--url", required=True, help="the URL to request")
    parser.add_argument(
        "--connections", type=int, default=100, help="threads, or connections of the pool (100)"
    )
    parser.add_argument("--responses", type=int, default=10_000, help="number of requests (10,000)")
    chosen = parser.parse_args(argv)
    if chosen.client == "tasks":
        import aiohttp  # noqa: F401 (before the clock starts)
    # A full collection would traverse asyncli's own modules, which a baseline program does not
    # have.
    gc.collect()
    gc.freeze()
    begun = time.monotonic()
    cpu_s = time.process_time()
    exchanges = CLIENTS[chosen.client](chosen.url, chosen.connections, chosen.responses)
    duration_s = time.monotonic() - begun
    cpu_s = time.process_time() - cpu_s
    # An error status counts as failed.
    latencies = [round(ms, 3) for status, _, ms in exchanges if status == 200]
    result = {
        "duration_s": duration_s,
        "cpu_s": cpu_s,
        "answered": len(latencies),
        "failed": len(exchanges) - len(latencies),
        "bytes": sum(size for _, size, _ in exchanges),
        "latencies_ms": latencies,
    }
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
