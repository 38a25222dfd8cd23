"""A private HAProxy for a soak, which answers by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog
from asyncli.lab.executables import descriptor_limit, programs

# The status page's pollers count among maxconn as well.
_POLLERS = 8
# Other descriptors: listeners, standard ones, the lock; and a thread's epoll, pipe and wake-up.
_OWN_DESCRIPTORS, _OF_A_THREAD = 64, 4
# HAProxy's own MAX_THREADS on 64 bits.
_MOST_THREADS = 64


def parse_version(text: str) -> str | None:
    """``haproxy/2.6.12`` from what ``haproxy -v`` prints; None where it is none of 2.2 or later (``http-request return``)."""
    match = re.search(r"^HA-?Proxy version ((\d+)\.(\d+)[\w.]*)", text, re.MULTILINE)
    return f"haproxy/{match[1]}" if match and (int(match[2]), int(match[3])) >= (2, 2) else None


def find_haproxy() -> tuple[str, str] | None:
    """The path and version of the HAProxy (2.2 or later) of this host, or None."""
    return next(((path, version) for path, text in programs("-v", "haproxy") if (version := parse_version(text))), None)


def most_connections(nofile: int, threads: int) -> int:
    """The connections of one process, each a descriptor."""
    return nofile - _OWN_DESCRIPTORS - _OF_A_THREAD * threads - _POLLERS


class LabHaproxy(LabServer):
    """A HAProxy that answers 200 itself: one process, whose ``workers`` are threads (one a CPU).

    Its descriptors less some 80 bound it: 19,920 under a limit of 20,000; more are a :class:`HostError`. It has no limit of
    requests a connection.
    """

    name = "haproxy"
    template = "haproxy.cfg"
    status_path = "/stats;csv"
    speaks_tls = True
    # Except the alert that it wants more descriptors (see configs/haproxy.cfg).
    grave = re.compile(r"\[(ALERT|EMERG)\](?!.*FD limit)")
    stamp = re.compile(r"^\[\w+\]\s+(\d+/\d+ )?\(\d+\) : ")

    usual = 10_000
    _path, _version_text = "", "haproxy"

    @property
    def label(self) -> str:
        """For example ``haproxy/2.6.12``."""
        return self._version_text

    @property
    def error_log(self) -> Path:
        """Its stderr, where it writes errors without a syslog; exists while it runs."""
        return self._file("stderr")

    async def _prepare(self) -> None:
        found = find_haproxy()
        if found is None:
            raise HostError("haproxy: no HAProxy 2.2 or later on this host; install it (apt-get install haproxy)")
        self._path, self._version_text = found
        self._workers = self._asked_workers or min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        nofile = descriptor_limit()
        self._require_room(most_connections(nofile, self.workers), nofile)

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
            "listen": ports.host_port(self.address, self.port) + (f" ssl crt {self._file('server.pem')}" if self.tls else ""),
            "status_port": self.status_port,
        }

    def _argv(self) -> list[str]:
        return [self._path, "-db", "-f", str(self.config_path)]

    async def _answers(self) -> bool:
        return b"\n# pxname," in await ask(self.status_port, self.status_path)
