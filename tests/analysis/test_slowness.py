"""Faults that ended no connection: silences, slow answers, retransmissions, silent connections."""

from __future__ import annotations

import msgspec
import pytest
from synthetic_run import a_run, spread

from asyncli.analysis.losses.own_sockets import all_sent_again
from asyncli.analysis.losses.slowness import not_heard, packets_lost, slow_answers, stalls, unheard
from asyncli.analysis.losses.unanswered import period_s
from asyncli.analysis.totals import fold
from asyncli.core.histogram import Histogram
from asyncli.findings.run import stopped_by_user
from asyncli.model.records import CHURN, Deaths, EventCounts, Gap, ProtocolCounts, RunEvent, TcpCounts
from asyncli.model.run import Run
from asyncli.model.units import LONGEST_S


def silent(first: int, last: int) -> Run:
    """A hold without answers in the seconds from ``first`` to ``last`` of the run's clock; 9 heartbeats wait, then more."""
    run = a_run(1000)
    for t_s, tick in run.ticks:
        tick.awaiting = 1
        if first < t_s < last + 1:
            tick.answered, tick.awaiting = 0, 9
    return run


def test_no_answers_for_three_seconds() -> None:
    (one,) = stalls(silent(30, 32))
    assert (one.code, one.severity) == ("no_answers", "warning")
    assert (one.fields["waited"], one.fields["why"]) == (9, "page_answered")
    assert (one.fields["from_s"], one.fields["to_s"]) == pytest.approx((29.1, 32.1), abs=0.2)
    assert stalls(silent(30, 30)) == []
    # A silence as long as every answer takes is normal.
    slow = silent(30, 32)
    for _, tick in slow.ticks:
        tick.latency_us = spread(2_000_000, 100)
    assert stalls(slow) == []


def test_a_stopped_server_and_a_cut_path() -> None:
    run = silent(30, 34)
    for sample in run.samples:
        if 29 < sample.t_s < 36:
            for name in [name for name in sample.values if name.startswith("status.")]:
                del sample.values[name]
            sample.values["server.cpu_s"] = 9.0
    (still,) = stalls(run)
    assert still.fields["why"] == "stood_still"
    for why, stopped in (("waited", 0.0), ("stood_still", 1.0), ("stopped", 9.0)):
        for sample in run.samples:
            sample.values["server.stopped"] = stopped
        (still,) = stalls(run)
        assert still.fields["why"] == why
    run.environment["local"] = False
    for sample in run.samples:
        sample.values["tcp.RetransSegs"] = max(0.0, min(sample.t_s - 30, 5.0)) * 10
    # The host's count alone may be another program's.
    assert stalls(run)[0].fields["why"] == "stopped"
    for t_s, tick in run.ticks:
        if 34 < t_s < 36:
            tick.tcp = TcpCounts(segments=30, heartbeats=9)
    (cut,) = stalls(run)
    assert cut.fields["why"] == "unacknowledged"


@pytest.mark.parametrize(("stopped", "why"), [(0.0, "unknown"), (1.0, "unknown"), (9.0, "stopped")])
def test_a_server_that_was_stopped_for_so_short_that_its_cpu_was_read_once(stopped: float, why: str) -> None:
    run = silent(30, 31)
    for sample in run.samples:
        if 29 < sample.t_s < 32:
            for name in [name for name in sample.values if name.startswith("status.")]:
                del sample.values[name]
            sample.values["server.stopped"] = stopped
            if sample.t_s > 30:
                del sample.values["server.cpu_s"]
    (one,) = stalls(run)
    assert one.fields["why"] == why


