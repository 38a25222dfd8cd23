"""``asyncli capacity``: the limits of a step, and the documentation of its JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncli.cli.capacity import LIMITS, _with_limits
from asyncli.model.plan import Layer, build_plan
from asyncli.report.capacity_report import Capacity
from asyncli.report.capacity_step import Step

URL = "http://127.0.0.1:1/"


def test_user_limit_replaces_the_default_on_its_number() -> None:
    given = ("lost > 1%", "cost.server_user > 9KB", "heartbeats.latency_ms.p99 > 50ms")
    plan = _with_limits(build_plan([Layer("{key}", {"urls": [URL], "fail_if": list(given)})]), given)
    assert plan.abort
    assert plan.fail_if == (*given, "connections.failed > 0")
    assert _with_limits(plan, ()).fail_if == LIMITS


def test_every_key_of_the_json_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/capacity.md").read_text(encoding="utf-8")
    keys = page.partition("## JSON")[2]
    for struct in (Capacity, Step):
        for field in msgspec.structs.fields(struct):
            assert field.encode_name in keys, field.encode_name
