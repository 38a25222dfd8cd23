"""Lost connections as a table: a cell per cause and second, and how much of it each mechanism has
claimed.

The records hold marginals (ages, idle times, request numbers) without their correlation. So a
mechanism claims a range of one marginal, and only that one is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from asyncli.analysis.losses.likelihood import within, without
from asyncli.analysis.losses.server_evidence import ServerEvidence
from asyncli.analysis.totals import Totals
from asyncli.core.adding import added_up
from asyncli.core.histogram import Histogram
from asyncli.findings import Words
from asyncli.findings.loss_causes import LossDetails, age_or_idle, words_of
from asyncli.model.records import Deaths, Tick
from asyncli.model.run import Run

Field = Literal["age_s", "idle_s", "requests"]
#: Causes by which connections end when a server ends, or a part of it.
ENDED = ("closed_idle", "closed_awaiting", "closed_announced", "reset")
# Causes that need a waiting heartbeat.
_WAITING = ("closed_awaiting", "heartbeat_timeout", "protocol_error")


class Reason(msgspec.Struct, frozen=True):
    """The explanation of a mechanism for all that it claims; :class:`LossDetails` fills the places
    in ``words``.

    ``certain``: confirmed by the run, or by the server's configuration, counts or processes.
    ``event`` distinguishes repeats.
    """

    code: str
    words: Words
    certain: bool = False
    event: int = 0


def reason(
    code: str, form: str = "", *, certain: bool = False, event: int = 0, **seen: Any
) -> Reason:
    """The reason ``code`` in the words of ``form`` (default: ``code``), filled with ``seen``."""
    return Reason(code, words_of(form or code, certain, **seen), certain, event)


class LossCell:
    """The losses of one cause in one second; ``unclaimed``: how many are not claimed yet.
    ``since_s``: see :func:`began_s`.
    """

    __slots__ = ("cause", "dead", "from_s", "rest", "since_s", "tick", "to_s", "unclaimed")

    def __init__(self, cause: str, dead: Deaths, tick: Tick, t_s: float, timeout_s: float) -> None:
        self.cause = cause
        self.dead = dead
        self.tick = tick
        self.unclaimed = dead.count
        #: The marginals without the claimed part.
        self.rest = dead
        self.from_s = t_s - 1.0
        self.to_s = t_s
        waited_s = timeout_s if cause == "heartbeat_timeout" else 0.0
        self.since_s = began_s(t_s, waited_s)

    def without_request(self) -> int:
        """How many ended before their first answer."""
        return within(self.dead.requests, 0, 0)


def began_s(t_s: float, timeout_s: float) -> float:
    """When the cause of a loss in the tick at ``t_s`` began: then, or a timeout earlier."""
    return max(0.0, t_s - 1.0 - timeout_s)


class Attribution:
    """The losses of one cause that one mechanism claims: count, time, ages and idle times."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        self.count = 0
        self.from_s = math.inf
        self.to_s = -math.inf
        self.since_s = math.inf
        self._parts: list[tuple[LossCell, Deaths, Field | None, float, float]] = []

    def add(self, cell: LossCell, count: int, by: Field | None, low: float, high: float) -> None:
        self.count += count
        self._parts.append((cell, cell.rest, by, low, high))
        self.from_s = min(self.from_s, cell.from_s)
        self.to_s = max(self.to_s, cell.to_s)
        self.since_s = min(self.since_s, cell.since_s)

    @property
    def instants(self) -> set[float]:
        """The ends (s) of the seconds with these losses."""
        return {cell.to_s for cell, *_ in self._parts}

    def words(self, reason: Reason, *, listens: bool, protocol: str) -> Words:
        """The reason's words, filled for these losses. ``listens``: the connections send no
        heartbeats.
        """
        medians = None
        if "{medians}" in reason.words.evidence:
            whole = added_up(Deaths(), *(rest for _, rest, *_ in self._parts))
            age_s = whole.age_s.quantile(0.5)
            idle_s = whole.idle_s.quantile(0.5)
            if age_s is not None and idle_s is not None:
                medians = (age_s, idle_s)
        ages = self._span("age_s")
        idle_times = self._span("idle_s")
        details = LossDetails(
            self.cause,
            self.count,
            ages,
            idle_times,
            medians,
            self.since_s,
            self.to_s,
            listens,
            protocol,
        )
        return details.fill(reason.words)

    def _span(self, field: Field) -> str:
        """The range of ages or idle times."""
        lows = []
        highs = []
        for _, rest, by, low, high in self._parts:
            histogram = marginal(rest, field)
            if not histogram:
                continue
            least = float(histogram.least)
            greatest = float(histogram.greatest)
            if by == field:
                least = max(least, low)
                greatest = min(greatest, high)
            lows.append(least)
            highs.append(greatest)
        return age_or_idle(min(lows, default=0.0), max(highs, default=0.0))


