"""The same connections counted by the client and by the server: do they agree, and if not, since when and by how much?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from asyncli.analysis.gaps import without_counters
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.totals import Totals, never_answered
from asyncli.findings.counts import (
    Apart,
    Beyond,
    Since,
    counters_restarted,
    parted,
    parted_in_words,
    reconcile_accepts,
    reconcile_handled,
    reconcile_held,
    reconcile_in_flight,
    reconcile_requests,
    reconcile_stale,
    reconcile_until,
    reconciliation_unknown,
)
from asyncli.metrics import PROBE, STATUS_CONNECTS, STATUS_UNANSWERED
from asyncli.plan import Plan
from asyncli.records import Finding, Tick
from asyncli.run import Run, Ticks
from asyncli.samples import Series, began_anew

RULE = (
    "open at the client = active on the server less our poller, at the hold's end; accepts = opened; handled = "
    "accepts; requests = answers and polls: equal but for what was in flight or went with a worker of ours, on a server that "
    "only we use"
)
RULE_OF_TIME = (
    "two counts part where they differ on three status pages running, or up to the last one, by more than was in flight: what "
    "was opened, lost, sent or answered within a second of the page, connects pending and heartbeats unanswered then"
)
Pair = Literal["asked", "held", "accepts", "handled", "requests"]

# nginx ends a kept connection after keepalive_requests (100 before 1.19.10) polls, and our poller then opens another.
_POLLS_PER_CONNECTION = 100
# Failures after which the server may have accepted a connection that the client never counted as opened.
_PERHAPS_ACCEPTED = ("connect_timeout", "refused", "other")
# A status page older than this at the drain speaks of another moment; or older than two of its usual steps.
_STALE_S = 3.0
# A tick is a second long, so a page and a tick are up to a second apart.
_APART_S = 1.0
# One page, or two, may have been caught between two halves of what they count.
_PAGES_THAT_TELL = 3
# Of a pair that parts and meets all night, these are kept: the widest.
_MOST_DIVERGENCES = 20
# Where no page speaks for longer than this, the ticks stand in for the pages' instants.
_SILENCE_S = 2.5


class Divergence(msgspec.Struct):
    """A stretch in which two counts differed by more than was in flight.

    ``from_s`` is the first instant at which they did, ``to_s`` the first at which they no longer did, or the last one
    known where they never met again (not ``closed``). ``most`` is the widest difference and ``at_s`` its instant,
    ``last`` the difference at the end. Differences are the second of the pair less the first: active less held, accepts
    less opened, handled less accepts, requests less answers and polls, held less asked.
    """

    pair: Pair
    from_s: float
    to_s: float
    most: int
    at_s: float
    last: int
    closed: bool


class _Apart(msgspec.Struct, frozen=True):
    """By how much the second of a pair differs from the first, and what was in flight: how far below and above it may be."""

    pair: Pair
    by: int
    least: int
    most: int

    @property
    def agrees(self) -> bool:
        """Whether no more than what was in flight is between them."""
        return self.least <= self.by <= self.most


class Reconciliation(msgspec.Struct):
    """The counts side by side, None where one is not known; ``agrees`` where none of the server's is."""

    #: Open at the client at the hold's end, those too that owed an answer and never gave it: the server may count them.
    client_held: int | None = None
    #: The server's active connections less our poller's, at the hold's end.
    server_active: int | None = None
    accepts_delta: int | None = None
    handled_delta: int | None = None
    requests_delta: int | None = None
    agrees: bool | None = None
    #: Where the counts parted, by time; those that met again too.
    divergences: list[Divergence] = msgspec.field(default_factory=list)


class CountsOverTime(msgspec.Struct):
    """The counts at the same instants (s on the run's clock), for a picture; None where one is not known.

    ``asked``: the ramp's schedule, then the plan's number, then 0. ``held``: by the client. ``server_active``: less our
    poller. ``opened``, ``accepts``, ``handled``: since the start, our poller's apart. ``answers`` (polls too) and
    ``requests``: since the first page.
    """

    t_s: list[float]
    asked: list[float | None]
    held: list[float | None]
    server_active: list[float | None]
    opened: list[float | None]
    accepts: list[float | None]
    handled: list[float | None]
    answers: list[float | None]
    requests: list[float | None]


