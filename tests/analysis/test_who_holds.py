"""Who holds the connections, how many the server has, and generations of its processes: decided from the records of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from synthetic_run import SERVER, a_run

from asyncli.analysis.cost import costs
from asyncli.analysis.gaps import for_cost
from asyncli.analysis.generations import changes, generations
from asyncli.analysis.holders import Holders, holders_of
from asyncli.analysis.server_count import other_clients_of, with_those_elsewhere
from asyncli.model import metrics
from asyncli.model.records import CHURN, Deaths, EventCounts
from asyncli.model.run import Run

N = 2000
Level = Callable[[float, float], float]


def a_small_run(**metrics_by_n: Level) -> Run:
    """A run of 2,000 connections. ``metrics_by_n``: further metrics (with ``_`` for ``.``), each of the connections and the time."""
    run = a_run(N, hold_s=30.0, noise=0.1, batch=10, interval_s=0.1, status=False)
    for sample in run.samples:
        held = run.held.at(sample.t_s) if sample.t_s > run.first_connect_s else 0.0
        sample.values[metrics.HOST_OTHER_PROCESSES] = 100.0
        sample.values |= {name.replace("__", "."): level(held or 0.0, sample.t_s) for name, level in metrics_by_n.items()}
    return run


def each(of_one: float, before: float = 0.0) -> Level:
    return lambda held, _: before + of_one * held


HOLDS = {"server__descriptors_open": each(1, 20)}
NOTHING = {"server__descriptors_open": each(0, 20)}


@pytest.mark.parametrize(
    ("levels", "holders"),
    [
        (HOLDS, Holders(server=True)),
        (NOTHING, Holders(server=False)),
        ({}, Holders(server=None)),
        # A backend has one for each; what rises by a part of one only happens to rise meanwhile.
        (HOLDS | {"beside__descriptors__app": each(1)}, Holders(server=True, behind=("app",))),
        (HOLDS | {"beside__descriptors__app": each(0.6)}, Holders(server=True)),
        # In the server's place, and beside it.
        (NOTHING | {"beside__descriptors__app": each(1)}, Holders(server=False, in_place=("app",))),
        (NOTHING | {"beside__processes__app": each(1), "beside__descriptors__app": each(3.3)}, Holders(server=False, in_place=("app",))),
        (
            {"server__descriptors_open": each(0.4, 20), "beside__descriptors__app": each(0.6), "beside__holders__app": each(0.001)},
            Holders(server=True, in_place=("app",)),
        ),
    ],
)
def test_who_holds_is_told_by_what_rises_with_the_connections(levels: dict[str, Level], holders: Holders) -> None:
    assert holders_of(a_small_run(**levels)) == holders


def test_a_program_that_rises_by_the_clock_follows_no_connections() -> None:
    run = a_small_run(**HOLDS, beside__descriptors__eater=lambda _, t_s: 100.0 * t_s)
    assert holders_of(run) == Holders(server=True)


def test_memory_of_holders_is_the_servers_and_of_a_backend_a_part() -> None:
    memory = {"beside__descriptors__app": each(1), "beside__bytes__app": each(50_000)}
    in_place = costs(a_small_run(**NOTHING, **memory))
    assert in_place.server_user.bytes_per_connection == pytest.approx(SERVER + 50_000, rel=0.02)
    behind = costs(a_small_run(**HOLDS, **memory))
    assert behind.server_user.bytes_per_connection == pytest.approx(SERVER, rel=0.05)
    assert behind.behind.bytes_per_connection == pytest.approx(50_000, rel=0.02)
    assert behind.behind_programs == ["app"]


def test_the_servers_own_count_divides_its_memory() -> None:
    run = a_small_run(server__sockets=each(2))
    for sample in run.samples:
        sample.values["server.pss_bytes"] += SERVER * (sample.values["server.sockets"] / 2)
    assert other_clients_of(run).during == pytest.approx(N, rel=0.01)
    assert costs(run).server_user.bytes_per_connection == pytest.approx(SERVER, rel=0.02)
    assert other_clients_of(a_small_run(server__sockets=each(1))) is None


@pytest.mark.parametrize("given_up", [False, True])
def test_connects_that_the_server_leaves_waiting_are_no_other_clients(given_up: bool) -> None:
    """A queue of HAProxy, or an application that is slow to grant: the server has accepted them."""
    run = a_small_run(server__sockets=each(1.5))
    waiting = max(tick.held for _, tick in run.ticks) // 2
    for place, (_, tick) in enumerate(run.ticks):
        if not given_up:
            tick.connecting = tick.held // 2
        elif place == 0:
            tick.failures["handshake_timeout"] = waiting
    assert other_clients_of(run) is None


def test_connections_at_other_ports_are_others_or_the_servers_own() -> None:
    """A proxy that connects to itself has as many again: the interval holds the cost by either count."""
    run = a_small_run(server__sockets=each(1), server__sockets_elsewhere=each(1))
    assert other_clients_of(run) is None
    found = costs(run)
    low, high = found.server_user.ci95
    assert low <= SERVER / 2 < SERVER <= high
    assert "connections_elsewhere" in [one.code for one in found.findings]


@pytest.mark.parametrize(
    ("started", "count"),
    [
        (lambda t_s: 2.0 * (t_s > 45.0), 1),  # as many as there were workers, which go on
        (lambda t_s: 1.0 * (t_s > 45.0), 0),  # fewer: a pool that grows, or a helper
        (lambda t_s: 2.0 * (45.0 < t_s < 46.5), 0),  # they end at once
    ],
)
def test_a_generation_is_as_many_processes_as_there_were_workers(started: Callable[[float], float], count: int) -> None:
    run = a_small_run(
        server__processes=lambda _, t_s: 3.0 + started(t_s),
        server__started=lambda _, t_s: max(started(t_s), 2.0 * (t_s > 45.0 and started(45.5) == 2.0)),
        server__ended=lambda _, t_s: 2.0 * (t_s >= 46.5 and started(45.5) == 2.0 and started(50.0) == 0.0),
    )
    assert len(generations(run)) == count


def test_two_workers_that_are_killed_a_second_apart_are_no_generation() -> None:
    """One is seen to be missing, then both are replaced: more have joined than have ended since."""
    run = a_small_run(
        server__processes=lambda _, t_s: 3.0 - (44.5 < t_s <= 45.5),
        server__joined=lambda _, t_s: 2.0 * (t_s > 45.5),
        server__ended=lambda _, t_s: 1.0 * (t_s > 44.5) + 1.0 * (t_s > 45.5),
    )
    assert generations(run) == []


def test_two_workers_that_are_replaced_a_second_after_they_were_killed_are_no_generation() -> None:
    run = a_small_run(
        server__processes=lambda _, t_s: 3.0 - 2.0 * (44.5 < t_s <= 45.5),
        server__joined=lambda _, t_s: 2.0 * (t_s > 45.5),
        server__ended=lambda _, t_s: 2.0 * (t_s > 44.5),
    )
    assert generations(run) == []


def test_a_helper_takes_no_workers_place_and_is_told() -> None:
    helper: Level = lambda _, t_s: 1.0 * (t_s > 45.0)  # noqa: E731
    of_one = {"server__processes": lambda held, t_s: 1.0 + helper(held, t_s), "server__started": helper, "server__ended": each(0)}
    run = a_small_run(**of_one, server__joined=each(0))
    assert (generations(run), [one.code for one in changes(run)]) == ([], ["server_processes_changed"])
    # A worker beside the only one of a master may be a reload; so may a helper, in files that do not tell which.
    for worker in (a_small_run(**of_one, server__joined=helper), a_small_run(**of_one)):
        assert [one.code for one in changes(worker)] == ["server_reloaded"]


def test_a_replaced_worker_is_told_with_its_instant() -> None:
    once: Level = lambda _, t_s: 1.0 * (t_s > 45.0)  # noqa: E731
    run = a_small_run(server__processes=lambda *_: 5.0, server__started=once, server__joined=once, server__ended=once)
    (told,) = changes(run)
    assert (told.code, told.severity, told.fields["started"], told.fields["ended"]) == ("server_processes_changed", "warning", 1, 1)
    assert told.fields["from_s"] == pytest.approx(45.5, abs=1.0)


def test_processes_for_requests_are_told_though_as_many_live_as_there_are_connections() -> None:
    """Those of connections end with these, as in churn."""
    of_requests = {"server__processes": each(0.6, 1.0), "server__ended": lambda _, t_s: 200.0 * t_s}
    run = a_small_run(**of_requests, server__started=lambda held, t_s: 0.6 * held + 200.0 * t_s)
    assert [one.code for one in changes(run)] == ["server_processes_changed"]
    for _, tick in run.ticks:
        tick.events[CHURN] = EventCounts(ended=200)
    assert changes(run) == []
    of_connections = {"server__processes": each(0.6, 1.0), "server__ended": each(0), "server__started": each(0.6)}
    assert changes(a_small_run(**of_connections)) == []


def test_growth_by_the_clock_on_plateaus_is_no_cost() -> None:
    run = a_run(1000, hold_s=10.0, noise=0.1, batch=10, interval_s=0.1, plateaus=4, plateau_s=6.0)
    for sample in run.samples:
        sample.values["server.pss_bytes"] += 1e6 * max(0.0, sample.t_s - run.first_connect_s)
    low, high = costs(run).server_user.ci95
    assert low <= SERVER < 30_000 < high


@pytest.mark.parametrize("used_of_the_first", [0.0, 0.17, 0.5, 0.83])
def test_memory_that_grows_in_large_steps_is_known_to_a_step(used_of_the_first: float) -> None:
    """Twelve and a half arenas over a ladder of three: its rests may be at the same place of each."""
    run = a_run(1000, hold_s=10.0, noise=0.1, batch=10, interval_s=0.1, plateaus=3, plateau_s=6.0)
    arena = SERVER * 1000 / 12.5
    first = run.samples[0].values["server.pss_bytes"]
    for sample in run.samples:
        arenas = (sample.values["server.pss_bytes"] - first) / arena + used_of_the_first
        sample.values["server.pss_bytes"] = first + arena * math.floor(arenas)
    cost = costs(run).server_user
    low, high = cost.ci95
    assert low < SERVER < high
    assert cost.half_width < 0.25 * SERVER


@pytest.mark.parametrize(("interval_s", "of_levels"), [(0.01, True), (0.1, False)])
def test_memory_that_is_given_back_all_the_time_hides_no_cost(
    interval_s: float, of_levels: bool
) -> None:
    """A server that trims a heap from before the first connect on."""
    run = a_run(1000, hold_s=12.0, noise=0.1, batch=10, interval_s=interval_s)
    released = 0.05 * SERVER * 1000
    for sample in run.samples:
        sample.values["server.pss_bytes"] += 60e6 - released * sample.t_s
    cost = costs(run).server_user
    assert cost.of_levels == of_levels
    assert cost.ci95[0] < SERVER < cost.ci95[1]


def test_counts_that_are_read_at_different_instants_are_compared_at_one() -> None:
    """The kernel's count was read before the last connections opened and then seldom, the page each second."""
    run = a_small_run(server__sockets=each(1), status__active=lambda n, _: n + 1.0)
    hold_s = run.phase("hold").start_s
    for sample in run.samples:
        seldom = hold_s - 2.0 < sample.t_s < hold_s + 8.0
        if seldom:
            del sample.values["server.sockets"]
    assert with_those_elsewhere(run) is None


@pytest.mark.parametrize("lost", [0, 1])
def test_the_last_sample_of_a_generation_has_the_connections_of_its_instant(lost: int) -> None:
    """The tick after it says so, unless connections ended in that second."""
    run = a_small_run(**HOLDS)
    last_s = next(sample.t_s for sample in run.samples if sample.t_s > run.phases[1].start_s + 3.0)
    place = next(place for place, (t_s, _) in enumerate(run.ticks) if t_s > last_s)
    run.ticks[place][1].deaths["reset"] = Deaths(count=lost)
    for sample in run.samples:
        sample.values["server.started"] = 0.0 if sample.t_s <= last_s else 4.0
        sample.values["server.ended"] = 0.0
        sample.values["server.processes"] = 3.0 if sample.t_s <= last_s else 7.0
    kept = for_cost(run)
    assert len(kept.ticks) < len(run.ticks)
    known = run.held.at(last_s) if not lost else run.ticks[place - 1][1].held
    assert kept.held.at(last_s) == pytest.approx(known)
