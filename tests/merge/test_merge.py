"""Runs of several clients as one: nothing is lost or counted twice, on one clock, by rules that are said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.analysis.forecast import workers_of
from asyncli.analysis.joint import ramps_of
from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.series import series
from asyncli.analysis.totals import fold, sum_of_counts
from asyncli.errors import StoreError
from asyncli.merge import Client, Merged, joined
from asyncli.merge.clocks import Clock, seen_by_both, shift_between, shifts
from asyncli.preflight.nginx import descriptors_needed
from asyncli.records import COUNTS, CUT, Check, Finding, Gap, Phase, Sample
from asyncli.report.jsonout import to_json
from asyncli.report.summary import summarise
from asyncli.store.reader import Run, read_run
from asyncli.store.resume import read_interrupted
from asyncli.store.whole import write_run
from tests.merge.made_clients import MadeClient, Server, columns, made


def codes(merged: Merged) -> dict[str, Finding]:
    return {one.code: one for one in merged.run.findings}


def phases(run: Run) -> dict[str, tuple[float, float | None]]:
    return {one.name: (one.start_s, one.end_s) for one in run.phases}


some_clients = st.lists(
    st.fixed_dictionaries(
        {
            "many": st.sampled_from([10, 300, 990]), "rate": st.sampled_from([50, 200]), "zero_s": st.floats(-4, 4), "lost": st.integers(0, 9),
            "hold_s": st.sampled_from([12.0, 31.5]), "poll": st.booleans(), "wall_error_s": st.floats(-1, 1), "boot": st.sampled_from([None, "x"]),
            "seed": st.integers(1, 99),
        }
    ),
    min_size=2, max_size=4,
)  # fmt: skip


@settings(max_examples=40)
@given(some_clients)
def test_counts_are_sums_whatever_the_shifts(each: list[dict[str, Any]]) -> None:
    clients = made(*(MadeClient(f"{number}.db", **one) for number, one in enumerate(each)))
    run = joined(clients).run
    whole, parts = fold(run.ticks, run.phases).whole, sum_of_counts([tick for one in clients for _, tick in one.run.ticks])
    for name in (*COUNTS, "failures", "by_status", "deaths", "latency_us", "lateness_us", "connect_us", "ramp_lateness_us"):
        assert getattr(whole, name) == getattr(parts, name), name
    assert run.plan.connections == sum(one["many"] for one in each)
    assert [t_s for t_s, _ in run.ticks] == sorted({t_s for t_s, _ in run.ticks})
    assert max(tick.held for _, tick in run.ticks) <= run.plan.connections
    assert max(t_s for t_s, _ in run.ticks) <= run.phases[-1].end_s + 1.5  # type: ignore[operator]
    # Phases follow each other without a hole, from the first clock's zero to the last run's end.
    assert run.phases[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in zip(run.phases, run.phases[1:], strict=False))
    # The same, whichever file is named first, but for what reads off the first one's clock.
    assert fold(joined(clients[::-1]).run.ticks, run.phases).whole.deaths == whole.deaths
    # Whatever they come to can be said.
    summary = summarise(run)
    assert summary.connections.deaths == ({"reset": lost} if (lost := sum(one["lost"] for one in each)) else {})
    to_json(summary)


def test_two_clients_come_to_one_run(tmp_path: Path) -> None:
    clients = made(MadeClient("a.db", 1000, boot="x"), MadeClient("b.db", 600, zero_s=3.0, boot="x", wall_error_s=7.0))
    merged = joined(clients)
    # The clock of one boot is one, however its wall clock was stepped in between.
    assert merged.clocks["b.db"].shift_s == pytest.approx(3.0)
    assert merged.clocks["b.db"].half_s == 0.0
    assert phases(merged.run) == {"baseline": (0, 5), "ramp": (5, 15), "hold": (15, 34), "drain": (34, 36), "residue": (36, 40)}
    path = tmp_path / "m.db"
    write_run(path, merged.run, merged.findings)
    run = read_run(path)
    assert (run.plan, run.phases, run.ticks, run.complete) == (merged.run.plan, merged.run.phases, merged.run.ticks, True)
    assert run.samples == merged.run.samples
    assert [path.name for path in tmp_path.iterdir()] == ["m.db"]
    summary = summarise(run)
    assert (summary.verdict, summary.connections.held, summary.connections.requested) == ("passed", 1600, 1600)
    assert summary.ramp.asked_per_s == pytest.approx(1600 / 10.0)
    said = codes(merged)
    assert said["merged"].evidence == "merged of 2 runs: a.db (1,000 of 1,000 held), b.db (600 of 600 held)"
    assert said["merge_clock"].evidence == "the clock of b.db began +3.000 s after that of a.db, exactly: by one host's clock"
    assert {one.evidence for one in run.findings if one.code == "slow"} == {"a.db: said by a.db", "b.db: said by b.db"}
    with pytest.raises(StoreError, match="exists already and is never overwritten"):
        write_run(path, merged.run, merged.findings)


def test_held_is_read_off_the_first_drain_and_each_clients_line() -> None:
    merged = joined(made(MadeClient("a.db", 1000, boot="x"), MadeClient("b.db", 500, zero_s=0.5, hold_s=60.0, boot="x")))
    totals = fold(merged.run.ticks, merged.run.phases)
    assert (totals.held, totals.peak) == (1500, 1500)
    held = {round(t_s): tick.held for t_s, tick in merged.run.ticks}
    # At ten seconds: five of the first's ramp of 100 a second, and four and a half of the second's.
    assert held[10] == pytest.approx(950, abs=60)
    assert held[50] == 500
    assert held[max(held)] == 0


@pytest.mark.parametrize("poll", [(True, False), (True, True), (True, True, True)])
def test_one_page_read_by_several_is_counted_once(poll: tuple[bool, ...]) -> None:
    clients = made(*(MadeClient(f"{n}.db", zero_s=1.7 * n, hold_s=20 + 9.0 * n, boot="x", poll=one, seed=n + 1) for n, one in enumerate(poll)))
    run = joined(clients).run
    found, findings = reconcile(fold(run.ticks, run.phases), run.phases, run.ticks, run.samples, run.plan, ramps=ramps_of(run.environment))
    assert (found.client_held, found.server_active, found.agrees) == (1000 * len(poll), 1000 * len(poll), True)
    assert found.accepts_delta == 1000 * len(poll)
    # Where the last to go reads none, what it did then is not taken for what was in flight.
    until = {one.code: one for one in findings}.pop("reconcile_until", None)
    assert {one.code for one in findings} - {"reconcile_until"} <= {"reconcile_in_flight"}
    assert (until is None) is poll[-1]
    if until is not None:
        assert "0 connections opened and " in until.evidence
        rows = list(run.samples)
        [one for one in rows if "status.requests" in one.values][-1].values["status.requests"] -= 400
        found, findings = reconcile(fold(run.ticks, run.phases), run.phases, run.ticks, rows, run.plan, ramps=ramps_of(run.environment))
        assert (found.agrees, findings[0].code) == (False, "reconcile_requests")
        return
    assert "merge_pages_differ" not in {one.code for one in run.findings}
    # The last to go reads on where the others have gone.
    assert run.samples[-1].t_s == pytest.approx(run.phases[-1].end_s, abs=3)


def test_pages_of_two_servers_are_told_apart() -> None:
    first, second = MadeClient("a.db", boot="x", poll=True), MadeClient("b.db", zero_s=2.0, boot="x", poll=True)
    merged = joined([first.client(Server(first)), second.client(Server(second))])
    evidence = codes(merged)["merge_pages_differ"].evidence
    assert evidence.startswith("the status pages of a.db and b.db do not agree: accepts ")
    assert evidence.endswith("that of a.db is taken")
    assert max(series(merged.run.samples, "status.active").values) == 1001


FAR, NEAR = {"same_host": False, "same_network": False, "network": "net:[8]"}, {"same_host": True, "same_network": False, "network": "net:[8]"}


def test_the_servers_side_is_the_agents_and_client_hosts_are_apart() -> None:
    # The second outlives the first, and with it the agent's session.
    run = joined(made(MadeClient("a.db", boot="x", agent=FAR), MadeClient("b.db", zero_s=2.0, boot="y"))).run
    at = series(run.samples, "status.active").t_s[25]
    assert series(run.samples, "kernel.socket_bytes").at(at) == pytest.approx(4000 * 2001)
    assert series(run.samples, "client.kernel.socket_bytes").at(at) == pytest.approx(2e6 + 4000 * 2000)
    assert max(series(run.samples, "tcp.OutSegs").values) < 100
    assert series(run.samples, "generator.processes").at(at) == 4.0
    assert (run.environment["local"], run.environment["server"], run.environment["cpus"]) == (False, {"label": "nginx/1.22.1"}, 8)
    assert run.environment["agent"]["url"] == "http://10.0.0.8:9165"


def test_who_could_not_sample_the_server_says_nothing_of_a_whole_that_did() -> None:
    unknown = Finding("server_processes_unknown", "info", "the server is on another host; the server's memory and CPU are not known")
    for agent, told in ((FAR, 0), (None, 2)):
        both = [MadeClient("a.db", boot="x", agent=agent), MadeClient("b.db", boot="y")]
        server = Server(*both)
        found = joined([one.client(server, findings=[unknown]) for one in both]).run.findings
        assert sum(one.code == "server_processes_unknown" for one in found) == told


def test_an_agent_that_knows_no_processes_of_the_server_watches_its_host() -> None:
    a, b = made(MadeClient("a.db", boot="x", agent=FAR), MadeClient("b.db", boot="y"))
    for row in (rows := list(a.run.samples)):
        row.values.pop("server.pss_bytes", None)
    a.run.samples, a.run.findings = columns(rows), [Finding("server_processes_unknown", "info", "")]
    a.told_s = [1.0]
    merged = joined([a, b])
    at = series(merged.run.samples, "status.active").t_s[25]
    assert series(merged.run.samples, "kernel.socket_bytes").at(at) == pytest.approx(4000 * 2001)
    assert series(merged.run.samples, "client.kernel.socket_bytes").at(at) == pytest.approx(2 * (1e6 + 4000 * 1000))
    assert merged.run.environment["agent"]["url"] == "http://10.0.0.8:9165"
    # Of the processes nothing is known all the same.
    assert "server_processes_unknown" in codes(merged)


def test_a_client_on_the_servers_host_is_read_by_the_agent_there() -> None:
    for boot, clients in (("s", 1), ("another", 2)):
        run = joined(made(MadeClient("a.db", boot="x", agent={**FAR, "boot_id": boot}), MadeClient("b.db", boot="s"))).run
        at = series(run.samples, "status.active").t_s[25]
        assert series(run.samples, "client.kernel.socket_bytes").at(at) == pytest.approx(clients * (1e6 + 4000 * 1000))


def test_what_each_network_counts_for_itself_is_of_that_network_alone() -> None:
    # All on one host, which pays for both ends and is read once; but each in a network namespace of its own.
    run = joined(made(MadeClient("c.db", boot="s", net="net:[9]", agent=NEAR), MadeClient("d.db", zero_s=3.0, boot="s", net="net:[10]"))).run
    assert (run.environment["local"], run.environment["cpus"]) == (True, 4)
    # Of the server's: not that of the other client, which is there when the agent's session has gone.
    assert max(series(run.samples, "tcp.OutSegs").values) < 100
    assert series(run.samples, "client.tcp.OutSegs").at(20.0) == pytest.approx(2e8 + 37.0, abs=3)
    assert {name for name in run.samples.metrics if name.startswith("client.")} == {"client.tcp.OutSegs"}  # type: ignore[attr-defined]
    # Nobody watched the server: two containers' are two, those of two programs in one are read once.
    clients = made(*(MadeClient(f"{n}.db", boot="s", net=net) for n, net in enumerate(["net:[9]", "net:[9]", "net:[10]"])))
    run = joined(clients).run
    assert series(run.samples, "tcp.OutSegs").at(20.0) == pytest.approx(2e8 + 40.0, abs=3)
    assert series(run.samples, "kernel.socket_bytes").at(20.0) == pytest.approx(1e6 + 4000 * 1000)


def test_hosts_that_nobody_watched_add_up_under_their_own_names() -> None:
    run = joined(made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x"), MadeClient("c.db", boot="y"))).run
    # Two clients on one host read the same memory, and their own processes' each.
    assert series(run.samples, "kernel.socket_bytes").at(20.0) == pytest.approx(2 * (1e6 + 4000 * 1000))
    assert series(run.samples, "generator.processes").at(20.0) == 6.0


def test_where_both_read_one_page_the_clocks_are_known_by_it() -> None:
    kept = 0
    for seed in range(25):
        chance = random.Random(seed)
        by_s = chance.uniform(-8, 8)
        a = MadeClient("a.db", 2000, 200, poll=True, seed=seed + 1)
        b = MadeClient("b.db", 1000, 100, zero_s=by_s, wall_error_s=chance.uniform(-300, 300), poll=True, seed=seed + 100)
        first, second = made(a, b)
        found = seen_by_both(first.samples, second.samples)
        assert found is not None
        assert found.half_s is not None
        assert found.half_s < 0.25
        kept += abs(found.shift_s - by_s) <= found.half_s
    assert kept >= 23
    assert joined([first, second]).clocks["b.db"].how.endswith(", which both read; the wall clocks are 203.879 s apart")


def test_a_page_that_an_agent_read_is_known_as_its_clock_is() -> None:
    def half_s(error_s: float) -> float:
        agent = FAR | {"clock_error_s": error_s}
        clients = made(MadeClient("a.db", boot="x", agent=agent), MadeClient("b.db", zero_s=1.0, boot="y", poll=True))
        found = joined(clients).clocks["b.db"].half_s
        assert found is not None
        return found

    assert half_s(0.25) == pytest.approx(half_s(0.0) + 0.25)


def test_a_run_that_was_resumed_went_on_by_the_wall_clock() -> None:
    a, b = made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x"))
    b.run.environment["resumed"] = ["2027-01-15T08:01:00+00:00"]
    both = joined([a, b])
    words = "exactly: by one host's clock, and by its wall clock after a --resume"
    assert words in codes(both)["merge_clock"].evidence
    # It is one that was resumed also when it is merged again.
    (c,) = made(MadeClient("c.db", boot="x"))
    found = joined([Client("ab.db", both.run, [one for one, _ in both.findings]), c]).run.findings
    assert [words in one.evidence for one in found if one.code == "merge_clock"] == [True, True]


def test_a_page_that_both_read_says_nothing_of_a_clock_that_was_set_at_a_reboot() -> None:
    a, b = made(MadeClient("a.db", boot="x", poll=True, hold_s=30), MadeClient("b.db", boot="y", poll=True, hold_s=30, seed=2))
    b.run.environment["resumed"] = ["2027-01-15T08:01:00+00:00"]
    b.run.samples = columns([Sample(one.t_s + (3.0 if one.t_s > 36.0 else 0.0), one.values) for one in b.run.samples])
    assert "and after a --resume they alone tell the time" in codes(joined([a, b]))["merge_clock"].evidence
    b.run.environment["resumed"] = []
    assert "--resume" not in codes(joined([a, b]))["merge_clock"].evidence


def test_a_merged_run_is_not_gone_on_with(tmp_path: Path) -> None:
    a, b = made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x", seed=2))
    merged = joined([killed(a, 25.0), killed(b, 25.0)])
    write_run(tmp_path / "m.db", merged.run, merged.findings)
    with pytest.raises(StoreError, match=r"m\.db: is merged of several runs, .*; resume each of them, and merge them anew$"):
        read_interrupted(tmp_path / "m.db")


def test_a_page_that_tells_only_the_active_ones_tells_their_rise() -> None:
    first, second = made(MadeClient("a.db", poll=True), MadeClient("b.db", zero_s=1.5, poll=True, seed=3))
    for one in (first, second):
        rows = list(one.samples)
        for row in rows:
            for name in ("status.accepts", "status.handled", "status.requests"):
                row.values.pop(name, None)
        one.run.samples = columns(rows)
    found = seen_by_both(first.samples, second.samples)
    assert found is not None
    assert found.shift_s == pytest.approx(1.5, abs=0.3)


def test_without_anything_in_common_the_wall_clock_is_taken_and_said_to_be_unchecked() -> None:
    merged = joined(made(MadeClient("a.db"), MadeClient("b.db", zero_s=4.0, wall_error_s=0.4)))
    assert (merged.clocks["b.db"].shift_s, merged.clocks["b.db"].half_s) == (pytest.approx(4.4), None)
    said = codes(merged)["merge_clock"]
    assert said.severity == "warning"
    assert "not known how exactly: by the wall clocks alone, which nothing here checks" in said.evidence


def test_a_clock_is_known_over_another_run_where_that_is_surer() -> None:
    # The third shares a host with the second, and no page with anybody.
    a = MadeClient("a.db", 2000, 200, poll=True)
    b = MadeClient("b.db", 2000, 200, zero_s=1.0, wall_error_s=5.0, boot="y", poll=True, seed=7)
    c = MadeClient("c.db", zero_s=2.0, wall_error_s=5.0, boot="y")
    merged = joined(made(a, b, c))
    assert merged.clocks["c.db"].shift_s == pytest.approx(2.0, abs=0.1)
    assert merged.clocks["c.db"].half_s == merged.clocks["b.db"].half_s
    assert merged.clocks["c.db"].how == "one host's clock"


def test_another_time_namespace_has_another_monotonic_clock() -> None:
    a, b = Clock(100.0, 5.0, "x", "x 1"), Clock(103.0, 99.0, "x", "x 2")
    assert shift_between(a, b, ((), ())).shift_s == 3.0
    assert [one.shift_s for one in shifts([a, b], [(), ()])] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"keepalive_s": 30.0}, "a.db and b.db: their plans' keepalive differ: 60.0 and 30.0; merge runs of one experiment"),
        ({"urls": ("http://10.0.0.9/",)}, "their plans' urls differ: http://10.0.0.8/ and http://10.0.0.9/"),
        ({"headers": ("Authorization: secret",)}, "a.db and b.db: their plans' header differ; merge"),
        ({"method": "GET"}, "method differ: HEAD and GET"),
    ],
)  # fmt: skip
def test_plans_of_two_experiments_are_refused(changed: dict[str, Any], words: str) -> None:
    a, b = made(MadeClient("a.db"), MadeClient("b.db"))
    b.run.plan = msgspec.structs.replace(b.run.plan, **changed)
    with pytest.raises(StoreError) as refused:
        joined([a, b])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_is_no_one_run_is_refused() -> None:
    a, b = made(MadeClient("a.db"), MadeClient("b.db", zero_s=31.0))
    with pytest.raises(StoreError, match=r"began its ramp 1\.0 s after the first had begun its drain"):
        joined([a, b])
    with pytest.raises(StoreError, match="one run alone"):
        joined([a])
    with pytest.raises(StoreError, match="are the same run"):
        joined([a, a])
    here, there = made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="y"))
    here.run.environment["destinations"] = ["127.0.0.1:80", "[::1]:80"]
    with pytest.raises(StoreError, match=r"a\.db asked the loopback of its own host"):
        joined([here, there])


def test_wall_clocks_that_are_hours_apart_are_blamed_where_nothing_checks_them() -> None:
    with pytest.raises(StoreError) as refused:
        joined(made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="y", wall_error_s=3 * 3600)))
    words = "a.db and b.db: by the wall clocks alone, which nothing here checks, the second began its ramp 10,770.0 s after the first"
    assert str(refused.value).startswith(words)
    assert "with --status-url in both it is known how much" in str(refused.value)
    # Where both read the page it is known.
    clocks = joined(made(MadeClient("a.db", boot="x", poll=True), MadeClient("b.db", boot="y", poll=True, wall_error_s=3 * 3600))).clocks
    assert clocks["b.db"].shift_s == pytest.approx(0, abs=0.2)
    # The clock of one boot is sure.
    with pytest.raises(StoreError, match=r"^a\.db and b\.db: the second began its ramp 5\.0 s after") as sure:
        joined(made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x", zero_s=35.0)))
    assert "--status-url" not in str(sure.value)


def test_urls_that_ask_for_the_same_are_alike() -> None:
    a, b = made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x"))
    a.run.plan = msgspec.structs.replace(a.run.plan, urls=("http://10.0.0.8", "http://10.0.0.8:81/"))
    b.run.plan = msgspec.structs.replace(b.run.plan, urls=("http://10.0.0.8:81/", "http://10.0.0.8:80/"))
    assert joined([a, b]).run.plan.urls == a.run.plan.urls


def test_clients_that_never_held_together_have_no_hold() -> None:
    merged = joined(made(MadeClient("a.db", hold_s=5.0), MadeClient("b.db", zero_s=12.0, hold_s=30.0)))
    assert [one.name for one in merged.run.phases] == ["baseline", "ramp", "drain", "residue"]
    assert codes(merged)["merge_never_together"].severity == "error"
    assert summarise(merged.run).verdict == "failed"


def killed(client: Client, at_s: float) -> Client:
    run = client.run
    run.phases = [Phase("baseline", 0.0, 5.0), Phase("ramp", 5.0, 15.0), Phase("hold", 15.0)]
    run.ticks = [row for row in run.ticks if row[0] < at_s]
    run.samples = columns([row for row in run.samples if row.t_s < at_s])
    run.complete = False
    return client


def test_a_client_that_was_killed_holds_nothing_any_more() -> None:
    a, b = made(MadeClient("a.db", boot="x"), MadeClient("b.db", boot="x", seed=2))
    merged = joined([a, killed(b, 25.0)])
    run = merged.run
    assert codes(merged)["merged"].evidence == "merged of 2 runs: a.db (1,000 of 1,000 held), b.db (0 of 1,000 held)"
    assert (run.complete, run.phases[-1].end_s) == (False, None)
    held = {round(t_s): tick.held for t_s, tick in run.ticks}
    assert (held[24], held[30]) == (2000, 1000)
    summary = summarise(run)
    assert (summary.verdict, summary.connections.held) == ("invalid", 1000)


def test_who_was_its_own_limit_or_was_cut_off_is_not_hidden_by_the_others() -> None:
    a, b = made(MadeClient("a.db", 1000), MadeClient("b.db", 10, 50))
    for _, tick in b.run.ticks:
        tick.longest_turn_s = 3.0
    merged = joined([a, b])
    assert summarise(merged.run).verdict == "invalid"
    assert "b.db: a worker stood still for 3.0 s (bound 1 s)" in {one.evidence for one in summarise(merged.run).findings}
    a, b = made(MadeClient("a.db"), MadeClient("b.db"))
    b.run.findings = [Finding(CUT, "warning", "ended at once")]
    assert summarise(joined([a, b]).run).verdict == "invalid"


def test_gaps_plateaus_limits_and_counts_of_the_plans() -> None:
    plan = {"plateaus": 4, "plateau_s": 10.0, "fail_if": ("lost > 3",)}
    a, b = made(MadeClient("a.db", boot="x", **plan), MadeClient("b.db", zero_s=0.5, boot="x", sources=("10.0.0.1",), **plan))
    a.run.gaps, b.run.gaps = [Gap(20.0, 22.0)], [Gap(21.0, 23.0), Gap(30.0, 31.0)]
    run = joined([a, b]).run
    assert run.gaps == [Gap(20.0, 23.5), Gap(30.5, 31.5)]
    assert (run.plan.plateaus, run.plan.batch, run.plan.fail_if, run.plan.sources) == (4, 20, ("lost > 3",), ("10.0.0.1",))
    assert run.plan.schedule.rests()[-1][1] == pytest.approx(a.run.plan.schedule.rests()[-1][1], abs=0.1)
    # Rests that are far apart are none of them all.
    a, b = made(MadeClient("a.db", boot="x", **plan), MadeClient("b.db", zero_s=4.0, boot="x", **plan))
    assert joined([a, b]).run.plan.plateaus == 0


def test_the_servers_limits_are_held_against_all_that_was_opened() -> None:
    def limits(slots: float, files: float) -> dict[str, Check]:
        a, b = made(MadeClient("a.db", 1000, boot="x"), MadeClient("b.db", 3000, boot="y", zero_s=0.5))
        # As a preflight has it for 3,000 connections and four workers.
        b.run.checks = [
            Check("nginx_keepalive_timeout", "keepalive_timeout", "ok", 600.0, 310.0, "s"),
            Check("nginx_worker_connections", "slots", "ok", slots, 3300, "slots", "4 x some", "of one client's"),
            Check("nginx_nofile", "descriptors of a worker", "ok", files, descriptors_needed(3000, 4), "descriptors"),
            Check("nofile", "descriptors", "ok", 20_000, 3_100, "descriptors"),
        ]
        run = joined([a, b]).run
        assert {"worker_connections", "descriptors"} == {one.name for one in summarise(run).forecast.ceilings}
        return {check.code: check for check in run.checks}

    found = limits(8000.0, 2000.0)
    assert (found["nginx_keepalive_timeout"].have, found["nginx_keepalive_timeout"].need) == (600.0, 310.0)
    assert (found["nginx_worker_connections"].need, found["nginx_worker_connections"].verdict) == (4400, "ok")
    assert (found["nginx_nofile"].need, found["nginx_nofile"].verdict) == (descriptors_needed(4000, 4), "ok")
    assert (found["b.db: nofile"].need, "nofile" in found) == (3_100, False)
    assert [limits(slots, 2000.0)["nginx_worker_connections"].verdict for slots in (4200.0, 4300.0, 4400.0)] == ["short", "warn", "ok"]
    assert [limits(8000.0, files)["nginx_nofile"].verdict for files in (999.0, 1000.0, descriptors_needed(4000, 4))] == ["short", "warn", "ok"]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("connections", [10_000, 100_001, 1_000_000])
def test_the_workers_are_read_off_what_one_of_them_needs(workers: int, connections: int) -> None:
    assert workers_of(descriptors_needed(connections, workers), connections) == workers


def test_what_was_asked_is_what_each_ramp_asked() -> None:
    clients = made(MadeClient("a.db", 1000, 100, boot="x"), MadeClient("b.db", 3000, 300, zero_s=8.0, boot="x", hold_s=12.0))
    found = summarise(joined(clients).run)
    assert not [one for one in found.reconciliation.divergences if one.pair == "asked"]
    assert "generator_saturated_ramp" not in {one.code for one in found.findings}


def test_a_merged_run_is_merged_again() -> None:
    a, b, c = made(*(MadeClient(f"{name}.db", zero_s=zero, boot="x", seed=seed) for seed, (name, zero) in enumerate([("a", 0), ("b", 1), ("c", 2)])))
    both = joined([a, b])
    again = joined([Client("ab.db", both.run, [one for one, _ in both.findings]), c]).run
    assert sum(tick.opened for _, tick in again.ticks) == 3000
    assert phases(again) == phases(joined([a, b, c]).run)
    # Neither of them counts a second time.
    whole = Client("ab.db", both.run, [one for one, _ in both.findings])
    for one in (a, b, Client("abc.db", again, [])):
        with pytest.raises(StoreError, match=r"(ab|abc)\.db and (a|b|ab)\.db: one and the same run is in both"):
            joined([one, whole] if one.name == "abc.db" else [whole, one])
    # Each client's own ramp is still known.
    assert ramps_of(again.environment) == ramps_of(joined([a, b, c]).run.environment)
    assert summarise(again).verdict == "passed"
