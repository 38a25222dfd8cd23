"""The Python API: a recorded run as numbers, frames, tables and figures; and a soak from a notebook."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from made_runs import KINDS
from recording import write_run
from synthetic_run import GENERATOR, KERNEL_END, SERVER, a_run, raised

from asyncli import api
from asyncli.model.errors import AsyncliError, PlanError, StoreError
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Deaths, Finding, Phase, RunEvent
from asyncli.model.run import Run

pandas = pytest.importorskip("pandas")


def record(path: Path, run: Run, *, complete: bool = True) -> Path:
    """The run, written as a soak writes it."""
    run.complete = complete
    return write_run(run, path)


def with_deaths() -> Run:
    """A run in which 40 connections were closed at an age of 30 s, and 3 were reset."""
    run = a_run(2000, interval_s=0.1, hold_s=60.0)
    _, tick = run.ticks[40]
    dead = tick.deaths["closed_announced"] = Deaths(40)
    for _ in range(40):
        dead.age_s.add(30)
        dead.idle_s.add(2)
        dead.requests.add(5)
    tick.deaths["reset"] = Deaths(3)
    run.checks.append(Check("nofile", "descriptors", "ok", have=20000.0, need=2100.0, unit=""))
    return run


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("api") / "run.db", with_deaths())


@pytest.fixture
def run(run_file: Path) -> api.Recorded:
    return api.load(run_file)


def test_a_run_says_what_its_report_says(run: api.Recorded, run_file: Path) -> None:
    assert (run.verdict, run.complete, run.plan.connections) == ("failed", True, 2000)
    assert run.summary.connections.lost == 43
    assert run.environment["server"]["label"] == "nginx/1.22.1"
    assert run.findings == run.summary.findings
    assert "verdict_failed" in {finding.code for finding in run.findings}
    assert os.fspath(run) == str(run_file)
    assert str(run_file) in repr(run)
    assert api.load(run).records == run.records
    assert run.report().startswith("FAILED")


@pytest.mark.parametrize("cut", ["nothing", "ramp"])
def test_a_run_that_was_killed_has_everything_but_the_numbers(tmp_path: Path, cut: str) -> None:
    from matplotlib.figure import Figure

    whole = with_deaths()
    end = {"nothing": 0.0, "ramp": 12.0}[cut]
    whole.ticks = [(t_s, tick) for t_s, tick in whole.ticks if t_s < end]
    whole.samples = [sample for sample in whole.samples if sample.t_s < end]
    whole.phases = [Phase(one.name, one.start_s, one.end_s if (one.end_s or 0) < end else None) for one in whole.phases if one.start_s < end]
    run = api.load(record(tmp_path / "run.db", whole, complete=False))
    assert not run.complete
    assert run.verdict in ("untested", "invalid", "failed")
    frames = run.frames
    assert len(frames.ticks) == len(whole.ticks)
    assert len(frames.samples) == len(whole.samples)
    assert len(frames.phases) == len(whole.phases)
    assert {"phase", "cause", "count", "age_p50_s", "idle_p50_s", "requests_p50"} < set(frames.deaths.columns)
    for shown in (run, run.cost(), run.drift(), run.deaths(), frames):
        assert not repr(shown).startswith("\n")
        assert not re.search(r"\bnan\b", repr(shown) + getattr(shown, "_repr_html_", str)(), re.IGNORECASE)
    for name in ("cost", "parts", "timeline", "latency", "deaths", "drift"):
        assert isinstance(getattr(run.plot, name)(), Figure), name


def test_the_records_as_frames(run: api.Recorded) -> None:
    """Their rows are those of CSV (tests/report/test_csv.py)."""
    frames, ticks = run.frames, run.frames.ticks
    assert (ticks.index.name, ticks.index.is_monotonic_increasing, ticks["lost"].sum()) == ("t_s", True, 43)
    hold = ticks[ticks["phase"] == "hold"]
    assert hold["latency_p50_ms"].median() == pytest.approx(run.summary.heartbeats.latency_ms.p50, rel=0.02)
    assert hold["connect_p50_ms"].isna().all()  # nothing connects in the hold, and that is no zero
    assert list(frames.samples.index) == [sample.t_s for sample in run.records.samples]
    assert frames.samples["status.active"].isna().sum() == 1  # the first sample came before the first page
    assert list(frames.deaths["cause"]) == ["closed_announced", "reset"]
    assert list(frames.deaths["count"]) == [40, 3]
    first = frames.deaths.iloc[0]
    assert (first["age_p50_s"], first["idle_p50_s"], first["requests_p50"]) == (30, 2, 5)
    assert frames.deaths.iloc[1][["age_p50_s"]].isna().all()
    assert list(frames.phases.index) == ["baseline", "ramp", "hold", "drain", "residue"]
    assert frames.phases.loc["hold", "duration_s"] == pytest.approx(60.0)
    assert list(frames.findings["code"]) == [finding.code for finding in run.findings]
    assert frames.checks.loc[0, "have"] == 20000.0


def test_the_cost(run: api.Recorded) -> None:
    cost = run.cost()
    for name, truth in (("server_user", SERVER), ("kernel", KERNEL_END), ("generator_user", GENERATOR)):
        one = cost[name]
        assert one.ci95[0] <= truth <= one.ci95[1], name
        assert cost.frame.loc[name, "bytes_per_connection"] == one.bytes_per_connection
        assert getattr(run.summary.cost, name) == one
        assert f"{one.bytes_per_connection:,.0f}" in repr(cost)
        assert f"{one.bytes_per_connection:,.0f}" in cost._repr_html_()
    assert cost.fits["server_user"].n
    with pytest.raises(KeyError, match="server_user"):
        cost["servre"]


def test_the_deaths(run: api.Recorded, tmp_path: Path) -> None:
    deaths = run.deaths()
    assert (deaths.count, list(deaths.by_cause)) == (43, ["closed_announced", "reset"])
    assert sum(one.count for one in deaths.diagnoses) == 43
    assert deaths.frame["count"].sum() == 43
    assert "43 " in repr(deaths)
    assert all(one.evidence[:20] in repr(deaths) for one in deaths)
    alive = api.load(record(tmp_path / "run.db", a_run(500)))
    assert len(alive.deaths()) == 0
    assert alive.plot.deaths().texts


def test_the_events(tmp_path: Path) -> None:
    provoked = KINDS["provoked"]()
    noted_s = provoked.events[-1].at_s + 9.0
    provoked.events.append(RunEvent("mark", noted_s, noted_s, "deployed <b>", {}))
    run = api.load(record(tmp_path / "run.db", provoked))
    events = run.events()
    assert [event.kind for event in events] == ["storm", "vanish", "mark"]
    assert (len(events), events[2].then, list(events.said)) == (3, "return", [1, 2])
    shown = " ".join(repr(events).split())
    assert all(" ".join(sentence.split()) in shown for sentence in events.said.values())
    assert "20,000" in events.said[1]
    assert "deployed" in shown
    assert "<b>" not in events._repr_html_()
    assert events.frame.equals(run.frames.events)
    with pytest.raises(KeyError, match="no event 7"):
        events[7]
    quiet = api.load(record(tmp_path / "quiet.db", a_run(500))).events()
    assert (len(quiet), quiet.said) == (0, {})
    assert len(quiet.frame) == 0
    assert "Nothing" in repr(quiet)


def test_what_is_shown_cannot_steer_a_page(tmp_path: Path) -> None:
    odd = a_run(500, label="<script>alert(1)</script>/1")
    odd.findings.append(Finding("odd", "warning", "<img src=x onerror=alert(1)>", "<b>"))
    run = api.load(record(tmp_path / "run.db", odd))
    for shown in (run._repr_html_(), run.cost()._repr_html_(), run.drift()._repr_html_()):
        assert "<script" not in shown
        assert "<img" not in shown


def test_two_runs_compared(tmp_path: Path) -> None:
    lean, rich = a_run(5000, interval_s=0.02, seed=3), a_run(5000, interval_s=0.02, seed=4)
    raised(rich, 0, "server.pss_bytes", "host.used_bytes", each=400.0).id = "f00dfeed0003"
    a, b = record(tmp_path / "a.db", lean), record(tmp_path / "b.db", rich)
    compared = api.compare(a, api.load(b))
    row = compared.frame.loc["cost.server_user"]
    assert (row["verdict"], row["first"], row["second"]) == ("higher", "A", "B")
    assert row["ci95_low"] <= 400 <= row["ci95_high"]
    assert "a.db" in repr(compared)
    assert "a.db" in compared._repr_html_()
    assert compared.plot().axes
    with pytest.raises(PlanError, match="no run 'C'"):
        compared.plot("C")
    with pytest.raises(PlanError, match="cannot be compared"):
        api.compare(a)
    with pytest.raises(StoreError, match="is a copy of"):
        api.compare(a, api.load(a))


def test_reading_needs_neither_linux_nor_uvloop(run_file: Path) -> None:
    code = f"""
        import sys
        for name in ("uvloop", "aiohttp", "psutil", "resource", "fcntl", "termios", "grp", "pwd", "crossplane", "click", "IPython"):
            sys.modules[name] = None
        import os, select, signal
        for module, names in ((select, ("epoll", "poll")), (os, ("fork", "sched_getaffinity", "eventfd", "pidfd_open"))):
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
        import asyncli.api as api
        run = api.load({str(run_file)!r})
        assert run.verdict == "failed"
        assert len(run.frames.ticks) == len(run.records.ticks)
        run.cost().frame, run.drift().frame, run.deaths().frame, repr(run.drift()), run.drift()._repr_html_()
        run.plot.timeline()
        run._repr_html_(), run.report()
        try:
            import asyncio
            asyncio.run(api.soak("http://127.0.0.1:9/", connections=1))
        except Exception as error:
            print(type(error).__name__, error)
        assert not [name for name in sys.modules if name.startswith("asyncli.engine.") and name != "asyncli.engine.spread"]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HostError "), done.stdout


