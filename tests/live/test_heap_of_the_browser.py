"""The browser's memory is bounded however long a run is looked at. A short version of `bench/live_page.py --replay 10000`."""

from __future__ import annotations

from pathlib import Path

import pytest
from devtools import Browser
from recording import write_run
from replayed_page import replayed
from synthetic_run import a_run
from test_live_page_in_chromium import Go

# From 1,300 s on all of the page's rows have been there: before, it is sent more and more of them.
MEASURED_AT_S = (1300, 1900)
# A page that kept the news of each second grew by 2.1 MB in these 600 s; without that it moves by less than 100 kB.
MOST_BYTES = 250_000


@pytest.mark.measures
def test_the_heap_of_the_browser_is_flat(go: Go, browser: Browser, tmp_path: Path) -> None:
    path = write_run(a_run(1000, hold_s=2600.0), tmp_path / "run.db")

    async def look() -> None:
        first, *others = await replayed(browser, path, begins_s=60, measured_at_s=MEASURED_AT_S)
        # Each second was sent.
        assert first.events > 1000
        for heap in others:
            assert heap.used_bytes - first.used_bytes < MOST_BYTES
            assert (heap.nodes, heap.listeners) == (first.nodes, first.listeners)

    go(look())
