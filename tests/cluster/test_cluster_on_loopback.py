"""A cluster as its user meets it: wrong addresses, foreign workers, certificates, signals, notebooks. One host, this one.

What waits has lanes; what is refused at once runs here meanwhile.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from fault_table import require_as_written
from hosts import Dask, Hosts, clustered
from lanes import Lanes, Running
from programs import (
    DEADLINE_S,
    Done,
    Program,
    Server,
    answered,
    codes,
    done_of,
    held,
    here,
    recorded,
    report,
    require_whole,
    serving,
    told,
    until,
    was_late,
)

import asyncli
from asyncli.cli.soak import _require_same_hosts
from asyncli.cluster.actor import HostActor
from asyncli.cluster.link import Cluster, connect_error
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.store.resume import read_interrupted

SHORT = ("-k", "4", "--ramp", "50/10ms", "--baseline", "0.2", "--residue", "0.2", "--json", "run.json", "--out", "run.db")
lanes = Lanes()


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from lanes.start(request, tmp_path_factory)


class There(NamedTuple):
    hosts: Hosts
    workers: tuple[Dask, ...]
    server: Server

    @property
    def address(self) -> str:
        return self.hosts.address

    def until_free(self) -> None:
        for worker in self.workers:
            worker.until_free()

    def any_host(self) -> bool:
        return any(worker.hosts() for worker in self.workers)

    def holding(self, folder: Path, *more: str) -> Program:
        return Program(folder, "soak", self.server.url, "--cluster", self.address, "-c", "100", "--hold", "10m", *SHORT, *more)


@contextmanager
def cluster(folder: Path) -> Iterator[There]:
    """Two Dask workers on one host, which count as one host."""
    with clustered(folder) as hosts, serving() as server:
        yield There(hosts, (hosts.worker(), hosts.worker()), server)


@contextmanager
def empty_cluster(folder: Path) -> Iterator[There]:
    with clustered(folder) as hosts, serving() as server:
        yield There(hosts, (), server)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A scheduler without workers; tests start them."""
    with clustered(tmp_path_factory.mktemp("empty")) as hosts:
        yield hosts


def soak(folder: Path, server: Server, address: str, *arguments: str) -> Done:
    return here(folder, "soak", server.url, "--cluster", address, "-c", "100", "--hold", "1", *SHORT, *arguments)


def one_line(folder: Path, server: Server, address: str, *arguments: str) -> str:
    """The error line of a soak that is refused before it opens anything."""
    before = server.accepts
    done = soak(folder, server, address, *arguments)
    assert (done.status, done.err.count("\n"), server.accepts) == (2, 1, before), done.err
    assert not (folder / "run.db").exists()
    return done.err


