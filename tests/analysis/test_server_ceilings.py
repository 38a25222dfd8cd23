"""Limits of a server with a thread for each connection: arithmetic on known numbers."""

from __future__ import annotations

import pytest
from synthetic_run import a_run

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.cost import costs
from asyncli.analysis.forecast import Forecast, forecast
from asyncli.analysis.server_ceilings import server_ceilings
from asyncli.model.run import Run

STACK, ARENA, ARENAS = 8e6, 64e6, 16
CONNECTIONS = 2_000


def threaded(threads_each: float = 1.0, **limits: float) -> Run:
    """A run on a server whose threads, address space and maps rise with the connections."""
    run = a_run(CONNECTIONS, batch=1, interval_s=0.01, hold_s=10.0, label="python3.11")
    for sample in run.samples:
        connections = sample.values.get("status.active", 1.0) - 1.0
        threads = 2.0 + threads_each * connections
        arenas = min(ARENAS, connections)
        sample.values |= {
            "server.threads": threads,
            "server.group_tasks": 5.0 + threads,
            "server.user_tasks": 30.0 + threads,
            "host.tasks": 500.0 + threads,
            "server.address_space_bytes": 90e6 + STACK * threads + ARENA * arenas,
            "server.data_bytes": 90e6 + STACK * threads + ARENA * arenas,
            "host.committed_bytes": 300e6 + STACK * threads + ARENA * arenas,
            "server.mappings": 60.0 + 2.0 * threads + 2.0 * arenas,
            **limits,
        }
    return run


def by_name(run: Run) -> dict[str, Ceiling]:
    return {ceiling.name: ceiling for ceiling in server_ceilings(run)}


@pytest.mark.parametrize("threads_each", [1.0, 2.0])
@pytest.mark.parametrize(
    ("name", "limit", "taken"),
    [("group_tasks", 4_007, 7), ("user_tasks", 4_032, 32), ("host_tasks", 4_502, 502)],
)
def test_threads_that_rise_with_the_connections(
    threads_each: float, name: str, limit: int, taken: int
) -> None:
    metric = "host.tasks_limit" if name == "host_tasks" else f"server.{name}_limit"
    (ceiling,) = by_name(threaded(threads_each, **{metric: float(limit)})).values()
    assert ceiling.name == name
    assert ceiling.connections == pytest.approx((limit - taken) / threads_each, rel=0.01)
    assert f"{limit:,}" in ceiling.how


def test_a_server_whose_threads_do_not_rise_has_no_such_limit() -> None:
    limits = {"server.group_tasks_limit": 300.0, "host.tasks_limit": 30_000.0}
    assert by_name(threaded(0.0, **limits)) == {}
    assert by_name(threaded(0.05, **limits)) == {}
    assert by_name(threaded(1.0)) == {}


def test_memory_of_a_process_and_maps_by_what_one_more_takes() -> None:
    limits = {
        "server.address_space_limit_bytes": 40e9,
        "server.data_limit_bytes": 40e9,
        "host.commit_limit_bytes": 40e9,
        "server.mappings_limit": 65_530.0,
    }
    found = by_name(threaded(**limits))
    # The first sixteen threads have an arena each, which one more has not.
    true_space = (40e9 - 90e6 - 2 * STACK - ARENAS * ARENA) / STACK
    true_maps = (65_530 - 64 - 2 * ARENAS) / 2
    true_granted = (40e9 - 300e6 - 2 * STACK - ARENAS * ARENA) / STACK
    truths = (
        ("address_space", true_space),
        ("data", true_space),
        ("committed", true_granted),
        ("mappings", true_maps),
    )
    for name, true in truths:
        ceiling = found[name]
        assert ceiling.ci95 is not None
        assert ceiling.ci95[0] <= true <= ceiling.ci95[1], (true, ceiling)
        assert ceiling.connections == pytest.approx(true, rel=0.05)


def handed_over(limit: float, from_s: float = 0.0) -> Run:
    """A run on a server that hands its sockets to a program with so many descriptors, which is
    followed ``from_s`` seconds after the first connect.
    """
    run = a_run(CONNECTIONS, batch=1, interval_s=0.01, hold_s=10.0, label="python3.11")
    for sample in run.samples:
        connections = sample.values.get("status.active", 1.0) - 1.0
        sample.values |= {"server.descriptors_open": 9.0, "host.other_processes": 100.0}
        if connections >= 5 and sample.t_s > run.first_connect_s + from_s:
            sample.values |= {
                "beside.descriptors.holder": connections,
                "beside.processes.holder": 0.0,
                "beside.holders.holder": 1.0,
                "beside.descriptors_open.holder": 12.0 + connections,
                "beside.descriptors_limit.holder": limit,
            }
    return run


