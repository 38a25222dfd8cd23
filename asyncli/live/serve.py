"""Serves the live page or the metrics of one run until told to end: in the foreground for ``asyncli
watch --web``, and as a process of its own beside a soak, which it must not disturb.

The process beside a soak gets its settings as a line of JSON on standard input, answers with a line
when it listens, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncli.live.folder_server import FolderServer
from asyncli.live.page_server import PageServer
from asyncli.live.reference import read_reference
from asyncli.model.errors import AsyncliError, HostError, NotBegunError, StoreError
from asyncli.web.address import server_tls, url_of

# A soak creates its file after its preflight.
_AGAIN_S = 0.2


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

    def url(self, port: int) -> str:
        """Its address; a browser keeps to itself what stands after ``#``."""
        return f"{url_of(self.host, port, is_secure=self.certificate is not None)}/"


class Settings(msgspec.Struct, frozen=True):
    """Of the process beside a soak; ``stops``: the process that Ctrl-C would end."""

    path: str
    place: ServedAt
    stops: int


class ListensAt(msgspec.Struct, frozen=True):
    """The process's answer: its port, or why it does not listen."""

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
        tls=_tls_of(place),
        log=log,
        stop=stop,
        with_page=place.with_page,
        reference=reference,
    )


def folder_server_of(folder: Path, place: ServedAt, log: Callable[[str], None]) -> FolderServer:
    """Raises :class:`~asyncli.model.errors.AsyncliError` for a certificate that cannot be used."""
    return FolderServer(
        folder,
        host=place.host,
        port=place.port,
        token=place.token,
        must_have_token=place.must_have_token,
        tls=_tls_of(place),
        log=log,
    )


def _tls_of(place: ServedAt) -> ssl.SSLContext | None:
    if place.certificate is None:
        return None
    return server_tls(("--web-cert", "--web-key"), place.certificate, place.key)


async def serve_until(
    server: PageServer | FolderServer, ended: asyncio.Event, linger_s: float = 0.0
) -> None:
    """Serve a server that listens until ``linger_s`` seconds after ``ended``."""
    running = asyncio.create_task(server.run())
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await asyncio.wait({running}, timeout=linger_s)
    ending.cancel()
    running.cancel()
    await asyncio.wait({running, ending})
    if not running.cancelled():
        running.result()


async def _beside_a_soak(settings: Settings) -> None:
    place = settings.place

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(settings.stops, signal.SIGINT)

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    soak = sys.stdin.fileno()

    def end() -> None:
        # A closed pipe stays readable: watched on, it would keep a core busy while this lingers.
        loop.remove_reader(soak)
        ended.set()

    loop.add_reader(soak, end)
    server = server_of(Path(settings.path), place, _log, stop)
    await server.listen()
    _answer(ListensAt(server.port))
    try:
        await _read_once_begun(server, ended)
        await serve_until(server, ended, place.linger_s)
    finally:
        await server.close()


async def _read_once_begun(server: PageServer, ended: asyncio.Event) -> None:
    """Read the run as soon as it has begun, unless the soak ends before."""
    while not ended.is_set():
        try:
            await server.read()
        except NotBegunError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _AGAIN_S)
            continue
        return


def _log(line: str) -> None:
    print(f"asyncli: {line}", file=sys.stderr, flush=True)


def _answer(ready: ListensAt) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
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


if __name__ == "__main__":
    main()
