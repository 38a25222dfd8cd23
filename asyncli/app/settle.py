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
_OTHERS = 10
_OTHERS_SHARE = 0.01


class Rest:
    """Waits until the server has as few connections as before the first step.

    It uses the server's own count, from a status page or an agent; else its host's sockets, until
    they are as few as before or stop falling.
    """

    def __init__(self, plan: Plan, *, local: bool) -> None:
        # With an agent, the listener may be in another network namespace of this host.
        self._places: set[tuple[str, int]] = set()
        if local and plan.agent is None:
            for target in plan.targets:
                if target.port:
                    self._places.add(("", target.port))
                else:
                    self._places.add((target.host, 0))
        self._sockets = count_of_sockets(plan)
        self._local = local
        self._link = None if plan.agent is None else AgentClient(plan)
        #: The server itself counts its connections.
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
        return all(_has_listener(path, port) for path, port in self._places)

    async def wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        """Why the server is not at rest after :data:`REST_S`; "" once it is."""
        try:
            return await self._wait(ours, stopped)
        finally:
            # Our own connection would be counted in the step.
            await self.close()

    async def _wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        allowed = self._before + _OTHERS + _OTHERS_SHARE * ours
        latest = time.monotonic() + REST_S
        fewest = math.inf
        fell_at = time.monotonic()
        while not stopped():
            listens = self.listens()
            still_open = await self._open()
            if still_open is not None and still_open < fewest:
                fewest = still_open
                fell_at = time.monotonic()
            has_settled = not self._counts and time.monotonic() - fell_at >= _SETTLED_S
            if listens and still_open is not None and (still_open <= allowed or has_settled):
                return ""
            if time.monotonic() >= latest:
                return self._why_not(listens=listens, still_open=still_open)
            # An agent samples once a second.
            await asyncio.sleep(_POLL_S if self._link is None else 1.0)
        return ""

    def _why_not(self, *, listens: bool, still_open: float | None) -> str:
        """Why the server is not at rest. ``still_open``: connections; None: it does not answer."""
        waited = f"{REST_S:.0f} s after the drain"
        if not listens:
            places = []
            for path, port in self._places:
                if path:
                    places.append(f"unix:{path}")
                else:
                    places.append(f"port {port}")
            return f"nothing listens on {', '.join(sorted(places))}, {waited}"
        if still_open is None:
            return f"the server's status page does not answer, {waited}"
        count = format_count(still_open - self._before)
        return f"the server counts {count} connections more than at the start, {waited}"

    async def _open(self) -> float | None:
        """The server's own count of connections, else its host's sockets; None while the page does
        not answer.
        """
        if self._link is not None:
            try:
                hello = await self._link.hello(measure=False)
            except PeerError:
                return None
            latest = hello.latest
            self._counts = STATUS_ACTIVE in latest
            return latest.get(STATUS_ACTIVE, latest.get(self._sockets, 0.0))
        if self._status is not None:
            try:
                counts = await self._status.read()
            except PeerError:
                return None
            return counts.get(STATUS_ACTIVE, 0.0)
        if not self._local:
            return 0.0
        counters = await asyncio.to_thread(read_counters)
        return counters.values.get(self._sockets, 0.0)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        if self._status is not None:
            await self._status.close()


def _has_listener(path: str, port: int) -> bool:
    if port:
        return bool(read_listeners(port))
    return no_listener([(path, port)]) is None
