"""Every figure, for every kind of run: drawn, or a sentence why not; and laid out so that nothing stands on anything else."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import HOSTILE, KINDS
from matplotlib.figure import Figure
from synthetic_run import a_run

from asyncli.analysis.cost import Costs
from asyncli.analysis.forecast import Ceiling, Forecast
from asyncli.analysis.slope import Cost
from asyncli.report.analyses import analyse
from asyncli.report.document import Picture
from asyncli.report.figures.cost import cost_lines, cost_parts, cost_residuals, cost_shares, slopes
from asyncli.report.figures.drawing import NARROW, PALETTE, ROLES, WIDE, NothingToDraw, Style, drawing, spread
from asyncli.report.figures.forecast import drawn_ceilings, forecast_ceilings
from asyncli.report.figures.run import pictures
from asyncli.report.figures.svg import file_png, file_svg, inline_svg
from asyncli.report.format import short_count, shown_r2
from asyncli.report.summary import summarise
from asyncli.run import Run


def pictures_of(run: Run) -> list[Picture]:
    analyses = analyse(run)
    return pictures(run, summarise(run, analyses), analyses)


def texts(figure: Figure) -> list[Any]:
    import matplotlib.text

    found = figure.findobj(matplotlib.text.Text)
    return [one for one in found if one.get_visible() and one.get_text().strip()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_drawn_or_says_why_not(kind: str) -> None:
    drawn = set()
    for picture in pictures_of(KINDS[kind]()):
        # The page draws the narrow ones of every kind.
        for style in (WIDE, NARROW) if kind == "deaths" else (WIDE,):
            try:
                figure = picture.draw(style)
            except NothingToDraw as nothing:
                assert re.fullmatch(r"[A-Z].*\.", str(nothing))
                continue
            drawn.add(picture.name)
            assert figure.get_size_inches()[0] * 72 == pytest.approx(style.width)
            svg = inline_svg(figure, picture.name)
            ET.fromstring(svg)
            assert not re.search(r"\bnan\b|\binf\b", svg, re.IGNORECASE)
            alt = picture.alt()
            assert re.fullmatch(r"[A-Z0-9].*\.", alt)
            assert "nan" not in alt.lower().split()
    expected = {
        "good": {"parts", "cost", "residuals", "drift", "timeline", "counts"},
        "deaths": {"parts", "cost", "residuals", "drift", "timeline", "counts", "deaths"},
        "without samples": {"timeline"}, "nothing": set(),
    }  # fmt: skip
    if kind in expected:
        assert drawn - {"forecast"} == expected[kind]


@pytest.mark.parametrize("style", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("kind", ["good", "deaths", "elsewhere", "invalid", "listed"])
def test_no_two_words_overlap_and_none_leaves_the_sheet(kind: str, style: Style) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for picture in pictures_of(KINDS[kind]()):
        try:
            figure = picture.draw(style)
        except NothingToDraw:
            continue
        with drawing():
            renderer = FigureCanvasAgg(figure).get_renderer()
            figure.draw_without_rendering()
            boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts(figure)]
        width, height = figure.get_size_inches() * figure.dpi
        # Marks of an axis beyond its limits are texts too, but are not drawn.
        boxes = [(words, box) for words, box in boxes if box.x1 > 0 and box.x0 < width and box.y1 > 0 and box.y0 < height]
        for words, box in boxes:
            assert box.x0 > -3, f"{picture.name}: {words!r} leaves the sheet at the left"
            assert box.x1 < width + 3, f"{picture.name}: {words!r} leaves the sheet at the right"
        for place, (words, box) in enumerate(boxes):
            for other_words, other in boxes[:place]:
                across = min(box.x1, other.x1) - max(box.x0, other.x0)
                down = min(box.y1, other.y1) - max(box.y0, other.y0)
                assert across < 2 or down < 4, f"{picture.name}: {words!r} stands on {other_words!r}"


def test_a_figure_is_the_same_text_each_time_and_ids_are_its_own() -> None:
    run = KINDS["deaths"]()
    first = {one.name: inline_svg(one.draw(WIDE), one.name) for one in pictures_of(run) if one.name != "forecast"}
    second = {one.name: inline_svg(one.draw(WIDE), one.name) for one in pictures_of(run) if one.name != "forecast"}
    assert first == second
    seen: set[str] = set()
    for name, svg in first.items():
        ids = re.findall(r' id="([^"]*)"', svg)
        assert all(one.startswith(f"{name}-") for one in ids)
        assert not seen & set(ids)
        seen |= set(ids)
        referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert referenced == set(ids)


def test_inline_it_has_the_pages_colours_and_font_and_points_nowhere() -> None:
    svg = inline_svg(pictures_of(a_run(30_000))[1].draw(WIDE), "cost")
    assert "var(--server)" in svg
    for light, _ in PALETTE.values():
        assert light not in svg
    assert "font-size: 12px" in svg
    assert not re.search(r"font-family|font: |DejaVu|http|xlink|metadata|DOCTYPE|<style|<!--", svg)
    assert re.search(r"<text [^>]*>this host in all</text>", svg), "text stays text"


def test_text_of_the_run_is_never_remade() -> None:
    run = KINDS["hostile"]()
    for picture in pictures_of(run):
        try:
            svg = inline_svg(picture.draw(WIDE), picture.name)
        except NothingToDraw:
            continue
        root = ET.fromstring(svg)
        assert {one.tag for one in root.iter()} <= {
            "svg",
            "g",
            "path",
            "use",
            "defs",
            "text",
            "clipPath",
            "rect",
            "pattern",
            "tspan",
        }
        said = " ".join("".join(one.itertext()) for one in root.iter("text"))
        if picture.name == "deaths":
            assert HOSTILE[:29] in said


def test_a_plot_of_its_own_says_what_and_whose_it_is() -> None:
    figure = pictures_of(a_run(30_000))[0].draw(Style(title="What one connection is made of", note="asyncli run f00d of <today>"))
    said = {one.get_text() for one in texts(figure)}
    assert {"What one connection is made of", "asyncli run f00d of <today>"} <= said
    svg = file_svg(figure, "parts", "asyncli run f00d & more")
    assert "<desc>asyncli run f00d &amp; more</desc>" in svg
    assert "DOCTYPE" not in svg
    assert "Matplotlib" not in svg
    ET.fromstring(svg)
    png = file_png(figure, "asyncli run f00d")
    assert png.startswith(b"\x89PNG")
    assert b"asyncli run f00d" in png[:4096]
    assert file_png(figure, "asyncli run f00d") == png


def test_the_callers_style_changes_nothing() -> None:
    picture = pictures_of(a_run(30_000))[1]
    before = inline_svg(picture.draw(WIDE), "cost")
    with mpl.rc_context(
        {"font.size": 30, "axes.grid": True, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}
    ):
        kept = dict(mpl.rcParams)
        assert inline_svg(picture.draw(WIDE), "cost") == before
        assert dict(mpl.rcParams) == kept


def test_no_pyplot_and_no_gui() -> None:
    code = (
        "import sys; sys.path[:0] = ['tests/analysis', 'tests/report'];"
        "from test_charts import pictures_of; from synthetic_run import a_run; from asyncli.report.figures.drawing import WIDE;"
        "from asyncli.report.figures.svg import inline_svg;"
        "[inline_svg(one.draw(WIDE), 'x') for one in pictures_of(a_run(30_000))[:2]];"
        "print('matplotlib.pyplot' in sys.modules, 'tkinter' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False False\n", 0), done.stderr


def test_importing_charts_does_not_load_matplotlib() -> None:
    code = "import asyncli.report.figures.run, asyncli.report.run_report, sys; print('matplotlib' in sys.modules, 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False False\n"


def a_cost(slope: float) -> Cost:
    return Cost(slope, (slope - 10, slope + 10), 1e6, "made up", 10)


@pytest.mark.parametrize("rest", [-400.0, 0.0, 300.0])
def test_the_bar_adds_up_to_the_total(rest: float) -> None:
    total = 1000.0 + 2 * 4000.0 + 130.0 + rest
    costs = Costs(
        server_user=a_cost(1000.0),
        kernel=a_cost(4000.0),
        generator_user=a_cost(130.0),
        residual=a_cost(rest),
        host_total=a_cost(total),
    )
    shares = cost_shares(costs, ends=2, server="nginx")
    assert math.isclose(sum(size for *_, size in shares), total)
    figure = cost_parts(costs, ends=2, server="nginx")
    said = [one.get_text() for one in texts(figure)]
    assert f"{total:,.0f} B in all" in said
    assert "8,000 B" in said


def test_a_total_alone_or_below_zero_is_not_drawn_as_a_bar() -> None:
    with pytest.raises(NothingToDraw):
        cost_parts(Costs(host_total=a_cost(100.0)))
    with pytest.raises(NothingToDraw):
        cost_parts(Costs(residual=a_cost(-5.0)))


def test_a_total_that_may_as_well_be_nothing_is_neither_drawn_nor_split() -> None:
    costs = Costs(
        server_user=a_cost(500.0),
        kernel=a_cost(4000.0),
        residual=a_cost(-7000.0),
        host_total=Cost(1500.0, (-12_000.0, 15_000.0), 0.0, "", 9),
    )
    assert [label for label, *_ in cost_shares(costs, ends=2, server="nginx")] == ["nginx", "kernel, 2 ends"]
    unknown = "the host as a whole moved too much to tell"
    for style, note in ((WIDE, f"what was measured apart; {unknown}"), (NARROW, unknown)):
        said = {one.get_text() for one in texts(cost_parts(costs, ends=2, server="nginx", style=style))}
        assert note in said
        assert not any("in all" in one for one in said)
    analyses = analyse(KINDS["unsteady"]())
    assert analyses.costs.host_total is not None
    assert analyses.costs.host_total.ci95[0] <= 0
    assert {one.name for one in slopes(analyses.costs.fits, ends=2, server="nginx")} == {
        "server_user",
        "kernel",
        "generator_user",
    }


def test_limits_of_every_size() -> None:
    ceilings = [
        Ceiling("descriptors", 12.0, None, ""), Ceiling("memory", 3e6, (2e6, None), ""), Ceiling("ports", None, None, ""),
        Ceiling("file_max", 9e18, None, ""),
    ]  # fmt: skip
    for style in (WIDE, NARROW):
        figure = forecast_ceilings(Forecast(ceilings=ceilings, first="descriptors"), asked=10, held=8, style=style)
        assert "ports" not in {one.get_text() for one in texts(figure)}
        figure.savefig(io.BytesIO(), format="svg")
    with pytest.raises(NothingToDraw):
        forecast_ceilings(Forecast(), asked=10)


labels = st.lists(st.tuples(st.floats(-50, 150), st.floats(1, 20)), min_size=1, max_size=8)


@given(labels)
def test_labels_are_spread_without_overlap_and_in_order(wanted: list[tuple[float, float]]) -> None:
    places, sizes = [one for one, _ in wanted], [size for _, size in wanted]
    found = spread(places, sizes, 0.0, 160.0)
    order = sorted(range(len(places)), key=lambda one: (places[one], one))
    for one, size in zip(found, sizes, strict=True):
        assert one - size / 2 >= -1e-6
        assert one + size / 2 <= 160.0 + 1e-6
    for before, after in pairwise(order):
        assert found[after] - found[before] >= (sizes[after] + sizes[before]) / 2 - 1e-6


def test_labels_that_have_room_stay_where_they_want_to_be() -> None:
    assert spread([10.0, 50.0, 90.0], [10.0, 10.0, 10.0], 0.0, 100.0) == [10.0, 50.0, 90.0]
    assert spread([50.0, 50.0], [10.0, 10.0], 0.0, 100.0) == [45.0, 55.0]
    assert spread([], [], 0.0, 1.0) == []


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (9_500, "9,500"), (100_000, "100k"), (1_500_000, "1.5M"), (999_999, "1M"), (-2500, "−2,500")]
)
def test_short_counts(number: float, words: str) -> None:
    assert short_count(number) == words


@pytest.mark.parametrize(
    ("r2", "words"), [(0.5, "0.500"), (0.99987, "0.9999"), (0.99983, "0.9998"), (0.9999964, "> 0.9999"), (1.0, "1")]
)
def test_r2_is_one_only_where_it_is(r2: float, words: str) -> None:
    assert shown_r2(r2) == words


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "server", "kernel", "ours", "rest", "violet"])
def test_what_is_written_in_a_colour_can_be_read(name: str, dark: bool) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 for text."""
    pair = sorted((luminance(PALETTE[name][dark]), luminance(PALETTE["paper"][dark])))
    assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


