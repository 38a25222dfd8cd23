"""Keeps the samples and findings of the last minutes for a session that reconnects. Pure; time is seconds."""

from __future__ import annotations

import math
from collections import deque

from asyncli.agent.wire import KEEPS_S, MOST_ROWS, FindingRow, SampleRow
from asyncli.findings import rewritten
from asyncli.metrics import PROBE
from asyncli.records import Finding, Sample

# Bounds beside the ten minutes: one sample a second, and the borders of phases.
_MOST_SAMPLES, _MOST_SAID = 2000, 200
# A value not read for so long is stale (Prometheus's own limit).
STALE_S = 300.0


class SampleBuffer:
    """The samples of the last ten minutes and the findings beside them, numbered from 1; and the last value of each metric."""

    def __init__(self) -> None:
        self._rows: deque[SampleRow] = deque(maxlen=_MOST_SAMPLES)
        self._said: deque[FindingRow] = deque(maxlen=_MOST_SAID)
        self._standing: dict[str, Finding] = {}
        self._latest: dict[str, tuple[float, float]] = {}
        self.newest = 0

    @property
    def first(self) -> int:
        """The oldest sample that is kept; the next one where none is."""
        return self._rows[0].n if self._rows else self.newest + 1

    def sample(self, sample: Sample) -> None:
        """Add a sample. The collector's session is the agent itself, and there is no generator."""
        values = {}
        for name, value in sample.values.items():
            # JSON has finite numbers alone.
            if math.isfinite(value) and not name.startswith(("generator.", f"{PROBE}generator")):
                values[name.replace("session", "agent", 1) if name.startswith(("session.", f"{PROBE}session")) else name] = value
        self.newest += 1
        self._rows.append(SampleRow(self.newest, sample.t_s, values))
        self._latest.update((name, (sample.t_s, value)) for name, value in values.items())
        while self._rows[0].t_s < sample.t_s - KEEPS_S:
            self._rows.popleft()

    def finding(self, t_s: float, finding: Finding) -> None:
        """Add a finding. A lasting condition is in `standing` until its end."""
        finding = rewritten(finding, _of_the_agent)
        self._said.append(FindingRow(self.newest, t_s, finding))
        what, _, end = finding.code.rpartition("_")
        if end == "back":
            for over in ("lost", "ended"):
                self._standing.pop(f"{what}_{over}", None)
        elif finding.code != "server_restarted":
            self._standing[finding.code] = finding

    def after(self, n: int) -> tuple[list[SampleRow], list[FindingRow]]:
        """Samples after number ``n``, at most one answer full, and the findings made before the last of them."""
        rows = [row for row in self._rows if row.n > n][:MOST_ROWS]
        last = rows[-1].n if rows else n
        return rows, [said for said in self._said if n <= said.n < last]

    @property
    def standing(self) -> list[Finding]:
        return list(self._standing.values())

    def latest(self, now_s: float, within_s: float = STALE_S) -> dict[str, float]:
        """The last value of each metric, younger than ``within_s``, whose source still answers."""
        gone = tuple(f"{code.rpartition('_')[0]}." for code in self._standing if code.endswith(("_lost", "_ended")))
        there = ((name, value) for name, (t_s, value) in self._latest.items() if t_s >= now_s - within_s)
        return {name: value for name, value in there if not name.startswith(gone)}


def _of_the_agent(_: str, value: object) -> object:
    """Findings about the collector's session are about the agent."""
    return f"agent{value[7:]}" if isinstance(value, str) and (value == "session" or value.startswith("session_")) else value
