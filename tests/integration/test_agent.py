"""A soak that samples the server's host through an agent there: nginx and agent in a network namespace whose status page answers
to nobody else, the soak in another one."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from agents import TOKEN, AnAgent, token_file
from fault_table import require_as_written
from lanes import Lanes, Running
from namespaces import SERVER, WATCHED, Cable
from programs import Program, codes, recorded, report, require_whole, run, told, was_late
from programs import held as connections
from provoked import Nginx, an_nginx

from asyncli.model.run import Run
from asyncli.model.samples import series
from asyncli.store.reader import read_run

pytestmark = [pytest.mark.nginx, pytest.mark.namespaces]
# Between heartbeats there is time for what is done to the agent.
HELD = ("-c", "100", "--baseline", "1", "--residue", "0.2", "--keepalive", "4", "--interval", "5ms")
#: What nobody but the agent reads: the soak on the same host reads of it what each network namespace has for itself.
OF_AGENT = ("agent.", "server.", "status.", "host.")
lanes = Lanes()


class Stage(NamedTuple):
    cable: Cable
    nginx: Nginx


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from lanes.start(request, tmp_path_factory)


@contextmanager
def staged(_: Path) -> Iterator[Stage]:
    """An nginx at the far end of a cable; its status page answers on that namespace's loopback alone."""
    with Cable() as cable, ExitStack() as stack:
        # Only what is started there is there: its tests are on either side.
        with cable.inside("server"):
            nginx = stack.enter_context(an_nginx(address=SERVER))
        yield Stage(cable, nginx)


# Each the stage of a lane of its own.
plain, lost, resumed, ended = (partial(staged) for _ in range(4))


def agent(cable: Cable, nginx: Nginx, folder: Path, *more: str | Path, listen: str = f"{SERVER}:0", name: str = "agent") -> AnAgent:
    with cable.inside("server"):
        return AnAgent(folder, "--status-url", nginx.status_url, "--token-file", token_file(folder), *more, listen=listen, name=name)


def soak(cable: Cable, folder: Path, nginx: Nginx, url: str, *more: str | Path, name: str = "soak") -> Program:
    with cable.inside("client"):
        where = ("--agent", url, "--agent-token-file", folder / "token", "--out", "run.db")
        return Program(folder, "soak", nginx.url, *where, *more, name=name)


def found(run: Run | None, code: str) -> list[dict[str, Any]]:
    return [] if run is None else [finding.fields for finding in run.findings if finding.code == code]


