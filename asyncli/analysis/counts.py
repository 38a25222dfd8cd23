"""Connections and requests counted by client and server at any instant, and where two counts
diverge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from asyncli.model.metrics import PROBE, STATUS_CONNECTS, STATUS_UNANSWERED
from asyncli.model.plan import Plan
from asyncli.model.records import Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series, counter_resets

Pair = Literal["asked", "held", "accepts", "handled", "requests"]

# After these failures the server may have accepted a connection that the client never counted as
# opened.
_PERHAPS_ACCEPTED = (
    "connect_timeout",
    "refused",
    "reset",
    "tls_failed",
    "tls_timeout",
    "handshake_refused",
    "handshake_timeout",
    "other",
)
# After these it may have counted a refused upgrade as a request.
_PERHAPS_ASKED = ("handshake_refused", "handshake_timeout")
# Page and tick are up to this far apart.
_APART_S = 1.0
# One or two pages may be read between two counters.
_FEWEST_PAGES = 3


class Divergence(msgspec.Struct):
    """A period in which two counts differed by more than was in flight.

    ``from_s``: the first page or tick that shows it; work in flight may have hidden it before.
    ``to_s``: the first instant at which they agreed again, or the last known one if not ``closed``.
    ``most``: the largest difference, at ``at_s``; ``last``: the one at the end. Differences are
    active less held, accepts less opened, handled less accepts, requests less answers and polls,
    held less asked without those that events have away.
    """

    pair: Pair
    from_s: float
    to_s: float
    most: int
    at_s: float
    last: int
    closed: bool


def asked_over_time(run: Run) -> Series:
    """Connections due by the plan at each tick; 0 from the drain on."""
    import numpy as np

    t_s = np.array(run.held.t_s[1:])
    asked = _asked(run.plan, run.first_connect_s, t_s)
    return Series(t_s.tolist(), np.where(t_s < run.stop_s, asked, 0.0).tolist())


class Client:
    """The client's counts at any instant, interpolated between its ticks."""

    def __init__(self, run: Run) -> None:
        import numpy as np

        held = run.held
        self.t_s = np.array(held.t_s)
        self._held = np.array(held.values)
        self._start = run.first_connect_s
        self._plan = run.plan
        #: What the server counts as requests; requests that open a connection begin before we count
        #: it as open.
        self.requests = run.plan.requests
        #: Requests with which a connection opens.
        self.by_connect = run.plan.streams + (self.requests == "connections")
        rows = [(t_s, tick) for t_s, tick in run.ticks if t_s > held.t_s[0]]
        self._tick_s = np.array([held.t_s[0], *(t_s for t_s, _ in rows)])
        ticks = [tick for _, tick in rows]
        opened = [tick.opened for tick in ticks]
        sent = list(map(self._sent, ticks))
        columns = {
            "opened": opened,
            "lost": [tick.lost + max(0, tick.ended_by_events) for tick in ticks],
            "silenced": [tick.silenced_by_events for tick in ticks],
            "away": [tick.away_by_events for tick in ticks],
            "sent": sent,
            "answered": list(map(self._answered, ticks)),
            # Connects that failed, and that the server may have accepted.
            "unsure": [tick.failed_by(_PERHAPS_ACCEPTED) for tick in ticks],
            "unreported_opened": _unreported(ticks, opened),
            "unreported_sent": _unreported(ticks, sent),
        }
        self._whole = {
            name: np.cumsum(np.array([0.0, *column])) for name, column in columns.items()
        }
        self._connecting = np.array([0.0, *(float(tick.connecting) for _, tick in rows)])
        self._coming_back = np.array([0.0, *(float(tick.coming_back) for _, tick in rows)])

    def _sent(self, tick: Tick) -> int:
        """Requests of a tick that the server may count."""
        beats = 0
        if self.requests == "heartbeats":
            beats = tick.sent
        again = _streams_again(tick, self._plan.streams)
        return self.by_connect * _upgrades(tick) + beats + again

    def _answered(self, tick: Tick) -> int:
        """Requests of a tick that the server has certainly counted."""
        beats = 0
        if self.requests == "heartbeats":
            beats = tick.answered
        again = _streams_again(tick, self._plan.streams)
        return self.by_connect * tick.opened + beats + again

    def at(self, name: str, t_s: Any) -> Any:
        import numpy as np

        return np.interp(t_s, self._tick_s, self._whole[name])

    def within(self, name: str, low: Any, high: Any) -> Any:
        return self.at(name, high) - self.at(name, low)

    def held(self, t_s: Any, until_s: float = math.inf) -> Any:
        """Held connections at each of ``t_s``; constant after the last tick before ``until_s``."""
        import numpy as np

        known = max(1, int(np.searchsorted(self.t_s, until_s, "right")))
        return np.interp(t_s, self.t_s[:known], self._held[:known])

    def connecting(self, t_s: Any) -> Any:
        """Pending connects at the tick before or after, whichever has more."""
        return self._more_of_two(self._connecting, t_s)

    def coming_back(self, t_s: Any) -> Any:
        """Of these, in the same way, those that a server may have and that are not held yet."""
        return self._more_of_two(self._coming_back, t_s)

    def _more_of_two(self, gauge: Any, t_s: Any) -> Any:
        import numpy as np

        after = np.searchsorted(self._tick_s, t_s)
        last = len(self._tick_s) - 1
        return np.maximum(gauge[np.clip(after - 1, 0, last)], gauge[np.clip(after, 0, last)])

    def asked(self, t_s: Any) -> Any:
        """Connections due by the schedule at each of ``t_s``."""
        return _asked(self._plan, self._start, t_s)

    def behind_asked(self, start: float, stop: float) -> list[Divergence]:
        """Where fewer were held than were due a second before, less those that events had away."""
        import numpy as np

        there = (self.t_s > start) & (self.t_s <= stop)
        t_s = self.t_s[there]
        held = self._held[there]
        asked = self.asked(t_s)
        # At the drain the gauge is of an instant within a second.
        away = self._more_of_two(self._whole["away"], t_s)
        # Gauge and schedule are read at different moments, so more than was due is no divergence.
        return _divergences(
            "asked",
            t_s,
            held - (asked - away),
            self.asked(t_s - _APART_S) - asked,
            np.full(len(t_s), math.inf),
        )


