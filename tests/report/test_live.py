"""The live views of a running soak."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.console import Console
from synthetic_run import GENERATOR, KERNEL_END, REST, SERVER, a_run, raised, spread

from asyncli.analysis.slope import Cost
from asyncli.findings.probes import server_ended, server_restarted, slabinfo_unreadable
from asyncli.model.plan import Plan
from asyncli.model.records import Deaths, EventCounts, Finding, Phase, RunEvent, Sample, Tick
from asyncli.model.run import Run
from asyncli.report.cost_so_far import cost_so_far
from asyncli.report.live import JsonView, PlainView, plain_line
from asyncli.report.livescreen import LiveView, Snapshot, screen
from asyncli.report.livestate import LiveFold, LiveState, Notice
from asyncli.report.summary import CostPart

# How long ago a shown cost was computed.
AGE_S = 5.0
REUSED = "the server was used before"


def events(run: Run) -> Iterator[tuple[float, str, Any]]:
    told: list[tuple[float, int, str, Any]] = []
    for phase in run.phases:
        told.append((phase.start_s, 1, "phase", Phase(phase.name, phase.start_s)))
        if phase.end_s is not None:
            told.append((phase.end_s, 0, "phase", phase))
    told += [(t_s, 2, "tick", tick) for t_s, tick in run.ticks]
    told += [(sample.t_s, 3, "sample", sample) for sample in run.samples]
    for t_s, _, kind, what in sorted(told, key=lambda one: one[:2]):
        yield t_s, kind, what


def feed(fold: LiveFold, t_s: float, kind: str, what: Any) -> None:
    fold.tick(t_s, what) if kind == "tick" else getattr(fold, kind)(what)


def fed(run: Run, until_s: float, since_s: float = -1.0, fold: LiveFold | None = None) -> LiveFold:
    """Feed the records of these seconds to the fold."""
    fold = fold or LiveFold(run.plan)
    for t_s, kind, what in events(run):
        if since_s < t_s <= until_s:
            feed(fold, t_s, kind, what)
    return fold


def state_at(run: Run, until_s: float) -> LiveState:
    """The state with the cost that was computed five seconds before."""
    fold = fed(run, until_s)
    if run.first_connect_s < until_s - AGE_S:
        fold.cost(cost_so_far(cut_off(run, until_s - AGE_S)))
    return fold.state()


def cut_off(run: Run, until_s: float) -> Run:
    """The run as its file has it at this instant."""
    phases = []
    for phase in run.phases:
        if phase.start_s <= until_s:
            has_ended = phase.end_s is not None and phase.end_s <= until_s
            phases.append(phase if has_ended else Phase(phase.name, phase.start_s))
    ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s <= until_s]
    samples = [sample for sample in run.samples if sample.t_s <= until_s]
    return msgspec.structs.replace(run, phases=phases, ticks=ticks, samples=samples, complete=False)


def test_resumed_run_keeps_its_losses_and_has_no_eta_while_reopening() -> None:
    run = a_run(400, hold_s=60.0)
    fold = LiveFold(run.plan)
    fold.resumed(75.0, Tick(opened=400, deaths={"generator_lost": Deaths(count=400)}))
    # Before its phase is known, its time is.
    assert (fold.state().elapsed_s, fold.state().phase) == (75.0, None)
    fold.phase(Phase("hold", 5.0))
    fold.tick(80.0, Tick(second=1, held=100, opened=100))
    state = fold.state()
    assert (state.held, state.opened, state.lost, state.eta_s, state.heartbeats_per_s) == (100, 500, 400, None, 0.0)
    assert plain_line(state).endswith("hold      held 100 of 400; reopening; lost 400 (generator_lost 400)")
    fold.planned(msgspec.structs.replace(run.plan, hold_s=90.0), 30.0)
    assert (fold.state().eta_s, fold.state().refilling) == (15.0, False)
    # The interruption is no part of the hold: 45 of its 60 s are over.
    assert fold.state().progress == 0.75
    # A run that restarts measures a new baseline.
    run = a_run(20_000, hold_s=60.0)
    fold = LiveFold(run.plan)
    fold.resumed(10.0, Tick(opened=400, deaths={"generator_lost": Deaths(count=400)}))
    again = fed(run, 30.0, fold=fold).state()
    assert (again.eta_s is not None, again.refilling) == (True, False)


def test_residue_has_no_heartbeat_numbers() -> None:
    run = a_run(20_000, hold_s=12.0)
    drain, residue = run.phases[3], run.phases[4]
    held, after = state_at(run, drain.start_s), state_at(run, residue.start_s)
    assert held.heartbeats_per_s > 0
    late = fed(run, residue.start_s)
    late.tick(residue.start_s + 0.2, Tick(answered=5, latency_us=spread(400, 5), lateness_us=spread(400, 5)))
    for state in (after, late.state()):
        assert (state.phase, state.held, state.heartbeats_per_s, state.latency_p50_ms) == ("residue", 0, None, None)


def test_after_the_ramp_no_rate_of_opening_is_asked_for_or_achieved() -> None:
    run = a_run(20_000, hold_s=30.0)
    hold_s = next(phase.start_s for phase in run.phases if phase.name == "hold")
    ramp = fed(run, hold_s - 2.0).state()
    assert (ramp.asked_per_s, ramp.achieved_per_s) == (pytest.approx(1000.0), pytest.approx(1000.0, rel=0.1))
    for at_s in (hold_s + 3.0, hold_s + 20.0):
        hold = fed(run, at_s).state()
        assert (hold.asked_per_s, hold.achieved_per_s) == (None, None)


def test_fold_at_several_instants() -> None:
    run = a_run(100_000)
    at_start = state_at(run, 3.0)
    assert (at_start.phase, at_start.held, at_start.asked, at_start.active) == ("baseline", 0, 100_000, 0)
    assert at_start.eta_s == pytest.approx(2.7, abs=1)
    ramping = state_at(run, 55.2)
    assert (ramping.phase, ramping.phases_done, ramping.held) == ("ramp", ("baseline",), 50_010)
    assert ramping.achieved_per_s == pytest.approx(1000, rel=0.01)
    assert ramping.eta_s == pytest.approx(50, abs=1)
    assert ramping.progress == pytest.approx(0.5, abs=0.01)
    assert ramping.latency_p50_ms == pytest.approx(0.42, rel=0.02)
    assert ramping.lateness_p99_ms is not None
    holding = state_at(run, 150.0)
    assert (holding.phase, holding.held, holding.active, holding.accepts) == ("hold", 100_000, 100_000, 100_000)
    assert holding.eta_s == pytest.approx(15.1, abs=1)
    # The report's cost of the run so far, with its age.
    assert holding.cost == cost_so_far(cut_off(run, 145.0)).cost
    assert holding.cost.host_total.bytes_per_connection == pytest.approx(SERVER + 2 * KERNEL_END + GENERATOR + REST, rel=0.02)
    assert holding.elapsed_s - holding.cost_at_s == pytest.approx(AGE_S, abs=1)
    assert "a connection on this host (5 s ago)" in plain_line(holding)
    assert holding.generator_cpu_share == pytest.approx(0.01, abs=0.005)
    draining = state_at(run, 166.2)
    assert (draining.phase, draining.eta_s) == ("drain", None)
    assert draining.progress == pytest.approx(0.5, abs=0.1)
    over = state_at(run, 999.0)
    assert (over.phase, over.held, len(over.phases_done)) == ("residue", 0, 5)


def test_number_of_a_lost_source_is_unknown() -> None:
    run = a_run(1000)
    fold = fed(run, 20.0)
    assert "; server active 1,000; server " in plain_line(fold.state())
    fold.finding(Finding("status_lost", "warning", "status could not be read from 0:00:20 on"))
    assert (fold.state().active, fold.state().accepts, fold.state().server_bytes is None) == (None, None, False)
    assert "server active" not in plain_line(fold.state())
    fold.finding(Finding("server_ended", "error", "the server's processes are gone"))
    assert (fold.state().server_bytes, fold.state().server_cpu_share) == (None, None)
    # The source is back: counts continue from the first reading.
    fed(run, 25.0, 20.0, fold)
    assert (fold.state().active, fold.state().accepts) == (1000, 1000)


def cpu_shares(*readings: tuple[float, float | None], ends_s: float | None = None) -> list[float | None]:
    """The server's share after each reading of its seconds of CPU; ``ends_s``: when its end is found."""
    fold = LiveFold(Plan(urls=("http://h/",)))
    shares = []
    for t_s, cpu_s in readings:
        if t_s == ends_s:
            fold.finding(Finding("server_ended", "error", "the server's processes ended"))
        fold.sample(Sample(t_s, {"generator.cpu_s": 0.1 * t_s} | ({} if cpu_s is None else {"server.cpu_s": cpu_s})))
        shares.append(fold.state().server_cpu_share)
        assert t_s == 1.0 or fold.state().generator_cpu_share == pytest.approx(0.1)
    return shares


