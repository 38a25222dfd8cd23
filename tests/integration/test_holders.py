"""Whose memory a connection's is follows from who holds its socket: real servers that keep it in strange places, a reload while
connections are held, and a second client of the same server. All are soaked at once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_table import require_said, rows
from programs import Program, codes, report, serving_by, until

from asyncli.lab.ports import free_pair

pytestmark = [pytest.mark.measures, pytest.mark.nginx]

BYTES = 60_000
CONNECTIONS = 120
DESCRIPTORS = 120
ASKED = ("--ramp", "20/s", "--baseline", "2s", "--hold", "8s", "--residue", "0", "--keepalive", "4")
SERVER = Path(__file__).with_name("holding_server.py")
PORT = re.compile(r"listen 127.0.0.1:(\d+);")
#: What Python's objects of a connection take besides.
OBJECTS = 15_000
NGINX = """
{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 2; events {{ worker_connections 999; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port}; location = /status {{ stub_status; }}
    location / {{
      proxy_pass http://unix:{folder}/app.sock; proxy_http_version 1.1; proxy_read_timeout 1h;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
    }}
  }}
}}
"""


@contextmanager
def serving(mode: str, *arguments: str | Path) -> Iterator[str]:
    """The server, and the line that it prints."""
    with serving_by(SERVER, mode, BYTES, *arguments) as said:
        yield said


@contextmanager
def nginx_before_backend(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """nginx, a proxy to the application at a Unix socket."""
    # The folders above are root's alone: other workers could not reach the socket.
    user, port = "user root;" if os.geteuid() == 0 else "", free_pair("127.0.0.1")[0]
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port, user=user), encoding="utf-8")
    with serving("backend", folder / "app.sock"), subprocess.Popen(["nginx", "-c", configuration]) as nginx:
        try:
            until((folder / "pid").exists, "nginx listens")
            yield nginx
        finally:
            nginx.terminate()


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Name -> the JSON of its report. All are soaked at once, but the one that writes shared memory, which is the host's, and the one
    that has many processes."""
    folder = tmp_path_factory.mktemp("holders")
    programs: dict[str, Program] = {}
    with ExitStack() as stack:

        def soak(name: str, url: str, connections: int = CONNECTIONS, *further: str) -> None:
            asked = ["soak", url, "-c", str(connections), *ASKED, "--out", f"{name}.db", *further]
            programs[name] = stack.enter_context(Program(folder, *asked, name=name))

        nginx = stack.enter_context(nginx_before_backend(folder))
        url = f"127.0.0.1:{PORT.search((folder / 'nginx.conf').read_text())[1]}"
        soak("behind", f"ws://{url}/", CONNECTIONS, "--status-url", f"http://{url}/status", "--server-pid", str(nginx.pid))
        soak("handover", f"http://127.0.0.1:{stack.enter_context(serving('handover'))}/")
        port = stack.enter_context(serving("plain"))
        for name in ("first", "second"):
            soak(name, f"http://127.0.0.1:{port}/")
        programs["behind"].until_phase("hold")
        nginx.send_signal(signal.SIGHUP)
        for program in programs.values():
            program.wait()
        shared = f"http://127.0.0.1:{stack.enter_context(serving('shared_memory'))}/"
        soak("shared_memory", shared, CONNECTIONS, "--fail-if", "cost.server_user > 40kB")
        # Its many processes make readings of all processes rare. A child that is seen before its parent ends stays the server's: its
        # own files must be few beside the connections.
        soak("twice_forked", f"http://127.0.0.1:{stack.enter_context(serving('twice_forked'))}/")
        for name in ("shared_memory", "twice_forked"):
            programs[name].wait()
    return {name: report(folder, f"{name}.db") for name in programs}


