"""Bad input of every kind: one clear line on standard error, exit status 2, nothing else, and nothing sent.

What a value may be is held by tests/test_plan.py, test_benchplan.py and test_units.py; here each command says where it stands.
"""

from __future__ import annotations

import os
import re
import resource
import sqlite3
from pathlib import Path

import pytest
from made_runs import with_deaths
from programs import SHORT, Program, codes, complaint, done_of, here, report, serving
from recording import write_run

from asyncli.cli.main import run as run_here
from asyncli.model.plan import Plan
from asyncli.model.units import LONGEST_S

URL = "http://127.0.0.1:1/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, plans, and obstacles: files and folders of the names that are to be written."""
    folder = tmp_path_factory.mktemp("here")
    write_run(with_deaths(), folder / "run.db")
    (folder / "a-file").write_text("mine")
    (folder / "text.db").write_text("<html>" * 100)
    (folder / "empty.db").touch()
    os.mkfifo(folder / "pipe")
    (folder / "damaged.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16)
    (folder / "loop.db").symlink_to(folder / "loop.db")
    connection = sqlite3.connect(folder / "foreign.db")
    connection.execute("CREATE TABLE meta (key, value)")
    connection.close()
    for name, file, content in (
        ("full", "samples.csv", "t,used\n1,2\n"), ("full", "timeline.png", "\x89PNG mine"),
        ("other", "phases.csv", "run_id,name\nanother0run1,hold\n"),
    ):  # fmt: skip
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_text(content)
    for name, text in {
        "p{0}": "conections = 5", "nonsense": "nonsense = 5", "limit": 'fail_if = ["held < 1", "lots > 1"]', "zero": "interval = 0", "bad": "connections = ",
        "soon": 'keepalive = "soon"', "one": "reopen = 1", "both": 'ramp = "100/s"\ninterval = "1s"', "long": "seed = 1\n" * 5000,
        "twice": 'hold = "1m"\nramp = "1/s"\nhold = "10m"', "comma": 'fail_if = "lost > 0,1%"', "out": 'out = "x.db"', "section": '[soak]\nhold = "1m"',
        "half": 'ramp = "100/"', "date": "hold = 2026-11-26T07:00:00",
    }.items():  # fmt: skip
        (folder / f"{name}.toml").write_text(text)
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    return folder


#: Arguments, and the start of the message after "asyncli: ".
LINES: list[tuple[str, str]] = [
    ("soak", "no URL given; write one, for example http://127.0.0.1:8080/"),
    ("bench", "no URL given"),
    ("report", "Missing argument 'RUN.db'"), ("watch", "name a run file: asyncli watch RUN.db"), ("compare", "RUN: "),
    ("soak localhost", "URL: 'localhost' has no scheme; write http://localhost"),
    ("-c 5 localhost", "URL: 'localhost' has no scheme"),
    ("-c 0 -k 60 URL", "--connections: '0' is below 1"), ("-c -5 URL", "--connections: '-5' is below 1"),
    ("soak --hold until 07:00 URL", "--hold: 'until' has no time after it; write both in quotes, for example 'until 07:00'"),
    ("soak URL --ramp 1/s --batch 5", "--ramp and --batch: both set the ramp's rate"),
    ("soak URL --fail-if cost.server_user_worse_by_3%", "--fail-if: 'cost.server_user_worse_by_3%' is not a limit"),
    ("soak URL --baseline-run some.db", "--baseline-run: no limit compares with it; set one, such as --fail-if 'cost.server_user worse by 3%'"),
    ("soak URL --abort", "--abort: there is no limit to stop at"),
    ("soak URL --header A:1 --header host:a --header Host:b", "--header: 'Host: b' is a second Host"),
    ("soak URL --fail-if lots>1", "--fail-if: 'lots' is not a number of a run; did you mean 'lost'?"),
    ("soak URL --fail-if drift.server_usr>1", "--fail-if: 'drift.server_usr' is not a number of a run; did you mean 'drift.server_user'?"),
    ("soak URL --plan comma.toml", "comma.toml: fail_if: '0,1%' has a comma"), ("bench URL --plan comma.toml", "comma.toml: fail_if: 'lost' is not"),
    ("soak URL --plan twice.toml", "twice.toml: hold stands twice, on lines 1 and 3"), ("soak URL --plan out.toml", "out.toml: unknown key 'out'; --out is"),
    ("soak URL --plan section.toml", "section.toml: unknown key 'soak'; a plan has no"),
    ("soak URL --plan half.toml", "half.toml: ramp: '100/' is not a pace"), ("soak URL --plan date.toml", "date.toml: hold: 2026-11-26 07:00:00 is not"),
    ("soak URL --plan bench", "bench: cannot be read (No such file or directory); name a TOML file, or a built-in plan: smoke, 100k, overnight"),
    ("bench URL --plan smoke", "smoke: cannot be read (No such file or directory); name a TOML file, or a built-in plan: bench"),
    ("soak URL --plan limit.toml", "limit.toml: fail_if: 'lots' is not a number of a run"),
    ("soak URL --plan no/such.toml", "no/such.toml: cannot be read"),
    ("soak URL --plan nonesuch", "nonesuch: cannot be read"),
    ("soak URL --plan p{0}.toml", "p{0}.toml: unknown key 'conections'; did you mean 'connections'?"),
    ("soak URL --plan nonsense.toml", "nonsense.toml: unknown key 'nonsense'; the keys are"),
    ("soak URL --plan zero.toml", "zero.toml: interval: 0 is zero"), ("soak URL --plan soon.toml", "soon.toml: keepalive: 'soon' is not a duration"),
    ("soak URL --plan one.toml", "one.toml: reopen: 1 is neither true nor false"), ("soak URL --plan long.toml", "long.toml: is longer than 16,384 bytes"),
    ("soak URL --plan both.toml", "both.toml: ramp and both.toml: interval: both set the ramp's rate"),
    ("soak URL --plan bad.toml", "bad.toml: is not TOML"), ("soak URL --plan bytes.toml", "bytes.toml: is not TOML"),
    ("soak URL --connectoins 5", "No such option"), ("soak URL -c", "Option '-c' requires an argument"),
    ("soak URL --cluster-ca a", "--cluster-ca: has no effect without --cluster"),
    ("soak URL --resume run.db", "--resume uses the plan in run.db; leave out the URL"),
    ("soak --resume run.db --plan smoke", "--resume uses the plan in run.db; leave out --plan"),
    ("soak --resume none.db", "none.db: no such file"), ("soak --resume run.db", "run.db: its hold was complete, so there is nothing to resume"),
    ("soack URL", "no command 'soack'; did you mean 'soak'?"), ("reprot run.db", "no command 'reprot'; did you mean 'report'?"),
    ("frobnicate", "URL: 'frobnicate' has no scheme"), ("--frobnicate", "No such option"),
    ("lab apache", "unknown lab server 'apache'"), ("lab nginx --port 65536", "--port: '65536' is not a port"),
    ("demo --server apache", "unknown lab server 'apache'"), ("demo --server redis --tls", "the lab redis does not speak TLS"),
    ("report a b", "Got unexpected extra argument"),
    ("explain worker_", "TERM: no term 'worker_'"),
    ("bench URL -c 0", "--connections: '0' is below 1"), ("bench URL --rate 0", "--rate: '0' is below 1"),
    ("bench URL --pipeline 5 --short", "--pipeline: a connection for each request cannot carry 5; leave --short out"),
    ("bench URL --pipeline 5 --rate 5", "--pipeline: at a rate each request has its own due time"),
    ("bench URL --pipeline 5 --method POST", "--pipeline: a POST may not be sent again"),
    ("bench URL --body @missing", "--body: 'missing' cannot be read (No such file or directory)"),
    ("bench URL --server-pid 4000000", "--server-pid: no process 4000000"), ("bench URL -c 60k --workers 1", "descriptors per process (RLIMIT_NOFILE)"),
    ("bench URL --fail-if lots>1", "--fail-if: 'lots' is not a number of a run"),
    ("bench URL --json no/such.json", "--json: no/such.json lies in a folder that does not exist"),
    ("capacity URL --start 0", "--start: '0' is below 1"), ("capacity URL --most 11M", "--most: '11M' is more than one run is built for"),
    ("capacity URL --start 5 --most 3", "--start: 5 is more than --most 3"),
    ("capacity URL --within close", "--within: 'close' is not a precision; write a percentage from 0.1% to 50%"),
    ("capacity URL --hold forever", "--hold: 'forever' never ends"), ("capacity URL -c 5", "No such option"),
    ("capacity URL --most 2 --start 1 --out /proc/none/there", "--out: /proc/none/there cannot be created"),
    ("runs none", "FOLDER: none does not exist"), ("runs run.db", "FOLDER: run.db is not a folder"), ("runs full --json no/x", "--json: no/x lies"),
    ("report none.db", "none.db: no such file"), ("report full", "full: is a folder"), ("report pipe", "pipe: is not a regular file"), ("report empty.db", "empty.db: is empty"),
    ("report text.db", "text.db: is not a run file (not SQLite)"), ("report damaged.db", "damaged.db: "),
    ("report foreign.db", "foreign.db: "), ("report loop.db --json -", "loop.db: "),
    ("report run.db --html no/such/page.html", "--html: no/such/page.html lies in a folder that does not exist"),
    ("report run.db --html .", "--html: . is a folder"), ("report run.db --html run.db", "--html: run.db is the run file itself"), ("report run.db --json foreign.db", "--json: foreign.db is a SQLite file"),
    ("report run.db --html a.html --json a.html", "--json and --html: both name a.html"),
    ("report run.db --html - --json -", "--json and --html: both go to standard output"),
    ("report run.db --html /dev/full", "--html: /dev/full cannot be written (No space left on device)"),
    ("report run.db --plots a-file", "--plots: a-file is not a folder"),
    ("report run.db --csv -", "--csv: several files are written"),
    ("report run.db --plots -", "--plots: several files are written"),
    ("report run.db --csv no/such/folder", "--csv: no/such/folder lies in a folder that does not exist"),
    ("report run.db --csv full", "--csv: full/samples.csv exists and is not of this run"),
    ("report run.db --plots full", "--plots: full/timeline.png exists and is not of this run"),
    ("report run.db --csv other", "--csv: other/phases.csv exists and is not of this run"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), LINES, ids=[words for words, _ in LINES])
def test_one_line_says_what_is_wrong_and_how_to_fix_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, line: str
) -> None:
    monkeypatch.chdir(folder)
    before = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    status = run_here([URL if word == "URL" else word for word in words.split()])
    out, err = capfd.readouterr()
    assert complaint(done_of(status, out, err)).startswith(line)
    assert {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()} == before