def test_descriptors_of_the_program_that_holds_the_connections() -> None:
    ceiling = by_name(handed_over(20_000.0))["descriptors_beside"]
    assert ceiling.connections == pytest.approx(20_000 - 12, rel=0.01)
    assert "holder" in ceiling.how


def test_processes_that_hold_the_connections_in_its_place_are_tasks_too() -> None:
    run = handed_over(20_000.0)
    for sample in run.samples:
        sample.values |= {"server.threads": 1.0, "host.tasks": 500.0, "host.tasks_limit": 9_500.0}
        if "beside.processes.holder" in sample.values:
            sample.values["beside.processes.holder"] = sample.values["status.active"] - 1.0
    assert by_name(run)["host_tasks"].connections == pytest.approx(9_000, rel=0.01)


def test_they_are_known_to_a_least_number_if_they_were_read_late() -> None:
    ceiling = by_name(handed_over(20_000.0, from_s=19.0))["descriptors_beside"]
    assert ceiling.connections is None
    assert 19_800 < ceiling.at_least < 20_000 - 12


def without_ramp(run: Run) -> Run:
    """The run without the samples of its ramp, as if that were short."""
    _, ramp, hold = run.phases[:3]
    run.samples = [
        sample for sample in run.samples if not ramp.start_s < sample.t_s < hold.start_s + 1.0
    ]
    return run


def test_of_two_levels_only_the_least_number_is_known() -> None:
    limits = {"server.address_space_limit_bytes": 40e9, "server.group_tasks_limit": 20_000.0}
    run = without_ramp(threaded(**limits))
    ceiling = by_name(run)["address_space"]
    assert ceiling.connections is None
    mean = STACK + ARENAS * ARENA / CONNECTIONS
    assert ceiling.at_least == pytest.approx((40e9 - 90e6 - 2 * STACK) / mean, rel=0.01)
    assert "at least" in ceiling.how


def test_the_lowest_is_the_first_limit() -> None:
    run = threaded(**{"server.group_tasks_limit": 3_007.0, "host.tasks_limit": 32_000.0})
    found: Forecast = forecast(run, costs(run))[0]
    assert (found.first, found.ceilings[0].connections) == ("group_tasks", 3_000)


@pytest.mark.parametrize(
    ("limits", "first", "connections"),
    [
        ({"status.limit": 12_000.0}, "maxconn", 11_999),
        ({"status.limit": 12_000.0, "status.limit_in_all": 9_000.0}, "global_maxconn", 8_999),
        ({"status.limit": 12_000.0, "status.limit_in_all": 20_000.0}, "maxconn", 11_999),
    ],
)
def test_of_haproxys_two_limits_the_lower_one_counts(
    limits: dict[str, float], first: str, connections: int
) -> None:
    run = a_run(2_000, label="HAProxy/2.6")
    for sample in run.samples:
        sample.values |= limits
    found: Forecast = forecast(run, costs(run))[0]
    assert (found.first, found.ceilings[0].connections) == (first, connections)
    is_other_unknown = "status.limit_in_all" not in limits
    assert ("not read" in found.ceilings[0].how) is is_other_unknown


@pytest.mark.parametrize(
    ("behind_each", "connections"), [(1.0, 3_000), (0.5, 6_000), (0.05, None), (0.0, None)]
)
def test_the_servers_behind_haproxy_bound_what_takes_their_sessions(
    behind_each: float, connections: int | None
) -> None:
    """Of requests in HTTP only those that are not yet answered do."""
    run = a_run(2_000, label="HAProxy/2.6")
    for sample in run.samples:
        held = sample.values.get("status.active", 1.0) - 1.0
        sample.values["status.limit"] = 12_000.0
        if held > 0:
            sample.values |= {"status.behind": behind_each * held, "status.behind_limit": 3_000.0}
    found: Forecast = forecast(run, costs(run))[0]
    ceilings = {ceiling.name: ceiling.connections for ceiling in found.ceilings}
    assert ceilings.get("server_maxconn") == (connections and pytest.approx(connections, rel=0.01))
    assert found.first == ("server_maxconn" if connections else "maxconn")


def test_the_places_of_apaches_scoreboard_bound_its_connections() -> None:
    run = a_run(100, label="Apache/2.4")
    for sample in run.samples:
        sample.values["status.places"] = 256.0
    found: Forecast = forecast(run, costs(run))[0]
    # One is the connection by which the page is read.
    assert (found.first, found.ceilings[0].connections) == ("scoreboard", 255)
    assert "MaxRequestWorkers" in found.ceilings[0].how
