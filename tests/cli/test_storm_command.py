"""``asyncli storm``: what it prints of a stored run, and wrong input."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import msgspec
import pytest
from programs import complaint, here
from recording import write_run
from synthetic_run import a_run, bare_run
from test_storm_pace import stormed

from asyncli.analysis.storm_forecast import Jitter
from asyncli.analysis.storm_pace import Pace, UnexplainedStorm
from asyncli.core.storm import Laws
from asyncli.model.plan import Plan
from asyncli.model.records import EventCounts, Phase, RunEvent, Tick
from asyncli.model.units import format_duration
from asyncli.report.storm_report import Answer, doubts

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ramp of 2,000 connections at 100 a second, which nginx kept up with."""
    (tmp_path / "run.db").write_bytes(lzma.decompress((GOLDEN / "clean.db.xz").read_bytes()))
    return tmp_path


def test_terminal_page_and_json_have_the_same_answer(folder: Path) -> None:
    asked = ["storm", "run.db", "--reconnect", "now", "--reconnect", "jitter:1m", "--backlog", "511"]
    printed, page = here(folder, *asked), here(folder, *asked, "--html", "storm.html")
    assert (printed.status, page.status, page.out) == (0, 0, "storm.html\n")
    document = json.loads(here(folder, *asked, "--json").out)
    storm = document["storm"]
    assert (storm["connections"], storm["pace"]["backlog"], storm["pace"]["is_least"], storm["pace"]["by_event"]) == (2_000, 511, True, None)
    assert storm["pace"]["per_s"] == pytest.approx(100, rel=0.1)
    at_once, spread = storm["forecasts"]
    assert (at_once["policy"], at_once["is_at_most"], spread["policy"], spread["bound"]) == ("now", True, "jitter:60s", "policy")
    # 2,000 at 100 a second or more.
    assert at_once["earliest"]["p99_s"] < 1.0
    assert 19.0 < at_once["latest"]["p99_s"] < 60.0
    assert spread["back"]["p99_s"] == pytest.approx(59.4, rel=0.02)
    assert storm["least_jitter"]["is_at_most"]
    assert document["doubts"]
    for text in (printed.out, (folder / "storm.html").read_text(encoding="utf-8")):
        assert "jitter:60s" in text
        assert "Least jitter" in text
    drawn = (folder / "storm.html").read_text(encoding="utf-8")
    assert ("<svg" in drawn, "▁" in drawn, "▁" in printed.out) == (True, False, True)


def test_another_count(folder: Path) -> None:
    document = json.loads(here(folder, "storm", "run.db", "--reconnect", "jitter:10s", "-c", "30k", "--backlog", "511", "--json").out)
    [forecast] = document["storm"]["forecasts"]
    assert (document["storm"]["connections"], forecast["connections"], forecast["curve"][-1]) == (30_000, 30_000, 30_000)
    assert "2,000" in document["doubts"][-1]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--backlog", "many"),
        ("--backlog", "511", "--reconnect", "soon"),
        ("--backlog", "511", "--reconnect", "jitter:0s"),
        ("--backlog", "511", "-c", "0"),
        ("--backlog", "511", "--html", "run.db"),
    ],
)
def test_wrong_input_is_one_line(folder: Path, wrong: tuple[str, ...]) -> None:
    complaint(here(folder, "storm", "run.db", *wrong))


def test_a_storm_that_does_not_end_is_told_so(folder: Path) -> None:
    """Half a million at 100 a second, each of which gives up after ten seconds and comes again at once."""
    asked = ["storm", "run.db", "--reconnect", "now", "-c", "500k", "--backlog", "511"]
    printed = here(folder, *asked)
    assert (printed.status, "more than" in printed.out) == (0, True)
    [forecast] = json.loads(here(folder, *asked, "--json").out)["storm"]["forecasts"]
    assert forecast["until_s"] > 60
    assert (forecast["back"]["all_s"], forecast["latest"]["p99_s"]) == (None, None)


