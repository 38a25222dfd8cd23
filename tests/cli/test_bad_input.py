"""Bad input of every kind: one clear line on standard error, exit status 2, nothing else, and nothing sent."""

from __future__ import annotations

import re
import resource
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from programs import SHORT, Done, Program, codes, report, run, serving

from asyncli.cli.main import run as run_here

URL = "http://127.0.0.1:1/"


def complaint(done: Done) -> str:
    """The one line: what, where, and after a semicolon how to mend it (or, for a flag, where the flags are listed)."""
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert re.match(r"asyncli: \S", lines[0])
    assert "Traceback" not in done.err
    assert re.search(r"; \S|\('asyncli.*--help' lists", lines[0]), "it does not say how to mend it"
    return lines[0]


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> Done:
    """The command line in this process: for what is refused before any loop, socket or process."""
    status = run_here(arguments)
    out, err = capfd.readouterr()
    return Done(status, out, err)


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        (["127.0.0.1:8080"], "URL", "no scheme"),
        (["ftp://127.0.0.1/"], "URL", "unknown scheme"),
        (["https://127.0.0.1/"], "URL", "https is not built yet"),
        (["http://127.0.0.1/a b"], "URL", "white space"),
        (["http://127.0.0.1/a\nb"], "URL", "white space"),
        (["http://127.0.0.1/\tb"], "URL", "white space"),
        (["http://127.0.0.1:65536/"], "URL", "not a port"),
        (["http://127.0.0.1:0/"], "URL", "not a port"),
        (["http://127.0.0.1:-1/"], "URL", "not a port"),
        (["http://127.0.0.1:x/"], "URL", "not a port"),
        (["http:///path"], "URL", "no host"),
        (["http://[::1/"], "URL", "not a URL"),
        ([URL, "http://"], "URL", "no host"),
        ([""], "URL", "not a URL"),
        (["-c", "5"], "URL", "no URL"),
        ([URL, "--interval", "0"], "--interval", "zero"),
        ([URL, "--interval", "-1ms"], "--interval", "not a duration"),
        ([URL, "--interval", "soon"], "--interval", "not a duration"),
        ([URL, "--batch", "0"], "--batch", "below 1"),
        ([URL, "--ramp", "0/10ms"], "--ramp", "below 1"),
        ([URL, "--ramp", "10/0s"], "--ramp", "zero interval"),
        ([URL, "--ramp", "10"], "--ramp", "not a pace"),
        ([URL, "-c", "0"], "--connections", "below 1"),
        ([URL, "-c", "-5"], "--connections", "not a count"),
        ([URL, "-c", "many"], "--connections", "not a count"),
        ([URL, "-c", "1.5"], "--connections", "not a whole number"),
        ([URL, "-c", ""], "--connections", "not a count"),
        ([URL, "-c", "11M"], "--connections", "at most 10M"),
        ([URL, "-k", "1.9"], "--keepalive", "below 2 s"),
        ([URL, "-k", "0"], "--keepalive", "below 2 s"),
        ([URL, "-k", "-60"], "--keepalive", "not a duration"),
        ([URL, "--hold", "long"], "--hold", "not a duration"),
        (["--hold", "until", "07:00", URL], "--hold", "write both in quotes, for example 'until 07:00'"),
        ([URL, "--hold", "until"], "--hold", "write both in quotes"),
        ([URL, "--abort"], "--abort", "there is no limit that it could stop at"),
        ([], "URL", "no URL given"),
        ([URL, "--timeout", "0"], "--timeout", "zero"),
        ([URL, "--workers", "0"], "--workers", "not a number of processes"),
        ([URL, "--workers", "two"], "--workers", "not a number of processes"),
        ([URL, "--source", "localhost"], "--source", "not an IP address"),
        ([URL, "--server-pid", "0"], "--server-pid", "not a process id"),
        ([URL, "--server-pid", "nginx"], "--server-pid", "not a process id"),
        ([URL, "--server-pid", "1", "--server-name", "nginx"], "--server-pid and --server-name", "name the server once"),
        ([URL, "--server-pidfile", "a", "--server-name", "b"], "--server-pidfile and --server-name", "name the server once"),
        ([URL, "--status-url", "127.0.0.1/status"], "--status-url", "no scheme"),
        ([URL, "--status-url", "https://127.0.0.1/status"], "--status-url", "https is not built yet"),
        ([URL, "--method", "DELETE"], "--method", "not a method"),
        ([URL, "--header", "no colon"], "--header", "not a header"),
        ([URL, "--header", "A: b\r\nC: d"], "--header", "control"),
        ([URL, "--header", "Host: a", "--header", "host: b"], "--header", "'host: b' is a second Host"),
        ([URL, "--first-beat", "later"], "--first-beat", "not a first beat"),
        ([URL, "--plateaus", "5", "-c", "3"], "--plateaus", "more plateaus"),
        ([URL, "--seed", "x"], "--seed", "not a seed"),
        ([URL, "--plan", "no/such.toml"], "no/such.toml", "cannot be read"),
        ([URL, "--plan", "/"], "/", "cannot be read"),
        ([URL, "--plan", "nonesuch"], "nonesuch", "cannot be read"),
        ([URL, "--connectoins", "5"], "asyncli soak", "No such option"),
        ([URL, "-z"], "asyncli soak", "No such option"),
        ([URL, "-c"], "asyncli soak", "requires an argument"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_one_line(
    capfd: pytest.CaptureFixture[str], arguments: list[str], where: str, what: str, quiet: tuple[str, ...]
) -> None:
    line = complaint(said(capfd, "soak", *quiet, *arguments))
    assert where in line
    assert what in line


@pytest.mark.parametrize(
    ("command", "what"),
    [("soak", "no URL"), ("check", "no URL"), ("capacity", "no URL"), ("bench", "no URL"), ("report", "'RUN.db'"), ("watch", "'RUN.db'"), ("compare", "name two")],
)
def test_what_is_missing_is_named(capfd: pytest.CaptureFixture[str], command: str, what: str) -> None:
    assert what in complaint(said(capfd, command))


@pytest.mark.parametrize("command", ["soak", "check"])
def test_every_command_that_takes_a_plan_refuses_alike(capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert "no scheme" in complaint(said(capfd, command, "localhost"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("conections = 5", "unknown key 'conections'; did you mean 'connections'"),
        ("[soak]\nconnections = 5", "unknown key 'soak'"),
        ("connections = ", "not TOML"),
        ("connections = 0", "connections: 0 is below 1"),
        ("connections = true", "connections: True is not a count"),
        ("interval = 0", "interval: 0 is zero"),
        ("interval = []", "interval: [] is not a duration"),
        ("keepalive = 1", "keepalive: 1 is below 2 s"),
        ("reopen = 'yes'", "reopen: 'yes' is neither true nor false"),
        ("urls = 5", "urls: this int is not a text"),
        ("header = [1]", "header: this list is not a text"),
        ("connections = nan", "not TOML|not a whole number"),
        ("connections = inf", "not a whole number"),
        ("\x00", "not TOML"),
    ],
)
def test_a_wrong_plan_file_is_one_line_with_its_name_and_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    path = tmp_path / "plan{0}.toml"
    path.write_text(text)
    line = complaint(said(capfd, "soak", URL, "--plan", str(path)))
    assert str(path) in line
    assert any(part in line for part in what.split("|"))


def test_a_plan_file_that_is_not_text_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not TOML" in complaint(said(capfd, "soak", URL, "--plan", str(path)))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["soack", URL], "did you mean 'soak'"),
        (["reprot", "run.db"], "did you mean 'report'"),
        (["chek"], "did you mean 'check'"),
        (["frobnicate"], "has no scheme"),
        (["--frobnicate"], "No such option"),
        (["lab", "apache"], "unknown lab server 'apache'"),
        (["lab", "nginx", "--port", "65536"], "not a port"),
        (["lab", "nginx", "-c", "0"], "below 1"),
        (["demo", "--server", "apache"], "'apache' is not one of"),
        (["demo", "-c", "0"], "--connections"),
        (["report", "a", "b"], "unexpected extra argument"),
    ],
)
def test_what_is_no_command_is_one_line(capfd: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    assert what in complaint(said(capfd, *arguments))


def test_the_original_usage_complains_alike(capfd: pytest.CaptureFixture[str]) -> None:
    assert "--connections" in complaint(said(capfd, "-c", "0", "-k", "60", URL))
    assert "no scheme" in complaint(said(capfd, "-c", "5", "localhost"))


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (key, value)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("<html>" * 100), "not SQLite"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16), "damaged"),
        (foreign_database, "of another program"),
        (lambda path: path.symlink_to(path), "cannot be read|no such file"),
    ],
    ids=["missing", "folder", "empty", "text", "damaged", "foreign", "loop"],
)
def test_report_of_what_is_no_run_file_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], make: Any, what: str
) -> None:
    path = tmp_path / "run.db"
    make(path)
    for arguments in ([], ["--json", "-"]):
        line = complaint(said(capfd, "report", str(path), *arguments))
        assert str(path) in line
        assert any(part in line for part in what.split("|"))


