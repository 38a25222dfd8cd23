"""How many does a real server hold, and what gives way: its slots, its memory, its listeners, its patience, ours, or the way to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fault_table
import psutil
import pytest
from memory_groups import own_group
from namespaces import SERVER, Cable
from programs import DEADLINE_S, Program, alive, report, serving, serving_by, until, was_late

from asyncli.analysis import capacity
from asyncli.analysis.bottleneck import RELOADED
from asyncli.analysis.capacity import Bracket, Search
from asyncli.app import settle
from asyncli.app.capacity import CapacitySearch
from asyncli.cli.capacity import LIMITS
from asyncli.findings.capacity import not_a_fresh_broker
from asyncli.lab import choose
from asyncli.lab.builtin import LabBuiltin
from asyncli.lab.nginx import LabNchan, LabNginx
from asyncli.model.errors import PreflightError
from asyncli.model.plan import Layer, Plan, build_plan
from asyncli.model.records import ABORTED, Phase
from asyncli.report.capacity_report import Capacity, capacity_document, one_line
from asyncli.report.document import Paragraph
from asyncli.report.livestate import LiveObserver
from asyncli.store.reader import read_run

SHORT = {"keepalive": 2, "timeout": "1s", "hold": "2s", "baseline": "0.3s", "residue": 0, "batch": 20}
FLAGS = [word for key, value in SHORT.items() for word in (f"--{key}", str(value))]


@pytest.fixture(autouse=True)
def few_sockets_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests open sockets on this host between two steps: then a server without a page of counts is at rest once they have not
    become fewer for so long. It is longer than the times of the servers' rules here."""
    monkeypatch.setattr(settle, "_SETTLED_S", 1.2)


def plan_of(url: str, **more: Any) -> Plan:
    return build_plan([Layer("{key}", {"urls": [url], **SHORT, "fail_if": LIMITS, "abort": True, **more})])


async def searched(folder: Path, url: str, start: int, within: float = 0.05, most: int = 100_000, **more: Any) -> Capacity:
    folder = folder / "steps"
    folder.mkdir()
    search = CapacitySearch(plan_of(url, **more), Search(start, most, within), folder)
    async with asyncio.timeout(DEADLINE_S):
        await search.run()
    return search.result


def words(found: Capacity) -> str:
    return f"{one_line(found)}; {[(one.asked, one.outcome, one.why) for one in found.steps]}; {found.gave_way}"


def require_row(test: str, found: Capacity) -> None:
    """Require that the bottleneck, the findings and the first line have the sentences of the fault's row."""
    (row,) = (one for one in fault_table.rows() if one.name == test)
    evidence = [one.evidence for one in (*found.findings, *found.gave_way)]
    fault_table.require_said(row.says, [*evidence, *doubts(found), one_line(found)])


def doubts(found: Capacity) -> list[str]:
    """What the answer says of limits of another kind."""
    answer = next(section for section in capacity_document(found).sections if section.id == "answer")
    return [str(block.words) for block in answer.blocks if isinstance(block, Paragraph) and block.role == "doubt"]


