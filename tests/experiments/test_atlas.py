"""The experiment atlas: a small run on real servers, and CPU times of a synthetic run."""

from __future__ import annotations

import pytest
from synthetic_run import a_run

from asyncli import experiments
from asyncli.experiments.atlas import CELLS, conclude, cpu_of, stream_cost
from asyncli.experiments.context import run
from asyncli.experiments.record import Rounds
from asyncli.lab import NAMES

SMALL = {"rounds": 1, "connections": 200, "plateaus": 3, "rest": "1s", "hold": "2s", "baseline": "1s", "keepalive": "4s"}


@pytest.mark.stores
async def test_each_cell_is_measured() -> None:
    experiment = experiments.load("atlas")
    plan = experiments.plan_of(experiment, True, {**SMALL, "only": ["redis", "builtin-tls"]})
    record = await run(experiment, plan, quick=True, say=lambda _: None)
    assert record.complete
    found = {one["step"]: one for one in record.rounds}
    assert set(found) == {"redis", "builtin-tls"}
    assert {one["held"] for one in found.values()} == {200}
    # A server in Python that shakes hands, and one in C that does not.
    assert found["builtin-tls"]["connect_us"] > 2 * found["redis"]["connect_us"] > 0
    (table,) = record.conclusions.tables
    assert [row.label for row in table.rows] == ["builtin, HTTPS", "redis, raw TCP"]


def test_a_stream_costs_what_more_of_them_take_by_round() -> None:
    rounds = Rounds(
        {"step": f"nginx-h2c-streams-{streams}", "round": number, "user": 3_000.0 + number + streams * 9_000.0, "user_half": streams / 2.0}
        for number in (1, 2) for streams in (10, 100)
    )  # fmt: skip
    assert stream_cost(rounds, "nginx-h2c-streams-10", "nginx-h2c-streams-100") == {"user": [9_000.0] * 2, "user_half": [55 / 90] * 2}
    streams = conclude(None, rounds).tables[1]
    assert [row.median("user") for row in streams.rows] == [9_000.0]


def test_a_figure_that_is_mostly_error_is_left_out() -> None:
    rounds = Rounds({"step": name, "round": 1, "user": 5_000.0, "user_half": half, "kernel": 4_000.0} for name, half in (("nginx", 5_000.0), ("haproxy", 4_999.0)))
    found = conclude(None, rounds)
    assert [(row.median("user"), row.median("kernel")) for row in found.tables[0].rows] == [(None, 4_000.0), (5_000.0, 4_000.0)]
    assert found.charts[0].categories == ["haproxy, HTTP"]


def test_every_cell_is_a_server_of_the_lab() -> None:
    assert {one.server for one in CELLS.values()} <= set(NAMES)


def test_cpu_times_without_readings_are_unknown() -> None:
    assert cpu_of(a_run(2_000, server=False)) == {"beat_us": None, "connect_us": None}
