"""Events of a plan on the simulated network: who is ended, when each is back, and that nothing of it is lost."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from asyncli.analysis.away import away_of
from asyncli.analysis.provoked import back_of
from asyncli.core.adding import added_up
from asyncli.engine.held_connections import HeldConnections
from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.net import Unacknowledged
from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.sim import SimNet, SimServer, simulate
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import CHURN, EventCounts, Tick

# More than one turn provokes. Of all, those whom an event of 30 % chooses, and one of 50 %.
ALL, CHOSEN, HALF = 607, 182, 304
# So many for what is spread by chance.
MANY = 2_003


def shard(workers: int = 1, **values: Any) -> Shard:
    plan = build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1:80/"], "seed": 1, "connections": ALL, "ramp": "300/s", "hold": 60, "keepalive": 20, **values})])
    return build_shard(plan, Spread((Destination(socket.AF_INET, "127.0.0.1", 80),), (), workers, True, 28_232))


def whole_of(orders: Shard, server: SimServer, net: SimNet | None = None) -> Tick:
    return added_up(*simulate(orders, server, 60.0, net=net))


TWO = [("10s", "drop 30%"), ("30s", "storm how=fin")]


@pytest.mark.parametrize("first_beat", ["now", "sleep"])
@pytest.mark.parametrize("connect_s", [0.0, 0.001])
def test_all_are_back_and_none_is_lost(first_beat: str, connect_s: float) -> None:
    whole = whole_of(shard(events=TWO, reconnect="jitter:3s", first_beat=first_beat, connections=MANY), SimServer(connect_s=connect_s))
    assert (whole.lost, whole.failed, whole.reopened, whole.beats_failed) == (0, 0, 0, 0)
    assert whole.opened == MANY + 601 + MANY
    asked = sum(event.asked for event in whole.events.values())
    assert whole.sent == whole.answered + asked
    for number, count in ((1, 601), (2, MANY)):
        event = whole.events[number]
        assert (event.chosen, event.absent, event.ended) == (count, 0, count)
        assert (event.attempts, event.opened, event.phantoms, event.failures) == (count, count, 0, {})
        assert event.back_ms.count == count
        assert 1_300 < (event.back_ms.quantile(0.5) or 0) < 1_700
        assert 2_900 < event.back_ms.greatest < 3_010


def drive(table: ConnectionTable, net: SimNet, until_s: float = 60.0) -> None:
    """Drive a table, by default through a minute."""
    upcoming = table.turn()
    while net.now < until_s and upcoming is not None:
        net.advance(min(instant for instant in (upcoming, net.next_event) if instant is not None))
        upcoming = table.turn()


def run_of_worker(orders: Shard, worker: int) -> dict[int, EventCounts]:
    """The events' counts of one worker of several."""
    net = SimNet(SimServer())
    table = ConnectionTable(orders, worker, net)
    table.start(0.0)
    table.hold(orders.ramp.end_s, [event.after_s(60.0) for event in orders.events])
    drive(table, net)
    return table.take_tick(60).events


@pytest.mark.parametrize("workers", [2, 3, 7, 53])
def test_the_chosen_and_the_instants_are_the_same_for_any_number_of_workers(workers: int) -> None:
    alone = run_of_worker(shard(1, events=TWO, reconnect="jitter:5s"), 0)
    orders = shard(workers, events=TWO, reconnect="jitter:5s")
    of_each = [run_of_worker(orders, worker) for worker in range(workers)]
    for number in (1, 2):
        together = added_up(*(events[number] for events in of_each if number in events))
        assert (together.chosen, together.ended) == (alone[number].chosen, alone[number].ended)
        # To the width of a bucket.
        assert together.back_ms.quantiles((0.1, 0.5, 0.9, 1.0)) == pytest.approx(alone[number].back_ms.quantiles((0.1, 0.5, 0.9, 1.0)), rel=0.03)


class _Refusing(SimNet):
    """Refuses each connection's first attempt after the event."""

    refused = 0

    def connect(self, destination: int, source: int) -> int:
        handle = super().connect(destination, source)
        if self._order > ALL and self.refused < ALL:
            self.refused += 1
            self._connections[handle].error = errno.ECONNREFUSED
        return handle


def test_a_failure_on_the_way_back_is_the_event_s() -> None:
    server = SimServer()
    whole = whole_of(shard(events=[("10s", "storm")], reconnect="fixed:2s"), server, _Refusing(server))
    event = whole.events[1]
    assert (whole.failed, whole.lost, whole.reopened) == (0, 0, 0)
    assert event.failures == {"refused": ALL}
    assert (event.attempts, event.opened, event.back_ms.count) == (2 * ALL, ALL, ALL)
    assert 3_990 < (event.back_ms.quantile(0.5) or 0) < 4_100


class _Overflowing(SimNet):
    """Accepts all, and is silent to the first attempt of each after the event, as a listen queue that overflowed."""

    def _serve(self, handle: int, connection: Any, close: bool) -> None:
        if ALL < connection.number <= 2 * ALL:
            return
        super()._serve(handle, connection, close)


def test_back_is_the_first_answer_not_the_connect() -> None:
    server = SimServer()
    whole = whole_of(shard(events=[("10s", "storm")], reconnect="now", timeout="2s"), server, _Overflowing(server))
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.beats_failed) == (0, 0, 0)
    assert (event.opened, event.phantoms, event.unanswered, event.back_ms.count) == (2 * ALL, ALL, ALL, ALL)
    assert event.back_ms.least > 2_000


def standing(ticks: list[Tick]) -> None:
    """Require that each second before the drain adds up, whether held or not yet back."""
    before = 0
    for tick in ticks[:60]:
        assert tick.held + tick.coming_back == before + tick.opened - tick.lost - tick.ended_by_events
        before = tick.held + tick.coming_back


class _SendsSynsAgain(SimNet):
    """The kernel sent the SYN of each connection after the event again."""

    def retransmitted(self, handle: int) -> int:
        return 1 if self._connections[handle].number > ALL else 0


