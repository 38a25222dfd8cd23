"""Plans against a host's limits: refusals, warnings, and the command that fixes each."""

from __future__ import annotations

import re
import socket
from typing import Any

import msgspec
import pytest

from asyncli.engine.spread import Destination, Route, Spread, loopback_sources
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.preflight import checks_to_findings, refusals
from asyncli.preflight.host_checks import host_checks
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.memory_checks import predicted_bytes
from asyncli.preflight.rate_checks import handshake_rates

ROOMY = Limits(
    nofile_soft=20_000, nofile_hard=20_000, nproc=100_000, nr_open=1_048_576, file_max=2_466_170, files_open=500,
    port_low=32_768, port_high=60_999, tcp_tw_reuse=2, somaxconn=4_096, syn_backlog=2_048, conntrack_count=0,
    conntrack_max=262_144, tcp_mem_pages=(287_898, 383_867, 575_796), epoll_watches=5_491_511,
    memory_total=25_000_000_000, memory_available=24_000_000_000, threads_max=192_730, cpus=2, tcp_tw=0,
    tcp_used_pages=245,
)


def plan(**changes: Any) -> Plan:
    return Plan(**{"urls": ("http://127.0.0.1:8080/",), "connections": 100_000, **changes})


def spread(workers: int = 6, sources: int = 36, *, local: bool = True, address: str = "127.0.0.1") -> Spread:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    destination = Destination(family=family, address=address, port=8080)
    return Spread((destination,), loopback_sources(sources), workers, local, 28_232)


def check(code: str, a_plan: Plan, a_spread: Spread, **changes: Any) -> Check:
    checks = host_checks(a_plan, a_spread, msgspec.structs.replace(ROOMY, **changes))
    return next(one for one in checks if one.code == code)


def test_100_000_fit_a_host_with_20_000_descriptors_a_process() -> None:
    checks = host_checks(plan(), spread(), ROOMY)
    assert [one for one in checks if one.verdict != "ok"] == []
    assert refusals(checks) == []
    assert checks_to_findings(checks) == []
    assert len({one.code for one in checks}) == len(checks) >= 13


def test_a_unix_socket_has_no_port_or_tcp_limits() -> None:
    there = Spread((Destination(socket.AF_UNIX, "/run/a.sock", 0),), (), 6, True, 0)
    over, by_port = ({one.code: one for one in host_checks(plan(connect_to=to), lay, ROOMY)} for to, lay in (("unix:/run/a.sock", there), (None, spread())))
    assert by_port.keys() - over.keys() == {"ports", "time_wait", "syn_backlog", "conntrack", "tcp_mem"}
    assert over["memory"].need < by_port["memory"].need