# From here on: errors that show only on the way to the first connect.


def refused(folder: Path, *arguments: str | Path) -> str:
    """The one line of a soak that is refused before the first connect, without a run file."""
    with serving() as server:
        done = here(folder, "soak", server.url, "-c", "10", *SHORT, "--hold", "0", *arguments)
        assert (server.accepts, server.requests) == (0, 0)
    assert not list(folder.glob("asyncli-*"))
    return complaint(done)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--source", "192.0.2.1"], "source 192.0.2.1 is not an address of this host"),
        (["http://nonesuch.invalid/", "--quiet"], "'nonesuch.invalid' cannot be resolved"),
        (["--server-pid", "4194304"], "--server-pid: no process 4194304"),
        (["--server-pidfile", "no/such.pid"], "no/such.pid: cannot be read"),
        (["--server-pidfile", "a.pid"], "a.pid: holds no process id"),
        (["--server-pidfile", "stale.pid"], "no process 4194304"),
        (["--server-name", "no-such-server"], "--server-name no-such-server: no such process"),
        (["--out", "run.db", "--json", "run.db", "--quiet"], "run.db is the run file itself"),
        (["--out", "mine.db"], "exists already and is never overwritten"),
        (["--out", "no/such/run.db"], "there is no folder no/such"),
    ],
)  # fmt: skip
def test_missing_resource_is_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "a.pid").write_text("nginx\n")
    (tmp_path / "stale.pid").write_text("4194304\n")
    (tmp_path / "mine.db").write_bytes(b"SQLite format 3\0")
    assert line in refused(tmp_path, *arguments)
    assert not (tmp_path / "run.db").exists()
    assert (tmp_path / "mine.db").read_bytes() == b"SQLite format 3\0"


