"""Whom an event concerns, and when they come back."""

from __future__ import annotations

import statistics

import pytest

from asyncli.core.events import Reconnect, Turns, choose
from asyncli.model.planned_events import choices_of, planned_event

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


def met(*events: str, seed: int, connections: int = 200) -> int:
    """How many of those of the last event are in one of the others too."""
    chosen = choices_of([planned_event(event) for event in events], seed, connections)
    last = chosen[len(events)]
    others = [chosen[number] for number in range(1, len(events))]
    return sum(number in last and any(number in other for other in others) for number in range(connections))


@pytest.mark.parametrize(
    ("events", "in_both"),
    [
        (("6s vanish 30% for 8s", "8s stall 10% for 5s"), 0),
        (("6s vanish 30% for 8s", "8s stall 30% for 5s", "9s drop 40%"), 0),
        # No more are left.
        (("6s vanish 60% for 8s", "8s stall 50% for 5s"), 20),
        # Those of the second event have come back, and those of the first are away.
        (("1s vanish 30%", "2s drop 70%", "9s stall 20%"), 40),
        # Nobody knows when a half of the hold is over.
        (("50% vanish 30% for 8s", "3s drop 70%", "60% stall 10% for 1s"), 20),
    ],
)
def test_an_event_has_those_who_are_in_no_other(events: tuple[str, ...], in_both: int) -> None:
    """Whatever the seed: of one in five all who were to stall had just vanished."""
    for seed in range(40):
        assert met(*events, seed=seed) == in_both


def test_who_is_gone_for_good_has_his_turn_last() -> None:
    events = [planned_event(text) for text in ("1s vanish 30%", "2s drop 70%", "9s stall 20%")]
    gone, dropped, stalled = choices_of(events, 5, 1_000).values()
    assert not any(number in gone and number in stalled for number in range(1_000))
    assert sum(number in dropped and number in stalled for number in range(1_000)) == stalled.count == 200


def test_turns_go_on_from_the_first_once_all_had_theirs() -> None:
    turns = Turns(3, 50_000)
    first, second = turns.take(0.7, []), turns.take(0.6, [])
    assert (first.count, second.count) == (35_000, 30_000)
    assert sum(number in first and number in second for number in range(50_000)) == 15_000
    for begin in range(0, 50_000, 500):
        assert 295 <= sum(number in second for number in range(begin, begin + 500)) <= 305


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


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_waits_for_longer_between_two_attempts(policy: Reconnect) -> None:
    longest_s = max(policy.wait_s(9, 1, connection, failed) for connection in range(2_000) for failed in (1, 3, 40))
    assert longest_s == pytest.approx(policy.longest_wait_s, rel=0.01)
    assert longest_s <= policy.longest_wait_s
