"""What an event did, from the server's counts and memory over time."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import Provoked, ServerPrice, SpentDescriptors, provoked
from asyncli.core.histogram import Histogram
from asyncli.findings.probes import server_master_ended
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import CHURN, Deaths, EventCounts, Gap, Phase, RunEvent, Sample, TcpCounts, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Samples, Series
from asyncli.report import document as doc
from asyncli.report.run_provoked import _back, _others, event_blocks
from asyncli.report.summary import Summary, summarise
from asyncli.report.summary_parts import EventPart
from asyncli.report.thresholds import judge, parse

MB = 1_000_000.0
#: The event is 15 s into the hold, on the run's clock 20.2 s: readings come at whole seconds, and ticks end 0.2 s after.
AT_S = 20.2
INTO_HOLD_S = 15.0
CLIENTS = 200
SILENT = 50


def vanished(count: Callable[[float], float], *, sockets_unread: bool = False, back_s: float = 4.5) -> Run:
    """50 of 200 clients fall silent for 3 s and are connected anew after ``back_s``; ``count``: the silent ones that the server has, by the
    seconds since."""
    words = "vanish 25% for 3s then reconnect"
    ticks = []
    for second in range(6, 40):
        t_s = second + 0.2
        tick = Tick(second=second, held=CLIENTS, workers=1)
        after_s = t_s - AT_S
        if 0 < after_s < back_s:
            tick.held -= SILENT
        if after_s == pytest.approx(1.0):
            tick.events[1] = EventCounts(chosen=SILENT, ended=SILENT, silenced=SILENT)
        if back_s <= after_s < back_s + 1.0:
            tick.events[1] = EventCounts(attempts=SILENT, opened=SILENT)
            for _ in range(SILENT):
                tick.events[1].back_ms.add(1000)
        ticks.append((t_s, tick))
    samples = []
    for second in range(40):
        after_s = second - AT_S
        ours = 0.0 if second < 6 else float(CLIENTS)
        if 0 < after_s < back_s:
            ours -= SILENT
        if after_s > 0:
            ours += count(after_s)
        values = {metrics.SERVER_DESCRIPTORS: ours + 7}
        if not sockets_unread or second < 6:
            values[metrics.SERVER_SOCKETS] = ours
        samples.append(Sample(float(second), values))
    return held_run(ticks, samples, words, "vanish")


def held_run(ticks: list[tuple[float, Tick]], samples: list[Sample], words: str, kind: str, *, into_hold_s: float = INTO_HOLD_S) -> Run:
    hold_s = AT_S - into_hold_s
    phases = [Phase("baseline", 0, hold_s - 1), Phase("ramp", hold_s - 1, hold_s), Phase("hold", hold_s, 39), Phase("drain", 39, 40)]
    plan = Plan(urls=("http://127.0.0.1/",), connections=CLIENTS, hold_s=34.0, events=(f"{into_hold_s:g}s {words}",))
    event = RunEvent(kind, AT_S, None, words, {"number": 1})  # type: ignore[arg-type]
    return Run("", "", plan, {"local": True}, phases, ticks, samples, [], [], complete=True, events=[event])


def told(run: Run) -> Provoked:
    # A run keeps what it has computed of its records, which the tests change.
    run = msgspec.structs.replace(run)
    return provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1]


def test_what_was_sent_again_counts_with_the_event_of_its_client() -> None:
    """In its silence and on the way back, whenever that was seen; and what others began in its time, but not what they had begun before."""
    run = vanished(until_back)
    for t_s, tick in run.ticks:
        if t_s == AT_S + 1.0:
            tick.tcp = TcpCounts(segments=7, begun={tick.second - 4: 4, tick.second: 3})
        if t_s == AT_S + 15.0:
            tick.events[1] = EventCounts(sent_again={tick.second - 8: 20}, sent_again_silent=100)
            tick.tcp = TcpCounts(segments=20)
    assert told(run).segments_sent_again == 3 + 20 + 100


def noticed_in(run: Run) -> Noticed | None:
    return told(run).noticed


@pytest.mark.parametrize(("says_all", "known"), [(True, True), (False, False)])
def test_the_descriptors_of_one_worker_are_not_those_of_the_server(says_all: bool, known: bool) -> None:
    """Of two workers, whose descriptors are all that was read in that time, one let half of the silent clients go."""
    run = vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, sockets_unread=True)
    for sample in run.samples:
        opened = sample.values[metrics.SERVER_DESCRIPTORS]
        sample.values |= {metrics.SERVER_PROCESSES: 2.0, metrics.SERVER_DESCRIPTORS: 7 + (opened - 7) / 2}
        if says_all:
            sample.values[metrics.SERVER_DESCRIPTORS_OPEN] = opened
    found = noticed_in(run)
    assert found is not None
    if known:
        assert (found.all_s, found.left) == (pytest.approx(2.0, abs=1.0), 0)
    else:
        assert (found.why, found.left) == ("not_read", None)


def until_back(after_s: float) -> float:
    return SILENT if after_s < 4.5 else 0.0


def test_who_lets_the_silent_go_as_they_come_back_has_not_noticed() -> None:
    found = noticed_in(vanished(until_back))
    assert found is not None
    assert (found.at_reconnect, found.left) == (True, 0)
    assert found.p50_s == found.all_s == pytest.approx(4.8)


def test_who_lets_them_go_before_has_noticed() -> None:
    found = noticed_in(vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0))
    assert found is not None
    assert (found.at_reconnect, found.all_s) == (False, pytest.approx(2.8))


def with_churn(run: Run, *, straggler: int = 0, goes: int = 2) -> Run:
    """The run with so many clients that churn ends and others that replace them in each second: one is back as the server is read, before the
    event, and none later."""
    before_s = AT_S
    for _, tick in run.ticks:
        tick.events[CHURN] = EventCounts(ended=goes, opened=goes)
        # One second in five nobody came back: who is held as it ends was there as it was read.
        if tick.second % 5 == 0:
            tick.events[CHURN] = EventCounts(ended=goes)
    for sample in run.samples:
        if sample.t_s > 6:
            away = 1.0 if before_s - 2 < sample.t_s < before_s else 0.0
            extra = straggler if sample.t_s > before_s + 2 else 0
            for name in (metrics.SERVER_SOCKETS, metrics.SERVER_DESCRIPTORS):
                sample.values[name] += extra - away
    return run


def test_what_churn_has_away_as_the_server_is_read_is_no_straggler() -> None:
    """By the last reading before the event it seemed to have one connection less than are held, and so one silent one later."""
    found = noticed_in(with_churn(vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, back_s=30.0)))
    assert found is not None
    assert (found.p50_s, found.all_s, found.left) == (pytest.approx(1.8, abs=1.1), None, None)
    assert found.left_after_s is not None
    assert found.all_at_most_s is not None
    assert found.left_after_s < 2.0 <= found.all_at_most_s <= 8.0


def test_a_limit_beside_churn_is_decided_by_when_it_surely_held_one_and_none() -> None:
    run = with_churn(vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, back_s=30.0))
    document = msgspec.to_builtins(summarise(msgspec.structs.replace(run)))
    outcomes = judge([parse(f"events.1.noticed.all_s > {bound}s", Summary) for bound in (1, 3, 15)], document)
    assert [outcome.crossed for outcome in outcomes] == [True, None, False]


def test_a_straggler_beside_churn_is_one_where_it_outnumbers_who_come_and_go() -> None:
    found = noticed_in(with_churn(vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, back_s=30.0), straggler=5))
    assert found is not None
    assert (found.all_s, found.all_at_most_s) == (None, None)
    assert found.left == pytest.approx(5, abs=2)


@pytest.mark.parametrize(("held", "crossed"), [(3, None), (5, None), (12, True)])
def test_stragglers_beside_churn_do_not_say_when_nine_in_ten_were_noticed(held: int, crossed: bool | None) -> None:
    """Of 50 silent ones the server holds so many to the end, and four more or fewer may be churn's: a tenth, or more."""
    run = with_churn(vanished(lambda after_s: SILENT if after_s < 2.0 else float(held), back_s=30.0))
    found = noticed_in(run)
    assert found is not None
    assert (found.p50_s, found.p90_s, found.all_s) == (pytest.approx(2.8), None, None)
    document = msgspec.to_builtins(summarise(msgspec.structs.replace(run)))
    outcomes = judge([parse(f"events.1.noticed.{time} > 15s", Summary) for time in ("p90_s", "all_s")], document)
    assert [outcome.crossed for outcome in outcomes] == [crossed, True]


