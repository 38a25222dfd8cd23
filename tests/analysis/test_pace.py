"""Whether a limit is on the number of connections or on connects in a time: by steps at two paces."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.analysis.bottleneck import Bottleneck
from asyncli.analysis.capacity import Bracket, Outcome, Search, Tried
from asyncli.analysis.pace import (
    Attempt,
    connect_rate,
    next_attempt,
    pace_test,
    paced_bracket,
    paced_verdict,
    slower_ramp_s,
)
from asyncli.model.units import parse_pace

SEARCH = Search(1000, 100_000, 0.05)
HOLD_S = 20.0


def at(asked: int, outcome: Outcome = "held", served: int | None = None, **more: Any) -> Tried:
    served = asked if served is None else served
    return Tried(asked, outcome, True, served, unserved=outcome == "failed", per_s=1000.0, **more)


def slower(asked: int, outcome: Outcome = "held", served: int | None = None) -> Tried:
    served = asked if served is None else served
    return Tried(asked, outcome, True, served, unserved=outcome == "failed", per_s=50.0, slower=True)


#: A narrow bracket; what it lost had never been served.
NARROW = [at(1000), at(2000, "failed", 1500), at(1463), at(1538, "failed", 1500)]
#: The server refused beyond 121, and held more later.
MOVED = [at(100), at(200, "failed", 121, refused=True), at(118), at(124), at(162)]


@pytest.mark.parametrize(
    ("steps", "attempt"),
    [
        (NARROW[:3], Attempt(1538, False)),
        (NARROW, Attempt(1538, True)),
        (MOVED, Attempt(200, True)),
        # What was held at the slower pace is tried at the first one again.
        ([*NARROW, slower(1538)], Attempt(1538, False)),
        ([*NARROW, slower(1538), at(1538, "failed", 1500)], None),
        ([*NARROW, slower(1538), at(1538)], None),
        ([*NARROW, slower(1538, "failed", 1500)], None),
        ([*NARROW, slower(1538, "ours", 1500)], None),
        # What was lost had been served, or the limit was read.
        ([*NARROW[:3], Tried(1538, "failed", True, 1500)], None),
        ([at(100_000)], None),
        ([at(1000), at(2000, "stopped")], None),
        ([at(8, "failed", 1), at(1, "failed", 0)], None),
    ],
)
def test_the_next_attempt(steps: list[Tried], attempt: Attempt | None) -> None:
    assert next_attempt(SEARCH, steps) == attempt


@pytest.mark.parametrize(
    ("more", "limits", "word", "known"),
    [
        ([slower(1538), at(1538, "failed", 1400)], "connects_in_a_time", "stopped", Bracket(1538, None)),
        ([slower(1538), at(1538)], "moved", "stopped", Bracket(1463, 1538)),
        ([slower(1538, "failed", 1500)], "number", "found", Bracket(1463, 1538)),
        ([slower(1538, "failed", 1440)], "number", "found", Bracket(1463, 1538)),
        # Neither the same number, nor all; this host was late; the user stopped it; the third try was late.
        ([slower(1538, "failed", 900)], "unknown", "found", Bracket(1463, 1538)),
        ([slower(1538, "ours", 1500)], "unknown", "found", Bracket(1463, 1538)),
        ([slower(1538)], "unknown", "found", Bracket(1463, 1538)),
        ([slower(1538), at(1538, "ours", 1400)], "unknown", "found", Bracket(1463, 1538)),
    ],
)
def test_what_two_paces_tell(more: list[Tried], limits: str, word: str, known: Bracket) -> None:
    steps = [*NARROW, *more]
    pace = pace_test(SEARCH, steps)
    assert pace is not None
    assert (pace.limits, pace.asked, pace.per_s, pace.slower_per_s) == (limits, 1538, 1000.0, 50.0)
    assert (paced_verdict(SEARCH, steps)[0], paced_bracket(SEARCH, steps)) == (word, known)


def test_without_a_slower_step_all_is_as_before() -> None:
    assert pace_test(SEARCH, NARROW) is None
    assert (paced_verdict(SEARCH, NARROW)[0], paced_bracket(SEARCH, NARROW)) == ("found", Bracket(1463, 1538))
    # A limit that moved stays one if the slower step fails too.
    assert paced_verdict(SEARCH, [*MOVED, slower(200, "failed", 121)])[0] == "stopped"


@pytest.mark.parametrize(("per_s", "most"), [(57.3, 57.3), (1.0, 1.0), (0.3, 0.3)])
def test_the_ramp_of_the_remedy_is_not_faster(per_s: float, most: float) -> None:
    steps = [*NARROW, slower(1538), at(1538, "failed", 1400)]
    pace = pace_test(SEARCH, [step if not step.slower else Tried(1538, "held", True, 1538, per_s=per_s, slower=True) for step in steps])
    assert pace is not None
    found = connect_rate(pace, Bottleneck("network", "never_arrived", "none came", "look", certain=True))
    assert (found.side, found.code, found.certain, "none came" in found.evidence) == ("network", "connect_rate", True, True)
    batch, interval_s = parse_pace(found.remedy.rpartition("--ramp ")[2])
    assert 0 < batch / interval_s <= most * 1.000001


def simulated(limit: str, most: int, window_s: float, asked: int, ramp_s: float, phase: float) -> Tried:
    """A step on a server that limits the number of connections, or connects in windows of ``window_s``."""
    served = 0
    granted: dict[int, int] = {}
    for number in range(asked):
        window = math.floor((phase * window_s + ramp_s * number / asked) / window_s)
        granted[window] = granted.get(window, 0) + 1
        if (served if limit == "number" else granted[window] - 1) >= most:
            return Tried(asked, "failed", True, served, unserved=True, per_s=asked / ramp_s)
        served += 1
    return Tried(asked, "held", True, served, per_s=asked / ramp_s)


@given(
    limit=st.sampled_from(["number", "connects_in_a_time"]), most=st.integers(20, 900), window_s=st.floats(1.0, 10.0),
    phases=st.lists(st.floats(0, 0.999), min_size=30, max_size=30),
)  # fmt: skip
def test_a_limit_is_never_told_as_the_other(limit: str, most: int, window_s: float, phases: list[float]) -> None:
    """Windows that are longer than the ramp, up to half as long as the slower one; each step begins anywhere in one."""
    search, steps = Search(most // 2 + 1, 1000, 0.05), list[Tried]()
    while (attempt := next_attempt(search, steps)) is not None:
        ramp_s = attempt.asked / 1000.0
        if attempt.slower:
            ramp_s = slower_ramp_s(ramp_s, HOLD_S)
        step = simulated(limit, most, window_s, attempt.asked, ramp_s, phases[len(steps) % len(phases)])
        steps.append(Tried(**{name: getattr(step, name) for name in Tried.__struct_fields__} | {"slower": attempt.slower}))
        assert len(steps) < 40
    pace = pace_test(search, steps)
    if pace is None:
        assert paced_bracket(search, steps).failed is None
        return
    assert pace.limits in ({"number"} if limit == "number" else {limit, "moved", "unknown"})
