"""What an nginx before WebSockets counts of them: the forecast names the limit, and more are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fault_table
import pytest
from programs import report, run
from proxying_nginx import nginx_before

from asyncli.lab import choose

pytestmark = pytest.mark.nginx

_MOST = 30
_NGINX = """
{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 999; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  limit_conn_zone $server_name zone=all:1m;
  upstream behind {{ zone behind 64k; server 127.0.0.1:{backend} {of_server}; }}
  server {{
    listen 127.0.0.1:{port}; server_name a;
    location / {{
      {of_location} proxy_pass http://behind; proxy_http_version 1.1; proxy_read_timeout 1h;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
    }}
  }}
}}
"""
_LIMITS = {"limit_conn": {"of_location": f"limit_conn all {_MOST};"}, "max_conns": {"of_server": f"max_conns={_MOST}"}}


def _soak(folder: Path, backend: int, limit: dict[str, str]) -> str:
    """The refusal of a soak of too many; one that fits and one that does not were made then."""
    with nginx_before(backend, folder, _NGINX, **{"of_location": "", "of_server": "", **limit}) as (url, pid):
        asked = ["soak", url, "--server-pid", str(pid), "-k", "4", "--ramp", "20/s", "--baseline", "2"]
        asked += ["--hold", "5s", "--timeout", "2s", "--residue", "0.2", "--quiet"]
        refused = run(folder, *asked, "-c", str(_MOST + 1), "--out", "refused.db", name="refused")
        run(folder, *asked, "-c", "20", "--out", "held.db", name="held")
        run(folder, *asked, "-c", str(2 * _MOST), "--force", "--out", "full.db", name="full")
    return refused.err


@pytest.mark.parametrize("name", _LIMITS)
async def test_what_nginx_allows_of_websockets(tmp_path: Path, name: str) -> None:
    async with choose("websockets", connections=100) as behind:
        refused = await asyncio.to_thread(_soak, tmp_path, behind.port, _LIMITS[name])
    assert name in refused
    held = report(tmp_path, "held.db")
    ceilings = {ceiling["name"]: ceiling["connections"] for ceiling in held["forecast"]["ceilings"]}
    assert (held["forecast"]["first"], ceilings[name]) == (name, _MOST)
    full = report(tmp_path, "full.db")
    assert full["connections"]["held"] == _MOST
    assert f"preflight_nginx_{name}" in {finding["code"] for finding in full["findings"]}
    fault_table.require_as_written("test_what_nginx_allows_of_websockets", full)