@pytest.mark.parametrize(
    ("code", "a_plan", "a_spread", "changes", "verdict", "remedy"),
    [
        ("nofile", {"workers": 2}, {"workers": 2}, {}, "short", "--workers 6, or leave --workers out"),
        ("nofile", {"batch": 50_000}, {"workers": 6}, {}, "short", "--batch 9968"),
        ("nr_open", {"workers": 1}, {"workers": 1}, {"nr_open": 65_536}, "short", "sysctl -w fs.nr_open=100064"),
        ("file_max", {}, {}, {"file_max": 150_000}, "short", "sysctl -w fs.file-max=210000"),
        ("file_max", {}, {}, {"file_max": 150_000, "superuser": True}, "warn", "sysctl -w fs.file-max=210000"),
        ("file_max", {}, {"local": False}, {"file_max": 150_000}, "ok", ""),
        ("ports", {}, {"sources": 1}, {}, "short", "ip_local_port_range="),
        ("ports", {"connections": 20_000}, {"sources": 1}, {}, "warn", "ip_local_port_range="),
        ("ports", {"sources": ("127.0.0.2",)}, {"sources": 1}, {}, "short", "leave --source out"),
        ("ports", {}, {"sources": 1, "address": "::1"}, {}, "short", "aim at 127.0.0.1 instead of ::1"),
        ("ports", {}, {"sources": 1, "local": False, "address": "10.0.0.1"}, {}, "short", "3 more addresses of this host"),
        ("time_wait", {"connections": 28_000}, {"sources": 1, "address": "10.0.0.1"}, {"tcp_tw": 300}, "warn", "wait 60"),
        ("time_wait", {"connections": 28_000}, {"sources": 1}, {"tcp_tw": 300}, "ok", ""),
        ("memory", {}, {}, {"memory_available": 1_000_000_000}, "short", "-c 77294"),
        ("memory", {}, {}, {"memory_available": 1_200_000_000}, "warn", "free some memory"),
        ("cgroup_memory", {}, {}, {"cgroup_memory_limit": 2**30, "cgroup_memory_used": 2**29}, "warn", "limit by"),
        ("cgroup_memory", {}, {}, {"cgroup_memory_limit": 2**29, "cgroup_memory_used": 2**28}, "short", "limit by"),
        ("somaxconn", {}, {}, {"somaxconn": 128}, "warn", "sysctl -w net.core.somaxconn=1000"),
        ("syn_backlog", {"interval_s": 0.001}, {}, {}, "warn", "net.ipv4.tcp_max_syn_backlog=10000"),
        ("conntrack", {}, {}, {"conntrack_count": 200_000}, "warn", "nf_conntrack_max=300000"),
        ("conntrack", {}, {}, {"conntrack_max": 65_536, "tcp_tw": 9}, "ok", ""),
        ("tcp_mem", {}, {}, {"tcp_mem_pages": (1_000, 2_000, 3_000)}, "warn", "sysctl -w net.ipv4.tcp_mem="),
        ("epoll_watches", {}, {}, {"epoll_watches": 90_000}, "short", "max_user_watches=200000"),
        ("epoll_watches", {}, {}, {"epoll_watches": 150_000}, "warn", "max_user_watches=200000"),
        ("processes", {}, {}, {"pids_limit": 20, "pids_used": 10}, "short", "--pids-limit"),
        ("processes", {}, {}, {"nproc": 10}, "short", "ulimit -u 14"),
        ("processes", {}, {}, {"nproc": 10, "superuser": True}, "ok", ""),
        ("heartbeat_rate", {"keepalive_s": 4.0}, {}, {}, "warn", "--keepalive 7 or longer"),
        ("heartbeat_rate", {"keepalive_s": 4.0}, {"local": False}, {}, "ok", ""),
        ("heartbeat_rate", {}, {}, {"cpu_quota": 0.1}, "warn", "more CPUs"),
        ("connect_rate", {"batch": 500}, {}, {}, "warn", "--interval 42ms or longer"),
        ("comeback_rate", {"events": ("1s storm",), "reconnect": "now"}, {}, {}, "warn", "jitter:9s"),
        ("comeback_rate", {"events": ("1s drop 10%",), "reconnect": "now"}, {}, {}, "ok", ""),
        ("comeback_rate", {"events": ("1s storm",), "reconnect": "jitter:10s"}, {}, {}, "ok", ""),
        ("comeback_rate", {"events": ("1s storm",)}, {"local": False}, {}, "warn", "jitter:5s"),
        ("comeback_time", {"events": ("10s storm",), "hold_s": 20.0, "reconnect": "jitter:40s"}, {}, {}, "warn", "--hold 50s"),
        ("comeback_time", {"events": ("1s storm", "9s vanish 5% for 5s"), "hold_s": 20.0, "reconnect": "backoff:5s..60s"}, {}, {}, "warn", "--hold 22s"),
        ("comeback_time", {"events": ("50% storm",), "hold_s": 20.0, "reconnect": "jitter:10s"}, {}, {}, "ok", ""),
        ("comeback_time", {"events": ("50% storm",), "hold_s": 20.0, "reconnect": "jitter:40s"}, {}, {}, "warn", "--hold 80s"),
        ("comeback_time", {"events": ("18s storm",), "hold_s": 20.0, "reconnect": "fixed:3s"}, {}, {}, "warn", "--hold 21s"),
        ("comeback_rate", {"events": ("1s vanish 50% for 5s",), "reconnect": "backoff:2s..60s"}, {}, {}, "warn", "jitter:5s"),
    ],
)
def test_a_low_limit_has_its_verdict_and_remedy(
    *, code: str, a_plan: dict[str, Any], a_spread: dict[str, Any], changes: dict[str, Any], verdict: str, remedy: str
) -> None:
    found = check(code, plan(**a_plan), spread(**a_spread), **changes)
    assert found.verdict == verdict
    assert remedy in found.remedy
    assert (found.remedy == "") == (verdict == "ok")
    if verdict == "short":
        assert found.have < found.need


