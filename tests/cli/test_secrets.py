"""Headers may be secrets: their values go only to the server and to the run file, which only its owner can read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from programs import SHORT, Program, contents, held, here, serving

from asyncli.engine.generator import Generator
from asyncli.engine.shard import build_shard
from asyncli.environment import probe_host
from asyncli.lab.builtin import LabBuiltin
from asyncli.model.plan import Plan
from asyncli.store.reader import read_run

SECRET = "tiger-4711"
HEADER = f"Authorization: Bearer {SECRET}"
#: Only in the environment.
HIDDEN = f"X-Hidden: {SECRET}-too"


def test_header_values_are_only_in_the_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            started = set(program.processes()) - {program.pid}
            assert started == {*program.hosts(), *program.workers()}
            assert len(started) == 3
            # The program's command line has what its user wrote; its children's command lines do not.
            assert [pid for pid in program.processes() if SECRET.encode() in contents(f"/proc/{pid}/cmdline")] == [program.pid]
            assert not [pid for pid in started if SECRET.encode() in contents(f"/proc/{pid}/environ")]
            program.signal()
            assert program.wait().status == 0
        assert HEADER.encode() in server.heard
        assert HIDDEN.encode() in server.heard
    assert set(read_run(tmp_path / "run.db").plan.headers) == {HEADER, HIDDEN}
    assert stat.S_IMODE((tmp_path / "run.db").stat().st_mode) == 0o600
    assert "ASYNCLI_VERDICT=" in (tmp_path / "env.txt").read_text()
    for name in ("run.json", "finished.json"):
        assert sorted(json.loads((tmp_path / name).read_text())["plan"]["headers"]) == ["Authorization: ***", "X-Hidden: ***"]
    for words in (("report", "run.db"), ("report", "run.db", "--csv", "tables"), ("runs",)):
        (tmp_path / f"{len(words)}.txt").write_text("".join(here(tmp_path, *words)[1:]))
    told = [one for one in tmp_path.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]
    assert told == [tmp_path / "run.db"]


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
    how = (*SHORT, "--hold", "0.1s") if command == "soak" else ("-d", "0.2s")
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
        (("--status-url", f"http://me:{SECRET}@127.0.0.1/"), "", "--status-url: 'http://***@127.0.0.1/'"),
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
