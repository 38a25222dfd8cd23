"""Memory that no straight line shows: a server's that has it in advance, touched before it listens
or taken as one with the first connections; and one whose connections each cost more than the one
before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract import document
from fault_table import require_as_written
from programs import Program, recorded, serving_by

pytestmark = pytest.mark.measures

EACH, CONNECTIONS = 50_000, 400
ROSTER_ENTRY = 200
#: A cache that is full after five sixths of the connections.
CACHED, CACHED_OF = 32_000, 5 * CONNECTIONS // 6


def soaked(folder: Path, when: str) -> dict[str, Any]:
    """The JSON of a soak of that server, whose cost must reach to what each connection uses."""
    summary = soaked_on(folder, when, EACH)
    low, high = summary["cost"]["server_user"]["ci95"]
    assert low < EACH < high, summary["cost"]["server_user"]
    assert "earlier_memory" in {ceiling["name"] for ceiling in summary["forecast"]["ceilings"]}
    return summary


def soaked_on(
    folder: Path, mode: str, each: int, most: int = 2 * CONNECTIONS, ramp: str = "40/s"
) -> dict[str, Any]:
    with serving_by(Path(__file__).with_name("bare_server.py"), mode, each, most) as port:
        asked = [
            "soak",
            f"http://127.0.0.1:{port}/",
            "-c",
            str(CONNECTIONS),
            "-k",
            "4",
            "--ramp",
            ramp,
            "--hold",
            "6",
        ]
        asked += ["--baseline", "2", "--residue", "0.2", "--out", "run.db"]
        with Program(folder, *asked) as program:
            program.wait()
    return document(recorded(folder / "run.db"))


def test_the_cost_reaches_to_the_memory_that_it_had(tmp_path: Path) -> None:
    require_as_written(
        "test_the_cost_reaches_to_the_memory_that_it_had", soaked(tmp_path, "before")
    )


def test_the_cost_reaches_to_what_came_with_the_first(tmp_path: Path) -> None:
    require_as_written(
        "test_the_cost_reaches_to_what_came_with_the_first", soaked(tmp_path, "with the first")
    )


def test_each_connection_costs_more_than_the_one_before(tmp_path: Path) -> None:
    summary = soaked_on(tmp_path, "roster", ROSTER_ENTRY)
    last_ones = ROSTER_ENTRY * CONNECTIONS
    mean = last_ones / 2
    low, high = summary["cost"]["server_user"]["ci95"]
    # The end of the line is the middle of its last bin.
    assert low < mean < 0.97 * last_ones < high < 1.1 * last_ones
    (bent,) = (
        one
        for one in summary["findings"]
        if one["code"] == "cost_bent" and one["fields"]["cost"] == "server_user"
    )
    assert bent["fields"]["last_ones"] == pytest.approx(last_ones, rel=0.05)
    assert bent["fields"]["mean"] == pytest.approx(mean, rel=0.2)
    # No line says how many fit into memory.
    by_memory = [
        one for one in summary["forecast"]["ceilings"] if one["name"] in ("memory", "server_memory")
    ]
    assert [one["connections"] for one in by_memory] == [None] * len(by_memory)
    require_as_written("test_each_connection_costs_more_than_the_one_before", summary)


def test_a_cache_that_is_full_late_in_the_ramp(tmp_path: Path) -> None:
    """The last ones cost a quarter of what the line says."""
    summary = soaked_on(tmp_path, "cache", CACHED, CACHED_OF, "20/s")
    low, high = summary["cost"]["server_user"]["ci95"]
    assert low < CACHED / 4 < high, summary["cost"]["server_user"]
    (bent,) = (
        one
        for one in summary["findings"]
        if one["code"] == "cost_bent" and one["fields"]["cost"] == "server_user"
    )
    assert bent["fields"]["last_ones"] == pytest.approx(CACHED / 4, rel=0.2)
    require_as_written("test_a_cache_that_is_full_late_in_the_ramp", summary)
