"""Short against persistent connections: a taste on the real servers, and what made-up rounds come to."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncli.core.histogram import Histogram
from asyncli.experiments import load, plan_of
from asyncli.experiments.record import Claim, Conclusions, Record, Round
from asyncli.experiments.run import run
from asyncli.experiments.short_vs_keepalive import conclude, slower

EXPERIMENT = load("short-vs-keepalive")
SETUPS = ("Apache", "Apache, two ports", "Apache, few children", "nginx")
FEW = SETUPS[2]


async def measure(**changes: Any) -> Record:
    record = await run(EXPERIMENT, plan_of(EXPERIMENT, True, changes), quick=True, say=lambda _: None)
    assert not [one.name() for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    return record


def of(record: Record, step: str) -> Round:
    (found,) = [one for one in record.rounds if one["step"] == step]
    return found


@pytest.mark.apache
async def test_a_taste_on_apache() -> None:
    record = await measure(connections=6, duration="1s", traced_requests=606, only=["apache-prefork"])
    for setup in SETUPS[:3]:
        short, kept = of(record, f"{setup}, short"), of(record, f"{setup}, kept alive")
        assert short["failed"] == kept["failed"] == 0
        assert (short["each"], short["kept"]) == (1, 0)
        # MaxKeepAliveRequests counts those after the first; the last of each is answered with notice.
        assert kept["each"] == 101
        assert kept["kept"] == pytest.approx(1 - kept["first"] / 1000, abs=0.01)
        # Two segments for each request, and at least as many again for its connection.
        assert short["segments"] > 2 * kept["segments"] > 2
        assert short["io_calls"] > 0
        # Which costs more CPU is not for a second to say.
        assert min(short["server_us"], kept["server_us"]) > 1
        assert all(value > 1e6 for _, value in [*short["pss"], *kept["pss"]])
        assert kept["queue_ms"] > 0 if setup.endswith("children") else kept["queue_ms"] == 0
    if shutil.which("strace") is None or any("strace may not" in one.evidence for one in record.findings):
        pytest.skip("the rest is of strace, which is not installed or may not trace")
    short, kept = of(record, "Apache, short: system calls"), of(record, "Apache, kept alive: system calls")
    assert short["requests"] == kept["requests"] == 606
    assert short["calls"]["accept4"] == short["calls"]["shutdown"] == short["opened"] == 606
    assert kept["calls"]["accept4"] == kept["opened"] < 606
    # Each answer is one call.
    assert short["calls"]["writev"] == kept["calls"]["writev"] == 606
    assert kept["all"] < short["all"]


@pytest.mark.nginx
async def test_a_taste_on_nginx_and_a_host_without_strace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = await measure(connections=4, duration="200ms", only=["nginx"])
    short, kept = of(record, "nginx, short"), of(record, "nginx, kept alive")
    assert (short["failed"], short["each"], kept["failed"], kept["each"]) == (0, 1, 0, 100)
    assert (kept["children"], kept["queue_ms"], kept["io_calls"]) == (None, None, None)
    assert [one.remedy for one in record.findings if one.code == "left_out"] == ["install it (apt-get install strace)"]
    assert len(record.rounds) == 2
    assert {one.title for one in record.conclusions.tables} == {"Short against kept alive", "For each request", "Memory"}


def test_the_slow_ones_are_counted_by_the_median() -> None:
    histogram = Histogram()
    histogram.add_counts({10: 98, 120: 2})
    assert slower(histogram, 10) == (0.02, 120.0)
    assert slower(histogram, 20) == (0.0, None)
    assert slower(Histogram(), 10) == (None, None)


def made(number: int, setup: str, **changes: Any) -> list[Round]:
    """A round of a setup, as the source would have it: short, and kept alive with ``changes``."""
    short: Round = {
        "per_s": 5000.0, "mean_ms": 18.0, "sd_ms": 6.0, "p50_ms": 17.0, "p99_ms": 40.0, "p999_ms": 80.0, "max_ms": 101.0,
        "connect_ms": 8.0, "server_us": 300.0, "client_us": 90.0, "wire_bytes": 1700.0, "segments": 10.0, "io_calls": 6.0,
        "disk_bytes": 0.0, "pss": [[0.0, 2e7], [2.0, 3e7]], "pss_begun_bytes": 2e7, "pss_bytes": 3e7, "busy": [],
        "slow": 0.0, "slow_ms": None, "first": 1000.0, "queue_ms": 0.0, "children": 108,
    }  # fmt: skip
    kept = short | {
        "per_s": 16000.0, "mean_ms": 5.0, "p999_ms": 900.0, "max_ms": 1409.0, "server_us": 100.0, "wire_bytes": 1500.0, "segments": 2.5,
        "io_calls": 4.0, "pss_bytes": 4e7, "first": 9.9, "slow": 9.0, "slow_ms": 320.0, "queue_ms": 300.0,
    } | changes  # fmt: skip
    if setup != FEW:
        kept |= {"slow": 0.0, "slow_ms": None, "queue_ms": 0.0} | changes
    return [
        {"step": f"{setup}, short", "round": number, **short},
        {"step": f"{setup}, kept alive", "round": number, **kept},
    ]


def traced(setup: str, short: int, kept: int) -> list[Round]:
    return [
        {"step": f"{setup}, {way}: system calls", "round": 0, "requests": 10, "opened": 10, "calls": {"read": n}, "all": n / 10}
        for way, n in (("short", short), ("kept alive", kept))
    ]


def concluded(rounds: list[Round]) -> Conclusions:
    return conclude(plan_of(EXPERIMENT, False, {}), rounds)


def verdict(rounds: list[Round], words: str) -> Claim:
    (found,) = [one for one in concluded(rounds).claims if words in one.claim]
    return found


WHOLE = [*itertools.chain(*(made(number, setup) for number in range(3) for setup in SETUPS)), *traced("Apache", 70, 40)]


@pytest.mark.parametrize("words", ["more requests", "less CPU", "less I/O", "fewer system calls", "more memory", "lose the tail"])
def test_what_is_so_in_every_round_holds(words: str) -> None:
    found = verdict(WHOLE, words)
    assert found.verdict == "holds"
    assert found.why.startswith("Apache")
    assert "Rule: " in found.why


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("more requests", {"per_s": 5100.0}),
        ("less CPU", {"server_us": 299.0}),
        ("less I/O", {"wire_bytes": 1700.0, "segments": 10.0, "io_calls": 6.0}),
        ("lose the tail", {"p999_ms": 80.0}),
    ],
)
def test_what_is_so_in_none_some_or_not_all_setups(words: str, changes: dict[str, Any]) -> None:
    none = [one for number in range(3) for setup in SETUPS for one in made(number, setup, **changes)]
    assert verdict(none, words).verdict == "does not hold"
    some_rounds = [*made(0, "Apache"), *made(1, "Apache", **changes), *made(2, "Apache")]
    assert verdict(some_rounds, words).verdict == "cannot say"
    one_setup = [one for number in range(3) for one in (*made(number, "Apache"), *made(number, "nginx", **changes))]
    assert verdict(one_setup, words).verdict == "holds in part"


def test_that_no_more_memory_is_taken_says_nothing_of_processes_that_all_stand_from_the_start() -> None:
    none = [one for number in range(3) for one in made(number, "Apache", pss_bytes=3e7)]
    found = verdict(none, "more memory")
    assert found.verdict == "cannot say"
    assert "a process forked for each kept connection, cannot show here" in found.why


def test_a_round_that_failed_is_in_no_table_and_no_claim() -> None:
    failed = [*WHOLE, *({**one, "round": 3, "per_s": 1.0, "failed": 7} for one in made(3, "Apache"))]
    assert concluded(failed) == concluded(WHOLE)
    failed[-1] = {**failed[-1], "failed": 0, "usable": False}
    assert concluded(failed) == concluded(WHOLE)


def test_the_tail_is_explained_where_littles_law_foretells_it() -> None:
    whole = [one for number in range(3) for setup in SETUPS for one in made(number, setup, p999_ms=30.0 if setup == "Apache" else 250.0)]
    found = verdict(whole, "waits for a child")
    assert found.verdict == "holds"
    assert "9.0 of 1,000 requests are slower than ten medians, where 9.9 are a connection's first, 0.91 times" in found.why
    assert "p99.9 is 8.33 times that with a child for each" in found.why
    assert "they take 320 ms, where Little's law says 300, 1.07 times" in found.why
    other = [one for number in range(3) for setup in SETUPS for one in made(number, setup, slow_ms=3000.0, slow=200.0, p999_ms=80.0)]
    assert verdict(other, "waits for a child").verdict == "does not hold"
    assert verdict([one for one in whole if "few" in one["step"]], "waits for a child").verdict == "holds"
    assert not [one for one in concluded([one for one in whole if "few" not in one["step"]]).claims if "waits for" in one.claim]


def test_a_round_without_a_slow_request_speaks_against_the_explanation() -> None:
    rounds = [one for number in range(3) for one in made(number, FEW, **({} if number else {"slow": 0.0, "slow_ms": None}))]
    found = verdict(rounds, "waits for a child")
    # How long the slow ones of the two others took is as foretold, how many there are is not known.
    assert found.verdict == "holds in part"
    assert "0.0 to 9.0 of 1,000 requests" in found.why


def test_the_most_frequent_calls_stand_beside_the_sources() -> None:
    (table,) = [one for one in concluded(WHOLE).tables if one.title.startswith("System calls")]
    rows = {row.label: row for row in table.rows}
    assert [row.label for row in table.rows][:2] == ["all", "read"]
    assert (rows["read"].values, rows["read"].source) == ({"short": [7.0], "kept alive": [4.0]}, {"short": 7.1617, "kept alive": 4.9572})
    # What the source's Apache called and this one does not.
    assert rows["getsockname"].values == {"short": [0.0], "kept alive": [0.0]}


def test_where_asyncli_was_the_limit_it_is_said_and_not_judged() -> None:
    busy = [*WHOLE, *made(3, "nginx", busy=["generator_saturated_cpu"], per_s=1.0, p999_ms=1.0)]
    assert concluded(busy).tables[0].caption.endswith(" asyncli itself was the limit of nginx, kept alive: the server can do more.")
    for words in ("more requests", "lose the tail"):
        found = verdict(busy, words)
        assert found.verdict == "holds"
        assert "Not judged, since asyncli was the limit: nginx." in found.why
        assert "nginx: " not in found.why
    # What a request costs the server is its own.
    assert "nginx: 0.33 times" in verdict(busy, "less CPU").why
    alone = [one for number in range(3) for one in made(number, "nginx", busy=["generator_saturated_cpu"])]
    assert verdict(alone, "more requests").verdict == "cannot say"


def test_of_any_part_of_the_rounds_something_is_said_and_never_nonsense() -> None:
    assert concluded([]) == Conclusions()
    bare = [{"step": one["step"], "round": one["round"]} for one in WHOLE]
    halves = [WHOLE[:at] for at in range(len(WHOLE))] + [WHOLE[at:] for at in range(len(WHOLE))]
    for part in [*halves, bare, [one for one in WHOLE if "kept" in one["step"]], *([one] for one in WHOLE)]:
        found = concluded(part)
        numbers = [value for table in found.tables for row in table.rows for values in row.values.values() for value in values]
        assert all(math.isfinite(value) for value in numbers)
        assert all(chart.lines for chart in found.charts)
        assert not [one.why for one in found.claims if "nan" in one.why.split() or "None" in one.why]
