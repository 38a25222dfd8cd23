"""What a step of a capacity search was served."""

from __future__ import annotations

import msgspec
import pytest
from synthetic_run import a_run

from asyncli.analysis.capacity import Search, next_count, verdict
from asyncli.report.analyses import analyse
from asyncli.report.capacity_step import step_of
from asyncli.report.summary import summarise


@pytest.mark.parametrize(("is_answered", "served"), [(True, 1000), (False, 0)])
def test_what_is_held_as_a_second_ends_is_served_only_if_anything_was_answered(is_answered: bool, served: int) -> None:
    run = a_run(1000)
    if not is_answered:
        for _, tick in run.ticks:
            tick.answered = 0
    analyses = analyse(run)
    assert step_of(run, analyses, summarise(run, analyses), "a.db").served == served


@pytest.mark.parametrize(("limit", "outcome"), [("cost.live > 10kB", "stopped"), ("connections.held < 2000", "failed"), ("connections.held < 10", "held")])
def test_a_limit_that_a_step_cannot_decide_is_no_count_that_was_not_held(limit: str, outcome: str) -> None:
    run = a_run(1000)
    run.plan = msgspec.structs.replace(run.plan, fail_if=(limit,))
    analyses = analyse(run)
    step = step_of(run, analyses, summarise(run, analyses), "a.db")
    assert step.outcome == outcome
    if outcome == "stopped":
        search = Search(1000, 4000, 0.05)
        assert next_count(search, [step.tried]) is None
        word, why = verdict(search, [step.tried])
        assert (word, limit in why) == ("stopped", True)