@pytest.mark.parametrize(("drops", "why"), [(0, "unacknowledged"), (20, "stopped")])
def test_connects_that_a_full_listen_queue_dropped_do_not_show_a_cut_path(drops: int, why: str) -> None:
    """Clients come back to a server that a signal has stopped, while the heartbeats of others wait."""
    run = silent(30, 34)
    for sample in run.samples:
        sample.values["tcp.ListenDrops"] = 7.0 + (drops if sample.t_s > 32 else 0)
        if 29 < sample.t_s < 36:
            for name in [name for name in sample.values if name.startswith("status.")]:
                del sample.values[name]
            sample.values["server.cpu_s"] = 9.0
            sample.values["server.stopped"] = 9.0
    for t_s, tick in run.ticks:
        if 34 < t_s < 36:
            tick.tcp = TcpCounts(segments=30, connects=9)
    (stall,) = stalls(run)
    assert stall.fields["why"] == why


@pytest.mark.parametrize(("cores", "why"), [(0.95, "computing"), (0.1, "unknown")])
def test_the_servers_cpu_and_the_period_of_stalls_are_told(cores: float, why: str) -> None:
    # Three seconds of each twenty, with a page that counts no requests.
    run = silent(0, 0)
    used = 0.0
    for sample in run.samples:
        used += cores if sample.t_s % 20 < 4 else 0.02
        sample.values["server.cpu_s"] = used
        sample.values.pop("status.requests", None)
    for t_s, tick in run.ticks:
        if t_s > 20 and 0.5 < t_s % 20 < 4:
            tick.answered, tick.awaiting = 0, 9
    (stall,) = stalls(run)
    assert (stall.fields["why"], stall.fields["times"], stall.fields["every_s"]) == (why, 3, pytest.approx(20.0))
    assert stall.fields["cores"] == pytest.approx(cores, abs=0.05)


@pytest.mark.parametrize(
    ("instants", "every_s"),
    [([5, 25, 45.5, 66], 20.5), ([5, 25], None), ([5, 25, 70, 80], None), ([5, 8, 11], None), ([100, 700, 1320], 610)],
)
def test_a_period_needs_three_regular_events(instants: list[float], every_s: float | None) -> None:
    assert period_s(instants) == (None if every_s is None else pytest.approx(every_s, abs=0.5))


def test_a_server_that_counts_unanswered_requests_is_slow() -> None:
    run = silent(30, 32)
    for sample in run.samples:
        if "status.requests" in sample.values:
            sample.values["status.requests"] = sample.values["status.polls"] + 30 * sample.t_s
    (one,) = stalls(run)
    assert (one.fields["why"], one.fields["requests"]) == ("slow", 45)


@pytest.mark.parametrize("why", ["losses", "stopped workers", "few waited"])
def test_silences_with_another_explanation(why: str) -> None:
    run = silent(30, 33)
    for t_s, tick in run.ticks:
        if why == "losses" and 31 < t_s < 32:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
        elif why == "stopped workers":
            tick.longest_turn_s = 0.9
        elif why == "few waited":
            tick.awaiting = min(tick.awaiting, 4)
    assert stalls(run) == []


def test_many_silences_are_counted() -> None:
    run = silent(0, 0)
    for t_s, tick in run.ticks:
        if 10 < t_s < 60 and int(t_s) % 5 < 3:
            tick.answered, tick.awaiting = 0, 9
    (one,) = stalls(run)
    assert one.fields["times"] == 10


@pytest.mark.parametrize(("again", "count"), [(5, 50), (0, None)])
def test_retransmitted_segments(again: int, count: int | None) -> None:
    # For ten seconds of a minute; requests and connects are some sixty a second.
    run = a_run(1000)
    for t_s, tick in run.ticks:
        if 30 < t_s < 40:
            tick.tcp = TcpCounts(segments=again)
    # The host's counter includes other programs, and is no evidence.
    for sample in run.samples:
        sample.values["tcp.OutSegs"], sample.values["tcp.RetransSegs"] = 95.0 * sample.t_s, 50.0 * sample.t_s
    found = packets_lost(run)
    assert [one.fields["count"] for one in found] == ([count] if count else [])
    assert all(0.01 < one.fields["share"] < 0.2 and one.fields["here"] for one in found)


