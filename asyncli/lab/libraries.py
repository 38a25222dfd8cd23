"""Servers built on a language's library: small programs of ours that hold connections and echo
messages.

Each is one process without a status page, and sends no pings: a server's own pings would be
additional heartbeats.
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

from asyncli.lab import golang
from asyncli.lab.base import LabServer, backlog
from asyncli.lab.executables import programs
from asyncli.model.errors import HostError

# Listeners, pipes, epoll sets and what a runtime opens.
_OWN_DESCRIPTORS = 64


class _LabLibrary(LabServer):
    """``_program`` is started with address, port, backlog, timeout of idle HTTP connections (s),
    the certificate's file ("": no TLS), and "deflate" to accept compression (else ""); it prints a
    line when it listens.
    """

    scheme = "ws"
    speaks_tls = True
    default_size = 10_000
    prints_when_ready = True
    _program: tuple[str, ...] = ()
    _label = ""

    @property
    def label(self) -> str:
        """For example ``websockets/17.0``."""
        return self._label or self.name

    async def _prepare(self) -> None:
        self._workers = 1
        self._require_descriptors(_OWN_DESCRIPTORS)
        await asyncio.to_thread(self._find)

    def _find(self) -> None:
        """Set ``_program`` and ``_label``. Raises :class:`HostError` if something is missing."""
        raise NotImplementedError

    def _argv(self) -> list[str]:
        pem = str(self._file("server.pem")) if self.tls else ""
        deflate = "deflate" if self.deflate else ""
        place = (self.address, str(self.port))
        return [*self._program, *place, str(backlog()), str(self._timeout_s), pem, deflate]


class _LabPython(_LabLibrary):
    """Runs a program of ``python_servers.py`` with the Python that runs asyncli."""

    speaks_deflate = True
    #: The packages that it needs (its own first), the oldest major version of its own, and the
    #: requirement for pip.
    packages: ClassVar[tuple[str, ...]]
    min_version: ClassVar[int] = 0
    requirement: ClassVar[str]
    #: Packages that it uses if they are installed.
    optional: ClassVar[tuple[str, ...]] = ()

    def _find(self) -> None:
        versions = {package: _version_of(package) for package in (*self.packages, *self.optional)}
        missing = [package for package in self.packages if versions[package] is None]
        major_version, _, _ = (versions[self.name] or "0").partition(".")
        if not missing and int(major_version) < self.min_version:
            missing = [f"{self.name} {self.min_version} or later"]
        if missing:
            raise HostError(
                f"{self.name}: no package {' and no '.join(missing)} in {sys.executable}; "
                f"install it ({sys.executable} -m pip install '{self.requirement}')"
            )
        first, *others = (*self.packages, *self.optional)
        self._label = f"{first}/{versions[first]}"
        installed = [f"{package} {versions[package]}" for package in others if versions[package]]
        if installed:
            self._label += f" ({', '.join(installed)})"
        self._program = (sys.executable, "-m", "asyncli.lab.python_servers", self.name)


class LabWebsockets(_LabPython):
    """Python's ``websockets`` on asyncio."""

    name = "websockets"
    packages = ("websockets",)
    min_version = 14
    requirement = "websockets>=14"


class LabAiohttp(_LabPython):
    """Python's ``aiohttp`` on asyncio: WebSockets and HTTP/1.1."""

    name = "aiohttp"
    also = "http"
    packages = ("aiohttp",)
    requirement = "aiohttp"


class LabUvicorn(_LabPython):
    """Python's ``uvicorn`` with an ASGI application: WebSockets and HTTP/1.1, with what
    ``uvicorn[standard]`` installs.
    """

    name = "uvicorn"
    also = "http"
    packages = ("uvicorn", "websockets")
    requirement = "uvicorn[standard]"
    optional = ("uvloop", "httptools")


class LabNodeWs(_LabLibrary):
    """Node with the package ``ws``: WebSockets and HTTP/1.1. It is searched as Node does, from the
    current folder up, then in the folders of ``npm install -g``.
    """

    name = "node-ws"
    also = "http"
    speaks_deflate = True

    def _find(self) -> None:
        node = next(programs("--version", "node", "nodejs"), None)
        if node is None:
            raise HostError(
                "node-ws: no node on this host; install it (apt-get install nodejs npm)"
            )
        path, version_text = node
        package = _package_ws(path)
        facts = json.loads((package / "package.json").read_text(encoding="utf-8"))
        self._label = f"ws/{facts.get('version')} (Node {version_text.strip().removeprefix('v')})"
        self._program = (path, str(Path(__file__).with_name("node_ws.js")), str(package))


class _LabGo(_LabLibrary):
    """Built with the host's Go at its first start, from the sources and checksums in ``go/``."""

    module: ClassVar[str]

    def _find(self) -> None:
        built = golang.build(self.name)
        self._label = f"{self.name}/{golang.version_of(self.module)} ({built.go})"
        self._program = (str(built.program),)


class LabGorilla(_LabGo):
    """Go's ``gorilla/websocket``, a goroutine for each connection: WebSockets and HTTP/1.1."""

    name = "gorilla"
    module = "gorilla/websocket"
    also = "http"


class LabGobwas(_LabGo):
    """Go's ``gobwas/ws``: idle connections wait in an epoll set, without a goroutine or a buffer.
    It has no TLS: epoll does not see data that TLS has decrypted and not yet delivered.
    """

    name = "gobwas"
    module = "gobwas/ws"
    speaks_tls = False


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package_ws(node: str) -> Path:
    """The folder of the package ws. Raises :class:`HostError` without it."""
    for folder in _node_folders(node):
        if Path(folder, "ws", "package.json").is_file():
            return Path(folder, "ws")
    raise HostError(
        "node-ws: no package ws here, in NODE_PATH or among npm's global ones; install it here "
        "(npm install ws) or for all (npm install -g ws)"
    )


def _node_folders(node: str) -> Iterator[str]:
    """The folders that Node searches ("Loading from node_modules folders", "from the global
    folders" in its documentation).
    """
    here = Path.cwd()
    yield from (str(folder / "node_modules") for folder in (here, *here.parents))
    yield from filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep))
    home = Path(node).resolve().parent.parent
    yield from (
        str(home / "lib" / "node_modules"),
        "/usr/local/lib/node_modules",
        "/usr/share/nodejs",
    )
