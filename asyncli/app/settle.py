"""Waits between the steps of a capacity search until the server is as idle as before the first."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from asyncli.agent.client import AgentClient
from asyncli.analysis.shared_host import count_of_sockets
from asyncli.collect.kernel import read_counters
from asyncli.collect.listening import no_listener
from asyncli.collect.procfs import read_listeners
from asyncli.collect.status_reader import StatusReader
from asyncli.model.errors import PeerError
from asyncli.model.metrics import STATUS_ACTIVE
from asyncli.model.plan import Plan
from asyncli.model.units import format_count

#: How long a server may take to restart, or to close our connections (s).
REST_S = 30.0
_POLL_S = 0.2
# If the number of sockets has not fallen for this long (s), the rest will not close soon.
_SETTLED_S = 3.0
# Other clients may have opened this many connections meanwhile, plus this share of ours.
_OTHERS, _OTHERS_SHARE = 10, 0.01


class Rest:
    """Waits until the server has as few connections as before the first step.

    It uses the server's own count, from a status page or an agent; else its host's sockets, until they are as few as before or
    stop falling.
    """

    def __init__(self, plan: Plan, *, local: bool) -> None:
        # With an agent, the listener may be in another network namespace of this host.
        here = local and plan.agent is None
        self._places = {("" if one.port else one.host, one.port) for one in plan.targets if here}
        self._sockets = count_of_sockets(plan)
        self._local = local
        self._link = None if plan.agent is None else AgentClient(plan)
        self._counts = plan.status_url is not None
        self._status: StatusReader | None = None
        if plan.status_url is not None:
            self._status = StatusReader(plan.status_url, plan.tls_options, plan.status_headers)
        self._before = 0.0

    @classmethod
    async def now(cls, plan: Plan, *, local: bool) -> Rest:
        rest = cls(plan, local=local)
        rest._before = await rest._open() or 0.0
        await rest.close()
        return rest

    def listens(self) -> bool:
        """Whether every port or path has a listener; assumed for a server on another host."""
        return all(read_listeners(port) if port else no_listener([(path, port)]) is None for path, port in self._places)

    async def wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        """Why the server is not at rest after :data:`REST_S`; "" once it is."""
        try:
            return await self._wait(ours, stopped)
        finally:
            # Our own connection would be counted in the step.
            await self.close()

    async def _wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        most = self._before + _OTHERS + _OTHERS_SHARE * ours
        latest = time.monotonic() + REST_S
        fewest, fell = math.inf, time.monotonic()
        while not stopped():
            listens, still = self.listens(), await self._open()
            if still is not None and still < fewest:
                fewest, fell = still, time.monotonic()
            settled = not self._counts and time.monotonic() - fell >= _SETTLED_S
            if listens and still is not None and (still <= most or settled):
                return ""
            if time.monotonic() >= latest:
                waited = f"{REST_S:.0f} s after the drain"
                if not listens:
                    places = sorted(f"unix:{path}" if path else f"port {port}" for path, port in self._places)
                    return f"nothing listens on {', '.join(places)}, {waited}"
                if still is None:
                    return f"the server's status page does not answer, {waited}"
                return f"the server counts {format_count(still - self._before)} connections more than at the start, {waited}"
            # An agent samples once a second.
            await asyncio.sleep(_POLL_S if self._link is None else 1.0)
        return ""

    async def _open(self) -> float | None:
        """The server's own count of connections, else its host's sockets; None while the page does not answer."""
        if self._link is not None:
            try:
                latest = (await self._link.hello(measure=False)).latest
            except PeerError:
                return None
            self._counts = STATUS_ACTIVE in latest
            return latest.get(STATUS_ACTIVE, latest.get(self._sockets, 0.0))
        if self._status is not None:
            try:
                return (await self._status.read()).get(STATUS_ACTIVE, 0.0)
            except PeerError:
                return None
        if not self._local:
            return 0.0
        return (await asyncio.to_thread(read_counters)).values.get(self._sockets, 0.0)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        if self._status is not None:
            await self._status.close()
