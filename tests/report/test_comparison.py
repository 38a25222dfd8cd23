"""The report of a comparison: real differences first, on any terminal, as JSON and as a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from contract import parse
from rich.console import Console
from synthetic_run import a_run, raised, spread
from test_page import Page

from asyncli.analysis.compare import Comparison, Difference, compare
from asyncli.analysis.measured import measure
from asyncli.core.histogram import Histogram
from asyncli.model.records import Deaths
from asyncli.model.run import Run
from asyncli.report.comparison_report import comparison_document, to_json
from asyncli.report.differences import amounts, wide_values
from asyncli.report.figures.drawing import NARROW, WIDE, NothingToDraw
from asyncli.report.figures.forest import forest
from asyncli.report.html import page
from asyncli.report.terminal import print_document


def compared(*runs: Run, paths: tuple[str, ...] = ("a.db", "b.db", "c.db")) -> Comparison:
    return compare([measure(name, path, run) for name, path, run in zip("ABC", paths, runs, strict=False)])


def dearer(seed: int = 2, more: float = 510.0) -> Run:
    """A run whose server takes ``more`` bytes a connection and twice as long to answer."""
    run = raised(a_run(20_000, hold_s=60.0, seed=seed), 0, "server.pss_bytes", "host.used_bytes", each=more)
    for _, tick in run.ticks:
        tick.latency_us = Histogram({key + 64: count for key, count in tick.latency_us.items()}, 1, 10_000)
    run.environment["server"] = {"label": "nginx/1.27.0", "version": "1.27.0", "config_hash": "cd34"}
    return run


@pytest.fixture(scope="module")
def unlike() -> Comparison:
    return compared(a_run(20_000, hold_s=60.0), dearer())


@pytest.fixture(scope="module")
def alike() -> Comparison:
    return compared(a_run(20_000, hold_s=60.0), a_run(20_000, hold_s=60.0, seed=2))


def printed(comparison: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=True, color_system=None)
    print_document(comparison_document(comparison), console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert not {"nan", "inf", "none"} & set(re.findall(r"[a-z]+", text.lower()))
    return text


@pytest.mark.parametrize(("ratio", "told"), [(1000, True), (4, False)])
def test_values_far_apart_are_told_though_not_real(alike: Comparison, ratio: int, told: bool) -> None:
    far = made("ms", (4.69, 4.69 * ratio), None, key="latency.p99", why="unknown")
    far.p_value = 0.06
    rows = [far if one.key == far.key else one for one in alike.differences]
    first = printed(msgspec.structs.replace(alike, differences=rows)).split("Memory of a connection")[0]
    assert ("p99" in first) is told


@pytest.mark.parametrize("width", [60, 96, 200])
def test_any_width(unlike: Comparison, alike: Comparison, width: int) -> None:
    for comparison in (unlike, alike):
        text = printed(comparison, width)
        for row in ("kernel,", "p99.9"):
            assert row in text, row


def test_three_runs_get_two_tables_and_two_figures() -> None:
    three = compared(a_run(5000, hold_s=30.0), a_run(5000, hold_s=30.0, seed=2), dearer(3))
    assert printed(three).count("against A:") == 2
    seen = Page(page(comparison_document(three)))
    assert seen.tags["figure"] == 2
    assert len(seen.ids) == len(set(seen.ids))
    # Each is found by its name in the contents.
    headings = [section.heading for section in comparison_document(three).sections if section.heading]
    assert len(headings) == len(set(headings))


def made(unit: str, values: tuple[float | None, float | None], ci95: tuple[float, float] | None, **rest: Any) -> Difference:
    a, b = values
    difference = b - a if a is not None and b is not None else None
    relative = difference / a if difference is not None and a else None
    verdict = rest.pop("verdict", "no_difference" if ci95 else "cannot_say")
    return Difference(rest.pop("key", "cost.kernel"), unit, ("A", "B"), values, difference, ci95, relative, None, verdict, **rest)


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (made("bytes", (528.6, 528.8), (-2.4, 2.9)), ("bytes", "528.6", "528.8", "+0.2", "-2.4 to +2.9", "0.0")),
        (made("bytes", (1020.0, 1532.2), (504.1, 520.3)), ("bytes", "1,020", "1,532", "+512", "+504 to +520", "+50.2")),
        (made("bytes", (55.8e6, 516.5e6), (456.5e6, 465e6)), ("MB", "55.8", "516.5", "+460.7", "+456.5 to +465.0", "+825.6")),
        (made("ms", (0.4, 0.4), (0.0, 0.0)), ("ms", "0.40", "0.40", "0.00", "0.00 to 0.00", "0.0")),
        (made("us", (5.0, 20_000.0), (15e3, 25e3)), ("ms", "0", "20", "+20", "+15 to +25", "4,000 times")),
        (made("bytes/h", (100.0, -1900.0), (-2100.0, -1900.0)), ("bytes/h", "100", "-1,900", "-2,000", "-2,100 to -1,900", "-")),
        (made("per 1,000 attempts", (0.0, 3.0), (1.0, 6.0)), ("", "0.0", "3.0", "+3.0", "+1.0 to +6.0", "-")),
        (made("bytes", (None, 7.0), None), ("bytes", "-", "7.00", "-", "-", "-")),
        # A difference is not rounded to zero where its percent is not.
        (made("ms", (0.732, 0.756), (-1.64, 0.18)), ("ms", "0.73", "0.76", "+0.02", "-1.64 to +0.18", "+3.3")),
        (made("ms", (0.732, 0.7321), (-1.64, 0.18)), ("ms", "0.7", "0.7", "0.0", "-1.6 to +0.2", "0.0")),
        (made("bytes", (5_537_000.0, 5_546_000.0), (-750e3, 769e3)), ("MB", "5.537", "5.546", "+0.009", "-0.750 to +0.769", "+0.2")),
        (made("bytes", (300.0, 300.4), None), ("bytes", "300.0", "300.4", "+0.4", "-", "+0.1")),
        (made("bytes/h", (0.0, 0.0), (-2e6, 1e6)), ("MB/h", "0.0", "0.0", "0.0", "-2.0 to +1.0", "-")),
    ],
)
def test_numbers_have_one_unit_and_digits_by_their_interval(one: Difference, shown: tuple[str, ...]) -> None:
    found = amounts(one)
    assert (found.unit, found.first, found.second, found.difference, found.interval, found.percent) == shown


def test_an_interval_beyond_both_values_says_which_may_be_larger() -> None:
    """Of two latencies the difference is no less than -A, and no more than B: as far as these are known."""
    steady = a_run(5_000, hold_s=120.0, seed=2)
    moody = a_run(5_000, hold_s=120.0)
    assert moody.hold is not None
    for place, (t_s, tick) in enumerate(moody.ticks):
        if t_s > moody.hold.start_s and place // 12 % 2:
            tick.latency_us = spread(1_500, tick.sent)
    told = {}
    for first, second in ((moody, steady), (steady, moody), (steady, steady)):
        comparison = compared(first, second)
        [row] = [row for row in comparison.differences if row.key == "latency.p50"]
        told[row.larger_than_seen] = [note for note in wide_values(row) if "latency p50" in note]
        if row.larger_than_seen[0]:
            assert row.ci95 is not None
            assert row.ci95[0] < -(row.values[0] or 0.0)
            assert "below -A" in " ".join(printed(comparison).split())
    assert {which: len(notes) for which, notes in told.items()} == {(True, False): 1, (False, True): 1, (False, False): 0}
    assert ("A itself" in told[True, False][0], "1.5 ms" in told[True, False][0]) == (True, True)
    assert ("B itself" in told[False, True][0], "1.5 ms" in told[False, True][0]) == (True, True)
    # What may be below zero, as what is left over, needs no reason.
    assert made("bytes", (19.0, 774.0), (-153.0, 1_748.0)).larger_than_seen == (False, False)


def test_comparison_page_is_complete_and_self_contained(unlike: Comparison) -> None:
    text = page(comparison_document(unlike))
    seen = Page(text)
    assert [point for _, point in seen.links if not point.startswith(("#", "data:,"))] == []
    assert not re.search(r"url\((?!#)|@import|https?://(?!127\.0\.0\.1)", text)
    assert seen.tags["figure"] == 1
    # The table of every number, as in the terminal, and what differs between the runs.
    assert seen.tags["table"] == 2
    assert page(comparison_document(unlike)) == text
    assert len(text) < 200_000
    assert "<script>alert" not in page(
        comparison_document(compared(a_run(1000), a_run(1000), paths=("<script>alert(1)</script>.db", "b.db")))
    )


def _nothing(run: Run) -> None:
    run.samples = []
    for _, tick in run.ticks:
        tick.latency_us, tick.lateness_us = Histogram(), Histogram()


def _lossy(run: Run) -> None:
    for _, tick in run.ticks[20:40]:
        tick.deaths = {"reset": Deaths(count=3)}


@pytest.mark.parametrize("changes", [_nothing, _lossy])
def test_comparison_of_unusual_runs(changes: Callable[[Run], None]) -> None:
    runs = [a_run(5000, hold_s=30.0), a_run(5000, hold_s=30.0, seed=2)]
    changes(runs[1])
    comparison = compared(*runs)
    printed(comparison)
    Page(page(comparison_document(comparison)))
    parse(to_json(comparison))


def test_forest_plot_names_every_row_in_both_widths(unlike: Comparison) -> None:
    for style in (WIDE, NARROW):
        figure = forest(unlike.differences, style=style)
        named = {label.get_text() for label in figure.axes[0].get_yticklabels()}
        assert {"p99", "p50"} <= named
    with pytest.raises(NothingToDraw, match="No number is known of both runs"):
        forest([made("bytes", (None, 1.0), None)])


def test_forest_plot_stays_within_the_figure() -> None:
    wide = [
        made("bytes", (1.0, 900.0), (890.0, 910.0), verdict="higher", key="cost.server_user"),
        made("bytes", (100.0, 101.0), (-math.pi, 5.0)),
        made("ms", (1.0, 0.2), (-0.9, -0.7), verdict="lower", key="latency.p50"),
    ]
    for style in (WIDE, NARROW):
        figure = forest(wide, style=style)
        for ax in figure.axes:
            low, high = ax.get_xlim()
            for line in ax.lines:
                assert all(low <= x <= high for x in line.get_xdata() if len(line.get_xdata()) and ax.get_xlim() != (0, 1)), style
