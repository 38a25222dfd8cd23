"""The row of a page that counts connections, by its values alone: it is found, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import synthetic_run
from synthetic_run import cut, without

from asyncli.analysis.count_by_values import count_by_values
from asyncli.analysis.counts import Client
from asyncli.analysis.reconcile import agreement, reconcile
from asyncli.analysis.totals import fold
from asyncli.model.records import Gap
from asyncli.model.run import Run
from asyncli.model.topology import CountSource

PAGE = "http://127.0.0.1:9090/metrics"
#: What a row of the server's page is at an instant, of the connections that it has.
Row = Callable[[float, int], float]


def a_run(rows: dict[str, Row], connections: int = 1000, **options: Any) -> Run:
    """A good run of 10 s of ramp whose page has ``rows``."""
    asked = {"batch": 10, "interval_s": 100.0 / connections, **options}
    run = synthetic_run.a_run(connections, hold_s=20.0, status=True, **asked)
    for sample in run.samples:
        if "status.active" in sample.values:
            held = round(sample.values["status.active"]) - 1
            for name, row in rows.items():
                sample.values[f"page.1.{name}"] = float(row(sample.t_s, held))
    without(run, "status.")
    run.environment["server"]["metrics"] = [{"url": PAGE, "products": [], "active_by": None, "interval_s": 1.0}]
    return run


def found_in(run: Run) -> str | None:
    count = count_by_values(run, Client(run))
    return None if count is None else count.source.metric


def gauge(_: float, held: int) -> float:
    return held


def test_the_gauge_is_found_beside_others() -> None:
    accepted = 0

    def accepts(_: float, held: int) -> float:
        nonlocal accepted
        accepted = max(accepted, held)
        return accepted

    rows: dict[str, Row] = {
        "accepted": accepts,
        "uptime": lambda t_s, _: round(t_s),
        "in_flight": lambda t_s, held: round(held * (0.5 + 0.3 * random.Random(t_s).random())),
        "limit": lambda _, __: 1000,
        'ws_open{pool="a"}': lambda _, held: held + 3,
    }
    run = a_run(rows)
    count = count_by_values(run, Client(run))
    assert count is not None
    assert count.source == CountSource(PAGE, 'ws_open{pool="a"}')
    assert (count.before, max(count.count.active.values)) == (3, 1000)


def test_of_several_that_say_the_same_the_name_decides() -> None:
    assert found_in(a_run({"a": gauge, "b_open": gauge, "c_connections": gauge, "d_connections": gauge})) == "c_connections"
    assert found_in(a_run({"b": gauge, "a": gauge})) == "a"


def test_a_row_that_came_with_the_first_connection_is_found() -> None:
    run = a_run({"ws_open": gauge})
    without(run, "page.", until_s=run.first_connect_s + 3.0)
    assert found_in(run) == "ws_open"


@pytest.mark.parametrize(
    "row",
    [
        lambda _, held: 0.97 * held,
        lambda _, held: 1.03 * held,
        lambda _, held: 2 * held,
        lambda _, held: min(held, 950),
        lambda t_s, held: held + (100 if 20.0 < t_s < 22.0 else 0),
        lambda t_s, held: held + 3 * t_s,
        # In the residue some are still counted.
        lambda t_s, held: held if t_s < 36.0 else held + 50,
        # Late by five seconds.
        lambda t_s, _: max(0.0, min(1000.0, 100 * (t_s - 10.0))) if t_s < 36.0 else 0.0,
    ],
    ids=range(8),
)
def test_what_does_not_follow_the_connections_is_not_found(row: Row) -> None:
    assert found_in(a_run({"ws_open": row})) is None


def test_few_connections_and_short_phases_are_not_enough() -> None:
    assert found_in(a_run({"ws_open": gauge}, connections=1000)) == "ws_open"
    assert found_in(a_run({"ws_open": gauge}, connections=40)) is None
    # A ramp of two seconds: all its pages are of connections that are just being opened.
    assert found_in(a_run({"ws_open": gauge}, interval_s=0.02)) is None


def test_what_is_not_over_is_not_known() -> None:
    run = a_run({"ws_open": gauge})
    assert found_in(without(a_run({"ws_open": gauge}), "page.", since_s=run.stop_s)) is None
    assert found_in(cut(a_run({"ws_open": gauge}), run.stop_s - 5.0)) is None
    run.gaps = [Gap(20.0, 21.0)]
    assert found_in(run) is None


def test_a_rule_and_a_status_page_win() -> None:
    run = a_run({"ws_open": gauge})
    run.environment["server"]["metrics"][0]["active_by"] = "haproxy_frontend_current_sessions"
    assert found_in(run) is None


def random_rows(chance: random.Random, peak: int) -> Row:
    """A row that counts no connections: a random walk, requests in flight, a share of the connections, a wave, or a level."""
    kind = chance.choice(["walk", "in_flight", "share", "wave", "level", "rises and falls"])
    state = [chance.uniform(0, peak)]
    share = chance.choice([chance.uniform(0.0, 0.95), chance.uniform(1.05, 2.0)])
    step = peak * chance.choice([0.01, 0.05, 0.3])
    begin_s, end_s = sorted([chance.uniform(0, 45), chance.uniform(0, 45)])
    period_s = chance.uniform(2, 90)
    rise_s = chance.uniform(1, 30)

    def row(t_s: float, held: int) -> float:
        if kind == "walk":
            state[0] = min(2.0 * peak, max(0.0, state[0] + chance.gauss(0, step)))
            return round(state[0])
        if kind == "in_flight":
            return sum(chance.random() < min(share, 0.95) for _ in range(held))
        if kind == "share":
            return round(share * held)
        if kind == "wave":
            return round(peak * abs(((t_s + begin_s) % period_s) / period_s * 2 - 1))
        if kind == "level":
            return peak if begin_s < t_s < end_s else 0
        # As other connections do.
        return round(peak * max(0.0, min(1.0, (t_s - begin_s) / rise_s, (end_s - t_s) / 2.0)))

    return row


def test_no_random_series_passes() -> None:
    chance = random.Random(4711)
    passed = []
    for batch in range(50):
        peak = chance.choice([60, 200, 1000])
        rows = {f"row_{number}_open": random_rows(chance, peak) for number in range(20)}
        run = a_run(rows, connections=peak)
        count = count_by_values(run, Client(run))
        if count is not None:
            passed.append((batch, count.source.metric))
    assert passed == []


def test_the_counts_agree_by_it_and_a_finding_names_it() -> None:
    run = a_run({'ws_open{pool="a"}': lambda _, held: held + 1})
    result, findings = reconcile(run, fold(run))
    assert (result.agrees, result.client_held, result.server_active) == (True, 1000, 1000)
    assert result.source == CountSource(PAGE, 'ws_open{pool="a"}')
    assert [finding.code for finding in findings] == ["counted_by_values"]
    assert findings[0].severity == "info"
    assert findings[0].fields["before"] == 1
    assert "'active=ws_open{pool=\"a\"}'" in findings[0].remedy
    assert agreement(result.agrees, findings) == "They agree"


def test_a_small_difference_at_the_end_is_a_warning_and_no_error() -> None:
    run = a_run({"ws_open": lambda t_s, held: held - 7 if held == 1000 and t_s > 30.0 else held})
    result, findings = reconcile(run, fold(run))
    assert (result.agrees, result.server_active) == (False, 993)
    assert [(finding.code, finding.severity) for finding in findings] == [("counted_by_values", "warning")]


def test_without_one_the_counts_are_unknown() -> None:
    run = a_run({"ws_open": lambda _, held: 2 * held})
    result, findings = reconcile(run, fold(run))
    assert (result.agrees, result.server_active) == (None, None)
    assert [finding.code for finding in findings] == ["reconciliation_unknown"]


def of_descriptors(row: Row, rows: dict[str, Row] | None = None, **options: Any) -> Run:
    """A run whose page has a process's descriptors, and ``rows``."""
    run = a_run({"descriptors": row, **(rows or {})}, **options)
    for sample in run.samples:
        if "page.1.descriptors" in sample.values:
            sample.values["runtime.descriptors"] = sample.values.pop("page.1.descriptors")
    run.environment["server"]["metrics"][0]["descriptors_by"] = "process_open_fds"
    return run