def _asked(plan: Plan, start_s: float, t_s: Any) -> Any:
    """Connections due by the schedule at each of ``t_s`` (s, an array), if the first connect was
    due at ``start_s``; none if that is infinite.
    """
    import numpy as np

    if not math.isfinite(start_s):
        return np.zeros(len(t_s))
    due = _batches_due(plan, t_s - start_s) * float(plan.batch)
    return np.minimum(due, plan.connections)


def _batches_due(plan: Plan, after_s: Any) -> Any:
    """How many batches are due at each of ``after_s``, seconds after T0: by bisection of all at
    once, without a list of the batches, of which a plan may have millions.
    """
    import numpy as np

    ramp = plan.schedule
    low = np.zeros(len(after_s), np.int64)
    high = np.full(len(after_s), ramp.batches, np.int64)
    while (low < high).any():
        middle: Any = (low + high) // 2
        is_due = np.asarray(ramp.due_s(middle)) <= after_s
        low = np.where(is_due, np.minimum(middle + 1, high), low)
        high = np.where(is_due, high, middle)
    return low


def _upgrades(tick: Tick) -> int:
    """Upgrades that were requested."""
    return tick.opened + tick.failed_by(_PERHAPS_ASKED)


def _streams_again(tick: Tick, streams: int) -> int:
    """Requests that replaced lost streams, if each connection holds ``streams``."""
    if tick.protocol is None or not streams:
        return 0
    return max(0, tick.protocol.streams_opened - streams * tick.opened)


