"""Servers built on a language's library: small programs of ours that hold connections and echo
messages.

Each is one process without a status page, and sends no pings: a server's own pings would be
additional heartbeats. Those on Node, Go and Java have a page of metrics.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from asyncli.lab import golang, java
from asyncli.lab.base import LabServer, backlog
from asyncli.lab.executables import programs
from asyncli.model.errors import HostError
from asyncli.model.units import format_bytes

# Listeners, pipes, epoll sets and what a runtime opens.
_OWN_DESCRIPTORS = 64
# Room for 10,000 connections, small enough to be collected now and then.
_JAVA_HEAP_BYTES = 256_000_000


class _LabLibrary(LabServer):
    """``_program`` is started with address, port, backlog, timeout of idle HTTP connections (s),
    the certificate's file ("": no TLS), "deflate" to accept compression (else ""), and the port
    of its page of metrics if it has one; it prints a line when it listens.
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
        self._require_descriptors(self._own_descriptors())
        await asyncio.to_thread(self._find)

    def _own_descriptors(self) -> int:
        """Descriptors that the process needs for other things than connections."""
        return _OWN_DESCRIPTORS

    def _find(self) -> None:
        """Set ``_program`` and ``_label``. Raises :class:`HostError` if something is missing."""
        raise NotImplementedError

    def _argv(self) -> list[str]:
        pem = str(self._file("server.pem")) if self.tls else ""
        deflate = "deflate" if self.deflate else ""
        place = (self.address, str(self.port))
        argv = [*self._program, *place, str(backlog()), str(self._timeout_s), pem, deflate]
        if self.metrics_path:
            argv.append(str(self.status_port))
        return argv


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


class _LabNode(_LabLibrary):
    """Runs a program of ours with the host's Node."""

    collects_by = "auto"

    def _node(self) -> _Node:
        """The host's Node. Raises :class:`HostError` without one."""
        for path, version_text in programs("--version", "node", "nodejs"):
            return _Node(path, version_text.strip().removeprefix("v"))
        raise HostError(
            f"{self.name}: no node on this host; install it (apt-get install nodejs npm)"
        )

    def _require_package(self, node: _Node, package: str) -> Path:
        """The folder of an npm package. Raises :class:`HostError` without it."""
        folder = _node_package(node, package)
        if folder is not None:
            return folder
        raise HostError(
            f"{self.name}: no package {package} here, in NODE_PATH or among npm's global ones; "
            f"install it here (npm install {package}) or for all (npm install -g {package})"
        )


class LabNodeHttp(_LabNode):
    """Node's own HTTP/1.1 server, whose page of metrics is the package ``prom-client``'s."""

    name = "node-http"
    scheme = "http"
    metrics_path = "/metrics"

    def _find(self) -> None:
        node = self._node()
        prom_client = self._require_package(node, "prom-client")
        prom_client_version = _node_version_of(prom_client)
        self._label = f"{self.name}/{node.version} (prom-client {prom_client_version})"
        self._program = (node.path, _beside("node_http.js"), str(prom_client))


class LabNodeWs(_LabNode):
    """Node with the package ``ws``: WebSockets and HTTP/1.1. It has a page of metrics if the
    package ``prom-client`` is installed.
    """

    name = "node-ws"
    also = "http"
    speaks_deflate = True

    def _find(self) -> None:
        node = self._node()
        ws = self._require_package(node, "ws")
        prom_client = _node_package(node, "prom-client")
        if prom_client is not None:
            self.metrics_path = "/metrics"
        self._label = f"ws/{_node_version_of(ws)} (Node {node.version})"
        self._program = (node.path, _beside("node_ws.js"), str(ws), str(prom_client or ""))


class _LabGo(_LabLibrary):
    """Built with the host's Go at its first start, from the sources and checksums in ``go/``.
    Beside the page of metrics, which is client_golang's, there are those of net/http/pprof.
    """

    metrics_path = "/metrics"
    collects_by = "/debug/pprof/heap?gc=1"
    #: The library that holds the connections, as in go.mod.
    module: ClassVar[str]

    def _find(self) -> None:
        built = golang.build(self.name)
        self._label = self._label_of(built)
        self._program = (str(built.program),)

    def _label_of(self, built: golang.Built) -> str:
        return f"{self.name}/{golang.version_of(self.module)} ({built.go})"


class LabGoHttp(_LabGo):
    """Go's ``net/http``, a goroutine and two buffers for each connection: HTTP/1.1."""

    name = "go-http"
    module = "prometheus/client_golang"
    scheme = "http"

    def _label_of(self, built: golang.Built) -> str:
        version = built.go.removeprefix("go")
        return f"{self.name}/{version} (client_golang {golang.version_of(self.module)})"


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


class LabJvm(_LabLibrary):
    """Java's Netty, built with the host's Maven at its first start: HTTP/1.1. Its page of metrics
    is Micrometer's. ``heap_bytes`` limits its heap.
    """

    name = "jvm"
    scheme = "http"
    metrics_path = "/metrics"
    collects_by = "auto"
    limits_heap = True

    def __init__(self, *common: Any, heap_bytes: int = _JAVA_HEAP_BYTES, **more: Any) -> None:
        super().__init__(*common, **more)
        self._heap_bytes = heap_bytes

    def _own_descriptors(self) -> int:
        # Netty starts two threads for each CPU, with an epoll set and a wake-up of up to two.
        return _OWN_DESCRIPTORS + 6 * len(os.sched_getaffinity(0))

    def _find(self) -> None:
        program = java.find_java(self.name)
        folder = java.build(self.name)
        netty = java.version_of("netty-codec-http")
        micrometer = java.version_of("micrometer-registry-prometheus")
        parts = f"Netty {netty}, Micrometer {micrometer}, heap {format_bytes(self._heap_bytes)}"
        self._label = f"{self.name}/{program.version} ({parts})"
        options = (f"-Xmx{self._heap_bytes}", "-cp", java.class_path(folder))
        self._program = (program.path, *options, java.MAIN)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class _Node(NamedTuple):
    """The program, and its version as ``20.20.2``."""

    path: str
    version: str


def _node_package(node: _Node, package: str) -> Path | None:
    """The folder of an npm package, or None. It is searched as Node does, from the current folder
    up, then in the folders of ``npm install -g``.
    """
    for folder in _node_folders(node.path):
        if Path(folder, package, "package.json").is_file():
            return Path(folder, package)
    return None


def _node_version_of(package: Path) -> str:
    facts = json.loads((package / "package.json").read_text(encoding="utf-8"))
    return str(facts.get("version"))


def _beside(file_name: str) -> str:
    """The path of a program in this folder."""
    return str(Path(__file__).with_name(file_name))


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
