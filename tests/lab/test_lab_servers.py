"""Both lab servers, really started: what they count, what they close, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_clients import GET, HEAD, Client, Poller, alive, eventually, group

from asyncli.errors import HostError, PlanError
from asyncli.lab import LabServer, choose
from asyncli.lab.binary import find_nginx

_NGINX = find_nginx()
needs_nginx = pytest.mark.skipif(
    _NGINX is None or not _NGINX.stub_status, reason="no nginx with stub_status on this host; apt-get install nginx"
)
both = pytest.mark.parametrize("name", [pytest.param("nginx", marks=[pytest.mark.nginx, needs_nginx]), pytest.param("builtin")])


def lab(name: str, **options: Any) -> LabServer:
    return choose(name, **{"connections": 100, "workers": 2, **options})


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
async def test_keepalive_requests_ends_a_connection_after_so_many(name: str) -> None:
    async with lab(name, keepalive_requests=3) as server:
        client = await Client.to(server.url)
        assert b"keep-alive" in await client.beat()
        assert b"keep-alive" in await client.beat()
        assert b"Connection: close" in await client.beat()
        assert await client.ended() == b""
        await client.close()


@both
async def test_keepalive_timeout_ends_an_idle_connection(name: str) -> None:
    async with lab(name, keepalive_timeout_s=1) as server:
        poller = await Poller.to(server.status_url)
        client = await Client.to(server.url)
        await client.beat()
        start = asyncio.get_running_loop().time()
        assert await client.ended() == b""
        assert asyncio.get_running_loop().time() - start > 0.9
        await client.close()
        page = await poller.until(lambda page: page["active"] == 1)
        # A server that closes idle clients does so in silence: the counts stay equal.
        assert page["accepts"] == page["handled"]
        await poller.client.close()


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
        assert b" 400 " in await client.head()
        client.writer.close()


@both
async def test_other_paths_of_the_status_port_are_404(name: str) -> None:
    async with lab(name) as server:
        client = await Client.to(server.status_url)
        assert b" 404 " in await client.beat()
        await client.close()


@both
async def test_its_processes_are_its_children_and_all_go(name: str, temporary: Path) -> None:
    async with lab(name, workers=3) as server:
        pid = server.pid
        assert server.workers == 3
        # nginx's master and three workers; the built-in server's parent and three.
        assert len(group(pid)) == 4
        assert server.label in ("built-in server", f"nginx/{server.version}")
        # A client that stays does not keep it from ending.
        client = await Client.to(server.url)
        await client.beat()
    assert group(pid) == []
    assert not list(temporary.iterdir())
    client.writer.close()
    with pytest.raises(HostError, match="not running"):
        _ = server.pid
    await server.stop()


@both
async def test_it_can_be_started_again(name: str) -> None:
    server = lab(name)
    for _ in range(2):
        async with server:
            client = await Client.to(server.url)
            await client.beat()
            await client.close()


@both
async def test_a_taken_port_is_one_clear_line(name: str) -> None:
    async with lab(name) as first:
        port = int(first.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(HostError, match=rf"port {port} of 127.0.0.1 is taken; .*--port 0") as caught:
            await lab(name, port=port).start()
        assert "\n" not in str(caught.value)
    # Its listeners are gone with it, so the same port can be had.
    async with lab(name, port=port) as second:
        assert second.url == first.url


@both
async def test_an_address_that_is_not_ours_is_one_clear_line(name: str) -> None:
    with pytest.raises(HostError, match=r"192\.0\.2\.1 is no address of this host"):
        await lab(name, address="192.0.2.1").start()
    with pytest.raises(HostError, match=r"'localhost' is not an IP address"):
        lab(name, address="localhost")


@both
async def test_ipv6(name: str) -> None:
    if not Path("/proc/net/if_inet6").exists() or "00000000000000000000000000000001" not in Path("/proc/net/if_inet6").read_text(
        encoding="ascii"
    ):
        pytest.skip("no ::1 on this host")
    async with lab(name, address="::1") as server:
        assert server.url.startswith("http://[::1]:")
        client = await Client.to(server.url)
        assert (await client.beat()).startswith(b"HTTP/1.1 200")
        await client.close()


@both
async def test_nothing_is_left_when_its_owner_is_killed(name: str) -> None:
    script = (
        "import asyncio, sys\n"
        "from asyncli.lab import choose\n"
        "async def main():\n"
        f"    async with choose({name!r}, connections=100, workers=2) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    env = {**os.environ, "PYTHONPATH": path}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    assert owner.stdout is not None
    try:
        pid = int(owner.stdout.readline())
        assert len(group(pid)) == 3
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    await eventually(lambda: not group(pid) and not alive(pid))


async def test_the_built_in_server_ends_with_a_worker_and_with_its_stdin() -> None:
    for how in ("worker", "stdin"):
        server = subprocess.Popen(
            [sys.executable, "-m", "asyncli.lab.builtin", "--workers=2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert b'"port"' in server.stdout.readline()
            others = [pid for pid in group(server.pid) if pid != server.pid]
            assert len(others) == 2
            if how == "worker":
                os.kill(others[0], signal.SIGKILL)
            else:
                server.stdin.close()
            await eventually(lambda one=server: one.poll() is not None)
            assert server.returncode == (1 if how == "worker" else 0)
            assert group(server.pid) == []
        finally:
            server.kill()
            server.wait()
            server.stdin.close()
            server.stdout.close()


@needs_nginx
@pytest.mark.nginx
async def test_nginx_that_cannot_start_says_why_and_leaves_nothing(temporary: Path) -> None:
    # nginx refuses a negative number of slots.
    with pytest.raises(HostError, match=r"nginx did not start: .*invalid number") as caught:
        await lab("nginx", worker_connections=-1).start()
    assert "\n" not in str(caught.value)
    assert not list(temporary.iterdir())


@needs_nginx
@pytest.mark.nginx
async def test_nginx_takes_the_word_of_its_own_test() -> None:
    """No warning in the log of a full-sized one: slots within the descriptors, no duplicate, nothing unknown."""
    from asyncli.lab.nginx import LabNginx

    async with LabNginx(connections=20_000) as server:
        assert server.error_log.read_text(encoding="utf-8") == ""
        assert server.sizes is not None
        assert server.sizes.slots * server.workers >= 1.15 * 20_000
        limits = Path(f"/proc/{group(server.pid)[-1]}/limits").read_text(encoding="ascii")
        assert f"{server.sizes.nofile}" in limits


def test_an_unknown_server_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="write nginx, nginx-proxy, apache-prefork, apache-event, haproxy"):
        choose("apache")
