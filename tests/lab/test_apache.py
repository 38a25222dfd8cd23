"""The lab's Apaches as real processes: prefork with a process per connection, and event."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_clients import Client, group, page_until, port_of, refusal

from asyncli.lab import apache, choose
from asyncli.model.errors import HostError

pytestmark = pytest.mark.apache
both = pytest.mark.parametrize("name", ["apache-prefork", "apache-event"])


def lab(name: str, connections: int = 30, **options: Any) -> Any:
    return choose(name, connections=connections, **options)


@both
async def test_every_path_answers_with_the_page(name: str) -> None:
    async with lab(name) as server:
        client, oracle = await Client.to(server.url), h11.Connection(h11.CLIENT)
        for method, path, size in (("GET", "/", 1456), ("HEAD", "/any/path?q=1", 0), ("GET", "/a%2fb", 1456), ("GET", "/server-status", 1456)):
            response, body = await client.exchange(method, path, oracle)
            headers = dict(response.headers)
            assert (response.status_code, headers[b"content-length"], len(body)) == (200, b"1456", size)
            assert headers[b"server"].decode() == server.label.partition(" ")[0]
            oracle.start_next_cycle()
        await client.close()
        assert server.version in server.label
        assert server.label.endswith(f"({name.removeprefix('apache-')})")
        # Nothing to complain of in a good start.
        assert ":warn]" not in server.error_log.read_text(encoding="utf-8")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_with_one_listener_the_status_page_is_at_the_targets_port(address: str) -> None:
    async with lab("apache-prefork", address=address, one_listener=True) as server:
        assert port_of(server.status_url) == port_of(server.url)
        page = await page_until(server.status_url, lambda page: page.get("status.active") == 1)
        assert "status.writing" in page
        client, oracle = await Client.to(server.url), h11.Connection(h11.CLIENT)
        for path in ("/", "/any"):
            assert len((await client.exchange("GET", path, oracle))[1]) == 1456
            oracle.start_next_cycle()
        await client.close()
        # In the kernel's table its processes have one listening socket (0A) between them.
        ours = set(group(server.pid))
        inodes = {one.stat().st_ino for pid in ours for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists()}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
        assert len([row for row in rows if row[3] == "0A" and int(row[9]) in inodes]) == 1


async def test_the_page_may_have_another_size() -> None:
    async with lab("apache-event", page_bytes=70_000) as server:
        client = await Client.to(server.url)
        assert len((await client.exchange("GET", "/"))[1]) == 70_000
        await client.close()


async def test_more_than_prefork_should_is_refused() -> None:
    assert " 100,000 " in await refusal(lab("apache-prefork", connections=100_000))


async def test_an_unreachable_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if apache.os.geteuid() != 0:
        pytest.skip("only root's Apache serves as another user")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    assert "cannot read" in await refusal(lab("apache-prefork"))


@given(connections=st.integers(1, 1_000_000), nofile=st.integers(1_024, 1_000_000))
def test_a_child_of_event_stops_accepting_before_its_descriptors_end(connections: int, nofile: int) -> None:
    try:
        processes, threads, factor = apache.event_sizes(connections, nofile)
    except HostError as error:
        assert "cannot hold" in str(error)
        return
    a_child = threads * (factor + 1)
    assert a_child <= nofile - 64
    assert processes * a_child >= connections
    # Apache keeps sixteenths.
    assert factor * 16 == int(factor * 16) > 0


def test_versions() -> None:
    said = ("Server version: Apache/2.4.62 (Debian)\nServer built:", "Server version: Apache/2.2.15 (Unix)", "command not found")
    assert [apache.parse_version(one) for one in said] == ["Apache/2.4.62", None, None]
    assert [len(apache.page(size)) for size in (0, 10, 1_456)] == [0, 10, 1_456]
