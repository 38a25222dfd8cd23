"""An agent's buffer, lease, rate limits and log lines, on a virtual clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.agent.buffer import SampleBuffer
from asyncli.agent.lease import Lease
from asyncli.agent.wire import KEEPS_S, LEASE_S, MOST_ROWS
from asyncli.findings.probes import probe_slowed
from asyncli.model.records import Finding, Sample
from asyncli.web.guard import Rates, Refusals, equal_secrets


def test_the_buffer_keeps_ten_minutes() -> None:
    buffer = SampleBuffer()
    assert (buffer.first, buffer.newest, buffer.after(0)) == (1, 0, ([], []))
    for second in range(1000):
        buffer.sample(Sample(float(second), {"status.active": float(second)}))
    assert (buffer.newest, buffer.first) == (1000, 1000 - int(KEEPS_S))
    rows, _ = buffer.after(990)
    assert [row.n for row in rows] == list(range(991, 1001))
    assert rows[-1].values == {"status.active": 999.0}
    # A session that was away for long gets all of it, one answer at a time.
    seen, after = [], 0
    while rows := buffer.after(after)[0]:
        assert len(rows) <= MOST_ROWS
        seen += [row.n for row in rows]
        after = rows[-1].n
    assert seen == list(range(buffer.first, 1001))


def test_session_metrics_become_the_agents() -> None:
    buffer = SampleBuffer()
    buffer.sample(Sample(0.0, {
        "session.cpu_s": 1.0, "session.uss_bytes": 2.0, "probe.session": 3.0, "probe.session_memory": 4.0, "probe.generator": 5.0,
        "generator.cpu_s": 6.0, "server.cpu_s": 7.0, "host.used_bytes": float("nan"),
    }))  # fmt: skip
    named = {"agent.cpu_s": 1.0, "agent.uss_bytes": 2.0, "probe.agent": 3.0, "probe.agent_memory": 4.0, "server.cpu_s": 7.0}
    assert buffer.after(0)[0][0].values == named


@given(st.lists(st.booleans(), max_size=150), st.integers(0, 150))
def test_every_finding_is_delivered_once(events: list[bool], start: int) -> None:
    buffer, told, wanted, after = SampleBuffer(), [], [], 0
    for number, is_sample in enumerate(events):
        if is_sample:
            buffer.sample(Sample(float(number), {"a": 1.0}))
        else:
            buffer.finding(float(number), Finding(f"code{number}", "info", ""))
            wanted.append(f"code{number}")
        if number == start:
            rows, said = buffer.after(after)
            told += [one.finding.code for one in said]
            after = rows[-1].n if rows else after
    buffer.sample(Sample(1e3, {"a": 1.0}))
    while True:
        rows, said = buffer.after(after)
        told += [one.finding.code for one in said]
        if not rows:
            break
        after = rows[-1].n
    assert told == wanted


def test_a_lasting_finding_is_listed_until_its_end() -> None:
    buffer = SampleBuffer()
    for code in ("slabinfo_unreadable", "status_lost", "server_restarted"):
        buffer.finding(0.0, Finding(code, "info", code))
    buffer.finding(0.0, probe_slowed("session_memory", 0.02, 2.0, 0.01))
    assert buffer.lasting[-1].fields["probe"] == "agent_memory"
    assert [one.code for one in buffer.lasting] == ["slabinfo_unreadable", "status_lost", "agent_memory_slowed"]
    buffer.finding(1.0, Finding("status_back", "info", ""))
    buffer.finding(1.0, Finding("server_ended", "error", ""))
    assert [one.code for one in buffer.lasting] == ["slabinfo_unreadable", "agent_memory_slowed", "server_ended"]
    buffer.sample(Sample(2.0, {"server.cpu_s": 1.0, "kernel.tcp_tw": 1.0}))
    assert buffer.latest(3.0) == {"kernel.tcp_tw": 1.0}
    buffer.finding(3.0, Finding("server_back", "info", ""))
    assert buffer.latest(3.0) == {"server.cpu_s": 1.0, "kernel.tcp_tw": 1.0}
    assert buffer.latest(400.0) == {}


def test_a_lease_expires_without_renewal() -> None:
    words = map(str, itertools.count(1))
    lease = Lease(lambda: next(words))
    assert not lease.renew("", 0.0)
    assert lease.take("a", 0.0) == "1"
    assert lease.take("b", LEASE_S - 1) is None
    assert lease.renew("1", LEASE_S - 1)
    assert not lease.renew("2", LEASE_S - 1)
    assert (lease.holder, lease.held(2 * LEASE_S - 2)) == ("a", True)
    # Late, but no other session took it.
    assert lease.renew("1", 10 * LEASE_S)
    assert lease.take("b", 20 * LEASE_S) == "2"
    assert not lease.renew("1", 20 * LEASE_S)
    assert not lease.release("1")
    assert lease.release("2")
    assert not lease.held(20 * LEASE_S)
    assert lease.take("c", 20 * LEASE_S) == "3"


def test_rates_are_kept_for_recent_addresses() -> None:
    rates = Rates(1.0, 3.0)
    assert [rates.allow("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert rates.allow("b", 0.0)
    assert [rates.allow("a", 2.0) for _ in range(3)] == [True, True, False]
    for number in range(10_000):
        rates.allow(str(number), 3.0)
    assert len(rates._buckets) <= 256


def test_refusal_lines_are_limited_and_counted() -> None:
    refusals = Refusals()
    lines = [refusals.line("10.0.0.1", "its token is wrong", second / 10) for second in range(1000)]
    said = [line for line in lines if line is not None]
    assert said[0] == "refused 10.0.0.1: its token is wrong"
    # As in docs/agent.md: ten at once, then one every 5 s.
    assert [line is not None for line in lines[:11]] == [True] * 10 + [False]
    assert 10 < len(said) <= 10 + 100 / 5
    last = refusals.line("10.0.0.1", "its token is wrong", 1e6)
    unsaid = sum(int(line.partition("(and ")[2].split()[0]) for line in [*said, last or ""] if "(and " in line)
    assert unsaid + len(said) + 1 == 1001


@pytest.mark.parametrize(("given_", "is_it"), [("abc", True), ("abd", False), ("", False), ("abc ", False), ("ä\udc80", False)])
def test_secrets_are_equal_only_if_identical(given_: str, is_it: bool) -> None:
    assert equal_secrets(given_, "abc") is is_it