def test_a_server_that_is_dead_uses_no_cpu_and_one_that_is_new_counts_from_its_start() -> None:
    alive: list[tuple[float, float | None]] = [(1.0, 5.0), (2.0, 5.5), (3.0, 6.0)]
    dead: list[tuple[float, float | None]] = [(float(second), None) for second in range(4, 20)]
    known = [None, pytest.approx(0.5), pytest.approx(0.5)]
    assert cpu_shares(*alive, *dead, ends_s=4.0) == [*known, *[None] * 16]
    # Without a finding it is as old as what it is of: ten seconds.
    shares = cpu_shares(*alive, *dead)
    assert shares[:9] == [*known, *[pytest.approx(0.5)] * 6]
    assert shares[-4:] == [None] * 4
    again: list[tuple[float, float | None]] = [(20.0, 0.1), (21.0, 0.3)]
    assert cpu_shares(*alive, *dead, *again, ends_s=4.0)[-2:] == [None, pytest.approx(0.2)]
    assert cpu_shares(*alive, (4.0, 0.0), (5.0, 0.3))[-2:] == [None, pytest.approx(0.3)]


def test_endless_hold_has_no_eta() -> None:
    fold = LiveFold(Plan(urls=("http://a/",), hold_s=None))
    fold.phase(Phase("hold", 10.0))
    fold.tick(20.0, Tick(held=1000))
    assert (fold.state().progress, fold.state().eta_s) == (None, None)
    assert "until Ctrl-C" in drawn(Plan(urls=("http://a/",), hold_s=None), fold.state(), 80)


