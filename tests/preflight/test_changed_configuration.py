"""A configuration that was changed after nginx read it says nothing of the nginx that runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from asyncli.lab.executables import find_nginx
from asyncli.lab.ports import free_pair
from asyncli.model.records import Check
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_config import read_nginx

pytestmark = pytest.mark.nginx

CONFIGURATION = """
worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{ access_log off; server {{ listen 127.0.0.1:{port}; }} }}
"""


def test_it_counts_again_after_a_reload(tmp_path: Path) -> None:
    binary = find_nginx()
    assert binary is not None
    tmp_path.chmod(0o755)
    path = tmp_path / "nginx.conf"
    path.write_text(CONFIGURATION.format(folder=tmp_path, port=free_pair("127.0.0.1")[0]))
    command = [binary.path, "-c", str(path), "-e", f"{tmp_path}/error.log"]
    subprocess.run(command, check=True)
    pid = int((tmp_path / "pid").read_text())
    try:
        read = read_nginx(str(binary.path), path, pid=pid)
        assert isinstance(read, NginxConfig)
        # Soon after the start, and by a file that is older than it.
        time.sleep(0.2)
        other = tmp_path / "other.conf"
        other.write_text(path.read_text().replace("512", "16000"))
        an_hour_ago = time.time() - 3600
        os.utime(other, (an_hour_ago, an_hour_ago))
        other.rename(path)
        changed = read_nginx(str(binary.path), path, pid=pid)
        assert isinstance(changed, Check)
        assert (changed.code, changed.verdict) == ("nginx_config", "unknown")
    finally:
        subprocess.run([*command, "-s", "stop"], check=False)
