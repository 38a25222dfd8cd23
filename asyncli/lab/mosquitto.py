"""A private mosquitto, the broker of MQTT that every distribution has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from asyncli.errors import HostError
from asyncli.lab.base import LabServer
from asyncli.lab.executables import descriptor_limit, programs

# Listener, log, epoll, and what it opens by the way.
_OWN_DESCRIPTORS = 32
_VERSION = re.compile(r"mosquitto version ((\d+)\.[\d.]+)")


def find_mosquitto() -> tuple[str, str] | None:
    """The path and version of the mosquitto (2.0 or later) of this host, or None."""
    found = ((path, _VERSION.search(text)) for path, text in programs("-h", "mosquitto"))
    return next(((path, match[1]) for path, match in found if match is not None and int(match[2]) >= 2), None)


class LabMosquitto(LabServer):
    """A mosquitto that takes anybody: one process of one thread, which its descriptors bound. It has no status page.
    ``more_lines`` are added to its configuration.
    """

    name = "mosquitto"
    template = "mosquitto.conf"
    scheme = "mqtt"
    speaks_tls = True
    usual = 10_000
    grave = re.compile(r"Error")
    stamp = re.compile(r"^\d+: ")
    complains_in = ("error.log", "stderr")
    _workers = 1
    _path, _version = "", ""

    def __init__(self, *common: Any, more_lines: str = "", **more: Any) -> None:
        super().__init__(*common, **more)
        self._more_lines = more_lines

    @property
    def label(self) -> str:
        """For example ``mosquitto/2.0.11``."""
        return f"mosquitto/{self._version}"

    async def _prepare(self) -> None:
        found = find_mosquitto()
        if found is None:
            raise HostError("mosquitto: no mosquitto 2.0 or later on this host; install it (apt-get install mosquitto)")
        (self._path, self._version), nofile = found, descriptor_limit()
        self._workers = 1
        self._require_room(nofile - _OWN_DESCRIPTORS, nofile)

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