def restarted(
    *, refused: int = 40, ended: int = 300, drops: int = 0, tcp: TcpCounts | None = None, after_s: float = 0.0, lost: int = 0
) -> Run:
    """A command of the plan stops the server at 30 s: it ends 300 connections, and connects are refused until 34 s and sent again, or so long
    after that."""
    run = a_run(1000, hold_s=120.0, events=("20s run restart",))
    run.events.append(RunEvent("run", 30.0, 34.0, "restart", {"number": 1, "took_s": 4.0}))
    for t_s, tick in run.ticks:
        if 30 < t_s <= 31:
            tick.events[1] = EventCounts(ended=ended)
            tick.deaths = {"generator_lost": Deaths(lost)} if lost else {}
        if 31 < t_s - after_s <= 34:
            tick.events[1] = EventCounts(failures={"refused": refused} if refused else {})
            tick.tcp = tcp or TcpCounts(segments=50)
    for sample in run.samples:
        sample.values["tcp.ListenDrops"] = 7.0 + (drops if sample.t_s > 32 else 0)
    return run


def test_connects_that_meet_the_stopped_server_s_time_wait_are_no_lost_packets() -> None:
    (told,) = packets_lost(restarted())
    assert (told.code, told.severity, told.fields["count"]) == ("packets_sent_again", "info", 150)
    assert told.fields["met_time_wait"]
    assert told.fields["events"] == [{"number": 1, "kind": "run"}]
    assert told.fields["from_s"] == pytest.approx(31.0, abs=1.0)


@pytest.mark.parametrize(
    "run",
    [
        restarted(refused=0),
        restarted(ended=20),
        restarted(ended=20, lost=280),
        restarted(after_s=70.0),
        restarted(drops=150),
        restarted(tcp=TcpCounts(segments=50, heartbeats=50)),
    ],
    ids=["nobody was refused", "fewer ended", "asyncli lost the others", "long before", "a queue dropped some", "heartbeats too"],
)
def test_other_connects_that_are_sent_again_may_have_been_dropped(run: Run) -> None:
    assert [(told.severity, told.fields["met_time_wait"]) for told in packets_lost(run)] == [("warning", False)]


def test_what_is_sent_again_in_bursts_names_the_event_of_each() -> None:
    """Two restarts ten seconds apart, each of which ended others than the one before; and a command that did nothing."""
    run = a_run(1000, hold_s=120.0, events=("20s run one", "30s run two", "50s run three"))
    for number, begun_s in ((1, 30.0), (2, 40.0), (3, 60.0)):
        run.events.append(RunEvent("run", begun_s, begun_s + 0.1, "restart", {"number": number, "took_s": 0.1}))
    for t_s, tick in run.ticks:
        if 31 < t_s <= 33 or 41 < t_s <= 43:
            tick.tcp = TcpCounts(segments=60 if t_s < 40 else 40, connects=10)
    (told,) = packets_lost(run)
    assert [event["number"] for event in told.fields["events"]] == [1, 2]
    assert (told.fields["count"], told.fields["in_events"], told.fields["times"]) == (200, 200, 2)
    (first, second) = told.fields["bursts"]
    assert [*first, *second] == [pytest.approx(instant, abs=1.0) for instant in (31.0, 33.0, 41.0, 43.0)]
    assert told.evidence.count("between") == 2


def test_of_many_bursts_the_number_is_told() -> None:
    run = a_run(1000, hold_s=120.0)
    for t_s, tick in run.ticks:
        if 30 < t_s < 90 and t_s % 10 < 1:
            tick.tcp = TcpCounts(segments=50)
    (told,) = packets_lost(run)
    assert (told.fields["times"], told.fields["events"], told.fields["bursts"]) == (6, [], [])
    assert "6 bursts" in told.evidence