# From here on: what is only found out on the way to the first connect.


def refused(folder: Path, *arguments: str | Path) -> str:
    """Refused before the first connect: the one line; no run file was begun."""
    with serving() as server:
        done = run(folder, "soak", server.url, "-c", "10", *SHORT, "--hold", "0", *arguments)
        assert (server.accepts, server.requests) == (0, 0)
    assert not list(folder.glob("asyncli-*"))
    return complaint(done)


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--source", "192.0.2.1"], "source 192.0.2.1 is not an address of this host"),
        (["--source", "2001:db8::1"], "source 2001:db8::1 is not an address of this host"),
        (["http://nonesuch.invalid/"], "'nonesuch.invalid' cannot be resolved"),
        (["--server-pid", "4194304"], "no process 4194304"),
        (["--server-pidfile", "no/such.pid"], "no/such.pid: cannot be read"),
        (["--server-name", "no-such-server"], "no-such-server: no such process"),
        (["--json", "no/such/summary.json"], "--json: no/such/summary.json lies in a folder that does not exist"),
        (["--json", "."], "--json: . is a folder"),
        (["--out", "run.db", "--json", "run.db"], "run.db is the run file itself"),
        (["--out", "no/such/run.db"], "there is no folder no/such"),
    ],
)  # fmt: skip
def test_what_this_host_has_not_is_one_line(tmp_path: Path, arguments: list[str], what: str, quiet: tuple[str, ...]) -> None:
    assert what in refused(tmp_path, *arguments, *quiet)
    assert not (tmp_path / "run.db").exists()


