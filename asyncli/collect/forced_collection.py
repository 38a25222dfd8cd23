"""Asks a server's runtime for a collection, and for what is alive after it. The program need not be
changed.

Node listens to its inspector at SIGUSR1 (nodejs.org, "Debugger"); the JVM answers to jcmd; Go has a
page of net/http/pprof, which collects before it answers. Each is asked only where the user wants
that (``--collect``): a collection stops the server for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncli.collect.askable import (
    INSPECTOR_ADDRESS,
    INSPECTOR_PORT,
    has_ended,
    has_inspector,
    of_another_user,
    require_debug_signal,
    require_jcmd,
    require_kind,
    require_no_workers,
    require_same_network,
)
from asyncli.collect.http import KeptConnection
from asyncli.collect.http import reason as reason_of_failure
from asyncli.model.certificates import client_context
from asyncli.model.errors import CannotCollectError
from asyncli.model.masks import masked_page
from asyncli.model.metrics import RUNTIME_HEAP_BYTES, SERVER_RSS_BYTES
from asyncli.model.status_place import status_place
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes
from asyncli.model.values import TlsOptions, parse_url

if TYPE_CHECKING:
    import aiohttp

#: The longest that one collection may take (s). The longest pause of a JVM was 0.93 s with 450
#: connections, and a heap of some GB takes seconds.
LONGEST_S = 20.0
#: A larger heap stands still for long: it is asked only where a URL or a command is named.
LARGEST_HEAP = 1e9
#: Node's inspector, unless --inspect-port names another.
_INSPECTOR = f"http://{INSPECTOR_ADDRESS}:{INSPECTOR_PORT}"
_INSPECTOR_LINK = f"ws://{INSPECTOR_ADDRESS}:{INSPECTOR_PORT}/"
_TURN_AT_INSPECTOR = "\0asyncli inspector 127.0.0.1:9229"
# What the inspector evaluates interrupts the server's own JavaScript anywhere, also in the lines of
# Node between the last tick and "no tick is scheduled". A process.nextTick from there is never run,
# nor is any later one: the server reads requests and answers none for ever. So what needs Node's
# library does so in a microtask, which begins when the interrupted function has returned.
#
# Node's account of each collection (nodejs.org, "v8.GCProfiler", since 18.15).
_START_PROFILER = """
(async (load) => {
  await null;
  const { GCProfiler } = load("v8");
  if (GCProfiler === undefined) return null;
  const profiler = new GCProfiler();
  profiler.start();
  return profiler;
})(require)
"""
_STOP_PROFILER = """
function () {
  const { usedHeapSize, externalMemory } = this.stop().statistics.at(-1).afterGC.heapStatistics;
  return [usedHeapSize, externalMemory];
}
"""
# Node closes its inspector when a connection ends, which it opens for that.
_CLOSE_INSPECTOR_AFTER = """
(async (load) => {
  await null;
  const connection = load("net").connect({ host: "%s", port: %d });
  connection.on("error", () => {}).on("close", () => process._debugEnd()).resume().unref();
})(require)
"""
# How long Node may take to open its inspector, or to close it (s).
_INSPECTOR_OPENS_S = 3.0
_POLL_S = 0.02
_LONGEST_ANSWER = 1 << 20
# What is alive stands at the end of a profile's text, behind some 500 bytes for each stack.
_LONGEST_PROFILE = 16 << 20
# How long the output of a program that has ended may take to end too (s).
_PRINTS_AFTER_END_S = 0.5
# The text of a heap profile ends with the numbers of runtime.MemStats.
_GO_HEAP = re.compile(rb"^# HeapAlloc = (\d{1,18})$", re.MULTILINE)
# The last line of a histogram of classes: instances and bytes of all.
_JVM_TOTAL = re.compile(rb"^Total +\d{1,18} +(\d{1,18})\s*\Z", re.MULTILINE)


class StillAlive(NamedTuple):
    """What was alive after a collection (bytes): in the heap, and what its objects held outside it;
    None where the runtime did not say that.
    """

    heap_bytes: float
    outside_bytes: float | None = None


class Collection(NamedTuple):
    """What was alive after a collection, None where only the page of metrics says; and how long it
    took (s).
    """

    alive: StillAlive | None
    took_s: float


Collect = Callable[[], Awaitable[StillAlive | None]]


async def collection(collect: Collect) -> Collection:
    """Ask for one. Raises :class:`CannotCollectError`, also after :data:`LONGEST_S`."""
    begun_s = time.monotonic()
    try:
        async with asyncio.timeout(LONGEST_S):
            alive = await collect()
    except TimeoutError:
        raise CannotCollectError(
            f"--collect: no collection ended within {LONGEST_S:.0f} s",
            "see what the server does, or leave --collect out",
        ) from None
    return Collection(alive, time.monotonic() - begun_s)


def by_runtime(kind: str, pid: int) -> Collect:
    """How to ask a process of this runtime. Raises :class:`CannotCollectError` where that cannot be
    asked from outside.
    """
    require_kind(kind, pid)
    if kind == "node":
        return lambda: _of_node(pid)
    return lambda: _of_jvm(pid)


def require_small_heap(values: Mapping[str, float]) -> None:
    """Raise :class:`CannotCollectError` if a server would stand still for long: by its heap, where
    a page of metrics says that (``values``: of a sample), else by its resident memory.
    """
    heap_bytes = values.get(RUNTIME_HEAP_BYTES)
    if heap_bytes is not None:
        if heap_bytes > LARGEST_HEAP:
            raise CannotCollectError(
                f"--collect auto: the server's heap has {format_bytes(heap_bytes)}, so the server "
                "would stand still for long",
                "name how to ask it all the same: --collect URL or COMMAND",
            )
        return
    resident_bytes = values.get(SERVER_RSS_BYTES, 0.0)
    if resident_bytes > LARGEST_HEAP:
        raise CannotCollectError(
            f"--collect auto: the server has {format_bytes(resident_bytes)} of resident memory; if "
            "that is its heap, which nothing read, the server would stand still for long",
            "name its page of metrics, which tells the heap (--server-metrics URL), or how to ask "
            "it all the same: --collect URL or COMMAND",
        )


def by_url(url: str, tls: TlsOptions) -> Collect:
    """How to ask by a page that collects."""
    return lambda: _of_url(url, tls)


def by_command(words: str, pid: int | None) -> Collect:
    """How to ask by a command, in whose words ``{pid}`` is the server's process."""
    return lambda: _of_command(words, pid)


