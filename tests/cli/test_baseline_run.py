"""Earlier runs that a soak is compared with: what is read of them, what is refused, and the verdict."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from recording import write_run
from synthetic_run import a_run, cut

import asyncli
from asyncli.analysis.measured import measure
from asyncli.analysis.worsening import BaselineRun
from asyncli.app.baseline_runs import BaselineRuns, read_baseline_runs
from asyncli.cli.check import command
from asyncli.findings.compare import SERVED_BY
from asyncli.findings.run import baseline_runs_left_out, decided_early
from asyncli.model import installed
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.run import Run
from asyncli.model.units import parse_duration
from asyncli.report import document as doc
from asyncli.report.cost_so_far import cost_so_far, decided
from asyncli.report.junit import to_junit
from asyncli.report.listing import listed
from asyncli.report.run_limits import limits_sections
from asyncli.report.run_report import report_markdown, run_document
from asyncli.report.summary import summarise

LIMIT = "cost.server_user worse by 3%"


def a_soak(seed: int = 1, **changes: object) -> Run:
    """100,000 connections that cost 1,020 B each."""
    return a_run(seed=seed, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the plan, one of another, one that was killed, and a file that is no run."""
    folder = tmp_path_factory.mktemp("baseline")
    for name, run in {
        "first": a_soak(1), "second": a_soak(2), "other": a_run(2000), "killed": cut(a_soak(3), 90.0),
    }.items():  # fmt: skip
        write_run(run, folder / f"{name}.db", run_id=name)
    (folder / "note.db").write_text("no run")
    return folder


def read(*places: Path, plan: Plan | None = None) -> BaselineRuns:
    of_soak = a_soak().plan if plan is None else plan
    names = tuple(str(place) for place in places)
    return read_baseline_runs(msgspec.structs.replace(of_soak, baseline_runs=names, fail_if=(LIMIT,)))


def test_a_folder_gives_its_runs_of_the_same_plan(folder: Path) -> None:
    known = read(folder)
    assert sorted(run.name for run in known.runs) == ["first.db", "second.db"]
    assert sorted(Path(reason.partition(":")[0]).name for reason in known.left_out) == ["killed.db", "note.db", "other.db"]
    assert known.runs[0].numbers["cost.server_user"].value == pytest.approx(1020, rel=0.02)


def test_a_run_that_is_named_twice_counts_once(folder: Path) -> None:
    assert len(read(folder / "first.db", folder, folder / "first.db").runs) == 2