def test_demo_refuses_its_run_file_before_starting_a_server(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    assert "exists already" in complaint(here(tmp_path, "demo", "--server", "builtin", "-c", "10", "--out", "run.db"))


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n", "404"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html>\n</html>", "not a status page"),
    ],
    ids=["404", "html"],
)  # fmt: skip
def test_invalid_status_page_is_one_line(tmp_path: Path, answer: bytes, what: str) -> None:
    with serving(answer=answer) as status:
        line = refused(tmp_path, "--status-url", status.url)
    assert status.url in line
    assert what in line


# Too many connections for this host: the preflight refuses, with a line per shortfall.


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-c", "1M", "--source", "127.0.0.1", "--workers", "200"], r"local ports: .*; 1 source x 1 destination x ([\d,]+) ports = \1;"),
        (["-c", "200k", "--workers", "1"], r"descriptors per process .*200,000 connections in 1 process"),
    ],
    ids=["ports", "descriptors"],
)
def test_too_many_connections_are_refused_with_the_calculation_and_remedy(tmp_path: Path, arguments: list[str], what: str) -> None:
    with serving() as server:
        done = here(tmp_path, "soak", server.url, *SHORT, *arguments, "--quiet")
        assert (server.accepts, server.requests) == (0, 0)
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert any(re.search(what, line) for line in lines), done.err
    assert all(re.match(r"asyncli: .+; remedy: .+", line) for line in lines), "each shortfall has its remedy"
    assert "--force" in lines[-1]
    assert list(tmp_path.glob("*.db*")) == []


