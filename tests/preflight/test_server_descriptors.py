"""The limits of a server's own processes."""

from __future__ import annotations

import subprocess
import sys

from test_preflight_checks import ROOMY, plan, spread

from asyncli.preflight import examine
from asyncli.preflight.configured import read_configured

_TWO_LISTEN = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() and not os.fork():
    listener.close()
print(flush=True)
sys.stdin.read()
"""


def test_the_descriptors_of_the_processes_that_listen() -> None:
    with subprocess.Popen([sys.executable, "-c", _TWO_LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for _ in range(3):
            server.stdout.readline()
        configured = read_configured(server.pid, None, None, pids=(server.pid,))
        server.stdin.close()
    assert configured.descriptors is not None
    # The third one does not listen.
    assert (configured.descriptors.processes, configured.descriptors.limit) == (2, 400)
    assert 8 <= configured.descriptors.open < 30
    for connections, verdict in ((300, "ok"), (399, "warn")):
        checks = {one.code: one for one in examine(plan(connections=connections), spread(), ROOMY, configured)}
        assert checks["server_nofile"].verdict == verdict
