"""An agent that polls a real nginx's status page over TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agents import AnAgent
from programs import run

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx


class _StatusOverTls(LabNginx):
    def _tls_lines(self) -> str:
        return f"{super()._tls_lines()}\n        location = /status {{ stub_status; }}"


def test_the_page_is_read_and_its_certificate_verified(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        server = _StatusOverTls(connections=50, tls=True)
        runner.run(server.start())
        try:
            page = f"{server.url}status"
            with AnAgent(tmp_path, "--status-url", page, "--ca", str(server.authority)) as there:
                assert there.hello()["server"]["name"] == "nginx"
            with AnAgent(tmp_path, "--status-url", page, "--insecure", name="insecure") as there:
                assert "--insecure: " in there.err
            for flags, mend in {
                ("--status-url", page): "--ca",
                ("--status-url", page, "--ca", "absent.pem"): "--ca absent.pem: ",
                ("--status-url", str(server.status_url), "--ca", str(server.authority)): "no URL uses TLS",
                ("--status-url", page.replace(str(server.port), str(server.status_port))): "write http://",
            }.items():
                done = run(tmp_path, "agent", "--listen", "127.0.0.1:0", *flags)
                assert (done.status, done.err.count("\n"), mend in done.err) == (2, 1, True), done.err
        finally:
            runner.run(server.stop())
