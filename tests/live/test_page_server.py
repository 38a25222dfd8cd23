"""The live page's server: who may look, who may change the run, and what a client gets that comes late or never reads."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import shutil
import socket
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from programs import DEADLINE_S, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families
from recording import new_run, write_run
from synthetic_run import a_run, cut

from asyncli.analysis.drift import drifts
from asyncli.live import following, run_page
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed
from asyncli.live.page_server import PageServer
from asyncli.live.page_state import plain_row
from asyncli.model.errors import AsyncliError, StoreError
from asyncli.model.metrics import SERVER_ANON_SHMEM_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES, SERVER_USS_BYTES
from asyncli.model.records import Deaths, EventCounts, Phase, RunEvent, Tick
from asyncli.report.summary import summarise
from asyncli.store.follow import News
from asyncli.store.reader import read_run

TOKEN = "a-token-of-the-tests-0123456789"
AS_OWNER = {"Authorization": f"Bearer {TOKEN}"}


@contextlib.asynccontextmanager
async def a_page(path: Path, **how: Any) -> AsyncIterator[tuple[PageServer, aiohttp.ClientSession]]:
    said: list[str] = []
    options = {"host": "127.0.0.1", "port": 0, "token": TOKEN, "must_have_token": False, "tls": None, "log": said.append}
    server = PageServer(path, **(options | how))
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
    run = a_run(2000, hold_s=90.0)
    for _, tick in run.ticks[40:43]:
        tick.deaths["reset"] = Deaths(count=5)
    return write_run(run, tmp_path_factory.mktemp("run") / "run.db")


async def status(client: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    async with client.request(method, path, **options) as answer:
        return answer.status


async def test_everybody_on_this_host_may_look_and_only_the_owner_changes_the_run(ended: Path) -> None:
    stopped: list[bool] = []
    async with a_page(ended, stop=lambda: stopped.append(True)) as (_, client):
        for path in ("/", "/assets/page.js", "/history", "/metrics"):
            assert await status(client, "GET", path) == 200
        assert await status(client, "GET", "/-/healthy") == 204
        for path in ("/mark", "/stop"):
            assert await status(client, "POST", path, data="now") == 401
            assert await status(client, "POST", path, data="now", headers={"Authorization": "Bearer wrong"}) == 401
        assert stopped == []
        assert await status(client, "POST", "/stop", headers=AS_OWNER) == 200
        assert stopped == [True]
        # The run is over: it cannot be marked.
        assert await status(client, "POST", "/mark", data="now", headers=AS_OWNER) == 409


async def test_another_sites_name_and_a_strange_path_are_refused(ended: Path) -> None:
    async with a_page(ended) as (_, client):
        strange = {"Host": "evil.example"}
        assert await status(client, "GET", "/history", headers=strange) == 403
        assert await status(client, "GET", "/history", headers=strange | {"Authorization": "Bearer wrong"}) == 403
        # Such as a proxy or a Prometheus that knows this host by a name of its own.
        assert await status(client, "GET", "/history", headers=strange | AS_OWNER) == 200
        assert await status(client, "GET", "/metrics", headers=strange | AS_OWNER) == 200
        for path in ("/assets/../feed.py", "/assets/%2e%2e%2ffeed.py", "/assets/no.js", "/download/../run.db", "/run.db"):
            assert await status(client, "GET", path) == 404
        async with client.get("/") as answer:
            rules = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in rules
            assert "unsafe" not in rules
            assert "//" not in (await answer.text()).replace("<!doctype", "")


async def test_beyond_loopback_the_token_is_asked_of_everybody(ended: Path) -> None:
    async with a_page(ended, must_have_token=True) as (_, client):
        assert await status(client, "GET", "/") == 200
        assert await status(client, "GET", "/-/healthy") == 204
        for path in ("/history", "/metrics", "/events", "/download/report.json"):
            assert await status(client, "GET", path) == 401
        for path in ("/history", "/metrics"):
            assert await status(client, "GET", path, headers=AS_OWNER) == 200


async def test_the_history_is_that_of_the_file(ended: Path) -> None:
    run = read_run(ended)
    async with a_page(ended) as (_, client), client.get("/history") as answer:
        document = await answer.json()
    keys = [line["key"] for panel in document["layout"]["panels"] for line in panel["lines"]]
    rows = {int(row[0]): dict(zip(keys, row[1:], strict=True)) for row in document["recent"]["rows"]}
    assert document["recent"]["width_s"] == 1
    for t_s, tick in run.ticks:
        row = rows[int(t_s)]
        assert (row["held"], row["sent"]) == (tick.held, tick.sent)
        (p99_us,) = tick.latency_us.quantiles([0.99])
        assert row["latency_p99"] == (None if p99_us is None else pytest.approx(p99_us / 1000, rel=1e-5))
    assert sum(counts.get("lost", {}).get("reset", 0) for _, counts in document["whole"]["bars"]) == 15
    assert document["state"]["lost"] == 15


def test_what_a_page_subtracts_from_is_not_rounded() -> None:
    """The page shows memory above that before the first connect, which is not rounded either."""
    before = 20_000_004_988_928.0
    assert plain_row((1.0, [before, 0.123456789, None])) == [1.0, before, 0.123457, None]


def vanished(path: Path) -> Path:
    """A run that goes on: 600 of 2,000 fell silent, and 200 of them came back since; and 100 were ended, of which 40 are not to be back yet."""
    run = a_run(2000, hold_s=90.0)
    hold_s = next(phase.start_s for phase in run.phases if phase.name == "hold")
    in_hold = [tick for t_s, tick in run.ticks if t_s > hold_s + 5.0]
    in_hold[0].events[1] = EventCounts(chosen=600, ended=600, silenced=600)
    in_hold[3].events[2] = EventCounts(chosen=100, ended=100, attempts=60)
    in_hold[5].events[1] = EventCounts(attempts=200, returned=200)
    for _ in range(200):
        in_hold[5].events[1].back_ms.add(20)
    run.events = [
        RunEvent("drop", hold_s + 8.0, None, "drop 5%", {"number": 2}),
        RunEvent("vanish", hold_s + 5.0, None, "vanish 30%", {"number": 1}),
        RunEvent("mark", hold_s + 6.0, None, "deployed 1.4"),
    ]
    return write_run(cut(run, hold_s + 20.0), path)


async def test_who_is_silent_and_who_is_back_is_in_the_page_and_the_metrics(tmp_path: Path) -> None:
    async with a_page(vanished(tmp_path / "run.db")) as (_, client):
        async with client.get("/history") as answer:
            state = (await answer.json())["state"]
        async with client.get("/metrics") as answer:
            gauges = {family.name: family.samples[0].value for family in families(await answer.text()) if family.samples}
    assert (state["away"], state["silent"], state["not_back"]) == (440, 400, 60)
    assert (gauges["asyncli_connections_away"], gauges["asyncli_connections_silent"], gauges["asyncli_connections_not_back"]) == (440, 400, 60)
    rows = [(event["text"], event["took"], event["silent"], event["back"]) for event in state["comebacks"]]
    assert rows == [("vanish 30%", 600, 400, 200), ("drop 5%", 100, 0, 0)]


async def test_metrics_in_both_formats_say_what_the_run_says(ended: Path) -> None:
    run = read_run(ended)
    async with a_page(ended) as (_, client):
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            text = {family.name: family for family in families(await answer.text())}
        async with client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            strict = {family.name: family for family in openmetrics(await answer.text())}
    assert text.keys() == strict.keys()
    assert all(name.startswith("asyncli_") for name in text)

    def value(name: str, sample: str, **labels: str) -> float:
        (one,) = [one for one in strict[name].samples if one.name == sample and labels.items() <= one.labels.items()]
        return float(one.value)

    assert value("asyncli_connections_lost", "asyncli_connections_lost_total", cause="reset") == 15
    sent = sum(tick.sent for _, tick in run.ticks)
    assert value("asyncli_heartbeats_sent", "asyncli_heartbeats_sent_total") == sent
    answered = sum(tick.latency_us.count for _, tick in run.ticks)
    latency = "asyncli_heartbeat_latency_seconds"
    assert value(latency, f"{latency}_count") == value(latency, f"{latency}_bucket", le="+Inf") == answered


def test_growth_in_the_metrics_is_that_of_the_report(tmp_path: Path) -> None:
    run = a_run(2000, hold_s=90.0)
    hold_s = next(phase.start_s for phase in run.phases if phase.name == "hold")
    for sample in run.samples:
        for metric in (SERVER_ANON_SHMEM_BYTES, SERVER_USS_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES):
            if metric in sample.values:
                sample.values[metric] += 1e5 * max(0.0, sample.t_s - hold_s)
    feed = RunFeed(write_run(run, tmp_path / "run.db"))
    feed.open()
    try:
        until(lambda: feed.take(feed.read()) or feed.is_final, "the last cost")
        # The version that measured may be another than the one that shows it.
        feed.environment = {**feed.environment, "asyncli": "0.0.1+other"}
        page, _ = exposition(feed, "")
        assert 'version="0.0.1+other"' in page.decode()
    finally:
        feed.close()
    grown = {}
    for family in families(page.decode()):
        if family.name == "asyncli_memory_growth_bytes_per_second":
            grown = {(sample.labels["part"], sample.labels["bound"]): sample.value for sample in family.samples}
    known = {name: drift for name, drift in drifts(run)[0].items() if drift.ci95 is not None}
    assert {part for part, _ in grown} == set(known)
    # What the report calls unknown has no rate, but its bounds.
    told = {name for name, drift in known.items() if drift.verdict != "too_short"}
    assert {part for part, bound in grown if bound == "estimate"} == told != set(known)
    drift = known["server_user"]
    assert drift.bytes_per_hour is not None
    assert grown["server_user", "estimate"] == pytest.approx(drift.bytes_per_hour / 3600)
    assert grown["server_user", "low"] < 1e5 < grown["server_user", "high"]


async def test_the_verdict_of_an_ended_run_is_that_of_the_report(ended: Path) -> None:
    summary = summarise(read_run(ended))
    async with a_page(ended) as (server, client):
        async with asyncio.timeout(DEADLINE_S):
            while server.feed.ending is None:
                await asyncio.sleep(0.05)
        async with client.get("/history") as answer:
            state = (await answer.json())["state"]
        async with client.get("/metrics") as answer:
            text = {family.name: family for family in families(await answer.text())}
    assert state["ending"] == {
        "verdict": "failed",
        "why": summary.why,
        "held": summary.connections.held,
        "beside": "",
        "active": summary.reconciliation.server_active,
        "server_bytes": summary.server.pss_bytes.hold_end,
        "latency_p50_ms": summary.heartbeats.latency_ms.p50,
        "latency_p99_ms": summary.heartbeats.latency_ms.p99,
        "lateness_p99_ms": summary.heartbeats.lateness_ms.p99,
    }
    told = {row["evidence"] for row in state["findings"] if row["at_s"] is None}
    deciding = {finding.evidence for finding in summary.findings if finding.severity == "error"} - {summary.why}
    assert deciding
    assert deciding <= told
    verdicts = {sample.labels["verdict"]: sample.value for sample in text["asyncli_run_verdict"].samples}
    assert verdicts == {"passed": 0, "failed": 1, "invalid": 0, "untested": 0, "unjudged": 0}


Events = list[tuple[str, dict[str, Any]]]


async def events_of(client: aiohttp.ClientSession, query: str, enough: int | Callable[[Events], bool]) -> Events:
    """So many events of the stream, or all until they are enough."""
    found: Events = []
    async with client.get(f"/events{query}") as answer:
        while len(found) < enough if isinstance(enough, int) else not enough(found):
            name = (await answer.content.readline()).decode().removeprefix("event: ").strip()
            data = (await answer.content.readline()).decode().removeprefix("data: ")
            await answer.content.readline()
            found.append((name, json.loads(data)))
    return found


def helds_of(sent: Events) -> list[float]:
    """The connections held at each second that the news have, by their order in time."""
    rows = {row[0]: row[1] for _, document in sent for row in document["whole"]["rows"]}
    return [rows[t_s] for t_s in sorted(rows)]


async def test_each_second_is_sent_once_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer = new_run(path, started_s=time.time())
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.2, Tick(second=1, held=10, opened=10))
    while not path.stat().st_size:
        await asyncio.sleep(0.05)
    async with a_page(path) as (_, client):
        async with client.get("/history") as answer:
            edition = (await answer.json())["edition"]
        # News come each second of the page, which is none of the writer's: after this process stood still, two may come at once.
        reading = asyncio.create_task(events_of(client, f"?edition={edition}", lambda sent: 30 in helds_of(sent)))
        for second in (2, 3, 4):
            await asyncio.sleep(1.0)
            writer.tick(second + 0.2, Tick(second=second, held=10 * second, opened=10))
        async with asyncio.timeout(DEADLINE_S):
            sent = await reading
    writer.close(True)
    assert {name for name, _ in sent} == {"news"}
    assert helds_of(sent)[:3] == [10, 20, 30]
    # A client of an older edition has to ask for the history again.
    async with a_page(path) as (_, client):
        (first,) = await events_of(client, "?edition=-7", 1)
    assert first[0] == "again"


async def test_a_browser_that_never_reads_is_dropped_and_holds_up_nobody(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "UNREAD_S", 0.5)
    monkeypatch.setattr(run_page, "TURN_S", 0.02)
    async with a_page(ended) as (server, client):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", server.port))
            deaf.sendall(b"GET /events?edition=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert len(await events_of(client, "?edition=0", 30)) == 30

            async with asyncio.timeout(DEADLINE_S):
                while server.server.connections > 1:
                    await asyncio.sleep(0.1)


async def test_streams_of_strangers_do_not_lock_the_owner_out(ended: Path) -> None:
    stopped: list[bool] = []
    async with a_page(ended, stop=lambda: stopped.append(True)) as (server, client):
        streams = []
        for _ in range(80):
            stream = socket.create_connection(("127.0.0.1", server.port))
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            streams.append(stream)
            await asyncio.sleep(0.01)
        assert await status(client, "POST", "/stop", headers=AS_OWNER) == 200
        assert stopped == [True]
        for stream in streams:
            stream.close()


async def test_a_flood_of_strangers_does_not_slow_the_owner(ended: Path) -> None:
    async with a_page(ended, stop=lambda: None) as (_, client):
        answers = []
        for _ in range(300):
            answers.append(await status(client, "GET", "/-/healthy"))
        assert 429 in answers
        assert await status(client, "POST", "/stop", headers=AS_OWNER) == 200


async def test_what_is_no_text_and_no_version_is_refused_or_answered_and_never_fails(ended: Path) -> None:
    async with a_page(ended) as (_, client):
        unknown = {**AS_OWNER, "Content-Type": "text/plain; charset=no-such"}
        packed = {**AS_OWNER, "Content-Encoding": "gzip"}
        for text in (b"now\xff\xfe", b" ", b"one\ntwo", b"x" * 201):
            assert await status(client, "POST", "/mark", data=text, headers=AS_OWNER) == 400
        # A charset that Python does not know is taken for UTF-8, and the run is over.
        assert await status(client, "POST", "/mark", data=b"now", headers=unknown) in (400, 409)
        assert await status(client, "POST", "/mark", data=b"no gzip", headers=packed) == 400
        strange = {"Accept": "application/openmetrics-text; version=abc"}
        assert await status(client, "GET", "/metrics", headers=strange) == 200


@pytest.mark.parametrize("name", [b"bad\xff.db", b'a "b"\nc.db'])
async def test_a_file_may_have_any_name(ended: Path, tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    shutil.copy(ended, path)
    async with a_page(path) as (_, client):
        for where in ("/history", "/metrics", "/download/report.json"):
            assert await status(client, "GET", where) == 200
        # Its run is over, and the answer names the file.
        assert await status(client, "POST", "/mark", data="now", headers=AS_OWNER) == 409


async def test_the_tables_are_saved_in_one_file(ended: Path) -> None:
    run = read_run(ended)
    async with a_page(ended) as (_, client):
        async with client.get("/download/tables.zip") as answer:
            assert answer.headers["Content-Disposition"] == 'attachment; filename="run.zip"'
            packed = zipfile.ZipFile(io.BytesIO(await answer.read()))
        assert await status(client, "GET", "/download/tables.csv") == 404
    assert {"run/ticks.csv", "run/samples.csv", "run/phases.csv"} <= set(packed.namelist())
    rows = list(csv.DictReader(io.StringIO(packed.read("run/ticks.csv").decode())))
    assert [int(row["held"]) for row in rows] == [tick.held for _, tick in run.ticks]


async def test_a_port_that_is_taken_and_a_file_that_is_no_run_are_one_line(ended: Path, tmp_path: Path) -> None:
    async with a_page(ended) as (server, _):
        with pytest.raises(AsyncliError, match="cannot listen at"):
            async with a_page(ended, port=server.port):
                pass
    (tmp_path / "no.db").write_text("no run")
    with pytest.raises(AsyncliError):
        async with a_page(tmp_path / "no.db"):
            pass


def _empty(path: Path) -> None:
    os.truncate(path, 0)
    # SQLite deletes the WAL of an empty file, as the page's next reading may have by now.
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path.with_name(f"{path.name}-wal"), 0)


@pytest.mark.parametrize("take", [lambda path: path.rename(path.with_name("moved.db")), Path.unlink, _empty], ids=["moved", "deleted", "emptied"])
async def test_a_run_file_that_is_taken_away_is_told_at_once(tmp_path: Path, take: Callable[[Path], None]) -> None:
    path = tmp_path / "run.db"
    writer = new_run(path, started_s=time.time())
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=10, opened=10))
    while not path.stat().st_size:
        await asyncio.sleep(0.05)
    async with a_page(path) as (server, client):
        async with asyncio.timeout(DEADLINE_S):
            while server.feed.state.held != 10:
                await asyncio.sleep(0.1)
        assert server.feed.why_ended == ""
        age_s = server.feed.record_age_s
        assert age_s is not None
        assert age_s < 10
        take(path)
        # Long before a writer without news is taken for one that hangs.
        async with asyncio.timeout(following.QUIET_S / 2):
            while not server.feed.why_ended:
                await asyncio.sleep(0.1)
        assert server.feed.state.over
        assert server.feed.record_age_s is None
        # Nothing more is known of the run, and the last values are those of its end.
        async with client.get("/metrics") as answer:
            assert "asyncli_run_over 1.0" in (await answer.text()).splitlines()
        async with client.get("/history") as answer:
            state = (await answer.json())["state"]
        assert state["held"] == 10
        assert state["why_ended"] == server.feed.why_ended
    writer.close(True)


async def test_old_values_are_no_new_ones_while_the_file_cannot_be_read(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_page(ended) as (server, client):
        assert await status(client, "GET", "/metrics") == 200

        def damaged() -> News:
            raise StoreError("run.db: the file is damaged")

        monkeypatch.setattr(server.feed, "read", damaged)
        async with asyncio.timeout(DEADLINE_S):
            while await status(client, "GET", "/metrics") != 503:
                await asyncio.sleep(0.1)
