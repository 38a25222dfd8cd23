"""The report on a terminal says the answer first, and says it anywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console
from synthetic_run import a_run
from test_comparison import compared

from asyncli.records import Finding, ProtocolCounts
from asyncli.report.comparison_report import print_comparison
from asyncli.report.listing import Listing, Unread, listed, print_listing
from asyncli.report.run_report import print_report
from asyncli.report.summary import Summary, summarise
from asyncli.run import Run


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


def test_a_goodbye_without_a_code_has_none() -> None:
    run = a_run(20_000)
    run.ticks[-1][1].protocol = ProtocolCounts(goodbyes={0: 80, 1001: 3})
    said = next(line for line in printed(run).splitlines() if "goodbyes" in line)
    assert ("× 0" in said, "80 without" in said, "3 × 1001" in said) == (False, True, True)


def test_a_log_gets_its_tables_as_wide_as_they_must_be() -> None:
    run = a_run(30_000)
    narrow = printed(run, 40, terminal=False)
    assert "this host in all" in narrow
    assert re.search(r"^Cost of a connection +bytes +95 % interval +fixed +at 30,000$", narrow, re.MULTILINE)


def other() -> Run:
    run = a_run(20_000, label="nginx-é/[red]1")
    run.findings = [Finding("x", "warning", "a [bold]c[/bold]", "[dim]do")]
    return run


SHOWN: dict[str, Callable[[Console], None]] = {
    "report": lambda console: print_report(summarise(other()), console, "[red]é.db"),
    "comparison": lambda console: print_comparison(compared(a_run(20_000, seed=2), other(), paths=("a.db", "[red]é.db")), console),
    "list": lambda console: print_listing(
        Listing("x", [listed(other(), "[red]é.db", 1, changed_s=1e6, age_s=1.0)], [Unread("ö", "ö: is broken; mend it")]), console
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_terminal_that_knows_ascii_alone_is_told_all_and_nobodys_text_is_markup(what: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    SHOWN[what](Console(file=file, width=140, highlight=False))
    file.flush()
    assert b"[red]?.db" in raw.getvalue()
    assert b" B +- " in raw.getvalue() or what == "comparison"
    assert (b"[bold]c[/bold]" in raw.getvalue()) is (what == "report")