def test_a_pidfile_without_a_number_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.pid").write_text("nginx\n")
    assert "holds no process id" in refused(tmp_path, "--server-pidfile", "a.pid")


@pytest.mark.parametrize("content", [b"", b"something of mine\n", b"SQLite format 3\0"])
def test_an_existing_out_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    assert "exists already and is never overwritten" in refused(tmp_path, "--out", "run.db")
    assert path.read_bytes() == content
    assert not list(tmp_path.glob("run.db-*"))


@pytest.mark.parametrize(("out", "what"), [("run.db", "exists already"), ("no/such/run.db", "there is no folder no/such")])
def test_a_demo_refuses_its_run_file_before_it_starts_a_server(tmp_path: Path, out: str, what: str) -> None:
    (tmp_path / "run.db").touch()
    done = run(tmp_path, "demo", "--server", "builtin", "-c", "10", "--out", out)
    assert (done.status, done.out) == (2, "")
    assert what in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n", "answered 404 Not Found"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html>\n</html>", "no status page"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be read"),
    ],
    ids=["404", "html", "redirect", "ssh"],
)  # fmt: skip
def test_a_status_url_that_is_no_status_page_is_one_line(tmp_path: Path, answer: bytes, what: str) -> None:
    with serving(answer=answer) as status:
        line = refused(tmp_path, "--status-url", status.url)
    assert status.url in line
    assert what in line


def test_a_status_url_that_refuses_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "Connection refused" in refused(tmp_path, "--status-url", f"http://127.0.0.1:{port}/")


# Too much for this host: refused by the preflight, a line for each shortfall.

TOO_MANY = {
    "ports": (["-c", "1M", "--source", "127.0.0.1", "--workers", "200"], r"local ports: .*; 1 source x 1 destination x ([\d,]+) ports = \1;"),
    "descriptors": (["-c", "200k", "--workers", "1"], r"descriptors of one process: .*200,000 connections in 1 process"),
    "memory": (["-c", "10M"], r"memory .*per connection"),
}  # fmt: skip


@pytest.mark.parametrize("short_of", TOO_MANY)
def test_too_many_connections_are_refused_before_the_first_with_the_sum_and_the_mend(tmp_path: Path, short_of: str) -> None:
    arguments, what = TOO_MANY[short_of]
    with serving() as server:
        done = run(tmp_path, "soak", server.url, *SHORT, *arguments, "--quiet")
        assert (server.accepts, server.requests) == (0, 0)
    if short_of == "memory" and done.status != 2:
        pytest.skip("this host has memory for ten million connections")
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert any(re.search(what, line) for line in lines), done.err
    assert all(re.match(r"asyncli: .+; mend: .+", line) for line in lines), "each shortfall carries its mend"
    assert lines[-1].endswith(" (--force goes on all the same)")
    assert list(tmp_path.glob("*.db*")) == []


def test_force_goes_past_a_refusal(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most > 1_000_000:
        pytest.skip("this host allows more descriptors than a test should ask for")
    # More than one process may have; but at an hour from each to the next only the first is opened.
    asked = ["-c", str(most + 1), "--workers", "1", "--ramp", "1/1h", *SHORT, "--out", "run.db"]
    with serving() as server:
        assert run(tmp_path, "soak", server.url, *asked).status == 2
        assert server.accepts == 0
        with Program(tmp_path, "soak", server.url, *asked, "--force") as program:
            program.until(lambda: server.accepts == 1, "the first connection, forced")
            program.signal()
            done = program.wait()
    assert (done.status, done.err) == (99, "")
    assert "preflight_nofile" in codes(report(tmp_path, "run.db"))
