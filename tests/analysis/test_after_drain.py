"""What is alive after the drain, and how fast it rises then, in runs whose truth is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from collected_runs import ask_for_collections, asked_in_rests
from synthetic_run import a_run

from asyncli.findings.collected import heap_of_a_part
from asyncli.model import metrics
from asyncli.model.records import Finding, Sample
from asyncli.model.run import LEAST_PACE, Run
from asyncli.model.runtimes import Runtime
from asyncli.report.analyses import analyse
from asyncli.report.answer import beside_pass, one_line
from asyncli.report.cost_answer import answer, answers, heap_answer
from asyncli.report.summary import Summary, summarise
from asyncli.report.thresholds import judge, parse


def asked(leak_per_s: float = 0.0, after_drain: list[float] | None = None) -> Run:
    """A run with collections. ``after_drain``: what is alive at each of those after the drain, more than before the first connect."""
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5, plateau_s=12.0, hold_s=20.0, residue_s=12.0, noise=0.01)
    at_s = asked_in_rests(run)
    ask_for_collections(run, at_s, 3_000.0, leak_per_s)
    for place, kept in zip(at_s[-8:], after_drain or [], strict=False):
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        sample.values[metrics.RUNTIME_FORCED_BYTES] = 4e6 + kept
    return run


def finding(run: Run, code: str) -> Finding | None:
    for told in analyse(run).costs.heap.findings:
        if told.code == code:
            return told
    return None


def pace_of(run: Run) -> Any:
    return analyse(run).costs.residue.live_pace


def test_a_leak_by_the_clock_is_told_with_its_pace_and_no_run_again() -> None:
    run = asked(leak_per_s=100e3)
    pace = pace_of(run)
    assert pace.bytes_per_s == pytest.approx(100e3, rel=0.02)
    assert 0 < pace.ci95[0] <= 100e3 <= pace.ci95[1] < 110e3
    rises = finding(run, "live_rises")
    assert rises is not None
    assert rises.severity == "warning"
    assert "8.6 GB" in rises.evidence
    collected = finding(run, "collections_forced")
    assert collected is not None
    assert collected.fields["by_clock_bytes"] == pytest.approx(collected.fields["alive_bytes"], rel=0.1)
    assert collected.remedy == ""


@pytest.mark.parametrize(
    "after_drain",
    [
        # Nothing.
        [0.0] * 8,
        # What Go's pools keep or lose, as in a run of a server without a leak.
        [4.29e6, 468e3, 498e3, 498e3, 506e3, 463e3, 469e3, 506e3],
        # One thing, once.
        [2.6e6, 2.59e6, 2.59e6, 2.59e6, 2.59e6, 4.59e6, 4.59e6, 4.59e6],
        # What is loaded late: less each time.
        [100e3, 100e3, 100e3, 100e3, 300e3, 400e3, 440e3, 450e3],
        # A slow rise, as of a Node that has just begun to serve its page.
        [100e3 + 0.8 * LEAST_PACE * second for second in (0, 0, 0, 0, 1, 2, 3, 4)],
    ],
)  # fmt: skip
def test_what_rises_once_or_by_being_asked_is_no_leak_by_the_clock(after_drain: list[float]) -> None:
    run = asked(after_drain=after_drain)
    assert finding(run, "live_rises") is None
    # A limit on it is not crossed for certain.
    assert pace_of(run).ci95[0] <= 0
    collected = finding(run, "collections_forced")
    assert collected is not None
    assert collected.fields["by_clock_bytes"] is None


@pytest.mark.parametrize("by_the_clock", [False, True])
def test_what_asking_leaves_is_no_leak_by_the_clock(by_the_clock: bool) -> None:
    """A JVM keeps something of each collection for ten seconds. It comes with the collections that settle the heap too, which are closer."""
    run = asked()
    residue = run.phase("residue")
    assert residue is not None
    looks = [2, 3, 4, 5, 8, 11, 14, 17]
    run.samples = [sample for sample in run.samples if sample.t_s <= residue.start_s + 0.5]
    for number, second in enumerate(looks):
        risen = second if by_the_clock else 3 * number
        values = {metrics.RUNTIME_FORCED_BYTES: 4e6 + 30e3 * risen, metrics.RUNTIME_FORCED_S: 0.1}
        run.samples.append(Sample(residue.start_s + second, values))
    assert (finding(run, "live_rises") is not None) == by_the_clock


def test_fewer_looks_show_no_rise() -> None:
    run = asked(leak_per_s=100e3)
    with_collections = [sample for sample in run.samples if metrics.RUNTIME_FORCED_BYTES in sample.values]
    for sample in with_collections[-1:]:
        del sample.values[metrics.RUNTIME_FORCED_BYTES]
    assert finding(run, "live_rises") is None


def test_a_leak_by_the_clock_is_among_the_first_sentences_and_a_limit_names_it() -> None:
    run = asked(leak_per_s=100e3)
    summary = summarise(run)
    assert "live_rises" in beside_pass(summary)
    assert "the clock" in heap_answer(summary)
    document = msgspec.to_builtins(summary)
    limits = [parse(text, Summary) for text in ("residue.live_pace > 10kB/s", "residue.live_pace > 1MB/s")]
    assert [outcome.crossed for outcome in judge(limits, document)] == [True, False]


def with_threads(run: Run, stay: int, *, in_stacks: float, counted: bool = True) -> Run:
    """Each connection has a goroutine with 8 kB of stack, and ``stay`` goroutines of 2 kB are there after the drain; ``in_stacks``: what Go keeps then."""
    opened = 0.0
    for sample in run.samples:
        held = run.held.at(sample.t_s) or 0.0
        opened = max(opened, held)
        leaked = stay * opened / 450
        is_after = sample.t_s > run.stop_s
        sample.values[metrics.RUNTIME_STACKS_BYTES] = 450e3 + 8e3 * held + 2e3 * leaked + in_stacks * is_after
        if counted:
            sample.values[metrics.RUNTIME_GOROUTINES] = 7 + held + leaked
    return run


@pytest.mark.parametrize(
    ("stay", "in_stacks", "counted", "told"),
    [
        # The most that Go kept of 450 connections without a goroutine that stayed.
        (0, 623e3, True, None),
        (0, 623e3, False, None),
        (450, 0.0, True, 450),
        (450, 98e3, True, 450),
        # Nobody knows whether these are Go's own.
        (450, 0.0, False, None),
        # Some that a server starts at its first connection.
        (9, 400e3, True, None),
    ],
)  # fmt: skip
def test_goroutines_that_stay_are_told_and_stacks_that_go_keeps_are_not(stay: int, in_stacks: float, counted: bool, told: int | None) -> None:
    run = with_threads(asked(), stay, in_stacks=in_stacks, counted=counted)
    collected = finding(run, "collections_forced")
    assert collected is not None
    assert collected.fields["goroutines"] == told
    assert (collected.fields["stacks_bytes"] is not None) == (told is not None)
    stacks = 2e3 * stay + in_stacks
    assert analyse(run).costs.residue.stacks == pytest.approx(stacks)
    summary = summarise(run)
    assert ("goroutines that" in heap_answer(summary)) == (told is not None)
    limit = parse(f"residue.stacks > {stacks - 1e3:.0f}", Summary)
    [outcome] = judge([limit], msgspec.to_builtins(summary))
    assert outcome.crossed


def test_stacks_beyond_what_go_keeps_are_told_without_a_count() -> None:
    collected = finding(with_threads(asked(), 3_000, in_stacks=0.0, counted=False), "collections_forced")
    assert collected is not None
    assert (collected.fields["goroutines"], collected.fields["stacks_bytes"]) == (None, pytest.approx(6e6))
    assert collected.remedy


@pytest.mark.parametrize("residue_s", [5.0, 90.0])
def test_a_server_that_frees_late_is_to_be_waited_for(residue_s: float) -> None:
    """Its sessions linger, in each run again: only a longer wait tells them from a leak. After one, that is no remedy."""
    run = asked(after_drain=[2e6] * 8)
    run.plan = msgspec.structs.replace(run.plan, residue_s=residue_s)
    collected = finding(run, "collections_forced")
    assert collected is not None
    assert ("--residue 60s" in collected.remedy) == (residue_s < 60)
    assert "run again" in collected.remedy


@pytest.mark.parametrize("is_known", [True, False])
def test_the_first_number_is_one_to_use(is_known: bool) -> None:
    """Beside the slope of resident memory between forced collections, what is alive is."""
    run = asked()
    run.environment["server"] = {**run.environment["server"], "runtime": Runtime("go", "1.26", collected=True).document()}
    if not is_known:
        run.samples = [sample for sample in run.samples if metrics.RUNTIME_FORCED_BYTES not in sample.values]
    summary = summarise(run)
    assert (answers(summary)[0] == heap_answer(summary)) == is_known
    assert answers(summary) == [heap_answer(summary), answer(summary)] or not is_known
    assert ("keeps" in one_line(summary)) == is_known
    # Where the page does not count all of the server's memory, what it says is alive is less than a connection takes.
    summary.findings.append(heap_of_a_part(None, None, 86.9e3, 42.3e3))
    assert answers(summary)[0] == answer(summary)
