"""Buffers the samples and findings of the last minutes for a session that reconnects. Pure; times
in seconds.
"""

from __future__ import annotations

import math
from collections import deque

from asyncli.agent.wire import KEEPS_S, MOST_ROWS, FindingRow, SampleRow
from asyncli.findings import rewritten
from asyncli.model.metrics import PROBE
from asyncli.model.records import Finding, Sample

# Bounds beside the ten minutes: one sample a second, and phase borders.
_MOST_SAMPLES = 2000
_MOST_FINDINGS = 200
# A value not read for so long is stale (Prometheus's limit).
STALE_S = 300.0


# Prefixes of metrics.
_OF_GENERATOR = ("generator.", f"{PROBE}generator")
_OF_SESSION = ("session.", f"{PROBE}session")


class SampleBuffer:
    """The samples of the last ten minutes, numbered from 1, their findings, and the last value of
    each metric.
    """

    def __init__(self) -> None:
        self._rows: deque[SampleRow] = deque(maxlen=_MOST_SAMPLES)
        self._findings: deque[FindingRow] = deque(maxlen=_MOST_FINDINGS)
        self._lasting: dict[str, Finding] = {}
        self._latest: dict[str, tuple[float, float]] = {}
        self.newest = 0

    @property
    def first(self) -> int:
        """The number of the oldest sample in the buffer; of the next one if it is empty."""
        if not self._rows:
            return self.newest + 1
        return self._rows[0].n

    def sample(self, sample: Sample) -> None:
        """Add a sample. Metrics of the session become those of the agent; it has no generator."""
        values = {}
        for name, value in sample.values.items():
            # JSON has only finite numbers.
            if not math.isfinite(value) or name.startswith(_OF_GENERATOR):
                continue
            if name.startswith(_OF_SESSION):
                values[name.replace("session", "agent", 1)] = value
            else:
                values[name] = value
        self.newest += 1
        self._rows.append(SampleRow(self.newest, sample.t_s, values))
        for name, value in values.items():
            self._latest[name] = (sample.t_s, value)
        while self._rows[0].t_s < sample.t_s - KEEPS_S:
            self._rows.popleft()

    def finding(self, t_s: float, finding: Finding) -> None:
        """Add a finding. One that a later finding can end is in :attr:`lasting` until then."""
        finding = rewritten(finding, _rename_session)
        self._findings.append(FindingRow(self.newest, t_s, finding))
        source, _, event = finding.code.rpartition("_")
        if event == "back":
            self._lasting.pop(f"{source}_lost", None)
            self._lasting.pop(f"{source}_ended", None)
        elif finding.code != "server_restarted":
            self._lasting[finding.code] = finding

    def after(self, n: int) -> tuple[list[SampleRow], list[FindingRow]]:
        """Samples after number ``n``, at most MOST_ROWS, and the findings made before the last of
        them.
        """
        rows = [row for row in self._rows if row.n > n][:MOST_ROWS]
        last = rows[-1].n if rows else n
        return rows, [row for row in self._findings if n <= row.n < last]

    @property
    def lasting(self) -> list[Finding]:
        return list(self._lasting.values())

    def latest(self, now_s: float, within_s: float = STALE_S) -> dict[str, float]:
        """The last value of each metric that is younger than ``within_s`` and whose source still
        answers.
        """
        silent_sources = []
        for code in self._lasting:
            source, _, event = code.rpartition("_")
            if event in ("lost", "ended"):
                silent_sources.append(f"{source}.")
        values = {}
        for name, (t_s, value) in self._latest.items():
            if t_s >= now_s - within_s and not name.startswith(tuple(silent_sources)):
                values[name] = value
        return values


def _rename_session(_: str, value: object) -> object:
    """Replace the collector's session by the agent in a finding."""
    if not isinstance(value, str):
        return value
    if value == "session" or value.startswith("session_"):
        return f"agent{value.removeprefix('session')}"
    return value
