"""What is sent to the server may be secret: it goes only there, and until the run's end to a file that only its owner can read."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import signal
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from programs import SHORT, Program, contents, held, here, report, require_whole, serving, speaking
from recording import new_run

from asyncli.engine.generator import Generator
from asyncli.engine.shard import build_shard
from asyncli.environment import probe_host
from asyncli.lab.builtin import LabBuiltin
from asyncli.model.mqtt_values import parse_login_file
from asyncli.model.plan import KEYS, SECRET_FILES, Plan
from asyncli.model.private_values import REOPENED, SENT_FILES
from asyncli.model.records import Phase, Tick
from asyncli.model.values import parse_file, parse_header_file
from asyncli.store.reader import read_run

FILE_PARSERS = (parse_file, parse_header_file, parse_login_file)
SECRET = "tiger-4711"
HEADER = f"Authorization: Bearer {SECRET}"
#: Only in the environment.
HIDDEN = f"X-Hidden: {SECRET}-too"


def test_header_values_are_in_no_file_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner can read the file and SQLite's files beside it, from the first byte. No child process inherits a value."""
    monkeypatch.setenv("ASYNCLI_HEADERS", HIDDEN)
    monkeypatch.setenv("ASYNCLI_AGENT_TOKEN", f"token-{SECRET}")
    with serving() as server:
        soak = ("soak", server.url, "-c", "20", "--workers", "2", *SHORT, "--hold", "1h", "--header", HEADER)
        with Program(
            tmp_path, *soak, "--log-json", "--out", "run.db", "--json", "run.json", "--html", "run.html", "--junit", "run.xml",
            "--on-finish", "env > env.txt; cat > finished.json",
        ) as program:  # fmt: skip
            program.until(lambda: held(tmp_path) == 20, "all are held")
            modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.glob("run.db*")}
            assert modes == dict.fromkeys(("run.db", "run.db-wal", "run.db-shm"), 0o600)
            kept = tmp_path / ".run.db.secrets"
            assert [stat.S_IMODE(kept.stat().st_mode), SECRET.encode() in kept.read_bytes()] == [0o600, True]
            kept = tmp_path / ".run.db.secrets"
            assert (stat.S_IMODE(kept.stat().st_mode), SECRET.encode() in kept.read_bytes()) == (0o600, True)
            # One computes the cost so far: on a busy machine it may start later.
            started = program.until(lambda: len(found := set(program.processes()) - {program.pid}) == 4 and found, "all are started")
            assert started > {*program.hosts(), *program.workers()}
            # The program's command line has what its user wrote; its children's command lines do not.
            assert [pid for pid in program.processes() if SECRET.encode() in contents(f"/proc/{pid}/cmdline")] == [program.pid]
            assert not [pid for pid in started if SECRET.encode() in contents(f"/proc/{pid}/environ")]
            program.signal()
            require_whole(program.wait().status, report(tmp_path, "run.db"))
        assert HEADER.encode() in server.heard
        assert HIDDEN.encode() in server.heard
    assert set(read_run(tmp_path / "run.db").plan.headers) == {"Authorization: ***", "X-Hidden: ***"}
    assert stat.S_IMODE((tmp_path / "run.db").stat().st_mode) == 0o600
    assert "ASYNCLI_VERDICT=" in (tmp_path / "env.txt").read_text()
    for name in ("run.json", "finished.json"):
        assert sorted(json.loads((tmp_path / name).read_text())["plan"]["headers"]) == ["Authorization: ***", "X-Hidden: ***"]
    for words in (("report", "run.db"), ("report", "run.db", "--csv", "tables"), ("runs",)):
        (tmp_path / f"{len(words)}.txt").write_text("".join(here(tmp_path, *words)[1:]))
    told = [one for one in tmp_path.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]
    assert told == []


def killed(folder: Path, *arguments: str) -> None:
    """A soak of 5 connections that is killed in its hold, which lasts however late that is."""
    short = ("-c", "5", "--workers", "1", *SHORT, "--hold", "6s", "--out", "run.db")
    with Program(folder, "soak", *arguments, *short) as program:
        program.until(lambda: held(folder) == 5, "all are held")
        program.signal(signal.SIGKILL)
        program.until_gone()


def files_with_secrets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def refused_resume(folder: Path, *given: str) -> str:
    done = here(folder, "soak", "--resume", "run.db", *given)
    assert (done.status, len(done.err.splitlines())) == (2, 1), done.err
    assert SECRET not in done.err
    return done.err


