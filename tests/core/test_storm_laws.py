"""Storms as arithmetic, against laws with a closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.core.events import Reconnect
from asyncli.core.storm import TIMER_GRAIN_S, Laws, Storm, storm

NOW = Reconnect("now", 0.0, 0.0)
JITTER = Reconnect("jitter", 0.0, 5.0)
BACKOFF = Reconnect("backoff", 1.0, 60.0)
ROOMY = 10**6


def of(laws: Laws, policy: Reconnect = NOW, connections: int = 1_000, seed: int = 7) -> Storm:
    return storm(laws, policy, seed, 1, range(connections))


def near(seconds: float) -> object:
    """An instant at which a timer fires that is due then."""
    return pytest.approx(seconds + TIMER_GRAIN_S / 2, abs=1.5 * TIMER_GRAIN_S)


def test_with_room_for_all_the_pace_alone_counts() -> None:
    run = of(Laws(200, math.inf, ROOMY))
    assert run.back_s == pytest.approx([place / 200 for place in range(1_000)])
    assert (run.after_s(0.5), run.after_s(1.0)) == (pytest.approx(499 / 200), pytest.approx(999 / 200))
    assert (run.dropped, run.met_full, run.unsuccessful, len(run.attempts_s), run.busiest_s) == (0, 0, 0, 1_000, 1_000)


def test_a_slower_answer_is_the_pace() -> None:
    assert of(Laws(1_000, 100, ROOMY)).after_s(1.0) == pytest.approx(999 / 100)


@pytest.mark.parametrize("policy", [JITTER, BACKOFF], ids=["jitter", "backoff"])
def test_at_a_server_that_takes_no_time_the_policy_alone_counts(policy: Reconnect) -> None:
    run = of(Laws(math.inf, math.inf, 0), policy)
    assert run.back_s == sorted(policy.wait_s(7, 1, number, 0) for number in range(1_000))
    assert run.back_s == run.attempts_s


def test_one_host_connects_one_after_the_other() -> None:
    run = of(Laws(math.inf, math.inf, ROOMY, connect_per_s=500))
    assert run.after_s(1.0) == pytest.approx(999 / 500)
    both = of(Laws(math.inf, math.inf, ROOMY, connect_per_s=500, end_each_s=0.001))
    # Each connect takes 2 ms, and meanwhile a connection is ended in 1 ms.
    assert both.after_s(1.0) == pytest.approx(999 * 0.003, rel=0.01)


def test_a_dropped_syn_is_sent_again_each_second() -> None:
    """The first is accepted at once, the second waits in the queue of one until 2.5 s, and the third finds it full at 1 s and 2 s."""
    run = of(Laws(0.4, math.inf, 0), connections=3)
    assert run.back_s == [0.0, pytest.approx(2.5), pytest.approx(5.0)]
    assert (run.dropped, run.met_full, run.unsuccessful) == (3, 1, 0)


def test_before_linux_6_5_each_wait_doubles() -> None:
    """The second is accepted after 1.5 s: the third comes at 3 s, not at 2 s."""
    newer = of(Laws(1 / 1.5, math.inf, 0), connections=3)
    older = of(Laws(1 / 1.5, math.inf, 0, syns_each_second=1), connections=3)
    assert newer.back_s[-1] == pytest.approx(3.0)
    assert older.back_s[-1] == near(3.0)
    assert (newer.dropped, older.dropped) == (2, 2)


def test_syns_at_one_instant_pass_together_and_become_phantoms() -> None:
    """Five come, one is accepted and one waits. At 1 s the other three find room, for one; the data of two is sent again 0.2 s later: one of them fits, and the
    last one at 0.4 s.
    """
    run = of(Laws(10, math.inf, 0), connections=5)
    assert run.back_s[:2] == [0.0, pytest.approx(0.1)]
    assert run.back_s[2:4] == [near(1.0), near(1.1)]
    assert run.back_s[4] == near(1.2)
    assert (run.unsuccessful, run.met_full) == (0, 3)
    slow = of(Laws(1, math.inf, 0), connections=5)
    # Two seconds hold one accept each: the data at 0.2, 0.4, 0.8, 1.6 and 3.2 s after the connect finds room when one has left.
    assert slow.back_s[:3] == [0.0, pytest.approx(1.0), near(2.0)]


def test_who_gets_no_answer_gives_up_and_comes_again() -> None:
    """A server that hangs: one is accepted, one waits in vain, the others' connects end after 3 s, and are tried again."""
    run = of(Laws(0.001, math.inf, 0, connect_timeout_s=3, answer_timeout_s=4), connections=10)
    assert run.after_s(1.0) is None
    assert run.until_s is not None
    assert len(run.back_s) == 1
    assert run.phantoms >= 1
    assert run.failed > 8
    assert run.attempts_s[:10] == [0.0] * 10
    # After a connect that failed at once none waits less than 0.1 s.
    assert run.attempts_s[10] == pytest.approx(3.1)


