"""The experiment client-lost: claims from synthetic rounds, and quick real runs, to the end and killed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import Program, here, report, until

import asyncli
from asyncli.experiments import load
from asyncli.experiments.client_lost import conclude
from asyncli.experiments.record import Claim, Round, Rounds

EXPERIMENT = load("client-lost")
SUM = {
    "step": "sum", "asked": 50_000, "held": 50_000, "opened": 75_000, "lost": 25_000, "causes": {"generator_lost": 25_000}, "failed": 0,
    "accepted": 75_000, "lost_after_s": 20.1, "again_s": 13.0,
}  # fmt: skip
BACK = {"step": "the cable is put back", "after_s": 40.0, "active": 75_001.0, "held": 50_000}


def claims(*rounds: Round) -> list[Claim]:
    return conclude(EXPERIMENT.plan(), Rounds({"round": 0, **one} for one in rounds)).claims


@pytest.mark.parametrize(
    ("changes", "number", "verdict"),
    [
        ({}, 0, "holds"),
        ({"causes": {"generator_lost": 25_000, "reset": 1}}, 0, "does not hold"),
        ({"failed": 1}, 0, "does not hold"),
        ({}, 1, "holds"),
        ({"lost": 24_999}, 1, "does not hold"),
        ({"held": 49_999, "lost": 25_001}, 1, "does not hold"),
        ({}, 2, "holds"),
        ({"accepted": 75_001}, 2, "does not hold"),
        ({}, 3, "holds"),
        ({"again_s": 18.0}, 3, "does not hold"),
        ({}, 4, "holds"),
        # The server has forgotten them at once.
        ({"active": 50_001.0}, 4, "does not hold"),
    ],
)
def test_each_claim_is_judged_by_its_rule(changes: dict[str, Any], number: int, verdict: str) -> None:
    rounds = [{**one, **{key: value for key, value in changes.items() if key in one}} for one in (SUM, BACK)]
    assert claims(*rounds)[number].verdict == verdict


def test_what_was_not_seen_is_not_claimed() -> None:
    assert claims() == []
    assert [one.verdict for one in claims({**SUM, "again_s": None, "lost_after_s": None})] == ["holds"] * 3
    assert [one.verdict for one in claims({**SUM, "accepted": None})] == ["holds"] * 3


def test_a_taste_of_it_adds_up(in_namespaces: None, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = here(tmp_path, "experiment", "client-lost", "--quick", "--out", "it")
    assert done.status == 0, done.err
    record = json.loads((tmp_path / "it/record.json").read_text())
    of = {one["step"]: one for one in record["rounds"]}
    assert (of["sum"]["held"], of["sum"]["opened"], of["sum"]["causes"]) == (400, 600, {"generator_lost": 200})
    assert [one["verdict"] for one in record["conclusions"]["claims"][:3]] == ["holds"] * 3
    silent, lost, again, back = (of[step] for step in ("the host is silent", "the host is lost", "all are held again", "the cable is put back"))
    assert 4 <= silent["after_s"] < 15 < lost["after_s"] < 25
    # What stands in a row is of one instant: it is lost, and nothing is opened again yet; then all of it is.
    seen = [[one[key] for key in ("held", "active", "opened", "lost", "reopened")] for one in (silent, lost, again)]
    assert seen == [[200, 401, 400, 0, 0], [200, 401, 400, 200, 0], [400, 601, 600, 200, 200]]
    assert (back["active"], " 200 " in record["question"]) == (601, True)
    assert {one["code"] for one in record["findings"]} >= {"host_silent", "host_lost"}
    assert {one.name for one in (tmp_path / "it").iterdir()} == {"run.db", "record.json", "report.html"}
    summary = report(tmp_path, "it/run.db")
    assert (summary["run"]["verdict"], summary["environment"]["agent"]["same_network"]) == ("invalid", False)


def test_killed_it_leaves_nothing(in_namespaces: None, tmp_path: Path) -> None:
    with Program(tmp_path, "experiment", "client-lost", "--quick", "--duration", "10m", "--out", "it") as program:
        program.until(lambda: (tmp_path / "it/run.db").exists() and len(program.hosts()) == 2, "both hosts open theirs")
        program.signal(signal.SIGKILL)
        until(lambda: not program.processes(), "nginx, the agent, Dask and all of theirs are gone")


def test_without_dask_or_with_a_hold_that_is_too_short_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = here(tmp_path, "experiment", "client-lost", "--quick", "--duration", "20s", "--out", "it")
    if "asyncli[dask]" not in done.err:
        complaint = "--duration: 20s is too short for a cut of 25s; write 27 s or more"
        assert (done.status, done.err.strip()) == (2, f"asyncli: {complaint}")
    # The import below puts another module there, which the modules that are put back do not belong to.
    monkeypatch.setattr(asyncli, "cluster", sys.modules.get("asyncli.cluster"), raising=False)
    for name in [one for one in sys.modules if one.startswith("asyncli.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = here(tmp_path, "experiment", "client-lost", "--quick", "--out", "it")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "asyncli[dask]" in done.err
    assert not (tmp_path / "it").exists()