def test_a_killed_run_sends_again_what_is_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, aside = tmp_path / ".run.db.secrets", tmp_path.with_suffix(".aside")
    with serving() as server:
        url = f"{server.url}?token={SECRET}"
        monkeypatch.setenv("ASYNCLI_HEADERS", HIDDEN)
        killed(tmp_path, url, "--header", HEADER)
        monkeypatch.delenv("ASYNCLI_HEADERS")
        assert files_with_secrets(tmp_path) == [beside]
        beside.rename(aside)
        assert {"--header-file", "URL"} <= {*refused_resume(tmp_path).split()}
        assert "--header-file" in refused_resume(tmp_path, url)
        assert "'Authorization: ***, X-Hidden: ***'" in refused_resume(tmp_path, url, "--header", HEADER)
        assert "started with" in refused_resume(tmp_path, "http://127.0.0.1:9/?x", "--header", HEADER, "--header", HIDDEN)
        assert "--send" in refused_resume(tmp_path, "--send", "x")
        aside.rename(beside)
        beside.chmod(0o644)
        assert "mode 600" in refused_resume(tmp_path)
        beside.chmod(0o600)
        server.heard = b""
        done = here(tmp_path, "soak", "--resume", "run.db", "--quiet")
        assert done.status == 4, done.err
        assert HEADER.encode() in server.heard
        assert HIDDEN.encode() in server.heard
        assert f"token={SECRET}".encode() in server.heard
    assert not beside.exists()
    assert files_with_secrets(tmp_path) == []


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)


def test_a_text_that_the_server_repeats_is_not_kept_and_is_given_again(tmp_path: Path) -> None:
    """A server that echoes, and then one that answers with an error which quotes what was sent."""
    with speaking(echo) as place:
        killed(tmp_path, f"tcp://{place}", "--send", rf"AUTH {SECRET}\r\n")
        (tmp_path / ".run.db.secrets").unlink()
        assert files_with_secrets(tmp_path) == []
        assert "--send BYTES" in refused_resume(tmp_path)
        done = here(tmp_path, "soak", "--resume", "run.db", "--send", rf"AUTH {SECRET}\r\n", "--json", "run.json", "--quiet")
        assert done.status == 4, done.err
        wrong = ("--send", rf"AUTH {SECRET}\r\n", "--expect", "+OK", "-c", "5", *SHORT, "--hold", "0.5", "--force")
        done = here(tmp_path, "soak", f"tcp://{place}", *wrong, "--out", "wrong.db", "--json", "wrong.json")
    assert SECRET not in done.out + done.err
    assert files_with_secrets(tmp_path) == []


#: How a server may repeat a text.
FORMS: tuple[Callable[[str], str], ...] = (
    str, str.upper, lambda text: quote(text, safe=""), lambda text: base64.b64encode(text.encode()).decode(), lambda text: text.encode().hex(),
)  # fmt: skip


