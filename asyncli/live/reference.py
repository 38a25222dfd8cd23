"""Another run that is laid under the charts of a run, aligned at the first connect of both: as it
was when it was read.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

from asyncli.live.feed import RunFeed
from asyncli.live.page_state import plain_row
from asyncli.model.errors import StoreError
from asyncli.model.text import printable
from asyncli.store.follow import last_written_s, size_bytes

# Of some hundred rows each.
_MOST_KEPT = 4


def read_reference(path: Path) -> dict[str, Any]:
    """What a page needs of the run in ``path``, as plain data: the rows of its charts, some hundred
    whatever its length. Blocks.

    Raises :class:`~asyncli.model.errors.StoreError` (one line) for what is no run, and for a run
    without a first connect.
    """
    feed = RunFeed(path)
    feed.open(with_cost=False)
    if not math.isfinite(feed.first_connect_s):
        raise StoreError(f"{path}: nothing was connected in it; name a run with a ramp")
    state = feed.state
    return {
        "file": printable(path.name),
        "began_s": feed.began_s,
        "first_connect_s": feed.first_connect_s,
        "asked": state.asked,
        "lost": state.lost,
        "failed": state.failed,
        "width_s": feed.whole.width_s,
        "rows": [plain_row(row) for row in feed.whole.rows()],
        "baselines": feed.baselines,
    }


class References:
    """Those of a folder's pages: each is read once, and a few are kept."""

    def __init__(self) -> None:
        #: (Path, size, when it was written) -> what a page needs of it.
        self._kept: OrderedDict[tuple[Path, int, float], dict[str, Any]] = OrderedDict()
        self._reading = asyncio.Lock()

    async def read(self, path: Path | None) -> dict[str, Any]:
        """See :func:`read_reference`; None: there is no such file."""
        if path is None:
            raise StoreError("the reference is no run of this folder; choose another")
        async with self._reading:
            key = (path, size_bytes(path), last_written_s(path))
            if key not in self._kept:
                self._kept[key] = await asyncio.to_thread(read_reference, path)
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]
