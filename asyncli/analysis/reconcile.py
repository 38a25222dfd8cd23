"""Whether the counts of client and server agree; if not, since when and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import msgspec

from asyncli.analysis.constants import FEWEST, MISSED_S, WORTH_TELLING
from asyncli.analysis.counts import Client, CountPair, Divergence, Pages, Pair, compared
from asyncli.analysis.gaps import without_counters
from asyncli.analysis.generations import generations
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.server_count import other_clients_of
from asyncli.analysis.totals import Totals, never_answered
from asyncli.findings import reconcile as counts
from asyncli.findings.reconcile import Apart, Beyond, Since, Unknown
from asyncli.model.metrics import SERVER_SOCKETS
from asyncli.model.records import Finding
from asyncli.model.run import Run

# A status page that is older than this (s) at the drain, and than two of its usual intervals, is ignored.
_STALE_S = 3.0


class _AtEnd(msgspec.Struct, frozen=True):
    """Two counts at the last page. Work in flight allows second less first to be from ``least`` to ``most``."""

    pair: Pair
    first: int
    second: int
    least: int
    most: int

    @property
    def by(self) -> int:
        return self.second - self.first

    @property
    def agrees(self) -> bool:
        return self.least <= self.by <= self.most


class Reconciliation(msgspec.Struct):
    """The counts of client and server; None where unknown."""

    #: Open at the client at the hold's end; unanswered ones included, since the server may count them.
    client_held: int | None = None
    #: Active connections of the server, less our poller's, at the hold's end.
    server_active: int | None = None
    accepts_delta: int | None = None
    handled_delta: int | None = None
    requests_delta: int | None = None
    agrees: bool | None = None
    #: Periods in which counts diverged, also if they agreed again later.
    divergences: list[Divergence] = msgspec.field(default_factory=list)


def reconcile(run: Run, totals: Totals, diagnoses: Sequence[Diagnosis] = ()) -> tuple[Reconciliation, list[Finding]]:
    """The counts, and a finding for each pair that disagrees or did for a while, or of why the counts are unknown.

    Deltas are from the first page to the last of the run: in the residue nothing is in flight. ``diagnoses``: of lost
    connections, which the server may still count.
    """
    result = Reconciliation(client_held=totals.open)
    start, stop, whole = run.first_connect_s, run.stop_s, totals.whole
    client, pages = Client(run), Pages(without_counters(run))
    context = _Context(
        lost=whole.lost, failed=sum(whole.failures.values()),
        addresses=len({(target.host, target.port) for target in run.plan.targets}),
        silent=sum(never_answered(tick) for _, tick in run.ticks if tick.deaths),
        killed=sum(one.count for one in diagnoses if one.code == "worker_crash"),
        server=run.place.server_name, others_hold=_others_hold_sockets(run),
    )  # fmt: skip
    if not math.isfinite(start):
        return result, [counts.reconciliation_unknown("nothing_connected", [], context.server)]
    result.divergences = client.behind_asked(start, stop)
    if not len(pages) or pages.t_s[0] > start:
        of_plan = {"status_url": run.plan.status_url, "baseline": run.plan.baseline_s}
        lacks = [name for name, planned in of_plan.items() if not planned]
        findings = [counts.reconciliation_unknown("no_page", lacks, context.server)]
        return result, [*findings, *_divergence_findings(result.divergences, context)]
    if not math.isnan(pages.active[0]):
        context.already = round(float(pages.active[0]))
    every = compared(client, pages, start, stop)
    result.divergences += [one for pair in every for one in pair.divergences()]
    result.divergences.sort(key=lambda one: one.from_s)
    # A later page may be of the drain.
    recent = (pages.answered_s <= stop) & (pages.t_s >= max(start, stop - max(_STALE_S, 2 * pages.step_s)))
    active = float(pages.active[recent][-1]) if recent.any() else None
    restarts = [counts.counters_restarted(pages.restarted_s, pages.counter, *pages.around[0])] if pages.restarts else []
    if active is not None or pages.t_s[-1] >= stop:
        result.accepts_delta, result.handled_delta, result.requests_delta = (
            _int_or_none(column[-1]) for column in (pages.accepts, pages.handled, pages.requests)
        )
    if not pages.comparable or active is None:
        why: Unknown = "page_silent" if pages.comparable else "page_tells_nothing"
        findings = [counts.reconciliation_unknown(why, [], context.server), *restarts]
        return result, [*findings, *_divergence_findings(result.divergences, context)]
    if _page_of_new_processes(run, pages):
        result.divergences = [one for one in result.divergences if one.from_s < pages.restarted_s[0]]
        findings = [counts.reconciliation_unknown("page_of_new_processes", [], context.server), *restarts]
        return result, [*findings, *_divergence_findings(result.divergences, context)]
    result.server_active = _int_or_none(active)
    at_end = [found for one in every if (found := _at_end(one, client, totals, active, stop)) is not None]
    context.others = context.others_hold or any(one.pair == "accepts" and one.by > one.most for one in at_end)
    since: dict[str, Since] = {
        one.pair: {"from_s": one.from_s, "most": one.most, "at_s": one.at_s} for one in result.divergences if not one.closed
    }
    disagreements = [_disagreement(one, since.get(one.pair), context) for one in at_end if not one.agrees]
    result.agrees = not disagreements
    ended = all(one is not None and one.end_s is not None for one in (run.phase("hold"), run.phase("drain")))
    return result, [
        *disagreements,
        *_agreement_findings(at_end, context, restarted=bool(pages.restarts), ended=ended),
        *restarts,
        *_divergence_findings(result.divergences, context),
    ]


def _others_hold_sockets(run: Run) -> bool:
    """Whether other clients hold connections on the server by the kernel's sockets; a page may count some that are gone."""
    return any(run.series(SERVER_SOCKETS).values) and other_clients_of(run) is not None


