"""Many sources behind one address, as nginx and HAProxy read them from the PROXY header of each connection."""

from __future__ import annotations

import asyncio
import ipaddress
import select
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from programs import SHORT, report, run

from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.engine.worker import new_net
from asyncli.lab.base import LabServer
from asyncli.lab.nginx import LabNginx
from asyncli.lab.packaged_servers import LabHaproxy
from asyncli.model.plan import Layer, build_plan

N = 40
_ASK = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class ProxiedHaproxy(LabHaproxy):
    """Answers with the source that it was told."""

    def _values(self) -> Mapping[str, object]:
        values = dict(super()._values())
        answer = 'http-request return status 200 content-type text/plain lf-string "%[src] %[src_port]"'
        return values | {"listen": f"{values['listen']} accept-proxy\n    {answer}"}


TOLD = partial(LabNginx, proxy_protocol=True, body="$proxy_protocol_addr $proxy_protocol_port")
KINDS = [pytest.param(TOLD, marks=pytest.mark.nginx), pytest.param(ProxiedHaproxy, marks=pytest.mark.haproxy)]


def sources(port: int, address: str, version: str, numbers: list[int]) -> list[tuple[str, int]]:
    """What the server says of these connections: the address and port that it takes them for."""
    plan = build_plan([Layer("--{key}", {"urls": [f"http://127.0.0.1:{port}/"], "proxy_protocol": version})])
    there = Destination(10 if ":" in address else 2, address, port)
    net = new_net(build_shard(plan, Spread((there,), (), 1, True, 1000)))
    said = []
    for number in numbers:
        handle = net.connect(0, number)
        # As a table does that has nothing to say yet.
        assert (net.send(handle, b""), net.send(handle, _ASK)) == (0, len(_ASK))
        net.watch(handle, select.EPOLLIN)
        heard = b""
        while net.poll(1, 5.0) and (data := net.recv(handle, 8192)):
            heard += data
        net.close(handle, abort=False)
        head, _, body = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), heard
        source, source_port = body.decode().split()
        said.append((source, int(source_port)))
    return said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_server_takes_each_connection_for_another_clients(kind: Callable[..., LabServer], address: str) -> None:
    numbers = [0, 1, 255, 131_069, 131_070, 999_999]
    async with kind(N, address=address) as server:
        for version in ("v1", "v2"):
            said = await asyncio.to_thread(sources, server.port, address, version, numbers)
            first = ipaddress.ip_address("2001:2::" if ":" in address else "198.18.0.0")
            assert said == [(str(first + 1 + n % 131_070), 1024 + n // 131_070) for n in numbers]
            assert all(ipaddress.ip_address(one) in ipaddress.ip_network("2001:2::/48" if ":" in address else "198.18.0.0/15") for one, _ in said)


@pytest.mark.nginx
@pytest.mark.parametrize(("tls", "version", "asked"), [(False, "v1", ()), (True, "v2", ()), (True, "v1", ("--http2",))])
async def test_connections_that_begin_so_are_held(tmp_path: Path, tls: bool, version: str, asked: tuple[str, ...]) -> None:
    async with LabNginx(N, proxy_protocol=True, tls=tls, http2=bool(asked)) as server:
        authority = [] if server.authority is None else ["--ca", str(server.authority)]
        words = ["soak", server.url, "--proxy-protocol", version, *asked, *authority, "--status-url", server.status_url, *SHORT]
        done = await asyncio.to_thread(run, tmp_path, *words, "-c", str(N), "--hold", "1.2", "--out", "run.db", "--quiet")
        without = await asyncio.to_thread(run, tmp_path, "check", "--probe", server.url, *authority, *asked) if tls else None
    summary = report(tmp_path, "run.db")
    assert (done.err, summary["connections"]["held"], summary["connections"]["lost"]) == ("", N, 0)
    assert summary["heartbeats"]["answered"] == summary["heartbeats"]["sent"] > N
    assert summary["reconciliation"]["agrees"]
    assert without is None or without.status == 2
