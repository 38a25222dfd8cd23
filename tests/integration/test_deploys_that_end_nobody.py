"""Commands of a plan in whose time the server ends no connection, and yet is no good to its clients: it stands still, answers with
errors, or listens no more."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import fault_table
from contract import document
from programs import Done, here, recorded, require_whole, serving_by

from asyncli.model.units import format_duration

SERVER = Path(__file__).parent / "deploying_server.py"


class Deployed:
    """A soak of a server that has these commands happen to it. ``PID`` in them is its process."""

    def __init__(self, folder: Path, *asked: str, connections: int = 200, backlog: int = 512, leaves_after_s: float = 60.0) -> None:
        self.folder = folder
        with serving_by(SERVER, backlog, leaves_after_s) as told:
            port, pid = told.split()
            words = [word.replace("PID", pid) for word in asked]
            usual = ("-c", str(connections), "--ramp", "200/s", "--baseline", "1", "--residue", "0.5", "--out", "run.db")
            self.done: Done = here(folder, "soak", f"http://127.0.0.1:{port}/", *usual, *words)
        self.run = recorded(folder / "run.db")
        self.summary: dict[str, Any] = document(self.run)
        self.events = self.summary["events"]

    def finding(self, code: str) -> dict[str, Any]:
        """The last one: what heartbeats show of a silence comes before what the server shows of it."""
        return [finding for finding in self.summary["findings"] if finding["code"] == code][-1]

    def require_status(self, wanted: int) -> None:
        require_whole(self.done.status, self.summary, wanted)

    def require_row(self, test: str) -> None:
        fault_table.require_as_written(test, self.summary)


def test_a_command_that_freezes_the_server(tmp_path: Path) -> None:
    freeze = ("--at", "4s", "run kill -STOP PID; sleep 5; kill -CONT PID")
    run = Deployed(tmp_path, "--hold", "20s", "-k", "4", "--timeout", "20s", *freeze)
    run.require_status(0)
    [command] = run.events
    assert (command["ended"], "back" in command) == (0, False)
    assert command["no_answers_s"] >= 3.0
    assert command["latency_ms"]["others_p99"] > 3_000 > command["latency_ms"]["outside_p99"]
    silence = run.finding("no_answers")
    assert (silence["severity"], silence["fields"]["why"]) == ("warning", "stopped")
    assert silence["fields"]["events"] == [{"number": 1, "kind": "run"}]
    assert ("event 1" in silence["remedy"], "firewalls" in silence["remedy"]) == (True, False)
    said = " ".join(here(tmp_path, "report", "run.db").out.split())
    assert f"answered for {format_duration(command['no_answers_s'])}" in said
    run.require_row("test_a_command_that_freezes_the_server")


def test_a_storm_on_a_server_that_is_frozen(tmp_path: Path) -> None:
    freeze = ("--at", "2s", "run kill -STOP PID; sleep 9; kill -CONT PID", "--at", "3s", "storm")
    run = Deployed(tmp_path, "--hold", "26s", "-k", "4", "--reconnect", "backoff:1s..4s", *freeze, backlog=20)
    command, storm = run.events
    assert (storm["not_back"], storm["pace"]["by"]) == (0, "standstill")
    # From the first to the last reading that shows it, which on a busy host are rare.
    readings = run.run.series("server.cpu_s").t_s
    apart_s = max(after_s - before_s for before_s, after_s in itertools.pairwise(readings))
    assert command["took_s"] - 2 * apart_s - 0.5 < command["stood_still_s"] < command["took_s"] + 1.0
    standstill = run.finding("no_answers")
    assert (standstill["fields"]["why"], standstill["fields"]["events"]) == ("stopped", [{"number": 1, "kind": "run"}])
    forecast = " ".join(here(tmp_path, "storm", "run.db", "--reconnect", "now").out.split())
    assert ("the ramp" in forecast, "stood still" in forecast) == (True, True)
    run.require_row("test_a_storm_on_a_server_that_is_frozen")


def test_a_command_in_whose_time_all_answers_are_errors(tmp_path: Path) -> None:
    run = Deployed(tmp_path, "--hold", "14s", "-k", "2", "--at", "3s", "run kill -USR1 PID; sleep 3; kill -USR2 PID")
    run.require_status(99)
    errors = run.finding("status_errors")
    assert errors["fields"]["events"] == [{"number": 1, "kind": "run"}]
    assert errors["fields"]["in_events"] == run.summary["heartbeats"]["by_status"]["503"] > 0
    run.require_row("test_a_command_in_whose_time_all_answers_are_errors")


def test_a_command_after_which_nothing_listens(tmp_path: Path) -> None:
    """The server ends seven seconds later, when what it ends is no longer the command's."""
    asked = ("--hold", "16s", "-k", "2", "--timeout", "1s", "--no-reopen", "--at", "2s", "run kill -TERM PID")
    run = Deployed(tmp_path, *asked, leaves_after_s=7.0)
    run.require_status(99)
    assert (run.events[0]["ended"], run.summary["connections"]["lost"]) == (0, 200)
    gone = run.finding("listen_gone")
    assert (gone["severity"], gone["fields"]["events"]) == ("warning", [{"number": 1, "kind": "run"}])
    assert gone["fields"]["held"] == 200
    assert "nothing listened" in run.done.log
    assert all("event 1" in diagnosis["evidence"] for diagnosis in run.summary["diagnoses"])
    run.require_row("test_a_command_after_which_nothing_listens")
