"""Evidence of the samples about the server at the moment of a loss."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, MISSED_S, NEARLY_ALL, PART
from asyncli.analysis.refusals import did_listen
from asyncli.model.metrics import (
    CLOCK_SUSPENDED_S,
    HOST_KILLED,
    SERVER_ENDED,
    SERVER_GROUP_KILLED,
    SERVER_KILLED,
    SERVER_PROCESSES,
    SERVER_SOCKETS,
    SERVER_SOCKETS_ELSEWHERE,
    SERVER_SOCKETS_UNACKNOWLEDGED,
    SERVER_SOCKETS_WAITING,
    SERVER_STOPPED,
    SERVER_WORKERS,
    SERVER_WORKERS_ENDED,
    SERVER_WORKERS_STOPPED,
    SILENT,
    STATUS_GENERATION,
    STATUS_LIMIT,
)
from asyncli.model.run import Run
from asyncli.model.samples import Series, counter_resets, metrics_of

# Evidence may be this far from the loss (s).
_NEAR_S = 5.0
# A late tick joins the open one; timeouts are reported within so many seconds.
_TICK_S = 2.0
_LATE_S = 3.0
#: CPU time (s) over a second or more that counts as none: /proc counts in hundredths.
STILL_S = 0.015
# How the directives of nginx end that pass requests on: proxy_pass, fastcgi_pass, grpc_pass...
_PASSES_ON = "_pass"
# While an agent is silent the server is unknown: samples of this host are no evidence of it.
_LOCAL = ("generator.", "kernel.", "host.", "session.")
_OF_AGENT = ("agent.", "kernel.", "host.")


class Victims(NamedTuple):
    """How many processes the kernel killed for lack of memory, and ``among`` which it counts them:
    those of the server by its log, which names them; else those of its control group or of its
    host, which may be others.
    """

    number: int = 0
    among: Literal["server", "group", "host"] = "host"

    def are_certainly(self, ended: int) -> bool:
        """Whether they are the processes of the server that ended."""
        return self.among == "server" and self.number >= ended


class Evidence(msgspec.Struct):
    """Facts about the server in a part of the run; None where unknown."""

    #: Its processes ended and did not come back.
    gone: bool | None = None
    #: All its processes were replaced; by its counters alone, if only a restart resets them.
    restarted: bool | None = None
    #: Its counters restarted. A reload of HAProxy does so too: a new worker begins to count.
    counters_restarted: bool = False
    #: Processes that ended, of nginx its workers alone, and processes that started.
    ended: int | None = None
    started: int | None = None
    #: Its processes, of nginx its workers, were read: none ended, and none is new. What ended its
    #: connections is then in them, or behind them.
    lived: bool = False
    #: Reconnects of our poller.
    reconnected: int | None = None
    #: By how much more than before its own count of connections exceeds ours; None while that
    #: fluctuates. A server may forget to count down.
    excess: int | None = None
    #: The same by its sockets, which the kernel of its host counts: these are open.
    open_sockets: int | None = None
    #: The status page was silent, and had answered before. None if TLS with it failed.
    silent: bool | None = None
    #: The page stayed silent to the end of the hold.
    silent_since: bool | None = None
    #: Requests that the server counted, without our polls.
    requests: int | None = None
    #: Its processes used no CPU time; and the cores that they used.
    still: bool | None = None
    cores: float | None = None
    #: A signal or a debugger had stopped all its processes that hold connections, or none; None
    #: also where it had stopped a part.
    halted: bool | None = None
    #: What the kernel killed for lack of memory while its processes ended.
    killed: Victims = Victims()
    #: Its sockets went on listening afterwards.
    listened_since: bool | None = None

    @property
    def stood_still(self) -> bool:
        """The processes used no CPU, and the status page was silent: they were stopped, or waited
        for something. Without a page, or in a time so short that their CPU was not read twice,
        where they were seen stopped.
        """
        if self.silent is None or self.still is None:
            return bool(self.silent is not False and self.still is not False and self.halted)
        return bool(self.silent and self.still)

    def still_open(self, count: int) -> StillOpen:
        """How many of ``count`` lost connections the server still has."""
        if self.open_sockets is not None:
            return StillOpen(max(0, min(self.open_sockets, count)), count, by_kernel=True)
        return StillOpen(max(0, min(self.excess or 0, count)), count, by_kernel=False)


class StillOpen(msgspec.Struct, frozen=True):
    """Of ``of`` lost connections the server still has ``count``: by the kernel's list of its
    sockets (``by_kernel``), else by its own count, which may be wrong.
    """

    count: int
    of: int
    by_kernel: bool

    @property
    def are_most(self) -> bool:
        """Whether the server was not told of at least half of the losses."""
        return self.count > 0 and 2 * self.count >= self.of


class Reception(NamedTuple):
    """Whether the server had accepted connections that it never answered, and how many waited in
    its listen queue, by the kernel's list of its sockets; "unknown" where that was not read, or
    does not tell.
    """

    of: Literal["accepted", "waiting", "unknown"]
    waiting: int = 0


class StoppedPart(NamedTuple):
    """How many of the server's processes that may hold connections a signal or a debugger had
    stopped, of how many; ``are_workers``: by the titles of nginx's.
    """

    stopped: int
    all_of_them: int
    are_workers: bool


class Cut(msgspec.Struct, frozen=True):
    """Client hosts that were silent at about one time: each and how long (s); when the first and
    the last answered again.
    """

    hosts: list[tuple[str, float]]
    back_s: float
    last_s: float

    def holds(self, t_s: float, patience_s: float) -> bool:
        """Whether a tick at ``t_s`` may report their losses, of heartbeats or connects with the
        timeout ``patience_s``.

        A host reports the losses of its silence afterwards; ticks meanwhile are from other hosts.
        """
        return self.back_s - _TICK_S < t_s <= self.last_s + patience_s + _LATE_S


def cuts(run: Run, patience_s: float) -> list[Cut]:
    """The silences of client hosts; those whose losses are reported together are one cut."""
    rows = sorted(
        (t_s, name.removeprefix(SILENT), silent_s)
        for name in metrics_of(run.samples)
        if name.startswith(SILENT)
        for t_s, silent_s in run.series(name).rows()
    )
    silences: list[Cut] = []
    for back_s, name, silent_s in rows:
        if silences and silences[-1].holds(back_s, patience_s):
            before = silences[-1]
            silences[-1] = Cut([*before.hosts, (name, silent_s)], before.back_s, back_s)
        else:
            silences.append(Cut([(name, silent_s)], back_s, back_s))
    return silences


class ServerEvidence:
    """The samples, checks and environment of a run about the server."""

    def __init__(self, run: Run) -> None:
        #: The server's configuration: code of a check -> value.
        self.configured = {check.code: check.have for check in run.checks if check.have is not None}
        #: "nginx", "Apache"; "" where unknown.
        self.name = run.place.server_name
        #: Server and client are on one host, where no packet is lost.
        self.local = run.sides.one_network
        # An nginx that listens elsewhere is behind the server that we connect to.
        behind = any(check.code == "nginx_listen" for check in run.checks)
        self.is_nginx = self.name == "nginx" and not behind
        #: The server's name in a sentence.
        self.label = "nginx" if self.is_nginx else "the server"
        #: An nginx of this host that we connect to directly, by its configuration.
        self.direct = "nginx_keepalive_timeout" in self.configured and not behind
        directives = run.place.server_directives
        passes_on = any(name.endswith(_PASSES_ON) for name in directives)
        #: Such an nginx that has no backend, by its configuration.
        self.has_no_backend = self.direct and bool(directives) and not passes_on
        self._run = run
        self._stop = run.stop_s
        # Held is constant, not interpolated, from the hold's last second to the drain.
        self._held = msgspec.structs.replace(
            run, ticks=[row for row in run.ticks if row[0] <= self._stop]
        ).held
        # Instants of samples, with or without the status page.
        sampled = _LOCAL if run.place.agent is None else _OF_AGENT
        self._sampled_s = run.instants(*sampled)
        self._server = {
            name: run.series(f"server.{name}") for name in ("processes", "started", "cpu_s")
        }
        self._workers = run.series(SERVER_WORKERS)
        self._ended = run.series(SERVER_WORKERS_ENDED) or run.series(SERVER_ENDED)
        self._processes_s = self._server["processes"].t_s
        # Expensive probes are read less often.
        steps = [later - earlier for earlier, later in itertools.pairwise(self._processes_s)]
        self._missed_s = MISSED_S
        if steps:
            self._missed_s = max(MISSED_S, 2 * statistics.median(steps))
        self.counts_beats = run.plan.requests == "heartbeats"
        self._status = {
            name: run.series(f"status.{name}")
            for name in ("active", "accepts", "connects", "requests", "polls")
        }
        self._sockets = _sockets_of_server(run)
        self._accepted = run.series(SERVER_SOCKETS)
        self._waiting = run.series(SERVER_SOCKETS_WAITING)
        self._unacknowledged = run.series(SERVER_SOCKETS_UNACKNOWLEDGED)
        self._is_haproxy = bool(run.series(STATUS_LIMIT))
        self._page_untrusted = any(
            finding.code in ("status_lost", "metrics_lost") and finding.fields.get("untrusted")
            for finding in run.findings
        )
        #: (When this machine woke from a suspension, how long it was), in s.
        self.suspensions = list(run.series(CLOCK_SUSPENDED_S).rows())

    def held(self, t_s: float) -> float:
        return self._held.at(t_s) or 0.0

    def workers(self, t_s: float) -> int:
        """Worker processes before ``t_s``; 1 where unknown."""
        return self._without_master(self._counted_workers().last(t_s))

    def most_workers(self, from_s: float, to_s: float) -> int:
        """The most worker processes from ``from_s`` to ``to_s``; 1 where unknown."""
        read = self._counted_workers().between(from_s, to_s).values
        return self._without_master(max(read, default=None))

    def _counted_workers(self) -> Series:
        """Workers by the titles of nginx's processes; of another server all its processes. Nothing
        for an nginx without titles: some of its processes may be no workers.
        """
        if self._workers or self.name == "nginx":
            return self._workers
        return self._server["processes"]

    def _without_master(self, counted: float | None) -> int:
        """The workers of ``counted`` processes; at least 1."""
        workers = round(counted or 0.0)
        if not self._workers:
            workers -= 1
        return max(1, workers)

    def ended_near(self, from_s: float, to_s: float) -> bool:
        """Whether a process of the server ended from ``from_s`` to ``to_s`` or in the second
        after: one that ends in order closes its connections first.
        """
        read = self._ended.between(from_s - _TICK_S, to_s + _TICK_S).values
        return bool(read) and read[-1] > read[0]

    def ended_at_once(self, from_s: float, to_s: float) -> bool:
        """Whether most processes that ended from ``from_s`` to ``to_s``, or in the second before or
        after, ended between two readings.
        """
        read = self._ended.between(from_s - _TICK_S, to_s + _TICK_S).values
        steps = [after - before for before, after in itertools.pairwise(read)]
        return 2 * max(steps, default=0.0) > sum(steps)

    def generations(self) -> list[tuple[float, float]]:
        """Between which two readings (s) of the page each new generation of the server's processes
        began. A process of the generation before may have answered once more, with its own number.
        """
        readings = list(self._run.series(STATUS_GENERATION).rows())
        began = []
        for number in range(1, len(readings)):
            after_s, after = readings[number]
            if after > readings[number - 1][1]:
                before_s, _ = readings[max(0, number - 2)]
                began.append((before_s, after_s))
        return began

    def most_open(self, from_s: float, to_s: float) -> float:
        """The most connections of all clients that the server had from ``from_s`` to ``to_s``: by
        its own count, our poller's included, or by the kernel's list of its sockets; 0 where
        neither was read.
        """
        counted = self._status["active"].between(from_s - 1.5, to_s + 1.5).values
        listed = self._sockets.between(from_s - 1.5, to_s + 1.5).values
        return max((*counted, *listed), default=0.0)

    def others_open(self, from_s: float, to_s: float) -> int:
        """How many of these were not ours, in the median of the readings; 0 where unknown, or for
        fewer than a tenth of ours: connections that we close or open meanwhile.
        """
        others = []
        most_held = 0.0
        for series in (self._sockets, self._status["active"]):
            for t_s, value in series.between(from_s - 1.5, to_s + 1.5).rows():
                # Samples and ticks may be a second apart, in which a ramp opens many.
                held = max((self.held(t_s), *self._held.between(t_s - 1.5, t_s + 1.5).values))
                most_held = max(most_held, held)
                others.append(value - held)
        if not others:
            return 0
        count = round(statistics.median(others))
        return count if count >= max(FEWEST, PART * most_held) else 0

    def acceptance(self, spans: Sequence[tuple[float, float]], count: int) -> Reception:
        """Whether the server had accepted ``count`` connections, by each reading in the ``spans``
        in which they waited.
        """
        queued = [value for span in spans for value in self._waiting.between(*span).values]
        taken = [row for span in spans for row in self._accepted.between(*span).rows()]
        if not queued or not taken:
            return Reception("unknown")
        if min(queued) >= NEARLY_ALL * count:
            return Reception("waiting", round(min(queued)))
        # Those of other clients, or an end that the kernel has dropped, would not add up.
        add_up = all(abs(value - self.held(t_s)) <= PART * count for t_s, value in taken)
        if max(queued) <= PART * count and add_up:
            return Reception("accepted")
        return Reception("unknown")

    def unacknowledged(self, from_s: float, to_s: float) -> int:
        """On how many connections the server had sent what nobody acknowledged, at most; 0 where
        unknown.
        """
        return round(max(self._unacknowledged.between(from_s, to_s).values, default=0.0))

    def about(self, from_s: float, to_s: float, count: int) -> Evidence:
        """The evidence for the time in which ``count`` connections were lost."""
        evidence = Evidence()
        self._add_processes(evidence, from_s, to_s)
        evidence.reconnected = self._rise(self._status["connects"], from_s, to_s)
        evidence.excess = self._excess(self._status["active"], from_s, to_s, count)
        evidence.open_sockets = self._excess(self._sockets, from_s, to_s, count)
        if self._status["active"].last(from_s) is not None and not self._page_untrusted:
            evidence.silent = self._silent(from_s, to_s)
            evidence.silent_since = self._stop - to_s > MISSED_S and self._silent(to_s, self._stop)
        evidence.requests = self._requests(from_s, to_s)
        self._add_cpu(evidence, from_s, to_s)
        evidence.listened_since = did_listen(self._run, to_s, min(to_s + MISSED_S, self._stop))
        evidence.halted = self._halted(from_s, to_s)
        return evidence

    def _halted(self, from_s: float, to_s: float) -> bool | None:
        """Whether in half of the readings or more all processes that hold connections were stopped:
        of nginx its workers, of another server all. False if none was; None for a part, or where
        it was not read.
        """
        holding, stopped = _holding_and_stopped(self._run)
        readings = list(stopped.between(from_s, to_s).rows())
        if not readings:
            return None
        if not any(count for _, count in readings):
            return False
        all_stopped = [_is_all(count, holding, t_s) for t_s, count in readings]
        if 2 * sum(all_stopped) >= len(readings):
            return True
        return None

    def stopped_part(self, before_s: float, from_s: float, to_s: float) -> StoppedPart | None:
        """What was stopped at each reading from ``from_s`` to ``to_s``, and more than at
        ``before_s``; None where nothing was, or where it was not read.
        """
        holding, stopped = _holding_and_stopped(self._run)
        fewest = min(stopped.between(from_s, to_s).values, default=0.0)
        if fewest <= (stopped.last(before_s) or 0.0):
            return None
        in_all = round(holding.last(to_s) or fewest)
        return StoppedPart(round(fewest), in_all, are_workers=bool(self._workers))

    def _add_processes(self, evidence: Evidence, from_s: float, to_s: float) -> None:
        """Whether the server's processes ended, were replaced, or went on."""
        processes = self._server["processes"]
        before = processes.last(from_s)
        if before is not None:
            evidence.gone, evidence.restarted = self._absence(from_s, to_s)
            if evidence.restarted and self._ended_since(from_s) < before:
                # They were not read for a while, as when the status page is awaited.
                evidence.restarted = False
            # --server-pid follows no restart, but the status page of the new server answers.
            if evidence.gone and self._status["active"].between(to_s + 0.5, self._stop):
                evidence.gone = False
                evidence.restarted = True
        evidence.ended = self._rise(self._ended, from_s, to_s)
        evidence.started = self._rise(self._server["started"], from_s, to_s)
        counted = self._workers or processes
        after = self._soon_after(counted, to_s)
        is_as_before = after is not None and after == counted.last(from_s)
        evidence.killed = killed_as_ended(self._run, from_s, to_s)
        evidence.lived = evidence.ended == 0 and not evidence.gone and is_as_before
        accepts = self._status["accepts"].between(from_s - _NEAR_S, to_s + 2 * _NEAR_S).values
        evidence.counters_restarted = bool(counter_resets(accepts))
        if evidence.counters_restarted and not evidence.restarted:
            ended = self._rise(self._run.series(SERVER_ENDED), from_s, to_s)
            evidence.restarted = self._restarted_by_counters(ended, before)

    def _restarted_by_counters(self, ended: int | None, before: float | None) -> bool | None:
        """Whether counters that restarted mean a new server. ``before``: its processes, of which
        ``ended`` ended.
        """
        if ended is not None and before is not None and ended < before:
            return False
        if before is None and self._is_haproxy:
            return None
        return True

    def _requests(self, from_s: float, to_s: float) -> int | None:
        """Requests that the server counted, without our polls."""
        if not self.counts_beats:
            return None
        # Page and tick are up to a second apart.
        since_s = from_s + 1.0 if to_s - from_s > 2.0 else from_s
        requests = _meanwhile(self._status["requests"], since_s, to_s)
        polls = _meanwhile(self._status["polls"], since_s, to_s)
        if requests is None or polls is None:
            return None
        return requests - polls

    def _add_cpu(self, evidence: Evidence, from_s: float, to_s: float) -> None:
        """Whether the processes stood still, and the cores that they used."""
        used = self._server["cpu_s"].between(from_s, to_s)
        if len(used) < 2:
            return
        length_s = used.t_s[-1] - used.t_s[0]
        # It is read once a second.
        if length_s < 0.9:
            return
        spent_s = used.values[-1] - used.values[0]
        evidence.still = spent_s <= STILL_S
        evidence.cores = spent_s / length_s

    def _absence(self, from_s: float, to_s: float) -> tuple[bool, bool]:
        """Whether the server's processes were missing: for good, or until others started."""
        first = bisect.bisect_left(self._sampled_s, from_s - 0.5)
        end = bisect.bisect_right(self._sampled_s, min(to_s + MISSED_S, self._stop))
        for sample_s in self._sampled_s[first:end]:
            after = bisect.bisect_left(self._processes_s, sample_s)
            for_good = after == len(self._processes_s)
            back_s = self._sampled_s[-1] if for_good else self._processes_s[after]
            # A reading may be late or not due.
            if not after or back_s <= sample_s:
                continue
            if back_s - self._processes_s[after - 1] > self._missed_s:
                return for_good, not for_good
        return False, False

    def _ended_since(self, from_s: float) -> float:
        """How many processes ended from then to the end of the run; infinite where unknown."""
        ended = self._run.series(SERVER_ENDED)
        before = ended.last(from_s)
        after = ended.last()
        if before is None or after is None:
            return math.inf
        return after - before

    def _silent(self, from_s: float, to_s: float) -> bool:
        """Whether samples were taken from ``from_s`` to ``to_s``, all without a status page."""
        first = bisect.bisect_left(self._sampled_s, from_s)
        end = bisect.bisect_right(self._sampled_s, to_s)
        return first < end and not self._status["active"].between(from_s + 0.5, to_s).values

    def _rise(self, counter: Series, from_s: float, to_s: float) -> int | None:
        before = counter.last(from_s)
        after = self._soon_after(counter, to_s)
        if before is None or after is None:
            return None
        return max(0, round(after - before))

    def _soon_after(self, counted: Series, to_s: float) -> float | None:
        """What was counted soon after losses that ended by ``to_s``; None where it was not read.

        The last second with connections ends in the drain. What is read there counts the drain's
        work too: then the first reading, and only where the hold has none.
        """
        ended_s = min(to_s, self._stop)
        read = counted.between(ended_s, ended_s + MISSED_S)
        in_the_hold = read.last(self._stop + 0.5)
        if in_the_hold is not None:
            return in_the_hold
        return read.first()

    def _excess(self, counted: Series, from_s: float, to_s: float, count: int) -> int | None:
        def beyond(low_s: float, high_s: float) -> list[float]:
            return [value - self.held(t_s) for t_s, value in counted.between(low_s, high_s).rows()]

        # Losses are replaced within a second, and page and tick are up to a second apart.
        # A page that is read in the drain counts what is left.
        last = min(to_s + 1.0 + _NEAR_S, self._stop)
        before = beyond(from_s - _NEAR_S, from_s)
        after = beyond(min(to_s + 1.0, last - 1.0), last)
        if not before or not after:
            return None
        # While many connections open and close, the difference fluctuates.
        if max(_median_deviation(before), _median_deviation(after)) > count / 4:
            return None
        return round(statistics.median(after) - statistics.median(before))


