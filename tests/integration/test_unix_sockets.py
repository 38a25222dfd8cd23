"""Servers on Unix sockets: a real nginx's are held, and what is no server's is told in a line."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from programs import SHORT, codes, here, report, run

from asyncli.lab.nginx import LabNginx
from asyncli.store.reader import read_run

N = 300


class OnUnix(LabNginx):
    """It listens on a Unix socket as well."""

    @property
    def place(self) -> str:
        return f"unix:{self._file('web.sock')}"

    def _values(self) -> Mapping[str, object]:
        values = dict(super()._values())
        return values | {"listen": f"{self.place}{' ssl' if self.tls else ''}{' http2' if self.http2 else ''};\n listen {values['listen']}"}


@pytest.mark.nginx
@pytest.mark.parametrize(("tls", "asked"), [(False, ()), (True, ("--http2",))])
async def test_they_are_held_and_what_is_of_tcp_alone_is_not_said_of_them(tmp_path: Path, tls: bool, asked: tuple[str, ...]) -> None:
    async with OnUnix(N, tls=tls, http2=bool(asked)) as server:
        authority = [] if server.authority is None else ["--ca", str(server.authority)]
        words = ["soak", server.url, "--connect-to", server.place, *asked, *authority, "--status-url", server.status_url, *SHORT]
        done = await asyncio.to_thread(run, tmp_path, *words, "-c", str(N), "--hold", "1.2", "--out", "run.db", "--quiet")
        summary, found = report(tmp_path, "run.db"), read_run(tmp_path / "run.db")
        assert (done.err, summary["connections"]["held"], summary["connections"]["lost"]) == ("", N, 0)
        assert summary["heartbeats"]["answered"] == summary["heartbeats"]["sent"] > N
        assert summary["reconciliation"]["agrees"]
        assert (found.environment["destinations"], found.environment["server"]["pid"]) == ([server.place], server.pid)
    assert "nginx_backlog" in {one.code for one in found.checks}
    assert {"ports", "time_wait", "conntrack", "tcp_mem", "syn_backlog"}.isdisjoint(one.code for one in found.checks)
    read = {name for sample in found.samples for name in sample.values}
    assert "kernel.sockets" in read
    assert not [name for name in read if "tcp" in name.lower() and not name.startswith("kernel.slab.")]


@pytest.mark.parametrize("there", ["nothing", "left_behind", "a_file", "unbound"])
def test_what_no_server_listens_on_is_told_before_the_ramp(tmp_path: Path, there: str) -> None:
    path = tmp_path / "web.sock"
    if there == "a_file":
        path.touch()
    elif there == "left_behind":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    place = f"unix:{path}" if there != "unbound" else "unix:@asyncli-nobody"
    done = here(tmp_path, "soak", "http://a.test/", "--connect-to", place, "-c", "2", *SHORT, "--out", "run.db", "--quiet")
    if there == "a_file":
        assert (done.status, done.err.count("\n"), place in done.err) == (2, 1, True)
    else:
        assert "nothing_listens" in codes(report(tmp_path, "run.db"))
