"""Every figure for every kind of run: drawn without overlaps, or a sentence that says why not."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import Any

import matplotlib as mpl
import msgspec
import pytest
from collected_runs import of_go, soak
from made_runs import KINDS
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from synthetic_run import a_run

from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.slope import Cost
from asyncli.app.predicted_storm import predict_storm
from asyncli.model.planned_events import reconnect_of
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.document import Picture
from asyncli.report.figures import drawing as draw
from asyncli.report.figures.costs import cost_lines, cost_parts, cost_shares, shares_left_out, slopes
from asyncli.report.figures.pictures import pictures
from asyncli.report.figures.recoveries import recoveries, recovery_rows
from asyncli.report.figures.storms import last_s, storm_curves
from asyncli.report.format import shown_r2
from asyncli.report.summary import summarise


def pictures_of(run: Run) -> list[Picture]:
    analyses = analyse(run)
    return pictures(run, summarise(run, analyses), analyses)


def texts(figure: Figure) -> list[Any]:
    import matplotlib.text

    found = figure.findobj(matplotlib.text.Text)
    # Tick labels beyond the limits of an axis are texts, but are not drawn.
    hidden = {
        id(tick.label1)
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [one for one in found if one.get_visible() and one.get_text().strip() and id(one) not in hidden]


def require_laid_out(figure: Figure, name: str) -> None:
    """No two texts overlap, and none leaves the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with draw.drawing():
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
        boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts(figure)]
    width = figure.get_size_inches()[0] * figure.dpi
    for place, (words, box) in enumerate(boxes):
        assert box.x0 > -3, f"{name}: {words!r} leaves the sheet at the left"
        assert box.x1 < width + 3, f"{name}: {words!r} leaves the sheet at the right"
        for other_words, other in boxes[:place]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            down = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert across < 2 or down < 4, f"{name}: {words!r} stands on {other_words!r}"


# An invalid run has the figures of a good one; tests/report/test_page.py draws those of the hostile run.
@pytest.mark.parametrize("kind", [one for one in KINDS if one not in ("invalid", "hostile")])
def test_every_figure_is_drawn_legibly_or_says_why_not(kind: str) -> None:
    laid_out = kind in ("deaths", "elsewhere", "listed", "provoked")
    drawn = set()
    for picture in pictures_of(KINDS[kind]()):
        for style in (draw.WIDE, draw.NARROW) if laid_out else (draw.WIDE,):
            try:
                figure = picture.draw(style)
            except draw.NothingToDraw as nothing:
                assert re.fullmatch(r"[A-Z].*\.", str(nothing))
                continue
            drawn.add(picture.name)
            assert figure.get_size_inches()[0] * 72 == pytest.approx(style.width)
            if laid_out:
                require_laid_out(figure, picture.name)
            if style is draw.NARROW:
                continue
            svg = draw.inline_svg(figure, picture.name)
            ET.fromstring(svg)
            assert not re.search(r"\bnan\b|\binf\b", svg, re.IGNORECASE)
            alt = picture.alt()
            assert re.fullmatch(r"[A-Z0-9].*\.", alt)
            assert "nan" not in alt.lower().split()
    expected = {
        "good": {"parts", "cost", "drift", "timeline"}, "deaths": {"parts", "cost", "drift", "timeline", "deaths"},
        "without samples": {"timeline"}, "nothing": set(), "provoked": {"parts", "cost", "drift", "timeline", "recoveries"},
    }  # fmt: skip
    assert drawn == expected.get(kind, drawn)


def test_an_event_is_drawn_from_its_instant_on() -> None:
    run = KINDS["provoked"]()
    storm, vanish = recoveries(run, summarise(run).events, "nginx")
    held, _, answered = storm.connections
    assert [line.label for line in storm.connections] == ["held", "nginx counts", "answered again"]
    assert storm.before_s < 0 < storm.after_s
    # Who is held dips where the event is, and who answered again rises from nobody to all.
    assert min(held.values[held.t_s < 0]) == 20_000
    assert list(held.values[held.t_s == 0])[-2:] == [20_000, 0]
    assert min(held.values[held.t_s > 0]) == 10_000
    assert (answered.t_s[0], answered.values[0], answered.values[-1]) == (0, 0, 20_000)
    half = answered.t_s[answered.values >= 10_000][0]
    assert half == pytest.approx(0.6, abs=0.01)
    # Those that fell silent are awaited from when they are heard again.
    silent = vanish.connections[-1]
    assert silent.t_s[0] == 4.0
    assert silent.t_s[silent.values == 6_000][0] == pytest.approx(4.011, abs=0.002)
    assert vanish.memory is not None
    assert len(vanish.memory.t_s) > 10


@pytest.mark.parametrize("style", [draw.WIDE, draw.NARROW], ids=["wide", "narrow"])
def test_the_name_of_a_server_is_whole_beside_an_event(style: draw.Style) -> None:
    run = KINDS["provoked"]()
    figure = recovery_rows(recoveries(run, summarise(run).events, "python3.11"), style=style)
    require_laid_out(figure, "recoveries")
    assert "python3.11 counts" in {text.get_text() for text in texts(figure)}


