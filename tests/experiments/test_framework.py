"""What every experiment shares: its plan, steps that fail alone, a record whatever ends it, text and page."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import run as program
from rich.console import Console

from asyncli.analysis.bench_result import Benched, benched
from asyncli.benchplan import BenchPlan, BenchRun
from asyncli.cli import main as cli
from asyncli.errors import HostError, PlanError
from asyncli.experiments import NAMES, Experiment, command_of, load, plan_of
from asyncli.experiments.context import Context, figures
from asyncli.experiments.cputime import ServerCpu
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Claim,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Record,
    Round,
    Rounds,
    span,
)
from asyncli.experiments.run import run
from asyncli.records import Asked, Ended, Tick
from asyncli.report.experiment_report import page, print_experiment

ROUNDS = Rounds([
    {"step": "off", "round": 0, "per_s": 100.0}, {"step": "on", "round": 0, "per_s": 210.0},
    {"step": "off", "round": 1, "per_s": 200.0}, {"step": "on", "round": 1, "per_s": 400.0}, {"step": "on", "round": 2, "per_s": None},
])  # fmt: skip
COLUMNS = [Column("per_s", "requests/s", "/s"), Column("never", "never measured", "ms")]


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    rows = [Rounds(rounds).row("off", COLUMNS, {"per_s": 21_203.0}), Rounds(rounds).row("on", COLUMNS, label="switched on")]
    charts = [
        Chart("bars", "Throughput", "", "requests a second", [ChartLine("here", [0.0, 1.0], [150.0, 305.0])], ["off", "on"]),
        Chart("lines", "Memory", "s", "MB", [ChartLine("off", [0.0, 1.0], [1.0, 2.0]), ChartLine("on", [0.0, 1.0], [1.0, 4.0])]),
        Chart("lines", "Nothing", "s", "MB", []),
    ]
    return Conclusions([FigureTable("The table", COLUMNS, rows, "A <caption>.")], charts, [Claim("It doubles.", "holds", "2.00 to 2.10 times.")])


def experiment(doing: Any, concluding: Any = conclude) -> Experiment:
    return Experiment(
        "made-up", "A made-up one", "Why?", "a source", {"rounds": 2, "duration": "2s", "share": 0.5, "sizes": [1, 2], "only": []},
        {"rounds": 1}, doing, concluding, servers=("nginx", "apache"), bounds={"share": (0.1, 1), "sizes": (1, 9)},
    )  # fmt: skip


async def measures(context: Context) -> None:
    context.rounds += ROUNDS
    context.environment = {"kernel": "6.1", "server": {"nginx/1.0": {}}}


def record_of(doing: Any = measures, concluding: Any = conclude, **changes: Any) -> Record:
    made = experiment(doing, concluding)
    return asyncio.run(run(made, plan_of(made, False, changes), say=lambda _: None))


def text_of(record: Record, width: int = 140) -> str:
    out = io.StringIO()
    print_experiment(record, Console(width=width, file=out))
    return out.getvalue()


def test_figures_of_rounds() -> None:
    assert ROUNDS.of("on", "per_s") == [210.0, 400.0]
    assert ROUNDS.ratio("on", "off", "per_s") == [2.1, 2.0]
    assert span([2.1, 2.0]) == "2.00 to 2.10"
    assert span([2.0, 2.001]) == "2.00"
    assert FigureRow("x", {"a": [1.0, 9.0, 2.0]}).median("a") == 2.0
    assert FigureRow("x", {}).median("a") is None


def test_no_cell_of_a_table_that_does_not_fit_is_cut() -> None:
    wide, narrow = text_of(record_of()), text_of(record_of(), 24)
    assert "…" not in wide + narrow
    for cell in ("21,203", "150", "100 to 200", "305", "210 to 400"):
        assert cell in wide
        assert cell in narrow


def test_text_and_page_say_the_same() -> None:
    record = record_of()
    assert record.complete
    text, html = text_of(record), page(record).replace("\u00a0", " ")
    assert "Made by asyncli experiment made-up" in html
    for words in ("A made-up one", "Why?", "holds", "It doubles.", "2.00 to 2.10 times.", "requests/s", "switched on", "150", "100 to 200", "21,203"):
        assert words in text
        assert words in html
    assert "never measured" not in text + html
    assert "A &lt;caption&gt;." in html
    assert html.count("<svg viewBox") >= 4
    assert "Nothing of this was measured." in html
    assert page(record) == page(record)
    assert page(msgspec.json.decode(msgspec.json.encode(record), type=Record)) == page(record)


def test_what_was_measured_is_kept_whatever_ends_it() -> None:
    async def is_cancelled(context: Context) -> None:
        await measures(context)
        raise asyncio.CancelledError

    async def fails(context: Context) -> None:
        await measures(context)
        raise HostError("the disk is full; make room")

    stopped, failed = record_of(is_cancelled), record_of(fails)
    assert (stopped.complete, [one.code for one in stopped.findings]) == (False, ["stopped"])
    assert (failed.complete, [one.code for one in failed.findings]) == (False, ["ended_early"])
    assert stopped.rounds == failed.rounds == ROUNDS
    assert "not complete" in text_of(stopped)


def test_a_server_that_cannot_be_had_is_left_out_once_and_the_rest_goes_on() -> None:
    async def lacks(context: Context) -> None:
        for number in range(2):
            for server in ("apache", "nginx"):
                if context.wanted(server):
                    with context.step(server, f"{server}, kept alive"):
                        if server == "apache":
                            raise HostError("no Apache here; apt-get install apache2")
                        context.add(server, number, per_s=1.0)

    record = record_of(lacks)
    assert [(one.evidence, one.remedy) for one in record.findings] == [
        ("apache, kept alive is left out: no Apache here", "apt-get install apache2")
    ]
    assert [one["step"] for one in record.rounds] == ["nginx", "nginx"]


def test_only_some_take_part() -> None:
    context = Context({"only": ["nginx"]})
    assert context.wanted("nginx")
    assert not context.wanted("apache")


def test_a_plan_that_cannot_be_is_no_server_that_cannot_be_had() -> None:
    async def asks_too_much(context: Context) -> None:
        with context.step("nginx", "nginx"):
            raise PlanError("duration: 'abc' is not a duration")

    with pytest.raises(PlanError, match="is not a duration"):
        record_of(asks_too_much)


def test_a_server_that_dies_ends_its_own_part_alone() -> None:
    async def loses_one(context: Context) -> None:
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
            with context.step("apache", "Apache"):
                ServerCpu(ended.pid).read()
        await measures(context)

    record = record_of(loses_one)
    assert (record.complete, record.rounds) == (True, ROUNDS)
    assert "Apache is left out: the server's processes ended" in record.findings[0].evidence


def test_nothing_measured_is_said() -> None:
    async def measures_nothing(context: Context) -> None:
        pass

    record = record_of(measures_nothing, lambda plan, rounds: Conclusions([FigureTable("Of nothing", COLUMNS, [])]))
    assert [one.code for one in record.findings] == ["untested"]
    for said in (text_of(record), page(record)):
        assert "Source: a source" in said
        assert "edians of" not in said
        assert "Of nothing" not in said


def test_what_cannot_be_concluded_from_is_kept() -> None:
    def trips(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
        raise ZeroDivisionError("division by zero")

    record = record_of(concluding=trips)
    assert (record.complete, record.rounds, [one.code for one in record.findings]) == (False, ROUNDS, ["not_concluded"])
    assert "ZeroDivisionError: division by zero" in text_of(record)
    assert page(record)


def a_bench(
    *, requests: int | None = None, ended: Ended = "asked", cpu_s: float = 0.1, asked: Asked | None = None, **tick: Any
) -> Benched:
    """A second in which 100 requests were answered, where nothing else is said."""
    total = Tick(**{"answered": 100, "by_status": {200: 100}, **tick}, asked=asked or Asked())
    plan = BenchPlan(urls=("http://127.0.0.1:80/",), requests=requests)
    complete = ended in ("asked", "time")
    return benched(
        BenchRun(plan, "2026-01-01T00:00:00+00:00", 1.0, 1, (cpu_s, 0.0), ended, complete, total, [(1.0, total)], [], [], {})
    )


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({}, None),
        ({"requests": 100}, None),
        # asyncli was the limit: that is told apart.
        ({"cpu_s": 1.0}, None),
        ({"asked": Asked(failed={"heartbeat_timeout": 3})}, "3 requests got no complete answer (timed out: 3)"),
        ({"by_status": {200: 98, 502: 2}}, "2 of 100 answers were errors (HTTP 502: 2)"),
        ({"requests": 110}, "100 of 110 requests were answered"),
        (
            {"requests": 110, "ended": "gave up", "asked": Asked(left=10)},
            "gave up after 10 s without any connection, with 10 of 110 requests not sent",
        ),
        ({"ended": "stopped"}, "it was stopped before its end"),
        ({"answered": 0, "by_status": {}}, "nothing was answered"),
    ],
    ids=str,
)
def test_of_a_bench_that_failed_nothing_is_concluded(made: dict[str, Any], why: str | None) -> None:
    found = figures(a_bench(**made))
    assert (found["usable"], found["unusable"]) == (why is None, why)

    async def measures_it(context: Context) -> None:
        await measures(context)
        context.add("on", 3, **found)

    seen: list[Round] = []

    def looks(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
        seen.extend(rounds)
        return conclude(plan, rounds)

    record = record_of(measures_it, looks)
    assert len(record.rounds) == len(ROUNDS) + 1
    assert len(seen) == len(ROUNDS) + (why is None)
    said = [one.evidence for one in record.findings if one.code == "round_failed"]
    assert said == ([] if why is None else [f"on, round 4 failed and is not counted: {why}"])


def test_cpu_of_ended_children_is_counted() -> None:
    burn = "import subprocess,sys,time\nsubprocess.run([sys.executable,'-c','import time\\nt=time.process_time()\\nwhile time.process_time()-t<0.3: pass'])\nprint('done',flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        cpu = ServerCpu(process.pid)
        begun = cpu.read()
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        spent = cpu.read().less(begun)
        assert process.stdin is not None
        process.stdin.close()
    assert 0.25 < spent.total_s < 3


@pytest.mark.parametrize("name", NAMES)
def test_each_concludes_from_nothing_at_all(name: str) -> None:
    known = load(name)
    assert known.name == name
    assert set(known.quick) <= set(known.defaults)
    found = known.conclude(known.defaults, [])
    assert not any(line.ys for chart in found.charts for line in chart.lines)
    # Its own plans are within its own bounds.
    assert plan_of(known, False, known.defaults) == known.defaults
    assert plan_of(known, True, known.quick) == known.defaults | known.quick


def test_a_plan_by_its_defaults_the_taste_and_the_user() -> None:
    known = load("upstream-keepalive")
    assert plan_of(known, False, {})["rounds"] == 5
    assert plan_of(known, True, {})["rounds"] == 1
    assert plan_of(known, True, {"rounds": 3})["rounds"] == 3
    with pytest.raises(PlanError, match="unknown key 'colour'; the keys are"):
        plan_of(known, False, {"colour": 1})
    for name in NAMES:
        for key, default in load(name).defaults.items():
            for wrong in (None, True, -1, "x", [-1], [True], ["x"], {}, 1.5 if isinstance(default, int) else float("nan"), 10**9):
                with pytest.raises(PlanError, match=f"^experiment {name}: {key}: "):
                    plan_of(load(name), False, {key: wrong})


def test_the_command_runs_the_same_plan_again() -> None:
    made = experiment(measures)

    def command(quick: bool = False, **changes: Any) -> str:
        return command_of(made, plan_of(made, quick, changes), quick)

    assert command() == "asyncli experiment made-up"
    assert command(quick=True) == "asyncli experiment made-up --quick"
    assert command(rounds=2, quick=True) == "asyncli experiment made-up --quick --rounds 2"
    assert command(rounds=7, duration="1 min", only=["nginx", "apache"]) == (
        "asyncli experiment made-up --rounds 7 --duration '1 min' --only nginx --only apache"
    )
    # There is no flag for it.
    assert command(share=0.25, rounds=7) == "asyncli experiment made-up --plan record.json"


def document(name: str = "upstream-keepalive") -> dict[str, Any]:
    """A record as JSON has it."""
    record: dict[str, Any] = msgspec.to_builtins(record_of())
    return record | {"experiment": name, "plan": load(name).defaults}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "unknown experiment 'nothing'; write one of "),
        (["upstream-keepalive", "--rounds", "0"], "--rounds: '0' is below 1"),
        (["upstream-keepalive", "--out", "no/such/folder"], "--out: no/such/folder lies in a folder that does not exist"),
        (["upstream-keepalive", "--plan", "missing.json"], "--plan: missing.json cannot be read"),
        (["upstream-keepalive", "--plan", "other.json"], "--plan: other.json is a record of holding, not of upstream-keepalive"),
        (["upstream-keepalive", "--plan", "odd.json"], "--plan: odd.json is no record of an experiment"),
        (["upstream-keepalive", "--duration", "abc"], "--duration: 'abc' is not a duration"),
        (["upstream-keepalive", "--only", "nginx-proxy", "--only", "bogus"], "--only: unknown server 'bogus'; write one of nginx-proxy"),
        (["upstream-keepalive", "--out", "/proc/xyz"], "--out: /proc/xyz cannot be made"),
        (["upstream-keepalive", "--out", "full"], "--out: full has a record already; name another folder"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "other.json").write_text(json.dumps(document("holding")))
    (tmp_path / "odd.json").write_text("[]")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "record.json").write_text("{}")
    done = program(tmp_path, "experiment", *arguments)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


UPSTREAM = load("upstream-keepalive").defaults


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 99}, "is a record of schema 99, and this asyncli knows 1"),
        ({"plan": None}, "is no record of an experiment"),
        ({"plan": UPSTREAM | {"rounds": -1}}, "rounds: -1 cannot be; write a whole number from 1 to 1,000,000"),
        ({"plan": UPSTREAM | {"only": [1, 2]}}, "only: unknown server 1"),
        ({"plan": {key: value for key, value in UPSTREAM.items() if key != "duration"}}, "its plan says nothing of duration"),
        ({"plan": UPSTREAM | {"colour": 1}}, "unknown key 'colour'"),
    ],
    ids=str,
)
def test_a_record_whose_plan_cannot_be_is_one_line(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(document() | changes))
    status, said = asyncli(tmp_path, "upstream-keepalive", "--plan", str(tmp_path / "r.json")), capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1)
    assert words in said.err
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]


def asyncli(folder: Path, *arguments: str) -> int:
    """``asyncli experiment`` in this process, its folder ``folder``/out."""
    return cli.run(["experiment", *arguments, "--out", str(folder / "out")])


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Its experiment is what the command finds under any name."""

    def instead(doing: Any, concluding: Any = conclude) -> None:
        monkeypatch.setattr("asyncli.experiments.load", lambda _: experiment(doing, concluding))

    return instead


