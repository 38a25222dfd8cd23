"""The lab's proxy: three nginx, and the effect of keep-alive to the backends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest
from lab_clients import Client, Poller, group, refusal

from asyncli.lab import choose, ports
from asyncli.lab.nginx import LabNginx
from asyncli.lab.proxies import LabNginxProxy

pytestmark = pytest.mark.nginx


def lab(connections: int = 30, **options: Any) -> Any:
    return choose("nginx-proxy", connections=connections, **options)


async def counts(server: LabNginxProxy) -> list[dict[str, int]]:
    """Each backend's status page, read once over a new connection: this adds one accept and one request."""
    found = []
    for backend in server.backends:
        poller = await Poller.to(backend.status_url)
        # The previous reading's connection may still be open there.
        found.append(await poller.until(lambda page: page["writing"] == 1))
        await poller.client.close()
    return found


async def beats_through(server: LabNginxProxy, count: int) -> list[tuple[int, int]]:
    """Accepts and requests at each backend during ``count`` requests of one client."""
    before = await counts(server)
    client = await Client.to(server.url)
    for _ in range(count):
        assert b" 200 " in (await client.beat()).partition(b"\r\n")[0]
    await client.close()
    after = await counts(server)
    # Less our second reading.
    return [(b["accepts"] - a["accepts"] - 1, b["requests"] - a["requests"] - 1) for a, b in zip(before, after, strict=True)]


async def test_both_backends_answer_and_the_three_can_be_told_apart() -> None:
    async with lab() as server:
        client, oracle = await Client.to(server.url), h11.Connection(h11.CLIENT)
        names = []
        for _ in range(4):
            response, body = await client.exchange("GET", "/any", oracle)
            assert (response.status_code, dict(response.headers)[b"content-type"]) == (200, b"application/json")
            names.append(json.loads(body)["backend"])
            oracle.start_next_cycle()
        await client.close()
        assert sorted(names) == ["a", "a", "b", "b"]
        assert (server.workers, [one.workers for one in server.backends]) == (1, [1, 1])
        pids = [server.pid, *(one.pid for one in server.backends)]
        assert [len(group(pid)) for pid in pids] == [2, 2, 2]
        assert len({*pids}) == 3
        assert server.label == f"nginx/{server.version} (proxy)"
        assert server.error_log.read_text(encoding="utf-8") == ""


async def test_without_upstream_keepalive_each_request_is_a_connection() -> None:
    async with lab(upstream_keepalive=False) as server:
        assert await beats_through(server, 60) == [(30, 30), (30, 30)]


async def test_with_upstream_keepalive_one_connection_takes_them_all() -> None:
    async with lab(upstream_keepalive=True) as server:
        assert await beats_through(server, 60) == [(1, 30), (1, 30)]


async def test_a_backend_ends_a_connection_after_its_keepalive_requests() -> None:
    async with lab(backend_keepalive_requests=10) as server:
        assert await beats_through(server, 60) == [(3, 30), (3, 30)]


async def test_three_lines_are_all_that_differs() -> None:
    texts = []
    for keep in (False, True):
        async with lab(upstream_keepalive=keep) as server:
            lines = server.config_path.read_text(encoding="utf-8").splitlines()
            # Ports and folders differ.
            texts.append([line.strip() for line in lines if not any(word in line for word in ("127.0.0.1", "error_log"))])
    off, on = texts
    assert [line for line in on if line not in off] == [
        "proxy_http_version 1.1;", "proxy_set_header Connection $connection_upgrade;", "proxy_set_header Upgrade $http_upgrade;"
    ]  # fmt: skip
    assert [line for line in off if line not in on and not line.startswith("#")] == []
    assert "keepalive 32;" in off


@pytest.mark.parametrize("name", ["nginx-proxy", pytest.param("haproxy-proxy", marks=pytest.mark.haproxy)])
async def test_more_than_the_ports_to_its_backends_or_its_descriptors_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ephemeral", lambda: 20)
    assert "-c 40" in await refusal(choose(name, connections=41))
    monkeypatch.setattr("asyncli.lab.base.descriptor_limit", lambda: 64 + 8 + 4 + 2 * 30)
    if name == "haproxy-proxy":
        assert "-c 30" in await refusal(choose(name, connections=31, workers=1))


async def test_websockets_take_an_nginx_with_nchan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncli.lab.nginx._NCHAN_MODULE", "none.so")
    assert "libnginx-mod-nchan" in await refusal(lab(scheme="ws"))
    assert (lab().also, {type(one) for one in lab().backends}) == ("", {LabNginx})


async def test_a_second_interrupt_while_a_backend_ends_leaves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab()
    ending, ended = asyncio.Event(), []

    def of(backend: LabNginx, stop: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def slow() -> None:
            first = not ending.is_set()
            ending.set()
            try:
                await asyncio.Event().wait() if first else None
            finally:
                await stop()
                ended.append(backend)

        return slow

    async with server:
        pids = [server.pid, *(one.pid for one in server.backends)]
        for backend in server.backends:
            monkeypatch.setattr(backend, "stop", of(backend, backend.stop))
        task = asyncio.create_task(server.stop())
        await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [*server.backends]
        assert [group(pid) for pid in pids] == [[], [], []]
        monkeypatch.undo()
