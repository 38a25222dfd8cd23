"""Which host the samples of a run describe, and how the analysis uses it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from synthetic_run import FIXED, GENERATOR, KERNEL_END, SERVER, a_run, bare_run, without

from asyncli.analysis.cost import costs
from asyncli.analysis.forecast import RESERVE, forecast
from asyncli.analysis.losses.server_evidence import ServerEvidence
from asyncli.model.records import Phase, Sample
from asyncli.model.run import Run
from asyncli.model.topology import place_of, sides

ELSEWHERE = {"local": False, "agent": {"same_host": False, "same_network": False, "cpus": 4}}
APART = {"local": True, "agent": {"same_host": True, "same_network": False}}
HERE = {"local": True, "agent": {"same_host": True, "same_network": True}}


@pytest.mark.parametrize(
    ("environment", "ends", "server", "generator", "one_network", "host"),
    [
        ({}, 1, False, True, False, "this host"),
        ({"local": False}, 1, False, True, False, "this host"),
        ({"local": True}, 2, True, True, True, "this host"),
        (ELSEWHERE, 1, True, False, False, "the server's host"),
        ({"local": False, "cluster": {"server_here": True}}, 1, True, False, False, "this host"),
        ({"local": False, "cluster": {"server_here": False}}, 1, False, True, False, "this host"),
        (APART, 2, True, True, False, "this host"),
        (HERE, 2, True, True, True, "this host"),
        ({"local": False, "agent": "?"}, 1, False, True, False, "this host"),
    ],
)
def test_sides(environment: dict[str, Any], ends: int, server: bool, generator: bool, one_network: bool, host: str) -> None:
    found = sides(environment)
    assert (found.ends, found.server, found.generator, found.one_network, found.host) == (ends, server, generator, one_network, host)


@pytest.mark.parametrize(
    ("environment", "counter", "memory"),
    [
        ({"local": False}, "tcp.OutSegs", "host.free_bytes"),
        (ELSEWHERE, "client.tcp.OutSegs", "client.host.free_bytes"),
        (APART, "client.tcp.OutSegs", "host.free_bytes"),
        (HERE, "tcp.OutSegs", "host.free_bytes"),
    ],
)
def test_metrics_of_asynclis_host(environment: dict[str, Any], counter: str, memory: str) -> None:
    assert (place_of(environment).of_ours("tcp.OutSegs"), place_of(environment).of_ours("host.free_bytes")) == (counter, memory)


def test_without_an_agents_samples_the_server_is_unknown() -> None:
    def there(second: int) -> Sample:
        return Sample(second + 0.1, {"server.processes": 3.0, "server.ended": 0.0, "status.active": 1.0, "agent.cpu_s": 1.0, "kernel.tcp_tw": 0.0})

    ours = [Sample(float(second), {"generator.cpu_s": float(second), "client.host.free_bytes": 1.0}) for second in range(60)]
    seen = [there(second) for second in range(60) if not 20 <= second < 40]
    samples = sorted([*ours, *seen], key=lambda one: one.t_s)
    phases = [Phase("ramp", 0.0, 5.0), Phase("hold", 5.0, 60.0)]
    evidence = ServerEvidence(bare_run((), phases, samples, ELSEWHERE)).about(22.0, 24.0, 10)
    assert (evidence.gone, evidence.restarted, evidence.silent) == (False, False, False)
    # A sample of the server's host without them is different, unless the same processes are read again: they were not read meanwhile.
    elsewhere = [Sample(second + 0.1, {"kernel.tcp_tw": 0.0}) for second in range(20, 40)]
    for ended, is_restarted in ((0.0, False), (3.0, True)):
        after = [Sample(one.t_s, one.values | {"server.ended": ended}) for one in seen if one.t_s > 40]
        before = [one for one in seen if one.t_s < 40]
        looked = sorted([*ours, *before, *elsewhere, *after], key=lambda one: one.t_s)
        evidence = ServerEvidence(bare_run((), phases, looked, ELSEWHERE)).about(22.0, 24.0, 10)
        assert (evidence.restarted, evidence.silent) == (is_restarted, True)


# The residual there and here (B a connection); the hosts' memory (B).
THERE, HERE_TOO, THEIR_MEMORY, OUR_MEMORY = 200.0, 50.0, 64e9, 1e9


def apart() -> Run:
    """A run without noise whose server is on another host, with an agent there; each host has one end."""
    run = a_run(20_000, hold_s=10.0, local=False, noise=0.0)
    samples = []
    for one in run.samples:
        n = (one.values["server.pss_bytes"] - FIXED["server"]) / SERVER
        theirs = 2e9 + one.values["server.pss_bytes"] + one.values["kernel.socket_bytes"] + THERE * n
        ours = 5e8 + (GENERATOR + KERNEL_END + HERE_TOO) * n
        values = one.values | {
            "host.used_bytes": theirs, "host.available_bytes": THEIR_MEMORY - theirs,
            "client.host.used_bytes": ours, "client.host.available_bytes": OUR_MEMORY - ours,
        }  # fmt: skip
        samples.append(Sample(one.t_s, values))
    environment = {**run.environment, "memory_bytes": OUR_MEMORY, "agent": {"same_host": False, "memory_bytes": THEIR_MEMORY}}
    return msgspec.structs.replace(run, samples=samples, environment=environment)


def test_the_residual_with_clients_elsewhere_is_the_servers_hosts() -> None:
    run = apart()
    found = costs(run)
    assert found.host_total.bytes_per_connection == pytest.approx(SERVER + KERNEL_END + THERE, rel=1e-6)
    assert found.residual.bytes_per_connection == pytest.approx(THERE, rel=1e-4)
    parts = found.server_user.bytes_per_connection + found.kernel.bytes_per_connection + found.residual.bytes_per_connection
    assert parts == pytest.approx(found.host_total.bytes_per_connection)
    # asyncli's memory is on its own host.
    assert found.generator_user.bytes_per_connection == pytest.approx(GENERATOR, rel=1e-4)
    assert found.client_total.bytes_per_connection == pytest.approx(GENERATOR + KERNEL_END + HERE_TOO, rel=1e-4)


def test_a_forecast_uses_the_memory_of_both_hosts() -> None:
    run = apart()
    found, _ = forecast(run, costs(run))
    by_name = {one.name: one.connections for one in found.ceilings}
    theirs = (THEIR_MEMORY - 2e9 - FIXED["server"] - FIXED["kernel"] - RESERVE * THEIR_MEMORY) / (SERVER + KERNEL_END + THERE)
    ours = (OUR_MEMORY - 5e8 - RESERVE * OUR_MEMORY) / (GENERATOR + KERNEL_END + HERE_TOO)
    assert by_name == {"server_host": pytest.approx(theirs, rel=1e-3), "generator": pytest.approx(ours, rel=1e-3)}
    assert found.first == "generator"
    # Without samples of it there is no limit.
    known = costs(without(run, "client."))
    found, _ = forecast(run, known)
    assert (known.client_total, [one.name for one in found.ceilings]) == (None, ["server_host"])
