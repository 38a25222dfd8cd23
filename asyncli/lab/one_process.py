"""Servers of one process, found by their program's name: a class says what it is started with, and when it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from asyncli.errors import HostError
from asyncli.expected import parse_expected, unescaped
from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog
from asyncli.lab.executables import descriptor_limit, programs

_ANSWER_S = 1.0


class OneProcess(LabServer):
    """Its descriptors bound it; it keeps nothing on disk beyond its folder.

    It is ready when it answers a heartbeat of its ``plan_keys``.
    """

    usual = 10_000
    #: The program, the flag by which it says its version, where in that the version is, the least one, and what installs it.
    program: ClassVar[str]
    version_flag: ClassVar[str] = "--version"
    says: ClassVar[re.Pattern[str]]
    least: ClassVar[tuple[int, ...]] = ()
    install: ClassVar[str]
    #: Listeners, pipes, logs and epoll sets; redis keeps 32 of its limit, and memcached counts some 30 as connections.
    own_descriptors: ClassVar[int] = 64
    _path, _version_text = "", ""

    @classmethod
    def version_in(cls, text: str) -> str | None:
        """The version in what the program says; None where it is another program, or too old."""
        match = cls.says.search(text)
        return match[1] if match and tuple(map(int, re.findall(r"\d+", match[1]))) >= cls.least else None

    @classmethod
    def found(cls) -> tuple[str, str] | None:
        """The path and version of this host's, or None."""
        every = ((path, cls.version_in(text)) for path, text in programs(cls.version_flag, cls.program))
        return next(((path, version) for path, version in every if version), None)

    @property
    def label(self) -> str:
        """For example ``redis/7.0.15``."""
        return f"{self.name}/{self._version_text}" if self._version_text else self.name

    async def _prepare(self) -> None:
        found = self.found()
        if found is None:
            least = f" {'.'.join(map(str, self.least))} or later" if self.least else ""
            raise HostError(f"{self.name}: no {self.program}{least} on this host; install it ({self.install})")
        self._path, self._version_text = found
        self._workers = self._threads()
        self._require_room(self._own())

    def _threads(self) -> int:
        """Where they can be chosen."""
        return 1

    def _own(self) -> int:
        """Descriptors that are no connections."""
        return self.own_descriptors

    async def _answers(self) -> bool:
        answer, expected = b"", parse_expected(self.plan_keys["expect"])
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(ports.reachable(self.address), self.port)
                try:
                    if "greeting" in self.plan_keys:
                        await reader.readline()
                    writer.write(unescaped(self.plan_keys["send"]))
                    while expected.end_in(answer) is None and (more := await reader.read(4096)):
                        answer += more
                    return expected.end_in(answer) is not None
                finally:
                    writer.close()
        return False


class LabRedis(OneProcess):
    """A redis that writes nothing down."""

    name, program, install = "redis", "redis-server", "apt-get install redis-server"
    scheme = "tcp"
    says = re.compile(r"^Redis server v=(\S+)")
    plan_keys: ClassVar = {"send": r"PING\r\n", "expect": r"+PONG\r\n"}

    def _argv(self) -> list[str]:
        return [
            self._path, "--port", str(self.port), "--bind", self.address, "--maxclients",
            str(self.connections + self.own_descriptors), "--save", "", "--timeout", "0", "--tcp-backlog", str(backlog()),
            "--protected-mode", "no", "--loglevel", "warning",
        ]  # fmt: skip


class LabMemcached(OneProcess):
    """A memcached; its ``workers`` are threads, one a CPU."""

    name, program, version_flag, install = "memcached", "memcached", "-V", "apt-get install memcached"
    scheme = "tcp"
    says = re.compile(r"^memcached (\d\S*)")
    plan_keys: ClassVar = {"send": r"version\r\n", "expect": r"/^VERSION /"}

    def _threads(self) -> int:
        return self._asked_workers or len(os.sched_getaffinity(0))

    def _argv(self) -> list[str]:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        return [
            self._path, *user, "-l", self.address, "-p", str(self.port), "-U", "0", "-c",
            str(self.connections + self.own_descriptors), "-b", str(backlog()), "-t", str(self.workers),
        ]  # fmt: skip


