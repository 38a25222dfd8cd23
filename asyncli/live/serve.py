"""Serves the live page or the metrics of one run until told to end: in the foreground for ``asyncli
watch --web``, and as a process of its own beside a soak, which it must not disturb. That process
also sends the metrics to an OpenTelemetry collector.

The process beside a soak gets its settings as a line of JSON on standard input, answers with a line
when it listens, and ends when its standard input does. Each further line is a notice for the user,
or that the page ends the hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncli.live.feed import RunFeed
from asyncli.live.page_server import PageServer
from asyncli.live.reference import read_reference
from asyncli.model.errors import AsyncliError, HostError, NotBegunError, StoreError
from asyncli.store.follow import last_written_s
from asyncli.store.lock import is_locked
from asyncli.web.address import server_tls, url_of
from asyncli.web.running import run_until

#: So long after the soak's end a page that somebody looks at may still get the verdict.
LAST_LOOK_S = 10.0
#: So long after the soak's end the last values may still be sent.
LAST_VALUES_S = 8.0
# A soak creates its file after its preflight.
_AGAIN_S = 0.2
_TURN_S = 1.0
# The end of a run is read at the next turn.
_END_IS_READ_S = 2 * _TURN_S


class ServedAt(msgspec.Struct, frozen=True):
    """Where to serve, and to whom. ``with_page``: False: the metrics alone. ``linger_s``: how long
    the last state stays readable after the soak's end.
    """

    host: str
    port: int
    token: str
    must_have_token: bool
    certificate: str | None = None
    key: str | None = None
    with_page: bool = True
    linger_s: float = 0.0
    #: Of which the token is; None: it is a new one.
    token_file: str | None = None
    #: A run file that is laid under the run.
    reference: str | None = None

    @property
    def flag(self) -> str:
        """The option that asked for it."""
        return "--web" if self.with_page else "--metrics"

    def url(self, port: int) -> str:
        """Its address; a browser keeps to itself what stands after ``#``."""
        return f"{url_of(self.host, port, is_secure=self.certificate is not None)}/"


class SentTo(msgspec.Struct, frozen=True):
    """To which URL the metrics are sent by OTLP, and how often."""

    endpoint: str
    every_s: float


class Settings(msgspec.Struct, frozen=True):
    """Of the process beside a soak. ``place``: None: nothing is served. ``otlp``: None: nothing is
    sent.
    """

    path: str
    place: ServedAt | None
    otlp: SentTo | None = None


class EndsHold(msgspec.Struct, frozen=True, tag=True):
    """A line of the process: who looks at the page ends the hold."""


class ListensAt(msgspec.Struct, frozen=True):
    """The process's answer: its port (0: nothing is served), or why it does not listen."""

    port: int = 0
    problem: str = ""


def new_token() -> str:
    return secrets.token_urlsafe(18)


def server_of(
    path: Path, place: ServedAt, log: Callable[[str], None], stop: Callable[[], None] | None = None
) -> PageServer:
    """Raises :class:`~asyncli.model.errors.AsyncliError` for a certificate that cannot be used, and
    a reference that is no run.
    """
    reference = None
    if place.reference is not None:
        try:
            reference = read_reference(Path(place.reference))
        except StoreError as error:
            raise StoreError(f"--reference: {error}") from None
    return PageServer(
        path,
        host=place.host,
        port=place.port,
        token=place.token,
        must_have_token=place.must_have_token,
        tls=tls_of(place),
        log=log,
        stop=stop,
        with_page=place.with_page,
        reference=reference,
    )


class _FeedReader:
    """Keeps a feed up to date where nothing is served."""

    def __init__(self, path: Path) -> None:
        self.feed = RunFeed(path)

    async def read(self) -> None:
        await asyncio.to_thread(self.feed.open)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_TURN_S)
            # A file that cannot be read now is read at the next turn.
            with contextlib.suppress(StoreError):
                self.feed.take(await asyncio.to_thread(self.feed.read))

    async def close(self) -> None:
        self.feed.close()