def reconcile(run: Run, totals: Totals, diagnoses: Sequence[Diagnosis] = ()) -> tuple[Reconciliation, list[Finding]]:
    """The counts, and a finding for each pair that disagrees or did for a while, or for why nothing is known.

    The deltas run from the first page (our poller's connection is in it already) to the last of the run: in the
    residue, where nothing is in flight. In a run without one the pairs may differ by what was in flight then.
    ``diagnoses``: of what was lost, which may be what the server still counts.
    """
    result = Reconciliation(client_held=totals.open)
    start, stop, ticks = run.first_connect_s, run.stop_s, run.ticks
    client, pages = _Client(run), _Pages(without_counters(run))
    context = _Context(
        lost=totals.whole.lost, failed=sum(totals.whole.failures.values()), addresses=_addresses(run.plan),
        killed=sum(one.count for one in diagnoses if one.code == "worker_crash"),
    )  # fmt: skip
    if len(pages) and pages.t_s[0] <= start and not math.isnan(pages.active[0]):
        context.already = round(float(pages.active[0]))
    result.divergences += client.behind_asked(start, stop)
    whole = totals.whole
    if not math.isfinite(start):
        return result, [reconciliation_unknown("nothing_connected")]
    if not len(pages) or pages.t_s[0] > start:
        return result, [reconciliation_unknown("no_page"), *_parted(result.divergences, context)]
    result.accepts_delta, result.handled_delta, result.requests_delta = (
        _told(counts[-1]) for counts in (pages.accepts, pages.handled, pages.requests)
    )
    result.divergences += _through_time(client, pages, start, stop)
    result.divergences.sort(key=lambda one: one.from_s)
    restarted = _restarted(pages)
    accepts, handled, requests = result.accepts_delta, result.handled_delta, result.requests_delta
    polls, poller = round(float(pages.polls[-1])), round(float(pages.perhaps_reconnected[-1]))
    flight, later = _in_flight(run, float(pages.t_s[-1]))
    unread = round(float(pages.unanswered[-1]))
    unsure = sum(whole.failures.get(cause, 0) for cause in _PERHAPS_ACCEPTED)
    opened = whole.opened - later.opened
    untold_opened, untold_sent = (round(float(client.at(f"untold_{name}", math.inf))) for name in ("opened", "sent"))
    context.silent = sum(never_answered(tick) for _, tick in ticks if tick.deaths)
    context.others = accepts is not None and accepts - opened > unsure + poller + flight.opened + untold_opened
    stale_s = max(_STALE_S, 2 * pages.step_s)
    # A page that came after the hold's end may speak of the drain. An agent asks for its own when it is time.
    in_hold = pages.told_s <= stop
    active = Series(pages.t_s[in_hold].tolist(), pages.active[in_hold].tolist()).last(stop, max(start, stop - stale_s))
    if not pages.told:
        return result, [reconciliation_unknown("page_tells_nothing"), *_parted(result.divergences, context)]
    if active is None:
        if pages.t_s[-1] < stop:
            # They speak of another moment than ours.
            result.accepts_delta = result.handled_delta = result.requests_delta = None
        return result, [reconciliation_unknown("page_silent"), *restarted, *_parted(result.divergences, context)]
    result.server_active = _told(active)

    unseen_opened, unseen_sent = (round(float(missed[-1])) for missed in pages.unseen(client))
    churn = _churn(ticks, stop)
    answered, sent = whole.answered - later.answered, whole.sent - later.sent
    answers, unanswered = answered + polls, sent - answered
    held, server = totals.open, result.server_active
    since: dict[str, Since] = {
        one.pair: {"from_s": one.from_s, "most": one.most, "at_s": one.at_s} for one in result.divergences if not one.closed
    }
    known = (
        None if server is None else _Apart("held", server - held, -churn, churn + unread),
        None
        if accepts is None
        else _Apart(
            "accepts", accepts - opened, -flight.opened - unseen_opened - unread, unsure + poller + flight.opened + untold_opened
        ),
        None if accepts is None or handled is None else _Apart("handled", handled - accepts, 0, 0),
        None
        if requests is None
        else _Apart(
            "requests",
            requests - answers,
            -flight.answered - poller - unseen_sent - unread,
            unanswered + flight.sent + untold_sent,
        ),
    )
    every = [one for one in known if one is not None]
    apart = {one.pair for one in every if not one.agrees}
    disagreements = []
    if server is not None and "held" in apart:
        beyond = context.beyond(server - held)
        disagreements.append(reconcile_held(held, server, since.get("held"), context.addresses, beyond))
    if accepts is not None and "accepts" in apart:
        silent = context.silent if opened - accepts <= context.silent else 0
        disagreements.append(reconcile_accepts(opened, accepts, since.get("accepts"), context.addresses, silent))
    if accepts is not None and handled is not None and "handled" in apart:
        disagreements.append(reconcile_handled(accepts, handled, since.get("handled")))
    if requests is not None and "requests" in apart:
        disagreements.append(reconcile_requests(answers, requests, since.get("requests"), context.addresses))
    result.agrees = not disagreements
    ended = _ended(run)
    return result, [
        *disagreements,
        *_in_flight_then(every, context, anew=bool(pages.restarts), ended=ended),
        *_after_the_last_page(float(pages.t_s[-1]), later),
        *restarted,
        *_parted(result.divergences, context),
    ]