def test_what_the_server_has_beside_churned_connections_may_have_changed_in_the_hold() -> None:
    """Five more descriptors, as of logs, since a while before the event: earlier readings tell nothing of these."""
    run = vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, sockets_unread=True, back_s=30.0)
    for _, tick in run.ticks:
        tick.events[CHURN] = EventCounts(ended=2, opened=2)
        # At last who had been ended before comes back.
        if tick.second > 30:
            tick.events[CHURN] = EventCounts(opened=2)
    for sample in run.samples:
        both_away = 6 < sample.t_s < AT_S and sample.t_s % 2 == 0
        log_files = 5 if sample.t_s >= 14 else 0
        sample.values[metrics.SERVER_DESCRIPTORS] += log_files - 2 * both_away
    found = noticed_in(run)
    assert found is not None
    assert (found.left, found.left_after_s) == (None, pytest.approx(1.8))


def test_as_many_as_half_may_be_hidden_by_churn() -> None:
    found = noticed_in(with_churn(vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0, back_s=30.0), goes=40))
    assert found is not None
    assert (found.why, found.p50_s, found.left) == ("churn", None, None)


def test_who_holds_them_has_noticed_none() -> None:
    found = noticed_in(vanished(lambda _: SILENT))
    assert found is not None
    assert (found.at_reconnect, found.p50_s, found.left) == (False, None, SILENT)


def test_who_is_heard_again_on_the_same_connection_was_not_noticed() -> None:
    run = vanished(lambda after_s: SILENT if after_s < 4.5 else 0.0)
    run.plan = msgspec.structs.replace(run.plan, events=("15s vanish 25% for 4.2s then return",))
    found = noticed_in(run)
    assert found is not None
    assert (found.p50_s, found.left) == (None, SILENT)


def test_an_event_that_the_hold_s_end_cut_short_says_so() -> None:
    run = vanished(lambda _: SILENT)
    assert told(run).cut_after_s is None
    run.plan = msgspec.structs.replace(run.plan, events=("15s vanish 25% for 20s then reconnect",))
    assert told(run).cut_after_s == pytest.approx(39 - AT_S)


def heard_again(count: Callable[[float], float], *, were_back: bool = True, again_s: float = 3.9) -> Run:
    """The clients return on the same connections after 4.2 s, which counts in the second that ends ``again_s`` or later after the event.
    ``were_back``: they have their answers in that second."""
    run = vanished(count, back_s=again_s)
    run.plan = msgspec.structs.replace(run.plan, events=("15s vanish 25% for 4.2s then return",))
    for _, tick in run.ticks:
        if 1 in tick.events and tick.events[1].opened:
            back_ms = tick.events[1].back_ms if were_back else Histogram()
            tick.events[1] = EventCounts(attempts=SILENT, returned=SILENT, back_ms=back_ms)
    return run


def until_heard(after_s: float) -> float:
    return SILENT if after_s < 3.9 else 0.0


@pytest.mark.parametrize("were_back", [True, False])
def test_who_is_heard_again_in_the_second_of_a_reading_was_silent_then(were_back: bool) -> None:
    """They are held as that second ends, and were not as it was read."""
    found = noticed_in(heard_again(until_heard, were_back=were_back))
    assert found is not None
    assert (found.p50_s, found.left, found.all_at_most_s) == (None, SILENT, None)


def test_who_is_back_without_a_connect_was_not_let_go_whatever_churn_hides() -> None:
    """Twenty of the connections that are held as a second ends, or as many others, may not have been there as it was read."""
    run = with_churn(heard_again(until_heard), goes=20)
    for sample in run.samples:
        sample.values[metrics.SERVER_SOCKETS] -= 4 * (sample.t_s > AT_S)
    found = noticed_in(run)
    assert found is not None
    assert (found.why, found.p50_s, found.left) == (msgspec.UNSET, None, SILENT)


def test_a_count_that_has_fewer_than_are_back_without_a_connect_does_not_fit() -> None:
    found = noticed_in(heard_again(lambda after_s: SILENT if after_s < 1.0 else 0.0, again_s=4.2))
    assert found is not None
    assert found.why == "disagrees"