def tls_of(place: ServedAt) -> ssl.SSLContext | None:
    """None without a certificate. Raises :class:`~asyncli.model.errors.AsyncliError` for one that
    cannot be used.
    """
    if place.certificate is None:
        return None
    return server_tls(("--web-cert", "--web-key"), place.certificate, place.key)


async def _beside_a_soak(settings: Settings) -> None:
    began_s = time.time()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    soak = sys.stdin.fileno()

    def end() -> None:
        # A closed pipe stays readable: watched on, it would keep a core busy while this lingers.
        loop.remove_reader(soak)
        ended.set()

    loop.add_reader(soak, end)
    server: PageServer | _FeedReader
    linger_s = 0.0
    if settings.place is None:
        server = _FeedReader(Path(settings.path))
        _answer(ListensAt())
    else:
        server = await _listening(settings, settings.place)
        linger_s = settings.place.linger_s
    try:
        await _until_written(Path(settings.path), began_s, ended)
        if not await _read_once_begun(server, ended):
            return
        sent = asyncio.Event()
        sending = asyncio.create_task(_send(settings.otlp, server.feed, ended, sent))
        # The values are read until the last ones were sent.
        seen = asyncio.Event()
        looking = asyncio.create_task(_look_last(server, sent, seen))
        await run_until(server.run(), seen, linger_s)
        await looking
        await sending
    finally:
        await server.close()


async def _look_last(
    server: PageServer | _FeedReader, sent: asyncio.Event, seen: asyncio.Event
) -> None:
    """Set ``seen`` after ``sent``, as soon as who looks at the page has the verdict."""
    await sent.wait()
    began_s = time.monotonic()
    while isinstance(server, PageServer) and server.is_ending_awaited:
        waited_s = time.monotonic() - began_s
        # A soak that was killed has no verdict.
        if waited_s > (LAST_LOOK_S if server.feed.state.over else _END_IS_READ_S):
            break
        await asyncio.sleep(_AGAIN_S)
    seen.set()


async def _listening(settings: Settings, place: ServedAt) -> PageServer:
    server = server_of(Path(settings.path), place, _log, stop=lambda: _say(EndsHold()))
    await server.listen()
    _answer(ListensAt(server.port))
    return server


async def _send(
    to: SentTo | None, feed: RunFeed, ended: asyncio.Event, sent: asyncio.Event
) -> None:
    """Send the metrics until the soak has ended, and then set ``sent``."""
    try:
        if to is not None:
            from asyncli.live.otlp import OtlpSender

            sender = OtlpSender(to.endpoint, to.every_s, LAST_VALUES_S, _notify)
            await sender.send_until(feed, ended)
    except Exception as error:
        # Such as a setting that the library does not accept; a page is served all the same.
        _notify(f"warning: --otlp: nothing can be sent ({type(error).__name__})")
    await ended.wait()
    sent.set()


async def _until_written(path: Path, began_s: float, ended: asyncio.Event) -> None:
    """Wait until the soak writes its file: that of a killed session, which it resumes, lies there
    before, and would be of a run that has ended.
    """
    while not (ended.is_set() or is_locked(path) or last_written_s(path) >= began_s):
        await asyncio.sleep(_AGAIN_S)


async def _read_once_begun(server: PageServer | _FeedReader, ended: asyncio.Event) -> bool:
    """Read the run as soon as it has begun; False if the soak ends before."""
    while not ended.is_set():
        try:
            await server.read()
        except NotBegunError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _AGAIN_S)
            continue
        return True
    return False


def _log(line: str) -> None:
    print(f"asyncli: {line}", file=sys.stderr, flush=True)


def _answer(ready: ListensAt) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


def _notify(line: str) -> None:
    _say(line)


def _say(line: str | EndsHold) -> None:
    # The soak may be gone.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    # The server and asyncli's workers go first.
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_beside_a_soak(settings))
    except (AsyncliError, HostError) as error:
        _answer(ListensAt(problem=str(error)))
    # A thread that waits for a slow collector must not be waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
