"""How many connections a server holds: which count to try next, and what the tried ones say together. Pure.

The counts double until one is not held; then the gap between the greatest that was held and the least that was not is closed.
A step that failed has seen how many were served at most, and that is the best guess there is: the next two counts lie on
either side of it, as far apart as the answer may be. Where that guess was wrong, the gap is halved.

What looks like a timer, which ends connections however few there are, may be how a server turns away what is too many: a step of
few tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncli.analysis.forecast import Forecast

#: held: by the rules. failed: something beyond this host gave way. ours: this host or asyncli did, so that it says nothing of the
#: server. stopped: by the user.
Outcome = Literal["held", "failed", "ours", "stopped"]
#: found: a bracket. held: all that was asked for. invalid: we were the limit. untested: nothing ever answered. failed: what ends
#: connections does so however few there are. stopped: by the user, by a run file that cannot be kept, or the server went and no
#: step had failed.
Verdict = Literal["found", "held", "invalid", "untested", "failed", "stopped"]

RULE = "as many at the hold's end as were asked for, within every limit"
#: A count at which we were late is said to be beyond us when it was so this often; and one at which the server was reloaded, not
#: to be held.
TRIES = 2
#: So few are too many for nobody: what ends one of these is no question of how many.
FEW = 10


class Tried(msgspec.Struct, frozen=True):
    """One step. ``answered``: heartbeats that were. ``served``: the most connections that were held, and answered, at the end of
    any second.

    ``chance``: what went wrong need not do so again: ours, and by being late alone, as a host on which others work is at times;
    or failed, because somebody reloaded the server. ``timed``: failed, by what ends connections after a time, or a number of
    requests, as it looks.
    """

    asked: int
    outcome: Outcome
    answered: int
    served: int
    chance: bool = False
    timed: bool = False


class Search(msgspec.Struct, frozen=True):
    """``start``: the first count; ``most``: the last; ``within``: the width of the bracket, as a share of its upper end.

    ``bound``: what of this host forbids to ask for more than ``most``; "" where the user does. ``mend``: what would lift it.
    """

    start: int
    most: int
    within: float
    bound: str = ""
    mend: str = ""


class Bracket(msgspec.Struct, frozen=True):
    """``held``: the greatest count that was held, 0 for none; ``failed``: the least that was not, None for none."""

    held: int
    failed: int | None

    def is_narrow(self, within: float) -> bool:
        """Whether it is as narrow as was asked for; two neighbours always are."""
        return self.failed is not None and self.failed - self.held <= max(1.0, within * self.failed)


def bracket(tried: Sequence[Tried]) -> Bracket:
    """What the steps say together. A count that was held above one that was not says nothing: it is luck."""
    failed = min((one.asked for one in tried if _is_failed(one, tried)), default=None)
    held = [one.asked for one in tried if one.outcome == "held" and (failed is None or one.asked < failed)]
    return Bracket(max(held, default=0), failed)


def _is_failed(one: Tried, tried: Sequence[Tried]) -> bool:
    """Whether it says that its count is too many: not by a chance that did not come again."""
    return one.outcome == "failed" and (not one.chance or _times(one, tried) >= TRIES)


def _times(one: Tried, tried: Sequence[Tried]) -> int:
    return sum((other.asked, other.outcome, other.chance) == (one.asked, one.outcome, one.chance) for other in tried)


def ends_few(tried: Sequence[Tried]) -> bool:
    """Whether connections end however few there are: a timer was seen to end them, and not even :data:`FEW` were held."""
    known = bracket(tried)
    return known.failed is not None and known.failed <= FEW and not known.held and any(one.timed for one in tried)


def next_count(search: Search, tried: Sequence[Tried]) -> int | None:
    """The count to try next; None when no more can be known."""
    if not tried:
        return min(search.start, search.most)
    last = tried[-1]
    if last.outcome == "stopped" or not any(one.answered for one in tried):
        return None
    if last.chance and _times(last, tried) < TRIES:
        return last.asked
    if last.outcome == "ours":
        return None
    known = bracket(tried)
    if ends_few(tried):
        return None
    if last.timed and not known.held:
        return FEW
    if known.failed is None:
        return None if known.held >= search.most else min(search.most, max(search.start, 2 * known.held))
    if known.is_narrow(search.within):
        return None
    first = next(one for one in tried if _is_failed(one, tried))
    width = max(1, int(search.within * first.served))
    below = first.served - width // 2
    # Where all were served and something else was amiss, it guesses nothing.
    for guess in (below, below + width) if first.served + width <= first.asked else ():
        if known.held < guess < known.failed:
            return guess
    return (known.held + known.failed) // 2


def verdict(
    search: Search,
    tried: Sequence[Tried],
    *,
    gone: bool = False,
    broken: str = "",
    stopped: bool = False,
) -> tuple[Verdict, str]:
    """The verdict and why, in words. ``gone``: the server did not come back; ``broken``: why asyncli itself could not go on;
    ``stopped``: the user ended the search."""
    known = bracket(tried)
    if not any(one.answered for one in tried):
        return "untested", "nothing ever answered"
    if ends_few(tried):
        return "failed", "connections end however few they are: this is no question of how many"
    last = tried[-1]
    if known.is_narrow(search.within):
        return "found", ""
    if gone:
        # Who was killed has shown how many were too many, though no nearer than this.
        return ("found" if known.failed is not None else "stopped"), "the server has not come back, so no more is known"
    if broken:
        return "stopped", f"asyncli could not go on: {broken}"
    if stopped or last.outcome == "stopped":
        return "stopped", "stopped by the user"
    if last.outcome == "ours":
        return "invalid", f"at {last.asked:,} this host was the limit, not the server"
    if search.bound:
        return "invalid", "this host can carry no more, by its preflight"
    return "held", "more were not asked for"


class Foretold(msgspec.Struct, frozen=True):
    """What a forecast said: the lowest ceiling, and whether the measured bracket ``agrees`` (None: it cannot say)."""

    name: str
    connections: float
    ci95: tuple[float, float] | None
    how: str
    agrees: bool | None


def foretold(forecast: Forecast, known: Bracket, within: float) -> Foretold | None:
    """The lowest ceiling of ``forecast`` beside the bracket: they agree where the two, ``within`` wider, share a count."""
    first = next((one for one in forecast.ceilings if one.name == forecast.first), None)
    if first is None or first.connections is None:
        return None
    low, high = first.ci95 or (first.connections, first.connections)
    agrees: bool | None = high * (1 + within) >= known.held
    if known.failed is not None:
        agrees = agrees and low * (1 - within) <= known.failed
    elif agrees:
        agrees = None
    return Foretold(first.name, first.connections, first.ci95, first.how, agrees)
