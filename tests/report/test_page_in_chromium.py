"""The page in a real browser: it renders without requests or errors, and is readable on any screen, in print and without scripts."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from devtools import Browser, Tab
from made_runs import KINDS, a_night
from synthetic_run import a_run
from test_comparison import compared, dearer

from asyncli.findings.server import OF_ANOTHER
from asyncli.model.records import Finding
from asyncli.report.analyses import analyse
from asyncli.report.comparison_report import comparison_document
from asyncli.report.figures.drawing import PALETTE
from asyncli.report.html import page
from asyncli.report.run_report import render
from asyncli.report.summary import summarise

Go = Callable[[Coroutine[Any, Any, Any]], Any]

# Text smaller than this on the screen (px) cannot be read at arm's length.
SMALLEST = 9.5

#: Visible texts of the figures that are too small, beyond their figure, or overlap.
LAYOUT = """(() => {
  const wrong = [];
  for (const svg of document.querySelectorAll(".plot svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const scale = frame.width / svg.viewBox.baseVal.width;
    const boxes = [];
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect(), words = text.textContent;
      if (!words.trim()) continue;
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < SMALLEST) wrong.push(`${size.toFixed(1)} px: ${words}`);
      if (box.left < frame.left - 6 || box.right > frame.right + 6) wrong.push(`beyond the figure: ${words}`);
      for (const [other, said] of boxes) {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 2 && down > 5 * scale) wrong.push(`${words} stands on ${said}`);
      }
      boxes.push([box, words]);
    }
  }
  return wrong;
})()""".replace("SMALLEST", str(SMALLEST))


def report(kind: str) -> str:
    if kind == "two runs":
        return page(comparison_document(compared(a_run(5000, hold_s=60.0), dearer())))
    run = a_night() if kind == "night" else KINDS[kind.removesuffix(" and doubted")]()
    if kind.endswith(" and doubted"):
        run.findings.append(Finding(OF_ANOTHER[0], "warning", "it may be another process's", "name it"))
    analyses = analyse(run)
    return render(run, summarise(run, analyses), analyses)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    def made(kind: str) -> Path:
        path = folder / f"{kind.replace(' ', '-')}.html"
        if not path.exists():
            path.write_text(report(kind), encoding="utf-8")
        return path

    return made


async def shown(browser: Browser, page: Path, **how: Any) -> Tab:
    """The page in a new tab. It must request nothing but itself and log nothing."""
    tab = await browser.tab()
    await tab.show(page, **how)
    assert [url for url in tab.requests if not url.startswith("data:")] == [page.as_uri()]
    assert tab.complaints == []
    return tab


VIEWS = {"light": {"width": 1280}, "phone": {"width": 390}, "dark": {"width": 1280, "dark": True}, "tablet": {"width": 720}}


@pytest.mark.parametrize("kind", ["deaths", "two runs", "good", "night", "nothing", "hostile"])
def test_page_renders(go: Go, browser: Browser, pages: Callable[[str], Path], kind: str) -> None:
    async def look(view: str) -> None:
        tab = await shown(browser, pages(kind), **VIEWS[view])
        dark, narrow = "dark" in view, "phone" in view
        paper = PALETTE["paper"][dark]
        rgb = ", ".join(str(int(paper[place : place + 2], 16)) for place in (1, 3, 5))
        assert await tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == f"rgb({rgb})"
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page itself scrolls sideways"
        figures = await tab.evaluate("document.querySelectorAll('figure').length")
        for which in ("wide", "narrow"):
            seen = await tab.evaluate(f"[...document.querySelectorAll('.plot.{which}')].filter(one => one.checkVisibility()).length")
            assert seen == (figures if (which == "narrow") == narrow else 0)
        assert await tab.evaluate(LAYOUT) == []
        folded = "[...document.querySelectorAll('details .methods')].every(one => !one.checkVisibility({contentVisibilityAuto: true}))"
        assert await tab.evaluate(folded)
        if kind == "two runs" and narrow:
            cut = "[...document.querySelectorAll('.numbers, .numbers *')].filter(one => one.getBoundingClientRect().right > innerWidth).length"
            assert await tab.evaluate(cut) == 0
            verdicts = "[...document.querySelectorAll('.numbers td:last-child')].filter(one => one.checkVisibility()).length"
            assert await tab.evaluate(verdicts) > 10
        # Nothing is black on black: all texts follow the colour scheme, in the figures too.
        ink = await tab.evaluate("getComputedStyle(document.body).color")
        assert ink != f"rgb({rgb})"
        raw = base64.b64decode((await tab.call("Page.captureScreenshot", format="png"))["data"])
        assert len(colours(raw)) > 3, "an empty picture"

    # Dark mode and the tablet width need only one run.
    for view in VIEWS if kind in ("deaths", "two runs") else ("light", "phone"):
        go(look(view))


def colours(png: bytes) -> set[Any]:
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB").resize((200, 140))
    return {colour for count, colour in image.getcolors(200 * 140) or []}


@pytest.mark.parametrize("kind", ["deaths", "nothing"])
def test_page_prints_completely(go: Go, browser: Browser, pages: Callable[[str], Path], kind: str) -> None:
    async def look() -> None:
        tab = await shown(browser, pages(kind), width=660, printed=True)
        opened = "[...document.querySelectorAll('.methods')].every(one => one.checkVisibility())"
        assert await tab.evaluate(opened), "details are open on paper"
        wide = await tab.evaluate("[...document.querySelectorAll('.plot.wide')].every(one => one.checkVisibility())")
        assert wide
        pdf = base64.b64decode((await tab.call("Page.printToPDF", preferCSSPageSize=True))["data"])
        assert pdf.startswith(b"%PDF")
        # A4 in points, as in the page's style.
        assert b"/MediaBox [0 0 594.95996 841.91998]" in pdf or b"/MediaBox [0 0 595" in pdf
        count = pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ")
        assert count in (range(5, 16) if kind == "deaths" else range(2, 8)), count

    go(look())


def test_a_printed_figure_takes_less_than_half_of_a_page(go: Go, browser: Browser, pages: Callable[[str], Path]) -> None:
    """The part of A4 within the margins is 262 mm high. A taller figure leaves more of the page before it empty."""

    async def look() -> None:
        tab = await shown(browser, pages("provoked"), width=660, printed=True)
        heights = await tab.evaluate("[...document.querySelectorAll('.plot.wide svg')].map(one => one.getBoundingClientRect().height)")
        assert len(heights) > 3
        assert all(0 < height * 25.4 / 96 < 131 for height in heights), heights

    go(look())


def test_on_a_phone_the_events_come_before_the_warnings_and_are_no_smaller(go: Go, browser: Browser, pages: Callable[[str], Path]) -> None:
    async def look() -> None:
        tab = await shown(browser, pages("provoked and doubted"), width=358)
        place = "[...document.querySelectorAll('.event, .doubt')].map(one => [one.className, parseFloat(getComputedStyle(one).fontSize)])"
        places = await tab.evaluate(place)
        kinds = [kind for kind, _ in places]
        assert kinds == sorted(kinds, reverse=True)
        assert set(kinds) == {"event", "doubt"}
        sizes = dict(places)
        assert sizes["event"] > sizes["doubt"]

    go(look())


def test_dark_mode_is_not_printed(go: Go, browser: Browser, pages: Callable[[str], Path]) -> None:
    async def look() -> None:
        tab = await shown(browser, pages("good"), width=660, dark=True, printed=True)
        shown_as = [await tab.evaluate(f"getComputedStyle({of}") for of in ("document.documentElement).backgroundColor", "document.body).color")]
        assert [re.findall(r"\d+", one) for one in shown_as] == [["255"] * 3, ["29", "29", "27"]]

    go(look())


def test_page_is_readable_without_javascript(go: Go, browser: Browser, pages: Callable[[str], Path]) -> None:
    async def look() -> None:
        tab = await browser.tab()
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.show(pages("good"), width=1280)
        tree = await tab.call("Accessibility.getFullAXTree")
        said = [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in tree["nodes"]]
        # The accessibility tree: headings, tables, figures with a sentence each.
        headings = [name for role, name in said if role == "heading"]
        assert headings[0].startswith("30,000 ")
        assert "Findings" in headings
        figures = [name for role, name in said if role == "image"]
        assert len(figures) == 4
        assert any(role == "table" for role, _ in said)

    go(look())


def test_stacked_table_is_a_table_for_screen_readers(go: Go, browser: Browser, pages: Callable[[str], Path]) -> None:
    async def look() -> None:
        tab = await shown(browser, pages("good"), width=390)
        tree = await tab.call("Accessibility.getFullAXTree")
        roles = [node.get("role", {}).get("value") for node in tree["nodes"] if node.get("name", {}).get("value") == "nginx, user memory"]
        assert "rowheader" in roles

    go(look())
