"""Connects that a packet filter refuses or drops before a server that listens, or that a server refuses that listens no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fault_table
import pytest
from full_queue import overflowing
from namespaces import SERVER, Cable
from programs import Program, answered, codes, recorded, report, run, serving_by
from provoked import N, Nginx, an_nginx, struck

ALLOWED, ASKED = 40, 100
_SOAK = ["--ramp", "20/s", "--hold", "2s", "--baseline", "2", "--residue", "0.2", "-k", "2", "--no-reopen", "--quiet", "--out", "run.db"]
# A SYN beyond the first ALLOWED ones is answered with a reset, as by a filter that limits connects.
_FILTER = """
table inet filter {{
    chain input {{
        type filter hook input priority 0;
        tcp dport {port} tcp flags & (syn | ack) == syn limit rate over 1/day burst {allowed} packets reject with tcp reset
    }}
}}
"""


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


def filtered(cable: Cable, stack: ExitStack) -> Nginx:
    """An nginx in the server's namespace, behind a filter of that host."""
    with cable.inside("server"):
        server = stack.enter_context(an_nginx(address=SERVER))
        rules = _FILTER.format(port=server.port, allowed=ALLOWED)
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    return server


def bottleneck(folder: Path, *asked: str) -> dict[str, Any]:
    """The finding gave_way of a soak in which connects were refused, whose report has the fault's row."""
    run(folder, "soak", *asked, "-c", str(ASKED), *_SOAK)
    summary = report(folder, "run.db")
    assert summary["connections"]["failures"].keys() == {"refused"}, summary["connections"]
    (finding,) = (finding for finding in summary["findings"] if finding["code"] == "gave_way")
    return finding


def require_row(test: str, finding: dict[str, Any]) -> None:
    (row,) = (row for row in fault_table.rows() if row.name == test)
    fault_table.require_said(row.says, [finding["evidence"]])