def _unreported(ticks: Sequence[Tick], counts: Sequence[int]) -> list[int]:
    """The most that a lost worker may have done since its last tick."""
    unreported = [0] * len(ticks)
    for place, tick in enumerate(ticks):
        if "generator_lost" in tick.deaths:
            unreported[place] = 2 * max(counts[max(0, place - 2) : place + 1])
    return unreported


class OtherCount(NamedTuple):
    """A count of the server's active connections that is no rule's (``active``), without what it
    counted beside them before. ``files_closed``, ``files_opened``: by how much that may have
    changed meanwhile, where it counts files too.
    """

    active: Series
    files_closed: float = 0.0
    files_opened: float = 0.0


class Pages:
    """Counts of the status pages since the first (arrays, NaN if missing), without our poller's;
    restarts are added up.

    ``other``: where the pages have no count of active connections.
    """

    def __init__(self, run: Run, other: OtherCount | None = None) -> None:
        import numpy as np

        #: By how much the count of active connections may have fallen or risen by files.
        self.files_closed = 0.0
        self.files_opened = 0.0
        active = None
        if other is not None:
            active = other.active
            self.files_closed = other.files_closed
            self.files_opened = other.files_opened
        names = ("active", "accepts", "handled", "requests", "polls")
        columns = {name: run.series(f"status.{name}") for name in names}
        instants = _common_instants(columns)
        if active is not None and not instants:
            instants = active.t_s
        unknown = np.full(len(instants), math.nan)
        page = {}
        for name, column in columns.items():
            page[name] = unknown
            if len(column):
                page[name] = np.array(_where(column, instants))
        #: Whether it has a count that can be compared with ours.
        compared_columns = (columns["active"], columns["accepts"], columns["requests"])
        self.comparable = active is not None or any(map(len, compared_columns))
        #: Whether it has no count since the server's start, which would need a first page.
        self.counts_open_alone = not any(len(columns[name]) for name in ("accepts", "requests"))
        self._set_times(run, instants)
        #: Places of the first page after each restart, and the counter on the page before and on
        #: it.
        self.counter = "accepts" if len(columns["accepts"]) else "requests"
        counted = page[self.counter]
        self.restarts = counter_resets(counted.tolist())
        self.restarted_s = [instants[at] for at in self.restarts]
        self.around = [(float(counted[at - 1]), float(counted[at])) for at in self.restarts]
        for name in ("accepts", "handled", "requests"):
            page[name] = _added_up(page[name], self.restarts)
        self._set_polls(run, instants, page["polls"])
        self.active = page["active"] - 1
        if active is not None:
            known = dict(active.rows())
            self.active = np.array([known.get(t_s, math.nan) for t_s in instants])
        # New connections of our poller are accepts too.
        self.accepts = _since_first(page["accepts"]) - self._reconnects
        self.handled = _since_first(page["handled"]) - self._reconnects
        self.requests = _since_first(page["requests"])

    def _set_times(self, run: Run, instants: list[float]) -> None:
        import numpy as np

        self.t_s = np.array(instants)
        took = _where(run.series(f"{PROBE}status"), instants)
        # Without a status page the counts are of a page of metrics.
        if not took:
            took = _where(run.series(f"{PROBE}metrics"), instants)
        took_s = np.zeros(len(instants))
        if len(took) == len(instants):
            took_s = np.array(took)
        #: The page was made between these instants; it may come one period later than requested.
        self.asked_s = self.t_s - np.maximum(took_s, _APART_S)
        self.answered_s = self.t_s + took_s
        self.step_s = 0.0
        if len(instants) > 1:
            self.step_s = float(np.median(np.diff(self.t_s)))

    def _set_polls(self, run: Run, instants: list[float], polls: Any) -> None:
        import numpy as np

        none = np.zeros(len(instants))
        self.polls = _since_first(polls)
        unanswered = _where(run.series(STATUS_UNANSWERED), instants)
        #: Polls without an answer: the server may or may not have counted them.
        self.unanswered = none
        if unanswered:
            self.unanswered = _since_first(np.array(unanswered))
        connects = _where(run.series(STATUS_CONNECTS), instants)
        self._reconnects = none
        #: Connections that the poller may have opened, if the collector did not count them: nginx
        #: ends a kept connection after keepalive_requests polls (100 before 1.19.10).
        self.perhaps_reconnected = np.ceil(self.polls / 100)
        if len(connects) == len(instants):
            self._reconnects = _since_first(np.array(connects))
            self.perhaps_reconnected = none

    def __len__(self) -> int:
        return len(self.t_s)

    def unseen(self, client: Client) -> tuple[Any, Any]:
        """Connections and requests up to each page that a server may have counted between its last
        page and a restart.
        """
        import numpy as np

        opened = np.zeros(len(self.t_s))
        requests = np.zeros(len(self.t_s))
        for at in self.restarts:
            low = self.asked_s[at - 1]
            high = self.t_s[at] + _APART_S
            polls = self.polls[at] - self.polls[at - 1]
            opened[at:] += client.within("opened", low, high) + polls
            requests[at:] += client.within("sent", low, high) + polls
        return opened, requests