@pytest.mark.parametrize(("connect_s", "again"), [(1.1, ALL), (0.1, 0)])
def test_syns_that_were_sent_again_on_the_way_back_are_counted(connect_s: float, again: int) -> None:
    """Once each, by how long the connect took: a faster one cannot have been sent again, so that its socket is not read."""
    server = SimServer(connect_s=connect_s)
    orders = shard(events=[("10s", "storm")])
    whole = whole_of(orders, server, _SendsSynsAgain(server))
    assert whole.tcp is not None
    assert (whole.tcp.connects, whole.tcp.segments, whole.tcp.heartbeats) == (again, again, 0)
    # They are the event's, and began when it did, not when they were seen to have been sent again.
    assert whole.tcp.begun == {}
    sent_again = whole.events[1].sent_again
    assert sum(sent_again.values()) == again
    began_s = orders.ramp.end_s + 10.0
    assert all(began_s <= second < began_s + 2.5 for second in sent_again)


def test_the_first_and_the_last_answer_of_each_second_are_noted() -> None:
    """All are ended 10 s into the hold, and back 3.5 s later, with the first of their answers 0.2 s after that."""
    orders = shard(events=[("10s", "storm")], reconnect="fixed:3500ms")
    ticks = list(simulate(orders, SimServer(latency_s=0.2), 60.0))
    event_s = orders.ramp.end_s + 10.0
    before = [tick.answered_s for tick in ticks if tick.answered_s is not None and tick.answered_s[1] <= event_s]
    after = [tick.answered_s for tick in ticks if tick.answered_s is not None and tick.answered_s[0] > event_s]
    assert event_s - 0.1 < before[-1][1] <= event_s
    assert after[0][0] == pytest.approx(event_s + 3.7, abs=0.01)
    for tick in ticks:
        assert (tick.answered_s is not None) is (tick.answered > 0)
        if tick.answered_s is not None:
            first_s, last_s = tick.answered_s
            assert tick.second - 1 <= first_s <= last_s <= tick.second
    whole = Tick()
    for tick in ticks:
        whole.merge_counts(tick)
    noted = [tick.answered_s for tick in ticks if tick.answered_s is not None]
    assert whole.answered_s == (noted[0][0], noted[-1][1])
    # A run without events pays for nothing.
    assert all(tick.answered_s is None for tick in simulate(shard(), SimServer(), 60.0))


class _WarmingUp(SimNet):
    """Answers with 503 from 10 s after the ramp's end until ``well_at``, and closes after it where ``closes``."""

    bad_from, well_at, closes = 0.0, 0.0, False

    def recv(self, handle: int, most: int) -> bytes:
        data = super().recv(handle, most)
        if not data or not self.bad_from <= self.now < self.well_at:
            return data
        close = b"Connection: close\r\n" if self.closes else b""
        return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n" + close + b"\r\n"


def warming_up(bad_from: float, well_at: float, *, closes: bool = False) -> tuple[SimServer, _WarmingUp]:
    server = SimServer()
    net = _WarmingUp(server)
    net.bad_from, net.well_at, net.closes = bad_from, well_at, closes
    return server, net


@pytest.mark.parametrize("event", ["storm", "vanish 100% for 1s then return", "vanish 100% for 1s"])
@pytest.mark.parametrize("closes", [False, True])
def test_an_error_is_no_comeback(event: str, closes: bool) -> None:
    orders = shard(events=[("10s", event)], reconnect="fixed:1s")
    began = orders.ramp.end_s + 10.0
    server, net = warming_up(began, began + 11.0, closes=closes)
    ticks = list(simulate(orders, server, 60.0, net=net))
    whole = added_up(*ticks)
    done = whole.events[1]
    assert (done.back_ms.count, done.away, done.phantoms, whole.lost, whole.failed) == (ALL, 0, 0, 0, 0)
    # Each asks again after a second, as after a connect that failed.
    outage_s = 0.0 if event == "storm" else 1.0
    assert 10.9 - outage_s < done.back_ms.least / 1e3 <= done.back_ms.greatest / 1e3 < 12.2 - outage_s
    assert done.error_answers[503] >= 8 * ALL
    assert whole.sent == whole.answered + done.asked + done.unanswered
    assert whole.by_status[503] == done.error_answers[503]
    assert ticks[-1].held_at_drain == ALL
    assert all(tick.awaiting >= 0 for tick in ticks)


@pytest.mark.parametrize("closes", [False, True])
def test_who_has_only_errors_until_the_hold_ends_is_not_back(closes: bool) -> None:
    orders = shard(events=[("10s", "storm")], reconnect="fixed:1s")
    began = orders.ramp.end_s + 10.0
    server, net = warming_up(began, 1e9, closes=closes)
    ticks = list(simulate(orders, server, 60.0, net=net))
    whole = added_up(*ticks)
    done = whole.events[1]
    assert (done.back_ms.count, done.away, ticks[-1].held_at_drain, whole.lost) == (0, ALL, 0, 0)
    assert (done.turned_away > ALL) == closes


def test_who_asks_again_after_an_error_waits_no_longer_than_for_a_heartbeat() -> None:
    orders = shard(events=[("10s", "storm")], reconnect="fixed:25s")
    began = orders.ramp.end_s + 10.0
    done = whole_of(orders, *warming_up(began, began + 26.0)).events[1]
    assert done.back_ms.count == ALL
    assert done.back_ms.greatest < 36_100


def test_of_whom_had_only_errors_before_an_error_is_a_comeback() -> None:
    done = whole_of(shard(events=[("30s", "storm")], reconnect="fixed:1s"), *warming_up(0.0, 1e9)).events[1]
    assert (done.back_ms.count, done.error_answers) == (ALL, {})
    assert done.back_ms.greatest < 1_100


def test_who_had_an_error_and_is_ended_again_is_waited_for_once() -> None:
    orders = shard(events=[("10s", "storm"), ("15s", "storm")], reconnect="fixed:1s")
    began = orders.ramp.end_s + 10.0
    whole = whole_of(orders, *warming_up(began, began + 8.0))
    assert (whole.events[1].ended_again, whole.events[1].back_ms.count) == (ALL, 0)
    assert (whole.events[2].back_ms.count, whole.events[2].away, whole.lost) == (ALL, 0, 0)


