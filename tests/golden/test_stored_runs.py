"""What asyncli says of runs that were recorded once and are never changed: their terminal reports, JSON and pages. README.md."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from html import unescape
from io import StringIO
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from rich.console import Console

from asyncli.analysis.bench_result import evaluate_bench
from asyncli.analysis.capacity import bracket, verdict
from asyncli.app.results import read_results
from asyncli.cli.main import run
from asyncli.cli.report import _print as print_results
from asyncli.model.benchplan import BenchRun
from asyncli.report import bench_report, capacity_report, capacity_step, html
from asyncli.report.analyses import analyse
from asyncli.report.figures.drawing import NothingToDraw
from asyncli.report.jsonout import to_json
from asyncli.report.listing import READ_WHOLE, listed
from asyncli.report.run_report import render
from asyncli.report.summary import summarise
from asyncli.report.terminal import print_document
from asyncli.store.reader import read_run
from asyncli.store.run_index import read_index_entry

HERE = Path(__file__).parent
STEPS = sorted(path.name.removesuffix(".xz") for path in HERE.glob("capacity-*.db.xz"))
RUNS = sorted(name for path in HERE.glob("*.db.xz") if (name := path.name.removesuffix(".xz")) not in STEPS)
#: The same server with larger pools; a run of another shape.
COMPARED = {"compare-pools": ("plateaus.db", "pools.db"), "compare-shapes": ("clean.db", "plateaus.db")}
#: Those that passed, and those whose long reports are kept.
SHORT = ("plateaus.db", "clean.db")
LONG = ("clean.db", "killed.db", "resumed.db")
# The sixth digit is beyond what any number here is known to; the sixteenth is the CPU's and the libraries'.
DIGITS = 6

Golden = Callable[[dict[str, str]], None]


@pytest.fixture
def asyncli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints of stored runs, 80 columns wide, in a folder that has their files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def printed(*words: str) -> str:
        for name in words:
            if name.endswith(".db"):
                Path(name).write_bytes(stored(name))
        assert run(words) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return printed


def stored(name: str) -> bytes:
    return lzma.decompress((HERE / f"{name}.xz").read_bytes())


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_says_what_it_said(name: str, asyncli: Callable[..., str], capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """As ``asyncli report`` prints it. Drawing figures takes most of a page's time: of one run their words are kept."""
    Path(name).write_bytes(stored(name))
    results = read_results(name)
    print_results(results, verbose=False)
    stem, text = Path(name).stem, capsys.readouterr().out
    assert "Rule:" not in text
    said = {f"{stem}.txt": text}
    if name in SHORT:
        assert len(text.splitlines()) <= 45
    if name in LONG:
        print_results(results, verbose=True)
        said[f"{stem}.verbose.txt"] = capsys.readouterr().out
    drawn = results.pictures
    if name != "killed.db":
        drawn = [msgspec.structs.replace(one, draw=not_drawn) for one in drawn]
    page = render(results.records, results.summary, results.analyses, drawn)
    golden({**said, f"{stem}.json": rounded(to_json(results.summary)), f"{stem}.page.txt": visible(page)})


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_says_what_it_said(name: str, asyncli: Callable[..., str], golden: Golden) -> None:
    text = asyncli("compare", *COMPARED[name])
    asyncli("compare", *COMPARED[name], "--json", "json", "--html", "page")
    golden(files(name, text))


def test_a_list_of_the_stored_runs_says_what_it_said(asyncli: Callable[..., str], golden: Golden) -> None:
    for name in RUNS:
        Path(name).write_bytes(stored(name))
    listed = json.loads(asyncli("runs", "--json", "-"))
    for one in listed["runs"]:
        # Of all that is said of a stored run this alone depends on the day.
        del one["age_s"]
    golden({"runs.json": rounded(json.dumps(listed))})


