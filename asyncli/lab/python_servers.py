"""The Python programs behind :mod:`asyncli.lab.libraries`.

    python -m asyncli.lab.python_servers NAME ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE

Set up for many idle connections as the libraries' documentation advises: no compression unless
DEFLATE is given, since it takes most of a connection's memory (websockets, "Memory and buffers": 64
kB with it, 14 kB without); no access log; no pings (by default websockets and uvicorn send one
every 20 s); idle HTTP connections are kept (by default uvicorn closes them after 5 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import ssl
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class _Options(NamedTuple):
    address: str
    port: int
    backlog: int
    idle_s: int
    pem: str
    deflate: bool

    @property
    def context(self) -> ssl.SSLContext | None:
        if not self.pem:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.pem)
        return context


def _ready() -> None:
    print("ready", flush=True)


def _websockets(options: _Options) -> None:
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed

    async def echo(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                await connection.send(message)

    async def run() -> None:
        async with serve(
            echo,
            options.address,
            options.port,
            compression="deflate" if options.deflate else None,
            ping_interval=None,
            backlog=options.backlog,
            ssl=options.context,
        ) as server:
            _ready()
            await server.serve_forever()

    asyncio.run(run())


def _aiohttp(options: _Options) -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        held = web.WebSocketResponse(compress=options.deflate)
        if not held.can_prepare(request):
            return web.Response(text="ok\n")
        await held.prepare(request)
        async for message in held:
            if message.type is web.WSMsgType.TEXT:
                await held.send_str(message.data)
            else:
                await held.send_bytes(message.data)
        return held

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=options.idle_s)
        await runner.setup()
        await web.TCPSite(
            runner,
            options.address,
            options.port,
            backlog=options.backlog,
            ssl_context=options.context,
        ).start()
        _ready()
        await asyncio.Event().wait()

    asyncio.run(run())


def _uvicorn(options: _Options) -> None:
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                stage = (await receive())["type"]
                await send({"type": f"{stage}.complete"})
                if stage == "lifespan.shutdown":
                    return
        if scope["type"] == "http":
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"3")],
                }
            )
            await send({"type": "http.response.body", "body": b"ok\n"})
            return
        while (event := await receive())["type"] != "websocket.disconnect":
            if event["type"] == "websocket.connect":
                await send({"type": "websocket.accept"})
            else:
                await send({**event, "type": "websocket.send"})

    class AnnouncingServer(uvicorn.Server):
        async def startup(self, *common: Any, **more: Any) -> None:
            await super().startup(*common, **more)
            if self.started:
                # uvicorn's own handler would wait for held connections.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _ready()

    config = uvicorn.Config(
        app,
        host=options.address,
        port=options.port,
        backlog=options.backlog,
        timeout_keep_alive=options.idle_s,
        access_log=False,
        log_level="warning",
        ws_ping_interval=None,
        ws_per_message_deflate=options.deflate,
        ssl_certfile=options.pem or None,
    )
    AnnouncingServer(config).run()


_SERVERS: dict[str, Callable[[_Options], None]] = {
    "websockets": _websockets,
    "aiohttp": _aiohttp,
    "uvicorn": _uvicorn,
}


def main() -> None:
    name, address, port, backlog, idle_s, pem, deflate = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _SERVERS[name](_Options(address, int(port), int(backlog), int(idle_s), pem, bool(deflate)))


if __name__ == "__main__":
    main()