def test_what_was_sent_again_as_much_before_an_event_is_not_that_one_s() -> None:
    run = a_run(1000, hold_s=120.0, events=("20s run one",))
    run.events.append(RunEvent("run", 50.0, 60.0, "harmless", {"number": 1, "took_s": 10.0}))
    for t_s, tick in run.ticks:
        if 48 < t_s < 58:
            tick.tcp = TcpCounts(segments=20)
    (told,) = packets_lost(run)
    assert told.fields["events"] == []


def stormed(*, known: bool) -> Run:
    """A storm of clients of which each sends five SYNs again; they are answered seven seconds later, right after a command that did nothing.
    Another connect that began before the storm was sent again too. ``known``: it is recorded whose they are, and when they began."""
    run = a_run(1000, hold_s=120.0, events=("20s storm", "26s run true"))
    run.events.append(RunEvent("storm", 30.0, None, "storm", {"number": 1}))
    run.events.append(RunEvent("run", 36.0, 36.1, "true", {"number": 2, "took_s": 0.1}))
    for second, (_, tick) in enumerate(run.ticks):
        tick.second = second
    instants = {tick.second: t_s for t_s, tick in run.ticks}
    storm_second = min(second for second, t_s in instants.items() if t_s > 30.0)
    for t_s, tick in run.ticks:
        if 30 < t_s <= 31:
            tick.events[1] = EventCounts(chosen=100, ended=100, clients=100)
        if 37 < t_s <= 38:
            tick.events[1] = EventCounts(opened=100)
            tick.tcp = TcpCounts(segments=510, connects=100)
            if known:
                tick.events[1].sent_again = {storm_second: 500}
                tick.tcp.begun = {storm_second - 3: 10}
    return run


def test_connects_that_were_sent_again_belong_to_the_event_of_their_client_and_to_its_time() -> None:
    (told,) = packets_lost(stormed(known=True))
    assert [event["number"] for event in told.fields["events"]] == [1]
    assert (told.fields["count"], told.fields["in_events"], told.fields["times"]) == (510, 500, 1)
    assert (told.fields["from_s"], told.fields["to_s"]) == pytest.approx((27.0, 38.0), abs=1.0)


@pytest.mark.parametrize("of_whom", ["churn", "a command whose end was not seen"])
def test_what_an_event_without_a_time_sent_again_is_of_the_whole(of_whom: str) -> None:
    """The storm's five hundred are not half of all then."""
    run = stormed(known=True)
    number = CHURN if of_whom == "churn" else 3
    if of_whom != "churn":
        run.plan = msgspec.structs.replace(run.plan, events=(*run.plan.events, "40s run restart"))
        run.events.append(RunEvent("run", 29.5, None, "restart", {"number": number, "took_s": 0.0}))
    [tick] = [tick for t_s, tick in run.ticks if 37 < t_s <= 38]
    assert tick.tcp is not None
    tick.tcp.segments += 600
    tick.events[number] = EventCounts(opened=600, sent_again={tick.second - 7: 600})
    (told,) = packets_lost(msgspec.structs.replace(run))
    assert (told.fields["count"], told.fields["in_events"]) == (1_110, 0)


def test_of_older_runs_only_the_time_of_their_reading_is_known() -> None:
    (told,) = packets_lost(stormed(known=False))
    assert (told.fields["count"], told.fields["in_events"]) == (510, 510)
    assert told.fields["from_s"] == pytest.approx(37.0, abs=1.0)