def test_of_whom_churn_may_hide_all_none_is_told_as_let_go() -> None:
    """So many may be in the count or not that the server may hold all of the silent ones, or some fewer."""
    found = noticed_in(with_churn(vanished(lambda _: SILENT, back_s=30.0), goes=6, straggler=-4))
    assert found is not None
    assert (found.p50_s, found.left) == (None, SILENT)


def going_on(run: Run, until_s: float) -> Run:
    """The run by its records up to an instant in the hold: it goes on, or was killed."""
    run.phases = [*run.phases[:2], Phase("hold", run.phases[2].start_s, None)]
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s <= until_s]
    samples = [sample for sample in run.samples if sample.t_s <= until_s]
    return msgspec.structs.replace(run, samples=samples, complete=False)


@pytest.mark.parametrize("words", ["vanish 25% for 12s then return", "vanish 25% for 12s then reconnect", "stall 25% for 12s"])
def test_whose_turn_comes_after_the_last_record_waits_for_it(words: str) -> None:
    run = vanished(lambda _: SILENT)
    run.plan = msgspec.structs.replace(run.plan, events=(f"15s {words}",))
    if "stall" in words:
        stalled = EventCounts(chosen=SILENT, stalled=SILENT)
        run.ticks = [(t_s, msgspec.structs.replace(tick, events={1: stalled} if tick.events else {})) for t_s, tick in run.ticks]
    run = going_on(run, AT_S + 4.0)
    done = told(run)
    assert (done.counts.waiting, done.not_back, done.cut_after_s) == (SILENT, 0, None)
    assert done.records_end_after_s == pytest.approx(4.0)
    summary = summarise(msgspec.structs.replace(run))
    [part] = summary.events or []
    said = " ".join(doc.plain(block.words) for block in event_blocks([part]) if isinstance(block, doc.Paragraph))
    assert "last record" in said
    assert "was over" not in said
    limits = [parse(text, Summary) for text in ("events.1.not_back > 0", "events.1.back.all_s > 30s")]
    outcomes = judge(limits, msgspec.to_builtins(summary))
    assert [outcome.crossed for outcome in outcomes] == [None, None]
    assert all("records end" in outcome.words for outcome in outcomes if outcome.why)
    assert outcomes[0].why


def test_who_had_a_turn_and_no_answer_by_the_last_record_is_not_back() -> None:
    """Twenty of fifty whose turn came in the second after the silence; of these twelve were back."""
    run = going_on(vanished(lambda _: SILENT, back_s=30.0), AT_S + 5.0)
    came = EventCounts(attempts=20, opened=20)
    for _ in range(12):
        came.back_ms.add(300)
    _, last = run.ticks[-1]
    last.events[1] = came
    done = told(run)
    assert (done.counts.waiting, done.not_back) == (30, 8)


def test_an_event_that_an_interruption_cut_short_says_so() -> None:
    """Nothing of it is told of the time after."""
    run = vanished(lambda _: SILENT)
    assert run.interrupted_after_s(1) is None
    run.gaps = [Gap(AT_S + 2.0, AT_S + 3.0)]
    assert run.interrupted_after_s(1) == pytest.approx(2.0)
    assert run.event_windows[1].end_s == AT_S + 2.0
    # The last second before it may not be recorded.
    run.gaps = [Gap(AT_S - 0.3, AT_S + 3.0)]
    assert run.interrupted_after_s(1) == 0.0
    run.gaps = [Gap(AT_S - 5.0, AT_S - 4.0)]
    assert run.interrupted_after_s(1) is None
    run.gaps = [Gap(AT_S - 0.3, AT_S + 3.0)]
    for _, tick in run.ticks:
        tick.events.clear()
    run.events = list(run.events)
    assert (run.event_windows, run.interrupted_after_s(1)) == ({}, 0.0)


def test_who_is_not_back_was_waited_for_until_the_drain() -> None:
    run = dropped(step)
    assert told(run).back.waited_s is None
    for _, tick in run.ticks:
        if 1 in tick.events:
            tick.events[1].ended += 1
    assert told(run).back.waited_s == pytest.approx(39 - AT_S)
    # Not its turn yet: it was away as long.
    run.ticks[-1][1].events[1] = EventCounts(waiting=1)
    assert told(run).back.waited_s == pytest.approx(39 - AT_S)


def test_the_times_back_are_of_all_whom_the_event_ended() -> None:
    """A third were back when the hold ended, and the rest were to be later: half of them were not back by then."""
    run = dropped(step)
    drain = run.ticks[-1][1]
    drain.events[1] = EventCounts(ended=100, waiting=100)
    back = told(run).back
    assert (back.p50_s, back.p90_s, back.p99_s, back.all_s) == (None, None, None, None)
    assert "of 150" in said_of_times(run)
    drain.events[1] = EventCounts(ended=20, waiting=20)
    back = told(run).back
    assert back.p50_s == pytest.approx(0.01)
    assert (back.p90_s, back.p99_s, back.all_s) == (None, None, None)
    limits = [parse(text, Summary) for text in ("events.1.back.all_s > 30s", "events.1.back.all_s > 10s")]
    assert [outcome.crossed for outcome in judge(limits, {"events": [{"number": 1, "back": msgspec.to_builtins(back)}]})] == [None, True]


@pytest.mark.parametrize("unknown", ["lost_with_worker", "unheard"])
def test_those_of_whom_nothing_tells_belong_to_all_whom_the_event_ended(unknown: str) -> None:
    """Half were back. Of the others nothing is known: not that they took as long, and not that they took longer."""
    run = dropped(step)
    run.ticks[-1][1].events[1] = EventCounts(ended=SILENT)
    setattr(run.ticks[-1][1].events[1], unknown, SILENT)
    event = told(run)
    assert event.back.p50_s == pytest.approx(0.01)
    assert (event.back.p90_s, event.back.p99_s, event.back.all_s, event.back.waited_s) == (None, None, None, None)
    assert "at most" in said_of_times(run)
    document = {"events": [{"number": 1, "back": msgspec.to_builtins(event.back), unknown: SILENT}]}
    for text, crossed in (("all_s > 30s", None), ("p50_s > 1s", False), ("p50_s > 1ms", None), ("p50_s < 1s", True), ("p50_s < 1ms", None)):
        [outcome] = judge([parse(f"events.1.back.{text}", Summary)], document)
        assert (outcome.crossed, bool(outcome.why)) == (crossed, crossed is None)


