"""Servers that are a library of a language: a small program of ours with each, which holds connections and echoes messages.

Each is one process, has no status page, and leaves pings to the client: what a server would ping of itself is a heartbeat more.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

from asyncli.errors import HostError
from asyncli.lab import golang
from asyncli.lab.base import LabServer, backlog
from asyncli.lab.executables import programs

# Listeners, pipes, epoll sets and what a runtime opens.
_OWN_DESCRIPTORS = 64


class _LabLibrary(LabServer):
    """``_program`` is started with address, port, length of the listeners' queue, seconds after which an idle connection of HTTP
    is closed, the certificate's file ("" without TLS), and "deflate" where it grants that ("" else); it prints a line when it
    listens.
    """

    scheme = "ws"
    speaks_tls = True
    usual = 10_000
    prints_when_ready = True
    _program: tuple[str, ...] = ()
    _label = ""

    @property
    def label(self) -> str:
        """For example ``websockets/17.0``."""
        return self._label or self.name

    async def _prepare(self) -> None:
        self._workers = 1
        self._require_room(_OWN_DESCRIPTORS)
        await asyncio.to_thread(self._find)

    def _find(self) -> None:
        """Set the program and the label; :class:`HostError` where something is missing."""
        raise NotImplementedError

    def _argv(self) -> list[str]:
        pem = str(self._file("server.pem")) if self.tls else ""
        return [*self._program, self.address, str(self.port), str(backlog()), str(self._timeout_s), pem, "deflate" * self.deflate]


class _LabPython(_LabLibrary):
    """By the Python that runs asyncli; the programs are in ``python_servers.py``."""

    speaks_deflate = True
    #: The packages that it takes, its own first and from which version on, and what pip calls them.
    packages: ClassVar[tuple[str, ...]]
    least: ClassVar[int] = 0
    wants: ClassVar[str]
    #: Names of those of which one or another may be there.
    may_use: ClassVar[tuple[str, ...]] = ()

    def _find(self) -> None:
        versions = {one: _version_of(one) for one in (*self.packages, *self.may_use)}
        missing = [one for one in self.packages if versions[one] is None]
        if not missing and int((versions[self.name] or "0").partition(".")[0]) < self.least:
            missing = [f"{self.name} {self.least} or later"]
        if missing:
            raise HostError(
                f"{self.name}: no package {' and no '.join(missing)} in {sys.executable}; "
                f"install it ({sys.executable} -m pip install '{self.wants}')"
            )
        others = [f"{one} {versions[one]}" for one in (*self.packages[1:], *self.may_use) if versions[one]]
        self._label = f"{self.packages[0]}/{versions[self.packages[0]]}" + (f" ({', '.join(others)})" if others else "")
        self._program = (sys.executable, "-m", "asyncli.lab.python_servers", self.name)


class LabWebsockets(_LabPython):
    """Python's ``websockets`` on asyncio."""

    name = "websockets"
    packages, least, wants = ("websockets",), 14, "websockets>=14"


class LabAiohttp(_LabPython):
    """Python's ``aiohttp`` on asyncio: WebSockets and HTTP/1.1."""

    name, also = "aiohttp", "http"
    packages, wants = ("aiohttp",), "aiohttp"


class LabUvicorn(_LabPython):
    """Python's ``uvicorn`` with an application of ASGI: WebSockets and HTTP/1.1, by what ``uvicorn[standard]`` installs."""

    name, also = "uvicorn", "http"
    packages, wants = ("uvicorn", "websockets"), "uvicorn[standard]"
    may_use = ("uvloop", "httptools")


class LabNodeWs(_LabLibrary):
    """Node with the package ``ws``: WebSockets and HTTP/1.1. The package is looked for as Node does, from the folder in which
    asyncli runs, then where ``npm install -g`` has it."""

    name, also = "node-ws", "http"
    speaks_deflate = True

    def _find(self) -> None:
        node = next(programs("--version", "node", "nodejs"), None)
        if node is None:
            raise HostError("node-ws: no node on this host; install it (apt-get install nodejs npm)")
        found = next((one for one in _node_folders(node[0]) if Path(one, "ws", "package.json").is_file()), None)
        if found is None:
            raise HostError(
                "node-ws: no package ws here, in NODE_PATH or among npm's global ones; install it here (npm install ws) "
                "or for all (npm install -g ws)"
            )
        package = json.loads(Path(found, "ws", "package.json").read_text(encoding="utf-8"))
        self._label = f"ws/{package.get('version')} (Node {node[1].strip().removeprefix('v')})"
        self._program = (node[0], str(Path(__file__).with_name("node_ws.js")), str(Path(found, "ws")))


class _LabGo(_LabLibrary):
    """Built by the host's Go at its first start, from sources and sums in ``go/``."""

    module: ClassVar[str]

    def _find(self) -> None:
        built = golang.build(self.name)
        self._label = f"{self.name}/{golang.version_of(self.module)} ({built.go})"
        self._program = (str(built.program),)


class LabGorilla(_LabGo):
    """Go's ``gorilla/websocket``, a goroutine for each connection: WebSockets and HTTP/1.1."""

    name, module, also = "gorilla", "gorilla/websocket", "http"


class LabGobwas(_LabGo):
    """Go's ``gobwas/ws``: idle connections wait in an epoll set, without a goroutine or a buffer. It has no TLS: what that has
    decrypted and not handed over is not seen by epoll."""

    name, module = "gobwas", "gobwas/ws"
    speaks_tls = False


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _node_folders(node: str) -> Iterator[str]:
    """Where packages may be: "Loading from node_modules folders" and "from the global folders" in Node's documentation."""
    here = Path.cwd()
    yield from (str(folder / "node_modules") for folder in (here, *here.parents))
    yield from filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep))
    home = Path(node).resolve().parent.parent
    yield from (str(home / "lib" / "node_modules"), "/usr/local/lib/node_modules", "/usr/share/nodejs")