def test_fewer_hosts_than_were_asked_for_are_refused(
    running: Running, tmp_path: Path, empty: Hosts, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncli.cluster.link._HOSTS_WAIT_S", 2.0)
    empty.worker()
    done = here(tmp_path, "check", server.url, "--cluster", empty.address, "--cluster-hosts", "2")
    assert (done.status, done.out) == (2, "")
    _, refused = done.err.splitlines()
    assert "--cluster-hosts: 1 of 2 " in refused


def test_an_address_without_a_scheduler(tmp_path: Path, server: Server) -> None:
    with serving() as other:
        for port in (1, other.port):
            assert f"tcp://127.0.0.1:{port}" in one_line(tmp_path, server, f"tcp://127.0.0.1:{port}")


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['distributed'] = None\nfrom asyncli.cli.main import main\nmain()"
    asked = ["soak", "http://127.0.0.1:1/", "--cluster", "tcp://127.0.0.1:8786"]
    done = subprocess.run([sys.executable, "-c", code, *asked], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "asyncli[dask]" in done.stderr


def test_no_worker_or_one_with_another_asyncli(tmp_path: Path, empty: Hosts, server: Server) -> None:
    """No worker; one with another version of asyncli; one without asyncli."""
    empty.stop_workers()
    assert f"dask worker {empty.address}" in one_line(tmp_path, server, empty.address)
    kinds = {
        "import asyncli; asyncli.__version__ = '0.0.9'": "0.0.9",
        "import sys\nclass Without:\n    def find_spec(self, name, *_):\n        if name.startswith('asyncli'): "
        "raise ModuleNotFoundError(f'No module named {name!r}')\nsys.meta_path.insert(0, Without())": "; install",
    }
    for change, said in kinds.items():
        preload = tmp_path / "preload.py"
        preload.write_text(change)
        empty.stop_workers()
        empty.worker(None, "--preload", str(preload))
        assert said in one_line(tmp_path, server, empty.address)


def test_a_bug_of_the_actor_does_not_hide(tmp_path: Path, empty: Hosts, server: Server) -> None:
    empty.stop_workers()
    preload = tmp_path / "preload.py"
    preload.write_text(
        "from asyncli.collect.processes import ProcessGroup as p\n"
        "def memory(self, old=p.memory, left=[3]):\n    if not left[0]: raise RuntimeError('a bug')\n    left[0] -= 1\n    return old(self)\n"
        "p.memory = memory\n"
    )
    worker = empty.worker(None, "--preload", str(preload))
    done = soak(tmp_path, server, empty.address, "--hold", "10m")
    worker.until_free()
    assert (done.status, "Traceback" in done.err) == (4, False)
    (lost,) = (one["fields"] for one in report(tmp_path, "run.db")["findings"] if one["code"] == "host_lost")
    assert lost["held"] == 100


def certificates(folder: Path, name: str, lasts: datetime.timedelta) -> tuple[str, ...]:
    """An authority and its certificate, valid for ``lasts`` from now, as flags of a Dask scheduler or worker."""
    import trustme

    folder = folder / name
    folder.mkdir()
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost", not_after=datetime.datetime.now(datetime.UTC) + lasts)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    return ("--tls-ca-file", str(folder / "ca.pem"), "--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))


def flags_of(files: tuple[str, ...]) -> tuple[str, ...]:
    return ("--cluster-ca", files[1], "--cluster-cert", files[3], "--cluster-key", files[5])


def test_tls_requires_a_valid_certificate(tmp_path: Path, server: Server) -> None:
    day = datetime.timedelta(days=1)
    ours, strangers, expired = (
        certificates(tmp_path, name, lasts) for name, lasts in (("ours", day), ("strangers", day), ("expired", -day))
    )
    with clustered(tmp_path, more=ours) as cluster:
        worker = cluster.worker()
        done = soak(tmp_path, server, cluster.address, *flags_of(ours))
        summary = report(tmp_path, "run.db")
        require_whole(done.status, summary)
        assert done.err == ""
        assert "cluster_open" not in codes(summary)
        (tmp_path / "run.db").unlink()
        one_line(tmp_path, server, cluster.address, *flags_of(strangers))
        assert one_line(tmp_path, server, cluster.address.replace("tls", "tcp")).endswith("write tls://\n")
        # Refused: an expired certificate, one of another authority, one with another's key.
        for cert, key in ((expired[3], expired[5]), (strangers[3], strangers[5]), (ours[3], strangers[5])):
            one_line(tmp_path, server, cluster.address, "--cluster-ca", ours[1], "--cluster-cert", cert, "--cluster-key", key)
        worker.until_free()


def shard(there: There) -> bytes:
    plan = Plan(urls=(there.server.url,), connections=10)
    return msgspec.msgpack.encode(build_shard(plan, Spread((Destination(2, "127.0.0.1", there.server.port),), (), 1, True, 28_232)))


@lanes(cluster)
def test_an_actor_that_is_closed_at_any_moment_leaves_nothing(folder: Path, there: There) -> None:
    """Calls are separate messages: ``close`` may arrive before or during ``open``."""
    from distributed import Client

    async def provoke() -> None:
        async with Client(there.address, asynchronous=True, set_as_default=False) as client:
            for after_s in (None, 0.0, 0.002, 0.01, 0.05):
                with client.as_current():
                    actor = await client.submit(HostActor, "a test", actor=True, pure=False)
                if after_s is None:
                    await actor.close()
                    assert await actor.open(shard(there))
                else:
                    opening = asyncio.ensure_future(actor.open(shard(there)))
                    await asyncio.sleep(after_s)
                    await actor.close()
                    await opening
                assert not there.any_host(), after_s

    asyncio.run(provoke())


