"""Which paces explain a storm that was measured: those whose simulated storm is like it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from asyncli.core.events import Reconnect
from asyncli.core.histogram import Histogram
from asyncli.core.storm import TIMER_GRAIN_S, Laws, Storm, storm


class PaceSearch(msgspec.Struct, frozen=True):
    """Which paces are tried, and how what they explain is judged."""

    #: Connections that are simulated at most; of more a part.
    connections: int = 1_500
    #: How many times faster a server accepts than it answers: as fast, or so fast that its queue is
    #: fuller or emptier than its pace of answers says.
    ratios: tuple[float, ...] = (1.0, 3.0, math.inf)
    #: The times of so many equal parts of the clients are compared, beside those of the last ones.
    parts: int = 40
    last: tuple[float, ...] = (0.99, 1.0)
    #: From half the mean pace of the storm on, so many, each so many times the one before; then
    #: finer ones around the best of each ratio.
    paces: int = 16
    step: float = 2**0.5
    fine_step: float = 2**0.0625
    fine_steps: tuple[int, ...] = (-7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
    #: When the clients' timers fire, as shares of their grain: nobody knows.
    phases: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    #: What counts how much beside the times: the usual pace of answers, and how many packets met a
    #: full queue, as logarithms.
    of_pace: float = 0.2
    of_dropped: float = 0.03
    #: By so much worse another pace may explain the storm than the best one does.
    as_good: float = 0.02
    #: So many of the paces that explain it are kept.
    kept: int = 8
    #: The usual pace is of so long (s), or of this share of the time since the event if that is
    #: more: a histogram is as coarse.
    window_s: float = 0.03
    window_share: float = 1 / 32
    #: A quarter of the answers came at that pace or a greater one.
    usual: float = 0.75


SEARCH = PaceSearch()
#: The shares of the clients whose times are compared.
SHARES = (*(part / SEARCH.parts for part in range(1, SEARCH.parts)), *SEARCH.last)


class Seen(msgspec.Struct, frozen=True):
    """What was seen of a storm, or simulated: when the SHARES of the clients were back (s; None:
    never), the usual pace of answers, and how many packets met a full listen queue, None where that
    is not known.
    """

    back_s: tuple[float | None, ...]
    usual_per_s: float
    dropped: float | None


class MeasuredStorm(msgspec.Struct, frozen=True):
    """A storm of a run: whom its event ended, and how they came back."""

    policy: Reconnect
    seed: int
    event: int
    numbers: tuple[int, ...]
    seen: Seen

    def simulated(self, laws: Laws) -> Seen:
        """The same storm by these laws."""
        run = divided_storm(
            laws, self.policy, self.seed, self.event, self.numbers, SEARCH.connections
        )
        times = len(self.numbers) / run.connections
        return Seen(
            back_s=tuple(run.after_s(share) for share in SHARES),
            usual_per_s=times * usual_per_s(run.back_s),
            dropped=times * run.dropped,
        )

    def loss(self, laws: Laws) -> float:
        """How far the storm by these laws is from what was seen, as a share of its time."""
        return _loss(self.seen, self.simulated(laws))


class Explanation(msgspec.Struct, frozen=True):
    """The laws that explain a storm, the best first. ``loss``: how far the best is from what was
    seen, as a share of the storm's time.
    """

    laws: tuple[Laws, ...]
    loss: float


def explain(measured: MeasuredStorm, base: Laws, mean_per_s: float) -> Explanation:
    """The paces that explain a storm, with the other laws of ``base``. ``mean_per_s``: of its
    answers.
    """
    # Laws, each with how badly they explain it.
    tried: list[tuple[float, Laws]] = []
    for ratio in SEARCH.ratios:
        coarse = []
        for step in range(SEARCH.paces):
            laws = at_pace(base, mean_per_s / 2 * SEARCH.step**step, ratio)
            coarse.append((measured.loss(laws), laws))
        _, best = min(coarse, key=_loss_of)
        for fine_step in SEARCH.fine_steps:
            laws = at_pace(base, best.answer_per_s * SEARCH.fine_step**fine_step, ratio)
            tried += _in_phases(measured, laws)
    least_loss, _ = min(tried, key=_loss_of)
    alike = [pair for pair in tried if _loss_of(pair) <= least_loss + SEARCH.as_good]
    # Two paces where one explains as much are one too many.
    loss, best = min(alike, key=lambda pair: (_has_two_paces(pair[1]), pair[0]))
    others = [laws for _, laws in alike if laws != best]
    return Explanation((best, *_spread(others)), loss)


def _has_two_paces(laws: Laws) -> bool:
    return laws.accept_per_s != laws.answer_per_s


def _loss_of(tried: tuple[float, Laws]) -> float:
    loss, _ = tried
    return loss


def at_pace(base: Laws, per_s: float, ratio: float) -> Laws:
    """``base`` with so many answers a second, and accepts ``ratio`` times as fast."""
    return msgspec.structs.replace(base, accept_per_s=per_s * ratio, answer_per_s=per_s)


def _in_phases(measured: MeasuredStorm, laws: Laws) -> list[tuple[float, Laws]]:
    """The laws with each instant at which the clients' timers may fire, if any did."""
    phases: tuple[float, ...] = (0.0,)
    if measured.seen.dropped != 0:
        phases = SEARCH.phases
    tried = []
    for phase in phases:
        varied = msgspec.structs.replace(laws, timers_s=phase * TIMER_GRAIN_S)
        tried.append((measured.loss(varied), varied))
    return tried


