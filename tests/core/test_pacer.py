"""Pacing as tables: when each batch opens, when each lost row is opened again, and until when a missed beat is put off."""

from __future__ import annotations

import math

import pytest

from asyncli.core.pacer import BeatPacer, RampPacer, ReopenPacer
from asyncli.core.ramp import Ramp

# 4 batches of 10, every 1/8 s; worker 1 of 2 has the second and the fourth: due at 0.125 and 0.375 s.
RAMP = Ramp(40, 10, 0.125)


def opened(pacer: RampPacer, nows: list[float], most: int = 100) -> list[tuple[float, int, int, bool]]:
    """What is opened at each of these instants: when, the rows' range, and whether again."""
    seen = []
    for now in nows:
        while pacer.next_instant <= now:
            rows, _, again, _ = pacer.take(most, now)
            seen.append((now, rows.start, rows.stop, again))
    return seen


@pytest.mark.parametrize(
    ("again", "replaced_at", "reopen", "nows", "expected"),
    [
        # On time; late, the second batch follows at twice the pace (0.125 s in place of 0.25); early, nothing.
        (False, None, True, [0.0, 0.125, 0.25, 0.375], [(0.125, 0, 10, False), (0.375, 10, 20, False)]),
        (False, None, True, [1.0, 1.1, 1.125], [(1.0, 0, 10, False), (1.125, 10, 20, False)]),
        # All opened again by a run that is resumed: no faster than the ramp.
        (True, None, True, [1.0, 1.125, 1.25], [(1.0, 0, 10, True), (1.25, 10, 20, True)]),
        # In the place of a worker that was lost at 0.25 s, the first batch was open; without reopen it stays lost.
        (False, 0.25, True, [0.25, 0.375, 0.5], [(0.25, 0, 10, True), (0.5, 10, 20, False)]),
        (False, 0.25, False, [0.25, 0.375, 0.5], [(0.375, 10, 20, False)]),
    ],
)
def test_batches_open_when_they_are_due(
    again: bool, replaced_at: float | None, reopen: bool, nows: list[float], expected: list[tuple[float, int, int, bool]]
) -> None:
    pacer = RampPacer(RAMP, 1, 2, again)
    pacer.start(0.0)
    if replaced_at is not None:
        pacer.replace_worker(replaced_at, reopen)
    assert opened(pacer, nows) == expected
    assert (pacer.finished, pacer.next_instant) == (True, math.inf)


def test_a_batch_may_be_opened_in_parts() -> None:
    pacer = RampPacer(RAMP, 1, 2, again=False)
    pacer.start(0.0)
    parts = [pacer.take(4, 0.125) for _ in range(3)]
    assert [(part.rows, part.begins_batch) for part in parts] == [(range(4), True), (range(4, 8), False), (range(8, 10), False)]
    assert pacer.next_instant == 0.375


def test_lost_rows_are_opened_again_at_the_ramps_pace() -> None:
    # One worker of a ramp of 10 every 0.1 s: 100 a second, and a batch at once.
    pacer = ReopenPacer(Ramp(40, 10, 0.1), 1)
    waits = [pacer.wait_until(row, 5.0, room=True, continues=False) for row in range(13)]
    assert waits[:11] == [None] * 11
    assert waits[11:] == [pytest.approx(5.02), pytest.approx(5.03)]
    # Who has booked a place has it, others wait behind it; an attempt that goes on needs none.
    assert pacer.wait_until(11, 5.02, room=True, continues=False) is None
    assert pacer.wait_until(20, 5.02, room=True, continues=True) is None
    assert pacer.wait_until(21, 5.02, room=True, continues=False) == pytest.approx(5.04)
    assert pacer.wait_until(12, 5.03, room=False, continues=False) == pytest.approx(5.05)


def test_missed_beats_go_out_at_twice_their_pace_and_a_busy_moment_misses_none() -> None:
    pacer = BeatPacer()
    # In time; a busy moment; 2 s in which a beat every 10 ms was due.
    assert [pacer.until(1.0, 1.0), pacer.until(1.01, 1.02), pacer.until(1.02, 1.11)] == [1.0, 1.02, 1.11]
    due, now, sent = 1.12, 3.11, []
    while True:
        until = pacer.until(due, now)
        while due <= until:
            sent.append(now)
            due += 0.01
        if due > now:
            break
        now = max(now + 0.001, pacer.instant(due))
    # At once twice what the turn before it was long, 0.09 s; so 1.81 s later it has caught up.
    assert sent[-1] == pytest.approx(4.92, abs=0.02)
    assert max(map(sent.count, sent)) <= 21


@pytest.mark.parametrize("turn_s", [0.15, 0.4])
def test_a_process_that_is_always_late_sends_all_that_is_due(turn_s: float) -> None:
    """It has the CPU only every so often: heartbeats are late by that and by no more."""
    pacer, due, now, worst = BeatPacer(), 0.0, 0.0, 0.0
    while now < 60.0:
        now += turn_s
        until = pacer.until(due, now)
        while due <= until:
            worst = max(worst, now - due)
            due += 0.01
    assert worst <= 2 * turn_s
