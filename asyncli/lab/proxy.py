"""An nginx that proxies to two others, with keep-alive to them or without."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from asyncli.errors import HostError
from asyncli.lab.nginx import LabNginx

_OFF = "# (off: neither proxy_http_version 1.1 nor an empty Connection header)"


class LabNginxProxy(LabNginx):
    """A proxy nginx before two backends that answer a small JSON: three nginx, with a master each.

    ``upstream_keepalive`` toggles ``proxy_http_version 1.1`` and the empty ``Connection`` header, nothing else.
    ``upstream_idle``: idle connections to both backends that a proxy worker keeps. ``backend_keepalive_requests``: requests until
    a backend closes (nginx's default: 100 before 1.19.10, 1,000 since). ``workers``: processes in each (default: one, or as many
    as descriptors force).

    ``url``, ``status_url``, ``pid`` and ``workers`` are the proxy's.
    """

    name = "nginx-proxy"
    template = "nginx-proxy.conf"
    speaks_tls = speaks_http2 = speaks_proxy_protocol = False

    #: Both ends fit into one worker under a descriptor limit of 20,000.
    usual = 5_000

    def __init__(
        self,
        *common: Any,
        upstream_keepalive: bool = True,
        upstream_idle: int = 32,
        backend_keepalive_requests: int = 1_000,
        **more: Any,
    ) -> None:
        super().__init__(*common, least_workers=1, **more)
        # Each connection may need one to a backend.
        self._room = 2 * self._connections
        self.upstream_keepalive = upstream_keepalive
        self._upstream_idle = upstream_idle
        self.backends: tuple[LabNginx, LabNginx] = (
            self._backend("a", backend_keepalive_requests), self._backend("b", backend_keepalive_requests)
        )  # fmt: skip

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1 (proxy)``."""
        return f"{super().label} (proxy)"

    async def start(self) -> None:
        """Start the backends, then the proxy; returns when all three answer, else :class:`HostError`."""
        if self._process is not None:
            return
        try:
            for backend in self.backends:
                await backend.start()
            await super().start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the proxy, then the backends, and remove their files. Safe to repeat."""
        # Each in turn, even if a second Ctrl-C cancels one.
        async with contextlib.AsyncExitStack() as stack:
            for backend in reversed(self.backends):
                stack.push_async_callback(backend.stop)
            await super().stop()

    def _backend(self, name: str, keepalive_requests: int) -> LabNginx:
        # All at once may go to either.
        return LabNginx(
            self.connections,
            workers=self._asked_workers,
            keepalive_requests=keepalive_requests,
            binary=self._binary,
            body=f'{{"status":"ok","backend":"{name}"}}\n',
            content_type="application/json",
            least_workers=1,
        )

    def _values(self) -> Mapping[str, object]:
        if self._binary is None:
            raise HostError("the lab nginx-proxy has no nginx yet; start it first")
        version = self._binary.version
        # Limits of requests and idleness in an upstream came with 1.15.3 (there were none before), keepalive_time with 1.19.10.
        limits = ["keepalive_requests 1000000000;", "keepalive_timeout 1h;"] if version >= (1, 15, 3) else []
        limits += ["keepalive_time 1000h;"] if version >= (1, 19, 10) else []
        lines = ("proxy_http_version 1.1;", 'proxy_set_header Connection "";') if self.upstream_keepalive else (_OFF,)
        return {
            **super()._values(),
            "backend_a": f"127.0.0.1:{self.backends[0].port}",
            "backend_b": f"127.0.0.1:{self.backends[1].port}",
            "upstream_limits": "\n        ".join(limits) or "# (none in this version)",
            "upstream_idle": self._upstream_idle,
            "upstream_keepalive": "\n            ".join(lines),
        }
