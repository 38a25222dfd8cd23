"""The runs of a folder as a page: what is listed, what is read of it, and what a name can reach."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from programs import DEADLINE_S, here
from recording import new_run, write_run
from synthetic_run import a_run
from test_page_server import AS_OWNER, TOKEN, status
from yarl import URL

from asyncli.live import open_runs, run_list
from asyncli.live.folder_server import FolderServer
from asyncli.live.run_list import RunList
from asyncli.model.records import Deaths, Phase, Tick


@contextlib.asynccontextmanager
async def a_folder(folder: Path, **how: Any) -> AsyncIterator[tuple[FolderServer, aiohttp.ClientSession]]:
    options = {"host": "127.0.0.1", "port": 0, "token": TOKEN, "must_have_token": False, "tls": None, "log": lambda line: None}
    server = FolderServer(folder, **(options | how))
    await server.read()
    await server.listen()
    running = asyncio.create_task(server.run())
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:
            yield server, client
    finally:
        running.cancel()
        await asyncio.wait({running})
        await server.close()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(a_run(500, hold_s=20.0), tmp_path_factory.mktemp("run") / "run.db")


async def fetched(client: aiohttp.ClientSession, path: str) -> Any:
    async with client.get(path) as answer:
        return await answer.json()


async def test_each_file_is_one_line_newest_first(ended: Path, tmp_path: Path) -> None:
    shutil.copy(ended, tmp_path / "older.db")
    lossy = a_run(500, hold_s=20.0, fail_if=("lost > 0.1%",))
    lossy.ticks[20][1].deaths["reset"] = Deaths(count=50)
    write_run(lossy, tmp_path / "newer.db", started_s=1_750_000_000.0)
    write_run(a_run(300, hold_s=20.0, complete=False), tmp_path / "cut.db", started_s=1_745_000_000.0)
    os.utime(tmp_path / "cut.db", (1e9, 1e9))
    (tmp_path / "no.db").write_text("no run")
    (tmp_path / "notes.txt").write_text("no run either, and not listed")
    (tmp_path / "empty.db").touch()
    os.utime(tmp_path / "empty.db", (1e9, 1e9))
    damaged = (tmp_path / "older.db").read_bytes()
    (tmp_path / "damaged.db").write_bytes(damaged[: len(damaged) // 3])
    os.mkfifo(tmp_path / "pipe.db")
    async with a_folder(tmp_path) as (_, client):
        runs = (await fetched(client, "/runs"))["runs"]
        by_name = {run["name"]: run for run in runs}
        assert {name: run["state"] for name, run in by_name.items()} == {
            "older.db": "ended",
            "newer.db": "ended",
            "cut.db": "cut",
            "no.db": "broken",
            "empty.db": "broken",
            "damaged.db": "broken",
        }
        assert [run["began_s"] for run in runs] == sorted((run["began_s"] for run in runs), reverse=True)
        assert (by_name["newer.db"]["connections"], by_name["newer.db"]["began_s"]) == (500, 1_750_000_000.0)
        for name in ("no.db", "empty.db", "damaged.db"):
            assert by_name[name]["why"]
            assert "\n" not in by_name[name]["why"]
            # There is nothing to be named in a list.
            assert "; name " not in by_name[name]["why"]
            assert await status(client, "GET", f"/run/{name}/history") == 409
        # Verdicts come when they are computed; a run that was cut off has none.
        async with asyncio.timeout(DEADLINE_S):
            while not all(run["verdict"] for run in runs if run["state"] == "ended"):
                await asyncio.sleep(0.2)
                runs = (await fetched(client, "/runs"))["runs"]
        assert {run["name"]: run["verdict"].partition(",")[0] for run in runs if run["verdict"]} == {"older.db": "passed", "newer.db": "failed"}
        async with client.get("/metrics") as answer:
            text = await answer.text()
        for state, count in {"running": 0, "ended": 2, "cut": 1, "broken": 3}.items():
            assert f'asyncli_run_files{{state="{state}"}} {count}.0' in text


async def test_a_run_has_the_page_that_it_has_alone(ended: Path, tmp_path: Path) -> None:
    names = [b"a run.db", b"bad\xff.db", b'a "b"\nc.db', "läuft?#%.db".encode()]
    for name in names:
        shutil.copy(ended, tmp_path / os.fsdecode(name))
    async with a_folder(tmp_path) as (_, client):
        runs = (await fetched(client, "/runs"))["runs"]
        assert len(runs) == len(names)
        for run in runs:
            async with client.get(URL(f"/{run['href']}history", encoded=True)) as answer:
                document = await answer.json()
            assert document["run"]["file"] == run["name"]
            # Without the last slash its own links would be another run's.
            bare = URL(f"/{run['href'].rstrip('/')}?from=a%26b%0D%0Ac", encoded=True)
            async with client.get(bare, allow_redirects=False) as answer:
                assert answer.status == 301
                assert bare.join(URL(answer.headers["Location"], encoded=True)).raw_path_qs == f"/{run['href']}?from=a%26b%0D%0Ac"
            assert document["in_folder"] is True
            assert document["can_stop"] is False
            assert document["state"]["over"] is True
        # Nothing is ended or marked without the token, and a run that is over is not marked.
        assert await status(client, "POST", "/run/a%20run.db/mark", data="now") == 401
        assert await status(client, "POST", "/run/a%20run.db/mark", data="now", headers=AS_OWNER) == 409
        assert await status(client, "POST", "/run/a%20run.db/stop", headers=AS_OWNER) == 409


@pytest.mark.parametrize(
    "name",
    [
        "..%2foutside.db", "%2e%2e%2foutside.db", "..", "%2e%2e", ".", "%2e", "%00", "x%00.db", "%2fetc%2fpasswd", "folder%2finside.db", "folder",
        "notes.txt", "run.db%2f..%2fnotes.txt", "%ff%2f..%2foutside.db", "nothing.db",
    ],
)  # fmt: skip
async def test_no_name_leads_out_of_the_folder(ended: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs"
    (folder / "folder").mkdir(parents=True)
    shutil.copy(ended, tmp_path / "outside.db")
    shutil.copy(ended, folder / "folder" / "inside.db")
    shutil.copy(ended, folder / "run.db")
    (folder / "notes.txt").write_text("secret")
    async with a_folder(folder) as (server, _):
        for what in ("history", "metrics", "events", "download/report.json"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET /run/{name}/{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert b" 404 " in answer.partition(b"\r\n")[0]
            assert b"secret" not in answer
        assert len(server.open_runs) == 0


async def test_beyond_loopback_names_are_for_those_with_the_token(ended: Path, tmp_path: Path) -> None:
    shutil.copy(ended, tmp_path / "run.db")
    async with a_folder(tmp_path, must_have_token=True) as (_, client):
        # A page is the same whether there is such a run or not.
        for path in ("/", "/run/run.db/", "/run/no-such.db/"):
            assert await status(client, "GET", path) == 200
        for path in ("/runs", "/events", "/metrics", "/run/run.db/history", "/run/no-such.db/history"):
            assert await status(client, "GET", path) == 401
        assert await status(client, "GET", "/run/run.db/history", headers=AS_OWNER) == 200
        assert await status(client, "GET", "/runs", headers=AS_OWNER | {"Host": "evil.example"}) == 200
    async with a_folder(tmp_path) as (_, client):
        assert await status(client, "GET", "/runs", headers={"Host": "evil.example"}) == 403


async def test_a_run_that_begins_meanwhile_appears_and_one_that_ends_says_so(tmp_path: Path) -> None:
    async with a_folder(tmp_path) as (_, client), client.get("/events") as stream:

        async def next_list() -> list[dict[str, Any]]:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    line = (await stream.content.readline()).decode()
                    if line.startswith("data: ") and "runs" in (document := json.loads(line.removeprefix("data: "))):
                        return list(document["runs"])

        async def until_states(*wanted: str) -> None:
            while [run["state"] for run in await next_list()] != list(wanted):
                pass

        assert await next_list() == []
        writer = new_run(tmp_path / "run.db", started_s=time.time())
        writer.phase(Phase("ramp", 0.0))
        writer.tick(1.0, Tick(second=1, held=10, opened=10))
        await until_states("running")
        writer.close(True)
        await until_states("ended")
        (tmp_path / "run.db").unlink()
        await until_states()


async def test_histories_are_let_go_when_nobody_looks(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_runs, "MOST_OPEN", 2)
    for number in range(3):
        shutil.copy(ended, tmp_path / f"{number}.db")
    async with a_folder(tmp_path) as (server, client):
        assert len(server.open_runs) == 0
        # Those that nobody reads make room.
        for number in range(3):
            assert await status(client, "GET", f"/run/{number}.db/history") == 200
            assert len(server.open_runs) <= 2
        async with client.get("/run/0.db/events"), client.get("/run/1.db/events"):
            async with asyncio.timeout(DEADLINE_S):
                while await status(client, "GET", "/run/2.db/history") != 503:
                    await asyncio.sleep(0.1)
        monkeypatch.setattr(open_runs, "UNWATCHED_S", 0.5)
        async with asyncio.timeout(DEADLINE_S):
            while len(server.open_runs):
                await asyncio.sleep(0.1)
        # And who comes back gets the whole run again.
        assert len((await fetched(client, "/run/0.db/history"))["recent"]["rows"]) > 20


async def test_a_run_that_cannot_be_followed_is_read_again(ended: Path, tmp_path: Path) -> None:
    shutil.copy(ended, tmp_path / "run.db")
    said: list[str] = []
    async with a_folder(tmp_path, log=said.append) as (server, client):
        await fetched(client, "/run/run.db/history")
        page = await server.open_runs.page_of(tmp_path / "run.db")

        def fail() -> None:
            raise RuntimeError("of the test")

        page.feed.read = fail  # type: ignore[assignment]
        async with client.get("/run/run.db/events") as stream, asyncio.timeout(DEADLINE_S):
            # The stream ends, so that the page asks again.
            await stream.content.read()
        assert ["RuntimeError" in line for line in said] == [True]
        assert await server.open_runs.page_of(tmp_path / "run.db") is not page
        assert len((await fetched(client, "/run/run.db/history"))["recent"]["rows"]) > 20


async def test_another_file_of_the_same_name_is_another_run(ended: Path, tmp_path: Path) -> None:
    shutil.copy(ended, tmp_path / "run.db")
    async with a_folder(tmp_path) as (_, client):
        assert (await fetched(client, "/run/run.db/history"))["state"]["asked"] == 500
        write_run(a_run(300, hold_s=20.0), tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "run.db")
        assert (await fetched(client, "/run/run.db/history"))["state"]["asked"] == 300


def test_a_folder_of_a_thousand_files_is_listed_in_turns(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "MOST_LISTED", 990)
    for number in range(500):
        (tmp_path / f"{number}.db").write_text("no run")
        os.link(ended, tmp_path / f"run-{number}.db")
    runs = RunList(tmp_path)
    turns = 0
    begun_s = time.process_time()
    states = {"waiting"}
    while "waiting" in states:
        runs.refresh()
        turns += 1
        states = {run["state"] for run in runs.document()["runs"]}
    assert states == {"ended", "broken"}
    assert runs.left_out == 10
    assert len(runs.document()["runs"]) == 990
    first_s = time.process_time() - begun_s
    # Nothing is read twice: to look again costs a fraction.
    begun_s = time.process_time()
    version = runs.version
    runs.refresh()
    assert runs.version == version
    assert time.process_time() - begun_s < max(0.3, first_s / 3)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    cases = {
        ("no-such-folder", "--web"): "no-such-folder:",
        ("folder",): "folder: is",
        (): "RUN.db",
        ("folder", "--web", "--once"): "--web: leave",
    }
    for words, begins in cases.items():
        done = here(tmp_path, "watch", *words)
        assert done.status == 2
        assert done.err.count("\n") == 1
        assert begins in done.err


async def test_an_empty_folder_and_one_that_vanishes_are_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    async with a_folder(folder) as (_, client):
        document = await fetched(client, "/runs")
        assert (document["runs"], document["problem"]) == ([], "")
        folder.rmdir()
        async with asyncio.timeout(DEADLINE_S):
            # It is listed once a second at most.
            while not (document := await fetched(client, "/runs"))["problem"]:
                await asyncio.sleep(0.1)
        assert "be listed" in document["problem"]
        assert "\n" not in document["problem"]
