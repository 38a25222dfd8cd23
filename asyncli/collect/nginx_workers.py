"""Which processes of an nginx serve connections: its workers, by the titles that it gives its
processes (ngx_setproctitle). Its cache manager and its cache loader are children of the master too,
and hold none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from asyncli.collect.procfs import PROC, Stat, command_line
from asyncli.model import metrics

# ngx_process_cycle.c: "worker process is shutting down" after a reload.
_TITLE = re.compile(r"nginx: (?P<role>[a-z ]+) process\b")
_MASTER = "master"
_WORKER = "worker"


def role_of(title: str) -> str:
    """The role in a title of nginx: ``worker``, ``cache manager``; "": it has none."""
    match = _TITLE.match(title)
    if match is None:
        return ""
    return match["role"]


class NginxWorkers:
    """The workers among a server's processes, as far as these have titles of nginx."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        # By (pid, start): a process's role. A child has its master's title until it sets its own.
        self._roles: dict[tuple[int, int], str] = {}
        self._ended = 0

    def read(self, living: Sequence[Stat]) -> dict[str, float]:
        """``server.workers``, ``server.workers_stopped`` and ``server.workers_ended``; nothing for
        a server without such titles, or if one of nginx is hidden.
        """
        before = self._workers()
        self._roles = {(stat.pid, stat.start_ticks): self._role(stat) for stat in living}
        workers = self._workers()
        self._ended += len(before - workers)
        hidden = any(stat.name == "nginx" and not self._role_known(stat) for stat in living)
        if hidden or not any(self._roles.values()):
            return {}
        stopped = [
            stat for stat in living if stat.stopped and (stat.pid, stat.start_ticks) in workers
        ]
        return {
            metrics.SERVER_WORKERS: float(len(workers)),
            metrics.SERVER_WORKERS_STOPPED: float(len(stopped)),
            metrics.SERVER_WORKERS_ENDED: float(self._ended),
        }

    def _workers(self) -> set[tuple[int, int]]:
        return {process for process, role in self._roles.items() if role == _WORKER}

    def _role_known(self, stat: Stat) -> bool:
        return bool(self._roles[stat.pid, stat.start_ticks])

    def _role(self, stat: Stat) -> str:
        """A title is read until it is settled: that of a master may be a child's not yet, and an
        nginx that has just been executed has none yet. Other programs are asked once.
        """
        known = self._roles.get((stat.pid, stat.start_ticks))
        has_no_title_yet = not known and stat.name == "nginx"
        if known is None or known == _MASTER or has_no_title_yet:
            return role_of(command_line(stat.pid, self._proc))
        return known