def _common_instants(columns: Mapping[str, Series]) -> list[float]:
    """The instants of the pages that have all counts which any page has."""
    instants = columns["polls"].t_s
    read = [column.t_s for column in columns.values() if len(column)]
    if all(times == instants for times in read):
        return instants
    return sorted(set(instants).intersection(*read))


def _where(column: Series, instants: list[float]) -> list[float]:
    """The values at ``instants``; empty if one is missing."""
    if column.t_s == instants:
        return column.values
    known = dict(column.rows())
    if not known.keys() >= set(instants):
        return []
    return [known[t_s] for t_s in instants]


def _added_up(counts: Any, restarts: Sequence[int]) -> Any:
    """A counter that goes on at each of ``restarts`` from where it was: each page has what the
    server itself had counted on the last page before each restart up to it.
    """
    added_up = counts.copy()
    for at in restarts:
        added_up[at:] += counts[at - 1]
    return added_up


def _since_first(counts: Any) -> Any:
    if not len(counts):
        return counts
    return counts - counts[0]


class CountPair(msgspec.Struct, frozen=True):
    """Two counts at the same instants (arrays). Work in flight allows second less first to be from
    ``least`` to ``greatest``.
    """

    pair: Pair
    t_s: Any
    first: Any
    second: Any
    least: Any
    greatest: Any

    def divergences(self) -> list[Divergence]:
        return _divergences(
            self.pair, self.t_s, self.second - self.first, self.least, self.greatest
        )


def compared(client: Client, pages: Pages, start: float, stop: float) -> list[CountPair]:
    """Our counts and the server's at each page; ``held`` up to the drain."""
    t_s = pages.t_s
    until = t_s + _APART_S
    opened = client.within("opened", pages.asked_s, until)
    sent = client.within("sent", pages.asked_s, until)
    answered = client.within("answered", pages.asked_s, until)
    unseen_opened, unseen_sent = pages.unseen(client)
    perhaps = pages.perhaps_reconnected
    unread = pages.unanswered
    connecting = client.connecting(t_s)
    upgrading = connecting * client.by_connect
    answered_so_far = client.at("answered", t_s)
    pairs = [
        compared_held(client, pages, start, stop),
        CountPair(
            "accepts",
            t_s,
            first=client.at("opened", t_s),
            second=pages.accepts,
            least=-opened - unseen_opened - unread,
            greatest=opened
            + connecting
            + client.at("unsure", until)
            + client.at("unreported_opened", until)
            + perhaps,
        ),
        CountPair(
            "handled",
            t_s,
            first=pages.accepts,
            second=pages.handled,
            least=0.0 * t_s,
            greatest=0.0 * t_s,
        ),
    ]
    if client.requests:
        requests = CountPair(
            "requests",
            t_s,
            first=answered_so_far + pages.polls,
            second=pages.requests,
            least=-answered - perhaps - unseen_sent - unread,
            greatest=client.at("sent", t_s)
            - answered_so_far
            + sent
            + client.at("unreported_sent", until)
            + upgrading,
        )
        pairs.append(requests)
    return pairs


