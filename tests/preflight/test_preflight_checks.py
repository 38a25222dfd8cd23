"""The host's limits against plans: what is refused, what only warned of, and the command that mends it."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
import pytest

from asyncli.engine.spread import Destination, Spread, loopback_sources
from asyncli.plan import Plan
from asyncli.preflight import Limits, checks_to_findings, refusals
from asyncli.preflight.checks import host_checks, oldest_s, predicted_bytes, ramp_s
from asyncli.records import Check

ROOMY = Limits(
    nofile_soft=20_000,
    nofile_hard=20_000,
    nproc=100_000,
    nr_open=1_048_576,
    file_max=2_466_170,
    files_open=500,
    port_low=32_768,
    port_high=60_999,
    tcp_tw_reuse=2,
    somaxconn=4_096,
    syn_backlog=2_048,
    conntrack_count=0,
    conntrack_max=262_144,
    tcp_mem_pages=(287_898, 383_867, 575_796),
    epoll_watches=5_491_511,
    memory_total=25_000_000_000,
    memory_available=24_000_000_000,
    threads_max=192_730,
    cpus=2,
    tcp_tw=0,
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
        ("ports", {}, {"sources": 1, "local": False, "address": "10.0.0.1"}, {}, "short", "36 addresses"),
        (
            "time_wait",
            {"connections": 28_000},
            {"sources": 1, "address": "10.0.0.1"},
            {"tcp_tw": 300},
            "warn",
            "wait 60",
        ),
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
    ],
)
def test_what_a_limit_does_to_a_plan(
    *, code: str, a_plan: dict[str, Any], a_spread: dict[str, Any], changes: dict[str, Any], verdict: str, remedy: str
) -> None:
    found = check(code, plan(**a_plan), spread(**a_spread), **changes)
    assert found.verdict == verdict
    assert remedy in found.remedy
    assert (found.remedy == "") == (verdict == "ok")
    if verdict == "short":
        assert found.have is not None
        assert found.need is not None
        assert found.have < found.need


def test_the_ports_are_shown_as_a_sum() -> None:
    found = check("ports", plan(), spread(sources=1))
    assert found.detail == "1 source x 1 destination x 28,232 ports = 28,232"
    assert (found.have, found.need) == (28_232, 100_000)


def test_what_cannot_be_read_is_unknown_and_says_what() -> None:
    checks = host_checks(plan(), spread(), Limits())
    assert {one.verdict for one in checks} == {"unknown", "ok"}
    # Only the ports are known from the spread itself.
    assert [one.code for one in checks if one.verdict == "ok"] == ["ports"]
    assert all(one.detail.endswith("could not be read") for one in checks if one.verdict == "unknown")
    assert refusals(checks) == []


def test_the_servers_queues_matter_only_on_its_own_host() -> None:
    codes = {one.code for one in host_checks(plan(), spread(local=False), ROOMY)}
    assert not codes & {"somaxconn", "syn_backlog"}


def test_the_prediction_counts_both_ends_only_where_both_are() -> None:
    both, one = predicted_bytes(plan(), spread()), predicted_bytes(plan(), spread(local=False))
    assert both - one == 100_000 * (4_100 + 1_300)
    assert "predicted, not measured" in check("memory", plan(), spread()).detail


def test_the_age_of_the_oldest_connection() -> None:
    assert ramp_s(plan()) == pytest.approx(100)
    assert ramp_s(plan(plateaus=4, plateau_s=10.0)) == pytest.approx(140)
    assert oldest_s(plan(hold_s=60.0)) == pytest.approx(160)
    assert oldest_s(plan(hold_s=None)) is None


def test_findings_carry_numbers_and_remedies() -> None:
    limits = msgspec.structs.replace(ROOMY, epoll_watches=None, conntrack_count=200_000)
    checks = host_checks(plan(workers=2), spread(workers=2), limits)
    findings = {one.code: one for one in checks_to_findings(checks)}
    assert {code: one.severity for code, one in findings.items()} == {
        "preflight_nofile": "error",
        "preflight_conntrack": "warning",
        "preflight_epoll_watches": "info",
    }
    assert findings["preflight_nofile"].evidence == (
        "descriptors of one process: 20,000 there, 50,064 needed; "
        "100,000 connections in 2 processes: 50,000 in the fullest, and 64 of its own"
    )
    assert findings["preflight_nofile"].remedy.startswith("--workers 6")
    assert [one.code for one in refusals(checks)] == ["nofile"]