def counts_over_time(run: Run) -> CountsOverTime:
    """Every count at the instants of the status pages, and of the ticks where no page spoke."""
    import numpy as np

    client, pages, start, stop = _Client(run), _Pages(run), run.first_connect_s, run.stop_s
    alone = client.t_s[1:]
    if len(pages):
        after = np.searchsorted(pages.t_s, alone)
        before_s = alone - pages.t_s[np.maximum(after - 1, 0)]
        after_s = pages.t_s[np.minimum(after, len(pages) - 1)] - alone
        alone = alone[np.minimum(np.abs(before_s), np.abs(after_s)) > _SILENCE_S]
    t_s = np.union1d(pages.t_s, alone)
    place = np.searchsorted(t_s, pages.t_s)

    def of_pages(counts: Any) -> list[float | None]:
        found: list[float | None] = [None] * len(t_s)
        for at, count in zip(place.tolist(), counts.tolist(), strict=True):
            found[at] = None if math.isnan(count) else count
        return found

    nothing: list[float | None] = [None] * len(t_s)
    # Counts since the start of a server that was there before us, only where a page tells what it had counted by then.
    since_start = len(pages) > 0 and bool(pages.t_s[0] <= start)
    polls = np.interp(t_s, pages.t_s, pages.polls) if len(pages) else 0.0
    return CountsOverTime(
        t_s=t_s.tolist(),
        asked=np.where(t_s < stop, client.asked(t_s), 0.0).tolist(),
        held=client.held(t_s).tolist(),
        server_active=of_pages(pages.active),
        opened=client.at("opened", t_s).tolist(),
        accepts=of_pages(pages.accepts) if since_start else nothing,
        handled=of_pages(pages.handled) if since_start else nothing,
        answers=(client.at("answered", t_s) + polls).tolist(),
        requests=of_pages(pages.requests) if since_start else nothing,
    )


