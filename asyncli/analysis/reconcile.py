"""The same connections counted by the client and by the server: do they agree?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from asyncli.analysis.series import Series, Ticks, end_of_hold, first_connect, phase, series
from asyncli.analysis.totals import Totals
from asyncli.records import Finding, Phase, Sample, Tick

RULE = (
    "held by the client = active on the server less our poller, at the hold's end; accepts = opened; handled = "
    "accepts; requests = answers and polls: equal but for what was in flight, on a server that only we use"
)
# nginx ends a kept connection after keepalive_requests (100 before 1.19.10) polls, and our poller then opens another.
_POLLS_PER_CONNECTION = 100
# Failures after which the server may have accepted a connection that the client never counted as opened.
_PERHAPS_ACCEPTED = ("connect_timeout", "refused", "other")
# A status page older than this at the drain speaks of another moment.
_STALE_S = 10.0


class Reconciliation(msgspec.Struct):
    """The counts side by side. ``agrees`` is None where the server's are not known."""

    client_held: int | None = None
    #: The server's active connections less our poller's, at the hold's end.
    server_active: int | None = None
    accepts_delta: int | None = None
    handled_delta: int | None = None
    requests_delta: int | None = None
    agrees: bool | None = None


def reconcile(
    totals: Totals, phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample]
) -> tuple[Reconciliation, list[Finding]]:
    """The counts, and a finding for each pair that disagrees, or for why nothing is known.

    The deltas run from the first page (our poller's connection is in it already) to the last of the run: in the
    residue, where nothing is in flight. In a run without one the pairs may differ by what was in flight then.
    """
    result = Reconciliation(client_held=totals.held)
    pages = {name: series(samples, f"status.{name}") for name in ("active", "accepts", "handled", "requests", "polls")}
    start, stop = first_connect(phases, ticks), end_of_hold(phases, ticks, samples)
    if any(not page.t_s or page.t_s[0] > start for page in pages.values()):
        remedy = "name its stub_status page with --status-url, and keep a --baseline"
        return result, [_unknown("no status page from before the ramp", remedy)]
    accepts, handled, requests, polls = (_delta(pages[name]) for name in ("accepts", "handled", "requests", "polls"))
    # A server that ends connections after some requests ends our poller's too: its new ones are accepts, but not the soak's.
    connects = series(samples, "status.connects")
    reconnects = _delta(connects) if connects.t_s else 0
    accepts, handled = accepts - reconnects, handled - reconnects
    result.accepts_delta, result.handled_delta, result.requests_delta = accepts, handled, requests
    active = pages["active"].last(until_s=stop, since_s=max(start, stop - _STALE_S))
    if active is None:
        return result, [_unknown("the status page was silent at the hold's end", "see the other findings for why")]
    result.server_active = round(active) - 1

    whole, flight = totals.whole, _in_flight(phases, ticks, pages["accepts"].t_s[-1])
    churn = _churn(ticks, stop)
    poller = 0 if connects.t_s else math.ceil(polls / _POLLS_PER_CONNECTION)
    unsure = sum(whole.failures.get(cause, 0) for cause in _PERHAPS_ACCEPTED)
    answers, unanswered = whole.answered + polls, whole.sent - whole.answered
    held, server, opened = totals.held, result.server_active, whole.opened
    findings = [
        _held_differ(held, server) if abs(held - server) > churn else None,
        _accepts_differ(opened, accepts) if not -flight.opened <= accepts - opened <= unsure + poller + flight.opened else None,
        _handled_differ(accepts, handled) if handled != accepts else None,
        _requests_differ(answers, requests)
        if not -flight.answered - poller <= requests - answers <= unanswered + flight.sent
        else None,
    ]
    disagreements = [finding for finding in findings if finding is not None]
    result.agrees = not disagreements
    return result, disagreements


def _delta(page: Series) -> int:
    return round(page.values[-1] - page.values[0])


def _in_flight(phases: Sequence[Phase], ticks: Ticks, page_s: float) -> Tick:
    """Counts by which client and server may differ at the last page: none once the drain is over."""
    around = Tick()
    residue = phase(phases, "residue")
    if residue is None or page_s < residue.start_s:
        for t_s, tick in reversed(ticks):
            # A page and a tick are up to a second apart, either way.
            if t_s < page_s - 2.0:
                break
            around.merge_counts(tick)
    return around


def _churn(ticks: Ticks, stop_s: float) -> int:
    """Connections opened or lost so near to the drain that the page may be from before it or after."""
    return sum(tick.opened + tick.lost for t_s, tick in ticks if stop_s - 2.0 <= t_s <= stop_s + 1.0)


def _unknown(why: str, remedy: str) -> Finding:
    return Finding("reconciliation_unknown", "info", f"the server's own counts are not known: {why}", remedy)


_ONLY_OURS = "run against a server that only we use"


def _held_differ(held: int, active: int) -> Finding:
    evidence = f"the client holds {held:,} connections, the server {active:,}"
    if active > held:
        return Finding("reconcile_held", "warning", evidence, f"someone else uses this server: {_ONLY_OURS}")
    remedy = (
        "the server let connections go, or never took them from its listen queue: see its error log for 'too many open "
        "files' and 'reusing connections', and middle boxes for silent drops"
    )
    return Finding("reconcile_held", "error", evidence, remedy)


def _accepts_differ(opened: int, accepts: int) -> Finding:
    evidence = f"the client opened {opened:,} connections, the server accepted {accepts:,}"
    if accepts > opened:
        return Finding("reconcile_accepts", "warning", evidence, f"someone else uses this server: {_ONLY_OURS}")
    remedy = "they wait in its listen queue: see its error log for 'too many open files', and raise worker_rlimit_nofile"
    return Finding("reconcile_accepts", "error", evidence, remedy)


def _handled_differ(accepts: int, handled: int) -> Finding:
    evidence = f"the server accepted {accepts:,} connections and handled {handled:,}: it had no free slot for the rest"
    return Finding("reconcile_handled", "error", evidence, "raise worker_connections in nginx.conf")


def _requests_differ(answers: int, requests: int) -> Finding:
    evidence = f"the client counts {answers:,} answers and polls, the server {requests:,} requests"
    remedy = f"someone else uses this server: {_ONLY_OURS}" if requests > answers else "see whether the server was restarted"
    return Finding("reconcile_requests", "warning", evidence, remedy)
