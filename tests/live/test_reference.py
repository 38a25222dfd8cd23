"""Another run laid under a run's charts: what a page gets of it, how it is aligned, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from devtools import Browser
from programs import here
from recording import new_run, write_run
from synthetic_run import a_run
from test_folder_page import a_folder, fetched
from test_live_page_in_chromium import Go, opened, require_clean, until
from test_page_server import a_page

from asyncli.live import reference
from asyncli.live.reference import read_reference
from asyncli.model.errors import StoreError
from asyncli.model.records import Deaths, Phase

HELD_BEFORE_S = 10.0


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(a_run(2000, hold_s=40.0), tmp_path_factory.mktemp("run") / "run.db")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same ramp after a longer baseline, and a hold that is half as long."""
    run = a_run(2000, hold_s=20.0, baseline_s=a_run(10).plan.baseline_s + HELD_BEFORE_S)
    run.ticks[20][1].deaths["reset"] = Deaths(count=7)
    return write_run(run, tmp_path_factory.mktemp("run") / "earlier.db")


def test_it_is_the_run_that_it_names(earlier: Path) -> None:
    document = read_reference(earlier)
    assert (document["file"], document["asked"], document["lost"]) == ("earlier.db", 2000, 7)
    assert document["first_connect_s"] > HELD_BEFORE_S
    assert len(document["rows"]) > 20


def test_what_cannot_be_aligned_is_refused(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "baseline.db")
    writer.phase(Phase("baseline", 0.0))
    writer.close(True)
    with pytest.raises(StoreError, match="connected"):
        read_reference(tmp_path / "baseline.db")


def test_bad_input_is_one_line(ended: Path, tmp_path: Path) -> None:
    shutil.copy(ended, tmp_path / "run.db")
    (tmp_path / "no.db").write_text("no run")
    cases = [
        ("watch", "run.db", "--web", "127.0.0.1:0", "--reference", "no.db"),
        ("watch", "run.db", "--web", "127.0.0.1:0", "--reference", "nothing.db"),
        ("watch", "run.db", "--reference", "run.db"),
        ("watch", ".", "--web", "127.0.0.1:0", "--reference", "run.db"),
        ("soak", "http://127.0.0.1:9/", "--metrics", "127.0.0.1:0", "--reference", "run.db"),
    ]
    for words in cases:
        done = here(tmp_path, *words)
        assert done.status == 2
        assert done.err.count("\n") == 1
        assert "--reference: " in done.err


async def test_of_a_folder_it_is_chosen_by_name(ended: Path, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_MOST_KEPT", 1)
    shutil.copy(ended, tmp_path / "run.db")
    shutil.copy(earlier, tmp_path / "än earlier.db")
    (tmp_path / "no.db").write_text("no run")
    async with a_folder(tmp_path) as (server, client):
        document = await fetched(client, "/run/run.db/history?reference=%C3%A4n%20earlier.db")
        assert document["reference"]["file"] == "än earlier.db"
        assert document["why_no_reference"] == ""
        # What is no run is told, and the page is shown without it; no name leads out of the folder.
        for name in ("no.db", "nothing.db", "..%2frun.db", "%2fetc%2fpasswd"):
            document = await fetched(client, f"/run/run.db/history?reference={name}")
            assert document["reference"] is None
            assert document["why_no_reference"]
        assert (await fetched(client, "/run/run.db/history"))["reference"] is None
        await fetched(client, "/run/run.db/history?reference=run.db")
        assert len(server._references._kept) == 1


_MOVE = """(() => {
  const box = document.querySelector('#chart-connections .chart');
  box.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true, cancelable: true}));
  return box.getAttribute('aria-label');
})()"""


def test_of_a_longer_run_the_same_instant_is_told(go: Go, browser: Browser, ended: Path, earlier: Path) -> None:
    async def look() -> None:
        async with a_page(earlier, reference=read_reference(ended)) as (server, _):
            tab = await opened(browser, server.port)
            label = await tab.evaluate("document.querySelector('#chart-connections .chart').getAttribute('aria-label')")
            # The run has been drained; the one under it holds its connections.
            held = re.findall("held(?: · run.db)? ([0-9,]+)", label)
            assert [value.rstrip(",") for value in held] == ["0", "2,000"]

    go(look())


def test_both_runs_are_aligned_at_the_first_connect(go: Go, browser: Browser, ended: Path, earlier: Path) -> None:
    async def look() -> None:
        async with a_page(ended, reference=read_reference(earlier)) as (server, _):
            tab = await opened(browser, server.port)
            assert "earlier.db" in await tab.evaluate("document.getElementById('reference').textContent")
            assert "earlier.db" in await tab.evaluate("document.querySelector('#chart-connections .key').innerText")
            pairs = []
            for _ in range(120):
                label = await tab.evaluate(_MOVE)
                values = dict(part.rsplit(" ", 1) for part in label.partition(": ")[2].replace(", ", "\n").split("\n"))
                pairs.append((values["held"].replace(",", ""), values["held · earlier.db"].replace(",", "")))
            # After its end, nothing is said of it; before, both ramps are the same.
            assert pairs[0][1] == "–"
            both = [(int(held), int(before)) for held, before in pairs if "–" not in (held, before)]
            in_ramp = [(held, before) for held, before in both if 0 < held < 2000 and 0 < before < 2000]
            assert len(in_ramp) >= 1
            # The clocks of both differ by less than a second, in which 1,000 are opened.
            assert all(abs(held - before) <= 1000 for held, before in in_ramp)
            assert sum((held, before) == (2000, 2000) for held, before in both) > 10
            # The numbers are in the table too.
            await tab.evaluate("document.querySelector('#chart-connections details').open = true")
            await until(tab, "document.querySelector('#chart-connections thead')?.innerText.includes('held · earlier.db')")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= 1400
            require_clean(tab, server.port)

    go(look())
