"""What ends many connections at one moment, or for want of room: told by when they died and by what the server's status page and
processes say of that moment; the ages and idle times of the dead are then any.

Sources: ngx_drain_connections (idle reuse), ngx_close_idle_connections (a worker that shuts down) and the shared counters of
ngx_event_core_module (a worker that is killed never counts its connections down) of nginx 1.22.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import msgspec

from asyncli.analysis.mortality import DEVIATIONS, FEWEST, Case, Cell, Share, Words, left, one_of, tells
from asyncli.analysis.mortality import mode as mode_of
from asyncli.analysis.witness import Testimony
from asyncli.core.histogram import Histogram
from asyncli.findings.losses import befell
from asyncli.units import format_clock, format_count, format_duration

# The causes by which a server that goes, or a part of it, ends connections.
_ENDED = ("closed_idle", "closed_awaiting", "closed_announced", "reset")
# Seconds next to the highest belong to the same burst while they hold a tenth of its dead.
_PART_OF_BURST = 0.1
# A burst is over within 2 s, and longer by what it takes to close and to hear of so many.
_BURST_S, _CLOSES_PER_S = 2.0, 10_000
# It stands out by this factor over the seconds around it, and takes this share of what was held or more.
_TIMES_AROUND, _AROUND_S, _LEAST_SHARE = 5.0, 10.0, 0.01
# A moment that nothing explains is worth a word from this share on, and while there are few of them.
_WORTH_A_WORD, _MOST_UNKNOWN = 0.05, 10
# With a sixteenth or less of its slots free an nginx worker closes idle connections to make room for a new one.
_REUSE_ABOVE = 15 / 16
# A worker needs some itself: listeners for clients and for the status page, the channel to its master, our status connection
# (ngx_event_process_init, ngx_add_channel_event).
_OWN_SLOTS = 4
# Nearly all; as good as full; clearly not all that was asked for; and the share from which it counts as the most.
_NEARLY_ALL, _FULL, _NOT_ALL, _HALF = 0.9, 0.75, 0.8, 0.5

#: The code of what a suspension of this machine explains: no loss of the server's.
SUSPENDED = "suspended"

_ROOM = "raise worker_connections in nginx.conf: each worker needs 1.1 times its share"


# -- suspension


def suspended(case: Case) -> None:
    """This machine slept and nobody beat: what had not been heard of again when it ended had been given up meanwhile.

    Its next heartbeat comes within the longest gap, and shows it within the timeout.
    """
    for place, (woke_s, slept_s) in enumerate(case.witness.suspensions):
        until_s = woke_s + case.gap_s + case.timeout_s + 3.0
        timeout = case.configured("keepalive_timeout")
        why = (
            f"nginx keepalive_timeout (nginx.conf says {format_duration(timeout)}) went by meanwhile"
            if timeout and slept_s + case.gap_s >= timeout
            else "the server or a box on the way had given them up meanwhile"
        )

        slept = f"after this machine had been suspended for {format_duration(round(slept_s, 1))}, at {format_clock(woke_s)}"
        for cell in case.of(*_ENDED, "heartbeat_timeout", "other"):
            if woke_s - 2.0 < cell.to_s <= until_s:
                silent_s = max(0.0, cell.from_s - woke_s - 1.0)
                words = _since(cell.cause, f"{slept}, and had not been heard of since: {why}")
                case.take(cell, SUSPENDED, words, True, where=("idle_s", silent_s, math.inf), place=place)


def _since(cause: str, said: str) -> Words:
    return lambda share: (f"{befell(cause, share.count)} {said}", _AWAKE)


_AWAKE = "keep this machine awake: systemd-inhibit asyncli ..."


# -- idle reuse


def idle_reuse(case: Case) -> None:
    """nginx closes idle connections for new ones when its slots run out: more were asked for than nginx.conf has room for.

    Asked before bursts, because a short ramp is one too.
    """
    slots = case.configured("worker_connections") or 0.0
    workers = case.witness.workers(math.inf) or 1
    if case.plan.connections >= _REUSE_ABOVE * slots - _OWN_SLOTS * workers:
        _reuse(case, slots, lambda most, _: most >= _FULL * slots, True)


def unlucky_reuse(case: Case) -> None:
    """The same in one worker of several, to which the kernel may have dealt more than its share."""

    def may_be_full(most: float, workers: int) -> bool:
        share = most / workers
        return share + DEVIATIONS * math.sqrt(share) >= _REUSE_ABOVE * slots / workers

    slots = case.configured("worker_connections") or 0.0
    _reuse(case, slots, may_be_full, False)


def _reuse(case: Case, slots: float, is_full: Callable[[float, int], bool], certain: bool) -> None:
    """``is_full`` is told the most that were held, and by how many workers."""
    # A close for room needs an opening; and it never takes the half of what was there at one moment.
    cells = [
        cell for cell in case.of("closed_idle") if cell.tick.opened and not 0 < _HALF * case.witness.held(cell.from_s) < cell.left
    ]
    dead = left(cells)
    if slots <= 0 or not dead or dead < _HALF * left(case.of("closed_idle")):
        return
    first, last = min(cell.from_s for cell in cells), max(cell.to_s for cell in cells)
    most = max(*(cell.tick.held for cell in cells), case.witness.most_active(first, last) or 0.0)
    if not is_full(most, case.witness.workers(last) or 1):
        return
    certain = certain and dead >= FEWEST
    asked = format_count(case.plan.connections)

    def words(share: Share) -> tuple[str, str]:
        verb = "nginx ran out of free slots and closed" if certain else "looks like nginx ran short of free slots and closed"
        return (
            f"{befell('closed_idle', share.count)}, {share.idles()} after their last answer, while others opened: {verb} idle "
            f"connections to reuse theirs ('worker_connections are not enough, reusing connections' in its error log; nginx.conf "
            f"gives {format_count(slots)} in all, {asked} were asked for){share.when()}",
            _ROOM,
        )

    case.take_all(cells, "idle_reuse", words, certain)
    instants = {cell.to_s for cell in cells}
    for cell in case.of("closed_awaiting", "reset"):
        if cell.to_s in instants and cell.left <= dead:
            case.take(cell, "idle_reuse", _crossed(cell.cause, "nginx closed it to reuse its slot", _ROOM), certain)


def likely_reuse(case: Case) -> None:
    """The same where the number of slots is not known: it never holds what was asked for, and closes as many as it accepts."""
    cells = [cell for cell in case.of("closed_idle") if cell.tick.opened]
    dead = left(cells)
    if dead < FEWEST or dead < _NEARLY_ALL * left(case.of("closed_idle")):
        return
    first, last = min(cell.to_s for cell in cells), max(cell.to_s for cell in cells)
    meanwhile = [tick for _, tick in case.between(first - 0.5, last)]
    most = max(tick.held for _, tick in case.ticks)
    opened = sum(tick.opened for tick in meanwhile)
    # Each close makes room for some; and a fleet that lives for seconds may miss its mark a little by that alone.
    held = sorted(tick.held for tick in meanwhile)
    full = held[len(held) // 5] >= _FULL * most and most <= _NOT_ALL * case.plan.connections
    if not full or opened < _HALF * dead:
        return
    asked = format_count(case.plan.connections)

    def words(share: Share) -> tuple[str, str]:
        return (
            f"{befell('closed_idle', share.count)}, {share.idles()} after their last answer, while others opened: looks like the "
            f"server has no room for more and closes idle connections to make some (it never held more than {format_count(most)} "
            f"of the {asked} asked for; nginx: 'worker_connections are not enough, reusing connections' in its error log)"
            f"{share.when()}",
            _ROOM,
        )

    case.take_all(cells, "idle_reuse", words, False)


def _crossed(cause: str, said: str, remedy: str) -> Words:
    return lambda share: (f"{befell(cause, share.count)}, in the moment in which {said}{share.when()}", remedy)


# -- bursts


class _Burst(msgspec.Struct):
    """Many that died within seconds."""

    cells: list[Cell]
    from_s: float
    to_s: float
    count: int
    held: float

    @property
    def share(self) -> float:
        """Of what was held before."""
        return self.count / max(self.held, self.count, 1.0)

    def of(self, cause: str) -> int:
        return sum(cell.left for cell in self.cells if cell.cause == cause)


class _Moment(msgspec.Struct):
    """A burst, of what causes, with what is said of it."""

    burst: _Burst
    causes: frozenset[str]
    why: str
    remedy: str


def certain_bursts(case: Case) -> None:
    """Moments of which the server's own counts or processes say what happened."""
    _bursts(case, only_certain=True)


