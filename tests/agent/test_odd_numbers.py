"""An agent that says numbers which no host could have: they are left out, and told of, and the rest of the run is whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from agents import AnAgent, in_a_thread
from aiohttp import web
from programs import SHORT, run, serving
from status_pages import NGINX

from asyncli.agent.wire import Instants
from asyncli.store.reader import read_run


@contextmanager
def lying(url: str, odd: dict[str, float]) -> Iterator[str]:
    """The agent at ``url`` as one that says the numbers ``odd`` in each of its samples."""

    def change(body: bytes) -> bytes:
        said = json.loads(body) if body else {}
        for row in said.get("rows", ()):
            row["values"] |= odd
        return json.dumps(said).encode()

    @asynccontextmanager
    async def standing() -> AsyncIterator[int]:
        async def pass_on(request: web.Request) -> web.Response:
            kept = {name: value for name, value in request.headers.items() if name.startswith("Asyncli-")}
            async with session.request(request.method, url + request.path_qs, headers=kept, data=await request.read()) as answer:
                return web.Response(status=answer.status, body=change(await answer.read()))

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0)
        async with aiohttp.ClientSession() as session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield runner.addresses[0][1]
            await runner.cleanup()

    with in_a_thread(standing) as there:
        yield there


def test_a_number_that_no_host_could_have(tmp_path: Path) -> None:
    odd = {"server.rss_bytes": 1e300, "tcp.ListenDrops": -5.0}
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(NGINX), NGINX.encode())
    with serving(answer=answer) as server, AnAgent(tmp_path, "--status-url", server.url) as there, lying(there.url, odd) as url:
        soak = ("soak", server.url, "-c", "20", "--method", "GET", *SHORT, "--hold", "3s", "--agent", url, "--out", "run.db")
        done = run(tmp_path, *soak, name="soak")
    assert done.status in (0, 4), done
    recorded = read_run(tmp_path / "run.db")
    found = {one.code for one in recorded.findings}
    assert "sample_refused" in found
    assert "samples_skipped" not in found
    read = {name for sample in recorded.samples for name in sample.values}
    assert read >= {"status.active", "kernel.tcp_inuse"}
    assert not read & odd.keys()


def test_an_agents_clock_that_no_host_has() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"heard_s": 1e308, "said_s": 1.0}, Instants)