def test_who_is_not_back_is_not_held_but_connecting() -> None:
    """Though its own kernel says that its connection stands."""
    server = SimServer()
    ticks = list(simulate(shard(events=[("10s", "storm")], reconnect="now", timeout="5s"), server, 60.0, net=_Overflowing(server)))
    standing(ticks)
    unanswered = ticks[14]
    assert (unanswered.held, unanswered.coming_back, unanswered.connecting, unanswered.awaiting) == (0, ALL, ALL, 0)
    assert unanswered.longest_wait_s == 0.0
    back = ticks[30]
    assert (back.held, back.coming_back, back.connecting) == (ALL, 0, 0)


def test_who_is_ended_again_before_it_was_back_is_counted_once() -> None:
    ticks = list(simulate(shard(events=[("10s", "storm"), ("11s", "drop 50%")], reconnect="now", keepalive=10), SimServer(latency_s=1.5), 60.0))
    standing(ticks)
    assert (ticks[12].held, ticks[20].held) == (0, ALL)


@pytest.mark.parametrize("first_beat", ["now", "sleep"])
def test_who_returns_is_held_from_its_answer_on(first_beat: str) -> None:
    server = SimServer(stalls_s=(14.0, 25.0))
    ticks = list(simulate(shard(events=[("10s", "vanish 30% for 5s then return")], keepalive=40, timeout="20s", first_beat=first_beat), server, 60.0))
    standing(ticks)
    assert (ticks[20].held, ticks[20].coming_back, ticks[30].held, ticks[30].coming_back) == (ALL - CHOSEN, CHOSEN, ALL, 0)


@pytest.mark.parametrize(("policy", "waiting"), [("now", 0), ("fixed:9s", ALL)])
def test_an_answer_after_the_drain_began_is_no_comeback(policy: str, waiting: int) -> None:
    """The server may have had room for it only because the drain closed others."""
    ticks = list(simulate(shard(events=[("52s", "storm")], reconnect=policy, timeout="20s"), SimServer(stalls_s=(53.0, 64.0)), 60.0))
    event = added_up(*ticks).events[1]
    assert (event.ended, event.back_ms.count, event.waiting, event.away) == (ALL, 0, waiting, ALL - waiting)
    assert max(tick.held_at_drain for tick in ticks) == 0
    assert ticks[-1].held == 0
    assert added_up(*ticks).lost == 0


def test_a_connect_that_succeeds_in_the_drain_is_no_comeback() -> None:
    ticks = list(simulate(shard(events=[("58s", "storm")], reconnect="now"), SimServer(connect_s=4.0), 60.0))
    event = added_up(*ticks).events[1]
    assert (event.opened, event.back_ms.count, event.away) == (ALL, 0, ALL)
    assert (max(tick.held_at_drain for tick in ticks), ticks[-1].held) == (0, 0)


def test_of_churn_those_on_their_first_way_back_are_no_shortfall() -> None:
    ticks = list(simulate(shard(churn="3%/s", keepalive=10, connections=MANY), SimServer(latency_s=0.5), 60.0))
    churned = added_up(*ticks).events[0]
    assert 25 < churned.waiting < 35
    assert churned.away == 0
    assert max(tick.held_at_drain for tick in ticks) == MANY - churned.waiting


@pytest.mark.parametrize("policy", ["now", "jitter:2s"])
def test_of_churn_those_who_hang_on_the_server_are_not_back(policy: str) -> None:
    """It answers nobody in the last ten seconds: whose wait was over then was to be back."""
    ticks = list(simulate(shard(churn="3%/s", keepalive=10, connections=MANY, reconnect=policy, timeout="20s"), SimServer(stalls_s=(50.0, 80.0)), 60.0))
    churned = added_up(*ticks).events[0]
    assert churned.away > 400
    # 60 a second, of a wait of one second on average.
    assert churned.waiting < (90 if policy != "now" else 5)
    back = back_of(CHURN, churned)
    assert back.p50_s is not None
    assert (back.p90_s, back.p99_s, back.all_s) == (None, None, None)


def test_a_policy_is_also_that_of_the_server_s_own_closes() -> None:
    """Not as fast as the ramp, and not of an event."""
    whole = whole_of(shard(reconnect="fixed:1s"), SimServer(resets_all_at_s=20.0))
    assert (whole.lost, whole.reopened, whole.events) == (ALL, ALL, {})


def test_what_a_server_ends_in_a_command_s_time_has_the_time_since_it_began() -> None:
    whole = whole_of(shard(events=[("10s", "run ./deploy")], reconnect="now"), SimServer(resets_all_at_s=20.0))
    event = whole.events[1]
    assert (whole.lost, event.ended, event.closed_ms.count) == (0, ALL, ALL)
    # The hold begins after two seconds.
    assert 7_000 < event.closed_ms.least <= event.closed_ms.greatest < 9_000


class _Resetting(SimNet):
    """Resets all connections at each of these instants."""

    def __init__(self, *instants_s: float) -> None:
        super().__init__(SimServer())
        for instant_s in instants_s:
            self._at(instant_s, -1, "reset all")


def test_whom_a_deploy_ends_more_than_once_is_one_client() -> None:
    """By each of two commands: who was ended by the first is new to the second."""
    net = _Resetting(13.0, 14.0, 15.0, 23.0, 24.0)
    whole = whole_of(shard(events=["10s run ./deploy", "20s run ./deploy"], reconnect="now"), net.server, net)
    first, second = whole.events[1], whole.events[2]
    assert (first.ended, first.clients, first.ended_repeatedly) == (3 * ALL, ALL, ALL)
    assert (second.ended, second.clients, second.ended_repeatedly) == (2 * ALL, ALL, ALL)
    assert (first.away_ms.count, whole.lost) == (3 * ALL, 0)
    assert first.away_ms.greatest < 100


