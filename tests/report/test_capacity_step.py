"""What a step of a capacity search was served."""

from __future__ import annotations

import pytest
from synthetic_run import a_run

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