def test_of_churn_some_are_always_on_their_way() -> None:
    run = dropped(step)
    for _, tick in run.ticks:
        if 1 in tick.events:
            tick.events[0] = EventCounts(ended=1, waiting=1)
            tick.events[0].back_ms.add(20)
            tick.events[0].ended += 1
    churned = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[0].back
    assert (churned.all_s, churned.waited_s) == (pytest.approx(0.02), None)


def said_of_times(run: Run) -> str:
    """What the report says of the times back from the first event."""
    [event] = summarise(run).events or []
    return str(_back(event))


def test_without_a_count_of_sockets_descriptors_tell() -> None:
    """Those were read at the ends of the run alone."""
    found = noticed_in(vanished(until_back, sockets_unread=True))
    assert found is not None
    assert (found.left, found.all_s, found.within_s) == (0, pytest.approx(4.8), pytest.approx(1.0))


def test_without_a_reading_in_that_time_it_is_not_known() -> None:
    run = vanished(until_back, sockets_unread=True)
    for sample in run.samples:
        if sample.t_s > AT_S:
            del sample.values[metrics.SERVER_DESCRIPTORS]
    assert noticed_in(run) == Noticed(why="not_read")


def test_descriptors_tell_of_an_event_in_the_first_seconds_of_the_hold() -> None:
    """Which of them are connections is seen before it: the silent ones are held no more, and still open."""
    run = vanished(lambda after_s: SILENT if after_s < 12.0 else 0.0, sockets_unread=True, back_s=30.0)
    run.phases = [Phase("baseline", 0, 4), Phase("ramp", 4, AT_S - 6), Phase("hold", AT_S - 6, 39), Phase("drain", 39, 40)]
    found = noticed_in(run)
    assert found is not None
    assert (found.left, found.all_s) == (0, pytest.approx(12.8))


def test_how_long_it_held_them_is_until_another_event() -> None:
    """Which is not the end of the run."""
    found = noticed_in(vanished(lambda _: SILENT))
    assert found is not None
    assert found.left_after_s == pytest.approx(38 - AT_S)
    run = vanished(lambda _: SILENT)
    run.events.append(RunEvent("drop", AT_S + 6.5, None, "drop 1%", {"number": 2}))
    at(run, 6.9).events[2] = EventCounts(chosen=1, ended=1)
    found = noticed_in(run)
    assert found is not None
    assert (found.left, found.left_after_s) == (SILENT, pytest.approx(25 - AT_S))


@pytest.mark.parametrize(("words", "why"), [("drop 1%", "another_event"), ("", "no_time")])
def test_what_was_seen_for_less_than_five_seconds_is_no_verdict(words: str, why: str) -> None:
    """Where it had noticed half of them in that time, that is one."""
    for let_go, expected in ((lambda _: SILENT, why), (half_are_let_go, msgspec.UNSET)):
        run = vanished(let_go)
        if words:
            run.events.append(RunEvent("drop", AT_S + 4.5, None, words, {"number": 2}))
            at(run, 4.9).events[2] = EventCounts(chosen=1, ended=1)
        else:
            run.phases[-2:] = [Phase("hold", AT_S - INTO_HOLD_S, AT_S + 4.5), Phase("drain", AT_S + 4.5, 40)]
        assert why_not_known(run) == expected


def silent_twice(gone_s: float, *, second_s: float = 2.0) -> Run:
    """50 fall silent for good, and 50 more after ``second_s``; the server lets all go ``gone_s`` after the first."""
    run = vanished(lambda after_s: SILENT * (1 + (after_s > second_s)) if after_s < gone_s else 0.0, back_s=30.0)
    for t_s, tick in run.ticks:
        if t_s > AT_S + second_s:
            tick.held -= SILENT
    for sample in run.samples:
        if sample.t_s > AT_S + second_s:
            sample.values[metrics.SERVER_SOCKETS] -= SILENT
    at(run, second_s + 0.9).events[2] = EventCounts(chosen=SILENT, ended=SILENT, silenced=SILENT)
    run.events.append(RunEvent("vanish", AT_S + second_s, None, "vanish 25%", {"number": 2}))
    run.plan = msgspec.structs.replace(run.plan, events=("15s vanish 25%", f"{15 + second_s:g}s vanish 25%"))
    return run


def test_of_near_events_all_are_gone_when_the_server_holds_none() -> None:
    """Whose are let go first, nothing tells."""
    run = silent_twice(9.0)
    both = [event.noticed for event in provoked(run, Series()).values()]
    assert [noticed.why for noticed in both if noticed is not None] == ["another_event", "another_event"]
    assert [noticed.all_at_most_s for noticed in both if noticed is not None] == [pytest.approx(9.8), pytest.approx(7.8)]
    kept = silent_twice(99.0)
    assert [event.noticed.all_at_most_s for event in provoked(kept, Series()).values() if event.noticed is not None] == [None, None]


def test_what_is_known_of_many_events_is_told_once_of_each() -> None:
    """Each needs what is known of those before it, which needs what is known of those before them: asked anew, 16 would take days."""
    many, apart_s, noticed_s = 16, 20, 12
    instants_s = [AT_S + apart_s * place for place in range(many)]
    ends_s = int(instants_s[-1]) + apart_s + 10
    run = held_run([], [], "vanish 2%", "vanish")
    for second in range(6, ends_s):
        t_s = second + 0.2
        gone = sum(at_s < t_s - 0.1 for at_s in instants_s)
        tick = Tick(second=second, held=CLIENTS - 4 * gone, workers=1)
        if t_s - 1.0 in [pytest.approx(at_s) for at_s in instants_s]:
            tick.events[gone] = EventCounts(chosen=4, ended=4, silenced=4, gone=4)
        run.ticks.append((t_s, tick))
    samples = []
    for second in range(ends_s):
        silent = sum(0 <= second - at_s < noticed_s for at_s in instants_s)
        gone = sum(at_s < second for at_s in instants_s)
        held = CLIENTS - 4 * gone if second >= 6 else 0
        samples.append(Sample(float(second), {metrics.SERVER_SOCKETS: float(held + 4 * silent)}))
    run.samples = samples
    run.phases[2:] = [Phase("hold", 5.2, ends_s - 1.0), Phase("drain", ends_s - 1.0, float(ends_s))]
    run.events = [RunEvent("vanish", at_s, None, "vanish 2%", {"number": number}) for number, at_s in enumerate(instants_s, start=1)]
    words = tuple(f"{INTO_HOLD_S + apart_s * place:g}s vanish 2%" for place in range(many))
    run.plan = msgspec.structs.replace(run.plan, hold_s=float(ends_s), events=words)
    for event in provoked(run, run.series(metrics.SERVER_PSS_BYTES)).values():
        assert event.noticed is not None
        assert event.noticed.all_s == pytest.approx(noticed_s, abs=1.0)


