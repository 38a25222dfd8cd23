"""Follows a run file in another process than the soak's: folds what is new in it, and tells why
nothing new comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from asyncli.model.records import Finding, RunEvent
from asyncli.model.units import format_duration
from asyncli.report.livestate import LiveFold, LiveState
from asyncli.store.follow import Follower, News

#: A writer commits once a second: after this long (s) without a record it hangs, or its disk is
#: full.
QUIET_S = 10.0
#: A file without a lock belongs to a killed run, unless it still grows: not every file system has
#: locks.
UNLOCKED_S = 3.0


def why_ended_of(follower: Follower, news: News) -> str:
    """Why the run does not continue; "" while it does."""
    if news.complete:
        return "the run has ended"
    if not follower.is_there:
        return "the run file was moved, deleted or emptied, which ended the run"
    quiet_s = follower.quiet_s
    is_unlocked = not follower.is_open
    if quiet_s < (UNLOCKED_S if is_unlocked else QUIET_S):
        return ""
    quiet = f"nothing new for {format_duration(round(quiet_s))}"
    if is_unlocked:
        return f"{quiet}, and no process writes it: the run ended early"
    return f"{quiet}: its process hangs, or its disk takes nothing"


def fold_news(
    fold: LiveFold, news: News, after_news: Callable[[LiveState], None] | None = None
) -> None:
    """Fold new records in time order, and call ``after_news`` after each finding and event."""

    def fold_finding(t_s: float, finding: Finding) -> None:
        fold.finding(finding, t_s)
        if after_news is not None:
            after_news(fold.state())

    def fold_event(event: RunEvent) -> None:
        fold.event(event)
        if after_news is not None:
            after_news(fold.state())

    # (time, order among records of that time, fold)
    records: list[tuple[float, int, Callable[[], None]]] = []
    for phase in news.phases:
        begun = msgspec.structs.replace(phase, end_s=None)
        records.append((phase.start_s, 0, partial(fold.phase, begun)))
        if phase.end_s is not None:
            records.append((phase.end_s, 4, partial(fold.phase, phase)))
    for t_s, tick in news.ticks:
        records.append((t_s, 1, partial(fold.tick, t_s, tick)))
    for sample in news.samples:
        records.append((sample.t_s, 2, partial(fold.sample, sample)))
    for t_s, finding in news.findings:
        records.append((t_s, 3, partial(fold_finding, t_s, finding)))
    for event in news.events:
        records.append((event.at_s, 3, partial(fold_event, event)))
    fold.planned(news.plan, news.interrupted_s)
    fold.turns_to_come(news.turns_to_come)
    for _, _, fold_record in sorted(records, key=lambda record: record[:2]):
        fold_record()