ROUTE = Route("eth0", "10.0.0.9/24", ("10.0.0.9",))
RANGE = {"port_low": 1024, "port_high": 65_535}
WIDEN = 'ip_local_port_range="1024 65535"'


@pytest.mark.parametrize(
    ("connections", "route", "changes", "commands"),
    [
        (16_000, ROUTE, {}, [WIDEN]),
        (50_000, ROUTE, {"port_low": 1024, "port_high": 61_024}, ["ip addr add 10.0.0.10/24 dev eth0 (", "listen 8081; in", "http://10.0.0.8:8081/"]),
        (100_000, ROUTE, {}, [WIDEN, "10.0.0.11/24 dev eth0 && ip addr add 10.0.0.12/24 dev eth0 (", "listen 8082; listen 8083; in", "http://10.0.0.8:8083/"]),
        (1_000_000, ROUTE, RANGE, ["for i in $(seq 10 40); do ip addr add 10.0.0.$i/24 dev eth0; done", "listen 8081; to listen 8111;", "http://10.0.0.8:8111/"]),
        (100_000, Route("eth0", "10.0.0.9/30", ("10.0.0.9",)), RANGE, ["ip addr add ADDRESS/30 dev eth0", "10.0.0.8/30"]),
        (100_000, None, RANGE, ["3 more addresses", "3 more ports"]),
        (100_000, Route("eth0", "fd00::9/64", ("fd00::9",)), RANGE, ["ip addr add fd00::a/64 dev eth0 &&"]),
    ],
)
def test_missing_addresses_or_server_ports_are_named_with_their_commands(
    connections: int, route: Route | None, changes: dict[str, int], commands: list[str]
) -> None:
    a_plan = plan(connections=connections, urls=("http://10.0.0.8:8080/",))
    ports = changes.get("port_high", 60_999) - changes.get("port_low", 32_768) + 1
    a_spread = msgspec.structs.replace(spread(sources=1, local=False, address="10.0.0.8"), route=route, ports=ports)
    found = check("ports", a_plan, a_spread, **changes)
    assert found.verdict == ("short" if connections > ports else "warn")
    assert [one for one in commands if one not in found.remedy] == []


def test_existing_addresses_are_not_added_again() -> None:
    route = Route("eth0", "10.0.0.9/24", ("10.0.0.9", "10.0.0.11", "10.0.0.12"))
    a_spread = msgspec.structs.replace(spread(sources=1, local=False, address="10.0.0.8"), route=route, ports=64_512)
    found = check("ports", plan(connections=60_000, sources=("10.0.0.11",)), a_spread, **RANGE)
    assert found.remedy.startswith("leave --source")
    # Still too few.
    found = check("ports", plan(connections=120_000, sources=("10.0.0.11",)), a_spread, **RANGE)
    assert found.remedy.count("ip addr add") == 3
    assert "10.0.0.13/24" in found.remedy


def test_a_server_in_another_network_namespace_has_separate_ports() -> None:
    # As an agent there reports: both ends are on this host, but the sources are not loopback addresses.
    a_spread = msgspec.structs.replace(spread(sources=1, local=True, address="10.0.0.8"), route=ROUTE, ports=60_001)
    found = check("ports", plan(connections=50_000), a_spread, port_low=1024, port_high=61_024)
    assert "10.0.0.10/24" in found.remedy


def test_a_newer_kernel_can_use_all_ports() -> None:
    many = plan(connections=20_000)
    assert check("ports", many, spread(sources=1), kernel=(6, 7)).verdict == "warn"
    found = check("ports", many, spread(sources=1), kernel=(6, 18))
    assert (found.verdict, found.remedy) == ("ok", "")
    assert check("ports", plan(connections=30_000), spread(sources=1), kernel=(6, 18)).verdict == "short"


def test_an_unreadable_limit_is_unknown() -> None:
    checks = host_checks(plan(), spread(), Limits())
    assert {one.verdict for one in checks} == {"unknown", "ok"}
    # Only the ports are known from the spread itself.
    assert [one.code for one in checks if one.verdict == "ok"] == ["ports"]
    assert refusals(checks) == []