def of_many_events(events: int, kind: str) -> Run:
    """Every 90 s beside churn: one more client falls silent for good, or many are ended and back."""
    does = {"vanish": "vanish 0.5%", "drop": "drop 30%"}[kind]
    apart_s = 90
    instants_s = [AT_S + apart_s * place for place in range(events)]
    ends_s = int(instants_s[-1]) + apart_s
    run = held_run([], [], does, kind)
    number = 0
    for second in range(6, ends_s):
        tick = Tick(second=second, workers=1, answered=10, sent=10, events={CHURN: EventCounts(ended=2, opened=2)})
        tick.latency_us.add(1000)
        if (second - 21) % apart_s == 0:
            number += 1
            tick.events[number] = EventCounts(chosen=1, ended=1, silenced=1, gone=1)
            if kind == "drop":
                tick.events[number] = gone_and_back(60)
        tick.held = CLIENTS - (number if kind == "vanish" else 0)
        run.ticks.append((second + 0.2, tick))
    instants = list(range(ends_s))
    sockets = [0.0] * 6 + [float(CLIENTS)] * (ends_s - 6)
    memory = [MB] * ends_s
    columns = {metrics.SERVER_SOCKETS: (instants, sockets), metrics.SERVER_PSS_BYTES: (instants, memory)}
    run.samples = Samples([float(second) for second in instants], columns)
    run.phases[2:] = [Phase("hold", 5.2, ends_s - 1.0), Phase("drain", ends_s - 1.0, float(ends_s))]
    run.events = [RunEvent(kind, at_s, None, does, {"number": place}) for place, at_s in enumerate(instants_s, start=1)]
    words = tuple(f"{INTO_HOLD_S + apart_s * place:g}s {does}" for place in range(events))
    run.plan = msgspec.structs.replace(run.plan, hold_s=float(ends_s), events=words, churn="1%/m", reconnect="now")
    return run


@pytest.mark.measures
@pytest.mark.parametrize("kind", ["vanish", "drop"])
def test_what_events_did_is_told_in_time_in_proportion_to_the_run(kind: str) -> None:
    took_s = []
    for events in (40, 160):
        run = of_many_events(events, kind)
        began_s = time.process_time()
        assert len(provoked(run, run.series(metrics.SERVER_PSS_BYTES))) == events + 1
        took_s.append(time.process_time() - began_s)
    # Where each event reads the whole run it takes sixteen times.
    assert took_s[1] < 9.0 * max(took_s[0], 0.05)


def test_an_end_that_is_seen_late_tells_nothing_of_the_silent() -> None:
    """The server ends 50 who stall, and holds the 50 silent ones; or connections were lost."""
    for counts, deaths in ((EventCounts(stalled=SILENT), 0), (EventCounts(returned=3), 0), (EventCounts(), 1)):
        run = silent_twice(9.0)
        at(run, 6.5).events[3] = counts
        if deaths:
            at(run, 6.5).deaths["reset"] = Deaths(count=1)
        noticed = noticed_in(run)
        assert noticed is not None
        assert noticed.all_at_most_s is None


def why_not_known(run: Run) -> object:
    found = noticed_in(run)
    assert found is not None
    if found.why is not msgspec.UNSET:
        assert (found.p50_s, found.all_s, found.left) == (None, None, None)
    return found.why


def half_are_let_go(after_s: float) -> float:
    return SILENT if after_s < 2.0 else SILENT / 2


def at(run: Run, after_s: float) -> Tick:
    """The tick of so many seconds after the event."""
    return next(tick for t_s, tick in run.ticks if t_s > AT_S + after_s)


def test_who_was_let_go_with_a_process_of_asyncli_was_not_noticed() -> None:
    run = vanished(half_are_let_go)
    assert why_not_known(run) is msgspec.UNSET
    at(run, 2.5).deaths["generator_lost"] = Deaths(count=20)
    assert why_not_known(run) == "own_lost"
    run = vanished(half_are_let_go)
    at(run, 2.5).events[1] = EventCounts(lost_with_worker=3)
    assert why_not_known(run) == "own_lost"
    run = vanished(half_are_let_go)
    at(run, 2.5).deaths["reset"] = Deaths(count=20)
    assert why_not_known(run) == "losses"
    # All were let go before.
    run = vanished(lambda after_s: SILENT if after_s < 2.0 else 0.0)
    at(run, 6.5).deaths["reset"] = Deaths(count=20)
    found = noticed_in(run)
    assert found is not None
    assert found.all_s == pytest.approx(2.8)


def test_where_others_hold_connections_it_is_not_known() -> None:
    """A hundred, of which half go in the time of the event."""
    run = vanished(lambda after_s: SILENT)
    for sample in run.samples:
        sample.values[metrics.SERVER_SOCKETS] += 100 if sample.t_s < AT_S + 2 else 50
    assert why_not_known(run) == "other_clients"


def test_of_several_servers_each_may_differ() -> None:
    run = vanished(half_are_let_go)
    run.environment = {"local": True, "server": {"pid": 7}}
    run.plan = msgspec.structs.replace(run.plan, urls=("http://127.0.0.1:1/", "http://127.0.0.1:2/"))
    # Two ports of one server.
    assert why_not_known(run) is msgspec.UNSET
    run.environment = {"local": True, "server": {"pid": 7, "roots": 2}}
    assert why_not_known(run) == "several_servers"
    run.environment = {"local": False}
    assert why_not_known(run) == "several_servers"


