"""The summary, and its JSON, which other tools rely on."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract import ENVIRONMENT, SOAK, document, keys_match, parse
from made_runs import KINDS, nothing
from recording import write_run
from synthetic_run import a_run, without

from asyncli.core.histogram import Histogram
from asyncli.findings.probes import needs_root
from asyncli.model.exit_status import exit_status
from asyncli.model.plan import plan_document
from asyncli.model.records import Deaths, Finding
from asyncli.model.run import Run
from asyncli.report.jsonout import to_json
from asyncli.report.junit import to_junit
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run


@pytest.mark.parametrize("name", ["good", "elsewhere", "short", "nothing"])
def test_json_keys_match_the_contract(name: str) -> None:
    loaded = document(KINDS[name]())
    of_unknown_metrics = {} if name == "good" else dict.fromkeys(SOAK["drift"])
    keys_match(loaded | {"drift": of_unknown_metrics | loaded["drift"]}, SOAK, whole=name == "good")
    assert list(loaded) == list(SOAK)
    assert set(loaded["environment"]) >= ENVIRONMENT


def nulls(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in nulls(inner, f"{path}.{key}")]
    return [path] if value is None else []


def test_every_null_has_a_finding() -> None:
    assert [path for path in nulls(document(a_run(30_000))) if not path.startswith(".plan")] == []
    says = {
        ".connections": "counts_unknown", ".ramp": "nothing_to_measure", ".heartbeats": "nothing_to_measure", ".reconciliation": "reconciliation_unknown",
        ".server": "server_numbers_unknown", ".cost": "cost_", ".generator": "generator_numbers_unknown",
        ".residue": "residue_unknown", ".forecast": "forecast_unknown", ".drift": "drift_unknown",
    }  # fmt: skip
    for name in ("elsewhere", "short", "nothing"):
        loaded = document(KINDS[name]())
        codes = " ".join(finding["code"] for finding in loaded["findings"])
        for path in nulls(loaded):
            part = "." + path.split(".")[1]
            assert part in (".plan", ".environment", ".run") or says[part] in codes, path


@pytest.mark.parametrize(
    ("local", "read_before", "pid", "remedy"),
    [(True, False, None, True), (False, False, None, False), (True, True, None, False), (True, False, 77, False)],
)
def test_remedy_asks_for_the_process_only_if_it_helps(
    local: bool, read_before: bool, pid: int | None, remedy: bool
) -> None:
    run = a_run(5000, local=local)
    run.plan = msgspec.structs.replace(run.plan, server_pid=pid)
    without(run, "server.", since_s=7.0 if read_before else -1.0)
    (finding,) = [one for one in summarise(run).findings if one.code == "server_numbers_unknown"]
    assert finding.remedy.startswith("name the server's processes") is remedy
    # Another finding already says so.
    run.findings = [Finding("server_processes_unknown", "info", "not found")]
    assert "server_numbers_unknown" not in {one.code for one in summarise(run).findings}


def test_deaths_and_failures_add_up() -> None:
    run = a_run(20_000)
    run.ticks[30][1].deaths = {"reset": Deaths(count=3), "closed_idle": Deaths(count=4)}
    run.ticks[31][1].failures = {"refused": 2, "no_ports": 5}
    c = summarise(run).connections
    assert (c.lost, list(c.deaths.items())) == (7, [("closed_idle", 4), ("reset", 3)])
    assert (c.failed, list(c.failures.items())) == (7, [("no_ports", 5), ("refused", 2)])


def test_findings_are_unique_and_errors_first() -> None:
    run = a_run(20_000)
    run.findings = [Finding("a", "info", "x"), Finding("b", "error", "y"), Finding("a", "info", "x")]
    run.ticks[30][1].failures = {"refused": 2}
    found = summarise(run).findings
    assert len(found) == len(set(found))
    ranks = [("error", "warning", "info").index(finding.severity) for finding in found]
    assert ranks == sorted(ranks)


def test_repeated_findings_are_merged() -> None:
    run = a_run(30_000)
    run.findings = [Finding("status_lost", "warning", f"status could not be read from 0:0{n}:00 on: no answer") for n in range(6)]
    run.findings += [Finding("status_back", "info", f"status is read again at 0:0{n}:30") for n in range(4)]
    found = [one for one in summarise(run).findings if one.code.startswith("status_")]
    assert [one.code for one in found] == ["status_lost", *["status_back"] * 4]
    assert all(words in found[0].evidence for words in ("0:00:00", " 4 ", "0:05:00"))


def test_a_resumed_run_says_once_what_needs_root() -> None:
    run = a_run(5_000)
    run.findings = [needs_root(["all"], command, "") for command in ("first", "resume")]
    assert [one.fields["command"] for one in summarise(run).findings if one.code == needs_root.code] == ["resume"]


def test_run_stopped_early_has_a_finding() -> None:
    run = a_run(20_000)
    run.plan = type(run.plan)(**{**plan_document(run.plan), "hold_s": 3600.0})
    assert "stopped_early" in {finding.code for finding in summarise(run).findings}


def test_json_is_stable_and_finite(tmp_path: Path) -> None:
    """The JSON is the same from memory, from the file, and the second time."""
    run = a_run(5000, hold_s=5.0)
    write_run(run, tmp_path / "run.db")
    assert to_json(summarise(read_run(tmp_path / "run.db"))) == to_json(summarise(run)) == to_json(summarise(run))
    summary = summarise(run)
    summary.ramp.achieved_per_s = math.nan
    assert parse(to_json(summary))["ramp"]["achieved_per_s"] is None


def limited(*limits: str, lost: int = 3) -> dict[str, Any]:
    return document(with_limits(limits, lost))


def with_limits(limits: tuple[str, ...], lost: int) -> Run:
    run = a_run(30_000, server=False)
    run.plan = msgspec.structs.replace(run.plan, fail_if=limits)
    if lost:
        run.ticks[-3][1].deaths["reset"] = Deaths(lost)
    return run


@pytest.mark.parametrize(
    ("limits", "lost", "verdict", "codes"),
    [
        ((), 3, "failed", []),
        (("lost > 0.1%",), 3, "passed", ["limit_kept"]),
        (("lost > 0.005%",), 3, "failed", ["limit_crossed"]),
        # A limit on another number keeps the rule on losses.
        (("heartbeats.failed > 0",), 3, "failed", ["limit_kept"]),
        (("heartbeats.failed > 0",), 0, "passed", ["limit_kept"]),
        (("heartbeats.latency_ms.p99 > 1us",), 0, "failed", ["limit_crossed"]),
        (("heartbeats.latency_ms.p99 < 1h", "lost > 1"), 0, "failed", ["limit_crossed", "limit_kept"]),
        # A limit on an unknown number, or of another version, is not kept.
        (("connections.wishes > 1",), 0, "failed", ["limit_unknown"]),
        (("server.pss_bytes.hold_end > 1GB", "held < 1"), 0, "failed", ["limit_unknown", "limit_kept"]),
    ],
)
def test_fail_if_decides_the_verdict(limits: tuple[str, ...], lost: int, verdict: str, codes: list[str]) -> None:
    found = limited(*limits, lost=lost)
    assert found["run"]["verdict"] == verdict
    assert [one["code"] for one in found["findings"] if one["code"].startswith("limit_")] == codes
    said = next(one["evidence"] for one in found["findings"] if one["code"] == f"verdict_{verdict}")
    if verdict == "failed" and codes:
        crossed = [one["evidence"] for one in found["findings"] if one["code"] == "limit_crossed"]
        assert not crossed or crossed[0].removeprefix("crossed: ") in said
    if verdict == "passed" and lost:
        assert f"{lost} were lost, which --fail-if allows" in said


def test_limits_are_plain_data_and_the_worst_is_named_first() -> None:
    limits = ("lost > 0.1%", "heartbeats.latency_ms.p99 > 1us", "server.pss_bytes.hold_end > 1GB", "lost > 1", "connections.wishes > 1")
    found = limited(*limits)
    of_each = [tuple(one.values()) for one in found["limits"]]
    assert [one for one in of_each if "p99" not in one[0]] == [
        (limits[0], 3.0, True), (limits[2], None, None), (limits[3], 3.0, False), (limits[4], None, None),
    ]  # fmt: skip
    said = next(one["evidence"] for one in found["findings"] if one["code"] == "verdict_failed")
    assert [one.partition(":")[0] for one in said.split("; ")][:3] == [limits[3], limits[1], "undecided"]


@pytest.mark.parametrize(
    ("limits", "lost", "failures", "errors", "skipped"),
    [
        ((), 0, 0, 0, 0), ((), 3, 1, 0, 0), (("held > 1",), 3, 2, 0, 0),
        # A run that only limits made fail counts each of them once.
        (("lost > 1", "held < 1"), 3, 1, 0, 1), (("server.pss_bytes.hold_end > 1GB",), 0, 0, 1, 1), (("wishes > 1",), 0, 0, 1, 1),
    ],
)  # fmt: skip
def test_junit_has_a_test_for_the_verdict_and_each_limit(limits: tuple[str, ...], lost: int, failures: int, errors: int, skipped: int) -> None:
    suite = ET.fromstring(to_junit(summarise(with_limits(limits, lost))))
    cases = suite.findall("testcase")
    # The name has no numbers of the run, since CI systems track a test by its name.
    assert [one.get("name") for one in cases] == ["verdict", *limits]
    assert len(cases) == int(suite.get("tests", "0")) == 1 + len(limits)
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (str(failures), str(errors), str(skipped))
    assert len(cases[0].findall("skipped")) == skipped
    assert len(suite.findall("testcase/failure")) == failures
    assert all(one.get("message") for one in suite.iter() if one.tag in ("failure", "error", "skipped"))


@pytest.mark.parametrize(
    ("limits", "verdict", "status"),
    [
        (("heartbeats.latency_ms.p99 > 10",), "invalid", 4),
        (("heartbeats.latency_ms.p99 > 10", "lost > 0"), "invalid", 4),
        (("heartbeats.latency_ms.p99 > 10", "held > 1"), "failed", 99),
        (("heartbeats.latency_ms.p99 > 10", "server.pss_bytes.hold_end > 1GB"), "failed", 99),
        (("heartbeats.latency_ms.p99 > 1us",), "failed", 99),
    ],
)
def test_what_only_the_lateness_of_asyncli_crosses_says_nothing_of_the_server(limits: tuple[str, ...], verdict: str, status: int) -> None:
    run = with_limits(limits, 0)
    for _, tick in run.ticks:
        sent = tick.latency_us.count
        tick.latency_us, tick.lateness_us = Histogram(), Histogram()
        tick.latency_us.add_counts({20_000: sent})
        tick.lateness_us.add_counts({19_700: sent})
    summary = summarise(run)
    assert (summary.verdict, exit_status(summary.verdict), summary.is_by_limits) == (verdict, status, True)
    assert summary.limits[0].kept is (False if "1us" in limits[0] else None)
    suite = ET.fromstring(to_junit(summary))
    assert int(suite.get("errors", "")) + int(suite.get("failures", "")) == sum(not limit.kept for limit in summary.limits)


def test_characters_forbidden_in_xml_are_replaced() -> None:
    run = nothing()
    run.plan = msgspec.structs.replace(run.plan, fail_if=("a\x00\ud800<b> & 'c'",))
    suite = ET.fromstring(to_junit(summarise(run)).encode("utf-8"))
    assert (suite.get("errors"), suite.get("failures")) == ("2", "0")


def test_the_most_open_is_never_below_what_is_held() -> None:
    """Also where the drain begins within the only second that knew of the connections."""
    run = a_run(2000, hold_s=5.0)
    for _, tick in run.ticks:
        tick.held = 0
    connections = summarise(run).connections
    assert connections.held == 2000
    assert connections.established_peak == 2000


@pytest.mark.parametrize("t_s", [-1.0, 0.0, 12.0])
def test_samples_that_all_are_of_one_instant_show_no_cost(t_s: float) -> None:
    """As in a run file that a stranger has changed."""
    run = a_run(1_000)
    for sample in run.samples:
        sample.t_s = t_s
    summary = summarise(run)
    assert summary.cost.server_user is None
