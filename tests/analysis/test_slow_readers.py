"""What slow readers cost, from the server's memory and that of its sockets over time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from asyncli.analysis.provoked import provoked
from asyncli.analysis.slow_readers import SlowReaderCost, slow_readers
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import EventCounts, Gap, Phase, RunEvent, Sample, Tick
from asyncli.model.run import Run

MB = 1_000_000.0
BEFORE = 50 * MB


def a_run(
    user: Callable[[float], float], kernel: Callable[[float], float] | None = None, *, counts: EventCounts | None = None, host: float = 0.0, local: bool = True,
    words: str = "stall 10% for 20s",
) -> Run:
    """A hold from 5 to 65 s in which ten of 100 stall from 20 to 40 s; memory by the seconds since 20 s, above :data:`BEFORE`."""
    samples = []
    for second in range(66):
        values = {metrics.SERVER_PSS_BYTES: BEFORE + user(second - 20.0), metrics.KERNEL_TCP_MEM_BYTES: host * (20 < second <= 40)}
        if kernel is not None:
            values[metrics.SERVER_SOCKETS_BYTES] = 1_000.0 + kernel(second - 20.0)
        samples.append(Sample(float(second), values))
    done = counts or EventCounts(chosen=10, stalled=10, resumed=10, waited_bytes=100_000_000, segments={1448: 10})
    ticks = [(float(second), Tick(second=second, held=100, workers=1)) for second in range(5, 66)]
    ticks[16][1].events[1] = EventCounts(chosen=10, stalled=10)
    ticks[36][1].events[1] = EventCounts(resumed=10)
    phases = [Phase("baseline", 0, 4), Phase("ramp", 4, 5), Phase("hold", 5, 65), Phase("drain", 65, 66)]
    plan = Plan(urls=("http://127.0.0.1/",), connections=100, hold_s=60.0, events=(f"15s {words}",))
    event = RunEvent("stall", 20.0, None, words, {"number": 1})
    run = Run("", "", plan, {"local": local}, phases, ticks, samples, [], [], complete=True, events=[event])
    run.ticks[16][1].events[1] = done
    return run


def costs_of(run: Run) -> tuple[SlowReaderCost, SlowReaderCost]:
    planned = run.plan.planned_events[0]
    found = slow_readers(run, Gap(20.0, 46.0), run.ticks[16][1].events[1], run.series(metrics.SERVER_PSS_BYTES), planned.for_s)
    return found.user, found.kernel


def filled(after_s: float) -> float:
    """By 40 MB within five seconds, and given back but for 5 MB."""
    if after_s > 20:
        return 5 * MB
    return 8 * MB * min(5.0, max(0.0, after_s))


def test_a_cost_that_has_come_to_rest_is_measured() -> None:
    user, kernel = costs_of(a_run(filled, lambda after_s: filled(after_s) / 4))
    assert (user.status, user.total, user.per_connection, user.error, user.grows_per_s, user.kept) == ("measured", 40 * MB, 4 * MB, 0.0, 0.0, 5 * MB)
    assert (kernel.status, kernel.per_connection) == ("measured", MB)


@pytest.mark.parametrize(("others", "is_known"), [(lambda _: 50.0, True), (lambda after_s: 80.0 * (after_s > 3), False), (lambda after_s: 80.0 * (after_s < 3), False)])
def test_a_cost_is_unknown_where_others_connected_in_the_stall(others: Callable[[float], float], is_known: bool) -> None:
    run = a_run(filled, filled)
    for sample in run.samples:
        held = 100.0 if sample.t_s >= 5 else 0.0
        sample.values[metrics.SERVER_SOCKETS] = held + others(sample.t_s - 20.0)
    for cost in costs_of(run):
        assert (cost.per_connection, cost.why) == ((4 * MB, msgspec.UNSET) if is_known else (None, "other_connections"))


def test_whom_the_server_ended_while_they_stalled_are_no_others() -> None:
    run = a_run(filled, filled, counts=EventCounts(chosen=10, stalled=10, closed=8, waited_bytes=100_000_000, closes={"reset": 8}))
    for sample in run.samples:
        sample.values[metrics.SERVER_SOCKETS] = 100.0 - 8.0 * (23 < sample.t_s < 41)
    user, _ = costs_of(run)
    assert (user.status, user.why) == ("at_least", "ended")


def test_a_cost_that_still_grows_is_a_lower_bound() -> None:
    user, kernel = costs_of(a_run(lambda after_s: 3 * MB * max(0.0, after_s), filled))
    assert (user.status, user.why) == ("at_least", "grows")
    assert user.grows_per_s == pytest.approx(0.3 * MB)
    assert kernel.status == "measured"


def test_few_readings_tell_whether_it_grows_too() -> None:
    run = a_run(lambda after_s: 3 * MB * max(0.0, after_s), filled)
    for sample in run.samples:
        if sample.t_s % 6:
            del sample.values[metrics.SERVER_PSS_BYTES]
    user, _ = costs_of(run)
    assert (user.status, user.why, user.grows_per_s) == ("at_least", "grows", pytest.approx(0.3 * MB))
    for sample in run.samples:
        if 20 < sample.t_s < 36:
            sample.values.pop(metrics.SERVER_PSS_BYTES, None)
    user, _ = costs_of(run)
    assert (user.status, user.why, user.grows_per_s) == ("at_least", "few_readings", None)


def test_other_changes_of_that_size_hide_a_cost() -> None:
    user, _ = costs_of(a_run(lambda after_s: 2 * MB * (after_s % 2), filled))
    assert (user.status, user.why) == ("at_most", "noise")
    assert 0.1 * MB <= (user.per_connection or 0) <= 0.4 * MB


def test_a_memory_that_falls_meanwhile_says_nothing() -> None:
    """As that of a runtime that collects its garbage."""
    user, _ = costs_of(a_run(lambda after_s: -10 * MB * (after_s > 5), filled))
    assert (user.status, user.why, user.per_connection) == ("unknown", "noise", None)


def test_what_fits_into_the_clients_says_nothing_of_the_server() -> None:
    few = EventCounts(chosen=10, stalled=10, resumed=10, waited_bytes=600_000)
    for cost in costs_of(a_run(filled, filled, counts=few)):
        assert (cost.status, cost.why, cost.total) == ("unknown", "nothing_waited", None)


def test_a_server_that_sent_nothing_is_told_as_that() -> None:
    idle = EventCounts(chosen=10, stalled=10, resumed=10, waited_bytes=0)
    for cost in costs_of(a_run(filled, filled, counts=idle)):
        assert (cost.status, cost.why, cost.total) == ("unknown", "nothing_sent", None)


def unknown_why(run: Run) -> object:
    user, kernel = costs_of(run)
    assert (user.status, user.total, kernel.why) == ("unknown", None, user.why)
    return user.why


def with_another(run: Run, at_s: float) -> Run:
    """Another event of the run, which ends one connection."""
    run.events.append(RunEvent("drop", at_s, None, "drop 1%", {"number": 2}))
    tick = next(tick for t_s, tick in run.ticks if t_s > at_s)
    tick.events[2] = EventCounts(chosen=1, ended=1)
    return run


def read_later(run: Run, by_s: float = 0.4) -> Run:
    """The same, with no reading at the instant of the stall."""
    for sample in run.samples:
        sample.t_s += by_s
    return run


def test_a_memory_that_was_read_says_why_it_tells_nothing() -> None:
    """It is read in each second, but not at rest before the stall, or not in it."""
    assert unknown_why(with_another(read_later(a_run(filled, filled)), 17.5)) == "after_another"
    early = read_later(a_run(filled, filled))
    early.phases = [Phase("ramp", 4, 19.5), Phase("hold", 19.5, 65), Phase("drain", 65, 66)]
    assert unknown_why(early) == "early"
    short = read_later(a_run(filled, filled, words="stall 10% for 1s"), 0.8)
    assert unknown_why(short) == "too_short"
    seldom = a_run(filled, filled)
    for sample in seldom.samples:
        if 20 <= sample.t_s < 45:
            sample.values.clear()
    assert unknown_why(seldom) == "not_read"


def test_another_event_may_cut_a_stall_before_it_is_read() -> None:
    run = with_another(read_later(a_run(filled, filled)), 20.3)
    cut = slow_readers(run, Gap(20.0, 20.3), run.ticks[16][1].events[1], run.series(metrics.SERVER_PSS_BYTES), 20.0)
    assert (cut.user.status, cut.user.why) == ("unknown", "another_event")


def test_who_sends_nothing_is_told_first() -> None:
    """No other time would show more."""
    idle = EventCounts(chosen=10, stalled=10, resumed=10, waited_bytes=0)
    assert unknown_why(with_another(read_later(a_run(filled, filled, counts=idle)), 17.5)) == "nothing_sent"


def test_of_a_unix_socket_nothing_tells_the_kernel_s_memory() -> None:
    run = a_run(filled, host=12 * MB)
    run.plan = msgspec.structs.replace(run.plan, connect_to="unix:/run/app.sock")
    user, kernel = costs_of(run)
    assert (user.status, kernel.status, kernel.why) == ("measured", "unknown", "unix_socket")


def test_whom_the_server_ended_cost_at_least_the_most_that_was_read() -> None:
    """After six seconds it had ended all, and its memory was free again."""
    some = EventCounts(chosen=10, stalled=10, closed=10, closes={"reset": 10})
    user, _ = costs_of(a_run(lambda after_s: 30 * MB * (0 < after_s < 6), counts=some))
    assert (user.status, user.why, user.per_connection) == ("at_least", "ended", 3 * MB)


def test_without_the_server_s_sockets_all_of_its_host_are_an_estimate() -> None:
    _, kernel = costs_of(a_run(filled, host=12 * MB))
    assert (kernel.status, kernel.why, kernel.per_connection) == ("estimated", "host_wide", 1.2 * MB)
    _, elsewhere = costs_of(a_run(filled, host=12 * MB, local=False))
    assert (elsewhere.status, elsewhere.why) == ("unknown", "not_read")


def test_its_window_and_what_it_kept_reach_beyond_the_stall() -> None:
    run = a_run(filled, filled)
    window = run.event_windows[1]
    assert (window.start_s, window.end_s) == (20.0, 46.0)
    event = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1]
    assert (event.server.peak, event.server.kept) == (BEFORE + 40 * MB, 5 * MB)
    assert event.slow_readers is not None


def test_a_stall_that_goes_on_is_a_disturbance_as_long_as_it_lasts() -> None:
    """Though nothing is counted of it since its first second."""
    run = a_run(filled, filled)
    del run.ticks[36][1].events[1]
    assert run.event_windows[1].end_s == 45.0
    to_the_end = a_run(filled, filled, words="stall 10%")
    del to_the_end.ticks[36][1].events[1]
    assert to_the_end.event_windows[1].end_s == 65.0
