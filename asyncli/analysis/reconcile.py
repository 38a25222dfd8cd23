"""Whether the counts of client and server agree; if not, since when and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import msgspec

from asyncli.analysis.begun_counters import with_begun_counters
from asyncli.analysis.constants import FEWEST, MISSED_S, WORTH_TELLING
from asyncli.analysis.count_by_values import CountByValues, count_by_values
from asyncli.analysis.counts import Client, CountPair, Divergence, Pages, Pair, compared
from asyncli.analysis.event_times import words_of
from asyncli.analysis.gaps import drop_counters, without_counters
from asyncli.analysis.generations import generations
from asyncli.analysis.killed_workers import killed_by_commands
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.server_count import is_counted_by_sockets, other_clients_of
from asyncli.analysis.totals import Totals, never_answered
from asyncli.findings import reconcile as counts
from asyncli.findings.event_words import EventWords
from asyncli.findings.reconcile import Apart, Beyond, Since, Unknown
from asyncli.model.installed import can_compute
from asyncli.model.metrics import SERVER_PROCESSES, SERVER_SOCKETS
from asyncli.model.records import Finding, PhaseName, RunEvent
from asyncli.model.run import Run
from asyncli.model.topology import CountSource

# A status page that is older than this (s) at the drain is compared with what was open when it was
# read; it is ignored if it is older than two of its usual intervals too, or of the ramp.
_STALE_S = 3.0
# In these connections are held, and closed.
_LAST_PHASES: tuple[PhaseName, ...] = ("hold", "drain")


class _AtEnd(msgspec.Struct, frozen=True):
    """Two counts at the last page. Work in flight allows second less first to be from ``least`` to
    ``greatest``.
    """

    pair: Pair
    first: int
    second: int
    least: int
    greatest: int

    @property
    def by(self) -> int:
        return self.second - self.first

    @property
    def agrees(self) -> bool:
        return self.least <= self.by <= self.greatest


class Reconciliation(msgspec.Struct):
    """The counts of client and server; None where unknown."""

    #: Open at the client at the hold's end; unanswered ones included, since the server may count
    #: them.
    client_held: int | None = None
    #: Active connections of the server, less our poller's, on the last page of the hold; by a row
    #: of its metrics that was found by its values, or by its process's descriptors, less what these
    #: counted beside ours.
    server_active: int | None = None
    accepts_delta: int | None = None
    handled_delta: int | None = None
    requests_delta: int | None = None
    agrees: bool | None = None
    #: Where the server's counts are from, if that is no status page.
    source: CountSource | msgspec.UnsetType = msgspec.UNSET
    #: Periods in which counts diverged, also if they agreed again later.
    divergences: list[Divergence] = msgspec.field(default_factory=list)


def reconcile(
    run: Run, totals: Totals, diagnoses: Sequence[Diagnosis] = ()
) -> tuple[Reconciliation, list[Finding]]:
    """The counts, and a finding for each pair that disagrees or did for a while, or of why the
    counts are unknown.

    Deltas are from the first page to the last of the run: in the residue nothing is in flight.
    ``diagnoses``: of lost connections, which the server may still count.
    """
    result = Reconciliation(client_held=totals.open)
    context = _context_of(run, totals, diagnoses)
    if not math.isfinite(run.first_connect_s):
        return result, [counts.reconciliation_unknown("nothing_connected", [], context.server)]
    if not can_compute():
        return result, [counts.reconciliation_unknown("not_installed", [], context.server)]
    client = Client(run)
    context.by_values = count_by_values(run, client)
    other = None if context.by_values is None else context.by_values.count
    pages = Pages(with_begun_counters(without_counters(run)), other)
    if other is not None and not _has_pages(run, pages):
        # Its counters are of no use, and those that are open need no first page.
        pages = Pages(drop_counters(run), other)
    result.divergences = client.behind_asked(run.first_connect_s, run.stop_s)
    if _has_pages(run, pages):
        findings = _compare(run, totals, client, pages, result, context)
    else:
        lacks = _lacks(run)
        findings = [counts.reconciliation_unknown("no_page", lacks, context.server)]
    return result, [*findings, *_divergence_findings(result.divergences, context)]


def _has_pages(run: Run, pages: Pages) -> bool:
    """Whether there are pages to compare, and of what counts since the server's start one from
    before the ramp.
    """
    if not len(pages):
        return False
    return pages.counts_open_alone or bool(pages.t_s[0] <= run.first_connect_s)


def _source(run: Run, context: _Context) -> CountSource | msgspec.UnsetType:
    """The page, and the metric on it, whose count of connections is compared; unset where a status
    page counts them, or nothing does.
    """
    if context.by_values is not None:
        return context.by_values.source
    if run.plan.status_url is not None or run.place.count_source is None:
        return msgspec.UNSET
    return run.place.count_source


def _compare(
    run: Run,
    totals: Totals,
    client: Client,
    pages: Pages,
    result: Reconciliation,
    context: _Context,
) -> list[Finding]:
    """Compare the counts of all pages and at the last one. Sets in ``result`` what the pages say;
    findings of the counts at the end, and of restarts.
    """
    start_s = run.first_connect_s
    stop_s = run.stop_s
    if context.by_values is None and pages.t_s[0] <= start_s and not math.isnan(pages.active[0]):
        context.already = round(float(pages.active[0]))
    result.source = _source(run, context)
    if context.by_values is None:
        context.add_killed(killed_by_commands(run, client, pages))
    pairs = compared(client, pages, start_s, stop_s)
    for pair in pairs:
        result.divergences += _telling(pair.divergences(), context)
    result.divergences.sort(key=lambda divergence: divergence.from_s)
    active = _active_at_end(run, pages)
    if active is not None or pages.t_s[-1] >= stop_s:
        _set_deltas(result, pages)
    restarts = _restarts(pages)
    why = _why_unknown(run, pages, active, totals.open)
    result.divergences = _of_page_of_all(result.divergences, why, pages)
    if why is not None or active is None:
        unknown = counts.reconciliation_unknown(why or "page_silent", [], context.server)
        return [unknown, *restarts]
    result.server_active = _int_or_none(active)
    at_end = _counts_at_end(pairs, client, totals, active, stop_s)
    at_end_findings = _findings_at_end(run, at_end, result, context, restarted=bool(restarts))
    return [*at_end_findings, *restarts]


def _of_page_of_all(
    divergences: list[Divergence], why: Unknown | None, pages: Pages
) -> list[Divergence]:
    """Without those of pages that count a part of the connections."""
    if why == "page_of_new_processes":
        return _begun_before(divergences, pages.restarted_s[0])
    if why == "page_of_a_part":
        # What asyncli has fallen behind is by no page.
        return [divergence for divergence in divergences if divergence.pair == "asked"]
    return divergences


def _telling(divergences: Sequence[Divergence], context: _Context) -> list[Divergence]:
    """Those that are of connections: where a process has more descriptors, it has opened files."""
    telling = []
    for divergence in divergences:
        may_be_files = context.counts_descriptors and divergence.pair == "held"
        if not may_be_files or divergence.most < 0:
            telling.append(divergence)
    return telling


def _begun_before(divergences: Sequence[Divergence], before_s: float) -> list[Divergence]:
    return [divergence for divergence in divergences if divergence.from_s < before_s]


def _counts_at_end(
    pairs: Sequence[CountPair], client: Client, totals: Totals, active: float, stop_s: float
) -> list[_AtEnd]:
    """The pairs at the last page of which both counts are known."""
    at_end = []
    for pair in pairs:
        count = _at_end(pair, client, totals, active, stop_s)
        if count is not None:
            at_end.append(count)
    return at_end


def _set_deltas(result: Reconciliation, pages: Pages) -> None:
    """What the server counted from the first page to the last."""
    result.accepts_delta = _int_or_none(pages.accepts[-1])
    result.handled_delta = _int_or_none(pages.handled[-1])
    result.requests_delta = _int_or_none(pages.requests[-1])


def _restarts(pages: Pages) -> list[Finding]:
    """The finding of counters that restarted."""
    if not pages.restarts:
        return []
    return [counts.counters_restarted(pages.restarted_s, pages.counter, *pages.around[0])]


def _findings_at_end(
    run: Run,
    at_end: Sequence[_AtEnd],
    result: Reconciliation,
    context: _Context,
    *,
    restarted: bool,
) -> list[Finding]:
    """Findings of the counts at the last page; sets whether they agree."""
    accepted_more = any(count.pair == "accepts" and count.by > count.greatest for count in at_end)
    context.others = context.others_hold or accepted_more
    open_since: dict[str, Since] = {}
    for divergence in result.divergences:
        if not divergence.closed:
            since = Since(from_s=divergence.from_s, most=divergence.most, at_s=divergence.at_s)
            open_since[divergence.pair] = since
    findings = []
    for count in at_end:
        if count.pair == "held" and context.by_values is not None:
            findings.append(_counted_by_values(count, context.by_values))
        elif not count.agrees:
            findings.append(_disagreement(count, open_since.get(count.pair), context))
    judged = [count for count in at_end if not _may_be_files(count, context)]
    if judged:
        result.agrees = all(count.agrees for count in judged)
    findings += _agreement_findings(judged, context, restarted=restarted, ended=_has_ended(run))
    return findings


def _may_be_files(count: _AtEnd, context: _Context) -> bool:
    """Whether the server's count tells nothing of the connections: its process has more
    descriptors than these.
    """
    counts_files = context.counts_descriptors and count.pair == "held"
    return counts_files and count.by > count.greatest


def _has_ended(run: Run) -> bool:
    """Whether hold and drain both ended."""
    for name in _LAST_PHASES:
        phase = run.phase(name)
        if phase is None or phase.end_s is None:
            return False
    return True


def _context_of(run: Run, totals: Totals, diagnoses: Sequence[Diagnosis]) -> _Context:
    return _Context(
        lost=totals.whole.lost,
        failed=totals.whole.failed,
        addresses=len({(target.host, target.port) for target in run.plan.targets}),
        silent=sum(never_answered(tick) for _, tick in run.ticks if tick.deaths),
        silenced=totals.whole.silenced_by_events,
        killed=sum(map(_lost_with_worker, diagnoses)),
        server=run.place.server_name,
        others_hold=_others_hold_sockets(run),
    )


def _lost_with_worker(diagnosis: Diagnosis) -> int:
    """How many connections were certainly lost with a killed worker of the server."""
    if diagnosis.code != "worker_crash" or not diagnosis.certain:
        return 0
    return diagnosis.count


def _lacks(run: Run) -> list[str]:
    """What the run's plan, or that of its agent, needs for a page from before the first connect,
    and lacks.
    """
    has_agent = run.place.agent is not None
    lacks = []
    if not run.plan.status_url and run.place.metrics_urls:
        lacks.append("metrics_map_of_agent" if has_agent else "metrics_map")
    elif not run.plan.status_url:
        lacks.append("status_url_of_agent" if has_agent else "status_url")
    if not run.plan.baseline_s:
        lacks.append("baseline")
    return lacks


def _active_at_end(run: Run, pages: Pages) -> float | None:
    """The server's active connections on the last page that is not stale. A later page may be of
    the drain, and one that is older may be of the ramp.
    """
    hold = run.phase("hold")
    all_open_s = run.stop_s if hold is None else hold.start_s
    of_rare_pages_s = max(all_open_s, run.stop_s - 2 * pages.step_s)
    recent_s = max(run.first_connect_s, min(run.stop_s - _STALE_S, of_rare_pages_s))
    recent = (pages.answered_s <= run.stop_s) & (pages.t_s >= recent_s)
    if not recent.any():
        return None
    return float(pages.active[recent][-1])


def _why_unknown(run: Run, pages: Pages, active: float | None, held: int) -> Unknown | None:
    """Why the counts at the end cannot be compared; None: they can."""
    if not pages.comparable:
        return "page_tells_nothing"
    if active is None:
        return "page_silent"
    if _page_of_new_processes(run, pages):
        return "page_of_new_processes"
    if _page_of_a_part(run, active, held):
        return "page_of_a_part"
    return None


def _page_of_a_part(run: Run, active: float, held: int) -> bool:
    """Whether a page of metrics counts the connections of one process of several, or of several
    pages one of another server: fewer than the ``held`` ones, all of which programs on the server's
    host have accepted.
    """
    processes = max(run.series(SERVER_PROCESSES).values, default=0.0)
    if processes < 2 and len(run.place.metrics_urls) < 2:
        return False
    if run.place.count_source is None or run.hold is None:
        return False
    accepted = run.series(SERVER_SOCKETS).between(run.hold.start_s, run.stop_s).values
    if not accepted or abs(accepted[-1] - held) > WORTH_TELLING * held:
        return False
    return active < (1 - WORTH_TELLING) * held


def _others_hold_sockets(run: Run) -> bool:
    """Whether other clients hold connections on the server by the kernel's sockets; a page may
    count some that are gone.
    """
    return is_counted_by_sockets(run) and other_clients_of(run) is not None


def _page_of_new_processes(run: Run, pages: Pages) -> bool:
    """Whether the page's counters restarted with a new generation of processes: it then knows
    nothing of the earlier ones, as HAProxy's. nginx's page counts for all in shared memory, and
    goes on.
    """
    for generation in generations(run):
        for restarted_s in pages.restarted_s:
            if abs(restarted_s - generation.at_s) <= MISSED_S:
                return True
    return False


def _int_or_none(count: float) -> int | None:
    return None if math.isnan(count) else round(float(count))


def _at_end(
    pair: CountPair, client: Client, totals: Totals, active: float, stop: float
) -> _AtEnd | None:
    """The pair at the last page; None if a count is unknown."""
    first = float(pair.first[-1])
    second = float(pair.second[-1])
    least = float(pair.least[-1])
    greatest = float(pair.greatest[-1])
    if pair.pair == "held" and pair.t_s[-1] >= stop - _STALE_S:
        first = totals.open
        second = active
        # Opens and losses near the drain may come before or after the page.
        opened = float(client.within("opened", stop - 2.0, stop + 1.0))
        lost = float(client.within("lost", stop - 2.0, stop + 1.0))
        least = min(least, -opened - lost)
        greatest = max(greatest, opened + lost)
    if math.isnan(first) or math.isnan(second):
        return None
    return _AtEnd(pair.pair, round(first), round(second), math.floor(least), math.ceil(greatest))


def _counted_by_values(count: _AtEnd, by_values: CountByValues) -> Finding:
    since = None
    if by_values.of_descriptors:
        since = round(by_values.count.files_opened - by_values.count.files_closed)
    return counts.counted_by_values(
        by_values.source.metric,
        by_values.source.url,
        round(by_values.before),
        since,
        count.first,
        count.second,
        count.agrees,
    )


def _disagreement(count: _AtEnd, since: Since | None, context: _Context) -> Finding:
    match count.pair:
        case "held":
            return counts.reconcile_held(
                count.first, count.second, since, context.addresses, context.beyond(count.by)
            )
        case "accepts":
            silent = 0
            if -count.by <= context.silent:
                silent = context.silent
            return counts.reconcile_accepts(
                count.first, count.second, since, context.addresses, silent, context.server
            )
        case "handled":
            return counts.reconcile_handled(count.first, count.second, since, context.server)
        case _:
            return counts.reconcile_requests(count.first, count.second, since, context.addresses)


_PAIRS: tuple[Pair, ...] = get_args(Pair)


class _Context(msgspec.Struct):
    """Possible reasons for a difference."""

    lost: int
    failed: int
    #: Servers behind the URLs, by host and port.
    addresses: int
    #: Other clients hold connections on the server; or they use it: it accepted more than we can
    #: have opened.
    others_hold: bool = False
    others: bool = False
    #: Connections that were never answered: the last packet of the handshake may have been lost.
    silent: int = 0
    #: Clients that fell silent by events of the plan, and were not heard again.
    silenced: int = 0
    #: Connections that ended with killed workers of the server; the events of the plan in whose
    #: time they were killed; and the server's count before our first connect.
    killed: int = 0
    killed_in: list[EventWords] = msgspec.field(default_factory=list)
    already: int = 0
    #: The server's name; "": unknown.
    server: str = ""
    #: What counts the server's connections, where no rule names it.
    by_values: CountByValues | None = None

    @property
    def counts_descriptors(self) -> bool:
        """Whether the server's active count is that of its descriptors."""
        return self.by_values is not None and self.by_values.of_descriptors

    def add_killed(self, by_commands: Sequence[tuple[RunEvent, int]]) -> None:
        """Add the connections whose workers commands of the plan killed."""
        for command, count in by_commands:
            self.killed += count
            self.killed_in.append(words_of(command))

    def events_of(self, killed: int) -> list[EventWords]:
        """The events in whose time workers were killed, if connections of such explain anything."""
        return self.killed_in if killed else []

    def stale(self, excess: int) -> tuple[int, int]:
        """Connections of killed workers and from before our first connect, if they explain
        ``excess``; else (0, 0).
        """
        if excess <= 0:
            return 0, 0
        # A few are our poller's, or were opened while a worker was replaced.
        few = max(FEWEST, round(WORTH_TELLING * excess))
        explanations = ((self.killed, 0), (0, self.already), (self.killed, self.already))
        for killed, already in explanations:
            stale = killed + already
            if stale and abs(stale - excess) <= few:
                return killed, already
        return 0, 0

    def beyond(self, excess: int) -> Beyond:
        """Why the server counts ``excess`` connections more than we hold."""
        killed = 0
        before = 0
        if not self.others_hold:
            killed, before = self.stale(excess)
        return {
            "killed": killed,
            "killed_in": self.events_of(killed),
            "before": before,
            "others": self.others,
            "lost": self.lost + self.failed > 0,
        }