# Node.


async def _of_node(pid: int) -> StillAlive:
    import aiohttp

    require_same_network(pid)
    require_debug_signal(pid)
    await asyncio.to_thread(require_no_workers, pid)
    # Whoever has the port may answer anything, and the server may end at any time.
    try:
        async with _turn_at_inspector():
            was_open = await asyncio.to_thread(has_inspector, pid)
            if not was_open:
                _signal(pid, signal.SIGUSR1)
            return await _by_inspector(pid, was_open)
    except (aiohttp.ClientError, OSError) as error:
        raise CannotCollectError(
            f"--collect auto: Node's inspector of process {pid} ended ({reason_of_failure(error)})"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotCollectError(
            f"--collect auto: what listens at port {INSPECTOR_PORT} is no inspector of Node",
            "end it, or leave --collect out",
        ) from None


@contextlib.asynccontextmanager
async def _turn_at_inspector() -> AsyncIterator[None]:
    """Held by one soak of this network at a time: each Node opens its inspector at the same port.

    A name without a file (unix(7), "abstract") is free again when its process ends, however it
    does.
    """
    with socket.socket(socket.AF_UNIX) as turn:
        while True:
            try:
                turn.bind(_TURN_AT_INSPECTOR)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            await asyncio.sleep(_POLL_S)
        yield


async def _by_inspector(pid: int, was_open: bool) -> StillAlive:
    """What is alive after a collection; the inspector is left as it was. Raises :class:`PeerError`,
    errors of aiohttp and of the system, and those of an answer that is not as it should be.
    """
    import aiohttp

    async with aiohttp.ClientSession(trust_env=False) as session:
        page = await _inspector_page(session, pid)
        async with session.ws_connect(page, max_msg_size=_LONGEST_ANSWER) as link:
            inspector = _Inspector(link)
            # Another program of Node may have the port.
            answered_by = await inspector.ask("Runtime.evaluate", expression="process.pid")
            if answered_by.get("result", {}).get("value") != pid:
                raise CannotCollectError(
                    f"--collect auto: port {INSPECTOR_PORT} is the inspector of another program "
                    f"than {pid}",
                    "end that one's inspector, or start the server with an --inspect-port of its "
                    "own and --collect COMMAND",
                )
            closing = contextlib.nullcontext() if was_open else _closed_after(inspector, session)
            async with closing:
                return await _alive_after_collection(inspector)


@contextlib.asynccontextmanager
async def _closed_after(
    inspector: _Inspector, session: aiohttp.ClientSession
) -> AsyncIterator[None]:
    """Have Node close its inspector, which lets anybody run code, when we have left or ended.

    A Node that closes it at the moment when a session leaves uses memory that it has freed (Node
    20.20, WsHandler::OnCloseFrameWritten: one of 235 ended by it on a busy host). So it closes it
    when our socket does: after it has answered another request, and so has seen us leave.
    """
    import aiohttp

    within = aiohttp.ClientTimeout(total=_INSPECTOR_OPENS_S)
    held_until_left = socket.create_server((INSPECTOR_ADDRESS, 0))
    try:
        await inspector.ask(
            "Runtime.evaluate",
            expression=_CLOSE_INSPECTOR_AFTER % held_until_left.getsockname(),
            includeCommandLineAPI=True,
            awaitPromise=True,
        )
        yield
    finally:
        await inspector.leave()
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.get(f"{_INSPECTOR}/json/version", timeout=within):
                pass
        held_until_left.close()
        await _inspector_closed()


async def _alive_after_collection(inspector: _Inspector) -> StillAlive:
    """What was alive when the collection ended, by V8's own account of it: what is read only an
    answer later has what the server allocated meanwhile (up to 240 kB).

    Buffers are outside the heap: one that no object holds any more is freed by then, without a
    second collection (Node 18, 20, 22 and 24).
    """
    started = await inspector.ask(
        "Runtime.evaluate",
        expression=_START_PROFILER,
        includeCommandLineAPI=True,
        awaitPromise=True,
    )
    profiler = started["result"].get("objectId")
    if profiler is None:
        raise CannotCollectError(
            "--collect auto: Node before 18.15 does not say what is alive after a collection",
            "use a later one, or name a command: --collect COMMAND",
        )
    await inspector.ask("HeapProfiler.collectGarbage")
    stopped = await inspector.ask(
        "Runtime.callFunctionOn",
        objectId=profiler,
        functionDeclaration=_STOP_PROFILER,
        returnByValue=True,
    )
    used_bytes, external_bytes = stopped["result"]["value"]
    return StillAlive(float(used_bytes), float(external_bytes))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise has_ended(pid) from None
    except PermissionError:
        raise of_another_user(pid) from None


async def _inspector_page(session: aiohttp.ClientSession, pid: int) -> str:
    import aiohttp
    import msgspec

    # Another program at this port may accept and never answer.
    within = aiohttp.ClientTimeout(total=_INSPECTOR_OPENS_S)
    deadline_s = time.monotonic() + _INSPECTOR_OPENS_S
    while True:
        with contextlib.suppress(
            aiohttp.ClientError, OSError, ValueError, KeyError, IndexError, TypeError
        ):
            async with session.get(f"{_INSPECTOR}/json/list", timeout=within) as answer:
                text = await answer.content.read(_LONGEST_ANSWER)
                page = str(msgspec.json.decode(text)[0]["webSocketDebuggerUrl"])
                if page.startswith(_INSPECTOR_LINK):
                    return page
        if time.monotonic() > deadline_s:
            raise CannotCollectError(
                f"--collect auto: process {pid} opened no inspector at port {INSPECTOR_PORT}: it "
                "handles SIGUSR1 itself, or has an --inspect-port of its own",
                "name a command that asks it: --collect COMMAND, or leave --collect out",
            )
        await asyncio.sleep(_POLL_S)


async def _inspector_closed() -> None:
    """Wait until nothing listens at the inspector's port, without a request to what is closing."""
    deadline_s = time.monotonic() + _INSPECTOR_OPENS_S
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            # With it, only a socket that listens is in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((INSPECTOR_ADDRESS, INSPECTOR_PORT))
                return
        await asyncio.sleep(_POLL_S)


class _Inspector:
    """Asks by the protocol of Chrome DevTools (chromedevtools.github.io, "tot")."""

    def __init__(self, link: aiohttp.ClientWebSocketResponse) -> None:
        self._link = link
        self._asked = 0

    async def leave(self) -> None:
        await self._link.close()

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result. Raises :class:`PeerError` if the connection ends without it."""
        import msgspec

        self._asked += 1
        await self._link.send_json({"id": self._asked, "method": method, "params": parameters})
        async for message in self._link:
            answer = msgspec.json.decode(message.data)
            if not isinstance(answer, dict) or answer.get("id") != self._asked:
                continue
            result = answer.get("result")
            if not isinstance(result, dict):
                raise CannotCollectError(f"--collect: Node's inspector refused {method}")
            return result
        raise CannotCollectError(f"--collect: Node's inspector ended at {method}")


# The JVM.


async def _of_jvm(pid: int) -> StillAlive:
    """By a histogram of the live objects, before which the JVM collects: exact with each collector,
    which the sizes of generations are not (GC.heap_info: some 100 kB). Direct buffers are not in
    it.
    """
    text = await _jcmd(pid, "GC.class_histogram")
    live = heap_of_jvm(text)
    if live is None:
        shown = oneline(text[:200].decode("utf-8", "replace"))
        raise CannotCollectError(
            f'--collect auto: jcmd has no histogram of the live objects ("{shown}")',
            "leave --collect out",
        )
    return StillAlive(live)


def heap_of_jvm(text: bytes) -> float | None:
    """The bytes of all live objects by ``jcmd PID GC.class_histogram``; None if it has no total."""
    total = _JVM_TOTAL.search(text)
    if total is None:
        return None
    return float(total[1])


async def _jcmd(pid: int, *words: str) -> bytes:
    require_jcmd()
    return await _output(["jcmd", str(pid), *words])


async def _output(words: list[str]) -> bytes:
    """The end of what a program prints until it ends. Raises FileNotFoundError, and
    :class:`PeerError` if it fails.
    """
    # A pipe of our own: what the program leaves running may keep it open after its end.
    read_end, write_end = os.pipe()
    output = asyncio.StreamReader()
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", 0)
        )
        try:
            process = await _started(words, write_end)
        except BaseException:
            pipe.close()
            raise
    finally:
        os.close(write_end)
    reading = asyncio.create_task(_end_of(output))
    try:
        status = await process.wait()
        await asyncio.wait([reading], timeout=_PRINTS_AFTER_END_S)
        text = reading.result() if reading.done() else b""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        reading.cancel()
        pipe.close()
    if status:
        # The trace of a program of Java is of no use here.
        said, _, _ = text.partition(b"\n\tat ")
        shown = oneline(said[:200].decode("utf-8", "replace"))
        printed = f'printed "{shown}"' if shown else "printed nothing"
        raise CannotCollectError(
            f"`{words[0]}` of --collect ended with status {status} and {printed}"
        )
    return text


async def _started(words: list[str], output: int) -> asyncio.subprocess.Process:
    """The program, which prints to a descriptor, in a group of its own, so that all of it can be
    ended. Raises FileNotFoundError, and :class:`PeerError` if it cannot be started.
    """
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        raise CannotCollectError(f"--collect: {words[0]} cannot be started ({why})") from None


async def _end_of(output: asyncio.StreamReader) -> bytes:
    text = b""
    while part := await output.read(_LONGEST_ANSWER):
        text = (text + part)[-_LONGEST_ANSWER:]
    return text


# Go, and what a user names.


async def _of_url(url: str, tls: TlsOptions) -> StillAlive | None:
    """By a page that collects: of net/http/pprof, whose text says what is alive; else unknown."""
    import aiohttp

    place = status_place(url)
    asked = place.url
    if "/debug/pprof/heap" in asked and "debug=" not in asked:
        asked += "&debug=1" if "?" in asked else "?debug=1"
    context = client_context(tls) if parse_url(asked).secure else None
    connection = KeptConnection({"User-Agent": "asyncli"}, context, socket=place.socket)
    try:
        answer = await connection.ask("GET", asked, within_s=LONGEST_S, most=_LONGEST_PROFILE)
    except (aiohttp.ClientError, OSError) as error:
        raise CannotCollectError(
            f"--collect {masked_page(url)}: cannot be read ({reason_of_failure(error)})"
        ) from None
    finally:
        await connection.close()
    if answer.status != 200:
        raise CannotCollectError(f"--collect {masked_page(url)}: answered {answer.status}")
    live = heap_of_go(answer.body)
    if live is None:
        return None
    return StillAlive(live)


def heap_of_go(text: bytes) -> float | None:
    """What is alive by the text of a heap profile; None if it is another page."""
    heap = _GO_HEAP.search(text)
    if heap is None:
        return None
    return float(heap[1])


async def _of_command(words: str, pid: int | None) -> None:
    """By a command; what is alive then, the page of metrics says."""
    if "{pid}" in words and pid is None:
        raise CannotCollectError(
            "--collect: the server's process is unknown", "name it with --server-pid"
        )
    try:
        await _output(shlex.split(words.replace("{pid}", str(pid))))
    except FileNotFoundError:
        raise CannotCollectError(f"--collect: {shlex.split(words)[0]} was not found") from None
