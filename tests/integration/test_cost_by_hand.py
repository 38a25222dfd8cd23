"""The cost of a connection on the real nginx, against the same read by hand: two looks and a division."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program, report
from provoked import require_ended
from reading_by_hand import active, kernel_growth, look

from asyncli.lab.nginx import LabNginx

pytestmark = [pytest.mark.nginx, pytest.mark.measures, pytest.mark.alone]

CONNECTIONS = 4000
# Two looks are off by what a page and a slab hold more than is in use at that instant: of nginx a page of 4 KiB or several
# for each worker, of the kernel's six caches some slabs of 32 KiB for each CPU; together below a part in thirty of what
# 3,000 connections take.
TOLERANCE = 0.03


def test_the_intervals_hold_what_is_read_by_hand(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    server = start_nginx(connections=CONNECTIONS)
    asked = ["-c", str(CONNECTIONS), "--ramp", "10/50ms", "--baseline", "2", "--hold", "forever", "--residue", "0.5"]
    status = ["--status-url", server.status_url, "--server-pid", str(server.pid)]
    with Program(tmp_path, "soak", server.url, *asked, *status, "--out", "run.db") as program:
        # Not in the baseline: what the first connections touch once and for all is no cost of one more.
        program.until(lambda: active(server.status_url) >= CONNECTIONS / 10, "a tenth are held")
        first = look(server.pid, server.status_url)
        program.until_phase("hold")
        second = look(server.pid, server.status_url)
        program.signal(signal.SIGINT)
        require_ended(tmp_path, program.wait(), 0)
    cost = report(tmp_path, "run.db")["cost"]
    more = second.connections - first.connections
    assert CONNECTIONS / 2 < more < CONNECTIONS

    def within(name: str, by_hand: float) -> None:
        low, high = cost[name]["ci95"]
        slack = TOLERANCE * by_hand
        assert low - slack <= by_hand <= high + slack, (name, by_hand, cost[name])
        # An interval that is as wide as its middle would hold anything.
        assert high - low < by_hand, (name, cost[name])

    within("server_user", (second.server - first.server) / more)
    if first.slabs is None or second.slabs is None:
        assert cost["kernel"] is None
    else:
        within("kernel", kernel_growth(first.slabs, second.slabs, more) / more / 2)
