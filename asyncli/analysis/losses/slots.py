"""Whether a server closed connections while idle because it had no slot left for others.

It then closes one for another: only at the most that it holds, and it keeps that many. A timer
closes at any number of them, and in the end all.
"""

from __future__ import annotations

from asyncli.analysis.constants import FEWEST, MISSED_S, NEARLY_ALL, PART
from asyncli.analysis.losses.table import LossCell, LossTable, unclaimed


def closed_as_others_opened(table: LossTable) -> list[LossCell]:
    """Losses while idle, in seconds in which others opened."""
    return [cell for cell in table.of("closed_idle") if cell.tick.opened]


def most_held(table: LossTable) -> int:
    """The most connections that were held at once."""
    return max(tick.held for _, tick in table.run.ticks)


def no_slot_left(table: LossTable) -> bool:
    """Whether the server never held all that were asked for, closed as it accepted, and did so at
    the most that it held.
    """
    cells = closed_as_others_opened(table)
    closed = unclaimed(cells)
    if table.plan.upgrades or closed < max(FEWEST, NEARLY_ALL * unclaimed(table.of("closed_idle"))):
        return False
    ceiling = most_held(table)
    # It closes one for another, so those that it has stay; a timer ends the last ones too.
    if 2 * table.totals.open < ceiling or ceiling >= NEARLY_ALL * table.plan.connections:
        return False
    # Nginx closes up to an eighth of a worker's idle connections at once (ngx_drain_connections),
    # and a second may end with fewer than it had: so half of them is enough. A busy host sees some
    # closes late, and so more of them held than there were.
    least = (1 - 2 * PART) * ceiling
    at_the_most = [cell for cell in cells if _held_around(table, cell) >= least]
    if 2 * unclaimed(at_the_most) < closed:
        return False
    from_s = min(cell.from_s for cell in cells)
    to_s = max(cell.to_s for cell in cells)
    opened = sum(tick.opened for _, tick in table.run.ticks_between(from_s, to_s))
    return 2 * opened >= closed


def _held_around(table: LossTable, cell: LossCell) -> float:
    return max(table.server.held(cell.from_s), float(cell.tick.held))


def outlived(table: LossTable, idle_s: float) -> bool:
    """Whether connections were idle for longer than ``idle_s`` (s) and stayed open: more were held
    than were opened or answered in that time.
    """
    hold = table.run.hold
    if hold is None:
        return False
    first_s = table.run.ticks[0][0]
    for t_s, tick in hold.ticks:
        if t_s - idle_s - MISSED_S < first_s:
            # All were opened in that time.
            continue
        lately = table.run.ticks_between(t_s - idle_s - MISSED_S, t_s)
        heard = sum(earlier.opened + earlier.answered for _, earlier in lately)
        if heard < (1 - PART) * tick.held:
            return True
    return False
