"""A server in another network namespace of this host, as in a container, at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import SERVER, Cable
from programs import complaint, report, run
from provoked import Nginx, an_nginx

pytestmark = [pytest.mark.nginx, pytest.mark.namespaces]
_SOAK = ["-c", "60", "--ramp", "20/s", "-k", "2", "--hold", "2s", "--baseline", "2s"]


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


@pytest.fixture
def server(cable: Cable) -> Iterator[Nginx]:
    with cable.inside("server"), an_nginx(address=SERVER) as server:
        yield server


def soaked(folder: Path, cable: Cable, *asked: str) -> dict[str, Any]:
    with cable.inside("client"):
        run(folder, "soak", *asked, *_SOAK, "--residue", "0.2", "--quiet", "--out", "run.db")
    return report(folder, "run.db")


def test_its_process_is_named_where_it_listens(tmp_path: Path, cable: Cable, server: Nginx) -> None:
    summary = soaked(tmp_path, cable, server.url)
    (unknown,) = (
        finding for finding in summary["findings"] if finding["code"] == "server_processes_unknown"
    )
    assert f"nginx (pid {server.pid})" in unknown["evidence"]
    assert f"--server-pid {server.pid}" in unknown["remedy"]
    assert "another host" not in unknown["evidence"]


def test_a_named_process_is_on_this_host_with_both_ends(
    tmp_path: Path, cable: Cable, server: Nginx
) -> None:
    summary = soaked(tmp_path, cable, server.url, "--server-pid", str(server.pid))
    assert summary["environment"]["server"]["apart"] is True
    # The kernel's memory is the host's, with both ends of each connection.
    assert summary["cost"]["ends"] == 2


def test_a_process_of_another_address_is_not(tmp_path: Path, cable: Cable, server: Nginx) -> None:
    """It is in our namespace, and the server is at the other end of the cable."""
    with cable.inside("client"), an_nginx() as other:
        summary = soaked(tmp_path, cable, server.url, "--server-pid", str(other.pid))
    assert "apart" not in summary["environment"]["server"]
    assert summary["cost"]["ends"] == 1


def test_it_cannot_be_waited_for(tmp_path: Path, cable: Cable, server: Nginx) -> None:
    asked = ["soak", server.url, *_SOAK, "--wait-for-server", "2s", "--out", "run.db"]
    with cable.inside("client"):
        why = complaint(run(tmp_path, *asked))
    assert "another host" not in why
    assert "network namespace" in why
