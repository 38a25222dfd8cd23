"""A listener: bounds the connections, their idle time, and their bytes before a
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from asyncli.model.errors import HostError
from asyncli.model.text import printable

# The most bytes of a request with its head (Prometheus and curl send some hundred). Some versions
# of aiohttp buffer without bound what never becomes a request, or follows a refused one.
_LONGEST_REQUEST = 16 * 1024
# Sessions, a Prometheus and a person with curl are a handful.
_MOST_CONNECTIONS = 64
_HANDSHAKE_S = 5.0
_RETRY_S = 0.2
#: What an answer names itself.
SERVER = "asyncli"
#: A connection without a request for so long is closed; a session asks once a second.
IDLE_S = 15.0
# Clients that distrust a certificate often just close.
_GAVE_UP = "it closed during the handshake: it timed out, or does not trust the certificate"


class ClientConnection(asyncio.Protocol):
    """A connection; passes data to ``handler`` up to the bound."""

    def __init__(self, handler: Any, network: str, on_overflow: Callable[[], None]) -> None:
        self.network = network
        self.last_s = time.monotonic()
        #: ``busy``: a request is being answered; ``authenticated``: it sent the token.
        self.busy = self.authenticated = False
        #: Its accept, with the TLS handshake.
        self.accept_task: asyncio.Task[None] | None = None
        self._handler, self._on_overflow = handler, on_overflow
        self._unparsed = 0

    @property
    def accepted(self) -> bool:
        return self.accept_task is not None and self.accept_task.done()

    def request_started(self) -> None:
        self.last_s, self.busy, self._unparsed = time.monotonic(), True, 0

    def request_ended(self) -> None:
        self.last_s, self.busy = time.monotonic(), False

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self._unparsed <= _LONGEST_REQUEST:
            self._handler.data_received(data)
        else:
            self._on_overflow()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)

    def eof_received(self) -> bool | None:
        keep: bool | None = self._handler.eof_received()
        return keep

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


class GuardedListener:
    """Accepts connections itself: asyncio's server hides them until the TLS handshake is done."""

    def __init__(
        self, server: web.Server, tls: ssl.SSLContext | None, refuse: Callable[[str, str], None]
    ) -> None:
        self._server, self._tls, self._refuse = server, tls, refuse
        #: aiohttp's handler -> its connection.
        self.clients: dict[Any, ClientConnection] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int, flag: str) -> int:
        """Listen at every address of ``host``; returns the port. ``flag``: what names the address.

        Raises :class:`HostError` where it cannot listen.
        """
        try:
            listening = await asyncio.to_thread(_listening, host, port)
        except OSError as error:
            # That of a name that is not found has a number of its own.
            reason = error.strerror or str(error)
            if error.errno is not None and error.errno > 0:
                reason = os.strerror(error.errno)
            raise HostError(
                f"{flag}: cannot listen at {host}:{port} ({reason}); see what listens there, or "
                "name another address"
            ) from None
        for sock in listening:
            task = asyncio.create_task(self._accept(sock), name="listener")
            self.tasks.append(task)
        return int(listening[0].getsockname()[1])

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for client in self.clients.values():
            if client.accept_task is not None:
                client.accept_task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def sweep(self) -> None:
        """Close connections that are idle, or whose request never ends."""
        self._drop_closed()
        now_s = time.monotonic()
        for handler, client in list(self.clients.items()):
            if not client.busy and now_s - client.last_s > IDLE_S:
                self._abort(handler)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    sock, address = await loop.sock_accept(listening)
                except OSError:
                    # The client closed, or there are no descriptors for some seconds.
                    await asyncio.sleep(_RETRY_S)
                    continue
                peer = shown(str(address[0]))
                if not self._make_room(peer):
                    sock.close()
                    continue
                handler = _anonymous(self._server())
                client = ClientConnection(
                    handler, _network(str(address[0])), partial(self._on_overflow, peer, handler)
                )
                self.clients[handler] = client
                client.accept_task = asyncio.create_task(self._handshake(peer, client, sock))

    def _make_room(self, peer: str) -> bool:
        """Whether one more may connect; evicts a connection without a token if needed.

        The oldest one of the network with most of them is evicted: a flood evicts itself, not a
        slow handshake from elsewhere.
        """
        self._drop_closed()
        if len(self.clients) < _MOST_CONNECTIONS:
            return True
        self._refuse(peer, f"{_MOST_CONNECTIONS} connections are open")
        unauthenticated = {
            handler: client for handler, client in self.clients.items() if not client.authenticated
        }
        if not unauthenticated:
            return False
        per_network = Counter(client.network for client in unauthenticated.values())

        def rank(handler: Any) -> tuple[int, float]:
            client = unauthenticated[handler]
            return -per_network[client.network], client.last_s

        self._abort(min(unauthenticated, key=rank))
        return True

    async def _handshake(self, peer: str, client: ClientConnection, sock: socket.socket) -> None:
        limit_s = None if self._tls is None else _HANDSHAKE_S
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: client, sock, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:
            if self._tls is not None:
                reason = str(getattr(error, "reason", None) or "").lower().replace("_", " ")
                self._refuse(peer, f"TLS fails ({reason or _GAVE_UP})")

    def _on_overflow(self, peer: str, handler: Any) -> None:
        if handler in self.clients:
            self._refuse(peer, f"it sent more than {_LONGEST_REQUEST:,} bytes without a request")
            self._abort(handler)

    def _abort(self, handler: Any) -> None:
        client = self.clients.pop(handler)
        if client.accept_task is not None:
            client.accept_task.cancel()
        with contextlib.suppress(AttributeError):
            handler.transport.abort()

    def _drop_closed(self) -> None:
        """Drop closed connections."""
        live = set(self._server.connections)
        for handler, client in list(self.clients.items()):
            if client.accepted and handler not in live:
                del self.clients[handler]


def _listening(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at every address of ``host``, on one port. Raises :class:`OSError`."""
    sockets: list[socket.socket] = []
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, *_, address in dict.fromkeys(answers):
            place = address
            if sockets:
                # For port 0 the kernel chooses one; the other addresses get the same.
                chosen_port = sockets[0].getsockname()[1]
                place = (address[0], chosen_port, *address[2:])
            sock = socket.create_server(place, family=family, backlog=_MOST_CONNECTIONS)
            sockets.append(sock)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class _AnonymousHandler(web.RequestHandler):
    """Answers what is no HTTP request without the names and versions of Python and aiohttp, and
    without its parser's words: no signal of an application is sent for such an answer.
    """

    __slots__ = ()

    def handle_error(self, *arguments: Any, **options: Any) -> web.StreamResponse:
        status = super().handle_error(*arguments, **options).status
        response = web.Response(status=status, text=HTTPStatus(status).phrase)
        response.headers["Server"] = SERVER
        response.force_close()
        return response


def _anonymous(handler: web.RequestHandler) -> web.RequestHandler:
    # aiohttp's server makes its handlers itself, and has no setting for their class.
    handler.__class__ = _AnonymousHandler
    return handler


def _network(address: str) -> str:
    """The network of an address: /64 for IPv6, which one host may have (RFC 4291, 2.5.1); for IPv4
    the address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6 and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return address


def shown(text: str) -> str:
    """A client's text for the log: printable and short."""
    return printable(text[:200])