def drawn(plan: Plan, state: LiveState, width: int, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(screen(plan, state, console))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


WORDS = (
    "asyncli", "baseline", "ramp", "hold", "drain", "residue", "Connections", "held", "rate", "connecting", "lost", "failed",
    "Heartbeats", "answered", "latency p50", "latency p99", "lateness p99", "Server", "active", "accepted", "handled",
    "memory", "CPU", "asyncli", "workers", "longest turn", "One more connection costs", "an end,", "asyncli 1",
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 240])
@pytest.mark.parametrize("until_s", [0.0, 7.0, 104.0])
def test_screen_fits_and_cuts_no_word(width: int, until_s: float) -> None:
    run = a_run(100_000)
    state = state_at(run, until_s)
    findings = (Finding("a", "warning", "long words " * 30), Finding("b", "error", "short"))
    state.findings = tuple(Notice(1.0, "ramp", one) for one in findings)
    state.lost, state.deaths = 12_345_678, {"closed_idle": 12_345_000, "reset": 678}
    text = drawn(run.plan, state, width)
    lines = text.splitlines()
    assert len(lines) <= 23  # a line is left for the cursor
    assert max(map(len, lines)) <= width
    for word in WORDS if until_s > 50 else WORDS[:6]:
        assert word in text, word
    assert "why: lost (closed_idle 12,345,000, reset 678)" in text
    assert "error: short" in text
    assert "…" not in text


def a_cost(value: float, half_width: float) -> Cost:
    return Cost(value, (value - half_width, value + half_width), 0.0, "a line", 100)


def test_screen_of_ten_million_connections() -> None:
    plan = Plan(urls=("http://a-rather-long-name.of-a-server.example.org:8080/with/a/long/path?and=a&query=too",) * 2)
    state = LiveState(phase="ramp", asked=10_000_000, held=9_999_999, opened=10_000_000, active=9_999_999,
                      accepts=123_456_789, handled=123_456_789, achieved_per_s=123_456.0, asked_per_s=200_000.0,
                      elapsed_s=359_999.0, eta_s=86_400.0, progress=0.999, server_cpu_share=12.34, workers=600,
                      cost=CostPart(a_cost(99_995.0, 29_995.0), None, None, None, a_cost(123_456.0, 23_456.0), None), cost_at_s=359_990.0)  # fmt: skip
    text = drawn(plan, state, 80)
    for words in ("9,999,999 of 10,000,000", "123,456/s of 200,000/s", "12.3 cores", "24 h left", "and 1 more", "costs 123 kB ± 23 kB", "server 100 kB ± 30 kB"):
        assert words in text