def agreement(agrees: bool | None, findings: Sequence[Finding]) -> str:
    """Whether the counts agree, as a sentence; ``findings`` are the run's."""
    if agrees is None:
        return "Whether they agree is unknown"
    if not agrees:
        return "They disagree (see the findings)"
    codes = {finding.code for finding in findings}
    warned = {finding.code for finding in findings if finding.severity == "warning"}
    if counts.reconcile_stale.code in codes:
        return (
            "They agree except for connections of other runs or of a killed worker "
            "(see the findings)"
        )
    if not warned.isdisjoint(counts.PARTED):
        return "They agree at the end, and diverged for a while (see the findings)"
    for finding in findings:
        if finding.code == counts.reconcile_in_flight.code:
            return _agreement_in_flight(finding)
    return "They agree"


def _agreement_in_flight(finding: Finding) -> str:
    if any(apart["silent"] for apart in finding.fields["apart"]):
        return "They agree but for clients that fell silent by events (see the findings)"
    return "They agree within what was in flight (see the findings)"


def _agreement_findings(
    at_end: Sequence[_AtEnd], context: _Context, *, restarted: bool, ended: bool
) -> list[Finding]:
    """Findings of the differences of pairs that agree. ``restarted``: the server's counters."""
    apart: list[Apart] = []
    findings = []
    for count in at_end:
        if not count.by or not count.agrees:
            continue
        if count.pair == "held" and context.counts_descriptors:
            # Its own finding says by how much, and why.
            continue
        # What the server holds beyond ours.
        beyond = 0
        if count.pair == "held":
            beyond = count.by
        killed, before = context.stale(beyond)
        if killed or before:
            killed_in = context.events_of(killed)
            findings.append(counts.reconcile_stale(count.by, killed, before, killed_in))
            continue
        flight = abs(count.greatest)
        if count.by < 0:
            flight = abs(count.least)
        already = 0
        silent = 0
        if beyond > 0:
            already = context.already
            silent = context.silenced
        apart.append(
            {
                "pair": count.pair,
                "by": count.by,
                "flight": flight,
                "before": already,
                "silent": silent,
            }
        )
    if apart:
        findings.append(counts.reconcile_in_flight(apart, ended, restarted))
    return findings


