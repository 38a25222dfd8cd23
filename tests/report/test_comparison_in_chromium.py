"""The page of a comparison in a real browser: light, dark, on a phone and on paper."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from devtools import Browser
from synthetic_run import a_run
from test_comparison import compared, dearer
from test_page_in_chromium import LAYOUT, VIEWS, Go, browser, go, shown

from asyncli.report.comparison_report import page

__all__ = ["browser", "go"]  # fixtures of the other page's tests


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("comparisons")
    first, again = a_run(5000, hold_s=60.0), a_run(5000, hold_s=60.0, seed=4)
    silent = a_run(5000, hold_s=60.0, seed=5)
    silent.samples = []
    found = {}
    for kind, runs in (("unlike", (first, dearer())), ("three", (first, again, dearer(3))), ("silent", (silent, again))):
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(page(compared(*runs)), encoding="utf-8")
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["unlike", "three", "silent"])
def test_it_renders(go: Go, browser: Browser, pages: dict[str, Path], kind: str, view: str) -> None:
    async def look() -> None:
        tab = await shown(browser, pages[kind], **VIEWS[view])
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page itself scrolls sideways"
        narrow = "phone" in view
        figures = await tab.evaluate("document.querySelectorAll('figure').length")
        assert figures == {"unlike": 1, "three": 2, "silent": 1}[kind]
        for which in ("wide", "narrow"):
            seen = await tab.evaluate(
                f"[...document.querySelectorAll('.plot.{which}')].filter(one => one.checkVisibility()).length"
            )
            assert seen == (figures if (which == "narrow") == narrow else 0)
        assert await tab.evaluate(LAYOUT) == []
        if not narrow and view != "tablet":
            assert await tab.evaluate(
                "[...document.querySelectorAll('.scroll')].every(one => one.scrollWidth <= one.clientWidth)"
            )

    go(look())


def test_it_prints_whole(go: Go, browser: Browser, pages: dict[str, Path]) -> None:
    async def look() -> None:
        tab = await shown(browser, pages["unlike"], width=660, printed=True)
        assert await tab.evaluate("[...document.querySelectorAll('.plot.wide')].every(one => one.checkVisibility())")
        pdf = base64.b64decode((await tab.call("Page.printToPDF", preferCSSPageSize=True))["data"])
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") in range(2, 6)

    go(look())
