"""The preflight's table."""

from __future__ import annotations

import io
import socket

import pytest
from rich.console import Console

from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.report.run_setup import print_checks

_UNKNOWN = Finding("server_processes_unknown", "info", "the server is on another host; its memory is not known")
_FLEET = Finding("cluster", "info", "2 hosts with")


@pytest.mark.parametrize(
    ("findings", "whose"), [([_UNKNOWN], "this host"), ([_UNKNOWN, _FLEET], "the client hosts")], ids=["one host", "a cluster"]
)
def test_last_line_says_whose_limits_were_checked(findings: list[Finding], whose: str) -> None:
    out = io.StringIO()
    spread = Spread((Destination(socket.AF_INET, "10.0.0.8", 80),), (), 1, local=False, ports=28_232)
    print_checks(Plan(urls=("http://10.0.0.8/",)), spread, [], findings, Console(file=out, width=200), tls=None, steps={})
    assert f"no limit of {whose} blocks this plan" in out.getvalue()
