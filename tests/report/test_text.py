"""The report on terminals of any kind, the answer first."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console
from synthetic_run import a_run, raised, without
from test_comparison import compared
from test_live import state_at

from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.drift import in_words
from asyncli.analysis.slope import Cost
from asyncli.model.records import Finding, ProtocolCounts
from asyncli.model.run import Run
from asyncli.model.topology import sides
from asyncli.report.analyses import analyse
from asyncli.report.answer import one_line
from asyncli.report.comparison_report import comparison_document, document
from asyncli.report.cost_answer import answer
from asyncli.report.document import plain
from asyncli.report.figures.pictures import pictures as drawings
from asyncli.report.format import capitalised, short_bytes
from asyncli.report.listing import Listing, Unread, listed, print_listing
from asyncli.report.live import plain_line
from asyncli.report.run_costs import cost_table
from asyncli.report.run_report import print_report, run_document
from asyncli.report.summary import Summary, summarise
from asyncli.report.tables import CostView
from asyncli.report.terminal import print_document


def printed(of: Run | Summary, width: int = 80, path: str = "run.db", *, terminal: bool = True, verbose: bool = False) -> str:
    summary = summarise(of) if isinstance(of, Run) else of
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)
    print_report(summary, console, path, verbose=verbose)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not terminal or max(map(len, text.splitlines())) <= width
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "…" not in text  # no cell is cut
    assert "nan" not in text.lower().split()
    return str(text)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_any_width(width: int) -> None:
    printed(a_run(20_000), width)


@pytest.mark.parametrize(("name", "said"), [("python3.11", "python3.11"), ("the server", "The server"), ("asyncli", "asyncli")])
def test_a_name_keeps_its_small_initial(name: str, said: str) -> None:
    assert capitalised(f"{name} had", name) == f"{said} had"


def test_goodbye_without_a_code() -> None:
    run = a_run(20_000)
    run = msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, urls=("ws://127.0.0.1:8080/",)))
    run.ticks[-1][1].protocol = ProtocolCounts(goodbyes={0: 80, 1001: 3})
    said = next(line for line in printed(run).splitlines() if "goodbyes" in line)
    assert ("× 0" in said, "80 without" in said, "3 × 1001" in said) == (False, True, True)


def test_tables_in_a_log_are_folded_only_where_a_width_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(30_000)
    monkeypatch.setenv("COLUMNS", "40")
    folded = printed(run, 40, terminal=False)
    costs = folded[folded.index("Cost of a connection") :].split("\n\n")[0]
    assert max(map(len, costs.splitlines())) <= 40
    monkeypatch.delenv("COLUMNS")
    narrow = printed(run, 40, terminal=False)
    assert "this host in all" in narrow
    assert re.search(r"^Cost of a connection +bytes +95 % interval +fixed +at 30,000$", narrow, re.MULTILINE)


@pytest.mark.parametrize(
    ("each", "ci95", "shown"),
    [
        (-126_523.0, (-223_633.0, -29_412.0), "unknown"), (343_041.0, (-1_615_500.0, 2_338_602.0), "hidden"),
        (4050.0, (3956.0, 4183.0), "4,050"), (0.01, (-0.1, 0.12), "0"),
    ],
)  # fmt: skip
def test_cost_that_may_be_zero_is_hidden(each: float, ci95: tuple[float, float], shown: str) -> None:
    cost = Cost(each, ci95, 0.0, "", 10)
    sure = Cost(9000.0, (8000.0, 10_000.0), 0.0, "", 10)
    for total, left_over in ((sure, short_bytes(each)), (cost, shown)):
        table = cost_table(Costs(kernel=cost, residual=cost, host_total=total), "nginx", sides({}), 40)
        _, kernel, _, residual, _ = (row.cells[0][0] for row in table.rows)
        assert (kernel, residual) == (shown, left_over)


def test_rows_of_rss_say_so() -> None:
    for hidden, word in ((), "nginx"), (("server.pss_bytes",), "nginx (RSS)"):
        said = printed(without(a_run(20_000, hold_s=700.0), *hidden), 120)
        assert (f"\n{word}, user" in said, f"\n  {word}: " in said, "(RSS); asyncli" in said) == (True, True, hidden != ())


def other() -> Run:
    run = a_run(20_000, label="nginx-é/[red]1")
    run.findings = [Finding("x", "warning", "a [bold]c[/bold]", "[dim]do")]
    return run


SHOWN: dict[str, Callable[[Console], None]] = {
    "report": lambda console: print_report(summarise(other()), console, "[red]é.db"),
    "comparison": lambda console: print_document(comparison_document(compared(a_run(20_000, seed=2), other(), paths=("a.db", "[red]é.db"))), console),
    "list": lambda console: print_listing(
        Listing("x", [listed(other(), "[red]é.db", 1, changed_s=1e6, age_s=1.0)], [Unread("ö", "ö: is broken; mend it")]), console
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_report_in_ascii_is_complete_and_interprets_no_markup(what: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    SHOWN[what](Console(file=file, width=140, highlight=False))
    file.flush()
    assert b"[red]?.db" in raw.getvalue()
    assert b" B +- " in raw.getvalue() or what == "comparison"
    assert (b"[bold]c[/bold]" in raw.getvalue()) is (what == "report")


def test_cost_with_streams_always_names_them() -> None:
    run, held = a_run(30_000, http2=True, streams=100), "with its 100 streams"
    analyses = analyse(run)
    summary = summarise(run, analyses)
    assert msgspec.to_builtins(summary.cost)["streams"] == 100
    assert all("100 streams" in one.method for one in (summary.cost.server_user, summary.cost.kernel, summary.cost.host_total) if one is not None)
    # Each of these texts has the cost of "one more connection".
    costs = CostView(analyses.costs, answer(summary), server="nginx", where=run.sides, held=30_000)
    pictures = [one.title for one in drawings(run, summary, analyses) if one.name in ("parts", "cost")]
    line = listed(run, "a.db", 1, changed_s=9.0, age_s=9.0)
    listing = io.StringIO()
    print_listing(Listing("/", [line], []), Console(file=listing, width=300))
    for said in (answer(summary), one_line(summary), str(costs), *pictures, plain_line(state_at(run, 40.0)), listing.getvalue()):
        assert held in " ".join(said.split()), said
    for t_s, tick in run.ticks:
        tick.protocol = ProtocolCounts(streams_open=round(100 * tick.held * (1.0 if t_s > run.hold.start_s + 20 else 0.105)))
    few = summarise(run, analyse(run))
    assert few.cost.streams == 10.5
    assert "10.5 streams" in answer(few)
    compared_runs = document(compared(run, run))["runs"]
    assert [one["streams"] for one in compared_runs] == [100, 100]
    plain = summarise(a_run(30_000))
    assert "streams" not in msgspec.to_builtins(plain.cost)
    assert "streams" not in answer(plain)


@pytest.mark.parametrize(("per_s", "verdict"), [(1e6, "grows"), (-0.4e6, "shrinks"), (0.0, "too_short")])
def test_the_first_lines_agree_with_what_follows(per_s: float, verdict: str) -> None:
    summary = summarise(raised(a_run(2000, hold_s=60.0, noise=0.1), 0.0, "server.pss_bytes", per_s=per_s))
    drift = summary.drift["server_user"]
    line, *said = run_document(summary, "").sections[0].blocks
    warned = [one for one in summary.findings if one.severity != "info"]
    assert (drift.verdict, line.word, bool(line.but)) == (verdict, "passed", bool(warned))
    # Growth comes before the cost that includes it.
    assert [one.role for one in said].index("answer") == (verdict == "grows")
    assert any(in_words(drift) in plain(one.words) for one in said) == (verdict != "too_short")


def test_what_is_left_over_is_not_below_zero_in_a_sentence() -> None:
    summary = summarise(a_run(20_000))
    summary.cost.residual = msgspec.structs.replace(summary.cost.residual, bytes_per_connection=-30.0, ci95=(-100.0, 40.0))
    said = answer(summary)
    assert "40 B" in said
    assert "exceed" in said
    assert "-30 B" not in said


@pytest.mark.parametrize("verbose", [False, True])
def test_a_page_that_was_silent_at_the_end_is_why_the_counts_are_missing(verbose: bool) -> None:
    """Also where its counts had differed before."""
    run = a_run(5_000)
    hold = run.phase("hold")
    assert hold is not None
    ramp_middle_s = (run.first_connect_s + hold.start_s) / 2
    shifted = raised(run, -500.0, "status.active", since_s=ramp_middle_s)
    said = printed(without(shifted, "status.", since_s=hold.start_s), verbose=verbose)
    (counts,) = re.findall(r"counts are unknown:[^.;]*", " ".join(said.split()))
    assert "silent" in counts


def test_a_headline_has_no_interval_of_what_cannot_be_told() -> None:
    """Two parts that cannot be told are joined, and no number below zero stands in a sentence."""
    summary = summarise(a_run(20_000))
    unknown = Cost(4_000.0, (-15_926.0, 20_789.0), 0.0, "", 2, of_levels=True)
    summary.cost.kernel = unknown
    summary.cost.host_total = Cost(4_000.0, (-195e3, 122e3), 0.0, "", 9)
    sentence = answer(summary)
    assert " and on " in sentence
    assert not re.search(r"-\d", sentence)


@pytest.mark.parametrize(("low", "high", "said"), [(1_174.0, 41_243.0, "wide"), (20_000.0, 22_000.0, "21,000")])
def test_the_middle_of_a_wide_interval_is_no_figure(low: float, high: float, said: str) -> None:
    cost = Cost((low + high) / 2, (low, high), 1e6, "", 9)
    run = a_run(20_000)
    table = cost_table(Costs(server_user=cost), "java", sides(run.environment), 20_000)
    [row] = [row for row in table.rows if row.label.startswith("java")]
    assert row.cells[0][0] == said
