"""The experiments' framework: plans, steps that fail alone, a record however the run ends, text and page."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import here
from rich.console import Console

from asyncli.analysis.bench_result import BenchResult, evaluate_bench
from asyncli.cli import main as cli
from asyncli.experiments import NAMES, Count, Experiment, ExperimentPlan, command_of, load, plan_of
from asyncli.experiments.context import Context, figures, run
from asyncli.experiments.counters import ServerCpu
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, FigureRow, Record, Rounds, record_of, span
from asyncli.model.benchplan import BenchPlan, BenchRun
from asyncli.model.errors import HostError, PlanError
from asyncli.model.records import Asked, Ended, Tick
from asyncli.report.experiment_report import experiment_document
from asyncli.report.html import page
from asyncli.report.terminal import print_document

ROUNDS = Rounds([
    {"step": "off", "round": 0, "per_s": 100.0}, {"step": "on", "round": 0, "per_s": 210.0},
    {"step": "off", "round": 1, "per_s": 200.0}, {"step": "on", "round": 1, "per_s": 400.0}, {"step": "on", "round": 2, "per_s": None},
])  # fmt: skip
COLUMNS = [Column("per_s", "requests/s", "/s"), Column("never", "never measured", "ms")]


class MadeUp(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 2
    duration: str = "2s"
    sizes: list[Count] = msgspec.field(default_factory=lambda: [1, 2])


def conclude(plan: MadeUp, rounds: Rounds) -> Conclusions:
    charts = [
        Chart("bars", "Throughput", "", "requests a second", [ChartLine("here", [0.0, 1.0], [150.0, 305.0])], ["off", "on"]),
        Chart("lines", "Memory", "s", "MB", [ChartLine("off", [0.0, 1.0], [1.0, 2.0]), ChartLine("never", [], [])]),
        Chart("lines", "Nothing", "s", "MB", []),
    ]
    labels = {"off": "off", "on": "switched on", "never": "never done"}
    table = rounds.table("The table", COLUMNS, labels, "A <caption>.", {"off": {"per_s": "21,203"}})
    return Conclusions([table], charts, [Claim("It doubles.", "holds", "2.00 to 2.10 times.")])


def experiment(doing: Any, concluding: Any = conclude) -> Experiment:
    return Experiment("made-up", "Of {rounds}", "Why?", "a write-up", "a source", MadeUp, {"rounds": 1}, doing, concluding, ("nginx", "apache"))


async def measures(context: Context) -> None:
    context.rounds += ROUNDS
    context.environment = {"kernel": "6.1", "server": {"nginx/1.0": {}}}


def recorded(doing: Any = measures, concluding: Any = conclude, **changes: Any) -> Record:
    made = experiment(doing, concluding)
    return asyncio.run(run(made, plan_of(made, False, changes), say=lambda _: None))


def text_of(record: Record, width: int = 140) -> str:
    out = io.StringIO()
    print_document(experiment_document(record), Console(width=width, file=out))
    return out.getvalue()


def codes(record: Record) -> list[str]:
    return [one.code for one in record.findings]


def test_figures_of_rounds() -> None:
    assert ROUNDS.of("on", "per_s") == [210.0, 400.0]
    assert ROUNDS.by_round("on", "per_s") == {0: 210.0, 1: 400.0}
    # Paired by the round, and not by the place.
    assert Rounds(reversed(ROUNDS)).ratio("on", "off", "per_s") == [2.0, 2.1]
    assert (span([2.1, 2.0]).split(), span([2.0, 2.001])) == (["2.00", "to", "2.10"], "2.00")
    assert (FigureRow("x", {"a": [1.0, 9.0, 2.0]}).median("a"), FigureRow("x", {}).median("a")) == (2.0, None)


def test_no_cell_of_a_table_that_does_not_fit_is_cut() -> None:
    wide, narrow = text_of(recorded()), text_of(recorded(), 24)
    assert "…" not in wide + narrow
    for cell in ("21,203", "150", "100 to 200", "305", "210 to 400"):
        assert cell in wide
        assert cell in narrow


def test_text_and_page_say_the_same() -> None:
    record = recorded()
    assert record.complete
    assert [(len(one.lines), one.title) for one in record.conclusions.charts] == [(1, "Throughput"), (1, "Memory")]
    text, html = text_of(record), page(experiment_document(record)).replace("\u00a0", " ")
    for words in ("Of 2", "Why?", "holds", "It doubles.", "2.00 to 2.10 times.", "requests/s", "switched on", "150", "21,203"):
        assert words in text
        assert words in html
    for word in ("never", "measured"):
        assert word not in text
    assert "A &lt;caption&gt;." in html
    assert html.count("<svg viewBox") >= 2
    assert page(experiment_document(record_of(msgspec.json.encode(record)))) == page(experiment_document(record))


def test_what_was_measured_is_kept_whatever_ends_it() -> None:
    async def is_cancelled(context: Context) -> None:
        await measures(context)
        raise asyncio.CancelledError

    async def fails(context: Context) -> None:
        await measures(context)
        raise HostError("the disk is full; make room")

    def trips(plan: MadeUp, rounds: Rounds) -> Conclusions:
        raise ZeroDivisionError("division by zero")

    for record, code in ((recorded(is_cancelled), "stopped"), (recorded(fails), "ended_early"), (recorded(concluding=trips), "not_concluded")):
        assert (record.complete, codes(record), record.rounds) == (False, [code], ROUNDS)
        assert page(experiment_document(record))


def test_a_server_that_cannot_be_had_is_left_out_once_and_the_rest_goes_on() -> None:
    async def lacks(context: Context) -> None:
        for number in range(2):
            for server in ("apache", "nginx"):
                if context.wanted(server):
                    with context.step(server, f"{server}, kept"):
                        if server == "apache":
                            raise HostError("none; apt-get")
                        context.add(server, number, per_s=1.0)

    record = recorded(lacks)
    (left_out,) = (one.fields for one in record.findings)
    assert list(left_out.values()) == ["apache, kept", "none", "apt-get"]
    assert [one["step"] for one in record.rounds] == ["nginx", "nginx"]
    only = Context(MadeUp(only=["nginx"]))
    assert (only.wanted("nginx"), only.wanted("apache")) == (True, False)


def test_a_plan_that_cannot_be_is_no_server_that_cannot_be_had() -> None:
    async def asks_too_much(context: Context) -> None:
        with context.step("nginx", "nginx"):
            raise PlanError("duration: 'abc' is not a duration")

    with pytest.raises(PlanError):
        recorded(asks_too_much)


def test_a_server_that_dies_ends_its_own_part_alone() -> None:
    async def loses_one(context: Context) -> None:
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
            with context.step("apache", "Apache"):
                ServerCpu(ended.pid).read()
        await measures(context)

    record = recorded(loses_one)
    assert (record.complete, record.rounds, codes(record)) == (True, ROUNDS, ["left_out"])


def test_nothing_measured_is_said() -> None:
    async def measures_nothing(context: Context) -> None:
        pass

    record = recorded(measures_nothing)
    assert (codes(record), record.conclusions.tables) == (["untested"], [])
    for said in (text_of(record), page(experiment_document(record))):
        assert "a source" in said
        assert "edians of" not in said


def a_bench(*, requests: int | None = None, ended: Ended = "asked", cpu_s: float = 0.1, asked: Asked | None = None, **tick: Any) -> BenchResult:
    """A bench of one second with 100 answers, unless changed."""
    total = Tick(**{"answered": 100, "by_status": {200: 100}, **tick}, asked=asked or Asked())
    plan = BenchPlan(urls=("http://127.0.0.1:80/",), requests=requests)
    complete = ended in ("asked", "time")
    return evaluate_bench(BenchRun(plan, "2026-01-01T00:00:00+00:00", 1.0, 1, (cpu_s, 0.0), ended, complete, total, [(1.0, total)], [], [], {}))


@pytest.mark.parametrize(
    ("made", "usable"),
    [
        ({}, True),
        ({"requests": 100}, True),
        # asyncli was the limit: that is told apart.
        ({"cpu_s": 1.0}, True),
        ({"asked": Asked(failed={"heartbeat_timeout": 3})}, False),
        ({"by_status": {200: 98, 502: 2}}, False),
        ({"requests": 110}, False),
        ({"requests": 110, "ended": "gave up", "asked": Asked(left=10)}, False),
        ({"ended": "stopped"}, False),
        ({"answered": 0, "by_status": {}}, False),
    ],
    ids=str,
)
def test_of_a_bench_that_failed_nothing_is_concluded(made: dict[str, Any], usable: bool) -> None:
    found = figures(a_bench(**made))
    assert (found["usable"], found["unusable"] is None) == (usable, usable)

    async def measures_it(context: Context) -> None:
        context.add("on", 3, **found)

    record = recorded(measures_it)
    assert len(record.rounds) == 1
    assert len(record.conclusions.tables) == usable
    assert codes(record) == ([] if usable else ["round_failed", "untested"])


@pytest.mark.parametrize("name", NAMES)
def test_each_concludes_from_nothing_at_all(name: str) -> None:
    known = load(name)
    assert known.name == name
    plan = plan_of(known, True, {})
    assert known.conclude(plan, Rounds()) == Conclusions()
    assert plan_of(known, False, msgspec.to_builtins(plan)) == plan
    assert "{" not in "".join(known.title_and_question(plan))


def test_a_record_says_what_was_asked_and_not_what_is_usual() -> None:
    clients = load("two-clients")
    assert clients.title_and_question(plan_of(clients, True, {}))[0].endswith("1,000")


def test_a_plan_by_its_defaults_the_taste_and_the_user() -> None:
    known = load("upstream-keepalive")
    assert plan_of(known, False, {}).rounds == 5
    assert plan_of(known, True, {}).rounds == 1
    assert plan_of(known, True, {"rounds": 3}).rounds == 3
    # Of a record of before.
    assert plan_of(known, False, {"colour": 1}) == known.plan()
    for name in NAMES:
        for key, default in msgspec.structs.asdict(load(name).plan()).items():
            for wrong in (None, True, -1, "x", [-1], [True], ["x"], {}, 1.5 if isinstance(default, int) else float("nan"), 10**9):
                with pytest.raises(PlanError, match=f"^here {key}"):
                    plan_of(load(name), False, {key: wrong}, "here ")


@pytest.mark.parametrize(
    ("quick", "changes", "flags"),
    [
        (False, {}, ""),
        (True, {}, " --quick"),
        (True, {"rounds": 2}, " --quick --rounds 2"),
        (False, {"rounds": 7, "duration": "1 min", "only": ["nginx", "apache"]}, " --rounds 7 --only nginx --only apache --duration '1 min'"),
        # There is no flag for it.
        (False, {"sizes": [3], "rounds": 7}, " --plan record.json"),
    ],
)
def test_the_command_runs_the_same_plan_again(quick: bool, changes: dict[str, Any], flags: str) -> None:
    made = experiment(measures)
    assert command_of(made, plan_of(made, quick, changes), quick).partition("made-up")[2] == flags


def document(name: str = "upstream-keepalive", **changes: Any) -> str:
    """An experiment's record file."""
    record = msgspec.to_builtins(recorded())
    return json.dumps(record | {"experiment": name, "plan": msgspec.to_builtins(load(name).plan())} | changes)


