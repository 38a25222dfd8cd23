"""The table of quantities: complete, and true to the documents that are made from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from synthetic_run import a_run

from asyncli.analysis.bench_result import BenchResult
from asyncli.core.adding import added_up
from asyncli.model.quantities import BENCH_QUANTITIES, QUANTITIES, Quantity, grows, is_counted, matches, quantity_of, so_far
from asyncli.model.records import Deaths, Tick
from asyncli.report.summary import Summary, summarise
from asyncli.report.thresholds import keys, parse

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(("of", "table"), [(Summary, QUANTITIES), (BenchResult, BENCH_QUANTITIES)])
def test_every_number_of_a_document_has_one_quantity(of: type[msgspec.Struct], table: Sequence[Quantity]) -> None:
    patterns = [quantity.key for quantity in table]
    assert len(set(patterns)) == len(patterns)
    known = keys(of)
    without = [key for key in known if sum(matches(pattern, key) for pattern in patterns) != 1]
    unused = [pattern for pattern in patterns if not any(matches(pattern, key) for key in known)]
    assert (without, unused) == ([], [])


def test_a_name_says_the_unit_that_the_table_has() -> None:
    """The contract's names end with their units."""
    units = {"bytes": "bytes", "ms": "ms", "us": "us", "s": "s", "minutes": "minutes"}
    for quantity in (*QUANTITIES, *BENCH_QUANTITIES):
        # p50 in latency_ms, baseline in cpu_s.
        for word in reversed(quantity.key.split(".")):
            words = word.partition("_per_")[0].removeprefix("per_s").split("_")
            said = [units[part] for part in words if part in units]
            if said:
                assert quantity.unit == said[0], quantity
                break


def with_losses() -> dict[str, Any]:
    """The JSON of a run with losses, failures and an error status, as plain data, and the sum of its ticks."""
    run = a_run(1_000)
    for number, (_, tick) in enumerate(run.ticks[5:9]):
        tick.deaths["reset"] = Deaths(count=number + 1)
        tick.failures["refused"] = 2
        tick.by_status[503] = 3
        tick.latency_us.add(12_345)
    return {"document": json.loads(msgspec.json.encode(summarise(run))), "total": added_up(Tick(), *(tick for _, tick in run.ticks))}


def test_what_is_counted_is_the_same_during_a_run_and_in_its_report() -> None:
    ended = with_losses()
    compared = 0
    for key, value in _flat(so_far(ended["total"])):
        assert is_counted(key), key
        if key == "connections.lost" or key.startswith("connections.opened"):
            assert value
        reported = ended["document"]
        for name in key.split("."):
            reported = reported[name]
        assert value == pytest.approx(reported, rel=0.01), key
        compared += 1
    assert compared >= 10


def _flat(document: dict[str, Any], where: str = "") -> list[tuple[str, Any]]:
    rows = []
    for name, value in document.items():
        key = f"{where}.{name}".lstrip(".")
        rows += _flat(value, key) if isinstance(value, dict) else [(key, value)]
    return rows


def test_what_may_fall_again_is_no_limit_that_ends_a_run() -> None:
    assert [key for key in ("connections.held", "heartbeats.latency_ms.p99", "cost.kernel.points") if grows(key)] == []


@pytest.mark.parametrize("limit", ["requests.per_s < 5k", "requests.per_s < 5k/s"])
def test_a_rate_of_a_bench_is_a_count_in_a_second(limit: str) -> None:
    assert parse(limit, BenchResult).bound == 5_000


def test_a_report_follows_the_published_schema() -> None:
    schema = json.loads((CONFIGS / "soak-json.schema.json").read_text(encoding="utf-8"))
    document = with_losses()["document"]
    jsonschema.validate(document, schema)
    document["connections"]["lost"] = "4"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
    lost = schema["properties"]["connections"]["properties"]["lost"]["anyOf"][0]
    assert lost["description"].startswith(quantity_of("connections.lost").about)
