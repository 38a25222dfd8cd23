"""The dead of a run as a table: cells of one cause and one second, and who has explained which of them.

The records hold marginals: per second and cause how old, how long idle, after how many requests, but not which went with
which. So a mechanism claims those that lie in its stretch of one of the three, and what it claimed is gone from that one alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from asyncli.analysis.losses.likelihood import within, without
from asyncli.analysis.losses.server_evidence import ServerEvidence
from asyncli.analysis.totals import Totals, sum_of_deaths
from asyncli.core.histogram import Histogram
from asyncli.findings import Words
from asyncli.findings.causes import Dead, in_seconds, words_of
from asyncli.records import Deaths, Tick
from asyncli.run import Run

Field = Literal["age_s", "idle_s", "requests"]
#: The causes by which a server that goes, or a part of it, ends connections.
ENDED = ("closed_idle", "closed_awaiting", "closed_announced", "reset")
# Causes that end a connection only while a heartbeat waits.
_WAITING = ("closed_awaiting", "heartbeat_timeout", "protocol_error")


class Reason(msgspec.Struct, frozen=True):
    """What one mechanism says, for all that it claims with it: sentence and remedy, with places for what :class:`Dead` knows.

    ``certain``: the run itself, or the server's configuration, counts or processes bear it out; else it is a likelihood.
    ``event`` tells apart what happened more than once.
    """

    code: str
    words: Words
    certain: bool = False
    event: int = 0


def reason(code: str, form: str = "", *, certain: bool = False, event: int = 0, **seen: Any) -> Reason:
    """The reason ``code`` with the words of its ``form`` (else its own) for what was ``seen``."""
    return Reason(code, words_of(form or code, certain, **seen), certain, event)


class LossCell:
    """The dead of one cause in one second; ``left`` of them no mechanism has claimed yet.

    ``since_s``: when what ended them began, by :func:`began_s`.
    """

    __slots__ = ("cause", "dead", "from_s", "left", "rest", "since_s", "tick", "to_s")

    def __init__(self, cause: str, dead: Deaths, tick: Tick, t_s: float, timeout_s: float) -> None:
        self.cause, self.dead, self.tick = cause, dead, tick
        self.left = dead.count
        #: Of which a part was claimed: the marginals less that part.
        self.rest = dead
        self.from_s, self.to_s = t_s - 1.0, t_s
        self.since_s = began_s(t_s, timeout_s if cause == "heartbeat_timeout" else 0.0)

    def without_request(self) -> int:
        """How many of all its dead ended before their first answer."""
        return within(self.dead.requests, 0, 0)


def began_s(t_s: float, timeout_s: float) -> float:
    """When that began which a tick at ``t_s`` tells of: its second, and of what was given up a timeout before."""
    return max(0.0, t_s - 1.0 - timeout_s)


class Attribution:
    """What one mechanism claims of one cause: how many, when they died, and between which ages and idle times."""

    def __init__(self, cause: str) -> None:
        self.cause, self.count = cause, 0
        self.from_s, self.to_s, self.since_s = math.inf, -math.inf, math.inf
        self._parts: list[tuple[LossCell, Deaths, Field | None, float, float]] = []

    def add(self, cell: LossCell, count: int, by: Field | None, low: float, high: float) -> None:
        self.count += count
        self._parts.append((cell, cell.rest, by, low, high))
        self.from_s, self.to_s = min(self.from_s, cell.from_s), max(self.to_s, cell.to_s)
        self.since_s = min(self.since_s, cell.since_s)

    def words(self, reason: Reason) -> Words:
        """The reason's, with these dead in their places."""
        medians = None
        if "{medians}" in reason.words.evidence:
            whole = sum_of_deaths([rest for _, rest, *_ in self._parts])
            age, idle = whole.age_s.quantile(0.5), whole.idle_s.quantile(0.5)
            medians = None if age is None or idle is None else (age, idle)
        dead = Dead(self.cause, self.count, self._span("age_s"), self._span("idle_s"), medians, self.since_s, self.to_s)
        return dead.into(reason.words)

    def _span(self, field: Field) -> str:
        """Between what ages or idle times; of a cell that was parted by another number, all of it."""
        lows, highs = [], []
        for _, rest, by, low, high in self._parts:
            histogram: Histogram = getattr(rest, field)
            if histogram:
                lows.append(max(float(histogram.least), low if by == field else 0.0))
                highs.append(min(float(histogram.greatest), high if by == field else math.inf))
        return in_seconds(min(lows, default=0.0), max(highs, default=0.0))


class LossTable:
    """The dead of a run, what else is known of it, and what has been claimed."""

    def __init__(self, run: Run, totals: Totals) -> None:
        self.run, self.plan, self.totals = run, run.plan, totals
        self.server = ServerEvidence(run)
        self.cells = [
            LossCell(cause, dead, tick, t_s, run.plan.timeout_s)
            for t_s, tick in run.ticks
            for cause, dead in tick.deaths.items()
            if dead.count
        ]
        #: The longest gap between two heartbeats (s), and how long one waits for its answer.
        self.gap_s, self.timeout_s = run.plan.keepalive_s / 2, run.plan.timeout_s
        self.attributions: dict[tuple[str, Reason], Attribution] = {}
        # By cause: what is left of it, as long as nothing more is claimed of it.
        self._left_of = dict(totals.whole.deaths)

    def of(self, *causes: str) -> list[LossCell]:
        """The cells of these causes of which something is left."""
        return [cell for cell in self.cells if cell.left and cell.cause in causes]

    def left_of(self, cause: str) -> Deaths:
        """What is left of a cause, as one."""
        if cause not in self._left_of:
            self._left_of[cause] = pooled(self.of(cause))
        return self._left_of[cause]

    def claim(
        self,
        cells: Iterable[LossCell],
        reason: Reason,
        where: tuple[Field, float, float] | None = None,
        count: int | None = None,
    ) -> None:
        """Explain what is left of these, or ``count`` of each, or those ``where`` a number lies between two values, both in."""
        by, low, high = where or (None, 0.0, 0.0)
        for cell in cells:
            wanted = count if by is None else within(getattr(cell.rest, by), low, high)
            taken = cell.left if wanted is None else min(wanted, cell.left)
            if taken <= 0:
                continue
            self.attributions.setdefault((cell.cause, reason), Attribution(cell.cause)).add(cell, taken, by, low, high)
            self._left_of.pop(cell.cause, None)
            cell.left -= taken
            if cell.left and by is not None:
                cell.rest = Deaths(cell.rest.count, cell.rest.age_s, cell.rest.idle_s, cell.rest.requests)
                setattr(cell.rest, by, without(getattr(cell.rest, by), low, high))

    def configured(self, directive: str) -> float | None:
        """What nginx.conf says, in seconds or as a number; None where it was not read."""
        return self.server.configured.get(f"nginx_{directive}")


def left(cells: Iterable[LossCell]) -> int:
    """How many of them are not explained yet."""
    return sum(cell.left for cell in cells)


def pooled(cells: Sequence[LossCell]) -> Deaths:
    """What is left of these, as one."""
    return sum_of_deaths([cell.rest for cell in cells])


def asked(cells: Iterable[LossCell]) -> float:
    """The share of these that ended while a heartbeat waited for its answer, from 0 to 1.

    A second's failed beats are those of all causes; of the causes that end idle connections too, what is over.
    """
    waiting = total = 0
    for cell in cells:
        others = sum(dead.count for cause, dead in cell.tick.deaths.items() if cause in _WAITING)
        waiting += min(cell.dead.count, max(0, cell.tick.beats_failed - others))
        total += cell.dead.count
    return waiting / total if total else 0.0
