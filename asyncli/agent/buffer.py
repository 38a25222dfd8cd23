"""Buffers the samples and findings of the last minutes for a session that reconnects. Pure; times in seconds."""

from __future__ import annotations

import math
from collections import deque

from asyncli.agent.wire import KEEPS_S, MOST_ROWS, FindingRow, SampleRow
from asyncli.findings import rewritten
from asyncli.model.metrics import PROBE
from asyncli.model.records import Finding, Sample

# Bounds beside the ten minutes: one sample a second, and phase borders.
_MOST_SAMPLES, _MOST_FINDINGS = 2000, 200
# A value not read for so long is stale (Prometheus's limit).
STALE_S = 300.0


class SampleBuffer:
    """The samples of the last ten minutes, numbered from 1, their findings, and the last value of each metric."""

    def __init__(self) -> None:
        self._rows: deque[SampleRow] = deque(maxlen=_MOST_SAMPLES)
        self._findings: deque[FindingRow] = deque(maxlen=_MOST_FINDINGS)
        self._lasting: dict[str, Finding] = {}
        self._latest: dict[str, tuple[float, float]] = {}
        self.newest = 0

    @property
    def first(self) -> int:
        """The number of the oldest sample in the buffer; of the next one if it is empty."""
        return self._rows[0].n if self._rows else self.newest + 1

    def sample(self, sample: Sample) -> None:
        """Add a sample. Metrics of the session become those of the agent; it has no generator."""
        values = {}
        for name, value in sample.values.items():
            # JSON has only finite numbers.
            if math.isfinite(value) and not name.startswith(("generator.", f"{PROBE}generator")):
                values[name.replace("session", "agent", 1) if name.startswith(("session.", f"{PROBE}session")) else name] = value
        self.newest += 1
        self._rows.append(SampleRow(self.newest, sample.t_s, values))
        self._latest.update((name, (sample.t_s, value)) for name, value in values.items())
        while self._rows[0].t_s < sample.t_s - KEEPS_S:
            self._rows.popleft()

    def finding(self, t_s: float, finding: Finding) -> None:
        """Add a finding. One that a later finding can end is in :attr:`lasting` until then."""
        finding = rewritten(finding, _rename_session)
        self._findings.append(FindingRow(self.newest, t_s, finding))
        what, _, end = finding.code.rpartition("_")
        if end == "back":
            for over in ("lost", "ended"):
                self._lasting.pop(f"{what}_{over}", None)
        elif finding.code != "server_restarted":
            self._lasting[finding.code] = finding

    def after(self, n: int) -> tuple[list[SampleRow], list[FindingRow]]:
        """Samples after number ``n``, at most MOST_ROWS, and the findings made before the last of them."""
        rows = [row for row in self._rows if row.n > n][:MOST_ROWS]
        last = rows[-1].n if rows else n
        return rows, [one for one in self._findings if n <= one.n < last]

    @property
    def lasting(self) -> list[Finding]:
        return list(self._lasting.values())

    def latest(self, now_s: float, within_s: float = STALE_S) -> dict[str, float]:
        """The last value of each metric that is younger than ``within_s`` and whose source still answers."""
        gone = tuple(f"{code.rpartition('_')[0]}." for code in self._lasting if code.endswith(("_lost", "_ended")))
        fresh = ((name, value) for name, (t_s, value) in self._latest.items() if t_s >= now_s - within_s)
        return {name: value for name, value in fresh if not name.startswith(gone)}


def _rename_session(_: str, value: object) -> object:
    """Replace the collector's session by the agent in a finding."""
    return f"agent{value[7:]}" if isinstance(value, str) and (value == "session" or value.startswith("session_")) else value
