"""Whom an event concerns, and when they come back."""

from __future__ import annotations

import statistics

import pytest

from asyncli.core.events import Reconnect, choose

POLICIES = [Reconnect("now", 0, 0), Reconnect("jitter", 0, 10), Reconnect("fixed", 3, 3), Reconnect("backoff", 1, 60)]


@pytest.mark.parametrize(("connections", "share", "count"), [(20_003, 0.3, 6_001), (1, 1.0, 1), (2, 0.5, 1), (10, 0.25, 3), (100_000, 1.0, 100_000), (49_999, 0.0001, 5)])
def test_the_count_is_exact(connections: int, share: float, count: int) -> None:
    chosen = choose(7, 1, connections, share)
    assert sum(number in chosen for number in range(connections)) == count == chosen.count


def test_the_chosen_are_spread_evenly() -> None:
    """So each worker, batch and address has its share of them."""
    chosen = choose(3, 2, 50_000, 0.3)
    for begin in range(0, 50_000, 500):
        assert 145 <= sum(number in chosen for number in range(begin, begin + 500)) <= 155


def test_another_event_or_seed_chooses_others() -> None:
    def of(seed: int, event: int) -> set[int]:
        chosen = choose(seed, event, 1_000, 0.3)
        return {number for number in range(1_000) if number in chosen}

    assert of(1, 1) == of(1, 1)
    assert len({frozenset(of(seed, event)) for seed in range(5) for event in (1, 2)}) > 8


@pytest.mark.parametrize("policy", POLICIES, ids=[policy.how for policy in POLICIES])
def test_the_waits_of_a_policy(policy: Reconnect) -> None:
    first = [policy.wait_s(9, 1, connection, 0) for connection in range(2_000)]
    assert first == [policy.wait_s(9, 1, connection, 0) for connection in range(2_000)]
    middle, spread = {"now": (0, 0), "jitter": (5, 5), "fixed": (3, 0), "backoff": (1, 0.5)}[policy.how]
    assert statistics.mean(first) == pytest.approx(middle, rel=0.03)
    assert middle - spread <= min(first) <= middle - 0.98 * spread
    assert middle + 0.98 * spread <= max(first) <= middle + spread


def test_a_backoff_doubles_up_to_its_longest() -> None:
    policy = Reconnect("backoff", 1, 60)
    means = [statistics.mean(policy.wait_s(9, 1, connection, failed) for connection in range(2_000)) for failed in (1, 2, 6, 400)]
    assert means == pytest.approx([2, 4, 60, 60], rel=0.03)


@pytest.mark.parametrize("policy", POLICIES, ids=[policy.how for policy in POLICIES])
def test_what_fails_at_once_is_not_tried_again_at_once(policy: Reconnect) -> None:
    assert min(policy.wait_s(9, 1, connection, 1) for connection in range(1_000)) >= 0.1
