"""The CPU budget of probes, and their outages. Pure; callers pass the time in seconds."""

from __future__ import annotations

import math

import msgspec

from asyncli.findings.probes import probe_back, probe_lost, probe_slowed
from asyncli.model.records import Finding

#: The share of a core that a probe may use. Four of twelve probes can be expensive (smaps_rollup of
#: each process of server, generator and session; maps of a server with thousands of threads); the
#: others take 3.2 ms together beside 115 processes. So all stay within 1 % of a core.
BUDGET = 0.003
#: Our own memory changes little (4.6 ms a reading at 100,000). With a smaller budget a ramp of 20 s
#: sometimes had too few points (1.5 to 3.2 ms a reading with one worker): a slope needs six.
OWN_BUDGET = 0.0015
OWN = frozenset({"generator_memory", "session_memory"})
#: A probe may be ahead of its budget by the budget of this time: four readings of 113 processes
#: (40 ms each).
MOST_AHEAD_S = 60.0
#: Samples are on whole seconds.
SHORTEST_PERIOD_S = 1.0


class ProbeReading(msgspec.Struct):
    """One round of a probe: metrics, and findings about the reading. ``once_s``: CPU time that the
    next rounds do not take, such as that of finding a server that was replaced.
    """

    values: dict[str, float] = msgspec.field(default_factory=dict)
    findings: list[Finding] = msgspec.field(default_factory=list)
    once_s: float = 0.0


class Schedule:
    """When a probe is due: after a round of ``c`` CPU seconds it rests for ``c`` / its share
    seconds.

    The budget is for the whole run, and the early phases matter most: a probe may be ahead by half
    of the run's budget, and repays that by the run's end.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._budget = OWN_BUDGET if name in OWN else BUDGET
        self._due_s = float("-inf")
        # CPU time used beyond the budget so far, and when that was computed.
        self._debt_s = 0.0
        self._at_s = float("-inf")
        self._begun_s = self._run_s = self._ahead_s = 0.0
        self._over = 0
        # Slower readings of our own memory are not reported.
        self._reported = name in OWN

    def begin(self, now_s: float, run_s: float) -> None:
        self._begun_s = now_s
        self._run_s = run_s
        self._ahead_s = min(MOST_AHEAD_S, run_s / 2)

    def due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def spent(self, now_s: float, cost_s: float) -> Finding | None:
        """Record a round that began at ``now_s`` and took ``cost_s`` of CPU; a finding after two
        expensive ones in a row.
        """
        self._debt_s = max(0.0, self._debt_s - self._budget * (now_s - self._at_s)) + cost_s
        self._at_s = now_s
        left_s = self._begun_s + self._run_s - now_s
        # A run of length 0 has no budget to be ahead of.
        repaid = self._ahead_s / self._run_s if left_s > 0 and self._run_s > 0 else 0.0
        rest_s = (self._debt_s / self._budget - repaid * left_s) / (1 - repaid)
        # A reading at a phase border must not skip an affordable probe's next second. 1e-9: float
        # errors must not round 1 s up.
        is_affordable = rest_s - 1e-9 <= SHORTEST_PERIOD_S
        self._due_s = now_s if is_affordable else now_s + rest_s - 1e-9
        period_s = math.ceil(cost_s / self._budget - 1e-9)
        if is_affordable or period_s <= SHORTEST_PERIOD_S:
            self._over = 0
        else:
            self._over += 1
        if self._over < 2 or self._reported:
            return None
        self._reported = True
        return probe_slowed(self.name, cost_s, period_s, self._budget)


class Outage:
    """Whether a probe answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._since_s: float | None = None
        self._last_s: float | None = None

    def failed(self, now_s: float, why: str, *, untrusted: bool = False) -> Finding | None:
        """Record a failure; a finding for the first one of an outage."""
        if self._since_s is not None:
            return None
        # The gap begins at the last reading.
        self._since_s = now_s if self._last_s is None else self._last_s
        return probe_lost(self.name, now_s, why, untrusted)

    def answered(self, now_s: float) -> Finding | None:
        """Record an answer; a finding if it ends an outage."""
        since_s = self._since_s
        self._since_s = None
        self._last_s = now_s
        if since_s is None:
            return None
        return probe_back(self.name, now_s, now_s - since_s)
