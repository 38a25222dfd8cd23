"""Phases and ticks of several runs on one clock. Pure.

A run's phases on the common clock overlap those of the others; the run that they make has these:

- baseline: until the first of them begins its ramp: nothing is connected;
- ramp: until the last of them comes to its hold;
- hold: all hold, until the first of them begins its drain;
- drain: until the last of them has closed all;
- residue: until the end of the last of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from asyncli.analysis.series import end_of_run, held_over_time, phase
from asyncli.errors import StoreError
from asyncli.merge.parts import Client
from asyncli.records import Gap, Phase, PhaseName, Tick

# Of a worker that has ended its share these stay as they were; of the other gauges nothing is left.
_STAY = ("cpu_user_s", "cpu_system_s", "ramped", "drained")
_NOW = ("workers", "connecting", "awaiting")
# A tick speaks of the second before it, and may come so much later.
_LATE_S = 1.5


class Placed:
    """A client's records on the common clock (s): its own and ``shift_s``."""

    def __init__(self, client: Client, shift_s: float) -> None:
        self.client, self.shift_s = client, shift_s
        run = client.run
        self.phases = [Phase(one.name, one.start_s + self.shift_s, _later(one.end_s, self.shift_s)) for one in run.phases]
        self.ticks = [(t_s + self.shift_s, tick) for t_s, tick in run.ticks]
        self.gaps = [Gap(one.start_s + self.shift_s, _later(one.end_s, self.shift_s)) for one in run.gaps]
        self.end_s = end_of_run(run.phases, run.ticks, run.samples) + self.shift_s
        self.held = held_over_time(self.ticks, self.phases)

    def start_of(self, name: PhaseName) -> float | None:
        """When the phase began (s); None where the run never came to it."""
        found = phase(self.phases, name)
        return None if found is None else found.start_s

    @property
    def let_go_s(self) -> float:
        """When it began to let go of what it held (s): its drain, or its end."""
        drain = self.start_of("drain")
        return self.end_s if drain is None else drain

    def held_at(self, t_s: float) -> float:
        """How many it held at ``t_s``; none after a run that was killed."""
        last = self.held.t_s[-1]
        return 0.0 if t_s > last + _LATE_S else self.held.at(t_s) or 0.0


def _later(t_s: float | None, by_s: float) -> float | None:
    return None if t_s is None else t_s + by_s


def require_together(placed: Sequence[Placed], *, sure: bool) -> None:
    """Raise :class:`StoreError` in one line where one had let go of all before another connected anything.

    ``sure``: more than the wall clocks says how the runs' clocks lie to each other.
    """
    ramped = [one for one in placed if one.start_of("ramp") is not None]
    if len(ramped) < 2:
        return
    last = max(ramped, key=lambda one: one.start_of("ramp") or 0.0)
    first = min(ramped, key=lambda one: one.let_go_s)
    apart_s = (last.start_of("ramp") or 0.0) - first.let_go_s
    if apart_s >= 0:
        by = "" if sure else "by the wall clocks alone, which nothing here checks, "
        mend = "" if sure else "; if they did, one host's clock was wrong: with --status-url in both it is known how much"
        raise StoreError(
            f"{first.client.name} and {last.client.name}: {by}the second began its ramp {apart_s:,.1f} s after the first had "
            f"begun its drain, so they are no one run; merge runs that went on at the same time{mend}"
        )