@lanes(cluster)
def test_two_signals_in_any_phase_leave_nothing_anywhere(folder: Path, there: There) -> None:
    for phase, *long in (("start",), ("ramp", "--ramp", "1/1s")):
        (mine := folder / phase).mkdir()
        with there.holding(mine, *long) as program:
            if phase == "start":
                program.until(there.any_host, "a host process starts")
            else:
                program.until_phase(phase)
            # Two kinds: two signals of one kind may be merged.
            program.signal(signal.SIGTERM)
            program.signal(signal.SIGINT)
            assert program.wait().status == 130
            assert "Traceback" not in program.err
            program.until_gone()
        there.until_free()


@lanes(cluster)
def test_a_killed_session_leaves_nothing_anywhere_and_its_run_can_be_resumed(folder: Path, there: There) -> None:
    with there.holding(folder) as program:
        program.until(lambda: held(folder) == 100, "all are on record")
        program.signal(signal.SIGKILL)
        program.until_gone()
    with pytest.raises(PlanError, match=re.escape(f"--cluster {there.address}")):
        _require_same_hosts(read_interrupted(folder / "run.db"), None)
    before = recorded(folder / "run.db")
    # At once, as a service manager does: it waits for hosts that are still held.
    with Program(folder, "soak", "--resume", "run.db", "--cluster", there.address) as program:
        program.until(lambda: held(folder) == 100 and ticks(folder) > len(before.ticks) + 3, "all are held again")
        assert there.any_host()
        program.signal()
        done = program.wait()
        program.until_gone()
    there.until_free()
    assert (done.status, done.err) == (4, "")
    summary = report(folder, "run.db")
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (100, {"generator_lost": 100})
    assert (summary["connections"]["opened"], summary["connections"]["reopened"]) == (200, 100)
    require_as_written("test_a_killed_session_leaves_nothing_anywhere_and_its_run_can_be_resumed", summary)
    # The CPU time of the hosts' processes continues.
    now = recorded(folder / "run.db")
    used = [one.values["generator.cpu_s"] for one in now.samples if "generator.cpu_s" in one.values]
    assert used == sorted(used)


def ticks(folder: Path) -> int:
    run = recorded(folder / "run.db")
    return len(run.ticks) if run is not None else 0


@lanes(cluster)
def test_from_a_notebook_two_workers_of_one_host_are_one_actor(folder: Path, there: There) -> None:
    from distributed import Client

    async def cell() -> None:
        client = await asyncio.to_thread(Client, there.address)
        try:
            settings = {"connections": 100, "ramp": "50/10ms", "hold": 1, "baseline": 0.2, "residue": 0.2}
            recorded = await asyncli.soak(there.server.url, folder / "run.db", cluster=client, **settings)
            verdict = "invalid" if was_late(report(folder, "run.db")) else "passed"
            assert (recorded.verdict, recorded.summary.connections.held) == (verdict, 100)
            # The notebook's client still works.
            assert await asyncio.to_thread(lambda: client.submit(sum, [1, 2]).result()) == 3
        finally:
            await asyncio.to_thread(client.close)

    asyncio.run(cell())
    (one,) = report(folder, "run.db")["environment"]["cluster"]["hosts"]
    assert (one["connections"], one["workers"]) == (100, 1)
    there.until_free()


