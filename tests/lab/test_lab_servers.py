"""The lab's servers as real processes: common behaviour, exact counts, and complete clean-up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_clients import GET, HEAD, Client, Poller, alive, eventually, group, hung_up, opened, page_until, port_of, refusal

from asyncli.lab import choose, ports
from asyncli.lab.executables import find_nginx
from asyncli.model.errors import HostError, PlanError

_NGINX = find_nginx()
#: What a server needs on this machine; others are C models and need a compiler.
_NEEDS = {
    "nginx": "nginx", "nginx-proxy": "nginx", "apache-prefork": "apache", "apache-event": "apache", "haproxy": "haproxy", "builtin": "",
    "asyncio": "",
}  # fmt: skip
WITH_PAGE = ("nginx", "nginx-proxy", "apache-prefork", "apache-event", "haproxy", "builtin")


def of(*names: str) -> pytest.MarkDecorator:
    needs = {name: _NEEDS.get(name, "compiler") for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[getattr(pytest.mark, need)] if need else []) for name, need in needs.items()])


both = of("nginx", "builtin")
# One model with processes and one with threads; both Apaches start the same way.
kinds = of("nginx", "nginx-proxy", "apache-event", "haproxy", "builtin", "prefork", "thread-queue", "asyncio")


def lab(name: str, **options: Any) -> Any:
    return choose(name, **{"connections": 30, **options})


def pids_of(server: Any) -> list[int]:
    return [server.pid, *(one.pid for one in getattr(server, "backends", ()))]


@of(*WITH_PAGE)
async def test_it_holds_as_many_as_it_was_cut_for_and_counts_them(name: str) -> None:
    async with lab(name, connections=300) as server:
        clients = await opened(server.url, 300)
        # Our poller's own is among them.
        page = await page_until(server.status_url, lambda page: page.get("status.active") == 301)
        if "status.accepts" in page:
            assert page["status.accepts"] == page["status.handled"]
        for client in clients:
            assert b" 200 " in await client.beat()
        await hung_up(clients)
        await page_until(server.status_url, lambda page: page.get("status.active") == 1)


@of("nginx", "builtin", "apache-event")
async def test_keepalive_requests_ends_a_connection_after_so_many(name: str) -> None:
    async with lab(name, keepalive_requests=3) as server:
        client = await Client.to(server.url)
        # Apache counts the requests that follow the first.
        most = 4 if name.startswith("apache") else 3
        assert [b"Connection: close" in await client.beat() for _ in range(most)] == [False] * (most - 1) + [True]
        assert await client.ended() == b""
        await client.close()


@of("nginx", "builtin", "haproxy", "apache-event")
async def test_keepalive_timeout_ends_an_idle_connection(name: str) -> None:
    async with lab(name, keepalive_timeout_s=1) as server:
        client = await Client.to(server.url)
        await client.beat()
        start = asyncio.get_running_loop().time()
        assert await client.ended() == b""
        assert asyncio.get_running_loop().time() - start > 0.9
        await client.close()


@kinds
async def test_nothing_of_it_stays_and_it_can_be_started_again(name: str, temporary: Path) -> None:
    server = lab(name, workers=3)
    for _ in range(2):
        async with server:
            pids, port, process = pids_of(server), port_of(server.url), server._process
            # A client that stays does not keep it from ending.
            client = await Client.to(server.url)
            await client.beat()
            assert ports.bind_error("127.0.0.1", port) is not None
        # By itself at SIGTERM, not by the SIGKILL that follows five seconds later.
        assert process.returncode != -signal.SIGKILL
        assert [group(pid) for pid in pids] == [[]] * len(pids)
        assert ports.bind_error("127.0.0.1", port) is None
        client.writer.close()
        await server.stop()
    assert not list(temporary.iterdir())
    with pytest.raises(HostError, match="not running"):
        _ = pids_of(server)


@kinds
async def test_a_taken_port_is_one_clear_line_and_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    with ports_taken() as (taken, port):
        assert f"port {port} of" in await refusal(lab(name, port=port))
        # Taken between our look and its own: in its own words.
        monkeypatch.setattr(ports, "require_free", lambda _address, _port: None)
        said = await refusal(lab(name, port=port))
        assert all(words in said for words in (os.strerror(errno.EADDRINUSE), "--port 0"))
        # One that was drawn is drawn again.
        draw, draws = ports.free_pair, [(port, port + 1)]
        monkeypatch.setattr(ports, "free_pair", lambda address: draws.pop() if draws else draw(address))
        async with lab(name) as server:
            assert (server.port != port, draws, taken.fileno() > 0) == (True, [], True)
    assert not list(temporary.iterdir())


@contextlib.contextmanager
def ports_taken() -> Iterator[tuple[socket.socket, int]]:
    """A port with a listener; the next port is free."""
    port = ports.free_pair("127.0.0.1")[0]
    with socket.create_server(("127.0.0.1", port)) as taken:
        yield taken, port


@pytest.mark.parametrize(("name", "finder"), [("nginx", "nginx.find_nginx"), ("nginx-proxy", "nginx.find_nginx"), ("apache-event", "apache.find_apache")])
async def test_none_installed_says_what_to_install(name: str, finder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"asyncli.lab.{finder}", lambda: None)
    assert f"apt-get install {finder.partition('.')[0]}" in await refusal(lab(name))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [pytest.param("nginx", {"worker_connections": -1}, "invalid number", marks=pytest.mark.nginx),
     pytest.param("apache-event", {"keepalive_timeout_s": -1}, "KeepAliveTimeout", marks=pytest.mark.apache),
     pytest.param("haproxy", {"keepalive_timeout_s": 10**12}, "timeout http-keep-alive", marks=pytest.mark.haproxy)],
)  # fmt: skip
async def test_a_broken_configuration_is_told_in_the_servers_own_words(name: str, options: dict[str, Any], words: str, temporary: Path) -> None:
    said = await refusal(lab(name, **options))
    assert words in said
    assert not list(temporary.iterdir())


@of("nginx", "builtin", "prefork", "asyncio")
async def test_ipv6(name: str) -> None:
    if ports.bind_error("::1", 0) is not None:
        pytest.skip("no ::1 on this host")
    async with lab(name, address="::1", workers=2) as server:
        assert server.url == f"http://[::1]:{server.port}/"
        client = await Client.to(server.url)
        assert (await client.beat()).startswith(b"HTTP/1.1 200")
        await client.close()


@of("nginx", "builtin", "prefork")
async def test_nothing_is_left_when_its_owner_is_killed(name: str) -> None:
    script = (
        "import asyncio\n"
        "from asyncli.lab import choose\n"
        "async def main():\n"
        f"    async with choose({name!r}, connections=100, workers=2) as server:\n"
        "        print(server.pid, server.url, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    path = os.pathsep.join(part for part in (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")) if part)
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    try:
        pid, url = owner.stdout.readline().decode().split()
        client = await Client.to(url)
        await client.beat()
        assert len(group(int(pid))) == 3
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    await eventually(lambda: not group(int(pid)) and not alive(int(pid)))
    client.writer.close()


@both
async def test_it_answers_and_counts_exactly(name: str) -> None:
    async with lab(name) as server:
        poller = await Poller.to(server.status_url)
        # The connection by which the lab saw that its server answers may not be closed there yet.
        before = await poller.until(lambda page: page["active"] == 1)
        clients = [await Client.to(server.url) for _ in range(20)]
        for client in clients:
            assert (await client.beat()).startswith(b"HTTP/1.1 200")
        page = await poller.until(lambda page: page["waiting"] == 20)
        assert page["active"] - before["active"] == 20
        assert page["accepts"] - before["accepts"] == 20
        assert page["handled"] - before["handled"] == 20
        assert page["writing"] == 1
        polled = page["requests"] - before["requests"] - 20
        again = await poller.page()
        assert again["requests"] == page["requests"] + 1
        assert polled >= 1
        for client in clients:
            await client.close()
        page = await poller.until(lambda page: page["active"] == before["active"])
        assert page["accepts"] - before["accepts"] == 20
        await poller.client.close()


@both
async def test_requests_may_come_in_pieces_and_in_packs(name: str) -> None:
    async with lab(name) as server:
        poller = await Poller.to(server.status_url)
        # The connection by which the lab saw that its server answers may not be closed there yet.
        before = await poller.until(lambda page: page["active"] == 1)
        client = await Client.to(server.url)
        client.writer.write(GET[:7])
        # Counted from its first byte: in reading, and among the requests.
        page = await poller.until(lambda page: page["reading"] == 1)
        polls = page["requests"] - before["requests"] - 1
        for at in range(7, len(GET)):
            client.writer.write(GET[at : at + 1])
            await client.writer.drain()
        assert b"Content-Length: 3" in await client.head()
        assert await client.reader.readexactly(3) == b"ok\n"
        page = await poller.until(lambda page: page["waiting"] == 1)
        assert page["requests"] - before["requests"] - 1 > polls

        client.writer.write(HEAD * 10 + GET)
        for _ in range(11):
            assert (await client.head()).startswith(b"HTTP/1.1 200")
        assert await client.reader.readexactly(3) == b"ok\n"
        # A request and a half.
        client.writer.write(HEAD + HEAD[:20])
        await client.head()
        client.writer.write(HEAD[20:])
        await client.head()
        await client.close()


@both
async def test_it_closes_when_it_is_told_to(name: str) -> None:
    async with lab(name) as server:
        for request in (b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"HEAD / HTTP/1.0\r\n\r\n"):
            client = await Client.to(server.url)
            client.writer.write(request)
            answer = await client.ended()
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"Connection: close" in answer
            await client.close()
        client = await Client.to(server.url)
        client.writer.write(b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"Connection: keep-alive" in await client.head()
        assert (await client.beat()).startswith(b"HTTP/1.1 200")
        client.writer.write(b"nonsense\r\n\r\n")
        assert b" 400 " in await client.ended()
        await client.close()


@both
async def test_keepalive_time_ends_a_connection_at_its_next_request(name: str) -> None:
    if name == "nginx" and _NGINX is not None and _NGINX.version < (1, 19, 10):
        pytest.skip("this nginx has no keepalive_time")
    async with lab(name, keepalive_time_s=1) as server:
        client = await Client.to(server.url)
        for _ in range(1000):
            if b"Connection: close" in await client.beat():
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("never told to close")
        assert await client.ended() == b""
        await client.close()


async def test_the_built_in_server_without_a_slot_accepts_and_does_not_handle() -> None:
    async with lab("builtin", workers=1, worker_connections=2) as server:
        poller = await Poller.to(server.status_url)
        clients = [await Client.to(server.url) for _ in range(3)]
        page = await poller.until(lambda page: page["accepts"] == 4)
        assert (page["handled"], page["active"]) == (3, 3)
        for client in clients:
            client.writer.close()
        await poller.client.close()


async def test_a_head_without_end_is_refused() -> None:
    async with lab("builtin") as server:
        client = await Client.to(server.url)
        client.writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000)
        assert b" 431 " in await client.head()
        client.writer.close()


@both
async def test_other_paths_of_the_status_port_are_404(name: str) -> None:
    async with lab(name) as server:
        client = await Client.to(server.status_url)
        assert b" 404 " in await client.beat()
        await client.close()


@both
async def test_an_address_that_is_not_ours_is_one_clear_line(name: str) -> None:
    with pytest.raises(HostError, match=r"192\.0\.2\.1 is no address of this host"):
        await lab(name, address="192.0.2.1").start()
    with pytest.raises(HostError, match=r"'localhost' is not an IP address"):
        lab(name, address="localhost")


async def test_the_built_in_server_ends_with_a_worker() -> None:
    async with lab("builtin", workers=2) as server:
        process = server._process
        os.kill(next(pid for pid in group(server.pid) if pid != server.pid), signal.SIGKILL)
        await eventually(lambda: process.poll() is not None)
        assert process.returncode == 1
        assert group(process.pid) == []


@pytest.mark.nginx
async def test_nginx_takes_the_word_of_its_own_test() -> None:
    """A full-sized nginx logs no warning: slots fit the descriptors, and all directives are valid."""
    from asyncli.lab.nginx import LabNginx

    async with LabNginx(connections=20_000) as server:
        assert server.error_log.read_text(encoding="utf-8") == ""
        assert server.sizes.slots * server.workers >= 1.15 * 20_000
        limits = Path(f"/proc/{group(server.pid)[-1]}/limits").read_text(encoding="ascii")
        assert f"{server.sizes.nofile}" in limits


def test_an_unknown_server_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="write nginx, nginx-proxy, nchan, apache-prefork, apache-event, haproxy"):
        choose("apache")