def compared_held(client: Client, pages: Pages, start: float, stop: float) -> CountPair:
    """The connections held by us and the server's active ones at each page up to the drain."""
    import numpy as np

    before_drain = (pages.t_s >= start) & (pages.answered_s <= stop)
    t_s = pages.t_s[before_drain]
    asked_s = pages.asked_s[before_drain]
    until = t_s + _APART_S
    churn = client.within("opened", asked_s, until) + client.within("lost", asked_s, until)
    upgrading = client.connecting(t_s) * client.by_connect
    if not client.by_connect:
        upgrading = client.coming_back(t_s)
    # The server may hold those that fell silent, or may have noticed. When in a second they are
    # heard again is not known.
    silenced = np.maximum(client.at("silenced", asked_s), client.at("silenced", until))
    more_allowed = churn + pages.files_opened + pages.unanswered[before_drain] + upgrading
    return CountPair(
        "held",
        t_s,
        first=client.held(t_s, stop),
        second=pages.active[before_drain],
        least=-churn - pages.files_closed,
        greatest=more_allowed + silenced,
    )


def _divergences(pair: Pair, t_s: Any, difference: Any, low: Any, high: Any) -> list[Divergence]:
    """The periods in which ``difference`` is outside ``[low, high]``; the 20 with the largest
    difference.
    """
    import numpy as np

    # Interpolation gives fractions of connections.
    apart = (np.round(difference) < np.floor(low)) | (np.round(difference) > np.ceil(high))
    if not apart.any():
        return []
    periods = []
    for first, after in _without_hidden_ends(_periods(apart), difference, low, high):
        sizes = np.where(apart[first:after], np.abs(difference[first:after]), -1.0)
        widest = first + int(np.argmax(sizes))
        closed = after < len(t_s)
        end = after
        if not closed:
            # It lasts to the last instant.
            end = -1
        periods.append(
            Divergence(
                pair=pair,
                from_s=float(t_s[first]),
                to_s=float(t_s[end]),
                most=round(float(difference[widest])),
                at_s=float(t_s[widest]),
                last=round(float(difference[after - 1])),
                closed=closed,
            )
        )
    largest = sorted(periods, key=lambda period: abs(period.most), reverse=True)[:20]
    return sorted(largest, key=lambda period: period.from_s)


def _without_hidden_ends(
    periods: Sequence[tuple[int, int]], difference: Any, low: Any, high: Any
) -> list[tuple[int, int]]:
    """Those between which nothing shows that the counts agreed are one: each page there allows the
    last difference too, as in a storm, in which most is in flight.
    """
    whole: list[tuple[int, int]] = []
    for first, after in periods:
        if whole:
            begun, ended = whole[-1]
            last = difference[ended - 1]
            is_allowed = (low[ended:first] <= last) & (last <= high[ended:first])
            if is_allowed.all() and last * difference[first] > 0:
                whole[-1] = (begun, after)
                continue
        whole.append((first, after))
    return whole


def _periods(apart: Any) -> list[tuple[int, int]]:
    """The first place of each period in which counts are ``apart``, and the place after it. Short
    ones are left out, and those with little between them are one.
    """
    import numpy as np

    turns = np.flatnonzero(np.diff(np.concatenate(([0], apart.astype(np.int8), [0]))))
    periods: list[tuple[int, int]] = []
    for first, after in turns.reshape(-1, 2).tolist():
        if after - first < _FEWEST_PAGES and after < len(apart):
            continue
        if periods and first - periods[-1][1] < _FEWEST_PAGES:
            periods[-1] = (periods[-1][0], after)
        else:
            periods.append((first, after))
    return periods
