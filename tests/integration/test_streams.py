"""Event streams and endless answers, really soaked: on an nginx that holds them by itself, and on a server with every fault."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_table
import pytest
from programs import SHORT, Program, codes, held, publish, recorded, report, require_done, require_whole, run, speaking

from asyncli.lab import choose

N = 40


@pytest.mark.nchan
@pytest.mark.parametrize("tls", [False, True])
async def test_an_nginx_holds_streams_and_its_events_are_counted(tmp_path: Path, tls: bool) -> None:
    async with choose("nchan", connections=N, tls=tls, scheme="http") as server:
        assert server.status_url is not None
        page = server.status_url.replace("/nginx_status", "/publish")
        authority = [] if server.authority is None else ["--ca", server.authority]
        asked = ["soak", server.url, *SHORT, *authority, "--protocol", "sse", "--status-url", server.status_url, "-c", str(N), "--hold", "forever", "--out", "run.db", "--quiet"]
        with Program(tmp_path, *asked) as program:
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == N, "all are held")
            for text in (b"five!", b"two\nlines"):
                await asyncio.to_thread(publish, page, text)
            await asyncio.to_thread(program.until, lambda: heard(tmp_path) == 2 * N, "each has heard both")
            # It ends the streams of all who listen to what is no more.
            await asyncio.to_thread(publish, page, None)
            await asyncio.to_thread(program.until, lambda: lost(tmp_path) == N == held(tmp_path), "all are there again")
            program.signal()
            done = await asyncio.to_thread(program.wait)
    assert (done.err, server.complaints) == ("", ())
    summary = report(tmp_path, "run.db")
    counts, protocol = summary["connections"], summary["protocol"]
    assert (counts["opened"], counts["held"], counts["deaths"], counts["failures"]) == (2 * N, N, {"closed_idle": N}, {})
    assert (protocol["name"], protocol["messages"], protocol["message_bytes"], protocol["refused"], protocol["broken"]) == ("sse", 2 * N, 14 * N, {}, {})
    assert ("tls" in summary) == tls
    assert summary["reconciliation"]["server_active"] == N
    # Three requests to publish were not ours.
    assert summary["reconciliation"]["accepts_delta"] == 2 * N + 3


def heard(folder: Path) -> int:
    """Events, as recorded so far."""
    seen = recorded(folder / "run.db")
    return sum(tick.protocol.messages for _, tick in seen.ticks if tick.protocol is not None) if seen is not None else 0


def lost(folder: Path) -> int:
    seen = recorded(folder / "run.db")
    return sum(deaths.count for _, tick in seen.ticks for deaths in tick.deaths.values()) if seen is not None else 0


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"13\r\nid: 7\ndata: hello\n\n\r\n"
#: By path: what the server answers, whether it speaks on, twice a second, and whether it closes.
FAULTS = {
    "/good": (HEAD, True, False),
    "/404": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno stream", False, False),
    "/html": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nhey!", False, False),
    "/moved": (b"HTTP/1.1 302 Found\r\nLocation: /good\r\nContent-Length: 0\r\n\r\n", False, False),
    "/mute": (HEAD + EVENT, False, False),
    "/cut": (HEAD + EVENT[:9], False, True),
    "/ends": (HEAD + EVENT + b"0\r\n\r\n", False, False),
    "/garbled": (HEAD + EVENT + b"data: no chunk\r\n", False, False),
    "/never": (b"", False, False),
}


class Faulty:
    """``asked``: by path, how often; ``last_ids``: what came as Last-Event-ID, how often; ``speaks``: whether events go on."""

    def __init__(self) -> None:
        self.asked, self.last_ids, self.at = Counter[str](), Counter[str](), ""
        self.speaks = True

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; what it does is asked for by its path."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            self.asked[path] += 1
            self.last_ids.update(re.findall(r"\r\nLast-Event-ID: (.*)\r\n", head))
            answer, goes_on, closes = FAULTS["/ends" if path == "/over" else path]
            if path == "/over" and self.asked[path] > 11:
                answer = b"HTTP/1.1 204 No Content\r\n\r\n"
            writer.write(answer)
            while goes_on:
                if self.speaks:
                    writer.write(EVENT)
                await writer.drain()
                await asyncio.sleep(0.5)
            if not closes:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()


@contextmanager
def faulty() -> Iterator[Faulty]:
    server = Faulty()
    with speaking(server.client) as at:
        server.at = f"http://{at}"
        yield server


def test_every_fault_of_a_stream_has_its_cause(tmp_path: Path) -> None:
    with faulty() as server:
        done = run(
            tmp_path, "soak", *(f"{server.at}{path}" for path in FAULTS), *SHORT, "--protocol", "sse", "--silence", "4", "-c", str(10 * len(FAULTS)), "--hold", "6",
            "--connect-timeout", "6", "--no-reopen", "--force", "--out", "run.db", "--quiet",
        )  # fmt: skip
    assert done.err == ""
    summary = report(tmp_path, "run.db")
    counts, protocol = summary["connections"], summary["protocol"]
    assert counts["deaths"] == {"heartbeat_timeout": 10, "closed_idle": 10, "closed_announced": 10, "protocol_error": 10}
    assert counts["failures"] == {"handshake_refused": 30, "handshake_timeout": 10}
    assert (counts["held"], counts["opened"]) == (10, 50)
    assert protocol["refused"] == {"HTTP 404 Not Found: no stream": 10, "HTTP 200: Content-Type: text/html, not text/event-stream": 10, "HTTP 302 Found: Location: /good": 10}
    assert protocol["goodbyes"] == {"0": 10}
    assert protocol["broken"] == {"not a chunk header: b'data: no chunk'": 10}
    assert protocol["messages"] >= 10 * 8 + 30
    assert server.asked == Counter(dict.fromkeys(FAULTS, 10))
    assert "handshakes_refused" in codes(summary)
    fault_table.require_as_written("test_every_fault_of_a_stream_has_its_cause", summary)


def test_whether_listeners_were_back_cannot_be_told_where_nothing_was_sent(tmp_path: Path) -> None:
    asked = ["--protocol", "sse", "-c", "20", "--baseline", "0.2", "--residue", "0.2", "--hold", "7", "--reconnect", "now", "--quiet"]
    events = ["--at", "1s", "vanish 50% for 1s then return", "--at", "3s", "vanish 20% for 1s then return", "--at", "5s", "drop 100%"]
    limits = ["--fail-if", "events.1.back.all_s > 5s"]
    with faulty() as server:
        server.speaks = False
        quiet = run(tmp_path, "soak", f"{server.at}/good", *asked, *events[:6], *limits, "--out", "silent.db")
        silent = report(tmp_path, "silent.db")
        ended = run(tmp_path, "soak", f"{server.at}/good", *asked, *events, "--out", "ended.db")
        stormed = report(tmp_path, "ended.db")
    assert ended.err == ""
    for event, count in zip(silent["events"], (10, 4), strict=True):
        assert (event["returned"], event["unheard"], event["waiting"], event["not_back"]) == (count, count, 0, 0)
        assert event["back"]["all_s"] is None
    assert silent["connections"]["held"] == 20
    require_whole(quiet.status, silent, 99)
    assert "limit_unknown" in codes(silent)
    first, second, _ = stormed["events"]
    # The storm ended them before any message came.
    assert (first["unheard"], first["ended_again"], first["waiting"]) == (10, 0, 0)
    assert (second["unheard"], second["ended_again"], second["waiting"]) == (4, 0, 0)


def test_streams_that_fall_silent_are_held_and_told(tmp_path: Path) -> None:
    asked = ["--protocol", "sse", "-c", "20", "--baseline", "0.2", "--residue", "0.2", "--hold", "14", "--out", "run.db"]
    with faulty() as server, Program(tmp_path, "soak", f"{server.at}/good", *asked) as program:
        program.until_phase("hold")
        program.until(lambda: heard(tmp_path) >= 20 * 6, "each has heard events for some seconds")
        server.speaks = False
        done = program.wait()
    summary = require_done(tmp_path, done)
    assert summary["connections"]["held"] == 20
    fault_table.require_as_written("test_streams_that_fall_silent_are_held_and_told", summary)


def test_a_stream_that_is_asked_for_again_names_its_last_event(tmp_path: Path) -> None:
    with faulty() as server:
        with Program(tmp_path, "soak", f"{server.at}/ends", f"{server.at}/cut", *SHORT, "--protocol", "sse", "-c", "10", "--hold", "forever", "--out", "run.db", "--quiet") as program:
            program.until(lambda: server.asked["/ends"] >= 15 and server.asked["/cut"] >= 15, "all have come back, some twice")
            program.signal()
            program.wait()
        # The probe and the first of each have none, and what was cut in the midst of an event.
        assert server.last_ids == {"7": server.asked["/ends"] - 6}


def test_a_stream_that_is_over_is_not_asked_for_again(tmp_path: Path) -> None:
    # 11 times, for the probe and each connection, the server sends a stream that ends; then 204.
    with faulty() as server:
        asked = ["soak", f"{server.at}/over", *SHORT, "--protocol", "sse", "-c", "10", "--hold", "6", "--out", "run.db", "--quiet"]
        assert run(tmp_path, *asked).err == ""
        assert server.asked == {"/over": 21}
    summary = report(tmp_path, "run.db")
    counts = summary["connections"]
    assert (counts["deaths"], counts["failures"]) == ({"closed_announced": 10}, {"handshake_refused": 10})
    assert (summary["run"]["verdict"], counts["held"], counts["reopened"]) == ("invalid" if summary["generator"]["saturated"] else "failed", 0, 0)
    fault_table.require_as_written("test_a_stream_that_is_over_is_not_asked_for_again", summary)


def test_heartbeats_at_a_stream_are_told_of_its_protocol(tmp_path: Path) -> None:
    with faulty() as server:
        run(tmp_path, "soak", f"{server.at}/good", *SHORT, "-c", "5", "--hold", "0.5", "--no-reopen", "--out", "run.db")
    assert "event_stream" in {one["code"] for one in report(tmp_path, "run.db")["findings"]}


def test_an_endless_answer_of_any_kind_is_held_by_its_bytes(tmp_path: Path) -> None:
    with faulty() as server:
        done = run(tmp_path, "soak", f"{server.at}/good", f"{server.at}/html", *SHORT, "--protocol", "stream", "--silence", "2", "-c", "20", "--hold", "4", "--no-reopen", "--out", "run.db", "--quiet")
    assert done.err == ""
    summary = report(tmp_path, "run.db")
    # What has a length ends with it.
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (10, {"closed_announced": 10})
    assert summary["protocol"]["messages"] == 0
    assert summary["protocol"]["message_bytes"] >= 10 * (8 * 19 + 4)