def test_what_is_behind_a_proxy_is_a_part_and_a_reload_is_no_cost(soaked: dict[str, dict[str, Any]]) -> None:
    summary = soaked["behind"]
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (CONNECTIONS, 0)
    cost = summary["cost"]
    # nginx's two buffers, header and slot of a proxied WebSocket; the new workers took 12 kB more for each.
    assert 15_000 < cost["server_user"]["bytes_per_connection"] < 21_000
    assert cost["behind_programs"] == ["backend"]
    assert BYTES * 0.8 < cost["behind"]["bytes_per_connection"] < BYTES * 1.5
    # Both ends of two connections: one is TCP, the other a Unix socket.
    assert cost["ends"] == 4
    alone = summary["forecast"]["server_memory"]
    # Of a wide interval only the ends are told.
    most = None if alone is None else alone["connections"]
    assert most is None or most < summary["environment"]["memory_bytes"] / BYTES
    assert {"held_behind", "server_reloaded"} <= set(codes(summary))
    assert summary["reconciliation"]["agrees"]
    require_table("test_what_is_behind_a_proxy_is_a_part_and_a_reload_is_no_cost", summary)


@pytest.mark.parametrize(("mode", "holder"), [("handover", "holder"), ("twice_forked", "forked-twice")])
def test_who_holds_the_connections_has_their_memory(soaked: dict[str, dict[str, Any]], mode: str, holder: str) -> None:
    summary = soaked[mode]
    server = summary["cost"]["server_user"]
    # Children of Python have some pages of their own as well.
    assert server["ci95"][0] > BYTES
    assert server["bytes_per_connection"] < (BYTES * 1.5 if mode == "handover" else 5_000_000)
    (finding,) = (one for one in summary["findings"] if one["code"] == "held_by_others")
    assert finding["fields"]["programs"] == [holder]
    require_table("test_who_holds_the_connections_has_their_memory", summary)


def test_descriptors_of_who_holds_the_connections_end_first(tmp_path: Path) -> None:
    documents = {}
    with serving("handover", str(DESCRIPTORS)) as port:
        for name, connections in (("below", DESCRIPTORS // 2), ("beyond", DESCRIPTORS + 100)):
            asked = ["soak", f"http://127.0.0.1:{port}/", "-c", str(connections), *ASKED, "--out", f"{name}.db"]
            with Program(tmp_path, *asked, name=name) as program:
                program.wait()
            documents[name] = report(tmp_path, f"{name}.db")
    below, beyond = documents["below"], documents["beyond"]
    ceilings = {ceiling["name"]: ceiling for ceiling in below["forecast"]["ceilings"]}
    ceiling = ceilings["descriptors_beside"]
    assert below["forecast"]["first"] == "descriptors_beside"
    assert ceiling["connections"] == pytest.approx(beyond["connections"]["held"], abs=5)
    require_table("test_descriptors_of_who_holds_the_connections_end_first", beyond)


def test_shared_memory_that_nobody_maps_may_be_the_servers(soaked: dict[str, dict[str, Any]]) -> None:
    summary = soaked["shared_memory"]
    low, high = summary["cost"]["server_user"]["ci95"]
    assert low < OBJECTS
    assert BYTES < high < 2 * BYTES
    assert [one["kept"] for one in summary["limits"]] == [None]
    require_table("test_shared_memory_that_nobody_maps_may_be_the_servers", summary)


@pytest.mark.parametrize("name", ["first", "second"])
def test_memory_is_divided_by_the_connections_of_all_clients(soaked: dict[str, dict[str, Any]], name: str) -> None:
    summary = soaked[name]
    assert BYTES < summary["cost"]["server_user"]["bytes_per_connection"] < BYTES + OBJECTS
    require_table("test_memory_is_divided_by_the_connections_of_all_clients", summary)


def require_table(test: str, summary: dict[str, Any]) -> None:
    """Require that the report has the sentences of this test's row."""
    for row in rows():
        if row.name == test:
            require_said(row.says, [one["evidence"] for one in summary["findings"]])
