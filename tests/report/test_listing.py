"""The list of runs: one line each on any terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from recording import write_run
from rich.console import Console
from synthetic_run import a_run, raised, without

from asyncli.analysis.cost import costs
from asyncli.analysis.measured import measure
from asyncli.core.histogram import Histogram
from asyncli.report.listing import READ_WHOLE, Listed, Listing, listed, newest_first, print_listing
from asyncli.report.summary import summarise
from asyncli.store.run_index import read_index_entry


def one(file: str = "run.db", **changes: float) -> Listed:
    run = a_run(20_000, hold_s=30.0)
    return listed(run, file, 4_100_000, **{"changed_s": 1e6, "age_s": 7200.0, **changes})  # type: ignore[arg-type]


def printed(listing: Listing, width: int, *, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    print_listing(listing, Console(file=file, width=width, highlight=False, force_terminal=terminal, no_color=True, legacy_windows=False))
    return [line for line in file.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\x1b[1m", "").splitlines() if line]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_listing_fits_the_terminal(width: int) -> None:
    listing = Listing("x", [one("a-run-with-quite-a-long-name-of-its-own.db"), one()], [])
    lines = printed(listing, width)
    said = " ".join(lines[3:])
    assert max(map(len, lines)) <= width
    # Each column is there, or named below with how to see it.
    for column in ("age", "held", "verdict", "cost in server", "hold", "cost on host", "server", "started (UTC)", "size"):
        assert re.search(rf"(?<= ){re.escape(column)}(?=  |$)", lines[0]) or re.search(rf"[:,] {re.escape(column)}[,;]", said), column
    assert ("less -S" in said) == (said != "")
    for words in ("run file", "age", "held", "verdict", "cost in server"):
        assert words in lines[0], words
    assert "its-own.db" in lines[1]
    for words in ("2 h", "20,000", "passed", " B ± "):
        assert words in lines[2], words


def test_a_stopped_hold_is_listed_with_its_plan() -> None:
    run = one()
    run.stopped, run.planned_s = True, 3600.0
    assert "30 s of 1 h" in printed(Listing("x", [run], []), 140)[1]


def test_listing_in_a_pipe_is_as_wide_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed(Listing("x", [one("a-run-with-quite-a-long-name-of-its-own.db")], []), 60, terminal=False)
    assert max(map(len, lines)) <= 60
    assert "COLUMNS" in " ".join(lines[2:])


def test_listing_is_not_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    listing = Listing("x", [one("a-run-with-quite-a-long-name-of-its-own.db")], [])
    head, line = printed(listing, 40, terminal=False)
    assert "a-run-with-quite-a-long-name-of-its-own.db" in line
    for words in ("started (UTC)", "server", "size"):
        assert words in head, words
    for words in ("2025-03-01 12:00", "nginx/1.22.1", "30 s", "4.1 MB"):
        assert words in line, words


def test_listing_is_newest_first_then_by_name() -> None:
    runs = [one("b.db"), one("a.db"), one("new.db", age_s=5.0), one("old.db", age_s=1e6)]
    assert [run.file for run in newest_first(runs)] == ["new.db", "a.db", "b.db", "old.db"]


def test_server_cost_replaces_a_hidden_host_cost() -> None:
    found = listed(without(a_run(20_000, hold_s=30.0), "host.used_bytes"), "a.db", 1, changed_s=1e6, age_s=1.0)
    assert found.cost_of == "server_user"
    assert " B ± " in (line := printed(Listing("x", [found], []), 140)[1])
    assert found.server_cost == found.cost
    assert " - " in line


def test_two_level_cost_is_labelled() -> None:
    short = listed(a_run(3000), "a.db", 1, changed_s=1e6, age_s=1.0)
    (line,) = printed(Listing("x", [short], []), 160)[1:]
    assert "(two levels)" in line
    assert "levels" not in printed(Listing("x", [one()], []), 160)[1]


def test_listing_has_the_verdict_of_the_report() -> None:
    run = a_run(20_000, hold_s=30.0)
    run.plan = msgspec.structs.replace(run.plan, fail_if=("heartbeats.latency_ms.p99 > 0.001ms",))
    head = msgspec.structs.replace(run, ticks=[(t_s, msgspec.structs.replace(tick, latency_us=Histogram())) for t_s, tick in run.ticks])
    assert summarise(run).verdict == "failed"
    assert listed(head, "a.db", 1, changed_s=1e6, age_s=1.0, whole=lambda: run).verdict == "failed"


def test_server_counts_in_the_hold_do_not_change_the_cost() -> None:
    run = a_run(20_000, hold_s=60.0)
    before = listed(run, "a.db", 1, changed_s=1e6, age_s=1.0).cost
    hold = next(one for one in run.phases if one.name == "hold")
    raised(run, 5000.0, "status.active", since_s=hold.start_s + 16.0)
    assert listed(run, "a.db", 1, changed_s=1e6, age_s=1.0).cost == before


def test_costs_in_list_report_and_comparison_allow_for_growth_alike(tmp_path: Path) -> None:
    """Two levels include what grows in the hold and are unknown then; slopes are widened by as much in the ramp. The last may settle."""
    for connections, hold_s, per_s in ((3000, 30.0, 5e6), (20_000, 60.0, 5e6), (20_000, 60.0, 1e5)):
        run = raised(a_run(connections, hold_s=hold_s), 0.0, "server.pss_bytes", "host.used_bytes", per_s=per_s)
        head = read_index_entry(write_run(run, tmp_path / f"{connections} {per_s}.db"), READ_WHOLE)
        entry, cost = listed(head, "a.db", 1, changed_s=1e6, age_s=1.0), summarise(run).cost
        assert entry.server_cost == cost.server_user != costs(run).server_user
        compared = measure("A", "a.db", run).numbers["cost.server_user"]
        assert (entry.server_cost is None) == isinstance(compared, str) == (connections == 3000)
        assert entry.server_cost is None or (compared.low, compared.high) == entry.server_cost.ci95