@pytest.mark.parametrize("width", [20, 50])
def test_narrow_terminal_raises_nothing(width: int) -> None:
    drawn(a_run(1000).plan, state_at(a_run(1000), 20.0), width)


def test_error_answers_show_in_each_view() -> None:
    run, log = a_run(1000), io.StringIO()
    fold = fed(run, 20.0)
    view = JsonView(run.plan, Console(file=log))
    for t_s, by_status in ((21.0, {200: 9}), (22.0, {200: 2, 503: 3}), (23.0, {503: 4, 404: 1})):
        fold.tick(t_s, Tick(held=1000, by_status=by_status))
        view.update(fold.state())
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(one["count"], one["causes"]) for one in events if one["event"] == "errors"] == [(3, {"503": 3}), (5, {"503": 4, "404": 1})]
    assert "errors 8" in plain_line(fold.state())
    assert "errors (503" in drawn(run.plan, fold.state(), 80)


def test_unanswered_heartbeats_show_before_their_timeout() -> None:
    run = a_run(100_000)
    fold = fed(run, 150.0)
    shown: dict[float, list[str]] = {}
    # A heartbeat that has waited for less than a second does not show.
    for waits_s, awaiting in ((0.9, 120), (6.2, 100_000)):
        fold.tick(150.0 + waits_s, Tick(held=100_000, awaiting=awaiting, longest_wait_s=waits_s))
        state, log = fold.state(), io.StringIO()
        JsonView(run.plan, Console(file=log)).print_status(state)
        page, status = Snapshot(run.plan, state)._repr_html_(), json.loads(log.getvalue())
        shown[waits_s] = [plain_line(state), drawn(run.plan, state, 80), re.sub("<[^>]*>", " ", page)]
        assert (status["unanswered"], status["longest_wait_s"]) == ((0, 0.0) if waits_s < 1 else (awaiting, waits_s))
    assert all("unanswered" not in words for words in shown[0.9])
    assert all(re.search(r"unanswered +100,000, longest 6 s", words) for words in shown[6.2])
    # After the answers nothing is unanswered.
    fold.tick(158.0, Tick(held=100_000, awaiting=90, longest_wait_s=0.1))
    assert (fold.state().unanswered, fold.state().longest_wait_s) == (0, 0.0)


def test_a_command_is_told_as_it_begins_and_as_it_ends() -> None:
    """In between, and shortly after, the server's restart is the command's; later it is an error."""
    run = a_run(1_000, hold_s=60.0, events=("10s run ./deploy",))
    fold = fed(run, 20.0)
    plain, lines = io.StringIO(), io.StringIO()
    views = (PlainView(run.plan, Console(file=plain, width=200)), JsonView(run.plan, Console(file=lines)))

    def told(what: RunEvent | Finding, at_s: float) -> None:
        if isinstance(what, RunEvent):
            fold.event(what)
        else:
            fold.finding(what, at_s)
        for view in views:
            view.write_news(fold.state())

    told(RunEvent("run", 20.0, None, "./deploy", {"number": 1}), 20.0)
    told(server_ended(21.0, "the server's processes ended", None), 21.0)
    told(server_restarted(77), 22.0)
    told(RunEvent("run", 20.0, 24.0, "./deploy", {"number": 1, "status": 3, "took_s": 4.0, "output": ""}), 24.0)
    told(server_ended(25.0, "the server's processes ended", None), 25.0)
    told(server_ended(50.0, "the server's processes ended", None), 50.0)
    begun, *restarts, ended, after, later = plain.getvalue().splitlines()
    assert begun.split() == ["0:00:20", "run", "begins:", "./deploy"]
    assert (ended.split()[0], "status 3:" in ended) == ("0:00:24", True)
    assert all(" info: " in line and "event 1" in line for line in (*restarts, after))
    assert " error: " in later
    read = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["event"], one["t_s"], one.get("status")) for one in read if one["event"] == "run"] == [("run", 20.0, None), ("run", 24.0, 3)]
    assert [one["severity"] for one in read if one["event"] == "finding"] == ["info", "info", "info", "error"]


