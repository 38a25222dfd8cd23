"""The same requests as ordinary programs send them: a thread for each connection, or a task for each request.

``python -m asyncli.experiments.ordinary threads --url URL --connections 100 --responses 10000`` runs one by hand. It is a process
of its own, so that its CPU is its own, and prints one line of JSON: see :class:`Said`. Imports are before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypedDict
from urllib.parse import urlsplit

from asyncli.errors import HostError
from asyncli.experiments.distant import last_words, spawn_module
from asyncli.lab import child

#: An answer that takes longer is none.
_TIMEOUT_S = 60.0


class Said(TypedDict):
    """What a client says: seconds from its first request to its last answer, CPU seconds (user and system) of the whole process
    in that time, body bytes, and milliseconds of each answer from when its request was made.
    """

    duration_s: float
    cpu_s: float
    answered: int
    failed: int
    bytes: int
    latencies_ms: list[float]


class _Counts:
    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self.failed = self.bytes = 0

    def add(self, status: int, body: bytes, begun: float) -> None:
        """An answer that is here; one that is an error has failed, and is none."""
        self.bytes += len(body)
        if status == 200:
            self.latencies_ms.append((time.monotonic() - begun) * 1000)
        else:
            self.failed += 1


def by_threads(url: str, connections: int, responses: int) -> _Counts:
    """A thread a connection, each of which asks, waits and reads, one request after the other (http.client)."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    mine = [_Counts() for _ in range(connections)]

    def work(number: int) -> None:
        counts, share = mine[number], len(range(number, responses, connections))
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        for _ in range(share):
            begun = time.monotonic()
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                counts.failed += 1
                connection.close()  # the next request connects again
                continue
            counts.add(answer.status, body, begun)
        connection.close()

    ended: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # it would end this thread without a word, and its answers be missing
            ended.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if ended:
        raise ended[0]
    return _sum(mine)


def by_tasks(url: str, connections: int, responses: int) -> _Counts:
    """A task a request, all of them made at once, on a pool of connections (aiohttp)."""
    import aiohttp

    counts = _Counts()

    async def ask(session: aiohttp.ClientSession, begun: float) -> None:
        try:
            async with session.get(url) as answer:
                body = await answer.read()
        except (TimeoutError, aiohttp.ClientError):
            counts.failed += 1
            return
        counts.add(answer.status, body, begun)

    async def work() -> None:
        # Most of a task's time is its wait for a connection: only what happens on one is bounded.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections), timeout=timeout) as session:
            await asyncio.gather(*(ask(session, time.monotonic()) for _ in range(responses)))

    asyncio.run(work())
    return counts


#: name -> the client.
CLIENTS: dict[str, Callable[[str, int, int], _Counts]] = {"threads": by_threads, "tasks": by_tasks}


async def run_client(client: str, url: str, connections: int, responses: int, timeout_s: float = 120.0) -> Said:
    """Run a client as a process. :class:`HostError` where it cannot, or does not end in time; cancelled, it ends it."""
    arguments = [client, f"--url={url}", f"--connections={connections}", f"--responses={responses}"]
    with tempfile.TemporaryFile() as stderr:
        try:
            process = spawn_module("asyncli.experiments.ordinary", arguments, stderr)
        except OSError as error:
            raise HostError(
                f"the client of {client} could not be started ({error}); see the host's limits of processes"
            ) from None
        try:
            line = await child.first_line(process, timeout_s)
        finally:
            try:
                await child.end(process)
            finally:
                if process.stdout is not None:
                    process.stdout.close()
        words = last_words(stderr)
    if line is None:
        raise HostError(f"the client of {client} has not ended after {timeout_s:.0f} s; leave more CPU to it")
    try:
        said: Said = json.loads(line)
    except ValueError:
        raise HostError(f"the client of {client} failed: {words}; run it by hand to see more (python -m {__name__})") from None
    return said


def _sum(parts: list[_Counts]) -> _Counts:
    whole = _Counts()
    for one in parts:
        whole.failed += one.failed
        whole.bytes += one.bytes
        whole.latencies_ms += one.latencies_ms
    return whole


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.ordinary``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncli.experiments.ordinary", description="requests by threads, or by tasks"
    )
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("--url", required=True, help="what to ask for")
    parser.add_argument("--connections", type=int, default=100, help="threads, or connections of the pool (100)")
    parser.add_argument("--responses", type=int, default=10_000, help="how many answers in all (10,000)")
    chosen = parser.parse_args(argv)
    if chosen.client == "tasks":
        import aiohttp  # noqa: F401 (before the clock starts)
    # What asyncli itself has imported would be walked through at each full collection, and is nothing of an ordinary program.
    gc.collect()
    gc.freeze()
    begun, cpu_s = time.monotonic(), _cpu_s()
    counts = CLIENTS[chosen.client](chosen.url, chosen.connections, chosen.responses)
    said: Said = {
        "duration_s": time.monotonic() - begun,
        "cpu_s": _cpu_s() - cpu_s,
        "answered": len(counts.latencies_ms),
        "failed": counts.failed,
        "bytes": counts.bytes,
        "latencies_ms": [round(one, 3) for one in counts.latencies_ms],
    }
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
