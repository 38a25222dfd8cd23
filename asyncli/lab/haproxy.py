"""A private HAProxy for a soak, which answers by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from asyncli.lab import ports
from asyncli.lab.base import ask, backlog
from asyncli.lab.executables import descriptor_limit
from asyncli.lab.one_process import OneProcess

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