def test_a_long_queue_is_no_help_to_clients_that_give_up() -> None:
    """At 10 a second 1,000 in the queue take 100 s, and each client waits 10 s: the server works for those that have left."""
    run = of(Laws(10, math.inf, ROOMY), BACKOFF, connections=1_000)
    assert run.phantoms > 800
    assert (run.after_s(1.0) or math.inf) > 100


def test_a_part_of_a_storm_lasts_as_long() -> None:
    laws = Laws(2_000, math.inf, 499)
    whole = storm(laws, BACKOFF, 3, 1, range(10_000))
    part = storm(laws.divided(5), BACKOFF, 3, 1, range(0, 10_000, 5))
    assert len(part.back_s) == 2_000
    for share in (0.5, 0.9, 0.99):
        assert part.after_s(share) == pytest.approx(whole.after_s(share), rel=0.05)
    assert 5 * part.met_full == pytest.approx(whole.met_full, rel=0.1)


def test_what_a_known_storm_did() -> None:
    """480 clients, 200 accepts a second, backlog 32, measured (bench/README.md, The twin): back 12.7 to 13.1 s (99 %), 135 to 201 phantoms."""
    run = of(Laws(200, math.inf, 32, connect_per_s=33_000), connections=480)
    assert 11.5 < (run.after_s(0.99) or 0) < 14.5
    assert 120 < run.phantoms < 240


def test_it_ends_early_once_too_many_failed() -> None:
    laws = Laws(10, math.inf, 5)
    assert of(laws).met_full > 900
    short = storm(laws, NOW, 7, 1, range(1_000), most_met_full=3)
    assert (short.met_full, short.until_s) == (4, 0.0)
    assert storm(laws, NOW, 7, 1, range(1_000), most_failed=3).unsuccessful == 4


def test_a_storm_that_never_ends_is_left_unfinished() -> None:
    """Of 212 clients more wait in the queue than the server answers before they give up, and they come again at once."""
    run = of(Laws(20, 10, 62), connections=212, seed=1)
    assert run.until_s is not None
    assert 0 < len(run.back_s) < 212
    assert run.after_s(1.0) is None
    assert run.phantoms > 212


@settings(max_examples=60, deadline=None)
@given(
    accept_per_s=st.floats(20, 1e5),
    ratio=st.sampled_from([0.5, 1.0, math.inf]),
    backlog=st.integers(0, 300),
    policy=st.sampled_from([NOW, JITTER, BACKOFF]),
    connections=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_each_client_is_back_once_and_not_before_it_came(
    accept_per_s: float, ratio: float, backlog: int, policy: Reconnect, connections: int, seed: int
) -> None:
    laws = Laws(accept_per_s, accept_per_s * ratio, backlog)
    run = of(laws, policy, connections, seed)
    assert len(run.back_s) <= connections
    assert len(run.attempts_s) <= connections + run.unsuccessful
    # A server that answers more slowly than its clients wait may never have them all back; that is said.
    assert (len(run.back_s) == connections) == (run.until_s is None)
    assert (len(run.attempts_s) == connections + run.unsuccessful) or run.until_s is not None
    assert run.met_full <= len(run.attempts_s)
    assert run.met_full <= run.dropped
    assert all(at_s >= due_s for at_s, due_s in zip(run.back_s, run.attempts_s, strict=False))
    # Never faster than the server accepts.
    assert run.back_s[-1] - run.back_s[0] >= (len(run.back_s) - 1) / accept_per_s - 1e-6 or policy != NOW
    assert run == of(laws, policy, connections, seed)