def test_a_longer_hold_and_another_address_are_no_other_plan(folder: Path) -> None:
    plan = msgspec.structs.replace(a_soak().plan, hold_s=600.0, urls=("http://127.0.0.1:9999/",), seed=7)
    assert len(read(folder / "first.db", plan=plan).runs) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.db", "--baseline-run: .*missing.db.*; soak .*without --baseline-run"),
        ("note.db", "--baseline-run: .*note.db"),
        ("killed.db", "killed.db: did not"),
        ("other.db", "--connections 2000.*--connections 100000"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(folder: Path, name: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(folder / name)


@pytest.mark.parametrize(
    ("changes", "before", "now"),
    [
        ({"batch": 30}, "--ramp 1000/s", "--ramp 3000/s"),
        ({"batch": 100, "interval_s": 0.1}, "(10/10ms)", "(100/100ms)"),
        ({"keepalive_s": 90.0}, "with --keepalive 1m", "with --keepalive 1m30s"),
        ({"plateaus": 3}, "without --plateaus", "with --plateaus 3"),
        ({"urls": ("https://127.0.0.1:9999/",)}, "http", "https"),
        ({"reopen": False}, "with --reopen", "with --no-reopen"),
        ({"headers": ("A: b", "C: d")}, "without --header", "with --header A: *** --header C: ***"),
    ],
)
def test_an_unlike_run_is_refused_by_its_options(folder: Path, changes: dict[str, object], before: str, now: str) -> None:
    with pytest.raises(PlanError) as refused:
        read(folder / "first.db", plan=msgspec.structs.replace(a_soak().plan, **changes))
    of_run, of_this = str(refused.value).split(", and this one ")
    assert of_run.endswith(before)
    assert now in of_this
    if now.startswith("with --keepalive"):
        assert parse_duration(now.rpartition(" ")[2]) == 90.0


def test_a_folder_without_runs_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(PlanError, match=r"no run files.* without --baseline-run"):
        read(tmp_path)
    write_run(a_run(2000), tmp_path / "other.db")
    with pytest.raises(PlanError, match=r"other.db"):
        read(tmp_path)


def compared(run: Run, before: Run, *limits: str) -> Run:
    """The run as a soak with ``--baseline-run`` records it."""
    run.plan = msgspec.structs.replace(run.plan, fail_if=limits or (LIMIT,), baseline_runs=("main.db",))
    earlier = BaselineRun.of("main.db", measure("main.db", "main.db", before))
    run.environment["baseline_runs"] = [msgspec.to_builtins(earlier)]
    return run


def padded(seed: int, share: float) -> Run:
    """A run whose connections cost this share more."""
    run = a_soak(seed)
    fixed = {}
    for sample in run.samples:
        for name in ("server.pss_bytes", "server.uss_bytes", "server.rss_bytes", "server.anon_shmem_bytes"):
            if name in sample.values:
                least = fixed.setdefault(name, sample.values[name])
                sample.values[name] = least + (sample.values[name] - least) * (1 + share)
    return run


@pytest.mark.parametrize(("share", "verdict", "code"), [(0.0, "passed", "limit_kept"), (0.05, "failed", "limit_crossed")])
def test_the_verdict_is_by_the_difference(share: float, verdict: str, code: str) -> None:
    summary = summarise(compared(padded(5, share), a_soak(1)))
    assert summary.run.verdict == verdict
    (finding,) = [finding for finding in summary.findings if finding.code.startswith("limit_")]
    assert finding.code == code
    assert finding.fields["value"] == pytest.approx(1020 * (1 + share), rel=0.02)


@pytest.mark.parametrize(("limit", "unit"), [("cost.server_user worse by 3%", "%"), ("cost.server_user worse by 30B", "B")])
def test_a_difference_has_the_unit_of_its_limit(limit: str, unit: str) -> None:
    summary = summarise(compared(padded(5, 0.05), a_soak(1), limit))
    (finding,) = [finding for finding in summary.findings if finding.code == "limit_crossed"]
    difference = re.search(r"\+([\d.]+) (\S+) against", finding.fields["amount"])
    assert difference is not None
    assert difference[2] == unit
    table = limits_sections(summary)[0].blocks[0]
    assert isinstance(table, doc.DataTable)
    assert table.rows[0].cells[4] == f"+{difference[1]} {unit}"


def test_a_run_without_its_baseline_is_undecided() -> None:
    run = compared(a_soak(), a_soak(2))
    del run.environment["baseline_runs"]
    summary = summarise(run)
    assert summary.run.verdict == "failed"
    (finding,) = [finding for finding in summary.findings if finding.code == "limit_unknown"]
    assert finding.fields["value"] is None


@pytest.mark.parametrize(
    ("before", "now", "warned"),
    [
        ("nginx/1.22.1", "python3.11", ["nginx", "python3.11"]),
        ("nginx/1.22.1", "nginx/1.24.0", None),
        ("", "nginx/1.24.0", None),
        ("nginx/1.22.1", "", None),
    ],
)
def test_another_program_that_served_is_told(before: str, now: str, warned: list[str] | None) -> None:
    earlier, run = a_soak(1), a_soak(2)
    earlier.environment["server"] = {"label": before}
    run.environment["server"] = {"label": now}
    found = [finding for finding in summarise(compared(run, earlier)).findings if finding.code == "compare_host"]
    assert [finding.fields["differs"] for finding in found] == ([] if warned is None else [{SERVED_BY: warned}])


@pytest.fixture
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What computes numbers is not installed, as with asyncli-light."""
    monkeypatch.setattr(installed, "is_installed", lambda module: module not in installed.NUMERIC)
    for module in ("numpy", "scipy"):
        monkeypatch.setitem(sys.modules, module, None)


FIXED = "cost.server_user > 1kB"


@pytest.mark.parametrize(
    ("limits", "verdict", "of_each"),
    [
        ((LIMIT,), "unjudged", ["limit_unknown"]),
        ((FIXED, "lost > 0"), "unjudged", ["limit_unknown", "limit_kept"]),
        (("drift.kernel > 1MB/h",), "unjudged", ["limit_unknown"]),
        ((LIMIT, "heartbeats.latency_ms.p99 > 1us"), "failed", ["limit_unknown", "limit_crossed"]),
        (("lost > 0",), "passed", ["limit_kept"]),
    ],
)
def test_a_verdict_does_not_depend_on_what_is_installed(limits: tuple[str, ...], verdict: str, of_each: list[str], request: pytest.FixtureRequest) -> None:
    run = compared(a_soak(5), a_soak(1), *limits)
    with_all = summarise(run)
    request.getfixturevalue("without_numpy")
    summary = summarise(run)
    assert summary.verdict == verdict
    assert verdict in ("unjudged", with_all.verdict)
    assert sorted(finding.code for finding in summary.findings if finding.code.startswith("limit_")) == sorted(of_each)
    judged_here = [limit.kept is not None for limit in summary.limits]
    assert judged_here == [limit.not_judged is None for limit in summary.limits] == [code != "limit_unknown" for code in of_each]
    suite = ET.fromstring(to_junit(summary))
    skipped = [case.get("name") for case in suite.findall("testcase") if case.find("skipped") is not None]
    assert [name for name in skipped if name != "verdict"] == [limit.limit for limit in summary.limits if limit.not_judged]
    assert suite.get("errors") == "0"
    table = limits_sections(summary)[0].blocks[0]
    assert isinstance(table, doc.DataTable)
    assert [row.cells[0] == "not judged" for row in table.rows] == [not judged for judged in judged_here]
    assert listed(run, "run.db", 0, changed_s=60.0, age_s=60.0).verdict == verdict
    ending = cost_so_far(run).ending
    assert ending is not None
    assert ending.verdict == verdict


def test_each_limit_says_how_many_baseline_runs_it_compares_with_and_which_not() -> None:
    first, second = a_soak(1), a_soak(2)
    for sample in second.samples:
        for name in [name for name in sample.values if name.startswith("server.")]:
            del sample.values[name]
    run = compared(a_soak(5), first, LIMIT, "heartbeats.latency_ms.p50 worse by 30%")
    baseline = [BaselineRun.of(f"{place}.db", measure("", "", before)) for place, before in enumerate((first, second))]
    run.environment["baseline_runs"] = msgspec.to_builtins(baseline)
    table, _, *left_out = limits_sections(summarise(run))[0].blocks
    assert isinstance(table, doc.DataTable)
    assert [row.cells[3] for row in table.rows] == ["1", "2"]
    (told,) = [doc.plain(block.words) for block in left_out if isinstance(block, doc.Paragraph)]
    assert told.startswith(LIMIT)
    assert "1.db" in told
    assert "0.db" not in told


@pytest.mark.parametrize(("is_ended", "share", "not_judged"), [(True, 0.05, "ended_early"), (False, 0.05, None), (True, 0.0, None)])
def test_a_limit_that_another_one_cut_short_is_not_judged(is_ended: bool, share: float, not_judged: str | None) -> None:
    run = compared(padded(5, share), a_soak(1), LIMIT, "heartbeats.latency_ms.p50 worse by 1%", "server.rss_bytes.hold_end < 1")
    if is_ended:
        run.findings.append(decided_early("hold", 60.0, 300.0, True, "a limit"))
    summary = summarise(run)
    assert [limit.not_judged for limit in summary.limits] == [None, not_judged, None]
    assert summary.limits[1].kept is None
    (finding,) = [finding for finding in summary.findings if finding.code == "limit_unknown"]
    assert (finding.fields["not_judged"], finding.severity) == (not_judged, "info" if not_judged else "error")
    assert (finding.evidence in summary.why) is (not_judged is None)
    (case,) = [case for case in ET.fromstring(to_junit(summary)).findall("testcase") if case.get("name") == summary.limits[1].limit]
    assert case[0].tag == ("skipped" if not_judged else "error")


@pytest.mark.parametrize("limit", [LIMIT, "cost.server_user > 1.5kB"])
@pytest.mark.parametrize("rises", [True, False])
def test_shared_memory_of_the_host_that_widens_a_cost_is_the_reason(limit: str, rises: bool) -> None:
    before, run = a_soak(1), a_soak(5)
    of_server = [sample.values for sample in run.samples if "server.pss_bytes" in sample.values]
    for values in of_server:
        risen = values["server.pss_bytes"] - of_server[0]["server.pss_bytes"] if rises else 0.0
        values |= {"host.shmem_bytes": 40e6 + risen, "server.shmem_bytes": 0.0}
    summary = summarise(compared(run, before, limit))
    found = [finding for finding in summary.findings if finding.code == "limit_unknown"]
    assert [finding.fields["by_shared_memory"] for finding in found] == ([True] if rises else [])
    (warning,) = [finding for finding in summary.findings if finding.code == "shared_memory_rises"] or [None]
    assert (warning is not None) is rises
    if warning is not None:
        assert warning.remedy
        assert warning.remedy in found[0].remedy


def test_a_decision_before_the_end() -> None:
    plan = compared(a_soak(), a_soak(2)).plan
    good = cost_so_far(cut(compared(a_soak(5, hold_s=90.0), a_soak(1)), 180.0))
    # Long enough to tell growth, but not all have had a heartbeat.
    soon = cost_so_far(cut(compared(a_soak(5, hold_s=90.0), a_soak(1)), 150.0))
    early = cost_so_far(cut(compared(a_soak(5), a_soak(1)), 112.0))
    worse = cost_so_far(cut(compared(padded(5, 0.05), a_soak(1)), 112.0))
    assert [limit.is_crossed for limit in good.limits] == [False]
    sure = decided(plan, good)
    assert sure is not None
    assert not sure.is_worse
    # What is worse is told at once; that nothing comes later needs the time in which growth can be told.
    assert decided(plan, early) is None
    assert [limit.is_crossed for limit in soon.limits] == [False]
    assert decided(plan, soon) is None
    found = decided(plan, worse)
    assert found is not None
    assert found.is_worse
    # Another limit needs the whole hold.
    both = msgspec.structs.replace(plan, fail_if=(LIMIT, "lost > 0"))
    assert decided(both, good) is None


def test_a_run_that_asyncli_ended_says_so() -> None:
    run = compared(padded(5, 0.05), a_soak(1))
    run.plan = msgspec.structs.replace(run.plan, hold_s=300.0)
    for _ in range(50):
        run.ticks[-1][1].heard_ms.add(100e3)
    early = decided_early("hold", 60.0, 300.0, True, "a limit")
    run.findings.append(early)
    summary = summarise(run)
    assert summary.run.decided
    # The interval of that moment is not the one of the report's table, and both say why.
    assert "wider intervals" in early.evidence
    below_table = limits_sections(summary)[0].blocks[1]
    assert isinstance(below_table, doc.Paragraph)
    assert "are wider" in doc.plain(below_table.words)
    assert summary.finding("stopped_early") is None
    # A longer hold in the plan would change nothing.
    unheard = summary.finding("not_heard")
    assert unheard is not None
    assert (unheard.severity, unheard.remedy) == ("info", "")
    assert early.evidence.partition(":")[0] in report_markdown(summary, "run.db")
    short = doc.View.SHORT
    shown = [item.small for section in run_document(summary, "").sections for block in section.blocks if isinstance(block, doc.ItemList) and block.view & short for item in block.items]
    assert early.code in shown


def test_baseline_runs_of_another_host_are_a_warning() -> None:
    before = a_soak(2)
    before.environment |= {"kernel": "6.1.0", "asyncli": "0.1.0", "host": "another-runner"}
    run = compared(a_soak(), before)
    run.environment |= {"kernel": "6.18.0", "asyncli": "0.2.0", "host": "runner"}
    differing = {finding.code: finding.fields["differs"] for finding in summarise(run).findings if finding.code.startswith("compare_")}
    assert differing == {"compare_host": {"kernel": ["6.1.0", "6.18.0"]}, "compare_asyncli": {"asyncli": ["0.1.0", "0.2.0"]}}


def test_a_file_of_a_folder_may_have_any_name(tmp_path: Path) -> None:
    write_run(a_soak(1), tmp_path / os.fsdecode(b"bad\xff.db"), run_id="odd")
    (tmp_path / os.fsdecode(b"worse\xff\n.db")).write_text("no run")
    known = read(tmp_path)
    assert [run.name for run in known.runs] == ["bad?.db"]
    assert len(known.left_out) == 1


def test_a_run_that_was_worse_is_no_baseline_of_a_folder(tmp_path: Path) -> None:
    worse = write_run(compared(padded(5, 0.05), a_soak(1)), tmp_path / "worse.db", run_id="worse")
    write_run(a_soak(2), tmp_path / "good.db", run_id="good")
    known = read(tmp_path)
    assert [run.name for run in known.runs] == ["good.db"]
    assert [str(worse) in reason for reason in known.left_out] == [True]
    # Who names it means it.
    assert [run.name for run in read(worse).runs] == ["worse.db"]


def with_errors(seed: int, *limits: str) -> Run:
    """A run in which a second's heartbeats were answered with errors."""
    run = a_soak(seed)
    place = len(run.ticks) - 40
    t_s, tick = run.ticks[place]
    run.ticks[place] = (t_s, msgspec.structs.replace(tick, by_status={503: tick.answered}))
    run.plan = msgspec.structs.replace(run.plan, fail_if=limits)
    return run


def test_a_run_that_did_not_pass_is_no_baseline_run(tmp_path: Path) -> None:
    failed = write_run(with_errors(3), tmp_path / "failed.db", run_id="failed")
    write_run(a_soak(2), tmp_path / "good.db", run_id="good")
    known = read(tmp_path)
    assert [run.name for run in known.runs] == ["good.db"]
    (reason,) = known.left_out
    assert str(failed) in reason
    assert "503" in reason
    assert "\n" not in reason
    with pytest.raises(PlanError, match=r"failed\.db: .* failed, .*503"):
        read(failed)


def test_what_is_left_out_is_listed(folder: Path) -> None:
    left_out = read(folder).left_out
    text = baseline_runs_left_out(left_out, 2).evidence
    assert all(reason in text for reason in left_out)
    many = baseline_runs_left_out([f"{number}.db: killed" for number in range(9)], 2)
    assert "4 more" in many.evidence
    assert len(many.fields["files"]) == 9


def test_a_run_whose_limits_allow_its_errors_is_a_baseline_run(tmp_path: Path) -> None:
    allowed = write_run(with_errors(3, "heartbeats.by_status.503 > 99%"), tmp_path / "allowed.db", run_id="allowed")
    assert [run.name for run in read(allowed).runs] == ["allowed.db"]


def test_check_names_the_baseline_runs(folder: Path) -> None:
    arguments = ["-c", "100000", "--force", "--hold", "60s", "--seed", "1", "--baseline-run", str(folder), "--fail-if", LIMIT]
    done = CliRunner().invoke(command, [*arguments, "http://127.0.0.1:8080/"], standalone_mode=False, catch_exceptions=False)
    assert "first.db" in done.stderr
    assert "second.db" in done.stderr
    assert "left out" in done.stdout


def test_a_number_that_no_baseline_run_has_is_refused_at_the_start(folder: Path) -> None:
    plan = msgspec.structs.replace(a_soak().plan, baseline_runs=(str(folder / "first.db"),), fail_if=("cost.live worse by 3%",))
    with pytest.raises(PlanError, match=r"'cost\.live worse by 3%': no.* heap .*cost\.server_user"):
        read_baseline_runs(plan)


def test_baseline_runs_may_be_paths() -> None:
    plan = asyncli.make_plan("http://127.0.0.1:9/", baseline_run=[Path("main.db")], fail_if=LIMIT)
    assert plan.baseline_runs == ("main.db",)
