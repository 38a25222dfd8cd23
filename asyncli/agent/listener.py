"""The agent's listener: bounds on connections, their silence, and their bytes before a request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from asyncli.text import printable

# The most bytes for each request, its head included (Prometheus and curl send some hundred). Some versions of aiohttp keep all
# bytes of what never becomes a request, or follows a refused one.
_LONGEST_REQUEST = 16 * 1024
# Sessions, a Prometheus and a person with curl are a handful.
_MOST_CONNECTIONS = 64
_HANDSHAKE_S = 5.0
_AGAIN_S = 0.2
#: A connection that asks nothing for so long is closed; a session asks once a second.
IDLE_S = 15.0
# Clients that distrust a certificate often just close.
_LEFT = "it left in the handshake: it gave up waiting, or does not trust the certificate"


class Guest(asyncio.Protocol):
    """A connection, whose ``handler`` gets the data up to the bound."""

    def __init__(self, handler: Any, network: str, too_much: Callable[[], None]) -> None:
        self.network = network
        self.last_s = time.monotonic()
        #: ``asking``: it is being answered; ``known``: it sent the token.
        self.asking = self.known = False
        #: Its accept, TLS included.
        self.coming: asyncio.Task[None] | None = None
        self._handler, self._too_much = handler, too_much
        self._unheard = 0

    @property
    def has_come(self) -> bool:
        return self.coming is not None and self.coming.done()

    def heard(self) -> None:
        """A request starts."""
        self.last_s, self.asking, self._unheard = time.monotonic(), True, 0

    def answered(self) -> None:
        self.last_s, self.asking = time.monotonic(), False

    def data_received(self, data: bytes) -> None:
        self._unheard += len(data)
        if self._unheard <= _LONGEST_REQUEST:
            self._handler.data_received(data)
        else:
            self._too_much()

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


class Door:
    """Accepts connections itself: asyncio's server does not show them before the TLS handshake."""

    def __init__(self, server: web.Server, tls: ssl.SSLContext | None, refuse: Callable[[str, str], None]) -> None:
        self._server, self._tls, self._refuse = server, tls, refuse
        #: By aiohttp's handler.
        self.guests: dict[Any, Guest] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int) -> int:
        """Listen at every address of ``host``; the port. Raises :class:`OSError`."""
        listening = await asyncio.to_thread(_listening, host, port)
        self.tasks = [asyncio.create_task(self._let_in(one), name="the agent's door") for one in listening]
        return int(listening[0].getsockname()[1])

    async def close(self) -> None:
        tasks = [*self.tasks, *(guest.coming for guest in self.guests.values() if guest.coming is not None)]
        for task in tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def sweep(self) -> None:
        """Close idle connections: a request that never ends, a client that never asks."""
        self._forget()
        now_s = time.monotonic()
        for handler in [one for one, guest in self.guests.items() if not guest.asking and now_s - guest.last_s > IDLE_S]:
            self._send_away(handler)

    async def _let_in(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    sock, address = await loop.sock_accept(listening)
                except OSError:
                    # The client left, or there are no descriptors for some seconds.
                    await asyncio.sleep(_AGAIN_S)
                    continue
                who = shown(str(address[0]))
                if not self._room_for(who):
                    sock.close()
                    continue
                handler = self._server()
                guest = Guest(handler, _network(str(address[0])), lambda who=who, handler=handler: self._too_much(who, handler))  # type: ignore[misc]
                self.guests[handler] = guest
                guest.coming = asyncio.create_task(self._receive(who, guest, sock))

    def _room_for(self, who: str) -> bool:
        """Whether one more may connect; connections without a token make room for it.

        The oldest one of the network with most of them goes first: a flood evicts itself, not a slow handshake from elsewhere.
        """
        self._forget()
        if len(self.guests) < _MOST_CONNECTIONS:
            return True
        self._refuse(who, f"{_MOST_CONNECTIONS} connections are open")
        strangers = [handler for handler, guest in self.guests.items() if not guest.known]
        if not strangers:
            return False
        crowds = Counter(self.guests[one].network for one in strangers)
        self._send_away(min(strangers, key=lambda one: (-crowds[self.guests[one].network], self.guests[one].last_s)))
        return True

    async def _receive(self, who: str, guest: Guest, sock: socket.socket) -> None:
        limit_s = None if self._tls is None else _HANDSHAKE_S
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: guest, sock, ssl=self._tls, ssl_handshake_timeout=limit_s)
        except OSError as error:
            if self._tls is not None:
                reason = str(getattr(error, "reason", None) or "").lower().replace("_", " ")
                self._refuse(who, f"TLS fails ({reason or _LEFT})")

    def _too_much(self, who: str, handler: Any) -> None:
        if handler in self.guests:
            self._refuse(who, f"it sent more than {_LONGEST_REQUEST:,} bytes and no request")
            self._send_away(handler)

    def _send_away(self, handler: Any) -> None:
        if (coming := self.guests.pop(handler).coming) is not None:
            coming.cancel()
        with contextlib.suppress(AttributeError):
            handler.transport.abort()

    def _forget(self) -> None:
        """Drop closed connections."""
        there = set(self._server.connections)
        self.guests = {one: guest for one, guest in self.guests.items() if one in there or not guest.has_come}


def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of ``host``, on one port. Raises :class:`OSError`."""
    found: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            # Of port 0 the kernel chooses one, for all of them.
            at = (address[0], found[0].getsockname()[1], *address[2:]) if found else address
            found.append(socket.create_server(at, family=family, backlog=_MOST_CONNECTIONS))
            found[-1].setblocking(False)
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def _network(address: str) -> str:
    """The network of an address: an IPv6 host has 64 bits to itself (RFC 4291, 2.5.1)."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address


def shown(text: str) -> str:
    """A client's text for the log: one line, and short."""
    return printable(text[:200])