def test_force_overrides_a_refusal(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most > 1_000_000:
        pytest.skip("this host allows more descriptors than a test should ask for")
    # More than the limit of a process, but at one connect an hour only the first is opened.
    asked = ["-c", str(most + 1), "--workers", "1", "--ramp", "1/1h", *SHORT, "--out", "run.db"]
    with serving() as server:
        assert here(tmp_path, "soak", server.url, *asked).status == 2
        assert server.accepts == 0
        with Program(tmp_path, "soak", server.url, *asked, "--force") as program:
            program.until(lambda: server.accepts == 1, "the first connection, forced")
            program.signal()
            done = program.wait()
    assert (done.status, done.err) == (4, "")
    assert "preflight_nofile" in codes(report(tmp_path, "run.db"))


@pytest.mark.parametrize(
    ("asked", "key", "value"),
    [
        ("--server nchan --protocol sse -c 10", "silence_s", LONGEST_S), ("--server nchan --protocol sse --silence 5s", "silence_s", 5.0),
        # A short hold hears from each connection, unless that takes more heartbeats than the default's.
        ("-c 10k --hold 20s", "keepalive_s", 20), ("-c 10k", "keepalive_s", 60), ("-c 10k --hold forever", "keepalive_s", 60),
        ("-c 10k --hold 20s -k 40", "keepalive_s", 40), ("-c 10 --hold 1s", "keepalive_s", 2), ("-c 100k --hold 20s", "keepalive_s", 60),
    ],
)  # fmt: skip
def test_defaults_of_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, key: str, value: float) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr("asyncli.cli.soak_terminal.run_soak", lambda plan, *_, **__: plans.append(plan) or 0)
    assert here(tmp_path, "demo", *asked.split()).status == 0
    assert [getattr(plan, key) for plan in plans] == [pytest.approx(value, abs=0.1)]