def test_live_view_disappears_at_the_end() -> None:
    run = a_run(2000, hold_s=3.0)
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, _environ={})
    fold = LiveFold(run.plan)
    with LiveView(run.plan, console) as view:
        for t_s, kind, what in events(run):
            feed(fold, t_s, kind, what)
            view.update(fold.state())
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2,000 of 2,000" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    assert output.rstrip().endswith("\x1b[2K") or "\x1b[2K" in output[-400:]
    view.update(fold.state())  # after the end it is silent


@pytest.mark.parametrize("width", [30, 50, 66, 80])
def test_each_name_has_its_value_at_any_width(width: int) -> None:
    run = a_run(400, hold_s=60.0)
    lines = drawn(run.plan, state_at(run, 40.0), width).splitlines()
    assert all(len(line) <= width for line in lines)
    for name, value in (("held", "400 of 400"), ("latency p50", "0.42 ms"), ("CPU", "1 % of a core"), ("longest turn", "12.0 ms")):
        assert any(f"  {name} " in line and value in line for line in lines), name


def test_live_screen_in_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, height=24, force_terminal=True)
    state = state_at(a_run(20_000), 60.0)
    state.findings = (Notice(1.0, "hold", Finding("x", "error", "é " * 90)),)
    console.print(screen(a_run(20_000).plan, state, console))
    file.flush()


def test_plain_lines_every_ten_seconds_and_at_each_phase() -> None:
    run = a_run(20_000, hold_s=30.0)
    console = Console(file=io.StringIO(), width=80)
    fold = LiveFold(run.plan)
    with PlainView(run.plan, console) as view:
        for t_s, kind, what in events(run):
            feed(fold, t_s, kind, what)
            if kind == "phase" and what.name == "hold":
                fold.cost(cost_so_far(cut_off(run, t_s)))
            if kind == "tick" and what.second == 5:
                fold.finding(Finding("x", "warning", "something [b]odd[/b]\nhappened"))
                # What could not be read is in the report, not in the log.
                fold.finding(slabinfo_unreadable("Permission denied", 1000))
            view.update(fold.state())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    phases = [line.split()[1] for line in lines if "warning" not in line]
    assert list(dict.fromkeys(phases)) == ["baseline", "ramp", "hold", "drain", "residue"]
    assert 9 <= len(lines) <= 13
    assert sum("something [b]odd[/b] happened" in line for line in lines) == 1
    ramp = [line for line in lines if " ramp " in line][-1]
    for words in ("held ", " of 20,000", "/s (asked 1,000/s)", " left", "lost 0", "beats/s p50 0.42 ms", "server active"):
        assert words in ramp
    assert "a connection on this host" in [line for line in lines if " hold " in line][-1]
    assert not [line for line in lines if " 0 ms" in line or "slabinfo" in line]


def test_a_limit_that_is_crossed_and_an_unknown_cost_are_lines_of_the_logs() -> None:
    run = a_run(20_000, hold_s=30.0, fail_if=("cost.server_user > 600", "lost > 0.1%", "held < 20000"))
    plain, objects = Console(file=io.StringIO(), width=80), Console(file=io.StringIO(), width=80)
    fold = LiveFold(run.plan)
    hold_s = next(phase.start_s for phase in run.phases if phase.name == "hold")
    with PlainView(run.plan, plain) as first, JsonView(run.plan, objects) as second:
        for t_s, kind, what in events(run):
            feed(fold, t_s, kind, what)
            if kind == "tick" and what.held and int(t_s) % 5 == 0:
                so_far = cost_so_far(cut_off(run, t_s))
                fold.cost(msgspec.structs.replace(so_far, why_unknown="too few samples" if t_s < hold_s else REUSED))
            for view in (first, second):
                view.update(fold.state())
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    # Nothing was lost, and at first less is held than in the hold.
    (crossed,) = [line for line in lines if line.split()[1] == "error:"]
    assert run.plan.fail_if[0] in crossed
    (unknown,) = [line for line in lines if line.split()[1] == "cost"]
    assert unknown.endswith(REUSED)
    told = [json.loads(line) for line in objects.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    (finding,) = [line for line in told if line["event"] == "finding"]
    assert (finding["code"], finding["fields"]["limit"]) == ("limit_crossed", run.plan.fail_if[0])


def test_negative_cost_is_unknown() -> None:
    run = raised(a_run(20_000), 0.0, "host.used_bytes", each=-20_000.0)
    for until_s, words in ((20.0, "not known yet"), (45.0, "unknown (other programs may be in it)")):
        state = state_at(run, until_s)
        assert state.held > 200
        assert state.cost is not None
        assert "a connection on this host" not in plain_line(state)
        assert f"Cost of a connection on this host: {words}" in drawn(run.plan, state, 80)


@pytest.mark.parametrize("noise", [0.3, 10.0])
def test_interval_of_a_cost_so_far_holds_the_truth(noise: float) -> None:
    truth = {"server_user": SERVER, "kernel": KERNEL_END, "generator_user": GENERATOR, "host_total": SERVER + 2 * KERNEL_END + GENERATOR + REST}
    known = hits = 0
    for seed in range(15):
        run = a_run(10_000, seed=seed, noise=noise)
        for until_s in (10.2, 13.0, 17.2, 30.0):
            cost = cost_so_far(cut_off(run, until_s)).cost
            for name, bytes_each in truth.items():
                part = cost.cost_of(name)
                if part is not None:
                    known += 1
                    hits += part.ci95[0] <= bytes_each <= part.ci95[1]
    assert known >= 100
    assert hits >= 0.9 * known


def test_json_log_has_a_line_per_event() -> None:
    console = Console(file=io.StringIO(), width=80)
    fold = LiveFold(Plan(urls=("http://a/",)))
    view = JsonView(Plan(urls=("http://a/",)), console, began_s=1_740_830_400.0)
    told: list[tuple[float, Any]] = [
        (0.0, Phase("hold", 0.0)),
        (1.0, Tick(held=10, opened=10)), (1.1, Sample(1.1, {"server.processes": 3.0, "status.accepts": 70.0})),
        (2.0, Tick(held=7, deaths={"reset": Deaths(count=2), "closed_idle": Deaths(count=1)})),
        (3.0, Tick(held=7, failures={"refused": 4})),
        (4.0, Sample(4.0, {"server.processes": 3.0, "server.ended": 2.0, "status.accepts": 80.0})),
        (5.0, Sample(5.0, {"server.processes": 3.0, "server.ended": 2.0, "status.accepts": 1.0})),
        (6.0, Tick(held=6, deaths={"reset": Deaths(count=1)})),
    ]  # fmt: skip
    for t_s, what in told:
        fold.tick(t_s, what) if isinstance(what, Tick) else fold.phase(what) if isinstance(what, Phase) else fold.sample(what)
        view.update(fold.state())
    fold.finding(Finding("odd", "info", "something"), t_s=2.5)
    fold.end()
    view.update(fold.state())
    lines = [json.loads(line) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [line for line in lines if line["event"] == "lost"] == [
        {"time": "2025-03-01T12:00:02.000+00:00", "t_s": 2.0, "event": "lost", "phase": "hold", "count": 3, "causes": {"reset": 2, "closed_idle": 1}, "since_s": 1.0},
        {"time": "2025-03-01T12:00:06.000+00:00", "t_s": 6.0, "event": "lost", "phase": "hold", "count": 1, "causes": {"reset": 1}, "since_s": 3.0},
    ]
    assert [(line["t_s"], line["count"], line["causes"]) for line in lines if line["event"] == "failed"] == [(3.0, 4, {"refused": 4})]
    assert [(line["t_s"], line["ended"], line["processes"], line["counters_restarted"]) for line in lines if line["event"] == "server"] == [
        (4.0, 2, 3, False), (5.0, 0, 3, True),
    ]  # fmt: skip
    # A finding has its own time, whenever it is written; a run that is over has no status line.
    assert (lines[-1]["event"], lines[-1]["t_s"], lines[-1]["time"]) == ("finding", 2.5, "2025-03-01T12:00:02.500+00:00")


def test_fold_uses_constant_memory() -> None:
    fold = LiveFold(Plan(urls=("http://a/",)))
    fold.phase(Phase("hold", 0.0))
    for second in range(3000):
        fold.tick(float(second), Tick(held=1, longest_turn_s=0.001))
        fold.sample(Sample(float(second), {"server.cpu_s": float(second), "generator.cpu_s": 0.0}))
        fold.finding(Finding("x", "info", str(second)))
    kept = [len(value) for value in vars(fold).values() if hasattr(value, "__len__")]
    assert max(kept) <= 12
    assert max(len(share.readings) for share in (fold._server_cpu, fold._generator_cpu)) <= 12
    assert fold.state().findings_seen == 3000


def test_asked_rate_of_a_ramp_with_plateaus_is_of_the_same_seconds() -> None:
    run = a_run(20_000, plateaus=5, plateau_s=5.0)
    for until_s in (12.2, 14.2, 20.2, 28.2):
        state = state_at(run, until_s)
        assert state.phase == "ramp"
        assert state.achieved_per_s == pytest.approx(state.asked_per_s, rel=0.02)
    assert state.asked_per_s < 700, "the rests are in it"
    assert state_at(a_run(20_000), 15.2).asked_per_s == pytest.approx(1000, rel=0.01)


def test_who_is_not_to_be_back_yet_is_away_and_who_failed_to_come_is_not() -> None:
    fold = LiveFold(Plan(urls=("http://h/",), connections=100))

    def away_after(number: int, **counts: Any) -> int:
        fold.tick(fold.state().elapsed_s + 1.0, Tick(events={number: EventCounts(**counts)}))
        return fold.state().away

    assert away_after(1, ended=100) == 100
    assert away_after(1, attempts=30, opened=30) == 70
    # Their turn has come; a further attempt of theirs is nobody's turn.
    assert away_after(1, attempts=70, failures={"refused": 70}) == 0
    assert away_after(1, attempts=70, failures={"refused": 70}) == 0
    assert away_after(2, ended=40) == 40
    assert away_after(2, ended_again=5, lost_with_worker=5) == 30
    # Some stay away for good.
    assert away_after(2, attempts=10, gone=20) == 20
    assert "20 away" not in plain_line(fold.state())
    fold.phase(Phase("hold", fold.state().elapsed_s))
    assert "20 away" in plain_line(fold.state())


def test_who_has_had_his_turn_and_is_not_back_is_told() -> None:
    fold = LiveFold(Plan(urls=("http://h/",), connections=100, churn="5%/m", events=("1s storm", "9s stall 5%")))
    fold.phase(Phase("hold", 0.0))

    def not_back_after(number: int, **counts: Any) -> int:
        fold.tick(fold.state().elapsed_s + 1.0, Tick(events={number: EventCounts(**counts)}))
        return fold.state().not_back

    assert not_back_after(1, chosen=100, ended=100) == 0
    assert not_back_after(1, attempts=40, opened=40) == 40
    assert not_back_after(1, attempts=60, failures={"refused": 60}) == 100
    assert "not back" in plain_line(fold.state())
    back = EventCounts(attempts=60, opened=60)
    for _ in range(90):
        back.back_ms.add(900)
    fold.tick(fold.state().elapsed_s + 1.0, Tick(events={1: back}))
    assert fold.state().not_back == 10
    # Who stalls is held, who churns is on his way, and who is gone for good is not awaited.
    assert not_back_after(2, chosen=5, stalled=5) == 10
    assert not_back_after(0, chosen=5, ended=5, attempts=5) == 10
    assert not_back_after(1, chosen=5, ended=5, silenced=5, gone=5) == 10


@pytest.mark.parametrize(
    ("phase", "elapsed_s", "left_s"), [("baseline", 2.0, 73.0), ("ramp", 9.0, 66.0), ("hold", 20.0, 55.0), ("drain", 76.0, 0.0)]
)
def test_time_to_the_end_of_the_hold(phase: Any, elapsed_s: float, left_s: float) -> None:
    starts_s = {"baseline": 0.0, "ramp": 5.0, "hold": 15.0, "drain": 75.0}
    for hold_s, expected_s in ((60.0, left_s), (None, math.inf if left_s else 0.0)):
        fold = LiveFold(Plan(urls=("http://h/",), connections=1000, batch=10, interval_s=0.1, baseline_s=5.0, hold_s=hold_s))
        fold.phase(Phase(phase, starts_s[phase]))
        fold.tick(elapsed_s, Tick(held=1))
        assert fold.state().hold_left_s == pytest.approx(expected_s, abs=0.11)
        # Of a run that was killed, as it was.
        fold.end()
        assert fold.state().hold_left_s == pytest.approx(expected_s, abs=0.11)
