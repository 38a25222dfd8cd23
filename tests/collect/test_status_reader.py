from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from programs import DEADLINE_S
from status_pages import NGINX

from asyncli.collect.status_reader import StatusReader
from asyncli.errors import PeerError

HTML = "<html>\r\n<head><title>Welcome to nginx!</title></head>\n\x1b[31m" + "x" * 10_000

Start = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    runners: list[web.AppRunner] = []

    async def run(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_get("/status", handler)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/status"

    yield run
    for runner in runners:
        await runner.cleanup()


async def test_polls_share_one_connection_and_are_counted(start: Start) -> None:
    peers = set()

    async def page(request: web.Request) -> web.Response:
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(text=NGINX, headers={"Server": "nginx/1.22.1"})

    reader = StatusReader(await start(page))
    try:
        assert (await reader.read())["status.polls"] == 1
        values = await reader.read()
    finally:
        await reader.close()
    assert values["status.active"] == 15001
    assert values["status.polls"] == 2
    assert (len(peers), values["status.connects"], reader.server_header) == (1, 1, "nginx/1.22.1")


async def test_our_part_is_added_where_the_page_leaves_it_out(start: Start) -> None:
    # HAProxy's frontend for statistics is none of those that are summed.
    text = "# pxname,svname,scur,stot,req_tot\nlab,FRONTEND,3,5,7\nstats,FRONTEND,1,9,9\n"

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=text)

    reader = StatusReader(await start(page))
    try:
        await reader.read()
        values = await reader.read()
    finally:
        await reader.close()
    assert values == {
        "status.active": 4, "status.accepts": 6, "status.handled": 6, "status.requests": 9, "status.polls": 2,
        "status.connects": 1, "status.unanswered": 0,
    }


async def refusal(url: str, timeout_s: float = 2.0) -> str:
    reader = StatusReader(url, timeout_s=timeout_s)
    try:
        with pytest.raises(PeerError) as caught:
            await reader.read()
    finally:
        await reader.close()
    message = str(caught.value)
    assert message.startswith(f"status page {url}: ")
    assert message.isprintable()
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("status", "kind", "text", "said"),
    [
        (200, "text/html", HTML, 'answered text/html "<html> <head><title>Welcome to nginx!'),
        (404, "text/plain", "gone", 'answered 404 Not Found "gone"'),
    ],
)
async def test_what_is_no_status_page_is_shown(start: Start, status: int, kind: str, text: str, said: str) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type=kind)

    message = await refusal(await start(page))
    assert said in message
    assert ";csv" in message


async def test_a_redirect_is_not_followed(start: Start) -> None:
    asked = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(status=302, headers={"Location": "/status?again"})

    assert "answered 302" in await refusal(await start(page))
    assert asked == ["/status"]


async def test_a_silent_page_is_given_up(start: Start) -> None:
    gate = asyncio.Event()

    async def page(_: web.Request) -> web.Response:
        await gate.wait()
        return web.Response(text=NGINX)

    assert " 0.03 s" in await refusal(await start(page), timeout_s=0.03)
    gate.set()


async def test_a_closed_port_is_told_in_the_system_s_words(start: Start) -> None:
    async with asyncio.timeout(DEADLINE_S):
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        assert "(Connection refused)" in await refusal(f"http://127.0.0.1:{port}/")
