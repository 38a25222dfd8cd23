"""The lab's HAProxy as a real process: it answers by itself, and counts exactly."""

from __future__ import annotations

from typing import Any

import h11
import pytest
from lab_clients import Client, hung_up, opened, refusal

from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit
from asyncli.lab.packaged_servers import LabHaproxy

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


async def test_more_than_its_one_process_has_descriptors_for_is_refused_and_all_below_starts() -> None:
    # Beside listeners and the rest, pollers of the status page and what each thread has.
    most = descriptor_limit() - 64 - 8 - 2 * 4
    said = await refusal(lab(connections=most + 1, workers=2))
    assert f" {most:,} " in said
    assert f"-c {most}" in said
    async with lab(connections=most, workers=2) as server:
        clients = await opened(server.url, 5)
        await hung_up(clients)


async def test_its_page_counts_each_poll_once_and_tells_our_limit() -> None:
    async with lab() as server:
        reader = StatusReader(server.status_url)
        pages = [await reader.read()]
        clients = await opened(server.url, 5)
        pages += [await reader.read(), await reader.read()]
        await hung_up(clients)
        await reader.close()
    rises = [[page[f"status.{name}"] - pages[0][f"status.{name}"] for page in pages] for name in ("active", "accepts", "requests")]
    # Its page for people is read once too, after the first poll.
    assert rises == [[0, 5, 5], [0, 5, 5], [0, 5 + 2, 5 + 3]]
    assert (pages[0]["status.active"], [page.get("status.limit") for page in pages]) == (1, [None, 38, 38])


def test_versions() -> None:
    said = ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/", "HA-Proxy version 2.2.9-2 2021/01/01",
            "HA-Proxy version 1.8.4 2018/02/08", "no such thing")  # fmt: skip
    assert [LabHaproxy.version_in(one) for one in said] == ["2.6.12", "2.2.9", None, None]