class _Client:
    """The client's counts at any instant, from its ticks: lines between them."""

    def __init__(self, run: Run) -> None:
        import numpy as np

        held = run.held
        self.t_s, self._held = np.array(held.t_s), np.array(held.values)
        self._start, self._plan = run.first_connect_s, run.plan
        rows = [(t_s, tick) for t_s, tick in run.ticks if t_s > held.t_s[0]]
        self._tick_s = np.array([held.t_s[0], *(t_s for t_s, _ in rows)])
        columns = {
            "opened": [tick.opened for _, tick in rows],
            "lost": [tick.lost if tick.deaths else 0 for _, tick in rows],
            "sent": [tick.sent for _, tick in rows],
            "answered": [tick.answered for _, tick in rows],
            "unsure": [sum(map(tick.failures.get, _PERHAPS_ACCEPTED, (0, 0, 0))) if tick.failures else 0 for _, tick in rows],
        }
        columns |= {f"untold_{name}": _untold(rows, columns[name]) for name in ("opened", "sent")}
        self._whole = {name: np.cumsum(np.array([0.0, *column])) for name, column in columns.items()}
        self._connecting = np.array([0.0, *(float(tick.connecting) for _, tick in rows)])

    def at(self, name: str, t_s: Any) -> Any:
        """The count since the start at each of ``t_s``."""
        import numpy as np

        return np.interp(t_s, self._tick_s, self._whole[name])

    def within(self, name: str, low: Any, high: Any) -> Any:
        """What was counted from ``low`` to ``high``."""
        return self.at(name, high) - self.at(name, low)

    def held(self, t_s: Any, until_s: float = math.inf) -> Any:
        """Held at each of ``t_s``; from the last tick before ``until_s`` on, as many as then."""
        import numpy as np

        known = max(1, int(np.searchsorted(self.t_s, until_s, "right")))
        return np.interp(t_s, self.t_s[:known], self._held[:known])

    def connecting(self, t_s: Any) -> Any:
        """The most connects that were pending at the tick before or after."""
        import numpy as np

        after = np.searchsorted(self._tick_s, t_s)
        last = len(self._tick_s) - 1
        return np.maximum(self._connecting[np.clip(after - 1, 0, last)], self._connecting[np.clip(after, 0, last)])

    def asked(self, t_s: Any) -> Any:
        """Connections that the schedule had asked for at each of ``t_s``."""
        import numpy as np

        if not math.isfinite(self._start):
            return np.zeros(len(t_s))
        ramp = self._plan.schedule
        # Plain arithmetic, which an array does as well as one number: a million connections are 100,000 batches.
        batches: Any = np.arange(ramp.batches)
        due = np.searchsorted(np.asarray(ramp.due_s(batches)), t_s - self._start, "right")
        return np.minimum(due * float(ramp.batch), ramp.connections)

    def behind_asked(self, start: float, stop: float) -> list[Divergence]:
        """Where fewer were held than had been asked for a second before."""
        import numpy as np

        there = (self.t_s > start) & (self.t_s <= stop)
        t_s, held = self.t_s[there], self._held[there]
        asked = self.asked(t_s)
        # More than asked is none the less: a gauge and the schedule are read at two moments.
        return _divergences("asked", t_s, held - asked, self.asked(t_s - _APART_S) - asked, np.full(len(t_s), math.inf))


def _untold(rows: Sequence[tuple[float, Tick]], counts: Sequence[int]) -> list[int]:
    """What a worker of ours that was lost may have done since its last word, at each tick that tells of one: a second or two."""
    lost = [place for place, (_, tick) in enumerate(rows) if "generator_lost" in tick.deaths]
    untold = [0] * len(rows)
    for place in lost:
        untold[place] = 2 * max(counts[max(0, place - 2) : place + 1])
    return untold