def test_a_resumed_run_counts_its_seconds_anew() -> None:
    """Each part has its own: what began in a second of the first part was not seen before it began."""
    run = a_run(1000, hold_s=120.0)
    resumed_s = 60.0
    run.gaps.append(Gap(50.0, resumed_s))
    run.ticks[:] = [(t_s, tick) for t_s, tick in run.ticks if not 50.0 < t_s <= resumed_s]
    for part in ([row for row in run.ticks if row[0] <= 50.0], [row for row in run.ticks if row[0] > resumed_s]):
        for second, (_, tick) in enumerate(part, start=1):
            tick.second = second
    instants = []
    for seen_s in (30.0, 80.0):
        [(t_s, tick)] = [(t_s, tick) for t_s, tick in run.ticks if seen_s < t_s <= seen_s + 1.0]
        tick.tcp = TcpCounts(segments=20, begun={tick.second - 3: 20})
        instants.append(t_s)
    assert [(sent.began_s, sent.seen_s) for sent in all_sent_again(run)] == [pytest.approx((t_s - 3.0, t_s)) for t_s in instants]


def test_few_that_were_sent_again_at_another_time_are_only_in_the_sum() -> None:
    """Where an event's own count has all, the two add up."""
    run = a_run(1000, hold_s=120.0)
    for t_s, tick in run.ticks:
        if 30 < t_s < 40 or 80 < t_s < 82:
            tick.tcp = TcpCounts(segments=5 if t_s < 40 else 2)
    (told,) = packets_lost(run)
    assert (told.fields["count"], told.fields["in_all"]) == (50, 54)
    assert "54" in told.evidence


def test_where_drops_are_not_read_a_listen_queue_may_have_been_full() -> None:
    run = restarted()
    for sample in run.samples:
        del sample.values["tcp.ListenDrops"]
    assert [(told.severity, told.fields["met_time_wait"]) for told in packets_lost(run)] == [("warning", False)]


@pytest.mark.parametrize("late", [True, False])
def test_what_the_servers_host_sends_again_counts_only_with_late_answers(late: bool) -> None:
    run = slow(30, 39, 400_000) if late else a_run(1000)
    run.environment |= {"local": False, "agent": {"cpus": 2}}
    for sample in run.samples:
        sample.values["tcp.OutSegs"] = 95.0 * sample.t_s
        sample.values["tcp.RetransSegs"] = 3.0 + 5.0 * max(0.0, min(sample.t_s - 30.0, 10.0))
    found = packets_lost(run)
    assert [(one.fields["here"], one.fields["count"]) for one in found] == ([(False, 50)] if late else [])
    # Duplicates that the peer reports were not lost.
    for sample in run.samples:
        sample.values["tcp.TCPDSACKRecv"] = sample.values["tcp.RetransSegs"]
    assert not packets_lost(run)


def slow(first: int, last: int, us: int = 800_000) -> Run:
    """A hold in which every answer takes ``us`` in the seconds from ``first`` to ``last`` of the run's clock."""
    run = a_run(1000)
    for t_s, tick in run.ticks:
        if first < t_s < last + 1:
            tick.latency_us = spread(us, tick.answered)
    return run


def test_slow_answers_have_their_time() -> None:
    (one,) = slow_answers(slow(30, 33))
    assert (one.code, one.severity) == ("answers_slow", "warning")
    # From the first that was due, to the last answer.
    assert (one.fields["from_s"], one.fields["to_s"]) == pytest.approx((27.1, 33.1), abs=0.2)
    assert (one.fields["median_s"], one.fields["usual_s"]) == pytest.approx((0.8, 421e-6), rel=0.01)
    twice = slow(30, 33)
    for t_s, tick in twice.ticks:
        if 40 < t_s < 45:
            tick.latency_us = spread(800_000, tick.answered)
    (both,) = slow_answers(twice)
    assert (both.fields["times"], both.fields["all_s"]) == (2, 13)


