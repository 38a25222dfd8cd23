"""A reload by a command of the plan, of an nginx before WebSockets whose earlier workers go on for some seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from programs import report, require_whole, run, stood_still_s
from proxying_nginx import nginx_before

from asyncli.lab import choose

pytestmark = pytest.mark.nginx

_NGINX = """
{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 2; worker_shutdown_timeout 6s;
events {{ worker_connections 999; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_read_timeout 1h;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
    }}
  }}
}}
"""


def _soak(folder: Path, backend: int) -> Any:
    """Each connection is heard once more long before the earlier workers go: that takes three seconds at most."""
    with nginx_before(backend, folder, _NGINX) as (url, pid):
        asked = ["-c", "50", "--ramp", "100/s", "-k", "2", "--timeout", "2s", "--baseline", "2", "--hold", "16s", "--residue", "1"]
        asked += ["--server-pid", str(pid), "--at", "5s", f"run kill -HUP {pid}", "--reconnect", "jitter:1s"]
        return run(folder, "soak", url, *asked, "--out", "run.db")


async def test_what_earlier_workers_hold_on_to_is_no_loss(tmp_path: Path) -> None:
    async with choose("websockets", connections=100) as backend:
        done = await asyncio.to_thread(_soak, tmp_path, backend.port)
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    connections = summary["connections"]
    assert (connections["held"], connections["lost"], connections["reopened"]) == (50, 0, 0)
    [event] = summary["events"]
    assert (event["ended"], event["not_back"]) == (50, 0)
    assert 5.0 < event["closed_after"]["p50_s"] < event["back"]["all_s"] < 10.0
    # Each came back within a second of its own end, and later if asyncli stood still.
    assert (event["clients"], event["ended_repeatedly"]) == (50, 0)
    assert 0 < event["away"]["p50_s"] < event["away"]["max_s"] < 3.0 + stood_still_s(tmp_path)