def _loss(seen: Seen, simulated: Seen) -> float:
    """How far what is simulated is from what was seen."""
    whole_s = seen.back_s[-1] or math.inf
    total_s = 0.0
    for measured_s, at_s in zip(seen.back_s, simulated.back_s, strict=True):
        if at_s is None or measured_s is None:
            total_s += whole_s
        else:
            total_s += min(abs(at_s - measured_s), whole_s)
    loss = total_s / (len(seen.back_s) * whole_s)
    loss += SEARCH.of_pace * _times_apart(seen.usual_per_s, simulated.usual_per_s)
    if seen.dropped is not None and simulated.dropped is not None:
        loss += SEARCH.of_dropped * _times_apart(1 + seen.dropped, 1 + simulated.dropped)
    return loss


def _times_apart(value: float, other_value: float) -> float:
    return abs(math.log(max(value, 1e-9) / max(other_value, 1e-9)))


def _spread(alike: Sequence[Laws]) -> list[Laws]:
    """Some of these laws, spread over their paces, with the slowest and the fastest."""
    ordered = sorted(alike, key=lambda laws: (laws.accept_per_s, laws.answer_per_s))
    step = max(1, math.ceil(len(ordered) / SEARCH.kept))
    kept = ordered[::step]
    if ordered and ordered[-1] not in kept:
        kept.append(ordered[-1])
    return kept


def times_s(histogram: Histogram) -> list[float]:
    """The times of a histogram of milliseconds (s), in order: those of a bucket evenly over it."""
    opened = histogram.opened()
    times = []
    for key, count in opened.items():
        low, high = opened.within(key)
        for place in range(count):
            times.append((low + (high + 1 - low) * (place + 0.5) / count) / 1e3)
    return times


def usual_per_s(back_s: Sequence[float], window_s: float = SEARCH.window_s) -> float:
    """The pace of answers that a quarter of them exceed, each by those just before it. Not the
    greatest pace: many answers at one instant may be of connections that were accepted long before,
    as data that was sent again reached them.
    """
    paces = []
    first = 0
    for last, at_s in enumerate(back_s):
        width_s = max(window_s, SEARCH.window_share * at_s)
        while back_s[first] < at_s - width_s:
            first += 1
        paces.append((last + 1 - first) / width_s)
    if not paces:
        return 0.0
    paces.sort()
    return paces[math.ceil(SEARCH.usual * len(paces)) - 1]


def divided_storm(
    laws: Laws,
    policy: Reconnect,
    seed: int,
    event: int,
    numbers: Sequence[int],
    at_most: int,
) -> Storm:
    """A storm of about ``at_most`` connections: of more a part, with paces and a backlog that are
    as much smaller.
    """
    by = math.ceil(len(numbers) / at_most)
    if by <= 1:
        return storm(laws, policy, seed, event, numbers)
    part = numbers[::by]
    return storm(laws.divided(len(numbers) / len(part)), policy, seed, event, part)
