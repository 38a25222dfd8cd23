"""The next count of a search, its bracket and verdict: tables, and properties for any server."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.analysis.bottleneck import Bottleneck
from asyncli.analysis.capacity import (
    TRIES,
    Bracket,
    Outcome,
    Search,
    Tried,
    bracket,
    moved_limit,
    next_count,
    prediction,
    served_before,
    verdict,
)
from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.forecast import Forecast
from asyncli.model.exit_status import exit_status
from asyncli.report.capacity_step import Step, with_lifetime_limit, with_own_limit

SEARCH = Search(1000, 100_000, 0.05)


def tried(asked: int, outcome: Outcome = "held", served: int | None = None, chance: bool = False) -> Tried:
    return Tried(asked, outcome, asked, asked if served is None else served, chance)


REFUSED = Tried(200, "failed", True, 121, refused=True)
#: A server that refused all beyond 121 and later held more: its limit moved, and the search is over.
MOVED = [tried(100), REFUSED, tried(118), tried(124), tried(162)]


def test_a_limit_that_moved_gives_no_narrow_bracket() -> None:
    assert (next_count(SEARCH, MOVED), bracket(MOVED)) == (None, Bracket(118, 200))
    assert (next_count(SEARCH, MOVED[:-1]), bracket(MOVED[:-1])) == (162, Bracket(124, 200))
    assert verdict(SEARCH, MOVED)[0] == "stopped"
    # Also where the bracket has become narrow meanwhile.
    assert verdict(SEARCH, [*MOVED, tried(195)])[0] == "stopped"


RELOADED = Tried(2000, "failed", 2000, 2000, chance=True)


def aged(asked: int, outcome: Outcome, lived_s: float, ended_s: float = 0.0) -> Tried:
    return Tried(asked, outcome, asked, asked, lived_s=lived_s, ended_s=ended_s)


def timed(asked: int, served: int) -> Tried:
    return Tried(asked, "failed", asked, served, timed=True)


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([], 1000),
        ([tried(1000)], 2000),
        ([tried(64_000)], 100_000),
        ([tried(100_000)], None),
        # On either side of the served count, 5 % apart; then the search is over.
        ([tried(1000), tried(2000, "failed", 1500)], 1463),
        ([tried(1000), tried(2000, "failed", 1500), tried(1463)], 1538),
        ([tried(1000), tried(2000, "failed", 1500), tried(1463), tried(1538, "failed")], None),
        # The guess was wrong: the bracket is halved.
        ([tried(1000), tried(2000, "failed", 1500), tried(1463), tried(1538)], 1769),
        ([tried(1000), tried(2000, "failed", 1500), tried(1463, "failed")], 1231),
        # All were served, but something else failed: no guess.
        ([tried(1000), tried(2000, "failed")], 1500),
        ([tried(1, "failed", 0)], None),
        ([tried(8, "failed", 1)], 1),
        ([tried(8, "failed", 1), tried(1)], 2),
        ([tried(8, "failed", 1), tried(1), tried(2, "failed")], None),
        ([tried(1000, "stopped")], None),
        # Nothing answers.
        ([Tried(1000, "failed", 0, 0)], None),
        ([Tried(8, "failed", 5, 5, lived_s=6, ended_s=1)], 5), ([Tried(1000, "held", 1000, 1000, lived_s=30.2, ended_s=31)], 2000),
        # A likely timer is tested with few connections; if they hold, the number is the reason.
        ([timed(1000, 100)], 10),
        ([timed(1000, 100), tried(10)], 98),
        ([timed(1000, 900), tried(10, "failed")], None),
        ([timed(8, 8)], None),
        # A server that does not hold one connection has no limit of their number.
        ([tried(1000, "failed")], 1),
        ([tried(1000, "failed", 500), tried(488, "failed")], 1),
        ([tried(8, "failed"), tried(1, "failed")], None),
        ([tried(8, "failed"), tried(1)], 4),
        ([tried(1000), timed(2000, 1000)], 1025),
        # No held connection was as old as the lost ones: a step with few, for as long, shows whether age is the reason.
        ([aged(1000, "held", 21), aged(2000, "failed", 23, 22)], 10),
        ([aged(1000, "held", 21), aged(2000, "failed", 23, 22), aged(10, "failed", 22, 22)], None),
        ([aged(1000, "held", 21), aged(2000, "failed", 23, 22), aged(10, "held", 42)], 1500),
        ([aged(1000, "held", 21), aged(2000, "failed", 23, 20)], 1500),
        ([aged(4, "held", 21), aged(8, "failed", 23, 22)], 4),
        ([aged(4, "held", 21), aged(8, "failed", 23, 22), aged(4, "failed", 22, 22)], None),
        # One late step may be chance, two are not; other failures are not repeated.
        ([tried(1000), tried(2000, "ours", chance=True)], 2000),
        ([tried(1000), *[tried(2000, "ours", chance=True)] * TRIES], None),
        ([tried(1000), tried(2000, "ours")], None),
        # The server was reloaded: the count is tried again.
        ([tried(1000), RELOADED], 2000),
        ([tried(1000), RELOADED, tried(2000)], 4000),
        ([tried(1000), RELOADED, RELOADED], 1500),
        ([tried(1000), RELOADED, tried(2000, "failed", 1500)], 1463),
    ],
)
def test_next_count(steps: list[Tried], count: int | None) -> None:
    assert next_count(SEARCH, steps) == count


def test_a_server_that_refuses_what_it_served_before_has_no_limit_of_their_number() -> None:
    # A limit of the rate of connects: 1,542 were served at once, then 1,031 are not.
    steps = [tried(1000), Tried(2000, "failed", True, 1542, refused=True), Tried(1031, "failed", True, 907, refused=True)]
    assert next_count(SEARCH, steps[:2]) is not None
    assert next_count(SEARCH, steps) is None
    assert verdict(SEARCH, steps)[0] == "stopped"
    # The number may be the limit of what is lost later, or by chance.
    for last in (Tried(1031, "failed", True, 1031), Tried(1031, "failed", True, 907, chance=True, refused=True)):
        assert moved_limit([*steps[:2], last]) is None


@given(
    knee=st.integers(0, 2_000_000), start=st.integers(1, 5000), most=st.integers(5000, 1_000_000),
    within=st.floats(0.001, 0.5), guess=st.floats(0, 2),
)  # fmt: skip
def test_the_search_finds_any_limit_in_few_steps(knee: int, start: int, most: int, within: float, guess: float) -> None:
    """A server that holds ``knee``, whatever a failed step reports as served."""
    search, steps = Search(start, most, within), list[Tried]()
    while (count := next_count(search, steps)) is not None:
        assert 1 <= count <= most
        assert count not in [one.asked for one in steps]
        held = count <= knee
        steps.append(tried(count, "held" if held else "failed", None if held else min(count, int(guess * knee))))
        assert len(steps) <= 40
    known = bracket(steps)
    assert known.held <= knee
    if known.failed is None:
        assert known.held == most <= knee
    else:
        assert knee < known.failed
        assert known.is_narrow(within)
    # After a failed step, each step narrows the bracket.
    gaps = [bracket(steps[:place]) for place in range(1, len(steps) + 1)]
    assert all(b.held > a.held or (b.failed or 0) < a.failed for a, b in pairwise(gaps) if a.failed is not None)


@pytest.mark.parametrize(
    ("code", "certain", "ages", "limit"),
    [
        ("reload", False, (4.0, 4.0, 4.0), True),
        ("reload", False, (4.0, 9.0, 4.0), False),
        ("reload", False, (1.0, 1.0, 1.0), False),
        ("reload", True, (4.0, 4.0, 4.0), False),
        ("idle_timeout", False, (4.0, 4.0, 4.0), False),
    ],
)
def test_one_age_in_all_steps_is_a_limit(code: str, certain: bool, ages: tuple[float, ...], limit: bool) -> None:
    made: dict[str, Any] = dict.fromkeys(Step.__struct_fields__, 0) | {"outcome": "failed", "crossed": [], "gave_way": [Bottleneck("server", code, "", "", certain)]}
    found = with_lifetime_limit([Step(**{**made, "ended_s": age_s}) for age_s in ages])
    assert {one.gave_way[0].code for one in found} == {"lifetime" if limit else code}


BUSY = Bottleneck("host", "both_busy", "the CPUs were busy", "")


def late(held: int, asked: int = 800, *more: Bottleneck, first: Bottleneck = BUSY) -> Step:
    """A step in which this host was busy, and the server showed ``more``."""
    made: dict[str, Any] = dict.fromkeys(Step.__struct_fields__, 0) | {"crossed": [], "why": first.evidence}
    return Step(**{**made, "asked": asked, "outcome": "ours", "answered": held, "held": held, "served": held, "gave_way": [first, *more]})


MUTE, SLOW, MEMORY = Bottleneck("server", "never_answered", "never answered", "see its limits"), Bottleneck("server", "slow", "slow", ""), Bottleneck("host", "memory", "", "")


@pytest.mark.parametrize(
    ("steps", "own"),
    [
        ([late(494, 800, MUTE), late(494, 800, MUTE)], True),
        ([late(494, 800, MUTE), late(497, 800, MUTE)], True),
        # Once may be chance; another number is; and what is slow has no number.
        ([late(494, 800, MUTE)], False), ([late(494, 800, MUTE), late(560, 800, MUTE)], False), ([late(494, 800, SLOW), late(494, 800, SLOW)], False),
        ([late(494, 900, MUTE), late(494, 800, MUTE)], False), ([late(800, 800, MUTE), late(800, 800, MUTE)], False),
        ([late(0, 800, MUTE), late(0, 800, MUTE)], False),
        # Another host would have had the memory.
        ([late(494, 800, MUTE, first=MEMORY), late(494, 800, MUTE, first=MEMORY)], False),
    ],
)  # fmt: skip
def test_a_number_that_is_held_twice_is_the_servers_limit(steps: list[Step], own: bool) -> None:
    found = with_own_limit(steps)
    assert {(one.outcome, one.gave_way[0].code == "own_limit") for one in found} == {("failed" if own else "ours", own)}
    if own:
        first = found[-1].gave_way[0]
        assert (first.side, first.remedy, first.certain, MUTE.evidence in first.evidence, BUSY in found[-1].gave_way) == ("server", MUTE.remedy, True, True, True)
        assert bracket([one.tried for one in found]).failed == 800


@pytest.mark.parametrize(("step", "undecided"), [(late(494, 800, MUTE), True), (late(800, 800, SLOW), False), (late(800), False), (late(494, 800, MUTE, first=MEMORY), False)])
def test_a_busy_host_is_not_said_to_be_the_limit_if_the_server_may_be(step: Step, undecided: bool) -> None:
    assert step.tried.is_undecided is undecided
    word, why = verdict(SEARCH, [tried(400), step.tried, step.tried])
    assert (word, "server's" in why) == ("invalid", undecided)


def test_a_count_held_above_a_failed_one_is_ignored() -> None:
    assert bracket([tried(500), tried(1000, "failed"), tried(1500)]) == Bracket(500, 1000)
    assert bracket([tried(500), tried(1000, "ours")]) == Bracket(500, None)
    assert bracket([tried(1000), RELOADED, tried(2000)]) == Bracket(2000, None)


@pytest.mark.parametrize(
    ("steps", "more", "word"),
    [
        ([tried(1000), tried(2000, "failed"), tried(1950)], {}, "found"),
        ([tried(1000), tried(2000, "failed"), tried(1950)], {"stopped": True}, "found"),
        ([tried(1000), tried(2000, "failed")], {"stopped": True}, "stopped"),
        ([tried(1000), tried(2000, "failed")], {"gone": True}, "found"),
        ([tried(1000)], {"gone": True}, "stopped"),
        ([tried(1000), tried(2000, "failed"), tried(1500, "stopped")], {"gone": True}, "found"),
        ([tried(1000), tried(2000, "stopped")], {}, "stopped"),
        ([tried(1000), tried(2000, "ours")], {}, "invalid"),
        # Between them this host was the limit: the server's is unknown.
        ([tried(1000), tried(2000, "failed"), tried(1500, "ours")], {}, "invalid"),
        ([tried(100_000)], {}, "held"),
        ([timed(1000, 900), tried(10, "failed")], {}, "failed"),
        ([tried(1000, "failed"), tried(1, "failed")], {}, "failed"),
        ([aged(1000, "held", 21), aged(2000, "failed", 23, 22), aged(10, "failed", 22, 22)], {}, "failed"),
        ([tried(1000, "failed")], {"gone": True}, "found"),
        # A server that refuses too many connections may look the same, but not with few.
        ([timed(1000, 100), tried(10), tried(100), tried(102, "failed")], {}, "found"),
        ([tried(1000)], {"broken": "no disk"}, "stopped"),
        ([tried(1000), tried(2000, "failed")], {"broken": "no disk"}, "stopped"),
        ([Tried(1000, "failed", 0, 0)], {}, "untested"),
    ],
)
def test_verdict(steps: list[Tried], more: dict[str, Any], word: str) -> None:
    assert verdict(SEARCH, steps, **more)[0] == word


def test_reaching_this_hosts_limit_is_invalid() -> None:
    assert verdict(Search(1000, 2000, 0.05, "memory"), [tried(2000)])[0] == "invalid"
    assert {exit_status(word) for word in ("found", "held")} == {0}
    assert [exit_status(word) for word in ("untested", "invalid", "failed", "stopped")] == [3, 4, 99, 99]


@pytest.mark.parametrize(
    ("number", "ci95", "known", "agrees"),
    [
        (281, None, Bracket(275, 283), True),
        (281, None, Bracket(290, 305), True),
        (281, None, Bracket(300, 315), False),
        (281, None, Bracket(100, 105), False),
        (281, (90, 500), Bracket(100, 105), True),
        (281, None, Bracket(100, None), None),
        (281, None, Bracket(1000, None), False),
    ],
)
def test_prediction_against_the_bracket(
    number: float, ci95: tuple[float, float] | None, known: Bracket, agrees: bool | None
) -> None:
    found = prediction(Forecast(ceilings=[Ceiling("slots", number, ci95, "")], first="slots"), known, 0.05)
    assert found.agrees is agrees
    assert prediction(Forecast(), known, 0.05) is None


def test_only_of_a_broker_an_answer_rests_on_the_steps_before() -> None:
    steps = [tried(25), tried(50)]
    assert [served_before(steps, "mqtt"), served_before(steps, "http"), served_before(steps[1:], "mqtt")] == [1, 0, 0]