@pytest.mark.parametrize(("let_go", "why"), [(half_are_let_go, "another_event"), (lambda _: SILENT, msgspec.UNSET)])
def test_the_silent_of_an_event_before_may_be_those_that_are_let_go(let_go: Callable[[float], float], why: object) -> None:
    """The server still has 30 of them. Where none is let go at all, none of these are."""
    run = vanished(let_go)
    for t_s, tick in run.ticks:
        if 0 < t_s - (AT_S - 8.0) < 1.1:
            tick.events[2] = EventCounts(chosen=30, ended=30, silenced=30)
    run.events.append(RunEvent("vanish", AT_S - 8.0, None, "vanish 15%", {"number": 2}))
    run.plan = msgspec.structs.replace(run.plan, events=(*run.plan.events, "7s vanish 15%"))
    for t_s, tick in run.ticks:
        if t_s > AT_S - 8.0:
            tick.held -= 30
    assert why_not_known(run) == why


def test_an_event_right_after_it_leaves_no_reading() -> None:
    run = vanished(lambda _: SILENT)
    run.events.append(RunEvent("drop", AT_S + 0.5, None, "drop 1%", {"number": 2}))
    at(run, 0.9).events[2] = EventCounts(chosen=1, ended=1)
    assert why_not_known(run) == "another_event"
    # Nor is there one right before it.
    run = vanished(lambda _: SILENT)
    run.events.append(RunEvent("drop", AT_S - 0.8, None, "drop 1%", {"number": 2}))
    at(run, -0.9).events[2] = EventCounts(chosen=1, ended=1)
    assert why_not_known(run) == "another_event"
    for sample in run.samples:
        sample.values.clear()
    assert why_not_known(run) == "not_read"