@lanes(plain)
def test_what_the_agent_reads_is_the_servers_and_is_sent_over_tls(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    authority = trustme.CA()
    certificate = authority.issue_cert(SERVER)
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "agent.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with agent(cable, nginx, tmp_path, "--tls-cert", tmp_path / "agent.pem") as there:
        assert there.url.startswith("https://")
        asked = (*HELD, "--hold", "3", "--agent-ca", tmp_path / "ca.pem", "--json", "run.json")
        with soak(cable, tmp_path, nginx, there.url, *asked) as held:
            done = held.wait()
            held.until_gone()
        require_whole(done.status, report(tmp_path, "run.db"))
        assert done.err == ""
        there.signal(signal.SIGTERM)
        assert there.wait().status == 0
        there.until_gone()
    summary = json.loads((tmp_path / "run.json").read_text())
    counts, both = summary["connections"], summary["reconciliation"]
    assert (counts["held"], counts["lost"], counts["failed"]) == (100, 0, 0)
    assert (both["client_held"], both["server_active"], both["accepts_delta"], both["agrees"]) == (100, 100, 100, True)
    assert summary["server"]["processes"] == {"baseline": 3, "hold_end": 3}
    assert summary["environment"]["server"]["label"] == nginx.label
    where = summary["environment"]["agent"]
    assert (where["same_host"], where["same_network"], where["url"]) == (True, False, there.url)
    # Both clocks are one and the same.
    assert abs(where["clock_offset_s"]) <= where["clock_error_s"] < 0.1
    assert summary["environment"]["local"] is True
    # Its limits and nginx's are checked as if it were here.
    assert {"nginx_worker_connections", "nginx_backlog", "memory"} <= {check.code for check in read_run(tmp_path / "run.db").checks}
    names = set(read_run(tmp_path / "run.db").samples.metrics)  # type: ignore[attr-defined]
    assert {"status.active", "server.pss_bytes", "kernel.socket_bytes", "host.used_bytes", "agent.cpu_s", "tcp.RetransSegs"} <= names
    # Of this host only what each network namespace has for itself is read again.
    assert {"generator.cpu_s", "session.cpu_s", "client.tcp.RetransSegs", "client.kernel.tcp_inuse"} <= names
    assert not {"client.host.used_bytes", "client.kernel.socket_bytes"} & names
    assert TOKEN not in (tmp_path / "run.db").read_bytes().decode("latin-1") + done.out + there.err


@lanes(plain)
def test_an_agent_on_another_host_has_one_end_of_each_connection(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    # The soak is told that it was booted another time: to it the agent's host is another one.
    (tmp_path / "boot_id").write_text("00000000-0000-0000-0000-000000000001\n")
    booted = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', str(tmp_path / "boot_id"))
    with agent(cable, nginx, tmp_path) as there, cable.inside("client"):
        asked = ("--agent", there.url, "--agent-token-file", tmp_path / "token", *HELD, "--hold", "1", "-v", "--out", "run.db")
        done = run(tmp_path, "soak", nginx.url, *asked, before=booted)
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert done.err == ""
    recorded = read_run(tmp_path / "run.db")
    assert recorded.environment["local"] is False
    assert recorded.environment["agent"]["same_host"] is False
    names = set(recorded.samples.metrics)  # type: ignore[attr-defined]
    assert {"kernel.socket_bytes", "host.used_bytes", "client.host.used_bytes", "client.tcp.RetransSegs", "client.kernel.socket_bytes"} <= names
    assert {"far_memory", "far_file_max", "nginx_backlog", "memory", "nginx_nofile"} <= {check.code for check in recorded.checks}
    assert summary["reconciliation"]["agrees"] is True
    assert "far_file_max" in {one["name"] for one in summary["forecast"]["ceilings"]}


@lanes(lost)
def test_an_agent_that_is_cut_off_stopped_or_killed_is_told_and_so_is_its_return(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    with agent(cable, nginx, tmp_path, listen=f"{WATCHED}:0") as there, soak(cable, tmp_path, nginx, there.url, *HELD, "--hold", "10m") as held:

        def until_told(code: str, times: int) -> None:
            held.until(lambda: len(found(recorded(tmp_path / "run.db"), code)) == times, f"{code}, {times}")

        held.until_phase("hold")
        # The other cable, on which nothing but the agent is asked.
        watching(cable, "down")
        until_told("agent_lost", 1)
        watching(cable, "up")
        until_told("agent_back", 1)
        there.signal(signal.SIGSTOP)
        until_told("agent_lost", 2)
        there.signal(signal.SIGCONT)
        until_told("agent_gap", 1)
        there.signal(signal.SIGKILL)
        until_told("agent_lost", 3)
        with agent(cable, nginx, tmp_path, listen=f"{WATCHED}:{there.port}", name="again"):
            until_told("agent_gap", 2)
            held.signal()
            status = held.wait().status
    kept = read_run(tmp_path / "run.db")
    # What the cut kept back was sent later: the two longest gaps of the samples are told, and a busy host's shorter ones are not.
    # Any of its readings may lack in a sample, of those that were not done as it was stopped: a page that never answers, its own CPU.
    pairs = itertools.pairwise(one.t_s for one in kept.samples if any(name.startswith(OF_AGENT) for name in one.values))
    gaps = sorted(sorted(pairs, key=lambda pair: pair[0] - pair[1])[:2])
    told_of = [(one["from_s"], one["to_s"]) for one in found(kept, "agent_gap")]
    assert list(itertools.chain(*gaps)) == pytest.approx(list(itertools.chain(*told_of)), abs=0.01)
    polls = series(kept.samples, "status.polls").values
    assert all(a < b for a, b in itertools.pairwise(polls))
    summary = report(tmp_path, "run.db")
    require_whole(status, summary)
    assert summary["run"]["verdict"] == ("invalid" if was_late(summary) else "passed")
    require_as_written("test_an_agent_that_is_cut_off_stopped_or_killed_is_told_and_so_is_its_return", summary)
    assert "server_ended" not in codes(summary)


@lanes(ended)
def test_an_agent_that_never_comes_back_is_a_gap_to_the_end(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    with agent(cable, nginx, tmp_path) as there, soak(cable, tmp_path, nginx, there.url, *HELD, "--hold", "2") as held:
        held.until_phase("hold")
        there.signal(signal.SIGKILL)
        status = held.wait().status
        held.until_gone()
    summary = report(tmp_path, "run.db")
    require_whole(status, summary)
    require_as_written("test_an_agent_that_never_comes_back_is_a_gap_to_the_end", summary)
    assert summary["connections"]["held"] == 100


@lanes(resumed)
def test_a_killed_session_is_resumed_once_its_agent_has_let_it_go(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    with agent(cable, nginx, tmp_path) as there:
        with soak(cable, tmp_path, nginx, there.url, *HELD, "--hold", "60") as held:
            held.until(lambda: connections(tmp_path) == 100, "all are on record")
            held.signal(signal.SIGKILL)
            held.until_gone()
        # At once, as a service manager would.
        with cable.inside("client"):
            asked = ("--agent", there.url, "--agent-token-file", tmp_path / "token")
            again = Program(tmp_path, "soak", "--resume", "run.db", *asked, name="again")
        with again:
            again.until(lambda: "resumed" in told(tmp_path) and connections(tmp_path) == 100, "all are held again")
            again.signal()
            assert again.wait().status == 4
    kept = read_run(tmp_path / "run.db")
    assert len(found(kept, "resumed")) == 1
    assert not {"agent_lost", "agent_restarted"} & {finding.code for finding in kept.findings}


@lanes(ended)
def test_a_server_that_ends_is_told_by_the_agent(tmp_path: Path, stage: Stage) -> None:
    cable, nginx = stage
    with agent(cable, nginx, tmp_path) as there, soak(cable, tmp_path, nginx, there.url, *HELD, "--hold", "60") as held:
        held.until_phase("hold")
        nginx.kill(signal.SIGKILL)
        held.until(lambda: told(tmp_path) >= {"server_ended", "status_lost"}, "the agent says so")
        held.signal()
        status = held.wait().status
    summary = report(tmp_path, "run.db")
    require_whole(status, summary, 99)
    # By the run's own clock, which began seconds ago.
    assert found(read_run(tmp_path / "run.db"), "server_ended")[0]["at_s"] < 600
    require_as_written("test_a_server_that_ends_is_told_by_the_agent", summary)


def watching(cable: Cable, state: str) -> None:
    with cable.inside("client"):
        subprocess.run(["ip", "link", "set", "eth1", state], check=True)