def test_a_record_that_cannot_be_written_loses_nothing(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"

    async def loses_its_folder(context: Context) -> None:
        await measures(context)
        # Root could write past any permission.
        folder.rmdir()
        folder.write_text("in the way")

    made_up(loses_its_folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, said = asyncli(tmp_path, "made-up", "--json", str(tmp_path / "j")), capsys.readouterr()
    (instead,) = tmp_path.glob("asyncli-experiment-*")
    assert (status, said.err) == (2, f"asyncli: --out: {folder} cannot be written (File exists); the record is in {instead} instead\n")
    assert "It doubles." in said.out
    assert (instead / "record.json").read_text() == (tmp_path / "j").read_text()
    assert "<h1>" in (instead / "report.html").read_text()

    folder.unlink()
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    status, said = asyncli(tmp_path, "made-up", "--quiet"), capsys.readouterr()
    assert (status, said.err.count("\n")) == (2, 1)
    assert "nor can a temporary folder" in said.err
    assert "It doubles." in said.out


def test_a_second_interrupt_comes_too_late_to_lose_it(tmp_path: Path, made_up: Any) -> None:
    async def is_stopped(context: Context) -> None:
        await measures(context)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    def interrupted(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
        os.kill(os.getpid(), signal.SIGINT)
        return conclude(plan, rounds)

    made_up(is_stopped, interrupted)
    assert asyncli(tmp_path, "made-up", "--quiet") == 130
    assert json.loads((tmp_path / "out" / "record.json").read_text())["rounds"] == ROUNDS


def test_an_interrupt_while_it_is_written_waits(tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(measures)
    writes = Path.write_text

    def is_interrupted(path: Path, text: str, **how: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return writes(path, text, **how)

    monkeypatch.setattr(Path, "write_text", is_interrupted)
    assert asyncli(tmp_path, "made-up", "--quiet") == 0
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"record.json", "report.html"}


def test_a_full_disk_leaves_no_half_a_record(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(measures)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    whole = Path.write_text

    def fills(path: Path, text: str, **how: Any) -> int:
        if path.parent == tmp_path / "out":
            whole(path, text[:10], **how)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(path, text, **how)

    monkeypatch.setattr(Path, "write_text", fills)
    assert asyncli(tmp_path, "made-up") == 2
    assert "cannot be written (No space left on device); the record is in" in capsys.readouterr().err
    # The next may go there.
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()


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
        assert (doing is not nothing) or "no [nginx] here[/]; :smile: install it" in said.out
        assert (tmp_path / str(at) / "out").exists() == (status != 2)


def test_a_taste_that_runs_again_is_a_taste(tmp_path: Path, made_up: Any, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(measures)
    (tmp_path / "again").mkdir()
    assert asyncli(tmp_path, "made-up", "--quick", "--only", "nginx") == 0
    first = tmp_path / "out" / "record.json"
    assert asyncli(tmp_path / "again", "made-up", "--plan", str(first)) == 0
    one, two = (json.loads(path.read_text()) for path in (first, tmp_path / "again" / "out" / "record.json"))
    assert (two["quick"], two["plan"], [each["code"] for each in two["findings"]]) == (True, one["plan"], ["quick"])
    assert one["command"] == two["command"] == "asyncli experiment made-up --quick --only nginx"
    (tmp_path / "whole.json").write_text(json.dumps(one | {"quick": False}))
    assert asyncli(tmp_path, "made-up", "--quick", "--plan", str(tmp_path / "whole.json"), "--json", "-") == 2
    assert "is the plan of a whole run; leave --quick or --plan out" in capsys.readouterr().err


@pytest.mark.nginx
def test_from_the_command_to_the_page_and_again_from_its_record(tmp_path: Path) -> None:
    done = program(tmp_path, "experiment", "upstream-keepalive", "--quick", "--duration", "0.5s", "--out", "first")
    assert (done.status, done.err) == (0, "")
    assert "Keep-alive from a proxy to its backends" in done.out
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
    assert few["proxy_us"] > 0 < few["backend_us"]
    command = "asyncli experiment upstream-keepalive --quick --duration 0.5s"
    assert record["command"] == command
    assert command in re.sub(r"</?span[^>]*>", "", (tmp_path / "first" / "report.html").read_text())
    again = program(tmp_path, "experiment", "upstream-keepalive", "--plan", "first/record.json", "--out", "second", "--quiet")
    assert (again.status, again.err, again.out) == (0, "", "second/report.html, second/record.json\n")
    second = json.loads((tmp_path / "second" / "record.json").read_text())
    assert [second[key] for key in ("plan", "quick", "command")] == [record["plan"], True, command]


def test_a_record_says_what_was_asked_and_not_what_is_usual() -> None:
    clients = load("two-clients")
    assert clients.said(plan_of(clients, False, {}))[0] == "One nginx, two clients of 50,000"
    assert clients.said(plan_of(clients, True, {}))[0] == "One nginx, two clients of 1,000"
    for name in NAMES:
        experiment = load(name)
        assert "{" not in "".join(experiment.said(plan_of(experiment, True, {})))