def _median_deviation(values: Sequence[float]) -> float:
    """The median distance from the median."""
    median = statistics.median(values)
    return statistics.median(abs(value - median) for value in values)


def stopped_since(run: Run, end_s: float) -> float | None:
    """Since when all processes that hold connections were stopped until ``end_s``, by a signal or a
    debugger; None if they were not, for less than a missed reading, or where it was not read.
    """
    holding, stopped = _holding_and_stopped(run)
    since_s = None
    for t_s, count in stopped.between(-math.inf, end_s).rows():
        if not _is_all(count, holding, t_s):
            since_s = None
        elif since_s is None:
            since_s = t_s
    if since_s is None or end_s - since_s < MISSED_S:
        return None
    return since_s


def all_stopped(run: Run) -> Series:
    """1 at each reading at which all processes that hold connections were stopped by a signal or a
    debugger, else 0; empty where that was not read.
    """
    holding, stopped = _holding_and_stopped(run)
    if not any(stopped.values):
        return Series(list(stopped.t_s), list(stopped.values))
    are_all = [float(_is_all(count, holding, t_s)) for t_s, count in stopped.rows()]
    return Series(list(stopped.t_s), are_all)


def any_stopped(run: Run) -> Series:
    """The same, of any of these processes: it need not be one that holds connections, such as the
    only worker beside a master that sleeps.
    """
    _, stopped = _holding_and_stopped(run)
    return Series(list(stopped.t_s), [float(count > 0) for count in stopped.values])


