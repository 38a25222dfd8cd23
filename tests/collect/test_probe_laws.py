from __future__ import annotations

from typing import Any

import pytest

from asyncli.collect.probe_budget import Outage, Schedule


def rounds(schedule: Schedule, cost_s: float, seconds: int) -> tuple[list[int], list[Any]]:
    """The seconds in which a probe of this cost runs, and its findings."""
    ran, said = [], []
    for second in range(seconds):
        if schedule.due(second):
            ran.append(second)
            finding = schedule.spent(second, cost_s)
            if finding is not None:
                said.append(finding.fields)
    return ran, said


@pytest.mark.parametrize(
    ("cost_s", "ran"), [(0.0, [0, 1, 2, 3, 4, 5, 6, 7]), (0.003, [0, 1, 2, 3, 4, 5, 6, 7]), (0.0033, [0, 2, 4, 6]), (0.009, [0, 3, 6]), (0.5, [0])]
)
def test_a_probe_rests_until_it_is_within_its_budget(cost_s: float, ran: list[int]) -> None:
    assert rounds(Schedule("server_memory"), cost_s, 8)[0] == ran


def test_a_probe_may_be_ahead_of_its_budget_and_repays_it() -> None:
    for cost_s, run_s in ((0.006, 71), (0.006, 600), (0.040, 71), (0.040, 3600)):
        schedule = Schedule("server_memory")
        schedule.begin(0, run_s)
        ran, _ = rounds(schedule, cost_s, run_s)
        # 6 ms is twice the budget: it runs each second of the baseline, the ramp and the first half of the hold.
        assert ran[: min(4, round(0.003 * run_s / 2 / cost_s))] == [0, 1, 2, 3][: round(0.003 * run_s / 2 / cost_s)]
        assert len(ran) * cost_s <= 0.003 * run_s + cost_s, "the budget is of the run"
        if cost_s == 0.006:
            assert ran[:15] == list(range(15))
        # It is read until the end, at no less than half of the usual rate.
        assert run_s - ran[-1] <= 2 * cost_s / 0.003 + 1
    assert rounds(Schedule("server_memory"), 0.006, 8)[0] == [0, 2, 4, 6], "without a run there is nothing to be ahead of"


def test_unused_budget_is_not_saved() -> None:
    schedule = Schedule("server_memory")
    schedule.begin(0, 100)
    for second in range(90):
        schedule.spent(second, 0.0001)
    ran = [second for second in range(90, 100) if schedule.due(second) and schedule.spent(second, 0.030) is None]
    assert len(ran) <= 2


def test_a_longer_period_is_reported_once_and_not_for_one_expensive_round() -> None:
    schedule = Schedule("server_memory")
    assert rounds(schedule, 0.020, 1)[1] == []
    _, said = rounds(schedule, 0.006, 20)
    assert said == [{"probe": "server_memory", "cost_s": 0.006, "period_s": 2, "budget": 0.003}]


def test_a_reading_between_two_seconds_does_not_skip_the_next_one() -> None:
    schedule = Schedule("kernel")
    schedule.spent(7.4, 0.001)
    assert schedule.due(8)


def test_an_outage_is_reported_at_its_start_and_end() -> None:
    outage = Outage("status")
    assert outage.answered(1) is None
    lost = outage.failed(2, "Connection refused")
    assert (lost.code, lost.severity) == ("status_lost", "warning")
    assert lost.fields == {"probe": "status", "from_s": 2, "why": "Connection refused", "untrusted": False}
    assert outage.failed(3, "Connection refused") is None
    back = outage.answered(31)
    assert (back.code, back.severity) == ("status_back", "info")
    assert back.fields["for_s"] == 30
    assert outage.answered(32) is None
    assert outage.failed(33, "again") is not None
