"""For how long clients were away whom an event ended, by what was counted: what is known, and what is only bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asyncli.analysis.away import Away, AwayAtLeast, away_of, clients_of
from asyncli.core.adding import added_up
from asyncli.model.records import CHURN, EventCounts
from asyncli.report.summary import Summary
from asyncli.report.thresholds import Outcome, judge, parse


def counted(back_s: list[float], still_s: list[float], **more: int) -> EventCounts:
    """Clients who were away for so long until they were back, and others who were when the drain began."""
    ended = len(back_s) + len(still_s) + sum(more.get(name, 0) for name in ("lost_with_worker", "unheard", "ended_again"))
    counts = EventCounts(chosen=ended, ended=ended, clients=ended, **more)
    for away_s in back_s:
        counts.back_ms.add(10_000 + 1e3 * away_s)
        counts.away_ms.add(1e3 * away_s)
    for away_s in still_s:
        counts.still_away_ms.add(1e3 * away_s)
    return counts


def of(counts: EventCounts, number: int = 1) -> Away:
    away = away_of(number, counts)
    assert away is not None
    return away


def test_the_times_are_known_where_all_were_back() -> None:
    away = of(counted([1.0] * 98 + [2.0, 3.1], []))
    assert away == Away(pytest.approx(1.0, rel=0.01), pytest.approx(2.0, rel=0.01), 3.1, None)


def test_those_who_are_not_back_were_away_at_least_so_long() -> None:
    away = of(counted([1.0] * 60, [9.0] * 30 + [12.0] * 10))
    assert away == Away(pytest.approx(1.0, rel=0.01), None, None, AwayAtLeast(pytest.approx(1.0, rel=0.01), pytest.approx(12.0, rel=0.01), 12.0))


def test_who_left_last_may_be_back_sooner_than_the_others() -> None:
    """Half were back after 5 s; the rest had been away for a second as the drain began."""
    away = of(counted([5.0] * 50, [1.0] * 50))
    assert (away.p50_s, away.p99_s) == (pytest.approx(5.0, rel=0.01), None)
    assert away.at_least == AwayAtLeast(pytest.approx(1.0, rel=0.01), pytest.approx(5.0, rel=0.01), 5.0)


@pytest.mark.parametrize("unknown", ["lost_with_worker", "unheard"])
def test_those_of_whom_nothing_tells_may_have_been_back_at_once(unknown: str) -> None:
    away = of(counted([1.0] * 50 + [3.0] * 10, [], **{unknown: 40}))
    assert (away.p50_s, away.p99_s, away.max_s) == (pytest.approx(1.0, rel=0.01), None, None)
    assert away.at_least == AwayAtLeast(pytest.approx(1.0, rel=0.01), pytest.approx(3.0, rel=0.01), 3.0)


def test_whom_another_event_ended_and_who_is_gone_are_not_waited_for() -> None:
    counts = counted([1.0] * 10, [], ended_again=5)
    counts.ended += 3
    counts.gone += 3
    assert of(counts).at_least is None
    gone = EventCounts(ended=5, silenced=5, gone=5, clients=5)
    assert away_of(1, gone) is None


def test_whom_another_event_ended_was_away_at_least_until_then() -> None:
    counts = counted([1.0] * 10, [], ended_again=10)
    for _ in range(10):
        counts.until_ended_ms.add(5_000)
    away = of(counts)
    assert (away.p50_s, away.max_s) == (pytest.approx(1.0, rel=0.01), None)
    assert away.at_least is not None
    assert away.at_least.max_s == 5.0
    # Churn goes on ending clients, and its own are many.
    assert of(counts, CHURN).at_least is None


def test_of_churn_who_was_not_to_be_back_yet_is_left_out() -> None:
    counts = counted([0.1] * 50, [0.2], waiting=1)
    assert of(counts, CHURN).at_least is None
    assert of(counts).at_least is not None


def test_workers_and_seconds_add_up() -> None:
    parts = [counted([1.0, 3.1], []), counted([2.0], [7.0])]
    parts[1].ended_repeatedly = 1
    whole = added_up(*parts)
    assert (whole.clients, whole.ended_repeatedly) == (4, 1)
    assert of(whole).at_least == AwayAtLeast(pytest.approx(2.0, rel=0.01), 7.0, 7.0)


def test_of_a_run_of_an_older_version_neither_is_known() -> None:
    old = EventCounts(chosen=5, ended=5)
    for _ in range(5):
        old.back_ms.add(1_000)
    assert away_of(1, old) is None
    assert (clients_of(old).all, clients_of(old).repeatedly) == (None, None)
    assert away_of(1, EventCounts(chosen=5, ended=5)) is None
    # That another version has resumed.
    later = counted([1.0] * 3, [])
    assert away_of(1, added_up(old, later)) is None
    nobody = clients_of(EventCounts(chosen=5, absent=5))
    assert (nobody.all, nobody.repeatedly) == (0, 0)


def judged(text: str, counts: EventCounts) -> Outcome:
    event: dict[str, Any] = {"number": 1, "ended": counts.ended, "chosen": counts.chosen, "absent": counts.absent}
    event["away"] = msgspec.to_builtins(away_of(1, counts))
    [outcome] = judge([parse(f"events.1.away.{text}", Summary)], {"events": [event]})
    return outcome


SOME = counted([1.0] * 90 + [5.0] * 2, [3.0] * 8)


@pytest.mark.parametrize(
    ("text", "is_crossed", "told"),
    [
        # Five seconds were surely reached, and what comes after the hold is not known.
        ("max_s > 4s", True, "more than 5 s"),
        ("max_s > 6s", None, "5 s at least"),
        ("max_s < 4s", False, "more than 5 s"),
        ("max_s < 6s", None, "5 s at least"),
        ("p50_s > 2s", False, "some were not back"),
        ("p50_s < 2s", True, "some were not back"),
        ("p99_s > 4s", True, "more than"),
    ],
)
def test_a_limit_is_decided_where_the_bounds_suffice(text: str, is_crossed: bool | None, told: str) -> None:
    outcome = judged(text, SOME)
    assert outcome.crossed is is_crossed
    assert told in outcome.amount


def test_a_limit_between_the_least_and_the_most_is_undecided() -> None:
    counts = counted([1.0] * 40 + [5.0] * 20, [2.0] * 40)
    assert of(counts).p50_s == pytest.approx(5.0, rel=0.01)
    assert of(counts).at_least == AwayAtLeast(pytest.approx(2.0, rel=0.01), pytest.approx(5.0, rel=0.01), 5.0)
    assert [judged(f"p50_s>{bound}s", counts).crossed for bound in (1, 3, 6)] == [True, None, False]


def test_a_limit_where_nobody_is_away_is_as_that_of_the_times_back() -> None:
    assert judged("max_s>5s", EventCounts()).crossed is False
    assert judged("max_s>5s", EventCounts(chosen=9, absent=9)).crossed is None
    known = counted([1.0, 2.0], [])
    assert [judged(f"max_s>{bound}s", known).crossed for bound in (1, 2, 3)] == [True, False, False]
    old = EventCounts(chosen=5, ended=5)
    assert judged("max_s>5s", old).crossed is None
