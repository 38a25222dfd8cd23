"""The report on a terminal says the answer first, and says it anywhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from synthetic_run import a_run

from asyncli.records import Finding
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


def test_foreign_text_cannot_steer_the_terminal() -> None:
    run = a_run(1000, label="nginx/[red]1\x1b[2J")
    run.findings = [Finding("x", "warning", "a\nb \x1b[31m [bold]c[/bold]", "\x07do")]
    text = printed(run)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]c[/bold]" in text


def test_a_terminal_that_knows_ascii_alone() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    summary = summarise(a_run(20_000, label="nginx-é/1"))
    print_report(summary, Console(file=file, width=80, highlight=False), "run.db")
    file.flush()
    assert re.search(rb"B \+- \d+ on this host", raw.getvalue().replace(b"\n", b" "))


def test_a_log_gets_its_tables_as_wide_as_they_must_be() -> None:
    run = a_run(30_000)
    narrow = printed(run, 40, terminal=False)
    assert "this host in all" in narrow
    assert re.search(r"^Cost of a connection +bytes +95 % interval +fixed +at 30,000$", narrow, re.MULTILINE)