def _holding_and_stopped(run: Run) -> tuple[Series, Series]:
    """How many processes may hold connections, and how many of them are stopped: of nginx its
    workers, of another server all.
    """
    workers = run.series(SERVER_WORKERS)
    if workers:
        return workers, run.series(SERVER_WORKERS_STOPPED)
    return run.series(SERVER_PROCESSES), run.series(SERVER_STOPPED)


def _is_all(count: float, of: Series, t_s: float) -> bool:
    return count >= (of.last(t_s) or math.inf)


def _sockets_of_server(run: Run) -> Series:
    """The server's ends of connections: those at our ports, unless as many rise with ours at its
    other ports. Then a box before it on its host has those at our ports.
    """
    sockets = run.series(SERVER_SOCKETS)
    if not any(sockets.values):
        # The server is in another network namespace.
        return Series()
    elsewhere = run.series(SERVER_SOCKETS_ELSEWHERE)
    if not elsewhere:
        return sockets
    rise = max(elsewhere.values) - elsewhere.values[0]
    if rise >= NEARLY_ALL * max(run.held.values, default=0.0):
        return elsewhere
    return sockets


def killed_as_ended(run: Run, from_s: float, to_s: float) -> Victims:
    """What the kernel killed for lack of memory from ``from_s`` to ``to_s``, while processes of the
    server ended.

    Where no log says which these were, only the counts of the very readings between which processes
    ended: what it killed before was another program.
    """
    by_log = _rise_around(run.series(SERVER_KILLED), from_s, to_s)
    if by_log is not None:
        return Victims(by_log, "server")
    span = _when_ended(run.series(SERVER_ENDED), from_s, to_s)
    if span is None:
        return Victims()
    in_group = _rise_around(run.series(SERVER_GROUP_KILLED), *span)
    if in_group:
        return Victims(in_group, "group")
    return Victims(_rise_around(run.series(HOST_KILLED), *span) or 0, "host")


def _when_ended(ended: Series, from_s: float, to_s: float) -> tuple[float, float] | None:
    """The readings before and after processes of the server ended; None if none did. They are read
    no longer when the last has ended.
    """
    steps = [
        (before_s, after_s)
        for (before_s, before), (after_s, after) in itertools.pairwise(ended.rows())
        if after > before and after_s >= from_s and before_s <= to_s
    ]
    if steps:
        return steps[0][0], steps[-1][1]
    if ended and ended.t_s[-1] <= to_s:
        return ended.t_s[-1], ended.t_s[-1] + 1.0
    return None


def _rise_around(counter: Series, from_s: float, to_s: float) -> int | None:
    """The rise of a counter from the last reading before to the first after; None where it was not
    read.
    """
    before = counter.last(from_s)
    after = counter.first(to_s)
    if after is None:
        after = counter.last()
    if before is None or after is None:
        return None
    return max(0, round(after - before))


def _meanwhile(counter: Series, from_s: float, to_s: float) -> int | None:
    """The rise from ``from_s`` to ``to_s``; None where it was not read, or restarted."""
    before = counter.near(from_s, _NEAR_S)
    after = counter.near(to_s, _NEAR_S)
    if before is None or after is None or after < before:
        return None
    return round(after - before)
