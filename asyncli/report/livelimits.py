"""Limits of ``--fail-if`` that can be judged while a soak runs (``--abort``): those on what can only grow. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from asyncli.records import Tick
from asyncli.report.thresholds import Outcome, Threshold, judge

_GROWING = ("connections.lost", "connections.failed", "heartbeats.failed", "heartbeats.latency_ms.max")
_GROWING_PARTS = ("connections.deaths.", "connections.failures.", "heartbeats.by_status.")


def can_be_judged(one: Threshold) -> bool:
    """Whether crossing it is final: an upper bound on what never falls, and not a share of what grows as well."""
    grows = one.key in _GROWING or one.key.startswith(_GROWING_PARTS)
    return grows and one.comparison in (">", ">=") and one.whole in (None, "connections.requested")


class LiveLimits:
    """Those of ``thresholds`` that can be judged, over the ticks of a soak of ``requested`` connections."""

    def __init__(self, thresholds: Iterable[Threshold], requested: int) -> None:
        self._thresholds = [one for one in thresholds if can_be_judged(one)]
        self._requested = requested
        self._total = Tick()

    def crossed(self, tick: Tick) -> Outcome | None:
        """The first that is crossed with this tick."""
        if not self._thresholds:
            return None
        self._total.merge_counts(tick)
        total = self._total
        greatest = total.latency_us.greatest
        document = {
            "connections": {
                "requested": self._requested, "lost": total.lost, "failed": sum(total.failures.values()),
                "failures": total.failures, "deaths": {cause: deaths.count for cause, deaths in total.deaths.items()},
            },
            "heartbeats": {
                "failed": total.beats_failed, "by_status": {str(status): count for status, count in total.by_status.items()},
                "latency_ms": {"max": greatest / 1000 if greatest >= 0 else None},
            },
        }  # fmt: skip
        return next((one for one in judge(self._thresholds, document) if one.crossed), None)