class LabNats(OneProcess):
    """A NATS server, by its protocol of text: it greets with INFO, answers PING with PONG, and sends a PING of its own."""

    name, program, install = "nats", "nats-server", "apt-get install nats-server"
    template = "nats.conf"
    scheme = "tcp"
    says = re.compile(r"nats-server: v(\d\S*)")
    plan_keys: ClassVar = {"greeting": "/^INFO /", "send": r"PING\r\n", "expect": "/^P[IO]NG$/"}

    def _values(self) -> Mapping[str, object]:
        return {
            "address": self.address, "port": self.port, "connections": self.connections + self.own_descriptors,
            "interval": f"{self._timeout_s}s", "error_log": self._file("error.log"),
        }  # fmt: skip

    def _argv(self) -> list[str]:
        return [self._path, "-c", str(self.config_path)]


class LabCaddy(OneProcess):
    """A Caddy that answers 200 itself, in HTTP/1.1 and HTTP/2, the latter also in the clear. It counts no connections.

    By default it closes idle connections after 5 minutes, and those without a request after one. It reads nothing of the
    system's.
    """

    name, program, version_flag, install = "caddy", "caddy", "version", "apt-get install caddy"
    template = "caddy.json"
    speaks_tls = speaks_http2 = True
    says = re.compile(r"^v?(\d\S*)", re.MULTILINE)
    # Since 2.6 protocols are named.
    least = (2, 6)
    grave = re.compile(r"^Error|\"level\":\"(error|fatal)\"")

    def _values(self) -> Mapping[str, object]:
        pem = str(self._file("server.pem"))
        return {
            "admin": f"127.0.0.1:{self.status_port}", "folder": self.config_path.parent,
            "listen": ports.host_port(self.address, self.port), "idle": f"{self._timeout_s}s",
            "header": f"{max(60, self._timeout_s)}s", "policies": "[{}]" if self.tls else "[]",
            "certificates": json.dumps([{"certificate": pem, "key": pem}] if self.tls else []),
        }  # fmt: skip

    def _argv(self) -> list[str]:
        return [self._path, "run", "--config", str(self.config_path)]

    async def _answers(self) -> bool:
        return b" 200 " in (await ask(self.status_port, "/config/"))[:16]


class LabLighttpd(OneProcess):
    """A lighttpd that answers with a page of three bytes, in HTTP/1.1 and, in the clear, HTTP/2."""

    name, program, version_flag, install = "lighttpd", "lighttpd", "-v", "apt-get install lighttpd"
    template = "lighttpd.conf"
    speaks_http2 = True
    says = re.compile(r"^lighttpd/(\d\S*)")
    # Since 1.4.59 it speaks HTTP/2.
    least = (1, 4, 59)
    complains_in = ("error.log", "stderr")

    def _values(self) -> Mapping[str, object]:
        return {
            "folder": self.config_path.parent, "address": self.address, "port": self.port, "backlog": backlog(),
            "nofile": descriptor_limit(), "connections": self.connections + 1,
            # It keeps them in 16 bits.
            "keepalive_timeout": min(self._timeout_s, 65_535),
        }  # fmt: skip

    def _files(self) -> Mapping[str, bytes]:
        return {"page.html": b"ok\n"}

    def _argv(self) -> list[str]:
        return [self._path, "-D", "-f", str(self.config_path)]

    async def _answers(self) -> bool:
        return b" 200 " in (await ask(self.port, "/", ports.reachable(self.address)))[:16]


class LabVarnish(OneProcess):
    """A Varnish that answers 200 itself, in HTTP/1.1 and, in the clear, HTTP/2: a manager, and a child that holds the
    connections. It compiles its configuration, so a C compiler is there with it. Each connection of HTTP/2 has a thread.
    """

    name, program, version_flag, install = "varnish", "varnishd", "-V", "apt-get install varnish"
    template = "varnish.vcl"
    speaks_http2 = True
    says = re.compile(r"^varnishd \(varnish-(\d[\d.]*)", re.MULTILINE)
    grave = re.compile(r"^Error")

    def _argv(self) -> list[str]:
        # Its log is memory that it shares: of the usual 80 MB each request would touch more.
        more = {"timeout_idle": self._timeout_s, "listen_depth": backlog(), "vsl_space": "1M"}
        if self.http2:
            more |= {"feature": "+http2", "thread_pool_max": self.connections + 500}
        # It does not raise its limit of descriptors by itself.
        return [
            "/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptor_limit()), self._path, "-F", "-j", "none",
            "-n", str(self.config_path.parent), "-f", str(self.config_path), "-T", "none",
            "-a", ports.host_port(self.address, self.port), *(word for key, to in more.items() for word in ("-p", f"{key}={to}")),
        ]  # fmt: skip

    async def _answers(self) -> bool:
        return b" 200 " in (await ask(self.port, "/", ports.reachable(self.address)))[:16]