def _page_of_new_processes(run: Run, pages: Pages) -> bool:
    """Whether the page's counters restarted with a new generation of processes: it then knows nothing of the earlier ones, as
    HAProxy's. nginx's page counts for all in shared memory, and goes on.
    """
    return any(
        abs(restarted_s - generation.at_s) <= MISSED_S for restarted_s in pages.restarted_s for generation in generations(run)
    )


def _int_or_none(count: float) -> int | None:
    return None if math.isnan(count) else round(float(count))


def _at_end(pair: CountPair, client: Client, totals: Totals, active: float, stop: float) -> _AtEnd | None:
    """The pair at the last page; None if a count is unknown."""
    first, second, least, most = (float(one[-1]) for one in (pair.first, pair.second, pair.least, pair.most))
    if pair.pair == "held":
        # Opens and losses near the drain may come before or after the page.
        churn = sum(float(client.within(name, stop - 2.0, stop + 1.0)) for name in ("opened", "lost"))
        first, second, least, most = totals.open, active, min(least, -churn), max(most, churn)
    if math.isnan(first) or math.isnan(second):
        return None
    return _AtEnd(pair.pair, round(first), round(second), math.floor(least), math.ceil(most))


def _disagreement(one: _AtEnd, since: Since | None, context: _Context) -> Finding:
    match one.pair:
        case "held":
            return counts.reconcile_held(one.first, one.second, since, context.addresses, context.beyond(one.by))
        case "accepts":
            silent = context.silent if -one.by <= context.silent else 0
            return counts.reconcile_accepts(one.first, one.second, since, context.addresses, silent, context.server)
        case "handled":
            return counts.reconcile_handled(one.first, one.second, since, context.server)
        case _:
            return counts.reconcile_requests(one.first, one.second, since, context.addresses)


_PAIRS: tuple[Pair, ...] = get_args(Pair)


class _Context(msgspec.Struct):
    """Possible reasons for a difference."""

    lost: int
    failed: int
    #: Servers behind the URLs, by host and port.
    addresses: int
    #: Other clients hold connections on the server; or they use it: it accepted more than we can have opened.
    others_hold: bool = False
    others: bool = False
    #: Connections that were never answered: the last packet of the handshake may have been lost.
    silent: int = 0
    #: Connections lost with killed workers of the server; and the server's count before our first connect.
    killed: int = 0
    already: int = 0
    #: The server's name; "": unknown.
    server: str = ""

    def stale(self, excess: int) -> tuple[int, int]:
        """Connections of killed workers and from before our first connect, if they explain ``excess``; else (0, 0)."""
        # A few are our poller's, or were opened while a worker was replaced.
        enough = max(FEWEST, round(WORTH_TELLING * excess))
        known = ((self.killed, 0), (0, self.already), (self.killed, self.already))
        return next((one for one in known if excess > 0 and any(one) and abs(sum(one) - excess) <= enough), (0, 0))

    def beyond(self, excess: int) -> Beyond:
        """Why the server counts ``excess`` connections more than we hold."""
        killed, before = (0, 0) if self.others_hold else self.stale(excess)
        return {"killed": killed, "before": before, "others": self.others, "lost": self.lost + self.failed > 0}


def agreement(agrees: bool | None, findings: Sequence[Finding]) -> str:
    """Whether the counts agree, as a sentence; ``findings`` are the run's."""
    if agrees and any(one.code == counts.reconcile_stale.code for one in findings):
        return "They agree except for connections of other runs or of a killed worker (see the findings)"
    if agrees and any(one.code in counts.PARTED and one.severity == "warning" for one in findings):
        return "They agree at the end, and diverged for a while (see the findings)"
    if agrees and any(one.code == counts.reconcile_in_flight.code for one in findings):
        return "They agree within what was in flight (see the findings)"
    return {True: "They agree", False: "They disagree (see the findings)", None: "Whether they agree is unknown"}[agrees]


def _agreement_findings(every: Sequence[_AtEnd], context: _Context, *, restarted: bool, ended: bool) -> list[Finding]:
    """Findings of the differences of pairs that agree. ``restarted``: the server's counters were."""
    apart: list[Apart] = []
    found = []
    for one in every:
        if one.by and one.agrees:
            beyond = one.by if one.pair == "held" else 0
            killed, before = context.stale(beyond)
            if killed or before:
                found.append(counts.reconcile_stale(one.by, killed, before))
                continue
            flight = abs(one.least if one.by < 0 else one.most)
            apart.append({"pair": one.pair, "by": one.by, "flight": flight, "before": context.already if beyond > 0 else 0})
    return [*found, counts.reconcile_in_flight(apart, ended, restarted)] if apart else found


def divergence_in_words(divergence: Divergence) -> str:
    one = divergence
    return counts.divergence_sentence(one.pair, one.from_s, one.to_s, one.most, one.at_s, one.closed)


def _divergence_findings(divergences: Sequence[Divergence], context: _Context) -> list[Finding]:
    """The largest divergence of each pair that agreed again or fell behind the plan; losses have their own findings."""
    found = []
    for pair in _PAIRS:
        reported = context.lost + context.failed if pair == "asked" else -1
        times = [one for one in divergences if one.pair == pair and (one.closed or (pair == "asked" and -one.most > reported))]
        if times:
            one = max(times, key=lambda one: abs(one.most))
            beyond = context.beyond(one.most)
            span = (one.from_s, one.to_s, one.at_s, one.most, one.closed)
            found.append(counts.parted(pair, *span, len(times), context.addresses, beyond, context.server))
    return found