class _Pages:
    """The status pages as arrays: counts since the first page, our poller's connections taken out of all but the polls.

    What the server's page does not tell is NaN throughout, which is neither less nor more than anything.
    A server that is started anew counts from 0 again: what it had counted by the page before is added from there on.
    """

    def __init__(self, run: Run) -> None:
        import numpy as np

        names = ("active", "accepts", "handled", "requests", "polls")
        columns = {name: run.series(f"status.{name}") for name in names}
        instants = columns["polls"].t_s
        there = [column for column in columns.values() if len(column)]
        if any(column.t_s != instants for column in there):
            instants = sorted(set(instants).intersection(*(column.t_s for column in there)))
        page = {
            name: np.array(_where(column, instants)) if len(column) else np.full(len(instants), math.nan)
            for name, column in columns.items()
        }
        #: Whether anything is told that can be compared with a count of ours.
        self.told = any(len(columns[name]) for name in ("active", "accepts", "requests"))
        connects = _where(run.series(STATUS_CONNECTS), instants)
        unanswered = _where(run.series(STATUS_UNANSWERED), instants)
        took = _where(run.series(f"{PROBE}status"), instants)
        self.t_s = np.array(instants)
        took_s = np.array(took) if len(took) == len(instants) else np.zeros(len(instants))
        #: The page spoke of a moment since then (it may have come a round later than it was asked for), and until then.
        self.asked_s, self.told_s = self.t_s - np.maximum(took_s, _APART_S), self.t_s + took_s
        self.step_s = float(np.median(np.diff(self.t_s))) if len(instants) > 1 else 0.0
        #: Places of the first page after each restart, and accepts (or requests) on the page before and on it.
        self.counter = "accepts" if len(columns["accepts"]) else "requests"
        counted = page[self.counter]
        self.restarts = began_anew(counted.tolist())
        self.around = [(float(counted[at - 1]), float(counted[at])) for at in self.restarts]
        for name in ("accepts", "handled", "requests"):
            for at in self.restarts:
                page[name][at:] += page[name][at - 1]
        known = len(connects) == len(instants)
        reconnects = np.array(connects) - connects[0] if known and connects else np.zeros(len(instants))
        self.polls = _since_first(page["polls"])
        #: Polls without a page: the server may not have counted them, nor accepted their connections, and may still hold those.
        self.unanswered = _since_first(np.array(unanswered)) if unanswered else np.zeros(len(instants))
        #: Where the collector did not count its own connections: how many it may have needed.
        self.perhaps_reconnected = np.zeros(len(instants)) if known else np.ceil(self.polls / _POLLS_PER_CONNECTION)
        self.active = page["active"] - 1
        # A server that ends connections after some requests ends our poller's too: its new ones are accepts, not the soak's.
        self.accepts = _since_first(page["accepts"]) - reconnects
        self.handled = _since_first(page["handled"]) - reconnects
        self.requests = _since_first(page["requests"])

    def __len__(self) -> int:
        return len(self.t_s)

    def unseen(self, client: _Client) -> tuple[Any, Any]:
        """What a server that ended may have counted after its last page: connections and requests, up to each page."""
        import numpy as np

        opened, requests = np.zeros(len(self.t_s)), np.zeros(len(self.t_s))
        for at in self.restarts:
            low, high = self.asked_s[at - 1], self.t_s[at] + _APART_S
            polls = self.polls[at] - self.polls[at - 1]
            opened[at:] += client.within("opened", low, high) + polls
            requests[at:] += client.within("sent", low, high) + polls
        return opened, requests


def _where(column: Series, instants: list[float]) -> list[float]:
    """The values at ``instants``; empty where one of them is missing."""
    if column.t_s == instants:
        return column.values
    known = dict(zip(column.t_s, column.values, strict=True))
    return [known[t_s] for t_s in instants] if all(t_s in known for t_s in instants) else []


def _told(count: float) -> int | None:
    return None if math.isnan(count) else round(float(count))


def _since_first(counts: Any) -> Any:
    return counts - counts[0] if len(counts) else counts