@pytest.mark.nginx
@pytest.mark.namespaces
@pytest.mark.parametrize("where", ["server", "client"])
def test_a_filter_before_a_server_that_listens(cable: Cable, tmp_path: Path, where: str) -> None:
    """The server's sockets are read in its own namespace, also if asyncli is in another one of this host."""
    with ExitStack() as stack:
        server = filtered(cable, stack)
        with cable.inside(where):
            finding = bottleneck(tmp_path, server.url, "--server-pid", str(server.pid))
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("network", "refused", False), finding
    require_row("test_a_filter_before_a_server_that_listens", finding)


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_before_a_server_that_is_not_sampled(cable: Cable, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = filtered(cable, stack)
        with cable.inside("client"):
            finding = bottleneck(tmp_path, server.url)
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("unknown", "refused", False), finding
    require_row("test_a_filter_before_a_server_that_is_not_sampled", finding)


def test_a_server_that_stops_listening(tmp_path: Path) -> None:
    with serving_by(Path(__file__).with_name("bare_server.py"), "closing", 0, ALLOWED) as port:
        finding = bottleneck(tmp_path, f"http://127.0.0.1:{port}/")
    fields = finding["fields"]
    assert (fields["side"], fields["what"], fields["certain"]) == ("server", "refused", True), finding
    require_row("test_a_server_that_stops_listening", finding)


# What arrives is answered by ICMP: administratively prohibited.
_REJECTING = "table ip t {{ chain i {{ type filter hook input priority 0; tcp dport {port} reject with icmp admin-prohibited; }}; }}"


def soak_until_filtered(folder: Path, server: Nginx, rules: str, *asked: str) -> None:
    """A soak of 100 connections whose packets meet ``rules`` once each has had an answer, however late asyncli began."""
    command = ["soak", server.url, "--server-pid", str(server.pid), "-c", "100", *_SOAK, "--ramp", "50/s", "-k", "4", *asked]
    with Program(folder, *command) as program:
        program.until(lambda: answered(folder) >= 100, "all are answered")
        subprocess.run(["nft", rules], check=True)
        program.wait()


@contextmanager
def busy_cpus() -> Iterator[None]:
    """Two programs that each use a CPU as far as they get it."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_that_rejects_on_a_busy_host(cable: Cable, tmp_path: Path) -> None:
    """CPUs that are busy make connects late, but lead none astray."""
    with cable.inside("server"), an_nginx(address=SERVER) as server, busy_cpus():
        soak_until_filtered(tmp_path, server, _REJECTING.format(port=server.port), "--hold", "8s", "--timeout", "2s", "--reopen")
    found, summary = recorded(tmp_path / "run.db"), report(tmp_path, "run.db")
    assert found is not None
    assert summary["connections"]["failures"].keys() == {"unreachable"}, summary["connections"]
    (finding,) = (finding for finding in summary["findings"] if finding["code"] == "gave_way")
    assert finding["fields"]["side"] == "network", finding
    require_row("test_a_filter_that_rejects_on_a_busy_host", finding)
    # A connect whose SYN was rejected waits for the next one: it is not polled without end.
    used = found.series("generator.cpu_s")
    assert used.values[-1] - used.values[0] < 0.2 * (used.t_s[-1] - used.t_s[0]), used


# Answers are longer than 100 bytes; acknowledgements without data pass.
_HOLDING_BACK = "table ip t {{ chain o {{ type filter hook output priority 0; tcp sport {port} ip length gt 100 drop; }}; }}"


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_that_drops_answers(cable: Cable, tmp_path: Path) -> None:
    """The server's sockets show that it answered: only the way back is cut."""
    with cable.inside("server"), an_nginx(address=SERVER) as server:
        soak_until_filtered(tmp_path, server, _HOLDING_BACK.format(port=server.port), "--hold", "10s", "--timeout", "3s")
    summary = report(tmp_path, "run.db")
    assert {diagnosis["code"] for diagnosis in summary["diagnoses"]} == {"path_cut"}, summary["diagnoses"]
    fault_table.require_as_written("test_a_filter_that_drops_answers", summary)


# Each SYN beyond so many is dropped without a word.
_DROPPING = """
table inet filter {{
    chain input {{
        type filter hook input priority 0;
        tcp dport {port} tcp flags & (syn | ack) == syn limit rate over 1/day burst 40 packets drop
    }}
}}
"""


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_beside_a_full_queue_of_another_program(cable: Cable, tmp_path: Path) -> None:
    """Our connects are sent again while ListenOverflows rises, but the server's own sockets drop none."""
    with cable.inside("server"), an_nginx(address=SERVER) as server, overflowing():
        subprocess.run(["nft", "-f", "-"], input=_DROPPING.format(port=server.port), text=True, check=True)
        asked = ["-c", "60", "--ramp", "20/s", "--hold", "2s", "--baseline", "2", "--residue", "0.2", "--connect-timeout", "2s"]
        run(tmp_path, "soak", server.url, *asked, "-k", "2", "--no-reopen", "--quiet", "--out", "run.db")
    found, summary = recorded(tmp_path / "run.db"), report(tmp_path, "run.db")
    assert found is not None
    counter = found.series("tcp.ListenOverflows").values
    assert counter[-1] - counter[0] >= 20
    dropped = found.series("server.listeners_dropped").values
    assert dropped[-1] == dropped[0]
    assert not {"listen_overflows", "listen_drops"} & codes(summary)
    (bottleneck,) = [one for one in summary["findings"] if one["code"] == "gave_way"]
    assert (bottleneck["fields"]["side"], bottleneck["fields"]["what"]) == ("network", "connect_timeout")
    fault_table.require_as_written("test_a_filter_beside_a_full_queue_of_another_program", summary)


# Every packet to the server is answered with a reset.
_RESETTING = """
table inet filter {{
    chain input {{
        type filter hook input priority 0;
        tcp dport {port} reject with tcp reset
    }}
}}
"""


@pytest.mark.nginx
@pytest.mark.namespaces
def test_a_filter_that_resets_open_connections_is_no_backend(cable: Cable, tmp_path: Path) -> None:
    """Heartbeats are reset while they wait, as by a backend's end; but nginx passes nothing on, and still has its sockets."""
    with cable.inside("server"), an_nginx(address=SERVER) as server:

        def strike() -> None:
            subprocess.run(["nft", "-f", "-"], input=_RESETTING.format(port=server.port), text=True, check=True)

        told = struck(tmp_path, server, strike, int(0.9 * N), "--no-reopen", keepalive="2")
    told.show()
    certain = sum(one.count for one in told.diagnoses if (one.code, one.certain) == ("box_reset", True))
    assert certain >= 0.8 * N
    assert "backend_ended" not in {one.code for one in told.diagnoses}
    fault_table.require_as_written("test_a_filter_that_resets_open_connections_is_no_backend", told.summary)