def divergence_in_words(divergence: Divergence) -> str:
    return counts.divergence_sentence(
        divergence.pair,
        divergence.from_s,
        divergence.to_s,
        divergence.most,
        divergence.at_s,
        divergence.closed,
    )


def _divergence_findings(divergences: Sequence[Divergence], context: _Context) -> list[Finding]:
    """The largest divergence of each pair that agreed again or fell behind the plan; losses have
    their own findings.
    """
    findings = []
    for pair in _PAIRS:
        times = []
        for divergence in divergences:
            if divergence.pair == pair and _is_reported(divergence, context):
                times.append(divergence)
        if not times:
            continue
        widest = max(times, key=lambda divergence: abs(divergence.most))
        findings.append(
            counts.parted(
                pair,
                widest.from_s,
                widest.to_s,
                widest.at_s,
                widest.most,
                widest.closed,
                len(times),
                context.addresses,
                context.beyond(widest.most),
                context.server,
            )
        )
    return findings


def _is_reported(divergence: Divergence, context: _Context) -> bool:
    """Whether the counts agreed again, or more lacked of the plan than losses explain. What was
    found by its values follows the connections but for a few, and has a finding of its own.
    """
    if divergence.pair == "held" and context.by_values is not None:
        return False
    if divergence.closed:
        return True
    return divergence.pair == "asked" and -divergence.most > context.lost + context.failed
