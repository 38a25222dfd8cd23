"""The search for the number of connections that a server holds: the next count to try, and the
bracket of those tried. Pure.

Counts double until one is not held; then the bracket is narrowed. A failed step shows how many were
served at most: the next two counts are on either side of that, as far apart as the required width.
If that guess is wrong, the bracket is halved.

Losses by what looks like a timer, or at an age that no held step has reached, may be how a server
refuses too many connections; a step with few connections for as long decides. A server that does
not hold even one connection has no limit of their number.

A server that refused all beyond a number in one step, and served clearly more in another, has no
limit that this search can find: it keeps state of earlier steps, or limits their rate. The search
ends, and what it served beyond that number is no answer.

Whether the limit is on connects in a time is decided in :mod:`asyncli.analysis.pace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncli.analysis.constants import PART
from asyncli.analysis.forecast import Forecast

#: failed: a bottleneck beyond this host. ours: this host or asyncli was the limit, so the step does
#: not describe the server.
Outcome = Literal["held", "failed", "ours", "stopped"]
#: failed: not even the lowest count is held. stopped: by the user, by a run file that cannot be
#: written, because the server ended or fell silent before any step failed, because its limit moved
#: between steps, or because it limits connects in a time.
Verdict = Literal["found", "held", "invalid", "untested", "failed", "stopped"]

#: Why the server served no further step: it ended, or it answers nothing, though nothing shows that
#: it ended, or it refuses every connection.
Absence = Literal["", "ended", "silent", "refusing"]

RULE = (
    "as many at the hold's end as were asked for, no answer an error (status 400 or more), within "
    "every limit"
)
#: Tries after which this host is the limit at a count, or a count fails although the server was
#: reloaded.
TRIES = 2
#: If a timer ends even this few connections, their number is not the reason.
FEW = 10


class Tried(msgspec.Struct, frozen=True):
    """One step. ``tested``: the server answered. ``served``: the most connections held and answered
    at the end of a second.

    ``chance``: it may not repeat: this host was late, or the server was reloaded or ended.
    ``timed``: it failed by what looks like a limit of time or of requests. ``lived_s``: the age of
    its oldest connection; ``ended_s``: of the youngest lost one, or 0. ``refused``: it failed
    because the server refused those beyond ``served``. ``shared``: there is evidence against the
    server or the network too. ``unserved``: what it lost had never been served, and no limit that
    was read says why. ``per_s``: its ramp, in connects a second; ``slower``: that is slower than
    the plan's. ``undecided``: the limit that ended the search, since it could not decide it.
    """

    asked: int
    outcome: Outcome
    tested: bool
    served: int
    chance: bool = False
    timed: bool = False
    lived_s: float = 0.0
    ended_s: float = 0.0
    refused: bool = False
    shared: bool = False
    unserved: bool = False
    per_s: float = 0.0
    slower: bool = False
    undecided: str = ""

    @property
    def is_undecided(self) -> bool:
        """This host was late or busy, which may not be the reason why the count was not held."""
        return self.outcome == "ours" and self.chance and self.shared


class Search(msgspec.Struct, frozen=True):
    """``start``, ``most``: first and highest count; ``within``: width of the bracket, as a share of
    its upper end. ``bound``: the limit of this host that sets ``most`` ("": the user did);
    ``mend``: its remedy.
    """

    start: int
    most: int
    within: float
    bound: str = ""
    mend: str = ""


class Bracket(msgspec.Struct, frozen=True):
    """``held``: the largest count that was held, or 0; ``failed``: the smallest that was not, or
    None.
    """

    held: int
    failed: int | None

    def is_narrow(self, within: float) -> bool:
        """Whether it is within the required width; neighbouring counts always are."""
        return self.failed is not None and self.failed - self.held <= max(1.0, within * self.failed)


def bracket(tried: Sequence[Tried]) -> Bracket:
    """The bracket of all steps. Counts that were held above step that was not are ignored. If the
    limit moved, what the server held beyond what it served when it first refused is no answer.
    """
    failed = min((step.asked for step in tried if _is_failed(step, tried)), default=None)
    moved = moved_limit(tried)
    held = [
        step.asked
        for step in tried
        if step.outcome == "held" and (failed is None or step.asked < failed)
    ]
    if moved is not None:
        held = [count for count in held if count <= moved[0].served]
    return Bracket(max(held, default=0), failed)


def moved_limit(tried: Sequence[Tried]) -> tuple[Tried, Tried] | None:
    """A step that was refused beyond what it served, and another that shows that this was not its
    limit; None if there is none: a later one that held clearly more, or any that served more at
    once than the refused one had asked for.
    """
    refused: Tried | None = None
    for number, step in enumerate(tried):
        if (
            refused is not None
            and step.outcome == "held"
            and step.asked > (1 + PART) * refused.served
        ):
            return refused, step
        if step.outcome != "failed" or not step.refused or step.chance:
            continue
        earlier = max(tried[:number], key=lambda other: other.served, default=step)
        if earlier.served > step.asked:
            return step, earlier
        if refused is None or step.served < refused.served:
            refused = step
    return None


def _is_failed(step: Tried, tried: Sequence[Tried]) -> bool:
    """Whether the step shows that its count is too large."""
    return step.outcome == "failed" and (not step.chance or _times(step, tried) >= TRIES)


def _times(step: Tried, tried: Sequence[Tried]) -> int:
    return sum(
        (other.asked, other.outcome, other.chance) == (step.asked, step.outcome, step.chance)
        for other in tried
    )


def _outlived(step: Tried, tried: Sequence[Tried]) -> bool:
    """Whether its lost connections were older than any of a step that held."""
    # Ages are in whole seconds, rounded up: 1 means closed at once.
    lived_s = max((other.lived_s for other in tried if other.outcome == "held"), default=1.0)
    return step.outcome == "failed" and step.ended_s > lived_s


def holds_none(tried: Sequence[Tried]) -> bool:
    """Whether the number is not the reason: not even step was held, or a timer ended at most
    :data:`FEW`.
    """
    known = bracket(tried)
    fewest = 1
    if any(step.timed or _outlived(step, tried) for step in tried):
        fewest = FEW
    held_before = any(step.outcome == "held" and step.asked == known.failed for step in tried)
    return known.failed is not None and known.failed <= fewest and (not known.held or held_before)


def next_count(search: Search, tried: Sequence[Tried]) -> int | None:
    """The next count to try; None when the search is over."""
    if not tried:
        return min(search.start, search.most)
    last = tried[-1]
    if last.outcome == "stopped" or not any(step.tested for step in tried):
        return None
    if last.chance and _times(last, tried) < TRIES:
        return last.asked
    if last.outcome == "ours" or moved_limit(tried) is not None or holds_none(tried):
        return None
    return _next_between(search, tried)


def _next_between(search: Search, tried: Sequence[Tried]) -> int | None:
    """The next count within what is known of the limit."""
    last = tried[-1]
    known = bracket(tried)
    if _outlived(last, tried) or (last.timed and not known.held):
        return min(FEW, known.held or FEW)
    if known.failed is None:
        return _twice_as_many(search, known.held)
    if known.is_narrow(search.within):
        return None
    guess = _beside_what_was_served(search, tried)
    if guess is not None:
        return guess
    return (known.held + known.failed) // 2 if known.held else 1


def _twice_as_many(search: Search, held: int) -> int | None:
    if held >= search.most:
        return None
    return min(search.most, max(search.start, 2 * held))


def _beside_what_was_served(search: Search, tried: Sequence[Tried]) -> int | None:
    """A count just below or above what the first failed step served, if that is not known yet."""
    known = bracket(tried)
    first = next(step for step in tried if _is_failed(step, tried))
    width = max(1, int(search.within * first.served))
    # If all were served, something else failed: no guess.
    if known.failed is None or first.served + width > first.asked:
        return None
    below = first.served - width // 2
    for guess in (below, below + width):
        if known.held < guess < known.failed:
            return guess
    return None


def verdict(
    search: Search,
    tried: Sequence[Tried],
    *,
    gone: Absence = "",
    broken: str = "",
    stopped: bool = False,
) -> tuple[Verdict, str]:
    """The verdict and its reason. ``gone``: the server did not come back, and how; ``broken``: why
    asyncli could not continue; ``stopped``: the user ended the search.
    """
    known = bracket(tried)
    if not any(step.tested for step in tried):
        return "untested", "nothing ever answered"
    if holds_none(tried):
        why = f"not even {known.failed:,} could be held, so their number is not the limit"
        return "failed", why
    if moved_limit(tried) is not None:
        return "stopped", "it refused more in one step, and served more in another"
    if known.is_narrow(search.within):
        return "found", ""
    if gone == "refusing":
        return "stopped", "since then it refuses every connection"
    if gone:
        outcome: Verdict = "stopped"
        if known.failed is not None:
            outcome = "found"
        if gone == "ended":
            return outcome, "the server ended and did not come back"
        return outcome, "the server answers nothing more"
    if broken:
        return "stopped", f"asyncli could not continue: {broken}"
    return _verdict_by_last(search, tried[-1], stopped=stopped)


def _verdict_by_last(search: Search, last: Tried, *, stopped: bool) -> tuple[Verdict, str]:
    """The verdict of a search that found no limit, by its last step."""
    if last.undecided:
        why = (
            f"all of {last.asked:,} were held, but a step of this search cannot tell whether the "
            f"limit '{last.undecided}' is kept: leave it out, or use it with 'asyncli soak'"
        )
        return "stopped", why
    if stopped or last.outcome == "stopped":
        return "stopped", "stopped by the user"
    if last.is_undecided:
        why = f"at {last.asked:,} this host was busy or late, but the limit may be the server's"
        return "invalid", why
    if last.outcome == "ours":
        return "invalid", f"at {last.asked:,} this host was the limit, not the server"
    if search.bound:
        return "invalid", "this host can open no more (preflight)"
    return "held", "no more were asked for"


def served_before(tried: Sequence[Tried], protocol: str) -> int:
    """How many steps a broker had served before the one that the answer rests on; 0 for servers
    that keep no state of clients.
    """
    if protocol != "mqtt" or moved_limit(tried) is not None:
        return 0
    held = bracket(tried).held
    return next(
        (
            number
            for number, step in enumerate(tried)
            if step.outcome == "held" and step.asked == held
        ),
        0,
    )


class Prediction(msgspec.Struct, frozen=True):
    """The lowest limit of a forecast, and whether the measured bracket ``agrees`` (None:
    undecided).
    """

    name: str
    connections: float
    ci95: tuple[float, float] | None
    how: str
    agrees: bool | None


def prediction(forecast: Forecast, known: Bracket, within: float) -> Prediction | None:
    """The lowest limit of ``forecast``; it agrees if the bracket, widened by ``within``, has it."""
    first = next((limit for limit in forecast.ceilings if limit.name == forecast.first), None)
    if first is None or first.connections is None:
        return None
    low, high = first.ci95 or (first.connections, first.connections)
    agrees: bool | None = high * (1 + within) >= known.held
    if known.failed is not None:
        agrees = agrees and low * (1 - within) <= known.failed
    elif agrees:
        agrees = None
    return Prediction(first.name, first.connections, first.ci95, first.how, agrees)