@pytest.mark.parametrize(
    ("address", "files", "said"),
    [
        ("scheduler:8786", {}, "tcp://host:8786"), ("tcp://127.0.0.1:1", {"ca": "ca.pem"}, "--cluster-ca"),
        ("tls://127.0.0.1:1", {"ca": "ca.pem"}, "--cluster-cert, --cluster-key"), ("tls://127.0.0.1:1", {}, "tls:// needs"),
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused(address: str, files: dict[str, str], said: str) -> None:
    with pytest.raises(PlanError) as raised:
        Cluster.at(address, **files)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


# Each was seen with a real scheduler; which one occurs is partly chance.
@pytest.mark.parametrize(
    ("scheme", "reason", "write"),
    [
        ("tcp", "[Errno 104] Connection reset by peer", "tls://"),
        ("tcp", "Stream is closed", "tls://"),
        ("tls", "EOF occurred in violation of protocol (_ssl.c:2427)", "tcp://"),
        ("tls", "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)", "tcp://"),
        ("tls", "IOStream is not idle; cannot convert to SSL", "tcp://"),
    ],
)
def test_another_listener_is_not_called_missing(scheme: str, reason: str, write: str) -> None:
    assert connect_error(f"{scheme}://10.0.0.7:8786", reason).endswith(f"write {write}")


@lanes(empty_cluster)
def test_a_scheduler_that_dies_and_is_started_anew(folder: Path, there: There) -> None:
    worker = there.hosts.worker()
    with there.holding(folder) as program:
        program.until(lambda: held(folder) == 100, "all are held")
        there.hosts.scheduler.kill()
        program.until(lambda: "hosts_all_lost" in told(folder) and held(folder) == 0, "it says that it waits")
        worker.until_free()
        there.hosts.schedule_anew()
        worker = there.hosts.worker()
        program.until(lambda: held(folder) == 100, "all are held again")
        program.signal()
        done = program.wait()
        program.until_gone()
    worker.until_free()
    assert (done.status, done.err) == (4, "")
    summary = report(folder, "run.db")
    assert "host_lost" in codes(summary)
    require_as_written("test_a_scheduler_that_dies_and_is_started_anew", summary)
    connections = summary["connections"]
    assert (connections["opened"], connections["deaths"], connections["held"]) == (200, {"generator_lost": 100}, 100)


@lanes(empty_cluster)
def test_where_no_host_is_left_a_stop_ends_it_and_so_does_a_while(folder: Path, there: There) -> None:
    there.hosts.stop_workers()
    worker = there.hosts.worker()
    code = "import asyncli.cluster.generator as g; g.NO_HOST_S = 3.0\nfrom asyncli.cli.main import main\nmain()"
    asked = ("soak", there.server.url, "--cluster", there.address, "-c", "100", "--hold", "10m", *SHORT)
    with subprocess.Popen([sys.executable, "-c", code, *asked], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as soak:
        try:
            until(lambda: held(folder) == 100 and answered(folder), "all are held, and have been answered")
            os.kill(worker.pid, signal.SIGTERM)
            until(lambda: "hosts_all_lost" in told(folder), "it says that it waits")
            status = soak.wait(DEADLINE_S)
            assert (status, done_of(status, "", soak.stderr.read()).err) == (4, "")
        finally:
            soak.kill()
    found = report(folder, "run.db")
    assert "generator_failed" in codes(found)
    assert found["connections"]["deaths"] == {"generator_lost": 100}
    require_as_written("test_where_no_host_is_left_a_stop_ends_it_and_so_does_a_while", found)


@lanes(empty_cluster)
def test_it_waits_for_the_requested_hosts(folder: Path, there: There) -> None:
    there.hosts.stop_workers()
    asked = ("-c", "10", "--hold", "0.2", *SHORT, "--cluster-hosts", "1")
    with Program(folder, "soak", there.server.url, "--cluster", there.address, *asked) as program:
        program.until(lambda: "waiting up to 60 s" in program.err, "it says that it waits")
        there.hosts.worker()
        done = program.wait()
        require_whole(done.status, report(folder, "run.db"))
        assert done.err == ""
    (again := folder / "again").mkdir()
    with Program(again, "soak", there.server.url, "--cluster", there.address, *asked[:-1], "2") as program:
        program.until(lambda: "waiting up to 60 s" in program.err, "it says that it waits")
        program.signal()
        done = program.wait()
        assert (done.status, done.err.count("\n")) == (130, 1)