@pytest.mark.parametrize(("for_s", "share"), [(5, 0.5), (5, 0.2), (5, 0.05), (1, 0.5)])
def test_a_part_of_the_server_that_stands_still(for_s: int, share: float) -> None:
    # That share of the connections waits from the first second on, sends no more, and is answered after the stop.
    run = a_run(1000)
    stop = [row for row in run.ticks if 30 < row[0] < 31 + for_s]
    for number, (_, tick) in enumerate(stop):
        tick.sent = 100
        tick.answered = 100 if number == for_s else round(100 * (1 - share))
        tick.latency_us = spread(400, tick.answered)
    waited = Histogram()
    waited.add_counts({for_s * 1_000_000 - 300_000: round(100 * share)})
    tick.answered += waited.count
    tick.latency_us.merge(waited)
    found = slow_answers(run)
    assert len(found) == (share >= 0.1 and for_s > 1)
    for one in found:
        assert one.fields["late"] == waited.count
        assert one.fields["others"] == pytest.approx(100 * (for_s + 1 - for_s * share), abs=1)
        assert (one.fields["from_s"], one.fields["to_s"]) == pytest.approx((stop[0][0] - 1.0, stop[-1][0]), abs=0.1)


@pytest.mark.parametrize("why", ["no answers", "given up"])
def test_a_silence_as_slowness_begins_does_not_hide_the_rest_of_it(why: str) -> None:
    run = slow(25, 50)
    run.plan = msgspec.structs.replace(run.plan, timeout_s=2.0)
    for t_s, tick in run.ticks:
        if 28 < t_s < 29 and why == "given up":
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
        elif 28 < t_s < 29:
            tick.answered, tick.awaiting = 0, 9
    (rest,) = slow_answers(run)
    assert rest.fields["to_s"] == pytest.approx(50.1, abs=0.2)
    assert 29 < rest.fields["from_s"] < 33


def test_latencies_of_older_files_are_of_answers_alone() -> None:
    # Half of the heartbeats were unanswered; newer histograms contain them, so that half of it is no answer.
    old, new = slow(30, 33), slow(30, 33)
    for run, per in ((old, 1), (new, 2)):
        for _, tick in run.ticks:
            tick.beats_failed = tick.answered
            tick.latency_us.merge(spread(10_000_000, tick.answered * (per - 1)))
    (found,) = slow_answers(old)
    assert found.fields["usual_s"] == pytest.approx(421e-6, rel=0.01)
    assert [one.fields["usual_s"] for one in slow_answers(new)] == [found.fields["usual_s"]]


@pytest.mark.parametrize("why", ["never", "not for long", "always", "not by much", "late heartbeats", "given up", "no answers"])
def test_high_latencies_that_are_no_finding(why: str) -> None:
    first, last = {"never": (900, 901), "not for long": (30, 31), "always": (0, 900)}.get(why, (30, 33))
    run = slow(first, last, {"not by much": 40_000, "not for long": 150_000}.get(why, 800_000))
    for t_s, tick in run.ticks:
        if why == "late heartbeats":
            tick.lateness_us = tick.latency_us
        elif why == "given up" and 35 < t_s < 36:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
        elif why == "no answers" and 29 < t_s < 30:
            tick.answered, tick.awaiting = 0, 9
    assert slow_answers(run) == []


@pytest.mark.parametrize(
    ("fault_at_s", "count", "since_s"),
    # In a long hold the time after the fault counts.
    [(None, 30, 60.0), (50.0, 80, 21.0)],
)
def test_silent_connections(fault_at_s: float | None, count: int, since_s: float) -> None:
    run = a_run(100)
    hold = next(one for one in run.phases if one.name == "hold")
    for t_s, tick in run.ticks:
        if fault_at_s is not None and hold.start_s + fault_at_s <= t_s < hold.start_s + fault_at_s + 1:
            tick.deaths = {"heartbeat_timeout": Deaths(count=1)}
    for ago_s, many in ((10.0, 20), (30.0, 50), (70.0, 30)):
        for _ in range(many):
            run.ticks[-1][1].heard_ms.add(ago_s * 1e3)
    totals = fold(run)
    seen = unheard(run, totals)
    assert (seen.count, seen.fault) == (count, fault_at_s is not None)
    assert seen.ago_s == pytest.approx(since_s, abs=1.0)
    (found,) = not_heard(seen, totals, run.plan)
    assert (found.fields["count"], found.fields["fault"], found.fields["enough_s"]) == (count, fault_at_s is not None, 40.0)
    # Connections that listen without a limit expect nothing.
    (listens,) = not_heard(seen, totals, msgspec.structs.replace(run.plan, http_protocol="sse", silence_s=LONGEST_S))
    assert (found.severity, listens.severity) == ("warning", "info" if fault_at_s is None else "warning")