def test_no_two_roles_differ_by_colour_alone() -> None:
    seen = set()
    for _, width, dash, marker in ROLES.values():
        assert (width, dash, marker) not in seen
        seen.add((width, dash, marker))


def test_a_figure_is_scaled_to_its_points_and_not_to_a_band() -> None:
    """A host that moves: its line's band at nothing is wider than all its points."""
    run = a_run(60_000, hold_s=10.0, noise=30.0, phi=0.97)
    fits = analyse(run).costs.fits
    (host, *_) = slopes(fits, ends=2, server="nginx", unsteady=True)
    strip = cost_residuals(fits).axes[1]
    reach = max(map(abs, host.residuals()))
    assert reach < strip.get_ylim()[1] < 2 * reach
    most = max(max(one.above(one.fit.bytes)) for one in slopes(fits, ends=2, server="nginx"))
    figure = cost_lines(fits)
    assert figure.axes[1].get_ylim()[1] < 2.2 * most


def test_what_memory_allows_a_server_alone_is_in_the_figure() -> None:
    forecast = analyse(a_run(60_000, hold_s=10.0)).forecast
    assert forecast.server_memory is not None
    assert forecast.server_memory in drawn_ceilings(forecast)
    words = [text.get_text() for text in forecast_ceilings(forecast, asked=60_000).axes[0].texts]
    assert "memory, server alone" in words
