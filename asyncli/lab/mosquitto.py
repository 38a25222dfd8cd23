"""A private mosquitto, the broker of MQTT that every distribution has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from asyncli.lab.one_process import OneProcess


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