@pytest.mark.parametrize(("silent_from_s", "silent", "told"), [(30.0, 100, 100), (15.0, 50, 50), (58.0, 100, None)])
def test_listening_connections_that_fall_silent(silent_from_s: float, silent: int, told: int | None) -> None:
    # A message came on each every 2 s. Then some are silent to the hold's end; the last ones not for longer than by chance.
    run = a_run(100)
    run.plan = msgspec.structs.replace(run.plan, http_protocol="sse", silence_s=90.0)
    hold = next(one for one in run.phases if one.name == "hold")
    for t_s, tick in run.ticks:
        speaking = tick.held if t_s < hold.start_s + silent_from_s else max(0, tick.held - silent)
        tick.protocol = ProtocolCounts(messages=speaking // 2)
    for number in range(100):
        ago_s = 60.0 - silent_from_s if number < silent else 1.0
        run.ticks[-1][1].heard_ms.add(ago_s * 1e3)
    seen = unheard(run, fold(run))
    assert (None if seen is None else seen.count) == told
    if told is not None:
        (found,) = not_heard(seen, fold(run), run.plan)
        assert (found.code, found.severity, found.fields["count"]) == ("fell_silent", "warning", told)


def test_no_silence_of_less_than_a_second_and_none_of_a_stopped_ramp() -> None:
    run = a_run(100)
    run.ticks[-1][1].deaths = {"heartbeat_timeout": Deaths(count=1)}
    for _ in range(50):
        run.ticks[-1][1].heard_ms.add(800.0)
    seen = unheard(run, fold(run))
    assert seen is None or seen.ago_s >= 1.0
    for _ in range(50):
        run.ticks[-1][1].heard_ms.add(1e6)
    assert unheard(run, fold(run)) is not None
    run.findings.append(stopped_by_user("ramp", 3.7, 9.8, ""))
    assert unheard(run, fold(run)) is None


def test_a_silence_to_the_end_counts_from_its_start() -> None:
    run = a_run(100)
    drain = next(one for one in run.phases if one.name == "drain")
    run.ticks[30][1].deaths = {"heartbeat_timeout": Deaths(count=1)}
    for t_s, tick in run.ticks:
        if t_s > drain.start_s - 15.0:
            tick.answered = 0
    # Timed out after ten seconds: sent five seconds after the last answer.
    last = max(t_s for t_s, _ in run.ticks if t_s <= drain.start_s)
    next(tick for t_s, tick in run.ticks if t_s == last).deaths = {"heartbeat_timeout": Deaths(count=1)}
    for ago_s, many in ((5.0, 20), (20.0, 80)):
        for _ in range(many):
            run.ticks[-1][1].heard_ms.add(ago_s * 1e3)
    seen = unheard(run, fold(run))
    assert (seen.count, seen.fault) == (80, True)
    assert seen.ago_s == pytest.approx(15.0, abs=2.0)


def test_a_silence_lasts_from_the_last_answer_to_the_next_one() -> None:
    run = silent(30, 32)
    for t_s, tick in run.ticks:
        if tick.answered:
            t0_s = t_s - tick.second
            tick.answered_s = (t_s - 0.9 - t0_s, t_s - 0.8 - t0_s)
    (told,) = stalls(run)
    last_s = max(t_s for t_s, _ in run.ticks if t_s < 30)
    next_s = min(t_s for t_s, _ in run.ticks if t_s > 33)
    assert (told.fields["from_s"], told.fields["to_s"]) == pytest.approx((last_s - 0.8, next_s - 0.9))
