"""Client and server count the same connections: what agrees, what does not, and what is said about it."""

from __future__ import annotations

from synthetic_run import a_run

from asyncli.analysis.reconcile import Reconciliation, reconcile
from asyncli.analysis.totals import fold
from asyncli.records import Deaths
from asyncli.store.reader import Run


def reconciled(run: Run) -> tuple[Reconciliation, list[str]]:
    result, findings = reconcile(fold(run.ticks, run.phases), run.phases, run.ticks, run.samples)
    assert all(finding.remedy for finding in findings)
    return result, [finding.code for finding in findings]


def shift(run: Run, metric: str, by: float, since_s: float = 40.0) -> None:
    for sample in run.samples:
        if sample.t_s >= since_s and metric in sample.values:
            sample.values[metric] += by


def test_a_good_run_agrees_to_the_connection() -> None:
    result, codes = reconciled(a_run(20_000))
    assert (result.client_held, result.server_active, result.agrees, codes) == (20_000, 20_000, True, [])
    assert (result.accepts_delta, result.handled_delta) == (20_000, 20_000)
    assert result.requests_delta is not None
    assert result.requests_delta > 20_000


def test_one_connection_too_many_or_too_few_is_seen() -> None:
    for by, code in ((1.0, "reconcile_held"), (-1.0, "reconcile_held")):
        run = a_run(20_000)
        shift(run, "status.active", by)
        result, codes = reconciled(run)
        assert (result.agrees, codes) == (False, [code])


def test_a_listen_queue_that_nobody_empties() -> None:
    """EMFILE on the server: the kernel opens for the client, and the server never accepts."""
    run = a_run(20_000)
    for metric in ("status.active", "status.accepts", "status.handled"):
        shift(run, metric, -300.0)
    assert reconciled(run)[1] == ["reconcile_held", "reconcile_accepts"]


def test_no_free_slots() -> None:
    run = a_run(20_000)
    shift(run, "status.handled", -7.0)
    assert reconciled(run)[1] == ["reconcile_handled"]


def test_someone_else_is_there() -> None:
    run = a_run(20_000)
    for metric, by in (("status.accepts", 500.0), ("status.handled", 500.0), ("status.requests", 900.0)):
        shift(run, metric, by)
    result, codes = reconciled(run)
    assert (result.agrees, codes) == (False, ["reconcile_accepts", "reconcile_requests"])


def test_our_poller_may_have_to_connect_again() -> None:
    run = a_run(20_000)
    shift(run, "status.accepts", 1.0)
    shift(run, "status.handled", 1.0)
    assert reconciled(run)[0].agrees is True


def test_unanswered_beats_may_or_may_not_have_arrived() -> None:
    run = a_run(20_000)
    run.ticks[30][1].sent += 10
    for by in (0.0, 5.0, 5.0):
        shift(run, "status.requests", by)
        assert reconciled(run)[0].agrees is True
    shift(run, "status.requests", 1.0)
    assert reconciled(run)[0].agrees is False


def test_what_dies_at_the_very_end_is_in_flight() -> None:
    run = a_run(20_000)
    stop = run.phases[3].start_s
    last = [tick for t_s, tick in run.ticks if t_s <= stop][-1]
    last.deaths["reset"] = Deaths(count=3)
    for _, tick in run.ticks:
        tick.held_at_drain = 19_997 if tick.held_at_drain else 0
    assert reconciled(run)[0].agrees is True


def test_unknown_without_a_page_or_without_a_baseline() -> None:
    for run in (a_run(5000, status=False), a_run(5000)):
        run.samples = [sample for sample in run.samples if sample.t_s > 6.0]
        result, codes = reconciled(run)
        assert (result.client_held, result.server_active, result.agrees) == (5000, None, None)
        assert codes == ["reconciliation_unknown"]


def test_a_page_that_fell_silent() -> None:
    run = a_run(5000)
    for sample in run.samples:
        if sample.t_s > 20:
            sample.values = {name: value for name, value in sample.values.items() if not name.startswith("status.")}
    result, codes = reconciled(run)
    assert (result.server_active, result.agrees, codes) == (None, None, ["reconciliation_unknown"])


def test_a_killed_run_is_unsure_by_what_was_in_flight() -> None:
    run = a_run(20_000)
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s < 15.0]
    run.samples = [sample for sample in run.samples if sample.t_s < 15.0]
    run.phases = run.phases[:2]
    run.phases[1].end_s = None
    for sample in run.samples:
        if "status.active" in sample.values:  # half a second's worth of the ramp, as a real page would be off
            for metric in ("status.active", "status.accepts", "status.handled"):
                sample.values[metric] = max(sample.values[metric] - 100.0 * (sample.t_s > 6.0), 1.0)
    result, codes = reconciled(run)
    assert "reconcile_held" not in codes
    assert "reconcile_accepts" not in codes
    assert result.client_held == run.ticks[-1][1].held