def _through_time(client: _Client, pages: _Pages, start: float, stop: float) -> list[Divergence]:
    """Where the server's counts and ours parted. ``held`` up to the drain, in which both sides close."""
    t_s, since, until = pages.t_s, pages.asked_s, pages.t_s + _APART_S
    opened, sent = client.within("opened", since, until), client.within("sent", since, until)
    lost, answered = client.within("lost", since, until), client.within("answered", since, until)
    unseen_opened, unseen_sent = pages.unseen(client)
    perhaps = pages.perhaps_reconnected
    before = (t_s >= start) & (pages.told_s <= stop)
    churn = (opened + lost)[before]
    unread = pages.unanswered
    found = _divergences("held", t_s[before], (pages.active - client.held(t_s, stop))[before], -churn, churn + unread[before])
    found += _divergences(
        "accepts", t_s, pages.accepts - client.at("opened", t_s), -opened - unseen_opened - unread,
        opened + client.connecting(t_s) + client.at("unsure", until) + client.at("untold_opened", until) + perhaps,
    )  # fmt: skip
    found += _divergences("handled", t_s, pages.handled - pages.accepts, 0.0 * t_s, 0.0 * t_s)
    unanswered = client.at("sent", t_s) - client.at("answered", t_s)
    found += _divergences(
        "requests", t_s, pages.requests - client.at("answered", t_s) - pages.polls, -answered - perhaps - unseen_sent - unread,
        unanswered + sent + client.at("untold_sent", until),
    )  # fmt: skip
    return found


def _divergences(pair: Pair, t_s: Any, difference: Any, low: Any, high: Any) -> list[Divergence]:
    """The stretches in which ``difference`` is outside ``[low, high]``, by the rule of time; the widest of many."""
    import numpy as np

    # Halves of a connection come from the lines between ticks.
    apart = (np.round(difference) < np.floor(low)) | (np.round(difference) > np.ceil(high))
    if not apart.any():
        return []
    turns = np.flatnonzero(np.diff(np.concatenate(([0], apart.astype(np.int8), [0]))))
    found: list[tuple[int, int]] = []
    for first, after in turns.reshape(-1, 2).tolist():
        if after - first < _PAGES_THAT_TELL and after < len(t_s):
            continue
        if found and first - found[-1][1] < _PAGES_THAT_TELL:
            found[-1] = (found[-1][0], after)
        else:
            found.append((first, after))
    result = []
    for first, after in found:
        widest = first + int(np.argmax(np.where(apart[first:after], np.abs(difference[first:after]), -1.0)))
        closed = after < len(t_s)
        result.append(
            Divergence(
                pair=pair, from_s=float(t_s[first]), to_s=float(t_s[after if closed else -1]),
                most=round(float(difference[widest])), at_s=float(t_s[widest]),
                last=round(float(difference[after - 1])), closed=closed,
            )
        )  # fmt: skip
    result = sorted(result, key=lambda one: abs(one.most), reverse=True)[:_MOST_DIVERGENCES]
    return sorted(result, key=lambda one: one.from_s)


def _in_flight(run: Run, page_s: float) -> tuple[Tick, Tick]:
    """Counts by which client and server may differ at the last page: none once the drain is over; and what came later."""
    around, later = Tick(), Tick()
    residue = run.phase("residue")
    if residue is None or page_s < residue.start_s:
        for t_s, tick in reversed(run.ticks):
            # A page and a tick are up to a second apart, either way.
            if t_s < page_s - 2.0:
                break
            (later if t_s > page_s + 2.0 else around).merge_counts(tick)
    return around, later


def _after_the_last_page(page_s: float, later: Tick) -> list[Finding]:
    if not later.opened and not later.answered:
        return []
    return [reconcile_until(page_s, later.opened, later.answered)]


def _churn(ticks: Ticks, stop_s: float) -> int:
    """Connections opened or lost so near to the drain that the page may be from before it or after."""
    return sum(tick.opened + tick.lost for t_s, tick in ticks if stop_s - 2.0 <= t_s <= stop_s + 1.0)


# Saying it.

# So many more or less, or such a share, are our poller's, or came and went while a worker was replaced.
_A_FEW, _A_FEW_SHARE = 5, 0.01
_PAIRS: tuple[Pair, ...] = get_args(Pair)


