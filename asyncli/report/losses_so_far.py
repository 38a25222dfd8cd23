"""Why connections were lost, as far as a run goes: news of the live views."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.model.records import Finding
from asyncli.report.limits_so_far import NEWS_EVERY_S


class LossSoFar(msgspec.Struct, frozen=True):
    """The report's ``finding`` of one incident if the run had ended now. ``code``: of its
    diagnosis; ``from_s``: its first loss (on the run's clock).
    """

    code: str
    from_s: float
    finding: Finding


class LossNews:
    """Tells each incident with its diagnosis once, and a diagnosis at most once a minute: an
    incident that goes on is no news, and one that is explained otherwise is.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, float]] = set()
        self._told_s: dict[str, float] = {}

    def of(self, losses: Sequence[LossSoFar], at_s: float) -> list[Finding]:
        """What is news at ``at_s`` (on the run's clock)."""
        findings = []
        for loss in losses:
            if (loss.code, loss.from_s) in self._told:
                continue
            if at_s - self._told_s.get(loss.code, -NEWS_EVERY_S) < NEWS_EVERY_S:
                continue
            self._told.add((loss.code, loss.from_s))
            self._told_s[loss.code] = at_s
            findings.append(loss.finding)
        return findings