def test_whom_a_second_deploy_ends_after_errors_alone_it_has_ended() -> None:
    """The first one brings a server that answers with errors, and the second one a good one."""
    orders = shard(events=["10s run ./bad", "20s run ./good"], reconnect="fixed:1s")
    server, net = warming_up(12.5, 24.0)
    for instant_s in (13.0, 24.0):
        net._at(instant_s, -1, "reset all")
    ticks = list(simulate(orders, server, 60.0, net=net))
    standing(ticks)
    whole = added_up(*ticks)
    first, second = whole.events[1], whole.events[2]
    assert (first.ended, first.ended_again, first.turned_away, first.back_ms.count) == (ALL, ALL, 0, 0)
    assert (second.ended, second.clients, second.ended_repeatedly, second.away, whole.lost) == (ALL, ALL, 0, 0, 0)
    # Each is back from the second one, and had been away from the first one until then.
    assert second.back_ms.count == ALL
    assert second.away_ms.greatest < 1_100
    away = away_of(1, first)
    assert away is not None
    assert away.max_s is None
    assert away.at_least is not None
    assert away.at_least.max_s == pytest.approx(11.0, abs=0.1)


@pytest.mark.parametrize("closes", [False, True])
def test_who_is_turned_away_since_a_command_is_not_ended_by_it_again(closes: bool) -> None:
    """The server warms up after the command: what it closes after an error was an attempt to come back."""
    orders = shard(events=["10s run ./deploy"], reconnect="fixed:1s")
    server, net = warming_up(13.0, 20.0, closes=closes)
    for instant_s in (13.0, 16.5):
        net._at(instant_s, -1, "reset all")
    ticks = list(simulate(orders, server, 60.0, net=net))
    standing(ticks)
    done = added_up(*ticks).events[1]
    assert (done.ended, done.ended_repeatedly, done.back_ms.count, done.away) == (ALL, 0, ALL, 0)
    assert done.turned_away >= ALL


def test_each_client_is_away_from_its_own_end_on() -> None:
    """A deploy that lets connections go 7 s into its time: who comes back within 2 s was away for no longer."""
    whole = whole_of(shard(events=[("10s", "run ./deploy")], reconnect="jitter:2s"), SimServer(resets_all_at_s=20.0))
    event = whole.events[1]
    assert (event.back_ms.count, event.away_ms.count, event.clients, event.ended_repeatedly) == (ALL, ALL, ALL, 0)
    assert event.back_ms.least > 7_000
    assert event.away_ms.least < 100
    assert 1_900 < event.away_ms.greatest < 2_010
    away = away_of(1, event)
    assert away is not None
    assert away.at_least is None
    assert (away.p50_s, away.max_s) == (pytest.approx(1.0, abs=0.2), event.away_ms.greatest / 1e3)


@pytest.mark.parametrize("words", ["drop 30%", "vanish 30% for 5s then return", "vanish 30% for 5s then reconnect", "stall 30% for 5s"])
def test_an_outage_is_in_the_time_away_and_not_in_the_time_back(words: str) -> None:
    event = whole_of(shard(events=[("10s", words)], reconnect="now"), SimServer()).events[1]
    outage_ms = 0 if words.startswith("drop") else 5_000
    assert (event.away_ms.count, event.clients, event.ended_repeatedly) == (CHOSEN, CHOSEN, 0)
    assert event.back_ms.greatest < 200
    assert outage_ms - 50 <= event.away_ms.least <= event.away_ms.greatest < outage_ms + 200


def test_who_is_away_as_the_drain_begins_has_been_so_since_its_end() -> None:
    """Half of all are ended 8 s before the hold's end, and the rest 2 s before it, by a server that answers nobody from then on."""
    whole = whole_of(shard(events=[("50s", "drop 50%"), ("58s", "drop 50%")], reconnect="now", timeout="20s"), SimServer(stalls_s=(50.0, 80.0)))
    for number, away_s in ((1, 10.0), (2, 2.0)):
        event = whole.events[number]
        assert (event.away_ms.count, event.still_away_ms.count) == (0, event.away)
        away = away_of(number, event)
        assert away is not None
        assert (away.p50_s, away.max_s) == (None, None)
        assert away.at_least is not None
        assert away.at_least.p50_s == pytest.approx(away_s, abs=0.1)
        assert away.at_least.max_s == pytest.approx(away_s, abs=0.1)


def test_of_churn_each_client_is_counted_once() -> None:
    """In the time of one and a half turns: so half of all are ended twice."""
    churned = whole_of(shard(churn="2.5%/s", keepalive=10), SimServer()).events[CHURN]
    assert churned.clients == ALL
    assert churned.ended_repeatedly == churned.ended - ALL
    assert 250 < churned.ended_repeatedly < 350
    assert churned.away_ms.count == churned.back_ms.count
    assert churned.away_ms.greatest == churned.back_ms.greatest


def test_a_run_without_events_has_no_column_of_theirs() -> None:
    quiet = HeldConnections(shard(reconnect="now"), 0, SimNet(SimServer())).comebacks
    provoked = HeldConnections(shard(events=["10s storm"]), 0, SimNet(SimServer())).comebacks
    assert (len(quiet._left_at), len(provoked._left_at)) == (0, ALL)
    assert not provoked._ends


def at_30_s(orders: Shard) -> tuple[ConnectionTable, SimNet]:
    """A table 30 s into its events, on a server that resets all connections after 45 s."""
    net = SimNet(SimServer(resets_all_at_s=45.0))
    table = ConnectionTable(orders, 0, net)
    table.start(0.0)
    table.hold(orders.ramp.end_s, [event.after_s(60.0) for event in orders.events])
    drive(table, net, until_s=30.0)
    return table, net


@pytest.mark.parametrize(
    ("events", "lasts_until", "lost"),
    [
        (["10s run ./deploy"], None, ALL),
        (["10s run ./deploy"], 50.0, 0),
        (["10s run ./deploy"], 40.0, ALL),
        # Those connections are of later processes.
        (["10s run ./deploy", "20s storm"], 50.0, ALL),
    ],
)
def test_what_earlier_processes_end_later_is_the_command_s(events: list[str], lasts_until: float | None, lost: int) -> None:
    """All are reset after 45 s, long after each was heard once more since the command."""
    table, net = at_30_s(shard(events=events, reconnect="now"))
    if lasts_until is not None:
        table.command_lasts(1, lasts_until)
    drive(table, net)
    tick = table.take_tick(60)
    ended = tick.events[1].ended if 1 in tick.events else 0
    assert (tick.lost, ended, tick.held) == (lost, ALL - lost, ALL)


