"""What the ticks of a run so far tell of the times after which clients are back from its events,
and for how long they are away, for limits on them: a limit is crossed as soon as it surely is.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.analysis.away import Away, away_of, with_longest_at_least
from asyncli.analysis.provoked import back_of, waited_s
from asyncli.core.adding import added_up
from asyncli.model.plan import Plan
from asyncli.model.records import EventCounts, RunEvent, Tick
from asyncli.report.thresholds import (
    Outcome,
    Threshold,
    judge,
    longest_away_of,
    time_back_of,
)

#: A worker that has sent nothing for less than that (s) may have clients that are back: nobody
#: counts as away until then. Of one that is silent for longer the tick has no connections.
_UNHEARD_S = 5.0


class TimesBack:
    """Folds ticks and events in time order. An event that began before the first tick that was
    folded is left out: not all of its counts are known.
    """

    def __init__(self, plan: Plan, thresholds: Sequence[Threshold]) -> None:
        self._plan = plan
        self._of: dict[int, list[Threshold]] = {}
        for threshold in thresholds:
            number = time_back_of(threshold.key)
            if number is None:
                number = longest_away_of(threshold.key)
            if number is not None:
                self._of.setdefault(number, []).append(threshold)
        self._began_s: dict[int, float] = {}
        self._counts: dict[int, EventCounts] = {}
        # By the event's number: when a second ended in which it ended some (s on the run's clock),
        # and how many.
        self._ended: dict[int, list[tuple[float, int]]] = {}
        self._since_s: float | None = None

    def event(self, event: RunEvent) -> None:
        """Take the instant of an event of the plan."""
        number = event.fields.get("number")
        is_known = self._since_s is not None and event.at_s >= self._since_s
        if number in self._of and is_known:
            self._began_s.setdefault(number, event.at_s)

    def judges(self, threshold: Threshold) -> bool:
        """Whether it is of the times back from an event that has been folded from its instant."""
        return time_back_of(threshold.key) in self._began_s

    def tick(self, t_s: float, tick: Tick) -> list[Outcome]:
        """Count a tick that ended at ``t_s`` (on the run's clock); the limits that are crossed."""
        if not self._of:
            return []
        if self._since_s is None:
            self._since_s = t_s
        for number, counts in tick.events.items():
            before = self._counts.get(number, EventCounts())
            self._counts[number] = added_up(EventCounts(), before, counts)
            if number in self._of and counts.ended + counts.stalled:
                ended = self._ended.setdefault(number, [])
                ended.append((t_s, counts.ended + counts.stalled))
        if not self._began_s or not self._has_all(tick):
            return []
        crossed: list[Outcome] = []
        for number, began_s in self._began_s.items():
            document = {"events": [self._so_far(number, began_s, t_s - _UNHEARD_S)]}
            for outcome in judge(self._of[number], document):
                if outcome.crossed:
                    crossed.append(outcome)
        return crossed

    def _has_all(self, tick: Tick) -> bool:
        """Whether each connection is held, or an event has it away."""
        away = sum(counts.away + counts.gone for counts in self._counts.values())
        return tick.held + away >= self._plan.connections

    def _so_far(self, number: int, began_s: float, until_s: float) -> dict[str, Any]:
        """The event as in the JSON, where those who are away have been so until ``until_s``."""
        counts = self._counts.get(number, EventCounts())
        back = msgspec.structs.replace(
            back_of(number, counts),
            waited_s=waited_s(self._plan, number, counts, began_s, until_s),
        )
        return {
            "number": number,
            "chosen": counts.chosen,
            "absent": counts.absent,
            "ended": counts.ended,
            "stalled": counts.stalled,
            "unheard": counts.unheard,
            "lost_with_worker": counts.lost_with_worker,
            "back": msgspec.to_builtins(back),
            "away": msgspec.to_builtins(self._away(number, counts, until_s)),
        }

    def _away(self, number: int, counts: EventCounts, until_s: float) -> Away | None:
        """For how long its clients were away, where those who are still have been so until
        ``until_s``. Nothing tells which they are: as many as it ended last, if it can be.
        """
        longest_s = 0.0
        ended_later = 0
        for t_s, ended in reversed(self._ended.get(number, [])):
            if ended_later >= counts.away:
                break
            longest_s = max(longest_s, until_s - t_s)
            ended_later += ended
        return with_longest_at_least(away_of(number, counts), longest_s)
