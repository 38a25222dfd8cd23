"""The experiment pipelining: a tiny run on real servers, its parts, and conclusions from synthetic rounds."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S, serving

from asyncli import experiments
from asyncli.experiments import baseline_clients, pipelining
from asyncli.experiments.baseline_clients import CLIENTS, run_client
from asyncli.experiments.context import Context, run
from asyncli.experiments.delay_server import DelayServer
from asyncli.experiments.pipelining import EXPERIMENT, conclude
from asyncli.experiments.record import Record, Round, Rounds
from asyncli.lab.nginx import LabNginx
from asyncli.model.errors import HostError, PlanError

# The slow answer is longer than what a busy machine holds up a fast one.
TINY = {"rounds": 1, "responses": 600, "connections": 4, "round_trip_ms": 5, "slow_ms": 2_000}
PLAN = EXPERIMENT.plan()
# Of four connections ten pipelines are all of them, and the large page differs in its size alone.
PAGES = {"near": "nginx", "far": "distant"}
WAYS = ("pipelines", "one at a time", "threads", "tasks")
# A timer may ring before its time, by the clock's grain and the loop's.
GRAIN_MS = 2.0


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split())


async def tiny(**changes: Any) -> Record:
    before = children()
    record = await run(EXPERIMENT, experiments.plan_of(EXPERIMENT, True, TINY | changes), quick=True, say=lambda _: None)
    assert children() <= before
    return record


def steps(record: Record) -> dict[str, Round]:
    return {one["step"]: one for one in record.rounds}


@pytest.mark.nginx
async def test_a_tiny_run_counts_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelining, "PAGES", PAGES)
    monkeypatch.setattr(pipelining, "WAYS", WAYS)
    record = await tiny()
    found = steps(record)
    assert record.complete
    assert [one.code for one in record.findings] == ["quick"]
    assert set(found) == {f"{one}: {way}" for one in PAGES for way in WAYS} | {
        "no limit", "cut", "fitting", "pipelined", "apart", "unread",
    }  # fmt: skip
    for name in (f"{one}: {way}" for one in PAGES for way in WAYS):
        one = found[name]
        assert (one["total"], one["failed"]) == (600, 0), name
        assert one["cpu_s"] > 0
        assert 0 < one["p50_ms"] <= one["p99_ms"]
        # A bench counts heads as well, the others bodies alone.
        assert 600 * 6_000 <= one["bytes"] < 600 * 6_400, name
    # One at a time on a line of 5 ms, each connection waits 150 times: a least, whatever this machine does.
    assert found["far: one at a time"]["duration_s"] >= 150 * (5 - GRAIN_MS) / 1000
    assert found["near: one at a time"]["segments_each"] >= 2
    # Pipelines of 150 on a limit of 100: four, each of which loses 50, and two to four more for these.
    cut = found["cut"]
    assert (cut["total"], cut["failed"], cut["resent"]) == (600, 0, 200)
    assert 6 <= cut["opened"] <= 8
    assert (found["no limit"]["resent"], found["fitting"]["resent"]) == (0, 0)
    assert found["pipelined"]["first_behind_ms"] >= TINY["slow_ms"] - GRAIN_MS > found["apart"]["first_behind_ms"]
    assert found["unread"]["window_closed"] >= 1
    assert (found["unread"]["answered"], found["unread"]["before_bytes"] < 100 * 32_600) == (100, True)


async def test_stopped_in_the_midst_it_leaves_no_process_and_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelining, "WAYS", ("pipelines", "one at a time"))
    before = children()
    said: list[str] = []
    plan = experiments.plan_of(EXPERIMENT, True, TINY | {"only": ["distant"], "responses": 4000, "round_trip_ms": 300})
    task = asyncio.create_task(run(EXPERIMENT, plan, say=said.append))
    while not said:  # one at a time takes 300 s
        await asyncio.sleep(0.01)
        assert not task.done()
    task.cancel()
    record = await task
    assert not record.complete
    assert {*steps(record)} == {"far: pipelines"}
    assert children() <= before


async def test_fewer_responses_than_connections_are_refused_in_a_line() -> None:
    plan = experiments.plan_of(EXPERIMENT, True, {"responses": 10, "connections": 20})
    with pytest.raises(PlanError):
        await run(EXPERIMENT, plan, say=lambda _: None)


@pytest.mark.nginx
async def test_what_fails_or_goes_unanswered_is_said_and_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def loses_some(client: str, url: str, connections: int, responses: int) -> dict[str, Any]:
        asked.append(client)
        if client == "tasks":
            raise HostError("no tasks here; ask for fewer")
        return {"duration_s": 0.01, "cpu_s": 0.01, "answered": responses - 1, "failed": 0, "bytes": 1, "latencies_ms": [1.0]}

    monkeypatch.setattr(pipelining, "run_client", loses_some)
    monkeypatch.setattr(pipelining, "PAGES", {"near": "nginx"})
    monkeypatch.setattr(pipelining, "WAYS", ("pipelines", "threads", "tasks"))
    record = await tiny(only=["nginx"])
    assert sorted(asked) == ["tasks", "threads"]
    assert sorted(one.code for one in record.findings) == ["left_out", "quick", "round_failed"]
    assert [row.label for row in record.conclusions.tables[0].rows] == ["4 pipelines of 150"]


@pytest.mark.parametrize("client", sorted(CLIENTS))
async def test_the_ordinary_clients_ask_for_each_answer_once(client: str) -> None:
    async with DelayServer(100) as server:
        said = await run_client(client, server.url, 3, 50)
    assert (said["answered"], said["failed"], said["bytes"], len(said["latencies_ms"])) == (50, 0, 5000, 50)
    assert said["cpu_s"] > 0


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_an_ordinary_client_counts_what_is_refused_or_an_error_as_failed(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno"
    with socket.socket() as nobody, serving(answer=error) as server:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening
        for url in (f"http://127.0.0.1:{nobody.getsockname()[1]}/", server.url):
            assert baseline_clients.main([client, "--url", url, "--connections", "2", "--responses", "6"]) == 0
            gc.unfreeze()
            said = json.loads(capsys.readouterr().out)
            assert (said["answered"], said["failed"], said["latencies_ms"]) == (0, 6, [])


async def test_what_a_child_says_of_its_end_is_told_at_once() -> None:
    with pytest.raises(HostError, match="invalid float value: 'abc'"):
        await DelayServer(100, "abc").start()  # type: ignore[arg-type]
    with pytest.raises(HostError, match="invalid choice: 'nothing'"):
        await run_client("nothing", "http://127.0.0.1:1/", 1, 1)


@pytest.mark.nginx
async def test_no_answer_of_pipelines_that_are_cut_goes_uncounted() -> None:
    # An answer that was learnt from a connection's last read was counted nowhere where the next to bring it ended as well:
    # seen in a third of all such runs.
    context = Context({})
    async with LabNginx(164, workers=1, keepalive_requests=100) as server:
        for _ in range(4):
            found = await context.bench(server, connections=100, requests=10_000, pipeline=150, workers=1)
            assert (found.requests.total, found.requests.failed, found.requests.resent) == (10_000, 0, 3_300)


@pytest.mark.nginx
async def test_nginx_answers_with_any_body() -> None:
    body = 'a"\\\n' * 1000 + "é" * 1000 + "1234567 $request_method " * 400
    async with LabNginx(16, body=body) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
    assert answer.partition(b"\r\n\r\n")[2].decode() == body.replace("$request_method", "GET")


def test_a_thread_that_ends_before_its_time_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http.client.HTTPConnection.request", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CLIENTS["threads"]("http://127.0.0.1:9/", 2, 6)


def made(**of_step: dict[str, Any]) -> list[Round]:
    return [{"step": step.replace("_", " ").replace("  ", ": "), "round": 0, **values} for step, values in of_step.items()]


def verdict(rounds: list[Round], words: str) -> list[str]:
    """The verdicts for three rounds without scatter; fewer would not decide near a rule."""
    thrice = [{**one, "round": number} for number in range(3) for one in rounds]
    return [one.verdict for one in conclude(PLAN, Rounds(thrice)).claims if words in one.claim]


def far(threads: float = 5.0, tasks: float = 5.0, ten: float = 0.1, mine: float = 0.1, cores: float = 0.95) -> list[Round]:
    """A page with pipelines that take 0.1 s."""
    return made(
        far__pipelines={"duration_s": 0.1, "cores": mine, "segments_each": 0.5, "retransmitted": 0},
        far__ten_pipelines={"duration_s": ten},
        far__one_at_a_time={"duration_s": 5.0, "segments_each": 2.1, "retransmitted": 0},
        far__threads={"duration_s": threads, "cores": cores},
        far__tasks={"duration_s": tasks, "cores": cores},
    )  # fmt: skip


def near(**changes: float) -> list[Round]:
    return [{**one, "step": one["step"].replace("far", "near")} for one in far(**changes)]


def line(pipelined: float) -> list[Round]:
    return made(pipelined={"slow_ms": 200.0, "first_behind_ms": pipelined, "arrivals_ms": [200.0, pipelined]})


def again(cut: int, free: int) -> list[Round]:
    """So many requests are asked again with the limit, and without one."""
    return made(cut={"resent": cut, "total": 100}, no_limit={"resent": free, "total": 100})


def sent_again(pipelines: int, single: int) -> list[Round]:
    return made(far__pipelines={"retransmitted": pipelines}, far__one_at_a_time={"retransmitted": single})


@pytest.mark.parametrize(
    ("rounds", "claim", "said"),
    [
        (far(), "faster than threads", "holds"),
        (far(threads=0.9), "faster than threads", "does not hold"),
        (far() + near(threads=0.9), "faster than threads", "holds in part"),
        (far(tasks=0.5), "faster than asynchronous tasks", "does not hold"),
        (far(), "low with pipelines", "holds"),
        (far(mine=0.9), "low with pipelines", "does not hold"),
        (far() + near(mine=0.9), "low with pipelines", "holds in part"),
        (far(), "nearly full", "holds"),
        (far(cores=0.1), "nearly full", "does not hold"),
        (far(), "A few pipelines", "holds"),
        (far(ten=1.0), "A few pipelines", "does not hold"),
        (far(), "share a TCP segment", "holds"),
        (far(), "retransmissions", "cannot say"),
        (line(200.1), "head-of-line", "does not hold"),
        (line(0.5), "head-of-line", "holds"),
        (again(5, 0), "cut pipelines", "holds"),
        (again(0, 0), "cut pipelines", "does not hold"),
        # What happens without a limit as well is not the limit's doing.
        (again(3300, 3300), "cut pipelines", "does not hold"),
        (made(unread={"window_closed": 2.0, "before_bytes": 100_000, "answered": 5}), "window closes", "holds"),
        (made(unread={"window_closed": 0.0, "before_bytes": 100_000, "answered": 5}), "window closes", "does not hold"),
        (sent_again(9, 1), "retransmissions", "holds"),
        (sent_again(1, 500), "retransmissions", "does not hold"),
    ],
)  # fmt: skip
def test_verdicts_follow_their_rules(rounds: list[Round], claim: str, said: str) -> None:
    assert verdict(rounds, claim) == [said]


def test_of_any_part_of_the_rounds_it_concludes_without_a_word_that_is_no_number() -> None:
    rounds = far() + line(200.0) + again(5, 0) + made(
        unread={"window_closed": None, "before_bytes": 1, "answered": 5}, near__threads={"duration_s": 0.0, "cpu_s": 0.0},
        near__pipelines={"duration_s": 0.0, "cpu_s": 0.0, "cores": None, "total": 0}, apart={"slow_ms": 0.0, "arrivals_ms": []},
    )  # fmt: skip
    for at in range(len(rounds) + 1):
        for some in (rounds[:at], rounds[at:], rounds[:at] + rounds[at + 1 :]):
            found = conclude(PLAN, Rounds(some))
            assert not [one.why for one in found.claims if {"nan", "inf"} & {*one.why.lower().split()}]
            assert all(math.isfinite(y) for chart in found.charts for of in chart.lines for y in of.ys)


def test_the_sources_figures_stand_beside_ours() -> None:
    table = conclude(PLAN, Rounds({**one, "step": one["step"].replace("far", "line")} for one in far())).tables[0]
    assert {row.label: row.source for row in table.rows if row.source} == {
        "100 pipelines of 100": {"duration_s": "about 5"}, "100 threads": {"duration_s": "25"}, "10,000 tasks": {"duration_s": "over 60"},
    }  # fmt: skip
