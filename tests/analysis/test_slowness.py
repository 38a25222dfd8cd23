"""Silences that nobody died of, and packets that were lost on the way."""

from __future__ import annotations

import pytest
from synthetic_run import a_run, spread

from asyncli.analysis.losses.slowness import sent_again, slow_answers, stalls
from asyncli.records import Deaths, Finding
from asyncli.run import Run


def silent(first: int, last: int) -> Run:
    """A hold in which nobody is answered in the seconds from ``first`` to ``last`` on the run's clock; 9 wait, then more."""
    run = a_run(1000)
    for t_s, tick in run.ticks:
        tick.awaiting = 1
        if first < t_s < last + 1:
            tick.answered, tick.awaiting = 0, 9
    return run


def found(run: Run) -> list[Finding]:
    return stalls(run)


def test_a_good_run_has_none() -> None:
    run = a_run(1000)
    assert found(run) == []
    assert sent_again(run) == []


def test_nobody_is_answered_for_three_seconds() -> None:
    (one,) = found(silent(30, 32))
    assert (one.code, one.severity) == ("no_answers", "warning")
    assert "from 0:00:29 to 0:00:32 (up to 9 waited, none was lost)" in one.evidence
    assert "its status page answered: looks like the network path was down" in one.evidence
    assert found(silent(30, 30)) == []


def test_what_tells_a_server_that_stands_still_from_a_way_that_is_cut() -> None:
    run = silent(30, 34)
    for sample in run.samples:
        if 29 < sample.t_s < 36:
            for name in [name for name in sample.values if name.startswith("status.")]:
                del sample.values[name]
            sample.values["server.cpu_s"] = 9.0
    (still,) = found(run)
    assert "nginx was stopped: its status page was silent and its processes used no CPU" in still.evidence
    run.environment["local"] = False
    for sample in run.samples:
        sample.values["tcp.RetransSegs"] = max(0.0, min(sample.t_s - 30, 5.0)) * 10
    (cut,) = found(run)
    assert "no packet was acknowledged" in cut.evidence


def test_a_server_that_counts_what_it_does_not_answer_is_slow() -> None:
    run = silent(30, 32)
    for sample in run.samples:
        if "status.requests" in sample.values:
            sample.values["status.requests"] = sample.values["status.polls"] + 30 * sample.t_s
    (one,) = found(run)
    assert "nginx counted 60 requests meanwhile" in one.evidence
    assert one.evidence.endswith("it was slow, or its answers were delayed")


@pytest.mark.parametrize("why", ["somebody died", "we stood still", "few waited"])
def test_silences_that_others_explain(why: str) -> None:
    run = silent(30, 33)
    for t_s, tick in run.ticks:
        if why == "somebody died" and 31 < t_s < 32:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
        elif why == "we stood still":
            tick.longest_turn_s = 0.9
        elif why == "few waited":
            tick.awaiting = min(tick.awaiting, 4)
    assert found(run) == []


def test_silences_by_the_dozen_are_counted() -> None:
    run = silent(0, 0)
    for t_s, tick in run.ticks:
        if 10 < t_s < 60 and int(t_s) % 5 < 3:
            tick.answered, tick.awaiting = 0, 9
    many = found(run)
    assert len(many) == 4
    assert many[-1].evidence == "... and 7 more stretches without an answer"


@pytest.mark.parametrize(("resent", "words"), [(5.0, "50 TCP segments between 0:00:29 and 0:00:40, up to 3%"), (0.5, None)])
def test_segments_that_were_sent_again(resent: float, words: str | None) -> None:
    # Over ten seconds of a minute, 5 % or half a percent of a hundred a second.
    run = a_run(1000)
    for sample in run.samples:
        sample.values["tcp.OutSegs"] = 95.0 * sample.t_s
        sample.values["tcp.RetransSegs"] = 3.0 + resent * max(0.0, min(sample.t_s - 30.0, 10.0))
    told = sent_again(run)
    assert [one.code for one in told] == (["packets_sent_again"] if words else [])
    assert all(words in one.evidence for one in told if words)


# -- answers that came late


def slow(first: int, last: int, us: int = 800_000) -> Run:
    """A hold in which every answer takes so long in the seconds from ``first`` to ``last`` on the run's clock."""
    run = a_run(1000)
    for t_s, tick in run.ticks:
        if first < t_s < last + 1:
            tick.latency_us = spread(us, tick.answered)
    return run


def told(run: Run) -> list[Finding]:
    return slow_answers(run)


def test_when_answers_came_late_is_said() -> None:
    (one,) = told(slow(30, 33))
    assert (one.code, one.severity) == ("answers_slow", "warning")
    assert "from 0:00:29 to 0:00:33: median 799 ms, 0.421 ms at best" in one.evidence
    twice = slow(30, 33)
    for t_s, tick in twice.ticks:
        if 40 < t_s < 45:
            tick.latency_us = spread(800_000, tick.answered)
    (both,) = told(twice)
    assert "1 more such stretches, 9 s in total" in both.evidence


def test_of_a_run_of_before_the_latencies_are_of_answers_alone() -> None:
    # Half of each second's heartbeats broke; the newer histogram has them too, and then half of it is no answer.
    old, new = slow(30, 33), slow(30, 33)
    for run, per in ((old, 1), (new, 2)):
        for _, tick in run.ticks:
            tick.beats_failed = tick.answered
            tick.latency_us.merge(spread(10_000_000, tick.answered * (per - 1)))
    (found,) = told(old)
    assert "0.421 ms at best" in found.evidence
    assert [one.fields["usual_s"] for one in told(new)] == [found.fields["usual_s"]]


@pytest.mark.parametrize("why", ["never", "not for long", "always", "not by much", "we were late", "given up", "nobody was answered"])
def test_latencies_that_are_no_spell(why: str) -> None:
    first, last = {"never": (900, 901), "not for long": (30, 31), "always": (0, 900)}.get(why, (30, 33))
    run = slow(first, last, 60_000 if why == "not by much" else 800_000)
    for t_s, tick in run.ticks:
        if why == "we were late":
            tick.lateness_us = tick.latency_us
        elif why == "given up" and 35 < t_s < 36:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
        elif why == "nobody was answered" and 28 < t_s < 29:
            tick.answered, tick.awaiting = 0, 9
    assert told(run) == []