@pytest.mark.parametrize(
    ("words", "counts", "back_ms", "why"),
    [
        # The last reading before the vanish is 0.2 s before it.
        ("drop 2%", EventCounts(chosen=4, ended=4), 700, msgspec.UNSET),
        ("drop 2%", EventCounts(chosen=4, ended=4), 1000, "another_event"),
        ("stall 2% for 500ms", EventCounts(chosen=4, stalled=4, resumed=4), 200, msgspec.UNSET),
        ("stall 2% for 500ms", EventCounts(chosen=4, stalled=4, resumed=4), 500, "another_event"),
        ("stall 2%", EventCounts(chosen=4, stalled=4, closed=4), 200, "another_event"),
        # One was not back, or nothing tells whether it was, or another event ended it.
        ("drop 2%", EventCounts(chosen=5, ended=5), 200, "another_event"),
        ("drop 2%", EventCounts(chosen=5, ended=5, unheard=1), 200, "another_event"),
        ("drop 2%", EventCounts(chosen=5, ended=5, ended_again=1), 200, "another_event"),
        ("drop 2%", EventCounts(chosen=5, ended=5, waiting=1), 200, "another_event"),
    ],
)
def test_an_earlier_event_is_over_when_all_were_back_and_five_seconds_had_passed(words: str, counts: EventCounts, back_ms: int, why: object) -> None:
    """It began 5.9 s before the vanish."""
    run = vanished(half_are_let_go)
    do = words.partition(" ")[0]
    run.events = [RunEvent(do, AT_S - 5.9, None, words, {"number": 1}), msgspec.structs.replace(run.events[0], fields={"number": 2})]  # type: ignore[arg-type]
    run.plan = msgspec.structs.replace(run.plan, events=(f"9.1s {words}", *run.plan.events))
    for _, tick in run.ticks:
        if 1 in tick.events:
            tick.events[2] = tick.events.pop(1)
    for _ in range(4):
        counts.back_ms.add(back_ms)
    at(run, -5.5).events[1] = counts
    found = provoked(run, Series())[2].noticed
    assert found is not None
    assert found.why == why
    if why is msgspec.UNSET:
        assert (found.p50_s, found.left) == (pytest.approx(2.8, abs=1.0), SILENT // 2)


@pytest.mark.parametrize("count", [-30.0, 100.0])
def test_a_count_that_fits_nothing_tells_nothing(count: float) -> None:
    assert why_not_known(vanished(lambda after_s: SILENT if after_s < 3.0 else count)) == "disagrees"


def dropped(memory: Callable[[float], float], *, into_hold_s: float = INTO_HOLD_S) -> Run:
    """50 connections are ended and back at once; ``memory``: the server's (bytes), by the seconds since."""
    ticks = [(second + 0.2, Tick(second=second, held=CLIENTS, workers=1)) for second in range(6, 40)]
    counts = EventCounts(chosen=SILENT, ended=SILENT, attempts=SILENT, opened=SILENT)
    for _ in range(SILENT):
        counts.back_ms.add(10)
    for t_s, tick in ticks:
        if 0 < t_s - AT_S < 1.5:
            tick.events[1] = counts
            break
    samples = [Sample(float(second), {metrics.SERVER_PSS_BYTES: memory(second - AT_S)}) for second in range(40)]
    return held_run(ticks, samples, "drop 25%", "drop", into_hold_s=into_hold_s)


@pytest.mark.parametrize("another_s", [None, 0.5])
def test_cpu_time_is_not_known_where_no_reading_is_in_the_event(another_s: float | None) -> None:
    run = dropped(lambda _: 50 * MB)
    for sample in run.samples:
        sample.values[metrics.SERVER_CPU_S] = sample.t_s
    if another_s is None:
        assert told(run).server.cpu_s == 6.0
        return
    run.events.append(RunEvent("drop", AT_S + another_s, None, "drop 1%", {"number": 2}))
    run.ticks[15][1].events[2] = EventCounts(chosen=1, ended=1)
    assert told(run).server.cpu_s is None


@pytest.mark.parametrize("words", ["run deploy", "drop 25%"])
def test_after_a_restart_by_a_command_the_memory_is_that_of_others(words: str) -> None:
    """A server that ends processes as its clients go and come does so by itself."""
    run = dropped(step)
    run.plan = msgspec.structs.replace(run.plan, events=(f"15s {words}",))
    for sample in run.samples:
        sample.values[metrics.SERVER_ENDED] = float(sample.t_s > AT_S + 2)
    price = told(run).server
    assert (price.kept, price.other_processes) == (MB, words == "run deploy")
    for sample in run.samples:
        sample.values[metrics.SERVER_ENDED] = 0.0
    assert not told(run).server.other_processes


@pytest.mark.parametrize(("last_s", "cpu_s"), [(39, 6.0), (22, None)])
def test_cpu_time_that_was_not_read_at_the_end_is_not_known(last_s: int, cpu_s: float | None) -> None:
    run = dropped(lambda _: 50 * MB)
    for sample in run.samples:
        if sample.t_s <= last_s:
            sample.values[metrics.SERVER_CPU_S] = sample.t_s
    assert told(run).server.cpu_s == cpu_s


def step(after_s: float) -> float:
    """Of 1 MB, by the event, for good."""
    return 50 * MB + MB * (after_s > 0)


def test_what_is_not_given_back_is_a_step_that_the_event_made() -> None:
    price = told(dropped(step)).server
    assert (price.kept, price.moves, price.why) == (MB, 0.0, msgspec.UNSET)


@pytest.mark.parametrize(("pages", "kept", "why"), [(0, 0.0, msgspec.UNSET), (2.25, None, "moves"), (-2, None, "moves"), (6, 6 * 4096.0, msgspec.UNSET)])
def test_a_few_pages_are_no_event_s(pages: float, kept: float | None, why: object) -> None:
    price = told(dropped(lambda after_s: 50 * MB + pages * 4096 * (after_s > 0))).server
    assert (price.kept, price.why) == (kept, why)


@pytest.mark.parametrize("is_of_files", [True, False])
def test_pages_of_files_are_no_event_s(is_of_files: bool) -> None:
    """Their share rises too when another program that has the same files open ends."""
    run = dropped(step)
    for sample in run.samples:
        pages = step(sample.t_s - AT_S) - 49 * MB if is_of_files else MB
        sample.values[metrics.SERVER_FILE_BYTES] = pages
        sample.values[metrics.SERVER_ANON_SHMEM_BYTES] = sample.values[metrics.SERVER_PSS_BYTES] - pages
    [event] = summarise(run).events
    assert isinstance(event.server, ServerPrice)
    expected = 0.0 if is_of_files else MB
    assert (event.server.kept, event.server.memory_before) == (expected, 50 * MB)


def test_less_than_five_seconds_into_the_hold_the_connections_cost_is_no_event_s() -> None:
    price = told(dropped(step, into_hold_s=3.0)).server
    assert (price.kept, price.why, price.memory_before) == (None, "early", 50 * MB)
    assert told(dropped(step, into_hold_s=0.1)).server.memory_before is None


@pytest.mark.parametrize(("earlier_s", "kept", "why"), [(2.0, None, "after_another"), (6.0, None, "after_another"), (9.0, MB, msgspec.UNSET)])
def test_what_came_with_another_event_is_not_this_ones(earlier_s: float, kept: float | None, why: object) -> None:
    # The other event ended nobody any more a second after it began, and took 4 MB for good; its memory has settled 5 s later.
    run = dropped(lambda after_s: step(after_s) + 4 * MB * (after_s > -earlier_s))
    for t_s, tick in run.ticks:
        if 0 < t_s - (AT_S - earlier_s) < 1.1:
            tick.events[2] = EventCounts(chosen=1, ended=1)
    run.events.append(RunEvent("drop", AT_S - earlier_s, None, "drop 1%", {"number": 2}))
    price = told(run).server
    assert (price.kept, price.why, price.memory_before) == (kept, why, 54 * MB)


@pytest.mark.parametrize(
    "by_itself", [lambda after_s: step(after_s) + MB * (int(after_s) % 4), lambda after_s: step(after_s) + 0.2 * MB * after_s], ids=["noise", "drift"]
)
def test_what_memory_does_by_itself_is_not_the_event_s(by_itself: Callable[[float], float]) -> None:
    price = told(dropped(by_itself)).server
    assert (price.kept, price.why) == (None, "moves")
    assert price.moves is not None
    assert price.moves > MB


def test_a_reading_that_stands_alone_hides_no_step() -> None:
    price = told(dropped(lambda after_s: step(after_s) - 20 * MB * (int(after_s) == -8))).server
    assert price.kept == MB


def test_a_memory_that_does_not_move_was_all_given_back() -> None:
    price = told(dropped(lambda _: 50 * MB)).server
    assert (price.kept, price.why) == (0.0, msgspec.UNSET)


@pytest.mark.parametrize(("another_s", "kept", "why"), [(2.7, None, "no_time"), (3.0, MB, msgspec.UNSET)])
def test_memory_after_an_event_is_that_of_half_its_time_to_settle(another_s: float, kept: float | None, why: object) -> None:
    """As docs/howto/rehearse-a-deploy.md says: another event may follow then. They were all back at once, and it is read each second."""
    run = dropped(step)
    run.events.append(RunEvent("drop", AT_S + another_s, None, "drop 1%", {"number": 2}))
    at(run, another_s + 0.9).events[2] = EventCounts(chosen=1, ended=1)
    price = told(run).server
    assert (price.kept, price.why) == (kept, why)


def part_restarted(ended_s: float, started_s: float) -> Run:
    """One of several main processes ended so long after the event, and one took its place: the memory is not read in between."""
    run = dropped(lambda _: 50 * MB)
    run.findings.append(server_master_ended(77, of_several=True))
    for sample in run.samples:
        after_s = sample.t_s - AT_S
        sample.values |= {metrics.SERVER_ENDED: 2.0 + (after_s >= ended_s), metrics.SERVER_STARTED: 1.0 + (after_s >= started_s)}
        if ended_s <= after_s < started_s:
            del sample.values[metrics.SERVER_PSS_BYTES]
    return run


@pytest.mark.parametrize(
    ("ended_s", "started_s", "why"),
    [
        (0.5, 99.0, "part_ended"),
        # Of an event before: its memory is not read since.
        (-5.0, 99.0, "part_ended"),
        # It was all read again in time, or the end was long after this event.
        (0.5, 2.5, msgspec.UNSET),
        (9.0, 12.0, msgspec.UNSET),
        (9.0, 99.0, msgspec.UNSET),
    ],
)
def test_memory_that_was_not_read_since_a_part_ended_is_not_less(ended_s: float, started_s: float, why: object) -> None:
    price = told(part_restarted(ended_s, started_s)).server
    assert price.why == why
    assert (price.kept, price.after) == ((None, None) if why == "part_ended" else (0.0, 50 * MB))


@pytest.mark.parametrize(("ended_s", "started_s"), [(2.5, 5.0), (1.5, 99.0), (-5.0, 99.0)])
def test_an_event_that_another_cut_had_no_time_whatever_ended_then(ended_s: float, started_s: float) -> None:
    """A deploy two seconds after it restarts a part of the server."""
    run = part_restarted(ended_s, started_s)
    run.events.append(RunEvent("drop", AT_S + 2.0, None, "drop 1%", {"number": 2}))
    at(run, 2.9).events[2] = EventCounts(chosen=1, ended=1)
    assert told(run).server.why == "no_time"


def test_a_part_that_was_replaced_is_no_reason_that_memory_was_not_read() -> None:
    run = part_restarted(0.5, 2.5)
    for sample in run.samples:
        if sample.t_s > AT_S:
            sample.values.pop(metrics.SERVER_PSS_BYTES, None)
    assert told(run).server.why == "no_time"


@pytest.mark.parametrize(("others", "is_known"), [(lambda _: 100.0, True), (lambda after_s: 200.0 * (after_s > 1), False), (lambda after_s: 9.0 * (after_s < 1), False), (lambda after_s: 4.0 * (after_s > 1), True)])
def test_memory_is_no_event_s_where_others_connected_meanwhile(others: Callable[[float], float], is_known: bool) -> None:
    run = dropped(step)
    for sample in run.samples:
        held = CLIENTS if sample.t_s > 6 else 0
        sample.values[metrics.SERVER_SOCKETS] = held + others(sample.t_s - AT_S)
    price = told(run).server
    assert (price.kept, price.why) == ((MB, msgspec.UNSET) if is_known else (None, "other_connections"))


def test_whom_the_server_still_holds_are_no_others() -> None:
    """Of those that it silenced, that it does not notice."""
    run = vanished(lambda _: SILENT)
    for sample in run.samples:
        sample.values[metrics.SERVER_PSS_BYTES] = step(sample.t_s - AT_S)
    assert told(run).server.kept == MB


def test_of_a_collected_heap_it_cannot_be_told() -> None:
    run = dropped(step)
    price = provoked(run, run.series(metrics.SERVER_PSS_BYTES), collected=True)[1].server
    assert (price.kept, price.why) == (None, "collected")


def short_of_descriptors(first_s: float, last_s: float) -> Run:
    """The server has as many descriptors open as it may in these seconds."""
    run = dropped(step)
    for sample in run.samples:
        sample.values |= {metrics.SERVER_DESCRIPTORS: 207.0, metrics.SERVER_DESCRIPTORS_LIMIT: 220.0}
        if first_s <= sample.t_s <= last_s:
            sample.values[metrics.SERVER_DESCRIPTORS] = 220.0
    return run


def test_a_server_without_descriptors_left_for_who_comes_back_is_told() -> None:
    run = short_of_descriptors(22, 35)
    # All were back at once.
    assert told(run).descriptors_spent is None
    counts = next(tick.events[1] for _, tick in run.ticks if 1 in tick.events)
    counts.ended += 1
    assert told(run).descriptors_spent == SpentDescriptors(220, 22.0, 35.0)
    assert told(short_of_descriptors(0, 19)).descriptors_spent is None
    # All were back in the end, and some connects had no answer: until then.
    counts.ended -= 1
    counts.phantoms = 3
    run.ticks[18][1].events[1] = EventCounts(opened=1)
    assert told(run).descriptors_spent == SpentDescriptors(220, 22.0, 24.0)
    [event] = summarise(run).events or []
    assert isinstance(event, EventPart)
    assert "220" in _back(event)


def of_two(first: dict[int, EventCounts], second: dict[int, EventCounts], *, instants_s: tuple[float, float] = (20.2, 27.2)) -> list[int | None]:
    """The fewest held in the time of each of two events, whose counts are in these seconds after the first one's instant."""
    run = dropped(step)
    for t_s, tick in run.ticks:
        tick.events = {}
        after_s = round(t_s - AT_S)
        for number, counts in ((1, first), (2, second)):
            if after_s in counts:
                tick.events[number] = counts[after_s]
        tick.held = CLIENTS - 10 if 0 < after_s < 3 else CLIENTS
    run.plan = msgspec.structs.replace(run.plan, events=("15s drop 5%", "22s drop 5%"))
    run.events = [RunEvent("drop", at_s, None, "drop 5%", {"number": number}) for number, at_s in enumerate(instants_s, start=1)]
    found = provoked(run, run.series(metrics.SERVER_PSS_BYTES))
    return [found[1].least_held, found[2].least_held]


def gone_and_back(count: int = 10) -> EventCounts:
    counts = EventCounts(ended=count)
    for _ in range(count):
        counts.back_ms.add(10)
    return counts


def test_the_fewest_held_are_those_of_one_event_alone() -> None:
    """Each was back before the second came."""
    assert of_two({1: gone_and_back()}, {8: gone_and_back()}) == [CLIENTS - 10, CLIENTS]


@pytest.mark.parametrize(
    ("first", "second", "instants_s", "least"),
    [
        # No second ended between them.
        ({1: gone_and_back()}, {1: gone_and_back()}, (20.2, 20.5), [None, None]),
        # The first one's command ends connections when the second has come.
        ({1: EventCounts(), 9: gone_and_back()}, {8: gone_and_back()}, (20.2, 27.2), [None, None]),
        # The first one's are away until the end.
        ({1: EventCounts(ended=10)}, {8: gone_and_back()}, (20.2, 27.2), [CLIENTS - 10, None]),
    ],
)
def test_the_fewest_held_with_another_event_are_not_known(
    first: dict[int, EventCounts], second: dict[int, EventCounts], instants_s: tuple[float, float], least: list[int | None]
) -> None:
    assert of_two(first, second, instants_s=instants_s) == least


@pytest.mark.parametrize(
    ("words", "back_ms", "shows"), [("drop 5%", 990, False), ("drop 5%", 1010, True), ("vanish 5% for 2s then reconnect", 10, True), ("stall 5% for 2s", 10, True)]
)
def test_the_fewest_held_are_not_said_where_no_second_shows_them(words: str, back_ms: int, shows: bool) -> None:
    """All were back within a second; who fell silent before that is missed by each second's end."""
    run = dropped(step)
    run.plan = msgspec.structs.replace(run.plan, events=(f"15s {words}",))
    counts = EventCounts(chosen=10, ended=10)
    for _ in range(10):
        counts.back_ms.add(back_ms)
    at(run, 0.5).events[1] = counts
    at(run, 1.5).held = 187
    [event] = summarise(run).events or []
    assert event.least_held == 187
    assert ("187" in _others(event)) is shows
