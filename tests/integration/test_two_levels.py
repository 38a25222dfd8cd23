"""A ramp that is over before it was sampled, of a real server with a thread for each connection: a cost all the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import codes, report, run

pytestmark = pytest.mark.measures

SERVER = textwrap.dedent(
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size, daemon_threads = 1024, True

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
    """
)


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """The server in a process of its own: its pid and port."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def test_a_ramp_of_a_second_gives_costs_of_two_levels_and_the_remedy_gives_slopes(tmp_path: Path) -> None:
    """All that is read without root has a number; the kernel's share needs it."""
    with serving() as (pid, port):
        asked = ["-c", "400", "-k", "60", "--residue", "0.2", "--server-pid", str(pid), "--seed", "1"]
        done = run(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked, "--baseline", "3", "--hold", "6s", "--out", "run.db")
        # On a host that is busy with something else asyncli may have been the limit: it has costs all the same.
        assert done.status in (0, 4), done.out
        summary = report(tmp_path, "run.db")
        (few,) = [one for one in summary["findings"] if one["code"] == "cost_few_points"]
        paced = run(
            tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked, *few["remedy"].split(), "--hold", "6s", "--out", "paced.db"
        )
        assert paced.status in (0, 4), paced.out
    slopes = report(tmp_path, "paced.db")
    assert "cost_few_points" not in codes(slopes)
    for name in ("server_user", "generator_user", "host_total"):
        cost = summary["cost"][name]
        assert cost["method"].startswith("difference of two levels (including one-time costs"), name
        low, high = cost["ci95"]
        assert low < cost["bytes_per_connection"] < high
        assert "linear regression" in slopes["cost"][name]["method"]
    assert "With what the first ones take once, a connection costs " in " ".join(done.out.split())