def test_no_remedy_is_what_the_run_did(tmp_path: Path) -> None:
    """After a ramp alone: a storm of as many. After a storm that was kept up with: a larger one."""
    counts = EventCounts(chosen=400, ended=400, attempts=400)
    for number in range(400):
        counts.back_ms.add(number / 10)
        counts.connect_us.add(60)
        counts.answer_us.add(400)
    plan = Plan(urls=("mqtt://127.0.0.1:1883/",), connections=400, events=("5s storm",), reconnect="now")
    ticks = [(float(second), Tick(second=second, workers=1, held=400)) for second in range(1, 12)]
    ticks[7][1].events = {1: counts}
    phases = [Phase("ramp", 0.0, 1.0), Phase("hold", 1.0, 12.0)]
    stormed = bare_run(ticks, phases, plan=plan, environment={"workers": 1})
    event = RunEvent("storm", 6.0, 8.0, "storm", {"number": 1})
    write_run(msgspec.structs.replace(stormed, events=[event]), tmp_path / "stormed.db")
    write_run(a_run(500), tmp_path / "ramped.db")
    [told, *_] = json.loads(here(tmp_path, "storm", "stormed.db", "--backlog", "128", "--json").out)["doubts"]
    assert "-c 1600 " in told
    [told, *_] = json.loads(here(tmp_path, "storm", "ramped.db", "--backlog", "128", "--json").out)["doubts"]
    assert "-c 500 " in told


def test_a_storm_on_which_the_answer_rests_is_not_missing_in_it() -> None:
    pace = Pace((), 4_000.0, 1, "now", True, None, False, False, 0.0, 0.1, 128, 400, unexplained=(UnexplainedStorm(1, 6.0, 0.1),))
    answer = Answer(400, pace, (), Jitter(0.1, is_at_most=True))
    run = a_run(500)
    of_it = doubts(answer, run)
    of_another = doubts(msgspec.structs.replace(answer, pace=msgspec.structs.replace(pace, by_event=2)), run)
    assert [told for told in of_it if "Event 1 " in told] != [told for told in of_another if "Event 1 " in told]
    assert [" ".join(told).count("answer") for told in (of_it, of_another)] == [0, 1]


def test_an_unknown_backlog_is_asked_for(tmp_path: Path) -> None:
    write_run(a_run(500), tmp_path / "run.db")
    assert "--backlog" in complaint(here(tmp_path, "storm", "run.db"))
    assert here(tmp_path, "storm", "run.db", "--backlog", "128").status == 0


def test_a_run_that_still_ramps_is_told_as_that(tmp_path: Path) -> None:
    """Not as one that held nothing to its end."""
    ramps = bare_run([(1.0, Tick(second=1))], [Phase("ramp", 0.0, None)], plan=Plan(urls=("http://127.0.0.1:1/",), connections=10))
    write_run(msgspec.structs.replace(ramps, complete=False), tmp_path / "ramps.db")
    assert "wait" in complaint(here(tmp_path, "storm", "ramps.db", "--backlog", "1"))


def test_files_that_show_no_pace(folder: Path) -> None:
    (folder / "text.db").write_text("no run")
    write_run(bare_run(), folder / "nothing.db")
    for name in ("missing.db", "text.db", "nothing.db"):
        assert name in complaint(here(folder, "storm", name, "--backlog", "1"))


@pytest.mark.parametrize(("reconnect", "connections", "is_told"), [("now", "600", True), ("jitter:6s", "600", False), ("now", "700", False)])
def test_a_storm_that_the_run_had_is_told_beside_its_forecast(tmp_path: Path, reconnect: str, connections: str, is_told: bool) -> None:
    run = stormed(Laws(200, 200, 4_096), "now")
    [counts] = [tick.events[1] for _, tick in run.ticks if 1 in tick.events]
    write_run(run, tmp_path / "run.db")
    printed = here(tmp_path, "storm", "run.db", "--reconnect", reconnect, "-c", connections)
    all_s = format_duration(counts.back_ms.greatest / 1e3)
    told = [line for line in printed.out.splitlines() if "Event 1" in line]
    assert (printed.status, len(told)) == (0, int(is_told))
    assert f"{all_s} (all)" in printed.out or not is_told
