"""Pages of metrics that were read without use, or that lost in the run what they had."""

from __future__ import annotations

import math

import msgspec
import pytest
from collected_runs import of_go
from synthetic_run import a_run, without

from asyncli.analysis.page_gaps import page_gaps
from asyncli.model import metrics
from asyncli.model.run import Run


def read_at(run: Run, *urls: str) -> Run:
    """The run with pages of metrics at these URLs."""
    pages = [{"url": url, "products": ["Go"], "active_by": None, "interval_s": 1.0} for url in urls]
    run.environment["server"] = {**run.environment["server"], "metrics": pages}
    return run


def a_soak() -> Run:
    return a_run(200, batch=2, interval_s=0.05, hold_s=20.0)


def without_from(run: Run, from_s: float, *names: str) -> Run:
    for sample in run.samples:
        if sample.t_s >= from_s:
            for name in names:
                sample.values.pop(name, None)
    return run


def test_a_page_that_has_what_it_had_is_no_finding() -> None:
    assert page_gaps(read_at(of_go(a_soak()), "http://h/metrics")) == []


def test_a_run_without_a_page_has_no_gap() -> None:
    assert page_gaps(a_soak()) == []


def test_a_page_without_any_usable_value_is_told() -> None:
    [finding] = page_gaps(read_at(a_soak(), "http://h/metrics"))
    assert (finding.code, finding.severity) == ("metrics_lost", "warning")
    assert "http://h/metrics" in finding.evidence


def test_a_collection_that_was_asked_for_is_no_value_of_the_page() -> None:
    run = read_at(a_soak(), "http://h/metrics")
    run.samples[-1].values[metrics.RUNTIME_FORCED_BYTES] = 1e6
    assert [finding.code for finding in page_gaps(run)] == ["metrics_lost"]


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        (("http://h/metrics",), ["runtime.heap_bytes"]),
        # The other page may be read each ten seconds only.
        (("http://h/metrics", "http://h/other"), []),
        (("mqtt://h:1883/",), []),
    ],
)
def test_a_metric_that_vanishes_is_told_with_its_instant(urls: tuple[str, ...], told: list[str]) -> None:
    run = read_at(of_go(a_soak()), *urls)
    hold = run.phase("hold")
    assert hold is not None
    vanishes_s = hold.start_s + 5
    without_from(run, vanishes_s, metrics.RUNTIME_HEAP_BYTES)
    findings = page_gaps(run)
    assert [name for name in ("runtime.heap_bytes", "runtime.stacks_bytes") for finding in findings if name in finding.evidence] == told
    for finding in findings:
        assert finding.code == "metrics_lost"
        assert math.isclose(finding.fields["from_s"], vanishes_s, abs_tol=1.5)


def test_a_page_or_two_without_it_are_a_moment() -> None:
    run = read_at(of_go(a_soak()), "http://h/metrics")
    last_s = max(sample.t_s for sample in run.samples if sample.t_s <= run.stop_s)
    without_from(run, last_s - 1.2, metrics.RUNTIME_HEAP_BYTES)
    assert page_gaps(run) == []


def test_a_page_that_ends_altogether_is_the_outages_finding() -> None:
    run = read_at(of_go(a_soak()), "http://h/metrics")
    hold = run.phase("hold")
    assert hold is not None
    names = [name for name in run.metrics if name.startswith("runtime.")]
    without_from(run, hold.start_s + 5, *names)
    assert page_gaps(run) == []


def with_map(run: Run, *mapped: str) -> Run:
    run.plan = msgspec.structs.replace(run.plan, metrics_map=list(mapped))
    return run


@pytest.mark.parametrize(
    ("mapped", "active_by", "told"),
    [
        (("active=nosuch",), None, ["active=nosuch"]),
        # The page's rule counts in place of the metric that the user has named.
        (("active=nosuch",), "envoy_http_downstream_cx_active", ["active=nosuch"]),
        (("active=ws_open",), "ws_open", []),
        (("live=nosuch", "heap=nosuch"), None, ["live=nosuch"]),
    ],
)
def test_a_metric_that_the_user_names_and_no_page_has_is_told(mapped: tuple[str, ...], active_by: str | None, told: list[str]) -> None:
    run = with_map(read_at(without(of_go(a_soak()), "status."), "http://h/metrics"), *mapped)
    run.environment["server"]["metrics"][0]["active_by"] = active_by
    if active_by:
        for sample in run.samples:
            sample.values[metrics.STATUS_ACTIVE] = run.held.at(sample.t_s) or 0.0
    evidence = [finding.evidence for finding in page_gaps(run)]
    assert [text for text in mapped if any(text in said for said in evidence)] == told
    assert len(evidence) == len(told)


@pytest.mark.parametrize(("counts", "told"), [(True, 1), (False, 0)], ids=["descriptors", "a heap alone"])
def test_a_page_that_repeats_itself_while_connections_are_opened_is_told(counts: bool, told: int) -> None:
    """As behind a cache. What was alive at the last collection stays as it is until the next, so it says nothing."""
    run = read_at(a_run(400, batch=2, interval_s=0.05), "http://h/metrics")
    for sample in run.samples:
        sample.values[metrics.RUNTIME_LIVE_BYTES] = 5e6
        if counts:
            sample.values[metrics.RUNTIME_DESCRIPTORS] = 9.0
    findings = page_gaps(run)
    assert len(findings) == told
    for finding in findings:
        assert finding.code == "metrics_lost"
        assert finding.fields["from_s"] < run.phase("ramp").end_s


@pytest.mark.parametrize("has_other_values", [False, True])
def test_named_metrics_without_a_number_are_one_finding_with_their_values(has_other_values: bool) -> None:
    """The page answers: that its values are none is what is wrong."""
    run = without(a_soak(), "status.")
    if has_other_values:
        run = of_go(run)
        for sample in run.samples:
            sample.values.pop(metrics.RUNTIME_HEAP_BYTES)
    run = read_at(run, "http://h/metrics")
    run.environment["server"]["metrics"][0]["unusable"] = ["my_conns=NaN", "my_live=1e+300", "my_heap=-5"]
    named = ("active=my_conns", "live=my_live", "heap=my_heap", "accepts=my_accepts")
    run = msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, metrics_map=named, status_url=None))
    [finding] = page_gaps(run)
    assert finding.fields["unusable"] == ["active=my_conns (NaN)", "live=my_live (1e+300)", "heap=my_heap (-5)", "accepts=my_accepts"]
    assert "answer" not in finding.remedy