class LossTable:
    """The losses of a run, the evidence about them, and what was claimed."""

    def __init__(self, run: Run, totals: Totals) -> None:
        self.run = run
        self.plan = run.plan
        self.totals = totals
        self.server = ServerEvidence(run)
        self.cells = [
            LossCell(cause, dead, tick, t_s, run.plan.patience_s)
            for t_s, tick in run.ticks
            for cause, dead in tick.deaths.items()
            if dead.count
        ]
        #: The longest gap between two heartbeats and the timeout (s).
        self.gap_s = run.plan.keepalive_s / 2
        self.timeout_s = run.plan.patience_s
        self.attributions: dict[tuple[str, Reason], Attribution] = {}
        # A cache by cause, valid until more is claimed.
        self._unclaimed_of = dict(totals.whole.deaths)

    def of(self, *causes: str) -> list[LossCell]:
        """The cells of these causes that are not fully claimed."""
        return [cell for cell in self.cells if cell.unclaimed and cell.cause in causes]

    def unclaimed_of(self, cause: str) -> Deaths:
        """The unclaimed marginals of a cause."""
        if cause not in self._unclaimed_of:
            self._unclaimed_of[cause] = pooled(self.of(cause))
        return self._unclaimed_of[cause]

    def claim(
        self,
        cells: Iterable[LossCell],
        reason: Reason,
        where: tuple[Field, float, float] | None = None,
        count: int | None = None,
    ) -> None:
        """Claim what is left of ``cells``: all, ``count`` of each, or those ``where`` a number is
        in a range (inclusive).
        """
        by, low, high = where or (None, 0.0, 0.0)
        for cell in cells:
            taken = cell.unclaimed
            if by is not None:
                taken = min(taken, within(marginal(cell.rest, by), low, high))
            elif count is not None:
                taken = min(taken, count)
            if taken <= 0:
                continue
            key = (cell.cause, reason)
            attribution = self.attributions.setdefault(key, Attribution(cell.cause))
            attribution.add(cell, taken, by, low, high)
            self._unclaimed_of.pop(cell.cause, None)
            cell.unclaimed -= taken
            if cell.unclaimed and by is not None:
                kept = without(marginal(cell.rest, by), low, high)
                cell.rest = _with_marginal(cell.rest, by, kept)

    def configured(self, directive: str) -> float | None:
        """The value in nginx.conf (seconds or a number) of a directive that ends HTTP connections;
        None where it was not read.
        """
        if self.plan.upgrades:
            return None
        return self.server.configured.get(f"nginx_{directive}")


def marginal(dead: Deaths, field: Field) -> Histogram:
    """The histogram of one number of the lost connections."""
    match field:
        case "age_s":
            return dead.age_s
        case "idle_s":
            return dead.idle_s
        case "requests":
            return dead.requests


def _with_marginal(dead: Deaths, field: Field, kept: Histogram) -> Deaths:
    """The same losses with another histogram of one number."""
    match field:
        case "age_s":
            return msgspec.structs.replace(dead, age_s=kept)
        case "idle_s":
            return msgspec.structs.replace(dead, idle_s=kept)
        case "requests":
            return msgspec.structs.replace(dead, requests=kept)


def unclaimed(cells: Iterable[LossCell]) -> int:
    return sum(cell.unclaimed for cell in cells)


def pooled(cells: Sequence[LossCell]) -> Deaths:
    return added_up(Deaths(), *(cell.rest for cell in cells))


def share_awaiting(cells: Iterable[LossCell]) -> float:
    """The share (0 to 1) that ended while a heartbeat waited; heartbeats of other causes in the
    same tick do not count.
    """
    waiting = 0
    total = 0
    for cell in cells:
        others = sum(dead.count for cause, dead in cell.tick.deaths.items() if cause in _WAITING)
        waiting += min(cell.dead.count, max(0, cell.tick.beats_failed - others))
        total += cell.dead.count
    if not total:
        return 0.0
    return waiting / total
