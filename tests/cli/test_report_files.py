"""``asyncli report RUN --html FILE --plots DIR --csv DIR``, and ``soak --html``: what is written where, and what refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from made_runs import KINDS, with_deaths
from programs import SHORT, Done, run, serving
from recording import write_run

from asyncli.cli.main import run as run_here


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run that lost connections."""
    return write_run(with_deaths(), tmp_path_factory.mktemp("run") / "run.db")


def said(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    status = run_here([str(one) for one in arguments])
    out, err = capfd.readouterr()
    return Done(status, out, err)


def complaint(done: Done) -> str:
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert re.match(r"asyncli: \S.*; \S", lines[0])
    return lines[0]


def test_everything_at_once(capfd: pytest.CaptureFixture[str], tmp_path: Path, recorded: Path) -> None:
    page, plots, tables, summary = tmp_path / "page.html", tmp_path / "plots", tmp_path / "tables", tmp_path / "summary.json"
    done = said(capfd, "report", recorded, "--html", page, "--plots", plots, "--csv", tables, "--json", summary)
    assert (done.status, done.err) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary.read_text(encoding="utf-8").startswith("{")
    names = {"parts", "cost", "drift", "timeline", "deaths"}
    drawn = {one.name for one in plots.iterdir()}
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} <= drawn
    assert {one.name for one in tables.iterdir()} == {
        f"{name}.csv" for name in ("ticks", "samples", "deaths", "phases", "findings", "cost", "columns")
    }
    listed = set(done.out.splitlines())
    assert listed == {str(page), str(summary), *map(str, plots.iterdir()), *map(str, tables.iterdir())}
    # Again, over what is its own.
    before = {one: one.read_bytes() for folder in (plots, tables) for one in folder.iterdir()}
    done = said(capfd, "report", recorded, "--html", page, "--plots", plots, "--csv", tables)
    assert (done.status, done.err) == (0, "")
    assert {one: one.read_bytes() for folder in (plots, tables) for one in folder.iterdir()} == before


def test_the_page_on_standard_output(capfd: pytest.CaptureFixture[str], tmp_path: Path, recorded: Path) -> None:
    done = said(capfd, "report", recorded, "--html", "-", "--csv", tmp_path / "tables")
    assert done.status == 0
    assert done.out.startswith("<!doctype html>")
    assert done.out.endswith("</html>\n")
    assert len(done.err.splitlines()) == 7, "what else was written is said elsewhere"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_without_permission(capfd: pytest.CaptureFixture[str], tmp_path: Path, recorded: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    (tmp_path / "page.html").touch(mode=0o400)
    for arguments in (["--csv", tmp_path / "shut"], ["--plots", tmp_path / "shut" / "in"], ["--html", tmp_path / "page.html"]):
        complaint(said(capfd, "report", recorded, *arguments))


@pytest.mark.parametrize("kind", ["nothing", "untested", "one tick", "without samples", "interrupted in the ramp"])
def test_a_poor_run_is_exported_too(capfd: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    path = write_run(KINDS[kind](), tmp_path / "run.db")
    done = said(capfd, "report", path, "--html", tmp_path / "p.html", "--plots", tmp_path / "plots", "--csv", tmp_path / "csv")
    nothing = "asyncli: --plots: no figure can be drawn of this run: nothing was recorded over time\n"
    assert (done.status, done.err) == (0, nothing if kind == "nothing" else "")
    assert all(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())


def test_a_soak_writes_its_page_at_the_end(tmp_path: Path) -> None:
    with serving() as server:
        done = run(
            tmp_path, "soak", server.url, "-c", "10", *SHORT, "--hold", "1s", "--out", "run.db", "--html", "page.html", "--quiet"
        )
    assert (done.status, done.err) == (0, "")
    assert len(done.out.splitlines()) == 1
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "10 of 10 connections were held to the end, and none was lost" in page
    again = run(tmp_path, "report", "run.db", "--html", "again.html", name="again")
    assert (again.status, again.out) == (0, "again.html\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