@pytest.mark.parametrize(("runs_until", "lost"), [(50.0, 0), (44.0, ALL)])
def test_what_the_server_ends_while_a_command_runs_is_the_command_s(runs_until: float, lost: int) -> None:
    """Also of connections that were opened since: all came back from a storm meanwhile, and are reset after 45 s."""
    table, net = at_30_s(shard(events=["9s storm", "10s run 'sleep 30; ./deploy'"], reconnect="jitter:4s"))
    table.command_lasts(2, runs_until, runs=True)
    # It runs no shorter than was known.
    table.command_lasts(2, 31.0, runs=True)
    drive(table, net)
    tick = table.take_tick(60)
    ended = tick.events[2].ended if 2 in tick.events else 0
    assert (tick.lost, ended, tick.held) == (lost, ALL - lost, ALL)


def test_of_two_commands_the_earlier_one_lasts_no_longer() -> None:
    table, net = at_30_s(shard(events=["10s run ./deploy", "11s run ./deploy"], reconnect="now"))
    table.command_lasts(1, 50.0)
    drive(table, net)
    assert table.take_tick(60).lost == ALL
    # Whom it ended is not kept, either.
    assert list(table._connections.comebacks._ends) == [2]


def test_those_who_are_not_connected_are_absent() -> None:
    server = SimServer()
    orders = shard(events=[("10s", "storm"), ("11s", "storm")], reconnect="jitter:4s")
    second = whole_of(orders, server).events[2]
    assert second.chosen == ALL
    assert second.absent == pytest.approx(0.75 * ALL, rel=0.05)
    assert second.ended + second.absent == second.chosen


def test_who_is_ended_twice_is_waited_for_by_the_second_event() -> None:
    """Half of them still await their first answer when the second comes."""
    orders = shard(events=[("10s", "storm"), ("11s", "drop 50%")], reconnect="now", keepalive=10)
    whole = whole_of(orders, SimServer(latency_s=1.5))
    first, second = (whole.events[number] for number in (1, 2))
    assert whole.lost == 0
    assert (first.ended, first.ended_again, first.back_ms.count) == (ALL, HALF, ALL - HALF)
    assert (second.ended, second.absent, second.ended_again, second.back_ms.count) == (HALF, 0, 0, HALF)
    assert second.back_ms.greatest < 1_700


def test_a_replacement_does_nothing_that_lies_behind() -> None:
    orders = shard(events=TWO, reconnect="now")
    net = SimNet(SimServer(), start=30.0)
    table = ConnectionTable(orders, 0, net, replaces=True)
    table.start(0.0)
    table.hold(orders.ramp.end_s, [event.after_s(60.0) for event in orders.events])
    drive(table, net)
    assert list(table.take_tick(60).events) == [2]


def silent_for_a_time(server: SimServer, words: str) -> Tick:
    return whole_of(shard(events=[("10s", words)], reconnect="now"), server)


def test_who_returns_in_time_is_heard_on_the_same_connection() -> None:
    whole = silent_for_a_time(SimServer(), "vanish 30% for 5s then return")
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.opened, whole.reopened) == (0, 0, ALL, 0)
    assert (event.silenced, event.returned, event.closed, event.opened, event.back_ms.count) == (CHOSEN, CHOSEN, 0, 0, CHOSEN)
    # From the end of the outage.
    assert event.back_ms.greatest < 200


def test_who_returns_gets_the_answer_that_it_awaited() -> None:
    """And sends no second heartbeat, whose answer would be one too many."""
    server = SimServer(stalls_s=(11.0, 15.0))
    whole = whole_of(shard(events=[("11s", "vanish 100% for 3s then return")], keepalive=4), server)
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.opened, whole.protocol) == (0, 0, ALL, None)
    assert (event.silenced, event.returned, event.phantoms, event.closed, event.back_ms.count) == (ALL, ALL, 0, 0, ALL)
    assert (event.asked, whole.sent) == (0, whole.answered)


def test_an_answer_that_is_awaited_in_the_drain_is_accounted_for() -> None:
    server = SimServer(stalls_s=(11.0, 15.0))
    whole = whole_of(shard(events=[("11s", "vanish 100% for 300s then return")], keepalive=4, hold=400), server)
    event = whole.events[1]
    assert event.asked > ALL / 2
    assert whole.sent == whole.answered + event.asked


def test_who_returns_too_late_connects_anew_and_is_no_loss() -> None:
    """The server has ended those whom it had not heard for longer than a heartbeat's longest sleep."""
    whole = silent_for_a_time(SimServer(idle_timeout_s=12.0), "vanish 30% for 25s then return")
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.reopened) == (0, 0, 0)
    assert (event.silenced, event.returned, event.closed, event.opened, event.back_ms.count) == (CHOSEN, CHOSEN, CHOSEN, CHOSEN, CHOSEN)
    assert whole.opened == ALL + CHOSEN


class _SendsAgain(SimNet):
    """What a silence has swallowed comes as both kernels send it again: 0.2 s after the first time, and each time after twice the wait before.

    ``knows``: the server's kernel had acknowledged the request, so that only its own sends again. ``at_all``: it does.
    """

    def __init__(self, *, knows: bool = False, at_all: bool = True) -> None:
        super().__init__(SimServer(latency_s=1.0))
        self.knows, self.at_all = knows, at_all
        self._sent_at: dict[int, float] = {}
        self._waits: dict[int, Unacknowledged] = {}

    def send(self, handle: int, data: bytes) -> int:
        self._waits.pop(handle, None)
        self._sent_at[handle] = self.now
        return super().send(handle, data)

    def hear(self, handle: int) -> None:
        connection = self._connections[handle]
        swallowed = connection.unheard or []
        connection.unheard = []
        super().hear(handle)
        if not swallowed:
            return
        last, gap_s = self._sent_at[handle], 0.2
        while last + gap_s <= self.now:
            last += gap_s
            gap_s *= 2
        if not self.knows:
            self._waits[handle] = Unacknowledged(self.now - last, last + gap_s - self.now)
        for kind, data in swallowed if self.at_all else ():
            self._at(last + gap_s, handle, kind, data)

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        waits = self._waits.get(handle)
        if waits is None:
            return None
        return waits._replace(sent_ago_s=waits.sent_ago_s + self.now - self.heard_at)

    #: When all were heard again.
    heard_at = 0.0


