"""Another client on the same nginx for a few seconds: the report says when the counts parted, by how much, and when they met."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import SHORT, Program, recorded, report

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx
STRANGERS = 20


def pages(path: Path) -> list[float]:
    """The server's active connections, page by page so far."""
    run = recorded(path)
    return [] if run is None else [one.values["status.active"] for one in run.samples if "status.active" in one.values]


def test_when_another_client_came_and_went(tmp_path: Path, nginx: LabNginx) -> None:
    path = tmp_path / "run.db"
    asked = [
        "-c",
        "100",
        "--ramp",
        "20/1ms",
        "--hold",
        "forever",
        "--status-url",
        nginx.status_url,
        "--out",
        "run.db",
        "--json",
        "run.json",
    ]
    with Program(tmp_path, "soak", nginx.url, *SHORT, *asked) as program, ExitStack() as strangers:
        program.until(lambda: 101.0 in pages(path), "all are held")
        for _ in range(STRANGERS):
            strangers.enter_context(socket.create_connection(("127.0.0.1", int(nginx.url.rpartition(":")[2].strip("/")))))
        program.until(lambda: pages(path).count(101.0 + STRANGERS) >= 4, "the server counts them for some pages")
        came = len(pages(path))
        strangers.close()
        program.until(lambda: 101.0 in pages(path)[came + 1 :], "they are gone")
        program.signal()
        assert program.wait().status == 0
    summary = report(tmp_path, "run.db")
    by_pair = {one["pair"]: one for one in summary["reconciliation"]["divergences"]}
    held, accepts = by_pair["held"], by_pair["accepts"]
    assert (held["most"], held["last"], held["closed"]) == (STRANGERS, STRANGERS, True)
    # An accept cannot be taken back.
    assert (accepts["most"], accepts["last"], accepts["closed"]) == (STRANGERS, STRANGERS, False)
    assert accepts["from_s"] == pytest.approx(held["from_s"], abs=1.5)
    # Four pages a second apart, at least.
    assert 2.5 < held["to_s"] - held["from_s"] < 30.0
    assert summary["reconciliation"]["agrees"] is False
    said = {one["code"]: one["evidence"] for one in summary["findings"]}
    assert "ran ahead of ours at 0:00:" in said["parted_held"]
    assert f"by up to {STRANGERS} " in said["parted_held"]
    assert f"by {STRANGERS} at most" in said["reconcile_accepts"]
    assert json.loads((tmp_path / "run.json").read_text())["reconciliation"] == summary["reconciliation"]
