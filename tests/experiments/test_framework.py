"""What every experiment shares: its plan, steps that fail alone, a record whatever ends it, text and page."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import run as program
from rich.console import Console

from asyncli.errors import HostError, PlanError
from asyncli.experiments import NAMES, Experiment, load, plan_of
from asyncli.experiments.context import Context, spending
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    Line,
    Record,
    Round,
    Row,
    Table,
    of_step,
    ratio,
    row_of,
    span,
)
from asyncli.experiments.run import run
from asyncli.report.experiment import print_experiment
from asyncli.report.experiment_page import page

ROUNDS: list[Round] = [
    {"step": "off", "round": 0, "per_s": 100.0}, {"step": "on", "round": 0, "per_s": 210.0},
    {"step": "off", "round": 1, "per_s": 200.0}, {"step": "on", "round": 1, "per_s": 400.0}, {"step": "on", "round": 2, "per_s": None},
]  # fmt: skip
COLUMNS = [Column("per_s", "requests/s", "/s"), Column("never", "never measured", "ms")]


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    rows = [row_of(rounds, "off", COLUMNS, {"per_s": 21_203.0}), row_of(rounds, "on", COLUMNS, label="switched on")]
    charts = [
        Chart("bars", "Throughput", "", "requests a second", [Line("here", [0.0, 1.0], [150.0, 305.0])], ["off", "on"]),
        Chart("lines", "Memory", "s", "MB", [Line("off", [0.0, 1.0], [1.0, 2.0]), Line("on", [0.0, 1.0], [1.0, 4.0])]),
        Chart("lines", "Nothing", "s", "MB", []),
    ]
    return Conclusions([Table("The table", COLUMNS, rows, "A <caption>.")], charts, [Claim("It doubles.", "holds", "2.00 to 2.10 times.")])


def experiment(doing: Any) -> Experiment:
    return Experiment("made-up", "A made-up one", "Why?", "a source", {"rounds": 2, "only": []}, {"rounds": 1}, doing, conclude)


async def measures(context: Context) -> None:
    context.rounds += ROUNDS
    context.environment = {"kernel": "6.1", "server": {"nginx/1.0": {}}}


def record_of(doing: Any = measures) -> Record:
    return asyncio.run(run(experiment(doing), {"rounds": 2, "only": []}, say=lambda _: None))


def text_of(record: Record) -> str:
    out = io.StringIO()
    print_experiment(record, Console(width=140, file=out))
    return out.getvalue()


def test_figures_of_rounds() -> None:
    assert of_step(ROUNDS, "on", "per_s") == [210.0, 400.0]
    assert ratio(ROUNDS, "on", "off", "per_s") == [2.1, 2.0]
    assert span([2.1, 2.0]) == "2.00 to 2.10"
    assert span([2.0, 2.001]) == "2.00"
    assert Row("x", {"a": [1.0, 9.0, 2.0]}).median("a") == 2.0
    assert Row("x", {}).median("a") is None


def test_text_and_page_say_the_same() -> None:
    record = record_of()
    assert record.complete
    text, html = text_of(record), page(record).replace("\u00a0", " ")
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
    assert "stopped before its end" in text_of(stopped)


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


def test_only_some_take_part_and_a_name_that_none_has_is_said() -> None:
    context = Context({"only": ["nginx"]})
    assert context.wanted("nginx")
    assert not context.wanted("apache")

    async def asks(context: Context) -> None:
        assert not context.wanted("nginx")

    with pytest.raises(PlanError, match="none of apache, ngimx takes part; write one of nginx"):
        asyncio.run(run(experiment(asks), {"only": ["apache", "ngimx"]}, say=lambda _: None))


def test_cpu_of_ended_children_is_counted() -> None:
    import subprocess
    import sys

    burn = "import subprocess,sys,time\nsubprocess.run([sys.executable,'-c','import time\\nt=time.process_time()\\nwhile time.process_time()-t<0.3: pass'])\nprint('done',flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with spending([process.pid]) as spent:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
        assert process.stdin is not None
        process.stdin.close()
    assert 0.25 < spent.spent_s < 3


@pytest.mark.parametrize("name", NAMES)
def test_each_concludes_from_nothing_at_all(name: str) -> None:
    known = load(name)
    assert known.name == name
    assert set(known.quick) <= set(known.defaults)
    found = known.conclude(known.defaults, [])
    for chart in found.charts:
        assert not any(line.ys for line in chart.lines) or chart.kind == "bars"


def test_a_plan_by_its_defaults_the_taste_and_the_user() -> None:
    known = load("upstream-keepalive")
    assert plan_of(known, False, {})["rounds"] == 5
    assert plan_of(known, True, {})["rounds"] == 1
    assert plan_of(known, True, {"rounds": 3})["rounds"] == 3
    with pytest.raises(PlanError, match="unknown key 'colour'; the keys are"):
        plan_of(known, False, {"colour": 1})
    with pytest.raises(PlanError, match="is not of the kind of"):
        plan_of(known, False, {"only": "nginx"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "unknown experiment 'nothing'; write one of "),
        (["upstream-keepalive", "--rounds", "0"], "--rounds: '0' is below 1"),
        (["upstream-keepalive", "--out", "no/such/folder"], "--out: no/such/folder lies in a folder that does not exist"),
        (["upstream-keepalive", "--plan", "missing.json"], "--plan: missing.json cannot be read"),
        (["upstream-keepalive", "--plan", "other.json"], "--plan: other.json is a record of holding, not of upstream-keepalive"),
        (["upstream-keepalive", "--plan", "odd.json"], "--plan: odd.json is no record of an experiment"),
        (["upstream-keepalive", "--out", "full"], "--out: full has a record already; name another folder"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"experiment": "holding", "plan": {}}))
    (tmp_path / "odd.json").write_text("[]")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "record.json").write_text("{}")
    done = program(tmp_path, "experiment", *arguments)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


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
    assert 80 < roomy["each"] <= 100
    assert by_step["on, 1,000, room for 128"]["each"] > 100
    assert few["proxy_us"] > 0 < few["backend_us"]
    assert "<h1>" in (tmp_path / "first" / "report.html").read_text()
    again = program(tmp_path, "experiment", "upstream-keepalive", "--plan", "first/record.json", "--out", "second", "--quiet")
    assert (again.status, again.err, again.out) == (0, "", "second/report.html, second/record.json\n")
    assert json.loads((tmp_path / "second" / "record.json").read_text())["plan"] == record["plan"]
