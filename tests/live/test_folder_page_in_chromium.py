"""The start page of a folder in a real browser: it lists what is there, and leads to each run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from devtools import Browser
from recording import new_run, write_run
from synthetic_run import a_run
from test_folder_page import a_folder
from test_live_page_in_chromium import _DRAWN, Go, broken_words, require_clean, until
from test_page_server import TOKEN

from asyncli.model.records import Deaths, Phase, Tick

LONG_NAME = "a run with a long name, of a night in which much was lost.db"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(a_run(2000, hold_s=40.0), folder / "before.db", started_s=1_740_000_000.0)
    lossy = a_run(1000, hold_s=40.0, fail_if=("lost > 0.1%",))
    lossy.ticks[20][1].deaths["reset"] = Deaths(count=50)
    write_run(lossy, folder / LONG_NAME)
    (folder / "no.db").write_text("no run")
    return folder


def test_the_list_says_what_is_there_and_leads_to_each_run(go: Go, browser: Browser, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)

    async def look() -> None:
        async with a_folder(folder) as (server, _):
            tab = await browser.tab()
            await tab.show(f"http://127.0.0.1:{server.port}/", width=1000)
            await until(tab, "document.querySelectorAll('#runs tbody tr').length === 3")
            names = await tab.evaluate("[...document.querySelectorAll('#runs a')].map((link) => link.textContent)")
            assert names == [LONG_NAME, "before.db"]
            dates = "[...document.querySelectorAll('#runs td:nth-child(2)')].map((cell) => { const range = document.createRange(); range.selectNodeContents(cell); return new Set([...range.getClientRects()].map((box) => box.top)).size; })"
            assert set(await tab.evaluate(dates)) == {1}
            broken = await tab.evaluate(broken_words("#runs td:nth-child(2)"))
            assert broken == []
            assert await tab.evaluate("document.getElementById('none').hidden")
            await until(tab, "document.querySelector('#runs tr.error b')?.textContent.startsWith('failed')")
            # A new run appears, and the keyboard stays where it is.
            await tab.evaluate("document.querySelectorAll('#runs a')[1].focus(); true")
            writer = new_run(folder / "now.db", started_s=time.time())
            writer.phase(Phase("ramp", 0.0))
            writer.tick(1.0, Tick(second=1, held=10, opened=10))
            await until(tab, "document.querySelector('#runs tr.running a')?.textContent === 'now.db'")
            assert await tab.evaluate("document.activeElement.textContent") == "before.db"
            writer.close(True)
            await until(tab, "!document.querySelector('#runs tr.running')")
            await tab.evaluate("document.activeElement.click(); true")
            await until(tab, _DRAWN)
            assert "before.db" in await tab.evaluate("document.getElementById('byline').textContent")
            await tab.evaluate("document.getElementById('all-runs').click(); true")
            await until(tab, "document.querySelectorAll('#runs tbody tr').length === 4")
            require_clean(tab, server.port)

    go(look())


@pytest.mark.parametrize(("width", "dark"), [(358, False), (800, True)])
def test_the_list_fits_a_phone(go: Go, browser: Browser, runs: Path, width: int, dark: bool) -> None:
    async def look() -> None:
        async with a_folder(runs) as (server, _):
            tab = await browser.tab()
            await tab.show(f"http://127.0.0.1:{server.port}/", width=width, dark=dark)
            await until(tab, "document.querySelectorAll('#runs tbody tr').length === 3")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            require_clean(tab, server.port)

    go(look())


def test_an_empty_folder_says_so_and_a_stranger_is_asked_for_the_token(go: Go, browser: Browser, tmp_path: Path) -> None:
    async def look() -> None:
        async with a_folder(tmp_path, must_have_token=True) as (server, _):
            tab = await browser.tab()
            await tab.show(f"http://127.0.0.1:{server.port}/", width=800)
            await until(tab, "!document.getElementById('ask-token').hidden")
            assert await tab.evaluate("document.getElementById('runs').hidden")
            use = f"document.getElementById('token').value = '{TOKEN}'; document.querySelector('#ask-token button').click(); true"
            await tab.evaluate(use)
            await until(tab, "!document.getElementById('none').hidden && document.getElementById('ask-token').hidden")

    go(look())