def returning(net: _SendsAgain, at: str, **values: Any) -> tuple[EventCounts, Tick]:
    """What an event counts in which all are silent for 8 s, some of them with a request under way."""
    orders = shard(events=[(at, "vanish 100% for 8s then return")], keepalive=4, reconnect="now", **values)
    net.heard_at = orders.ramp.end_s + float(at.removesuffix("s")) + 8.0
    ticks = list(simulate(orders, net.server, 60.0, net=net))
    standing(ticks)
    whole = added_up(*ticks)
    assert (whole.lost, whole.failed) == (0, 0)
    return whole.events[1], whole


def test_who_returns_with_a_request_under_way_is_back_when_its_kernel_sends_it_again() -> None:
    event, whole = returning(_SendsAgain(), "30s", timeout="20s")
    assert (event.back_ms.count, event.closed, event.timed_out, whole.opened) == (ALL, 0, 0, ALL)
    # After the first try 0.2, 0.6 .. 6.2 and 12.6 s, of which the silence took 8, and the second before it some.
    assert 0 < event.resends_ms.count < ALL
    assert event.awaited == event.resends_ms.count
    assert 3_500 < event.resends_ms.least < event.resends_ms.greatest < 4_700
    assert event.back_ms.greatest == pytest.approx(event.resends_ms.greatest, abs=100)


@pytest.mark.parametrize("knows", [False, True])
def test_who_waits_for_a_kernel_as_the_hold_ends_was_not_to_be_back(knows: bool) -> None:
    """Also where only the server's kernel has anything to send again."""
    event, _ = returning(_SendsAgain(knows=knows), "50s", timeout="20s")
    assert event.waiting > 0
    assert (event.away, event.back_ms.count, event.resends_ms.count) == (0, ALL - event.waiting, 0 if knows else event.waiting)
    # Whether or not their requests were acknowledged.
    assert event.awaited == event.waiting


def test_whom_no_kernel_sends_anything_for_as_long_as_it_was_silent_is_not_back() -> None:
    """12 s after the return."""
    event, _ = returning(_SendsAgain(knows=True, at_all=False), "40s", timeout="20s")
    assert event.away > 0
    assert (event.waiting, event.back_ms.count) == (0, ALL - event.away)