def asyncli(folder: Path, *arguments: str) -> int:
    """``asyncli experiment`` in this process, its folder ``folder``/out."""
    return cli.run(["experiment", *arguments, "--out", str(folder / "out")])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "'nothing'"),
        (["upstream-keepalive", "--rounds", "0"], "--rounds: "),
        (["upstream-keepalive", "--duration", "abc"], "--duration: "),
        (["server-models", "--duration", "2s"], "--duration: "),
        (["upstream-keepalive", "--only", "nginx-proxy", "--only", "bogus"], "--only: "),
        (["upstream-keepalive", "--plan", "missing.json"], "--plan: missing.json "),
        (["upstream-keepalive", "--plan", "other.json"], "--plan: other.json "),
        (["upstream-keepalive", "--plan", "odd.json"], "--plan: odd.json "),
        (["upstream-keepalive", "--plan", "new.json"], "--plan: new.json "),
        (["upstream-keepalive", "--plan", "rounds.json"], "--plan: rounds.json: rounds"),
        (["upstream-keepalive", "--quick", "--plan", "whole.json"], "--quick: whole.json "),
        (["upstream-keepalive", "--out", "no/such/folder"], "--out: no/such/folder "),
        (["upstream-keepalive", "--out", "/proc/xyz"], "--out: /proc/xyz "),
        (["upstream-keepalive", "--out", "full"], "--out: full "),
    ],
    ids=str,
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "other": document("holding"), "odd": "[]", "new": document(schema=99), "rounds": document(plan={"rounds": -1}), "whole": document(),
    }.items():  # fmt: skip
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "record.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.iterdir()}
    status, said = cli.run(["experiment", *arguments]), capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1)
    assert words in said.err
    assert {*tmp_path.iterdir()} == before


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace all experiments by a synthetic one."""

    def instead(doing: Any, concluding: Any = conclude) -> None:
        monkeypatch.setattr("asyncli.experiments.load", lambda _: experiment(doing, concluding))

    return instead


def test_a_record_that_cannot_be_written_is_printed_and_may_be_elsewhere(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(measures)
    whole = Path.write_text

    def fills(path: Path, text: str, **how: Any) -> int:
        if path.parent == tmp_path / "out":
            whole(path, text[:10], **how)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(path, text, **how)

    monkeypatch.setattr(Path, "write_text", fills)
    status, said = asyncli(tmp_path, "made-up", "--quiet", "--json", str(tmp_path / "j")), capsys.readouterr()
    assert (status, said.err.count("\n")) == (2, 1)
    assert os.strerror(errno.ENOSPC) in said.err
    assert "It doubles." in said.out
    assert json.loads((tmp_path / "j").read_text())["rounds"] == ROUNDS
    # No half a record; the next may go there.
    assert not (tmp_path / "out").exists()


def test_a_second_interrupt_comes_too_late_to_lose_it(tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_stopped(context: Context) -> None:
        await measures(context)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    writes = Path.write_text

    def is_interrupted(path: Path, text: str, **how: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return writes(path, text, **how)

    made_up(is_stopped)
    monkeypatch.setattr(Path, "write_text", is_interrupted)
    assert asyncli(tmp_path, "made-up", "--quiet") == 130
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"record.json", "report.html"}
    assert json.loads((tmp_path / "out" / "record.json").read_text())["rounds"] == ROUNDS


def test_the_exit_status_says_whether_something_was_measured(tmp_path: Path, made_up: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async def nothing(context: Context) -> None:
        with context.step("nginx", "nginx"):
            raise HostError("no [nginx] here[/]; :smile: install it")

    async def fails(context: Context) -> None:
        context.add("on", 0, usable=False, unusable="3 requests failed")

    async def trips(context: Context) -> None:
        await measures(context)
        raise HostError("the disk is full")

    async def refuses(context: Context) -> None:
        raise PlanError("responses: fewer than connections")

    for at, (doing, status) in enumerate([(measures, 0), (nothing, 3), (fails, 3), (trips, 4), (refuses, 2)]):
        made_up(doing)
        (tmp_path / str(at)).mkdir()
        assert asyncli(tmp_path / str(at), "made-up") == status, doing
        said = capsys.readouterr()
        # What is no command of ours is no markup either.
        assert (doing is not nothing) or "no [nginx] here[/]; :smile: install it" in said.err


def test_the_plan_of_a_record_is_repeated(tmp_path: Path, made_up: Any) -> None:
    made_up(measures)
    assert asyncli(tmp_path, "made-up", "--quick", "--rounds", "3", "--quiet") == 0
    first = tmp_path / "out" / "record.json"
    assert cli.run(["experiment", "made-up", "--plan", str(first), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    one, other = (json.loads(path.read_text()) for path in (first, tmp_path / "again" / "record.json"))
    assert [one[key] for key in ("plan", "quick", "command")] == [other[key] for key in ("plan", "quick", "command")]
    assert (one["quick"], one["plan"]["rounds"], one["command"].split()[2:]) == (True, 3, ["made-up", "--quick", "--rounds", "3"])


@pytest.mark.nginx
def test_from_the_command_to_the_page(tmp_path: Path) -> None:
    done = here(tmp_path, "experiment", "upstream-keepalive", "--quick", "--duration", "0.3s", "--out", "first")
    assert (done.status, "asyncli: " in done.log) == (0, False)
    assert done.out.endswith("first/report.html, first/record.json\n")
    record = json.loads((tmp_path / "first" / "record.json").read_text())
    assert record["complete"] is True
    by_step = {one["step"]: one for one in record["rounds"]}
    off, few, roomy = by_step["off"], by_step["on, 100 a connection"], by_step["on, 100, room for 128"]
    # Off: a connection each. On: as many requests on each as the backend allows, where the proxy has room to keep it.
    assert off["backend_accepts"] == off["backend_requests"]
    assert 1 < few["each"] <= 100
    # Each backend's connections serve all they may, but for those that stand at the end: no more than there is room for.
    assert roomy["each"] <= 100
    assert roomy["backend_accepts"] <= roomy["backend_requests"] / 100 + 2 * 128
    most = by_step["on, 1,000, room for 128"]
    assert most["backend_accepts"] <= most["backend_requests"] / 1000 + 2 * 128
    assert few["proxy_us"] > 0
    if any(one["code"] == "left_out" for one in record["findings"]):
        pytest.skip("the rest is of a line between namespaces")
    # A request of a connection of its own is two round trips of 20 ms, and one that shares it is one; 32 are under way.
    lined, shared = by_step["off, on a line"], by_step["on, 100 a connection, on a line"]
    # Those under way at the end have not asked yet.
    assert 0 <= lined["backend_accepts"] - lined["backend_requests"] <= 32
    assert lined["per_s"] < 32 / 0.040
    assert shared["per_s"] < 32 / 0.020
