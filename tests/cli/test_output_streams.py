"""Progress and messages go to standard error, the report to standard output: ``> report.txt`` has the report alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import ASYNCLI, DEADLINE_S, SHORT, Done, Program, Server, held, here, report, require_whole, serving

SOAK = ("soak", "-c", "5", *SHORT, "--hold", "1", "--out", "run.db")
PROGRESS = re.compile(r"^\d+:\d\d:\d\d  (baseline|hold) ", re.MULTILINE)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def test_a_soak_prints_its_progress_on_stderr_and_its_report_on_stdout(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, *SOAK, server.url)
    assert done.out == here(tmp_path, "report", "run.db").out
    assert done.out.startswith(heading(done, tmp_path))
    assert {match[1] for match in PROGRESS.finditer(done.log)} == {"baseline", "hold"}
    # Nothing else: no complaint, no report.
    assert done.err == ""


def test_a_quiet_soak_prints_only_its_line(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, *SOAK, server.url, "--quiet")
    assert (done.log, done.out.count("\n"), done.out.partition(":")[0]) == ("", 1, "passed" if done.status == 0 else "invalid")
    require_whole(done.status, report(tmp_path, "run.db"))


def test_a_quiet_soak_tells_the_token_of_its_page(server: Server, tmp_path: Path) -> None:
    """Nobody else knows it."""
    done = here(tmp_path, *SOAK, server.url, "--quiet", "--web", "127.0.0.1:0")
    assert "#token=" in done.log
    assert done.log.count("\n") == 1


def test_a_token_of_ones_own_is_in_no_log(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abcdefghijklmnopqrstuvwx", encoding="ascii")
    done = here(tmp_path, *SOAK, server.url, "--web", "127.0.0.1:0", "--web-token-file", "token")
    assert "#token=TOKEN " in done.err + done.log
    assert "abcdefghijklmnop" not in done.err + done.log + done.out


@pytest.mark.parametrize("log", [(), ("--log-json",)], ids=["text", "json"])
def test_json_on_stdout_is_alone_there(server: Server, tmp_path: Path, log: tuple[str, ...]) -> None:
    done = here(tmp_path, *SOAK, server.url, "--json", "-", *log)
    summary = json.loads(done.out)
    require_whole(done.status, summary)
    assert f"\n{summary['run']['verdict'].upper()}" in done.log


def test_a_json_log_is_alone_on_stdout(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, *SOAK, server.url, "--log-json")
    events = [json.loads(line)["event"] for line in done.out.splitlines()]
    assert ("phase" in events, events[-1]) == (True, "end")
    assert heading(done, tmp_path) in done.log
    assert PROGRESS.search(done.log) is None


def test_a_bench_prints_only_its_report_on_stdout(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, "bench", "-c", "2", "-n", "50", server.url)
    # On a busy host asyncli may send late, or have no CPU left.
    assert done.out.startswith({0: "PASSED", 4: "INVALID"}[done.status])
    assert done.log == ""


def test_a_capacity_search_prints_its_steps_on_stderr(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, "capacity", "--start", "3", "--most", "4", "--hold", "1", *SHORT, server.url)
    assert re.findall(r"^step (\d)", done.log, re.MULTILINE) == ["1", "2"]
    assert "step 1:" not in done.out
    assert done.out.startswith("HELD ")


def test_watch_shows_a_run_on_stdout_and_its_notes_on_stderr(server: Server, tmp_path: Path) -> None:
    with Program(tmp_path, *SOAK[:-4], "--hold", "1h", "--quiet", "--out", "run.db", server.url) as soak:
        soak.until(lambda: held(tmp_path) == 5, "all are held")
        with Program(tmp_path, "watch", "run.db", name="watch") as watch:
            watch.until(lambda: "held 5 of 5" in watch.out, "it shows it")
            soak.signal()
            done = watch.wait()
    assert report(tmp_path, "run.db")["run"]["verdict"] in done.out
    assert (done.log.count("\n"), "asyncli report" in done.log) == (1, True)


def heading(done: Done, folder: Path) -> str:
    """How the report of a soak begins, which passed or was late."""
    summary = report(folder, "run.db")
    require_whole(done.status, summary)
    return str(summary["run"]["verdict"]).upper()


def coloured(folder: Path, url: str, **variables: str) -> Done:
    """A soak with its output in pipes."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [*ASYNCLI, *SOAK, url], cwd=folder, env=environment | {"TERM": "xterm"} | variables,
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    require_whole(done.returncode, report(folder, "run.db"))
    return Done(done.returncode, done.stdout, done.stderr, done.stderr)


_COLOUR = re.compile(r"\x1b\[(?:\d+;)*3\d")


@pytest.mark.parametrize(
    ("variables", "escapes", "colours"),
    [({}, False, False), ({"FORCE_COLOR": "1"}, True, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False)],
    ids=["pipe", "forced", "forced and none"],
)
def test_colours_follow_the_environment(server: Server, tmp_path: Path, variables: dict[str, str], escapes: bool, colours: bool) -> None:
    done = coloured(tmp_path, server.url, **variables)
    assert ("\x1b[" in done.out, bool(_COLOUR.search(done.out))) == (escapes, colours)
    # A pipe cannot be redrawn, whatever its colours.
    assert "\x1b[2K" not in done.err
    assert PROGRESS.search(done.err)


REDRAWN = """
import os, pty, subprocess, sys
master, slave = pty.openpty()
process = subprocess.Popen(sys.argv[1:], stdout=slave, stderr=slave)
os.close(slave)
while True:
    try:
        part = os.read(master, 65536)
    except OSError:
        break
    sys.stdout.buffer.write(part)
sys.exit(process.wait())
"""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_is_redrawn_and_has_no_colour_if_asked(server: Server, tmp_path: Path, no_color: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    environment |= {"NO_COLOR": no_color, "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", REDRAWN, *ASYNCLI, *SOAK, server.url],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    require_whole(done.returncode, report(tmp_path, "run.db"))
    assert "\x1b[2K" in done.stdout
    # An empty variable is not set (no-color.org).
    assert bool(_COLOUR.search(done.stdout)) == (no_color == "")
