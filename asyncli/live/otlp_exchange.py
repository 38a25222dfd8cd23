"""A session for requests that a collector can neither make wait for ever nor fill with its answer.

The timeout of requests is one of each read, and it reads an answer whole: who sends a byte a second
is waited for without end, and who sends for ever fills the memory.
"""

from __future__ import annotations

import functools
import io
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter

#: What is read of an answer's body, in bytes. Collectors answer with some ten.
MOST_BYTES = 65536
# An exchange may last as long as its timeout. That is in seconds here, and in milliseconds in other
# languages: who sets it for those gets hours.
_MOST_S = 60.0
# How often a connection that is too late is shut down: it may have just been opened.
_SHUTS_EVERY_S = 0.1


class BoundedSession(requests.Session):  # type: ignore[misc]
    """One exchange at a time. Answers have no body: of what a collector says, the status counts.

    Raises requests' ``Timeout`` for an exchange that takes longer than its timeout in all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mount("http://", _BoundedAdapter())
        self.mount("https://", _BoundedAdapter())


class _BoundedAdapter(HTTPAdapter):  # type: ignore[misc]
    def __init__(self) -> None:
        # The connection of the exchange that is under way: the pool has no other that is in use.
        self._newest: Any = None
        # Its socket. A connection gives that away when the head of an answer is read.
        self._wire: Any = None
        super().__init__()

    def init_poolmanager(self, *sizes: Any, **options: Any) -> None:
        super().init_poolmanager(*sizes, **options)
        self._know_connections_of(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        is_known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not is_known:
            self._know_connections_of(manager)
        return manager

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> requests.Response:
        patience_s = min(timeout or _MOST_S, _MOST_S)
        latest_s = time.monotonic() + patience_s
        over = threading.Event()
        watch = threading.Thread(target=self._end_if_late, args=(patience_s, over), daemon=True)
        watch.start()
        try:
            response = super().send(request, stream=True, timeout=patience_s, **options)
            with suppress(Exception):
                # A body that breaks off takes nothing from the status.
                response.raw.read(MOST_BYTES, decode_content=False)
            response.close()
        except requests.Timeout:
            raise
        except requests.RequestException:
            if time.monotonic() < latest_s:
                raise
            raise requests.ReadTimeout(request=request) from None
        finally:
            over.set()
            watch.join()
        if time.monotonic() >= latest_s:
            raise requests.ReadTimeout(request=request)
        response.raw = io.BytesIO()
        return response

    def _know_connections_of(self, manager: Any) -> None:
        pools = {}
        for scheme, kind in manager.pool_classes_by_scheme.items():
            pools[scheme] = functools.partial(self._pool, kind)
        manager.pool_classes_by_scheme = pools

    def _pool(self, kind: Callable[..., Any], *place: Any, **options: Any) -> Any:
        pool = kind(*place, **options)
        pool.ConnectionCls = functools.partial(self._connection, pool.ConnectionCls)
        return pool

    def _connection(self, kind: Callable[..., Any], **options: Any) -> Any:
        connection = kind(**options)
        connection.connect = functools.partial(self._connect, connection, connection.connect)
        return connection

    def _connect(self, connection: Any, connect: Callable[[], None]) -> None:
        self._newest = connection
        connect()
        self._wire = connection.sock

    def _end_if_late(self, patience_s: float, over: threading.Event) -> None:
        if over.wait(patience_s):
            return
        while not over.wait(_SHUTS_EVERY_S):
            _shut(self._wire)
            # While a proxy is asked for a tunnel, there is no other.
            _shut(getattr(self._newest, "sock", None))


def _shut(wire: Any) -> None:
    if not isinstance(wire, socket.socket):
        return
    with suppress(OSError):
        # The method of TLS would forget the state, which the reader still uses.
        socket.socket.shutdown(wire, socket.SHUT_RDWR)
