"""Connects that are refused by a packet filter before a server that listens, or by a server that listens no more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fault_table
import pytest
from namespaces import SERVER, Cable
from programs import report, run, serving_by
from provoked import Nginx, an_nginx

ALLOWED, ASKED = 40, 100
_SOAK = ["--ramp", "20/s", "--hold", "2s", "--baseline", "2", "--residue", "0.2", "-k", "2", "--no-reopen", "--quiet", "--out", "run.db"]
# A SYN beyond the first ALLOWED ones is answered with a reset, as by a filter that limits connects.
_FILTER = """
table inet filter {{
    chain input {{
        type filter hook input priority 0;
        tcp dport {port} tcp flags & (syn | ack) == syn limit rate over 1/day burst {allowed} packets reject with tcp reset
    }}
}}
"""


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


def filtered(cable: Cable, stack: ExitStack) -> Nginx:
    """An nginx in the server's namespace, behind a filter of that host."""
    with cable.inside("server"):
        server = stack.enter_context(an_nginx(address=SERVER))
        rules = _FILTER.format(port=server.port, allowed=ALLOWED)
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    return server


def bottleneck(folder: Path, *asked: str) -> dict[str, Any]:
    """The finding gave_way of a soak in which connects were refused, whose report has the fault's row."""
    run(folder, "soak", *asked, "-c", str(ASKED), *_SOAK)
    summary = report(folder, "run.db")
    assert summary["connections"]["failures"].keys() == {"refused"}, summary["connections"]
    (finding,) = (finding for finding in summary["findings"] if finding["code"] == "gave_way")
    return finding


def require_row(test: str, finding: dict[str, Any]) -> None:
    (row,) = (row for row in fault_table.rows() if row.name == test)
    fault_table.require_said(row.says, [finding["evidence"]])


@pytest.mark.nginx
@pytest.mark.namespaces
@pytest.mark.parametrize("where", ["server", "client"])
def test_a_filter_before_a_server_that_listens(cable: Cable, tmp_path: Path, where: str) -> None:
    """The server's sockets are read in its own namespace, also if asyncli is in another one of this host."""
    with ExitStack() as stack:
        server = filtered(cable, stack)
        with cable.inside(where):
            finding = bottleneck(tmp_path, server.url, "--server-pid", str(server.pid))
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("network", "refused", False), finding
    require_row("test_a_filter_before_a_server_that_listens", finding)


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_before_a_server_that_is_not_sampled(cable: Cable, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = filtered(cable, stack)
        with cable.inside("client"):
            finding = bottleneck(tmp_path, server.url)
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("unknown", "refused", False), finding
    require_row("test_a_filter_before_a_server_that_is_not_sampled", finding)


def test_a_server_that_stops_listening(tmp_path: Path) -> None:
    with serving_by(Path(__file__).with_name("bare_server.py"), "closing", 0, ALLOWED) as port:
        finding = bottleneck(tmp_path, f"http://127.0.0.1:{port}/")
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("server", "refused", True), finding
    require_row("test_a_server_that_stops_listening", finding)
