"""The experiment short-vs-keepalive: a small run on real servers, and conclusions from synthetic rounds."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncli.experiments import load, plan_of
from asyncli.experiments.context import run
from asyncli.experiments.record import Conclusions, Record, Round, Rounds

EXPERIMENT = load("short-vs-keepalive")
SETUPS = ("Apache", "Apache, few children", "Apache, from 5 children", "nginx")
GROWN = SETUPS[2]


async def measure(**changes: Any) -> dict[str, Round]:
    before = set(psutil.Process().children(recursive=True))
    record = await run(EXPERIMENT, plan_of(EXPERIMENT, True, changes), quick=True, say=lambda _: None)
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [one.name() for one in left if one.status() != psutil.STATUS_ZOMBIE]
    return {one["step"]: one for one in record.rounds} | {"record": record}


@pytest.mark.measures
@pytest.mark.usefixtures("apart")  # segments are of all sockets of a network
@pytest.mark.apache
async def test_a_taste_on_apache() -> None:
    found = await measure(connections=6, duration="500ms", traced_requests=606, only=["apache-prefork"])
    for setup in SETUPS[:3]:
        short, kept = found[f"{setup}, short"], found[f"{setup}, kept alive"]
        assert short["failed"] == kept["failed"] == 0
        assert (short["each"], short["kept"]) == (1, 0)
        # MaxKeepAliveRequests counts those after the first; the last of each is answered with notice.
        assert kept["each"] == 101
        assert (kept["processes"] > 14) == (setup == SETUPS[0])
        assert kept["kept"] == pytest.approx(1 - kept["opened"] / kept["total"], abs=0.01)
        # Two segments for each request, and at least as many again for its connection.
        assert short["segments"] > 2 * kept["segments"] > 2
        assert short["io_calls"] > 0
        # Which costs more CPU is not for a second to say.
        assert min(short["server_us"], kept["server_us"]) > 1
        assert all(value > 1e6 for _, value in [*short["pss"], *kept["pss"]])
    # A line of the access log is a write, the only one to a disk; KeepAlive Off ends each connection.
    for way in ("short", "kept alive"):
        logs, plain = found[f"{GROWN}, {way}"], found[f"Apache, {way}"]
        assert logs["disk_bytes"] > plain["disk_bytes"]
        assert logs["io_calls"] > plain["io_calls"] + 0.5
    if "Apache, short: system calls" not in found:
        assert any(one.code == "left_out" for one in found["record"].findings)
        pytest.skip("the rest is of strace, which is not installed or may not trace")
    short, kept = found["Apache, short: system calls"], found["Apache, kept alive: system calls"]
    assert short["requests"] == kept["requests"] == 606
    assert short["calls"]["accept4"] == short["calls"]["shutdown"] == short["opened"] == 606
    assert kept["calls"]["accept4"] == kept["opened"] < 606
    # Each answer is one call.
    assert short["calls"]["writev"] == kept["calls"]["writev"] == 606
    assert kept["all"] < short["all"]


@pytest.mark.nginx
async def test_a_taste_on_nginx_and_a_host_without_strace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **how: None if name == "strace" else WHICH(name, **how))
    found = await measure(connections=4, duration="200ms", only=["nginx"])
    record: Record = found.pop("record")
    short, kept = found["nginx, short"], found["nginx, kept alive"]
    assert (short["failed"], short["each"], kept["failed"], kept["each"]) == (0, 1, 0, 100)
    assert kept["io_calls"] is None
    assert [one.code for one in record.findings] == ["left_out", "quick"]
    assert (len(record.rounds), len(record.conclusions.tables)) == (2, 3)


WHICH = shutil.which


def made(number: int, setup: str, **changes: Any) -> list[Round]:
    """A setup's round in line with the source's claims: short, and kept alive with ``changes``."""
    short: Round = {
        "per_s": 5000.0, "mean_ms": 18.0, "sd_ms": 6.0, "p50_ms": 17.0, "p99_ms": 40.0, "p999_ms": 80.0, "max_ms": 101.0,
        "connect_ms": 8.0, "server_us": 300.0, "client_us": 90.0, "wire_bytes": 1700.0, "segments": 10.0, "io_calls": 6.0,
        "disk_bytes": 80.0, "pss": [[0.0, 2e7], [2.0, 3e7]], "pss_begun_bytes": 2e7, "pss_bytes": 3e7, "busy": [],
    }  # fmt: skip
    kept = short | {
        "per_s": 16000.0, "mean_ms": 5.0, "p999_ms": 900.0, "max_ms": 1409.0, "server_us": 100.0, "wire_bytes": 1500.0, "segments": 2.5,
        "io_calls": 4.0, "disk_bytes": 40.0, "pss_bytes": 4e7,
    } | changes  # fmt: skip
    return [{"step": f"{setup}, short", "round": number, **short}, {"step": f"{setup}, kept alive", "round": number, **kept}]


def concluded(rounds: list[Round]) -> Conclusions:
    return EXPERIMENT.conclude(EXPERIMENT.plan(), Rounds(rounds))


def verdicts(rounds: list[Round]) -> list[str]:
    return [one.verdict for one in concluded(rounds).claims]


TRACED: list[Round] = [
    {"step": f"Apache, {way}: system calls", "round": 0, "requests": 10, "opened": 10, "calls": {"read": n}, "all": n / 10}
    for way, n in (("short", 70), ("kept alive", 40))
]
WHOLE = [*itertools.chain(*(made(number, setup) for number in range(3) for setup in SETUPS)), *TRACED]


def test_what_is_so_in_every_round_holds() -> None:
    assert verdicts(WHOLE) == ["holds"] * 10


@pytest.mark.parametrize(
    ("at", "changes"),
    [(0, {"per_s": 5100.0}), (1, {"server_us": 299.0}), (2, {"wire_bytes": 1700.0}), (3, {"segments": 10.0}), (4, {"io_calls": 6.0}),
     (6, {"pss_bytes": 3e7}), (7, {"mean_ms": 18.0}), (8, {"p999_ms": 80.0})],
)  # fmt: skip
def test_what_is_so_in_none_some_or_not_all_setups(at: int, changes: dict[str, Any]) -> None:
    none = [one for number in range(3) for setup in SETUPS for one in made(number, setup, **changes)]
    assert verdicts(none)[at] == "does not hold"
    some_rounds = [*made(0, GROWN), *made(1, GROWN, **changes), *made(2, GROWN)]
    assert verdicts(some_rounds)[at] == "cannot say"
    one_setup = [one for number in range(3) for one in (*made(number, GROWN), *made(number, "nginx", **changes))]
    assert verdicts(one_setup)[at] == "holds in part"


SOURCE_READS = {"short": "67,716 / about 10,000", "kept alive": "49,720 / about 10,000"}


def test_the_most_frequent_calls_stand_beside_the_sources() -> None:
    table = concluded(WHOLE).tables[-1]
    rows = {row.label: row for row in table.rows}
    assert [row.label for row in table.rows][:2] == ["all", "read"]
    assert (rows["read"].values, rows["read"].source) == ({"short": [7.0], "kept alive": [4.0]}, SOURCE_READS)
    # What the source's Apache called and this one does not.
    assert rows["getsockname"].values == {"short": [0.0], "kept alive": [0.0]}


def test_where_asyncli_was_the_limit_speed_is_not_judged() -> None:
    busy = [*WHOLE, *made(3, "nginx", busy=["generator_saturated_cpu"], per_s=1.0, p999_ms=1.0)]
    found = concluded(busy)
    assert "nginx, kept alive" in found.tables[0].caption
    for at in (0, 8, 9):
        assert found.claims[at].verdict == "holds"
        assert "nginx: " not in found.claims[at].why
    # What a request costs the server is its own.
    assert "nginx: " in found.claims[1].why
    alone = [one for number in range(3) for one in made(number, "nginx", busy=["generator_saturated_cpu"])]
    assert verdicts(alone)[0] == "cannot say"


def test_of_any_part_of_the_rounds_something_is_said_and_never_nonsense() -> None:
    bare = [{"step": one["step"], "round": one["round"]} for one in WHOLE]
    halves = [WHOLE[:at] for at in range(len(WHOLE))] + [WHOLE[at:] for at in range(len(WHOLE))]
    for part in [*halves, bare, [one for one in WHOLE if "kept" in one["step"]], *([one] for one in WHOLE)]:
        found = concluded(part)
        numbers = [value for table in found.tables for row in table.rows for values in row.values.values() for value in values]
        assert all(math.isfinite(value) for value in numbers)
        assert not [one.why for one in found.claims if "nan" in one.why.split() or "None" in one.why]
