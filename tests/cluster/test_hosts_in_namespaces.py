"""A fleet of two hosts, each in its own network namespace: undisturbed, cut off, killed, and back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from agents import AnAgent, token_file
from fault_table import require_as_written
from hosts import HUB, Dask, Hosts, address, another_machine, bridged, clustered
from lanes import Lanes, Running
from programs import Program, codes, held, longest_delay_s, recorded, report, require_whole, told, until
from skew import Skew

from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNginx
from asyncli.model.topology import sides
from asyncli.store.reader import read_run

pytestmark = [pytest.mark.nginx, pytest.mark.namespaces]
N = 1000
EARLIER_S = 5000.0
#: For soaks whose hosts are not cut off: a server or a host of which a busy machine has no time for two seconds loses nothing then.
PATIENT = ("--timeout", "1m", "--connect-timeout", "1m")
lanes = Lanes()


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from lanes.start(request, tmp_path_factory)


class Stage(NamedTuple):
    bridge: Network
    hosts: Hosts
    server: LabNginx
    first: Dask
    second: Dask

    def soaking(self, folder: Path, *arguments: str, before: tuple[str, ...] = (), status: bool = True) -> Program:
        seen = ("--status-url", str(self.server.status_url)) if status else ()
        with self.bridge.inside("hub"):
            return Program(
                folder, "soak", self.server.url, "--cluster", self.hosts.address, "-c", str(N), "-k", "4", "--ramp", "10/10ms",
                "--baseline", "0.2", "--residue", "0.2", *seen, "--timeout", "2", "--connect-timeout", "2", "--out", "run.db",
                "--json", "run.json", *arguments, before=before,
            )  # fmt: skip


@contextmanager
def staged(folder: Path, before: tuple[str, ...] = (), before_second: tuple[str, ...] = ()) -> Iterator[Stage]:
    with bridged(2) as bridge, asyncio.Runner() as runner, clustered(folder, at=HUB, place=(bridge, "hub")) as hosts:
        with bridge.inside("hub"):
            server = LabNginx(connections=4 * N, address=HUB, workers=2)
            runner.run(server.start())
        try:
            workers = (hosts.worker((bridge, "c0"), before=before), hosts.worker((bridge, "c1"), before=(*before, *before_second)))
            yield Stage(bridge, hosts, server, *workers)
        finally:
            runner.run(server.stop())


@contextmanager
def machines(folder: Path) -> Iterator[Stage]:
    """The clients' boot id differs from the server's."""
    with staged(folder, another_machine(folder, 1)) as stage:
        yield stage


# Each is the stage of its own lane.
cut, killed = (partial(staged) for _ in range(2))


@contextmanager
def clocks(folder: Path) -> Iterator[tuple[Stage, Skew]]:
    """The second host was booted before the others."""
    skew = Skew(folder)
    skew.ahead(EARLIER_S)
    with staged(folder, before_second=("env", *(f"{name}={value}" for name, value in skew.environment.items()))) as stage:
        yield stage, skew


def reopened(folder: Path) -> bool:
    """The share of one of two hosts was reopened, and all connections are held."""
    run = recorded(folder / "run.db")
    return run is not None and sum(tick.reopened for _, tick in run.ticks) == N / 2 and held(folder) == N


@contextmanager
def two_held(stage: Stage, folder: Path, *arguments: str) -> Iterator[Program]:
    """A soak that holds all its connections from two hosts until the end of the block."""
    with stage.soaking(folder, "--hold", "10m", *arguments) as program:
        program.until(lambda: held(folder) == N, "all are on record")
        yield program
        program.until_gone()
    for one in (stage.first, stage.second):
        one.until_free()


def cut_for_a_while(stage: Stage, folder: Path, program: Program) -> None:
    stage.bridge.link("c1", "down")
    program.until(lambda: "host_silent" in told(folder), "its silence is told")
    stage.bridge.link("c1", "up")
    program.until(lambda: "host_back" in told(folder), "its return is told")
    program.until(lambda: held(folder) == N, "all are held again")


def pass_s(seconds: float) -> None:
    """Sleep for the length of a fault."""
    since = time.monotonic()
    until(lambda: time.monotonic() > since + seconds, f"{seconds} s pass")


def end(program: Program) -> None:
    program.signal()
    program.wait()


@lanes(machines)
def test_an_agent_on_the_servers_host_and_a_session_on_a_third(folder: Path, stage: Stage) -> None:
    token = token_file(folder)
    with stage.bridge.inside("hub"):
        agent = AnAgent(folder, "--status-url", str(stage.server.status_url), "--token-file", token)
    with agent:
        asked = ("--agent", agent.url, "--agent-token-file", str(token), "--hold", "3", *PATIENT)
        with stage.soaking(folder, *asked, before=another_machine(folder, 2), status=False) as program:
            done = program.wait()
    summary = report(folder, "run.db")
    require_whole(done.status, summary)
    both = summary["reconciliation"]
    assert (both["client_held"], both["server_active"], both["accepts_delta"], both["agrees"]) == (N, N, N, True)
    assert summary["server"]["processes"] == {"baseline": 3, "hold_end": 3}
    there = sides(summary["environment"])
    assert (there.ends, there.server, there.generator, there.host) == (1, True, False, "the server's host")
    assert "cluster_memory" not in codes(summary)
    names = set(read_run(folder / "run.db").samples.metrics)  # type: ignore[attr-defined]
    assert {"status.active", "server.pss_bytes", "kernel.socket_bytes", "host.used_bytes", "generator.cpu_s", "session.cpu_s"} <= names
    # Nothing is sampled of the session's host, which opens no connections.
    assert [name for name in names if name.startswith("client.")] == []


@lanes(machines)
def test_an_event_is_the_same_on_two_hosts(folder: Path, stage: Stage) -> None:
    """Whose clocks differ: both ends of the storm are at one instant."""
    with stage.soaking(folder, "--hold", "6", "--at", "2s", "drop 50%", "--reconnect", "fixed:1s", *PATIENT) as program:
        program.wait()
    summary = report(folder, "run.db")
    [event] = summary["events"]
    counts = summary["connections"]
    assert (counts["held"], counts["lost"], counts["opened"], summary["reconciliation"]["agrees"]) == (N, 0, N + N // 2, True)
    assert (event["ended"], event["absent"], event["not_back"]) == (N // 2, 0, 0)
    # A second and the comebacks of one host; clocks that are apart would have the other's come later by so much.
    assert 0.9 < event["back"]["p50_s"] <= event["back"]["all_s"] < 2.5 + longest_delay_s(read_run(folder / "run.db"))
    for one in (stage.first, stage.second):
        one.until_free()


@lanes(machines)
def test_a_short_cut_loses_no_second(folder: Path, stage: Stage) -> None:
    with two_held(stage, folder, *PATIENT) as program:
        cut_for_a_while(stage, folder, program)
        # A cut of the session: the hosts keep their messages meanwhile.
        before = recorded(folder / "run.db")
        program.signal(signal.SIGSTOP)
        pass_s(5.0)
        program.signal(signal.SIGCONT)
        program.until(lambda: (now := recorded(folder / "run.db")) and len(now.ticks) > len(before.ticks) + 5, "it goes on")
        end(program)
    summary = report(folder, "run.db")
    require_as_written("test_a_short_cut_loses_no_second", summary)
    assert "host_lost" not in codes(summary)
    assert (summary["connections"]["held"], summary["connections"]["lost"], summary["connections"]["opened"]) == (N, 0, N)
    assert (summary["reconciliation"]["agrees"], summary["reconciliation"]["accepts_delta"]) == (True, N)
    hosts = summary["environment"]["cluster"]["hosts"]
    assert [(one["connections"], one["workers"]) for one in hosts] == [(N / 2, 1), (N / 2, 1)]
    run = read_run(folder / "run.db")
    for number, one in enumerate(hosts):
        assert one["name"].endswith(f" at {address(number)}")
        # One machine has one monotonic clock, so the rest is measurement error: half of a round trip, which takes longer on a busy machine.
        assert abs(one["clock_offset_s"]) <= one["clock_uncertainty_s"] < 0.1 + longest_delay_s(run)
    assert summary["generator"]["processes"] == 4
    # The server is on asyncli's host, and no client is.
    there = sides(summary["environment"])
    assert (there.ends, there.server, there.generator, there.far) == (1, True, False, None)
    assert "cluster_memory" not in codes(summary)
    # Each second of each host counts once; those of the session's absence have their heartbeats.
    assert [tick.second for _, tick in run.ticks] == list(range(1, len(run.ticks) + 1))
    assert sum(tick.opened for _, tick in run.ticks) == N
    assert all(tick.sent for _, tick in run.ticks[len(before.ticks) : len(before.ticks) + 5])


@lanes(machines)
def test_what_a_cut_longer_than_the_timeout_loses_is_laid_to_the_host(folder: Path, stage: Stage) -> None:
    with two_held(stage, folder) as program:
        cut_for_a_while(stage, folder, program)
        end(program)
    summary = report(folder, "run.db")
    assert summary["connections"]["deaths"]["heartbeat_timeout"] > N / 4
    assert {(one["cause"], one["code"]) for one in summary["diagnoses"]} == {("heartbeat_timeout", "client_cut")}
    require_as_written("test_what_a_cut_longer_than_the_timeout_loses_is_laid_to_the_host", summary)


@lanes(cut)
def test_a_link_that_is_down_for_long_loses_the_host(folder: Path, stage: Stage) -> None:
    with two_held(stage, folder) as program:
        stage.bridge.link("c1", "down")
        program.until(lambda: "host_silent" in told(folder), "its silence is told")
        program.until(lambda: held(folder) == N / 2, "what it held is left out")
        program.until(lambda: "host_lost" in told(folder), "its loss is told")
        stage.second.until_free()
        program.until(lambda: reopened(folder), "the other holds them all")
        stage.bridge.link("c1", "up")
        end(program)
    summary = report(folder, "run.db")
    require_as_written("test_a_link_that_is_down_for_long_loses_the_host", summary)
    assert (summary["connections"]["held"], summary["connections"]["deaths"]["generator_lost"]) == (N, 500)
    assert summary["run"]["verdict"] == "invalid"


@lanes(clocks)
def test_a_clock_of_its_own_and_a_host_that_sleeps(folder: Path, there: tuple[Stage, Skew]) -> None:
    stage, skew = there
    with two_held(stage, folder, *PATIENT) as program:
        slept_s = skew.suspend(lambda: [stage.second.pid, *stage.second.hosts()], lambda: pass_s(3.0))
        program.until(lambda: "cluster_clock" in told(folder), "its clock is measured again")
        end(program)
    summary = report(folder, "run.db")
    (drifted,) = (one["fields"]["drift_s"] for one in summary["findings"] if one["code"] == "cluster_clock")
    assert abs(drifted + slept_s) < 0.4
    require_as_written("test_a_clock_of_its_own_and_a_host_that_sleeps", summary)
    first, second = summary["environment"]["cluster"]["hosts"]
    uncertain_s = first["clock_uncertainty_s"] + second["clock_uncertainty_s"]
    assert abs(second["clock_offset_s"] - first["clock_offset_s"] - EARLIER_S) <= uncertain_s + 0.001
    counts = summary["connections"]
    assert (counts["held"], counts["lost"], counts["opened"], summary["reconciliation"]["agrees"]) == (N, 0, N, True)
    # Both started at the same instant, whatever their clocks: by these alone one would be late by all of EARLIER_S.
    run = read_run(folder / "run.db")
    assert [tick.second for _, tick in run.ticks] == list(range(1, len(run.ticks) + 1))
    assert summary["ramp"]["lateness_ms"]["max"] < 1000 * EARLIER_S / 100


@lanes(cut)
def test_a_host_that_is_cut_off_in_the_drain_keeps_nobody_waiting(folder: Path, stage: Stage) -> None:
    # The host cut off for 20 s may have lost its scheduler.
    stage.second.kill()
    second = stage.hosts.worker((stage.bridge, "c1"))
    with two_held(stage, folder) as program:
        stage.bridge.link("c1", "down")
        program.until(lambda: "host_silent" in told(folder), "its silence is told")
        end(program)
        second.until_free()
        stage.bridge.link("c1", "up")
    summary = report(folder, "run.db")
    require_as_written("test_a_host_that_is_cut_off_in_the_drain_keeps_nobody_waiting", summary)
    assert "drain_unfinished" not in codes(summary)
    assert (summary["run"]["complete"], summary["connections"]["held"]) == (True, N / 2)
    assert summary["connections"]["deaths"] == {"generator_lost": N / 2}


@lanes(killed)
def test_a_killed_host_process(folder: Path, stage: Stage) -> None:
    with two_held(stage, folder, *PATIENT) as program:
        os.kill(stage.second.first_host(), signal.SIGKILL)
        lost_to_the_other(stage, folder, program)
    opened_again(folder, "test_a_killed_host_process")


@lanes(killed)
def test_a_killed_dask_worker(folder: Path, stage: Stage) -> None:
    with two_held(stage, folder, *PATIENT) as program:
        stage.second.kill()
        lost_to_the_other(stage, folder, program)
    opened_again(folder, "test_a_killed_dask_worker")


@lanes(killed)
def test_a_host_process_that_is_stopped_does_not_hide_behind_its_actor(folder: Path, stage: Stage) -> None:
    second = stage.hosts.worker((stage.bridge, "c1"))
    with two_held(stage, folder, *PATIENT) as program:
        stopped = stage.first.first_host()
        os.kill(stopped, signal.SIGSTOP)
        program.until(lambda: "host_silent" in told(folder), "its silence is told")
        program.until(lambda: held(folder) == N / 2, "what it held is left out")
        # It is not asked to open lost shares until it answers.
        second.kill()
        program.until(lambda: "host_lost" in told(folder), "the other's loss is told")
        os.kill(stopped, signal.SIGCONT)
        program.until(lambda: "share_taken" in told(folder), "it takes them over")
        program.until(lambda: reopened(folder), "all are held again")
        end(program)
    opened_again(folder, "test_a_host_process_that_is_stopped_does_not_hide_behind_its_actor")


@lanes(killed)
def test_what_nobody_has_room_for_waits_for_another_host(folder: Path, stage: Stage) -> None:
    # One host has ports for little more than its share. On the other the lost connections' ports are in TIME_WAIT.
    with stage.bridge.inside("c0"):
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 20599")
    second = stage.hosts.worker((stage.bridge, "c1"))
    with two_held(stage, folder, *PATIENT) as program:
        second.kill()
        program.until(lambda: "host_lost" in told(folder), "its loss is told")
        program.until(lambda: held(folder) == N / 2, "a half is held")
        third = stage.hosts.worker((stage.bridge, "c1"))
        program.until(lambda: "host_joined" in told(folder), "another host has come")
        program.until(lambda: reopened(folder), "all are held again")
        end(program)
        third.until_free()
    summary = report(folder, "run.db")
    require_as_written("test_what_nobody_has_room_for_waits_for_another_host", summary)
    of_hosts = [(one["connections"], one.get("came_later", False), "clock_offset_s" in one) for one in summary["environment"]["cluster"]["hosts"]]
    assert of_hosts == [(500, False, True), (500, False, True), (500, True, True)]


def lost_to_the_other(stage: Stage, folder: Path, program: Program) -> None:
    program.until(lambda: "host_lost" in told(folder), "its loss is told")
    stage.second.until_free()
    program.until(lambda: reopened(folder), "the other holds them all")
    end(program)


def opened_again(folder: Path, test: str) -> None:
    summary = report(folder, "run.db")
    require_as_written(test, summary)
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (N, {"generator_lost": 500})
    assert summary["reconciliation"]["server_active"] == N