def likely_bursts(case: Case) -> None:
    """Moments of which only the share of the dead says what may have happened."""
    _bursts(case, only_certain=False)


def _bursts(case: Case, *, only_certain: bool) -> None:
    """Explain the bursts; those of one kind, a daily reload, under one diagnosis."""
    alike: dict[tuple[str, bool], list[_Moment]] = {}
    for burst in _find(case):
        said = case.witness.about(burst.from_s, burst.to_s, burst.count)
        code, why, remedy, certain = _what_happened(case, burst, said)
        if (only_certain and not certain) or (code == "burst" and burst.share < _WORTH_A_WORD):
            continue
        pooled = case.pool(cell for cell in burst.cells if cell.cause in ("closed_idle", "reset"))
        # One idle time for nearly all says more than the moment: they were opened at one moment, too.
        if (code == "box_reset" or (code != "burst" and not certain)) and _timed(case, pooled.idle_s):
            continue
        causes = frozenset(cell.cause for cell in burst.cells)
        alike.setdefault((code, certain), []).append(_Moment(burst, causes, why, remedy))
    for (code, certain), moments in alike.items():
        # Where moments that nothing explains come by the dozen, they are no moments but how it goes.
        if code == "burst" and len(moments) > _MOST_UNKNOWN:
            continue
        for moment in moments:
            for cell in moment.burst.cells:
                its = [one for one in moments if cell.cause in one.causes]
                case.take(cell, code, _at_moments(cell.cause, its), certain)


