"""What a storm on the server of a recorded run would be like, for any way to come back. Pure.

Each set of laws that explains the run is simulated, the best with several seeds: the best with the
run's seed is the forecast, and all of them together its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncli.analysis.provoked import Back
from asyncli.analysis.storm_bounds import MARGINS
from asyncli.analysis.storm_fit import divided_storm
from asyncli.analysis.storm_pace import Pace
from asyncli.core.events import Reconnect
from asyncli.core.storm import SYN_AGAIN_S, Laws, Storm, storm
from asyncli.model.planned_events import policy_words


class Depth(msgspec.Struct, frozen=True):
    """How much is simulated."""

    #: The storm is the first event of its run.
    event: int = 1
    #: Connections at most, of more a part: for the forecast, for the bounds of its interval and
    #: what binds it, and for each jitter that is tried.
    connections: int = 10_000
    for_bounds: int = 1_500
    for_jitter: int = 4_000
    #: A law binds if without it a storm would be over in less than this share of its time.
    binds: float = 0.9
    #: From this share of the connections on, dropped SYNs decide about the last ones.
    some: float = 0.01
    #: At the advised jitter fewer connects than this share fail.
    fails_below: float = 0.001
    #: Points of the curve.
    points: int = 48
    #: Seeds over which the interval reaches, and for which a jitter is enough.
    seeds: int = 3
    #: Times the advised jitter at which it is enough too: how many fail does not fall steadily.
    still: tuple[float, ...] = (1.0, 1.15, 1.3, 1.6, 2.0)
    #: The least and the greatest jitter (s) that is tried, and to what share of itself it is found.
    least_s: float = 0.1
    greatest_s: float = 3600.0
    narrow: float = 1.03


_DEPTH = Depth()
FAILS_BELOW = _DEPTH.fails_below

#: What decides how long a storm lasts: how clients come back, the listen queue (and so the
#: kernel's timers), the server, asyncli itself, or the host that both are on.
Bound = Literal["policy", "queue", "server", "asyncli", "host"]


class StormForecast(msgspec.Struct, frozen=True):
    """A storm of ``connections`` that come back by ``policy``. ``back``: when they are back,
    between ``earliest`` and ``latest`` (s; None: not while it was simulated). ``until_s``: where
    the simulation was left unfinished; None: it was not. Where ``is_at_most``, the run shows only
    the least pace, and that matters: they are back by ``latest`` or earlier. Where
    ``only_at_pace``, the server did not keep up with an event of the run that tells no pace: it had
    the pace of this forecast at another time, which bounds nothing then, and ``latest`` is not
    known.

    ``attempts``: connects, of which ``failed`` get no answer. ``met_full``: those that meet a full
    listen queue, which drops ``overflows`` packets; None where ``only_at_pace``. Where
    ``counts_at_most``, a faster server, as this one may be, has fewer of these. ``busiest_s``: the
    most connects that begin within a second. ``curve``: how many are back at equal times, the last
    at the end.
    """

    policy: str
    connections: int
    back: Back
    earliest: Back
    latest: Back
    is_at_most: bool
    only_at_pace: bool
    attempts: int
    failed: int | None
    met_full: int | None
    overflows: int | None
    counts_at_most: bool
    busiest_s: int
    bound: Bound
    until_s: float | None
    curve: tuple[int, ...]


class Jitter(msgspec.Struct, frozen=True):
    """The least jitter (s) at which fewer than a thousandth of the connects fail or meet a full
    listen queue; None: at none up to an hour. Where ``is_at_most``, less may do.
    """

    least_s: float | None
    is_at_most: bool


# -- a storm


def forecast(pace: Pace, policy: Reconnect, seed: int, connections: int) -> StormForecast:
    """A storm of so many on the server of this pace."""
    best = pace.explains[0]
    run = _simulated(best, policy, seed, connections, _DEPTH.connections)
    backs = [_back(run)]
    for laws in pace.explains[1:]:
        backs.append(_back(_simulated(laws, policy, seed, connections, _DEPTH.for_bounds)))
    for further in range(1, _DEPTH.seeds):
        again = _simulated(best, policy, seed + further, connections, _DEPTH.for_bounds)
        backs.append(_back(again))
    is_at_most = False
    counts_at_most = False
    only_at_pace = pace.is_least and bool(pace.slow_comebacks)
    if pace.is_least:
        fastest = _simulated(_at_once(best), policy, seed, connections, _DEPTH.for_bounds)
        backs.append(_back(fastest))
    if pace.is_least and not only_at_pace:
        is_at_most = _lasts_s(fastest) < _DEPTH.binds * _lasts_s(run)
        counts_at_most = bool(run.met_full or run.unsuccessful)
    times = connections / run.connections
    latest = _latest(backs, pace.error, run)
    if only_at_pace:
        latest = Back(None, None, None, None)

    def of_all(count: int) -> int | None:
        return None if only_at_pace else round(times * count)

    return StormForecast(
        policy=policy_words(policy),
        connections=connections,
        back=backs[0],
        earliest=_earliest(backs, pace.error, _soonest(best, policy, seed, connections)),
        latest=latest,
        is_at_most=is_at_most,
        only_at_pace=only_at_pace,
        attempts=round(times * len(run.attempts_s)),
        failed=of_all(run.unsuccessful),
        met_full=of_all(run.met_full),
        overflows=of_all(run.dropped),
        counts_at_most=counts_at_most,
        busiest_s=round(times * run.busiest_s),
        bound=_what_binds(pace, policy, seed, connections),
        until_s=run.until_s,
        curve=_curve(run, times),
    )


def _simulated(laws: Laws, policy: Reconnect, seed: int, connections: int, at_most: int) -> Storm:
    return divided_storm(laws, policy, seed, _DEPTH.event, range(connections), at_most)


def _at_once(laws: Laws) -> Laws:
    """The same with a server that takes no time."""
    return msgspec.structs.replace(laws, accept_per_s=math.inf, answer_per_s=math.inf)


def _lasts_s(run: Storm) -> float:
    after_s = run.after_s(0.99)
    if after_s is None:
        return math.inf
    return after_s


def _back(run: Storm) -> Back:
    return Back(run.after_s(0.5), run.after_s(0.9), run.after_s(0.99), run.after_s(1.0))


def _times(back: Back) -> tuple[float, ...]:
    """Its times (s); infinite: never."""
    times_s = (back.p50_s, back.p90_s, back.p99_s, back.all_s)
    return tuple(math.inf if after_s is None else after_s for after_s in times_s)


def _back_of(times_s: Sequence[float]) -> Back:
    known = [None if math.isinf(after_s) else after_s for after_s in times_s]
    return Back(*known)


def _soonest(best: Laws, policy: Reconnect, seed: int, connections: int) -> list[float]:
    """When they are back (s) if neither the server nor asyncli takes time: the waits of the clients
    are known, however badly the laws explain the run.
    """
    at_once = msgspec.structs.replace(_at_once(best), connect_per_s=math.inf, end_each_s=0.0)
    times_s = []
    for further in range(_DEPTH.seeds):
        run = _simulated(at_once, policy, seed + further, connections, _DEPTH.for_bounds)
        times_s.append(_times(_back(run)))
    return [(1 - MARGINS.error) * min(of_share) for of_share in zip(*times_s, strict=True)]


def _earliest(backs: Sequence[Back], error: float, soonest_s: Sequence[float]) -> Back:
    earliest_s = []
    for times_s, least_s in zip(zip(*map(_times, backs), strict=True), soonest_s, strict=True):
        earliest_s.append(max(least_s, (1 - error) * min(times_s)))
    return _back_of(earliest_s)


def _latest(backs: Sequence[Back], error: float, run: Storm) -> Back:
    latest_s = [max(times_s) for times_s in zip(*map(_times, backs), strict=True)]
    p50_s, p90_s, p99_s, all_s = [(1 + error) * after_s for after_s in latest_s]
    if run.met_full > _DEPTH.some * run.connections:
        # The last ones may be dropped once more.
        p99_s += SYN_AGAIN_S
        all_s += SYN_AGAIN_S
    return _back_of([p50_s, p90_s, p99_s, all_s])


def _what_binds(pace: Pace, policy: Reconnect, seed: int, connections: int) -> Bound:
    """The law without which the storm would be over soonest."""
    best = pace.explains[0]

    def lasts_s(laws: Laws) -> float:
        return _lasts_s(_simulated(laws, policy, seed, connections, _DEPTH.for_bounds))

    whole_s = lasts_s(best)
    without_server_s = lasts_s(_at_once(best))
    if without_server_s > _DEPTH.binds * whole_s:
        without_tester = msgspec.structs.replace(
            _at_once(best), connect_per_s=math.inf, end_each_s=0.0
        )
        if lasts_s(without_tester) < _DEPTH.binds * without_server_s:
            return "asyncli"
        return "policy"
    roomy = msgspec.structs.replace(best, backlog=max(best.backlog, connections))
    if lasts_s(roomy) < _DEPTH.binds * whole_s:
        return "queue"
    if pace.tester_busy:
        return "asyncli"
    if pace.host_busy:
        return "host"
    return "server"


def _curve(run: Storm, times: float) -> tuple[int, ...]:
    if not run.back_s:
        return ()
    end_s = run.back_s[-1]
    counts = []
    back = 0
    for point in range(1, _DEPTH.points + 1):
        # The last one is at the end, whatever the rounding.
        until_s = end_s * point / _DEPTH.points * (1 + 1e-12)
        while back < len(run.back_s) and run.back_s[back] <= until_s:
            back += 1
        counts.append(round(back * times))
    return tuple(counts)


# -- the least jitter


def least_jitter(pace: Pace, seed: int, connections: int) -> Jitter:
    """The least jitter for the slowest of the laws that explain the run, if all clients could
    connect at once, as asyncli cannot.
    """
    slowest = min(pace.explains, key=lambda laws: (laws.accept_per_s, laws.answer_per_s))
    slower = max(0.1, 1 - pace.error)
    slowest = msgspec.structs.replace(
        slowest,
        connect_per_s=math.inf,
        end_each_s=0.0,
        accept_per_s=slowest.accept_per_s * slower,
        answer_per_s=slowest.answer_per_s * slower,
    )
    is_at_most = pace.is_least and not pace.slow_comebacks
    return Jitter(_least(slowest, seed, connections), is_at_most)


def _least(laws: Laws, seed: int, connections: int) -> float | None:
    too_short_s = 0.0
    enough_s = _DEPTH.least_s
    while not _is_enough(enough_s, laws, seed, connections):
        too_short_s = enough_s
        enough_s *= 2
        if enough_s > _DEPTH.greatest_s:
            return None
    while too_short_s and enough_s > too_short_s * _DEPTH.narrow:
        middle_s = math.sqrt(too_short_s * enough_s)
        if _is_enough(middle_s, laws, seed, connections):
            enough_s = middle_s
        else:
            too_short_s = middle_s
    return enough_s


def _is_enough(jitter_s: float, laws: Laws, seed: int, connections: int) -> bool:
    for times in _DEPTH.still:
        policy = Reconnect("jitter", 0.0, jitter_s * times)
        for further in range(_DEPTH.seeds):
            if not _few_fail(laws, policy, seed + further, connections):
                return False
    return True


def _few_fail(laws: Laws, policy: Reconnect, seed: int, connections: int) -> bool:
    """Whether all come back, with fewer than a thousandth of the connects in vain or at a full
    listen queue.
    """
    by = max(1, math.ceil(connections / _DEPTH.for_jitter))
    numbers = range(0, connections, by)
    few = FAILS_BELOW * len(numbers)
    run = storm(
        laws.divided(connections / len(numbers)),
        policy,
        seed,
        _DEPTH.event,
        numbers,
        most_failed=few,
        most_met_full=few,
    )
    if len(run.back_s) < len(numbers):
        return False
    return run.unsuccessful + run.met_full < few
