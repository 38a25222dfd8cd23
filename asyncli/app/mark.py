"""Marks a run that another process of this host writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asyncli.environment import on_clock
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.records import Environment, RunEvent
from asyncli.model.text import oneline
from asyncli.store.mark import add_mark

# Longer than a deploy's name and its reason. It stands in one line of logs and reports.
_MOST_CHARACTERS = 200


def text_of_mark(said: str) -> str:
    """What a mark may say. Raises :class:`PlanError` for another text."""
    lines = said.strip().splitlines()
    if len(lines) > 1:
        raise PlanError(f"has {len(lines):,} lines, and a mark one; write one line")
    text = oneline(" ".join(lines))
    if not text:
        raise PlanError("is empty; write what happened, such as 'deployed 1.4.2'")
    if len(text) > _MOST_CHARACTERS:
        raise PlanError(
            f"has {len(text):,} characters, and a mark at most {_MOST_CHARACTERS}; write less"
        )
    return text


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
