"""Workers, client hosts and room left: what the run file records, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording import write_run
from synthetic_run import a_run
from test_page_server import a_page

from asyncli.live.generator_room import ClientHost, client_hosts, limits, metrics_of_room
from asyncli.model import metrics
from asyncli.model.records import Check
from asyncli.model.text import printable

CHECKS = [
    Check("nofile", "descriptors", "ok", have=20_000.0, need=3_000.0, unit="descriptors"),
    Check("ports", "local ports", "warn", have=28_000.0, need=28_100.0, unit="ports"),
    Check("conntrack", "tracked connections", "ok", have=262_144.0, unit="entries"),
    Check("nothing", "no room at all", "unknown", have=0.0, need=5.0),
]


def test_limits_are_those_of_the_plan_and_of_the_last_sample_least_room_first() -> None:
    values = {
        metrics.SERVER_DESCRIPTORS: 900.0,
        metrics.SERVER_DESCRIPTORS_LIMIT: 1_000.0,
        metrics.HOST_TASKS: 10.0,
        metrics.HOST_AVAILABLE_BYTES: 6e9,
    }
    known = limits(CHECKS, {"memory_bytes": 8_000_000_000}, values)
    assert [(limit.used, limit.has, limit.is_planned, limit.is_short) for limit in known] == [
        (28_100.0, 28_000.0, True, True),
        (900.0, 1_000.0, False, False),
        (2e9, 8e9, False, False),
        (3_000.0, 20_000.0, True, False),
    ]
    assert limits([], {}, {}) == []


def test_memory_of_the_servers_host_is_told_apart() -> None:
    environment = {"memory_bytes": 8e9, "agent": {"host": "far", "memory_bytes": 4e9, "same_host": False}}
    values = {metrics.HOST_AVAILABLE_BYTES: 1e9, f"{metrics.CLIENT}{metrics.HOST_AVAILABLE_BYTES}": 6e9}
    expected = {"memory of asyncli's host": 2e9, "memory of the server's host": 3e9}
    assert {limit.name: limit.used for limit in limits([], environment, values)} == expected


def test_of_a_fleet_the_sessions_host_is_sampled() -> None:
    (limit,) = limits([], {"memory_bytes": 8e9, "cluster": {}}, {metrics.HOST_AVAILABLE_BYTES: 6e9})
    assert "session" in limit.name
    assert limit.used == 2e9


def test_all_that_is_needed_of_the_samples_is_a_metric() -> None:
    for name in metrics_of_room():
        assert name.removeprefix(metrics.CLIENT) in metrics.METRICS


@pytest.mark.parametrize("cluster", [None, 7, [], {"hosts": 7}, {"hosts": [7, "x", None]}, {"hosts": {}}])
def test_a_strange_environment_has_no_hosts(cluster: Any) -> None:
    assert client_hosts({"cluster": cluster}) == []


def test_hosts_of_a_fleet() -> None:
    hosts = [
        {"name": "a", "workers": 2, "connections": 500, "room": 28_000},
        {"name": "b\n", "workers": True, "connections": -1, "room": "x", "came_later": True},
    ]
    assert client_hosts({"cluster": {"hosts": hosts}}) == [
        ClientHost("a", 2, 500, 28_000, joined_later=False),
        ClientHost(printable("b\n"), None, None, None, joined_later=True),
    ]


async def test_the_page_is_sent_what_the_file_has(tmp_path: Path) -> None:
    run = a_run(500, hold_s=20.0)
    run.checks = CHECKS
    run.environment |= {"cluster": {"hosts": [{"name": "a", "workers": 2, "connections": 500, "room": 28_000}]}}
    async with a_page(write_run(run, tmp_path / "run.db")) as (_, client), client.get("/history") as answer:
        generator = (await answer.json())["state"]["generator"]
    assert [host["name"] for host in generator["hosts"]] == ["a"]
    assert "local ports" in {limit["name"] for limit in generator["limits"]}
    # A sample's limit was read in the history too.
    assert any(not limit["is_planned"] for limit in generator["limits"])