def _timed(case: Case, idle_s: Histogram) -> bool:
    found = mode_of(idle_s)
    return found is not None and found[1] >= 2 and tells(case.gap_s, idle_s, *found)


def _find(case: Case) -> list[_Burst]:
    """The bursts among what is left, the first first."""
    by_second: dict[float, list[Cell]] = {}
    for cell in case.of(*_ENDED):
        by_second.setdefault(cell.to_s, []).append(cell)
    instants = sorted(by_second)
    counts = [left(by_second[t_s]) for t_s in instants]
    taken: set[int] = set()
    bursts = []
    for peak in sorted(range(len(instants)), key=lambda one: -counts[one]):
        if counts[peak] < FEWEST:
            break
        if peak in taken:
            continue
        low, high = _extent(instants, counts, peak, taken)
        taken.update(range(low, high + 1))
        dead = sum(counts[low : high + 1])
        from_s, to_s = instants[low] - 1.0, instants[high]
        if to_s - from_s > _BURST_S + dead / _CLOSES_PER_S:
            continue
        near = slice(bisect.bisect_right(instants, from_s - _AROUND_S), bisect.bisect_right(instants, to_s + _AROUND_S))
        around = sum(counts[near]) - dead
        # Those that something else ended in these seconds could not be ended by this.
        others = sum(t.lost for t_s, t in case.between(from_s, to_s)) - dead
        held = max(case.witness.held(from_s), case.witness.held(from_s - 1.0)) - others
        if dead < _TIMES_AROUND * around * (to_s - from_s) / (2 * _AROUND_S) or dead < _LEAST_SHARE * held:
            continue
        cells = [cell for t_s in instants[low : high + 1] for cell in by_second[t_s]]
        bursts.append(_Burst(cells, from_s, to_s, dead, held))
    return sorted(bursts, key=lambda burst: burst.from_s)


def _extent(instants: Sequence[float], counts: Sequence[int], peak: int, taken: set[int]) -> tuple[int, int]:
    """The first and the last second of the burst around a peak."""
    low = high = peak
    least = _PART_OF_BURST * counts[peak]
    while low > 0 and low - 1 not in taken and instants[low] - instants[low - 1] < 1.6 and counts[low - 1] >= least:
        low -= 1
    while (
        high + 1 < len(instants)
        and high + 1 not in taken
        and instants[high + 1] - instants[high] < 1.6
        and counts[high + 1] >= least
    ):
        high += 1
    # A moment falls on either side of a second's border: one or two beyond it, with nobody before or after them, are its own.
    least_s = instants[high] - instants[low] + 1.0
    room_s = max(_BURST_S, _BURST_S - 1.0 + sum(counts[low : high + 1]) / _CLOSES_PER_S)
    if least_s < room_s and low > 0 and low - 1 not in taken and _is_fringe(instants, low, low - 1, low - 2):
        return low - 1, high
    if least_s < room_s and high + 1 < len(instants) and high + 1 not in taken and _is_fringe(instants, high, high + 1, high + 2):
        return low, high + 1
    return low, high


def _is_fringe(instants: Sequence[float], edge: int, place: int, beyond: int) -> bool:
    """Whether the second at ``place`` is next to a burst's edge, and none is next to it on its other side."""
    alone = not 0 <= beyond < len(instants) or abs(instants[place] - instants[beyond]) >= 1.6
    return abs(instants[edge] - instants[place]) < 1.6 and alone