async def repeats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It answers each line well, but its third with an error that repeats what it was sent, each connection in another form."""
    for number in itertools.count(1):
        token = (await reader.readline()).decode().strip().removeprefix("AUTH ")
        if not token:
            break
        form = FORMS[int(token.partition("+")[0].removeprefix("user")) % len(FORMS)]
        writer.write(b"+OK\r\n" if number < 3 else f"-ERR no {form(token)}\r\n".encode())
    writer.close()


def test_values_of_data_that_a_server_repeats_are_in_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    tokens = [f"user{number}+{SECRET}/{number}" for number in range(10)]
    (tmp_path / "rows.csv").write_text("token\n" + "".join(f"{token}\n" for token in tokens))
    asked = ("--send", r"AUTH {token}\r\n", "--expect", r"+OK\r\n", "--data", str(tmp_path / "rows.csv"))
    with speaking(repeats) as place:
        done = here(
            folder, "soak", f"tcp://{place}", *asked, "-c", "10", "-k", "2", *SHORT[:4], "--hold", "4", "--no-reopen",
            "--out", "run.db", "--json", "run.json", "--html", "run.html",
        )  # fmt: skip
    summary = json.loads((folder / "run.json").read_text())
    require_whole(done.status, summary, 99)
    broken = summary["protocol"]["broken"]
    # All ten are one reason.
    assert list(broken.values()) == [10], broken
    (folder / "printed.txt").write_text(done.out + done.err)
    for path in folder.iterdir():
        content = path.read_bytes().lower()
        assert not [token for token in tokens for form in FORMS if form(token).lower().encode() in content], path


def test_a_run_file_that_someone_changed_gets_no_secret(tmp_path: Path) -> None:
    """Its URL leads to the stranger, and the file with the secrets is still beside it."""
    with serving() as server:
        killed(tmp_path, server.url, "--header", HEADER)
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("UPDATE meta SET value = replace(value, ?, '127.0.0.1:9') WHERE key = 'plan'", (f"127.0.0.1:{server.port}",))
    connection.close()
    assert ".run.db.secrets" in refused_resume(tmp_path)


@pytest.mark.parametrize("page", [f"http://me:{SECRET}@127.0.0.1:1/", f"http://127.0.0.1:1/?token={SECRET}"])
def test_the_secret_of_the_status_page_is_asked_for_again(tmp_path: Path, page: str) -> None:
    plan = Plan(urls=("http://127.0.0.1:1/",), status_url=page, connections=1)
    writer = new_run(tmp_path / "run.db", plan)
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=1, opened=1))
    writer.close(False)
    assert files_with_secrets(tmp_path) == []
    assert "--status-url" in refused_resume(tmp_path)
    assert "Connection refused" in refused_resume(tmp_path, "--status-url", plan.status_url or "")


def test_what_asks_apache_for_its_page_is_no_secret(tmp_path: Path) -> None:
    plan = Plan(urls=("http://127.0.0.1:1/",), status_url="http://127.0.0.1:1/server-status?auto", connections=1)
    new_run(tmp_path / "run.db", plan).close(False)
    assert read_run(tmp_path / "run.db").plan.status_url == plan.status_url


def test_a_run_file_of_an_earlier_asyncli_is_resumed_with_the_secrets_in_it(tmp_path: Path) -> None:
    with serving() as server:
        killed(tmp_path, server.url, "--header", HEADER)
        (tmp_path / ".run.db.secrets").unlink()
        with sqlite3.connect(tmp_path / "run.db") as connection:
            connection.execute("UPDATE meta SET value = replace(value, 'Authorization: ***', ?) WHERE key = 'plan'", (HEADER,))
        connection.close()
        server.heard = b""
        done = here(tmp_path, "soak", "--resume", "run.db", "--quiet")
        assert done.status == 4, done.err
        assert HEADER.encode() in server.heard
    assert read_run(tmp_path / "run.db").plan.headers == ("Authorization: ***",)


@pytest.mark.parametrize("variable", ["ASYNCLI_HEADERS", "ASYNCLI_AGENT_TOKEN"])
async def test_process_started_by_a_notebook_inherits_no_secret(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, SECRET)
    async with LabBuiltin(20) as server:
        assert SECRET.encode() not in contents(f"/proc/{server.pid}/environ")
        plan = Plan(urls=(server.url,), connections=1)
        _, spread = await probe_host(plan)
        generator = Generator(build_shard(plan, spread))
        await generator.start()
        try:
            assert generator.pids
            assert not any(SECRET.encode() in contents(f"/proc/{pid}/environ") for pid in generator.pids)
        finally:
            await generator.close()
    assert os.environ[variable] == SECRET


def test_run_without_headers_has_ordinary_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with serving() as server:
            here(tmp_path, "soak", server.url, "-c", "1", *SHORT, "--hold", "0.1s", "--out", "run.db", "--quiet")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.db").stat().st_mode) == 0o644


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_headers_from_file_and_environment(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headers").write_text(f"{HEADER}\r\n\nX-B: 2\n")
    monkeypatch.setenv("ASYNCLI_HEADERS", "X-C: 3\nX-D: 4")
    how = (*SHORT, "--hold", "0.1s") if command == "soak" else ("-n", "5")
    with serving() as server:
        arguments = (command, server.url, "-c", "1", *how, "--header", "X-A: 1", "--header-file", "headers", "--json", "-")
        done = here(tmp_path, *arguments)
        for line in ("X-A: 1", HEADER, "X-B: 2", "X-C: 3", "X-D: 4"):
            assert f"\r\n{line}\r\n".encode() in server.heard, line
    names = [f"{one}: ***" for one in ("X-A", "Authorization", "X-B", "X-C", "X-D")]
    assert json.loads(done.out)["plan"]["headers"] == names


@pytest.mark.parametrize(
    ("arguments", "variable", "said"),
    [
        (("--header-file", "none"), "", "--header-file: 'none' "),
        (("--header-file", "/dev/zero"), "", "--header-file: '/dev/zero' "),
        (("--header-file", "bad"), "", "--header-file: 'bad': line 2: "),
        ((), f"Bearer {SECRET}", "$ASYNCLI_HEADERS: line 1: "),
        (("--header", f"Bearer {SECRET}"), "", "--header: "),
        (("--header", f"X-A: {SECRET}\x07"), "", "--header: "),
        (("--status-url", f"http://me:{SECRET}@127.0.0.1:1/"), "", "status page http://***@127.0.0.1:1/: "),
        (("--status-url", f"http://127.0.0.1:1/?token={SECRET}"), "", "status page http://127.0.0.1:1/?***: "),
        (("--agent", f"me:{SECRET}@127.0.0.1"), "", "--agent: '***@127.0.0.1'"),
        ((f"http://me:{SECRET}@[127.0.0.1/",), "", "URL: 'http://***@[127.0.0.1/'"),
    ],
)
def test_error_messages_show_no_secret(
    tmp_path: Path, arguments: tuple[str, ...], variable: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").write_text(f"X-A: 1\nBearer {SECRET}\n")
    monkeypatch.setenv("ASYNCLI_HEADERS", variable)
    done = here(tmp_path, "soak", "http://127.0.0.1:1/", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"asyncli: {said}")
    assert len(done.err.splitlines()) == 1
    assert SECRET not in done.err


@pytest.mark.parametrize("command", ["soak", "check", "demo"])
@pytest.mark.parametrize("key", SENT_FILES)
def test_a_plan_file_sends_no_file(tmp_path: Path, key: str, command: str) -> None:
    """The plan may be a stranger's, and so may its URL. No file is opened."""
    (tmp_path / "plan.toml").write_text(f'urls = ["http://127.0.0.1:1/"]\n{key} = "/dev/zero"\n')
    done = here(tmp_path, command, "--plan", "plan.toml")
    assert (done.status, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "plan.toml" in done.err
    assert f"--{key.replace('_', '-')} FILE" in done.err


def test_every_key_of_a_plan_that_names_a_file_is_known(tmp_path: Path) -> None:
    """Each key whose value is a path is either not sent, for a stated reason, or of the command line only."""
    not_sent = {"ca", "agent_ca", "server_pidfile"}
    assert {key for key, (_, parse) in (KEYS | SECRET_FILES).items() if parse in FILE_PARSERS} - not_sent == {*SENT_FILES}
    assert tuple(field for field in SENT_FILES if field in Plan.__struct_fields__ and field != "data") == REOPENED


@pytest.mark.parametrize(("field", "value"), [("agent_token_file", "token"), ("client_cert", "cert.pem"), ("client_key", "key.pem"), ("data", "rows.csv")])
def test_a_run_file_of_a_stranger_sends_no_file(tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / value).write_text("device,other\nsecret-of-this-host,x\n")
    others = {"agent_token_file": {"agent": "http://127.0.0.1:1"}, "client_key": {"client_cert": "cert.pem"}}.get(field, {})
    url = "https://127.0.0.1:1/" if field.startswith("client") else "http://127.0.0.1:1/{device}"
    plan = Plan(urls=(url,), connections=1, **{field: value, **others})  # type: ignore[arg-type]
    writer = new_run(tmp_path / "run.db", plan, environment={"data": {"rows": 1, "columns": ["device"], "sha256": "0" * 64}})
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=1, opened=1))
    writer.close(False)
    assert value in refused_resume(tmp_path)


