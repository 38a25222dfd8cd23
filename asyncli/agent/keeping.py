"""What the agent keeps, and who may have it: the last minutes' samples, the lease, rates and refusals. Pure; time is seconds."""

from __future__ import annotations

import hmac
from collections import OrderedDict, deque
from collections.abc import Callable

from asyncli.agent.wire import KEEPS_S, LEASE_S, MOST_ROWS, Row, Said, numbers
from asyncli.findings import rewritten
from asyncli.metrics import PROBE
from asyncli.records import Finding, Sample

# Beside the ring's ten minutes, whatever the clock does: one a second, and the borders of phases.
_MOST_SAMPLES, _MOST_SAID = 2000, 200
# A value that was not read again for so long is not the present (Prometheus itself forgets after as long).
STALE_S = 300.0
_ADDRESSES = 256
# Lines about refusals: so many at once, then one in so many seconds.
_LINES, _LINE_EVERY_S = 10.0, 5.0


class Ring:
    """The samples of the last ten minutes and the findings beside them, numbered from 1; and the last value of each metric."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_MOST_SAMPLES)
        self._said: deque[Said] = deque(maxlen=_MOST_SAID)
        self._standing: dict[str, Finding] = {}
        self._latest: dict[str, tuple[float, float]] = {}
        self.newest = 0

    @property
    def first(self) -> int:
        """The oldest sample that is kept; the next one where none is."""
        return self._rows[0].n if self._rows else self.newest + 1

    def sample(self, sample: Sample) -> None:
        """Keep one. What names a soak's session is the agent's own process here, and there is no generator."""
        values = {}
        for name, value in numbers(sample.values).items():
            if not name.startswith(("generator.", f"{PROBE}generator")):
                values[name.replace("session", "agent", 1) if name.startswith(("session.", f"{PROBE}session")) else name] = value
        self.newest += 1
        self._rows.append(Row(self.newest, sample.t_s, values))
        self._latest.update((name, (sample.t_s, value)) for name, value in values.items())
        while self._rows[0].t_s < sample.t_s - KEEPS_S:
            self._rows.popleft()

    def finding(self, t_s: float, finding: Finding) -> None:
        """Keep one; what holds on is told to whoever comes, until it is over."""
        finding = rewritten(finding, _of_the_agent)
        self._said.append(Said(self.newest, t_s, finding))
        what, _, end = finding.code.rpartition("_")
        if end == "back":
            for over in ("lost", "ended"):
                self._standing.pop(f"{what}_{over}", None)
        elif finding.code != "server_restarted":
            self._standing[finding.code] = finding

    def after(self, n: int) -> tuple[list[Row], list[Said]]:
        """What came after sample ``n``, as much as one answer holds; a finding comes with the sample that follows it."""
        rows = [row for row in self._rows if row.n > n][:MOST_ROWS]
        last = rows[-1].n if rows else n
        return rows, [said for said in self._said if n <= said.n < last]

    @property
    def standing(self) -> list[Finding]:
        return list(self._standing.values())

    def latest(self, now_s: float, within_s: float = STALE_S) -> dict[str, float]:
        """The last value of each metric that is not older than that, and whose page or processes are not known to be gone."""
        gone = tuple(f"{code.rpartition('_')[0]}." for code in self._standing if code.endswith(("_lost", "_ended")))
        there = ((name, value) for name, (t_s, value) in self._latest.items() if t_s >= now_s - within_s)
        return {name: value for name, value in there if not name.startswith(gone)}


def _of_the_agent(_: str, value: object) -> object:
    """What is a session's elsewhere is the agent's own here."""
    return f"agent{value[7:]}" if isinstance(value, str) and (value == "session" or value.startswith("session_")) else value


class Lease:
    """One session at a time. ``draw`` makes words that nobody guesses."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._word, self._until_s = "", float("-inf")
        #: Who holds it, in words.
        self.holder = ""

    def take(self, holder: str, now_s: float) -> str | None:
        """The word by which ``holder`` has it from now on; None while another has."""
        if self._word and now_s < self._until_s:
            return None
        self._word, self.holder, self._until_s = self._draw(), holder, now_s + LEASE_S
        return self._word

    def renew(self, word: str, now_s: float) -> bool:
        """Whether ``word`` is the holder's, who then has it for as long again; also late, while nobody else has asked."""
        if not self.known(word):
            return False
        self._until_s = now_s + LEASE_S
        return True

    def known(self, word: str) -> bool:
        """Whether ``word`` is the holder's, or was the last one's."""
        return bool(self._word) and same(word, self._word)

    def leave(self, word: str) -> bool:
        if not self.known(word):
            return False
        self._word = self.holder = ""
        return True

    def held(self, now_s: float) -> bool:
        return bool(self._word) and now_s < self._until_s


def same(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))


class Rates:
    """A bucket of ``burst`` requests for each address, filled with ``per_s``; for the last addresses seen."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, address: str, now_s: float) -> bool:
        left, then_s = self._buckets.pop(address, (self._burst, now_s))
        left = min(self._burst, left + self._per_s * max(0.0, now_s - then_s))
        allowed = left >= 1.0
        self._buckets[address] = (left - allowed, now_s)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class Refusals:
    """Lines about who was refused: not more than a log can bear, and none forgotten in number."""

    def __init__(self) -> None:
        self._left, self._then_s, self._unsaid = _LINES, 0.0, 0

    def line(self, address: str, why: str, now_s: float) -> str | None:
        """The line to log, or None for now."""
        self._left = min(_LINES, self._left + max(0.0, now_s - self._then_s) / _LINE_EVERY_S)
        self._then_s = now_s
        if self._left < 1.0:
            self._unsaid += 1
            return None
        self._left -= 1.0
        unsaid, self._unsaid = self._unsaid, 0
        return f"refused {address}: {why}" + (f" (and {unsaid:,} more since the last line)" if unsaid else "")