def counts_of(run: Run) -> tuple[bool | None, int | None]:
    result, _ = reconcile(run, fold(run))
    return result.agrees, result.server_active


def test_descriptors_count_where_no_row_does() -> None:
    run = of_descriptors(lambda _, held: held + 9)
    result, [counted] = reconcile(run, fold(run))
    assert (result.agrees, result.client_held, result.server_active) == (True, 1000, 1000)
    assert result.source == CountSource(PAGE, "process_open_fds")
    assert (counted.code, counted.severity, counted.fields["before"], counted.fields["since"]) == ("counted_by_values", "info", 9, 0)
    assert found_in(of_descriptors(gauge, {"ws_open": gauge})) == "ws_open"


def test_the_descriptors_of_another_program_are_no_count_of_the_server() -> None:
    run = of_descriptors(lambda _, held: held + 9)
    run.environment["server"]["metrics"][0] |= {"of_program": "app", "of_pid": 311}
    assert counts_of(run) == (None, None)


def test_files_that_stay_open_after_the_drain_are_no_connections() -> None:
    """As of a pool of a database that is opened by the first request, which is 2.5 % of the connections here."""
    run = of_descriptors(lambda t_s, held: held + (9 if t_s < 7.0 else 34))
    result, [counted] = reconcile(run, fold(run))
    assert (result.agrees, result.server_active, counted.fields["since"], counted.severity) == (True, 1025, 25, "info")
    assert result.divergences == []
    # And files that were closed meanwhile.
    assert counts_of(of_descriptors(lambda t_s, held: held + (34 if t_s < 7.0 else 9))) == (True, 975)


def test_other_files_are_no_disagreement_and_missing_descriptors_are() -> None:
    """More may be files; a connection without a descriptor there is none."""
    run = of_descriptors(lambda t_s, held: held + 9 + (7 if 12.0 < t_s < 36.0 else 0))
    result, [counted] = reconcile(run, fold(run))
    assert (result.agrees, result.server_active, counted.severity, result.divergences) == (None, 1007, "info", [])
    run = of_descriptors(lambda t_s, held: held + 9 - (7 if 25.0 < t_s < 36.0 else 0))
    result, findings = reconcile(run, fold(run))
    assert (result.agrees, result.server_active) == (False, 993)
    assert ("counted_by_values", "warning") in [(finding.code, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    "row",
    [
        lambda _, held: 0.5 * held,
        lambda _, held: 2 * held,
        lambda _, held: min(held, 950),
        # Not closed after the drain.
        lambda t_s, held: held if t_s < 36.0 else held + 50,
    ],
    ids=range(4),
)
def test_descriptors_that_do_not_follow_the_connections_count_nothing(row: Row) -> None:
    assert counts_of(of_descriptors(row)) == (None, None)


def test_names_of_a_run_file_that_is_not_ours_are_harmless() -> None:
    run = a_run({"x": gauge})
    for sample in run.samples:
        value = sample.values.pop("page.1.x", None)
        if value is not None:
            for name in ("page.", "page.9.ws_open", "page.-1.a", "page.²._", "page.1.\x1b[31m_open"):
                sample.values[name] = value
    assert (found_in(run) or "").isprintable()