@pytest.mark.parametrize("style", [draw.WIDE, draw.NARROW], ids=["wide", "narrow"])
def test_storms_share_their_axes(style: draw.Style) -> None:
    run = KINDS["provoked"]()
    policies = [reconnect_of(how) for how in ("now", "jitter:10s", "backoff:1s..60s")]
    forecasts = predict_storm(run, "run.db", policies, None, 511).forecasts
    figure = storm_curves(forecasts, style=style)
    require_laid_out(figure, "storms")
    [ax] = figure.axes
    assert ax.get_xlim()[1] == pytest.approx(max(last_s(forecast) for forecast in forecasts))
    for line, forecast in zip(ax.lines, forecasts, strict=True):
        values = list(line.get_ydata())
        assert (values[0], values[-1], values == sorted(values)) == (0, 20_000, True)
        whole = next(t_s for t_s, value in zip(line.get_xdata(), values, strict=True) if value == 20_000)
        assert whole == pytest.approx(last_s(forecast), rel=0.05)


def test_svg_is_deterministic_with_prefixed_ids() -> None:
    (picture,) = (one for one in pictures_of(KINDS["deaths"]()) if one.name == "timeline")
    svg, again = (draw.inline_svg(picture.draw(draw.WIDE), "timeline") for _ in range(2))
    assert svg == again
    ids = set(re.findall(r' id="([^"]*)"', svg))
    assert all(one.startswith("timeline-") for one in ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) == ids


def test_inline_svg_uses_page_colours_and_no_external_references() -> None:
    picture = pictures_of(a_run(30_000))[1]
    svg = draw.inline_svg(picture.draw(draw.WIDE), "cost")
    assert "var(--server)" in svg
    for light, _ in draw.PALETTE.values():
        assert light not in svg
    assert "font-size: 11px" in svg
    assert not re.search(r"font-family|font: |DejaVu|http|xlink|metadata|DOCTYPE|<style|<!--", svg)
    assert re.search(r"<text [^>]*>this host in all</text>", svg), "text stays text"
    odd = {"font.size": 30, "axes.grid": False, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}
    with mpl.rc_context(odd):
        kept = dict(mpl.rcParams)
        assert draw.inline_svg(picture.draw(draw.WIDE), "cost") == svg
        assert dict(mpl.rcParams) == kept


def test_standalone_plot_has_title_and_run() -> None:
    figure = pictures_of(a_run(30_000))[0].draw(draw.Style(title="What one connection is made of", note="asyncli run f00d of <today>"))
    assert {"What one connection is made of", "asyncli run f00d of <today>"} <= {one.get_text() for one in texts(figure)}
    svg = draw.file_svg(figure, "parts", "asyncli run f00d & more")
    assert "<desc>asyncli run f00d &amp; more</desc>" in svg
    assert "DOCTYPE" not in svg
    assert "Matplotlib" not in svg
    ET.fromstring(svg)
    png = draw.file_png(figure, "asyncli run f00d")
    assert png.startswith(b"\x89PNG")
    assert b"asyncli run f00d" in png[:4096]


