"""The page of metrics of a program behind a real nginx: what a connection keeps alive is that program's."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from app_with_a_page import NAME
from own_processes import own_processes
from programs import here, report, until

from asyncli.collect import answering
from asyncli.collect.listening import no_listener
from asyncli.lab.ports import free_pair

pytestmark = [pytest.mark.nginx, pytest.mark.measures, pytest.mark.alone, pytest.mark.usefixtures("apart")]
KEPT = 20_000
# So far apart that their starts tell them apart.
APART_S = 2.5
_CONFIG = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 2000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port} backlog=1000;
    location /metrics {{ proxy_pass http://127.0.0.1:{page_port}; }}
    location / {{
      proxy_pass http://127.0.0.1:{app_port}; proxy_http_version 1.1; proxy_read_timeout 1h;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
    }}
  }}
}}
"""


class Place(NamedTuple):
    url: str
    pages: dict[str, str]


@contextlib.contextmanager
def listening(port: int, *words: str) -> Iterator[None]:
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as program:
        try:
            until(lambda: no_listener([("", port)]) is None, f"{words[0]} listens")
            yield
        finally:
            program.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("nginx")
    app_port, page_port = free_pair("127.0.0.1")
    app = str(Path(__file__).with_name("app_with_a_page.py"))
    with listening(page_port, sys.executable, app, str(app_port), str(page_port), str(KEPT)):
        time.sleep(APART_S)
        port, _ = free_pair("127.0.0.1")
        config = folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, port=port, page_port=page_port, app_port=app_port))
        with listening(port, "nginx", "-c", str(config)):
            pages = {"at its own port": f"http://127.0.0.1:{page_port}/metrics", "through nginx": f"http://127.0.0.1:{port}/metrics"}
            yield Place(f"ws://127.0.0.1:{port}/", pages)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nginx the page's start alone tells whose it is: other tests start servers in the same second."""
    monkeypatch.setattr(answering, "parents", own_processes)


@pytest.mark.parametrize("way", ["at its own port", "through nginx"])
def test_what_is_alive_is_of_the_program_behind_nginx(tmp_path: Path, place: Place, way: str) -> None:
    asked = ("soak", place.url, "-c", 200, "--ramp", "20/s", "--hold", "5s", "--baseline", "3s", "--residue", "1s", "-k", "4")
    page = ("--server-metrics", place.pages[way], "--metrics-map", "live=app_kept_bytes")
    done = here(tmp_path, *asked, *page, "--out", "run.db", "--quiet", "--force")
    assert done.status == 0, done.err
    summary = report(tmp_path, "run.db")
    cost = summary["cost"]
    assert (cost["behind_programs"], cost["heap_of"]) == ([NAME], NAME)
    assert cost["live"]["bytes_per_connection"] == pytest.approx(KEPT, rel=0.1)
    assert cost["live"]["ci95"][0] <= KEPT <= cost["live"]["ci95"][1]
    (source,) = summary["environment"]["server"]["metrics"]
    assert source["of_program"] == NAME
    assert summary["reconciliation"]["server_active"] is None
    text = here(tmp_path, "report", "run.db").out
    row = "{}, live heap"
    assert row.format(NAME) in text
    assert row.format("nginx") not in text
    told = here(tmp_path, "check", place.url, "-c", 200, *page).out
    assert f"{NAME} (pid {source['of_pid']})" in told
