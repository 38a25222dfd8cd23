"""The lab's HAProxy, really started: it answers by itself, and counts exactly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import h11
import pytest
from lab_clients import Client, group, hung_up, opened, page_until, port_of, refusal

from asyncli.errors import HostError
from asyncli.lab import choose, haproxy, ports
from asyncli.lab.binary import descriptor_limit

pytestmark = pytest.mark.haproxy


def lab(connections: int = 30, **options: Any) -> Any:
    return choose("haproxy", connections=connections, **options)


async def test_every_path_is_answered() -> None:
    async with lab() as server:
        client, oracle = await Client.to(server.url), h11.Connection(h11.CLIENT)
        for method, path, body in (("GET", "/", b"ok\n"), ("HEAD", "/any/path?q=1", b""), ("GET", "/stats;csv", b"ok\n")):
            response, got = await client.exchange(method, path, oracle)
            assert (response.status_code, dict(response.headers)[b"content-length"], got) == (200, b"3", body)
            oracle.start_next_cycle()
        await client.close()
        assert server.label == f"haproxy/{server.version}"
        assert "[WARNING]" not in server.error_log.read_text(encoding="utf-8")


async def test_it_holds_as_many_as_it_was_cut_for_and_counts_them_with_the_poller() -> None:
    async with lab(connections=300) as server:
        clients = await opened(server.url, 300)
        page = await page_until(server.status_url, lambda page: page["status.active"] == 301)
        assert (page["status.accepts"] - page["status.connects"], page["status.requests"] - page["status.polls"]) == (300, 300)
        assert page["status.handled"] == page["status.accepts"]
        await hung_up(clients)
        page = await page_until(server.status_url, lambda page: page["status.active"] == 1)
        assert page["status.accepts"] - page["status.connects"] == 300


async def test_keepalive_timeout_ends_an_idle_connection() -> None:
    async with lab(keepalive_timeout_s=1) as server:
        client = await Client.to(server.url)
        await client.beat()
        start = asyncio.get_running_loop().time()
        assert await client.ended() == b""
        assert asyncio.get_running_loop().time() - start > 0.9
        await client.close()


async def test_nothing_of_it_stays(temporary: Path) -> None:
    server = lab(workers=3)
    for _ in range(2):
        async with server:
            pid, port = server.pid, port_of(server.url)
            assert (server.workers, group(pid)) == (3, [pid])
            assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 3
            client = await Client.to(server.url)
            await client.beat()
        assert group(pid) == []
        assert ports.bind_error("127.0.0.1", port) is None
        client.writer.close()
    assert not list(temporary.iterdir())
    with pytest.raises(HostError, match="the lab haproxy is not running"):
        _ = server.pid


async def test_a_taken_port_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cut for all it may hold, so that it also complains of its descriptors: that is not why it does not start.
    most = haproxy.most_connections(descriptor_limit(), 2)
    async with lab() as first:
        port = port_of(first.url)
        assert f"port {port} of 127.0.0.1 is taken" in await refusal(lab(port=port))
        # Taken between our look and its own: HAProxy's words.
        monkeypatch.setattr(ports, "require_free", lambda _address, _port: None)
        said = await refusal(lab(connections=most, workers=2, port=port))
        assert "haproxy did not start: " in said
        assert "Address already in use" in said
        assert said.endswith("or use --port 0")


async def test_a_broken_configuration_is_haproxy_s_own_words() -> None:
    said = await refusal(lab(keepalive_timeout_s=10**12))
    assert "haproxy did not start: " in said
    assert "timeout http-keep-alive" in said


async def test_more_than_its_one_process_has_descriptors_for_is_refused_and_all_below_starts() -> None:
    most = haproxy.most_connections(descriptor_limit(), 2)
    said = await refusal(lab(connections=most + 1, workers=2))
    assert f"haproxy is one process and holds at most {most:,} connections" in said
    assert f"-c {most}" in said
    async with lab(connections=most, workers=2) as server:
        clients = await opened(server.url, 5)
        await hung_up(clients)


async def test_none_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "find_haproxy", lambda: None)
    assert "apt-get install haproxy" in await refusal(lab())


def test_versions() -> None:
    assert haproxy.parse_version("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/") == "haproxy/2.6.12"
    assert haproxy.parse_version("HA-Proxy version 2.2.9-2 2021/01/01") == "haproxy/2.2.9"
    assert haproxy.parse_version("HA-Proxy version 1.8.4 2018/02/08") is None
    assert haproxy.parse_version("no such thing") is None