def test_a_plan_takes_units() -> None:
    plan = api.make_plan("http://127.0.0.1:8080/", connections="10k", hold="30s", ramp="20/60ms", keepalive="1m", seed=1)
    assert (plan.connections, plan.hold_s, plan.batch, plan.interval_s, plan.keepalive_s) == (10_000, 30.0, 20, 0.06, 60.0)
    assert api.make_plan(["http://[::1]:8080/", "http://127.0.0.1/"]).targets[1].port == 80
    with pytest.raises(PlanError, match="plan: conections: "):
        api.make_plan("http://a/", conections=3)


@pytest.fixture
def short() -> dict[str, Any]:
    return {"connections": 200, "ramp": "20/20ms", "keepalive": 2, "baseline": 0.2, "hold": "1s", "residue": 0.2}


async def test_a_soak_gives_what_it_recorded(tmp_path: Path, short: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    async with api.lab_server("builtin", connections=500, keepalive=2, workers=1) as server:
        run = await api.soak(server, tmp_path / "run.db", progress=True, **short)
        assert (run.path, run.complete) == (tmp_path / "run.db", True)
        assert run.summary.connections.held == 200
        assert run.environment["server"]["label"] == "built-in server"
        assert run.plan.status_url == server.status_url
        # The counts agree: the lab was ours alone, and its status page was read.
        assert run.summary.reconciliation.agrees
        said = capsys.readouterr()
        assert "held 200 of 200" in said.err
        assert said.out == ""
        with pytest.raises(StoreError, match="overwritten"):
            await api.soak(server, run, **short)


class _Shell:
    """A stand-in for IPython's shell in a kernel."""

    kernel = object()


class _Display:
    """A stand-in for IPython.display: keeps what is shown, and the number of updates."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.breaks = False

    def display(self, thing: Any, *, display_id: bool) -> _Display:
        assert display_id
        self.update(thing)
        return self

    def update(self, thing: Any) -> None:
        if self.breaks:
            raise OSError("the browser is gone")
        self.shown.append(thing)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Display:
    import types

    display = _Display()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = _Shell  # type: ignore[attr-defined]
    module = types.ModuleType("IPython.display")
    module.display = display.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return display


def feed(watcher: Any) -> None:
    run = a_run(500, hold_s=5.0)
    for phase in run.phases:
        watcher.phase(Phase(phase.name, phase.start_s))
        watcher.phase(phase)
    for t_s, tick in run.ticks:
        watcher.tick(t_s, tick)
    for sample in run.samples:
        watcher.sample(sample)
    watcher.finding(Finding("odd", "error", "<b>12 ms</b>"))


def test_progress_in_a_notebook_changes_in_place(kernel: _Display) -> None:
    from asyncli.notebook import NotebookObserver

    plan = a_run(500).plan
    watcher = NotebookObserver(plan)
    feed(watcher)
    last = kernel.shown[-1]
    assert "of 500" in last._repr_html_()
    assert "&lt;b&gt;12 ms&lt;/b&gt;" in last._repr_html_()
    assert "held" in repr(last)
    watcher.end("passed: all was well")
    assert repr(kernel.shown[-1]) == "passed: all was well"
    assert "all was well" in kernel.shown[-1]._repr_html_()
    # Phases and findings are shown at once, the seconds between them at most four times a second.
    assert len(kernel.shown) < 30


def test_a_browser_that_is_gone_ends_the_showing_alone(kernel: _Display) -> None:
    from asyncli.notebook import NotebookObserver

    watcher = NotebookObserver(a_run(500).plan)
    watcher.phase(Phase("baseline", 0.0))
    kernel.breaks = True
    feed(watcher)
    watcher.end("passed")
    assert len(kernel.shown) == 1


@pytest.mark.parametrize("aim", [None, {"http://127.0.0.1:9/"}, Path("plan.toml"), 8080])
async def test_what_is_nothing_to_aim_at(aim: Any) -> None:
    with pytest.raises(PlanError, match="is not a target"):
        await api.soak(aim)


@pytest.mark.parametrize(
    "wrong", [{"urls": "http://127.0.0.1:9/"}, {"urls": ("127.0.0.1:9",)}, {"urls": ()}, {"connections": "10k"}, {"urls": [Path()]}]
)
async def test_a_plan_that_was_made_by_hand_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"^soak: .*; make the plan with asyncli.make_plan"):
        await api.soak(Plan(**{"urls": ("http://127.0.0.1:9/",), **wrong}))


async def test_a_soak_that_is_interrupted_does_not_look_as_if_it_went_on(tmp_path: Path, short: dict[str, Any], kernel: _Display) -> None:
    async with api.lab_server("builtin", connections=500, keepalive=2, workers=1) as server:
        run = await api.soak(server, tmp_path / "whole.db", **{**short, "hold": "0"})
        assert repr(kernel.shown[-1]).startswith(f"{run.verdict}: ")
        before = len(kernel.shown)
        task = asyncio.create_task(api.soak(server, tmp_path / "run.db", **{**short, "hold": "1h"}))
        while not any("hold" in repr(one) for one in kernel.shown[before:]):
            assert not task.done()
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert f"asyncli.load({str(tmp_path / 'run.db')!r})" in repr(kernel.shown[-1])
    # The file is complete up to there.
    cancelled = api.load(tmp_path / "run.db")
    assert (cancelled.complete, len(cancelled.records.ticks) > 0) == (False, True)
    # A soak that never began has the reason in its error, and leaves no file.
    shown = len(kernel.shown)
    with pytest.raises(AsyncliError):
        await api.soak("http://127.0.0.1:9/", tmp_path / "no" / "run.db", connections=1)
    assert len(kernel.shown) == shown