@pytest.mark.parametrize("name", RUNS)
def test_a_list_has_the_costs_of_the_report(name: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_bytes(stored(name))
    entry = listed(read_index_entry(path, READ_WHOLE), name, 1, changed_s=1e6, age_s=1.0)
    cost = analyse(read_run(path)).costs
    assert entry.server_cost == cost.server_user
    assert entry.cost in (cost.server_user, cost.host_total)


def test_what_a_timer_ended_is_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(stored("requests.db"))
    assert not analyse(read_run(tmp_path / "run.db")).prediction.ceilings


def test_a_stored_bench_says_what_it_said(golden: Golden) -> None:
    found = evaluate_bench(msgspec.json.decode(stored("bench.json"), type=BenchRun))
    text = terminal(lambda console: print_document(bench_report.bench_document(found), console))
    golden({"bench.txt": text, "bench.json": rounded(bench_report.to_json(found))})


def test_a_stored_search_says_what_it_said(golden: Golden, tmp_path: Path) -> None:
    """Its steps from their run files, and the answer from the steps."""
    found = msgspec.json.decode(stored("capacity.json"), type=capacity_report.Capacity)
    assert len(found.steps) == len(STEPS)
    found.steps = []
    for name in STEPS:
        (tmp_path / name).write_bytes(stored(name))
        recorded = read_run(tmp_path / name)
        analyses = analyse(recorded)
        found.steps.append(capacity_step.step_of(recorded, analyses, summarise(recorded, analyses), name.removeprefix("capacity-")))
    tried = [one.tried for one in found.steps]
    found.bracket = bracket(tried)
    found.verdict, found.why = verdict(found.search, tried)
    text = terminal(lambda console: print_document(capacity_report.capacity_document(found), console))
    page = visible(html.page(capacity_report.capacity_document(found)))
    golden({"capacity.txt": text, "capacity.json": rounded(to_json(found)), "capacity.page.txt": page})


def not_drawn(_: object) -> NoReturn:
    raise NothingToDraw("left out here")


def terminal(show: Callable[[Console], None]) -> str:
    file = StringIO()
    show(Console(file=file, width=80, highlight=False, force_terminal=False))
    return file.getvalue()


def files(name: str, text: str) -> dict[str, str]:
    """What the command printed, and what it wrote into the files ``json`` and ``page`` here, as golden files."""
    document, page = (Path(one).read_text(encoding="utf-8") for one in ("json", "page"))
    return {f"{name}.txt": text, f"{name}.json": rounded(document), f"{name}.page.txt": visible(page)}


def rounded(document: str) -> str:
    """JSON with its numbers to :data:`DIGITS` digits."""

    def number(text: str) -> float:
        return float(f"{float(text):.{DIGITS}g}")

    return json.dumps(json.loads(document, parse_float=number), indent=1, ensure_ascii=False) + "\n"


def visible(text: str) -> str:
    """The words of a page, a line a block; of a figure what it is called to those who do not see it, and the words in it."""
    # The footer names the asyncli that made the page.
    text = re.sub(r"<(script|style|footer)\b.*?</\1>", "", " ".join(text.split()))
    text = re.sub(r'<[^>]* aria-label="([^"]*)"[^>]*>', r"\n[\1]\n", text)
    # Of elements of a line only those of a table and of a figure are set apart.
    text = re.sub(r"<(td|th|text)\b[^>]*>", " | ", text)
    text = re.sub(r"</?(a|b|i|span|strong|g|path|use|defs|clipPath|rect|pattern|circle|br|td|th|text)\b[^>]*>", "", text)
    lines = (" ".join(unescape(line).split()).strip("| ") for line in re.sub("<[^>]*>", "\n", text).split("\n"))
    return "\n".join(filter(None, lines)) + "\n"


def test_a_run_without_the_second_of_its_losses_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(stored("reload.db"))
    run = read_run(tmp_path / "run.db")
    assert summarise(run).verdict == "failed"
    run.ticks = [row for row in run.ticks if not row[1].lost]
    summary = summarise(run)
    (missing,) = (finding for finding in summary.findings if finding.code == "records_missing")
    assert (summary.verdict, missing.severity, missing.fields["count"] < 0) == ("invalid", "error", True)
