"""Raw TCP, really soaked: bytes on an nginx, in the clear and over TLS, and connections that only listen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import fault_table
import pytest
from programs import SHORT, Client, Program, answered, codes, held, report, require_whole, run, speaking, until

from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit
from asyncli.model.errors import HostError

N = 40
#: A heartbeat of HTTP as bytes.
HEAD = ("--send", r"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "--expect", r"/^HTTP\/1\.1 200 /")


@pytest.mark.nginx
@pytest.mark.parametrize("tls", [False, True])
async def test_bytes_are_sent_and_answered(tmp_path: Path, tls: bool) -> None:
    async with choose("nginx", connections=N, tls=tls) as server:
        assert server.status_url is not None
        url = server.url.replace("https", "tls").replace("http", "tcp").rstrip("/")
        authority = [] if server.authority is None else ["--ca", server.authority]
        asked = ["soak", url, *SHORT, *HEAD, *authority, "--status-url", server.status_url, "-c", str(N), "-k", "4", "--hold", "4", "--out", "run.db", "--quiet"]
        done = await asyncio.to_thread(run, tmp_path, *asked)
    summary = report(tmp_path, "run.db")
    assert done.err == ""
    require_whole(done.status, summary)
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (N, 0)
    assert summary["heartbeats"]["answered"] == summary["heartbeats"]["sent"] > N
    # The rest of an answer comes beside its first line.
    assert summary["protocol"]["message_bytes"] == 0
    assert ("tls" in summary) == tls
    # Nobody says what the server counts as a request.
    assert summary["reconciliation"]["agrees"]


@pytest.mark.stores
@pytest.mark.parametrize("name", ["redis", "memcached"])
async def test_a_store_of_the_lab_holds_what_it_is_cut_for(name: str, tmp_path: Path) -> None:
    async with choose(name, connections=N) as server:
        assert server.label == f"{name}/{server.version}"
        keys = [word for key, value in server.plan_keys.items() for word in (f"--{key}", value)]
        asked = ["soak", server.url, *keys, *SHORT, "-c", str(N), "-k", "4", "--hold", "3", "--out", "run.db", "--quiet"]
        done = await asyncio.to_thread(run, tmp_path, *asked)
    summary = report(tmp_path, "run.db")
    assert (done.err, server.complaints) == ("", ())
    require_whole(done.status, summary)
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (N, 0)
    assert summary["heartbeats"]["answered"] == summary["heartbeats"]["sent"] >= N
    most = descriptor_limit() - 64
    with pytest.raises(HostError, match=f"-c {most}"):
        await choose(name, connections=most + 1).start()


@pytest.mark.stores
async def test_a_store_that_answers_with_errors_is_told_where_any_answer_is_right(tmp_path: Path) -> None:
    async with choose("redis", connections=N) as server:
        asked = ["soak", server.url, *SHORT, "--send", r"SET key{n} value\r\n", "-c", str(N), "-k", "2", "--hold", "6", "--out", "run.db", "--quiet"]
        soak = asyncio.create_task(asyncio.to_thread(run, tmp_path, *asked))
        await asyncio.to_thread(until, lambda: held(tmp_path) == N, "all are held")
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("tcp://").rstrip("/").split(":"))
        writer.write(b"CONFIG SET maxmemory 1\r\n")
        assert await reader.readline() == b"+OK\r\n"
        writer.close()
        await soak
    summary = report(tmp_path, "run.db")
    (told,) = [finding for finding in summary["findings"] if finding["code"] == "answers_look_like_errors"]
    assert (told["severity"], 0 < told["fields"]["count"] < told["fields"]["answered"]) == ("warning", True)
    fault_table.require_as_written("test_a_store_that_answers_with_errors_is_told_where_any_answer_is_right", summary)


@pytest.mark.stores
async def test_a_store_that_says_that_it_is_full(tmp_path: Path) -> None:
    """Its answer is none that --expect asks for, and no breach of its protocol."""
    async with choose("redis", connections=N) as server:
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("tcp://").rstrip("/").split(":"))
        # This connection is one of them.
        writer.write(b"CONFIG SET maxclients %d\r\n" % (N // 2 + 1))
        assert await reader.readline() == b"+OK\r\n"
        asked = ["soak", server.url, *SHORT, "--send", r"PING\r\n", "--expect", r"+PONG\r\n", "-c", str(N), "-k", "4", "--hold", "4", "--no-reopen"]
        await asyncio.to_thread(run, tmp_path, *asked, "--out", "run.db", "--quiet")
        writer.close()
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (N // 2, {"protocol_error": N // 2})
    fault_table.require_as_written("test_a_store_that_says_that_it_is_full", summary)
    (diagnosis,) = summary["diagnoses"]
    assert (str(N // 2) in diagnosis["remedy"], "full" in diagnosis["remedy"]) == (True, True)


@pytest.mark.stores
async def test_a_server_that_is_stopped_while_its_connections_only_listen(tmp_path: Path) -> None:
    """Its kernel keeps them all, and nothing is due on them: its processes' state alone tells."""
    async with choose("redis", connections=N) as server:
        asked = ["soak", server.url, *SHORT, "-c", str(N), "--hold", "7", "--out", "run.db", "--quiet"]
        soak = asyncio.create_task(asyncio.to_thread(run, tmp_path, *asked))
        await asyncio.to_thread(until, lambda: held(tmp_path) == N, "all are held")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            done = await soak
        finally:
            os.kill(server.pid, signal.SIGCONT)
    summary = report(tmp_path, "run.db")
    counts = summary["connections"]
    fault_table.require_as_written("test_a_server_that_is_stopped_while_its_connections_only_listen", summary)
    require_whole(done.status, summary, 99)
    assert (counts["held"], counts["not_heard"]) == (N, N)