WITH_TOKEN = f"http://h/?token={SECRET}"


@pytest.mark.parametrize(
    "words",
    [
        ["soak", f"http://h:99999/?token={SECRET}"], ["soak", f"ftp://h/?token={SECRET}"], [f"h/?token={SECRET}"],
        ["soak", f"http://h/?token={SECRET} b'c"], ["check", f"ws://me:{SECRET}@h/?token={SECRET}"],
        ["bench", f"http://h/{'a' * 90}:b?token={SECRET}", f"http://h:0/{'a' * 80}?token={SECRET}"], ["soak", f"h/?to=http://{SECRET}"],
        ["soak", "--hold", WITH_TOKEN, "http://h/"], ["soak", f"--connections={WITH_TOKEN}", "http://h/"], ["soak", "--agent", WITH_TOKEN, "http://h/"],
        ["demo", WITH_TOKEN], ["lab", WITH_TOKEN], ["explain", WITH_TOKEN], ["experiment", WITH_TOKEN], ["report", WITH_TOKEN],
        ["runs", WITH_TOKEN], ["compare", WITH_TOKEN, WITH_TOKEN], ["soak", "--plan", WITH_TOKEN], ["soak", "--plan", "plan.toml"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_command_line_is_told_without_the_query_of_its_url(tmp_path: Path, words: list[str]) -> None:
    """Also where the URL stands in place of another value or of a file, and from a plan file."""
    (tmp_path / "plan.toml").write_text(f'urls = ["http://h:abc/?token={SECRET}"]\n')
    done = here(tmp_path, *words)
    assert (done.status, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "?***" in done.err
    assert SECRET not in done.err