def test_matplotlib_is_imported_only_for_figures_and_without_pyplot() -> None:
    code = (
        "import sys; sys.path[:0] = ['tests/analysis', 'tests/report'];"
        "import asyncli.report.figures.pictures, asyncli.report.run_report; print('matplotlib' in sys.modules, 'jinja2' in sys.modules);"
        "from test_charts import pictures_of; from synthetic_run import a_run; from asyncli.report.figures.drawing import WIDE;"
        "from asyncli.report.figures.drawing import inline_svg; inline_svg(pictures_of(a_run(30_000))[0].draw(WIDE), 'x');"
        "print('matplotlib.pyplot' in sys.modules, 'tkinter' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["False"] * 4, 0), done.stderr


def a_cost(slope: float) -> Cost:
    return Cost(slope, (slope - 10, slope + 10), 1e6, "made up", 10)


@pytest.mark.parametrize("rest", [-400.0, 0.0, 300.0])
def test_cost_bar_adds_up_to_the_total(rest: float) -> None:
    total = 1000.0 + 2 * 4000.0 + 130.0 + rest
    costs = Costs(server_user=a_cost(1000.0), kernel=a_cost(4000.0), generator_user=a_cost(130.0), residual=a_cost(rest), host_total=a_cost(total))
    assert math.isclose(sum(size for *_, size in cost_shares(costs, server="nginx")), total)
    said = [one.get_text() for one in texts(cost_parts(costs, server="nginx"))]
    assert f"{total:,.0f} B ± 10 in all" in said
    assert "kernel, 2 ends 8,000 B" in said


def test_parts_that_are_not_in_the_bar_are_named() -> None:
    hidden = Cost(52.0, (-30.0, 134.0), 0.0, "", 9)
    costs = Costs(server_user=a_cost(1000.0), kernel=a_cost(4000.0), generator_user=hidden)
    assert shares_left_out(costs, server="nginx") == ["asyncli (hidden)"]
    assert shares_left_out(Costs(server_user=a_cost(1000.0)), server="nginx") == ["kernel (unknown)"]


def test_a_part_whose_interval_says_more_than_its_middle_is_not_in_the_bar() -> None:
    """As in the table of costs, which has "wide" in place of the middle."""
    wide = Cost(9031.0, (882.0, 12_717.0), 0.0, "", 9)
    costs = Costs(server_user=a_cost(530.0), kernel=wide)
    assert [label for label, *_ in cost_shares(costs, server="nginx")] == ["nginx"]
    (left_out,) = shares_left_out(costs, server="nginx")
    assert "wide" in left_out


def test_asyncli_s_own_part_alone_is_no_connection() -> None:
    hidden = Cost(52.0, (-3000.0, 134.0), 0.0, "", 9)
    with pytest.raises(draw.NothingToDraw):
        cost_parts(Costs(kernel=hidden, generator_user=a_cost(130.0)))


@pytest.mark.parametrize("costs", [Costs(host_total=a_cost(100.0)), Costs(residual=a_cost(-5.0))])
def test_total_alone_or_below_zero_has_no_bar(costs: Costs) -> None:
    with pytest.raises(draw.NothingToDraw):
        cost_parts(costs)


def test_total_that_may_be_zero_is_not_drawn() -> None:
    hidden = Cost(1500.0, (-12_000.0, 15_000.0), 0.0, "", 9)
    costs = Costs(server_user=a_cost(500.0), kernel=a_cost(4000.0), residual=a_cost(-7000.0), host_total=hidden)
    assert [label for label, *_ in cost_shares(costs, server="nginx")] == ["nginx", "kernel, 2 ends"]
    said = {one.get_text() for one in texts(cost_parts(costs, server="nginx"))}
    assert not any("in all" in one for one in said)
    analyses = analyse(KINDS["unsteady"]())
    assert [one.label for one in slopes(analyses.costs, server="nginx")] == ["nginx", "kernel, 2 ends", "asyncli"]
    assert [one.text == "hidden" for one in slopes(analyse(KINDS["short"]()).costs, server="nginx")] == [True, False, True]


@pytest.mark.parametrize(("r2", "words"), [(0.5, "0.500"), (0.99987, "0.9999"), (0.99983, "0.9998"), (0.9999964, "> 0.9999"), (1.0, "1")])
def test_r2_is_rounded_to_one_only_if_exact(r2: float, words: str) -> None:
    assert shown_r2(r2) == words


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "server", "kernel", "ours", "rest", "violet"])
def test_text_colours_have_enough_contrast(name: str, dark: bool) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 for text."""
    pair = sorted((luminance(draw.PALETTE[name][dark]), luminance(draw.PALETTE["paper"][dark])))
    assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


def test_roles_differ_by_more_than_colour() -> None:
    looks = [(width, dash, marker) for _, width, dash, marker in draw.ROLES.values()]
    assert len(set(looks)) == len(looks)


def test_axis_is_scaled_to_the_points_not_the_band() -> None:
    """The host's memory varies: the band of its line is wider than all its points."""
    drawn = slopes(analyse(a_run(60_000, hold_s=10.0, noise=30.0, phi=0.97)).costs, server="nginx")
    most = max(max(one.above(one.fit.bytes)) for one in drawn)
    assert cost_lines(drawn).axes[0].get_ylim()[1] < 2.2 * most


def test_each_line_runs_through_its_marks_and_what_is_hidden_has_none() -> None:
    """A cost whose interval was widened on one side has its middle beside the marks: no line is drawn there."""
    known = analyse(a_run(20_000, hold_s=10.0, noise=1.0)).costs
    known = known.widened("server_user", 0.0, 400.0)
    known = msgspec.structs.replace(known, fits={name: known.fits[name] for name in ("server_user", "kernel")})
    shown, hidden = slopes(known, server="nginx")
    hidden.hidden = True
    [ax] = cost_lines([shown, hidden]).axes
    [line] = [one for one in ax.lines if one.get_linestyle() != "None"]
    most_n = line.get_xdata()[-1]
    assert line.get_ydata()[-1] == pytest.approx(shown.points[-1], rel=0.02)
    assert line.get_ydata()[-1] < 0.9 * shown.fit.cost.bytes_per_connection * most_n
    # Both are in the legend, and legible there.
    said = ax.get_legend().get_texts()
    assert len(said) == 2
    assert all(to_hex(one.get_color()) != to_hex(draw.COLOURS["paper"]) for one in said)


def test_the_bar_of_a_heap_with_a_goal_is_of_the_filled_heap() -> None:
    run = of_go(soak())
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + sample.values["runtime.heap_bytes"] + sample.values["runtime.stacks_bytes"]
    goal = analyse(run).costs.heap.at_goal
    assert goal is not None
    bar = pictures_of(run)[0]
    assert "has filled" in bar.caption
    assert any(one.get_text().endswith(f" {goal.bytes_per_connection:,.0f} B") for one in texts(bar.draw(draw.WIDE)))
