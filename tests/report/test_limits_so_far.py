"""The limits while a run lasts are the report's: the same for terminal, page, metrics, and the soak that they end."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from made_runs import KINDS
from programs import until
from prometheus_client.parser import text_string_to_metric_families
from recording import new_run, write_run
from synthetic_run import a_run

from asyncli.analysis.worsening import Worsening
from asyncli.live import page_state
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed
from asyncli.live.following import fold_news
from asyncli.model.plan import Plan
from asyncli.model.records import Deaths, EventCounts, Phase, RunEvent, Tick
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.cost_so_far import cost_so_far
from asyncli.report.limits_so_far import LimitNews, LimitSoFar, LimitsSoFar, limit_so_far
from asyncli.report.live_thresholds import unwatched
from asyncli.report.livestate import LiveFold, LiveObserver
from asyncli.report.summary import Summary, limits_of, summarise
from asyncli.report.thresholds import Outcome, judge_worsening, parse
from asyncli.store.follow import Follower
from asyncli.store.reader import read_run

LIMITS = (
    "lost > 0.1%", "lost < 5", "connections.deaths.reset >= 3", "connections.failures.refused > 0", "connections.opened > 100", "reopened > 0",
    "heartbeats.failed > 0.001%", "heartbeats.sent > 10", "heartbeats.answered < 10", "heartbeats.by_status.200 > 1", "heartbeats.by_status.502 > 0",
    "heartbeats.latency_ms.max > 3ms", "heartbeats.lateness_ms.max > 1s", "ramp.lateness_ms.max > 1s",
    "heartbeats.latency_ms.p99 > 1us", "server_user > 1kB", "held < 1",
)  # fmt: skip


def a_limited_run(hold_s: float = 60.0) -> Run:
    """A run that lost a few connections, and has a limit of each kind."""
    run = a_run(200, hold_s=hold_s, fail_if=LIMITS)
    middle = len(run.ticks) // 2
    for _, tick in run.ticks[middle : middle + 3]:
        tick.deaths["reset"] = Deaths(1)
        tick.beats_failed += 1
        tick.failures["refused"] = 1
        tick.by_status[502] = 1
        tick.latency_us.add(7000)
    return run


def followed(path: Path) -> LiveFold:
    """As ``asyncli watch`` does that begins now."""
    news = Follower(path).news()
    fold = LiveFold(news.plan)
    fold_news(fold, news)
    return fold


def test_at_the_end_each_is_as_the_report_says(tmp_path: Path) -> None:
    run = a_limited_run()
    outcomes, _ = limits_of(run, summarise(run), analyse(run))
    expected = [(outcome.threshold.text, outcome.value, outcome.crossed, outcome.amount) for outcome in outcomes]
    assert len(expected) == len(LIMITS)
    assert {crossed for _, _, crossed, _ in expected} == {True, False}
    # Tick by tick, as the running soak has it, and by a view that began in the middle, which sums what it did not see.
    limits = LimitsSoFar(run.plan)
    for _, tick in run.ticks:
        limits.tick(tick)
    limits.computed(cost_so_far(run).limits, None)
    fold = followed(write_run(run, tmp_path / "run.db"))
    fold.cost(cost_so_far(run))
    for state in (limits.state(), fold.state().limits):
        assert [(limit.text, limit.value, limit.is_crossed, limit.amount) for limit in state] == expected


def test_a_view_that_begins_late_knows_at_once_what_counts_tell(tmp_path: Path) -> None:
    run = a_limited_run()
    limits = LimitsSoFar(run.plan)
    for _, tick in run.ticks:
        limits.tick(tick)
    late = followed(write_run(run, tmp_path / "run.db")).state().limits
    assert late == limits.state()
    unknown = [limit.text for limit in late if limit.value is None]
    assert unknown == list(LIMITS[-2:])


def test_a_quantile_is_as_old_as_the_last_second_and_a_cost_says_how_old_it_is(tmp_path: Path) -> None:
    run = a_run(200, hold_s=40.0, fail_if=("latency_ms.p99 > 100ms", "server_user > 1kB"))
    middle = len(run.ticks) // 2
    fold = LiveFold(run.plan)
    for t_s, tick in run.ticks[:middle]:
        fold.tick(t_s, tick)
    fold.cost(cost_so_far(run))
    at_s = run.end_s
    before, cost = fold.state().limits
    assert (before.at_s, cost.at_s) == (None, at_s)
    for t_s, tick in run.ticks[middle:]:
        for _ in range(tick.latency_us.count):
            tick.latency_us.add(500_000)
        fold.tick(t_s, tick)
    after, cost = fold.state().limits
    assert before.is_crossed is False
    assert after.is_crossed is True
    assert after.value == pytest.approx(summarise(run).heartbeats.latency_ms.p99)
    assert cost.at_s == at_s
    # Page and metrics.
    feed = RunFeed(write_run(run, tmp_path / "run.db"))
    feed.open(with_cost=False)
    try:
        assert feed._fold is not None
        feed._fold.cost(msgspec.structs.replace(cost_so_far(run), at_s=feed.state.elapsed_s - 11.0))
        shown = page_state.state_of(feed)["limits"]
        page, _ = exposition(feed, "")
    finally:
        feed.close()
    assert [row["age_s"] for row in shown] == [None, 11.0]
    ages = []
    for family in text_string_to_metric_families(page.decode()):
        if family.name == "asyncli_limit_age_seconds":
            ages = [sample.value for sample in family.samples]
    assert ages == [0.0, pytest.approx(11.0)]


def test_who_is_not_back_yet_crosses_no_limit_while_the_hold_lasts() -> None:
    limits = ("events.1.not_back > 10", "events.1.back.all_s > 3s")
    run = msgspec.structs.replace(KINDS["provoked"](), complete=True)
    run.plan = msgspec.structs.replace(run.plan, fail_if=limits)
    storm = next(tick.events[1] for _, tick in run.ticks if 1 in tick.events)
    storm.ended += 100
    at_the_end = {limit.text: limit.is_crossed for limit in cost_so_far(run).limits}
    assert at_the_end == {limits[0]: True, limits[1]: True}
    run.phases = [phase for phase in run.phases if phase.name in ("baseline", "ramp", "hold")]
    run.complete = False
    in_the_hold = {limit.text: limit.is_crossed for limit in cost_so_far(run).limits}
    # That some were not back after so long stays so.
    assert in_the_hold == {limits[0]: None, limits[1]: True}
    # So is it of those whom the server has not noticed yet.
    silent = Outcome(parse("events.1.noticed.left > 10", Summary), 20.0, crossed=True)
    assert (limit_so_far(silent).is_crossed, limit_so_far(silent, is_held=True).is_crossed) == (True, None)


def test_how_many_are_held_is_known_at_the_holds_end() -> None:
    """A planned storm keeps clients away that come back."""
    threshold = parse("connections.held < 990", Summary)
    outcome = Outcome(threshold, 900.0, True)
    limit = limit_so_far(outcome, is_held=True)
    assert (limit.value, limit.is_crossed, limit_so_far(outcome).is_crossed) == (900.0, None, True)


def test_a_limit_is_news_when_it_is_crossed_and_when_it_is_kept_again_once_a_minute() -> None:
    def at(value: float) -> tuple[LimitSoFar, ...]:
        return (LimitSoFar("p99 > 50", "p99", 50.0, value, f"{value:g} ms", value > 50, is_from_above=True),)

    news = LimitNews()
    told = []
    for at_s, value in enumerate([40.0, 60.0, *[40.0, 60.0] * 100, *[40.0] * 70]):
        told += [(at_s, finding.code) for finding in news.of(at(value), float(at_s), at_s - 1.0)]
    assert told == [(1, "limit_crossed"), (62, "limit_kept"), (123, "limit_crossed"), (184, "limit_kept")]


@pytest.mark.parametrize(("ticks", "told"), [((11.0, 12.0, 22.0), [(12.0, False)]), ((46.0, 47.0), [(46.0, True)])])
def test_of_seconds_that_are_read_as_one_sum_a_crossing_has_no_time(ticks: tuple[float, ...], told: list[tuple[float, bool]]) -> None:
    """Such as those before a view began."""
    fold = LiveFold(Plan(urls=("http://a/",), connections=100, fail_if=("lost > 2",)))
    fold.phase(Phase("ramp", 10.0))
    for t_s in ticks:
        lost = {"reset": Deaths(3)} if t_s > 11.0 else {}
        fold.tick(t_s, Tick(held=97, deaths=lost))
    assert [(notice.t_s, notice.finding.fields["by_then"]) for notice in fold.state().findings] == told


def test_a_page_that_is_opened_later_knows_not_when_a_limit_was_crossed(tmp_path: Path) -> None:
    plan = Plan(urls=("http://a/",), connections=100, fail_if=("lost > 2",))
    writer = new_run(tmp_path / "run.db", plan, started_s=time.time())
    writer.phase(Phase("ramp", 0.0))
    for second in range(1, 41):
        lost = {"reset": Deaths(3)} if second == 2 else {}
        writer.tick(float(second), Tick(second=second, held=97, deaths=lost))
    until(lambda: len(read_run(tmp_path / "run.db").ticks) == 40, "all is written")
    feed = RunFeed(tmp_path / "run.db")
    feed.open(with_cost=False)
    try:
        feed.take(feed.read())
        assert [finding.fields["by_then"] for _, finding in feed.findings if finding.code == "limit_crossed"] == [True]
    finally:
        feed.close()
        writer.close(True)


def test_the_page_has_a_crossed_limit_among_its_findings(tmp_path: Path) -> None:
    plan = Plan(urls=("http://a/",), connections=100, fail_if=("lost > 2",))
    writer = new_run(tmp_path / "run.db", plan, started_s=time.time())
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(held=100, opened=100))
    until(lambda: (tmp_path / "run.db").stat().st_size, "the run begins")
    feed = RunFeed(tmp_path / "run.db")
    feed.open(with_cost=False)
    try:
        feed.take(feed.read())
        assert page_state.state_of(feed)["findings"] == []
        writer.tick(2.0, Tick(held=97, deaths={"reset": Deaths(3)}))
        until(lambda: feed.take(feed.read()) or feed.state.lost, "the loss is read")
        (finding,) = page_state.state_of(feed)["findings"]
    finally:
        feed.close()
        writer.close(False)
    assert (finding["at_s"], finding["severity"]) == (2.0, "error")
    assert plan.fail_if[0] in finding["evidence"]


def test_page_and_metrics_have_the_same_limits_as_the_terminal(tmp_path: Path) -> None:
    run = a_limited_run(hold_s=30.0)
    path = write_run(run, tmp_path / "run.db")
    feed = RunFeed(path)
    feed.open()
    try:
        until(lambda: feed.take(feed.read()) or feed.is_final, "the last cost")
        shown = page_state.state_of(feed)["limits"]
        page, _ = exposition(feed, "")
        limits = feed.state.limits
    finally:
        feed.close()
    outcomes, _ = limits_of(run, summarise(run), analyse(run))
    assert [(limit.text, limit.value, limit.is_crossed) for limit in limits] == [
        (outcome.threshold.text, outcome.value, outcome.crossed) for outcome in outcomes
    ]
    assert [(row["text"], row["amount"], row["crossed"]) for row in shown] == [
        (limit.text, limit.amount, limit.is_crossed) for limit in limits
    ]
    crossed = {}
    for family in text_string_to_metric_families(page.decode()):
        if family.name == "asyncli_limit_crossed":
            crossed = {sample.labels["limit"]: sample.value for sample in family.samples}
    assert crossed == {limit.text: float(limit.is_crossed) for limit in limits if limit.is_crossed is not None}


@pytest.mark.parametrize("text", ["lost > 0.1%", "connections.deaths.reset >= 3", "heartbeats.latency_ms.max > 3ms"])
def test_a_soak_ends_in_the_second_in_which_its_views_show_a_limit_as_crossed(text: str) -> None:
    run = a_limited_run()
    plan = Plan(urls=run.plan.urls, connections=200, fail_if=(text,), abort=True)
    observer = LiveObserver(plan)
    reasons: list[str] = []
    observer.stop = reasons.append
    for t_s, tick in run.ticks:
        observer.tick(t_s, tick)
        (limit,) = observer.fold.state().limits
        assert bool(reasons) == limit.is_crossed
        if reasons:
            assert limit.words in reasons[0]
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize(("status", "ends"), [(0, False), (3, True), (None, False)])
def test_a_command_that_failed_ends_the_run_at_once(status: int | None, ends: bool) -> None:
    """Where a limit on its status is to; a limit on the other command is kept."""
    limits = ("events.1.status > 0", "events.2.status > 0", "events.1.back.all_s > 5s")
    plan = Plan(urls=("http://a/",), connections=100, events=("5s run ./deploy", "9s run ./check"), fail_if=limits, abort=True)
    assert unwatched(plan) == []
    observer = LiveObserver(plan)
    reasons: list[str] = []
    observer.stop = reasons.append
    observer.event(RunEvent("run", 5.0, None, "./deploy", {"number": 1}))
    assert reasons == []
    observer.event(RunEvent("run", 5.0, 6.0, "./deploy", {"number": 1, "status": status, "took_s": 1.0, "output": ""}))
    assert len(reasons) == ends
    state = observer.fold.state()
    assert [limit.is_crossed for limit in state.limits] == [None if status is None else ends, None, None]
    assert ["limit_crossed" in {notice.finding.code for notice in state.findings}, bool(reasons)] == [ends, ends]


def test_what_an_earlier_session_lost_is_shown_and_does_not_end_this_one() -> None:
    plan = Plan(urls=("http://a/",), connections=100, fail_if=("lost > 10",), abort=True)
    observer = LiveObserver(plan)
    reasons: list[str] = []
    observer.stop = reasons.append
    observer.resumed(0.5, Tick(opened=100, deaths={"generator_lost": Deaths(100)}))
    observer.tick(1.0, Tick(opened=100))
    (limit,) = observer.fold.state().limits
    assert (limit.value, limit.is_crossed, reasons) == (100, True, [])
    observer.tick(2.0, Tick(deaths={"reset": Deaths(11)}))
    assert len(reasons) == 1


def test_a_limit_of_another_version_has_no_state(tmp_path: Path) -> None:
    plan = Plan(urls=("http://a/",), fail_if=("lost > 1", "no.such.key > 1"))
    writer = new_run(tmp_path / "run.db", plan)
    writer.phase(Phase("baseline", 0.0, None))
    writer.tick(1.0, Tick(opened=1))
    writer.close(False)
    (limit,) = followed(tmp_path / "run.db").state().limits
    assert limit.text == plan.fail_if[0]


ALL_BACK = "events.1.back.all_s > 4s"
STORMED = Plan(urls=("http://a/",), connections=100, events=("5s storm",), abort=True)


def stormed(limit: str, back_s: float | None, *, held_by_silent: int = 0, phase: str = "hold") -> tuple[float | None, LiveFold]:
    """All 100 clients are ended at 10 s; half are back within a second, the others ``back_s`` after it. When an observer ends the run."""
    observer = LiveObserver(msgspec.structs.replace(STORMED, fail_if=(limit,)))
    seconds: list[float] = []
    observer.phase(Phase("hold", 5.0))
    for second in range(6, 40):
        t_s = second + 0.1
        observer.stop = lambda _because, t_s=t_s: seconds.append(t_s)  # type: ignore[misc]
        tick = Tick(second=second, held=100)
        if second == 10:
            observer.event(RunEvent("storm", 10.0, None, "storm", {"number": 1}))
        if second == 11:
            tick.events[1] = EventCounts(chosen=100, ended=100, clients=100, attempts=50, opened=50)
            for _ in range(50):
                tick.events[1].back_ms.add(500)
                tick.events[1].away_ms.add(500)
            if phase != "hold":
                observer.phase(Phase("drain", 11.0))
        if back_s is not None and second == 11 + int(back_s):
            tick.events[1] = EventCounts(attempts=50, opened=50)
            for _ in range(50):
                tick.events[1].back_ms.add(round(1e3 * back_s))
                tick.events[1].away_ms.add(round(1e3 * back_s))
        if second >= 11 and (back_s is None or second < 11 + int(back_s)):
            tick.held = 50 - held_by_silent
        observer.tick(t_s, tick)
    return (seconds[0] if seconds else None), observer.fold


@pytest.mark.parametrize(
    ("limit", "back_s", "ends_s"),
    [
        # They were not back in that time, and no worker was silent that long.
        ("events.1.back.all_s > 4s", None, 19.1),
        ("events.1.back.p90_s > 4s", 20.0, 19.1),
        # Half were back in time.
        ("events.1.back.p50_s > 4s", None, None),
        # They were back, and it is known how late.
        ("events.1.back.all_s > 4s", 5.5, 16.1),
        ("events.1.back.all_s > 4s", 3.5, None),
        # Of those who are away it is known in which second they were ended.
        ("events.1.away.max_s > 4s", None, 20.1),
        ("events.1.away.max_s > 4s", 5.5, 16.1),
        ("events.1.away.max_s > 4s", 3.5, None),
        # A later end may be back sooner.
        ("events.1.away.p99_s > 4s", None, None),
        # Judged at the end.
        ("events.1.back.all_s < 4s", None, None),
        ("events.1.not_back > 4", None, None),
    ],
)
def test_a_time_back_that_is_surely_over_its_limit_ends_the_run(limit: str, back_s: float | None, ends_s: float | None) -> None:
    end_s, fold = stormed(limit, back_s)
    assert end_s == ends_s
    assert [state.is_crossed for state in fold.state().limits] == [None if ends_s is None else True]
    told = [notice.t_s for notice in fold.state().findings if notice.finding.code == "limit_crossed"]
    assert told == [] if ends_s is None else [ends_s]
    is_judged_at_the_end = any(part in limit for part in ("< 4s", "not_back", "p99_s"))
    assert bool(unwatched(msgspec.structs.replace(STORMED, fail_if=(limit,)))) == is_judged_at_the_end


def test_one_number_is_told_of_a_time_back_that_ends_the_run() -> None:
    """What is computed meanwhile of the records so far counts up to their last second, and is not sure yet."""
    limit = LimitSoFar(ALL_BACK, "events.1.back.all_s", 4.0, 7.0, "more than 7 s, as far as the hold goes", True, stays_crossed=True, is_from_above=True)
    fold = LimitsSoFar(msgspec.structs.replace(STORMED, fail_if=(ALL_BACK,)))
    fold.tick(Tick(held=100), 9.1)
    # Of an event that began before the records nothing else tells.
    fold.computed((limit,), 9.5)
    assert [state.is_crossed for state in fold.state()] == [True]
    fold.event(RunEvent("storm", 10.0, None, "storm", {"number": 1}))
    fold.tick(Tick(held=0, events={1: EventCounts(chosen=100, ended=100, attempts=100)}), 11.1)
    fold.computed((limit,), 17.0)
    assert [state.is_crossed for state in fold.state()] == [None]
    assert fold.crossed() is None
    fold.tick(Tick(held=0), 19.2)
    told = fold.crossed()
    assert told is not None
    assert (told.words.count("more than"), "that time" in told.words) == (1, True)


@pytest.mark.parametrize("limit", [ALL_BACK, "events.1.away.max_s > 4s"])
def test_clients_of_a_silent_worker_may_be_back(limit: str) -> None:
    end_s, _ = stormed(limit, None, held_by_silent=10)
    assert end_s is None


def test_of_those_who_are_away_the_last_may_be_all() -> None:
    """A deploy ends ten each second, of whom each but the last ten is back: nobody is away for longer than since the last of them left."""
    observer = LiveObserver(msgspec.structs.replace(STORMED, events=("5s run ./deploy",), fail_if=("events.1.away.max_s > 4s",)))
    stopped_s: list[float] = []
    for second in range(6, 40):
        t_s = second + 0.1
        observer.stop = lambda _because, t_s=t_s: stopped_s.append(t_s)  # type: ignore[misc]
        tick = Tick(second=second, held=100 if second < 11 else 90)
        if second == 10:
            observer.event(RunEvent("run", 10.0, None, "run ./deploy", {"number": 1}))
        if 11 <= second <= 20:
            came = 0 if second == 11 else 10
            tick.events[1] = EventCounts(chosen=10, ended=10, clients=10, attempts=came, opened=came)
            for _ in range(came):
                tick.events[1].back_ms.add(1000 * (second - 10))
                tick.events[1].away_ms.add(900)
        observer.tick(t_s, tick)
    # The last ten left by 20.1 s, and a worker may tell five seconds later that they were back.
    assert stopped_s[0] == 30.1


def test_in_the_drain_nobody_has_time_to_be_back() -> None:
    end_s, _ = stormed(ALL_BACK, None, phase="drain")
    assert end_s is None


def test_of_an_event_before_the_first_tick_too_little_is_known() -> None:
    """As of a soak that was resumed."""
    observer = LiveObserver(msgspec.structs.replace(STORMED, fail_if=("events.1.back.all_s > 4s",)))
    observer.stop = pytest.fail
    observer.event(RunEvent("storm", 4.0, None, "storm", {"number": 1}))
    for second in range(6, 40):
        tick = Tick(second=second, held=0)
        if second == 6:
            tick.events[1] = EventCounts(chosen=100, ended=100)
        observer.tick(second + 0.1, tick)
    assert [limit.is_crossed for limit in observer.fold.state().limits] == [None]


@pytest.mark.parametrize(("ends_run", "told"), [(False, ["limit_crossed"]), (True, [])])
def test_a_limit_that_may_be_kept_again_is_no_news_where_a_crossed_one_ends_the_run(ends_run: bool, told: list[str]) -> None:
    limit = LimitSoFar("p99 > 50", "p99", 50.0, 60.0, "60 ms", True, is_from_above=True)
    lasting = msgspec.structs.replace(limit, stays_crossed=True)
    assert [finding.code for finding in LimitNews(ends_run=ends_run).of((limit,), 1.0, 0.0)] == told
    assert [finding.code for finding in LimitNews(ends_run=ends_run).of((lasting,), 1.0, 0.0)] == ["limit_crossed"]


@pytest.mark.parametrize(("text", "difference", "share"), [("cost.server_user worse by 3%", 30.0, 1.0), ("cost.server_user worse by 50B", 20.0, 0.4), ("cost.server_user worse by 3%", -30.0, 0.0)])
def test_of_the_bound_on_what_is_worse_the_difference_is_used(text: str, difference: float, share: float) -> None:
    worsening = Worsening(value=1000.0 + difference, before=1000.0, difference=difference, low=-90.0, high=90.0, over=1.0, runs=1)
    limit = limit_so_far(judge_worsening(parse(text, Summary), worsening))
    assert limit.share == pytest.approx(share)
    of_four, of_none = (limit_so_far(Outcome(parse(text, Summary), 3.0, None)) for text in ("lost > 4", "lost > 0"))
    assert (of_four.share, of_none.share) == (0.75, None)