def test_queues_are_checked_only_on_the_servers_host() -> None:
    codes = {one.code for one in host_checks(plan(), spread(local=False), ROOMY)}
    assert not codes & {"somaxconn", "syn_backlog"}


def test_the_prediction_counts_both_ends_only_if_both_are_local() -> None:
    both, one = predicted_bytes(plan(), spread()), predicted_bytes(plan(), spread(local=False))
    assert both - one == 100_000 * (4_100 + 1_300)
    streams = plan(http2=True, streams=100)
    assert (predicted_bytes(streams, spread()) - both, predicted_bytes(streams, spread(local=False))) == (100_000 * 100 * 10_000, one)


def test_findings_carry_numbers_and_remedies() -> None:
    limits = msgspec.structs.replace(ROOMY, epoll_watches=None, conntrack_count=200_000)
    checks = host_checks(plan(workers=2), spread(workers=2), limits)
    findings = {one.code: one for one in checks_to_findings(checks)}
    assert {code: one.severity for code, one in findings.items()} == {
        "preflight_nofile": "error",
        "preflight_conntrack": "warning",
        "preflight_epoll_watches": "info",
    }
    fields = findings["preflight_nofile"].fields
    assert (fields["have"], fields["need"], fields["unit"]) == (20_000, 50_064, "descriptors")
    assert [one.code for one in refusals(checks)] == ["nofile"]
    (late,) = checks_to_findings([Check("connect_rate", "rate", "warn", 4.5, 2e6 / 31, "a second")])
    assert re.findall(r"[\d,.]+", late.evidence) == ["4.5", ",", "64,516"]


def test_a_storm_over_tls_is_checked_against_the_handshakes() -> None:
    """2 CPUs, 1.7 times 4 ms at both ends of each: 290 a second, less the heartbeats' share."""
    a_plan = plan(connections=10_000, batch=1, interval_s=0.01, events=("10s storm",), reconnect="jitter:10s")
    ramp, storm = handshake_rates(a_plan, spread(), ROOMY, handshake_s=0.004, cpu_s=0.001)
    assert (ramp.code, ramp.verdict) == ("handshake_rate", "ok")
    assert (storm.code, storm.verdict, storm.need) == ("comeback_handshakes", "warn", 1_000)
    assert storm.have == ramp.have
    assert 200 < storm.have < 300
    assert f"jitter:{-(-10_000 // storm.have)}s" in storm.remedy


@pytest.mark.parametrize(
    ("connections", "per_s", "local", "verdict"),
    # 2 CPUs, 4 ms at both ends, 1 ms here: 500 and 2,000 a second, minus the heartbeats' share.
    [(100_000, 1000.0, True, "warn"), (100_000, 1000.0, False, "ok"), (100_000, 200.0, True, "ok"), (20, 1000.0, True, "ok"), (100, 1000.0, True, "warn")],
)
def test_the_handshake_rate_is_checked_against_the_cpus(connections: int, per_s: float, local: bool, verdict: str) -> None:
    a_plan = plan(connections=connections, batch=1, interval_s=1.0 / per_s)
    [found] = handshake_rates(a_plan, spread(local=local), ROOMY, handshake_s=0.004, cpu_s=0.001)
    assert found.verdict == verdict
    assert ("--ramp " in found.remedy) == (verdict == "warn")


def test_what_stalls_at_once_needs_memory_of_the_kernel() -> None:
    """At 5 s 10 % stall, at 20 s other 5 % beside them; the third begins when the first is over."""
    events = ("5s stall 10% for 30s", "20s stall 5% for 5s", "40s stall 12% for 5s")
    buffers = {"tcp_wmem_bytes": (4_096, 16_384, 4_194_304)}
    stalls = plan(hold_s=60.0, events=events)
    here = check("stall_memory", stalls, spread(), **buffers)
    # 15,000 connections with 131,072 unread bytes and 4,194,304 in the server's send buffer each.
    assert here.need == 245 + 15_000 * (131_072 + 4_194_304) // 4_096
    assert (here.verdict, here.have) == ("warn", 575_796)
    there = check("stall_memory", stalls, spread(local=False), **buffers)
    assert (there.need, there.verdict) == (245 + 15_000 * 131_072 // 4_096, "ok")
    without = host_checks(plan(), spread(), ROOMY)
    assert "stall_memory" not in {one.code for one in without}