def _what_happened(case: Case, burst: _Burst, said: Testimony) -> tuple[str, str, str, bool]:
    """Code, words, remedy, and whether the server itself bears it out."""
    name = case.witness.called
    all_of_them = burst.share >= _NEARLY_ALL
    workers = case.witness.workers(burst.from_s)
    if said.gone:
        remedy = "see its error log and the kernel's for who ended it"
        return "server_ended", f"{name} ended or was killed: none of its processes was left", remedy, True
    if said.restarted:
        why = f"{name} was restarted: other processes took the place of those that were there"
        return "server_restarted", why, "see its log and the service manager's for who restarted it", True
    # Still on its count, though gone from ours.
    kept = min(said.excess or 0, burst.count)
    counted = f"{name}'s own count of connections still holds {format_count(kept)} of them"
    perhaps = "" if case.witness.direct else "looks like "
    if kept >= _HALF * burst.count and burst.count >= FEWEST and not burst.of("closed_announced"):
        resets = [cell for cell in burst.cells if cell.cause == "reset"]
        # The kernel ends what a killed process held by FIN, and by RST only where a request was not read yet.
        if left(resets) >= _HALF * burst.count and case.asked(resets) < _HALF and not said.ended:
            return "box_reset", f"{counted}: a box on the way reset them, and did not tell it", _BOX, True
        if said.ended != 0 and (not all_of_them or workers in (None, 1)):
            of = f", one of {workers}" if workers and workers > 1 else ""
            return "worker_crash", f"{counted}: {perhaps}a worker of it crashed or was killed{of}", _CRASH, not perhaps
    # The one worker of a server ends by a crash as well.
    if said.ended and workers and 1 < workers <= said.ended and all_of_them:
        why = f"{name} was reloaded: {said.ended} of its processes ended and others took their place"
        return "reload", why, _NO_RELOAD, True
    if all_of_them and _refused_after(case, burst):
        return "server_ended", f"looks like {name} ended: connects were refused from then on", "see its error log", False
    if all_of_them and said.silent_since:
        why = f"looks like {name} ended: its status page answered before, and never again"
        return "server_ended", why, "see its error log", False
    if all_of_them and (burst.of("closed_idle") >= _HALF * burst.count or burst.of("closed_announced")):
        if said.reconnected and said.excess is not None:
            what = f"looks like a reload of {name}" if perhaps else f"{name} was reloaded"
            why = f"{what}: it went on counting, let go of them all in good order, and ended our status connection with them"
            return "reload", why, _NO_RELOAD, not perhaps
        if case.witness.is_nginx or any(tick.opened for _, tick in case.between(burst.to_s, burst.to_s + _AROUND_S)):
            return "reload", f"looks like a reload of {name}, which lets old workers close what they hold", _NO_RELOAD, False
        return "reload", f"looks like a reload, a restart or the end of {name}", "see its log of that moment", False
    # A child that ends may be a helper, or a worker that held little: it must have held about as many as died.
    ended = bool(said.ended and workers and burst.count >= _HALF * said.ended * burst.held / workers)
    if workers and workers > 1 and (ended or (said.ended is None and one_of(workers, burst.count, burst.held))):
        which = f"{format_count(said.ended or 1)} of {workers} workers of {name}"
        if said.excess is not None:
            order = "" if burst.of("reset") else " in good order"
            why = f"{'' if ended else 'looks like '}{which} shut down and let go of its connections{order}"
            return "worker_ended", why, "see its error log for who ended it", ended
        why = f"{'' if ended else 'looks like '}{which} ended with its connections: a crash, or it was killed"
        return "worker_crash", why, _CRASH, ended
    if burst.of("reset") >= _HALF * burst.count and all_of_them:
        why = "looks like a box on the way that was restarted or lost its table of connections"
        return "box_reset", why, _BOX, False
    return "burst", "what ended them all at one moment, nothing here says", "see the server's log of that moment", False


_CRASH = "see its error log ('worker process ... exited on signal') and the kernel's"
_BOX = "see firewalls and load balancers between here and the server"
_NO_RELOAD = "do not reload it while you measure; or see who did"


def _refused_after(case: Case, burst: _Burst) -> bool:
    """Whether connects were refused in the seconds after it, and none succeeded."""
    after = [tick for _, tick in case.between(burst.to_s - 1.0, burst.to_s + 3.0)]
    refused = sum(tick.failures.get("refused", 0) for tick in after)
    return refused >= FEWEST and sum(tick.opened for tick in after[1:]) == 0


def _at_moments(cause: str, moments: list[_Moment]) -> Words:
    """Of ``moments`` in which some died of ``cause``."""

    def words(share: Share) -> tuple[str, str]:
        largest = max(moments, key=lambda one: one.burst.count)
        burst = largest.burst
        all_ = f"{format_count(burst.count)} of {format_count(max(burst.held, burst.count))} held"
        if len(moments) == 1:
            lasted = format_duration(max(1.0, burst.to_s - burst.from_s))
            when = f"at {format_clock(burst.from_s)} within {lasted} ({all_}; of ages {share.ages()})"
        else:
            first = ", ".join(format_clock(one.burst.from_s) for one in moments[:3])
            more = f" and {len(moments) - 3} more" if len(moments) > 3 else ""
            when = f"at {len(moments)} moments ({first}{more}; of ages {share.ages()}); of the largest, {all_}"
        return f"{befell(cause, share.count)} {when}: {largest.why}", largest.remedy

    return words