class _IsAsked(_SendsAgain):
    """Notes when it is asked what a connection has sent again. From the return on it answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_at: list[float] = []

    def hear(self, handle: int) -> None:
        super().hear(handle)
        self.server = SimServer()

    def retransmitted(self, handle: int) -> int:
        self.asked_at.append(self.now)
        return 0


@pytest.mark.parametrize("timeout", ["20s", "2s"])
def test_who_had_its_late_answer_or_lost_its_connection_awaits_it_no_more(timeout: str) -> None:
    """What its next connections have sent again is asked only where their answers are late."""
    net = _IsAsked()
    orders = shard(events=[("20s", "vanish 100% for 8s then return"), ("50s", "storm")], keepalive=4, reconnect="now", timeout=timeout)
    whole = added_up(*simulate(orders, net.server, 58.0, net=net))
    assert whole.events[1].awaited > 0
    assert whole.events[2].back_ms.count == ALL
    hold_s = orders.ramp.end_s
    assert [at for at in net.asked_at if hold_s + 45.0 < at < hold_s + 57.9] == []
    # Once for each: as the late answer comes, or as the connection ends without one.
    first_s = [at for at in net.asked_at if hold_s + 28.0 < at < hold_s + 45.0]
    assert len(first_s) == whole.events[1].awaited


class _HasSentAgain(_SendsAgain):
    """The kernel of who was silent had sent again five segments by its end."""

    def retransmitted(self, handle: int) -> int:
        was_silent = self._connections[handle].number <= ALL and self.now >= self.heard_at
        return 5 if was_silent else 0


@pytest.mark.parametrize("timeout", ["20s", "2s"])
def test_what_a_silence_swallows_is_its_own_and_no_sign_of_the_network(timeout: str) -> None:
    """Also where the answer does not come in time, so that the connection ends."""
    event, whole = returning(_HasSentAgain(), "30s", timeout=timeout)
    assert whole.tcp is not None
    assert event.sent_again_silent == 5 * ALL
    assert event.sent_again == {}
    assert (whole.tcp.segments, whole.tcp.heartbeats, whole.tcp.unanswered) == (0, 0, 0)


def test_who_has_no_answer_in_time_since_it_returned_was_not_ended_by_the_server() -> None:
    event, whole = returning(_SendsAgain(), "30s", timeout="2s")
    assert event.timed_out == event.resends_ms.count > 0
    assert (event.closed, event.back_ms.count, whole.opened) == (0, ALL, ALL + event.timed_out)


def test_who_reconnects_has_a_new_connection_beside_the_old_one() -> None:
    server = SimServer()
    net = SimNet(server)
    whole = whole_of(shard(events=[("10s", "vanish 30% for 5s")], reconnect="now"), server, net)
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.reopened) == (0, 0, 0)
    assert (event.silenced, event.returned, event.opened, event.back_ms.count) == (CHOSEN, 0, CHOSEN, CHOSEN)
    assert net.accepted == ALL + CHOSEN
    # All descriptors were closed in the drain, the silent ones too.
    assert not net._connections


def test_who_is_gone_stays_away() -> None:
    server = SimServer()
    net = SimNet(server)
    ticks = list(simulate(shard(events=[("10s", "vanish 30%")]), server, 60.0, net=net))
    whole = added_up(*ticks)
    event = whole.events[1]
    assert (whole.lost, event.silenced, event.gone, event.attempts) == (0, CHOSEN, CHOSEN, 0)
    assert max(tick.held_at_drain for tick in ticks) == ALL - CHOSEN
    assert not net._connections


def test_churn_replaces_each_once_before_any_twice() -> None:
    """At 100 % a minute of a hold of a minute: all of them, evenly."""
    server = SimServer()
    ticks = list(simulate(shard(churn="3%/s", keepalive=10, connections=MANY), server, 60.0))
    whole = added_up(*ticks)
    churned = whole.events[0]
    assert (whole.lost, whole.failed, whole.reopened) == (0, 0, 0)
    # 3 % a second for 60 s: 1.8 times.
    assert churned.ended == pytest.approx(1.8 * MANY, abs=70)
    assert churned.opened == churned.ended
    each_second = [tick.events[0].ended for tick in ticks if 0 in tick.events]
    assert min(each_second[1:-1]) >= 58
    assert max(each_second) <= 62
    assert churned.back_ms.greatest < 100


@pytest.mark.parametrize("workers", [2, 7])
def test_churn_is_the_same_for_any_number_of_workers(workers: int) -> None:
    alone = run_of_worker(shard(1, churn="1%/s"), 0)[0]
    of_each = [run_of_worker(shard(workers, churn="1%/s"), worker)[0] for worker in range(workers)]
    # One may be due at the very end.
    assert sum(churned.ended for churned in of_each) == pytest.approx(alone.ended, abs=1)


def test_who_is_to_come_back_after_the_hold_is_waited_for() -> None:
    ticks = list(simulate(shard(events=[("58s", "drop 30%")], reconnect="fixed:5s"), SimServer(), 60.0))
    event = added_up(*ticks).events[1]
    assert (event.ended, event.waiting, event.back_ms.count) == (CHOSEN, CHOSEN, 0)


def stalled_for(server: SimServer, words: str = "stall 30% for 30s", net: SimNet | None = None, reconnect: str = "now", **values: Any) -> Tick:
    return whole_of(shard(events=[("10s", words)], reconnect=reconnect, **values), server, net)


def test_who_stalls_is_held_and_answered_late() -> None:
    """They go on sending heartbeats, of which none is a miss, and read all answers in the end."""
    ticks = list(simulate(shard(events=[("10s", "stall 30% for 30s")], keepalive=4), SimServer(), 60.0))
    whole = added_up(*ticks)
    event = whole.events[1]
    assert (whole.lost, whole.failed, whole.opened, whole.reopened, whole.beats_failed) == (0, 0, ALL, 0, 0)
    assert {tick.held for tick in ticks[5:60]} == {ALL}
    assert whole.sent == whole.answered
    assert (event.chosen, event.absent, event.ended, event.stalled, event.resumed) == (CHOSEN, 0, 0, CHOSEN, CHOSEN)
    assert (event.closed, event.closes, event.asked, event.back_ms.count) == (0, {}, 0, CHOSEN)
    # From the end of the stall.
    assert event.back_ms.greatest < 200
    # Each sent one after 1 to 2 s.
    answer = len(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert 18 * CHOSEN * answer < event.waited_bytes < 23 * CHOSEN * answer
    # The others', in the seconds of the stall, and theirs after it.
    assert sum(tick.answered for tick in ticks[14:38]) == pytest.approx(0.7 * sum(tick.answered for tick in ticks[44:60]) * 24 / 16, rel=0.1)


def test_only_those_who_are_to_stall_have_the_segments_of_a_network() -> None:
    server = SimServer()
    net = SimNet(server)
    limited: list[bool] = []
    connect = net.connect

    def connect_noted(destination: int, source: int) -> int:
        handle = connect(destination, source)
        limited.append(net.segment_bytes(handle) == 1448)
        return handle

    net.connect = connect_noted  # type: ignore[method-assign]
    event = stalled_for(server, net=net).events[1]
    assert (len(limited), sum(limited), event.segments) == (ALL, CHOSEN, {1448: CHOSEN})


def test_who_stalls_to_the_end_reads_in_the_drain() -> None:
    ticks = list(simulate(shard(events=[("10s", "stall 30%")], keepalive=4), SimServer(), 60.0))
    whole = added_up(*ticks)
    event = whole.events[1]
    assert (whole.lost, whole.sent - whole.answered, whole.beats_failed, event.stalled, event.resumed) == (0, 0, 0, CHOSEN, CHOSEN)
    assert (event.back_ms.count, event.away_ms.count, event.still_away_ms.count) == (CHOSEN, CHOSEN, 0)
    assert max(tick.held_at_drain for tick in ticks) == ALL


def test_whom_the_server_ends_while_it_stalls_is_no_loss() -> None:
    """How and when is told, to the second; they come back, and read from then on."""
    whole = stalled_for(SimServer(resets_all_at_s=22.0), reconnect="fixed:1s")
    event = whole.events[1]
    assert (event.closed, event.closes, event.closed_unseen, event.resumed) == (CHOSEN, {"reset": CHOSEN}, 0, 0)
    assert event.closed_ms.count == CHOSEN
    # The ramp's last batch is due 2.002 s after the start.
    assert 9_900 < event.closed_ms.least <= event.closed_ms.greatest < 10_100
    assert (event.opened, event.back_ms.count) == (CHOSEN, CHOSEN)
    assert 990 < event.back_ms.least <= event.back_ms.greatest < 1_300
    # Those that did not stall were lost.
    assert whole.lost == whole.reopened == ALL - CHOSEN
    assert whole.sent == whole.answered + event.asked + whole.beats_failed


def test_the_end_of_the_stream_is_seen_while_nothing_is_read() -> None:
    """Though answers wait before it, which count: the server ends each with its fifth."""
    whole = stalled_for(SimServer(most_requests=5), keepalive=8)
    event = whole.events[1]
    assert event.closed == CHOSEN
    assert set(event.closes) == {"closed_announced"}
    assert event.closed_ms.count == CHOSEN
    assert event.back_ms.count == CHOSEN
    assert whole.sent == whole.answered + event.asked + whole.beats_failed


class _Silent(SimNet):
    """Answers nothing from an instant on."""

    def _serve(self, handle: int, connection: Any, close: bool) -> None:
        if self.now < 20.0:
            super()._serve(handle, connection, close)


def test_who_reads_again_and_hears_nothing_is_not_waited_for_for_ever() -> None:
    server = SimServer()
    whole = stalled_for(server, "stall 30% for 20s", _Silent(server), keepalive=4, timeout="3s", hold=50)
    event = whole.events[1]
    assert event.closes == {"heartbeat_timeout": CHOSEN}
    assert (event.closed_unseen, event.closed_ms.count) == (CHOSEN, 0)
    assert "heartbeat_timeout" in whole.deaths


def test_a_storm_ends_those_who_stall_too() -> None:
    orders = shard(events=[("10s", "stall 30% for 40s"), ("20s", "storm")], reconnect="now", keepalive=4)
    whole = whole_of(orders, SimServer())
    stall, storm = (whole.events[number] for number in (1, 2))
    assert (whole.lost, whole.failed) == (0, 0)
    assert (stall.stalled, stall.ended_again, stall.resumed, stall.back_ms.count) == (CHOSEN, CHOSEN, 0, 0)
    assert (storm.ended, storm.absent, storm.back_ms.count) == (ALL, 0, ALL)
    assert whole.sent == whole.answered + stall.asked + storm.asked


def test_who_stalls_or_is_away_is_absent_from_a_stall() -> None:
    orders = shard(events=[("10s", "stall 100% for 40s"), ("20s", "stall 30% for 5s"), ("22s", "vanish 30% for 5s then return")], reconnect="now")
    whole = whole_of(orders, SimServer())
    assert whole.lost == 0
    assert (whole.events[2].chosen, whole.events[2].absent) == (CHOSEN, CHOSEN)
    assert (whole.events[3].chosen, whole.events[3].absent) == (CHOSEN, CHOSEN)


@pytest.mark.parametrize("workers", [2, 7])
def test_stalls_are_the_same_for_any_number_of_workers(workers: int) -> None:
    alone = run_of_worker(shard(1, events=[("10s", "stall 30% for 5s")]), 0)[1]
    orders = shard(workers, events=[("10s", "stall 30% for 5s")])
    of_each = [run_of_worker(orders, worker)[1] for worker in range(workers)]
    together = added_up(*of_each)
    assert (together.stalled, together.resumed, together.segments) == (alone.stalled, alone.resumed, alone.segments) == (CHOSEN, CHOSEN, {1448: CHOSEN})


def test_a_run_without_stalls_has_no_part_of_them() -> None:
    """Its connections are those of a run without events."""
    table = ConnectionTable(shard(events=TWO), 0, SimNet(SimServer()))
    assert type(table._connections) is HeldConnections


def test_the_drain_does_not_wait_for_ever_for_late_answers() -> None:
    server = SimServer()
    ticks = list(simulate(shard(events=[("10s", "stall 30%")], keepalive=4, timeout="60s"), server, 25.0, net=_Silent(server)))
    whole = added_up(*ticks)
    event = whole.events[1]
    # Those that do not stall await theirs as long.
    assert 87 <= len(ticks) <= 90
    assert (event.resumed, event.closes, event.back_ms.count) == (CHOSEN, {"heartbeat_timeout": CHOSEN}, 0)
    assert event.stalled == event.waiting
    assert whole.sent == whole.answered + event.asked + whole.beats_failed


class _EndsBehind(SimNet):
    """Its server has ended those with the segments of a network behind all that they have not read; each is told of that once it has read."""

    def __init__(self, server: SimServer, reads_at: float) -> None:
        super().__init__(server)
        self.reads_at = reads_at

    def recv(self, handle: int, most: int) -> bytes:
        connection = self._connections[handle]
        data = super().recv(handle, most)
        is_old = connection.age_from < 10.0
        if self.now >= self.reads_at and is_old and connection.segments == 1448 and not connection.ended and not connection.inbox:
            connection.ended = True
            self._at(self.now + 0.001, handle, "data", b"")
        return data


def test_whom_the_server_ended_behind_what_waited_is_no_loss() -> None:
    """All that was asked meanwhile is answered, and then comes the end."""
    server = SimServer()
    # The ramp's last batch is due 2.002 s after the start.
    whole = stalled_for(server, "stall 30% for 30s", _EndsBehind(server, 42.0), keepalive=4, reconnect="fixed:1s")
    event = whole.events[1]
    assert (whole.lost, whole.deaths, whole.reopened) == (0, {}, 0)
    assert (event.stalled, event.closed, event.closed_unseen, event.closed_ms.count) == (CHOSEN, CHOSEN, CHOSEN, 0)
    assert event.back_ms.count == CHOSEN
    assert event.back_ms.least >= 1_000
    assert whole.sent == whole.answered + event.asked


def test_whom_the_server_ended_behind_what_waited_is_seen_in_the_drain() -> None:
    server = SimServer()
    net = _EndsBehind(server, 62.0)
    whole = added_up(*simulate(shard(events=[("10s", "stall 30%")], keepalive=4), server, 60.0, net=net))
    event = whole.events[1]
    assert (whole.lost, whole.deaths) == (0, {})
    assert (event.stalled, event.resumed, event.closed, event.closed_unseen) == (CHOSEN, CHOSEN, CHOSEN, CHOSEN)
    assert (event.back_ms.count, event.waiting, event.away) == (0, CHOSEN, 0)
    assert event.closed_in_drain == CHOSEN
    # They have read nothing for 50 s of the hold.
    assert (event.away_ms.count, event.still_away_ms.count) == (0, CHOSEN)
    assert event.still_away_ms.least > 49_000


class _Flooding(SimNet):
    """Its server sends without an end once it was asked twice, and answers no more."""

    def _serve(self, handle: int, connection: Any, close: bool) -> None:
        connection.requests += 1
        if connection.requests < 3:
            self._at(self.now + 0.0002, handle, "data", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        elif connection.requests == 3:
            self._at(self.now + 0.0002, handle, "data", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")

    def recv(self, handle: int, most: int) -> bytes:
        connection = self._connections[handle]
        data = super().recv(handle, most)
        if connection.requests >= 3 and not connection.inbox:
            self._at(self.now + 0.5, handle, "data", b"x" * 1_000)
        return data


def test_a_server_that_sends_on_and_never_answers_is_not_read_for_ever() -> None:
    server = SimServer()
    orders = shard(events=[("10s", "stall 100% for 5s")], keepalive=8, timeout="10s", connections=20, hold=30, method="GET")
    whole = added_up(*simulate(orders, server, 30.0, net=_Flooding(server)))
    event = whole.events[1]
    assert event.stalled + event.absent == event.chosen == 20
    assert set(event.closes) <= {"heartbeat_timeout"}
    assert event.closed == event.stalled