def _kinds(lines: list[list[bytes]]) -> Client:
    """A server that after two answers of one kind answers as the heartbeat asks for; ``lines``: what came on each connection."""
    later = {b"FAIL\n": b"-ERR no\r\n", b"TELL\n": b"full\r\n", b"BAD\n": b"-NOAUTH\r\n", b"GOOD\n": b"+OK\r\n"}

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        lines.append(mine)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                number = len(mine)
                mine.append(line)
                early = number < 2 and line != b"BAD\n"
                writer.write(b"+OK %d\r\n" % number if early else later.get(line, b""))

    return client


@pytest.mark.parametrize(("send", "code"), [("FAIL", "answers_look_like_errors"), ("BAD", "answers_look_like_errors"), ("TELL", "answers_differ"), ("GOOD", "")])
def test_answers_of_another_kind_are_told_where_any_is_right(tmp_path: Path, send: str, code: str) -> None:
    lines: list[list[bytes]] = []
    asked = ("--send", rf"{send}\n", "-c", str(N), "--hold", "forever", "--out", "run.db", "--quiet")
    with speaking(_kinds(lines)) as at, Program(tmp_path, "soak", f"tcp://{at}", *SHORT, *asked) as program:
        # A heartbeat is sent once the one before was answered: whoever has sent three has heard the first two answers.
        program.until(lambda: answered(tmp_path) >= 3 * N and sum(len(mine) > 2 for mine in lines) == N, "there are answers of both kinds")
        program.signal()
        program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    told = [finding for finding in summary["findings"] if finding["code"].startswith(("answers_look", "answers_differ"))]
    assert [finding["code"] for finding in told] == [code] * bool(code)
    if code:
        answers = summary["heartbeats"]["answered"]
        assert told[0]["fields"]["count"] == (answers if send == "BAD" else answers - 2 * N)


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What it does is asked for by its greeting's answer: the first line."""
    writer.write(b"220 here\r\n")
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            if line.startswith(b"ECHO "):
                writer.write(line.removeprefix(b"ECHO "))
            while line == b"TICK\n":
                # It never reads again.
                writer.write(b"tick\n")
                await writer.drain()
                await asyncio.sleep(0.1)
            writer.write({b"PING\n": b"+PONG\r\n", b"WHO\n": b"-ERR who?\r\n"}.get(line, b""))
    writer.close()


@pytest.mark.parametrize(
    ("asked", "deaths", "failures", "said"),
    [
        (["--greeting", "/^220 /", "--send", r"PING\n", "--expect", r"+PONG\r\n"], {}, {}, {"heartbeats": 2 * N}),
        (["--greeting", "/^220 /", "--send", r"WHO\n", "--expect", r"+PONG\r\n"], {"protocol_error": N}, {}, {"broken": {r"b'-ERR who?\r\n' in place of b'+PONG\r\n'": N}}),
        (["--greeting", "/^220 /", "--send", r"ECHO {nonce}\n", "--expect", r"{nonce}\n"], {}, {}, {"heartbeats": 2 * N}),
        (["--greeting", "/^220 /", "--send", r"TICK\n"], {}, {}, {"heartbeats": 2 * N}),
        (["--greeting", "8 bytes", "--send", r"mute\n", "--timeout", "2"], {"heartbeat_timeout": N}, {}, {}),
        (["--greeting", "/^250 /", "--force"], {}, {"handshake_refused"}, {}),
        ([], {}, {}, {"heartbeats": 0}),
        (["--silence", "2"], {"heartbeat_timeout": N}, {}, {"heartbeats": 0}),
    ],
    ids=["answers", "another answer", "echoes", "speaks unasked", "no answer", "another greeting", "listens", "listens in vain"],
)  # fmt: skip
def test_what_a_server_does_with_bytes_is_told(tmp_path: Path, asked: list[str], deaths: dict[str, int], failures: set[str], said: dict[str, object]) -> None:
    with speaking(_client) as at:
        done = run(tmp_path, "soak", f"tcp://{at}", *SHORT, *asked, "-c", str(N), "-k", "4", "--hold", "4", "--no-reopen", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    counts, protocol = summary["connections"], summary["protocol"]
    assert (counts["deaths"], set(counts["failures"])) == (deaths, set(failures))
    assert done.err == ""
    assert protocol["broken"] == said.get("broken", {})
    if "heartbeats" in said:
        assert (summary["heartbeats"]["sent"] >= said["heartbeats"]) == (said["heartbeats"] != 0 or summary["heartbeats"]["sent"] == 0)
    untested = failures or {"WHO\\n", "mute\\n", "TICK\\n"} & {*asked}
    assert (summary["run"]["verdict"] == "untested") == bool(untested)
    if "TICK\\n" in asked:
        fault_table.require_as_written("test_what_a_server_does_with_bytes_is_told", summary)
    if asked == ["--silence", "2"]:
        assert [one["code"] for one in summary["diagnoses"]] == ["unheard"]
    if not asked:
        # They are held, and nobody knows more of them.
        assert "not_heard" in codes(summary)
        assert counts["held"] == N
