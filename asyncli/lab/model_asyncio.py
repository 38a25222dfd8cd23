"""The asyncio server among the server models: what ``models.c`` speaks, by one process and a Protocol for each client.

``python -m asyncli.lab.model_asyncio`` starts it by hand. It prints its port once it listens; SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import socket
import sys
from typing import Any, cast

from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.serve import listen, new_loop, raise_descriptors, until_told
from asyncli.lab.wire import HEAD_END, TOKEN, Request, answer, understand

# As in models.c, constant by constant.
_HEAD_MAX = 8192
_MOST_BYTES = 1_000_000_000
_CHUNK = b"x" * 65_536
_LINGER_S = 3.2
_BODY = b"ok\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_ASK = re.compile(rb"([0-9]{1,16})\r?\n")
_ASK_BEGUN = re.compile(rb"[0-9]{0,16}|[0-9]{1,16}\r")
# No control character: binary is refused at once, for its line end may never come.
_LINE_BEGUN = re.compile(TOKEN + rb"[^\x00-\x0c\x0e-\x1f]*(?:\n|$)", re.DOTALL)


class ModelConnection(asyncio.Protocol):
    """One client, in the protocol that its first byte chose."""

    __slots__ = ("asks", "ended", "over", "owed", "paused", "request", "tail", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.asks: bool | None = None  # for bytes, and not in HTTP; None before the first byte
        self.tail = b""  # come and not yet used
        self.owed = 0  # bytes to send (asks), or of a body still to come (HTTP)
        self.request: Request | None = None  # the one whose body is coming
        self.paused = self.ended = self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its class.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if not self.over:
            self.tail += data
            self._go()

    def eof_received(self) -> bool:
        # Ours to close: a client that only stopped sending still gets its answer.
        self.ended = True
        self._go()
        return True

    def pause_writing(self) -> None:
        self.paused = True
        # A client that does not read its answers is not read either, or its requests would pile up here.
        if self.transport is not None and not self.ended:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            if not self.ended:
                self.transport.resume_reading()
            self._go()

    def _go(self) -> None:
        """As far as what has come, and what the client takes, allow."""
        transport = self.transport
        if transport is None or self.paused or transport.is_closing():
            return
        if self.asks is None and self.tail:
            self.asks = self.tail[:1].isdigit()
        if not self.over:
            if self.asks:
                self._bytes(transport)
            elif self.tail:
                self._http(transport)
        if self.ended and not self.paused:
            transport.close()

    def _bytes(self, transport: asyncio.Transport) -> None:
        while True:
            while self.owed:
                transport.write(_CHUNK if self.owed >= len(_CHUNK) else _CHUNK[: self.owed])
                self.owed -= min(self.owed, len(_CHUNK))
                if self.paused or transport.is_closing():
                    return
            match = _ASK.match(self.tail)
            if match is None or int(match[1]) > _MOST_BYTES:
                if match is not None or not _ASK_BEGUN.fullmatch(self.tail):
                    transport.close()
                return
            self.owed, self.tail = int(match[1]), self.tail[match.end() :]

    def _http(self, transport: asyncio.Transport) -> None:
        data, at, size = self.tail, 0, len(self.tail)
        out: list[bytes] = []
        while not self.over:
            if self.request is None:
                # Empty lines before a request are skipped (RFC 9112 2.2).
                while at < size and data[at] in b"\r\n":
                    at += 1
                if at == size:
                    break
                end = HEAD_END.search(data, at, at + _HEAD_MAX)
                if _LINE_BEGUN.match(data, at, at + _HEAD_MAX) is None:
                    request = Request(400)
                elif end is not None:
                    request = understand(data[at : end.start()])
                    at = end.end()
                elif size - at >= _HEAD_MAX:
                    request = Request(431)
                else:
                    break
                self.request, self.owed = request, request.body
                if request.expects and request.body > size - at:
                    out.append(_CONTINUE)
            request = self.request
            dropped = min(self.owed, size - at)
            at += dropped
            self.owed -= dropped
            if self.owed:
                break
            body = _BODY if request.status == 200 else b""
            out.append(answer(request.status, body, head_only=request.head_only, keep=request.keep))
            self.request, self.over = None, not request.keep
        self.tail = data[at:]
        transport.write(b"".join(out))
        if self.over:
            self._part(transport, linger=request.status != 200 or at < size)

    def _part(self, transport: asyncio.Transport, *, linger: bool) -> None:
        """Close; where the client is still sending, a while later, or the kernel would reset and lose it our answer."""
        self.tail = b""
        if linger and not self.ended and transport.can_write_eof():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, transport.close)
        else:
            transport.close()


async def _serve(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    said: set[str] = set()

    def say_once(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Without descriptors asyncio tries again each second: that is said once.
        text = f"{context.get('message', '')}: {context.get('exception', '')}"
        if text not in said:
            said.add(text)
            print(f"{text} (said once)", file=sys.stderr, flush=True)

    loop.set_exception_handler(say_once)
    await loop.create_server(ModelConnection, sock=listener)
    stopped = until_told()
    gc.freeze()
    print(listener.getsockname()[1], flush=True)
    await stopped


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.lab.model_asyncio``; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m asyncli.lab.model_asyncio", description="an asyncio server, one process")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    chosen = parser.parse_args(argv)
    raise_descriptors()
    try:
        with listen(chosen.address, chosen.port or ports.free_pair(chosen.address)[0]) as listener:
            new_loop().run_until_complete(_serve(listener))
    except HostError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