def common_phases(placed: Sequence[Placed]) -> list[Phase]:
    """The phases by the rule above; of those that not all came to, none."""
    ramped = [one for one in placed if one.start_of("ramp") is not None]
    end_s = max(one.end_s for one in placed)
    starts: list[tuple[PhaseName, float]] = [("baseline", 0.0)]
    if ramped:
        starts.append(("ramp", min(start for one in ramped if (start := one.start_of("ramp")) is not None)))
        holds = [start for one in ramped if (start := one.start_of("hold")) is not None]
        drains = [start for one in ramped if (start := one.start_of("drain")) is not None]
        residues = [start for one in ramped if (start := one.start_of("residue")) is not None]
        let_go_s = min(one.let_go_s for one in ramped)
        if len(holds) == len(ramped) and max(holds) < let_go_s:
            starts.append(("hold", max(holds)))
        if drains:
            starts.append(("drain", max(min(drains), starts[-1][1])))
        if len(residues) == len(ramped):
            starts.append(("residue", max(*residues, starts[-1][1])))
    ends: list[float | None] = [start_s for _, start_s in starts[1:]]
    over = all(one.phases and one.phases[-1].end_s is not None for one in placed)
    ends.append(max(end_s, starts[-1][1]) if over else None)
    return [Phase(name, start_s, until_s) for (name, start_s), until_s in zip(starts, ends, strict=True)]


def common_gaps(placed: Sequence[Placed]) -> list[Gap]:
    """Where any of them was interrupted; stretches that overlap are one."""
    found: list[Gap] = []
    for gap in sorted((gap for one in placed for gap in one.gaps), key=lambda one: one.start_s):
        before = found[-1] if found else None
        if before is not None and (before.end_s is None or gap.start_s <= before.end_s):
            both = before.end_s is not None and gap.end_s is not None
            before.end_s = max(before.end_s or 0.0, gap.end_s or 0.0) if both else None
        else:
            found.append(Gap(gap.start_s, gap.end_s))
    return found


def common_ticks(placed: Sequence[Placed], phases: Sequence[Phase]) -> list[tuple[float, Tick]]:
    """A tick for each second of the common clock in which any of them has one.

    Seconds end where those of the first run do, and a tick of another joins the nearest. Counts and histograms add up, whatever
    the shifts; how many are held is read off each run's line at the second's end, and the other gauges off its last tick.
    """
    first = next((one for one in placed if one.ticks), None)
    if first is None:
        return []
    fraction = first.ticks[len(first.ticks) // 2][0] % 1.0
    cells: dict[int, list[Tick]] = {}
    for one in placed:
        for t_s, tick in one.ticks:
            cells.setdefault(round(t_s - fraction), []).append(tick)
    ramp, drain = phase(phases, "ramp"), phase(phases, "drain")
    t0 = ramp.start_s if ramp is not None else 0.0
    at_drain = 0 if drain is None else round(sum(one.held_at(drain.start_s) for one in placed if one.ticks))
    rows = []
    for cell in sorted(cells):
        t_s, whole = cell + fraction, Tick()
        whole.second = max(0, round(t_s - t0))
        for tick in cells[cell]:
            whole.merge_counts(tick)
        for one in placed:
            _add_gauges(whole, one, t_s)
        if drain is not None and t_s > drain.start_s:
            whole.held_at_drain = at_drain
        rows.append((t_s, whole))
    return rows


def _add_gauges(whole: Tick, one: Placed, t_s: float) -> None:
    if not one.ticks:
        return
    at = bisect.bisect_right(one.ticks, t_s + 0.5, key=lambda row: row[0]) - 1
    at_s, tick = one.ticks[at] if at >= 0 else (-math.inf, Tick())
    over = at == len(one.ticks) - 1 and t_s > at_s + _LATE_S
    for name in _STAY if over else (*_STAY, *_NOW):
        setattr(whole, name, getattr(whole, name) + getattr(tick, name))
    if not over:
        whole.held += round(one.held_at(min(t_s, at_s) if at == len(one.ticks) - 1 else t_s))


def held_to_the_end(placed: Sequence[Placed], phases: Sequence[Phase]) -> dict[str, int]:
    """By its name, how many each held when the first of them began its drain: none, where it was killed before; without a drain,
    at its end."""
    drain = phase(phases, "drain")
    return {
        one.client.name: round(one.held_at(one.end_s if drain is None else drain.start_s)) if one.ticks else 0 for one in placed
    }
