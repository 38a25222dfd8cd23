"""Proxies in front of two backends that answer with a small JSON and hold WebSockets: what a
connection costs the proxy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from asyncli.lab import child, nginx, ports
from asyncli.lab.base import LabServer
from asyncli.lab.nginx import LabNchan, LabNginx
from asyncli.lab.packaged_servers import LabHaproxy
from asyncli.model.errors import HostError

_BACKENDS = ("a", "b")


class _Backend(LabNchan):
    """A :class:`LabNginx` where an upgrade is a subscription, as in :class:`LabNchan`."""

    def _values(self) -> Mapping[str, object]:
        plain = LabNginx._values(self)["answer"]
        values = super()._values()
        return {
            **values,
            "answer": f'if ($http_upgrade = "") {{ {plain} }}\n            {values["answer"]}',
        }


class Proxy(LabServer):
    """A proxy in front of two nginx, each with its own master. They hold WebSockets if this host's
    nginx has Nchan, which ``scheme`` "ws" requires. ``backend_keepalive_requests``: requests until
    a backend closes a connection (nginx's default: 100 before 1.19.10, 1,000 since).

    Backends that were started earlier, at ``backend_address`` in another network namespace, are
    used as they are. ``url``, ``status_url``, ``pid`` and ``workers`` are the proxy's. The backends
    are not in the proxy's control group.
    """

    def __init__(
        self,
        *common: Any,
        backend_keepalive_requests: int = 1_000,
        backend_address: str = "127.0.0.1",
        **more: Any,
    ) -> None:
        super().__init__(*common, **more)
        backend_class: type[LabNginx] = LabNginx
        if self.scheme == "ws":
            # A WebSocket holds a connection to a backend; requests share theirs.
            self.ends = 4
            self.also = "http"
            backend_class = _Backend
        elif nginx.has_nchan():
            self.also = "ws"
            backend_class = _Backend
        backends = []
        for name in _BACKENDS:
            backend = backend_class(
                # One backend may get all connections.
                self.connections,
                workers=self._asked_workers,
                keepalive_requests=backend_keepalive_requests,
                least_workers=1,
                address=backend_address,
                body=f'{{"status":"ok","backend":"{name}"}}\n',
                content_type="application/json",
            )
            backends.append(backend)
        self.backends = tuple(backends)

    async def start(self) -> None:
        """Start the backends, then the proxy; returns when all three answer. Raises
        :class:`HostError`.
        """
        if self._process is not None:
            return
        port_count = len(self.backends) * ports.ephemeral()
        if self.connections > port_count:
            raise HostError(
                f"{self.name} has {port_count:,} ports to its {len(self.backends)} backends, for "
                f"{self.connections:,} connections; ask for fewer (-c {port_count}) or widen "
                "net.ipv4.ip_local_port_range"
            )
        try:
            with child.in_cgroup(None):
                for backend in self.backends:
                    await backend.start()
            await super().start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the proxy, then the backends, and remove their files. Safe to repeat."""
        # Each of them, even if a second Ctrl-C cancels one.
        async with contextlib.AsyncExitStack() as stack:
            for backend in reversed(self.backends):
                stack.push_async_callback(backend.stop)
            await super().stop()

    def _values(self) -> Mapping[str, object]:
        places = {}
        for name, backend in zip(_BACKENDS, self.backends, strict=True):
            places[f"backend_{name}"] = f"{backend.address}:{backend.port}"
        return {
            **super()._values(),
            **places,
            # It must be longer than the longest gap between two heartbeats.
            "tunnel_timeout": max(60, self._timeout_s),
        }


_OFF = "# (off: neither proxy_http_version 1.1 nor an empty Connection header)"
# $connection_upgrade is empty for requests without an upgrade.
_KEPT = (
    "proxy_http_version 1.1;",
    "proxy_set_header Connection $connection_upgrade;",
    "proxy_set_header Upgrade $http_upgrade;",
)


class LabNginxProxy(Proxy, LabNginx):
    """An nginx as the proxy: with its backends three nginx.

    ``upstream_keepalive`` toggles only ``proxy_http_version 1.1`` and the headers ``Connection``
    and ``Upgrade``; WebSockets need it. ``upstream_idle``: idle connections to both backends that a
    proxy worker keeps. ``workers``: processes of each nginx (default: one, or as many as
    descriptors require).
    """

    name = "nginx-proxy"
    template = "nginx-proxy.conf"
    speaks_proxy_protocol = pads_connections = False
    default_size = 10_000

    def __init__(
        self, *common: Any, upstream_keepalive: bool = True, upstream_idle: int = 32, **more: Any
    ) -> None:
        super().__init__(*common, least_workers=1, **more)
        # Each client's connection may need one to a backend.
        self._sized_for = 2 * self._connections
        self.upstream_keepalive = upstream_keepalive
        self._upstream_idle = upstream_idle

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1 (proxy)``."""
        return f"{super().label} (proxy)"

    def _values(self) -> Mapping[str, object]:
        if self._binary is None:
            raise HostError("the lab nginx-proxy is not running; start it first")
        version = self._binary.version
        limits = []
        # An upstream's limits of requests and idle time are new in 1.15.3 (without limits before).
        if version >= (1, 15, 3):
            limits += ["keepalive_requests 1000000000;", "keepalive_timeout 1h;"]
        if version >= (1, 19, 10):
            limits.append("keepalive_time 1000h;")
        upstream_keepalive = _OFF
        if self.upstream_keepalive:
            upstream_keepalive = "\n            ".join(_KEPT)
        return {
            **super()._values(),
            "upstream_limits": "\n        ".join(limits) or "# (none in this version)",
            "upstream_idle": self._upstream_idle,
            "upstream_keepalive": upstream_keepalive,
        }


class LabHaproxyProxy(Proxy, LabHaproxy):
    """A HAProxy in front of two nginx: one process, whose descriptor limit allows half as many as
    :class:`LabHaproxy`.
    """

    name = "haproxy-proxy"
    template = "haproxy-proxy.cfg"
    #: Both ends fit under a descriptor limit of 20,000 with any number of threads.
    default_size = 9_000
    descriptors_per_connection = 2

    @property
    def label(self) -> str:
        """For example ``haproxy/2.6.12 (proxy)``."""
        if not self._version_text:
            return self.name
        return f"haproxy/{self._version_text} (proxy)"
