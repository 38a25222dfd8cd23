"""``asyncli report RUN --html FILE --plots DIR --csv DIR``, and ``soak --html``: the files that they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import KINDS, with_deaths
from programs import SHORT, Done, done_of, here, require_done, serving
from recording import write_run

from asyncli.cli.main import run as run_here


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run that lost connections."""
    return write_run(with_deaths(), tmp_path_factory.mktemp("run") / "run.db")


def said(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    status = run_here([str(one) for one in arguments])
    out, err = capfd.readouterr()
    return done_of(status, out, err)


def test_all_exports_at_once(capfd: pytest.CaptureFixture[str], tmp_path: Path, recorded: Path) -> None:
    page, plots, tables, summary = tmp_path / "page.html", tmp_path / "plots", tmp_path / "tables", tmp_path / "summary.json"
    done = said(capfd, "report", recorded, "--html", page, "--plots", plots, "--csv", tables, "--json", summary)
    assert (done.status, done.err) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary.read_text(encoding="utf-8").startswith("{")
    names = {"parts", "cost", "drift", "timeline", "deaths"}
    drawn = {one.name for one in plots.iterdir()}
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} <= drawn
    assert {one.name for one in tables.iterdir()} == {
        f"{name}.csv" for name in ("ticks", "samples", "deaths", "phases", "events", "findings", "cost", "columns")
    }
    listed = set(done.out.splitlines())
    assert listed == {str(page), str(summary), *map(str, plots.iterdir()), *map(str, tables.iterdir())}
    # Again, over its own files, with the page on standard output and the other names on standard error.
    before = {one: one.read_bytes() for one in tables.iterdir()}
    done = said(capfd, "report", recorded, "--html", "-", "--csv", tables)
    assert (done.status, done.out) == (0, page.read_text(encoding="utf-8"))
    assert set(done.err.splitlines()) == set(map(str, tables.iterdir()))
    assert {one: one.read_bytes() for one in tables.iterdir()} == before


def test_empty_run_is_exported(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_run(KINDS["nothing"](), tmp_path / "run.db")
    done = said(capfd, "report", path, "--html", tmp_path / "p.html", "--plots", tmp_path / "plots", "--csv", tmp_path / "csv")
    assert (done.status, "--plots" in done.err) == (0, True)
    assert all(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())


def test_soak_writes_its_page_at_the_end(tmp_path: Path) -> None:
    with serving() as server:
        asked = ("-c", "10", *SHORT, "--hold", "1s", "--out", "run.db", "--html", "page.html", "--quiet")
        done = here(tmp_path, "soak", server.url, *asked)
    require_done(tmp_path, done)
    assert done.out.count("\n") == 1
    again = here(tmp_path, "report", "run.db", "--html", "again.html")
    assert (again.status, again.out) == (0, "again.html\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == (tmp_path / "page.html").read_text(encoding="utf-8")
