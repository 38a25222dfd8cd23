"""What a report says first of a server whose heap is collected."""

from __future__ import annotations

from collected_runs import LIVE, STACKS, of_go, soak

from asyncli.model import metrics
from asyncli.report.answer import one_line
from asyncli.report.cost_answer import answer, heap_answer
from asyncli.report.summary import Summary, summarise


def summary_of(**pages: float) -> Summary:
    run = of_go(soak(), **pages)
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + sample.values[metrics.RUNTIME_HEAP_BYTES] + sample.values[metrics.RUNTIME_STACKS_BYTES]
    return summarise(run)


def test_the_answer_begins_with_what_a_host_must_have() -> None:
    summary = summary_of()
    goal = summary.cost.at_goal
    assert goal
    assert abs(goal.bytes_per_connection - (2 * LIVE + 2 * STACKS)) < 2_500
    first, _, _ = answer(summary).partition(", ")
    filled = "heap has filled"
    assert first.endswith(filled)
    assert filled in one_line(summary)
    assert heap_answer(summary).count("B ±") >= 2


def test_what_is_unknown_of_a_heap_is_said_with_its_remedy() -> None:
    summary = summary_of(least_goal=1e9)
    assert not summary.cost.at_goal
    assert "--collect" in heap_answer(summary)
    assert "heap" not in answer(summary)