class _Context(msgspec.Struct):
    """What tells why two counts differ."""

    lost: int
    failed: int
    #: How many servers may be behind the URLs, by host and port.
    addresses: int
    #: More was accepted than we can have opened.
    others: bool = False
    #: Opened, and silent before the first answer: the handshake's last packet may have been lost.
    silent: int = 0
    #: Lost with workers of the server that were killed; and what it counted, our poller apart, before our first connect.
    killed: int = 0
    already: int = 0

    def stale(self, excess: int) -> tuple[int, int]:
        """What it counts beyond ours of killed workers and from before our first connect, where that explains it; else none."""
        enough = max(_A_FEW, round(_A_FEW_SHARE * excess))
        known = ((self.killed, 0), (0, self.already), (self.killed, self.already))
        return next((one for one in known if excess > 0 and any(one) and abs(sum(one) - excess) <= enough), (0, 0))

    def beyond(self, excess: int) -> Beyond:
        """Why it may count ``excess`` connections more than we hold."""
        killed, before = self.stale(excess)
        return {"killed": killed, "before": before, "others": self.others, "lost": self.lost + self.failed > 0}


def _addresses(plan: Plan) -> int:
    return len({(target.host, target.port) for target in plan.targets})


def agreement(agrees: bool | None, findings: Sequence[Finding]) -> str:
    """Whether the counts agree, in words; ``findings`` are the run's."""
    if agrees and any(one.code == reconcile_stale.code for one in findings):
        return "They agree but for connections that are not this run's, or went with a killed worker (see the findings)"
    if agrees and any(one.code == reconcile_until.code for one in findings):
        return "They agree up to the last status page (see the findings)"
    if agrees and any(one.code == reconcile_in_flight.code for one in findings):
        return "They agree within what was in flight (see the findings)"
    return {True: "They agree", False: "They disagree (see the findings)", None: "Whether they agree is not known"}[agrees]


def _ended(run: Run) -> bool:
    """Whether hold and drain came to their end."""
    return all(one is not None and one.end_s is not None for one in (run.phase("hold"), run.phase("drain")))


def _in_flight_then(every: Sequence[_Apart], context: _Context, *, anew: bool, ended: bool) -> list[Finding]:
    """How far those that agree differ all the same, and how far they may. ``anew``: the server's counters began anew."""
    apart: list[Apart] = []
    found = []
    for one in every:
        if one.by and one.agrees:
            beyond = one.by if one.pair == "held" else 0
            killed, before = context.stale(beyond)
            if killed or before:
                found.append(reconcile_stale(one.by, killed, before))
                continue
            flight = abs(one.least if one.by < 0 else one.most)
            apart.append({"pair": one.pair, "by": one.by, "flight": flight, "before": context.already if beyond > 0 else 0})
    return [*found, reconcile_in_flight(apart, ended, anew)] if apart else found


def in_words(divergence: Divergence) -> str:
    """Who fell behind whom when, by how much, and when they met again."""
    one = divergence
    return parted_in_words(one.pair, one.from_s, one.to_s, one.most, one.at_s, one.closed)


def _parted(divergences: Sequence[Divergence], context: _Context) -> list[Finding]:
    """A finding for each pair that parted and met again, or fell behind what was asked; the widest time speaks for all.

    None for what was not held to the end because it was lost or failed: those findings say so.
    """
    found = []
    for pair in _PAIRS:
        told = context.lost + context.failed if pair == "asked" else -1
        times = [one for one in divergences if one.pair == pair and (one.closed or (pair == "asked" and -one.most > told))]
        if times:
            one = max(times, key=lambda one: abs(one.most))
            beyond = context.beyond(one.most)
            found.append(
                parted(pair, one.from_s, one.to_s, one.at_s, one.most, one.closed, len(times), context.addresses, beyond)
            )
    return found


def _restarted(pages: _Pages) -> list[Finding]:
    if not pages.restarts:
        return []
    return [counters_restarted([float(pages.t_s[at]) for at in pages.restarts], pages.counter, *pages.around[0])]
