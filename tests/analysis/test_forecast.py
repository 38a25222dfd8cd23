"""How many connections fit: arithmetic on known numbers, and reasons for unknown ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import AVAILABLE, FIXED, GENERATOR, KERNEL_END, REST, SERVER, a_run, bare_run, raised, without

from asyncli.analysis.ceiling import Ceiling, Space
from asyncli.analysis.cost import costs
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.forecast import RESERVE, Forecast, forecast
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import processes_rise
from asyncli.findings.host import host_shared
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Environment, Finding, Phase, Sample
from asyncli.model.run import Run
from asyncli.preflight.configured import Configured
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_checks import nginx_checks
from asyncli.preflight.nginx_config import read_nginx
from asyncli.preflight.nginx_ways import unknown_kind

HOST = SERVER + 2 * KERNEL_END + GENERATOR + REST
MEMORY = 25e9
ROOM = AVAILABLE - FIXED["server"] - FIXED["kernel"] - FIXED["generator"] - RESERVE * MEMORY


def forecast_of(run: Run, checks: list[Check] | None = None) -> tuple[Forecast, list[Finding]]:
    return forecast(msgspec.structs.replace(run, checks=checks or run.checks), costs(run))


def by_name(found: Forecast) -> dict[str, Ceiling]:
    return {one.name: one for one in found.ceilings}


def slots(have: float) -> Check:
    return Check("nginx_worker_connections", "slots", "ok", have, 110_000, "slots", "6 x 20,480; with a sixteenth or less free")


def descriptors(have: float, need: float) -> Check:
    return Check("nginx_nofile", "descriptors", "ok", have, need, "descriptors")


def test_room_by_slope_and_more_with_clients_elsewhere() -> None:
    found, findings = forecast_of(a_run(100_000, hold_s=10.0))
    assert found.memory.connections == pytest.approx(ROOM / HOST, rel=0.03)
    assert found.memory.ci95[0] <= ROOM / HOST <= found.memory.ci95[1]
    assert (found.first, found.ceilings) == ("memory", [found.memory])
    # All or none of the residual may be the server's.
    assert found.server_memory.connections == pytest.approx(ROOM / (SERVER + KERNEL_END + REST), rel=0.03)
    low, high = found.server_memory.ci95
    assert low < found.server_memory.connections < ROOM / (SERVER + KERNEL_END) < high
    # Another host's: no limit of this test.
    assert found.server_memory not in found.ceilings
    (far,) = [one for one in findings if one.code == "forecast_far"]
    assert far.fields["times"] > 10


def known(slope: float, low: float, high: float) -> Costs:
    return Costs(host_total=Cost(slope, (low, high), 0.0, "by hand", 21))


def before(available: float | None) -> list[Sample]:
    return [] if available is None else [Sample(float(t), {"host.available_bytes": available}) for t in range(5)]


PHASES = [Phase("baseline", 0.0, 5.0), Phase("ramp", 5.0, 105.0)]
PLAN = a_run(1000).plan
LOCAL: Environment = {"local": True, "memory_bytes": 10e9}


@pytest.mark.parametrize(
    ("slope", "low", "high", "connections", "ci95"),
    [
        (10_000.0, 8_000.0, 12_500.0, 200_000, (160_000, 250_000)),
        (10_000.0, 5_000.0, 15_000.0, 200_000, (133_333, 400_000)),
        (10_000.0, 4_900.0, 15_100.0, None, None),
        (10_000.0, 0.0, 20_000.0, None, None),
        (2_717.0, -7_020.0, 12_454.0, None, None),
        (-10.0, -500.0, 480.0, None, None),
        (0.0, 0.0, 0.0, None, None),
    ],
)
def test_the_interval_is_the_inverted_interval_of_the_slope(slope: float, low: float, high: float, connections: Any, ci95: Any) -> None:
    found, findings = forecast(bare_run((), PHASES, before(3e9), LOCAL, plan=PLAN), known(slope, low, high))
    assert (found.memory.connections, found.memory.ci95) == (connections, ci95)
    assert (["memory"] in [one.fields["of"] for one in findings]) is (connections is None)
    assert found.first == (None if connections is None else "memory")


@pytest.mark.parametrize(("rest", "low", "high"), [(3210.0, -1178.0, 7510.0), (-5806.0, -15_716.0, 4089.0), (-9.0, -10.0, -8.0)])
def test_the_server_alone_with_the_residual(rest: float, low: float, high: float) -> None:
    of = {name: Cost(size, (size - 10, size + 10), 0.0, "by hand", 21) for name, size in (("server_user", 500.0), ("kernel", 4000.0))}
    found, _ = forecast(bare_run((), PHASES, before(3e9), LOCAL, plan=PLAN), Costs(**of, residual=Cost(rest, (low, high), 0.0, "", 21)))
    alone = found.server_memory
    assert alone.connections == math.floor(2e9 / (4500 + max(0.0, rest)))
    assert alone.ci95 == (math.floor(2e9 / (4520 + max(0.0, high))), math.floor(2e9 / 4480))
    assert ("left over" in alone.how) is (high > 0)
    # Elsewhere no fewer fit than with both ends here.
    of |= {"residual": Cost(rest, (low, high), 0.0, "", 21), "host_total": Cost(9e3, (8e3, 9.5e3), 0.0, "", 21)}
    both, _ = forecast(bare_run((), PHASES, before(3e9), LOCAL, plan=PLAN), Costs(**of))
    assert both.server_memory.ci95[0] == math.floor(2e9 / min(4520 + max(0.0, high), 9.5e3 - 3990)) > both.memory.ci95[0]
    assert both.server_memory.connections > both.memory.connections
    # A total below the sum of the parts: the value is no end of its interval.
    of["host_total"] = Cost(8.3e3, (7.9e3, 9.5e3), 0.0, "", 21)
    alone = forecast(bare_run((), PHASES, before(3e9), LOCAL, plan=PLAN), Costs(**of))[0].server_memory
    assert alone.ci95[0] < alone.connections < alone.ci95[1]


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(9_900.0, 10_100.0, 201_000), (9_000.0, 11_000.0, 200_000), (8_000.0, 12_000.0, 200_000)]
)
def test_digits_of_a_forecast_by_its_interval(low: float, high: float, shown: float) -> None:
    found, _ = forecast(bare_run((), PHASES, before(3.006e9), LOCAL, plan=PLAN), known(1e4, low, high))
    assert found.memory.rounded(200_600) == shown
    assert Ceiling("ports", 28_232, None, "").rounded(28_232) == 28_200


def test_a_smaller_cgroup_is_the_limit() -> None:
    small = Check("cgroup_memory", "memory left in the cgroup", "ok", 1e9, 1e8, "bytes")
    found, _ = forecast(bare_run((), PHASES, before(8e9), LOCAL, plan=PLAN, checks=[small]), known(1e4, 9e3, 1.1e4))
    assert found.memory.connections == 100_000
    assert "cgroup" in found.memory.how


@pytest.mark.parametrize(
    ("costs", "samples", "why"),
    [
        (Costs(), before(3e9), "cost_not_known"), (known(1e4, 9e3, 1.1e4), before(None), "available_not_read"),
        (Costs(), [], "available_not_read"), (Costs(host_total=Cost(1e4, (9e3, 1.1e4), 0.0, "", 2, of_levels=True)), before(3e9), "of_two_levels"),
    ],
)  # fmt: skip
def test_missing_inputs_are_findings(costs: Costs, samples: list[Sample], why: str) -> None:
    found, findings = forecast(bare_run((), PHASES, samples, LOCAL, plan=PLAN), costs)
    assert found.memory is None or found.memory.connections is None
    assert found.first is None
    assert [one.fields["why"] for one in findings if one.code == "forecast_unknown" and one.fields["of"] == ["memory"]] == [why]
    assert all(one.remedy for one in findings)


def test_a_run_without_a_ramp() -> None:
    found, findings = forecast(bare_run(), Costs())
    assert (found.memory, found.server_memory, found.ceilings, found.first) == (None, None, [], None)
    assert {one.code for one in findings} == {"forecast_unknown"}


def test_the_lowest_limit_comes_first() -> None:
    run = a_run(100_000, hold_s=10.0)
    checks = [
        slots(6 * 20_480), descriptors(20_000, math.ceil(100_000 / 6 + 6 * math.sqrt(100_000 / 6)) + 32),
        Check("ports", "local ports", "ok", 1_016_352, 100_000, "ports", "36 sources x 1 destination x 28,232 ports = 1,016,352"),
        Check("file_max", "open files", "ok", 1_000_000, 201_640, "files"),
        Check("epoll_watches", "watches", "ok", 5_000_000, 200_000, "watches"),
        Check("conntrack", "tracked", "ok", 262_144, None, "entries"),  # nothing is tracked here
        Check("somaxconn", "queue", "ok", 100, 1000, "connections"),
    ]  # fmt: skip
    run.environment["destinations"] = ["10.0.0.7:80"]
    found, findings = forecast_of(run, checks)
    assert found.first == "worker_connections"
    assert [one.name for one in found.ceilings[:3]] == ["worker_connections", "descriptors", "file_max"]
    ceilings = by_name(found)
    assert ceilings["worker_connections"].connections == 6 * 20_480 * 15 / 16
    assert ceilings["descriptors"].connections == 6 * (20_000 - 32)
    assert ceilings["ports"].connections == 1_016_352
    # 1,640 are used otherwise, and each connection takes two.
    assert ceilings["file_max"].connections == (1_000_000 - 1_640) // 2
    assert ceilings["epoll_watches"].connections == 5_000_000
    assert set(ceilings) == {"memory", "worker_connections", "descriptors", "ports", "file_max", "epoll_watches"}
    numbers = [one.connections for one in found.ceilings]
    assert numbers == sorted(numbers, key=lambda one: one or 0)
    assert "forecast_unknown" not in [one.code for one in findings]


def test_ports_are_no_limit_on_loopback() -> None:
    run = a_run(100_000, hold_s=10.0)
    run.environment["destinations"] = ["127.0.0.1:8080"]
    ports = Check("ports", "local ports", "ok", 1_016_352, 100_000, "ports", "36 sources")
    found, _ = forecast_of(run, [ports])
    assert (found.ceilings[-1].name, found.ceilings[-1].connections) == ("ports", None)
    assert "no limit" in found.ceilings[-1].how
    assert found.first == "memory"
    run.environment["destinations"] = ["[::1]:8080"]
    found, _ = forecast_of(run, [ports])
    assert by_name(found)["ports"].connections == 1_016_352


@pytest.mark.parametrize(("workers", "connections"), [(1, 500), (6, 100_000), (60, 1_000_000), (7, 100)])
def test_workers_are_inferred_from_the_preflights_need(tmp_path: Path, workers: int, connections: int) -> None:
    """By the preflight itself, so that both stay consistent."""
    path = tmp_path / "nginx.conf"
    path.write_text(
        f"worker_processes {workers}; worker_rlimit_nofile 20000; events {{ worker_connections 20480; }} "
        "http { server { listen 8080; } }"
    )
    config = read_nginx(None, path)
    assert isinstance(config, NginxConfig)
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=connections)
    checks = nginx_checks(config, plan, Limits(), Configured(), {}, unknown_kind)
    found, _ = forecast(bare_run(environment={"local": True}, plan=plan, checks=checks), Costs())
    assert by_name(found)["descriptors"].connections == workers * (20_000 - 32)
    assert by_name(found)["worker_connections"].connections == math.floor(workers * 20_480 * 15 / 16)


def test_a_client_on_another_host_has_its_own_limit() -> None:
    run = a_run(50_000, hold_s=10.0, local=False, server=False)
    found, _ = forecast_of(run)
    assert (found.memory, found.server_memory) == (None, None)
    generator = by_name(found)["generator"]
    assert generator.connections == pytest.approx((ROOM + FIXED["server"]) / (KERNEL_END + GENERATOR + REST), rel=0.05)


@pytest.mark.parametrize(("free", "connections"), [(1.1e9, 10_000), (0.5e9, 0)])
def test_a_short_extrapolation_is_no_finding(free: float, connections: int) -> None:
    found, findings = forecast(bare_run(a_run(1000).ticks, PHASES, before(free), LOCAL, plan=PLAN), known(1e4, 9e3, 1.1e4))
    assert found.memory.connections == connections
    assert "forecast_far" not in [one.code for one in findings]


def test_first_use_is_subtracted_from_the_room() -> None:
    run = a_run(20_000, hold_s=10.0)
    found, _ = forecast_of(raised(run, 3e9, "server.pss_bytes", "host.used_bytes", since_s=run.phases[1].start_s))
    assert found.memory.connections == pytest.approx((ROOM - 3e9) / HOST, rel=0.03)
    assert found.server_memory.connections == pytest.approx((ROOM - 3e9) / (SERVER + KERNEL_END + REST), rel=0.03)


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        ({"local": True, "server": {"label": "the server", "pid": None}}, "--server-pid"),
        ({"local": True, "server": {"label": "haproxy", "pid": 77}}, ""),
        ({"local": False, "server": {"label": "nginx/1.22.1", "pid": None}}, ""),
    ],
)
def test_a_remedy_only_if_it_can_work(environment: Environment, remedy: str) -> None:
    _, findings = forecast(bare_run((), PHASES, before(3e9), environment, plan=PLAN), known(1e4, 9e3, 1.1e4))
    (found,) = [one for one in findings if "worker_connections" in one.fields.get("of", ())]
    assert remedy in found.remedy if remedy else found.remedy == ""


def in_use(before: float | None, then: float, processes: float = 1.0) -> Run:
    """A run of 1,000 connections on a server whose processes may have 20,000 descriptors each."""
    run = a_run(1000)
    start = run.phases[1].start_s
    for sample in run.samples:
        driven = sample.t_s > start
        sample.values["server.descriptors_limit"] = 20_000.0
        sample.values["server.processes"] = processes if driven else 1.0
        if before is not None:
            sample.values["server.descriptors"] = then if driven else before
    return run


def replaced() -> Run:
    """The same with another server since the run was resumed, which has no samples from before the first connect."""
    run = in_use(8, 1008)
    return without(run, "server.", until_s=run.phases[1].start_s)


@pytest.mark.parametrize(
    ("run", "connections"),
    [
        # The number before the first connect is unknown.
        (replaced(), 20_000),
        (in_use(None, 0), 20_000),
        (in_use(None, 0, processes=3), 60_000),
        (in_use(8, 1008), 19_992),
        # A proxy takes two; the fullest of eight processes has a seventh.
        (in_use(20, 2020), 9_990),
        (in_use(20, 163), 139_720),
        # Other clients opened as many.
        (raised(in_use(8, 2008), 1000, "status.active", since_s=9.0), 19_992),
        # Each connection has its own process and takes none of the fullest.
        (in_use(8, 8), None),
        (in_use(8, 9, processes=1001), None),
    ],
)
def test_descriptors_of_the_servers_processes_are_a_limit(run: Run, connections: int | None) -> None:
    found, findings = forecast_of(run)
    row = by_name(found)["descriptors"]
    assert (row.connections, "20,000" in row.how) == (connections, True)
    assert ["worker_connections"] in [one.fields["of"] for one in findings if one.code == "forecast_unknown"]
    counted = [(one.connections, one.name) for one in found.ceilings if one.connections is not None]
    assert found.first == (min(counted)[1] if counted else None)


def test_the_sessions_of_haproxys_frontends_are_a_limit() -> None:
    run = raised(a_run(10_000, label="HAProxy/2.6"), 40, "status.active")
    for sample in run.samples:
        sample.values["status.limit"] = 12_000
    found, findings = forecast(run, costs(run))
    assert (found.first, found.ceilings[0].connections) == ("maxconn", 12_000 - 41)
    assert "worker_connections" not in str([one.fields for one in findings])


def test_nginxs_limits_come_from_its_configuration() -> None:
    run = in_use(8, 1008)
    found, _ = forecast_of(run, [descriptors(4096, 1000 + 32)])
    assert by_name(found)["descriptors"].connections == 4096 - 32


def test_what_nginx_counts_of_websockets_is_a_limit() -> None:
    """By the preflight; one that it cannot tell has no number, or a least one."""
    checks = [
        Check("nginx_limit_conn", "limit_conn", "unknown", None, 1_000, "connections", "150 for each value of $arg_x"),
        Check("nginx_max_conns", "max_conns", "ok", 4_000, 1_000, "connections", "in all workers together"),
        Check("nginx_proxy_ports", "ports", "unknown", 28_000, 1_000, "ports", "a name may have several addresses"),
    ]
    found, _ = forecast_of(a_run(1_000, hold_s=10.0), checks)
    ceilings = by_name(found)
    assert (found.first, ceilings["max_conns"].connections) == ("max_conns", 4_000)
    assert ceilings["limit_conn"].connections is None
    assert ceilings["limit_conn"].at_least is msgspec.UNSET
    assert (ceilings["proxy_ports"].connections, ceilings["proxy_ports"].at_least) == (None, 28_000)


@pytest.mark.parametrize("descriptors_each", [1, 2])
def test_the_ports_of_a_proxy_may_be_reached_earlier(descriptors_each: int) -> None:
    """It takes two descriptors for each connection; how many addresses its backends have is unknown."""
    run = a_run(1_000, hold_s=10.0, label="envoy/1.30")
    for sample in run.samples:
        connections = sample.values.get("status.active", 1.0) - 1.0
        taken = 8.0 + descriptors_each * connections
        sample.values |= {"server.source_ports": 1_200.0, "server.processes": 1.0, "server.descriptors": taken}
        sample.values |= {"server.descriptors_open": taken, "server.descriptors_limit": 20_000.0}
    found, _ = forecast_of(run)
    ports = by_name(found).get("proxy_ports")
    assert (ports and ports.at_least) == (1_200.0 if descriptors_each == 2 else None)
    fit = by_name(found)["descriptors"].connections
    assert fit == pytest.approx(20_000 / descriptors_each, rel=0.01)


def test_a_proxys_workers_have_two_descriptors_for_each_connection() -> None:
    run = a_run(1_000, hold_s=10.0)
    for sample in run.samples:
        sample.values["server.descriptors_open"] = 8.0 + 2 * (sample.values.get("status.active", 1.0) - 1.0)
    found, _ = forecast_of(run, [descriptors(20_000, 1_032)])
    assert by_name(found)["descriptors"].connections == (20_000 - 32) // 2


def test_no_limit_is_divided_by_a_cost_below_zero() -> None:
    run = a_run(100_000, hold_s=10.0)
    known = costs(run)
    hidden = msgspec.structs.replace(known.host_total, bytes_per_connection=-309_984.0, ci95=(-801_154.0, 181_185.0))
    limit = by_name(forecast(run, msgspec.structs.replace(known, host_total=hidden))[0])["memory"]
    assert limit.connections is None
    assert "-309,984" not in limit.how
    assert "-801,154" in limit.how


def test_numbers_are_told_in_the_digits_that_they_have() -> None:
    """A fraction of a map is not 0, bytes are in MB from some size on, and connections that are gone take no sockets."""
    maps = Space(65_530, "65,530 memory maps", "maps").ceiling("mappings", 0.0862, (0.012, 0.16), "by maps")
    assert "0.012" in maps.how
    assert "0.16" in maps.how
    assert "3.8 MB" in processes_rise(3_849_398.0, freed=False).evidence
    assert "took" in host_shared("this host", 900, 2_600, False).evidence
    assert "took" not in host_shared("this host", 0, 2_600, False).evidence
