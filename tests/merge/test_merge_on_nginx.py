"""Two real clients of a real nginx, each with a run file of its own, and what comes of merging them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from asyncli.lab.nginx import LabNginx, find_nginx
from asyncli.store.reader import read_run
from tests.programs import Program, report, require_whole, run

pytestmark = pytest.mark.skipif(find_nginx() is None, reason="no nginx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a.db and b.db of two clients that began a second apart, of which the second polled too."""
    made = tmp_path_factory.mktemp("merge")
    asyncio.run(_two(made))
    return made


async def _two(folder: Path) -> None:
    async with LabNginx(2_000) as server:

        def soak(name: str, connections: int, hold: str) -> Program:
            return Program(
                folder, "soak", server.url, "-c", str(connections), "-k", "4", "--ramp", "10/50ms", "--hold", hold, "--baseline", "1",
                "--residue", "1", "--status-url", server.status_url, "--out", f"{name}.db", name=name,
            )  # fmt: skip

        with soak("a", 800, "forever") as first:
            first.until_phase("ramp")
            with soak("b", 600, "2s") as second:
                status = second.wait().status
            require_whole(status, report(folder, "b.db"))
            first.signal()
            status = first.wait().status
        require_whole(status, report(folder, "a.db"))


def test_the_counts_of_both_clients_and_of_the_server_agree(folder: Path) -> None:
    done = run(folder, "merge", "a.db", "b.db", "--out", "m.db", "--json", "m.json", "--html", "merged.html")
    assert done.status == 0, done.err
    said = json.loads((folder / "m.json").read_text())
    passed = "PASSED  1,400 of 1,400 connections were held to the end, and none was lost" in done.out
    require_whole(0 if passed else 4, said)
    assert (said["connections"]["held"], said["connections"]["lost"]) == (1400, 0)
    a, b = (report(folder, name) for name in ("a.db", "b.db"))
    for name in ("opened", "lost", "failed", "requested"):
        assert said["connections"][name] == a["connections"][name] + b["connections"][name]
    assert said["heartbeats"]["answered"] == a["heartbeats"]["answered"] + b["heartbeats"]["answered"]
    counts = said["reconciliation"]
    assert (counts["client_held"], counts["server_active"], counts["accepts_delta"], counts["agrees"]) == (1400, 1400, 1400, True)
    # Alone, each sees the other as a stranger.
    assert a["reconciliation"]["agrees"] is False
    # Whatever reads a run file reads this one.
    assert run(folder, "watch", "m.db", "--once").status == 0
    assert "m.db" in run(folder, "runs").out
    assert run(folder, "compare", "a.db", "m.db").status == 0
    assert run(folder, "report", "m.db", "--html", "m.html", "--csv", "csv").status == 0
    assert (folder / "m.html").read_text() == (folder / "merged.html").read_text()
    assert report(folder, "m.db")["connections"] == said["connections"]
    assert "merged of 2 runs: a.db (800 of 800 held), b.db (600 of 600 held)" in {one["evidence"] for one in said["findings"]}


def test_the_zero_of_a_runs_clock_is_recorded(folder: Path) -> None:
    first, second = (read_run(folder / name).environment["clock"] for name in ("a.db", "b.db"))
    assert first["boot_id"] == second["boot_id"]
    apart_s = second["monotonic_s"] - first["monotonic_s"]
    assert apart_s > 0.5
    assert second["wall_s"] - first["wall_s"] == pytest.approx(apart_s, abs=0.05)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["a.db"], "RUN: one run alone is merged already; name two run files or more"),
        (["a.db", "a.db"], "RUN: a.db is named twice; name each run once"),
        (["a.db", "none.db"], "none.db: there is no such file; name a run file that asyncli wrote (see --out)"),
        (["a.db", "b.db", "--out", "a.db"], "a.db: exists already and is never overwritten; name another file with --out"),
        (["a.db", "b.db", "--out", "x.db", "--json", "a.db"], "--json: a.db is the run file itself; name another file"),
        (["a.db", "b.db", "--out", "x.db", "--html", "x.db"], "--html: x.db is the run file itself; name another file"),
        (["a.db", "b.db", "--out", "no/x.db"], "no/x.db: there is no folder no; make it, or name another with --out"),
        (["a.db", "a.err"], "a.err: is empty: the run in it has not begun, or was ended before it did; name another run file"),
    ],
)
def test_what_cannot_be_merged_is_said_in_one_line(folder: Path, words: list[str], complaint: str) -> None:
    done = run(folder, "merge", *words)
    assert (done.status, done.err.strip()) == (2, f"asyncli: {complaint}")
    assert not (folder / "x.db").exists()