class LabMosquitto(OneProcess):
    """A mosquitto that takes anybody: one process of one thread, which its descriptors bound. It has no status page.
    ``more_lines`` are added to its configuration.
    """

    name, program, version_flag, install = "mosquitto", "mosquitto", "-h", "apt-get install mosquitto"
    says, least = re.compile(r"mosquitto version (\d+\.[\d.]+)"), (2, 0)
    # Listener, log, epoll, and what it opens by the way.
    own_descriptors = 32
    template = "mosquitto.conf"
    scheme = "mqtt"
    speaks_tls = True
    grave = re.compile(r"Error")
    stamp = re.compile(r"^\d+: ")
    complains_in = ("error.log", "stderr")

    def __init__(self, *common: Any, more_lines: str = "", **more: Any) -> None:
        super().__init__(*common, **more)
        self._more_lines = more_lines

    def _values(self) -> Mapping[str, object]:
        pem = self._file("server.pem")
        return {
            "address": self.address,
            "port": self.port,
            "error_log": self._file("error.log"),
            # As root it would become another user, whose PSS root may not read in most containers.
            "user_line": "user root" if os.geteuid() == 0 else "# (user: only root may set it)",
            "tls_lines": f"certfile {pem}\nkeyfile {pem}" if self.tls else "# (no TLS)",
            "more_lines": self._more_lines,
        }

    def _argv(self) -> list[str]:
        return [self._path, "-c", str(self.config_path)]

    async def _answers(self) -> bool:
        """Whether it says so: a port that answers may be another program's."""
        try:
            return b" running\n" in self._file("error.log").read_bytes()
        except OSError:
            return False


# The status page's pollers count among maxconn as well.
_POLLERS = 8
# Other descriptors: listeners, standard ones, the lock; and a thread's epoll, pipe and wake-up.
_OWN_DESCRIPTORS, _OF_A_THREAD = 64, 4
# HAProxy's own MAX_THREADS on 64 bits.
_MOST_THREADS = 64


class LabHaproxy(OneProcess):
    """A HAProxy that answers 200 itself: one process, whose ``workers`` are threads (one a CPU).

    Its descriptors less some 80 bound it: 19,920 under a limit of 20,000; more are a :class:`HostError`. It has no limit of
    requests a connection.
    """

    name, program, version_flag, install = "haproxy", "haproxy", "-v", "apt-get install haproxy"
    # Since 2.2 it has http-request return.
    says, least = re.compile(r"^HA-?Proxy version (\d+\.\d+[\w.]*)", re.MULTILINE), (2, 2)
    template = "haproxy.cfg"
    status_path = "/stats;csv"
    speaks_tls = speaks_http2 = True
    # Except the alert that it wants more descriptors (see configs/haproxy.cfg).
    grave = re.compile(r"\[(ALERT|EMERG)\](?!.*FD limit)")
    stamp = re.compile(r"^\[\w+\]\s+(\d+/\d+ )?\(\d+\) : ")

    @property
    def error_log(self) -> Path:
        """Its stderr, where it writes errors without a syslog; exists while it runs."""
        return self._file("stderr")

    def _threads(self) -> int:
        return self._asked_workers or min(len(os.sched_getaffinity(0)), _MOST_THREADS)

    def _own(self) -> int:
        return _OWN_DESCRIPTORS + _OF_A_THREAD * self.workers + _POLLERS

    def _values(self) -> Mapping[str, object]:
        # Not shorter than nginx's, so that a short keep-alive ends first.
        request_timeout_s = max(60, self._timeout_s)
        return {
            "threads": self.workers,
            "maxconn": self.connections + _POLLERS,
            "nofile": descriptor_limit(),
            "backlog": backlog(),
            "keepalive_timeout": f"{self._timeout_s}s",
            "request_timeout": f"{request_timeout_s}s",
            "listen": " ".join([ports.host_port(self.address, self.port), *self._spoken()]),
            "status_port": self.status_port,
        }

    def _spoken(self) -> list[str]:
        """Of the line bind."""
        if self.tls:
            return ["ssl", "crt", str(self._file("server.pem")), *(["alpn", "h2,http/1.1"] if self.http2 else [])]
        return ["proto", "h2"] if self.http2 else []

    def _argv(self) -> list[str]:
        return [self._path, "-db", "-f", str(self.config_path)]

    async def _answers(self) -> bool:
        return b"\n# pxname," in await ask(self.status_port, self.status_path)
