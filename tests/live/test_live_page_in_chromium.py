"""The live page in a real browser: it draws what the run file has, fetches nothing from elsewhere, and serves a keyboard, a phone and paper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devtools import Browser, Tab
from programs import DEADLINE_S
from recording import new_run, write_run
from synthetic_run import a_run, cut
from test_page_server import TOKEN, a_page, vanished

from asyncli.analysis.heap_cost import HeapCost
from asyncli.analysis.slope import Cost
from asyncli.core.histogram import Histogram
from asyncli.live.feed import COSTS, CostPoint, RunFeed
from asyncli.live.panels import PANELS
from asyncli.model.records import Deaths, Phase, Sample, Tick
from asyncli.model.run import Run
from asyncli.report.cost_so_far import CostSoFar, cost_so_far
from asyncli.report.format import with_error
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run

Go = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = a_run(2000, hold_s=90.0, fail_if=("lost > 0.1%", "latency_ms.p99 > 50ms"))
    for _, tick in run.ticks[40:43]:
        tick.deaths["reset"] = Deaths(count=5)
    return write_run(run, tmp_path_factory.mktemp("run") / "run.db")


async def until(tab: Tab, script: str) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while not (value := await tab.evaluate(script)):
            await asyncio.sleep(0.05)
    return value


_DRAWN = "document.querySelectorAll('figure:not([hidden]) .u-over').length >= 5"


async def opened(browser: Browser, port: int, *, width: int = 1400, path: str = "", **how: bool) -> Tab:
    tab = await browser.tab()
    await tab.show(f"http://127.0.0.1:{port}/{path}", width=width, **how)
    await until(tab, _DRAWN)
    return tab


def require_clean(tab: Tab, port: int) -> None:
    assert tab.complaints == []
    strange = [url for url in tab.requests if not url.startswith((f"http://127.0.0.1:{port}/", "data:"))]
    assert strange == []


def test_the_page_says_what_the_file_has(go: Go, browser: Browser, ended: Path) -> None:
    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port)
            numbers = await tab.evaluate("document.getElementById('numbers').innerText")
            assert "15 reset" in numbers
            assert await tab.evaluate("document.getElementById('chart-lost').innerText.includes('reset (15)')")
            limits = await until(tab, "document.querySelector('#limits tr.error') && document.getElementById('limits').innerText")
            assert "crossed" in limits
            # The run has ended.
            await until(tab, "document.getElementById('phase').className === 'failed'")
            assert (await tab.evaluate("document.title")).startswith("failed")
            assert "connections.lost" in await tab.evaluate("document.getElementById('left').innerText")
            limits = await tab.evaluate("document.getElementById('limits').innerText")
            assert "kept" in limits
            assert "so far" not in limits
            assert await tab.evaluate("document.getElementById('progress').hidden")
            held = await tab.evaluate("document.querySelector('#numbers dd').innerText")
            assert held.startswith("2,000")
            # What the report found beside what the run file has.
            at_the_end = "[...document.querySelectorAll('#notes tr')].filter((row) => row.cells[0].textContent === 'at the end')"
            told = f"{at_the_end}.some((row) => row.className === 'error' && row.innerText.includes('reset'))"
            assert await tab.evaluate(told)
            # Each chart has its numbers as a table, and a name that a screen reader says.
            table = "const d = document.querySelector('#chart-connections details'); d.open = true; true"
            await tab.evaluate(f"(() => {{ {table} }})()".replace("true; true", "true; return true"))
            rows = await until(tab, "document.querySelectorAll('#chart-connections tbody tr').length")
            assert rows > 10
            assert "held" in await tab.evaluate("document.querySelector('#chart-connections .chart').getAttribute('aria-label')")
            require_clean(tab, server.port)

    go(look())


def test_what_went_with_a_process_of_asyncli_is_said_in_words(go: Go, browser: Browser, tmp_path: Path) -> None:
    run = a_run(2000, hold_s=30.0)
    run.ticks[20][1].deaths["generator_lost"] = Deaths(count=4)
    path = write_run(run, tmp_path / "run.db")

    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port)
            for place in ("numbers", "chart-lost"):
                text = await tab.evaluate(f"document.getElementById('{place}').innerText")
                assert "asyncli's own" in text, place

    go(look())


@pytest.mark.parametrize("width", [358, 1400])
def test_no_label_of_an_axis_touches_another(go: Go, browser: Browser, ended: Path, width: int) -> None:
    # The charts are drawn again, and what they write is noted with its box.
    touching = """(async () => {
      const boxes = [];
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        const { a, d, e, f } = this.getTransform();
        const size = this.measureText(text);
        boxes.push({
          canvas: this.canvas, text,
          left: a * (x - size.actualBoundingBoxLeft) + e, right: a * (x + size.actualBoundingBoxRight) + e,
          top: d * (y - size.fontBoundingBoxAscent) + f, bottom: d * (y + size.fontBoundingBoxDescent) + f,
        });
        return fillText.call(this, text, x, y, ...rest);
      };
      [...document.querySelectorAll('button')].find((button) => button.innerText === 'Last 10 minutes').click();
      await new Promise((resolve) => setTimeout(resolve, 500));
      const isOn = (one, other) => one.canvas === other.canvas && one.text !== other.text
        && one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
      return [boxes.length, boxes.filter((one) => boxes.some((other) => isOn(one, other))).map((one) => one.text)];
    })()"""

    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port, width=width)
            written, labels = await tab.evaluate(touching)
            assert written > 20
            assert labels == []

    go(look())


@pytest.mark.parametrize(("width", "how"), [(358, {}), (1400, {"dark": True}), (800, {"printed": True})])
def test_no_screen_is_too_small_and_none_too_dark(
    go: Go, browser: Browser, ended: Path, width: int, how: dict[str, bool]
) -> None:
    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port, width=width, **how)
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            beyond = "[...document.querySelectorAll('.chart canvas')].filter(c => c.getBoundingClientRect().right > innerWidth + 1).length"
            assert await tab.evaluate(beyond) == 0
            require_clean(tab, server.port)

    go(look())


def test_latency_and_lateness_are_the_same_quantile_of_the_same_seconds_and_a_chart_says_of_when(
    go: Go, browser: Browser, tmp_path: Path
) -> None:
    run = a_run(2000, hold_s=40.0)
    hold_s = next(phase.start_s for phase in run.phases if phase.name == "hold")
    path = write_run(cut(run, hold_s + 20.0), tmp_path / "run.db")

    async def look() -> None:
        async with a_page(path) as (server, client):
            tab = await opened(browser, server.port)
            tiles = await tab.evaluate("[...document.querySelectorAll('#numbers div')].map((tile) => tile.innerText)")
            quantile = "99 of 100 below"
            timed = [tile.splitlines() for tile in tiles if quantile in tile]
            assert len(timed) == 2
            for name, _, of_when in timed:
                assert name.endswith(quantile)
                # No line ends before the unit.
                assert of_when.split(" ")[-1].split() == ["last", "10", "s"]
            async with client.get("/history") as answer:
                history = await answer.json()
            first = 1
            for panel in history["layout"]["panels"]:
                # The last second that has a value of the chart.
                of_chart = slice(first, first + len(panel["lines"]))
                read_s = [row[0] for row in history["recent"]["rows"] if any(value is not None for value in row[of_chart])]
                first = of_chart.stop
                if panel["key"] == "heap":
                    # This server's runtime tells nothing.
                    assert not read_s
                    continue
                when = await tab.evaluate(f"document.querySelector('#chart-{panel['key']} figcaption small').innerText")
                assert when == f"at 0:00:{int(read_s[-1]):02}"
            require_clean(tab, server.port)

    go(look())


def broken_words(cells: str) -> str:
    """JavaScript: the words of these cells that begin on one line and end on another, which have several boxes."""
    return f"""[...document.querySelectorAll('{cells}')].flatMap((cell) => {{
      const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      const words = [];
      while (text.nextNode()) {{
        for (const match of text.currentNode.data.matchAll(/\\S+/g)) {{
          const range = document.createRange();
          range.setStart(text.currentNode, match.index);
          range.setEnd(text.currentNode, match.index + match[0].length);
          if (range.getClientRects().length > 1) words.push(match[0]);
        }}
      }}
      return words;
    }})"""


@pytest.mark.parametrize("width", [358, 700, 1000])
def test_limits_break_no_word(go: Go, browser: Browser, tmp_path: Path, width: int) -> None:
    limits = ("cost.server_user > 600", "heartbeats.latency_ms.p99 > 100ms", "lost > 0.1%", "drift.server_user > 10MB")
    path = write_run(a_run(2000, hold_s=30.0, fail_if=limits), tmp_path / "run.db")
    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port, width=width)
            await until(tab, "document.querySelector('#limits tr.error') !== null")
            broken = await tab.evaluate(broken_words("#limits tbody td"))
            assert broken == []
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            require_clean(tab, server.port)

    go(look())


def test_the_keyboard_moves_one_line_through_all_charts(go: Go, browser: Browser, ended: Path) -> None:
    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port)
            key = """(() => {
              const box = document.querySelector('#chart-connections .chart');
              box.focus();
              for (let i = 0; i < 30; i += 1) box.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true, cancelable: true}));
              return ['connections', 'memory', 'latency'].map(
                (chart) => document.querySelector(`#chart-${chart} .chart`).getAttribute('aria-label').match(/ at ([0-9:]+)/)[1]);
            })()"""
            first, *others = await tab.evaluate(key)
            ends = await tab.evaluate("document.getElementById('left').innerText")
            assert first not in ends
            assert others == [first, first]
            require_clean(tab, server.port)

    go(look())


def test_who_has_the_token_marks_and_others_are_asked_for_it(go: Go, browser: Browser, ended: Path) -> None:
    async def look() -> None:
        async with a_page(ended, must_have_token=True) as (server, _):
            stranger = await browser.tab()
            await stranger.show(f"http://127.0.0.1:{server.port}/", width=800)
            await until(stranger, "!document.getElementById('ask-token').hidden")
            owner = await opened(browser, server.port, path=f"#token={TOKEN}")
            # It leaves the address, so that nobody copies it along.
            assert TOKEN not in await owner.evaluate("location.href")
            assert owner.complaints == []

    go(look())


def test_a_cost_that_is_unknown_has_no_chart_and_the_last_numbers_are_said(
    go: Go, browser: Browser, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFeed, "_take_cost", lambda feed, so_far: None)

    async def look() -> None:
        async with a_page(ended) as (server, client):
            server.feed.cost_points = [CostPoint(9.0, dict.fromkeys(COSTS))]
            async with client.get("/history") as answer:
                last_s = (await answer.json())["recent"]["rows"][-1][0]
            # The last second has a sample alone.
            server.feed.whole.sample(Sample(last_s + 5.5, {"server.pss_bytes": 1e6}))
            tab = await opened(browser, server.port)
            assert "–" not in await tab.evaluate("document.querySelector('#chart-connections .key').innerText")
            assert await tab.evaluate("document.getElementById('chart-cost').hidden")

    go(look())


def test_a_wide_cost_is_shown_as_its_interval_and_an_unknown_one_not_as_it_was_before(
    go: Go, browser: Browser, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFeed, "_take_cost", lambda feed, so_far: None)
    wide = Cost(27_800.0, (11_125.0, 50_293.0), 0.0, "a line", 40)
    before = {"host_total": (27_800.0, 11_125.0, 50_293.0), "server_user": (1_020.0, 1_000.0, 1_040.0), "kernel": (5_970.0, 5_900.0, 6_100.0)}

    last = ["1.02 kB", "unknown", "11.1 kB to 50.3 kB"]

    async def look() -> None:
        async with a_page(ended) as (server, _):
            server.feed.cost_points = [CostPoint(9.0, dict(before)), CostPoint(20.0, before | {"kernel": None})]
            server.feed.cost_points_made = 2
            assert server.feed._fold is not None
            server.feed._fold.cost(CostSoFar(20.0, msgspec.structs.replace(cost_so_far(read_run(ended)).cost, host_total=wide)))
            tab = await opened(browser, server.port)
            numbers = await tab.evaluate("document.getElementById('numbers').innerText")
            assert with_error(wide) in numbers
            assert "27.8" not in numbers
            shown = await tab.evaluate("[...document.querySelectorAll('#chart-cost .key b')].map((b) => b.textContent)")
            assert shown == last
            require_clean(tab, server.port)

    go(look())


async def tiles_of(tab: Tab) -> dict[str, list[str]]:
    """Name of a tile -> its number, and what stands below it."""
    tiles = await tab.evaluate("[...document.querySelectorAll('#numbers div')].map((tile) => tile.innerText.split('\\n').filter((line) => line))")
    return {name: said for name, *said in tiles}


@pytest.mark.parametrize("is_of_a_heap", [False, True])
def test_where_other_programs_are_in_the_hosts_cost_the_servers_is_said(
    go: Go, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_a_heap: bool
) -> None:
    monkeypatch.setattr(RunFeed, "_take_cost", lambda feed, so_far: None)
    run = a_run(2000, hold_s=40.0)
    path = write_run(cut(run, run.phases[2].start_s + 20.0), tmp_path / "run.db")
    hidden = Cost(-655.0, (-1705.0, 393.0), 0.0, "a line", 9)
    of_server = Cost(524.0, (512.0, 536.0), 0.0, "a line", 8)
    of_heap = HeapCost(1847.0, (1800.0, 1900.0), 0.0, "a line", 7, collections=9, forced=True)
    costs = msgspec.structs.replace(cost_so_far(run).cost, host_total=hidden, server_user=of_server)
    if is_of_a_heap:
        costs = msgspec.structs.replace(costs, live=of_heap)

    async def look() -> None:
        async with a_page(path) as (server, _):
            assert server.feed._fold is not None
            server.feed._fold.cost(CostSoFar(20.0, costs))
            tab = await opened(browser, server.port)
            said = [number for name, (number, *_) in (await tiles_of(tab)).items() if name.startswith("a connection")]
            assert said == [with_error(of_heap if is_of_a_heap else of_server)]
            require_clean(tab, server.port)

    go(look())


def test_after_the_end_all_numbers_are_of_the_holds_end_or_of_the_whole_run(go: Go, browser: Browser, ended: Path) -> None:
    run = read_run(ended)
    summary = summarise(run)
    assert summary.reconciliation.server_active is not None
    assert summary.heartbeats.latency_ms.p99 is not None
    assert summary.server.pss_bytes.hold_end is not None

    async def look() -> None:
        async with a_page(ended) as (server, _):
            # Whatever the last second says, in which nothing is held.
            server.feed._fold.sample(Sample(run.end_s, {"status.active": 1.0, "server.pss_bytes": 7e6, "server.cpu_s": 9e3}))  # type: ignore[union-attr]
            tab = await opened(browser, server.port)
            await until(tab, "document.getElementById('phase').className === 'failed'")
            numbers = {number for number, *_ in (await tiles_of(tab)).values()}
            active, p99_ms, server_bytes = await tab.evaluate(
                f"""import('/assets/format.js').then(({{ bytes, count, milliseconds }}) => [count({summary.reconciliation.server_active}),
                milliseconds({summary.heartbeats.latency_ms.p99}), bytes({summary.server.pss_bytes.hold_end})])"""
            )
            assert {active, p99_ms, server_bytes} <= numbers
            assert not any(number.endswith("cores") for number in numbers)
            require_clean(tab, server.port)

    go(look())


def test_who_has_no_token_is_shown_how_to_get_it_and_no_button_that_refuses(go: Go, browser: Browser, tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run.db", started_s=time.time())
    writer.phase(Phase("hold", 0.0))
    for second in range(1, 9):
        writer.tick(float(second), Tick(second=second, held=10, opened=10 * (second == 1), sent=5, answered=5))
    shown = "['mark', 'stop', 'not-owner', 'wrong-token'].filter((id) => !document.getElementById(id).hidden)"

    async def enter(tab: Tab, token: str) -> None:
        await tab.evaluate(f"document.getElementById('give-token').click(); document.getElementById('token').value = '{token}'; true")
        await tab.evaluate("document.querySelector('#ask-token button').click(); true")

    async def look() -> None:
        while not (tmp_path / "run.db").stat().st_size:
            await asyncio.sleep(0.05)
        async with a_page(tmp_path / "run.db", stop=lambda: None) as (server, _):
            tab = await browser.tab()
            await tab.show(f"http://127.0.0.1:{server.port}/", width=800)
            await until(tab, f"({shown}).includes('not-owner')")
            assert await tab.evaluate(shown) == ["not-owner"]
            await enter(tab, "a-wrong-token-of-the-tests")
            await until(tab, f"({shown}).includes('wrong-token')")
            await enter(tab, TOKEN)
            await until(tab, f"({shown}).includes('stop')")
            assert await tab.evaluate(shown) == ["mark", "stop"]
            assert tab.complaints == []

    go(look())
    writer.close(False)


def test_the_page_of_a_run_that_has_ended_says_that_asyncli_has_gone(go: Go, browser: Browser, ended: Path) -> None:
    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port)
            await until(tab, "document.getElementById('phase').className === 'failed'")
        said = await until(tab, "!document.getElementById('problem').hidden && document.getElementById('problem').innerText")
        assert "tries again" not in said
        assert await tab.evaluate("document.getElementById('phase').className") == "failed"

    go(look())


def test_a_page_that_was_refused_takes_a_new_token(go: Go, browser: Browser, ended: Path) -> None:
    async def look() -> None:
        async with a_page(ended) as (server, _):
            port = server.port
            tab = await opened(browser, port, path=f"#token={TOKEN}")
        # A soak with another token listens at the same address.
        async with a_page(ended, port=port, token="another-token-of-the-tests", must_have_token=True):
            await until(tab, "!document.getElementById('ask-token').hidden")
            use = "document.getElementById('token').value = 'another-token-of-the-tests'; document.querySelector('#ask-token button').click(); true"
            await tab.evaluate(use)
            await until(tab, "document.getElementById('ask-token').hidden && document.getElementById('problem').hidden")
        async with a_page(ended, port=port, token="the-third-token-of-the-tests", must_have_token=True):
            await until(tab, "!document.getElementById('ask-token').hidden")
            await tab.evaluate("location.hash = 'token=the-third-token-of-the-tests'; true")
            await until(tab, "document.getElementById('ask-token').hidden && document.getElementById('problem').hidden")

    go(look())


def without_the_server(run: Run, from_s: float, until_s: float) -> Run:
    """The run with a server that is dead meanwhile: asyncli goes on."""
    for sample in run.samples:
        if from_s < sample.t_s < until_s:
            for name in [name for name in sample.values if name.startswith(("server.", "status."))]:
                del sample.values[name]
    for t_s, tick in run.ticks:
        if from_s < t_s < until_s:
            tick.latency_us = Histogram()
            tick.lateness_us = Histogram()
    return run


def cells_of(chart: str, label: str) -> str:
    """JavaScript: what the table of a chart says of a line, as [clock, text]."""
    return f"""(() => {{
      const chart = document.getElementById('chart-{chart}');
      const labels = [...chart.querySelectorAll('thead th')].map((head) => head.textContent);
      return [...chart.querySelectorAll('tbody tr')].map((row) => [row.cells[0].textContent, row.cells[labels.indexOf('{label}')].textContent]);
    }})()"""


def seconds_of(clock: str) -> int:
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def test_what_was_not_read_has_no_line_and_no_number(go: Go, browser: Browser, tmp_path: Path) -> None:
    run = a_run(2000, hold_s=120.0)
    begun_s = run.phases[2].start_s
    died_s, came_s = begun_s + 20, begun_s + 80
    path = write_run(without_the_server(run, died_s, came_s), tmp_path / "run.db")
    lines = [("connections", "by the server's count"), ("memory", "of the server"), ("latency", "half"), ("cpu", "server")]

    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port)
            await tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            for chart, label in lines:
                quoted = label.replace("'", "\\'")
                cells = await until(tab, cells_of(chart, quoted))
                dead = [text for clock, text in cells if died_s + 1 < seconds_of(clock) < came_s - 1]
                alive = [text for clock, text in cells if begun_s + 1 < seconds_of(clock) < died_s - 1]
                assert len(dead) > 5
                assert set(dead) == {"–"}
                assert "–" not in alive
            held = await tab.evaluate(cells_of("connections", "held"))
            assert "–" not in [text for clock, text in held if died_s < seconds_of(clock) < came_s]
            require_clean(tab, server.port)

    go(look())


@pytest.mark.parametrize("width", [358, 1400])
def test_who_is_silent_and_who_is_back_is_said(go: Go, browser: Browser, tmp_path: Path, width: int) -> None:
    path = vanished(tmp_path / "run.db")

    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port, width=width)
            numbers = await tab.evaluate("[...document.querySelectorAll('#numbers div')].map((place) => place.innerText).filter((text) => text.includes('away'))")
            assert len(numbers) == 1
            assert "440" in numbers[0]
            assert "400" in numbers[0]
            rows = await tab.evaluate("[...document.querySelectorAll('#comebacks tbody tr')].map((row) => [...row.cells].slice(1).map((cell) => cell.innerText))")
            assert rows == [["vanish 30%", "600", "400", "200"], ["drop 5%", "100", "0", "0"]]
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            require_clean(tab, server.port)

    go(look())


def test_the_numbers_of_a_chart_are_of_its_instant(go: Go, browser: Browser, tmp_path: Path) -> None:
    run = a_run(2000, hold_s=120.0)
    begun_s = run.phases[2].start_s
    path = write_run(cut(without_the_server(run, begun_s + 20, begun_s + 80), begun_s + 40), tmp_path / "run.db")
    legend = "[...document.querySelectorAll('#chart-%s .key li')].map((line) => line.innerText.split('\\n'))"

    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port)
            _, _, of_server = await tab.evaluate(legend % "connections")
            assert of_server[-1] == "–"
            of_server, *_ = await tab.evaluate(legend % "memory")
            assert of_server[-1] == "–"
            # All of its lines are as old, and it says so.
            when = await tab.evaluate("document.querySelector('#chart-latency figcaption small').innerText")
            assert seconds_of(when.removeprefix("at ")) <= begun_s + 20
            assert "–" not in dict(await tab.evaluate(legend % "latency")).values()
            require_clean(tab, server.port)

    go(look())


@pytest.mark.parametrize(
    ("values", "width_s", "known"),
    [
        # Read every third second, then every eighth, which is no gap.
        ([1, None, None, 2, None, None, 3], 1, [1, "on", "on", 2, "on", "on", 3]),
        ([1, 2, *[None] * 7, 3, *[None] * 7, 4], 1, [1, 2, *["on"] * 7, 3, *["on"] * 7, 4]),
        # Missing; and so is what was to come next.
        ([1, 2, 3, None, None, None, 4, 5], 1, [1, 2, 3, None, None, None, 4, 5]),
        ([1, 2, None, None, None, None], 1, [1, 2, "on", "on", None, None]),
        # A row of nothing.
        ([1, 2, "none", 3, 4], 1, [1, 2, None, 3, 4]),
        # Two rows of a stretch are no pace.
        ([1, 1, None, None, None, None, 2, 2, None, None, None, None, 3, 3], 2, [1, 1, *["on"] * 4, 2, 2, *["on"] * 4, 3, 3]),
        ([None, None, 7, None, None, None], 1, [None, None, 7, "on", "on", None]),
    ],
)
def test_a_reading_holds_until_the_next_one_is_missing(
    go: Go, browser: Browser, ended: Path, values: list[Any], width_s: int, known: list[Any]
) -> None:
    script = f"""(async () => {{
      const {{ withBreaks }} = await import('/assets/charts.js');
      const values = {msgspec.json.encode(values).decode()}.map((value) => ({{ none: null }}[value] === null ? null : value ?? undefined));
      return withBreaks(values.map((_, place) => place), values, {width_s}).map((value) => (value === undefined ? 'on' : value));
    }})()"""

    async def look() -> None:
        async with a_page(ended) as (server, _):
            tab = await opened(browser, server.port)
            assert await tab.evaluate(script) == known

    go(look())


@pytest.mark.parametrize("pause_s", [6.0, 60.0])
def test_no_line_is_drawn_where_nothing_was_recorded(go: Go, browser: Browser, tmp_path: Path, pause_s: float) -> None:
    """A run that was killed and resumed; its memory is read every eight seconds, which is no gap."""
    run = a_run(2000, hold_s=120.0)
    begun_s = run.phases[2].start_s
    end_s = begun_s + 20 + pause_s
    run.ticks = [row for row in run.ticks if not begun_s + 20 < row[0] < end_s]
    run.samples = [
        sample for number, sample in enumerate(run.samples) if number % 8 == 0 and not begun_s + 20 < sample.t_s < end_s
    ]
    path = write_run(run, tmp_path / "run.db")
    keys = [line.key for panel in PANELS for line in panel.lines]
    # The instants at which a line is broken.
    breaks = """(async (column) => {
      const { withBreaks, withGaps } = await import('/assets/charts.js');
      const rows = withGaps((await (await fetch('/history')).json()).whole.rows, 1);
      const times = rows.map((row) => row[0]);
      const values = rows.map((row) => row[column] ?? undefined);
      return withBreaks(times, values, 1).flatMap((value, place) => (value === null ? [times[place]] : []));
    })"""

    async def look() -> None:
        async with a_page(path) as (server, _):
            tab = await opened(browser, server.port)
            for key, is_broken in (("held", True), ("server", pause_s > 20)):
                instants = await tab.evaluate(f"{breaks}({1 + keys.index(key)})")
                within = [at_s for at_s in instants if begun_s + 20 < at_s < end_s]
                assert bool(within) == is_broken, key
            require_clean(tab, server.port)

    go(look())
