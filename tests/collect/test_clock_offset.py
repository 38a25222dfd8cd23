"""Another host's clock from exchanges: the offset is within its error, a drift is measured, a jump starts over."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.clocks import ClockOffset, Exchange


def exchanged(at_s: float, offset_s: float, there_s: float, held_s: float, back_s: float) -> Exchange:
    """An exchange at ``at_s`` of our clock; theirs is ``offset_s`` ahead."""
    received_s = at_s + there_s
    answered_s = received_s + held_s
    return Exchange(at_s, received_s + offset_s, answered_s + offset_s, answered_s + back_s)


_WAY = st.floats(0.0, 2.0)


@given(
    offset_s=st.floats(-1e6, 1e6),
    drift=st.floats(-90e-6, 90e-6),
    ways=st.lists(st.tuples(_WAY, _WAY, _WAY), min_size=1, max_size=30),
    later_s=st.floats(0.0, 600.0),
)
def test_the_true_offset_is_within_the_error(offset_s: float, drift: float, ways: list[tuple[float, float, float]], later_s: float) -> None:
    clock, now_s = ClockOffset(), 0.0
    for there_s, held_s, back_s in ways:
        now_s += 1.0
        one = exchanged(now_s, offset_s + drift * now_s, there_s, held_s, back_s)
        clock.add(one)
        now_s = one.returned_s
    now_s += later_s
    known = clock.now(now_s)
    # A float of a million seconds is exact to 1e-10, and the clocks drift during an exchange.
    assert abs(known.offset_s - (offset_s + drift * now_s)) <= known.error_s + 1e-3


def test_a_drift_is_measured() -> None:
    clock, draw = ClockOffset(), random.Random(1)
    for second in range(600):
        clock.add(exchanged(float(second), 100.0 + 40e-6 * second, draw.uniform(1e-4, 2e-4), 0.001, draw.uniform(1e-4, 2e-4)))
    known, drift = clock.now(600.0), clock.drift
    assert abs(known.offset_s - 100.024) < 0.0005
    assert abs(drift[0] - 40e-6) <= drift[1] < 5e-6


def test_a_clock_jump_drops_earlier_exchanges() -> None:
    clock = ClockOffset()
    for second in range(20):
        clock.add(exchanged(float(second), 7.0, 1e-4, 0.0, 1e-4))
    assert clock.drift is not None
    # Their host was suspended for an hour, which stopped its clock.
    clock.add(exchanged(20.0, 7.0 - 3600.0, 0.2, 0.0, 0.2))
    known = clock.now(20.4)
    assert abs(known.offset_s + 3593.0) <= known.error_s
    assert clock.drift is None
