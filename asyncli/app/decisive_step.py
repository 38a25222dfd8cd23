"""Which step of a capacity search explains its verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.capacity import Bracket, Verdict
from asyncli.report.capacity_step import Step


def decisive_step(word: Verdict, steps: Sequence[Step], known: Bracket) -> Step | None:
    """The step that explains the verdict best."""
    if steps and steps[-1].outcome == "ours":
        return steps[-1]
    failed = [step for step in steps if step.outcome == "failed"]
    at_bracket = [step for step in failed if step.asked == known.failed]
    if word == "failed":
        return _best_explained(failed) or _largest(at_bracket)
    return at_bracket[-1] if at_bracket else None


def _best_explained(failed: Sequence[Step]) -> Step | None:
    """Of the steps of a search that found no number: the one that explains best why."""
    timed = [step for step in failed if step.tried.timed]
    explained = [step for step in failed if step.is_explained]
    not_chance = [step for step in failed if not step.tried.chance]
    return _largest(timed or explained or not_chance)


def _largest(steps: Sequence[Step]) -> Step | None:
    """The last of the largest, which lost the most connections."""
    if not steps:
        return None
    return sorted(steps, key=lambda step: step.asked)[-1]