async def test_a_server_that_answers_with_errors_holds_none(tmp_path: Path) -> None:
    with serving(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as server:
        found = await searched(tmp_path, server.url, 20, timeout="10s")
    assert (found.verdict, [(one.side, one.code) for one in found.gave_way]) == ("failed", [("server", "errors")]), words(found)
    assert [(one.asked, one.lost, one.crossed) for one in found.steps] == [(count, 0, ["heartbeats.by_status.404"]) for count in (20, 1)]
    # The first error answer ends a step.
    assert {one.code for one in read_run(tmp_path / "steps" / found.steps[0].run_file).findings} >= {ABORTED}


async def test_a_listener_that_accepts_nothing_is_not_tested(tmp_path: Path) -> None:
    """Its kernel grants the connects."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        found = await searched(tmp_path, f"tcp://127.0.0.1:{listener.getsockname()[1]}/", 20, most=20, timeout="10s")
    assert (found.verdict, len(found.steps)) == ("untested", 1), words(found)


@pytest.mark.namespaces
def test_a_listener_elsewhere_of_which_nothing_is_heard_is_not_tested(tmp_path: Path) -> None:
    """Whether a program accepts there is not seen from here."""
    asked = [*FLAGS, "--start", "20", "--most", "20", "--out", "steps", "--json", "out.json"]
    with Cable() as cable:
        with cable.inside("server"):
            listener = socket.create_server((SERVER, 9000), backlog=200)
        with listener, cable.inside("client"), Program(tmp_path, "capacity", f"tcp://{SERVER}:9000/", *asked) as program:
            done = program.wait()
    found = json.loads((tmp_path / "out.json").read_text())
    assert (done.status, found["verdict"], len(found["steps"])) == (3, "untested", 1), done
    assert found["why"] == found["steps"][0]["why"]


async def test_a_capacity_has_the_doubts_of_its_largest_held_step(tmp_path: Path) -> None:
    with serving(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n") as server:
        found = await searched(tmp_path, server.url, 20, most=20, timeout="10s")
    assert found.verdict == "held", words(found)
    assert [finding.code for finding in found.findings] == ["redirected"]


@pytest.mark.nginx
def test_the_slots_of_an_nginx_are_found_to_the_resolution(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    server = start_nginx(workers=1, worker_connections=300)
    arguments = ["--status-url", server.status_url, "--server-pid", str(server.pid), "--start", "270", "--within", "10%", "--out", "steps", "--json", "out.json"]
    with Program(tmp_path, "capacity", server.url, *FLAGS, *arguments) as program:
        done = program.wait()
    found = json.loads((tmp_path / "out.json").read_text())
    held, failed = found["bracket"]["held"], found["bracket"]["failed"]
    assert done.status == 0, done
    # With a sixteenth free, less its listeners and its channel, it closes the idle ones: 300 x 15/16 - 4.
    assert held <= 278 < failed, (held, failed)
    assert failed - held <= 0.1 * failed
    first = found["gave_way"][0]
    assert (first["side"], first["code"], first["certain"]) == ("server", "slots", True), found["gave_way"]
    assert (found["forecast"]["name"], found["forecast"]["agrees"]) == ("worker_connections", True)
    assert "FOUND  " in done.out
    # Each step is a run that is whole, and says of itself what the table says.
    verdicts = {"held": "passed", "failed": "failed", "ours": "invalid"}
    for step in found["steps"]:
        one = report(tmp_path / "steps", step["run_file"])
        assert one["run"]["complete"] is True
        # A certain limit of the server counts, however late asyncli was.
        assert one["run"]["verdict"] == ("invalid" if was_late(one) else verdicts[step["outcome"]])
        assert one["connections"]["requested"] == step["asked"]


# Where others use the CPUs, the search would say, rightly, that this host is the limit.
@pytest.mark.measures
async def test_a_server_that_is_killed_for_memory_and_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "REST_S", 0.5)
    # What it took at its start is not charged to a group that it joins later.
    with own_group(20 << 20) as group:
        async with LabBuiltin(connections=50_000, workers=1) as server:
            for pid in (server.pid, *(one.pid for one in psutil.Process(server.pid).children())):
                (group / "cgroup.procs").write_text(str(pid))
            assert server.status_url is not None
            found = await searched(
                tmp_path, server.url, 4000, server_pid=server.pid, interval="5ms", status_url=server.status_url
            )
    assert (found.verdict, found.gave_way[0].side, found.gave_way[0].code) == ("found", "server", "memory_limit"), words(found)
    assert found.bracket.failed == 2 * found.bracket.held
    # The step that was held has seen the limit coming.
    (path,) = tmp_path.rglob(f"*-{found.bracket.held}.db")
    (ceiling,) = (one for one in report(tmp_path, path)["forecast"]["ceilings"] if one["name"] == "server_group")
    assert ceiling["connections"] < 1.5 * found.bracket.failed, ceiling
    assert [one.code for one in found.findings if one.severity == "error"] == ["server_gone"]


@pytest.mark.nginx
def test_few_descriptors_of_our_own_are_said_to_be_ours(tmp_path: Path, nginx: LabNginx) -> None:
    arguments = ["--workers", "1", "--server-pid", str(nginx.pid), "--start", "100", "--most", "200", "--force", "--out", "steps", "--json", "out.json"]
    with Program(tmp_path, "capacity", nginx.url, *FLAGS, *arguments) as program:
        # Long before it looks at its limits: it imports first.
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (200, 200))
        done = program.wait()
    found = json.loads((tmp_path / "out.json").read_text())
    assert (done.status, found["verdict"]) == (4, "invalid"), done
    assert 100 <= found["bracket"]["held"] < 200
    assert found["bracket"]["failed"] is None
    assert (found["gave_way"][0]["side"], found["gave_way"][0]["code"]) == ("host", "descriptors")


_BETWEEN = """
import asyncio, sys
from pathlib import Path
from asyncli.lab.nginx import LabNginx
sys.path[:0] = sys.argv[2:]
from test_capacity_of_servers import searched
from asyncli.report.jsonout import to_json
async def main(folder):
    async with LabNginx(connections=1000, workers=1, port=18080) as server:
        found = await searched(folder, server.url, 55, 0.2, server_pid=server.pid, status_url=server.status_url, connect_timeout="1s", baseline="2.5s")
        print(to_json(found))
asyncio.run(main(Path(sys.argv[1])))
"""
# A table of 60 flows, each forgotten when nothing came of it for two seconds; a SYN for which it has no room is dropped.
_BOX = """
table inet box {
    set flows { type ipv4_addr . inet_service; size 60; flags dynamic, timeout; }
    chain input {
        type filter hook input priority 0;
        tcp dport 18080 update @flows { ip saddr . tcp sport timeout 2s } accept
        tcp dport 18080 tcp flags & (syn | ack) == syn drop
    }
}
"""


@pytest.mark.nginx
def test_a_box_between_whose_table_is_full_is_the_network(tmp_path: Path) -> None:
    found = found_in_a_namespace(tmp_path, _BOX)
    assert found["verdict"] == "found", found
    assert found["bracket"]["held"] <= 60 < found["bracket"]["failed"], [(one["asked"], one["held"], one["why"]) for one in found["steps"]]
    first = found["gave_way"][0]
    assert (first["side"], first["code"], first["certain"]) == ("network", "never_arrived", True), found["gave_way"]
    assert found["pace"]["limits"] == "number", found["pace"]


def found_in_a_namespace(tmp_path: Path, rules: str) -> Any:
    """The JSON of a search in a network namespace of its own with these rules of nft, on an nginx at port 18080."""
    here = Path(__file__).parent
    script = f"ip link set lo up && nft -f - && exec {sys.executable} -c '{_BETWEEN}' {tmp_path} {here} {here.parent}"
    command = ["unshare", "-n", "sh", "-c", script]
    try:
        probe = subprocess.run(["unshare", "-n", "sh", "-c", "nft -f -"], input=rules, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this host")
    if probe.returncode:
        pytest.skip("no network namespace with nft can be made here")
    done = subprocess.run(command, input=rules, text=True, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nginx
def test_one_ctrl_c_drains_and_tells_what_is_known(tmp_path: Path, nginx: LabNginx) -> None:
    arguments = ["--server-pid", str(nginx.pid), "--start", "50", "--most", "900", "--out", "steps"]
    with Program(tmp_path, "capacity", nginx.url, *FLAGS, *arguments) as program:
        program.until(lambda: len(list((tmp_path / "steps").glob("*.db"))) > 1, "the second step begins")
        program.signal(signal.SIGINT)
        done = program.wait()
        program.until_gone()
    assert done.status == 99, done
    assert "STOPPED  " in done.out
    first = report(tmp_path / "steps", "01-50.db")
    # One that was late is tried again.
    assert first["run"]["verdict"] == ("invalid" if was_late(first) else "passed")


@pytest.mark.nginx
async def test_a_reload_says_nothing_of_a_count(tmp_path: Path, nginx: LabNginx, monkeypatch: pytest.MonkeyPatch) -> None:
    # A step in which asyncli stood still says nothing either: it is tried again, here until one describes the server.
    monkeypatch.setattr(capacity, "TRIES", 20)

    class Reloader(LiveObserver):
        def phase(self, phase: Phase) -> None:
            if phase.name == "hold" and all(step.outcome == "ours" for step in search.steps):
                workers = psutil.Process(nginx.pid).children()
                os.kill(nginx.pid, signal.SIGHUP)
                # In this hold, however late nginx is.
                until(lambda: not any(alive(one.pid) for one in workers), "its workers have ended")

    search = CapacitySearch(plan_of(nginx.url, server_pid=nginx.pid), Search(50, 50, 0.5), tmp_path, make_observer=Reloader)
    await search.run()
    found = search.result
    assert all(was_late(report(tmp_path, one.run_file)) for one in found.steps if one.outcome == "ours"), words(found)
    undisturbed = [one for one in found.steps if one.outcome != "ours"]
    assert [(one.asked, one.outcome, bool(one.gave_way)) for one in undisturbed] == [(50, "failed", True), (50, "held", False)], words(found)
    assert undisturbed[0].gave_way[0].code in RELOADED
    assert (found.verdict, found.bracket, found.gave_way) == ("held", Bracket(50, None), [])


@pytest.mark.nginx
async def test_a_server_that_hangs_has_not_ended(tmp_path: Path, nginx: LabNginx) -> None:
    workers = [one.pid for one in psutil.Process(nginx.pid).children()]
    steps = itertools.count()

    def stop_before_the_second(plan: Plan) -> LiveObserver:
        if next(steps) == 1:
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
        return LiveObserver(plan)

    plan = plan_of(nginx.url, server_pid=nginx.pid)
    search = CapacitySearch(plan, Search(20, 40, 0.5), tmp_path, make_observer=stop_before_the_second)
    try:
        await search.run()
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    found = search.result
    assert (found.verdict, found.bracket) == ("stopped", Bracket(20, None)), words(found)
    assert [one.code for one in found.findings if one.severity == "error"] == ["server_silent"]
    require_row("test_a_server_that_hangs_has_not_ended", found)


class NchanPerAddress(LabNchan):
    """Nchan that serves so many subscribers of one client address."""

    most = 30

    def _config(self) -> str:
        zone = "http {\n    limit_conn_zone $binary_remote_addr zone=address:1m;"
        text = super()._config().replace("http {", zone, 1)
        return text.replace("nchan_subscriber", f"limit_conn address {self.most};\n            nchan_subscriber", 1)


@pytest.mark.nchan
@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_limit_for_each_client_address(tmp_path: Path, addresses: int) -> None:
    most = addresses * NchanPerAddress.most
    sources = [f"127.0.0.{number}" for number in range(2, 2 + addresses)]
    async with NchanPerAddress(connections=500, workers=1) as server:
        found = await searched(tmp_path, server.url, 50, within=0.1, source=sources)
    assert (found.verdict, found.gave_way[0].code) == ("found", "handshake_refused"), words(found)
    assert found.bracket.held <= most < found.bracket.failed, words(found)
    # From one address, the server's limit and one for each address look the same.
    (doubt,) = doubts(found)
    assert ("--source" in doubt) == (addresses == 1)
    # One on connects in a time does not: it was tried at a slower pace.
    assert found.pace is not None
    assert (found.pace.limits, found.pace.served_slower) == ("number", most)


@pytest.mark.mosquitto
async def test_a_broker_that_lets_in_more_after_each_step(tmp_path: Path) -> None:
    # Mosquitto 2.0.11 takes each client that leaves twice off the count that max_connections limits.
    async with choose("mosquitto", connections=200, more_lines="max_connections 30") as server:
        found = await searched(tmp_path, server.url, 60, most=60, force=True, mqtt_id="unit-{n}")
    assert (found.verdict, found.bracket.failed) == ("stopped", 60), words(found)
    refused = found.steps[0].served
    assert 0 < found.bracket.held <= refused < 1.1 * refused < found.steps[-1].held, words(found)
    assert {one.code for one in found.findings if one.severity == "warning"} >= {"limit_moved", "same_clients"}
    require_row("test_a_broker_that_lets_in_more_after_each_step", found)
    # Each step has a seed of its own, and so client ids of its own where they have {random}.
    seeds = [read_run(tmp_path / "steps" / one.run_file).plan.seed & 0xFFFFFF for one in found.steps]
    assert len(set(seeds)) == len(seeds) > 1


@pytest.mark.mosquitto
async def test_an_answer_of_a_broker_that_served_steps_before_says_so(tmp_path: Path) -> None:
    async with choose("mosquitto", connections=200, more_lines="max_connections 30") as server:
        found = await searched(tmp_path, server.url, 25, most=50, force=True)
    assert (found.verdict, found.bracket) == ("held", Bracket(50, None)), words(found)
    assert [one.code for one in found.findings if one.severity == "warning"] == ["broker_served_before"]
    # The first line says so too.
    assert found.why.endswith(not_a_fresh_broker(len(found.steps) - 1))
    require_row("test_an_answer_of_a_broker_that_served_steps_before_says_so", found)


@pytest.mark.nginx
async def test_a_timer_of_nginx_is_refused_before_the_first_step(tmp_path: Path) -> None:
    async with LabNginx(connections=1000, workers=1, keepalive_timeout_s=1) as server:
        with pytest.raises(PreflightError, match="keepalive_timeout"):
            await searched(tmp_path, server.url, 100, keepalive=10, hold="20s")
    assert list((tmp_path / "steps").iterdir()) == []


REFUSING_SERVER = Path(__file__).parent / "refusing_server.py"


@pytest.mark.parametrize(("rule", "how"), [("window", "reset"), ("bucket", "reset"), ("bucket", "fin")])
async def test_a_limit_on_connects_in_a_time_is_no_capacity(tmp_path: Path, rule: str, how: str) -> None:
    with serving_by(REFUSING_SERVER, rule, 100, how) as port:
        found = await searched(tmp_path, f"http://127.0.0.1:{port}/", 80, within=0.1, most=1000)
    assert found.pace is not None, words(found)
    assert (found.verdict, found.pace.limits, found.bracket.failed) == ("stopped", "connects_in_a_time", None), words(found)
    # The same count at the first pace, at the slower one, and at the first one again.
    # On a busy host one that was late is tried again.
    first, slower, again = [one for one in found.steps if one.asked == found.pace.asked and one.outcome != "ours"][-3:]
    assert [(one.outcome, one.slower_ramp) for one in (first, slower, again)] == [("failed", False), ("held", True), ("failed", False)]
    assert found.bracket.held >= slower.held == slower.asked > 100 > slower.ramp_per_s
    assert [one.code for one in found.gave_way] == ["connect_rate"]
    require_row("test_a_limit_on_connects_in_a_time_is_no_capacity", found)


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_limit_on_the_number_is_the_same_at_a_slower_pace(tmp_path: Path, how: str) -> None:
    with serving_by(REFUSING_SERVER, "count", 100, how) as port:
        found = await searched(tmp_path, f"http://127.0.0.1:{port}/", 80, within=0.1, most=1000)
    assert found.pace is not None, words(found)
    assert (found.verdict, found.pace.limits) == ("found", "number"), words(found)
    assert found.bracket.held <= 100 < found.bracket.failed, words(found)
    # Who is given up on a busy host makes room for another one: each is served at some time.
    assert 100 <= found.pace.served < found.bracket.failed, words(found)
    assert 100 <= found.pace.served_slower < found.bracket.failed, words(found)
    assert found.steps[-1].slower_ramp, words(found)
    require_row("test_a_limit_on_the_number_is_the_same_at_a_slower_pace", found)


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_server_that_refuses_each_is_not_silent(tmp_path: Path, how: str) -> None:
    with serving_by(REFUSING_SERVER, "ever", 100, how) as port:
        found = await searched(tmp_path, f"http://127.0.0.1:{port}/", 60, within=0.1, most=1000)
    assert (found.verdict, found.bracket) == ("stopped", Bracket(60, 120)), words(found)
    assert (found.steps[-1].outcome, found.steps[-1].served) == ("stopped", 0), words(found)
    assert [one.code for one in found.findings if one.severity != "info"] == ["limit_moved"]
    require_row("test_a_server_that_refuses_each_is_not_silent", found)


# A packet filter that drops connects for which there is no token: 60 at first, and 40 more in each second.
_RATE = """
table inet rate {
    chain input {
        type filter hook input priority 0;
        tcp dport 18080 ct state new limit rate 40/second burst 60 packets accept
        tcp dport 18080 ct state new drop
    }
}
"""


@pytest.mark.nginx
def test_a_packet_filter_that_limits_connects_in_a_time(tmp_path: Path) -> None:
    found = found_in_a_namespace(tmp_path, _RATE)
    assert (found["verdict"], found["bracket"]["failed"]) == ("stopped", None), [(one["asked"], one["held"], one["why"]) for one in found["steps"]]
    assert (found["pace"]["limits"], found["bracket"]["held"] > 60) == ("connects_in_a_time", True), found["pace"]
    first = found["gave_way"][0]
    assert (first["side"], first["code"], first["certain"]) == ("network", "connect_rate", True), found["gave_way"]
    (row,) = (one for one in fault_table.rows() if one.name == "test_a_packet_filter_that_limits_connects_in_a_time")
    fault_table.require_said(row.says, [first["evidence"]])
    failed = report(tmp_path / "steps", found["steps"][-1]["run_file"])
    fault_table.require_counts(row, failed["reconciliation"]["agrees"])
