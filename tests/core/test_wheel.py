"""The wheel against a sorted list: same rows, same order, whatever is added, removed and popped when."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from asyncli.core.wheel import Wheel

ROWS = 40
step = st.one_of(
    st.tuples(st.just("add"), st.integers(0, ROWS - 1), st.floats(-0.5, 70.0) | st.floats(3000.0, 20_000.0)),
    st.tuples(st.just("remove"), st.integers(0, ROWS - 1), st.just(0.0)),
    st.tuples(st.just("pop"), st.integers(1, 50), st.floats(0.0, 40.0) | st.floats(0.0, 10_000.0)),
)


@given(st.lists(step, max_size=120), st.floats(0, 1e6), st.sampled_from([30.0, 1e9]))
def test_agrees_with_a_sorted_list(steps: list[tuple[str, int, float]], start: float, horizon_s: float) -> None:
    wheel, model, now = Wheel(ROWS, horizon_s, start), {}, start
    for what, number, time in steps:
        if what == "add" and number not in model:
            wheel.add(number, now + time)
            model[number] = now + time
        elif what == "remove" and number in model:
            wheel.remove(number)
            del model[number]
        elif what == "pop":
            now += time
            due = sorted((when, row) for row, when in model.items() if when <= now)[:number]
            assert [wheel.due[row] for row in wheel.pop_due(now, number)] == [when for when, _ in due]
            for _, row in due:
                model.pop(row)
        assert len(wheel) == len(model)
        upcoming = wheel.next_due()
        if not model:
            assert upcoming is None
        else:
            assert upcoming <= min(model.values()) + 1e-6


def test_rows_added_while_popping_are_popped_when_due() -> None:
    wheel = Wheel(3, 10.0, 0.0)
    wheel.add(0, 0.05)
    seen = []
    for row in wheel.pop_due(1.0, 10):
        seen.append(row)
        if row < 2:
            wheel.add(row + 1, 0.5)
    assert seen == [0, 1, 2]
    assert len(wheel) == 0


def test_twelve_idle_hours_cost_no_walk() -> None:
    wheel = Wheel(1, 1800.0, 0.0)
    assert list(wheel.pop_due(43_200.0, 1)) == []
    wheel.add(0, 43_201.0)
    assert wheel.next_due() == 43_201.0
    assert list(wheel.pop_due(43_201.0, 1)) == [0]


def test_memory_does_not_grow_with_the_time_that_rows_may_sleep() -> None:
    tracemalloc.start()
    try:
        wheel = Wheel(100, 365 * 86_400.0, 0.0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    for row in range(100):
        wheel.add(row, 1000.0 * (row + 1))
    for row in range(90):
        wheel.remove(row)
    assert list(wheel.pop_due(100_000.0, 100)) == list(range(90, 100))
