"""Marks a run that another process of this host writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asyncli.environment import on_clock
from asyncli.model.errors import StoreError
from asyncli.model.records import Environment, RunEvent
from asyncli.store.mark import add_mark


def mark_run(path: Path, text: str, monotonic_s: float) -> RunEvent:
    """Mark the run in ``path`` at the instant ``monotonic_s`` of time.monotonic().

    Not by the wall clock, which may have been stepped since the run began: all processes of a boot
    share the monotonic clock, so the instant is exact.

    Raises :class:`StoreError` (one line) if the run cannot be marked.
    """

    def now_s(environment: Environment) -> float:
        clock: Any = environment.get("clock")
        if clock is None:
            raise StoreError(f"{path}: its run has not begun to measure; mark it in a moment")
        try:
            at_s = on_clock(clock, monotonic_s)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{path}: the file is damaged ({error}); nothing was marked") from None
        if at_s is None:
            raise StoreError(
                f"{path}: its run has another clock than this process (another host, boot or time "
                "namespace); mark it where it runs"
            )
        return at_s

    return add_mark(path, text, now_s)
