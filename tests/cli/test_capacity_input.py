"""``asyncli capacity``: what it refuses in one line, what limits a step gets, what its page says of the JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asyncli.cli.capacity import LIMITS, _with_limits
from asyncli.cli.main import run
from asyncli.plan import Layer, build_plan
from asyncli.report.capacity_report import Capacity, Step

URL = "http://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no URL given; write one, for example http://127.0.0.1:8080/"),
        ([URL, "--start", "0"], "--start: '0' is below 1; write a whole number from 1"),
        ([URL, "--most", "11M"], "--most: '11M' is more than one run is built for; write at most 10M"),
        ([URL, "--start", "5", "--most", "3"], "--start: 5 is more than --most 3; write at most that"),
        ([URL, "--within", "0"], "--within: '0' is no share of the answer; write a percentage from 0.1% to 50%"),
        ([URL, "--within", "close"], "--within: 'close' is no share of the answer; write a percentage from 0.1% to 50%"),
        ([URL, "--hold", "forever"], "--hold: 'forever' never ends; write a time, for example 20s"),
        ([URL, "--hold", "until 23:59"], "--hold: 'until 23:59' is one instant, and each step has a hold; write a time, for example 20s"),
        ([URL, "--fail-if", "lots > 1"], "--fail-if: 'lots' is no number of a run; did you mean 'lost'?"),
        ([URL, "--most", "2", "--start", "1", "--out", "/proc/none/there"], "--out: /proc/none/there cannot be made"),
        ([URL, "--most", "2", "--start", "1", "--out", "."], "--out: . exists already; name a new folder"),
        ([URL, "--json", "/proc/none/out.json"], "--json: /proc/none/out.json lies in a folder that does not exist"),
        ([URL, "-c", "5"], "No such option"),
        ([URL, "--most", "2", "--start", "1", "--status-url", f"{URL}nope"], f"status page {URL}nope: cannot be read"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(
    arguments: list[str], line: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["capacity", "--residue", "1", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"asyncli: {line}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_user_s_stands_in_place_of_ours_on_that_number() -> None:
    given = ("lost > 1%", "cost.server_user > 9KB", "heartbeats.latency_ms.p99 > 50ms")
    plan = _with_limits(build_plan([Layer("{key}", {"urls": [URL], "fail_if": list(given)})]), given)
    assert plan.abort
    assert plan.fail_if == (*given, "connections.failed > 0", *LIMITS[3:])
    assert _with_limits(plan, ()).fail_if == LIMITS


def test_every_key_of_the_json_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/capacity.md").read_text(encoding="utf-8")
    keys = page.partition("## JSON")[2]
    for struct in (Capacity, Step):
        for field in msgspec.structs.fields(struct):
            assert field.encode_name in keys, field.encode_name
