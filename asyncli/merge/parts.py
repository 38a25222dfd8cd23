"""What is merged: the run of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.analysis.joint import joint
from asyncli.merge.clocks import Clock, clock_of
from asyncli.records import Sample
from asyncli.store.reader import Run


class Client(msgspec.Struct):
    """A client's run; ``told_s``: when each of its findings was made, on its clock."""

    name: str
    run: Run
    told_s: list[float]

    @property
    def ids(self) -> set[str]:
        """The run's own, and of one that was merged before those of its parts."""
        known = joint(self.run.environment)
        return {self.run.id, *(known.ids if known is not None else ())}

    @property
    def clock(self) -> Clock:
        return clock_of(self.run.environment, self.run.started_wall_s)

    @property
    def samples(self) -> Sequence[Sample]:
        return self.run.samples

    @property
    def watched(self) -> str:
        """The host whose memory it read under the names ``kernel.``, ``host.`` and ``tcp.``: its own, or an agent's."""
        agent = self.run.environment.get("agent")
        if not isinstance(agent, dict) or agent.get("same_host") is True:
            return self.host
        # By its boot, where the file tells: one host may have several agents, and a client beside them.
        return str(agent.get("boot_id") or f"agent {agent.get('url')}")

    @property
    def host(self) -> str:
        """Where it ran: the boot, or the host's name where that was not recorded."""
        return self.clock.boot or f"host {self.run.environment.get('host') or self.name}"

    @property
    def network(self) -> str:
        """The network namespace in which it ran; of a file that does not say, its host's one."""
        return f"{self.host} {self.run.environment.get('network')}"

    @property
    def watched_network(self) -> str:
        """That whose sockets and counters it read under the names ``tcp.`` and ``kernel.tcp_...``."""
        agent = self.run.environment.get("agent")
        if not isinstance(agent, dict) or agent.get("same_network") is True:
            return self.network
        return f"{self.watched} {agent.get('network')}"

    @property
    def server(self) -> dict[str, Any]:
        server = self.run.environment.get("server")
        return server if isinstance(server, dict) else {}
