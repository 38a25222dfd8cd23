"""The preflight's table."""

from __future__ import annotations

import io
import socket

import msgspec
import pytest
from rich.console import Console

from asyncli.engine.spread import Destination, Spread
from asyncli.findings.probes import probe_answered
from asyncli.findings.server import nothing_listens
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding
from asyncli.preflight.host_checks import host_checks
from asyncli.preflight.host_limits import Limits
from asyncli.report.run_setup import check_answer, print_checks

_UNKNOWN = Finding("server_processes_unknown", "info", "the server is on another host; its memory is not known")
_SPREAD = Spread((Destination(socket.AF_INET, "10.0.0.8", 80),), (), 1, local=False, ports=28_232)
_FLEET = Finding("cluster", "info", "2 hosts with")


@pytest.mark.parametrize(
    ("findings", "whose"), [([_UNKNOWN], "this host"), ([_UNKNOWN, _FLEET], "the client hosts")], ids=["one host", "a cluster"]
)
def test_first_line_says_whose_limits_were_checked(findings: list[Finding], whose: str) -> None:
    out = io.StringIO()
    print_checks(Plan(urls=("http://10.0.0.8/",)), _SPREAD, [], findings, Console(file=out, width=200), tls=None, steps={}, server={})
    first = out.getvalue().partition("\n")[0]
    assert (first.startswith("OK: "), f" {whose} " in first) == (True, True)


def low(code: str, have: float, need: float) -> Check:
    return Check(code, code, "warn", have, need, "descriptors", "", "raise it")


@pytest.mark.parametrize(
    ("checks", "findings", "warnings", "worst"),
    [
        ([low("a", 100, 200)], [], 1, "a"),
        ([low("a", 100, 200), low("b", 20_000, 1_000_000)], [], 2, "b"),
        ([low("a", 100, 200)], [probe_answered("http://127.0.0.1/", 404, False)], 2, "http://127.0.0.1/"),
        ([], [Finding("server_processes_unknown", "warning", "nobody knows", "as root")], 1, "nobody knows"),
        ([low("a", 100, 200)], [_UNKNOWN], 1, "a"),
    ],
)
def test_a_warning_is_not_ok(checks: list[Check], findings: list[Finding], warnings: int, worst: str) -> None:
    answer, _ = check_answer(checks, findings)
    begin = f"A soak will start, with {warnings} warning{'s' if warnings > 1 else ''}"
    assert (answer.startswith(begin), f": {worst}" in answer, "OK" in answer) == (True, True, False), answer


@pytest.mark.parametrize(("connections", "plateaus", "too_short"), [(3000, 0, True), (3000, 3, False), (7000, 0, False)])
def test_a_ramp_too_short_for_a_slope_is_said(connections: int, plateaus: int, too_short: bool) -> None:
    out = io.StringIO()
    plan = Plan(urls=("http://10.0.0.8/",), connections=connections, plateaus=plateaus)
    print_checks(plan, _SPREAD, [], [], Console(file=out, width=200), tls=None, steps={}, server={})
    assert ("(--ramp 100/s)" in out.getvalue()) is too_short


def test_the_first_line_names_a_closed_port_and_says_nothing_twice() -> None:
    for one, ok in ((nothing_listens("port 80", None, None, "x"), 0), (_UNKNOWN, 1)):
        out = io.StringIO()
        print_checks(Plan(urls=("http://127.0.0.1/",)), _SPREAD, [], [one], Console(file=out, width=200), tls=None, steps={}, server={})
        assert (out.getvalue().count("OK:"), out.getvalue().count(_UNKNOWN.evidence)) == (ok, ok)


@pytest.mark.parametrize(("local", "whose"), [(True, "for a server as light as nginx"), (False, "without the server")])
def test_the_row_of_memory_says_whose_part_it_holds(local: bool, whose: str) -> None:
    spread = msgspec.structs.replace(_SPREAD, local=local)
    (memory,) = (one for one in host_checks(Plan(urls=("http://10.0.0.8/",)), spread, Limits(memory_available=10**9)) if one.code == "memory")
    assert memory.what.endswith(whose)
